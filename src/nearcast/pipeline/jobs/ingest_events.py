"""`ingest --space`: reads event files or an event log into a clean table of a space's events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import ClassVar

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

from nearcast.eventlog import REJECTED_ROWS, events_schema
from nearcast.model import MisuseError, Space
from nearcast.pipeline.job import JobResult
from nearcast.pipeline.jobs.ingest import Ingested, instant_column, nothing_good
from nearcast.pipeline.jobs.match import why_not
from nearcast.pipeline.sources.column_types import EVENT_DETAILS, EVENT_KEY
from nearcast.pipeline.sources.files import read_events
from nearcast.pipeline.sources.input_checks import check_source
from nearcast.pipeline.tables.transaction import transaction

_INNER = ("reason", "raw")


@dataclass(frozen=True, slots=True)
class IngestEventsJob:
    """Reads the events of a space from files, tables or event logs into the table `events`."""

    name: ClassVar[str] = "ingest"
    inputs: Sequence[str]
    output: str
    space: Space
    columns: Mapping[str, str] = field(default_factory=dict)
    timezone: str = "UTC"

    def check(self) -> None:
        """Check that the input exists, and the columns of files that were renamed."""
        renamed = {want: source for want, source in self.columns.items() if want != source}
        for path in self.inputs:
            check_source(path, renamed)

    def run(self, spark: SparkSession) -> JobResult:
        """Write the tables `events` and `rejected`."""
        parts = [read_events(spark, path, self.space, self.columns) for path in self.inputs]
        events = reduce(lambda one, other: one.unionByName(other), parts)
        done = ingest_events(events, self.output, self.space, self.timezone)
        return done.result("events", self.output)


def ingest_events(source: DataFrame, output: str, space: Space, timezone: str = "UTC") -> Ingested:
    """Write the tables `events` and `rejected` under `output`.

    If no row is good, nothing is written: that is a mistake in the call, not a clean table.
    """
    judged = judge_events(source, space, timezone).persist(StorageLevel.DISK_ONLY)
    try:
        counts = {row["reason"]: row["count"] for row in judged.groupBy("reason").count().collect()}
        kept = counts.pop(None, 0)
        if not kept:
            raise nothing_good(counts)
        good = judged.where(F.col("reason").isNull())
        bad = judged.where(F.col("reason").isNotNull())
        with transaction() as written:
            written.write(good, f"{output}/events", events_schema(space))
            written.write(bad, f"{output}/rejected", REJECTED_ROWS)
    finally:
        judged.unpersist()
    return Ingested(kept, counts)


def judge_events(source: DataFrame, space: Space, timezone: str = "UTC") -> DataFrame:
    """Return every row, typed, with the `reason` for dropping it, if any, and the row as `raw`.

    Of several events with one id the first by time and values is kept. Deterministic under any
    partitioning of `source`. One shuffle, by event.
    """
    parsed = parse_events(source, space, timezone)
    order = [F.col(f"`{name}`") for name in parsed.columns if name != EVENT_KEY]
    place = F.row_number().over(
        Window.partitionBy(EVENT_KEY).orderBy(F.col("reason").isNotNull(), *order)
    )
    again = F.col("reason").isNull() & (F.col("_place") > 1)
    ranked = parsed.withColumn("_place", place)
    told = F.when(again, F.lit("duplicate")).otherwise(F.col("reason"))
    return ranked.withColumn("reason", told).drop("_place")


def parse_events(source: DataFrame, space: Space, timezone: str) -> DataFrame:
    """Return each row with typed columns, and the `reason` why it cannot be matched, if any."""
    _check_names(space)
    if EVENT_KEY not in source.columns:
        raise MisuseError(
            f"no column '{EVENT_KEY}'",
            expected=f"one of its columns: {', '.join(source.columns)}",
            todo=f"Name its columns: --columns {EVENT_KEY}=NAME",
        )
    kinds = dict(source.dtypes)
    event_id = F.expr(f"try_cast(`{EVENT_KEY}` AS bigint)")
    columns: dict[str, Column] = {EVENT_KEY: event_id}
    instant = instant_column("t", kinds["t"], timezone) if "t" in kinds else _nothing("timestamp")
    columns["t"] = instant
    for name in EVENT_DETAILS[1:]:
        columns[name] = F.col(name).cast("string") if name in kinds else _nothing("string")
    reason = (
        F.when(F.col(EVENT_KEY).isNull(), "no event_id")
        .when(event_id.isNull(), "event_id is no whole number")
        .when(_is_there("_problem", kinds), F.col("_problem") if "_problem" in kinds else None)
    )
    for attribute in space.attributes:
        name = attribute.name
        if name not in kinds:
            columns[name] = _nothing("string" if attribute.is_category else "double")
        elif attribute.is_category:
            columns[name] = F.col(f"`{name}`").cast("string")
        else:
            columns[name] = F.expr(f"try_cast(`{name}` AS double)")
            reason = reason.when(
                F.col(f"`{name}`").isNotNull() & columns[name].isNull(), f"{name}: no number"
            )
    if "t" in kinds:
        reason = reason.when(F.col("t").isNotNull() & instant.isNull(), "time not understood")
    raw = F.to_json(F.struct(*(_as_text(name, kind) for name, kind in kinds.items())))
    typed = source.select(
        reason.alias("_early"), raw.alias("raw"), *(c.alias(n) for n, c in columns.items())
    )
    late = why_not(space, list(kinds))
    return typed.withColumn("reason", F.coalesce("_early", late)).drop("_early")


def _check_names(space: Space) -> None:
    for attribute in space.attributes:
        if attribute.name in {EVENT_KEY, *EVENT_DETAILS, *_INNER}:
            raise MisuseError(
                f"an attribute named '{attribute.name}'",
                where=f"space {space.name}",
                expected="another name: a table of events has "
                f"{', '.join((EVENT_KEY, *EVENT_DETAILS))}",
            )


def _nothing(kind: str) -> Column:
    return F.lit(None).cast(kind)


def _is_there(name: str, kinds: Mapping[str, str]) -> Column:
    return F.col(name).isNotNull() if name in kinds else F.lit(False)


def _as_text(name: str, kind: str) -> Column:
    column = F.col(f"`{name}`")
    return (column.cast("string") if kind == "binary" else column).alias(name)
