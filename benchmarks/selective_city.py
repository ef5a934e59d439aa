"""A moving city on two brokers: `$near` here, geohash topics on Mosquitto.

What people do today: the map is cut into geohash cells, an event goes to the topic of its cell, and
a client subscribes to the cells around it, and changes them as it moves. The usual recipe is its
own cell and the eight around it, of a precision at which these hold the circle; the thorough one
is all cells that the circle touches. Small cells mean many filters and much subscribing, large
ones many messages from outside the circle.

A city has travellers, who take a fix of their position every few seconds, and publishers of
events. Time goes in steps: all travellers move and say so; when the broker has come to rest, the
events of the step are published; when it has come to rest again, what every traveller got is
compared with brute force. So no message is in flight while somebody moves, on either broker: what
is missed or wrong is the scheme's fault, not the network's. Bytes are those of MQTT packets, both
directions, without TCP's. Connecting and the first subscriptions are not counted.
"""

from __future__ import annotations

import json
import math
import select
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.broker_load import framed, link, string
from benchmarks.broker_processes import OURS, PEER, Broker
from numpy.typing import NDArray

from nearcast.locality import Rect
from nearcast.model import EARTH_RADIUS_M, distance_m
from nearcast.simulator.movers import RandomWaypoints

_BASE32 = "0123456789bcdefghjkmnpqrstuvwxyz"
METRES_PER_DEGREE = math.pi * EARTH_RADIUS_M / 180
LON, LAT = -122.42, 37.77  # the south-western corner of the city

_SERVE = """
import sys
from nearcast.config import Configuration
from nearcast.server import serve
serve(Configuration.model_validate_json(sys.argv[1]))
"""
_COORDINATES: dict[str, Any] = {
    "lon": {"low": -180.0, "high": 180.0},
    "lat": {"low": -90.0, "high": 90.0},
}
CITY_SPACE: dict[str, Any] = {
    "name": "city",
    "topics": "city/#",
    "longitude": "lon",
    "latitude": "lat",
    "attributes": _COORDINATES,
}


class SpaceBroker(Broker):
    """A broker; ours knows these spaces."""

    def __init__(self, kind: str, *spaces: dict[str, Any]) -> None:
        self._spaces = spaces
        super().__init__(kind)

    def _command(self) -> list[str]:
        if self.kind != OURS:
            return super()._command()
        configuration = {
            "node": {"data": self.directory},
            "listener": [{"port": self.port}],
            "durability": {"mode": "off"},
            "limits": {"queue": 256 << 20},
            "space": list(self._spaces),
        }
        return [sys.executable, "-c", _SERVE, json.dumps(configuration)]

    def rest(self, poll_s: float = 0.002) -> None:
        """Wait until the broker sleeps and has used no CPU over several looks."""
        before, quiet = -1.0, 0
        while quiet < 4:
            time.sleep(poll_s)
            used = self.cpu_s()
            state = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0]
            quiet = quiet + 1 if used == before and state == "S" else 0
            before = used


# --- geohash ----------------------------------------------------------------------------------


def cell_of(lon: float, lat: float, precision: int) -> tuple[int, int]:
    """Return the column and row of a place's geohash cell."""
    columns, rows = _grid(precision)
    column = min(int((lon + 180) / 360 * columns), columns - 1)
    return column, min(int((lat + 90) / 180 * rows), rows - 1)


def _grid(precision: int) -> tuple[int, int]:
    bits = 5 * precision
    return 1 << (bits + 1) // 2, 1 << bits // 2


def geohash(column: int, row: int, precision: int) -> str:
    """Return a cell's name: the bits of column and row in turn, five to a letter.

    >>> geohash(*cell_of(-5.6, 42.6, 5), 5), geohash(*cell_of(10.40744, 57.64911, 11), 11)
    ('ezs42', 'u4pruydqqvj')
    """
    number = 0
    column_bits, row_bits = (5 * precision + 1) // 2, 5 * precision // 2
    for place in range(5 * precision):
        if place % 2 == 0:
            column_bits -= 1
            bit = column >> column_bits
        else:
            row_bits -= 1
            bit = row >> row_bits
        number = number << 1 | bit & 1
    letters = (number >> 5 * place & 31 for place in reversed(range(precision)))
    return "".join(_BASE32[letter] for letter in letters)


def cells_touching(lon: float, lat: float, radius_m: float, precision: int) -> set[tuple[int, int]]:
    """Return the cells that a circle touches: none is missed, hardly one too many."""
    columns, rows = _grid(precision)
    width, height = 360 / columns, 180 / rows
    reach_lat = radius_m / METRES_PER_DEGREE
    reach_lon = reach_lat / math.cos(math.radians(lat))
    west, south = cell_of(lon - reach_lon, lat - reach_lat, precision)
    east, north = cell_of(lon + reach_lon, lat + reach_lat, precision)
    found = set()
    for row in range(south, north + 1):
        low = row * height - 90
        close_lat = min(max(lat, low), low + height)
        for column in range(west, east + 1):
            left = column * width - 180
            close_lon = min(max(lon, left), left + width)
            if distance_m(lon, lat, close_lon, close_lat) <= radius_m * 1.0001:
                found.add((column, row))
    return found


def cells_around(lon: float, lat: float, precision: int) -> set[tuple[int, int]]:
    """Return a place's cell and its eight neighbours: the usual recipe."""
    column, row = cell_of(lon, lat, precision)
    return {(column + x, row + y) for x in (-1, 0, 1) for y in (-1, 0, 1)}


# --- the city ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class OfferCity:
    """Who moves how, and what happens."""

    travellers: int = 1000
    side_m: float = 6000.0
    radius_m: float = 300.0
    slow_mps: float = 1.4
    fast_mps: float = 10.0
    fast_share: float = 0.5
    fix_s: float = 5.0
    steps: int = 15
    events_per_step: int = 200
    payload: int = 120
    seed: int = 7

    def walk(self) -> Iterator[tuple[NDArray[np.float64], list[bytes], NDArray[np.float64]]]:
        """Yield for each step where everybody is, the events' payloads and their places."""
        random = np.random.default_rng(self.seed)
        fast = round(self.travellers * self.fast_share)
        speeds = np.full(self.travellers, self.slow_mps)
        speeds[:fast] = self.fast_mps
        everywhere = Rect(0, 0, self.side_m, self.side_m)
        movers = RandomWaypoints([everywhere] * self.travellers, speeds, random)
        number = 0
        for _ in range(self.steps + 1):
            people = self._degrees(np.stack([movers.xs, movers.ys], axis=1))
            places = self._degrees(random.random((self.events_per_step, 2)) * self.side_m)
            payloads = [self._payload(number + n, place) for n, place in enumerate(places)]
            number += self.events_per_step
            yield people, payloads, places
            movers.step(self.fix_s)

    def _degrees(self, metres: NDArray[np.float64]) -> NDArray[np.float64]:
        scale = METRES_PER_DEGREE * np.array([math.cos(math.radians(LAT)), 1.0])
        degrees: NDArray[np.float64] = np.round(metres / scale + np.array([LON, LAT]), 5)
        return degrees

    def _payload(self, number: int, place: NDArray[np.float64]) -> bytes:
        text = f'{{"id":{number:07d},"lon":{place[0]:.5f},"lat":{place[1]:.5f},"text":"'
        text = text.replace('"id":', '"id":1')  # a number may not begin with 0
        return (text + "x" * (self.payload - len(text) - 2) + '"}').encode()


def number_in(payload: bytes) -> int:
    """Return the event that a payload belongs to."""
    return int(payload[7:14])


def within(
    people: NDArray[np.float64], places: NDArray[np.float64], radius_m: float
) -> NDArray[np.bool_]:
    """Brute force: who (row) is near which event (column); the haversine formula."""
    a, b = np.radians(people)[:, None, :], np.radians(places)[None, :, :]
    half = (b - a) / 2
    h = (
        np.sin(half[..., 1]) ** 2
        + np.cos(a[..., 1]) * np.cos(b[..., 1]) * np.sin(half[..., 0]) ** 2
    )
    near: NDArray[np.bool_] = 2 * EARTH_RADIUS_M * np.arcsin(np.sqrt(h)) <= radius_m
    return near


@dataclass
class Tally:
    """What a run cost and what went wrong."""

    scheme: str
    delivered: int = 0
    due: int = 0
    wrong: int = 0
    missed: int = 0
    twice: int = 0
    cpu_s: float = 0.0
    moving_cpu_s: float = 0.0
    fixes: int = 0
    filters: int = 0  # named in SUBSCRIBE and UNSUBSCRIBE
    held: int = 0  # filters held at the end, all travellers
    sent: Counter[str] = field(default_factory=Counter)  # bytes by kind of packet
    received: Counter[str] = field(default_factory=Counter)
    packets: Counter[str] = field(default_factory=Counter)

    @property
    def bytes(self) -> int:
        return self.sent.total() + self.received.total()

    @property
    def subscribe_bytes(self) -> int:
        sent = self.sent["subscribe"] + self.sent["unsubscribe"]
        return sent + self.received["suback"] + self.received["unsuback"]

    @property
    def subscribe_packets(self) -> int:
        return self.packets["subscribe"] + self.packets["unsubscribe"]


_WRITE = 10  # events a write: a busy publisher
_KINDS = {0x30: "publish", 0x90: "suback", 0xB0: "unsuback", 0xD0: "pong"}


class Traveller:
    """A client on a raw socket; keeps what it got in this step."""

    def __init__(self, sock: socket.socket, tally: Tally) -> None:
        self.sock = sock
        self.tally = tally
        self.cells: set[tuple[int, int]] = set()
        self.got: list[int] = []
        self.awaited = 0  # answers that the broker owes
        self._rest = b""
        self._packet = 0

    def send(self, kind: str, packet: bytes) -> None:
        self.sock.sendall(packet)
        self.tally.sent[kind] += len(packet)
        self.tally.packets[kind] += 1

    def ask(self, kind: str, filters: list[str]) -> None:
        """Subscribe or unsubscribe, all in one packet."""
        self._packet = self._packet % 65_535 + 1
        first, end = (0x82, b"\0") if kind == "subscribe" else (0xA2, b"")
        body = b"".join(string(each) + end for each in filters)
        self.tally.filters += len(filters)
        self.awaited += 1
        self.send(kind, framed(first, self._packet.to_bytes(2, "big") + body))

    def ping(self) -> None:
        """Ask for an answer that comes when everything before is done; it is not counted."""
        self.sock.sendall(b"\xc0\0")
        self.awaited += 1

    def read(self) -> None:
        data = self._rest + self.sock.recv(1 << 18)
        at, end = 0, len(data)
        while end - at >= 2:
            size, behind, shift = 0, at + 1, 0
            while behind < end:
                byte = data[behind]
                size |= (byte & 0x7F) << shift
                shift += 7
                behind += 1
                if byte < 0x80:
                    break
            else:
                break
            if behind + size > end:
                break
            self._take(data[at] & 0xF0, data[behind : behind + size], behind + size - at)
            at = behind + size
        self._rest = data[at:]

    def _take(self, first: int, body: bytes, size: int) -> None:
        kind = _KINDS[first]
        if kind == "publish":
            self.got.append(number_in(body[2 + int.from_bytes(body[:2], "big") :]))
        else:
            self.awaited -= 1
        if kind != "pong":
            self.tally.received[kind] += size
            self.tally.packets[f"{kind} received"] += 1


class Scheme:
    """How travellers learn what happens around them."""

    kind = PEER

    def __init__(self, city: OfferCity) -> None:
        self.city = city
        self.name = ""

    def begin(self, who: Traveller, lon: float, lat: float) -> None:
        self.move(who, lon, lat)

    def move(self, who: Traveller, lon: float, lat: float) -> None:
        raise NotImplementedError

    def topic(self, lon: float, lat: float) -> str:
        raise NotImplementedError


class Near(Scheme):
    """Ours: one subscription, and every fix is published."""

    kind = OURS

    def __init__(self, city: OfferCity) -> None:
        super().__init__(city)
        self.name = "$near"

    def begin(self, who: Traveller, lon: float, lat: float) -> None:
        self.move(who, lon, lat)
        who.ask("subscribe", [f"$near/{self.city.radius_m:g}m/city/#"])

    def move(self, who: Traveller, lon: float, lat: float) -> None:
        payload = f'{{"lon":{lon:.5f},"lat":{lat:.5f}}}'.encode()
        who.send("position", framed(0x30, string("$position") + payload))

    def topic(self, lon: float, lat: float) -> str:  # noqa: ARG002
        return "city/event"


class Cells(Scheme):
    """Geohash topics: every cell that the circle touches, or nine cells whatever the radius."""

    def __init__(self, city: OfferCity, precision: int, *, nine: bool = False) -> None:
        super().__init__(city)
        self.precision = precision
        self.nine = nine
        self.name = f"geohash {precision}" + (", 3 × 3 cells" if nine else "")

    def move(self, who: Traveller, lon: float, lat: float) -> None:
        if self.nine:
            cells = cells_around(lon, lat, self.precision)
        else:
            cells = cells_touching(lon, lat, self.city.radius_m, self.precision)
        if new := sorted(cells - who.cells):
            who.ask("subscribe", [self._topic(cell) for cell in new])
        if old := sorted(who.cells - cells):
            who.ask("unsubscribe", [self._topic(cell) for cell in old])
        who.cells = cells

    def topic(self, lon: float, lat: float) -> str:
        return self._topic(cell_of(lon, lat, self.precision))

    def _topic(self, cell: tuple[int, int]) -> str:
        return f"city/{geohash(*cell, self.precision)}"


def live(scheme: Scheme) -> Tally:
    """Let the city live on the scheme's broker; return what it took."""
    city = scheme.city
    broker = SpaceBroker(scheme.kind, *([CITY_SPACE] if scheme.kind == OURS else []))
    try:
        return _live(scheme, broker, city)
    finally:
        broker.close()


def _live(scheme: Scheme, broker: SpaceBroker, city: OfferCity) -> Tally:
    tally = Tally(scheme.name)
    crowd = [Traveller(link(broker.port, 4, f"t{n}"), tally) for n in range(city.travellers)]
    publisher = Traveller(link(broker.port, 4, "publisher"), tally)
    poll = select.epoll()
    readers = {who.sock.fileno(): who for who in [*crowd, publisher]}
    for number in readers:
        poll.register(number, select.EPOLLIN)

    def settle() -> None:
        """Wait until the broker owes no answer, rests, and everything it wrote is read."""
        while True:
            broker.rest()
            ready = poll.poll(0)
            if not ready and not any(who.awaited for who in readers.values()):
                return
            while ready:
                for number, _ in ready:
                    readers[number].read()
                ready = poll.poll(0)

    for step, (people, payloads, places) in enumerate(city.walk()):
        before = broker.cpu_s()
        for who, (lon, lat) in zip(crowd, people.tolist(), strict=True):
            (scheme.move if step else scheme.begin)(who, lon, lat)
        settle()
        moved = broker.cpu_s()
        packets = [
            framed(0x30, string(scheme.topic(lon, lat)) + payload)
            for payload, (lon, lat) in zip(payloads, places.tolist(), strict=True)
        ]
        for at in range(0, len(packets), _WRITE):
            publisher.send("publish", b"".join(packets[at : at + _WRITE]))
        publisher.ping()
        settle()
        if not step:  # connecting and the first subscriptions are no part of living
            _forget(tally, crowd)
            continue
        tally.fixes += len(crowd)
        tally.moving_cpu_s += moved - before
        tally.cpu_s += broker.cpu_s() - before
        _judge(tally, crowd, payloads, within(people, places, city.radius_m))
    tally.held = sum(len(who.cells) or 1 for who in crowd)
    for who in readers.values():
        who.sock.close()
    poll.close()
    return tally


def _forget(tally: Tally, crowd: list[Traveller]) -> None:
    tally.sent.clear()
    tally.received.clear()
    tally.packets.clear()
    tally.filters = 0
    for who in crowd:
        who.got.clear()


def _judge(
    tally: Tally, crowd: list[Traveller], payloads: list[bytes], near: NDArray[np.bool_]
) -> None:
    """Compare what everybody got in this step with what they should have."""
    first = number_in(payloads[0])
    for who, due in zip(crowd, near, strict=True):
        expected = {first + int(place) for place in np.flatnonzero(due)}
        got = set(who.got)
        tally.due += len(expected)
        tally.delivered += len(who.got)
        tally.wrong += len(got - expected)
        tally.missed += len(expected - got)
        tally.twice += len(who.got) - len(got)
        who.got.clear()
