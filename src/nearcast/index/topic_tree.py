"""Topic filters in a tree, one tree level per topic level (MQTT 5, section 4.7)."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from nearcast.model.errors import KeyInUseError, KeyMissingError

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Level(Generic[K, V]):
    """One tree level: filters that end here, filters with `#` after it, and deeper levels."""

    __slots__ = ("below", "children", "here")

    def __init__(self) -> None:
        self.children: dict[str, _Level[K, V]] = {}
        self.here: dict[K, V] = {}
        self.below: dict[K, V] = {}

    def is_empty(self) -> bool:
        return not (self.children or self.here or self.below)


class TopicTree(Generic[K, V]):
    """Filters, each with any number of keyed values; a topic finds those of all that match.

    `+` matches one level, `#` the level before it and all below. A topic that begins with
    `$` is not matched by a filter that begins with a wildcard [MQTT-4.7.2-1].

    Contract: filters are well-formed (`nearcast.mqtt.check_topic_filter`). `match` answers from
    a cache of at most `cache_size` topics while nothing changes; a change of a filter without
    wildcards evicts one topic, of any other all.

    Complexity, for a topic of d levels: `add`, `discard` O(d); `match` O(1) from the cache, else
    O(d + w) for the w tree levels that match some part of the topic.

    >>> tree = TopicTree[str, str]()
    >>> tree.add("shops/+", "ann", "wants shops")
    >>> tree.match("shops/bakery")
    ('wants shops',)
    """

    __slots__ = ("_cache", "_cache_size", "_root", "_size")

    def __init__(self, *, cache_size: int = 10_000) -> None:
        self._root: _Level[K, V] = _Level()
        self._size = 0
        self._cache: dict[str, tuple[V, ...]] = {}
        self._cache_size = cache_size

    def __len__(self) -> int:
        """Return how many (filter, key) pairs there are."""
        return self._size

    def add(self, topic_filter: str, key: K, value: V) -> None:
        """Register `value` under (filter, key), which must be new."""
        if self.get(topic_filter, key) is not None:
            raise KeyInUseError(f"{key!r}", where=topic_filter, todo="Discard it first.")
        self.put(topic_filter, key, value)

    def put(self, topic_filter: str, key: K, value: V) -> None:
        """Register `value` under (filter, key), replacing an earlier one."""
        level = self._root
        names, deep = _split(topic_filter)
        for name in names:
            child = level.children.get(name)
            if child is None:
                child = level.children[name] = _Level()
            level = child
        values = level.below if deep else level.here
        self._size += key not in values
        values[key] = value
        self._forget(topic_filter)

    def get(self, topic_filter: str, key: K) -> V | None:
        """Return the value under (filter, key), or None."""
        names, deep = _split(topic_filter)
        path = self._path(names)
        if path is None:
            return None
        return (path[-1].below if deep else path[-1].here).get(key)

    def discard(self, topic_filter: str, key: K) -> V:
        """Remove and return the value under (filter, key), which must exist."""
        names, deep = _split(topic_filter)
        path = self._path(names)
        values: dict[K, V] = {}
        if path is not None:
            values = path[-1].below if deep else path[-1].here
        if path is None or key not in values:
            raise KeyMissingError(f"{key!r}", where=topic_filter)
        value = values.pop(key)
        self._size -= 1
        for parent, name, child in zip(
            reversed(path[:-1]), reversed(names), reversed(path[1:]), strict=True
        ):
            if not child.is_empty():
                break
            del parent.children[name]
        self._forget(topic_filter)
        return value

    def match(self, topic: str) -> tuple[V, ...]:
        """Return the values of all filters that match `topic`, in no particular order."""
        found = self._cache.get(topic)
        if found is None:
            found = tuple(self._search(topic))
            if len(self._cache) >= self._cache_size:
                self._cache.clear()
            if self._cache_size:
                self._cache[topic] = found
        return found

    def items(self) -> Iterator[tuple[K, V]]:
        """Yield every key with its value, in no particular order."""
        stack = [self._root]
        while stack:
            level = stack.pop()
            yield from level.here.items()
            yield from level.below.items()
            stack.extend(level.children.values())

    def _path(self, names: list[str]) -> list[_Level[K, V]] | None:
        path = [self._root]
        for name in names:
            child = path[-1].children.get(name)
            if child is None:
                return None
            path.append(child)
        return path

    def _forget(self, topic_filter: str) -> None:
        if "+" in topic_filter or "#" in topic_filter:
            self._cache.clear()
        else:
            self._cache.pop(topic_filter, None)

    def _search(self, topic: str) -> Iterator[V]:
        names = topic.split("/")
        frontier = [self._root]
        wild = not topic.startswith("$")  # a leading wildcard matches no $ topic [MQTT-4.7.2-1]
        for name in names:
            deeper: list[_Level[K, V]] = []
            for level in frontier:
                if wild:
                    yield from level.below.values()
                    if "+" in level.children:
                        deeper.append(level.children["+"])
                if name in level.children:
                    deeper.append(level.children[name])
            frontier, wild = deeper, True
            if not frontier:
                return
        for level in frontier:
            yield from level.below.values()
            yield from level.here.values()


def _split(topic_filter: str) -> tuple[list[str], bool]:
    """Return the levels before a final `#`, and whether there was one."""
    names = topic_filter.split("/")
    deep = names[-1] == "#"
    return (names[:-1] if deep else names), deep
