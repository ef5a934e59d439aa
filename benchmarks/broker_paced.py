"""Realistic load for `broker.py`: small packets at a steady rate, one packet a read.

Fleets send now and then, not in bulk. Each row sends at a fixed rate (or the next message after the
PUBACK) from many clients to many; all brokers get the same seconds by turns. All publishers are
warmed up: each has sent one message before the count begins. In `cold` rows what counts is the
first message of each publisher, at a broker that other publishers have warmed up.

    python -m benchmarks.broker_paced --only pairs     # µs of broker CPU per message, both ways
    python -m benchmarks.broker_paced --peer flashmq=/opt/flashmq/flashmq --kinds nearcast flashmq
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import random
import select
import socket
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks import peers
from benchmarks.broker_load import link, publish_packet, subscribe
from benchmarks.broker_processes import DURABLE, OURS, PLAIN, SETTINGS, Broker, running


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
    listener: str = "tcp"
    durable: bool = False  # the subscribers' sessions
    each: int = 1  # so many of the filters go to one subscriber
    topics: tuple[str, ...] = ()  # if there are any, messages go to these by turns


def pairs(count: int, rate: int, qos: int, version: int = 4, more: str = "") -> PacedLoad:
    """Return a load of pairs; `more` is cold, tls, ws or durable."""
    topics = tuple(f"p/{number:04d}" for number in range(count))
    pace = f"{rate:,}/s" if rate else "next after PUBACK"
    protocol = "MQTT 3.1.1" if version == 4 else "MQTT 5"
    name = f"{count:,} pairs, {pace}, QoS {qos}, {protocol}{more and ', ' + more}"
    listener = more if more in {"tls", "ws"} else "tcp"
    return PacedLoad(
        name,
        topics,
        topics,
        rate,
        qos,
        version,
        warm=more != "cold",
        listener=listener,
        durable=more == "durable",
    )


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


def many_topics(count: int, filters: int) -> PacedLoad:
    """Return a load in which every message has another topic, and each filter has a wildcard."""
    topics = [f"m/{number % filters:05d}/{number // filters}/state" for number in range(count)]
    random.Random(1).shuffle(topics)
    wanted = tuple(f"m/{number:05d}/+/state" for number in range(filters))
    publishers = tuple(f"m/{number % filters:05d}/0/state" for number in range(1000))
    name = f"{count:,} topics by turns, {filters:,} wildcard filters, 2,000/s, QoS 0"
    return PacedLoad(name, publishers, wanted, 2_000, 0, each=100, topics=tuple(topics))


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
        for number in range(0, len(load.filters), load.each):
            sock = self._client(port, f"s{number // load.each}")
            for topic_filter in load.filters[number : number + load.each]:
                subscribe(sock, load.version, topic_filter, load.qos)
        self.publishers = [
            self._client(port, f"p{number}") for number in range(len(load.publishers))
        ]
        self._packets = {
            sock.fileno(): publish_packet(topic, load.version, load.qos, 1, load.size)
            for sock, topic in zip(self.publishers, load.publishers, strict=True)
        }
        self._others = itertools.cycle(
            [publish_packet(topic, load.version, load.qos, 1, load.size) for topic in load.topics]
        )
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
        if load.topics:
            return 1
        return load.filters.count(load.publishers[0])

    def _client(self, port: int, name: str) -> socket.socket:
        load = self.load
        durable = load.durable and name.startswith("s")
        sock = link(port, load.version, name, durable=durable, kind=load.listener)
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
                    sock.sendall(self._packet(sock))
                    self._turn += 1
                    sent += 1
                next_s = started + (sent + 1) / rate
                self._read(max(0.0, next_s - time.perf_counter()))
        self.drain(before + sent * self.copies)
        return self.delivered - before

    def _packet(self, sock: socket.socket) -> bytes:
        """Return what a publisher sends next."""
        return next(self._others) if self.load.topics else self._packets[sock.fileno()]

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
    *(pairs(1000, 1_000, qos, 4, "cold") for qos in (0, 1)),
    *(pairs(1000, 5_000, 1, version) for version in (4, 5)),
    pairs(100, 0, 1),
    fan_out(0),
    fan_out(1),
    requests(0),
    requests(1),
    many_topics(100_000, 10_000),
    sized(1_024, 1_000),
    sized(16_384, 500),
    sized(1_000_000, 20),
    *(pairs(100, 3_000, 1, 4, listener) for listener in ("tls", "ws")),
)
DURABLE_LOADS = (pairs(1000, 1_000, 1), pairs(1000, 1_000, 1, 5, "durable"))
_WARM_UP = PacedLoad("warm-up", ("w/0",) * 10, ("w/0",), 1_000, 1)


def serves(kind: str, load: PacedLoad) -> bool:
    """Return whether a broker of this kind can do what the load needs."""
    if kind in SETTINGS or kind.startswith("/"):
        return True
    peer = peers.declared(kind)
    has_protocol = load.version in peer.versions and load.listener in peer.listeners
    return has_protocol and (peer.has_wildcards or not load.topics)


def measured(
    load: PacedLoad, kinds: Sequence[str], rounds: int, seconds: float
) -> dict[str, list[float]]:
    """Return deliveries per second of broker CPU, a figure for each round, the brokers by turns.

    A peer that does not manage the load is reported and has no figures; ours has to.
    """
    figures: dict[str, list[float]] = {kind: [] for kind in kinds if serves(kind, load)}
    if not load.warm:
        for _ in range(rounds):
            for kind in list(figures):
                with _giving_up(kind, load, figures), running(kind, load.listener) as broker:
                    figures[kind].append(_cold(broker, load))
        return figures
    with contextlib.ExitStack() as stack:
        sides = []
        for kind in list(figures):
            with _giving_up(kind, load, figures):
                broker = stack.enter_context(running(kind, load.listener))
                clients = PacedClients(broker.port, load)
                stack.callback(clients.close)
                sides.append((kind, broker, clients))
        for _ in range(rounds):
            for kind, broker, clients in sides:
                if kind in figures:
                    with _giving_up(kind, load, figures):
                        figures[kind].append(_rate(broker, clients, seconds))
    return figures


def _rate(broker: Broker, clients: PacedClients, seconds: float) -> float:
    before_s = broker.cpu_s()
    count = clients.run(seconds)
    return count / (broker.cpu_s() - before_s)


def _cold(broker: Broker, load: PacedLoad) -> float:
    """Return the figure of the first message of each publisher."""
    others = PacedClients(broker.port, _WARM_UP)
    others.run(0.3)
    clients = PacedClients(broker.port, load)
    try:
        return _rate(broker, clients, len(load.publishers) / load.rate)
    finally:
        others.close()
        clients.close()


@contextlib.contextmanager
def _giving_up(kind: str, load: PacedLoad, figures: dict[str, list[float]]) -> Iterator[None]:
    """Leave out a peer that refuses or does not finish."""
    try:
        yield
    except (OSError, EOFError, RuntimeError) as problem:
        if kind in SETTINGS:
            raise
        print(f"{kind} is left out of: {load.name} ({problem!r})", file=sys.stderr)
        figures.pop(kind, None)


def connects(kinds: Sequence[str], rounds: int, count: int) -> dict[str, list[float]]:
    """Return CONNECTs, each followed by a DISCONNECT, per second of broker CPU."""
    figures: dict[str, list[float]] = {kind: [] for kind in kinds}
    with contextlib.ExitStack() as stack:
        brokers = [stack.enter_context(running(kind)) for kind in kinds if kind != peers.FLOOR]
        for _ in range(rounds):
            for broker in brokers:
                before_s = broker.cpu_s()
                for number in range(count):
                    sock = link(broker.port, 4, f"c{number}")
                    sock.sendall(b"\xe0\0")
                    with contextlib.suppress(ConnectionError):
                        sock.recv(1)  # until the broker has closed
                    sock.close()
                figures[broker.kind].append(count / (broker.cpu_s() - before_s))
    return figures


def main(loads: Iterable[PacedLoad] = LOADS) -> None:
    """Print µs of broker CPU per message, and after each peer's the ratio to ours."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="loads whose name has this in it")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    peers.add_options(parser)
    given = parser.parse_args()
    kinds = peers.chosen(given, [OURS, PLAIN])
    print(f"{'µs of broker CPU per message, medians':<52}", *(f"{one:>18}" for one in kinds))
    for load in loads:
        if given.only in load.name:
            _print(load.name, kinds, measured(load, kinds, given.rounds, given.seconds))
    for load in DURABLE_LOADS:
        if given.only in f"{load.name}, durability process":
            figures = measured(load, [OURS, DURABLE], given.rounds, given.seconds)
            _print(f"{load.name}, off and process", [OURS, DURABLE], figures)
    if given.only in "CONNECT and DISCONNECT":
        _print("CONNECT and DISCONNECT", kinds, connects(kinds, given.rounds, 2_000))


def _print(name: str, kinds: Sequence[str], figures: dict[str, list[float]]) -> None:
    costs = {kind: 1e6 / statistics.median(all_) for kind, all_ in figures.items() if all_}
    ours = costs.get(kinds[0], 0.0)
    cells = (
        f"{costs[kind]:10.1f} {costs[kind] / ours:5.2f} ×" if kind in costs and ours else "–"
        for kind in kinds
    )
    print(f"{name:<52}", *(f"{cell:>18}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
