"""Rates per topic from event logs: publishes, subscribes, unsubscribes (paper 4's λP, λS, λU).

The publish rate counts only the time when a topic is active: the intervals of `ALIVE_MS` in which
it published at all. A machine that runs by day so has its daytime rate, as the decaying estimate of
the broker has. Records that sampling left out (table `gaps`) are compensated node by node.

Subscriptions are to filters, rates are of topics. Each topic is joined with the filters that
*could* match it, so that no filter is compared with every topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from itertools import product

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

from nearcast.pipeline.jobs.topic_aggregation import (
    CODED,
    COLUMNS,
    TALLY,
    tally_nodes,
    tally_topics,
)
from nearcast.pipeline.sources.event_logs import map_log, nothing_in, read_logs

ALIVE_MS = 600_000  # as long as a broker's estimates remember
_MOST_PLUS_LEVELS = 10


@contextmanager
def rates_per_topic(spark: SparkSession, logs: Sequence[str]) -> Iterator[DataFrame]:
    """Yield one row for each topic with retained publishes: `topic`, `publishes`, rates per second.

    The rates are `publish_per_s`, `subscribe_per_s` and `leave_per_s`. The same under any
    partitioning of the log. One pass over the log; the counts are cached until
    the body ends. Shuffles: partial counts, subscription changes, topics with the filters that
    could match.
    """
    tally = publish_tally(spark, logs).persist()
    try:
        of_nodes = tally.where("topic IS NULL")
        if of_nodes.where("first IS NOT NULL").isEmpty():
            raise nothing_in(logs, "no event")
        changes = read_logs(spark, logs, "subscriptions")
        published = publish_rates(tally.where("topic IS NOT NULL"), kept_shares(spark, logs, tally))
        come_and_gone = subscriber_rates(changes, _ends(of_nodes, changes))
        yield with_subscribers(published, come_and_gone)
    finally:
        tally.unpersist()


def publish_tally(spark: SparkSession, logs: Sequence[str]) -> DataFrame:
    """Count the logs' events by node, topic and interval, and by node all records that are sampled.

    The schema is TALLY. A publication from another node counts only in that node's log.
    """
    topics = partial(tally_topics, ALIVE_MS)
    parts = [map_log(spark, log, "events", COLUMNS, topics, TALLY, coded=CODED) for log in logs] + [
        map_log(spark, log, table, ("node",), tally_nodes, TALLY, coded=("node",))
        for log in logs
        for table in ("positions", "retained")
    ]
    return added_up(reduce(lambda one, other: one.unionAll(other), parts))


def added_up(tally: DataFrame) -> DataFrame:
    """Sum the partial sums of all tasks."""
    ends = [F.min("first").alias("first"), F.max("last").alias("last")]
    return tally.groupBy("node", "topic", "stretch").agg(F.sum("n").alias("n"), *ends)


def kept_shares(spark: SparkSession, logs: Sequence[str], tally: DataFrame) -> DataFrame:
    """Return for each node the share of its records that sampling kept: 1 without sampling."""
    kept = tally.where("topic IS NULL").groupBy("node").agg(F.sum("n").alias("n"))
    gaps = read_logs(spark, logs, "gaps").groupBy("node").agg(F.sum("count").alias("gone"))
    gone = F.coalesce("gone", F.lit(0))
    total = kept.join(gaps, "node", "left")
    return total.select("node", (F.col("n") / (F.col("n") + gone)).alias("share"))


def publish_rates(tally: DataFrame, shares: DataFrame) -> DataFrame:
    """Return `topic`, `publishes` and `publish_per_s` of retained publishes.

    A topic with one publish, or with all at one instant, has no rate and is left out. Sums are of
    whole milliseconds and thousandths of publishes, so that they are the same in any order.
    """
    true_n = F.round(F.col("n") * 1000 / F.col("share")).cast("bigint")
    whole = tally.join(F.broadcast(shares), "node").withColumn("true_n", true_n)
    topics = whole.groupBy("topic").agg(
        F.sum("n").alias("publishes"),
        F.sum("true_n").alias("true_n"),
        F.count_distinct("stretch").alias("stretches"),
        F.min("first").alias("first"),
        F.max("last").alias("last"),
    )
    # From the first publish to the last, without the intervals between that had none.
    early, late = F.col("first") % ALIVE_MS, ALIVE_MS - F.col("last") % ALIVE_MS
    alive_s = (F.col("stretches") * ALIVE_MS - early - late) / 1e3
    per_s = F.col("true_n") / 1e3 * (1 - 1 / F.col("publishes")) / alive_s
    known = topics.where("publishes > 1 AND last > first")
    return known.select("topic", "publishes", per_s.alias("publish_per_s"))


def _ends(of_nodes: DataFrame, changes: DataFrame) -> DataFrame:
    ms = F.unix_millis("t")
    both = of_nodes.select("first", "last").unionAll(changes.select(ms, ms))
    return both.agg(F.min("first").alias("begin"), F.max("last").alias("end"))


def subscriber_rates(changes: DataFrame, ends: DataFrame) -> DataFrame:
    """Return for each plain filter the new subscriptions, the ended ones, and the subscribed time.

    Filters with a prefix (`$share`, `$where`, …) do not count: their retained messages are never
    deferred. A subscription older than the log counts from the log's beginning; one that is still
    in effect at the log's end counts until then.
    """
    each = Window.partitionBy("node", "client", "filter").orderBy("sequence")
    lived = (
        changes.where("NOT startswith(filter, '$')")
        .withColumn("ms", F.unix_millis("t"))
        .withColumn("before", F.lag("added").over(each))
        .withColumn("next", F.lead("ms").over(each))
        .crossJoin(F.broadcast(ends))
    )
    stayed = F.when(F.col("added"), F.coalesce("next", "end") - F.col("ms"))
    was_there = F.when(F.col("before").isNull(), F.col("ms") - F.col("begin"))
    is_new = F.col("added") & ~F.col("restored") & ~F.coalesce("before", F.lit(False))
    has_left = ~F.col("added") & F.coalesce("before", F.lit(True))
    return lived.groupBy("filter").agg(
        F.sum(is_new.cast("bigint")).alias("newcomers"),
        F.sum(has_left.cast("bigint")).alias("departures"),
        F.sum(F.coalesce(stayed, was_there, F.lit(0))).alias("subscriber_ms"),
        F.max(F.col("end") - F.col("begin")).alias("span_ms"),
    )


def with_subscribers(published: DataFrame, filters: DataFrame) -> DataFrame:
    """Add to each topic the subscribe and unsubscribe rates of all filters that match it."""
    could = published.select("topic").mapInArrow(_possible_filters, "topic string, filter string")
    met = (
        could.join(filters, "filter")
        .groupBy("topic")
        .agg(*(F.sum(name).alias(name) for name in ("newcomers", "departures", "subscriber_ms")),
             F.max("span_ms").alias("span_ms"))
    )  # fmt: skip
    rates = published.join(met, "topic", "left")
    return rates.select(
        "topic",
        "publishes",
        "publish_per_s",
        _per_s("newcomers", "span_ms").alias("subscribe_per_s"),
        _per_s("departures", "subscriber_ms").alias("leave_per_s"),
    )


def _per_s(count: str, time_ms: str) -> Column:
    known = F.col(time_ms) > 0
    return F.when(known, F.col(count) * 1e3 / F.col(time_ms)).otherwise(F.lit(0.0))


def _possible_filters(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        pairs = [
            (topic, one)
            for topic in batch.column("topic").to_pylist()
            for one in possible_filters(topic)
        ]
        topics, filters = zip(*pairs, strict=True) if pairs else ((), ())
        yield pa.RecordBatch.from_pydict(
            {"topic": pa.array(topics, pa.string()), "filter": pa.array(filters, pa.string())}
        )


def possible_filters(topic: str) -> list[str]:
    """Return all topic filters that match a topic; O(2ⁿ) for n levels.

    For more than ten levels only those without `+`.

    >>> possible_filters("a/b")
    ['a/b', 'a/+', '+/b', '+/+', '#', 'a/#', '+/#', 'a/b/#', 'a/+/#', '+/b/#', '+/+/#']
    """
    levels = topic.split("/")
    hidden = topic.startswith("$")  # [MQTT-4.7.2-1]: no filter that begins with a wildcard matches
    ways = [(level, "+") if len(levels) <= _MOST_PLUS_LEVELS else (level,) for level in levels]
    if hidden:
        ways[0] = (levels[0],)
    found = ["/".join(one) for one in product(*ways)]
    for count in range(1 if hidden else 0, len(levels) + 1):
        found += ["/".join((*one, "#")) for one in product(*ways[:count])]
    return found
