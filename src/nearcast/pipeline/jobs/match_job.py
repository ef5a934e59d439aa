"""The `match` job around `match.py`: checks columns, chooses index or partitioned join, writes."""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from nearcast.eventlog import DELIVERIES
from nearcast.matching import save_matcher
from nearcast.model import Space
from nearcast.pipeline.job import JobResult
from nearcast.pipeline.jobs.match import (
    REASON,
    MatchQuery,
    deliveries_from,
    ship,
    why_not,
)
from nearcast.pipeline.jobs.partitioned_match import choose_cells, match_by_place
from nearcast.pipeline.sources.column_types import (
    EVENT_KEY,
    check_event_columns,
    check_subscription_columns,
)
from nearcast.pipeline.sources.files import read_all
from nearcast.pipeline.sources.input_checks import check_there
from nearcast.pipeline.sources.subscription_tables import KEY, matcher_of, subscription_columns
from nearcast.pipeline.tables.transaction import transaction

FITS_A_WORKER = 5_000_000  # boxes; such an index takes a few hundred megabytes

REJECTED_EVENTS = pa.schema(
    [pa.field(EVENT_KEY, pa.int64()), pa.field("reason", pa.string(), nullable=False)]
)


@dataclass(frozen=True, slots=True)
class MatchResult:
    """Counts of the job; `way` is "index" or "place"."""

    deliveries: int
    rejected: int
    way: str


@dataclass(frozen=True, slots=True)
class MatchJob:
    """Matches a table of events with a table of subscriptions."""

    name: ClassVar[str] = "match"
    events: str
    subscriptions: str
    output: str
    space: Space
    query: MatchQuery

    def check(self) -> None:
        """Check that both tables exist."""
        for path in (self.events, self.subscriptions):
            check_there(path)

    def run(self, spark: SparkSession) -> JobResult:
        """Write the tables `deliveries` and `rejected_events`."""
        events, subscriptions = read_all(spark, self.events), read_all(spark, self.subscriptions)
        done = match_tables(events, subscriptions, self.space, self.query, self.output)
        lines = [
            f"{done.deliveries:,} deliveries in {self.output}/deliveries (matched by {done.way})"
        ]
        if done.rejected:
            where = f"{self.output}/rejected_events"
            lines.append(f"{done.rejected:,} events could not be matched: see {where}")
        return JobResult(asdict(done), lines)


def match_tables(
    events: DataFrame,
    subscriptions: DataFrame,
    space: Space,
    query: MatchQuery,
    output: str,
    *,
    fits: int = FITS_A_WORKER,
    tasks: int | None = None,
) -> MatchResult:
    """Match two tables; write the tables `deliveries` and `rejected_events` under `output`."""
    check_event_columns(events, space)
    columns = subscription_columns(space, subscriptions.columns, "subscriptions")
    selected = subscriptions.select(*columns)
    check_subscription_columns(selected, KEY)
    judged = events.withColumn(REASON, why_not(space, events.columns))
    names = [a.name for a in space.attributes if a.name in events.columns]
    good = judged.where(F.col(REASON).isNull()).select(EVENT_KEY, *names)
    bad = judged.where(F.col(REASON).isNotNull()).select(EVENT_KEY, F.col(REASON).alias("reason"))
    with tempfile.TemporaryDirectory(prefix="nearcast-index-") as folder, transaction() as written:
        count = selected.count()
        if count <= fits:
            view = matcher_of(selected.orderBy(KEY).toArrow(), space)
            save_matcher(view, Path(folder) / "matcher")
            index = ship(events.sparkSession, Path(folder) / "matcher")
            make, root = deliveries_from(index, query), f"{output}/deliveries"
            delivered, way = written.write_by_workers(good, make, root, DELIVERIES), "index"
        else:
            nullable = _nullable(good, space, names)
            cells = choose_cells(selected, space, max(4, count // fits + 1) * 2, nullable)
            found, way = match_by_place(good, selected, space, cells, query, tasks=tasks), "place"
            delivered = written.write(found, f"{output}/deliveries", DELIVERIES)
        rejected = written.write(bad, f"{output}/rejected_events", REJECTED_EVENTS)
    return MatchResult(delivered.rows, rejected.rows, way)


def _nullable(events: DataFrame, space: Space, names: list[str]) -> set[str]:
    """Return the attributes that some event lacks, if a missing value means any value."""
    if space.missing == "none":
        return set()
    absent = {attribute.name for attribute in space.attributes} - set(names)
    row = events.agg(*(F.max(F.col(f"`{n}`").isNull()).alias(n) for n in names)).first()
    return absent | {name for name in names if row is not None and row[name]}
