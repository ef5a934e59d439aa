"""Counts for plans: the time that users spend in each cell, and their moves between cells.

Each takes one pass over the positions and shuffles no position: workers sum into arrays of the size
of the grid, and only these sums are shuffled. A record is counted in parts (`RecordParts`): before
and after an instant, so that a layout is learned from one and judged on the other; by what people
do (stand, walk, ride); and, if a time zone is given, by blocks of the week. `plan.py` uses them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from nearcast.locality import Grid, Rect
from nearcast.locality.layout.movement import Movement
from nearcast.locality.layout.tracks import MobilityKind, mobility_kinds
from nearcast.locality.schedule.week import (
    BLOCKS,
    block_changes,
    block_spans_ms,
    blocks_of,
    time_zone,
)
from nearcast.locality.schedule.worth import WeekRecord
from nearcast.model.errors import MisuseError
from nearcast.pipeline.tables.worker_reads import map_rows
from nearcast.pipeline.tables.worker_writes import Batches, gathered

_ROWS_AT_ONCE = 65_536
_FIRST_FIX_MS = 1_000  # a trip's first position has no step, but its user was there
_DEGREE_PARTS = 100

_SIDES = {"lon": 360 * _DEGREE_PARTS + 2, "lat": 180 * _DEGREE_PARTS + 2}

SIDES = "side string, place bigint, n bigint"
CELLS = "part int, cell int, time_ms bigint, fixes bigint, first_us bigint, last_us bigint"
MOVES = "user_id string, at_us bigint, part int, pair bigint, before int, after int, moves bigint"

MOST_MOVES = 500_000
"""Rows of moves that are collected at most: the driver's memory has a bound."""
FOREVER_US = 2**63 - 1
_LEFT_OUT = 0.005


def central_space(positions: DataFrame) -> Rect:
    """Return the rectangle, in whole hundredths of a degree, that contains nearly all positions.

    A share of at most `_LEFT_OUT` lies beyond each side. The same under any partitioning.
    """
    sides = map_rows(positions, ("lon", "lat"), _count_sides, SIDES)
    rows = sides.groupBy("side", "place").agg(F.sum("n").alias("n")).collect()
    if not rows:  # at most 54,000 rows: hundredths of a degree
        raise MisuseError("no positions: the table is empty", todo="Give another --input")
    lon, lat = ({r["place"]: r["n"] for r in rows if r["side"] == side} for side in ("lon", "lat"))
    (west, east), (south, north) = _ends(lon), _ends(lat)
    return Rect(west, south, east, north)


def _count_sides(batches: Batches) -> Batches:
    """Count positions per hundredth of a degree, of longitude and of latitude."""
    counts = {side: np.zeros(most, np.int64) for side, most in _SIDES.items()}
    for batch in batches:
        for side, most in _SIDES.items():
            degrees = batch.column(side).to_numpy()
            places = np.floor(degrees * _DEGREE_PARTS).astype(np.int64) + most // 2
            counts[side] += np.bincount(places, minlength=most)
    for side, count in counts.items():
        places = np.flatnonzero(count)
        columns = [[side] * len(places), places - len(count) // 2, count[places]]
        yield pa.RecordBatch.from_arrays(
            [pa.array(one) for one in columns], names=["side", "place", "n"]
        )


def _ends(counts: dict[int, int]) -> tuple[float, float]:
    places = sorted(counts)
    share = np.cumsum([counts[place] for place in places]) / sum(counts.values())
    low = places[int(np.searchsorted(share, _LEFT_OUT, "right"))]
    high = places[min(int(np.searchsorted(share, 1 - _LEFT_OUT)), len(places) - 1)]
    return low / _DEGREE_PARTS, (high + 1) / _DEGREE_PARTS


# --- movement -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RecordParts:
    """How a record is divided into parts; each position belongs to one."""

    until_us: int = FOREVER_US  # later positions are held out
    zone: str | None = None  # None: the hours of the week are not told apart

    def numbers(
        self, t_us: np.ndarray, step_s: np.ndarray, step_m: np.ndarray
    ) -> NDArray[np.int64]:
        """Return the part of each position: held out or not, block of the week, kind."""
        found = (t_us > self.until_us).astype(np.int64) * BLOCKS
        if self.zone is not None:
            found += blocks_of(t_us, time_zone(self.zone))
        return found * len(MobilityKind) + mobility_kinds(step_s, step_m)

    @staticmethod
    def part(
        *, late: bool | None = None, block: int | None = None, kind: int | None = None
    ) -> set[int]:
        """Return the numbers of all parts that are so; None: any."""
        return {
            (one * BLOCKS + other) * len(MobilityKind) + each
            for one in ((0, 1) if late is None else (int(late),))
            for other in (range(BLOCKS) if block is None else (block,))
            for each in (range(len(MobilityKind)) if kind is None else (kind,))
        }


@dataclass(frozen=True, slots=True)
class Counted:
    """What was counted: all of the record, and its parts."""

    whole: Movement
    early: Movement
    late: Movement
    kinds: tuple[Movement, ...]  # of those who stand, walk and ride
    week: tuple[WeekRecord, WeekRecord] | None  # early and late; None without a time zone
    fixes: int
    left_out: int  # positions outside the space


def record_ends(positions: DataFrame) -> tuple[int, int]:
    """Return the first and the last instant of a record, in microseconds; (0, 0) if it is empty."""
    ends = positions.agg(
        F.min(F.unix_micros("t")).alias("first"), F.max(F.unix_micros("t")).alias("last")
    ).first()
    assert ends is not None
    return (0, 0) if ends["first"] is None else (ends["first"], ends["last"])


def count_movement(
    positions: DataFrame, space: Rect, depth: int, parts: RecordParts | None = None
) -> Counted:
    """Count the movement in the parts of a record. The same under any partitioning.

    Collects at most one row per part and cell, and per part and pair of cells between which
    somebody moved.
    """
    parts = parts or RecordParts()
    rows = time_per_cell(positions, space, depth, parts).toPandas()
    moves = collected_moves(moves_between_cells(positions, space, depth, parts), depth)
    inside = rows[rows["cell"] >= 0]

    def movement(wanted: set[int]) -> Movement:
        some = moves[moves["part"].isin(wanted)]
        joined = some.groupby(["low", "high"], as_index=False)["moves"].sum()
        mine = rows[rows["part"].isin(wanted)]
        return _movement(mine[mine["cell"] >= 0], joined, depth, _span_us(mine))

    early, late = (movement(parts.part(late=one)) for one in (False, True))
    whole = movement(parts.part())
    return Counted(
        whole,
        early,
        late,
        tuple(
            replace(movement(parts.part(kind=kind)), span_ms=whole.span_ms) for kind in MobilityKind
        ),
        None if parts.zone is None else _week(rows, movement, parts),
        int(inside["fixes"].sum()),
        int(rows[rows["cell"] < 0]["fixes"].sum()),
    )


def collected_moves(moves: DataFrame, depth: int, most_rows: int = MOST_MOVES) -> Any:
    """Collect moves between cells, at most `most_rows` rows, however many there are.

    If there are more, the ends of moves are rounded down to every second column and row, then to
    every fourth, and so on.
    """
    kept = moves.persist()
    side, step = 1 << depth, 1

    def rounded(cell: Column) -> Column:
        row, column = F.floor(cell / side), cell % side
        return (row - row % step) * side + column - column % step

    found = kept
    while found.limit(most_rows + 1).count() > most_rows and step < side:
        step *= 2
        low, high = rounded(F.col("low")), rounded(F.col("high"))
        found = (
            kept.where(low != high)
            .groupBy("part", F.least(low, high).alias("low"), F.greatest(low, high).alias("high"))
            .agg(F.sum("moves").alias("moves"))
        )
    rows = found.toPandas()
    kept.unpersist()
    return rows


def _week(
    rows: Any, movement: Callable[[set[int]], Movement], parts: RecordParts
) -> tuple[WeekRecord, WeekRecord]:
    """Return the blocks of the week, early and late; the load of a block is that of its hours."""
    zone = time_zone(str(parts.zone))
    found = []
    for late in (False, True):
        mine = rows[rows["part"].isin(parts.part(late=late))]
        ends = (int(mine["first_us"].min()), int(mine["last_us"].max())) if len(mine) else (0, 0)
        spans_ms = block_spans_ms(*ends, zone)
        blocks = [
            replace(
                movement(parts.part(late=late, block=block)), span_ms=max(1_000, spans_ms[block])
            )
            for block in range(BLOCKS)
        ]
        found.append(WeekRecord(blocks, block_changes(*ends, zone) if len(mine) else Counter()))
    return found[0], found[1]


def _span_us(rows: Any) -> float:
    return float(rows["last_us"].max() - rows["first_us"].min()) if len(rows) else 0.0


def _movement(cells: Any, moves: Any, depth: int, span_us: float) -> Movement:
    side = 1 << depth
    time_ms = np.zeros(side * side, np.int64)
    np.add.at(time_ms, cells["cell"].to_numpy(), cells["time_ms"].to_numpy())
    low, high, count = (moves[name].to_numpy(np.int64) for name in ("low", "high", "moves"))
    span_ms = max(1_000, round(span_us / 1e3))
    return Movement(depth, time_ms.reshape(side, side), low, high, count, span_ms)


def time_per_cell(
    positions: DataFrame, space: Rect, depth: int, parts: RecordParts | None = None
) -> DataFrame:
    """Return the time spent in each cell of the grid, in milliseconds, by part of the record.

    Cell -1 counts positions outside the space. Each row has the first and last instant of its
    positions. A step counts where it ends, as in `regions`, and a trip's first position counts one
    second. One shuffle, of partial sums.
    """
    columns = ("lon", "lat", "step_s", "step_m", "t")
    sums = map_rows(positions, columns, _cell_counter(space, depth, parts or RecordParts()), CELLS)
    return sums.groupBy("part", "cell").agg(
        F.sum("time_ms").alias("time_ms"),
        F.sum("fixes").alias("fixes"),
        F.min("first_us").alias("first_us"),
        F.max("last_us").alias("last_us"),
    )


def _cell_counter(space: Rect, depth: int, parts: RecordParts) -> Callable[[Batches], Batches]:
    def count(batches: Batches) -> Batches:
        grid = Grid.over(space, depth)
        tallies: dict[int, _CellTally] = {}
        names = ("lon", "lat", "step_s", "step_m")
        for batch in gathered(batches, _ROWS_AT_ONCE):
            lon, lat, step_s, step_m = (batch.column(name).to_numpy() for name in names)
            t_us = batch.column("t").cast(pa.int64()).to_numpy()
            cell, part = grid.cells(lon, lat), parts.numbers(t_us, step_s, step_m)
            step_ms = np.rint(step_s * 1e3).astype(np.int64)
            step_ms[step_ms <= 0] = _FIRST_FIX_MS
            for number in np.unique(part).tolist():
                chosen = part == number
                tally = tallies.setdefault(number, _CellTally(grid.side**2))
                tally.add(cell[chosen], step_ms[chosen], t_us[chosen])
        for number, tally in tallies.items():
            yield tally.rows(number)

    return count


class _CellTally:
    """Sums positions in arrays of the size of the grid; O(1) per position."""

    def __init__(self, cells: int) -> None:
        # The last place is for positions outside the space, whose cell is -1.
        self._time_ms, self._fixes = np.zeros((2, cells + 1), np.int64)
        self._ends: list[int] = []

    def add(self, cell: np.ndarray, step_ms: np.ndarray, t_us: np.ndarray) -> None:
        np.add.at(self._time_ms, cell, step_ms)
        np.add.at(self._fixes, cell, 1)
        if len(t_us):
            self._ends = [*self._ends, int(t_us.min()), int(t_us.max())]
            self._ends = [min(self._ends), max(self._ends)]

    def rows(self, part: int) -> pa.RecordBatch:
        places = np.flatnonzero(self._fixes)
        cells = np.where(places == len(self._fixes) - 1, -1, places)
        first, last = self._ends or (0, 0)
        columns = {
            "part": pa.array(np.full(len(cells), part, np.int32)),
            "cell": pa.array(cells.astype(np.int32)),
            "time_ms": pa.array(self._time_ms[places]),
            "fixes": pa.array(self._fixes[places]),
            "first_us": pa.array(np.full(len(cells), first, np.int64)),
            "last_us": pa.array(np.full(len(cells), last, np.int64)),
        }
        return pa.RecordBatch.from_pydict(columns)


# --- moves between cells --------------------------------------------------------------------------


def moves_between_cells(
    positions: DataFrame, space: Rect, depth: int, parts: RecordParts | None = None
) -> DataFrame:
    """Return how often users moved between two cells within a trip, by part of the record.

    Columns: `part` (of the arrival), `low` < `high` (cells; both directions count together),
    `moves`. A position that directly follows its predecessor in a batch is counted where it is
    read; the others are joined with theirs in a shuffle, which is tiny if the table is sorted as
    `ingest` writes it.
    """
    columns = ("user_id", "t", "lon", "lat", "step_s", "step_m")
    counter = _move_counter(space, depth, parts or RecordParts())
    found = map_rows(positions, columns, counter, MOVES)
    met = found.groupBy("user_id", "at_us", "pair").agg(
        F.max("part").alias("part"),
        F.max("before").alias("before"),
        F.max("after").alias("after"),
        F.sum("moves").alias("n"),
    )
    moved = (F.col("before") >= 0) & (F.col("after") >= 0) & (F.col("before") != F.col("after"))
    return (
        met.where(moved)
        .groupBy(
            "part",
            F.least("before", "after").alias("low"),
            F.greatest("before", "after").alias("high"),
        )
        .agg(F.sum("n").alias("moves"))
    )


def _move_counter(space: Rect, depth: int, parts: RecordParts) -> Callable[[Batches], Batches]:
    def count(batches: Batches) -> Batches:
        grid = Grid.over(space, depth)
        for batch in gathered(batches, _ROWS_AT_ONCE):
            if batch.num_rows:
                yield from _moves(batch, grid, parts)

    return count


def _moves(batch: pa.RecordBatch, grid: Grid, parts: RecordParts) -> Batches:
    users = batch.column("user_id")
    t_us = batch.column("t").cast(pa.int64()).to_numpy()
    step_s = batch.column("step_s").to_numpy()
    step_us = np.rint(step_s * 1e6).astype(np.int64)
    follows = np.zeros(len(t_us), np.bool_)
    same_user = pc.equal(users[1:], users[:-1]).to_numpy(zero_copy_only=False)
    follows[1:] = same_user & (step_us[1:] > 0) & (t_us[1:] - step_us[1:] == t_us[:-1])
    arrives = np.flatnonzero(~follows & (step_us > 0))
    departs = np.flatnonzero(~np.append(follows[1:], False))
    cell = grid.cells(batch.column("lon").to_numpy(), batch.column("lat").to_numpy())
    part = parts.numbers(t_us, step_s, batch.column("step_m").to_numpy())
    yield _counted(cell, follows, part, grid.side**2)
    # An arrival counts one move, a departure alone none; the part is that of the arrival.
    yield _rows(
        len(departs),
        user_id=users.take(pa.array(departs)),
        at_us=pa.array(t_us[departs]),
        before=pa.array(cell[departs]),
        moves=pa.array(np.zeros(len(departs), np.int64)),
    )
    yield _rows(
        len(arrives),
        user_id=users.take(pa.array(arrives)),
        at_us=pa.array((t_us - step_us)[arrives]),
        part=pa.array(part[arrives]),
        after=pa.array(cell[arrives]),
        moves=pa.array(np.ones(len(arrives), np.int64)),
    )


def _counted(cell: np.ndarray, follows: np.ndarray, part: np.ndarray, cells: int) -> pa.RecordBatch:
    before, after = cell[:-1], cell[1:]
    moved = follows[1:] & (before != after) & (before >= 0) & (after >= 0)
    keys = (part[1:][moved] * cells + before[moved]) * cells + after[moved]
    pairs, counts = np.unique(keys, return_counts=True)
    return _rows(
        len(pairs),
        pair=pa.array(pairs),
        part=pa.array(pairs // cells // cells),
        before=pa.array(pairs // cells % cells),
        after=pa.array(pairs % cells),
        moves=pa.array(counts.astype(np.int64)),
    )


_TYPES = {
    "user_id": pa.string(),
    "at_us": pa.int64(),
    "part": pa.int32(),
    "pair": pa.int64(),
    "before": pa.int32(),
    "after": pa.int32(),
    "moves": pa.int64(),
}


def _rows(count: int, **columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            name: columns[name].cast(kind) if name in columns else pa.nulls(count, kind)
            for name, kind in _TYPES.items()
        }
    )
