"""Compiled routes by topic, and which of them a change of one filter invalidates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from nearcast.broker.publish.routes import Route

T = TypeVar("T")

_MOST_VISITS = 20_000  # for one filter: beyond that, clearing the whole cache is faster


class _Level:
    """One topic level of the cached topics: deeper levels, and the topics that end here."""

    __slots__ = ("children", "topics")

    def __init__(self) -> None:
        self.children: dict[str, _Level] = {}
        self.topics: dict[str, bytes] = {}


class RouteCache:
    """The routes of up to `limit` topics; a full cache is cleared.

    A subscription that is added or removed invalidates the routes of the topics that its filter
    matches, and no others.

    Complexity: `put` O(levels); `forget` O(levels of the tree that the filter reaches), bounded.
    """

    def __init__(self, limit: int) -> None:
        self.routes: dict[bytes, Route] = {}  # read directly by the hot path
        self._limit = limit
        self._root = _Level()
        self._entries = 0  # of the tree; some may be of topics whose route is gone

    def put(self, key: bytes, topic: str, route: Route) -> None:
        """Store the route of a topic under its bytes."""
        if len(self.routes) >= self._limit or self._entries >= 2 * self._limit:
            self.clear()
        self.routes[key] = route
        level = self._root
        *names, last = topic.split("/")
        for name in names:
            child = level.children.get(name)
            if child is None:
                child = level.children[name] = _Level()
                self._entries += 1
            level = child
        self._entries += last not in level.topics
        level.topics[last] = key

    def clear(self) -> None:
        """Remove all routes."""
        self.routes.clear()
        self._root = _Level()
        self._entries = 0

    def forget(self, topic_filter: str) -> list[Route] | None:
        """Remove and return the routes of all topics that match a filter; None: it cleared all."""
        if "+" not in topic_filter and "#" not in topic_filter:
            raw = topic_filter.encode()
            route = self.routes.pop(len(raw).to_bytes(2, "big") + raw, None)
            return [] if route is None else [route]
        forgotten: list[Route] = []
        for visits, key in enumerate(self._fitting(topic_filter.split("/"))):
            if visits >= _MOST_VISITS:
                self.clear()
                return None
            route = self.routes.pop(key, None) if key else None
            if route is not None:
                forgotten.append(route)
        return forgotten

    def _fitting(self, names: list[str]) -> Iterator[bytes]:
        """Yield and remove the keys of matching topics; yield b"" for each level on the way."""
        stack: list[tuple[_Level, int]] = [(self._root, 0)]
        while stack:
            level, depth = stack.pop()
            yield b""
            name = names[depth]
            is_deep = name == "#"
            if is_deep or names[depth + 1 :] in ([], ["#"]):
                for last, key in _chosen(level.topics, name, level is self._root):
                    yield key
                    del level.topics[last]
                    self._entries -= 1
            if is_deep or depth + 1 < len(names):
                deeper = depth if is_deep else depth + 1
                found = _chosen(level.children, name, level is self._root)
                stack += [(one, deeper) for _, one in found]


def _chosen(found: dict[str, T], name: str, at_root: bool) -> list[tuple[str, T]]:
    """Return the entries that a level of a filter matches; at the root no wildcard matches `$`.

    See [MQTT-4.7.2-1].
    """
    if name not in ("+", "#"):
        return [(name, found[name])] if name in found else []
    return [one for one in found.items() if not (at_root and one[0][:1] == "$")]
