"""From a topic to its receivers, compiled once and cached until subscriptions change.

Read next: `route_cache.py` (invalidation), `delivery.py` (how a route is used).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from nearcast.broker.content.spaces import SpaceSettings, SpaceTable
from nearcast.broker.publish.route_cache import RouteCache
from nearcast.broker.publish.share_groups import ShareGroup, ShareGroups
from nearcast.broker.session.session import Session, SessionSubscription
from nearcast.index.topic_tree import TopicTree
from nearcast.model import MisuseError
from nearcast.model.requests import INSTRUCTING, Pair, decoded, split_prefixes
from nearcast.mqtt.topics import check_topic_name
from nearcast.mqtt.wire import decode_text

POSITION_TOPIC = "$position"
EXPLAIN_TOPIC = "$nearcast/explain"
LIVE_TOPICS = "$nearcast/live"
"""What nodes publish for maps is below this topic; no client may publish there."""

RouteKey = tuple[tuple[int, int, int], ...]
_MOST_SHARED_ROUTES = 10_000
_MANY_SUBSCRIPTIONS = 1_000  # beyond that, clearing the cache is faster than invalidation


class Service(Enum):
    """Topics whose publications the broker handles itself."""

    NONE = 0
    POSITION = 1
    EXPLAIN = 2
    PREFIXED = 3  # the topic begins with instructions


@dataclass(slots=True, eq=False, repr=False)
class Route:
    """The receivers of one topic.

    Topics with the same plain receivers share one route, so that a run of packets may extend over
    several topics.
    """

    # No options; with the highest granted QoS.
    plain: list[tuple[Session, int]] = field(default_factory=list)
    qos_0_v311: list[Session] = field(default_factory=list)  # of `plain`: MQTT 3.1.1, for QoS 0
    qos_0_v5: list[Session] = field(default_factory=list)  # of `plain`: MQTT 5, for QoS 0
    # Of `qos_0_v5`: 3.1.1 packets are recoded for them.
    recoded: list[Session] = field(default_factory=list)
    # Of `qos_0_v5`: peers that take 3.1.1 packets unchanged.
    nodes: list[Session] = field(default_factory=list)
    # Receivers whose options or connection need a look at every message.
    special: list[tuple[Session, list[SessionSubscription]]] = field(default_factory=list)
    shared: list[ShareGroup] = field(default_factory=list)
    is_empty: bool = True  # no receivers
    is_forbidden: bool = False  # a topic of the broker (`$SYS`): clients may not publish
    # Whether packets of a 3.1.1 publisher, of a 5 publisher, go to all receivers unchanged.
    is_same_for_all: tuple[bool, bool] = (False, False)
    key: RouteKey | None = None  # equal keys: the same plain receivers
    space: SpaceSettings | None = None  # the space that the topic belongs to
    service: Service = Service.NONE
    # In a space: the subscriptions behind `plain` and `special`, by session.
    by_session: dict[Session, list[SessionSubscription]] = field(default_factory=dict)
    needs_inspection: bool = False  # every message needs inspection: it has a space or a service
    is_own: bool = False  # leads to this node's clients only, not to peers
    asked: tuple[Pair, ...] | MisuseError = ()  # PREFIXED: the parsed instructions
    bare: bytes = b""  # PREFIXED: the topic behind them

    def without_peers(self) -> Route:
        """Return this route without peers, which get the message in another way."""
        route = replace(self, is_own=True)
        route.plain = [one for one in self.plain if not one[0].is_peer]
        route.qos_0_v5 = [one for one in self.qos_0_v5 if not one.is_peer]
        route.recoded = [one for one in self.recoded if not one.is_peer]
        route.nodes = []
        route.by_session = {one: held for one, held in self.by_session.items() if not one.is_peer}
        route.is_empty = not (route.plain or route.special or route.shared)
        return route

    def close(self) -> Route:
        """Compute the fields that follow from the receivers; return the route."""
        self.needs_inspection = self.space is not None or self.service is not Service.NONE
        is_plain = not (self.special or self.shared or self.is_forbidden or self.needs_inspection)
        self.is_empty = not (self.plain or self.special or self.shared)
        self.nodes = [one for one in self.qos_0_v5 if one.link is not None and one.link.takes_older]
        self.recoded = self.qos_0_v5
        if self.nodes:
            self.recoded = [one for one in self.qos_0_v5 if one not in self.nodes]
        self.is_same_for_all = (is_plain and not self.qos_0_v5, is_plain and not self.qos_0_v311)
        if is_plain:
            self.key = tuple((one.number, qos, one.version) for one, qos in self.plain)
        return self


class Arrivals:
    """Routes for messages from other nodes: this node's clients, without share groups.

    A share group spans the cluster: the node where a message was published has already chosen the
    member that gets it.
    """

    def __init__(self, router: Router) -> None:
        self.cache = RouteCache(_MOST_SHARED_ROUTES)
        self.routes = self.cache.routes
        self._router = router

    def find(self, topic: bytes) -> Route:
        """Return the route of a topic with its two length bytes; refuse an invalid name."""
        return self.look_up(topic)

    def look_up(self, topic: bytes) -> Route:
        """Return the entry of the cache for a topic, which may stand for its route."""
        route = self.routes.get(topic)
        if route is None:
            text = self._router.checked(topic)
            route = self._router.compile_arrival(text)
            self.cache.put(topic, text, route)
        return route


class Router:
    """All subscriptions without conditions, and the routes compiled from them.

    Complexity: `find` O(1) for a topic seen since the last change, else as `TopicTree.match`.
    """

    def __init__(
        self,
        *,
        max_levels: int,
        cache_topics: int,
        spaces: SpaceTable | None = None,
        printable: bool = False,
    ) -> None:
        self.spaces = spaces or SpaceTable(())
        self._cache = RouteCache(cache_topics)
        self.routes = self._cache.routes
        self.arrivals = Arrivals(self)
        self.groups = ShareGroups()  # of members with and without conditions
        self._known: dict[RouteKey, Route] = {}
        self.subscription_count = 0
        self.shared_count = 0
        self._tree: TopicTree[tuple[str, str], SessionSubscription | ShareGroup] = TopicTree(
            cache_size=0
        )
        self._max_levels = max_levels
        self._printable = printable

    def find(self, topic: bytes) -> Route:
        """Return the route of a topic with its two length bytes; refuse an invalid name."""
        return self.look_up(topic)

    def look_up(self, topic: bytes) -> Route:
        """Return the entry of the cache for a topic, which may stand for its route."""
        route = self.routes.get(topic)
        if route is None:
            text = self.checked(topic)
            route = self._compile(text)
            self._cache.put(topic, text, route)
        return route

    def checked(self, topic: bytes) -> str:
        """Return a topic with its two length bytes as text; refuse an invalid name."""
        text = decode_text(topic[2:])
        check_topic_name(text, max_levels=self._max_levels, printable=self._printable)
        return text

    def subscribers(self, topic: str) -> list[SessionSubscription]:
        """Return this node's subscriptions without conditions to a topic; no share groups."""
        found = [one for one in self._tree.match(topic) if not isinstance(one, ShareGroup)]
        return [one for one in found if not one.session.is_peer]

    def group(self, name: str, topic_filter: str) -> ShareGroup | None:
        """Return a share group, if it has members without conditions."""
        group = self._tree.get(topic_filter, ("share", name))
        return group if isinstance(group, ShareGroup) else None

    def compile_arrival(self, topic: str) -> Route:
        """Return the route of a topic for messages from other nodes."""
        return self._compile(topic, is_arrival=True)

    def add(self, subscription: SessionSubscription) -> None:
        """Put a subscription into effect, in place of the session's same filter [MQTT-3.8.4-3]."""
        client_id = subscription.session.client_id
        if subscription.group:
            group = self.group(subscription.group, subscription.topic_filter)
            self.shared_count += group is None or client_id not in group.members
            joined = self.groups.join(subscription)
            if group is None:
                self._tree.put(subscription.topic_filter, ("share", subscription.group), joined)
        else:
            key = ("client", client_id)
            self.subscription_count += self._tree.get(subscription.topic_filter, key) is None
            self._tree.put(subscription.topic_filter, key, subscription)
        self._forget(subscription.topic_filter)

    def remove(self, subscription: SessionSubscription) -> None:
        """Remove a subscription that was added."""
        client_id = subscription.session.client_id
        key = ("share", subscription.group) if subscription.group else ("client", client_id)
        entry = self._tree.get(subscription.topic_filter, key)
        if isinstance(entry, ShareGroup):
            self.groups.leave(subscription)
            self.shared_count -= 1
            if not entry.members:
                self._tree.discard(subscription.topic_filter, key)
        else:
            self._tree.discard(subscription.topic_filter, key)
            self.subscription_count -= 1
        self._forget(subscription.topic_filter)

    def forget_session(self, session: Session) -> None:
        """Invalidate the routes to a session whose connection differs from its last one."""
        self._known.clear()
        if len(session.subscriptions) > _MANY_SUBSCRIPTIONS:
            self._cache.clear()
            self.arrivals.cache.clear()
            return
        for subscription in session.subscriptions.values():
            if subscription.selection is None:
                self._forget(subscription.topic_filter)

    def _forget(self, topic_filter: str) -> None:
        """Invalidate the routes of the topics that match a filter; other routes stay."""
        for cache in (self._cache, self.arrivals.cache):
            forgotten = cache.forget(topic_filter)
            if forgotten is None:
                self._known.clear()
                continue
            for route in forgotten:
                if route.key is not None:
                    self._known.pop(route.key, None)

    def _compile(self, topic: str, *, is_arrival: bool = False) -> Route:
        route = Route()
        route.is_own = is_arrival
        if topic[:1] == "$":
            _look_for_service(route, topic)
            if route.service is Service.PREFIXED:
                return route.close()
        route.space = self.spaces.of_topic(topic)
        by_session: dict[Session, list[SessionSubscription]] = {}
        for entry in self._tree.match(topic):
            if isinstance(entry, ShareGroup):
                if not is_arrival:
                    route.shared.append(entry)
            elif not (is_arrival and entry.session.is_peer):
                by_session.setdefault(entry.session, []).append(entry)
        for session, subscriptions in by_session.items():
            _place(route, session, subscriptions)
        if route.space is not None:
            route.by_session = by_session
        return self._interned(route.close())

    def _interned(self, route: Route) -> Route:
        if route.key is None:
            return route
        if len(self._known) >= _MOST_SHARED_ROUTES:
            self._known.clear()
        return self._known.setdefault(route.key, route)


def _look_for_service(route: Route, topic: str) -> None:
    """Set the service of a topic that begins with `$`, or forbid the topic."""
    first = topic.partition("/")[0]
    if topic == POSITION_TOPIC:
        route.service = Service.POSITION
    elif topic == EXPLAIN_TOPIC:
        route.service = Service.EXPLAIN
    elif first in ("$SYS", "$nearcast", POSITION_TOPIC):
        route.is_forbidden = not (route.is_own and topic.startswith(LIVE_TOPICS))  # of a node
    elif first in INSTRUCTING:
        route.service = Service.PREFIXED
        try:
            pairs, bare = split_prefixes(topic, INSTRUCTING)
            raw = bare.encode()
            route.bare = len(raw).to_bytes(2, "big") + raw
            route.asked = decoded(pairs)
        except MisuseError as problem:
            route.asked = problem


def _place(route: Route, session: Session, subscriptions: list[SessionSubscription]) -> None:
    """Add a session to the plain or to the special receivers of a route."""
    link = session.link
    if any(not one.is_plain for one in subscriptions) or (link is not None and not link.is_plain):
        route.special.append((session, subscriptions))
        return
    route.plain.append((session, max(subscription.qos for subscription in subscriptions)))
    (route.qos_0_v5 if session.version >= 5 else route.qos_0_v311).append(session)
