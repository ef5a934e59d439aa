"""`format("mqtt")`: a source and a sink of Spark for any MQTT broker.

    broker ──► collector ──► spool ──► micro-batches        rows ──► publisher ──► broker

The collector runs in the process that Spark asks for offsets, as long as the query. It takes
messages into the spool before it acknowledges them, so `kill -9` of Spark or of the broker loses no
message of QoS 1, and a batch that Spark repeats has the same rows.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from nearcast.model import KeyInUseError, MisuseError, NearcastError
from nearcast.mqtt import Properties, Publish, check_topic_filter, check_topic_name
from nearcast.pipeline.streaming.addresses import MQTT, LiveAddress, parse_address
from nearcast.pipeline.streaming.collector import SPOOL_BYTES, Collector
from nearcast.pipeline.streaming.data_sources import LiveSource, SpoolReader, address_of
from nearcast.pipeline.streaming.delivery import Publisher
from nearcast.pipeline.streaming.live_events import BatchReader

_PATIENCE_S = 30.0
_PAUSE_S = 0.2
_QUIET_S = 1.0
_LONGEST_S = 60.0
_MAY_HAVE = ("topic", "payload", "qos", "retain", "properties")


class MqttSource(LiveSource):
    """Messages of a broker, and messages to one.

    Options: `address` (mqtt://user:password@host:port/TOPICS), `topics`, `spool` (a folder of this
    query alone), `spool_bytes`; of the sink `topic` and `qos` for rows without such a column.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self.address = parse_address(address_of(options), "address", MQTT)

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "mqtt"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802
        """Return the reader."""
        if "spool" not in self.options:
            raise MisuseError(
                "no option 'spool'",
                where="mqtt",
                expected="a folder, where messages are kept until Spark has processed them",
            )
        inlet = MqttInlet(
            self.address,
            _topics(self.options.get("topics") or self.address.path),
            int(self.options.get("spool_bytes", str(SPOOL_BYTES))),
            waits=self.options.get("once") == "true",
        )
        folder = Path(self.options["spool"])
        return MqttReader(inlet, folder, self.events, self.parts, self.most)

    def streamWriter(self, schema: StructType, overwrite: bool) -> MqttStreamWriter:  # noqa: ARG002, N802
        """Return the writer of a query."""
        return MqttStreamWriter(self._rows(schema))

    def writer(self, schema: StructType, overwrite: bool) -> MqttTableWriter:  # noqa: ARG002
        """Return the writer of a DataFrame."""
        return MqttTableWriter(self._rows(schema))

    def _rows(self, schema: StructType) -> MqttRows:
        """Return the way to publish rows; raise MisuseError for columns that mean nothing."""
        names = schema.fieldNames()
        topic = self.options.get("topic", "")
        strange = [name for name in names if name not in _MAY_HAVE]
        if strange or "payload" not in names or not ("topic" in names or topic):
            raise MisuseError(
                f"the columns {', '.join(names)}",
                where="mqtt",
                expected="topic (or the option 'topic'), payload, and perhaps qos, retain, "
                "properties",
            )
        return MqttRows(self.address, topic, int(self.options.get("qos", "1")))


def _topics(text: str) -> str:
    try:
        check_topic_filter(text)
    except NearcastError as problem:
        raise MisuseError(
            repr(text), where="topics", expected=f"a topic filter, such as shops/# ({problem})"
        ) from None
    return text


# --- the source -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MqttInlet:
    """What a reader collects; `waits`: a query that ends waits until the broker is quiet."""

    address: LiveAddress
    topics: str
    spool_bytes: int
    waits: bool


class MqttReader(SpoolReader):
    """Reads a spool, and fills it in the process that Spark asks for offsets."""

    def __init__(
        self, inlet: MqttInlet, folder: Path, events: BatchReader, parts: int, most: int | None
    ) -> None:
        super().__init__(folder, events, parts, most)
        self._inlet = inlet
        self._collector: Collector | None = None  # only in the process that computes offsets

    def marks(self) -> tuple[int, int]:
        """Return the numbers of the oldest message and behind the newest in the spool."""
        if self._collector is None:
            self._collector = self._collecting()
        if self._collector.problem is not None:
            raise self._collector.problem
        return super().marks()

    def _collecting(self) -> Collector:
        """Start collecting; the process of a query that was killed may need a moment to end."""
        give_up_s = time.monotonic() + _PATIENCE_S
        while True:
            try:
                inlet = self._inlet
                collector = Collector(inlet.address, inlet.topics, self._folder, inlet.spool_bytes)
                break
            except KeyInUseError:
                if time.monotonic() > give_up_s:
                    raise
                time.sleep(_PAUSE_S)
        collector.start()
        if inlet.waits:
            collector.wait_until_quiet(_QUIET_S, _LONGEST_S)
        return collector

    def stop(self) -> None:
        """Stop collecting; the broker keeps the session."""
        if self._collector is not None:
            self._collector.stop()
            self._collector = None


# --- the sink -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MqttRows:
    """Publishes rows, at least once: Spark repeats a task or batch that failed."""

    address: LiveAddress
    topic: str
    qos: int

    def publish(self, batches: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Publish the rows of a task, and wait until all are acknowledged."""
        publisher = None
        for batch in batches:
            for row in batch.to_pylist():
                if publisher is None:
                    publisher = Publisher(self.address)
                publisher.publish(self._message(row))
        if publisher is not None:
            publisher.finish()
        return WriterCommitMessage()

    def _message(self, row: dict[str, Any]) -> Publish:
        topic, payload = row.get("topic") or self.topic, row["payload"]
        check_topic_name(topic)
        qos = row.get("qos")
        return Publish(
            topic,
            payload.encode() if isinstance(payload, str) else payload or b"",
            min(1, self.qos if qos is None else qos),
            retain=bool(row.get("retain")),
            properties=Properties(user_properties=tuple(row.get("properties") or ())),
        )


class MqttStreamWriter(DataSourceStreamArrowWriter):
    """Publishes the rows of a query."""

    def __init__(self, rows: MqttRows) -> None:
        self._rows = rows

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Publish the rows of a task."""
        return self._rows.publish(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: what is acknowledged is published."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: a message cannot be taken back."""


class MqttTableWriter(DataSourceArrowWriter):
    """Publishes the rows of a DataFrame."""

    def __init__(self, rows: MqttRows) -> None:
        self._rows = rows

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Publish the rows of a task."""
        return self._rows.publish(iterator)
