"""Packets of a connection: found in the received bytes, passed to their handlers, errors answered.

Read next: `publish/handler.py` (PUBLISH), `session/connect.py` (CONNECT), `subscribe/handler.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from nearcast.broker.backlog import Backlog
from nearcast.broker.publish.acks import Acks
from nearcast.broker.publish.handler import PublishHandler
from nearcast.broker.publish.large import LARGE, join_large
from nearcast.broker.session.admission import Admission, merge_pieces
from nearcast.broker.session.connect import ConnectHandler
from nearcast.broker.session.connection import Connection
from nearcast.broker.session.lifecycle import Lifecycle
from nearcast.broker.slices import never
from nearcast.broker.state import BrokerState
from nearcast.broker.subscribe.handler import SubscribeHandler
from nearcast.mqtt import (
    Auth,
    Connect,
    Disconnect,
    MqttProtocolError,
    ProtocolVersion,
    ReasonCode,
    Subscribe,
    Unsubscribe,
    decode_packet,
)
from nearcast.mqtt.framing import long_length, too_large
from nearcast.mqtt.reasons import CLIENT_DISCONNECT_REASONS

Handler = Callable[[Connection, bytes, int, int, int], int]


class PacketDispatch:
    """Processes the bytes of connections.

    A protocol error or an unexpected exception is answered, and ends the connection that caused it
    and no other. Complexity: O(bytes + deliveries).
    """

    def __init__(
        self,
        state: BrokerState,
        handlers: tuple[PublishHandler, PublishHandler],
        answers: Acks,
        subscribing: SubscribeHandler,
        handshake: ConnectHandler,
        lifecycle: Lifecycle,
    ) -> None:
        """`handlers` handle the publications of clients and of peers."""
        self.state = state
        self._intake, peer_intake = handlers
        self._answers = answers
        self._subscribing = subscribing
        self._handshake = handshake
        self._lifecycle = lifecycle
        self._limit = state.settings.max_packet_bytes
        self.admission = Admission()
        self.backlog = Backlog(state, self.take_in, self.refuse, self.fail)
        self._handlers = self._table(self._intake)
        self._peer_handlers = self._table(peer_intake)

    def _table(self, intake: PublishHandler) -> dict[int, Handler]:
        """Return the handler for each first byte of a packet.

        A PUBLISH, an acknowledgement and PINGREQ have an entry; all others go to `_take_other`.
        """
        table: dict[int, Handler] = dict.fromkeys(range(0x30, 0x40), intake.publish_one)
        table |= {0x30: intake.qos_0_run, 0x32: intake.qos_1_2_run, 0x34: intake.qos_1_2_run}
        if intake is self._intake:
            self._limit_publications(table)
        table |= dict.fromkeys((0x40, 0x50, 0x62, 0x70), self._answers.take)
        table[0xC0] = self._take_ping
        return table

    def _limit_publications(self, table: dict[int, Handler]) -> None:
        """Replace the handlers of PUBLISH packets that the settings forbid: QoS, RETAIN, size."""
        settings = self.state.settings
        largest, take_one = settings.max_message_bytes, self._intake.publish_one
        for first in range(0x30, 0x40):
            if not settings.retain_available and first & 1:
                table[first] = _refuses_retain
            elif settings.maximum_qos < first >> 1 & 3 < 3:
                table[first] = _refuses_qos
            elif largest and table[first] is not take_one:  # all packets of a run have one size
                table[first] = _by_size(largest, table[first], take_one)

    def receive(self, connection: Connection, data: bytes, now_ms: int) -> None:
        """Process bytes from a connection; packets may be split anywhere."""
        state = self.state
        state.now_ms = now_ms
        state.counters.bytes_received += len(data)
        if connection.is_closing:
            return
        if (
            connection.last_read is not None
            and not connection.pending
            and self._intake.same_again(connection, data)
        ):
            connection.last_seen_ms = now_ms
            return
        if connection.pending:
            if connection.relay is not None:
                connection.relay.write(data)
                return
            connection.pending.append(data)
            connection.pending_bytes += len(data)
            if connection.is_waiting:
                return
            if connection.pending_bytes < connection.wanted_bytes:
                merge_pieces(connection)
                if connection.session is None:
                    self._hold(connection)
                return
            pieces, connection.pending = connection.pending, []
            if connection.pending_bytes == connection.wanted_bytes >= LARGE and self._take_large(
                connection, pieces
            ):
                return
            data = b"".join(pieces)
        self.take_in(connection, data)

    def _take_large(self, connection: Connection, pieces: list[bytes | bytearray]) -> bool:
        """Handle one large packet that came in pieces, if it is a plain PUBLISH at QoS 1 or 2."""
        intake, first = self._intake, pieces[0][0] if pieces[0] else 0
        is_plain = first in {0x32, 0x34} and self._handlers[first] == intake.qos_1_2_run
        if not is_plain or connection.session is None or connection.is_peer:
            return False
        counters = self.state.counters
        try:
            found = join_large(self.state, connection, pieces)
            if found is None:
                return False
            counters.publish_received += 1
            counters.publish_bytes_received += connection.pending_bytes
            intake.take_lone(connection, *found)
        except MqttProtocolError as error:
            self.refuse(connection, error)
        except Exception as mistake:  # noqa: BLE001 - of ours
            self.fail(connection, "taking a large packet of a client", mistake)
        connection.wanted_bytes = 2
        connection.last_seen_ms = self.state.now_ms
        return True

    def take_in(self, connection: Connection, data: bytes) -> None:
        """Process the whole packets among the bytes and keep the rest in `pending`."""
        try:
            consumed = self._take(connection, data)
        except MqttProtocolError as error:
            self.refuse(connection, error)
            return
        except Exception as mistake:  # noqa: BLE001 - of ours
            self.fail(connection, "taking packets of a client", mistake)
            return
        if consumed:  # only whole packets count for the keep-alive
            connection.last_seen_ms = self.state.now_ms
        rest = 0 if connection.is_closing else len(data) - consumed
        if rest or (connection.is_waiting and not connection.is_closing):
            connection.pending = [data[consumed:]]
            connection.pending_bytes = rest
        if connection.session is None or connection.pool_bytes:
            connection.pending_bytes = rest
            self._hold(connection)

    def _hold(self, connection: Connection) -> None:
        """Account for the bytes that a client has sent before its login."""
        if connection.is_closing or connection.session is not None:
            self.admission.release(connection)
            return
        try:
            self.admission.hold(connection, self.state.settings)
        except MqttProtocolError as error:
            self.refuse(connection, error)

    def fail(self, connection: Connection, doing: str, error: Exception) -> None:
        """Report an unexpected exception and end this connection only."""
        state = self.state
        state.failures.take(doing, error)
        connection.pending = []
        reason = ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
        try:
            if connection.is_peer or connection.is_closing:
                state.close(connection)
            elif connection.session is None:
                self._handshake.refuse(connection, reason)
            else:
                self._lifecycle.disconnect(connection, reason, "an internal error; it is logged")
        except Exception as further:  # noqa: BLE001 - a mistake of ours
            state.failures.take("answering an internal error", further)
            state.close(connection)

    def put_off(self, connection: Connection, data: bytes, now_ms: int) -> None:
        """Queue bytes in the backlog, to be processed in a later slice."""
        is_idle = connection.relay is None and connection.session is not None
        if connection.is_waiting or connection.is_closing or not is_idle:
            self.receive(connection, data, now_ms)
        else:
            self.backlog.put_off(connection, data)

    def go_on(self, connection: Connection, welcome: Callable[[], None], now_ms: int) -> None:
        """Answer a CONNECT that had to wait, then process what the client has sent since."""
        try:
            welcome()
        except MqttProtocolError as error:
            self.refuse(connection, error)
            return
        except Exception as mistake:  # noqa: BLE001 - of ours
            self.fail(connection, "welcoming a client", mistake)
            return
        pending, connection.pending = connection.pending, []
        connection.wanted_bytes = 2
        self.admission.release(connection)
        if connection.task is not None:
            connection.pending = [b"", *pending]
            self.backlog.add(connection)
        elif pending:
            self.receive(connection, b"".join(pending), now_ms)

    def _take(self, connection: Connection, data: bytes) -> int:
        """Process all whole packets; return the position behind the last one."""
        position, end, limit = 0, len(data), self._limit
        if connection.session is None and connection.connect is None:
            limit = min(limit, self.state.settings.max_connect_bytes)
        handlers = self._peer_handlers if connection.is_peer else self._handlers
        is_spent = never if connection.is_peer else self.state.slices.is_spent
        while end - position >= 2:
            first = data[position]
            length = data[position + 1]
            body = position + 2
            if length > 127:
                length, body = long_length(data, position + 1, end)
                if body < 0:
                    connection.wanted_bytes = end - position + 1
                    return position
            stop = body + length
            if stop - position > limit:
                raise too_large(stop - position, limit)
            if stop > end:
                connection.wanted_bytes = stop - position
                return position
            handler = handlers.get(first)
            if handler is None or connection.session is None:
                if connection.connect is not None:
                    connection.wanted_bytes = 1 << 62
                    return position
                self._take_other(connection, first, data[body:stop])
                position, limit = stop, self._limit
            elif connection.is_peer:
                position = self._take_of_peer(handler, connection, data, position, body, stop)
            else:
                position = handler(connection, data, position, body, stop)
            if connection.is_closing:
                return end
            if connection.task is not None or (position < end and is_spent()):
                # Other connections are served before the rest.
                self.backlog.add(connection)
                return position
        connection.wanted_bytes = 2
        return position

    def _take_of_peer(
        self,
        handler: Handler,
        connection: Connection,
        data: bytes,
        position: int,
        body: int,
        stop: int,
    ) -> int:
        """Handle a packet of a peer; acknowledge one that fails, or the peer resends it forever."""
        try:
            return handler(connection, data, position, body, stop)
        except MqttProtocolError:
            raise
        except Exception as error:  # noqa: BLE001 - a mistake of ours
            self.state.failures.take("taking a packet of another node", error)
            qos = data[position] >> 1 & 3 if data[position] >> 4 == 3 else 0
            if qos:
                at = body + 2 + (data[body] << 8 | data[body + 1])
                self._answers.answer_all(connection, 0x30 + 0x10 * qos, [data[at : at + 2]], 0)
            return stop

    def _take_ping(
        self, connection: Connection, _data: bytes, _position: int, body: int, stop: int
    ) -> int:
        if stop != body:
            decode_packet(0xC0, b"x")
        self.state.counters.others_received += 1
        self.state.send(connection, b"\xd0\x00")  # [MQTT-3.12.4-1]
        return stop

    def _take_other(self, connection: Connection, first: int, body: bytes) -> None:
        self.state.counters.others_received += 1
        if connection.session is None:
            self._take_first(connection, first, body)
            return
        packet = decode_packet(first, body, ProtocolVersion(connection.version))
        if isinstance(packet, Subscribe):
            self.backlog.begin(connection, self._subscribing.subscribe(connection, packet))
        elif isinstance(packet, Unsubscribe):
            self.backlog.begin(connection, self._subscribing.unsubscribe(connection, packet))
        elif isinstance(packet, Disconnect):
            self._take_disconnect(connection, packet)
        elif isinstance(packet, Auth):
            self._handshake.enhanced.take(connection, packet)
        else:
            raise MqttProtocolError(type(packet).__name__.upper(), where="packet from a client")

    def _take_first(self, connection: Connection, first: int, body: bytes) -> None:
        """Handle the first packet of a connection, which must be CONNECT [MQTT-3.1.0-1].

        In an enhanced authentication AUTH packets follow it.
        """
        if connection.enhanced is not None and first == 0xF0:
            answer = decode_packet(first, body, ProtocolVersion.V5)
            assert isinstance(answer, Auth)
            self._handshake.enhanced.take(connection, answer)
            return
        if first != 0x10 or connection.enhanced is not None:
            # Closed without DISCONNECT, as before any CONNACK [MQTT-3.14.0-1].
            self.state.counters.protocol_errors += 1
            self.state.close(connection)
            return
        if body[:6] == b"\0\4MQTT" and len(body) > 6:
            connection.version = 5 if body[6] >= 5 else 4
        packet = decode_packet(first, body)
        assert isinstance(packet, Connect)
        connection.connect_bytes = len(body)
        self._handshake.begin(connection, packet)

    def _take_disconnect(self, connection: Connection, packet: Disconnect) -> None:
        session = connection.session
        assert session is not None
        if packet.reason not in CLIENT_DISCONNECT_REASONS:  # [MQTT-3.14.2-1]
            raise MqttProtocolError(f"reason code 0x{packet.reason:02X}", where="DISCONNECT")
        expiry_s = packet.properties.session_expiry_interval
        if expiry_s is not None:
            if expiry_s and not session.expiry_s:
                raise MqttProtocolError(
                    f"session expiry {expiry_s}", where="DISCONNECT", expected="0, as in CONNECT"
                )
            session.expiry_s = min(expiry_s, self.state.settings.session_expiry_s)
        with_will = packet.reason != ReasonCode.SUCCESS  # [MQTT-3.14.4-3]
        connection.has_left = True
        self.state.close(connection)
        if session.link is connection:
            self.state.observer.disconnected(connection, session, packet.reason, "")
        self._lifecycle.detach(connection, with_will=with_will)

    def refuse(self, connection: Connection, error: MqttProtocolError) -> None:
        """Answer a protocol error with CONNACK or DISCONNECT, and close [MQTT-4.13.1-1]."""
        self.state.counters.protocol_errors += 1
        connection.pending = []
        if connection.is_peer:
            self.state.close(connection)
        elif connection.session is None:
            self._handshake.refuse(connection, error.reason, str(error))
        else:
            self._lifecycle.disconnect(connection, error.reason, str(error))


def _by_size(largest: int, take_run: Handler, take_one: Handler) -> Handler:
    """Return a handler that processes packets in runs only where no payload can be too large."""

    def take(connection: Connection, data: bytes, position: int, body: int, stop: int) -> int:
        handler = take_one if stop - position > largest else take_run
        return handler(connection, data, position, body, stop)

    return take


def _refuses_retain(*_packet: object) -> int:
    raise MqttProtocolError("RETAIN", reason=ReasonCode.RETAIN_NOT_SUPPORTED, where="PUBLISH")


def _refuses_qos(_link: Connection, data: bytes, position: int, _body: int, _stop: int) -> int:
    raise MqttProtocolError(
        f"QoS {data[position] >> 1 & 3}", reason=ReasonCode.QOS_NOT_SUPPORTED, where="PUBLISH"
    )
