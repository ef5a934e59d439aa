"""Deliver: a message of a space to the subscriptions that were selected, once for each client."""

from __future__ import annotations

from nearcast.broker.publish.delivery import Delivery
from nearcast.broker.publish.message import Message
from nearcast.broker.publish.routes import Route
from nearcast.broker.publish.share_groups import GroupKey
from nearcast.broker.session.session import Session, SessionSubscription
from nearcast.broker.state import BrokerState


class ContentDelivery:
    """Delivers messages of spaces to selected and to plain subscriptions."""

    def __init__(self, state: BrokerState, delivery: Delivery) -> None:
        self._groups = state.router.groups
        self._delivery = delivery

    def to_all(
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
        if route.by_session:
            self._to_plain(session, route, message, picked, retain, told)
        self._to_picked(message, picked, retain, told)
        self._to_groups(route, message, groups, retain)
        return bool(picked or groups or route.by_session or route.shared)

    def _to_plain(
        self,
        session: Session | None,
        route: Route,
        message: Message,
        picked: dict[Session, list[SessionSubscription]],
        retain: bool,
        told: dict[Session, bytes],
    ) -> None:
        """Deliver to plain subscribers; one that also matches joins `picked`, to get it once."""
        if not told and picked.keys().isdisjoint(route.by_session):
            self._delivery.spread_plain(route, [message], retain=retain)
            self._delivery.spread_options(route, [message], session, retain=retain)
            return
        for holder, held in route.by_session.items():
            wanted = [one for one in held if not (one.no_local and one.session is session)]
            if wanted:
                picked.setdefault(holder, []).extend(wanted)

    def _to_picked(
        self,
        message: Message,
        picked: dict[Session, list[SessionSubscription]],
        retain: bool,
        told: dict[Session, bytes],
    ) -> None:
        delivery, qos = self._delivery, message.head.qos
        at_qos_0: list[Session] = []
        variants: dict[tuple[bool, tuple[int, ...]], list[Message]] = {(False, ()): [message]}
        for session, subscriptions in picked.items():
            one = subscriptions[0]
            is_flagged = retain and session.is_peer
            if len(subscriptions) == 1 and one.is_plain and not (told or is_flagged):
                if qos and one.qos:
                    delivery.hand_over(session, [message], min(qos, one.qos))
                else:
                    at_qos_0.append(session)
            else:
                extra = told.get(session, b"") if any(s.explain for s in subscriptions) else b""
                delivery.deliver_as(session, subscriptions, [message], variants, retain, extra)
        if at_qos_0:
            delivery.send_to_each(at_qos_0, message)

    def _to_groups(
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
            turns = self._groups.get(key)
            member = None if turns is None else turns.pick_among(members, message.head.qos)
            if member is not None:
                self._delivery.deliver_as(member.session, [member], [message], {}, retain)


def mark_inside(found: list[SessionSubscription], message: Message, version: int) -> None:
    """Record that these subscriptions got a retained message; range entry skips it then."""
    topic = message.topic_text()
    for one in found:
        reached = one.session.link is not None or min(message.head.qos, one.qos)
        if one.inside is not None and reached:
            one.inside[topic] = version
