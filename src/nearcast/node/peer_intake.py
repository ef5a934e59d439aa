"""PUBLISH from another node: for this node's own clients, and for share groups that it names.

What is retained in the network is told apart from it; here the flag is only passed on to those who
asked for it.
"""

from __future__ import annotations

from nearcast.node.answers import Answers, Outcome
from nearcast.node.delivery import Delivery
from nearcast.node.intake import Intake
from nearcast.node.message import Head, Message
from nearcast.node.noting import CAUSAL, CHOSEN, FROM_NODE, note_event
from nearcast.node.peering import AWARD
from nearcast.node.positions import Positions
from nearcast.node.publish_properties import PropertyReader, PublishProperties
from nearcast.node.routes import Route
from nearcast.node.selective import Award
from nearcast.node.session import Session
from nearcast.node.state import NodeState


class PeerIntake(Intake):
    """Takes publications of other nodes, in runs as those of clients."""

    _way = FROM_NODE

    def __init__(
        self, state: NodeState, delivery: Delivery, answers: Answers, positions: Positions
    ) -> None:
        super().__init__(state, delivery, answers, positions)
        self._router = state.router.arrivals
        self._routes = state.router.arrivals.routes
        self._look_up = state.router.arrivals.find
        if state.holding is not None:
            self._look_up = state.holding.look_up_arrival
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
    ) -> Outcome:
        """Deliver one message; other nodes are told of success in any case: it is ours now."""
        if retain and self._state.network is not None:
            self._state.network.arrived(message.topic_text())
        awards = _awards(properties)
        if not awards:
            self._note_arrival(message, publisher, properties, retain=retain)
        if awards:
            self.selective.award(_without_awards(message, properties), awards)
        elif properties is not None and properties.groups:
            for number in properties.groups:
                self._to_group(number, message, retain=retain)
        elif route.is_odd:
            self.selective.take_arrival(publisher, route, message, properties, retain=retain)
        elif not route.is_empty:
            holding = self._state.holding
            if holding is not None:
                holding.before_live(message, publisher, retain=retain, counts=False)
            self._delivery.spread(route, [message], publisher, retain=retain)
        return Outcome(0)

    def _note_arrival(
        self,
        message: Message,
        publisher: Session | None,
        properties: PublishProperties | None,
        *,
        retain: bool,
    ) -> None:
        if publisher is None:
            note_event(self._state, message, "", CAUSAL)
        else:
            way = CHOSEN if properties is not None and properties.groups else FROM_NODE
            note_event(self._state, message, publisher.client_id, way, retain=retain)

    def _to_group(self, number: int, message: Message, *, retain: bool) -> None:
        """Give a message to one member here; if all have gone meanwhile, to one elsewhere."""
        network = self._state.network
        named = None if network is None else network.group(number)
        group = None if named is None else self._state.router.group(*named)
        member = None
        if named is not None and self._state.selections is not None:
            member = self.selective.member_for(named, message)
        elif group is not None:
            qos = message.head.qos
            member = group.pick(qos, is_arrival=True) or group.pick(qos)
        if member is None:
            self._state.counters.dropped_no_member += 1
        else:
            self._delivery.deliver_as(member.session, [member], [message], {}, retain)


def _awards(properties: PublishProperties | None) -> list[Award]:
    """Return for which subscriptions of this node a message was chosen, if it was."""
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
    bare = Head(head.topic, head.payload_size, head.qos, properties.without(AWARD))
    return Message(bare, message.payload, message.expires_at_ms)
