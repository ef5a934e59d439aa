"""Paper 2, C2.3 by its definition: an oracle that sees only sends, arrivals and deliveries.

It keeps a vector clock per process. A delivery is misordered if a message that was sent causally
after it was delivered there before. A copy that arrives within its lifetime must be delivered once
and within it; a late one must not be delivered. Times are compared with a tolerance of a
microsecond on either side, the resolution of the clocks.
"""

from __future__ import annotations

import math
from collections import Counter

from nearcast.ordering import Deliver, Output
from nearcast.papers.delta_causal.experiment import PAYLOAD, CausalPoint, CausalRun, Copy, Traffic
from nearcast.papers.form import Row

_GRAIN_S = 1.5e-6


class CausalOracle:
    """Happened-before by vector clocks; counts violations of the definition."""

    def __init__(self, processes: int, lifetime_s: float) -> None:
        self.lifetime_s = lifetime_s
        self.found: Counter[str] = Counter()
        self._knows = [[0] * processes for _ in range(processes)]
        self._effects = [[0] * processes for _ in range(processes)]
        self._sent: list[tuple[int, int, list[int], float]] = []
        self._due: set[tuple[int, int]] = set()
        self._delivered: set[tuple[int, int]] = set()

    def sends(self, sender: int, stamp_s: float) -> int:
        """Record a send; return its number."""
        before = self._knows[sender].copy()
        self._knows[sender][sender] += 1
        self._sent.append((sender, self._knows[sender][sender], before, stamp_s))
        return len(self._sent) - 1

    def arrives(self, to: int, number: int, now_s: float) -> None:
        """Record the arrival of a copy; if well within its lifetime, it must be delivered."""
        if now_s <= self._sent[number][3] + self.lifetime_s - _GRAIN_S:
            self._due.add((to, number))

    def delivers(self, to: int, number: int, now_s: float) -> None:
        """Judge a delivery."""
        sender, count, before, stamp_s = self._sent[number]
        self.found["delivered"] += 1
        self.found["misordered"] += self._effects[to][sender] >= count
        self.found["too_late"] += now_s > stamp_s + self.lifetime_s + _GRAIN_S
        self.found["doubled"] += (to, number) in self._delivered
        self._delivered.add((to, number))
        self._effects[to] = list(map(max, self._effects[to], before))
        self._knows[to] = list(map(max, self._knows[to], before))
        self._knows[to][sender] = max(self._knows[to][sender], count)

    def verdict(self) -> dict[str, int]:
        """Return all counts, including due copies that were never delivered."""
        self.found["missed"] = len(self._due - self._delivered)
        self.found["in_time"] = len(self._due)
        names = ("delivered", "in_time", "misordered", "missed", "too_late", "doubled")
        return {name: self.found[name] for name in names}


class _WatchedRun(CausalRun):
    """A run that the oracle observes."""

    def __init__(self, point: CausalPoint) -> None:
        super().__init__(point)
        self.oracle = CausalOracle(point.processes, point.lifetime_s)
        self._numbers: dict[tuple[int, int], int] = {}

    def send(self, sender: int, now_s: float) -> None:
        copies = self.group[sender].send(self.traffic.choose(sender), PAYLOAD, now_s)
        stamp_us = next(iter(copies.values())).sent_us
        number = self.oracle.sends(sender, stamp_us / 1e6)
        self._numbers[sender, stamp_us] = number
        for to, message in sorted((int(to), each.encode()) for to, each in copies.items()):
            self.traffic.travels(to, number, message, now_s)

    def receive(self, copy: Copy, now_s: float) -> None:
        self.oracle.arrives(copy.to, copy.number, now_s)
        self.note(copy.to, self.group[copy.to].receive(copy.message, now_s), now_s)
        self.wake_later(copy.to)

    def note(self, to: int, outputs: list[Output], now_s: float) -> None:
        for output in outputs:
            if isinstance(output, Deliver):
                message = output.message
                number = self._numbers[message.sender_number, message.sent_us]
                self.oracle.delivers(to, number, now_s)


def watched_row(point: CausalPoint) -> Row:
    """Run a point under the oracle; return a row of counts."""
    run = _WatchedRun(point)
    run.run_all()
    run.wake_until(math.inf)
    return _named(point) | {"loss": point.loss} | run.oracle.verdict()


def unordered_row(point: CausalPoint) -> Row:
    """Deliver the same traffic on arrival, if in time; count deliveries in the wrong order."""
    traffic, oracle = Traffic(point), CausalOracle(point.processes, point.lifetime_s)
    for now_s, what in traffic.events():
        if isinstance(what, int):
            number = oracle.sends(what, now_s)
            for to in sorted(traffic.choose(what)):
                traffic.travels(to, number, b"", now_s)
        elif now_s <= what.sent_s + point.lifetime_s:
            oracle.delivers(what.to, what.number, now_s)
    found = oracle.found
    return _named(point) | {"delivered": found["delivered"], "wrong": found["misordered"]}


def _named(point: CausalPoint) -> Row:
    named = {"algorithm": point.algorithm, "processes": point.processes, "pattern": point.pattern}
    return named | {"seed": point.seed}
