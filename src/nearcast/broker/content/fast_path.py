"""QoS 0 publications to a space, without properties: the hot path of content delivery.

A run of packets of one topic is decoded and matched together, and each packet is delivered as the
bytes that were received. A packet that needs more (a value missing or out of range, subscriptions
with options, share groups with conditions) goes through `ContentPublishHandler` alone. Both ways
deliver the same messages and write the same records to the event log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from nearcast.broker.event_log_hooks import FROM_NODE, note_run
from nearcast.broker.publish.delivery import Delivery
from nearcast.broker.publish.message import Message, MessageHead
from nearcast.broker.publish.routes import Route
from nearcast.broker.session.connection import Connection
from nearcast.broker.session.session import Session
from nearcast.broker.state import BrokerState
from nearcast.model import MISSING, Event, Space

if TYPE_CHECKING:
    from nearcast.broker.content.subscriptions import ContentSubscriptions

_MANY = 12  # from this many events on, matching them in one call is faster
_MOST_RUN = 200  # packets per run: between runs other clients are served

Packet = tuple[int, int, tuple[float, ...] | None]  # start, stop, and the point in the space
TakeOne = Callable[[Connection, bytes, int, int, int], int]
SpreadBytes = Callable[[Connection, Route, bytes, int, int, int, bytes], None]


class ContentFastPath:
    """Handles runs of plain packets to topics of a space, of clients or of peers.

    `way` says of whom: it is FROM_CLIENT or FROM_NODE. `take_one` handles one packet without the
    fast path, `spread_bytes` delivers packets to the plain subscribers of their topic.
    """

    def __init__(
        self,
        state: BrokerState,
        delivery: Delivery,
        way: int,
        take_one: TakeOne,
        spread_bytes: SpreadBytes,
    ) -> None:
        self._state = state
        self._delivery = delivery
        self._way = way
        self._is_arrival = way == FROM_NODE
        self._take_one = take_one
        self._spread_bytes = spread_bytes

    def suits(self, route: Route) -> bool:
        """Return whether plain packets of a topic may take the fast path."""
        state, settings = self._state, route.space
        return (
            settings is not None
            and settings.top is None
            and settings.lifetime_ms is None
            and settings.values == "json"
            and (settings.order != "causal" or not state.network.is_joined)
            and state.selections is not None
            and not state.selections.explaining
            and not state.settings.max_message_bytes
            and not (state.settings.position_publications and settings.hides_positions)
        )

    def run(
        self, connection: Connection, data: bytes, position: int, body: int, stop: int, route: Route
    ) -> int:
        """Handle packets of one topic from here on; return the position behind them."""
        selections, settings = self._state.selections, route.space
        assert selections is not None
        assert settings is not None
        topic_end = body + 2 + (data[body] << 8 | data[body + 1])
        topic = data[body:topic_end]
        read = selections.readers[settings.space.name].point
        packets: list[Packet] = []
        head_size = len(topic) + (connection.version >= 5)
        while True:
            packets.append((position, stop, read(data[body + head_size : stop])))
            position = stop
            body, stop = _next(data, position, topic, connection.version)
            if not body or len(packets) >= _MOST_RUN:
                break
        matched = self._match(selections, settings.space.name, packets, topic)
        self._spread(connection, route, data, topic, packets, matched)
        return position

    def _match(
        self, selections: ContentSubscriptions, name: str, packets: list[Packet], topic: bytes
    ) -> list[list[int]]:
        """Return the keys of the matching subscriptions, for each packet that has a point."""
        text = topic[2:].decode()
        points = [point for _, _, point in packets if point is not None]
        if len(points) < _MANY:
            match = selections.matcher.match_point
            return [match(name, text, point) for point in points]
        offsets, keys = selections.matcher.match_points(name, text, points)
        starts, found = offsets.tolist(), keys.tolist()
        return [found[starts[i] : starts[i + 1]] for i in range(len(points))]

    def _spread(
        self,
        connection: Connection,
        route: Route,
        data: bytes,
        topic: bytes,
        packets: list[Packet],
        matched: list[list[int]],
    ) -> None:
        """Deliver each packet to its matching and plain subscribers, or leave it to `take_one`."""
        counters, receivers = self._state.counters, self._receivers()
        is_logged, is_joined = self._state.log is not None, self._state.network.is_joined
        watch = self._state.watch
        publisher = connection.session
        assert publisher is not None
        found = iter(matched)
        for start, stop, point in packets:
            body = _body(data, start)
            keys = next(found) if point is not None else []
            sessions = None if point is None else _receivers_of(route, receivers, keys)
            if point is None or sessions is None:
                self._take_one(connection, data, start, body, stop)
                continue
            counters.publish_received += 1
            counters.publish_bytes_received += stop - start
            head_size = body - start + len(topic) + (connection.version >= 5)
            packet = data[start:stop]
            if is_logged:
                note_run(self._state, publisher, self._way, 1, 0, topic, packet, head_size)
            if watch is not None and watch.wants_event():
                self._show(route, topic, packet[head_size:], point, sessions, publisher)
            if is_joined:
                payload = packet[head_size:]
                self._tell_network(route, topic, payload, point, sessions, publisher)
            if not route.is_empty:
                self._spread_bytes(connection, route, packet, stop - start, 1, head_size, topic)
            if sessions:
                self._send(connection, sessions, packet, head_size, topic)
            if route.shared:
                self._delivery.spread_groups(route, [_message(topic, packet[head_size:])])

    def _show(
        self,
        route: Route,
        topic: bytes,
        payload: bytes,
        point: tuple[float, ...],
        sessions: list[Session],
        publisher: Session,
    ) -> None:
        """Report an event to whoever looks at the map."""
        assert route.space is not None
        assert self._state.watch is not None
        event = _event(topic, route.space.space, point)
        self._state.watch.event(event.topic, payload, publisher, event, sessions, 0)

    def _receivers(self) -> Mapping[int, Session | None]:
        selections = self._state.selections
        assert selections is not None
        return selections.arrival_receivers if self._is_arrival else selections.receivers

    def _tell_network(
        self,
        route: Route,
        topic: bytes,
        payload: bytes,
        point: tuple[float, ...],
        sessions: list[Session],
        publisher: Session,
    ) -> None:
        """Offer a client's event to other nodes, if they take it; count a peer's in vain."""
        assert route.space is not None
        space = route.space.space
        if self._is_arrival:
            self._state.counters.unwanted += not (sessions or route.by_session)
        elif self._state.network.takes(space):
            self._state.network.published(
                _message(topic, payload), _event(topic, space, point), publisher
            )

    def _send(
        self,
        connection: Connection,
        sessions: list[Session],
        packet: bytes,
        head_size: int,
        topic: bytes,
    ) -> None:
        """Deliver a packet, unchanged to receivers of the publisher's version."""
        others = self._delivery.append_once(sessions, packet, connection.version)
        if others:
            self._delivery.send_to_each(others, _message(topic, packet[head_size:]))


def _receivers_of(
    route: Route, receivers: Mapping[int, Session | None], keys: list[int]
) -> list[Session] | None:
    """Return the matching subscribers that get a packet beside the plain ones of the route.

    None if the packet does not go to each of them unchanged.
    """
    try:
        sessions = [one for key in keys if (one := receivers[key]) is not None]
    except KeyError:
        return None
    if route.by_session.keys().isdisjoint(sessions):
        return sessions
    if route.special:  # options of both subscriptions of one client count together
        return None
    return [session for session in sessions if session not in route.by_session]


def _message(topic: bytes, payload: bytes) -> Message:
    return Message(MessageHead(topic, len(payload), 0), payload)


def _event(topic: bytes, space: Space, point: tuple[float, ...]) -> Event:
    values = tuple(None if value == MISSING else float(value) for value in point)
    return Event(topic[2:].decode(), space, values)


def _next(data: bytes, position: int, topic: bytes, version: int) -> tuple[int, int]:
    """Return the bounds of the body of the next plain packet of the topic, or 0, 0."""
    end = len(data)
    if end - position < 4 or data[position] != 0x30:
        return 0, 0
    body, length = position + 2, data[position + 1]
    if length > 127:
        if data[position + 2] > 127:
            return 0, 0
        body, length = position + 3, length & 127 | data[position + 2] << 7
    stop = body + length
    if stop > end or not data.startswith(topic, body):
        return 0, 0
    behind = body + len(topic)
    if behind > stop or (version >= 5 and (behind >= stop or data[behind])):
        return 0, 0
    return body, stop


def _body(data: bytes, start: int) -> int:
    """Return the position of the variable header of a whole packet."""
    body = start + 2
    while data[body - 1] > 127:
        body += 1
    return body
