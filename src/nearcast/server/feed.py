"""The feed: a node puts what its clients publish into a stream of JetStream, for those who learn.

    clients ──► node ──► session "$node/#feed" ──► FeedSender ──► JetStream
                              ▲                                       │
                              └──────────── acknowledged ─────────────┘

The session is one of another node in all but name: what JetStream has not acknowledged is queued,
journaled and sent again as for any session, within its quota. Nobody waits for it: a NATS that is
full or away fills the queue, then messages are dropped and counted, and that is said once.
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

from nearcast.config import Configuration, NetworkSection
from nearcast.index.topic_filters import topic_matches
from nearcast.model.errors import EnvironmentProblem
from nearcast.mqtt import PacketReader, Publish, PublishAnswer
from nearcast.mqtt.wire import TWO_BYTES
from nearcast.node import Connection, Node
from nearcast.node.message import Head, Message
from nearcast.server.feed_messages import (
    VERSION,
    Publication,
    encode_publication,
    feed_subject,
    stream_name,
)
from nearcast.server.feed_numbers import FeedNumbers
from nearcast.server.nats_connection import NatsConnection, store_answers
from nearcast.server.nats_members import key_of

if TYPE_CHECKING:
    from nearcast.server.network import Network
    from nearcast.server.turns import Turns

log = logging.getLogger("nearcast.network")

FEED = "#feed"  # no node can be called so
DUPLICATES_S = 600.0
RETRY_S = 2.0
_SILENCE_S = 5.0
_MOST_LOSSY = 10_000
_MOST_KNOWN = 10_000
_PUBACK, _PUBREC, _PUBCOMP = b"\x40\x02", b"\x50\x02", b"\x70\x02"


@dataclass(slots=True)
class FeedCounts:
    """What has become of publications: stored, sent again, dropped at QoS 0 or as too large."""

    stored: int = 0
    repeated: int = 0
    dropped: int = 0


class FeedTap:
    """Hands what clients publish to the feed's session; called by the node, within its turn."""

    def __init__(self, node: Node, filters: list[str]) -> None:
        self._peering = node.peering
        self._filters = filters
        self._known: dict[bytes, bool] = {}

    def take(self, message: Message) -> None:
        """Take one publication, in a copy: its publisher is not told how the feed fares."""
        if self._wants(message.head.topic):
            copy = Message(message.head, message.payload, message.expires_at_ms)
            self._peering.send(FEED, [copy])

    def take_run(self, count: int, topic: bytes, packets: bytes, head_size: int, qos: int) -> None:
        """Take publications of one topic and size, as they came."""
        if not self._wants(topic):
            return
        size = len(packets) // count
        head = Head(topic, size - head_size, qos)
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
    """Stands where an event log would: a node tells only a log of every publication."""

    def number(self, _offset: int) -> int:
        """Give no number."""
        return 0

    def __getattr__(self, _name: str) -> Callable[..., None]:
        """Take note of nothing."""
        return _nothing


def _nothing(*_: object, **__: object) -> None:
    pass


class FeedSender:
    """Carries what the feed's session sends to JetStream, while there is a connection.

    It is the transport of the session's connection (`write`, `finish`). `run` goes on until it is
    cancelled, and lets no problem of JetStream out.
    """

    def __init__(
        self, section: NetworkSection, name: str, node: Node, turns: Turns, path: Path | None
    ) -> None:
        self._section = section
        self._subject = feed_subject(section.name, key_of(name))
        self._node = node
        self._turns = turns
        self._numbers = FeedNumbers(path)
        self._connection: Connection | None = None
        self._reader = PacketReader()
        self._waiting: deque[Publish] = deque()
        self._pending: dict[int, tuple[Publish, float]] = {}  # by the last word of the reply
        self._last_token = 0
        self._answers: list[bytes] = []
        self._ready = asyncio.Event()
        self._failure: BaseException | None = None
        self.counts = FeedCounts()
        self.problem = ""

    def close(self) -> None:
        """Let go of the file of numbers."""
        self._numbers.close()

    async def run(self, client: NatsConnection) -> None:
        """Feed over a connection, for as long as it lasts."""
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
                    await _either(self._ready.wait(), 1.0)
        finally:
            self._detach()
            with contextlib.suppress(NatsError):
                await answers.unsubscribe()

    async def _open(self, stream: JetStreamContext) -> None:
        """Make the stream, or give it the limits of this node's configuration."""
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
        """Publish to JetStream, which answers to the inbox; at QoS 0 nobody asks it to."""
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
        if message is None:  # of an attempt that was given up
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
        """Take what the session sends; too much of QoS 0 is dropped."""
        for packet in self._reader.feed(b"".join(chunks)):
            if isinstance(packet, Publish):
                if not packet.qos and len(self._waiting) >= _MOST_LOSSY:
                    self.counts.dropped += 1
                else:
                    self._waiting.append(packet)
            elif isinstance(packet, PublishAnswer):  # a release
                self._say(_PUBCOMP + TWO_BYTES[packet.packet_id])
        self._ready.set()

    def pause_reading(self) -> None:
        """Do nothing: links have a flow control of their own."""

    def resume_reading(self) -> None:
        """Do nothing."""

    def finish(self) -> None:
        """Begin anew: the node did not understand an answer."""
        self._failure = EnvironmentProblem("the node closed the feed's session")
        self._ready.set()


_NOT_FOUND = 10059


def stream_config(section: NetworkSection) -> StreamConfig:
    """Return the stream of a network's feed: the oldest goes where it is too much or too old."""
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


def begin_feed(configuration: Configuration, network: Network, node: Node, turns: Turns) -> None:
    """Let a node feed what its configuration says; end the session of a feed that it had before."""
    section = configuration.network
    if not section.feed:
        node.peering.forget(FEED, turns.clock.now_ms())
        return
    path = None
    if configuration.durability.mode != "off":
        path = Path(configuration.node.data) / "feed-numbers"
    node.state.feed = FeedTap(node, section.feed)
    if node.state.log is None:
        node.state.log = SilentLog()  # type: ignore[assignment]
    network.feed = FeedSender(section, configuration.node.name, node, turns, path)


def _failure(answer: bytes) -> NatsError:
    """Return what JetStream, or a NATS without it, said to a publication."""
    if not answer:
        return NoStreamResponseError()
    problem: NatsError = APIError.from_error(json.loads(answer)["error"])
    return problem


async def _either(waiting: object, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await waiting  # type: ignore[misc]
    except TimeoutError:
        pass
