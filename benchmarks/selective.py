"""Selective subscriptions: what they cost beside plain topics, and what they save a city.

- A publish with 100,000 selective subscriptions on 1,000 connections, beside one to a plain topic
  of the same broker with as many receivers.
- A job site: a million vacancies, each an interval on one attribute, and publications with `$top`.
- Position updates a second of one core, while publishing goes on.
- The moving city of `selective_city`, beside Mosquitto with geohash topics.

    python -m benchmarks.selective --quick
"""

from __future__ import annotations

import math
import select
import shutil
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
from benchmarks.broker_load import framed, link, read_packet, string
from benchmarks.broker_processes import OURS
from benchmarks.sections import by_hand, rows_of
from benchmarks.selective_city import (
    CITY_SPACE,
    LAT,
    LON,
    METRES_PER_DEGREE,
    Cells,
    Near,
    OfferCity,
    Scheme,
    SpaceBroker,
    Tally,
    live,
)
from numpy.typing import NDArray

Rows = Iterator[dict[str, Any]]

# --- the cost of a publish ----------------------------------------------------------------------

MARKET_SPACE: dict[str, Any] = {
    "name": "market",
    "topics": "market/#",
    "attributes": {"x": {"low": 0.0, "high": 1000.0}, "y": {"low": 0.0, "high": 1000.0}},
}
SIDE = 5.0  # of a subscription's box
TARGETS = {1: 3.0, 10: 2.0, 100: 1.3}
# Where boxes lie: left, bottom, side of a square, share of all.
REGIONS: dict[int, tuple[float, float, float, float]] = {
    1: (0, 0, 700, 0.3),
    10: (750, 0, 200, 0.17),
    100: (750, 500, 115, 0.53),
}
_PADDING = 64


class Crowd:
    """Connections that only count the bytes they get."""

    def __init__(self, port: int, size: int) -> None:
        self.links = [link(port, 4, f"c{n}") for n in range(size)]
        self.received = 0
        self._poll = select.epoll()
        self._by_number = {one.fileno(): one for one in self.links}
        for number in self._by_number:
            self._poll.register(number, select.EPOLLIN)

    def read(self, wait_s: float = 1.0) -> None:
        for number, _ in self._poll.poll(wait_s):
            self.received += len(self._by_number[number].recv(1 << 18))

    def read_until(self, wanted: int) -> None:
        deadline = time.perf_counter() + 60
        while self.received < wanted:
            self.read()
            if time.perf_counter() > deadline:
                raise RuntimeError(f"{self.received} of {wanted} bytes after 60 s")

    def subscribe(self, filters: list[list[str]]) -> None:
        """Subscribe each connection to its filters; wait for the answers."""
        for one, texts in zip(self.links, filters, strict=True):
            if not texts:
                continue
            body = b"\0\1" + b"".join(string(text) + b"\0" for text in texts)
            one.sendall(framed(0x82, body))
            first, answer = read_packet(one)
            while first != 0x90:
                first, answer = read_packet(one)
            refused = [text for text, code in zip(texts, answer[2:], strict=True) if code > 2]
            if refused:
                raise RuntimeError(f"refused: {refused[0]}")

    def subscribe_in_parts(self, filters: list[list[str]], part: int = 500) -> None:
        """Subscribe with so many filters a packet."""
        for at in range(0, max(map(len, filters)), part):
            self.subscribe([texts[at : at + part] for texts in filters])

    def close(self) -> None:
        self._poll.close()
        for one in self.links:
            one.close()


class Market:
    """Boxes over a plane, a share of them held by each connection; all from a seed."""

    def __init__(self, subscriptions: int, connections: int, seed: int = 5) -> None:
        random = np.random.default_rng(seed)
        self.lows = np.round(self._corners(subscriptions, random), 3)
        random.shuffle(self.lows)
        self.owners = np.arange(subscriptions) % connections
        self._random = random

    def _corners(self, count: int, random: np.random.Generator) -> NDArray[np.float64]:
        parts = []
        for left, bottom, side, share in REGIONS.values():
            # The same density at every size: a smaller run has smaller regions.
            scaled = side * math.sqrt(count / 100_000)
            parts.append(random.random((round(count * share), 2)) * scaled + (left, bottom))
        corners = np.concatenate(parts)
        rest = random.random((count - len(corners), 2)) * 100 + (0, 850)
        return np.concatenate([corners, rest])

    def filters(self, connections: int) -> list[list[str]]:
        texts: list[list[str]] = [[] for _ in range(connections)]
        for owner, (x, y) in zip(self.owners.tolist(), self.lows.tolist(), strict=True):
            where = f"x={x:g}..{x + SIDE:g};y={y:g}..{y + SIDE:g}"
            texts[owner].append(f"$where/{where}/market/#")
        return texts

    def receivers(self, x: float, y: float) -> set[int]:
        """Brute force: the connections that hold a box around a point."""
        inside = (self.lows <= (x, y)) & ((x, y) <= self.lows + SIDE)
        return set(self.owners[inside.all(axis=1)].tolist())

    def points(self, wanted: int, count: int) -> list[tuple[float, float]]:
        """Return points with exactly so many receivers."""
        left, bottom, side, _ = REGIONS[wanted]
        side *= math.sqrt(len(self.lows) / 100_000)
        found: list[tuple[float, float]] = []
        for _ in range(200_000):
            x, y = (self._random.random(2) * (side - 2 * SIDE) + SIDE).tolist()
            x, y = round(x + left, 3), round(y + bottom, 3)
            if len(self.receivers(x, y)) == wanted:
                found.append((x, y))
                if len(found) == count:
                    return found
        raise RuntimeError(f"too few points with {wanted} receivers")


def market_packet(topic: str, x: float, y: float) -> bytes:
    """Return a PUBLISH whose size does not depend on the values."""
    payload = f'{{"x":{x:.3f},"y":{y:.3f}'.encode()
    payload = payload.ljust(_PADDING - 1) + b"}"
    return framed(0x30, string(topic) + payload)


def cpu_per_publish(
    broker: SpaceBroker, crowd: Crowd, sender: socket.socket, batches: list[bytes], due: int
) -> float:
    """Return microseconds of broker CPU for each buffer; `due` bytes are delivered for each."""
    before = broker.cpu_s()
    wanted = crowd.received
    for batch in batches:
        sender.sendall(batch)
        wanted += due
        crowd.read_until(wanted)
    broker.rest()
    return (broker.cpu_s() - before) / len(batches) * 1e6


def cost_rows(quick: bool) -> Rows:
    subscriptions, connections = (20_000, 200) if quick else (100_000, 1_000)
    rounds, messages = (3, 300) if quick else (5, 1_000)
    market = Market(subscriptions, connections)
    points = {wanted: market.points(wanted, 50) for wanted in TARGETS}
    random = np.random.default_rng(11)
    filters = market.filters(connections)
    for wanted in TARGETS:
        for number in range(50):
            for who in random.choice(connections, wanted, replace=False).tolist():
                filters[who].append(f"plain/{wanted:04d}/{number:04d}")
    broker = SpaceBroker(OURS, MARKET_SPACE)
    crowd = Crowd(broker.port, connections)
    sender = link(broker.port, 4, "sender")
    try:
        started = time.perf_counter()
        crowd.subscribe(filters)
        took_s = time.perf_counter() - started
        yield {
            "name": f"{subscriptions:,} selective subscriptions taken, a second",
            "ours": subscriptions / took_s,
            "target": "report",
        }
        for wanted, target in TARGETS.items():
            for size, how in ((1, "one by one"), (20, "20 a write")):
                yield _cost_row(
                    broker, crowd, sender, (wanted, points[wanted]), target, size, how,
                    rounds, messages // size,
                )  # fmt: skip
    finally:
        sender.close()
        crowd.close()
        broker.close()


def _cost_row(
    broker: SpaceBroker,
    crowd: Crowd,
    sender: socket.socket,
    places: tuple[int, list[tuple[float, float]]],
    target: float,
    size: int,
    how: str,
    rounds: int,
    batches: int,
) -> dict[str, Any]:
    wanted, points = places
    # Topics are of one length, so that a delivery has the same size on both.
    selective = [market_packet("market/00/bread", x, y) for x, y in points]
    plain = [
        market_packet(f"plain/{wanted:04d}/{number:04d}", x, y)
        for number, (x, y) in enumerate(points)
    ]
    figures: dict[str, list[float]] = {"selective": [], "plain": []}
    for each_round in range(rounds + 1):  # the first warms up
        for name, packets in (("selective", selective), ("plain", plain)):
            order = [packets[(n * 7 + each_round) % 50] for n in range(batches * size)]
            joined = [b"".join(order[at : at + size]) for at in range(0, len(order), size)]
            due = wanted * sum(map(len, joined)) // len(joined)
            used_us = cpu_per_publish(broker, crowd, sender, joined, due) / size
            if each_round:
                figures[name].append(used_us)
    ours, peer = (statistics.median(figures[name]) for name in ("selective", "plain"))
    return {
        "name": f"a publish to {wanted} receivers, {how}, µs of CPU; peer: a plain topic",
        "ours": ours,
        "peer": peer,
        "ratio": ours / peer,
        "target": f"≤ {target:g} ×",
        "holds": ours <= target * peer,
        "spread": {name: [min(all_), max(all_)] for name, all_ in figures.items()},
    }


# --- the job site -------------------------------------------------------------------------------

JOBS_SPACE: dict[str, Any] = {
    "name": "jobs",
    "topics": "jobs/#",
    "attributes": {"pay": {"low": 0.0, "high": 100_000.0}},
}
JOB_SHARE = 0.01  # of all vacancies that match an applicant
BEST = 5
JOB_RANKS = ("narrowest", "narrowest:0.7,weight:0.3")


class JobSite:
    """Vacancies on one attribute, each connection an employer; all from a seed."""

    def __init__(self, vacancies: int, employers: int, seed: int = 9) -> None:
        random = np.random.default_rng(seed)
        wide = 200_000.0 * JOB_SHARE
        self.lows = np.round(random.random(vacancies) * 100_000, 2)
        self.highs = np.round(np.minimum(self.lows + 1 + random.random(vacancies) * wide, 1e5), 2)
        self.owners = np.arange(vacancies) % employers
        self._random = random

    def filters(self, employers: int) -> list[list[str]]:
        texts: list[list[str]] = [[] for _ in range(employers)]
        ends = zip(self.owners.tolist(), self.lows.tolist(), self.highs.tolist(), strict=True)
        for owner, low, high in ends:
            texts[owner].append(f"$where/pay={low:.2f}..{high:.2f}/jobs/#")
        return texts

    def applicants(self, count: int) -> list[float]:
        """Return values whose best employers are `BEST` different ones, by brute force."""
        found: list[float] = []
        while len(found) < count:
            pay = round(float(self._random.random() * 98_000 + 1_000), 3)
            inside = np.flatnonzero((self.lows <= pay) & (pay <= self.highs))
            if len(set(self.owners[inside].tolist())) >= BEST:
                found.append(pay)
        return found


_SERVE_BOXES = """
import sys
from nearcast.config import Configuration
from nearcast.matching import filter_index
from nearcast.server import serve
filter_index.only_attribute = lambda *_: None  # no subscription is an interval
serve(Configuration.model_validate_json(sys.argv[1]))
"""


class BoxBroker(SpaceBroker):
    """Our broker with the box index in place of the interval lists."""

    def _command(self) -> list[str]:
        python, option, _, configuration = super()._command()
        return [python, option, _SERVE_BOXES, configuration]


class _JobBroker:
    """A broker with all vacancies, its employers, and an applicant."""

    def __init__(self, kind: type[SpaceBroker], site: JobSite, employers: int) -> None:
        self.broker = kind(OURS, JOBS_SPACE)
        try:
            self.crowd = Crowd(self.broker.port, employers)
            self.sender = link(self.broker.port, 5, "applicant")
            before, started = self.broker.cpu_s(), time.perf_counter()
            self.crowd.subscribe_in_parts(site.filters(employers))
            self.took_s = time.perf_counter() - started
            self.subscribing_us = (self.broker.cpu_s() - before) / len(site.lows) * 1e6
            plain = [[f"plains/{n // BEST:04d}"] if n < 20 * BEST else [] for n in range(employers)]
            self.crowd.subscribe(plain)
        except BaseException:
            self.broker.close()
            raise

    def cpu_us(self, packets: list[bytes], size: int) -> float:
        """Return microseconds of CPU for each publish; each is delivered to `BEST` employers."""
        joined = [b"".join(packets[at : at + size]) for at in range(0, len(packets), size)] * 5
        due = BEST * (len(job_packet(1.0)) - 1) * size  # MQTT 3.1.1 has no properties
        return cpu_per_publish(self.broker, self.crowd, self.sender, joined, due) / size

    def close(self) -> None:
        self.sender.close()
        self.crowd.close()
        self.broker.close()


def jobs_rows(quick: bool) -> Rows:
    """Publish to the best five of a hundredth of all vacancies; CPU of the broker alone.

    Peers, in turn in the same run: a broker with boxes in place of lists, and a publish of the same
    size to a plain topic with five subscribers.
    """
    vacancies, employers = (50_000, 200) if quick else (1_000_000, 1_000)
    site = JobSite(vacancies, employers)
    with ExitStack() as stack:
        lists, boxes = (_JobBroker(kind, site, employers) for kind in (SpaceBroker, BoxBroker))
        for one in (lists, boxes):
            stack.callback(one.close)
        yield {
            "name": f"{vacancies:,} vacancies subscribed, µs of CPU each; peer: the box index",
            "ours": lists.subscribing_us,
            "peer": boxes.subscribing_us,
            "ratio": lists.subscribing_us / boxes.subscribing_us,
            "target": "≤ 1.1 ×",
            "holds": lists.subscribing_us <= 1.1 * boxes.subscribing_us,
            "a_second": vacancies / lists.took_s,
        }
        pays = site.applicants(200)
        for rank in JOB_RANKS:
            for size, how in ((1, "one by one"), (20, "20 a write")):
                yield from _job_rows(lists, boxes, pays, rank, size, how, 3 if quick else 5)


def _job_rows(
    lists: _JobBroker,
    boxes: _JobBroker,
    pays: list[float],
    rank: str,
    size: int,
    how: str,
    rounds: int,
) -> Rows:
    asked = [job_packet(pay, {"$top": str(BEST), "$rank": rank}) for pay in pays]
    plain = [job_packet(pay, topic=f"plains/{n % 20:04d}") for n, pay in enumerate(pays)]
    ways = {"lists": (lists, asked), "boxes": (boxes, asked), "plain": (lists, plain)}
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for each_round in range(rounds + 1):  # the first warms up
        for name, (broker, packets) in ways.items():
            used_us = broker.cpu_us(packets, size)
            if each_round:
                taken[name].append(used_us)
    rates = {name: 1e6 / statistics.median(each) for name, each in taken.items()}
    spread = {name: [1e6 / max(each), 1e6 / min(each)] for name, each in taken.items()}
    what = f"job site, best {BEST} by {rank}, {how}, publishes a second of CPU"
    for peer, words, least in (
        ("boxes", "the box index", 1.0),
        ("plain", f"a plain topic with {BEST} subscribers", 0.4),
    ):
        yield {
            "name": f"{what}; peer: {words}",
            "ours": rates["lists"],
            "peer": rates[peer],
            "ratio": rates["lists"] / rates[peer],
            "target": f"≥ {least:g} ×",
            "holds": rates["lists"] >= least * rates[peer],
            "spread": {name: spread[name] for name in ("lists", peer)},
        }


def job_packet(
    pay: float, asked: dict[str, str] | None = None, topic: str = "jobs/a/0001"
) -> bytes:
    """Return a PUBLISH of MQTT 5; neither value nor topic changes the size of what is delivered."""
    payload = f'{{"pay":{pay:.3f}'.encode().ljust(_PADDING - 1) + b"}"
    properties = b"\0"
    if asked is not None:
        pairs = b"".join(b"\x26" + string(name) + string(value) for name, value in asked.items())
        properties = bytes((len(pairs),)) + pairs
    return framed(0x30, string(topic) + properties + payload)


# --- positions ----------------------------------------------------------------------------------


def position_rows(quick: bool) -> Rows:
    """1,000 clients report positions as fast as the broker takes them; some publish meanwhile."""
    connections, rounds = (300, 20) if quick else (1_000, 60)
    side_m, per_round = 6_000.0, connections // 40
    random = np.random.default_rng(3)
    rates = []
    for _ in range(1 if quick else 3):
        broker = SpaceBroker(OURS, CITY_SPACE)
        crowd = Crowd(broker.port, connections)
        sender = link(broker.port, 4, "sender")
        places = random.random((connections, 2)) * side_m
        try:
            _report(crowd, places)
            crowd.subscribe([["$near/300m/city/#"]] * connections)
            broker.rest()
            before, deliveries = broker.cpu_s(), crowd.received
            for _ in range(rounds):
                places = np.clip(places + random.normal(0, 20, places.shape), 0, side_m)
                _report(crowd, places)
                for place in random.random((per_round, 2)) * side_m:
                    lon, lat = _degrees(place)
                    payload = f'{{"lon":{lon:.5f},"lat":{lat:.5f},"text":"{"x" * 60}"}}'
                    sender.sendall(framed(0x30, string("city/event") + payload.encode()))
                crowd.read(0)
            broker.rest()
            crowd.read(0)
            rates.append(rounds * connections / (broker.cpu_s() - before))
            if crowd.received == deliveries:
                raise RuntimeError("nothing was delivered meanwhile")
        finally:
            sender.close()
            crowd.close()
            broker.close()
    ours = statistics.median(rates)
    yield {
        "name": f"position updates a second of CPU, {connections:,} clients, one publish to 40",
        "ours": ours,
        "target": "≥ 20,000",
        "holds": ours >= 20_000,
        "spread": [min(rates), max(rates)],
    }


def _degrees(place: NDArray[np.float64]) -> tuple[float, float]:
    x, y = place.tolist()
    return (
        LON + x / METRES_PER_DEGREE / math.cos(math.radians(LAT)),
        LAT + y / METRES_PER_DEGREE,
    )


def _report(crowd: Crowd, places: NDArray[np.float64]) -> None:
    for one, place in zip(crowd.links, places, strict=True):
        lon, lat = _degrees(place)
        payload = f'{{"lon":{lon:.5f},"lat":{lat:.5f}}}'.encode()
        one.sendall(framed(0x30, string("$position") + payload))


# --- the city -------------------------------------------------------------------------------------


def cities(quick: bool) -> dict[str, list[Scheme]]:
    """The cities by radius, each with the schemes worth trying in it, ours first.

    A coarser precision than these sends everybody most of everything, a finer one subscribes to
    hundreds of cells. Events become rarer as the radius grows, so that travellers get as many.
    """
    whole = OfferCity(travellers=150, steps=6, side_m=3_000) if quick else OfferCity()
    found: dict[str, list[Scheme]] = {}
    for radius_m, most_events, cells, nine in (
        (100, 800, (6, 7, 8), 7),
        (300, 200, (6, 7), 6),
        (1000, 20, (5, 6), 5),
    ):
        events = most_events // 4 if quick else most_events
        city = replace(whole, radius_m=float(radius_m), events_per_step=events)
        precisions = [Cells(city, each) for each in cells]
        found[f"{radius_m} m"] = [Near(city), *precisions, Cells(city, nine, nine=True)]
    return found


def city_rows(quick: bool) -> Rows:
    if shutil.which("mosquitto") is None:
        yield {"name": "the moving city: mosquitto is not installed", "target": "report"}
        return
    for name, schemes in cities(quick).items():
        yield from _city(name, schemes, 1 if quick else 3)


def _city(name: str, schemes: list[Scheme], rounds: int) -> Rows:
    runs: dict[str, list[Tally]] = {scheme.name: [] for scheme in schemes}
    for _ in range(rounds):
        for scheme in schemes:
            runs[scheme.name].append(live(scheme))
    for label, tallies in runs.items():
        yield _report_row(name, label, tallies)
    ours = runs.pop("$near")
    yield _faults_row(name, ours, runs)
    exact = {label: each for label, each in runs.items() if "3 × 3" not in label}
    usual = {label: each for label, each in runs.items() if "3 × 3" in label}
    for peers in (exact, usual):
        yield _best_row(f"city {name}: bytes", ours, peers, lambda tally: tally.bytes, 1 / 3)
        yield _best_row(
            f"city {name}: broker CPU, s", ours, peers, lambda tally: tally.cpu_s, 1 / 2
        )


def _report_row(name: str, label: str, tallies: list[Tally]) -> dict[str, Any]:
    tally = tallies[0]
    cpu_s = statistics.median(each.cpu_s for each in tallies)
    return {
        "name": f"city {name}, {label}",
        "ours" if label == "$near" else "peer": {
            "messages": tally.delivered,
            "kB": round(tally.bytes / 1000),
            "of them subscribing": round(tally.subscribe_bytes / 1000),
            "filters changed": tally.filters,
            "wrong": max(each.wrong for each in tallies),
            "missed": max(each.missed for each in tallies),
            "CPU s": cpu_s,
            "moving": statistics.median(each.moving_cpu_s for each in tallies),
        },
        "target": "report",
    }


def _faults_row(name: str, ours: list[Tally], peers: dict[str, list[Tally]]) -> dict[str, Any]:
    faults = max(tally.wrong + tally.missed + tally.twice for tally in ours)
    return {
        "name": f"city {name}: wrong, missed or doubled, of {ours[0].due:,} due",
        "ours": faults,
        "peer": min(min(t.wrong + t.missed for t in each) for each in peers.values()),
        "target": "0",
        "holds": faults == 0,
    }


def _best_row(
    name: str,
    ours: list[Tally],
    peers: dict[str, list[Tally]],
    figure: Callable[[Tally], float],
    target: float,
) -> dict[str, Any]:
    """Compare with the precision that is best at this very figure and misses nothing."""
    complete = {label: each for label, each in peers.items() if not max(t.missed for t in each)}
    if not complete:
        return {"name": f"{name}; every peer missed something", "target": "report"}
    medians = {label: statistics.median(map(figure, each)) for label, each in complete.items()}
    best = min(medians, key=lambda label: medians[label])
    mine = statistics.median(map(figure, ours))
    return {
        "name": f"{name}; peer: {best}",
        "ours": mine,
        "peer": medians[best],
        "ratio": mine / medians[best],
        "target": f"≤ {target:.2g} ×",
        "holds": mine <= target * medians[best],
    }


def run(quick: bool = False, only: str = "") -> dict[str, Any]:
    """Return the rows; `only` keeps the sections that start so."""
    sections: dict[str, Callable[[bool], Rows]] = {
        "cost": cost_rows,
        "jobs": jobs_rows,
        "positions": position_rows,
        "city": city_rows,
    }
    return {"rows": rows_of(sections, quick, only), "peer": "mosquitto with geohash topics"}


if __name__ == "__main__":
    by_hand(__doc__, run)
