"""A storm: many subscribers come back at once after a network cut, on topics with mixed rates.

The same clients against three brokers in turn: Mosquitto, ours with `immediate`, ours with
`learned`. A publisher process keeps the topics going; every payload carries the instant at which it
was made. Measured for each newcomer, from its SUBSCRIBE on: which message was its first, how old
that was when it came, how long it took; and the retained copies sent.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import selectors
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heapreplace
from pathlib import Path
from typing import Any

from benchmarks.broker_load import framed, read_packet, string

from nearcast.server.local_cluster import free_port

IMMEDIATE, LEARNED, PEER = "immediate", "learned", "mosquitto"
HOLD_S, OMEGA, COST = 10.0, 0.7, 5.0
QUICK, SLOW = (0.5, 1.0, 2.0), 60.0  # seconds between publishes
PAYLOAD = 256
LEARN_S = {True: 20.0, False: 30.0}
_INSTANT = struct.Struct(">dI")

_SERVE = """
import sys
from nearcast.config import Configuration
from nearcast.server import serve
serve(Configuration.model_validate_json(sys.argv[1]))
"""
_MOSQUITTO = "listener {port} 127.0.0.1\nallow_anonymous true\nlog_dest none\n"


@dataclass
class Figures:
    """What the newcomers of one kind of topics met."""

    wait_s: list[float] = field(default_factory=list)
    age_s: list[float] = field(default_factory=list)
    copies: int = 0
    copy_bytes: int = 0
    all_bytes: int = 0


@contextlib.contextmanager
def _broker(kind: str, clients: int) -> Iterator[int]:
    directory, port = tempfile.mkdtemp(prefix="nearcast-storm-"), free_port()
    if kind == PEER:
        path = Path(directory) / "mosquitto.conf"
        path.write_text(_MOSQUITTO.format(port=port))
        command = ["mosquitto", "-c", str(path)]
    else:
        told = {"topics": "#", "mode": kind, "hold": HOLD_S, "omega": OMEGA, "cost": COST}
        sections = {
            "node": {"data": directory},
            "listener": [{"port": port}],
            "durability": {"mode": "off"},
            "limits": {"connections": clients + 100},
            "retained": [told],
        }
        command = [sys.executable, "-c", _SERVE, json.dumps(sections)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(port)
        yield port
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(directory, ignore_errors=True)


def _wait_for(port: int) -> None:
    until = time.monotonic() + 60
    while True:
        try:
            _connect(port, "first").close()
        except (OSError, EOFError):
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
        else:
            return


def _connect(port: int, name: str) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port))
    sock.sendall(framed(0x10, b"\0\4MQTT\4\2\0\0" + string(name)))
    first, body = read_packet(sock)
    if first != 0x20 or body[1]:
        message = "refused"
        raise OSError(message)
    return sock


def _topics(count: int) -> list[tuple[str, float]]:
    """Return topics with the seconds between their publishes: nine of ten quick, one slow."""
    every = [*QUICK * 3, SLOW]
    return [(f"storm/{number:04d}", every[number % len(every)]) for number in range(count)]


def publish_all(port: int, count: int) -> None:
    """Publish every topic at its own pace, for ever: a process of its own."""
    sock = _connect(port, "source")
    start = time.monotonic()
    plan = [
        (start + 0.5 * number / count, name, every)
        for number, (name, every) in enumerate(_topics(count))
    ]
    for number in range(1 << 40):
        due_s, name, every = plan[0]
        heapreplace(plan, (due_s + every, name, every))
        pause_s = due_s - time.monotonic()
        if pause_s > 0:
            time.sleep(pause_s)
        payload = _INSTANT.pack(time.monotonic(), number & 0xFFFFFFFF).ljust(PAYLOAD, b"x")
        sock.sendall(framed(0x31, string(name) + payload))


@contextlib.contextmanager
def _publishing(port: int, count: int) -> Iterator[None]:
    program = (
        "import sys; from benchmarks.retained_storm import publish_all; "
        "publish_all(int(sys.argv[1]), int(sys.argv[2]))"
    )
    root = str(Path(__file__).parents[1])
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(port), str(count)],
        env={**os.environ, "PYTHONPATH": root},
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.kill()
        process.wait()


class _Newcomer:
    """One client after the cut: what it has heard since its SUBSCRIBE."""

    def __init__(self, sock: socket.socket, topic: str, figures: Figures) -> None:
        self.sock = sock
        self.figures = figures
        self.packet = framed(0x82, b"\0\1" + string(topic) + b"\0")
        self.subscribed_s = 0.0
        self.is_up_to_date = False
        self._rest = b""

    def subscribe(self) -> None:
        self.subscribed_s = time.monotonic()
        self.sock.sendall(self.packet)

    def read(self, now_s: float) -> bool:
        """Take what is there; tell whether this was the first message."""
        data = self._rest + self.sock.recv(1 << 16)
        was_blind, position = not self.is_up_to_date, 0
        while len(data) - position >= 2:
            length, body = data[position + 1], position + 2
            if length > 127:
                if len(data) - position < 3:
                    break
                length, body = length & 127 | data[position + 2] << 7, position + 3
            if len(data) < body + length:
                break
            if data[position] >> 4 == 3:
                self._take(data, position, body, body + length, now_s)
            position = body + length
        self._rest = data[position:]
        return was_blind and self.is_up_to_date

    def _take(self, data: bytes, start: int, body: int, stop: int, now_s: float) -> None:
        figures = self.figures
        figures.all_bytes += stop - start
        if data[start] & 1:
            figures.copies += 1
            figures.copy_bytes += stop - start
        if not self.is_up_to_date:
            self.is_up_to_date = True
            payload = body + 2 + (data[body] << 8 | data[body + 1])
            made_s, _ = _INSTANT.unpack_from(data, payload)
            figures.wait_s.append(now_s - self.subscribed_s)
            figures.age_s.append(now_s - made_s)


def storm(kind: str, clients: int, *, quick: bool) -> dict[str, Any]:
    """Let a crowd come back to one broker; return what it met."""
    topics = _topics(100 if quick else 1_000)
    found = {"quick": Figures(), "slow": Figures()}
    with _broker(kind, clients) as port, _publishing(port, len(topics)):
        time.sleep(LEARN_S[quick])
        crowd = []
        for number in range(clients):
            name, every = topics[number % len(topics)]
            sock = _connect(port, f"c{number}")
            crowd.append(_Newcomer(sock, name, found["slow" if every == SLOW else "quick"]))
        begun_s = time.monotonic()
        done_s = _run(crowd, until_s=begun_s + HOLD_S + 20.0)
        for one in crowd:
            one.sock.close()
    everyone = len(found["quick"].wait_s) + len(found["slow"].wait_s)
    return {"found": found, "all_s": done_s - begun_s, "missing": clients - everyone}


def _run(crowd: list[_Newcomer], until_s: float) -> float:
    """Subscribe all, and read until everybody knows something; return when that was."""
    selector = selectors.DefaultSelector()
    blind = len(crowd)
    waiting = iter(crowd)
    more = True
    while blind and time.monotonic() < until_s:
        for _ in range(200 if more else 0):  # read in between, or queues would be measured
            one = next(waiting, None)
            if one is None:
                more = False
                break
            selector.register(one.sock, selectors.EVENT_READ, one)
            one.subscribe()
        for key, _ in selector.select(0 if more else 0.05):
            blind -= key.data.read(time.monotonic())
    selector.close()
    return time.monotonic()


def rows(quick: bool) -> list[dict[str, Any]]:
    """Run the storm against each broker, and compare."""
    clients = 1_000 if quick else 10_000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, clients + 200)), hard))
    kinds = (PEER, IMMEDIATE, LEARNED)
    results = {kind: storm(kind, clients, quick=quick) for kind in kinds}
    return [*_traffic_rows(results, clients), *_time_rows(results, clients)]


def _each(results: dict[str, Any], which: str, what: str) -> dict[str, float]:
    return {kind: getattr(one["found"][which], what) for kind, one in results.items()}


def _means(results: dict[str, Any], which: str, what: str) -> dict[str, float]:
    return {kind: statistics.fmean(v) for kind, v in _each(results, which, what).items()}  # type: ignore[arg-type]


def _row(name: str, figures: dict[str, float], target: str, holds: bool | None) -> dict[str, Any]:
    peers = {"mosquitto": figures[PEER], "ours, immediate": figures[IMMEDIATE]}
    return {
        "name": name,
        "ours": figures[LEARNED],
        "peers": peers,
        "target": target,
        "holds": holds,
    }


def _traffic_rows(results: dict[str, Any], clients: int) -> list[dict[str, Any]]:
    copies = _each(results, "quick", "copies")
    copy_bytes = _each(results, "quick", "copy_bytes")
    saved = 1 - copies[LEARNED] / max(1, copies[IMMEDIATE])
    title = f"storm of {clients:,}"
    return [
        _row(f"{title}: retained copies, quick topics", copies, "none", None),
        _row(f"{title}: bytes of retained copies, quick topics", copy_bytes, "none", None),
        {
            "name": f"{title}: share of retained copies saved, quick topics",
            "ours": saved,
            "target": ">= 0.8",
            "holds": saved >= 0.8,
        },
        _row(
            f"{title}: all bytes of publications until everybody knew, quick topics",
            _each(results, "quick", "all_bytes"),
            "none",
            None,
        ),
    ]


def _time_rows(results: dict[str, Any], clients: int) -> list[dict[str, Any]]:
    title = f"storm of {clients:,}"
    age, wait = _means(results, "quick", "age_s"), _means(results, "slow", "wait_s")
    blind = _means(results, "quick", "wait_s")
    longest = {kind: max(v) for kind, v in _each(results, "quick", "wait_s").items()}  # type: ignore[call-overload]
    price_s = COST * (1 - OMEGA) / OMEGA * HOLD_S / 10
    bound_s = age[IMMEDIATE] + price_s
    held = {
        kind: float(len(one["found"]["slow"].wait_s) - one["found"]["slow"].copies)
        for kind, one in results.items()
    }
    missing = {kind: float(one["missing"]) for kind, one in results.items()}
    loss = blind[LEARNED] + age[LEARNED]
    return [
        _row(f"{title}: mean age of the first knowledge, quick, s", age, "none", None),
        _row(f"{title}: mean time without knowledge, quick, s", blind, "none", None),
        {
            "name": f"{title}: mean age, the wait included, quick, s",
            "ours": loss,
            "target": f"<= {bound_s:.2f} s",
            "holds": loss <= bound_s,
        },
        _row(
            f"{title}: longest time without knowledge, quick, s",
            longest,
            f"<= {HOLD_S:g} s",
            longest[LEARNED] <= HOLD_S + 0.5,
        ),
        _row(
            f"{title}: mean time without knowledge, slow topics, s",
            wait,
            "none",
            None,
        ),
        _row(f"{title}: newcomers held back, slow topics", held, "0", not held[LEARNED]),
        _row(
            f"{title}: time until everybody knew something, s",
            {kind: one["all_s"] for kind, one in results.items()},
            "none",
            None,
        ),
        _row(f"{title}: without knowledge at the end", missing, "0", not missing[LEARNED]),
    ]
