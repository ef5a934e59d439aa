"""The retained messages: one per topic, found by filter (sections 3.3.1.3 and 4.7)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from nearcast.broker.publish.message import Message
from nearcast.mqtt.topics import has_wildcard

_LARGEST_KEPT_CHUNK = 16 << 20
_MOST_CHUNK_PLACES = 12_000  # visited for one chunk: bounds how long other clients wait
PLACE_BYTES = 250  # the Python objects of a place, counted in the limit

Chunk = tuple[bytes, int, list[Message]]
"""Packets as bytes, their number, and the messages with an expiry, which are not among them."""


class _Place:
    """One topic level with a retained message at or below it."""

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
        self.count = 0  # messages
        self.bytes = 0  # their size
        self.places = 0  # levels of the tree
        self.sequence = 0  # the number of the message that was put last
        self.on_expiry: Callable[[int], None] = _ignore
        """Gets the instant at which a message that was put expires."""
        self._root = _Place()
        self._chunks: dict[tuple[str, int], Chunk | None] = {}

    def put(self, topic: str, message: Message) -> None:
        """Replace a topic's message [MQTT-3.3.1-5]; an empty payload deletes it [MQTT-3.3.1-6]."""
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
        if message.expires_at_ms:
            self.on_expiry(message.expires_at_ms)

    def get(self, topic: str) -> Message | None:
        """Return the retained message of a topic."""
        place = self._place(topic)
        return place.message if place else None

    def number(self, topic: str) -> int:
        """Return the sequence number of a topic's message; 0 without one."""
        place = self._place(topic)
        return place.number if place else 0

    def _place(self, topic: str) -> _Place | None:
        place: _Place | None = self._root
        for name in topic.split("/"):
            place = place.children.get(name) if place else None
        return place

    @property
    def weight(self) -> int:
        """The bytes of all messages and of the tree of their topics."""
        return self.bytes + self.places * PLACE_BYTES

    def weight_with(self, topic: str, size: int) -> int:
        """Return an upper bound of `weight` with a message of this size on a topic."""
        known = self.get(topic)
        if known is not None:
            return self.weight + size - known.size
        return self.weight + size + PLACE_BYTES * (topic.count("/") + 1)

    def forget(self, topic: str) -> None:
        """Delete the message of a topic."""
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
        """Yield the retained messages of all topics that match."""
        return (one for one in self.walk(topic_filter, self.sequence) if one is not None)

    def walk(self, topic_filter: str, born: int) -> Iterator[Message | None]:
        """Yield the retained messages of all matching topics; None for a place without one.

        Messages that were put after the sequence was `born` are skipped. The store may change
        between steps. A step is O(1), except for copying the names of a place's children once.
        """
        if not has_wildcard(topic_filter):
            place = self._place(topic_filter)
            yield place.message if place is not None and place.number <= born else None
            return
        names = topic_filter.split("/")
        stack = [_ways(self._root, names, 0)]
        if names[0] in "+#":  # a leading wildcard does not match `$` topics [MQTT-4.7.2-1]
            children, all_names, depth = stack[0]
            stack[0] = children, (one for one in all_names if not one.startswith("$")), depth
        while stack:
            children, left, depth = stack[-1]
            name = next(left, None)
            if name is None:
                stack.pop()
                continue
            place = children.get(name)
            if place is None:
                yield None
                continue
            is_goal = depth == len(names) or names[depth] == "#"
            yield place.message if is_goal and place.number <= born else None
            if depth < len(names):
                stack.append(_ways(place, names, depth))

    def all(self) -> Iterator[Message]:
        """Yield every retained message, those of `$` topics too; the store may change meanwhile."""
        stack = [self._root]
        while stack:
            place = stack.pop()
            if place.message is not None:
                yield place.message
            stack.extend(place.children.values())

    def chunk(self, topic_filter: str, version: int) -> Chunk | None:
        """Return all matches at QoS 0 as bytes with their number, and those that may expire.

        New subscriptions with the same filter share the bytes. None if the filter reaches too many
        places.
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


def _ignore(_expires_at_ms: int) -> None:
    """Do nothing."""


_Ways = tuple[dict[str, _Place], Iterator[str], int]
"""Places by name, the names still to visit, and the level of the filter there."""


def _ways(place: _Place, names: list[str], depth: int) -> _Ways:
    """Return the children to visit of a place that matches the first `depth` levels."""
    name = names[depth]
    if name == "#":
        return place.children, iter(list(place.children)), depth
    return place.children, iter(list(place.children) if name == "+" else (name,)), depth + 1
