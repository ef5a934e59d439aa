"""Retained messages in a cluster: every node keeps all of them, the newest of each topic.

The message with the later publication time, by the clock of its node, is newer; ties go to the node
with the greater name. So all nodes converge, in whatever order they receive the messages. A
deletion is remembered for a day (a tombstone, `_GRAVE_MS`). Times and nodes are notes in the
journal and survive a restart: otherwise a message deleted while a node was down would come back
with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from hashlib import blake2b

import msgspec

from nearcast.broker import Broker
from nearcast.broker.persistence.journal import decode_message, encode_message
from nearcast.broker.publish.message import Message, MessageHead
from nearcast.cluster.messages import Retained, RetainedEntry
from nearcast.cluster.part import ClusterPart, handles
from nearcast.cluster.peer import PeerNode
from nearcast.cluster.peer_registry import PeerRegistry
from nearcast.cluster.subscribe_race import SubscribeRace
from nearcast.model.errors import FileFormatError, PeerProtocolError
from nearcast.mqtt.wire import encode_string

_PORTION = 200  # entries per message to a peer
_GRAVE_MS = 24 * 3_600_000
_FOREVER_MS = 1 << 62
_STAMP = b"k"
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[int, str, str]).decode


class RetainedSync(ClusterPart):
    """The newest retained message of each topic, with the time and node of its publication.

    Complexity: O(1) per message; O(all) for a peer that was disconnected.
    """

    def __init__(self, name: str, node: Broker, peers: PeerRegistry, race: SubscribeRace) -> None:
        self._name = name
        self._node = node
        self._peers = peers
        self._race = race
        self._kept: dict[str, RetainedEntry] = {}  # by topic, in the order of last change
        self._news: list[RetainedEntry] = []  # to send at the end of the batch

    # --- peers ------------------------------------------------------------------------------

    def peer_up(self, peer: PeerNode) -> None:
        """Send a peer what was retained since it was disconnected."""
        for portion in self.since(peer.heard_ms):
            self._peers.tell(peer, portion)

    def peer_down(self, peer: PeerNode) -> None:
        """Record what the peer has received: retained messages go out up to a batch later."""
        if peer.link.arrived_ms >= 0:
            peer.heard_ms = peer.link.arrived_ms - self._peers.timing.silence_ms

    def retained(self, message: Message) -> None:
        """Queue a message retained here for the peers' retained stores."""
        self._news.append(self.put(message, self._node.now_ms))

    def end_batch(self) -> None:
        """Send retained messages behind the batch's live messages: subscribers wait for those."""
        if self._news:
            news, self._news = self._news, []
            self._peers.tell_all(Retained(news), with_last=True)

    @handles(Retained)
    def arrived(self, peer: PeerNode, told: Retained) -> None:
        """Store the retained messages of a peer that are newer than ours."""
        for kept, message in self.newer(told.kept):
            origin = self._peers.peers.get(kept.node, peer)
            missed = partial(self._race.missed, kept, origin.confirmed)
            self._node.keep(message, self._peers.now_ms, missed)
        if told.is_last:
            peer.has_sent_retained = True
            self._peers.renew_greeting(peer)

    # --- the newest message of each topic ---------------------------------------------------

    def put(self, message: Message, at_ms: int) -> RetainedEntry:
        """Record a message retained at this node; return the entry to send to the peers."""
        topic, said_ms = message.topic_text(), at_ms
        known = self._kept.get(topic)
        if known is not None and (known.at_ms, known.node) >= (at_ms, self._name):
            at_ms = known.at_ms + 1  # it is newer, whatever the clocks say
        body = encode_message(message) if message.payload else None
        kept = RetainedEntry(topic, at_ms, self._name, body, said_ms)
        self._set(kept)
        return kept

    def restored(self, _now_ms: int) -> None:
        """Load the state from before the restart: retained messages and tombstones."""
        stamps = {}
        for key, value in self._node.notes.starting_with(_STAMP):
            try:
                stamps[key] = _decode(value)  # time, node and, for a tombstone, topic
            except msgspec.MsgspecError as problem:
                self._node.notes.set_aside(key, problem)
        for message in self._node.retained_messages():
            topic = message.topic_text()
            if not topic.startswith("$SYS/"):
                at_ms, node, _ = stamps.get(_key(topic), (0, "", ""))
                self._kept[topic] = RetainedEntry(topic, at_ms, node, encode_message(message))
        for at_ms, node, topic in stamps.values():
            if topic:
                self._kept[topic] = RetainedEntry(topic, at_ms, node, None)

    def newer(self, told: Iterable[RetainedEntry]) -> Iterator[tuple[RetainedEntry, Message]]:
        """Yield those entries of a peer that replace the ones known here, with their messages."""
        for kept in told:
            known = self._kept.get(kept.topic)
            if known is None or (known.at_ms, known.node) < (kept.at_ms, kept.node):
                message = _message(kept)
                self._set(kept)
                yield kept, message

    def since(self, heard_ms: int) -> Iterator[Retained]:
        """Yield, in portions, the entries changed since a time; for a peer that was disconnected.

        The last portion is marked as such; it may be empty.
        """
        portion: list[RetainedEntry] = []
        for kept in self._kept.values():
            if kept.at_ms >= heard_ms:
                portion.append(kept)
            if len(portion) >= _PORTION:
                yield Retained(portion)
                portion = []
        yield Retained(portion, is_last=True)

    def _set(self, kept: RetainedEntry) -> None:
        self._kept.pop(kept.topic, None)
        self._kept[kept.topic] = kept
        is_grave = kept.message is None
        if self._node.is_journaled:
            stamp = _encode((kept.at_ms, kept.node, kept.topic if is_grave else ""))
            until_ms = kept.at_ms + _GRAVE_MS if is_grave else _FOREVER_MS
            self._node.notes.set(_key(kept.topic), stamp, until_ms)
        if is_grave:
            self._bury(kept.at_ms - _GRAVE_MS)

    def _bury(self, before_ms: int) -> None:
        """Drop old tombstones; the dictionary is in the order of last change."""
        for topic, kept in list(self._kept.items())[:8]:
            if kept.message is None and kept.at_ms < before_ms:
                del self._kept[topic]
                if self._node.is_journaled:
                    self._node.notes.delete(_key(topic))


def _key(topic: str) -> bytes:
    """Return the journal key of a topic's note: a hash, since topics may exceed key lengths."""
    return _STAMP + blake2b(topic.encode(), digest_size=16).digest()


def _message(kept: RetainedEntry) -> Message:
    if kept.message is None:
        return Message(MessageHead(encode_string(kept.topic), 0, 0), b"")
    try:
        message = decode_message(kept.message)
    except (FileFormatError, ValueError) as problem:
        raise PeerProtocolError(f"a retained message ({problem})", where=kept.topic) from None
    message.number = 0
    return message
