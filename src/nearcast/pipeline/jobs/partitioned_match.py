"""Matches a subscription table that fits no worker: a join of events and boxes by grid cell.

      cuts of attribute A, at quantiles of the boxes' middles
     ┌──────┬───┬────────┐
     │  0   │ 1 │   2    │   A box goes to every cell it touches, an event to the one cell
B    ├──────┼───┼────────┤   that contains it. So each event meets all its boxes in one task,
     │  3   │ 4 │   5    │   each of them once, and ranking is exact. A cell with many events
     └──────┴───┴────────┘   is split over several tasks, each with all boxes of the cell;
                             small cells share a task (`task_balancing.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from nearcast.eventlog import DELIVERIES
from nearcast.model import LimitError, Space
from nearcast.pipeline.jobs.match import MatchQuery, deliveries, points_of
from nearcast.pipeline.jobs.task_balancing import CellShare, deal_out, keys_of_partitions
from nearcast.pipeline.session import tasks_at_once
from nearcast.pipeline.sources.column_types import EVENT_KEY
from nearcast.pipeline.sources.subscription_tables import KEY, hulls_of_table, matcher_of
from nearcast.pipeline.tables.transaction import spark_schema

CELL, TASK = "_cell", "_task"
_SAMPLE = 100_000
_EVENTS_A_TASK = 500_000
Batches = Iterable[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class Cells:
    """A grid over one or two attributes; a value at a cut belongs to the cell above it."""

    places: tuple[int, ...]
    cuts: tuple[np.ndarray, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of cells along each attribute."""
        return tuple(len(cuts) + 1 for cuts in self.cuts)

    def of_points(self, points: np.ndarray) -> np.ndarray:
        """Return the cell of each point."""
        at = [
            np.searchsorted(cuts, points[:, place], side="right")
            for place, cuts in zip(self.places, self.cuts, strict=True)
        ]
        return np.ravel_multi_index(at, self.shape)

    def of_boxes(self, lows: np.ndarray, highs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return arrays (row, cell) with an entry for every cell that a box touches."""
        rows = np.arange(len(lows))
        along: list[np.ndarray] = []
        for place, cuts in zip(self.places, self.cuts, strict=True):
            first = np.searchsorted(cuts, lows[rows, place], side="right")
            last = np.searchsorted(cuts, highs[rows, place], side="right")
            count = np.maximum(0, last - first + 1)  # an empty box touches no cell
            start = np.repeat(np.cumsum(count) - count, count)
            step = np.arange(count.sum()) - start
            along = [np.repeat(each, count) for each in along]
            along.append(np.repeat(first, count) + step)
            rows = np.repeat(rows, count)
        return rows, np.ravel_multi_index(along, self.shape)


def choose_cells(subscriptions: DataFrame, space: Space, cells: int, nullable: set[str]) -> Cells:
    """Return a grid that cuts the most selective attributes at quantiles of a sample of the boxes.

    An attribute in `nullable` is not cut: an event without it would belong to several cells.
    """
    sample = subscriptions.limit(_SAMPLE).toArrow()
    lows, highs = hulls_of_table(sample, space)
    ranges = np.array([attribute.high - attribute.low for attribute in space.attributes])
    shares = np.minimum(1.0, np.where(np.isfinite(highs - lows), highs - lows, np.inf) / ranges)
    order = [
        place
        for place in np.argsort(shares.mean(axis=0)).tolist()
        if space.attributes[place].name not in nullable
    ][:2]
    if not order:
        raise LimitError(
            "events leave out every attribute",
            where=f"space {space.name}",
            todo="Match with an index (a smaller subscription table), or set missing = 'none'",
        )
    each = max(2, round(cells ** (1 / len(order))))
    cuts = []
    for place in order:
        attribute = space.attributes[place]
        middles = (
            np.maximum(lows[:, place], attribute.low) + np.minimum(highs[:, place], attribute.high)
        ) / 2
        quantiles = np.quantile(middles, np.arange(1, each) / each) if len(middles) else []
        cuts.append(np.unique(quantiles))
    return Cells(tuple(order), tuple(cuts))


def match_by_place(
    events: DataFrame,
    subscriptions: DataFrame,
    space: Space,
    cells: Cells,
    query: MatchQuery,
    *,
    tasks: int | None = None,
) -> DataFrame:
    """Return one row per delivery; the schema is DELIVERIES.

    Deterministic under any partitioning of both tables. One shuffle of each, by task. Both tables
    are first counted by cell, so that tasks get equal shares. Without `tasks`, their number follows
    from the number of events and of cores.
    """
    placed = events.mapInArrow(_place_events(space, cells), _with_cell(events))
    copies = subscriptions.mapInArrow(_place_boxes(space, cells), _with_cell(subscriptions))
    loads = _loads(placed, copies)
    if tasks is None:
        at_once = 2 * tasks_at_once(events.sparkSession)
        tasks = max(at_once, sum(count for count, _ in loads.values()) // _EVENTS_A_TASK)
    pieces = deal_out(loads, tasks)
    keys = keys_of_partitions(tasks)
    dealt = placed.join(_tasks_of_cells(events, pieces, keys), CELL).withColumn(
        TASK,
        F.expr(f"element_at(_tasks, 1 + CAST(pmod(xxhash64({EVENT_KEY}), size(_tasks)) AS int))"),
    )
    pairs = {(piece.cell, keys[piece.task]) for piece in pieces}  # a task may have two pieces of it
    boxes = copies.join(_small(events, sorted(pairs), f"{CELL} int, {TASK} int"), CELL)
    meeting = (
        dealt.drop("_tasks").repartition(tasks, TASK).groupBy(TASK)
        .cogroup(boxes.repartition(tasks, TASK).groupBy(TASK))
    )  # fmt: skip
    return meeting.applyInArrow(_meet(space, query), spark_schema(DELIVERIES))


def _loads(placed: DataFrame, copies: DataFrame) -> dict[int, tuple[int, int]]:
    """Return the number of events and of boxes per cell; collects one row per cell."""
    events, boxes = (
        {row[CELL]: row["count"] for row in frame.groupBy(CELL).count().collect()}
        for frame in (placed, copies)
    )
    return {cell: (count, boxes.get(cell, 0)) for cell, count in events.items()}


def _tasks_of_cells(beside: DataFrame, pieces: list[CellShare], keys: list[int]) -> DataFrame:
    """Return for each cell the keys of the tasks that its events are distributed to."""
    dealt: dict[int, list[int]] = {}
    for piece in pieces:
        dealt.setdefault(piece.cell, []).append(keys[piece.task])
    return _small(beside, list(dealt.items()), f"{CELL} int, _tasks array<int>")


def _small(beside: DataFrame, rows: Sequence[tuple[object, ...]], schema: str) -> DataFrame:
    """Return a small DataFrame that Spark broadcasts to all workers."""
    return F.broadcast(beside.sparkSession.createDataFrame(rows, schema))


def _with_cell(frame: DataFrame) -> str:
    fields = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in frame.schema)
    return f"{fields}, {CELL} int"


def _place_events(space: Space, cells: Cells) -> Callable[[Batches], Batches]:
    def place(batches: Batches) -> Batches:
        for batch in batches:
            cell = cells.of_points(points_of(batch, space))
            yield batch.append_column(CELL, pa.array(cell, pa.int32()))

    return place


def _place_boxes(space: Space, cells: Cells) -> Callable[[Batches], Batches]:
    def place(batches: Batches) -> Batches:
        for batch in batches:
            rows, cell = cells.of_boxes(*hulls_of_table(pa.Table.from_batches([batch]), space))
            yield batch.take(pa.array(rows)).append_column(CELL, pa.array(cell, pa.int32()))

    return place


def _meet(space: Space, query: MatchQuery) -> Callable[[pa.Table, pa.Table], pa.Table]:
    def meet(events: pa.Table, subscriptions: pa.Table) -> pa.Table:
        parts = []
        for cell in pc.unique(events[CELL]):
            here = events.filter(pc.equal(events[CELL], cell))
            boxes = subscriptions.filter(pc.equal(subscriptions[CELL], cell))
            view = matcher_of(boxes.drop_columns([CELL, TASK]).sort_by(KEY), space)
            parts += [deliveries(batch, view, query) for batch in here.to_batches()]
        return pa.Table.from_batches(parts, DELIVERIES)

    return meet
