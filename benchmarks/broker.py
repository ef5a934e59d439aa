"""The broker beside Mosquitto: the same load on both, alternating, in one run.

Figures are messages delivered per second of broker CPU (from `/proc/<pid>`), so that a busy
machine and the load generator's own cost do not count. The generator is one process with raw
sockets; it writes buffers that were encoded before, and answers runs of packets by slicing.

    python -m benchmarks.broker --quick
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import select
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PAYLOAD = 64
TICKS = os.sysconf("SC_CLK_TCK")
OURS, PEER, DURABLE, POWER, AMQTT = "nearcast", "mosquitto", "process", "power", "amqtt"
LOGGED = "nearcast with event log"

_SERVE = """
import sys
from nearcast.config import (Configuration, DurabilitySection, LimitsSection, ListenerSection,
    LogSection, NodeSection)
from nearcast.server import serve
mode, port, data, log = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
serve(Configuration(
    node=NodeSection(data=data),
    listener=[ListenerSection(port=port)],
    durability=DurabilitySection(mode=mode),
    limits=LimitsSection(queue=256 << 20),
    log=LogSection(events=log),
))
"""
_MOSQUITTO = """
listener {port} 127.0.0.1
allow_anonymous true
max_inflight_messages 0
max_queued_messages 0
log_dest none
"""
_AMQTT = """
import asyncio, sys
from amqtt.broker import Broker
async def main():
    broker = Broker({"listeners": {"default": {"type": "tcp", "bind": f"127.0.0.1:{sys.argv[1]}"}},
                     "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin":
                                 {"allow_anonymous": True}}})
    await broker.start()
    await asyncio.Event().wait()
asyncio.run(main())
"""


class Broker:
    """A broker process and what it has used."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.directory = tempfile.mkdtemp(prefix="nearcast-bench-")
        self.port = _free_port()
        started = time.perf_counter()
        self.process = subprocess.Popen(
            self._command(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while True:
            try:
                link(self.port, 4, "first").close()
                break
            except (OSError, EOFError):
                if self.process.poll() is not None or time.perf_counter() - started > 30:
                    message = f"{kind} does not start"
                    raise RuntimeError(message) from None
                time.sleep(0.002)
        self.start_s = time.perf_counter() - started

    def _command(self) -> list[str]:
        if self.kind in (PEER, PEER + " saving"):
            text = _MOSQUITTO.format(port=self.port)
            if self.kind != PEER:
                text += (
                    f"persistence true\npersistence_location {self.directory}/\n"
                    "autosave_on_changes true\nautosave_interval 1\n"
                )
            path = Path(self.directory) / "mosquitto.conf"
            path.write_text(text)
            return ["mosquitto", "-c", str(path)]
        if self.kind == AMQTT:
            return [sys.executable, "-c", _AMQTT, str(self.port)]
        mode = self.kind if self.kind in (DURABLE, POWER) else "off"
        log = "full" if self.kind == LOGGED else "off"
        return [sys.executable, "-c", _SERVE, mode, str(self.port), self.directory, log]

    def cpu_s(self) -> float:
        """Return the CPU time of all threads: in nanoseconds where the kernel says it so."""
        used_ns = 0
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            with contextlib.suppress(OSError):
                used_ns += int((task / "schedstat").read_text().split()[0])
        if used_ns:
            return used_ns / 1e9
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def rss_kb(self) -> int:
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(text.partition("VmRSS:")[2].split()[0])

    def close(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


@contextlib.contextmanager
def running(kind: str) -> Iterator[Broker]:
    broker = Broker(kind)
    try:
        yield broker
    finally:
        broker.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# --- the load generator ---------------------------------------------------------------------


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


def link(port: int, version: int, name: str, *, durable: bool = False) -> socket.socket:
    """Return a connected client."""
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    flags = 0 if durable else 2
    properties = b""
    if version == 5:
        properties = b"\x05\x11" + struct.pack(">I", 3600) if durable else b"\0"
    head = b"\0\4MQTT" + bytes((version, flags)) + b"\0\0" + properties
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


def measure(
    broker: Broker, load: Load, version: int, qos: int, messages: int, durable: bool
) -> float:
    """Return deliveries per second of broker CPU."""
    subscribers = []
    for number, topic_filter in enumerate(load.filters):
        sock = link(broker.port, version, f"s{number}", durable=durable)
        subscribe(sock, version, f"{topic_filter}/#", qos)
        sample = publish_packet(topic_filter, version, qos, 1)
        size: float = len(sample)
        if load.is_mixed:
            packets = [mixed_packet(topic_filter, version, n) for n in range(load.batch)]
            size = sum(map(len, packets)) / load.batch
        subscribers.append(Subscriber(sock, size, 2 + 2 + len(topic_filter), qos))
    publishers = [
        Publisher(link(broker.port, version, f"p{number}"), topic, version, qos, load)
        for number, topic in enumerate(load.publishers)
    ]
    drive(publishers, subscribers, load, messages // 10)
    before = broker.cpu_s()
    delivered = drive(publishers, subscribers, load, messages)
    used_s = max(broker.cpu_s() - before, 1 / TICKS)
    for sock in [one.sock for one in publishers] + [one.sock for one in subscribers]:
        sock.close()
    return delivered / used_s


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


def retained(broker: Broker, version: int, topics: int, newcomers: int) -> float:
    """Return retained messages per second of broker CPU."""
    sock = link(broker.port, version, "keeper")
    properties = b"\0" if version == 5 else b""
    for number in range(topics):
        body = string(f"r/{number:05d}") + properties + b"x" * PAYLOAD
        sock.sendall(framed(0x31, body))
    sock.sendall(b"\xc0\0")
    read_packet(sock)
    size = len(framed(0x31, string("r/00000") + properties + b"x" * PAYLOAD))
    clients = [link(broker.port, version, f"n{number}") for number in range(newcomers)]
    before = broker.cpu_s()
    request = framed(0x82, b"\0\1" + properties + string("#") + b"\0")
    for client in clients:
        client.sendall(request)
    for client in clients:
        read_exactly(client, 5 + len(properties))
        wanted = size * topics
        while wanted:
            wanted -= len(client.recv(min(wanted, 1 << 18)))
    used_s = max(broker.cpu_s() - before, 1 / TICKS)
    for client in [sock, *clients]:
        client.close()
    return topics * newcomers / used_s


def latency(broker: Broker, rate: int, seconds: float) -> tuple[float, float]:
    """Return the median and the 99th percentile in microseconds."""
    receiver = link(broker.port, 4, "r")
    subscribe(receiver, 4, "l", 0)
    sender = link(broker.port, 4, "s")
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
    times = times[len(times) // 10 :]
    return statistics.median(times), statistics.quantiles(times, n=100)[98]


def idle_kb(broker: Broker, connections: int) -> float:
    """Return resident kilobytes for each 1,000 idle connections."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    before = broker.rss_kb()
    clients = [link(broker.port, 4, f"idle{number}") for number in range(connections)]
    used = broker.rss_kb() - before
    clients[-1].sendall(b"\xc0\0")
    read_packet(clients[-1])
    for client in clients:
        client.close()
    return used / connections * 1000


# --- rows -------------------------------------------------------------------------------------


def versus(
    name: str,
    kinds: tuple[str, str],
    task: Callable[[Broker], float],
    target: float,
    rounds: int,
    *,
    lower_is_better: bool = False,
) -> dict[str, Any]:
    """Run a task on both, alternating, and compare the medians."""
    figures: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        for kind in kinds:
            with running(kind) as broker:
                figures[kind].append(task(broker))
    ours, peer = (statistics.median(figures[kind]) for kind in kinds)
    ratio = ours / peer
    holds = ratio <= target if lower_is_better else ratio >= target
    sign = "≤" if lower_is_better else "≥"
    return {
        "name": name,
        "ours": ours,
        "peer": peer,
        "ratio": ratio,
        "target": f"{sign} {target:g} ×",
        "holds": holds,
        "spread": {kind: [min(all_), max(all_)] for kind, all_ in figures.items()},
    }


def throughput_rows(quick: bool, rounds: int) -> Iterator[dict[str, Any]]:
    sizes = {0: 400_000, 1: 120_000, 2: 60_000}
    for load in (FAN_IN, FAN_OUT, PAIRS):
        for qos in (0, 1, 2):
            for version in (4, 5):
                messages = sizes[qos] // load.copies * (2 if load.copies > 1 else 1)
                if quick:
                    messages //= 3
                yield from _throughput(load, qos, version, messages, rounds)


def _throughput(
    load: Load, qos: int, version: int, messages: int, rounds: int
) -> Iterator[dict[str, Any]]:
    protocol = "3.1.1" if version == 4 else "5"
    title = f"{load.name}, QoS {qos}, MQTT {protocol}"
    yield versus(
        title,
        (OURS, PEER),
        lambda broker: measure(broker, load, version, qos, messages, False),
        3,
        rounds,
    )
    if qos:
        yield versus(
            f"{title}, durability process",
            (DURABLE, PEER),
            lambda broker: measure(broker, load, version, qos, messages, True),
            1,
            rounds,
        )


def other_rows(quick: bool, rounds: int) -> Iterator[dict[str, Any]]:
    for version, protocol in ((4, "3.1.1"), (5, "5")):
        yield versus(
            f"fan-in, QoS 0, MQTT {protocol}, topics and sizes change with every packet",
            (OURS, PEER),
            lambda broker, version=version: measure(  # type: ignore[misc]
                broker, MIXED, version, 0, 130_000 if quick else 400_000, False
            ),
            3,
            rounds,
        )
    messages = 20_000 if quick else 100_000
    yield versus(
        "crowd: 1,000 publishers, one packet a read, 100 subscribers",
        (OURS, PEER),
        lambda broker: measure(broker, CROWD, 4, 0, messages, False),
        1,
        rounds,
    )
    for version, protocol in ((4, "3.1.1"), (5, "5")):
        yield versus(
            f"retained to 20 newcomers on #, 5,000 topics, MQTT {protocol}",
            (OURS, PEER),
            lambda broker, version=version: retained(  # type: ignore[misc]
                broker, version, 5_000, 20
            ),
            3,
            rounds,
        )
    yield from _latency_rows(2.0 if quick else 10.0, rounds)
    count = 1_000 if quick else 10_000
    with running(OURS) as ours, running(PEER) as peer:
        used, theirs = idle_kb(ours, count), idle_kb(peer, count)
    yield {
        "name": f"kB per 1,000 idle connections ({count:,} held)",
        "ours": used,
        "peer": theirs,
        "ratio": used / theirs,
        "target": "≤ 15,000 kB",
        "holds": used <= 15_000,
    }
    starts = {}
    for kind in (OURS, PEER):
        with running(kind) as broker:
            starts[kind] = broker.start_s
    yield {
        "name": "start to first accepted connection, s",
        "ours": starts[OURS],
        "peer": starts[PEER],
        "ratio": starts[OURS] / starts[PEER],
        "target": "< 2 s",
        "holds": starts[OURS] < 2,
    }
    yield versus(
        "fan-in, QoS 0, event log full, beside ours without",
        (LOGGED, OURS),
        lambda broker: measure(broker, FAN_IN, 4, 0, 400_000, False),
        0.75,
        rounds,
    )
    few = 5_000 if quick else 20_000
    row = versus(
        "fan-in, QoS 1, durability power; peer saves on every change (wall clock)",
        (POWER, PEER + " saving"),
        lambda broker: wall_rate(broker, few),
        0,
        rounds,
    )
    yield {**row, "target": "report", "holds": None}


def _latency_rows(seconds: float, rounds: int) -> Iterator[dict[str, Any]]:
    figures: dict[str, list[tuple[float, float]]] = {OURS: [], PEER: []}
    for _ in range(rounds):
        for kind in (OURS, PEER):
            with running(kind) as broker:
                figures[kind].append(latency(broker, 500, seconds))
    for place, name in ((0, "p50"), (1, "p99")):
        ours, peer = (
            statistics.median(one[place] for one in figures[kind]) for kind in (OURS, PEER)
        )
        yield {
            "name": f"latency {name} at 500 messages/s, QoS 0, µs",
            "ours": ours,
            "peer": peer,
            "ratio": ours / peer,
            "target": "≤ 1.5 ×",
            "holds": ours <= 1.5 * peer,
        }


def wall_rate(broker: Broker, messages: int) -> float:
    """Return deliveries per second of wall clock, for loads that wait for the disk."""
    started = time.perf_counter()
    measure(broker, FAN_IN, 4, 1, messages, True)
    return messages * 1.1 / (time.perf_counter() - started)


def amqtt_rows(quick: bool) -> Iterator[dict[str, Any]]:
    """Compare with amqtt too, where it is installed; it needs small loads."""
    try:
        import amqtt  # noqa: F401
    except ImportError:
        return
    messages = 2_000 if quick else 10_000
    small = Load("pairs", PAIRS.publishers, PAIRS.filters, 1, 10)
    for qos in (0, 1):
        row = versus(
            f"pairs, QoS {qos}, MQTT 3.1.1, beside amqtt",
            (OURS, AMQTT),
            lambda broker, qos=qos: measure(  # type: ignore[misc]
                broker, small, 4, qos, messages, False
            ),
            1,
            1,
        )
        yield row


def run(quick: bool = False, only: str = "") -> dict[str, Any]:
    """Return the rows of all comparisons; `only` keeps those whose section starts so."""
    if shutil.which("mosquitto") is None:
        return {"rows": [], "skipped": "mosquitto is not installed"}
    rounds = 1 if quick else 3
    rows: list[dict[str, Any]] = []
    sections: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
        "throughput": lambda: throughput_rows(quick, rounds),
        "other": lambda: other_rows(quick, rounds),
        "amqtt": lambda: amqtt_rows(quick),
    }
    for name, section in sections.items():
        if name.startswith(only):
            rows += section()
    return {"rows": rows, "peer": "mosquitto"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    for row in run(arguments.quick, arguments.only)["rows"]:
        print(
            f"{row['name']:<70} {row['ours']:>12,.0f} {row['peer']:>12,.0f}"
            f" {row['ratio']:>6.2f} {row['target']:>10} {row['holds']}"
        )


if __name__ == "__main__":
    main()
