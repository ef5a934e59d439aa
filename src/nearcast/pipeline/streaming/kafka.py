"""Kafka as the source and the sink of a stream, through Spark's own connector.

    topic ──► Spark's source `kafka` ──► rows of messages ──► decoded by the workers that match
    deliveries of a complete batch, joined with their events ──► Spark's sink `kafka`

The number of an event is its partition and its offset there, so it is the same whenever a range is
read again. A record's key is its MQTT topic; a record without a key has the stream's topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from nearcast.config.kafka_address import KafkaAddress
from nearcast.config.schema import SpaceSection
from nearcast.model.errors import EnvironmentProblem
from nearcast.pipeline.sources.column_types import EVENT_KEY
from nearcast.pipeline.sources.subscription_tables import KEY
from nearcast.pipeline.streaming.delivery import to_send
from nearcast.pipeline.streaming.live_events import PAYLOAD, LiveReader
from nearcast.pipeline.tables.worker_writes import Batches

# The connector of this Spark; its token provider of the same version is missing in places.
CONNECTOR = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.1",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.1",
)
OFFSET_BITS = 44
PAIRS = "pairs"


def kafka_messages(
    spark: SparkSession, address: KafkaAddress, topic: str, most: int, parts: int
) -> DataFrame:
    """Return a stream of messages: number, time, MQTT topic, payload, user properties."""
    reader = (
        spark.readStream.format("kafka")
        .options(**_java(address))
        .option("subscribe", address.topic)
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .option("maxOffsetsPerTrigger", most)
        .option("minPartitions", parts)
    )
    with _connector_needed():
        found = reader.load()
    number = F.shiftleft(F.col("partition").cast("bigint"), OFFSET_BITS) + F.col("offset")
    return found.select(
        number.alias(EVENT_KEY),
        F.col("timestamp").alias("t"),
        F.coalesce(F.col("key").cast("string"), F.lit(topic)).alias("topic"),
        F.col("value").alias(PAYLOAD),
        F.col("headers").alias(PAIRS),
    )


def decoding(section: SpaceSection, *, with_payload: bool) -> Callable[[Batches], Batches]:
    """Return a worker function from messages to events of a space."""

    def decode(batches: Batches) -> Batches:
        reader = LiveReader(section, with_payload=with_payload)
        for batch in batches:
            yield reader.decode(
                batch.column(EVENT_KEY),
                batch.column("t"),
                batch.column("topic"),
                batch.column(PAYLOAD),
                _pairs(batch.column(PAIRS)),
            )

    return decode


def _pairs(headers: Any) -> list[tuple[tuple[str, str], ...]] | None:
    """Return the user properties of each message; None if none has any."""
    if headers.null_count == len(headers):
        return None
    return [
        tuple((one["key"], (one["value"] or b"").decode(errors="replace")) for one in row or ())
        for row in headers.to_pylist()
    ]


def deliver_to_kafka(spark: SparkSession, checkpoint: Path, sink: KafkaAddress, batch: int) -> None:
    """Produce the outbox of a complete batch, unless that has been done.

    The key is the subscription, so that each gets its events in the order of their numbers.
    """
    with to_send(spark, checkpoint, batch) as rows, _connector_needed():
        if rows is None:
            return
        rows.select(
            F.col(KEY).cast("string").alias("key"),
            F.col(PAYLOAD).alias("value"),
            F.array(
                *(_header(name, column) for name, column in _HEADERS),
            ).alias("headers"),
        ).write.format("kafka").options(**_java(sink)).option("topic", sink.topic).save()


_HEADERS = (("event", EVENT_KEY), ("topic", "topic"), ("rank", "rank"))


def _header(name: str, column: str) -> Any:
    value = F.col(column).cast("string").cast("binary")
    return F.struct(F.lit(name).alias("key"), value.alias("value"))


def _java(address: KafkaAddress) -> dict[str, str]:
    return {f"kafka.{name}": value for name, value in address.java_options().items()}


@contextmanager
def _connector_needed() -> Iterator[None]:
    """Raise EnvironmentProblem where this Spark has no connector for Kafka."""
    try:
        yield
    except PySparkException as problem:
        if "data source: kafka" not in str(problem).lower():
            raise
        raise EnvironmentProblem(
            "this Spark has no connector for Kafka",
            todo=f"Give its jars (--jars), or packages to spark-submit: {','.join(CONNECTOR)}",
        ) from None
