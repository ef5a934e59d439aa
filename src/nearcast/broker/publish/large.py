"""A large PUBLISH that came in several reads: its payload is joined once, and not sliced again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from nearcast.broker.publish.message import MessageHead
from nearcast.broker.publish.routes import Route
from nearcast.broker.session.connection import Connection
from nearcast.broker.state import BrokerState
from nearcast.mqtt.framing import long_length

LARGE: Final = 1 << 16
"""Smaller packets take the way of all others."""


class LargePublish(NamedTuple):
    """A packet at QoS 1 or 2 without properties, whose topic the client may publish to."""

    route: Route
    head: MessageHead
    payload: bytes
    identifier: bytes


def join_large(
    state: BrokerState, connection: Connection, pieces: Sequence[bytes | bytearray]
) -> LargePublish | None:
    """Return the packet that came in these pieces; None for one that takes the long way.

    The first byte is that of a QoS 1 or 2 PUBLISH without flags. Nothing is changed.
    """
    first = pieces[0]
    if not isinstance(first, bytes) or state.log is not None or connection.permits is not None:
        return None
    end = len(first)
    _, body = long_length(first, 1, end)
    if body < 0 or body + 2 > end:
        return None
    topic_end = body + 2 + (first[body] << 8 | first[body + 1])
    at = topic_end + 2
    if connection.version >= 5:
        at += 1
    if at > end or (connection.version >= 5 and first[at - 1]):
        return None
    topic = first[body:topic_end]
    route = state.router.routes.get(topic)
    if route is None or route.needs_inspection or route.is_forbidden:
        return None
    payload = b"".join([memoryview(first)[at:], *pieces[1:]])
    head = MessageHead(topic, len(payload), first[0] >> 1 & 3)
    return LargePublish(route, head, payload, first[topic_end : topic_end + 2])
