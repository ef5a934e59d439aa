"""Routes of topics on which a new subscriber waits for a deferred retained message."""

from __future__ import annotations

from dataclasses import dataclass, field

from nearcast.broker.content.spaces import SpaceTable
from nearcast.broker.publish.routes import Arrivals, Route, Router


@dataclass(slots=True, eq=False, repr=False)
class DeferredRoute(Route):
    """Replaces the route `behind` it while a subscriber waits on its topic: disables runs."""

    behind: Route = field(kw_only=True)

    def __post_init__(self) -> None:
        self.needs_inspection = True
        self.is_forbidden = self.behind.is_forbidden


class DeferredArrivals(Arrivals):
    """Routes for messages from other nodes, with `DeferredRoute` for held topics."""

    def find(self, topic: bytes) -> Route:
        """Return the real route of a topic."""
        route = self.look_up(topic)
        return route.behind if isinstance(route, DeferredRoute) else route


class DeferredRouter(Router):
    """Routes, with `DeferredRoute` for held topics."""

    def __init__(
        self,
        *,
        max_levels: int,
        cache_topics: int,
        spaces: SpaceTable | None = None,
        printable: bool = False,
    ) -> None:
        super().__init__(
            max_levels=max_levels, cache_topics=cache_topics, spaces=spaces, printable=printable
        )
        self.held: set[str] = set()
        self.arrivals = DeferredArrivals(self)

    def find(self, topic: bytes) -> Route:
        """Return the real route of a topic."""
        route = self.look_up(topic)
        return route.behind if isinstance(route, DeferredRoute) else route

    def hold(self, topic: str) -> None:
        """Make the messages of a topic pass one by one from now on."""
        if topic not in self.held:
            self.held.add(topic)
            self._forget(topic)

    def let_go(self, topic: str) -> None:
        """Allow runs on a topic again; O(1), nothing is compiled."""
        self.held.discard(topic)
        raw = topic.encode()
        key = len(raw).to_bytes(2, "big") + raw
        for table in (self.routes, self.arrivals.routes):
            route = table.get(key)
            if isinstance(route, DeferredRoute):
                table[key] = route.behind

    def _compile(self, topic: str, *, is_arrival: bool = False) -> Route:
        route = super()._compile(topic, is_arrival=is_arrival)
        return DeferredRoute(behind=route) if topic in self.held else route
