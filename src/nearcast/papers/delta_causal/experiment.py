"""Paper 2: the control information and the time that Δ-causal order costs.

One point is one run of a simulated group: n processes, each sending at exponential intervals,
over a channel with exponential delay and loss. Everything except the measured processor time
follows from the seed. Where the paper is open, we set:

    delay        0.01 s plus an exponential part of mean 0.04 s; 1 % of copies are lost
    lifetime     0.25 s, the paper's video conference
    destinations `subsets`: each time a random set of 1 to n-1 others
                 `groups`: each process belongs to two of n/4 fixed groups of eight or fewer
                 members and sends to one of them
    expiry       all four algorithms: a predecessor counts as settled when its lifetime is
                 over, and nothing older than lifetime plus skew is kept or carried
    message      one multicast send; bytes are those of one copy without the payload

Read next: `claims.py` (verdicts) and `oracle.py` (C2.3).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from heapq import heappop, heappush
from random import Random
from typing import Final, NamedTuple

from nearcast.model.errors import UnknownNameError
from nearcast.ordering import CausalProcess, Deliver, DeltaCausal, Output
from nearcast.papers.delta_causal import (
    KshemkalyaniSinghal,
    PrakashRaynalSinghal,
    RaynalSchiperToueg,
)

ALGORITHMS: Final[dict[str, type[CausalProcess]]] = {
    "ours": DeltaCausal,
    "KS": KshemkalyaniSinghal,
    "PRS": PrakashRaynalSinghal,
    "RST": RaynalSchiperToueg,
}
PATTERNS: Final = ("subsets", "groups")
PAYLOAD: Final = bytes(1024)
SAMPLE: Final = 4
"""Processor time is measured for every fourth send and arrival, as reading a clock costs too."""

_NEVER_S: Final = float("inf")


@dataclass(frozen=True, slots=True)
class CausalPoint:
    """The parameters of one run. `warm_up` sends are discarded, `sends` are measured."""

    algorithm: str = "ours"
    processes: int = 20
    pattern: str = "subsets"
    lifetime_s: float = 0.25
    mean_gap_s: float = 0.1
    least_delay_s: float = 0.01
    mean_extra_delay_s: float = 0.04
    loss: float = 0.01
    warm_up: int = 10_000
    sends: int = 50_000
    seed: int = 1


@dataclass(frozen=True, slots=True)
class CausalRow:
    """The results of one run; the last four columns depend on the machine.

    Decoding and receiving are one step, so `decode_us` is 0 and `receive_us` has both.
    """

    algorithm: str
    processes: int
    pattern: str
    lifetime_s: float
    seed: int
    sends: int
    copies: int
    delivered: int
    discarded: int
    held: int
    control_bytes: float
    transit_ms: float
    send_us: float
    encode_us: float
    decode_us: float
    receive_us: float

    @property
    def computation_us(self) -> float:
        """The processor time of a message on its way to one destination."""
        return self.send_us + self.encode_us + self.decode_us + self.receive_us

    @property
    def delivery_ms(self) -> float:
        """The mean time from send to delivery: network, waiting and computation."""
        return self.transit_ms + self.computation_us / 1000


@dataclass(frozen=True, slots=True)
class Disorder:
    """The same traffic without ordering: how many deliveries come after one of their effects."""

    processes: int
    pattern: str
    seed: int
    delivered: int
    wrong: int


def destinations(point: CausalPoint, random: Random) -> Callable[[int], set[int]]:
    """Return a function that draws the destinations of a process's next message."""
    everyone = list(range(point.processes))
    if point.pattern == "subsets":

        def subset(sender: int) -> set[int]:
            others = everyone[:sender] + everyone[sender + 1 :]
            return set(random.sample(others, random.randint(1, len(others))))

        return subset
    if point.pattern != "groups":
        raise UnknownNameError(point.pattern, where="pattern", expected=" or ".join(PATTERNS))
    groups_of = _groups(point.processes, random)
    return lambda sender: random.choice(groups_of[sender]) - {sender}


def _groups(processes: int, random: Random) -> list[list[set[int]]]:
    """Assign every process to two of n/4 groups, so that groups overlap."""
    count = max(2, processes // 4)
    groups: list[set[int]] = [set() for _ in range(count)]
    for deal in range(2):
        order = random.sample(range(processes), processes)
        for place, process in enumerate(order):
            groups[(place + deal) % count].add(process)
    of = [[group for group in groups if p in group and len(group) > 1] for p in range(processes)]
    return [mine or [{p, (p + 1) % processes}] for p, mine in enumerate(of)]


class Copy(NamedTuple):
    """One copy in flight; `number` counts sends, `message` has its bytes, if any."""

    to: int
    number: int
    message: bytes
    sent_s: float


class Traffic:
    """Sends and arrivals in order of time; the same for every algorithm with the same seed."""

    def __init__(self, point: CausalPoint) -> None:
        self.point = point
        self.random = Random(point.seed)
        self.choose = destinations(point, Random(point.seed + 1))
        self._network = Random(point.seed + 2)
        self._queue: list[tuple[float, int, Copy | int]] = []
        self._serial = 0
        for process in range(point.processes):
            self._put(self.random.expovariate(1 / point.mean_gap_s), process)

    def _put(self, at_s: float, what: Copy | int) -> None:
        self._serial += 1
        heappush(self._queue, (at_s, self._serial, what))

    def events(self) -> Iterator[tuple[float, Copy | int]]:
        """Yield (time, sender) and (time, copy); end after the last send that counts."""
        left = self.point.warm_up + self.point.sends
        while left:
            at_s, _, what = heappop(self._queue)
            if isinstance(what, int):
                left -= 1
                self._put(at_s + self.random.expovariate(1 / self.point.mean_gap_s), what)
            yield at_s, what

    def travels(self, to: int, number: int, message: bytes, now_s: float) -> None:
        """Drop a copy, or schedule its arrival. The draws do not depend on the algorithm."""
        point = self.point
        lost = self._network.random() < point.loss
        extra_s = self._network.expovariate(1 / point.mean_extra_delay_s)
        if not lost:
            arrival_s = now_s + point.least_delay_s + extra_s
            self._put(arrival_s, Copy(to, number, message, now_s))


class _Run:
    """The state of one run."""

    def __init__(self, point: CausalPoint, clock: Callable[[], float]) -> None:
        self.point, self.clock = point, clock
        kind = ALGORITHMS[point.algorithm]
        self.group = [kind(process=p, lifetime=point.lifetime_s) for p in range(point.processes)]
        self.traffic = Traffic(point)
        self.wakes: list[tuple[float, int]] = []
        self.next_wake_s = [_NEVER_S] * point.processes
        self.began: list[float] = []
        self.measuring = False
        self.sends = self.copies = self.delivered = self.discarded = self.held = 0
        self.bytes = self.arrivals = self.timed_sends = self.timed_copies = self.timed_arrivals = 0
        self.transit_s = self.send_s = self.encode_s = self.receive_s = 0.0

    def run(self) -> CausalRow:
        for now_s, what in self.traffic.events():
            while self.wakes and self.wakes[0][0] <= now_s:
                self._wake(*heappop(self.wakes))
            if isinstance(what, int):
                self.measuring = len(self.began) >= self.point.warm_up
                self._send(what, now_s)
            else:
                self._receive(what, now_s)
        return self._row()

    def _send(self, sender: int, now_s: float) -> None:
        wanted = self.traffic.choose(sender)
        number = len(self.began)
        timed = self.measuring and number % SAMPLE == 0
        start = self.clock() if timed else 0.0
        copies = self.group[sender].send(wanted, PAYLOAD, now_s)
        sent = self.clock() if timed else 0.0
        encoded = [(int(to), message.encode()) for to, message in copies.items()]
        if timed:
            self.timed_sends += 1
            self.timed_copies += len(encoded)
            self.encode_s += self.clock() - sent
            self.send_s += sent - start
        if self.measuring:
            self.sends += 1
            self.copies += len(encoded)
            self.bytes += sum(len(data) for _, data in encoded) - len(PAYLOAD) * len(encoded)
        self.began.append(now_s)
        for to, data in sorted(encoded):
            self.traffic.travels(to, number, data, now_s)

    def _receive(self, copy: Copy, now_s: float) -> None:
        process = self.group[copy.to]
        self.arrivals += 1
        timed = self.measuring and self.arrivals % SAMPLE == 0
        start = self.clock() if timed else 0.0
        outputs = process.receive(copy.message, now_s)
        if timed:
            self.timed_arrivals += 1
            self.receive_s += self.clock() - start
        if self.measuring:
            self._note(outputs, now_s)
            self.held += not outputs
        if process.holding:
            self._wake_later(copy.to)

    def _wake(self, at_s: float, number: int) -> None:
        if self.next_wake_s[number] == at_s:
            self.next_wake_s[number] = _NEVER_S
            outputs = self.group[number].advance(at_s)
            if self.measuring:
                self._note(outputs, at_s)
            self._wake_later(number)

    def _wake_later(self, number: int) -> None:
        wake_s = self.group[number].wake_at()
        if wake_s is not None and wake_s < self.next_wake_s[number]:
            self.next_wake_s[number] = wake_s
            heappush(self.wakes, (wake_s, number))

    def _note(self, outputs: list[Output], now_s: float) -> None:
        for output in outputs:
            if isinstance(output, Deliver):
                self.delivered += 1
                self.transit_s += now_s - output.message.sent
            else:
                self.discarded += 1

    def _row(self) -> CausalRow:
        point, copies = self.point, max(1, self.copies)
        arrived = max(1, self.timed_arrivals)
        return CausalRow(
            algorithm=point.algorithm,
            processes=point.processes,
            pattern=point.pattern,
            lifetime_s=point.lifetime_s,
            seed=point.seed,
            sends=self.sends,
            copies=self.copies,
            delivered=self.delivered,
            discarded=self.discarded,
            held=self.held,
            control_bytes=self.bytes / copies,
            transit_ms=1e3 * self.transit_s / max(1, self.delivered),
            send_us=1e6 * self.send_s / max(1, self.timed_sends),
            encode_us=1e6 * self.encode_s / max(1, self.timed_copies),
            decode_us=0.0,
            receive_us=1e6 * self.receive_s / arrived,
        )


def run_point(point: CausalPoint, *, clock: Callable[[], float] = time.process_time) -> CausalRow:
    """Run one point. Deterministic except for the four columns of processor time."""
    if point.algorithm not in ALGORITHMS:
        raise UnknownNameError(point.algorithm, where="algorithm", expected=", ".join(ALGORITHMS))
    return _Run(point, clock).run()


def sweep(
    sizes: Iterable[int] = (5, 10, 20, 30, 40, 50),
    *,
    sizes_of_ours: Iterable[int] = (100, 200),
    patterns: Iterable[str] = PATTERNS,
    warm_up: int = 10_000,
    sends: int = 50_000,
    seed: int = 1,
) -> list[CausalPoint]:
    """Return the points of the paper's figures 4 and 5; they are independent tasks."""
    sizes, patterns = list(sizes), list(patterns)
    points = [
        CausalPoint(algorithm=name, processes=n, pattern=p, warm_up=warm_up, sends=sends, seed=seed)
        for p in patterns
        for n in sizes
        for name in ALGORITHMS
    ]
    points += [
        CausalPoint(processes=n, pattern=p, warm_up=warm_up, sends=sends, seed=seed)
        for p in patterns
        for n in sizes_of_ours
    ]
    return points


def run_without_order(point: CausalPoint) -> Disorder:
    """Deliver the same traffic on arrival, if in time, and count deliveries in the wrong order.

    A delivery is wrong if a message that was sent causally after it was delivered there before.
    Uses vector clocks: O(n) per delivery.
    """
    traffic, n = Traffic(point), point.processes
    knows = [[0] * n for _ in range(n)]
    effects = [[0] * n for _ in range(n)]
    stamps: list[tuple[int, int, list[int]]] = []
    delivered = wrong = 0
    for now_s, what in traffic.events():
        if isinstance(what, int):
            before = knows[what].copy()
            knows[what][what] += 1
            stamps.append((what, knows[what][what], before))
            for to in sorted(traffic.choose(what)):
                traffic.travels(to, len(stamps) - 1, b"", now_s)
        elif now_s <= what.sent_s + point.lifetime_s:
            sender, count, before = stamps[what.number]
            delivered += 1
            wrong += effects[what.to][sender] >= count
            effects[what.to] = list(map(max, effects[what.to], before))
            knows[what.to] = list(map(max, knows[what.to], before))
            knows[what.to][sender] = max(knows[what.to][sender], count)
    return Disorder(n, point.pattern, point.seed, delivered, wrong)


@dataclass(frozen=True, slots=True)
class CausalClaim:
    """What the paper says, and what was measured."""

    claim: str
    says: str
    measured: str
    holds: bool


def claims(rows: Iterable[CausalRow], pattern: str = "subsets") -> list[CausalClaim]:
    """Judge claims C2.1 and C2.2 by the rows of one pattern; `oracle.py` judges C2.3."""
    of = {(r.algorithm, r.processes): r for r in rows if r.pattern == pattern}
    sizes = sorted({n for name, n in of if all((a, n) in of for a in ALGORITHMS)})
    small, large = sizes[0], sizes[-1]
    at = {name: of[name, large] for name in ALGORITHMS}
    gap = [of["RST", n].control_bytes - of["ours", n].control_bytes for n in (small, large)]
    ours, computing = at["ours"], {name: at[name].computation_us for name in ALGORITHMS}
    sized = {name: round(at[name].control_bytes) for name in ALGORITHMS}
    return [
        CausalClaim(
            "C2.1",
            "far smaller than RST and PRS, close to KS; the distance widens with n",
            f"bytes at n = {large}: {sized}; distance to RST {gap[0]:.0f} → {gap[1]:.0f}",
            2 * ours.control_bytes <= min(at["RST"].control_bytes, at["PRS"].control_bytes)
            and ours.control_bytes <= 1.1 * at["KS"].control_bytes
            and gap[1] > gap[0],
        ),
        CausalClaim(
            "C2.2",
            "delivery slightly quicker than RST and PRS, far quicker than KS",
            f"computation in µs at n = {large}: { {k: round(v) for k, v in computing.items()} }",
            computing["ours"] <= min(computing["RST"], computing["PRS"])
            and 3 * computing["ours"] <= computing["KS"],
        ),
    ]


def as_record(row: CausalRow) -> dict[str, object]:
    """Return a row with its derived columns, for a table."""
    return {**asdict(row), "delivery_ms": row.delivery_ms, "computation_us": row.computation_us}
