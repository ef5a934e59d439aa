"""How long a bystander's PINGREQ waits while another client floods the broker.

    python benchmarks/fairness.py [--seconds 5] [--only pings,positions]

Each flood runs against a fresh broker in a process of its own; a bystander sends a PINGREQ every
10 ms and waits for the answer. The table has the time that passed (`wall`), and the CPU time that
the broker's process spent meanwhile (`cpu`): the latter hardly depends on what else the machine
does. `mem` is how much the broker's memory grew during the flood.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from nearcast.mqtt import (
    Connect,
    FilterRequest,
    PacketReader,
    Properties,
    ProtocolVersion,
    Publish,
    Subscribe,
    Unsubscribe,
    encode_packet,
)

PINGREQ, PINGRESP = b"\xc0\0", b"\xd0\0"
CONFIGURATION = """
[node]
data = "{data}"
[[listener]]
port = 0
[[listener]]
kind = "ws"
port = 0
[[space]]
name = "city"
topics = "city/#"
longitude = "lon"
latitude = "lat"
[space.attributes]
lon = {{ low = -180, high = 180 }}
lat = {{ low = -90, high = 90 }}
price = {{ low = 0, high = 1000 }}
"""
RETAINED_TOPICS = 10_000
MASK = b"\x01\x02\x03\x04"
Ports = dict[str, int]


@dataclass(frozen=True, slots=True)
class Row:
    """What a bystander saw during one flood; milliseconds and megabytes."""

    flood: str
    pings: int
    wall_ms: list[float]
    cpu_ms: list[float]
    grown_mb: float

    def text(self) -> str:
        """Return a line of the table."""
        wall = " ".join(f"{one:8.1f}" for one in quantiles(self.wall_ms))
        cpu = " ".join(f"{one:8.1f}" for one in quantiles(self.cpu_ms))
        return f"{self.flood:<22} {self.pings:>6} {wall}  {cpu} {self.grown_mb:8.1f}"


def quantiles(values: list[float]) -> tuple[float, float, float]:
    """Return median, 99th percentile and maximum."""
    ordered = sorted(values)
    return statistics.median(ordered), ordered[int(0.99 * (len(ordered) - 1))], ordered[-1]


# --- the broker ---------------------------------------------------------------------------


@contextlib.contextmanager
def broker() -> Iterator[tuple[int, Ports]]:
    """Run a broker; yield its process id and its ports by kind."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "nearcast.toml"
        path.write_text(CONFIGURATION.format(data=Path(folder) / "data"))
        begin = "from nearcast.cli import main; main()"
        command = [sys.executable, "-c", begin, "serve", "--config", str(path)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            try:
                yield process.pid, _ports(process)
            finally:
                process.send_signal(signal.SIGKILL)


def _ports(process: subprocess.Popen[str]) -> Ports:
    ports: Ports = {}
    assert process.stderr is not None
    for line in process.stderr:
        if "listening for" in line:
            words = line.split()
            ports[words[words.index("for") + 1]] = int(line.rsplit(":", 1)[1])
        if len(ports) == 2:
            return ports
    message = "the broker did not start"
    raise RuntimeError(message)


def cpu_ns(pid: int) -> int:
    """Return the CPU time that a process's main thread has used."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def memory_mb(pid: int) -> float:
    """Return the memory that a process holds."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


# --- clients ------------------------------------------------------------------------------


def connect(port: int, name: str, *, version: int = 5, **rest: object) -> socket.socket:
    """Return a socket of a client that was welcomed."""
    link = socket.create_connection(("127.0.0.1", port))
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    packet = Connect(name, ProtocolVersion(version), **rest)  # type: ignore[arg-type]
    link.sendall(encode_packet(packet, ProtocolVersion(version)))
    assert link.recv(1_000)[0] == 0x20
    return link


def until(link: socket.socket, first: int, reader: PacketReader | None = None) -> None:
    """Read until a packet with this first byte has come; `reader` keeps what stands behind it."""
    reader = reader or PacketReader()
    while True:
        for packet in reader.feed(link.recv(1 << 16)):
            if encode_packet(packet)[0] == first:
                return


def send_and_drain(link: socket.socket, data: bytes, until_s: float) -> None:
    """Send the same bytes over and over, and read whatever comes."""
    link.setblocking(False)
    view = memoryview(data)
    while time.monotonic() < until_s:
        with contextlib.suppress(BlockingIOError):
            view = view[link.send(view) :] or memoryview(data)
        with contextlib.suppress(BlockingIOError):
            while link.recv(1 << 20):
                pass


def ask_in_turn(link: socket.socket, packets: list[bytes], answer: int, until_s: float) -> None:
    """Send one packet after the other, each once the one before was answered."""
    link.settimeout(60)
    reader = PacketReader()
    while time.monotonic() < until_s:
        for packet in packets:
            link.sendall(packet)
            until(link, answer, reader)


# --- floods -------------------------------------------------------------------------------


def flood_pings(ports: Ports, until_s: float) -> None:
    """Send PINGREQ as fast as possible."""
    send_and_drain(connect(ports["tcp"], "flood"), PINGREQ * 500_000, until_s)


def flood_unread_pings(ports: Ports, until_s: float) -> None:
    """Send PINGREQ and never read an answer."""
    link = connect(ports["tcp"], "flood")
    link.settimeout(0.1)
    while time.monotonic() < until_s:
        with contextlib.suppress(TimeoutError):
            link.send(PINGREQ * 500_000)


def flood_qos_1(ports: Ports, until_s: float) -> None:
    """Publish small messages at QoS 1."""
    packets = b"".join(
        encode_packet(Publish("a/b", b"x", 1, packet_id=one)) for one in range(1, 60_000)
    )
    send_and_drain(connect(ports["tcp"], "flood"), packets, until_s)


def open_websocket(port: int) -> socket.socket:
    """Return a WebSocket without a CONNECT."""
    link = socket.create_connection(("127.0.0.1", port))
    link.sendall(
        b"GET /mqtt HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
    )
    assert b"101" in link.recv(1_000)
    return link


def flood_websocket_pings(ports: Ports, until_s: float) -> None:
    """Send pings of WebSocket, after a CONNECT."""
    link = open_websocket(ports["ws"])
    packet = encode_packet(Connect("flood"))
    masked = bytes(one ^ MASK[place % 4] for place, one in enumerate(packet))
    link.sendall(bytes((0x82, 0x80 | len(packet))) + MASK + masked)
    link.recv(1_000)
    send_and_drain(link, (b"\x89\x80" + MASK) * 100_000, until_s)


def flood_websocket_early(ports: Ports, until_s: float) -> None:
    """Send pings of WebSocket without a CONNECT, again after each close."""
    while time.monotonic() < until_s:
        with contextlib.suppress(OSError):
            send_and_drain(open_websocket(ports["ws"]), (b"\x89\x80" + MASK) * 100_000, until_s)


def flood_space(ports: Ports, until_s: float) -> None:
    """Publish events of a space at QoS 1."""
    link = connect(ports["tcp"], "flood")
    payload = json.dumps({"lon": 13.4, "lat": 52.5, "price": 3}).encode()
    packets = b"".join(
        encode_packet(Publish("city/x", payload, 1, packet_id=one)) for one in range(1, 60_000)
    )
    send_and_drain(link, packets, until_s)


def retain_many(ports: Ports, _pid: int) -> None:
    """Let 10,000 topics have a retained message."""
    link = connect(ports["tcp"], "keeper")
    packets = [
        encode_packet(Publish(f"r/{one % 100}/{one}", b"x" * 50, 0, retain=True))
        for one in range(RETAINED_TOPICS)
    ]
    link.sendall(b"".join(packets) + PINGREQ)
    until(link, 0xD0)


def flood_subscribe_all(ports: Ports, until_s: float) -> None:
    """Subscribe to everything 200 times in one packet."""
    link = connect(ports["tcp"], "flood")
    packet = encode_packet(Subscribe(1, (FilterRequest("#", 1),) * 200))
    ask_in_turn(link, [packet], 0x90, until_s)


def flood_subscribe_wide(ports: Ports, until_s: float) -> None:
    """Subscribe with 200 different filters that all fit 10,000 topics, and read nothing."""
    while time.monotonic() < until_s:
        link = connect(ports["tcp"], "flood")
        filters = [
            f"{'/'.join(('r', '+', '#'))}" if not one else f"$share/g{one}/#" for one in (0,)
        ]
        filters += ["#", "+/#", "r/#", "+/+/#", "r/+/+", "+/+/+", "r/+/#"]
        packet = encode_packet(Subscribe(1, tuple(FilterRequest(one, 1) for one in filters)))
        link.sendall(packet)
        time.sleep(0.3)
        link.close()


def queue_many(ports: Ports, _pid: int) -> None:
    """Let a client that is away have 60,000 small messages in its queue."""
    _away(ports, clean_start=True).close()
    link = connect(ports["tcp"], "keeper")
    packets = [encode_packet(Publish("a", b"x", 1, packet_id=one)) for one in range(1, 60_001)]
    reader = threading.Thread(target=_read_all, args=(link,), daemon=True)
    reader.start()
    link.sendall(b"".join(packets) + PINGREQ)
    reader.join()


def _read_all(link: socket.socket) -> None:
    with contextlib.suppress(OSError):
        until(link, 0xD0)


def _away(ports: Ports, *, clean_start: bool) -> socket.socket:
    lasting = Properties(session_expiry_interval=3_600)
    link = connect(ports["tcp"], "flood", clean_start=clean_start, properties=lasting)
    if clean_start:
        link.sendall(encode_packet(Subscribe(1, (FilterRequest("a", 1),))))
        until(link, 0x90)
    return link


def flood_comebacks(ports: Ports, until_s: float) -> None:
    """Come back to 60,000 queued messages, and go away without an answer."""
    while time.monotonic() < until_s:
        link = _away(ports, clean_start=False)
        began_s = time.monotonic()
        while time.monotonic() - began_s < 0.3:
            link.recv(1 << 20)
        link.close()


def _where_text() -> str:
    text = " or ".join(f"price < {one % 900 + 1}" for one in range(6_000))
    return text[: text.rindex(" or ", 0, 60_000)]


def flood_where(ports: Ports, until_s: float) -> None:
    """Subscribe to 20 filters with one `$where` of 60 kB, and end them again."""
    link = connect(ports["tcp"], "flood")
    filters = tuple(f"city/{one}" for one in range(20))
    wish = Properties(user_properties=(("$where", _where_text()),))
    ask = encode_packet(Subscribe(1, tuple(FilterRequest(one, 0) for one in filters), wish))
    end = encode_packet(Unsubscribe(2, filters, wish))
    link.settimeout(60)
    while time.monotonic() < until_s:
        link.sendall(ask)
        until(link, 0x90)
        link.sendall(end)
        until(link, 0xB0)


def flood_positions(ports: Ports, until_s: float) -> None:
    """Move a client that has 2,000 `$near` subscriptions."""
    link = connect(ports["tcp"], "flood")
    for first in range(0, 2_000, 100):
        filters = [f"$near/{100 + one}m/city/#" for one in range(first, first + 100)]
        link.sendall(encode_packet(Subscribe(1, tuple(FilterRequest(one, 0) for one in filters))))
        until(link, 0x90)
    moves = [
        encode_packet(
            Publish("$position", json.dumps({"lon": 13 + one / 1000, "lat": 52}).encode())
        )
        for one in range(1_000)
    ]
    send_and_drain(link, b"".join(moves), until_s)


def flood_ends(ports: Ports, until_s: float) -> None:
    """Let sessions with 100,000 subscriptions begin and end."""
    filters = [f"a/{one}/+" for one in range(100_000)]
    packets = [
        encode_packet(
            Subscribe(1, tuple(FilterRequest(one, 0) for one in filters[start : start + 5_000]))
        )
        for start in range(0, len(filters), 5_000)
    ]
    while time.monotonic() < until_s:
        link = connect(ports["tcp"], "flood")
        for packet in packets:
            link.sendall(packet)
            until(link, 0x90)
        link.close()


def flood_wildcards(ports: Ports, until_s: float) -> None:
    """Let a wildcard subscription come and go."""
    link = connect(ports["tcp"], "flood")
    ask = encode_packet(Subscribe(1, (FilterRequest("elsewhere/+", 0),)))
    end = encode_packet(Unsubscribe(2, ("elsewhere/+",)))
    send_and_drain(link, (ask + end) * 1_000, until_s)


Flood = tuple[Callable[[Ports, float], None], Callable[[Ports, int], None] | None]
FLOODS: dict[str, Flood] = {
    "nothing": (lambda _ports, _until_s: None, None),
    "pings": (flood_pings, None),
    "unread-pings": (flood_unread_pings, None),
    "qos-1": (flood_qos_1, None),
    "websocket-pings": (flood_websocket_pings, None),
    "websocket-early": (flood_websocket_early, None),
    "space-events": (flood_space, None),
    "subscribe-200": (flood_subscribe_all, retain_many),
    "subscribe-unread": (flood_subscribe_wide, retain_many),
    "comebacks": (flood_comebacks, queue_many),
    "where-60kB": (flood_where, None),
    "positions": (flood_positions, None),
    "session-ends": (flood_ends, None),
    "wildcards": (flood_wildcards, None),
}


# --- the bystander ------------------------------------------------------------------------


def measure(name: str, seconds: float) -> Row:
    """Run one flood; return what a bystander saw."""
    flood, prepare = FLOODS[name]
    with broker() as (pid, ports):
        if prepare is not None:
            prepare(ports, pid)
        link = connect(ports["tcp"], "bystander")
        link.settimeout(120)
        before_mb = memory_mb(pid)
        until_s = time.monotonic() + seconds
        process = get_context("fork").Process(target=flood, args=(ports, until_s), daemon=True)
        process.start()
        wall, cpu = _ping(link, pid, until_s)
        grown_mb = memory_mb(pid) - before_mb
        process.kill()
        process.join()
    return Row(name, len(wall), wall, cpu, grown_mb)


def _ping(link: socket.socket, pid: int, until_s: float) -> tuple[list[float], list[float]]:
    wall: list[float] = []
    cpu: list[float] = []
    while time.monotonic() < until_s:
        began_s, began_ns = time.monotonic(), cpu_ns(pid)
        link.sendall(PINGREQ)
        assert link.recv(2) == PINGRESP
        wall.append((time.monotonic() - began_s) * 1e3)
        cpu.append((cpu_ns(pid) - began_ns) / 1e6)
        time.sleep(0.01)
    return wall, cpu


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--only", default=",".join(FLOODS))
    arguments = parser.parse_args()
    titles = f"{'wall p50, p99, max (ms)':>26}  {'cpu p50, p99, max (ms)':>26}"
    print(f"{'flood':<22} {'pings':>6} {titles} {'MB':>8}", flush=True)
    for name in arguments.only.split(","):
        print(measure(name, arguments.seconds).text(), flush=True)


if __name__ == "__main__":
    main()
