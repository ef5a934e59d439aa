"""PUBLISH, parsed straight from the receive buffer: the hot path.

The packets of one publisher mostly repeat the same first byte, size and topic. Such a run is found
with one comparison per packet, routed once and delivered at once. Everything unusual (RETAIN, DUP,
properties) goes packet by packet through `publish_one`. Both accept and refuse exactly what
`nearcast.mqtt.decode` does.

Read next: `routes.py`, then `delivery.py`; `../content/publish.py` for topics of a space.
"""

from __future__ import annotations

from typing import ClassVar, Final

from nearcast.broker.content.fast_path import ContentFastPath
from nearcast.broker.content.positions import Positions
from nearcast.broker.content.publish import ContentPublishHandler
from nearcast.broker.event_log_hooks import FROM_CLIENT, aside, note_event, note_run
from nearcast.broker.publish.acks import Acks, PublishOutcome, read_packet_id, zero_identifier
from nearcast.broker.publish.authorise import authorise, refusal
from nearcast.broker.publish.decode import end_of_topic, messages_of_run, topic_of_alias
from nearcast.broker.publish.delivery import Delivery
from nearcast.broker.publish.ignored import ignored_instructions
from nearcast.broker.publish.message import Message, MessageHead, recode_run
from nearcast.broker.publish.properties import PropertyReader, PublishProperties
from nearcast.broker.publish.routes import Arrivals, Route, Router, Service
from nearcast.broker.retained.updates import retain_message
from nearcast.broker.session.connection import AS_IT_IS, Connection
from nearcast.broker.session.session import Session
from nearcast.broker.state import BrokerState
from nearcast.model.wording import shown
from nearcast.mqtt import ReasonCode
from nearcast.mqtt.errors import MalformedPacketError
from nearcast.mqtt.wire import TWO_BYTES

_NOTHING: Final = PublishProperties()
_EMPTY: Final = int(ReasonCode.NO_MATCHING_SUBSCRIBERS)
_QUOTA: Final = int(ReasonCode.QUOTA_EXCEEDED)
_FORBIDDEN: Final = int(ReasonCode.NOT_AUTHORIZED)
_MOST_RUN: Final = 8_000  # about as many deliveries per run: between runs other clients are served


class PublishHandler:
    """Handles the publications of connected clients.

    Every packet method gets the buffer and the bounds of a whole packet in it, and returns the
    position behind what it processed: one packet or a run.
    """

    _way: ClassVar[int] = FROM_CLIENT

    def __init__(
        self, state: BrokerState, delivery: Delivery, answers: Acks, positions: Positions
    ) -> None:
        self._state = state
        self._router: Router | Arrivals = state.router
        self._look_up = state.router.look_up
        self._positions = positions if state.settings.position_on_publish else None
        self._steps = positions
        self.selective = ContentPublishHandler(state, delivery, positions)
        self._fast_path = ContentFastPath(
            state, delivery, self._way, self.publish_one, self._spread_bytes
        )
        self._delivery = delivery
        self._answers = answers
        self._routes = state.router.routes
        self._properties = PropertyReader()
        self._alias_maximum = state.settings.topic_alias_maximum
        self._most_bytes = state.settings.max_message_bytes or 1 << 62
        self._expected = f"expected a payload of at most {self._most_bytes}"

    # --- QoS 0, no flags ------------------------------------------------------------------

    def qos_0_run(
        self, connection: Connection, data: bytes, position: int, body: int, stop: int
    ) -> int:
        """Handle a run of QoS 0 packets of one size and topic."""
        topic_end = end_of_topic(data, body, stop)
        head_end = topic_end
        if connection.version >= 5:
            if topic_end >= stop or data[topic_end]:
                return self.publish_one(connection, data, position, body, stop)
            head_end += 1
        topic = data[body:topic_end]
        route = self._routes.get(topic)
        if route is None:
            route = self._look_up(topic)
        if route.needs_inspection:
            return self._inspected_run(connection, data, position, body, stop, route)
        size = stop - position
        head = data[position:head_end]
        most = _MOST_RUN // (1 + len(route.special) + len(route.shared))
        last = min(len(data) - size, position + size * most)
        while stop <= last and data.startswith(head, stop):
            stop += size
        count = (stop - position) // size
        if stop < len(data) and route.is_same_for_all[connection.version >= 5]:
            stop, more = self._same_route(connection, data, stop, route)
            count += more
        counters = self._state.counters
        counters.publish_received += count
        counters.publish_bytes_received += stop - position
        is_guarded = route.is_forbidden or connection.permits is not None
        if is_guarded and not self._is_permitted(connection, route, topic):
            counters.dropped_forbidden += count
            return stop
        if route.is_empty and self._state.log is None:
            return stop
        chunk = data[position:stop]
        if self._state.log is not None:
            self._log_run(connection, count, 0, topic, chunk, head_end - position)
        if not route.is_empty:
            is_5 = connection.version >= 5
            if size == len(data) and route.is_same_for_all[is_5]:
                receivers = route.qos_0_v5 if is_5 else route.qos_0_v311
                connection.last_read = (size, head, topic, route, receivers)
            head_size = head_end - position
            self._spread_bytes(connection, route, chunk, size, count, head_size, topic)
            self._spread_groups(route, chunk, size, head_size, topic)
        return stop

    def _inspected_run(
        self, connection: Connection, data: bytes, position: int, body: int, stop: int, route: Route
    ) -> int:
        """Handle a packet whose route needs inspection: a position, or a topic of a space."""
        topic = data[body : end_of_topic(data, body, stop)]
        if connection.permits is None or self._is_permitted(connection, route, topic):
            if route.service is Service.POSITION:
                start = body + len(topic) + (connection.version >= 5)
                counters = self._state.counters
                counters.publish_received += 1
                counters.publish_bytes_received += stop - position
                self._steps.take(connection.session, data[start:stop], ())
                return stop
            if self._fast_path.suits(route):
                return self._fast_path.run(connection, data, position, body, stop, route)
        return self.publish_one(connection, data, position, body, stop)

    def same_again(self, connection: Connection, data: bytes) -> bool:
        """Handle a read that repeats the last one: one packet, same head; return whether it does.

        With many slow publishers nearly every read is such: this saves most of its work.
        """
        way = connection.last_read
        if way is None or connection.permits is not None or self._state.log is not None:
            return False
        size, head, topic, route, receivers = way
        if len(data) != size or not data.startswith(head):
            return False
        if self._routes.get(topic) is not route:  # subscriptions have changed since
            connection.last_read = None
            return False
        counters = self._state.counters
        counters.publish_received += 1
        counters.publish_bytes_received += size
        self._delivery.append_to_all(receivers, data, 1)
        return True

    def _same_route(
        self, connection: Connection, data: bytes, position: int, route: Route
    ) -> tuple[int, int]:
        """Return the position behind packets of other topics with the same route, and their count.

        Only where packets go out unchanged: no receiver of the other version, no ACL rules, no
        event log.
        """
        count, end, routes = 0, len(data), self._routes
        if connection.permits is not None or self._state.log is not None or self._most_bytes < 130:
            return position, 0
        has_properties = connection.version >= 5
        while end - position >= 5 and data[position] == 0x30:
            stop = position + 2 + data[position + 1]
            topic_end = position + 4 + (data[position + 2] << 8 | data[position + 3])
            if data[position + 1] > 127 or stop > end or topic_end + has_properties > stop:
                break
            if routes.get(data[position + 2 : topic_end]) is not route:
                break
            if has_properties and data[topic_end]:
                break
            position = stop
            count += 1
        return position, count

    def _spread_bytes(
        self,
        connection: Connection,
        route: Route,
        chunk: bytes,
        size: int,
        count: int,
        head_size: int,
        topic: bytes,
    ) -> None:
        """Append a run of QoS 0 packets to the outboxes of a route's receivers, groups excepted."""
        delivery = self._delivery
        same, other = route.qos_0_v311, route.recoded
        if connection.version >= 5:
            same, other = route.qos_0_v5, same
        elif route.nodes:
            delivery.append_to_all(route.nodes, AS_IT_IS + chunk, count)
        if same:
            delivery.append_to_all(same, chunk, count)
        if other:
            version = 4 if connection.version >= 5 else 5
            recoded = recode_run(chunk, size, head_size, topic, version)
            delivery.append_to_all(other, recoded, count)
        if route.special:
            messages = messages_of_run(chunk, size, head_size, topic)
            delivery.spread_options(route, messages, connection.session, retain=False)

    def _spread_groups(
        self, route: Route, chunk: bytes, size: int, head_size: int, topic: bytes
    ) -> None:
        """Deliver each packet of a run of QoS 0 to one member of each share group."""
        if route.shared:
            self._delivery.spread_groups(route, messages_of_run(chunk, size, head_size, topic))

    # --- QoS 1 and 2, no flags ------------------------------------------------------------

    def qos_1_2_run(
        self, connection: Connection, data: bytes, position: int, body: int, stop: int
    ) -> int:
        """Handle a run of QoS 1 or QoS 2 packets of one size and topic."""
        topic_end = end_of_topic(data, body, stop)
        payload_at = topic_end + 2
        has_properties = connection.version >= 5
        if payload_at + has_properties > stop or (has_properties and data[payload_at]):
            return self.publish_one(connection, data, position, body, stop)
        topic = data[body:topic_end]
        route = self._routes.get(topic)
        if route is None:
            route = self._look_up(topic)
        is_guarded = route.is_forbidden or connection.permits is not None
        if route.needs_inspection or (
            is_guarded and not self._is_permitted(connection, route, topic)
        ):
            return self.publish_one(connection, data, position, body, stop)
        if stop == len(data) and self._state.log is None:
            counters = self._state.counters
            counters.publish_received += 1
            counters.publish_bytes_received += stop - position
            payload = data[payload_at + has_properties : stop]
            lone = MessageHead(topic, len(payload), data[position] >> 1 & 3)
            self.take_lone(connection, route, lone, payload, data[topic_end:payload_at])
            return stop
        size, start = stop - position, position
        head = data[position:topic_end]
        most = _MOST_RUN // (1 + len(route.plain) + len(route.special) + len(route.shared))
        last, at = min(len(data) - size, position + size * most), payload_at - position
        while stop <= last and data.startswith(head, stop):
            if has_properties and data[stop + at]:
                break
            stop += size
        counters = self._state.counters
        counters.publish_bytes_received += stop - start
        identifiers = [data[one + at - 2 : one + at] for one in range(start, stop, size)]
        if b"\0\0" in identifiers:
            raise zero_identifier()
        at += has_properties
        payloads = [data[one + at : one + size] for one in range(start, stop, size)]
        counters.publish_received += len(payloads)
        if data[start] == 0x32:
            if self._state.log is not None:
                self._log_run(connection, len(payloads), 1, topic, data[start:stop], at)
            self._take_qos_1(connection, route, topic, payloads, identifiers)
        else:
            self._take_qos_2(connection, route, topic, payloads, identifiers)
        return stop

    def take_lone(
        self,
        connection: Connection,
        route: Route,
        head: MessageHead,
        payload: bytes,
        identifier: bytes,
    ) -> None:
        """Deliver and acknowledge a read of one QoS 1 or 2 packet: what most reads are."""
        session, qos = connection.session, head.qos
        assert session is not None
        number = identifier[0] << 8 | identifier[1]
        if not number:
            raise zero_identifier()
        reason = 0
        if qos == 1 or number not in session.incoming:
            if qos == 2:
                self._answers.remember_incoming(connection, session, [number])
            reason = _EMPTY
            if not route.is_empty:
                message = Message(head, payload)
                self._delivery.spread_lone(route, message, session)
                reason = _QUOTA if message.was_refused else 0
        if reason == _QUOTA and qos == 2 and connection.version >= 5:  # [MQTT-4.3.3-9]
            self._answers.forget_incoming(session, [number])
        self._answers.answer_all(connection, 0x30 + 0x10 * qos, [identifier], reason)

    def _take_qos_1(
        self,
        connection: Connection,
        route: Route,
        topic: bytes,
        payloads: list[bytes],
        identifiers: list[bytes],
    ) -> None:
        """Deliver a QoS 1 run and acknowledge it with PUBACKs [MQTT-4.3.2-4]."""
        reason = 0
        if route.is_empty:
            reason = _EMPTY
        else:
            head = MessageHead(topic, len(payloads[0]), 1)
            messages = [Message(head, payload) for payload in payloads]
            self._delivery.spread(route, messages, connection.session, retain=False)
            if connection.version >= 5 and any(one.was_refused for one in messages):
                refused = [message.was_refused for message in messages]
                self._answers.answer_each(connection, 0x40, identifiers, refused)
                return
        self._answers.answer_all(connection, 0x40, identifiers, reason)

    def _take_qos_2(
        self,
        connection: Connection,
        route: Route,
        topic: bytes,
        payloads: list[bytes],
        identifiers: list[bytes],
    ) -> None:
        """Deliver the new messages of a QoS 2 run and acknowledge all with PUBRECs [MQTT-4.3.3-8].

        A repeated identifier is acknowledged but not delivered again [MQTT-4.3.3-10].
        """
        session = connection.session
        assert session is not None
        fresh: dict[bytes, bytes] = {}
        incoming = session.incoming
        for payload, raw in zip(payloads, identifiers, strict=True):
            if raw not in fresh and (raw[0] << 8 | raw[1]) not in incoming:
                fresh[raw] = payload
        self._answers.remember_incoming(
            connection, session, [raw[0] << 8 | raw[1] for raw in fresh]
        )
        if fresh and self._state.log is not None:
            self._log_run(connection, len(fresh), 2, topic, b"".join(fresh.values()), 0)
        messages: list[Message] = []
        if fresh and not route.is_empty:
            head = MessageHead(topic, len(payloads[0]), 2)
            messages = [Message(head, payload) for payload in fresh.values()]
            self._delivery.spread(route, messages, session, retain=False)
        if connection.version >= 5 and any(one.was_refused for one in messages):
            pairs = zip(messages, fresh, strict=True)
            over = {raw for message, raw in pairs if message.was_refused}  # [MQTT-4.3.3-9]
            self._answers.forget_incoming(session, [raw[0] << 8 | raw[1] for raw in over])
            refused = [identifier in over for identifier in identifiers]
            self._answers.answer_each(connection, 0x50, identifiers, refused)
            return
        reason = _EMPTY if route.is_empty and len(fresh) == len(payloads) else 0
        self._answers.answer_all(connection, 0x50, identifiers, reason)

    # --- everything unusual ---------------------------------------------------------------

    def publish_one(
        self, connection: Connection, data: bytes, position: int, body: int, stop: int
    ) -> int:
        """Handle one PUBLISH with any flags and properties."""
        first = data[position]
        qos = first >> 1 & 3
        if qos == 3 or (first & 8 and not qos):  # [MQTT-3.3.1-4], [MQTT-3.3.1-2]
            raise MalformedPacketError(f"flags {first & 0x0F:04b}", where="PUBLISH")
        at = end_of_topic(data, body, stop)
        topic = data[body:at]
        packet_id = 0
        if qos:
            packet_id = read_packet_id(data, at, stop)
            at += 2
        properties = _NOTHING
        if connection.version >= 5:
            properties, at = self._properties.read(data, at, stop)
        if properties.alias is not None:
            topic = topic_of_alias(connection, topic, properties.alias, self._alias_maximum)
        route = self._router.find(topic)
        counters = self._state.counters
        counters.publish_received += 1
        counters.publish_bytes_received += stop - position
        head = MessageHead(topic, stop - at, qos, properties.forward)
        message = Message(head, data[at:stop], self._expiry(properties))
        self._accept(connection, route, message, packet_id, properties, retain=bool(first & 1))
        return stop

    def _expiry(self, properties: PublishProperties) -> int:
        if properties.expiry_s is None:
            return 0
        return self._state.now_ms + max(1, properties.expiry_s * 1000)

    def _accept(
        self,
        connection: Connection,
        route: Route,
        message: Message,
        packet_id: int,
        properties: PublishProperties,
        *,
        retain: bool,
    ) -> None:
        """Authorise, deliver and acknowledge one message."""
        session = connection.session
        assert session is not None
        qos = message.head.qos
        outcome = PublishOutcome(0)
        is_repeated = qos == 2 and packet_id in session.incoming
        if message.head.payload_size > self._most_bytes:
            self._state.counters.dropped_too_large += 1
            outcome = PublishOutcome(
                _QUOTA, f"found {message.head.payload_size} bytes; {self._expected}"
            )
        elif not is_repeated:
            topic = message.head.topic
            if not (route.needs_inspection or self._is_permitted(connection, route, topic)):
                self._state.counters.dropped_forbidden += 1
                outcome = PublishOutcome(
                    _FORBIDDEN, self._refusal(session, route, message) if qos else ""
                )
            else:
                if qos == 2:
                    self._answers.remember_incoming(connection, session, [packet_id])
                if self._positions is not None and properties.user:
                    self._positions.take_pairs(session, properties.user)
                outcome = self.publish(route, message, session, properties, retain=retain)
        if not qos:
            return
        if qos == 2 and outcome.reason >= 0x80 and connection.version >= 5:
            self._answers.forget_incoming(session, [packet_id])
        answer = 0x40 if qos == 1 else 0x50
        self._answers.tell(connection, answer, TWO_BYTES[packet_id], outcome)

    def _log_run(
        self,
        connection: Connection,
        count: int,
        qos: int,
        topic: bytes,
        packets: bytes,
        head_size: int,
    ) -> None:
        session = connection.session
        assert session is not None
        note_run(self._state, session, self._way, count, qos, topic, packets, head_size)

    def publish(
        self,
        route: Route,
        message: Message,
        publisher: Session | None,
        properties: PublishProperties | None = None,
        *,
        retain: bool,
    ) -> PublishOutcome:
        """Retain and deliver one message; return the outcome for its publisher."""
        if route.needs_inspection:
            return self.selective.take(publisher, route, message, properties, retain=retain)
        if not route.is_forbidden:
            note_event(
                self._state, message, publisher.client_id if publisher else "", retain=retain
            )
        self._state.deferral.before_live(message, publisher, retain=retain)
        told = ignored_instructions(self._state, publisher, message, properties)
        if retain:
            told = told or self._state.deferral.complaint(message, publisher)
            retain_message(self._state, message)
        if route.is_empty:
            return PublishOutcome(_QUOTA if message.was_refused else _EMPTY, told)
        if route.is_forbidden:  # a message of the broker's own, such as `$SYS`: no event of the log
            with aside(self._state):
                self._delivery.spread(route, [message], publisher, retain=retain)
        else:
            self._delivery.spread(route, [message], publisher, retain=retain)
        return PublishOutcome(_QUOTA if message.was_refused else 0, told)

    def _refusal(self, session: Session, route: Route, message: Message) -> str:
        """Return the reason why a publication was refused."""
        if route.is_forbidden:
            return f"{shown(message.topic_text())} is refused: such topics are the broker's own"
        return refusal(self._state, session, message.head.topic)

    def _is_permitted(self, connection: Connection, route: Route, topic: bytes) -> bool:
        """Return whether the client may publish to a topic of this route."""
        session = connection.session
        if not route.is_forbidden:
            return authorise(self._state, session, connection, topic)
        if session is not None:
            self._state.observer.publish_denied(session, topic[2:].decode())
        return False
