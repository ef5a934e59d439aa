"""Publications to topics of a space, and to the broker's own topics.

A message is decoded once (`EventDecoder`), matched (`nearcast.matching.Matcher`) and passed to
`Delivery`. A message that is no valid event of its space (no JSON, a value missing or out of range)
reaches plain subscribers only; one with an invalid instruction (`$top=0`) is dropped. Both are
counted, and an MQTT 5 publisher at QoS 1 or 2 gets the reason.

Read next: `fast_path.py`, `top_k.py`, `../publish/delivery.py`.
"""

from __future__ import annotations

from collections.abc import Iterable

from nearcast.broker.access import refusal_text
from nearcast.broker.content.explain_topic import ExplainTopic
from nearcast.broker.content.match_preview import MatchPreview, checked_response_topic
from nearcast.broker.content.positions import Positions
from nearcast.broker.content.spaces import SpaceSettings, order_complaint
from nearcast.broker.content.subscriptions import ContentSubscriptions, GroupKey
from nearcast.broker.content.top_k import (
    Candidate,
    Chosen,
    Fits,
    TopK,
    is_absent_member,
    told_properties,
)
from nearcast.broker.event_log_hooks import CHOSEN, LIMITED, note_event
from nearcast.broker.publish.acks import PublishOutcome
from nearcast.broker.publish.delivery import Delivery
from nearcast.broker.publish.message import Message, MessageHead
from nearcast.broker.publish.properties import PublishProperties, bare_message, reread_properties
from nearcast.broker.publish.routes import Route, Service
from nearcast.broker.retained.updates import retain_message
from nearcast.broker.session.session import Session, SessionSubscription
from nearcast.broker.state import BrokerState
from nearcast.model import Event, MisuseError, PublishRequest, read_publication
from nearcast.model.wording import shown
from nearcast.mqtt import ReasonCode
from nearcast.mqtt.wire import encode_string

_EMPTY = int(ReasonCode.NO_MATCHING_SUBSCRIBERS)
_QUOTA = int(ReasonCode.QUOTA_EXCEEDED)
_FORBIDDEN = int(ReasonCode.NOT_AUTHORIZED)
_SENSELESS = int(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR)


Award = tuple[int, int, float | None]  # subscription number, place in the ranking, distance in m


class ContentPublishHandler:
    """Handles publications whose route needs inspection (`Route.is_odd`)."""

    def __init__(self, state: BrokerState, delivery: Delivery, positions: Positions) -> None:
        self._state = state
        self._delivery = delivery
        self._positions = positions
        self._choosing = None if state.selections is None else TopK(state.selections)
        self._asking = MatchPreview(state, delivery, self._choosing)
        self._explaining = ExplainTopic(state, delivery)

    def take(
        self,
        session: Session | None,
        route: Route,
        message: Message,
        properties: PublishProperties | None,
        *,
        retain: bool,
    ) -> PublishOutcome:
        """Handle one publication; `session` is None for the broker's own."""
        topic = message.head.topic
        if properties is None:
            properties = reread_properties(message.head.properties)
        if route.service is Service.PREFIXED and route.bare:
            topic = route.bare
        if not self._may_publish(session, topic):
            self._state.counters.dropped_forbidden += 1
            return PublishOutcome(_FORBIDDEN, self._refusal(session, topic))
        try:
            if route.service is Service.POSITION:
                return self._positions.take(
                    session, message.payload, properties.user, is_sure=message.head.qos > 0
                )
            if route.service is Service.EXPLAIN:
                return self._explaining.take(session, message, properties)
            return self._publish(session, route, message, properties, retain=retain)
        except MisuseError as problem:
            self._state.counters.dropped_invalid += 1
            return PublishOutcome(_SENSELESS, str(problem))

    def bids(self, message: Message, k: int, rank: str, publisher: str) -> list[Chosen]:
        """Return this node's best for a message, and connected members of share groups.

        The latter may replace a member elsewhere that is not connected.
        """
        route = self._state.router.find(message.head.topic).without_peers()
        if route.space is None:
            return []
        properties = reread_properties(message.head.properties)
        event, _ = self._event(route.space, message, properties, properties.request)
        session = self._state.sessions.get(publisher)
        chosen = self._best(session, route, event, k, rank)
        if not (route.shared or self._selections.has_groups):
            return chosen
        assert self._choosing is not None
        fits = self._fits(session, route.space, k)
        return chosen + self._choosing.spares(route, event, rank, chosen, fits)

    def award(self, message: Message, awards: Iterable[Award]) -> None:
        """Deliver a message to the subscriptions that were chosen among those of all nodes."""
        if self._state.holding is not None:
            self._state.holding.before_live(message, None, retain=False, reaches_all=False)
        note_event(self._state, message, "", CHOSEN)
        for number, place, distance_m in awards:
            one = self._by_number(message, number)
            if one is None:
                self._state.counters.dropped_no_member += 1
                continue
            chosen = Chosen(place, Candidate(0.0, 0, one, distance_m=distance_m))
            extra = told_properties(chosen) if one.explain else b""
            self._delivery.deliver_as(one.session, [one], [message], {}, False, extra)

    def _by_number(self, message: Message, number: int) -> SessionSubscription | None:
        found = self._selections.by_number.get(number)
        if found is not None:
            return found
        route = self._state.router.find(message.head.topic)
        held = [one for some in route.holders.values() for one in some]
        held += [one for group in route.shared for one in group.members.values()]
        return next((one for one in held if one.number == number), None)

    def take_arrival(
        self,
        sender: Session | None,
        route: Route,
        message: Message,
        properties: PublishProperties | None,
        *,
        retain: bool,
    ) -> None:
        """Deliver a message from another node to the clients here; it was limited there."""
        if properties is None:
            properties = reread_properties(message.head.properties)
        if route.space is None:
            return
        try:
            request = properties.request
        except MisuseError:
            self._state.counters.dropped_invalid += 1
            return
        event, _ = self._event(route.space, message, properties, request)
        found = [one for one in self._found(route, event) if not one.group]
        # Without causal order, subscriptions with a place get the event through its holder.
        if route.space.order != "causal":
            found = [one for one in found if not one.has_place]
        if not (found or route.holders):
            self._state.counters.unwanted += 1
        holding = self._state.holding
        if holding is not None:
            holding.before_live(message, sender, retain=retain, counts=False)
        self._spread_all(sender, route, message, found, retain, {})

    def member_for(self, key: GroupKey, message: Message) -> SessionSubscription | None:
        """Return the member of a share group that gets a message which a peer gave to this node.

        A matching member of this node. If all have left, one at another node; but not while members
        with a place are here, of which other nodes do not know: the message might come back.
        """
        route, selections = self._state.router.arrivals.find(message.head.topic), self._selections
        group = self._state.router.group(*key)
        members = [] if group is None else list(group.members.values())
        if route.space is not None:
            properties = reread_properties(message.head.properties)
            event, _ = self._event(route.space, message, properties, properties.request)
            found = self._found(None, event)
            members += [one for one in found if (one.group, one.topic_filter) == key]
        own = [one for one in members if not one.session.is_peer]
        qos = message.head.qos
        if own or selections.has_members(key):
            return selections.pick(key, own, qos)
        return selections.pick(key, members, qos)

    def _found(self, route: Route | None, event: Event | None) -> list[SessionSubscription]:
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

    def _may_publish(self, session: Session | None, topic: bytes) -> bool:
        """Return whether the client may publish to the topic; caches verdicts per connection."""
        if session is None:
            return True
        link = session.link
        permits = None if link is None else link.permits
        if link is not None and permits is None:
            return True
        text = topic[2:].decode()
        access = self._state.access
        known = None if permits is None else permits.get(topic)
        if known is None:
            known = access.may_publish(session.user_name, session.client_id, text)
            if not known:
                self._state.observer.publish_denied(session, text)
            if permits is not None:
                if len(permits) >= 1_000:
                    permits.clear()
                permits[topic] = known
        return known

    def _refusal(self, session: Session | None, topic: bytes) -> str:
        assert session is not None
        return refusal_text(self._state.access, session, topic[2:].decode(), subscribes=False)

    # --- a message of a space -------------------------------------------------------------

    def _publish(
        self,
        session: Session | None,
        route: Route,
        message: Message,
        properties: PublishProperties,
        *,
        retain: bool,
    ) -> PublishOutcome:
        """Publish one message of a space: read, limit, preview, retain, deliver."""
        route, message, request, settings = self._instructed(route, message, properties)
        self._limit_lifetime(message, request.lifetime_ms or settings.lifetime_ms)
        event, complaint = self._event(settings, message, properties, request)
        top, rank = request.top or settings.top, request.rank or settings.rank
        is_delivered = request.reply is None or request.deliver
        is_for_all = top is None and request.area is None and is_delivered
        if request.reply is not None:
            asked = (top, rank)
            self._asking.answer(session, route, message, event, asked, complaint, properties)
        name = session.client_id if session is not None else ""
        note_event(self._state, message, name, 0 if is_for_all else LIMITED, retain=retain)
        if request.reply is not None and not request.deliver:
            return PublishOutcome(0, complaint)
        if self._state.holding is not None:
            reaches_all = top is None
            self._state.holding.before_live(
                message, session, retain=retain, reaches_all=reaches_all
            )
        goes_further = False
        if self._state.network is not None:
            complaint = complaint or order_complaint(settings, request.order)
            wish = (top, rank)
            kept, goes_further = self._tell_others(session, route, message, event, wish)
            if goes_further and top is not None:
                if retain:
                    retain_message(self._state, message, event)
                return PublishOutcome(_QUOTA if message.was_refused else 0, complaint)
            route = kept
        version = retain_message(self._state, message, event) if retain else 0
        reached = self._spread(session, route, message, event, request, retain, version)
        reason = 0 if reached or goes_further else _EMPTY
        return PublishOutcome(_QUOTA if message.was_refused else reason, complaint)

    def check(self, route: Route, message: Message, properties: PublishProperties) -> None:
        """Raise MisuseError for a message that would be invalid from any publisher; for wills."""
        request = self._instructed(route, message, properties)[2]
        if request.reply is not None:
            checked_response_topic(self._state, None, properties.response_topic)

    def _instructed(
        self, route: Route, message: Message, properties: PublishProperties
    ) -> tuple[Route, Message, PublishRequest, SpaceSettings]:
        """Return route and message without instructions, the parsed instructions, and the space."""
        if route.service is Service.PREFIXED:
            route, message, request = self._unwrapped(route, message, properties)
        else:
            request = properties.request
            message = bare_message(message, properties)
        if route.space is None:
            raise MisuseError(
                f"the topic {shown(message.topic_text())}",
                expected="a topic of a declared space, behind such a prefix",
                todo="Declare a [[space]] for it, or publish without the prefix.",
            )
        return route, message, request, route.space

    def _tell_others(
        self,
        session: Session | None,
        route: Route,
        message: Message,
        event: Event | None,
        wish: tuple[int | None, str],
    ) -> tuple[Route, bool]:
        """Send a message to the other nodes that it concerns.

        Returns the route for this node's clients, and whether other nodes may reach further
        subscribers: then "no matching subscribers" cannot be answered. With `$top` the nodes
        together choose among this node's clients as well.
        """
        network, (top, rank) = self._state.network, wish
        assert network is not None
        if top is not None:
            publisher = "" if session is None else session.client_id
            return route.without_peers(), network.contest(message, (top, rank), publisher)
        if route.space is not None and route.space.order == "causal":
            meant = {one.session for one in self._found(None, event) if not one.group}
            if network.ordered(route, message, meant):
                return route.without_peers(), any(one.is_peer for one in {*meant, *route.holders})
        if event is None:
            return route, False
        network.published(message, event)
        return route, event.space.coordinates is not None and bool(network.peers)

    def _unwrapped(
        self, route: Route, message: Message, properties: PublishProperties
    ) -> tuple[Route, Message, PublishRequest]:
        """Return the route and message of the topic behind the prefixes, and the instructions."""
        if isinstance(route.asked, MisuseError):
            raise route.asked
        request = read_publication((*route.asked, *properties.user))
        head, forward = message.head, properties.bare_forward
        if request.area is not None:
            forward += b"\x26" + encode_string("$area") + encode_string(str(request.area))
        bare = MessageHead(route.bare, head.payload_size, head.qos, forward)
        found = self._state.router.find(route.bare)
        if found.is_forbidden or found.service is not Service.NONE:
            raise MisuseError(
                f"the topic {shown(route.bare[2:].decode())}",
                expected="a topic of a declared space",
            )
        return found, Message(bare, message.payload, message.expires_at_ms), request

    def _limit_lifetime(self, message: Message, lifetime_ms: int | None) -> None:
        if lifetime_ms is not None:
            until_ms = self._state.now_ms + lifetime_ms
            if not message.expires_at_ms or until_ms < message.expires_at_ms:
                message.expires_at_ms = until_ms

    def _event(
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

    @property
    def _selections(self) -> ContentSubscriptions:
        assert self._state.selections is not None
        return self._state.selections

    # --- receivers ------------------------------------------------------------------------

    def _spread(
        self,
        session: Session | None,
        route: Route,
        message: Message,
        event: Event | None,
        request: PublishRequest,
        retain: bool,
        version: int,
    ) -> bool:
        """Deliver a message; return whether it has any receivers."""
        settings = route.space
        assert settings is not None
        top = request.top or settings.top
        rank = request.rank or settings.rank
        if top is not None:
            return self._spread_best(session, route, message, event, (top, rank), retain, version)
        found = self._found(route, event)
        if version:
            self._mark_inside(found, message, version)
        if self._selections.explaining:
            everyone = [*found, *(one for held in route.holders.values() for one in held)]
            if any(one.explain for one in everyone):
                return self._spread_told(session, route, message, event, (found, rank), retain)
        return self._spread_all(session, route, message, found, retain, {})

    def _spread_all(
        self,
        session: Session | None,
        route: Route,
        message: Message,
        found: list[SessionSubscription],
        retain: bool,
        told: dict[Session, bytes],
    ) -> bool:
        """Deliver to the matching and to all plain subscriptions; return whether there are any."""
        picked: dict[Session, list[SessionSubscription]] = {}
        groups: dict[GroupKey, list[SessionSubscription]] = {}
        for one in found:
            if one.group:
                groups.setdefault((one.group, one.topic_filter), []).append(one)
            elif not (one.no_local and one.session is session):
                picked.setdefault(one.session, []).append(one)
        if route.holders:
            self._spread_beside(session, route, message, picked, retain, told)
        self._spread_picked(message, picked, retain, told)
        self._spread_groups(route, message, groups, retain)
        return bool(picked or groups or route.holders or route.shared)

    def _spread_beside(
        self,
        session: Session | None,
        route: Route,
        message: Message,
        picked: dict[Session, list[SessionSubscription]],
        retain: bool,
        told: dict[Session, bytes],
    ) -> None:
        """Deliver to plain subscribers; one that also matches joins `picked`, to get it once."""
        if not told and picked.keys().isdisjoint(route.holders):
            self._delivery.spread_plain(route, [message], retain=retain)
            self._delivery.spread_options(route, [message], session, retain=retain)
            return
        for holder, held in route.holders.items():
            wanted = [one for one in held if not (one.no_local and one.session is session)]
            if wanted:
                picked.setdefault(holder, []).extend(wanted)

    def _spread_picked(
        self,
        message: Message,
        picked: dict[Session, list[SessionSubscription]],
        retain: bool,
        told: dict[Session, bytes],
    ) -> None:
        delivery, qos = self._delivery, message.head.qos
        lossy: list[Session] = []
        variants: dict[tuple[bool, tuple[int, ...]], list[Message]] = {(False, ()): [message]}
        for session, subscriptions in picked.items():
            one = subscriptions[0]
            is_flagged = retain and session.is_peer
            if len(subscriptions) == 1 and one.is_plain and not (told or is_flagged):
                if qos and one.qos:
                    delivery.hand_over(session, [message], min(qos, one.qos))
                else:
                    lossy.append(session)
            else:
                extra = told.get(session, b"") if any(s.explain for s in subscriptions) else b""
                delivery.deliver_as(session, subscriptions, [message], variants, retain, extra)
        if lossy:
            delivery.send_to_each(lossy, message)

    def _spread_groups(
        self,
        route: Route,
        message: Message,
        groups: dict[GroupKey, list[SessionSubscription]],
        retain: bool,
    ) -> None:
        """Deliver to one matching member of each share group."""
        for group in route.shared:
            groups.setdefault(group.key, []).extend(group.members.values())
        for key, members in groups.items():
            member = self._selections.pick(key, members, message.head.qos)
            if member is not None:
                self._delivery.deliver_as(member.session, [member], [message], {}, retain)

    # --- ranked ---------------------------------------------------------------------------

    def _spread_told(
        self,
        session: Session | None,
        route: Route,
        message: Message,
        event: Event | None,
        matched: tuple[list[SessionSubscription], str],
        retain: bool,
    ) -> bool:
        """Deliver to all, with their place in the ranking for subscribers that asked for it."""
        found, rank = matched
        chosen = self._best(session, route, event, None, rank)
        told = {
            one.candidate.subscription.session: told_properties(one)
            for one in chosen
            if not one.candidate.subscription.group
        }
        return self._spread_all(session, route, message, found, retain, told)

    def _spread_best(
        self,
        session: Session | None,
        route: Route,
        message: Message,
        event: Event | None,
        wish: tuple[int, str],
        retain: bool,
        version: int,
    ) -> bool:
        """Deliver to the k best clients, each through its best subscription."""
        chosen = self._best(session, route, event, *wish)
        variants: dict[tuple[bool, tuple[int, ...]], list[Message]] = {(False, ()): [message]}
        for one in chosen:
            best = one.candidate.subscription
            if version:
                self._mark_inside([best], message, version)
            extra = told_properties(one) if best.explain else b""
            self._delivery.deliver_as(best.session, [best], [message], variants, retain, extra)
        return bool(chosen)

    def _best(
        self, session: Session | None, route: Route, event: Event | None, k: int | None, rank: str
    ) -> list[Chosen]:
        settings, choosing = route.space, self._choosing
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

        def fits(one: SessionSubscription) -> bool:
            if (
                one.session.is_peer
                or one.session.is_over
                or (one.no_local and one.session is session)
            ):
                return False
            return not (skips and one.session.link is None)

        return fits

    # --- retained -------------------------------------------------------------------------

    def _mark_inside(
        self, found: list[SessionSubscription], message: Message, version: int
    ) -> None:
        """Record that these subscriptions got the retained message; range entry skips it then."""
        topic = message.topic_text()
        for one in found:
            reached = one.session.link is not None or min(message.head.qos, one.qos)
            if one.inside is not None and reached:
                one.inside[topic] = version
