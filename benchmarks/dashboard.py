"""What an open page costs the broker: its CPU with and without a viewer, by turns.

Clients report a position every five seconds, each in turn, and have a `$near` subscription; some of
them publish events. The viewer subscribes to what the page's map subscribes to, and asks for what
it asks for, as often. Windows without and with it alternate in one run.
"""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
import random
import resource
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.broker_load import link

from nearcast.server.http.operators import set_operator
from nearcast.server.local_cluster import free_port

FIX_S = 5.0
EVENTS_PER_S = 20.0
TARGET = 1.10
_SHAPES_S, _PLAN_S = 40, 10
_CITY = (2.25, 48.80, 2.45, 48.92)

_SERVE = """
import json, sys
from nearcast.config import Configuration
from nearcast.server import serve
serve(Configuration.model_validate_json(sys.argv[1]))
"""


class ManagedProcess:
    """A broker with a management address, in a process of its own."""

    def __init__(self, clients: int) -> None:
        import subprocess
        import sys

        self._folder = tempfile.TemporaryDirectory(prefix="nearcast-bench-")
        folder = Path(self._folder.name)
        self.port, self.http_port = free_port(), free_port()
        token = set_operator(folder / "operators.txt", "bench", "operator", None)
        assert token is not None
        self.token = token
        numbers = {"lon": {"low": -180, "high": 180}, "lat": {"low": -90, "high": 90}}
        settings = {
            "node": {"data": str(folder)},
            "listener": [{"port": self.port}],
            "durability": {"mode": "off"},
            "limits": {"connections": clients + 100},
            "log": {"level": "warning"},
            "http": {
                "address": f"127.0.0.1:{self.http_port}",
                "operators": str(folder / "operators.txt"),
            },
            "space": [
                {
                    "name": "city",
                    "topics": "city/#",
                    "longitude": "lon",
                    "latitude": "lat",
                    "attributes": {**numbers, "price": {"low": 0, "high": 100}},
                }
            ],
        }
        self.process = subprocess.Popen([sys.executable, "-c", _SERVE, json.dumps(settings)])
        until_s = time.monotonic() + 60
        while True:
            try:
                link(self.port, 4, "first").close()
                return
            except (OSError, EOFError):
                if time.monotonic() > until_s:
                    raise
                time.sleep(0.05)

    def cpu_s(self) -> float:
        """Return the CPU time of the process's threads so far, to the nanosecond."""
        threads = Path(f"/proc/{self.process.pid}/task").glob("*/schedstat")
        return sum(int(one.read_text().split()[0]) for one in threads) / 1e9

    def end(self) -> None:
        self.process.terminate()
        self.process.wait()
        self._folder.cleanup()


def _packet(first: int, body: bytes) -> bytes:
    size, head = len(body), b""
    while True:
        head += bytes(((size & 127) | (128 if size > 127 else 0),))
        size >>= 7
        if not size:
            return bytes((first,)) + head + body


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack(">H", len(raw)) + raw


def _connect(name: str) -> bytes:
    return _packet(0x10, _text("MQTT") + b"\4\2\0\0" + _text(name))


def _subscribe(topic_filter: str) -> bytes:
    return _packet(0x82, b"\0\1" + _text(topic_filter) + b"\0")


def _publish(topic: str, payload: bytes) -> bytes:
    return _packet(0x30, _text(topic) + payload)


class Sink(asyncio.Protocol):
    """A client that reads and forgets."""

    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]


class Crowd:
    """Clients that walk."""

    def __init__(self, port: int, count: int) -> None:
        self._port, self._count = port, count
        self._random = random.Random(5)
        self._sinks: list[Sink] = []
        self._places: list[list[float]] = []

    async def connect(self) -> None:
        loop = asyncio.get_running_loop()
        west, south, east, north = _CITY
        for number in range(self._count):
            _, sink = await loop.create_connection(Sink, "127.0.0.1", self._port)
            place = [self._random.uniform(west, east), self._random.uniform(south, north)]
            self._places.append(place)
            self._sinks.append(sink)
            sink.transport.write(_connect(f"walker-{number}"))
            sink.transport.write(_subscribe("$near/300m/city/#"))
            sink.transport.write(self._fix(number))
            if not number % 100:
                await asyncio.sleep(0.01)

    def _fix(self, number: int) -> bytes:
        place = self._places[number]
        place[0] += self._random.uniform(-1e-4, 1e-4)
        place[1] += self._random.uniform(-1e-4, 1e-4)
        return _publish("$position", b'{"lon":%.6f,"lat":%.6f}' % tuple(place))

    async def walk(self) -> None:
        """Send each client's fix in its turn, and an event now and then, until cancelled."""
        began_s, sent, told = time.monotonic(), 0, 0
        while True:
            due = (time.monotonic() - began_s) * self._count / FIX_S
            while sent < due:
                number = sent % self._count
                self._sinks[number].transport.write(self._fix(number))
                sent += 1
            while told < (time.monotonic() - began_s) * EVENTS_PER_S:
                number = self._random.randrange(self._count)
                lon, lat = self._places[number]
                event = b'{"lon":%.6f,"lat":%.6f,"price":5}' % (lon, lat)
                self._sinks[number].transport.write(_publish("city/offer", event))
                told += 1
            await asyncio.sleep(0.002)


class Viewer:
    """A page: its MQTT client over a WebSocket, and its requests."""

    def __init__(self, broker: ManagedProcess) -> None:
        self._broker = broker
        self.bytes = 0
        self._headers = {"Authorization": f"Bearer {broker.token}"}
        self._task: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None

    async def open(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._broker.http_port)
        self._writer = writer
        writer.write(
            (
                "GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
                "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: mqtt\r\n"
                f"Authorization: {self._headers['Authorization']}\r\n\r\n"
            ).encode()
        )
        await reader.readuntil(b"\r\n\r\n")
        for packet in (
            _connect("page-bench"),
            _subscribe("$nearcast/live/positions/+"),
            _subscribe("$nearcast/live/deliveries/+"),
            _subscribe(f"$area/{','.join(map(str, _CITY))}/city/#"),
        ):
            writer.write(_frame(packet))
        self._reading = asyncio.create_task(self._read(reader))
        self._task = asyncio.create_task(self._ask())

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(1 << 20):
            self.bytes += len(data)

    async def _ask(self) -> None:
        """Ask for what the map asks for, as often: shapes that are too many to be drawn rarely."""
        for path in ("session", "spaces", "positions"):
            await self._get(f"/api/{path}")
        for second in itertools.count():
            if not second % _SHAPES_S:
                await self._get("/api/shapes")
            if not second % _PLAN_S:
                await self._get("/api/plan")
            await asyncio.sleep(1)

    async def _get(self, path: str) -> None:
        def ask() -> None:
            connection = http.client.HTTPConnection("127.0.0.1", self._broker.http_port)
            connection.request("GET", path, headers=self._headers)
            assert connection.getresponse().read()
            connection.close()

        await asyncio.to_thread(ask)

    async def close(self) -> None:
        for task in (self._task, self._reading):
            if task is not None:
                task.cancel()
        if self._writer is not None:
            self._writer.close()


def _frame(packet: bytes) -> bytes:
    """Return a masked frame; a mask of zeros leaves the bytes as they are."""
    return b"\x82" + bytes((0x80 | len(packet),)) + b"\0\0\0\0" + packet


async def _measure(broker: ManagedProcess, clients: int, pairs: int, window_s: float) -> Any:
    crowd = Crowd(broker.port, clients)
    await crowd.connect()
    walking = asyncio.create_task(crowd.walk())
    await asyncio.sleep(3 * FIX_S)  # what is compiled or loaded late is no cost of either
    rows: list[tuple[float, float]] = []
    size = 0

    async def window() -> float:
        before = broker.cpu_s()
        await asyncio.sleep(window_s)
        return (broker.cpu_s() - before) / window_s

    for _ in range(pairs):
        alone = await window()
        viewer = Viewer(broker)
        await viewer.open()
        await asyncio.sleep(1.5)
        seen = viewer.bytes
        watched = await window()
        size = viewer.bytes - seen
        await viewer.close()
        await asyncio.sleep(1.5)
        rows.append((alone, watched))
    walking.cancel()
    return rows, size / window_s


def run(*, quick: bool = False, **_: object) -> dict[str, Any]:
    """Return the broker's CPU with the page open over that without."""
    clients, pairs, window_s = (2_000, 3, 5.0) if quick else (10_000, 5, 15.0)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < clients + 500:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, clients + 2_000), hard))
    broker = ManagedProcess(clients)
    try:
        rows, bytes_per_s = asyncio.run(_measure(broker, clients, pairs, window_s))
    finally:
        broker.end()
    ratio = median(watched / alone for alone, watched in rows)
    spread: Callable[[int], float] = lambda at: median(one[at] for one in rows)  # noqa: E731
    return {
        "rows": [
            {
                "name": f"broker CPU, {clients} clients at a fix per {FIX_S:.0f} s, page open",
                "ours": f"{spread(1):.1%} of a core",
                "peer": f"{spread(0):.1%} without the page",
                "ratio": round(ratio, 3),
                "target": TARGET,
                "holds": ratio <= TARGET,
            },
            {"name": "bytes a second to the page", "ours": round(bytes_per_s)},
        ]
    }
