"""Enhanced authentication: AUTH packets before the CONNACK, and again during a session (4.12).

Read next: `connect.py` (what follows a login), `nearcast/broker/access.py` (`Exchange`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from nearcast.broker.access import Exchange, ExchangeStep, LoginVerdict
from nearcast.broker.session.connection import Connection
from nearcast.broker.session.lifecycle import Lifecycle
from nearcast.broker.state import BrokerState
from nearcast.mqtt import (
    Auth,
    Connect,
    MqttProtocolError,
    Properties,
    ProtocolVersion,
    ReasonCode,
    encode_packet,
)


@dataclass(slots=True)
class EnhancedLogin:
    """The exchange of one connection; `connect` is None for a client that is logged in already."""

    method: str
    exchange: Exchange
    connect: Connect | None


class EnhancedLogins:
    """Passes the data of CONNECT and AUTH to exchanges, and their answers to clients.

    `decide` and `refuse` are those of the CONNECT handler.
    """

    def __init__(
        self,
        state: BrokerState,
        lifecycle: Lifecycle,
        decide: Callable[[Connection, LoginVerdict], None],
        refuse: Callable[..., None],
    ) -> None:
        self._state = state
        self._lifecycle = lifecycle
        self._decide = decide
        self._refuse = refuse

    def begin(self, connection: Connection, connect: Connect, method: str) -> None:
        """Begin the exchange that a CONNECT asks for, or refuse it [MQTT-4.12.0-1]."""
        exchange = self._state.access.begin_exchange(method, connection)
        if exchange is None:
            self._refuse(connection, ReasonCode.BAD_AUTHENTICATION_METHOD, connect=connect)
            return
        connection.enhanced = EnhancedLogin(method, exchange, connect)
        self._step(connection, connection.enhanced, connect.properties.authentication_data)

    def take(self, connection: Connection, packet: Auth) -> None:
        """Handle an AUTH of a client."""
        running = connection.enhanced
        method = packet.properties.authentication_method
        if connection.session is not None and packet.reason == ReasonCode.RE_AUTHENTICATE:
            running = self._again(connection, method)
        elif running is None or packet.reason != ReasonCode.CONTINUE_AUTHENTICATION:
            raise MqttProtocolError(f"reason code 0x{packet.reason:02X}", where="AUTH")
        if method != running.method:  # [MQTT-4.12.0-5]
            raise MqttProtocolError("another method", where="AUTH", expected=running.method)
        self._step(connection, running, packet.properties.authentication_data)

    def _again(self, connection: Connection, method: str | None) -> EnhancedLogin:
        """Begin an exchange of a client that is logged in, by the same method [MQTT-4.12.1-1]."""
        if connection.enhanced is not None or not connection.method or method != connection.method:
            raise MqttProtocolError(
                "re-authentication", where="AUTH", expected="the method of CONNECT, once at a time"
            )
        exchange = self._state.access.begin_exchange(method, connection)
        if exchange is None:  # the method was removed by a reload
            raise MqttProtocolError(
                repr(method), reason=ReasonCode.BAD_AUTHENTICATION_METHOD, where="AUTH"
            )
        connection.enhanced = running = EnhancedLogin(method, exchange, None)
        return running

    def _step(self, connection: Connection, running: EnhancedLogin, data: bytes | None) -> None:
        step = running.exchange.step(data or b"")
        if step.verdict is None:
            self._send(connection, running, ReasonCode.CONTINUE_AUTHENTICATION, step)
            return
        connection.enhanced = None
        if running.connect is None:
            self._ended_again(connection, running, step)
            return
        # The CONNACK returns the last data, also where another node writes it.
        properties = replace(running.connect.properties, authentication_data=step.data or None)
        connection.connect = replace(running.connect, properties=properties)
        self._decide(connection, step.verdict)

    def _ended_again(
        self, connection: Connection, running: EnhancedLogin, step: ExchangeStep
    ) -> None:
        """Answer the end of a re-authentication; a failure ends the connection [MQTT-4.12.1-2]."""
        session = connection.session
        user = None if connection.proof is None else connection.proof.user
        is_same = session is not None and session.user_name == user
        if step.verdict is LoginVerdict.WELCOME and is_same:
            self._send(connection, running, ReasonCode.SUCCESS, step)
        else:
            self._lifecycle.disconnect(connection, ReasonCode.NOT_AUTHORIZED)

    def _send(
        self, connection: Connection, running: EnhancedLogin, reason: ReasonCode, step: ExchangeStep
    ) -> None:
        told = Properties(
            authentication_method=running.method, authentication_data=step.data or None
        )
        packet = encode_packet(Auth(reason, told), ProtocolVersion.V5)
        if not connection.fits(packet):
            raise MqttProtocolError(
                f"maximum packet size {connection.max_packet_bytes}",
                reason=ReasonCode.PACKET_TOO_LARGE,
                where="AUTH",
            )
        self._state.send(connection, packet)
