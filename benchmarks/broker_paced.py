"""Realistic load for `broker.py`: small packets at a steady rate, one packet a read.

Fleets send now and then, not in bulk. Each row sends at a fixed rate (or the next message after the
PUBACK) from many clients to many; all brokers get the same seconds by turns. All publishers are
warmed up: each has sent one message before the count begins. The `cold` rows are without that.

    python -m benchmarks.broker_paced --only pairs     # µs of broker CPU per message, both ways
"""

from __future__ import annotations

import argparse
import contextlib
import random
import select
import socket
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.broker_load import link, publish_packet, subscribe
from benchmarks.broker_processes import OURS, PEER, PLAIN, running


@dataclass(frozen=True)
class PacedLoad:
    """Who publishes where at which rate, and who listens."""

    name: str
    publishers: tuple[str, ...]  # the topic of each
    filters: tuple[str, ...]  # of each subscriber
    rate: int  # messages a second of all publishers; 0: each sends the next after its PUBACK
    qos: int
    version: int = 4
    size: int = 64
    answers: bool = False  # who receives `q/…` answers on `a/…`
    warm: bool = True


def pairs(count: int, rate: int, qos: int, version: int = 4, *, warm: bool = True) -> PacedLoad:
    topics = tuple(f"p/{number:04d}" for number in range(count))
    pace = f"{rate:,}/s" if rate else "next after PUBACK"
    protocol = "MQTT 3.1.1" if version == 4 else "MQTT 5"
    name = f"{count:,} pairs, {pace}, QoS {qos}, {protocol}{'' if warm else ', cold'}"
    return PacedLoad(name, topics, topics, rate, qos, version, warm=warm)


def crowd(rate: int) -> PacedLoad:
    publishers = tuple(f"c/{number % 100:02d}" for number in range(1000))
    filters = tuple(f"c/{number:02d}" for number in range(100))
    return PacedLoad(f"crowd of 1,000 publishers, {rate:,}/s, QoS 0", publishers, filters, rate, 0)


def fan_out(qos: int) -> PacedLoad:
    name = f"5 publishers to 1,000 subscribers, 50/s, QoS {qos}"
    return PacedLoad(name, ("f/a",) * 5, ("f/a",) * 1000, 50, qos)


def requests(qos: int) -> PacedLoad:
    asking = tuple(f"q/{number:03d}" for number in range(100))
    answered = tuple(f"a/{number:03d}" for number in range(100))
    name = f"request and response, 500/s, QoS {qos}"
    return PacedLoad(name, asking, asking + answered, 500, qos, answers=True)


def sized(size: int, rate: int, qos: int = 1) -> PacedLoad:
    topics = tuple(f"p/{number:04d}" for number in range(10))
    name = f"10 pairs, payloads of {size:,} bytes, {rate:,}/s, QoS {qos}"
    return PacedLoad(name, topics, topics, rate, qos, size=size)


class PacedClients:
    """All clients of a load, connected to one broker."""

    def __init__(self, port: int, load: PacedLoad) -> None:
        self.load = load
        self.delivered = self.settled = 0
        self._poll = select.epoll()
        self._socks: dict[int, socket.socket] = {}
        self._rests: dict[int, bytes] = {}
        self._turn = 0
        self._acked: list[int] = []
        self._large: dict[int, list[int]] = {}
        for number, topic_filter in enumerate(load.filters):
            sock = self._client(port, f"s{number}")
            subscribe(sock, load.version, topic_filter, load.qos)
        self.publishers = [
            self._client(port, f"p{number}") for number in range(len(load.publishers))
        ]
        self._packets = {
            sock.fileno(): publish_packet(topic, load.version, load.qos, 1, load.size)
            for sock, topic in zip(self.publishers, load.publishers, strict=True)
        }
        self._answerers: dict[bytes, bytes] = {}
        if load.answers:
            for topic in load.publishers:
                other = "a" + topic[1:]
                packet = publish_packet(other, load.version, load.qos, 1, load.size)
                self._answerers[topic.encode()] = packet
        if load.warm:
            for sock in self.publishers:
                sock.sendall(self._packets[sock.fileno()])
            self.drain(len(self.publishers) * self.copies)
        random.Random(1).shuffle(self.publishers)
        self.delivered = self.settled = 0

    @property
    def copies(self) -> int:
        """Deliveries of one message, its answer included."""
        load = self.load
        if load.answers:
            return 2
        return load.filters.count(load.publishers[0])

    def _client(self, port: int, name: str) -> socket.socket:
        sock = link(port, self.load.version, name)
        self._socks[sock.fileno()] = sock
        self._rests[sock.fileno()] = b""
        self._poll.register(sock.fileno(), select.EPOLLIN)
        return sock

    def run(self, seconds: float) -> int:
        """Send for so long; return the deliveries, the last ones included."""
        before, sent = self.delivered, 0
        if not self.load.rate:
            sent = self._run_after_acks(seconds)
        else:
            started = time.perf_counter()
            until = started + seconds
            publishers, count = self.publishers, len(self.publishers)
            rate = self.load.rate
            while (now := time.perf_counter()) < until:
                due = int((now - started) * rate)
                while sent < due:
                    sock = publishers[self._turn % count]
                    sock.sendall(self._packets[sock.fileno()])
                    self._turn += 1
                    sent += 1
                next_s = started + (sent + 1) / rate
                self._read(max(0.0, next_s - time.perf_counter()))
        self.drain(before + sent * self.copies)
        return self.delivered - before

    def _run_after_acks(self, seconds: float) -> int:
        until = time.perf_counter() + seconds
        sent = 0
        waiting = set(self._packets)
        self._acked = list(waiting)
        while time.perf_counter() < until:
            acked, self._acked = self._acked, []
            for number in acked:
                self._socks[number].sendall(self._packets[number])
                sent += 1
            self._read(1)
        return sent

    def drain(self, wanted: int) -> None:
        """Read until so many deliveries have come."""
        deadline = time.perf_counter() + 60
        while self.delivered < wanted:
            self._read(1)
            if time.perf_counter() > deadline:
                message = f"{self.load.name}: {self.delivered} of {wanted} after 60 s"
                raise RuntimeError(message)

    def _read(self, timeout_s: float) -> None:
        for number, _ in self._poll.poll(timeout_s):
            sock = self._socks[number]
            data = sock.recv(1 << 20)
            left = self._large.get(number)
            if left:  # amid a large payload: only its size counts
                self._amid(number, sock, data, left)
            else:
                self._take(number, sock, self._rests[number] + data)

    def _amid(self, number: int, sock: socket.socket, data: bytes, left: list[int]) -> None:
        if len(data) < left[0]:
            left[0] -= len(data)
            return
        at = left[0]
        self._large.pop(number)
        self.delivered += 1
        if left[1]:
            sock.sendall(b"\x40\x02" + left[1].to_bytes(2, "big"))
        self._take(number, sock, data[at:])

    def _take(self, number: int, sock: socket.socket, data: bytes) -> None:
        at, end = 0, len(data)
        out = b""
        while end - at >= 2:
            first, length, body = data[at], data[at + 1], at + 2
            if length > 127:
                shift, length, body = 0, 0, at + 1
                while True:
                    byte = data[body]
                    length |= (byte & 127) << shift
                    body += 1
                    shift += 7
                    if byte < 128:
                        break
            stop = body + length
            if stop > end:
                if length > 4096 and first >> 4 == 3 and end - body > 100:
                    topic_end = body + 2 + data[body + 1]
                    ack = int.from_bytes(data[topic_end : topic_end + 2], "big")
                    self._large[number] = [stop - end, ack if first & 6 == 2 else 0]
                    at = end
                break
            if first >> 4 == 3:
                topic_end = body + 2 + (data[body] << 8 | data[body + 1])
                self.delivered += 1
                if first & 6:
                    kind = b"\x40\x02" if first & 6 == 2 else b"\x50\x02"
                    out += kind + data[topic_end : topic_end + 2]
                if self._answerers:
                    out += self._answerers.get(data[body + 2 : topic_end], b"")
            elif first in {0x40, 0x70}:
                self.settled += 1
                if not self.load.rate:
                    self._acked.append(number)
            elif first == 0x50:
                out += b"\x62\x02" + data[body : body + 2]
            elif first == 0x62:
                out += b"\x70\x02" + data[body : body + 2]
            at = stop
        self._rests[number] = data[at:]
        if out:
            sock.sendall(out)

    def close(self) -> None:
        self._poll.close()
        for sock in self._socks.values():
            sock.close()


LOADS = (
    crowd(2_000),
    crowd(20_000),
    *(pairs(1000, 1_000, qos) for qos in (0, 1, 2)),
    pairs(1000, 1_000, 1, warm=False),
    *(pairs(1000, 5_000, 1, version) for version in (4, 5)),
    pairs(100, 0, 1),
    fan_out(0),
    fan_out(1),
    requests(0),
    requests(1),
    sized(1_024, 1_000),
    sized(16_384, 500),
    sized(1_000_000, 20),
)


def measured(
    load: PacedLoad, kinds: Sequence[str], rounds: int, seconds: float
) -> dict[str, list[float]]:
    """Return deliveries per second of broker CPU, a figure for each round, the brokers by turns."""
    figures: dict[str, list[float]] = {kind: [] for kind in kinds}
    with contextlib.ExitStack() as stack:
        sides = []
        for kind in kinds:
            broker = stack.enter_context(running(kind))
            clients = PacedClients(broker.port, load)
            stack.callback(clients.close)
            sides.append((kind, broker, clients))
        for _ in range(rounds):
            for kind, broker, clients in sides:
                before_s = broker.cpu_s()
                count = clients.run(seconds)
                figures[kind].append(count / (broker.cpu_s() - before_s))
    return figures


def connects(kinds: Sequence[str], rounds: int, count: int) -> dict[str, list[float]]:
    """Return CONNECTs, each followed by a DISCONNECT, per second of broker CPU."""
    figures: dict[str, list[float]] = {kind: [] for kind in kinds}
    with contextlib.ExitStack() as stack:
        brokers = [stack.enter_context(running(kind)) for kind in kinds]
        for _ in range(rounds):
            for broker in brokers:
                before_s = broker.cpu_s()
                for number in range(count):
                    sock = link(broker.port, 4, f"c{number}")
                    sock.sendall(b"\xe0\0")
                    sock.recv(1)  # until the broker has closed
                    sock.close()
                figures[broker.kind].append(count / (broker.cpu_s() - before_s))
    return figures


def main(loads: Iterable[PacedLoad] = LOADS) -> None:
    """Print µs of broker CPU per message: the compiled core, the Python modules, Mosquitto."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="loads whose name has this in it")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--kinds", nargs="*", default=[OURS, PLAIN, PEER])
    arguments = parser.parse_args()
    print(f"{'µs of broker CPU per message, medians':<48}", *arguments.kinds)
    for load in loads:
        if arguments.only in load.name:
            figures = measured(load, arguments.kinds, arguments.rounds, arguments.seconds)
            _print(load.name, figures)
    if arguments.only in "connects":
        _print("CONNECT and DISCONNECT", connects(arguments.kinds, arguments.rounds, 2_000))


def _print(name: str, figures: dict[str, list[float]]) -> None:
    costs = [1e6 / statistics.median(all_) for all_ in figures.values()]
    print(f"{name:<48}", *(f"{cost:10.1f}" for cost in costs), f"{costs[-1] / costs[0]:6.2f} ×")


if __name__ == "__main__":
    main()
