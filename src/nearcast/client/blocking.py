"""A blocking MQTT client: the commands publish and receive with it, streams collect with it."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from nearcast.model.errors import EnvironmentProblem, NearcastError, PeerProtocolError
from nearcast.mqtt import (
    NO_PROPERTIES,
    Connack,
    Connect,
    Conversation,
    Disconnect,
    FilterRequest,
    Packet,
    Pingresp,
    Properties,
    ProtocolVersion,
    Publish,
    ReasonCode,
    Suback,
    Will,
)

_MOST_UNSETTLED = 1_000
_REFUSED = 0x80
_RETURN_CODES = {
    1: "the broker does not speak this version of MQTT",
    2: "the client identifier was rejected",
    3: "the broker is not available",
    4: "wrong user name or password",
    5: "not authorised",
}


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """The broker's address and our credentials; a CA file or a certificate implies TLS."""

    host: str = "127.0.0.1"
    port: int = 1883
    version: ProtocolVersion = ProtocolVersion.V5
    client_id: str = ""
    user_name: str | None = None
    password: bytes | None = None
    keep_alive_s: int = 60
    clean_start: bool = True
    session_expiry_s: int = 0
    will: Will | None = None
    tls: bool = False
    ca_file: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    timeout_s: float = 10.0
    receive_maximum: int | None = None  # messages of QoS 1 and 2 that may wait for our answer

    @property
    def text(self) -> str:
        """The address for error messages."""
        return f"{self.host}:{self.port}"

    def connect_packet(self) -> Connect:
        """Return the CONNECT packet."""
        properties = Properties()
        if self.version >= ProtocolVersion.V5:
            properties = Properties(
                session_expiry_interval=self.session_expiry_s or None,
                receive_maximum=self.receive_maximum,
            )
        return Connect(
            self.client_id,
            self.version,
            self.clean_start,
            self.keep_alive_s,
            self.will,
            self.user_name,
            self.password,
            properties,
        )


class BlockingClient:
    """A connection to a broker; a context manager that sends DISCONNECT at its end.

    Without `acknowledges`, the caller acknowledges received messages of QoS 1 itself.
    """

    def __init__(self, target: BrokerAddress, *, acknowledges: bool = True) -> None:
        self.target = target
        self._socket = _open(target)
        self.conversation = Conversation(target.connect_packet(), acknowledges=acknowledges)
        self.conversation.answered = self._note_answer
        self.notes: list[str] = []  # reason strings of successful answers, each once
        self._refused: list[tuple[Publish, str]] = []  # publications with a failure code, and why
        self._packets: list[Packet] = []  # received, not yet handled
        self._sent_s = time.monotonic()
        try:
            self._connack = self._await_connack()
        except NearcastError:
            self._socket.close()
            raise
        self.is_resumed = self._connack.session_present
        self._note(self._connack.properties.reason_string)

    def _await_connack(self) -> Connack:
        self._flush()
        deadline = time.monotonic() + self.target.timeout_s
        while (connack := self.conversation.connack) is None:
            self._read(deadline)
        if connack.reason:
            why = _RETURN_CODES.get(connack.reason, "refused")
            if self.target.version >= ProtocolVersion.V5:
                why = connack.properties.reason_string or reason_text(connack.reason)
            raise self.connection_refused(connack.reason, why)
        return connack

    def connection_refused(self, reason: int, why: str) -> NearcastError:  # noqa: ARG002
        """Return the error for a CONNACK with a failure code."""
        return PeerProtocolError(f"the broker refused the connection: {why}")

    def connection_closed(self, why: str) -> NearcastError:
        """Return the error for a connection that the broker closed, with its reason if any."""
        return PeerProtocolError("the broker closed the connection" + (why and f": {why}"))

    def _note(self, text: str | None) -> None:
        if text and text not in self.notes:
            self.notes.append(text)

    def _note_answer(self, message: Publish, reason: int, text: str) -> None:
        if reason >= _REFUSED:
            self._refused.append((message, text or reason_text(reason)))
        elif text:
            self._note(text)
        elif reason == ReasonCode.NO_MATCHING_SUBSCRIBERS:
            self._note(f"no client is subscribed to {message.topic}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Send DISCONNECT, if the connection still works, and close it."""
        if not self.conversation.is_closed:
            self.conversation.disconnect()
            with contextlib.suppress(NearcastError):
                self._flush()
        self._socket.close()

    def drop(self) -> None:
        """Close without a DISCONNECT."""
        self._socket.close()

    def publish(self, messages: Iterable[Publish]) -> int:
        """Publish all messages and wait for all acknowledgements; return their number.

        A message that the broker refuses is an error, raised after all others are sent.
        """
        count = 0
        window = self._connack.properties.receive_maximum or 65_535  # [MQTT-3.3.4-7]
        most = min(_MOST_UNSETTLED, window)
        for message in messages:
            self.conversation.publish(message)
            self._flush()
            count += 1
            if len(self.conversation.unsettled) >= most:
                self._settle(most // 2)
        self._settle(0)
        if self._refused:
            refused, self._refused = self._refused, []
            message, why = refused[0]
            first = f"the message to {message.topic}"
            if count > 1:
                first = f"{len(refused)} of {count} messages, the first to {message.topic}"
            raise PeerProtocolError(f"the broker refused {first}: {why}")
        return count

    def _settle(self, remaining: int) -> None:
        while len(self.conversation.unsettled) > remaining:
            self._read(time.monotonic() + self.target.timeout_s)

    def subscribe(
        self, *requests: FilterRequest, properties: Properties = NO_PROPERTIES
    ) -> tuple[int, ...]:
        """Subscribe; return the granted QoS of each filter. A refused filter is an error."""
        wanted = self.conversation.subscribe(*requests, properties=properties)
        self._flush()
        deadline = time.monotonic() + self.target.timeout_s
        while True:
            for packet in list(self._packets):
                if isinstance(packet, Suback) and packet.packet_id == wanted:
                    self._packets.remove(packet)
                    _check_granted(requests, packet)
                    self._note(packet.properties.reason_string)
                    return packet.reasons
            self._read(deadline)

    def acknowledge(self, packet_ids: Iterable[int]) -> None:
        """Send PUBACK for received messages of QoS 1."""
        self.conversation.acknowledge(packet_ids)
        self._flush()

    def ping(self) -> None:
        """Send PINGREQ."""
        self.conversation.ping()
        self._flush()

    def wait_for_answer(self) -> None:
        """Ping the broker; everything that it sent before its answer is received on return."""
        self._packets = [one for one in self._packets if not isinstance(one, Pingresp)]
        self.ping()
        deadline = time.monotonic() + self.target.timeout_s
        while not any(isinstance(one, Pingresp) for one in self._packets):
            self._read(deadline)

    def read(self, deadline: float | None) -> list[Packet]:
        """Return packets that have arrived, or else arrive until the deadline; None: no limit.

        Pings when the keep-alive is due, and may return nothing then.
        """
        if not self._packets:
            self._wait(deadline)
        packets, self._packets = self._packets, []
        for place, packet in enumerate(packets):
            if isinstance(packet, Disconnect) and place:
                self._packets = packets[place:]  # for the next call
                return packets[:place]
            if isinstance(packet, Disconnect):
                raise self.connection_closed(_reason_of(packet))
        return packets

    def messages(
        self, timeout_s: float | None = None, schedule: Iterable[tuple[float, Publish]] = ()
    ) -> Iterator[Publish]:
        """Yield messages as they arrive; end `timeout_s` seconds after the call, or never.

        `schedule` lists messages to publish meanwhile: seconds from now, ascending, and the
        message.
        """
        started = time.monotonic()
        deadline = None if timeout_s is None else started + timeout_s
        upcoming = deque((started + after_s, message) for after_s, message in schedule)
        while True:
            while upcoming and upcoming[0][0] <= time.monotonic():
                self.conversation.publish(upcoming.popleft()[1])
                self._flush()
            if self._refused:
                message, why = self._refused[0]
                raise PeerProtocolError(f"the broker refused the message to {message.topic}: {why}")
            is_over = deadline is not None and time.monotonic() >= deadline
            due = [at for at in (deadline, upcoming[0][0] if upcoming else None) if at]
            if self._packets or not is_over:
                packets = self.read(min(due, default=None))
                yield from (packet for packet in packets if isinstance(packet, Publish))
            else:
                return

    def _wait(self, deadline: float | None) -> None:
        """Read once, or ping when the keep-alive is due; return at the deadline."""
        keep_s = self.target.keep_alive_s
        until = deadline
        if keep_s:
            ping_at = self._sent_s + keep_s * 0.75
            until = ping_at if deadline is None else min(deadline, ping_at)
        pause = None if until is None else max(0.0, until - time.monotonic())
        if self._has_data(pause):
            self._read(None)
        elif keep_s and time.monotonic() >= self._sent_s + keep_s * 0.75:
            self.ping()

    def _has_data(self, pause_s: float | None) -> bool:
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return True
        ready, _, _ = select.select([self._socket], [], [], pause_s)
        return bool(ready)

    def _read(self, deadline: float | None) -> None:
        if deadline is not None and not self._has_data(max(0.0, deadline - time.monotonic())):
            raise EnvironmentProblem(
                f"no answer from the broker within {self.target.timeout_s:g} s",
                where=self.target.text,
            )
        try:
            data = self._socket.recv(1 << 18)
        except OSError as problem:
            raise self._broken(problem) from None
        if not data:
            reasons = [_reason_of(one) for one in self._packets if isinstance(one, Disconnect)]
            raise self.connection_closed(reasons[0] if reasons else "")
        self._packets += self.conversation.receive(data)
        self._flush()

    def _flush(self) -> None:
        data = self.conversation.take()
        if data:
            try:
                self._socket.sendall(data)
            except OSError as problem:
                raise self._broken(problem) from None
            self._sent_s = time.monotonic()

    def _broken(self, problem: OSError) -> EnvironmentProblem:
        return EnvironmentProblem(f"the connection broke ({problem})", where=self.target.text)


def broker_figures(target: BrokerAddress) -> dict[str, str]:
    """Return the `$SYS/broker` values of a broker, by topic."""
    with BlockingClient(target) as client:
        client.subscribe(FilterRequest("$SYS/broker/#"))
        client.wait_for_answer()  # then all retained messages have arrived
        return {
            message.topic.removeprefix("$SYS/broker/"): message.payload.decode(errors="replace")
            for message in client.messages(0)
        }


def _reason_of(packet: Disconnect) -> str:
    return packet.properties.reason_string or reason_text(packet.reason)


def _open(target: BrokerAddress) -> socket.socket:
    try:
        plain = socket.create_connection((target.host, target.port), timeout=target.timeout_s)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not target.tls and target.ca_file is None and target.certificate is None:
            return plain
        return _tls_context(target).wrap_socket(plain, server_hostname=target.host)
    except OSError as problem:
        raise EnvironmentProblem(
            f"no connection ({problem})",
            where=target.text,
            todo="Is the broker running there? Try: nearcast serve",
        ) from None


def _tls_context(target: BrokerAddress) -> ssl.SSLContext:
    """Return the TLS context; raise the problem with a file before the handshake."""
    context = ssl.create_default_context(cafile=_checked_file(target.ca_file))
    if target.certificate is not None:
        files = _checked_file(target.certificate), _checked_file(target.key)
        try:
            context.load_cert_chain(str(files[0]), files[1])
        except ssl.SSLError as problem:
            raise EnvironmentProblem(
                f"certificate and key cannot be used ({problem.reason or problem})",
                where=", ".join(one for one in files if one),
            ) from None
    return context


def _checked_file(path: Path | None) -> str | None:
    """Return the path as text; raise EnvironmentProblem if the file cannot be read."""
    if path is None:
        return None
    try:
        path.read_bytes()
    except OSError as problem:
        raise EnvironmentProblem(str(problem.strerror), where=str(path)) from None
    return str(path)


def _check_granted(requests: tuple[FilterRequest, ...], answer: Suback) -> None:
    for request, reason in zip(requests, answer.reasons, strict=False):
        if reason >= 0x80:
            why = answer.properties.reason_string or reason_text(reason)
            raise PeerProtocolError(
                f"the broker refused the subscription to {request.topic_filter}: {why}"
            )


def reason_text(reason: int) -> str:
    """Return a reason code as readable text."""
    try:
        return ReasonCode(reason).name.replace("_", " ").lower()
    except ValueError:
        return f"reason code 0x{reason:02X}"
