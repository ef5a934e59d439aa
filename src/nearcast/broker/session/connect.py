"""CONNECT: from a login to a session in use, or a refusal (sections 3.1, 3.2 and 4.1).

Read next: `lifecycle.py` (how connections and sessions end).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from nearcast.broker.access import LoginVerdict
from nearcast.broker.content.positions import Positions
from nearcast.broker.content.publish import ContentPublishHandler
from nearcast.broker.publish.delivery import Delivery
from nearcast.broker.publish.message import Message, MessageHead
from nearcast.broker.publish.properties import split_properties
from nearcast.broker.publish.routes import Service
from nearcast.broker.rechecks import NO_USER, UNCHECKED, Rechecks
from nearcast.broker.session.connection import Connection
from nearcast.broker.session.enhanced_login import EnhancedLogins
from nearcast.broker.session.identity import (
    OTHERS_SESSION,
    is_owner,
    maps_identifiers,
    session_identifier,
)
from nearcast.broker.session.lifecycle import Lifecycle
from nearcast.broker.session.session import BRIDGE_PREFIX, PEER_PREFIX, Session, WillMessage
from nearcast.broker.slices import Work
from nearcast.broker.state import BrokerState
from nearcast.model import MisuseError
from nearcast.model.event_decoder import position_problem
from nearcast.model.wording import shown
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

NEVER = 0xFFFF_FFFF  # a session expiry interval that stands for no expiry


class SessionTerms(NamedTuple):
    """What the broker grants of the values in CONNECT: in-flight window, expiry, keep-alive."""

    window: int
    expiry_s: int
    keep_alive_s: int


class ConnectHandler:
    """Turns a CONNECT into a session in use, or refuses it."""

    def __init__(
        self,
        state: BrokerState,
        delivery: Delivery,
        lifecycle: Lifecycle,
        positions: Positions,
        selective: ContentPublishHandler,
    ) -> None:
        self._state = state
        self._selective = selective
        self._positions = positions
        self._delivery = delivery
        self._lifecycle = lifecycle
        self.rechecks: Rechecks | None = None  # set by `Broker`
        self.enhanced = EnhancedLogins(state, lifecycle, self.decide, self.refuse)

    def begin(self, connection: Connection, connect: Connect) -> None:
        """Handle a CONNECT; the answer may have to wait for `decide`."""
        self._take_manner(connection, connect)
        reason = self._objection(connect)
        if reason is not None:
            self.refuse(connection, reason, connect=connect)
            return
        method = connect.properties.authentication_method
        if method is not None:
            self.enhanced.begin(connection, connect, method)
            return
        connection.connect = connect
        verdict = self._state.access.authenticate(connect, connection)
        if verdict is LoginVerdict.LATER:
            self._state.questions.append(connection)
        else:
            self.decide(connection, verdict)

    def decide(self, connection: Connection, verdict: LoginVerdict) -> None:
        """Continue a CONNECT with the verdict on its login."""
        connect = connection.connect
        assert connect is not None
        if verdict is LoginVerdict.WELCOME:
            connect = connection.connect = self._identified(connection, connect)
            if maps_identifiers(self._state.settings) and self._is_one_too_many(connect):
                connection.connect = None
                self.refuse(connection, ReasonCode.QUOTA_EXCEEDED, connect=connect)
                return
            if self._asks_others(connection, connect):
                return  # the client's next packets wait in `pending`
        connection.connect = None
        if verdict is LoginVerdict.WELCOME:
            self._welcome(connection, connect)
        elif verdict is LoginVerdict.WRONG_PASSWORD:
            self.refuse(connection, ReasonCode.BAD_USER_NAME_OR_PASSWORD, connect=connect)
        elif verdict is LoginVerdict.BANNED:
            self.refuse(connection, ReasonCode.BANNED, connect=connect)
        elif verdict is LoginVerdict.BUSY:
            text = "too many logins; try again later"
            self.refuse(connection, ReasonCode.CONNECTION_RATE_EXCEEDED, text, connect=connect)
        else:
            self.refuse(connection, ReasonCode.NOT_AUTHORIZED, connect=connect)

    def _identified(self, connection: Connection, connect: Connect) -> Connect:
        """Record who the client is; return its CONNECT with the identifier of its session."""
        state = self._state
        user_name = connection.user_name = state.access.identity(connect, connection)
        if not maps_identifiers(state.settings):
            return connect
        given = connect.client_id or assigned_identifier(state)
        connection.assigned_id = "" if connect.client_id else given
        name = session_identifier(state.settings, given, user_name)
        if name.startswith(PEER_PREFIX):
            raise MqttProtocolError(
                shown(name), reason=ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, where="CONNECT"
            )
        return replace(connect, client_id=name)

    def _asks_others(self, connection: Connection, connect: Connect) -> bool:
        """Ask other nodes for the session of a client unknown here; False if there are none."""
        client_id = connect.client_id
        if not client_id or client_id in self._state.sessions:
            return False
        return self._state.network.claim(connection, connect)

    def welcome_here(self, connection: Connection) -> None:
        """Continue a CONNECT here after the other nodes were asked."""
        connect, connection.connect = connection.connect, None
        assert connect is not None
        self._welcome(connection, connect)

    def admit(self, connection: Connection, connect: Connect) -> None:
        """Accept a client that another node has authenticated and relays."""
        self._take_manner(connection, connect)
        reason = self._objection(connect)
        if connection.forwarded is not None:
            connection.user_name = connection.forwarded.user_name
        if reason is None:
            self._welcome(connection, connect)
        else:
            self.refuse(connection, reason, connect=connect)

    def give_up(self, client_id: str) -> None:
        """End a session for good: its client starts a new one at another node."""
        session = self._state.sessions.get(client_id)
        if session is not None and session.link is not None:
            self._take_over(session.link)
            session = self._state.sessions.get(client_id)
        if session is not None:
            self._lifecycle.end(session)

    def _take_manner(self, connection: Connection, connect: Connect) -> None:
        connection.version = connect.version
        connection.tells_problems = connect.properties.request_problem_information != 0
        connection.max_packet_bytes = connect.properties.maximum_packet_size or 0

    def _objection(self, connect: Connect) -> ReasonCode | None:
        """Return why a CONNECT is refused before its login is checked, or None."""
        is_old = connect.version < ProtocolVersion.V5
        if not connect.client_id and is_old and not connect.clean_start:
            return ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
        longest_s = self._state.settings.max_keep_alive_s
        if is_old and longest_s and not 0 < connect.keep_alive_s <= longest_s:
            return ReasonCode.CLIENT_IDENTIFIER_NOT_VALID  # the code that Mosquitto uses here
        if connect.client_id.startswith((PEER_PREFIX, BRIDGE_PREFIX)):
            return ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
        if maps_identifiers(self._state.settings):
            return None  # it is not known yet which session is meant
        return ReasonCode.QUOTA_EXCEEDED if self._is_one_too_many(connect) else None

    def _is_one_too_many(self, connect: Connect) -> bool:
        """Return whether this client would exceed the limit of sessions or of connections."""
        state, settings = self._state, self._state.settings
        known = state.sessions.get(connect.client_id)
        if known is None and len(state.sessions) >= settings.max_sessions:
            state.counters.refused_sessions += 1
            return True
        is_takeover = known is not None and known.link is not None
        return state.connected >= settings.max_connections and not is_takeover

    def refuse(
        self,
        connection: Connection,
        reason: ReasonCode,
        text: str = "",
        *,
        connect: Connect | None = None,
    ) -> None:
        """Send CONNACK with a failure, and close.

        MQTT 3.1.1 has return codes for five failures only; for others the connection just closes.
        """
        state = self._state
        state.counters.connects_refused += 1
        connection.was_refused = True
        state.observer.refused(connection, connect or connection.connect, reason, text)
        if connection.version >= 5:
            packet = encode_packet(Connack(False, reason, Properties(reason_string=text or None)))
            if not connection.tells_problems or not connection.fits(packet):
                packet = encode_packet(Connack(False, reason))
            if connection.fits(packet):  # [MQTT-3.1.2-24]
                state.send(connection, packet)
        elif reason in CONNACK_RETURN_CODES:
            state.send(connection, bytes((0x20, 2, 0, CONNACK_RETURN_CODES[reason])))
        state.close(connection)

    # --- an accepted client ---------------------------------------------------------------

    def _welcome(self, connection: Connection, connect: Connect) -> None:
        """Attach the connection to its session and send CONNACK.

        An older connection of the client is taken over; with Clean Start an older session ends
        first [MQTT-3.1.2-4].
        """
        state = self._state
        client_id = connect.client_id or assigned_identifier(state)
        if not self._may_have(connection, connect, state.sessions.get(client_id)):
            return
        terms = self._terms(connect)
        will = None if connect.will is None else self._will(connect.will)
        pairs = connect.properties.user_properties
        takes_position = bool(pairs) and state.settings.position_on_connect
        complaint = position_problem(pairs) if takes_position else ""
        # Everything that can refuse this CONNECT comes before this line; no state has changed yet.
        connack = self._connack(connection, client_id, connect, terms, complaint)
        old = state.sessions.get(client_id)
        if state.access.bind(connection, client_id) and old is not None:
            old.rules = UNCHECKED  # its subscriptions were granted to an earlier login
        if old is not None and old.link is not None:
            self._take_over(old.link)
            old = state.sessions.get(client_id)
        if old is not None and connect.clean_start:
            self._lifecycle.end(old)
            old = None
        ending = state.ending.get(client_id)
        if ending is not None:
            connection.task = self._welcome_after(ending, connection, connect)
            return
        checks = self.rechecks
        if old is not None and checks is not None and checks.needs(old, connection.user_name):
            work = checks.one(old, connection.user_name)
            task = self._welcome_after(work, connection, connect)
            connection.task = None if state.slices.run(task) else task
            return
        session = old or self._new_session(client_id)
        self._attach(connection, session, connect, will)
        self._set_terms(connection, session, terms)
        self._journal_session(session, is_new=old is None)
        state.counters.connects += 1
        state.send(connection, connack(old is not None))
        state.observer.connected(connection, session, is_resumed=old is not None)
        if old is not None:
            self._delivery.resume(session)
        if takes_position:
            self._positions.take_pairs(session, pairs)

    def _may_have(self, connection: Connection, connect: Connect, known: Session | None) -> bool:
        """Return whether the client may have the session of its identifier; refuse it if not."""
        is_ours = connection.forwarded is None  # another node has checked those that it relays
        if is_ours and not self._state.access.keeps(connection.user_name, connection):
            self.refuse(connection, ReasonCode.NOT_AUTHORIZED, NO_USER, connect=connect)
            return False
        if known is None or is_owner(known, connection.user_name):
            return True
        if self.rechecks is not None and self.rechecks.end_if_gone(known):
            return True
        self.refuse_other(connection, connect)
        return False

    def refuse_other(self, connection: Connection, connect: Connect) -> None:
        """Refuse a client whose identifier is that of another user's session."""
        connection.connect = None
        reason = ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
        self.refuse(connection, reason, OTHERS_SESSION, connect=connect)

    def _welcome_after(self, work: Work, connection: Connection, connect: Connect) -> Work:
        """Accept a client once all subscriptions of its earlier session are removed, or checked."""
        for _ in work:  # not `yield from`: if the client disconnects, the work must go on
            yield
        self._welcome(connection, connect)

    def _take_over(self, link: Connection) -> None:
        """Close the older connection of a client that has connected again [MQTT-3.1.4-3].

        A session without expiry ends with it, as with any other end of a connection.
        """
        if link.version >= 5:
            packet = Disconnect(ReasonCode.SESSION_TAKEN_OVER)
            self._state.send(link, encode_packet(packet))
        self._state.close(link)
        if link.session is not None:
            self._state.observer.taken_over(link, link.session)
        self._lifecycle.detach(link, with_will=True)

    def _new_session(self, client_id: str) -> Session:
        state = self._state
        session = Session(client_id, state.next_session)
        session.rules = state.rules
        state.next_session += 1
        state.sessions[client_id] = session
        return session

    def _attach(
        self,
        connection: Connection,
        session: Session,
        connect: Connect,
        will: WillMessage | None,
    ) -> None:
        properties = connect.properties
        connection.session = session
        connection.alias_limit = properties.topic_alias_maximum or 0
        connection.aliases_out = {} if connection.alias_limit else None
        connection.is_plain = not (connection.max_packet_bytes or connection.alias_limit)
        connection.permits = {} if self._state.access.is_restricted(connection) else None
        connection.method = properties.authentication_method or ""
        session.link = connection
        session.came_ms = self._state.now_ms
        session.is_onlooker = connection.is_onlooker
        is_alike = session.was_plain and connection.is_plain and session.version == connect.version
        session.version, session.was_plain = connect.version, connection.is_plain
        session.user_name = connection.user_name
        session.ends_at_ms = 0
        session.will_at_ms = 0
        self._lifecycle.forget_timer(connection)
        self._lifecycle.recall(session)
        session.will = will
        self._state.connected += 1
        self._state.presence_changed(session)
        if not is_alike:
            self._state.router.forget_session(session)

    def _terms(self, connect: Connect) -> SessionTerms:
        """Return the values that this client is granted."""
        settings, properties = self._state.settings, connect.properties
        wanted_s, keep_alive_s = properties.session_expiry_interval or 0, connect.keep_alive_s
        if connect.version < ProtocolVersion.V5:
            wanted_s = 0 if connect.clean_start else NEVER
        else:
            longest_s = settings.keep_alive_s
            is_allowed = 0 < keep_alive_s <= longest_s or not longest_s
            keep_alive_s = keep_alive_s if is_allowed else longest_s
        return SessionTerms(
            window=min(properties.receive_maximum or 65_535, settings.max_inflight),
            expiry_s=min(wanted_s, settings.session_expiry_s),
            keep_alive_s=keep_alive_s,
        )

    def _set_terms(self, connection: Connection, session: Session, terms: SessionTerms) -> None:
        session.window = terms.window
        session.expiry_s = terms.expiry_s
        connection.most_silence_ms = terms.keep_alive_s * 1500  # [MQTT-3.1.2-22]
        if terms.keep_alive_s:
            self._lifecycle.watch(connection)

    def _will(self, will: Will) -> WillMessage:
        """Return the will; refuse one that would be refused as a PUBLISH [MQTT-3.2.2-12]."""
        settings, state = self._state.settings, self._state
        if will.qos > settings.maximum_qos:
            raise _bad_will(f"QoS {will.qos}", ReasonCode.QOS_NOT_SUPPORTED)
        if will.retain and not settings.retain_available:
            raise _bad_will("RETAIN", ReasonCode.RETAIN_NOT_SUPPORTED)
        if settings.max_message_bytes and len(will.payload) > settings.max_message_bytes:
            raise _bad_will(f"{len(will.payload)} bytes", ReasonCode.PACKET_TOO_LARGE)
        properties = split_properties(will.properties)
        raw = encode_string(will.topic)
        route = state.router.find(raw)
        if route.is_forbidden or route.service in (Service.POSITION, Service.EXPLAIN):
            raise _bad_will(shown(will.topic), ReasonCode.TOPIC_NAME_INVALID)
        head = MessageHead(raw, len(will.payload), will.qos, properties.forward, will.retain)
        message = Message(head, will.payload)
        if route.needs_inspection:
            try:
                self._selective.check(route, message, properties)
            except MisuseError as problem:
                raise _bad_will(str(problem), ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR) from None
        delay_s = will.properties.will_delay_interval or 0
        expiry_s = -1 if properties.expiry_s is None else properties.expiry_s
        return WillMessage(message, delay_s, expiry_s)

    def _journal_session(self, session: Session, *, is_new: bool) -> None:
        journal, was_durable = self._state.journal, session.is_durable
        session.is_durable = session.expiry_s > 0 and journal.is_kept
        if session.is_durable or session.will is not None or was_durable:
            journal.session(session)
            if session.will is not None:
                journal.will(session, session.will)
            elif not is_new:
                journal.no_will(session.number)

    def _connack(
        self,
        connection: Connection,
        client_id: str,
        connect: Connect,
        terms: SessionTerms,
        complaint: str,
    ) -> Callable[[bool], bytes]:
        """Return a function from Session Present to the CONNACK; refuse if it cannot fit."""
        if connect.version < ProtocolVersion.V5:
            return lambda is_present: bytes((0x20, 2, is_present, 0))
        settings = self._state.settings
        wanted_expiry_s = connect.properties.session_expiry_interval or 0
        properties = Properties(
            session_expiry_interval=terms.expiry_s if terms.expiry_s != wanted_expiry_s else None,
            assigned_client_identifier=(
                connection.assigned_id or None if connect.client_id else client_id
            ),
            server_keep_alive=(
                terms.keep_alive_s if terms.keep_alive_s != connect.keep_alive_s else None
            ),
            receive_maximum=(
                settings.receive_maximum if settings.receive_maximum < 65_535 else None
            ),
            topic_alias_maximum=settings.topic_alias_maximum or None,
            maximum_packet_size=settings.max_packet_bytes,
            maximum_qos=settings.maximum_qos if settings.maximum_qos < 2 else None,
            retain_available=None if settings.retain_available else 0,
            authentication_method=connect.properties.authentication_method,
            authentication_data=connect.properties.authentication_data,
            reason_string=complaint if complaint and connection.tells_problems else None,
        )
        packet = encode_packet(Connack(False, 0, properties))
        if not connection.fits(packet) and complaint:
            properties = replace(properties, reason_string=None)
            packet = encode_packet(Connack(False, 0, properties))
        if not connection.fits(packet):
            raise MqttProtocolError(
                f"maximum packet size {connection.max_packet_bytes}",
                reason=ReasonCode.PACKET_TOO_LARGE,
                where="CONNECT",
                expected=f"at least {len(packet)}",
            )
        return lambda is_present: encode_packet(Connack(is_present, 0, properties))


def assigned_identifier(state: BrokerState) -> str:
    """Return an identifier for a client that has sent none; its session belongs to this node."""
    while True:
        identifier = f"nearcast-{state.rng.getrandbits(80):020x}"
        if state.network.is_home(identifier):
            return identifier


def _bad_will(found: str, reason: ReasonCode) -> MqttProtocolError:
    return MqttProtocolError(found, reason=reason, where="will")
