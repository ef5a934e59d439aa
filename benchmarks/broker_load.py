"""The load generator of `broker.py`: raw sockets, one process, buffers encoded before.

It answers runs of packets by slicing, so that it is seldom what is waited for.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from dataclasses import dataclass

from benchmarks.broker_transports import TRANSPORTS

PAYLOAD = 64


def string(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()


def framed(first: int, body: bytes) -> bytes:
    length, size = b"", len(body)
    while True:
        low, size = size & 0x7F, size >> 7
        length += bytes((low | 0x80 if size else low,))
        if not size:
            return bytes((first,)) + length + body


def read_exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = sock.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def read_packet(sock: socket.socket) -> tuple[int, bytes]:
    first = read_exactly(sock, 1)[0]
    length = shift = 0
    while True:
        byte = read_exactly(sock, 1)[0]
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return first, read_exactly(sock, length)


def link(
    port: int,
    version: int,
    name: str,
    *,
    durable: bool = False,
    kind: str = "tcp",
    source: str = "127.0.0.1",
    keep_alive_s: int = 0,
) -> socket.socket:
    """Return a connected client; `kind` is that of the listener."""
    plain = socket.create_connection(("127.0.0.1", port), source_address=(source, 0))
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock: socket.socket = TRANSPORTS[kind](plain)
    flags = 0 if durable else 2
    properties = b""
    if version == 5:
        properties = b"\x05\x11" + struct.pack(">I", 3600) if durable else b"\0"
    head = b"\0\4MQTT" + bytes((version, flags)) + struct.pack(">H", keep_alive_s) + properties
    sock.sendall(framed(0x10, head + string(name)))
    first, body = read_packet(sock)
    if first != 0x20 or body[1]:
        raise OSError("refused")
    return sock


def subscribe(sock: socket.socket, version: int, topic_filter: str, qos: int) -> None:
    properties = b"\0" if version == 5 else b""
    sock.sendall(framed(0x82, b"\0\1" + properties + string(topic_filter) + bytes((qos,))))
    while read_packet(sock)[0] != 0x90:
        pass


def publish_packet(
    topic: str, version: int, qos: int, packet_id: int, size: int = PAYLOAD
) -> bytes:
    middle = struct.pack(">H", packet_id) if qos else b""
    properties = b"\0" if version == 5 else b""
    return framed(0x30 | qos << 1, string(topic) + middle + properties + b"x" * size)


def mixed_packet(topic: str, version: int, number: int) -> bytes:
    """Return a QoS 0 packet whose topic and size differ from those of its neighbours."""
    return publish_packet(f"{topic}/{number * 7 % 20:02d}", version, 0, 0, 40 + number * 13 % 50)


def round_trips(sender_port: int, receiver_port: int, rate: int, seconds: float) -> list[float]:
    """Return the times from publication to delivery in microseconds, the first tenth left out."""
    receiver = link(receiver_port, 4, "r")
    subscribe(receiver, 4, "l", 0)
    sender = link(sender_port, 4, "s")
    packet = publish_packet("l", 4, 0, 0)
    times: list[float] = []
    due = time.perf_counter()
    for _ in range(int(rate * seconds)):
        due += 1 / rate
        time.sleep(max(0.0, due - time.perf_counter()))
        sent = time.perf_counter()
        sender.sendall(packet)
        read_exactly(receiver, len(packet))
        times.append((time.perf_counter() - sent) * 1e6)
    receiver.close()
    sender.close()
    return times[len(times) // 10 :]


class Publisher:
    """Sends prepared batches; `settled` counts messages whose exchange is over."""

    def __init__(self, sock: socket.socket, topic: str, version: int, qos: int, load: Load) -> None:
        batch = load.batch
        self.sock = sock
        self.qos = qos
        self.batch = batch
        self.sent = self.settled = 0
        self._rest = b""
        packets = [publish_packet(topic, version, qos, n + 1) for n in range(batch)]
        if load.is_mixed:
            packets = [mixed_packet(topic, version, n) for n in range(batch)]
        self._buffers = [b"".join(packets)]
        if qos:
            again = [publish_packet(topic, version, qos, n + 1 + batch) for n in range(batch)]
            self._buffers.append(b"".join(again))

    def send(self) -> None:
        self.sock.sendall(self._buffers[self.sent // self.batch % len(self._buffers)])
        self.sent += self.batch
        if not self.qos:
            self.settled = self.sent

    def read(self) -> None:
        data = self._rest + self.sock.recv(1 << 18)
        whole = len(data) // 4 * 4
        data, self._rest = data[:whole], data[whole:]
        kinds = data[0::4]
        done = b"\x40" if self.qos == 1 else b"\x70"
        self.settled += kinds.count(done)
        if self.qos == 2:
            released = kinds.count(b"\x50")
            if released == len(kinds):
                answer = bytearray(data)
                answer[0::4] = b"\x62" * released
                self.sock.sendall(answer)
            elif released:
                self.sock.sendall(
                    b"".join(
                        b"\x62" + data[at + 1 : at + 4]
                        for at in range(0, whole, 4)
                        if data[at] == 0x50
                    )
                )


class Subscriber:
    """Counts messages and answers them."""

    def __init__(self, sock: socket.socket, size: float, id_at: int, qos: int) -> None:
        self.sock = sock
        self.size = int(size)
        self._average = size
        self._bytes = 0
        self.id_at = id_at
        self.qos = qos
        self.received = 0
        self._rest = b""

    def read(self) -> None:
        data = self.sock.recv(1 << 18)
        if not self.qos:
            self._bytes += len(data)
            self.received = int(self._bytes / self._average + 1e-6)
            return
        if self._rest:
            data = self._rest + data
        if self.qos == 2:
            self._read_mixed(data)
            return
        count = len(data) // self.size
        whole = count * self.size
        self._rest = data[whole:]
        self.received += count
        if count:
            self.sock.sendall(self._answers(0x40, data[:whole], count))

    def _answers(self, first: int, data: bytes, count: int) -> bytearray:
        answers = bytearray(4 * count)
        answers[0::4] = bytes((first,)) * count
        answers[1::4] = b"\2" * count
        answers[2::4] = data[self.id_at :: self.size]
        answers[3::4] = data[self.id_at + 1 :: self.size]
        return answers

    def _read_mixed(self, data: bytes) -> None:
        out: list[bytes] = []
        position, end, size, id_at = 0, len(data), self.size, self.id_at
        while position < end:
            if data[position] == 0x62:
                if end - position < 4:
                    break
                out.append(b"\x70" + data[position + 1 : position + 4])
                position += 4
            else:
                if end - position < size:
                    break
                self.received += 1
                out.append(b"\x50\x02" + data[position + id_at : position + id_at + 2])
                position += size
        self._rest = data[position:]
        if out:
            self.sock.sendall(b"".join(out))


@dataclass(frozen=True)
class Load:
    """Who publishes where and who listens where."""

    name: str
    publishers: list[str]
    filters: list[str]
    copies: int  # deliveries of one message
    batch: int = 200
    is_mixed: bool = False  # topics and sizes change from packet to packet; QoS 0 only


FAN_IN = Load("fan-in", ["in"] * 10, ["in"], 1)
FAN_OUT = Load("fan-out", ["out"], ["out"] * 10, 10)
PAIRS = Load("pairs", [f"p/{n}" for n in range(10)], [f"p/{n}" for n in range(10)], 1)
MIXED = Load("mixed", ["m"] * 10, ["m"], 1, is_mixed=True)
CROWD = Load(
    "crowd", [f"c/{n % 100:02d}" for n in range(1000)], [f"c/{n:02d}" for n in range(100)], 1, 1
)


class Clients:
    """All clients of a load, connected to one broker; `run` can be called again and again."""

    def __init__(self, port: int, load: Load, version: int, qos: int, *, durable: bool) -> None:
        self.load = load
        self.subscribers: list[Subscriber] = []
        for number, topic_filter in enumerate(load.filters):
            sock = link(port, version, f"s{number}", durable=durable)
            subscribe(sock, version, f"{topic_filter}/#", qos)
            size: float = len(publish_packet(topic_filter, version, qos, 1))
            if load.is_mixed:
                packets = [mixed_packet(topic_filter, version, n) for n in range(load.batch)]
                size = sum(map(len, packets)) / load.batch
            self.subscribers.append(Subscriber(sock, size, 2 + 2 + len(topic_filter), qos))
        self.publishers = [
            Publisher(link(port, version, f"p{number}"), topic, version, qos, load)
            for number, topic in enumerate(load.publishers)
        ]

    def run(self, messages: int) -> int:
        """Publish so many; return the deliveries."""
        return drive(self.publishers, self.subscribers, self.load, messages)

    def close(self) -> None:
        socks = [one.sock for one in self.publishers] + [one.sock for one in self.subscribers]
        for sock in socks:
            sock.close()


def drive(
    publishers: list[Publisher], subscribers: list[Subscriber], load: Load, messages: int
) -> int:
    """Send `messages` in all, two batches ahead at most; return the deliveries."""
    poll = select.epoll()
    everybody: list[Publisher | Subscriber] = [*publishers, *subscribers]
    by_number = {one.sock.fileno(): one for one in everybody}
    for number in by_number:
        poll.register(number, select.EPOLLIN)
    received = sum(one.received for one in subscribers)
    start = received
    sent = 0
    window = 2 * load.batch * len(publishers) if load.batch > 1 else len(publishers)
    deadline = time.perf_counter() + 120
    while received - start < messages * load.copies or any(
        one.settled < one.sent for one in publishers
    ):
        if sent < messages and sent - (
            received - start
        ) // load.copies <= window - load.batch * len(publishers):
            for one in publishers:
                if one.sent - one.settled <= one.batch or not one.qos:
                    one.send()
                    sent += one.batch
        for number, _ in poll.poll(1):
            by_number[number].read()
        received = sum(one.received for one in subscribers)
        if time.perf_counter() > deadline:
            message = f"{load.name}: {received - start} of {messages * load.copies} after 120 s"
            raise RuntimeError(message)
        messages = max(messages, sent)
    poll.close()
    return received - start
