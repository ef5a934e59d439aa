"""Retained messages: one a topic, found by filter (sections 3.3.1.3 and 4.7)."""

from __future__ import annotations

from collections.abc import Iterator

from nearcast.mqtt.topics import has_wildcard
from nearcast.node.message import Message

_LARGEST_KEPT_CHUNK = 16 << 20


class _Place:
    """One level of the topics that have a retained message at or below it."""

    __slots__ = ("children", "message")

    def __init__(self) -> None:
        self.children: dict[str, _Place] = {}
        self.message: Message | None = None


class RetainedStore:
    """The last retained message of each topic.

    Complexity: `put` O(levels); `find` O(places that the filter reaches); `chunk` O(1) while
    neither the filter's answer nor anything else retained has changed.
    """

    def __init__(self) -> None:
        self.count = 0
        self.bytes = 0
        self._root = _Place()
        self._chunks: dict[tuple[str, int], tuple[bytes, int, list[Message]]] = {}

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
            place = child
        if place.message is None:
            self.count += 1
        else:
            self.bytes -= place.message.size
        place.message = message
        self.bytes += message.size
        self._chunks.clear()

    def get(self, topic: str) -> Message | None:
        """Return what is retained on one topic."""
        place: _Place | None = self._root
        for name in topic.split("/"):
            place = place.children.get(name) if place else None
        return place.message if place else None

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

    def find(self, topic_filter: str) -> Iterator[Message]:
        """Yield what is retained on all topics that fit."""
        if not has_wildcard(topic_filter):
            message = self.get(topic_filter)
            if message is not None:
                yield message
            return
        names = topic_filter.split("/")
        stack: list[tuple[_Place, int]] = [(self._root, 0)]
        while stack:
            place, depth = stack.pop()
            if depth == len(names):
                if place.message is not None:
                    yield place.message
                continue
            name = names[depth]
            if name == "#":
                if place.message is not None:
                    yield place.message
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

    def chunk(self, topic_filter: str, version: int) -> tuple[bytes, int, list[Message]]:
        """Return all answers at QoS 0 as bytes with their number, and those that may expire.

        Newcomers with the same filter share the bytes.
        """
        key = (topic_filter, version)
        known = self._chunks.get(key)
        if known is None:
            parts: list[bytes] = []
            mortal: list[Message] = []
            number = 0
            for message in self.find(topic_filter):
                if message.expires_at_ms:
                    mortal.append(message)
                    continue
                before, middle = message.head.form(version, 0)
                parts += (before, middle, message.payload)
                number += 1
            known = (b"".join(parts), number, mortal)
            if len(self._chunks) >= 16:
                self._chunks.clear()
            if len(known[0]) <= _LARGEST_KEPT_CHUNK:
                self._chunks[key] = known
        return known


def _open(place: _Place, at_root: bool) -> Iterator[_Place]:
    """Yield what a wildcard reaches: at the root, `$` topics are out of its reach."""
    for name, child in place.children.items():
        if not (at_root and name.startswith("$")):
            yield child
