"""A blocking client for the commands: publish, receive, read a broker's `$SYS` metrics."""

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
from types import TracebackType
from typing import Self

from nearcast.model.errors import EnvironmentProblem, PeerProtocolError
from nearcast.mqtt import (
    NO_PROPERTIES,
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
    """The broker's address and our credentials; a CA file or a certificate means TLS."""

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
    ca_file: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    timeout_s: float = 10.0

    def connect_packet(self) -> Connect:
        """Return the CONNECT packet."""
        properties = Properties()
        if self.version >= ProtocolVersion.V5 and self.session_expiry_s:
            properties = Properties(session_expiry_interval=self.session_expiry_s)
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
    """A connection to a broker; a context manager that sends DISCONNECT at its end."""

    def __init__(self, target: BrokerAddress) -> None:
        self.target = target
        self._socket = _open(target)
        self.conversation = Conversation(target.connect_packet())
        self.conversation.answered = self._note_answer
        self.notes: list[str] = []  # reason strings of successful answers, each once
        self._refused: list[tuple[Publish, str]] = []  # publications with a failure code, and why
        self._packets: list[Packet] = []  # received, not yet handled
        self._heard_s = self._sent_s = time.monotonic()
        self._flush()
        deadline = time.monotonic() + target.timeout_s
        while self.conversation.connack is None:
            self._read(deadline)
        self._check_welcome()

    def _check_welcome(self) -> None:
        connack = self.conversation.connack
        assert connack is not None
        if connack.reason:
            why = _RETURN_CODES.get(connack.reason, "refused")
            if self.target.version >= ProtocolVersion.V5:
                why = connack.properties.reason_string or _words(connack.reason)
            self._socket.close()
            raise PeerProtocolError(f"the broker refused the connection: {why}")
        self._note(connack.properties.reason_string)

    def _note(self, text: str | None) -> None:
        if text and text not in self.notes:
            self.notes.append(text)

    def _note_answer(self, message: Publish, reason: int, text: str) -> None:
        if reason >= _REFUSED:
            self._refused.append((message, text or _words(reason)))
        elif text:
            self._note(text)
        elif reason == ReasonCode.NO_MATCHING_SUBSCRIBERS:
            self._note(f"no client is subscribed to {message.topic}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _problem: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if not self.conversation.is_closed:
            self.conversation.disconnect()
            with contextlib.suppress(OSError):
                self._flush()
        self._socket.close()

    def publish(self, messages: Iterable[Publish]) -> int:
        """Publish all messages and wait for all acknowledgements; return their number.

        A message that the broker refuses is an error, raised after all others are sent.
        """
        count = 0
        for message in messages:
            self.conversation.publish(message)
            self._flush()
            count += 1
            if len(self.conversation.unsettled) >= _MOST_UNSETTLED:
                self._settle(_MOST_UNSETTLED // 2)
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

    def wait_for_answer(self) -> None:
        """Ping the broker; everything that it sent before its answer is received on return."""
        self._packets = [one for one in self._packets if not isinstance(one, Pingresp)]
        self.conversation.ping()
        self._flush()
        deadline = time.monotonic() + self.target.timeout_s
        while not any(isinstance(one, Pingresp) for one in self._packets):
            self._read(deadline)

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
            packets, self._packets = self._packets, []
            for packet in packets:
                if isinstance(packet, Publish):
                    yield packet
                elif isinstance(packet, Disconnect):
                    raise _closed_by(packet)
            if deadline is not None and time.monotonic() >= deadline:
                return
            due = [one for one in (deadline, upcoming[0][0] if upcoming else None) if one]
            self._wait(min(due, default=None))

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
            self.conversation.ping()
            self._flush()

    def _has_data(self, pause_s: float | None) -> bool:
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return True
        ready, _, _ = select.select([self._socket], [], [], pause_s)
        return bool(ready)

    def _read(self, deadline: float | None) -> None:
        if deadline is not None and not self._has_data(max(0.0, deadline - time.monotonic())):
            raise EnvironmentProblem(
                f"no answer from the broker within {self.target.timeout_s:g} s",
                where=f"{self.target.host}:{self.target.port}",
            )
        try:
            data = self._socket.recv(1 << 16)
        except OSError as problem:
            raise EnvironmentProblem(f"the connection broke ({problem})") from None
        if not data:
            told = [one for one in self._packets if isinstance(one, Disconnect)]
            raise _closed_by(told[0] if told else None)
        self._packets += self.conversation.receive(data)
        self._flush()

    def _flush(self) -> None:
        data = self.conversation.take()
        if data:
            self._socket.sendall(data)
            self._sent_s = time.monotonic()


def broker_figures(target: BrokerAddress) -> dict[str, str]:
    """Return the `$SYS/broker` values of a broker, by topic."""
    with BlockingClient(target) as client:
        client.subscribe(FilterRequest("$SYS/broker/#"))
        client.wait_for_answer()  # then all retained messages have arrived
        return {
            message.topic.removeprefix("$SYS/broker/"): message.payload.decode(errors="replace")
            for message in client.messages(0)
        }


def _closed_by(packet: Disconnect | None) -> PeerProtocolError:
    """Return the error for a connection closed by the broker, with its reason."""
    if packet is None:
        return PeerProtocolError("the broker closed the connection")
    why = packet.properties.reason_string or _words(packet.reason)
    return PeerProtocolError(f"the broker closed the connection: {why}")


def _open(target: BrokerAddress) -> socket.socket:
    try:
        plain = socket.create_connection((target.host, target.port), timeout=target.timeout_s)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if target.ca_file is None and target.certificate is None:
            return plain
        return _tls_context(target).wrap_socket(plain, server_hostname=target.host)
    except OSError as problem:
        raise EnvironmentProblem(
            f"no connection ({problem})",
            where=f"{target.host}:{target.port}",
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
            why = answer.properties.reason_string or _words(reason)
            raise PeerProtocolError(
                f"the broker refused the subscription to {request.topic_filter}: {why}"
            )


def _words(reason: int) -> str:
    try:
        return ReasonCode(reason).name.replace("_", " ").lower()
    except ValueError:
        return f"reason code 0x{reason:02X}"
