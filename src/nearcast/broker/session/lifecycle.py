"""The end of connections and sessions: disconnects, wills, expiry, keep-alive."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace

from nearcast.broker.event_log_hooks import note_subscription
from nearcast.broker.publish.delivery import Delivery
from nearcast.broker.publish.message import Message
from nearcast.broker.session.connection import Connection
from nearcast.broker.session.session import Session, WillMessage
from nearcast.broker.slices import Work
from nearcast.broker.state import BrokerState
from nearcast.mqtt import Disconnect, MqttProtocolError, ReasonCode, encode_packet
from nearcast.mqtt.packets import ProtocolVersion
from nearcast.mqtt.properties import NO_PROPERTIES, Properties

Publisher = Callable[[Session, Message, bool], None]


class Lifecycle:
    """Ends connections and sessions, and publishes the wills that are due.

    `publish_will` is set after construction: the publish handler depends on this class.
    """

    def __init__(self, state: BrokerState, delivery: Delivery) -> None:
        self._state = state
        self._delivery = delivery
        self.publish_will: Publisher = lambda _session, _message, _retain: None
        self.is_restoring = False  # True: a will that cannot be published raises

    # --- connections ----------------------------------------------------------------------

    def watch(self, connection: Connection) -> None:
        """Start the keep-alive timer of a connection."""
        self._await(
            connection, connection.last_seen_ms + connection.most_silence_ms, self._check_alive
        )

    def _await(
        self, connection: Connection, instant_ms: int, check: Callable[[Connection], None]
    ) -> None:
        """Set the only timer of a connection, in place of an earlier one."""
        timers = self._state.timers
        timers.cancel(connection.timer)
        connection.timer = timers.at(instant_ms, check, connection)

    def forget_timer(self, connection: Connection) -> None:
        """Cancel the timer of a connection: a timer would keep it in memory."""
        self._state.timers.cancel(connection.timer)
        connection.timer = None

    def recall(self, session: Session) -> None:
        """Cancel the timers of a session whose client is back, or that has ended."""
        timers = self._state.timers
        timers.cancel(session.expiry_timer)
        timers.cancel(session.will_timer)
        session.expiry_timer = session.will_timer = None

    def _check_alive(self, connection: Connection) -> None:
        if not connection.is_open or connection.is_closing:
            return
        if connection.last_seen_ms + connection.most_silence_ms > self._state.now_ms:
            self.watch(connection)
        else:
            self.disconnect(connection, ReasonCode.KEEP_ALIVE_TIMEOUT)

    def expect_connect(self, connection: Connection, since_ms: int) -> None:
        """Close the connection unless it logs in in time; `since_ms` is when it was accepted."""
        timeout_ms = self._state.settings.connect_timeout_ms
        self._await(connection, since_ms + timeout_ms, self._check_connected)

    def _check_connected(self, connection: Connection) -> None:
        if connection.is_open and connection.session is None and connection.relay is None:
            connection.is_late = True
            connection.loss = "no login in time"
            self._state.close(connection)

    def disconnect(
        self,
        connection: Connection,
        reason: ReasonCode,
        text: str = "",
        *,
        server_reference: str | None = None,
    ) -> None:
        """Close a connection and publish its will; MQTT 5 clients get DISCONNECT with a reason."""
        if connection.session is not None and connection.version >= ProtocolVersion.V5:
            tells = text and connection.tells_problems
            told = NO_PROPERTIES
            if server_reference is not None:
                told = Properties(server_reference=server_reference)
            properties = replace(told, reason_string=text) if tells else told
            packet = encode_packet(Disconnect(reason, properties))
            if not connection.fits(packet):
                packet = encode_packet(Disconnect(reason, told))
            if connection.fits(packet):
                self._state.send(connection, packet)
        self._state.close(connection)
        if connection.session is not None and connection.session.link is connection:
            self._state.observer.disconnected(connection, connection.session, reason, text)
        self.detach(connection, with_will=True)

    def dismiss(self, session: Session, text: str) -> None:
        """Disconnect a client whose user is gone, and end its session without its will."""
        session.will = None
        if session.link is not None:
            self.disconnect(session.link, ReasonCode.NOT_AUTHORIZED, text)
        if not session.is_over:
            self.end(session)

    def detach(self, connection: Connection, *, with_will: bool) -> None:
        """Separate a connection from its session, which lives on for its expiry interval."""
        session = connection.session
        connection.is_open = False
        self.forget_timer(connection)
        if session is None or session.link is not connection:
            return
        session.link = None
        self._state.connected -= 1
        self._state.presence_changed(session)
        self._state.deferral.disconnected(session, is_kept=bool(session.expiry_s))
        will = session.will
        if not with_will:  # [MQTT-3.14.4-3]
            will = session.will = None
        if not session.expiry_s:
            self.end(session)
            return
        delay_s = 0 if will is None else min(will.delay_s, session.expiry_s)
        self._leave(session, will, delay_s)

    def _leave(self, session: Session, will: WillMessage | None, delay_s: int) -> None:
        """Start the timers of a session without a connection, and journal it."""
        state = self._state
        session.ends_at_ms = state.now_ms + session.expiry_s * 1000
        if session.expiry_s:
            self._expect_end(session)
        if will is not None:
            session.will_at_ms = state.now_ms + delay_s * 1000
            if session.will_at_ms <= state.now_ms:
                self._execute_will(session)
            else:
                self._expect_will(session)
        journal = state.journal
        if session.is_durable or session.will is not None:
            journal.session(session)
            if session.is_durable:
                journal.position(session)
            if session.will is None:
                journal.no_will(session.number)
            else:
                journal.will(session, session.will)

    def _expect_end(self, session: Session) -> None:
        timers = self._state.timers
        timers.cancel(session.expiry_timer)
        session.expiry_timer = timers.at(session.ends_at_ms, self._check_expired, session)

    def _expect_will(self, session: Session) -> None:
        timers = self._state.timers
        timers.cancel(session.will_timer)
        session.will_timer = timers.at(max(1, session.will_at_ms), self._check_will, session)

    # --- sessions -------------------------------------------------------------------------

    def _check_expired(self, session: Session) -> None:
        is_current = self._state.sessions.get(session.client_id) is session
        if is_current and session.link is None and session.ends_at_ms <= self._state.now_ms:
            self._state.counters.sessions_expired += 1
            self.end(session)

    def _check_will(self, session: Session) -> None:
        if session.link is None and 0 < session.will_at_ms <= self._state.now_ms:
            self._execute_will(session)

    def _execute_will(self, session: Session) -> None:
        will = session.will
        session.will = None
        session.will_at_ms = 0
        if will is None:
            return
        message, retain = will.message.variant(retain=False), will.message.head.retain
        if will.expiry_s >= 0:
            message.expires_at_ms = self._state.now_ms + max(1, will.expiry_s * 1000)
        self._state.journal.no_will(session.number)
        try:
            self.publish_will(session, message, retain)
        except Exception as error:
            if self.is_restoring:
                raise  # the will is set aside, with its record
            if isinstance(error, MqttProtocolError):  # journaled under other settings
                self._state.counters.dropped_invalid += 1
            else:
                self._state.failures.take("publishing a will", error)

    def end(self, session: Session) -> None:
        """End a session: publish its will, which is due now at the latest; remove all its state."""
        self.recall(session)
        self._execute_will(session)
        state = self._state
        if state.sessions.get(session.client_id) is session:
            del state.sessions[session.client_id]
        state.journal.ended(session.number)
        session.is_durable, session.is_over = False, True
        work = self._dissolve(session)
        if session.is_peer:
            deque(work, maxlen=0)
        elif not state.slices.run(work):
            state.ending[session.client_id] = work
            state.slices.backlog.append(work)

    def _dissolve(self, session: Session) -> Work:
        """Remove the subscriptions and messages of a session, in slices.

        A client of the same identifier is accepted only once this is done.
        """
        state = self._state
        for subscription in list(session.subscriptions.values()):
            state.deferral.unsubscribed(subscription)
            state.remove_subscription(subscription)
            note_subscription(state, subscription, 0, is_added=False)
            yield
        session.subscriptions.clear()
        yield from self._delivery.drop_all(session)
        state.ending.pop(session.client_id, None)

    def restore(self, session: Session, *, was_connected: bool) -> None:
        """Start the timers of a session restored from the journal."""
        if was_connected:
            if not session.expiry_s:
                self.end(session)
            else:
                will = session.will
                delay_s = 0 if will is None else min(will.delay_s, session.expiry_s)
                self._leave(session, will, delay_s)
            return
        self._expect_end(session)
        if session.will is not None:
            self._expect_will(session)
