"""Matches DataFrames: checks columns, then chooses the index or the join by place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from nearcast.eventlog import DELIVERIES
from nearcast.model import Space
from nearcast.pipeline.jobs.match import (
    COUNTS,
    EVENTS,
    PACKED_COUNTS,
    REASON,
    MatchQuery,
    added_up,
    counts_of,
    deliveries_of,
    matchable,
    why_not,
)
from nearcast.pipeline.jobs.partitioned_match import choose_cells, match_by_place
from nearcast.pipeline.jobs.shipped_subscriptions import (
    MOST_BYTES,
    ShippedSubscriptions,
    ship,
)
from nearcast.pipeline.sources.column_types import (
    EVENT_KEY,
    check_event_columns,
    check_subscription_columns,
)
from nearcast.pipeline.sources.subscription_tables import KEY, subscription_columns
from nearcast.pipeline.tables.transaction import spark_schema
from nearcast.pipeline.tables.worker_reads import RowGroups, numbers_of, plain_pieces, reading
from nearcast.pipeline.tables.worker_writes import Batches

_PART_BYTES = 16 << 20  # of subscriptions, whose counts one task adds up


@dataclass(frozen=True, slots=True)
class PreparedMatch:
    """Events that can be matched, those that cannot, and how the subscriptions reach workers."""

    good: DataFrame
    bad: DataFrame
    subscriptions: DataFrame
    space: Space
    query: MatchQuery
    shipped: ShippedSubscriptions | None  # None: matched by place
    cells: int  # to cut the space into, by place
    tasks: int | None = None
    pieces: Sequence[RowGroups] | None = None  # of files that workers read themselves

    @property
    def input(self) -> DataFrame:
        """The frame whose batches `worker` takes: events, or numbers of pieces of files."""
        if self.pieces is None or self.shipped is None:
            return self.good
        return numbers_of(self.good.sparkSession, self.pieces)

    @property
    def worker(self) -> Callable[[Batches], Batches] | None:
        """The function that matches batches of `input`; None where they are matched by place."""
        if self.shipped is None:
            return None
        return self._reading(deliveries_of(self.shipped, self.query))

    def _reading(self, work: Callable[[Batches], Batches]) -> Callable[[Batches], Batches]:
        """Return a worker function on batches of `input` from one on batches of good events."""
        if self.pieces is None:
            return work
        read, space = reading(self.pieces, self.good.columns), self.space
        return lambda numbers: work(matchable(batch, space) for batch in read(numbers))

    def deliveries(self) -> DataFrame:
        """Return one row per delivery; the schema is DELIVERIES."""
        if self.worker is not None:
            return self.input.mapInArrow(self.worker, spark_schema(DELIVERIES))
        nullable = _nullable(self.good, self.space)
        cells = choose_cells(self.subscriptions, self.space, self.cells, nullable)
        return match_by_place(
            self.good, self.subscriptions, self.space, cells, self.query, tasks=self.tasks
        )

    def counts(self) -> DataFrame:
        """Return one row per subscription that matches: how many events; schema COUNTS."""
        if self.shipped is None:
            return self.deliveries().groupBy(KEY).agg(F.count("*").alias(EVENTS))
        parts = 1 + self.shipped.size // _PART_BYTES
        count = self._reading(counts_of(self.shipped, self.query, parts))
        counted = self.input.mapInArrow(count, spark_schema(PACKED_COUNTS))
        return counted.repartition(parts, "part").mapInArrow(added_up, spark_schema(COUNTS))


def prepare_match(
    events: DataFrame,
    subscriptions: DataFrame,
    space: Space,
    query: MatchQuery,
    *,
    most_bytes: int | None = None,
    tasks: int | None = None,
) -> PreparedMatch:
    """Check both tables, and collect the subscriptions if they are small enough.

    Raises MisuseError for columns that are missing or of a wrong type, and for conditions that
    cannot be read. Events stay where they are: what is collected is bounded by `most_bytes`
    (MOST_BYTES).
    """
    most_bytes = MOST_BYTES if most_bytes is None else most_bytes
    check_event_columns(events, space)
    columns = subscription_columns(space, subscriptions.columns, "subscriptions")
    selected = subscriptions.select(*columns)
    check_subscription_columns(selected, KEY)
    judged = events.withColumn(REASON, why_not(space, events.columns))
    names = [a.name for a in space.attributes if a.name in events.columns]
    good = judged.where(F.col(REASON).isNull()).select(EVENT_KEY, *names)
    bad = judged.where(F.col(REASON).isNotNull()).select(EVENT_KEY, F.col(REASON).alias("reason"))
    shipped, size = ship(subscriptions, columns, space, most_bytes)
    cells = 2 * max(4, size // most_bytes + 1)
    pieces = plain_pieces(events, (EVENT_KEY, *names))
    return PreparedMatch(good, bad, selected, space, query, shipped, cells, tasks, pieces)


def _nullable(events: DataFrame, space: Space) -> set[str]:
    """Return the attributes that some event lacks, if a missing value means any value."""
    if space.missing == "none":
        return set()
    names = [name for name in events.columns if name != EVENT_KEY]
    absent = {attribute.name for attribute in space.attributes} - set(names)
    row = events.agg(*(F.max(F.col(f"`{n}`").isNull()).alias(n) for n in names)).first()
    return absent | {name for name in names if row is not None and row[name]}
