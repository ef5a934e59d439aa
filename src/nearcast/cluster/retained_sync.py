"""Retained messages in a cluster: every node keeps all of them, the newest of each topic.

The message with the later publication time, by the clock of its node, is newer; ties go to the node
with the greater name. So all nodes converge, in whatever order they receive the messages. A
deletion is remembered for a day (a tombstone, `_GRAVE_MS`). Times and nodes are notes in the
journal and survive a restart: otherwise a message deleted while a node was down would come back
with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b

import msgspec

from nearcast.broker.persistence.journal import decode_message, encode_message
from nearcast.broker.publish.message import Message, MessageHead
from nearcast.broker.state import BrokerState
from nearcast.cluster.messages import Retained, RetainedEntry
from nearcast.model.errors import FileFormatError, PeerProtocolError
from nearcast.mqtt.wire import encode_string

_PORTION = 200  # entries per message to a peer
_GRAVE_MS = 24 * 3_600_000
_FOREVER_MS = 1 << 62
_STAMP = b"k"
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[int, str, str]).decode


class RetainedSync:
    """The newest retained message of each topic, with the time and node of its publication.

    Complexity: O(1) per message; O(all) for a peer that was disconnected.
    """

    def __init__(self, name: str, state: BrokerState) -> None:
        self._name = name
        self._state = state
        self._kept: dict[str, RetainedEntry] = {}  # by topic, in the order of last change

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

    def restored(self) -> None:
        """Load the state from before the restart: retained messages and tombstones."""
        stamps = {key: stamp for key in self._stamp_keys() if (stamp := self._stamp(key))}
        for message in self._state.retained.all():
            topic = message.topic_text()
            if not topic.startswith("$SYS/"):
                at_ms, node, _ = stamps.get(_key(topic), (0, "", ""))
                self._kept[topic] = RetainedEntry(topic, at_ms, node, encode_message(message))
        for at_ms, node, topic in stamps.values():
            if topic:
                self._kept[topic] = RetainedEntry(topic, at_ms, node, None)

    def _stamp_keys(self) -> list[bytes]:
        return [key for key in self._state.notes if key[:1] == _STAMP]

    def _stamp(self, key: bytes) -> tuple[int, str, str] | None:
        """Return time, node and (for a tombstone) topic of a note; None if it is unreadable."""
        try:
            return _decode(self._state.notes[key][1])
        except msgspec.MsgspecError as problem:
            self._state.set_note_aside(key, problem)
            return None

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
        if self._state.journal is not None:
            stamp = _encode((kept.at_ms, kept.node, kept.topic if is_grave else ""))
            until_ms = kept.at_ms + _GRAVE_MS if is_grave else _FOREVER_MS
            self._state.set_note(_key(kept.topic), stamp, until_ms)
        if is_grave:
            self._bury(kept.at_ms - _GRAVE_MS)

    def _bury(self, before_ms: int) -> None:
        """Drop old tombstones; the dictionary is in the order of last change."""
        for topic, kept in list(self._kept.items())[:8]:
            if kept.message is None and kept.at_ms < before_ms:
                del self._kept[topic]
                if self._state.journal is not None:
                    self._state.set_note(_key(topic), b"", 0)


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
