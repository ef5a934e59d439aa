"""Authorise: whether a client may publish to a topic; verdicts are cached per connection."""

from __future__ import annotations

from nearcast.broker.access import refusal_text
from nearcast.broker.publish.routes import POSITION_TOPIC
from nearcast.broker.session.connection import Connection
from nearcast.broker.session.session import Session
from nearcast.broker.state import BrokerState

_MOST_VERDICTS = 1_000  # cached for one connection


def authorise(
    state: BrokerState, session: Session | None, connection: Connection | None, topic: bytes
) -> bool:
    """Return whether the ACL rules let a client publish to a topic with its two length bytes.

    `session` is None for the broker itself, `connection` for a will. A refusal is reported once
    per connection and topic, and so is what an operator's page publishes.
    """
    if session is None or (connection is not None and connection.permits is None):
        return True
    permits: dict[bytes, bool] = {}
    if connection is not None and connection.permits is not None:
        if connection.rules != state.rules:
            connection.permits, connection.rules = {}, state.rules
        permits = connection.permits
    known = permits.get(topic)
    if known is None:
        text = topic[2:].decode()
        known = state.access.may_publish(session.user_name, session.client_id, text)
        if len(permits) >= _MOST_VERDICTS:
            permits.clear()
        permits[topic] = known
        if not known:
            state.observer.publish_denied(session, text)
        elif session.is_onlooker and text != POSITION_TOPIC:
            state.observer.page_published(session, text)
    return known


def refusal(state: BrokerState, session: Session, topic: bytes) -> str:
    """Return the reason why the ACL rules refuse a topic, as text for people."""
    return refusal_text(state.access, session, topic[2:].decode(), subscribes=False)
