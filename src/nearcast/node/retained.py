"""Retained messages: one a topic, found by filter (sections 3.3.1.3 and 4.7)."""

from __future__ import annotations

from collections.abc import Iterator

from nearcast.mqtt.topics import has_wildcard
from nearcast.node.message import Message

_LARGEST_KEPT_CHUNK = 16 << 20
_MOST_CHUNK_PLACES = 12_000  # looked at for one chunk: nobody waits longer for a newcomer
PLACE_BYTES = 250  # a place's own objects, for the limit

Chunk = tuple[bytes, int, list[Message]]
"""Packets as bytes, how many they are, and the messages that are not among them."""


class _Place:
    """One level of the topics that have a retained message at or below it."""

    __slots__ = ("children", "message", "number")

    def __init__(self) -> None:
        self.children: dict[str, _Place] = {}
        self.message: Message | None = None
        self.number = 0


class RetainedStore:
    """The last retained message of each topic.

    Complexity: `put` O(levels); `find` and `walk` O(places that the filter reaches); `chunk` O(1)
    while nothing retained has changed.
    """

    def __init__(self) -> None:
        self.count = 0
        self.bytes = 0
        self.places = 0
        self.sequence = 0  # of the message that was put last
        self._root = _Place()
        self._chunks: dict[tuple[str, int], Chunk | None] = {}

    def put(self, topic: str, message: Message) -> None:
        """Keep `message` as the last of its topic; an empty payload forgets the topic."""
        if not message.payload:
            self.forget(topic)
            return
        place = self._root
        for name in topic.split("/"):
            child = place.children.get(name)
            if child is None:
                child = place.children[name] = _Place()
                self.places += 1
            place = child
        if place.message is None:
            self.count += 1
        else:
            self.bytes -= place.message.size
        self.sequence += 1
        place.message, place.number = message, self.sequence
        self.bytes += message.size
        self._chunks.clear()

    def get(self, topic: str) -> Message | None:
        """Return what is retained on one topic."""
        place = self._place(topic)
        return place.message if place else None

    def number(self, topic: str) -> int:
        """Return which in the sequence the message of a topic was; 0 without one."""
        place = self._place(topic)
        return place.number if place else 0

    def _place(self, topic: str) -> _Place | None:
        place: _Place | None = self._root
        for name in topic.split("/"):
            place = place.children.get(name) if place else None
        return place

    @property
    def weight(self) -> int:
        """The bytes of all messages and of the tree that their topics make."""
        return self.bytes + self.places * PLACE_BYTES

    def weight_with(self, topic: str, size: int) -> int:
        """Return what `weight` would be with a message of this size on a topic, at most."""
        known = self.get(topic)
        if known is not None:
            return self.weight + size - known.size
        return self.weight + size + PLACE_BYTES * (topic.count("/") + 1)

    def forget(self, topic: str) -> None:
        """Keep nothing for this topic."""
        path = [self._root]
        names = topic.split("/")
        for name in names:
            child = path[-1].children.get(name)
            if child is None:
                return
            path.append(child)
        message = path[-1].message
        if message is None:
            return
        self._chunks.clear()
        self.count -= 1
        self.bytes -= message.size
        path[-1].message = None
        for depth in range(len(names) - 1, -1, -1):
            if path[depth + 1].children or path[depth + 1].message:
                break
            del path[depth].children[names[depth]]
            self.places -= 1

    def find(self, topic_filter: str) -> Iterator[Message]:
        """Yield what is retained on all topics that fit."""
        return (one for one in self.walk(topic_filter, self.sequence) if one is not None)

    def walk(self, topic_filter: str, born: int) -> Iterator[Message | None]:
        """Yield what is retained on all topics that fit, None for a place without a message.

        Messages that were put after the sequence was `born` are passed over. The store may change
        between steps. A step is O(1) but for a place's list of children.
        """
        if not has_wildcard(topic_filter):
            place = self._place(topic_filter)
            yield place.message if place is not None and place.number <= born else None
            return
        names = topic_filter.split("/")
        stack: list[tuple[_Place, int]] = [(self._root, 0)]
        while stack:
            place, depth = stack.pop()
            if depth == len(names) or names[depth] == "#":
                yield place.message if place.number <= born else None
            else:
                yield None
            if depth == len(names):
                continue
            name = names[depth]
            if name == "#":
                stack.extend((child, depth) for child in _open(place, place is self._root))
            elif name == "+":
                stack.extend((child, depth + 1) for child in _open(place, place is self._root))
            elif name in place.children:
                stack.append((place.children[name], depth + 1))

    def all(self) -> Iterator[Message]:
        """Yield every retained message, those of `$` topics too."""
        stack = [self._root]
        while stack:
            place = stack.pop()
            if place.message is not None:
                yield place.message
            stack.extend(place.children.values())

    def chunk(self, topic_filter: str, version: int) -> Chunk | None:
        """Return all answers at QoS 0 as bytes with their number, and those that may expire.

        Newcomers with the same filter share the bytes. None if the filter reaches too many places.
        """
        key = (topic_filter, version)
        if key not in self._chunks:
            if len(self._chunks) >= 16:
                self._chunks.clear()
            made = self._make_chunk(topic_filter, version)
            if made is not None and len(made[0]) > _LARGEST_KEPT_CHUNK:
                return made
            self._chunks[key] = made
        return self._chunks[key]

    def _make_chunk(self, topic_filter: str, version: int) -> Chunk | None:
        parts: list[bytes] = []
        mortal: list[Message] = []
        number = 0
        for places, message in enumerate(self.walk(topic_filter, self.sequence)):
            if places >= _MOST_CHUNK_PLACES:
                return None
            if message is None:
                continue
            if message.expires_at_ms:
                mortal.append(message)
                continue
            before, middle = message.head.form(version, 0)
            parts += (before, middle, message.payload)
            number += 1
        return b"".join(parts), number, mortal


def _open(place: _Place, at_root: bool) -> Iterator[_Place]:
    """Yield what a wildcard reaches: at the root, `$` topics are out of its reach."""
    for name, child in place.children.items():
        if not (at_root and name.startswith("$")):
            yield child
