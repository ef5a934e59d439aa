"""`stream` from a live source: a broker (`mqtt://…`), a cluster's feed (`nats://…`), or Kafka.

    mqtt://host:port/shops/#  ──► collector ──► spool ─┐
                                                       ├──► micro-batch n ──► output, as in `stream`
    nats://host:port/network  ──────────────► feed ────┤
    kafka://host:port/topic   ──► Spark's connector ───┘

Read next: `collector.py` (from the broker to the disk), `data_sources.py` (Spark's interface),
`live_events.py` (from messages to events), `delivery.py` (deliveries back to a broker).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from nearcast.config.kafka_address import KAFKA, KafkaAddress, is_kafka, parse_kafka
from nearcast.config.schema import NetworkSection, SpaceSection
from nearcast.index.topic_filters import filters_overlap
from nearcast.model import FileFormatError, MisuseError, NearcastError, Space
from nearcast.model.requests import parse_identity
from nearcast.mqtt import check_topic_filter
from nearcast.pipeline.session import tasks_at_once
from nearcast.pipeline.streaming.addresses import MQTT, NATS, LiveAddress, parse_address
from nearcast.pipeline.streaming.collector import SPOOL_BYTES, Collector
from nearcast.pipeline.streaming.data_sources import (
    MOST_A_BATCH,
    FeedSource,
    LiveSource,
    SpoolSource,
)
from nearcast.pipeline.streaming.delivery import deliver_batch
from nearcast.pipeline.streaming.formats import register_live_formats
from nearcast.pipeline.streaming.jetstream import FeedAddress, FeedWatch
from nearcast.pipeline.streaming.kafka import decoding, deliver_to_kafka, kafka_messages
from nearcast.pipeline.streaming.stopping import interruption, stop_between_batches
from nearcast.pipeline.streaming.stream import (
    QueryControl,
    Stream,
    match_batch,
    start_query,
    unfinished_batch,
)
from nearcast.pipeline.tables.worker_writes import Batches

_QUIET_S = 1.0
_LOOK_S = 0.1
# Errors after which a query that is started again goes on: a machine that was too busy to start a
# process in time; and Kafka's connector, which fails when it reports on a batch that was repeated
# after a crash, before it has asked Kafka for anything. That batch is committed by then.
_GOES_ON = (
    "Python worker failed to connect back",
    'the return value of "scala.Option.get()" is null',
)
_MOST_ATTEMPTS = 5
_LONGEST_S = 60.0


@dataclass(frozen=True, slots=True)
class Live:
    """The live source of a stream, and where its deliveries are published."""

    source: LiveAddress | KafkaAddress
    section: SpaceSection
    network: NetworkSection
    deliver: LiveAddress | KafkaAddress | None = None
    spool_bytes: int = SPOOL_BYTES
    most: int = MOST_A_BATCH

    @property
    def uses_kafka(self) -> bool:
        """Whether Spark needs the connector for Kafka."""
        return any(isinstance(one, KafkaAddress) for one in (self.source, self.deliver))


def live_of(source: str, section: SpaceSection, network: NetworkSection, deliver: str = "") -> Live:
    """Parse the options; raise MisuseError for a combination that makes no sense."""
    sink = _sink_of(deliver) if deliver else None
    if is_kafka(source):
        return Live(parse_kafka(source, "--source"), section, network, sink)
    address = parse_address(source, "--source", (*MQTT, *NATS, *KAFKA))
    if address.is_mqtt:
        topic_filter_of(address, section.to_space())
    return Live(address, section, network, sink)


def _sink_of(text: str) -> LiveAddress | KafkaAddress:
    if is_kafka(text):
        return parse_kafka(text, "--deliver")
    sink = parse_address(text, "--deliver", (*MQTT, *KAFKA))
    if not sink.path or any(one in sink.path for one in "+#$"):
        raise MisuseError(
            repr(sink.path), where="--deliver", expected=f"{sink.place}/PREFIX, a topic"
        )
    return sink


def topic_filter_of(address: LiveAddress, space: Space) -> str:
    """Return the filter to subscribe to; raise MisuseError if it matches no topic of the space.

    It is the path of the address, or else the filter of the space.
    """
    text = address.path or space.topic_filter
    try:
        bare = parse_identity(text).topic_filter
        check_topic_filter(bare)
    except NearcastError as problem:
        raise MisuseError(f"{text!r} ({problem})", where="--source", expected="topics") from None
    if not filters_overlap(bare, space.topic_filter):
        raise MisuseError(
            f"the topics {text!r}",
            where="--source",
            expected=f"topics of the space {space.name}, which are {space.topic_filter!r}",
        )
    return text


_UNTIL_ALL_IS_READ = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"


class LiveStream:
    """A running stream: the query, and the collector if it needs one.

    Its context manager ends both.

    Spark gives the process that it asks for offsets ten seconds to start. On a busy machine that
    may not be enough; then the query is started again from its checkpoint.
    """

    def __init__(
        self,
        begin: Callable[[], StreamingQuery],
        collector: Collector | None,
        checkpoint: Path,
        control: QueryControl,
    ) -> None:
        self.collector = collector
        self.control = control
        self._checkpoint = checkpoint
        self._begin = begin
        self._attempts = 1
        self.query = begin()

    def wait(self, is_over: Callable[[], bool] = lambda: False) -> None:
        """Wait until the query ends or it is over; raise its error, or that of the collector."""
        while not is_over() and not self.has_ended():
            time.sleep(_LOOK_S)

    def stop(self) -> None:
        """End the query when its batch is complete."""
        unfinished = partial(unfinished_batch, self._checkpoint)
        stop_between_batches(self.query, self.control.gate, unfinished)

    def has_ended(self) -> bool:
        """Return whether the query has ended; raise its error, or that of the collector."""
        problem = None if self.collector is None else self.collector.problem
        if problem is not None:
            raise problem
        if self.query.isActive:
            return False
        ended = self.query.exception()
        if ended is None:
            return True
        told = str(ended)
        if not any(one in told for one in _GOES_ON) or self._attempts >= _MOST_ATTEMPTS:
            raise ended
        self._attempts += 1
        self.query = self._begin()
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.query.stop()
        if self.collector is not None:
            self.collector.stop()


def start_live(
    spark: SparkSession,
    stream: Stream,
    live: Live,
    *,
    once: bool = False,
    control: QueryControl | None = None,
) -> LiveStream:
    """Start the stream.

    With `once` it matches what arrives until the source is quiet for a second.
    """
    control = control or QueryControl()
    run = partial(LiveStream, checkpoint=stream.checkpoint, control=control)
    if isinstance(live.source, KafkaAddress):
        begin = partial(_kafka_query, spark, stream, live, live.source, once, control)
        return run(begin, None)
    if not live.source.is_mqtt:
        options = {"secret_feed": _feed(stream, live).text}
        begin = partial(_query, spark, stream, live, FeedSource, options, once, control)
        return run(begin, None)
    folder = stream.checkpoint / "spool"
    topics = topic_filter_of(live.source, stream.space)
    collector = Collector(live.source, topics, folder, live.spool_bytes)
    collector.start()
    try:
        if once:
            collector.wait_until_quiet(_QUIET_S, _LONGEST_S)
        options = {"spool": str(folder.absolute())}
        begin = partial(_query, spark, stream, live, SpoolSource, options, once, control)
        return run(begin, collector)
    except BaseException:
        collector.stop()
        raise


def _query(
    spark: SparkSession,
    stream: Stream,
    live: Live,
    source: type[LiveSource],
    options: dict[str, str],
    once: bool,
    control: QueryControl,
) -> StreamingQuery:
    register_live_formats(spark)
    if once:  # Spark 4.1 would end after one batch, even if that repeats an interrupted one
        spark.conf.set(_UNTIL_ALL_IS_READ, "true")
    frame = (
        spark.readStream.format(source.name())
        .option("space", live.section.model_dump_json())
        .option("payload", "true" if live.deliver else "false")
        .option("once", "true" if once else "false")
        .option("most", str(live.most))
        .option("parts", str(tasks_at_once(spark)))
        .options(**options)
        .load()
    )
    return start_query(
        frame, stream, partial(_batch, stream, live, None), once=once, control=control
    )


def _kafka_query(
    spark: SparkSession,
    stream: Stream,
    live: Live,
    source: KafkaAddress,
    once: bool,
    control: QueryControl,
) -> StreamingQuery:
    parts = spark.sparkContext.defaultParallelism
    frame = kafka_messages(spark, source, stream.query.topic, live.most, parts)
    decode = decoding(live.section, with_payload=live.deliver is not None)
    take_batch = partial(_batch, stream, live, decode)
    return start_query(frame, stream, take_batch, once=once, control=control)


def _batch(
    stream: Stream,
    live: Live,
    decode: Callable[[Batches], Batches] | None,
    events: DataFrame,
    batch: int,
) -> dict[str, int]:
    """Match a batch, and publish its deliveries once it is complete; return how many rows."""
    with _interrupted_briefly():
        rows = match_batch(stream, events, batch, decode, sends=live.deliver is not None)
        if isinstance(live.deliver, KafkaAddress):
            deliver_to_kafka(events.sparkSession, stream.checkpoint, live.deliver, batch)
        elif live.deliver is not None:
            deliver_batch(events.sparkSession, stream.checkpoint, live.deliver, batch)
    return rows


@contextmanager
def _interrupted_briefly() -> Iterator[None]:
    """Replace the error of a query that was stopped within a batch by a short one."""
    from py4j.protocol import Py4JJavaError

    try:
        yield
    except Py4JJavaError as error:
        if "java.lang.InterruptedException" not in str(error):
            raise
        raise interruption() from None


def _feed(stream: Stream, live: Live) -> FeedAddress:
    """Return the feed; raise unless it exists and is the one that the checkpoint was begun with."""
    assert isinstance(live.source, LiveAddress)
    feed = FeedAddress.of(live.source, live.network)
    watch = FeedWatch(feed)
    try:
        found = watch.identity()
    finally:
        watch.close()
    path = stream.checkpoint / "feed.json"
    try:
        known = str(json.loads(path.read_text(encoding="utf-8"))["feed"])
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"feed": found}), encoding="utf-8")
        return feed
    except (ValueError, KeyError, TypeError):
        raise FileFormatError("it is damaged", where=str(path)) from None
    if known != found:
        raise MisuseError(
            found,
            where=str(path),
            expected=f"{known}, with which this checkpoint was begun",
            todo="Start with another --checkpoint and --output.",
        )
    return feed
