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
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from nearcast.eventlog import DELIVERIES
from nearcast.model import MisuseError
from nearcast.model.errors import EnvironmentProblem
from nearcast.mqtt import Properties, Publish, PublishAnswer
from nearcast.pipeline.jobs.match import EVENT_KEY
from nearcast.pipeline.sources.subscription_tables import KEY
from nearcast.pipeline.streaming.addresses import LiveAddress
from nearcast.pipeline.streaming.live_events import PAYLOAD
from nearcast.pipeline.streaming.mqtt_connection import MqttConnection, words
from nearcast.pipeline.tables.transaction import spark_schema
from nearcast.pipeline.tables.worker_writes import Batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from nearcast.pipeline.streaming.stream import Stream

PATIENCE_S = 60.0
_PAUSE_S = 1.0
_MOST_UNANSWERED = 1_000
_ANSWER_S = 10.0


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
        self._unanswered: dict[int, Publish] = {}  # packet id → message in flight
        self._last_id = 0
        self._most = _MOST_UNANSWERED  # at most the broker's Receive Maximum [MQTT-3.3.4-7]
        self._connection: MqttConnection | None = None

    def publish(self, message: Publish) -> None:
        """Publish a message; waits while too many are unacknowledged."""
        self._settle(self._most - 1)
        message = replace(message, packet_id=self._new_id())
        self._unanswered[message.packet_id] = message
        if self._connection is not None:
            self._try(lambda connection: connection.send(message))

    def finish(self) -> None:
        """Wait until all messages are acknowledged, and close the connection."""
        self._settle(0)
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _settle(self, most: int) -> None:
        give_up_s = time.monotonic() + PATIENCE_S
        while len(self._unanswered) > most or self._connection is None:
            before = len(self._unanswered)
            try:
                self._exchange(most)
            except EnvironmentProblem as problem:
                self._lose()
                if len(self._unanswered) < before:
                    give_up_s = time.monotonic() + PATIENCE_S
                if time.monotonic() > give_up_s:
                    raise EnvironmentProblem(
                        f"deliveries cannot be published ({problem})",
                        todo="Start the stream again: it goes on with this batch",
                    ) from None
                time.sleep(_PAUSE_S)
            except MisuseError:
                self._lose()
                raise

    def _exchange(self, most: int) -> None:
        if self._connection is None:
            connection = MqttConnection(self._sink, self._client_id, session_expiry_s=0)
            self._connection = connection
            self._most = min(_MOST_UNANSWERED, connection.window)
            if self._unanswered:
                connection.send(*self._unanswered.values())
        heard_s = time.monotonic()
        while len(self._unanswered) > min(most, self._most - 1):
            packets = self._connection.read(0.5)
            if packets:
                heard_s = time.monotonic()
            elif time.monotonic() - heard_s > _ANSWER_S:
                raise EnvironmentProblem("no answer", where=self._sink.place)
            for packet in packets:
                if isinstance(packet, PublishAnswer):
                    self._answered(packet)

    def _answered(self, answer: PublishAnswer) -> None:
        message = self._unanswered.pop(answer.packet_id, None)
        if message is not None and answer.reason >= 0x80:
            raise MisuseError(
                f"the broker refused a delivery to {message.topic} ({words(answer.reason)})",
                where=self._sink.place,
            )

    def _try(self, do: Callable[[MqttConnection], None]) -> None:
        assert self._connection is not None
        try:
            do(self._connection)
        except EnvironmentProblem:
            self._lose()

    def _lose(self) -> None:
        if self._connection is not None:
            self._connection.drop()
        self._connection = None

    def _new_id(self) -> int:
        while True:
            self._last_id = self._last_id % 65_535 + 1
            if self._last_id not in self._unanswered:
                return self._last_id
