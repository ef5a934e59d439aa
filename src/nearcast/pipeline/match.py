"""`match`: events × subscriptions → deliveries, exact, ranked and cut at k.

Where the subscription table fits a worker, an index is built once and every worker opens the same
files. Where it does not, events and subscriptions meet by place (`partitioned.py`).
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nearcast.eventlog import DELIVERIES
from nearcast.matching import MatcherView, open_matcher
from nearcast.matching.ranking import Rank
from nearcast.model import MISSING, Event, MisuseError, Space
from nearcast.pipeline.part_files import Batches, gathered
from nearcast.pipeline.session import is_local
from nearcast.pipeline.tables import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

EVENT_KEY = "event_id"
# Columns beside a space's attributes, none of which can have such a name:
REASON = "why not"
TOPIC = "its topic"
_EVENTS_AT_ONCE = 65_536


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of each event: all matches, or the k best."""

    space: str
    topic: str
    k: int | None = None
    rank: Rank = "narrowest"


def match_by_index(events: DataFrame, index: Path, question: Question) -> DataFrame:
    """Return one row per delivery; the schema is DELIVERIES.

    `index` is a saved matcher, in a directory that the workers see or that `ship` brought them.
    Deterministic under any partitioning of `events`. No shuffle.
    """
    schema = spark_schema(DELIVERIES)
    return events.mapInArrow(deliveries_from(index, question), schema)


def ship(spark: SparkSession, index: Path) -> Path:
    """Bring a saved matcher to all workers; return where they find it.

    On this machine that is where it is. Elsewhere it travels as an archive, which Spark unpacks
    once per worker; a path that is not absolute is looked for among such archives.
    """
    if is_local(spark):
        return index
    name = f"nearcast-{secrets.token_hex(8)}"
    archive = shutil.make_archive(str(index.parent / name), "tar", index.parent, index.name)
    spark.sparkContext.addArchive(archive)
    return Path(Path(archive).name) / index.name


def deliveries_from(index: Path, question: Question) -> Callable[[Batches], Batches]:
    """Return a function from batches of events to batches of deliveries, for workers."""
    place = str(index)

    def deliver(batches: Batches) -> Batches:
        view = _opened(_found(place))
        for batch in gathered(batches, _EVENTS_AT_ONCE):
            yield deliveries(batch, view, question)

    return deliver


def _found(index: str) -> str:
    from pyspark import SparkFiles

    return index if Path(index).is_absolute() or "://" in index else SparkFiles.get(index)


@lru_cache(maxsize=2)
def _opened(index: str) -> MatcherView:
    """Open an index once per worker process."""
    return open_matcher(index)


def deliveries(batch: pa.RecordBatch, view: MatcherView, question: Question) -> pa.RecordBatch:
    """Return who gets the events of a batch; those with a column TOPIC are each of their own topic.

    Complexity: as that of the matcher, once for each topic in the batch.
    """
    if TOPIC in batch.schema.names:
        return _joined(
            [
                deliveries(part, view, replace(question, topic=topic))
                for topic, part in _by_topic(batch)
            ]
        )
    space = view.spaces[question.space]
    points = points_of(batch, space)
    ids = batch.column(EVENT_KEY).cast(pa.int64()).to_numpy()
    boxed = np.isnan(points).any(axis=1)  # a missing value that stands for all values
    if boxed.any():
        parts = [
            _boxed(ids, points, boxed, view, question),
            _plain(ids, points, ~boxed, view, question),
        ]
        return _joined(parts)
    return _plain(ids, points, np.ones(len(ids), np.bool_), view, question)


def _by_topic(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    topics = batch.column(TOPIC)
    for topic in topics.unique().to_pylist():
        yield topic, batch.filter(pc.equal(topics, topic)).drop_columns([TOPIC])


def _joined(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.concat_batches(parts) if parts else _rows(*(np.empty(0, np.int64),) * 3)


def _plain(
    ids: np.ndarray, points: np.ndarray, chosen: np.ndarray, view: MatcherView, question: Question
) -> pa.RecordBatch:
    ids, points = ids[chosen], points[chosen]
    if question.k is None:
        offsets, keys = view.match_points(question.space, question.topic, points)
        return _rows(np.repeat(ids, np.diff(offsets)), keys, np.zeros(len(keys), np.int32))
    best = view.top_points(question.space, question.topic, points, question.k, question.rank)
    at, rank = np.nonzero(best >= 0)
    return _rows(ids[at], best[at, rank], rank.astype(np.int32) + 1)


def _boxed(
    ids: np.ndarray, points: np.ndarray, chosen: np.ndarray, view: MatcherView, question: Question
) -> pa.RecordBatch:
    """Match events whose missing values stand for all values, one by one."""
    space = view.spaces[question.space]
    rows: list[tuple[int, int, int]] = []
    for at in np.flatnonzero(chosen).tolist():
        values = tuple(None if np.isnan(v) else v for v in points[at].tolist())
        event = Event(question.topic, space, values)
        if question.k is None:
            rows += [(ids[at], key, 0) for key in view.match(event)]
        else:
            best = view.top(event, question.k, question.rank)
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
    """Return the coordinates; a missing value is MISSING, or NaN where it stands for all."""
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


def why_not(space: Space, present: list[str]) -> Column:
    """Return, for a row of events, the reason why it cannot be matched, or null."""
    from pyspark.sql import functions as F  # noqa: N812

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
