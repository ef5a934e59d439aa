"""The `match` job around `match_frames.py`: reads the tables and writes the deliveries."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import ClassVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from nearcast.eventlog import DELIVERIES
from nearcast.model import Space
from nearcast.pipeline.job import JobResult
from nearcast.pipeline.jobs.match import MatchQuery
from nearcast.pipeline.jobs.match_frames import prepare_match
from nearcast.pipeline.sources.column_types import EVENT_KEY
from nearcast.pipeline.sources.files import read_all
from nearcast.pipeline.sources.input_checks import check_there
from nearcast.pipeline.tables.transaction import table_there, transaction

REJECTED_EVENTS = pa.schema(
    [pa.field(EVENT_KEY, pa.int64()), pa.field("reason", pa.string(), nullable=False)]
)


@dataclass(frozen=True, slots=True)
class MatchResult:
    """Counts of the job; `way` is "index" or "place"."""

    deliveries: int
    rejected: int
    way: str
    version: str = ""  # of the table of deliveries
    replaced: str | None = None  # the version that was current before


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
            f"{done.deliveries:,} deliveries in {self.output}/deliveries (matched by {done.way}), "
            f"version {done.version}"
            + (f"; it replaces version {done.replaced}" if done.replaced else ", the first")
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
    most_bytes: int | None = None,
    tasks: int | None = None,
) -> MatchResult:
    """Match two tables; write the tables `deliveries` and `rejected_events` under `output`.

    With an index, workers write the deliveries themselves.
    """
    prepared = prepare_match(
        events, subscriptions, space, query, most_bytes=most_bytes, tasks=tasks
    )
    root = f"{output}/deliveries"
    with transaction() as written:
        there = table_there(events.sparkSession, root)
        if prepared.worker is not None:
            delivered = written.write_by_workers(prepared.input, prepared.worker, root, DELIVERIES)
        else:
            delivered = written.write(prepared.deliveries(), root, DELIVERIES)
        rejected = written.write(prepared.bad, f"{output}/rejected_events", REJECTED_EVENTS)
    way = "place" if prepared.worker is None else "index"
    return MatchResult(delivered.rows, rejected.rows, way, delivered.version, there)
