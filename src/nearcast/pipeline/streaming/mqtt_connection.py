"""A blocking MQTT 5 connection that acknowledges only when its user says so.

The user calls `acknowledge` for QoS 1 messages that are on disk, then `ping`; the answer to the
ping shows that the broker has processed the acknowledgements.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import time
from collections import deque

from nearcast.model import MisuseError
from nearcast.model.errors import EnvironmentProblem, NearcastError
from nearcast.mqtt import (
    Connack,
    Connect,
    Disconnect,
    FilterRequest,
    Packet,
    PacketReader,
    PacketType,
    Pingreq,
    Pingresp,
    Properties,
    PublishAnswer,
    ReasonCode,
    Suback,
    Subscribe,
    encode_packet,
)
from nearcast.pipeline.streaming.addresses import LiveAddress

RECEIVE_MAXIMUM = 4_096
KEEP_ALIVE_S = 30
TIMEOUT_S = 10.0
_SUBSCRIBE_ID = 1
_RETRY_LATER = (ReasonCode.SERVER_BUSY, ReasonCode.SERVER_UNAVAILABLE)


class MqttConnection:
    """An open connection; `is_resumed` says whether the broker still had the session.

    A broker answers in order: its answer to a ping shows that it has processed everything sent
    before. `heard` is the mark of the last answered ping.

    Raises EnvironmentProblem where the broker cannot be reached or the connection breaks, and
    MisuseError where the broker refuses the connection.
    """

    def __init__(self, address: LiveAddress, client_id: str, *, session_expiry_s: int) -> None:
        self.place = address.place
        self._socket = _open(address)
        self._reader = PacketReader()
        self._early: list[Packet] = []  # received by `_await`, for the next `read`
        self._pings: deque[int] = deque()  # marks of unanswered pings
        self.heard = 0
        self._sent_s = time.monotonic()
        try:
            self.send(_introduction(address, client_id, session_expiry_s))
            connack = self._await(Connack)
            assert isinstance(connack, Connack)
            if connack.reason:
                raise _refused(connack, address)
        except NearcastError:
            self._socket.close()
            raise
        self.is_resumed = connack.session_present
        self.window = connack.properties.receive_maximum or 65_535  # QoS 1 messages in flight

    def subscribe(self, topic_filter: str) -> None:
        """Subscribe at QoS 1 to messages published from now on.

        Retained messages are not requested.
        """
        request = FilterRequest(topic_filter, 1, retain_as_published=True, retain_handling=2)
        self.send(Subscribe(_SUBSCRIBE_ID, (request,)))
        answer = self._await(Suback)
        assert isinstance(answer, Suback)
        if answer.reasons[0] >= 0x80:
            why = answer.properties.reason_string or words(answer.reasons[0])
            raise MisuseError(
                f"the broker refused the subscription to {topic_filter} ({why})", where=self.place
            )

    def read(self, wait_s: float) -> list[Packet]:
        """Return the packets that have arrived or arrive within `wait_s`; sends a ping when due."""
        early, self._early = self._early, []
        if early:
            return early
        if time.monotonic() - self._sent_s > KEEP_ALIVE_S / 2:
            self.ping(self._pings[-1] if self._pings else self.heard)
        if not self._has_data(wait_s):
            return []
        try:
            data = self._socket.recv(1 << 18)
        except OSError as problem:
            raise _broken(self.place, problem) from None
        if not data:
            raise _broken(self.place, "the broker closed it")
        packets = self._reader.feed(data)
        for packet in packets:
            if isinstance(packet, Disconnect):
                raise _broken(self.place, words(packet.reason))
            if isinstance(packet, Pingresp) and self._pings:
                self.heard = self._pings.popleft()
        return packets

    def send(self, *packets: Packet) -> None:
        """Send packets."""
        data = b"".join([encode_packet(one, self._reader.version) for one in packets])
        try:
            self._socket.sendall(data)
        except OSError as problem:
            raise _broken(self.place, problem) from None
        self._sent_s = time.monotonic()

    def acknowledge(self, packet_ids: list[int]) -> None:
        """Send a PUBACK for each of these QoS 1 messages."""
        self.send(*(PublishAnswer(PacketType.PUBACK, one) for one in packet_ids))

    def ping(self, mark: int) -> None:
        """Send a PINGREQ; `heard` becomes `mark` when it is answered. Marks never decrease."""
        self._pings.append(mark)
        self.send(Pingreq())

    def close(self) -> None:
        """Send DISCONNECT, if the connection still works, and close it."""
        with contextlib.suppress(NearcastError, OSError):
            self.send(Disconnect())
        self._socket.close()

    def drop(self) -> None:
        """Close without a DISCONNECT."""
        self._socket.close()

    def _await(self, kind: type[Packet]) -> Packet:
        """Return the first packet of a type; packets before it are kept for `read`."""
        deadline = time.monotonic() + TIMEOUT_S
        kept: list[Packet] = []
        while (left_s := deadline - time.monotonic()) > 0:
            packets = self.read(left_s)
            for place, packet in enumerate(packets):
                if isinstance(packet, kind):
                    self._early = [*kept, *packets[:place], *packets[place + 1 :]]
                    return packet
            kept += packets
        raise EnvironmentProblem(f"no answer within {TIMEOUT_S:g} s", where=self.place)

    def _has_data(self, wait_s: float) -> bool:
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return True
        return bool(select.select([self._socket], [], [], wait_s)[0])


def words(reason: int) -> str:
    """Return a reason code as readable text."""
    with contextlib.suppress(ValueError):
        return ReasonCode(reason).name.replace("_", " ").lower()
    return f"reason code 0x{reason:02X}"


def _introduction(address: LiveAddress, client_id: str, session_expiry_s: int) -> Connect:
    return Connect(
        client_id,
        clean_start=not session_expiry_s,
        keep_alive_s=KEEP_ALIVE_S,
        user_name=address.user,
        password=None if address.password is None else address.password.encode(),
        properties=Properties(
            session_expiry_interval=session_expiry_s, receive_maximum=RECEIVE_MAXIMUM
        ),
    )


def _open(address: LiveAddress) -> socket.socket:
    try:
        plain = socket.create_connection((address.host, address.port), timeout=TIMEOUT_S)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if address.scheme == "mqtt":
            return plain
        return ssl.create_default_context().wrap_socket(plain, server_hostname=address.host)
    except OSError as problem:
        raise EnvironmentProblem(
            f"no connection ({problem})", where=address.place, todo="Is the broker running there?"
        ) from None


def _refused(connack: Connack, address: LiveAddress) -> NearcastError:
    why = connack.properties.reason_string or words(connack.reason)
    found = f"the broker refused the connection ({why})"
    if connack.reason in _RETRY_LATER:
        return EnvironmentProblem(found, where=address.place)
    todo = f"Check user and password: {address.scheme}://USER:PASSWORD@{address.host}:…"
    return MisuseError(found, where=address.place, todo=todo)


def _broken(place: str, why: object) -> EnvironmentProblem:
    return EnvironmentProblem(f"the connection broke ({why})", where=place)
