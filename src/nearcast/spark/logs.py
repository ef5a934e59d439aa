"""Event logs of brokers: rates per topic, and wrong deliveries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from nearcast.eventlog import FAULTS, LOG_TABLES, UNKNOWN
from nearcast.pipeline.audit.hops import Allowance
from nearcast.pipeline.audit.job import as_fault_rows, case_of, judge, unknown_rows
from nearcast.pipeline.jobs.topic_rates import rates_of, tally_of
from nearcast.pipeline.sources.column_types import check_present
from nearcast.pipeline.tables.transaction import conform, spark_schema

if TYPE_CHECKING:
    from nearcast.config.schema import SpaceSection

_TODO = "Give the table of an event log"


def rates(
    events: DataFrame,
    subscriptions: DataFrame,
    *,
    gaps: DataFrame | None = None,
    sampled: Sequence[DataFrame] = (),
) -> DataFrame:
    """Return for each topic with retained publishes how often it is published and subscribed to.

    `events`, `subscriptions` and `gaps` are tables of event logs, of all nodes together. `sampled`
    are the other tables whose records sampling may have left out (`positions`, `retained`); they
    count where the log has gaps. Columns: `topic`, `publishes`, `publish_per_s`, `subscribe_per_s`,
    `leave_per_s`. Lazy; the same under any partitioning.
    """
    check_present(events, ["node", "topic", "t", "retain", "way"], "events", _TODO)
    wanted = ["node", "sequence", "t", "client", "filter", "added", "restored"]
    check_present(subscriptions, wanted, "subscriptions", _TODO)
    if gaps is None:
        gaps = events.sparkSession.createDataFrame([], spark_schema(LOG_TABLES["gaps"]))
    return rates_of(tally_of(events, sampled), subscriptions, gaps)


def audit(
    spark: SparkSession,
    logs: str | Sequence[str],
    *,
    spaces: tuple[SpaceSection, ...] | None = None,
    allowance: Allowance | None = None,
) -> DataFrame:
    """Return a row for each wrong delivery in the event logs of all nodes, and for what is unknown.

    `logs` are the directories of the logs: their segments are what is judged, one by one, and all
    workers read them. Columns: `kind` (lost, doubled, late, misordered, unasked or unknown),
    `node`, `sequence`, `t`, `topic`, `publisher`, `receiver`, `why`, `count`. One small job surveys
    the logs; the rest is lazy.
    """
    case = case_of(spark, logs, spaces, allowance)
    found = judge(spark, case)
    faults = conform(as_fault_rows(found), FAULTS).withColumn("count", F.lit(1).cast("bigint"))
    unknown = conform(unknown_rows(spark, found, case.nodes), UNKNOWN)
    of_unknown = unknown.select(
        F.lit("unknown").alias("kind"), "node", F.col("first").alias("sequence"), "why", "count"
    )
    return faults.unionByName(of_unknown, allowMissingColumns=True)
