"""Paper 2: the control information and the time that Δ-causal order costs.

One point is one run of a simulated group: n processes, each sending at exponential intervals,
over a channel with exponential delay and loss. Everything except the measured processor time
follows from the seed. Where the paper is open, we set:

    delay        0.01 s plus an exponential part of mean 0.04 s; 1 % of copies are lost
    lifetime     0.25 s, the paper's video conference
    destinations `subsets`: each time a random set of 1 to n-1 others
                 `groups`: each process belongs to two of n/4 fixed groups of eight or fewer
                 members and sends to one of them
    expiry       all five algorithms: a predecessor counts as settled when its lifetime is
                 over, and nothing older than lifetime plus skew is kept or carried
    message      one multicast send; bytes are those of one copy without the payload

Read next: `claims.py` (verdicts) and `oracle.py` (C2.3).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random
from typing import Any, Final, NamedTuple

from nearcast.model.errors import UnknownNameError
from nearcast.ordering import CausalProcess, Deliver, DeltaCausal, Output
from nearcast.papers.delta_causal import (
    JangAsWritten,
    KshemkalyaniSinghal,
    PrakashRaynalSinghal,
    RaynalSchiperToueg,
)
from nearcast.papers.form import Row

ALGORITHMS: Final[dict[str, type[CausalProcess]]] = {
    "ours": DeltaCausal,
    "paper": JangAsWritten,
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


class CausalRun:
    """A group of processes in its traffic; a subclass decides what is counted."""

    def __init__(
        self, point: CausalPoint, kinds: Mapping[str, Callable[..., Any]] = ALGORITHMS
    ) -> None:
        if point.algorithm not in kinds:
            known = ", ".join(kinds)
            raise UnknownNameError(point.algorithm, where="algorithm", expected=known)
        self.point = point
        kind = kinds[point.algorithm]
        self.group = [kind(process=p, lifetime=point.lifetime_s) for p in range(point.processes)]
        self.traffic = Traffic(point)
        self._wakes: list[tuple[float, int]] = []
        self._next_wake_s = [_NEVER_S] * point.processes

    def run_all(self) -> None:
        """Run all sends and arrivals in order of time."""
        for now_s, what in self.traffic.events():
            self.wake_until(now_s)
            if isinstance(what, int):
                self.send(what, now_s)
            else:
                self.receive(what, now_s)

    def wake_until(self, now_s: float) -> None:
        """Wake all processes that are due."""
        while self._wakes and self._wakes[0][0] <= now_s:
            at_s, number = heappop(self._wakes)
            if self._next_wake_s[number] == at_s:
                self._next_wake_s[number] = _NEVER_S
                self.note(number, self.group[number].advance(at_s), at_s)
                self.wake_later(number)

    def wake_later(self, number: int) -> None:
        """Schedule the next wake of a process that waits for something."""
        wake_s = self.group[number].wake_at()
        if wake_s is not None and wake_s < self._next_wake_s[number]:
            self._next_wake_s[number] = wake_s
            heappush(self._wakes, (wake_s, number))

    def send(self, sender: int, now_s: float) -> None:
        """Send a process's next message."""
        raise NotImplementedError

    def receive(self, copy: Copy, now_s: float) -> None:
        """Pass a copy to the process that it is for."""
        raise NotImplementedError

    def note(self, to: int, outputs: list[Output], now_s: float) -> None:
        """Count what a process delivers and discards."""
        raise NotImplementedError


class _MeasuredRun(CausalRun):
    """Counts bytes, deliveries and processor time, after the warm-up."""

    def __init__(self, point: CausalPoint, clock: Callable[[], float]) -> None:
        super().__init__(point)
        self.clock = clock
        self.number = 0  # of the next send
        self.measuring = False
        self.sends = self.copies = self.delivered = self.discarded = self.held = 0
        self.bytes = self.arrivals = self.timed_sends = self.timed_copies = self.timed_arrivals = 0
        self.transit_s = self.send_s = self.encode_s = self.receive_s = 0.0

    def send(self, sender: int, now_s: float) -> None:
        wanted = self.traffic.choose(sender)
        self.measuring = self.number >= self.point.warm_up
        timed = self.measuring and self.number % SAMPLE == 0
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
        for to, data in sorted(encoded):
            self.traffic.travels(to, self.number, data, now_s)
        self.number += 1

    def receive(self, copy: Copy, now_s: float) -> None:
        process = self.group[copy.to]
        self.arrivals += 1
        timed = self.measuring and self.arrivals % SAMPLE == 0
        start = self.clock() if timed else 0.0
        outputs = process.receive(copy.message, now_s)
        if timed:
            self.timed_arrivals += 1
            self.receive_s += self.clock() - start
        self.note(copy.to, outputs, now_s)
        self.held += self.measuring and not outputs
        if process.holding:
            self.wake_later(copy.to)

    def note(self, _to: int, outputs: list[Output], now_s: float) -> None:
        for output in outputs if self.measuring else ():
            if isinstance(output, Deliver):
                self.delivered += 1
                self.transit_s += now_s - output.message.sent
            else:
                self.discarded += 1

    def row(self) -> Row:
        point = self.point
        send_us = 1e6 * self.send_s / max(1, self.timed_sends)
        encode_us = 1e6 * self.encode_s / max(1, self.timed_copies)
        receive_us = 1e6 * self.receive_s / max(1, self.timed_arrivals)
        transit_ms = 1e3 * self.transit_s / max(1, self.delivered)
        computation_us = send_us + encode_us + receive_us
        return {
            "algorithm": point.algorithm,
            "processes": point.processes,
            "pattern": point.pattern,
            "lifetime_s": point.lifetime_s,
            "seed": point.seed,
            "sends": self.sends,
            "copies": self.copies,
            "delivered": self.delivered,
            "discarded": self.discarded,
            "held": self.held,
            "control_bytes": self.bytes / max(1, self.copies),
            "transit_ms": transit_ms,
            "send_us": send_us,
            "encode_us": encode_us,
            "receive_us": receive_us,
            "computation_us": computation_us,
            "delivery_ms": transit_ms + computation_us / 1000,
        }


def run_point(point: CausalPoint, *, clock: Callable[[], float] = time.process_time) -> Row:
    """Run one point. Deterministic except for the columns of processor time.

    `receive_us` includes decoding; `computation_us` is all processor time of a message on its way
    to one destination, `delivery_ms` the mean time from send to delivery: network, waiting and
    computation.
    """
    run = _MeasuredRun(point, clock)
    run.run_all()
    return run.row()
