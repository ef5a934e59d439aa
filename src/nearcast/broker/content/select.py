"""Select: which subscriptions get a message of a space; all that match, or the k best.

Read next: `top_k.py` (the ranking), `deliver.py` (how they get it).
"""

from __future__ import annotations

from nearcast.broker.content.spaces import SpaceSettings
from nearcast.broker.content.subscriptions import ContentSubscriptions
from nearcast.broker.content.top_k import Chosen, Fits, TopK, is_absent_member
from nearcast.broker.publish.message import Message
from nearcast.broker.publish.properties import PublishProperties, reread_properties
from nearcast.broker.publish.routes import Route
from nearcast.broker.publish.share_groups import GroupKey
from nearcast.broker.session.session import Session, SessionSubscription
from nearcast.broker.state import BrokerState
from nearcast.model import Event, MisuseError, PublishRequest


class ContentSelection:
    """Decodes messages of spaces as events, and selects their subscriptions."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self.ranking = None if state.selections is None else TopK(state.selections)

    def event(
        self,
        settings: SpaceSettings,
        message: Message,
        properties: PublishProperties,
        request: PublishRequest,
    ) -> tuple[Event | None, str]:
        """Return the event and a warning; None and the reason if it is not valid in the space."""
        selections = self._selections
        reader = selections.readers[settings.space.name]
        topic = message.topic_text()
        try:
            event = reader.read(topic, message.payload, properties.user, request.area)
            if message.head.qos and None in event.values:
                return event, reader.missing_text(event, message.payload, properties.user)
            return event, ""
        except MisuseError as problem:
            if message.payload or request.area is not None:  # else it deletes a retained message
                self._state.counters.unplaced += 1
            return None, str(problem)

    def matching(self, route: Route | None, event: Event | None) -> list[SessionSubscription]:
        """Return the content subscriptions that match an event.

        On a route to this node's clients only, peers are left out, except in share groups.
        """
        if event is None:
            return []
        selections = self._selections
        by_number = selections.by_number
        found = [by_number[key] for key in selections.matcher.match(event)]
        if route is None or not route.is_own:
            return found
        return [one for one in found if one.group or not one.session.is_peer]

    def best(
        self, session: Session | None, route: Route, event: Event | None, k: int | None, rank: str
    ) -> list[Chosen]:
        """Return the k best clients and share groups of this node; None: all, ranked."""
        settings, choosing = route.space, self.ranking
        assert settings is not None
        assert choosing is not None
        fits = self._fits(session, settings, k)
        chosen = choosing.best(route, event, k, rank, fits)
        if any(is_absent_member(one) for one in chosen):
            return choosing.with_present_members(route, event, rank, chosen, fits)
        return chosen

    @staticmethod
    def _fits(session: Session | None, settings: SpaceSettings, k: int | None) -> Fits:
        """Return a predicate: which subscriptions may be chosen for a client's publication."""
        skips = settings.offline == "skipped" and k is not None

        def fits(subscription: SessionSubscription) -> bool:
            if (
                subscription.session.is_peer
                or subscription.session.is_onlooker
                or subscription.session.is_over
                or (subscription.no_local and subscription.session is session)
            ):
                return False
            return not (skips and subscription.session.link is None)

        return fits

    def bids(self, message: Message, k: int, rank: str, publisher: str) -> list[Chosen]:
        """Return this node's best for a message, and connected members of share groups.

        The latter may replace a member elsewhere that is not connected.
        """
        route = self._state.router.find(message.head.topic).without_peers()
        if route.space is None:
            return []
        properties = reread_properties(message.head.properties)
        event, _ = self.event(route.space, message, properties, properties.request)
        session = self._state.sessions.get(publisher)
        chosen = self.best(session, route, event, k, rank)
        if not (route.shared or self._selections.groups.own_conditional):
            return chosen
        assert self.ranking is not None
        fits = self._fits(session, route.space, k)
        return chosen + self.ranking.spares(route, event, rank, chosen, fits)

    def member_for(self, key: GroupKey, message: Message) -> SessionSubscription | None:
        """Return the member of a share group that gets a message which a peer gave to this node.

        A matching member of this node. If all have left, one at another node; but not while members
        with a place are here, of which other nodes do not know: the message might come back.
        """
        group = self._state.router.groups.get(key)
        if group is None:
            return None
        route = self._state.router.arrivals.find(message.head.topic)
        members = list(group.members.values())
        if route.space is not None:
            properties = reread_properties(message.head.properties)
            event, _ = self.event(route.space, message, properties, properties.request)
            found = self.matching(None, event)
            members += [one for one in found if (one.group, one.topic_filter) == key]
        own = [member for member in members if not member.session.is_peer]
        return group.pick_among(own if own or group.own_conditional else members, message.head.qos)

    def by_number(self, message: Message, number: int) -> SessionSubscription | None:
        """Return the subscription with a number, if it still matches the message's topic."""
        found = self._selections.by_number.get(number)
        if found is not None:
            return found
        route = self._state.router.find(message.head.topic)
        held = [one for some in route.by_session.values() for one in some]
        held += [member for group in route.shared for member in group.members.values()]
        return next((one for one in held if one.number == number), None)

    @property
    def _selections(self) -> ContentSubscriptions:
        assert self._state.selections is not None
        return self._state.selections
