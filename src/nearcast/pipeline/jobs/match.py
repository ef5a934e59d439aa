"""`match`: events × subscriptions → deliveries, exact, optionally the k best per event.

Where the subscription table fits a worker, it travels to all workers, and each process builds an
index of it (`shipped_subscriptions.py`). Where it does not, events and subscriptions are joined by
place (`partitioned_match.py`). `match_frames.py` checks and chooses one of the two, `match_job.py`
reads and writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from nearcast.eventlog import DELIVERIES
from nearcast.matching import MatcherView, open_matcher
from nearcast.matching.ranking import Rank
from nearcast.model import MISSING, Event, MisuseError, Space
from nearcast.pipeline.jobs.shipped_subscriptions import ShippedSubscriptions, matcher_of_shipped
from nearcast.pipeline.sources.column_types import EVENT_KEY
from nearcast.pipeline.sources.subscription_tables import KEY
from nearcast.pipeline.tables.worker_writes import Batches, gathered

# Extra columns; a space's attribute cannot have such a name.
REASON = "why not"
TOPIC = "its topic"
EVENTS = "events"
COUNTS = pa.schema({KEY: pa.int64(), EVENTS: pa.int64()})
PACKED_COUNTS = pa.schema({"part": pa.int32(), KEY: pa.binary(), EVENTS: pa.binary()})
_NO_COUNTS = COUNTS.empty_table()
_SUM_ROWS = 4_000_000
_EVENTS_AT_ONCE = 65_536
_COUNTED_AT_ONCE = 524_288


@dataclass(frozen=True, slots=True)
class MatchQuery:
    """What to compute for each event: all matches, or the k best."""

    space: str
    topic: str
    k: int | None = None
    rank: Rank = "narrowest"


def matched_from(
    index: str, query: MatchQuery, batches: Batches
) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
    """Yield large batches of events, each with its deliveries; for workers.

    `index` is a saved matcher at a path that workers can read.
    """
    view = _opened(index)
    for batch in gathered(batches, _EVENTS_AT_ONCE):
        yield batch, deliveries(batch, view, query)


def deliveries_of(shipped: ShippedSubscriptions, query: MatchQuery) -> Callable[[Batches], Batches]:
    """Return a worker function from batches of events to batches of deliveries."""

    def deliver(batches: Batches) -> Batches:
        view = matcher_of_shipped(shipped)
        for batch in gathered(batches, _EVENTS_AT_ONCE):
            yield deliveries(batch, view, query)

    return deliver


def counts_of(
    shipped: ShippedSubscriptions, query: MatchQuery, parts: int
) -> Callable[[Batches], Batches]:
    """Return a worker function from batches of events to how often each subscription matches.

    A task returns one row for each of `parts` parts of the subscriptions, with keys and counts as
    bytes: rows cost Java more than counting costs the worker. `added_up` makes rows of them.
    """

    def count(batches: Batches) -> Batches:
        view = matcher_of_shipped(shipped)
        sums = _summed(_counts(b, view, query) for b in gathered(batches, _COUNTED_AT_ONCE))
        part_of = sums.column(KEY).to_numpy() % parts
        for part in range(parts):
            mine = sums.filter(part_of == part) if parts > 1 else sums
            columns = [[part], *([column.to_numpy().tobytes()] for column in mine.columns)]
            if mine.num_rows:
                yield pa.RecordBatch.from_arrays(
                    [pa.array(c, f.type) for c, f in zip(columns, PACKED_COUNTS, strict=True)],
                    schema=PACKED_COUNTS,
                )

    return count


def added_up(batches: Batches) -> Batches:
    """Add up what tasks counted in some parts of the subscriptions; schema COUNTS; for workers."""
    yield from _summed(
        tuple(np.frombuffer(column[row].as_buffer(), np.int64) for column in batch.columns[1:])
        for batch in batches
        for row in range(len(batch))
    ).to_batches()


def _summed(found: Iterable[tuple[np.ndarray, ...]]) -> pa.Table:
    """Return keys and counts in which each key is once; sums up as they come, to bound memory."""
    total = _NO_COUNTS
    for columns in found:
        total = pa.concat_tables([total, pa.Table.from_arrays(list(columns), schema=COUNTS)])
        if total.num_rows > _SUM_ROWS:
            total = _each_key_once(total)
    return _each_key_once(total)


def _each_key_once(total: pa.Table) -> pa.Table:
    sums = total.group_by(KEY).aggregate([(EVENTS, "sum")]).rename_columns([KEY, EVENTS])
    return sums.combine_chunks()


def _counts(
    batch: pa.RecordBatch, view: MatcherView, query: MatchQuery
) -> tuple[np.ndarray, np.ndarray]:
    points = points_of(batch, view.spaces[query.space])
    if np.isnan(points).any():  # a missing value that means any value
        keys = deliveries(batch, view, query).column(KEY).to_numpy()
        return np.unique(keys, return_counts=True)
    return view.count_points(query.space, query.topic, points)


@lru_cache(maxsize=2)
def _opened(index: str) -> MatcherView:
    """Open an index once per worker process."""
    return open_matcher(index)


def deliveries(batch: pa.RecordBatch, view: MatcherView, query: MatchQuery) -> pa.RecordBatch:
    """Return the deliveries of a batch's events; a column TOPIC gives each event its own topic.

    Complexity: that of the matcher, once for each topic in the batch.
    """
    if TOPIC in batch.schema.names:
        return _joined(
            [
                deliveries(part, view, replace(query, topic=topic))
                for topic, part in _by_topic(batch)
            ]
        )
    space = view.spaces[query.space]
    points = points_of(batch, space)
    ids = batch.column(EVENT_KEY).cast(pa.int64()).to_numpy()
    boxed = np.isnan(points).any(axis=1)  # a missing value that means any value
    if boxed.any():
        parts = [
            _boxed(ids, points, boxed, view, query),
            _plain(ids, points, ~boxed, view, query),
        ]
        return _joined(parts)
    return _plain(ids, points, np.ones(len(ids), np.bool_), view, query)


def _by_topic(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    topics = batch.column(TOPIC)
    for topic in topics.unique().to_pylist():
        yield topic, batch.filter(pc.equal(topics, topic)).drop_columns([TOPIC])


def _joined(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.concat_batches(parts) if parts else _rows(*(np.empty(0, np.int64),) * 3)


def _plain(
    ids: np.ndarray, points: np.ndarray, chosen: np.ndarray, view: MatcherView, query: MatchQuery
) -> pa.RecordBatch:
    ids, points = ids[chosen], points[chosen]
    if query.k is None:
        offsets, keys = view.match_points(query.space, query.topic, points)
        return _rows(np.repeat(ids, np.diff(offsets)), keys, np.zeros(len(keys), np.int32))
    best = view.top_points(query.space, query.topic, points, query.k, query.rank)
    at, rank = np.nonzero(best >= 0)
    return _rows(ids[at], best[at, rank], rank.astype(np.int32) + 1)


def _boxed(
    ids: np.ndarray, points: np.ndarray, chosen: np.ndarray, view: MatcherView, query: MatchQuery
) -> pa.RecordBatch:
    """Match, one by one, events whose missing values mean any value."""
    space = view.spaces[query.space]
    rows: list[tuple[int, int, int]] = []
    for at in np.flatnonzero(chosen).tolist():
        values = tuple(None if np.isnan(v) else v for v in points[at].tolist())
        event = Event(query.topic, space, values)
        if query.k is None:
            rows += [(ids[at], key, 0) for key in view.match(event)]
        else:
            best = view.top(event, query.k, query.rank)
            rows += [(ids[at], match.key, rank) for rank, match in enumerate(best, start=1)]
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    return _rows(*(np.array(column, np.int64) for column in columns))


def _rows(ids: np.ndarray, keys: np.ndarray, ranks: np.ndarray) -> pa.RecordBatch:
    arrays = [
        pa.array(ids, pa.int64()),
        pa.array(keys, pa.int64()),
        pa.array(ranks.astype(np.int32)),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=DELIVERIES)


def points_of(batch: pa.RecordBatch, space: Space) -> np.ndarray:
    """Return the coordinates; a missing value is MISSING, or NaN where it means any value."""
    missing = MISSING if space.missing == "none" else np.nan
    points = np.empty((batch.num_rows, space.dimensions))
    for place, attribute in enumerate(space.attributes):
        if attribute.name not in batch.schema.names:
            points[:, place] = missing
            continue
        column = batch.column(attribute.name)
        if attribute.is_category:
            column = pc.index_in(column, pa.array(attribute.categories))
        points[:, place] = pc.fill_null(column.cast(pa.float64()), missing)
    return points


def matchable(batch: pa.RecordBatch, space: Space) -> pa.RecordBatch:
    """Return the events that can be matched: those for which `why_not` is null."""
    keep = np.ones(len(batch), np.bool_)
    for attribute in space.attributes:
        if attribute.name not in batch.schema.names:
            continue
        column = batch.column(attribute.name)
        if attribute.is_category:
            good = pc.is_in(column, value_set=pa.array(attribute.categories, column.type))
        else:
            numbers = column.cast(pa.float64())
            good = pc.and_(
                pc.greater_equal(numbers, attribute.low), pc.less_equal(numbers, attribute.high)
            )
        may_lack = attribute.name not in (space.required or ())
        good = pc.or_(pc.fill_null(good, False), pc.and_(column.is_null(), may_lack))
        keep &= good.to_numpy(zero_copy_only=False)
    return batch if keep.all() else batch.filter(pa.array(keep))


def why_not(space: Space, present: list[str]) -> Column:
    """Return a column with the reason why an event cannot be matched, or null."""
    reason = F.lit(None).cast("string")
    for attribute in reversed(space.attributes):
        name = attribute.name
        required = name in (space.required or ())
        if name not in present:
            if required:
                raise MisuseError(
                    f"no column '{name}'", where="events", expected="it, as it is required"
                )
            continue
        column = F.col(f"`{name}`")
        if attribute.is_category:
            is_bad = ~column.isin(list(attribute.categories))
            told = f"{name}: none of {attribute.range_text}"
        else:
            is_bad = F.isnan(column) | (column < attribute.low) | (column > attribute.high)
            told = f"{name}: outside {attribute.range_text}"
        reason = F.when(is_bad, F.lit(told)).otherwise(reason)
        if required:
            reason = F.when(column.isNull(), F.lit(f"{name}: missing")).otherwise(reason)
    return reason
