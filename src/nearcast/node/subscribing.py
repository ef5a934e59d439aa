"""SUBSCRIBE and UNSUBSCRIBE (sections 3.8 - 3.11), and retained messages for newcomers."""

from __future__ import annotations

from dataclasses import replace

from nearcast.mqtt import (
    FilterRequest,
    MqttProtocolError,
    Properties,
    ProtocolVersion,
    ReasonCode,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    check_topic_filter,
    encode_packet,
    split_shared,
)
from nearcast.node.connection import Connection
from nearcast.node.delivery import Delivery
from nearcast.node.message import Message
from nearcast.node.session import Session, Subscription
from nearcast.node.state import NodeState


class Subscribing:
    """Adds and removes subscriptions."""

    def __init__(self, state: NodeState, delivery: Delivery) -> None:
        self._state = state
        self._delivery = delivery

    def subscribe(self, connection: Connection, packet: Subscribe) -> None:
        """Take each filter on its own; answer, then send what is retained."""
        session = connection.session
        assert session is not None
        identifier = next(iter(packet.properties.subscription_identifiers), 0)
        codes: list[int] = []
        complaint = ""
        newcomers: list[Subscription] = []
        for request in packet.requests:
            try:
                subscription, is_new = self._add(session, request, identifier)
            except MqttProtocolError as error:
                complaint = complaint or str(error)
                codes.append(error.reason if connection.version >= 5 else 0x80)
                continue
            codes.append(request.qos)
            if _wants_retained(request, subscription, is_new):
                newcomers.append(subscription)
        self._answer(connection, Suback(packet.packet_id, tuple(codes)), complaint)
        for subscription in newcomers:
            self._send_retained(session, connection, subscription)

    def _add(
        self, session: Session, request: FilterRequest, identifier: int
    ) -> tuple[Subscription, bool]:
        state = self._state
        text = request.topic_filter
        shared = split_shared(text)
        check_topic_filter(shared.topic_filter, max_levels=state.settings.max_topic_levels)
        if not state.access.may_subscribe(
            session.user_name, session.client_id, shared.topic_filter
        ):
            raise MqttProtocolError(
                repr(text),
                reason=ReasonCode.NOT_AUTHORIZED,
                where="topic filter",
                expected="one that the rules allow",
            )
        subscription = Subscription(
            session,
            text,
            shared.group,
            shared.topic_filter,
            request.qos,
            no_local=request.no_local,
            retain_as_published=request.retain_as_published,
            identifier=identifier,
        )
        is_new = text not in session.subscriptions
        session.subscriptions[text] = subscription
        state.router.add(subscription)
        if state.journal is not None and session.is_durable:
            state.journal.subscribed(subscription)
        if state.log is not None:
            state.log.subscription(
                state.now_ms, session.client_id, text, request.qos, is_added=True
            )
        return subscription, is_new

    def unsubscribe(self, connection: Connection, packet: Unsubscribe) -> None:
        """Remove filters, letter by letter; answer for each whether it was there."""
        session = connection.session
        assert session is not None
        state = self._state
        codes: list[int] = []
        for text in packet.topic_filters:
            subscription = session.subscriptions.pop(text, None)
            if subscription is None:
                codes.append(ReasonCode.NO_SUBSCRIPTION_EXISTED)
                continue
            state.router.remove(subscription)
            if state.journal is not None and session.is_durable:
                state.journal.unsubscribed(session.number, text)
            if state.log is not None:
                state.log.subscription(state.now_ms, session.client_id, text, 0, is_added=False)
            codes.append(ReasonCode.SUCCESS)
        self._answer(connection, Unsuback(packet.packet_id, tuple(codes)), "")

    def _answer(self, connection: Connection, answer: Suback | Unsuback, complaint: str) -> None:
        """Answer, with a reason string where there is one and the client wants and can take it."""
        version = ProtocolVersion(connection.version)
        packet = encode_packet(answer, version)
        if complaint and connection.tells_problems:
            told = replace(answer, properties=Properties(reason_string=complaint))
            longer = encode_packet(told, version)
            packet = longer if connection.fits(longer) else packet
        self._state.send(connection, packet)

    # --- retained -------------------------------------------------------------------------

    def _send_retained(
        self, session: Session, connection: Connection, subscription: Subscription
    ) -> None:
        state = self._state
        is_bulk = not (subscription.qos or subscription.identifier) and connection.is_plain
        if is_bulk and not session.queue:
            chunk, count, mortal = state.retained.chunk(
                subscription.topic_filter, connection.version
            )
            if len(chunk) <= state.settings.session_queue_bytes // 2:
                if count:
                    self._delivery.append_to_all([session], chunk, count)
                self._queue_retained(session, subscription, mortal)
                return
        found = list(state.retained.find(subscription.topic_filter))
        self._queue_retained(session, subscription, found)

    def _queue_retained(
        self, session: Session, subscription: Subscription, found: list[Message]
    ) -> None:
        numbers = (subscription.identifier,) if subscription.identifier else ()
        state = self._state
        for message in found:
            if message.expires_at_ms and message.expires_at_ms <= state.now_ms:
                state.retained.forget(message.topic_text())
                continue
            dressed = message
            if numbers:
                dressed = message.variant(retain=True, identifiers=numbers)
            qos = min(message.head.qos, subscription.qos)
            self._delivery.enqueue_retained(session, dressed, qos)
        self._delivery.pump(session)


def _wants_retained(request: FilterRequest, subscription: Subscription, is_new: bool) -> bool:
    if subscription.group or request.retain_handling == 2:
        return False
    return request.retain_handling == 0 or is_new
