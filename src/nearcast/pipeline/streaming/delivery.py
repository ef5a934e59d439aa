"""Publishes deliveries to a broker: each as a message to PREFIX/<subscription_id>, at QoS 1.

    worker: events with payloads ──► deliveries ──► output/deliveries/n/
                                          └───────► checkpoint/outbox/n/   until it is sent

A worker has a delivery and its message while it matches. It writes both to the outbox, so that
messages are neither read nor decoded a second time, nor joined with deliveries. The outbox serves
Kafka as well.

A batch is published after it is complete and before Spark commits it. If the process is killed in
between, the batch is repeated and published again: every delivery arrives at least once. A
subscriber can recognise a repeat by the user property `event`: a subscription gets an event once.
"""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

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

# Columns of events beside their attributes, whose names have no space.
SENT_TOPIC = "topic of the message"
SENT_PAYLOAD = "payload of the message"
OUTBOX = pa.schema(
    {
        EVENT_KEY: pa.int64(),
        KEY: pa.int64(),
        "rank": pa.int32(),
        "topic": pa.string(),
        PAYLOAD: pa.binary(),
    }
)


PATIENCE_S = 60.0
_PAUSE_S = 1.0
_MESSAGES_AT_ONCE = 1_000


def outbox_folder(checkpoint: Path, batch: int) -> Path:
    """Return the directory of a batch's outbox."""
    return checkpoint.absolute() / "outbox" / f"{batch:012d}"


def outbox_rows(found: pa.RecordBatch, events: pa.RecordBatch) -> pa.RecordBatch:
    """Return deliveries of these events, each with its event's message; O(deliveries + events)."""
    keys = events.column(EVENT_KEY).cast(pa.int64())
    at = pc.index_in(found.column(EVENT_KEY), value_set=keys)
    messages = [events.column(name).take(at) for name in (SENT_TOPIC, SENT_PAYLOAD)]
    return pa.RecordBatch.from_arrays([*found.columns, *messages], schema=OUTBOX)


@contextmanager
def to_send(spark: SparkSession, checkpoint: Path, batch: int) -> Iterator[DataFrame | None]:
    """Return the rows of a complete batch's outbox; None if they have been sent.

    A subscription's rows are together, in the order of their events: one shuffle. If the body does
    not fail, they count as sent, and the outbox is removed.
    """
    done = checkpoint / "delivered" / str(batch)
    if done.exists():
        yield None
        return
    folder = outbox_folder(checkpoint, batch)
    rows = spark.read.schema(spark_schema(OUTBOX)).parquet(str(folder))
    yield rows.repartition(KEY).sortWithinPartitions(EVENT_KEY, KEY)
    shutil.rmtree(done.parent, ignore_errors=True)  # Spark never repeats earlier batches
    done.parent.mkdir(parents=True)
    done.touch()
    shutil.rmtree(folder.parent, ignore_errors=True)


def deliver_batch(spark: SparkSession, checkpoint: Path, sink: LiveAddress, batch: int) -> None:
    """Publish the outbox of a complete batch, unless that has been done."""
    with to_send(spark, checkpoint, batch) as rows:
        if rows is not None:
            rows.mapInArrow(_publishing(sink), "published bigint").collect()


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
