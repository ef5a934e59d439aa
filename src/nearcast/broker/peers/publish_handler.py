"""PUBLISH from a peer: delivered to this node's clients, or to the share groups that it names.

Retained messages are replicated separately (`Broker.keep`); here RETAIN is only passed on to
subscribers that asked for the flag.
"""

from __future__ import annotations

from typing import ClassVar

from nearcast.broker.content.positions import Positions
from nearcast.broker.content.publish import Award
from nearcast.broker.event_log_hooks import CAUSAL, CHOSEN, FROM_NODE, note_event
from nearcast.broker.peers.sessions import AWARD
from nearcast.broker.publish.acks import Acks, PublishOutcome
from nearcast.broker.publish.delivery import Delivery
from nearcast.broker.publish.handler import PublishHandler
from nearcast.broker.publish.message import Message, MessageHead
from nearcast.broker.publish.properties import PropertyReader, PublishProperties
from nearcast.broker.publish.routes import Route
from nearcast.broker.session.session import Session
from nearcast.broker.state import BrokerState


class PeerPublishHandler(PublishHandler):
    """Handles publications of peers, in runs like those of clients."""

    _way: ClassVar[int] = FROM_NODE

    def __init__(
        self, state: BrokerState, delivery: Delivery, answers: Acks, positions: Positions
    ) -> None:
        super().__init__(state, delivery, answers, positions)
        self._router = state.router.arrivals
        self._routes = state.router.arrivals.routes
        self._look_up = state.router.arrivals.look_up
        self._properties = PropertyReader(from_node=True)
        self._positions = None

    def publish(
        self,
        route: Route,
        message: Message,
        publisher: Session | None,
        properties: PublishProperties | None = None,
        *,
        retain: bool,
    ) -> PublishOutcome:
        """Deliver one message; always a success for the peer: this node now owns the message."""
        if retain:
            self._state.network.arrived(message.topic_text())
        awards = _awards(properties)
        if not awards:
            self._note_arrival(route, message, publisher, properties, retain=retain)
        if awards:
            self.selective.award(_without_awards(message, properties), awards)
        elif properties is not None and properties.groups:
            for number in properties.groups:
                self._to_group(number, message, retain=retain)
        elif route.needs_inspection:
            self.selective.take_arrival(publisher, route, message, properties, retain=retain)
        elif not route.is_empty:
            self._state.deferral.before_live(message, publisher, retain=retain, counts=False)
            self._delivery.spread(route, [message], publisher, retain=retain)
        return PublishOutcome(0)

    def _note_arrival(
        self,
        route: Route,
        message: Message,
        publisher: Session | None,
        properties: PublishProperties | None,
        *,
        retain: bool,
    ) -> None:
        """Log the message as an event that came from another node."""
        if publisher is None:
            note_event(self._state, message, "", CAUSAL if route.is_own else FROM_NODE)
        else:
            way = CHOSEN if properties is not None and properties.groups else FROM_NODE
            note_event(self._state, message, publisher.client_id, way, retain=retain)

    def _to_group(self, number: int, message: Message, *, retain: bool) -> None:
        """Deliver a message to one member here; if all have left, to one at another node."""
        named = self._state.network.group(number)
        group = None if named is None else self._state.router.group(*named)
        member = None
        if named is not None and self._state.selections is not None:
            member = self.selective.selection.member_for(named, message)
        elif group is not None:
            qos = message.head.qos
            member = group.pick(qos, is_arrival=True) or group.pick(qos)
        if member is None:
            self._state.counters.dropped_no_member += 1
        else:
            self._delivery.deliver_as(member.session, [member], [message], {}, retain)


def _awards(properties: PublishProperties | None) -> list[Award]:
    """Return the subscriptions of this node that a cluster-wide top-k has chosen, if any."""
    if properties is None:
        return []
    return [
        (int(number), int(place), float(distance) if distance else None)
        for name, text in properties.user
        if name == AWARD
        for number, place, distance in [text.split(" ", 2)]
    ]


def _without_awards(message: Message, properties: PublishProperties | None) -> Message:
    assert properties is not None
    head = message.head
    bare = MessageHead(head.topic, head.payload_size, head.qos, properties.without(AWARD))
    return Message(bare, message.payload, message.expires_at_ms)
