"""Publishes deliveries to a broker: each as a message to PREFIX/<subscription_id>, at QoS 1.

A batch is published after it is complete and before Spark commits it. If the process is killed in
between, the batch is repeated and published again: every delivery arrives at least once. A
subscriber can recognise a repeat by the user property `event`: a subscription gets an event once.
"""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import DataFrame

from nearcast.eventlog import DELIVERIES
from nearcast.model import MisuseError
from nearcast.model.errors import EnvironmentProblem, NearcastError, PeerProtocolError
from nearcast.mqtt import Properties, Publish
from nearcast.pipeline.sources.column_types import EVENT_KEY
from nearcast.pipeline.sources.subscription_tables import KEY
from nearcast.pipeline.streaming.addresses import LiveAddress
from nearcast.pipeline.streaming.live_events import PAYLOAD
from nearcast.pipeline.streaming.mqtt_connection import MqttConnection
from nearcast.pipeline.tables.transaction import spark_schema
from nearcast.pipeline.tables.worker_writes import Batches

if TYPE_CHECKING:
    from nearcast.pipeline.streaming.stream import Stream

PATIENCE_S = 60.0
_PAUSE_S = 1.0
_MESSAGES_AT_ONCE = 1_000


def deliver_batch(stream: Stream, sink: LiveAddress, events: DataFrame, batch: int) -> None:
    """Publish the deliveries of a complete batch, unless that has been done.

    One shuffle, by subscription: each gets its events in the order of their numbers.
    """
    done = stream.checkpoint / "delivered" / str(batch)
    if done.exists():
        return
    spark, folder = events.sparkSession, stream.output / "deliveries" / f"{batch:012d}"
    found = spark.read.schema(spark_schema(DELIVERIES)).parquet(str(folder))
    messages = found.join(events.select(EVENT_KEY, "topic", PAYLOAD), EVENT_KEY)
    in_order = messages.repartition(KEY).sortWithinPartitions(EVENT_KEY, KEY)
    in_order.mapInArrow(_publishing(sink), "published bigint").collect()
    shutil.rmtree(done.parent, ignore_errors=True)  # Spark never repeats earlier batches
    done.parent.mkdir(parents=True)
    done.touch()


def _publishing(sink: LiveAddress) -> Callable[[Batches], Batches]:
    """Return a worker function that publishes its rows."""

    def publish(batches: Batches) -> Batches:
        publisher = None
        count = 0
        for batch in batches:
            if publisher is None:
                publisher = Publisher(sink)
            for message in messages_of(batch, sink.path):
                publisher.publish(message)
                count += 1
        if publisher is not None:
            publisher.finish()
        yield pa.RecordBatch.from_pydict({"published": pa.array([count], pa.int64())})

    return publish


def messages_of(batch: pa.RecordBatch, prefix: str) -> Iterator[Publish]:
    """Yield the messages of deliveries: the event's payload, with event id, topic and rank."""
    for row in batch.to_pylist():
        pairs = [("event", str(row[EVENT_KEY])), ("topic", row["topic"])]
        if row["rank"]:
            pairs.append(("rank", str(row["rank"])))
        properties = Properties(user_properties=tuple(pairs))
        yield Publish(f"{prefix}/{row[KEY]}", row[PAYLOAD], 1, properties=properties)


class Publisher:
    """Publishes at QoS 1, over as many connections as necessary.

    Unacknowledged messages are sent again over the next connection, in order. Raises
    EnvironmentProblem if the broker is unreachable for longer than PATIENCE_S, and MisuseError for
    a message that it refuses.
    """

    def __init__(self, sink: LiveAddress) -> None:
        self._sink = sink
        self._client_id = f"nearcast-deliver-{secrets.token_hex(8)}"
        self._waiting: list[Publish] = []  # not yet acknowledged
        self._connection: MqttConnection | None = None

    def publish(self, message: Publish) -> None:
        """Publish a message, later together with others."""
        self._waiting.append(message)
        if len(self._waiting) >= _MESSAGES_AT_ONCE:
            self._publish_waiting()

    def finish(self) -> None:
        """Wait until all messages are acknowledged, and close the connection."""
        self._publish_waiting()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _publish_waiting(self) -> None:
        give_up_s = time.monotonic() + PATIENCE_S
        while self._waiting:
            before = len(self._waiting)
            try:
                self._try()
            except EnvironmentProblem as problem:
                self._lose()
                if len(self._waiting) < before:
                    give_up_s = time.monotonic() + PATIENCE_S
                if time.monotonic() > give_up_s:
                    raise EnvironmentProblem(
                        f"deliveries cannot be published ({problem})",
                        todo="Start the stream again: it resumes with this batch",
                    ) from None
                time.sleep(_PAUSE_S)
            except NearcastError:
                self._lose()
                raise

    def _try(self) -> None:
        """Publish the waiting messages; on an error, those without an acknowledgement remain."""
        if self._connection is None:
            self._connection = MqttConnection(self._sink, self._client_id, session_expiry_s=0)
        unsent = iter(self._waiting)
        try:
            self._connection.publish(unsent)
            self._waiting = []
        except EnvironmentProblem:
            self._waiting = [*self._connection.conversation.unsettled.values(), *unsent]
            raise
        except PeerProtocolError as problem:
            raise MisuseError(problem.found, where=self._sink.place) from None

    def _lose(self) -> None:
        if self._connection is not None:
            self._connection.drop()
        self._connection = None
