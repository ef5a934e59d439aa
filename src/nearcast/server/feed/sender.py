"""The feed: a node copies its clients' publications into a JetStream stream, for the pipeline.

    clients ──► node ──► session "$node/#feed" ──► FeedSender ──► JetStream
                              ▲                                       │
                              └──────────── acknowledged ─────────────┘

The session works like a peer session: messages that JetStream has not acknowledged are queued,
journaled and sent again as for any session, within its quota. No client waits for it: a NATS that
is full or unreachable fills the queue, then messages are dropped and counted, which is logged once.

Read next: `messages.py` (the format), `numbers.py` (identities).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import MaxPayloadError
from nats.js import JetStreamContext
from nats.js.api import RetentionPolicy, StorageType, StreamConfig
from nats.js.errors import APIError, NoStreamResponseError

from nearcast.broker import Broker
from nearcast.broker.counters import counter
from nearcast.broker.publish.message import Message, MessageHead
from nearcast.broker.session.connection import PeerConnection
from nearcast.broker.session.session import FEED
from nearcast.config import Configuration, NetworkSection
from nearcast.index.topic_filters import topic_matches
from nearcast.model.errors import EnvironmentProblem
from nearcast.mqtt import PacketReader, Publish, PublishAnswer
from nearcast.mqtt.wire import TWO_BYTES
from nearcast.nats.connection import NatsConnection, store_answers
from nearcast.nats.feed_messages import (
    VERSION,
    Publication,
    encode_publication,
    feed_subject,
    stream_name,
)
from nearcast.server.cluster.nats_members import key_of
from nearcast.server.feed.numbers import FeedNumbers

if TYPE_CHECKING:
    from nearcast.server.cluster.runtime import ClusterRuntime
    from nearcast.server.loop_batches import LoopBatches

log = logging.getLogger("nearcast.network")

DUPLICATES_S = 600.0
RETRY_S = 2.0
_SILENCE_S = 5.0
_MOST_LOSSY = 10_000
_MOST_KNOWN = 10_000
_PUBACK, _PUBREC, _PUBCOMP = b"\x40\x02", b"\x50\x02", b"\x70\x02"


@dataclass(slots=True)
class FeedCounts:
    """Counters of a node's feed."""

    stored: int = counter("Publications stored in the feed's stream")
    repeated: int = counter("Publications of the feed that were sent again")
    dropped: int = counter("Publications missing from the feed: too many at QoS 0, or too large")


class FeedTap:
    """Passes clients' publications to the feed's session; the broker calls it within a batch."""

    def __init__(self, node: Broker, filters: list[str]) -> None:
        self._peering = node.peering
        self._filters = filters
        self._known: dict[bytes, bool] = {}  # whether a topic is in the feed; cached

    def take(self, message: Message) -> None:
        """Queue a copy of one publication: its publisher does not see the feed's outcome."""
        if self._wants(message.head.topic):
            copy = Message(message.head, message.payload, message.expires_at_ms)
            self._peering.send(FEED, [copy])

    def take_run(self, count: int, topic: bytes, packets: bytes, head_size: int, qos: int) -> None:
        """Queue publications of one topic and size, straight from their packets."""
        if not self._wants(topic):
            return
        size = len(packets) // count
        head = MessageHead(topic, size - head_size, qos)
        starts = range(0, len(packets), size)
        self._peering.send(
            FEED, [Message(head, packets[at + head_size : at + size]) for at in starts]
        )

    def _wants(self, topic: bytes) -> bool:
        known = self._known.get(topic)
        if known is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            text = topic[2:].decode()
            known = any(topic_matches(one, text) for one in self._filters)
            self._known[topic] = known
        return known


class SilentLog:
    """Stands in for the event log: a broker without one does not report every publication."""

    def number(self, _offset: int) -> int:
        """Return 0: publications have no number."""
        return 0

    def __getattr__(self, _name: str) -> Callable[..., None]:
        """Return a function that records nothing."""
        return _nothing


def _nothing(*_: object, **__: object) -> None:
    pass


class FeedSender:
    """Sends the messages of the feed's session to JetStream, while there is a connection.

    It is the transport of the session's connection (`write`, `finish`). `run` continues until it is
    cancelled, and raises no problem of JetStream.
    """

    def __init__(
        self,
        section: NetworkSection,
        name: str,
        node: Broker,
        turns: LoopBatches,
        path: Path | None,
    ) -> None:
        self._section = section
        self._subject = feed_subject(section.name, key_of(name))
        self._node = node
        self._turns = turns
        self._numbers = FeedNumbers(path)
        self._connection: PeerConnection | None = None
        self._reader = PacketReader()
        self._waiting: deque[Publish] = deque()  # not yet sent to JetStream
        # not acknowledged, by the last token of the reply subject: message, time sent
        self._pending: dict[int, tuple[Publish, float]] = {}
        self._last_token = 0
        self._answers: list[bytes] = []  # PUBACK, PUBREC, PUBCOMP for the session
        self._ready = asyncio.Event()
        self._failure: BaseException | None = None
        self.counts = FeedCounts()
        self.problem = ""  # why nothing is sent; empty if it works

    def close(self) -> None:
        """Close the file of numbers."""
        self._numbers.close()

    async def run(self, client: NatsConnection) -> None:
        """Send the feed over a connection until cancelled."""
        while True:
            try:
                with store_answers(client, "the stream of the feed"):
                    await self._carry(client)
            except EnvironmentProblem as problem:
                self._tell(str(problem))
            await asyncio.sleep(RETRY_S)

    def _tell(self, problem: str) -> None:
        if problem != self.problem:
            log.warning("the feed stands still, and waits: %s", problem)
        self.problem = problem

    async def _carry(self, client: NatsConnection) -> None:
        await self._open(client.jetstream(timeout=client.timeout_s))
        inbox = client.new_inbox()
        answers = await client.subscribe(f"{inbox}.*", cb=self._answered)
        self._attach()
        try:
            while True:
                await self._send_waiting(client, inbox)
                if self._failure is not None:
                    raise self._failure
                self._check_silence()
                self._ready.clear()
                if not self._waiting:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._ready.wait(), 1.0)
        finally:
            self._detach()
            with contextlib.suppress(NatsError):
                await answers.unsubscribe()

    async def _open(self, stream: JetStreamContext) -> None:
        """Create the stream, or update its limits to this node's configuration."""
        wanted = stream_config(self._section)
        assert wanted.name is not None
        try:
            found = (await stream.stream_info(wanted.name)).config
        except NatsError as problem:
            if getattr(problem, "err_code", None) != _NOT_FOUND:
                raise
            await stream.add_stream(wanted)
            return
        if (found.max_bytes, found.max_age) != (wanted.max_bytes, wanted.max_age):
            await stream.update_stream(wanted)

    async def _send_waiting(self, client: NatsConnection, inbox: str) -> None:
        while self._waiting and self._failure is None:
            message = self._waiting.popleft()
            number = self._numbers.assign(message)
            one = Publication(
                VERSION,
                self._turns.clock.now_ms(),
                self._numbers.epoch,
                number,
                message.topic,
                message.payload,
                message.properties.user_properties,
            )
            try:
                await self._publish(client, inbox, message, one)
            except MaxPayloadError:
                self._drop_too_large(message)

    async def _publish(
        self, client: NatsConnection, inbox: str, message: Publish, one: Publication
    ) -> None:
        """Publish to JetStream, which acknowledges to the inbox; not at QoS 0."""
        data = encode_publication(one)
        if not message.qos:
            await client.publish(self._subject, data)
            return
        self._last_token = token = self._last_token + 1
        headers = {"Nats-Msg-Id": f"{one.epoch}-{one.number}"}
        await client.publish(self._subject, data, f"{inbox}.{token}", headers)
        self._pending[token] = (message, asyncio.get_running_loop().time())

    async def _answered(self, answer: Msg) -> None:
        message, _ = self._pending.pop(int(answer.subject.rpartition(".")[2]), (None, 0.0))
        if message is None:  # of an abandoned attempt
            return
        if answer.data and b'"error"' not in answer.data:
            self._stored(message)
            return
        self._failure = _failure(answer.data)
        self._ready.set()

    def _stored(self, message: Publish) -> None:
        self.counts.stored += 1
        self.counts.repeated += message.duplicate
        if self.problem:
            log.info("the feed goes on")
            self.problem = ""
        self._answer(message)

    def _drop_too_large(self, message: Publish) -> None:
        if not self.counts.dropped:
            size = len(message.payload)
            log.warning("a message of %d bytes is too large for NATS and its feed", size)
        self.counts.dropped += 1
        self._answer(message)

    def _answer(self, message: Publish) -> None:
        if message.qos:
            first = _PUBACK if message.qos == 1 else _PUBREC
            self._say(first + TWO_BYTES[message.packet_id])

    def _say(self, answer: bytes) -> None:
        if not self._answers:
            asyncio.get_running_loop().call_soon(self._give_answers)
        self._answers.append(answer)

    def _give_answers(self) -> None:
        answers, self._answers = b"".join(self._answers), []
        if self._connection is not None and answers:
            self._turns.schedule()
            self._node.receive(self._connection, answers, self._turns.now_ms)

    def _check_silence(self) -> None:
        oldest = next((at for _, at in self._pending.values()), None)
        if oldest is not None and asyncio.get_running_loop().time() - oldest > _SILENCE_S:
            raise EnvironmentProblem("JetStream does not answer", where="NATS")

    # --- the connection of the session --------------------------------------------------------

    def _attach(self) -> None:
        self._reader, self._failure = PacketReader(), None
        self._waiting.clear()
        self._pending.clear()
        now_ms = self._turns.clock.now_ms()
        self._connection = connection = self._node.peering.attach(FEED, self._numbers.epoch, now_ms)
        connection.transport = self
        self._turns.schedule()

    def _detach(self) -> None:
        connection, self._connection = self._connection, None
        self._answers.clear()
        if connection is not None:
            self._node.peering.detach(connection, self._turns.clock.now_ms())
            self._turns.schedule()

    def write(self, chunks: list[bytes]) -> None:
        """Queue the session's messages; drop those of QoS 0 above a limit."""
        for packet in self._reader.feed(b"".join(chunks)):
            if isinstance(packet, Publish):
                if not packet.qos and len(self._waiting) >= _MOST_LOSSY:
                    self.counts.dropped += 1
                else:
                    self._waiting.append(packet)
            elif isinstance(packet, PublishAnswer):  # a PUBREL
                self._say(_PUBCOMP + TWO_BYTES[packet.packet_id])
        self._ready.set()

    def pause_reading(self) -> None:
        """Do nothing: the session's window limits the feed."""

    def resume_reading(self) -> None:
        """Do nothing: the session's window limits the feed."""

    def finish(self) -> None:
        """Restart the feed: the broker could not decode an acknowledgement."""
        self._failure = EnvironmentProblem("the node closed the feed's session")
        self._ready.set()


_NOT_FOUND = 10059


def stream_config(section: NetworkSection) -> StreamConfig:
    """Return the configuration of a network's stream: the oldest messages are discarded first."""
    return StreamConfig(
        name=stream_name(section.name),
        description="What clients of a Nearcast network publish",
        subjects=[feed_subject(section.name, "*")],
        retention=RetentionPolicy.LIMITS,
        storage=StorageType.FILE,
        max_bytes=section.feed_size,
        max_age=section.feed_age,
        num_replicas=section.replicas,
        duplicate_window=min(DUPLICATES_S, section.feed_age),
    )


def begin_feed(
    configuration: Configuration, network: ClusterRuntime, node: Broker, turns: LoopBatches
) -> None:
    """Start a node's feed as configured; without one, end the session of a former feed."""
    section = configuration.network
    if not section.feed:
        node.peering.forget(FEED, turns.clock.now_ms())
        return
    path = None
    if configuration.durability.mode != "off":
        path = Path(configuration.node.data) / "feed-numbers"
    node.feed_with(FeedTap(node, section.feed), SilentLog())  # type: ignore[arg-type]
    network.feed = FeedSender(section, configuration.node.name, node, turns, path)


def _failure(answer: bytes) -> NatsError:
    """Return the error of a JetStream, or of a NATS without it, to a publication."""
    if not answer:
        return NoStreamResponseError()
    problem: NatsError = APIError.from_error(json.loads(answer)["error"])
    return problem
