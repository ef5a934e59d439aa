"""Matches DataFrames: checks columns, then chooses the index or the join by place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from nearcast.eventlog import DELIVERIES
from nearcast.model import Space
from nearcast.pipeline.jobs.match import REASON, MatchQuery, deliveries_of, why_not
from nearcast.pipeline.jobs.partitioned_match import choose_cells, match_by_place
from nearcast.pipeline.jobs.shipped_subscriptions import (
    MOST_BYTES,
    ShippedSubscriptions,
    ship,
    size_of,
)
from nearcast.pipeline.sources.column_types import (
    EVENT_KEY,
    check_event_columns,
    check_subscription_columns,
)
from nearcast.pipeline.sources.subscription_tables import KEY, subscription_columns
from nearcast.pipeline.tables.transaction import spark_schema
from nearcast.pipeline.tables.worker_writes import Batches


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

    @property
    def worker(self) -> Callable[[Batches], Batches] | None:
        """The function that matches batches of events; None where they are matched by place."""
        return None if self.shipped is None else deliveries_of(self.shipped, self.query)

    def deliveries(self) -> DataFrame:
        """Return one row per delivery; the schema is DELIVERIES."""
        if self.worker is not None:
            return self.good.mapInArrow(self.worker, spark_schema(DELIVERIES))
        nullable = _nullable(self.good, self.space)
        cells = choose_cells(self.subscriptions, self.space, self.cells, nullable)
        return match_by_place(
            self.good, self.subscriptions, self.space, cells, self.query, tasks=self.tasks
        )


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
    size = size_of(selected)
    shipped = ship(selected, space, size, most_bytes)
    cells = 2 * max(4, size // most_bytes + 1)
    return PreparedMatch(good, bad, selected, space, query, shipped, cells, tasks)


def _nullable(events: DataFrame, space: Space) -> set[str]:
    """Return the attributes that some event lacks, if a missing value means any value."""
    if space.missing == "none":
        return set()
    names = [name for name in events.columns if name != EVENT_KEY]
    absent = {attribute.name for attribute in space.attributes} - set(names)
    row = events.agg(*(F.max(F.col(f"`{n}`").isNull()).alias(n) for n in names)).first()
    return absent | {name for name in names if row is not None and row[name]}
