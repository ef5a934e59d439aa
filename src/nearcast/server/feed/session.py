"""The session of a feed: what JetStream or Kafka has not acknowledged waits in it.

    clients ──► node ──► session "$node/#feed" ──► FeedSender, KafkaSender ──► JetStream, Kafka
                              ▲                                                      │
                              └───────────────────── acknowledged ───────────────────┘

It works like the session of a peer: messages are queued, journaled and sent again as for any
session, within its quota. No client waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nearcast.broker import Broker
from nearcast.broker.counters import counter
from nearcast.broker.publish.message import Message, MessageHead
from nearcast.broker.session.connection import PeerConnection
from nearcast.broker.session.session import FEED
from nearcast.config import Configuration
from nearcast.index.topic_filters import topic_matches
from nearcast.model.errors import EnvironmentProblem
from nearcast.mqtt import PacketReader, Publish, PublishAnswer
from nearcast.mqtt.wire import TWO_BYTES
from nearcast.server.feed.numbers import FeedNumbers

if TYPE_CHECKING:
    from nearcast.server.loop_batches import LoopBatches

log = logging.getLogger("nearcast.network")

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


class FeedSession:
    """The connection of a feed's session, and the messages that have come from it.

    It is the transport of that connection (`write`, `finish`).
    """

    def __init__(self, node: Broker, turns: LoopBatches, path: Path | None) -> None:
        self._node = node
        self._turns = turns
        self._numbers = FeedNumbers(path)
        self._connection: PeerConnection | None = None
        self._reader = PacketReader()
        self._waiting: deque[Publish] = deque()  # not yet sent
        self._answers: list[bytes] = []  # PUBACK, PUBREC, PUBCOMP for the session
        self._ready = asyncio.Event()
        self._failure: BaseException | None = None
        self.counts = FeedCounts()
        self.problem = ""  # why nothing is sent; empty if it works

    def close(self) -> None:
        """Close the file of numbers."""
        self._numbers.close()

    @abstractmethod
    def forget_sent(self) -> None:
        """Forget what was sent over the last connection."""

    def _tell(self, problem: str) -> None:
        if problem != self.problem:
            log.warning("the feed stands still, and waits: %s", problem)
        self.problem = problem

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

    # --- the connection of the session --------------------------------------------------------

    def _attach(self) -> None:
        self._reader, self._failure = PacketReader(), None
        self._waiting.clear()
        self.forget_sent()
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


def numbers_path(configuration: Configuration) -> Path | None:
    """Return the file of a feed's numbers; None for a node that keeps nothing."""
    if configuration.durability.mode == "off":
        return None
    return Path(configuration.node.data) / "feed-numbers"
