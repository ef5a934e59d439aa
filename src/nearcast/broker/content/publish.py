"""Publications to topics of a space, and to the broker's own topics.

A message is decoded once (`EventDecoder`), its subscriptions are selected (`select.py`), and it
is delivered (`deliver.py`). A message that is no valid event of its space (no JSON, a value missing
or out of range) reaches plain subscribers only; one with an invalid instruction (`$top=0`) is
dropped. Both are counted, and an MQTT 5 publisher at QoS 1 or 2 gets the reason.

Read next: `select.py`, `deliver.py`; `fast_path.py` for plain QoS 0 packets.
"""

from __future__ import annotations

from collections.abc import Iterable

from nearcast.broker.content.deliver import ContentDelivery, mark_inside
from nearcast.broker.content.explain_topic import ExplainTopic
from nearcast.broker.content.match_preview import MatchPreview, checked_response_topic
from nearcast.broker.content.positions import Positions
from nearcast.broker.content.probes import ASKED_TOO_OFTEN, PUBLISHED_TOO_OFTEN, ProbeLimit
from nearcast.broker.content.select import ContentSelection
from nearcast.broker.content.spaces import SpaceSettings, order_complaint
from nearcast.broker.content.top_k import Candidate, Chosen, told_properties, without_hidden
from nearcast.broker.event_log_hooks import CHOSEN, LIMITED, note_event
from nearcast.broker.observer import LiveObserver
from nearcast.broker.publish.acks import PublishOutcome
from nearcast.broker.publish.authorise import authorise, refusal
from nearcast.broker.publish.delivery import Delivery
from nearcast.broker.publish.message import Message, MessageHead
from nearcast.broker.publish.properties import PublishProperties, bare_message, reread_properties
from nearcast.broker.publish.routes import Route, Service
from nearcast.broker.retained.updates import retain_message
from nearcast.broker.session.session import Session
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
    """Handles publications whose route needs inspection (`Route.needs_inspection`)."""

    def __init__(self, state: BrokerState, delivery: Delivery, positions: Positions) -> None:
        self._state = state
        self._delivery = delivery
        self._positions = positions
        self.selection = ContentSelection(state)
        self._deliver = ContentDelivery(state, delivery)
        self._asking = MatchPreview(state, delivery, self.selection.ranking)
        self._explaining = ExplainTopic(state, delivery)
        self._questions = ProbeLimit(state, lambda settings: settings.position_probes)
        self._events = ProbeLimit(state, lambda settings: settings.position_publications)

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
        link = None if session is None else session.link
        if session is not None and not authorise(self._state, session, link, topic):
            self._state.counters.dropped_forbidden += 1
            return PublishOutcome(_FORBIDDEN, refusal(self._state, session, topic))
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

    def award(self, message: Message, awards: Iterable[Award]) -> None:
        """Deliver a message to the subscriptions that were chosen among those of all nodes."""
        self._state.deferral.before_live(message, None, retain=False, reaches_all=False)
        note_event(self._state, message, "", CHOSEN)
        chosen: list[Chosen] = []
        space = self._state.router.find(message.head.topic).space
        hides = space is not None and space.hides_positions
        for number, place, distance_m in awards:
            one = self.selection.by_number(message, number)
            if one is None:
                self._state.counters.dropped_no_member += 1
            else:
                told = 0 if hides else place  # the places before it may be those of `$near` ones
                chosen.append(Chosen(told, Candidate(0.0, 0, one, distance_m=distance_m)))
        self._deliver_to_best(message, chosen, retain=False, version=0)
        watch = self._state.watch
        if watch is not None and watch.wants_event():
            self._show_awards(watch, message, chosen)

    def _show_awards(self, watch: LiveObserver, message: Message, chosen: list[Chosen]) -> None:
        """Report to whoever looks at the map which clients of this node were chosen."""
        topic = message.topic_text()
        space = self._state.router.spaces.of_topic(topic)
        if space is None or not chosen:
            return
        try:
            properties = reread_properties(message.head.properties)
            event, _ = self.selection.event(space, message, properties, properties.request)
        except MisuseError:  # it was taken by the node of its publisher, which knows why
            return
        sessions = [one.candidate.subscription.session for one in chosen]
        watch.event(topic, message.payload, None, event, sessions, len(chosen))

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
        event, _ = self.selection.event(route.space, message, properties, request)
        found = self.selection.matching(route, event)
        if route.is_own:  # what comes from a node of the cluster names its share groups
            found = [one for one in found if not one.group]
            # Without causal order, subscriptions with a place get the event through its holder.
            if route.space.order != "causal":
                found = [one for one in found if not one.has_place]
        if not (found or route.by_session):
            self._state.counters.unwanted += 1
        self._state.deferral.before_live(message, sender, retain=retain, counts=False)
        self._deliver.to_all(sender, route, message, found, retain, {})

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
        """Publish one message of a space: decode, log, order, retain, select, deliver."""
        route, message, request, settings = self._instructed(route, message, properties)
        self._limit_lifetime(message, request.lifetime_ms or settings.lifetime_ms)
        event, complaint = self.selection.event(settings, message, properties, request)
        wish = top, _ = request.top or settings.top, request.rank or settings.rank
        is_delivered = request.reply is None or request.deliver
        hides = settings.hides_positions
        if hides and session is not None:
            if message.head.qos and session.link is not None:
                self._state.mark_dirty(session.link)  # its acknowledgement waits for no delivery
            refusal_text = self._is_too_often(session, event, request, top)
            if refusal_text:
                return PublishOutcome(_QUOTA, refusal_text)
        is_for_all = top is None and request.area is None and is_delivered
        if request.reply is not None:
            self._asking.answer(session, route, message, event, wish, complaint, properties)
        name = session.client_id if session is not None else ""
        note_event(self._state, message, name, 0 if is_for_all else LIMITED, retain=retain)
        if request.reply is not None and not request.deliver:
            return PublishOutcome(0, complaint)
        deferral = self._state.deferral
        deferral.before_live(message, session, retain=retain, reaches_all=top is None)
        if retain:
            complaint = complaint or deferral.complaint(message, session)
        goes_further = False
        if self._state.network.is_joined:
            complaint = complaint or order_complaint(settings, request.order)
            kept, goes_further = self._order(session, route, message, event, wish)
            if goes_further and top is not None:
                if retain:
                    retain_message(self._state, message, event)
                return PublishOutcome(_QUOTA if message.was_refused else 0, complaint)
            route = kept
        version = retain_message(self._state, message, event) if retain else 0
        reached = self._select_and_deliver(session, route, message, event, wish, retain, version)
        is_unsaid = goes_further or (hides and event is not None)
        reason = 0 if reached or is_unsaid else _EMPTY
        return PublishOutcome(_QUOTA if message.was_refused else reason, complaint)

    def _is_too_often(
        self, session: Session, event: Event | None, request: PublishRequest, top: int | None
    ) -> str:
        """Return why a client may not publish about a place now, where positions are private."""
        selections = self._state.selections
        near = 0 if selections is None else selections.near
        if request.reply is None and not near:
            return ""
        if top is not None or request.reply is not None:
            is_allowed, reason = self._questions.allows(session, event), ASKED_TOO_OFTEN
        elif event is not None and event.position is None and event.area is None:
            return ""  # it is about no place
        else:
            is_allowed, reason = self._events.allows(session, event), PUBLISHED_TOO_OFTEN
        self._state.counters.dropped_probing += not is_allowed
        return "" if is_allowed else reason

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

    def _order(
        self,
        session: Session | None,
        route: Route,
        message: Message,
        event: Event | None,
        wish: tuple[int | None, str],
    ) -> tuple[Route, bool]:
        """Send a message to the other nodes that it concerns, in the order that its space has.

        Returns the route for this node's clients, and whether other nodes may reach further
        subscribers: then "no matching subscribers" cannot be answered. With `$top` the nodes
        together choose among this node's clients as well.
        """
        network, (top, rank) = self._state.network, wish
        if top is not None:
            publisher = "" if session is None else session.client_id
            return route.without_peers(), network.contest(message, (top, rank), publisher)
        if route.space is not None and route.space.order == "causal":
            meant = {one.session for one in self.selection.matching(None, event) if not one.group}
            if network.ordered(route, message, meant):
                return route.without_peers(), any(
                    one.is_peer for one in {*meant, *route.by_session}
                )
        if event is None:
            return route, False
        network.published(message, event, session)
        return route, network.takes(event.space) and bool(network.peers)

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

    # --- receivers ------------------------------------------------------------------------

    def _select_and_deliver(
        self,
        session: Session | None,
        route: Route,
        message: Message,
        event: Event | None,
        wish: tuple[int | None, str],
        retain: bool,
        version: int,
    ) -> bool:
        """Deliver a message; return whether it has any receivers."""
        top, rank = wish
        watch = self._state.watch
        if top is not None:
            best = self.selection.best(session, route, event, top, rank)
            if watch is not None and watch.wants_event():
                chosen = [one.candidate.subscription.session for one in best]
                watch.event(message.topic_text(), message.payload, session, event, chosen, top)
            if route.space is not None and route.space.hides_positions:
                best = without_hidden(best)
            return self._deliver_to_best(message, best, retain, version)
        found = self.selection.matching(route, event)
        if watch is not None and watch.wants_event():
            matched = {one.session: None for one in found}
            watch.event(message.topic_text(), message.payload, session, event, matched, 0)
        if version:
            mark_inside(found, message, version)
        if self._state.selections is not None and self._state.selections.explaining:
            everyone = [*found, *(one for held in route.by_session.values() for one in held)]
            if any(one.explain for one in everyone):
                told = self._places(session, route, event, rank)
                return self._deliver.to_all(session, route, message, found, retain, told)
        return self._deliver.to_all(session, route, message, found, retain, {})

    # --- ranked ---------------------------------------------------------------------------

    def _places(
        self, session: Session | None, route: Route, event: Event | None, rank: str
    ) -> dict[Session, bytes]:
        """Return the place of each client in the ranking, as properties for those that asked."""
        ranked = self.selection.best(session, route, event, None, rank)
        if route.space is not None and route.space.hides_positions:
            ranked = without_hidden(ranked)
        return {
            one.candidate.subscription.session: told_properties(one)
            for one in ranked
            if not one.candidate.subscription.group
        }

    def _deliver_to_best(
        self, message: Message, chosen: list[Chosen], retain: bool, version: int
    ) -> bool:
        """Deliver to the chosen clients, each through its best subscription."""
        variants: dict[tuple[bool, tuple[int, ...]], list[Message]] = {(False, ()): [message]}
        qos, at_qos_0 = message.head.qos, []
        for one in chosen:
            best = one.candidate.subscription
            if version:
                mark_inside([best], message, version)
            if best.is_plain and not (retain or best.explain or (qos and best.qos)):
                at_qos_0.append(best.session)
                continue
            extra = told_properties(one) if best.explain else b""
            self._delivery.deliver_as(best.session, [best], [message], variants, retain, extra)
        if at_qos_0:
            self._delivery.send_to_each(at_qos_0, message)
        return bool(chosen)
