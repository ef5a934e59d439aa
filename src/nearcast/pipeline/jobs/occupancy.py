"""Counts for plans: the time that users spend in each place, and their moves between leaves.

Both take one pass over the positions and shuffle no position: workers sum into arrays of the size
of the grid or of the plan, and only these sums are shuffled. `plan.py` uses both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from nearcast.locality import CellCounts, Plan, Rect, plan_from_json, plan_to_json
from nearcast.model.errors import MisuseError
from nearcast.pipeline.tables.worker_reads import map_rows
from nearcast.pipeline.tables.worker_writes import Batches, gathered

_ROWS_AT_ONCE = 65_536
_FIRST_FIX_MS = 1_000  # a trip's first position has no step, but its user was there
_DEGREE_PARTS = 100

_SIDES = {"lon": 360 * _DEGREE_PARTS + 2, "lat": 180 * _DEGREE_PARTS + 2}

SIDES = "side string, place bigint, n bigint"
CELLS = (
    "cell int, region int, outside_ms bigint, inside_ms bigint, fixes bigint, "
    "first_us bigint, last_us bigint"
)
MOVES = "user_id string, at_us bigint, plan int, pair bigint, before int, after int, moves bigint"

_LEFT_OUT = 0.005
Flows = dict[tuple[int, int], int]


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


# --- time per cell --------------------------------------------------------------------------------


def time_per_cell(
    positions: DataFrame, space: Rect, regions: Sequence[Rect], depth: int
) -> DataFrame:
    """Return the time spent in each cell of the grid and in each region, in milliseconds.

    A row is a cell (`region` is -1) or a region (`cell` is -1). The row with neither counts
    positions outside the space and has the first and last timestamp of the record. A step counts
    where it ends, as in `regions`, and a trip's first position counts one second. The same under
    any partitioning; one shuffle, of partial sums.
    """
    columns = ("lon", "lat", "step_s", "t")
    sums = map_rows(positions, columns, _cell_counter(space, regions, depth), CELLS)
    added = [F.sum(name).alias(name) for name in ("outside_ms", "inside_ms", "fixes")]
    ends = [F.min("first_us").alias("first_us"), F.max("last_us").alias("last_us")]
    return sums.groupBy("cell", "region").agg(*added, *ends)


def _cell_counter(space: Rect, regions: Sequence[Rect], depth: int) -> Callable[[Batches], Batches]:
    # A plan of the regions alone finds the region that contains a position.
    bare = plan_to_json(Plan.build(space, regions, CellCounts.empty(depth, len(regions))))

    def count(batches: Batches) -> Batches:
        tally = CellTally(plan_from_json(bare))
        for batch in gathered(batches, _ROWS_AT_ONCE):
            lon, lat, step_s = (batch.column(name).to_numpy() for name in ("lon", "lat", "step_s"))
            tally.add(lon, lat, step_s)
            tally.note_instants(batch.column("t").cast(pa.int64()).to_numpy())
        yield tally.rows()

    return count


class CellTally:
    """Sums positions in arrays of the size of the grid; O(1) per position."""

    def __init__(self, regions: Plan) -> None:
        self._plan = regions
        cells = regions.grid.side**2
        self._outside, self._inside, self._fixes = np.zeros((3, cells), np.int64)
        self._region_ms, self._region_fixes = np.zeros((2, regions.r_count), np.int64)
        self._left_out = 0
        self._first_us: int | None = None
        self._last_us: int | None = None

    def note_instants(self, t_us: np.ndarray) -> None:
        """Extend the first and last timestamp of the record."""
        if len(t_us):
            first, last = int(t_us.min()), int(t_us.max())
            self._first_us = first if self._first_us is None else min(first, self._first_us)
            self._last_us = last if self._last_us is None else max(last, self._last_us)

    def add(self, lon: np.ndarray, lat: np.ndarray, step_s: np.ndarray) -> None:
        """Add positions with the seconds since the previous one of their trip."""
        plan, grid = self._plan, self._plan.grid
        leaf = plan.leaf_numbers_at(lon, lat)
        known = leaf >= 0
        self._left_out += int(len(leaf) - known.sum())
        leaf, lon, lat = leaf[known], lon[known], lat[known]
        step_ms = np.rint(step_s[known] * 1e3).astype(np.int64)
        step_ms[step_ms <= 0] = _FIRST_FIX_MS
        last = grid.side - 1
        column = np.minimum(np.searchsorted(grid.xs, lon, "right") - 1, last)
        row = np.minimum(np.searchsorted(grid.ys, lat, "right") - 1, last)
        cell = row * grid.side + column
        inside = leaf < plan.r_count
        np.add.at(self._inside, cell[inside], step_ms[inside])
        np.add.at(self._outside, cell[~inside], step_ms[~inside])
        np.add.at(self._fixes, cell, 1)
        np.add.at(self._region_ms, leaf[inside], step_ms[inside])
        np.add.at(self._region_fixes, leaf[inside], 1)

    def rows(self) -> pa.RecordBatch:
        """Return the cells and regions with positions, and the row for those outside the space."""
        cells, regions = np.flatnonzero(self._fixes), np.flatnonzero(self._region_fixes)
        nowhere, nothing = np.array([-1]), np.zeros(1, np.int64)
        columns = {
            "cell": (cells, np.full(len(regions), -1), nowhere),
            "region": (np.full(len(cells), -1), regions, nowhere),
            "outside_ms": (self._outside[cells], np.zeros(len(regions), np.int64), nothing),
            "inside_ms": (self._inside[cells], self._region_ms[regions], nothing),
            "fixes": (self._fixes[cells], self._region_fixes[regions], nothing + self._left_out),
        }
        kinds = {"cell": pa.int32(), "region": pa.int32()}
        arrays = {
            name: pa.array(np.concatenate(parts), kinds.get(name, pa.int64()))
            for name, parts in columns.items()
        }
        elsewhere = [None] * (len(cells) + len(regions))
        for name, end in (("first_us", self._first_us), ("last_us", self._last_us)):
            arrays[name] = pa.array([*elsewhere, end], pa.int64())
        return pa.RecordBatch.from_pydict(arrays)


# --- moves between leaves -------------------------------------------------------------------------


def moves_between_leaves(positions: DataFrame, plans: Sequence[Plan]) -> DataFrame:
    """Return how often users moved between two leaves within a trip, for each plan.

    Columns: `plan` (its place in `plans`), `before` < `after` (leaf numbers; both directions count
    together), `moves`. The same under any partitioning of `positions`. A position that directly
    follows its predecessor in a batch is counted where it is read; the others are joined with
    theirs in a shuffle, which is tiny if the table is sorted as `ingest` writes it.
    """
    columns = ("user_id", "t", "lon", "lat", "step_s")
    found = map_rows(positions, columns, _move_counter(plans), MOVES)
    met = found.groupBy("user_id", "at_us", "plan", "pair").agg(
        F.max("before").alias("before"), F.max("after").alias("after"), F.sum("moves").alias("n")
    )
    moved = (F.col("before") >= 0) & (F.col("after") >= 0) & (F.col("before") != F.col("after"))
    return (
        met.where(moved)
        .groupBy(
            "plan",
            F.least("before", "after").alias("before"),
            F.greatest("before", "after").alias("after"),
        )
        .agg(F.sum("n").alias("moves"))
    )


def collect_moves(moves: DataFrame, plans: int) -> list[Flows]:
    """Collect the rows of `moves_between_leaves`, as many as the plans have pairs of leaves."""
    found: list[Flows] = [{} for _ in range(plans)]
    for row in moves.collect():
        found[row["plan"]][row["before"], row["after"]] = row["moves"]
    return found


def _move_counter(plans: Sequence[Plan]) -> Callable[[Batches], Batches]:
    texts = [plan_to_json(plan) for plan in plans]

    def count(batches: Batches) -> Batches:
        known = [plan_from_json(text) for text in texts]
        for batch in gathered(batches, _ROWS_AT_ONCE):
            if batch.num_rows:
                yield from _moves(batch, known)

    return count


def _moves(batch: pa.RecordBatch, plans: Sequence[Plan]) -> Batches:
    users = batch.column("user_id")
    t_us = batch.column("t").cast(pa.int64()).to_numpy()
    lon, lat = batch.column("lon").to_numpy(), batch.column("lat").to_numpy()
    step_us = np.rint(batch.column("step_s").to_numpy() * 1e6).astype(np.int64)
    follows = np.zeros(len(t_us), np.bool_)
    same_user = pc.equal(users[1:], users[:-1]).to_numpy(zero_copy_only=False)
    follows[1:] = same_user & (step_us[1:] > 0) & (t_us[1:] - step_us[1:] == t_us[:-1])
    arrives = np.flatnonzero(~follows & (step_us > 0))
    departs = np.flatnonzero(~np.append(follows[1:], False))
    for number, plan in enumerate(plans):
        leaf = plan.leaf_numbers_at(lon, lat)
        yield _counted(number, leaf, follows, len(plan.leaves))
        yield _loose(number, users, departs, t_us, before=leaf)
        yield _loose(number, users, arrives, t_us - step_us, after=leaf)


def _counted(number: int, leaf: np.ndarray, follows: np.ndarray, leaves: int) -> pa.RecordBatch:
    before, after = leaf[:-1].astype(np.int64), leaf[1:].astype(np.int64)
    moved = follows[1:] & (before != after) & (before >= 0) & (after >= 0)
    pairs, counts = np.unique(before[moved] * leaves + after[moved], return_counts=True)
    return _rows(
        number,
        len(pairs),
        pair=pa.array(pairs),
        before=pa.array((pairs // leaves).astype(np.int32)),
        after=pa.array((pairs % leaves).astype(np.int32)),
        moves=pa.array(counts.astype(np.int64)),
    )


def _loose(
    number: int, users: pa.Array, chosen: np.ndarray, at_us: np.ndarray, **side: np.ndarray
) -> pa.RecordBatch:
    """Return positions that must be joined with one of another batch, keyed by user and time."""
    ((name, leaf),) = side.items()
    # An arrival counts one move, a departure alone none.
    moves = np.full(len(chosen), int(name == "after"), np.int64)
    return _rows(
        number,
        len(chosen),
        user_id=users.take(pa.array(chosen)),
        at_us=pa.array(at_us[chosen]),
        moves=pa.array(moves),
        **{name: pa.array(leaf[chosen].astype(np.int32))},
    )


_TYPES = {
    "user_id": pa.string(),
    "at_us": pa.int64(),
    "plan": pa.int32(),
    "pair": pa.int64(),
    "before": pa.int32(),
    "after": pa.int32(),
    "moves": pa.int64(),
}


def _rows(number: int, count: int, **columns: pa.Array) -> pa.RecordBatch:
    columns["plan"] = pa.array(np.full(count, number, np.int32))
    return pa.RecordBatch.from_pydict(
        {
            name: columns[name].cast(kind) if name in columns else pa.nulls(count, kind)
            for name, kind in _TYPES.items()
        }
    )
