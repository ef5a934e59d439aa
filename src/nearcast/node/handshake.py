"""CONNECT: who comes, with which session, on what terms (sections 3.1, 3.2 and 4.1)."""

from __future__ import annotations

from nearcast.mqtt import (
    Connack,
    Connect,
    Disconnect,
    MqttProtocolError,
    Properties,
    ProtocolVersion,
    ReasonCode,
    encode_packet,
)
from nearcast.mqtt.packets import Will
from nearcast.mqtt.reasons import CONNACK_RETURN_CODES
from nearcast.mqtt.wire import encode_string
from nearcast.node.access import Verdict
from nearcast.node.connection import Connection
from nearcast.node.delivery import Delivery
from nearcast.node.lifecycle import Lifecycle
from nearcast.node.message import Head, Message
from nearcast.node.positions import Positions
from nearcast.node.publish_properties import split_properties
from nearcast.node.replay import tell_session
from nearcast.node.session import PEER_PREFIX, Session, WillMessage
from nearcast.node.state import NodeState
from nearcast.node.values import position_problem

NEVER = 0xFFFF_FFFF  # a session expiry interval that stands for no expiry


class Handshake:
    """Turns a CONNECT into a session in use, or refuses it."""

    def __init__(
        self, state: NodeState, delivery: Delivery, lifecycle: Lifecycle, positions: Positions
    ) -> None:
        self._state = state
        self._positions = positions
        self._delivery = delivery
        self._lifecycle = lifecycle

    def begin(self, connection: Connection, connect: Connect) -> None:
        """Take a CONNECT; the answer may have to wait for `decide`."""
        self._take_manner(connection, connect)
        reason = self._objection(connect)
        if reason is not None:
            self.refuse(connection, reason)
            return
        connection.connect = connect
        verdict = self._state.access.authenticate(connect, connection)
        if verdict is Verdict.LATER:
            self._state.questions.append(connection)
        else:
            self.decide(connection, verdict)

    def decide(self, connection: Connection, verdict: Verdict) -> None:
        """Go on with what is known about the client now."""
        connect = connection.connect
        assert connect is not None
        if verdict is Verdict.WELCOME and self._asks_others(connection, connect):
            return  # what the client says meanwhile waits
        connection.connect = None
        if verdict is Verdict.WELCOME:
            self._welcome(connection, connect)
        elif verdict is Verdict.WRONG_PASSWORD:
            self.refuse(connection, ReasonCode.BAD_USER_NAME_OR_PASSWORD)
        else:
            self.refuse(connection, ReasonCode.NOT_AUTHORIZED)

    def _asks_others(self, connection: Connection, connect: Connect) -> bool:
        """Ask other nodes about a client who is not known here; False if there are none."""
        network, client_id = self._state.network, connect.client_id
        if network is None or not client_id or client_id in self._state.sessions:
            return False
        return network.claim(connection, connect)

    def welcome_here(self, connection: Connection) -> None:
        """Go on with a client after other nodes were asked."""
        connect, connection.connect = connection.connect, None
        assert connect is not None
        self._welcome(connection, connect)

    def admit(self, connection: Connection, connect: Connect) -> None:
        """Take a client that another node relays and vouches for."""
        self._take_manner(connection, connect)
        reason = self._objection(connect)
        if reason is None:
            self._welcome(connection, connect)
        else:
            self.refuse(connection, reason)

    def give_up(self, client_id: str) -> None:
        """End a session here for good: its client begins anew at another node."""
        session = self._state.sessions.get(client_id)
        if session is not None and session.link is not None:
            self._take_over(session.link, ends=True)
            session = self._state.sessions.get(client_id)
        if session is not None:
            self._lifecycle.end(session)

    def _take_manner(self, connection: Connection, connect: Connect) -> None:
        connection.version = connect.version
        connection.tells_problems = connect.properties.request_problem_information != 0
        connection.max_packet_bytes = connect.properties.maximum_packet_size or 0

    def _objection(self, connect: Connect) -> ReasonCode | None:
        state = self._state
        if connect.properties.authentication_method is not None:
            return ReasonCode.BAD_AUTHENTICATION_METHOD
        is_old = connect.version < ProtocolVersion.V5
        if not connect.client_id and is_old and not connect.clean_start:
            return ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
        if connect.will is not None and connect.will.topic.startswith("$SYS"):
            return ReasonCode.TOPIC_NAME_INVALID
        if connect.client_id.startswith(PEER_PREFIX):
            return ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
        known = state.sessions.get(connect.client_id)
        is_takeover = known is not None and known.link is not None
        if state.connected >= state.settings.max_connections and not is_takeover:
            return ReasonCode.QUOTA_EXCEEDED
        return None

    def refuse(self, connection: Connection, reason: ReasonCode, text: str = "") -> None:
        """Answer with a failure and close; 3.1.1 has words for five failures only."""
        state = self._state
        state.counters.connects_refused += 1
        if connection.version >= 5:
            packet = encode_packet(Connack(False, reason, Properties(reason_string=text or None)))
            if not connection.tells_problems or not connection.fits(packet):
                packet = encode_packet(Connack(False, reason))
            state.send(connection, packet)
        elif reason in CONNACK_RETURN_CODES:
            state.send(connection, bytes((0x20, 2, 0, CONNACK_RETURN_CODES[reason])))
        state.close(connection)

    # --- a welcome client -----------------------------------------------------------------

    def _welcome(self, connection: Connection, connect: Connect) -> None:
        state = self._state
        client_id = connect.client_id or f"nearcast-{state.rng.getrandbits(80):020x}"
        old = state.sessions.get(client_id)
        if old is not None and old.link is not None:
            self._take_over(old.link, ends=connect.clean_start)
            old = state.sessions.get(client_id)
        if old is not None and connect.clean_start:
            self._lifecycle.end(old)
            old = None
        session = old or self._new_session(client_id)
        self._attach(connection, session, connect)
        self._set_terms(connection, session, connect)
        self._journal_session(session, is_new=old is None)
        state.counters.connects += 1
        pairs = connect.properties.user_properties
        takes_position = bool(pairs) and state.settings.position_on_connect
        complaint = position_problem(pairs) if takes_position else ""
        present = old is not None
        state.send(connection, self._connack(connection, session, connect, present, complaint))
        if old is not None:
            self._delivery.resume(session)
        if takes_position:
            self._positions.take_pairs(session, pairs)

    def _take_over(self, link: Connection, *, ends: bool) -> None:
        """Close the older connection of a client that has come again (3.1.4-3)."""
        if link.version >= 5:
            packet = Disconnect(ReasonCode.SESSION_TAKEN_OVER)
            self._state.send(link, encode_packet(packet))
        self._state.close(link)
        self._lifecycle.detach(link, with_will=True, is_takeover=not ends)

    def _new_session(self, client_id: str) -> Session:
        state = self._state
        session = Session(client_id, state.next_session)
        state.next_session += 1
        state.sessions[client_id] = session
        return session

    def _attach(self, connection: Connection, session: Session, connect: Connect) -> None:
        properties = connect.properties
        connection.session = session
        connection.alias_limit = properties.topic_alias_maximum or 0
        connection.aliases_out = {} if connection.alias_limit else None
        connection.is_plain = not (connection.max_packet_bytes or connection.alias_limit)
        connection.permits = {} if self._state.access.has_rules() else None
        session.link = connection
        session.came_ms = self._state.now_ms
        session.version = connect.version
        session.user_name = self._identity(connection, connect)
        session.ends_at_ms = 0
        session.will_at_ms = 0
        session.will = None if connect.will is None else self._will(connect.will)
        self._state.connected += 1
        if self._state.network is not None:
            self._state.network.there(session)
        if self._state.log is not None:
            self._state.log.present(session.client_id, self._state.now_ms, is_there=True)
        self._state.router.forget_session(session)

    def _identity(self, connection: Connection, connect: Connect) -> str | None:
        if connection.voucher is not None:
            return connection.voucher.user_name
        return self._state.access.identity(connect, connection)

    def _set_terms(self, connection: Connection, session: Session, connect: Connect) -> None:
        settings, properties = self._state.settings, connect.properties
        session.window = min(properties.receive_maximum or 65_535, settings.max_inflight)
        wanted = properties.session_expiry_interval or 0
        if connect.version < ProtocolVersion.V5:
            wanted = 0 if connect.clean_start else NEVER
        session.expiry_s = min(wanted, settings.session_expiry_s)
        keep_alive_s = connect.keep_alive_s
        if connect.version >= ProtocolVersion.V5:
            keep_alive_s = self._agreed_keep_alive(keep_alive_s)
        connection.keep_alive_ms = keep_alive_s * 1500
        if keep_alive_s:
            self._lifecycle.watch(connection)

    def _agreed_keep_alive(self, wanted_s: int) -> int:
        most_s = self._state.settings.keep_alive_s
        return wanted_s if 0 < wanted_s <= most_s or not most_s else most_s

    def _will(self, will: Will) -> WillMessage:
        properties = split_properties(will.properties)
        raw = encode_string(will.topic)
        head = Head(raw, len(will.payload), will.qos, properties.forward, will.retain)
        delay_s = will.properties.will_delay_interval or 0
        expiry_s = -1 if properties.expiry_s is None else properties.expiry_s
        return WillMessage(Message(head, will.payload), delay_s, expiry_s)

    def _journal_session(self, session: Session, *, is_new: bool) -> None:
        journal = self._state.journal
        was_durable, session.is_durable = session.is_durable, session.expiry_s > 0
        if journal is None:
            return
        if session.is_durable and not was_durable and not is_new:
            journal.ended(session.number)  # what was told of it before may no longer be true
            tell_session(session, journal, set())
        elif session.is_durable or session.will is not None or was_durable:
            journal.session(session)
            if session.will is not None:
                journal.will(session, session.will)
            elif not is_new:
                journal.no_will(session.number)

    def _connack(
        self,
        connection: Connection,
        session: Session,
        connect: Connect,
        is_present: bool,
        complaint: str,
    ) -> bytes:
        if connect.version < ProtocolVersion.V5:
            return bytes((0x20, 2, is_present, 0))
        settings = self._state.settings
        keep_alive_s = connection.keep_alive_ms // 1500
        wanted_expiry_s = connect.properties.session_expiry_interval or 0
        properties = Properties(
            session_expiry_interval=(
                session.expiry_s if session.expiry_s != wanted_expiry_s else None
            ),
            assigned_client_identifier=None if connect.client_id else session.client_id,
            server_keep_alive=keep_alive_s if keep_alive_s != connect.keep_alive_s else None,
            receive_maximum=(
                settings.receive_maximum if settings.receive_maximum < 65_535 else None
            ),
            topic_alias_maximum=settings.topic_alias_maximum or None,
            maximum_packet_size=settings.max_packet_bytes,
            reason_string=complaint if complaint and connection.tells_problems else None,
        )
        packet = encode_packet(Connack(is_present, 0, properties))
        if complaint and not connection.fits(packet):
            return self._connack(connection, session, connect, is_present, "")
        if not connection.fits(packet):
            raise MqttProtocolError(
                f"maximum packet size {connection.max_packet_bytes}",
                reason=ReasonCode.PACKET_TOO_LARGE,
                where="CONNECT",
                expected=f"at least {len(packet)}",
            )
        return packet
