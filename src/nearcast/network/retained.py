"""Retained messages in a network: every node keeps all of them, the newest of each topic.

Newer is what was published later by the clock of its node; of two at the same instant, that of the
node with the greater name. So all nodes end up with the same message, whatever order they hear of
them in. What was forgotten is remembered as forgotten for a day. When and where survives a restart,
in notes of the journal: otherwise what was forgotten while a node was away would come back with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b

import msgspec

from nearcast.model.errors import FileFormatError, PeerProtocolError
from nearcast.mqtt.wire import encode_string
from nearcast.network.messages import Kept, Retained
from nearcast.node.journal import decode_message, encode_message
from nearcast.node.message import Head, Message
from nearcast.node.state import NodeState

_PORTION = 200
_GRAVE_MS = 24 * 3_600_000
_FOREVER_MS = 1 << 62
_STAMP = b"k"
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[int, str, str]).decode


class RetainedCopies:
    """When and where each topic's last message was published, as far as it is known here.

    Complexity: O(1) a message; O(all) for a node that was away.
    """

    def __init__(self, name: str, state: NodeState) -> None:
        self._name = name
        self._state = state
        self._kept: dict[str, Kept] = {}

    def put(self, message: Message, at_ms: int) -> Kept:
        """Take note of a message that was published here; return what to tell others."""
        topic, said_ms = message.topic_text(), at_ms
        known = self._kept.get(topic)
        if known is not None and (known.at_ms, known.node) >= (at_ms, self._name):
            at_ms = known.at_ms + 1  # it came after that one, whatever the clocks say
        body = encode_message(message) if message.payload else None
        kept = Kept(topic, at_ms, self._name, body, said_ms)
        self._set(kept)
        return kept

    def restored(self) -> None:
        """Take note of what is older than this process: what is retained, and what is forgotten."""
        stamps = {key: stamp for key in self._stamp_keys() if (stamp := self._stamp(key))}
        for message in self._state.retained.all():
            topic = message.topic_text()
            if not topic.startswith("$SYS/"):
                at_ms, node, _ = stamps.get(_key(topic), (0, "", ""))
                self._kept[topic] = Kept(topic, at_ms, node, encode_message(message))
        for at_ms, node, topic in stamps.values():
            if topic:
                self._kept[topic] = Kept(topic, at_ms, node, None)

    def _stamp_keys(self) -> list[bytes]:
        return [key for key in self._state.notes if key[:1] == _STAMP]

    def _stamp(self, key: bytes) -> tuple[int, str, str] | None:
        """Return when, where and (if forgotten) which topic; None for a note that is unreadable."""
        try:
            return _decode(self._state.notes[key][1])
        except msgspec.MsgspecError as problem:
            self._state.set_note_aside(key, problem)
            return None

    def newer(self, told: Iterable[Kept]) -> Iterator[tuple[Kept, Message]]:
        """Yield the messages, of those told by another node, that replace what is known here."""
        for kept in told:
            known = self._kept.get(kept.topic)
            if known is None or (known.at_ms, known.node) < (kept.at_ms, kept.node):
                message = _message(kept)
                self._set(kept)
                yield kept, message

    def since(self, heard_ms: int) -> Iterator[Retained]:
        """Yield, in portions, what is newer than an instant; for a node that was away.

        The last portion is marked as such; it may be empty.
        """
        portion: list[Kept] = []
        for kept in self._kept.values():
            if kept.at_ms >= heard_ms:
                portion.append(kept)
            if len(portion) >= _PORTION:
                yield Retained(portion)
                portion = []
        yield Retained(portion, is_last=True)

    def _set(self, kept: Kept) -> None:
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
        """Forget what was forgotten long ago; the dictionary is in the order of last change."""
        for topic, kept in list(self._kept.items())[:8]:
            if kept.message is None and kept.at_ms < before_ms:
                del self._kept[topic]
                if self._state.journal is not None:
                    self._state.set_note(_key(topic), b"", 0)


def _key(topic: str) -> bytes:
    """Return the key of a topic's note: topics may be longer than keys."""
    return _STAMP + blake2b(topic.encode(), digest_size=16).digest()


def _message(kept: Kept) -> Message:
    if kept.message is None:
        return Message(Head(encode_string(kept.topic), 0, 0), b"")
    try:
        message = decode_message(kept.message)
    except (FileFormatError, ValueError) as problem:
        raise PeerProtocolError(f"a retained message ({problem})", where=kept.topic) from None
    message.number = 0
    return message
