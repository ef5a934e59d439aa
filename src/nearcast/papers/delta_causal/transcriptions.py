"""The listings of paper 2 and its rivals in plain Python, step by step: sets and dictionaries.

Nothing here is packed or compiled. They deliver what the compiled algorithms deliver, at the same
instants. They show how the listings compare where each is executed as it is written, which is one
reading of claim C2.2: the paper does not say how its algorithms were implemented.

Read next: `claims.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from nearcast.papers.delta_causal.experiment import (
    PAYLOAD,
    SAMPLE,
    CausalPoint,
    CausalRun,
    Copy,
)
from nearcast.papers.form import Row

Wait = tuple[int, int]
"""A sender and the time of one of its messages, in microseconds."""
Rows = dict[int, dict[int, set[int]]]
"""By sender and time: the destinations where a message may not have been delivered."""


@dataclass(frozen=True, slots=True)
class PlainMessage:
    """A copy for one destination; `control` is whatever the algorithm carries."""

    sender: int
    sent_us: int
    destinations: frozenset[int]
    control: Any
    waits: tuple[Wait, ...]


class PlainProcess:
    """What all transcriptions share: time, waiting, delivery."""

    def __init__(self, process: int, lifetime: float, skew: float = 0.01) -> None:
        self.me = process
        self.lifetime_us = round(lifetime * 1e6)
        self.keep_us = self.lifetime_us + round(skew * 1e6)
        self.delivered: dict[int, int] = {}
        self.clock_us = self.now_us = -1
        self.held: list[PlainMessage] = []

    @property
    def holding(self) -> int:
        """How many messages wait."""
        return len(self.held)

    def send(self, destinations: set[int], _payload: bytes, now: float) -> dict[int, PlainMessage]:
        """Return one copy for each destination."""
        now_us = int(now * 1e6 + 0.5)
        self.clock_us = sent_us = max(now_us, self.clock_us + 1)
        copies = self.copies(frozenset(destinations), now_us)
        return {
            to: PlainMessage(self.me, sent_us, frozenset(destinations), control, tuple(waits))
            for to, (control, waits) in copies.items()
        }

    def receive(self, message: PlainMessage, now: float) -> list[PlainMessage]:
        """Return what is delivered now that a message has arrived."""
        now_us = int(now * 1e6 + 0.5)
        is_new = message.sent_us > self.delivered.get(message.sender, -1)
        if now_us <= message.sent_us + self.lifetime_us and is_new:
            self.held.append(message)
        return self.advance(now)

    def advance(self, now: float) -> list[PlainMessage]:
        """Return what is delivered now; what has expired is discarded."""
        self.now_us = now_us = int(now * 1e6 + 0.5)
        out: list[PlainMessage] = []
        while free := next((one for one in self.held if not self.open_waits(one, now_us)), None):
            self.held.remove(free)
            self.delivered[free.sender] = free.sent_us
            self.clock_us = max(self.clock_us, free.sent_us)
            self.learn(free, now_us)
            out.append(free)
        self.held = [one for one in self.held if now_us <= one.sent_us + self.lifetime_us]
        return out

    def wake_at(self) -> float | None:
        """Return when the first predecessor of a message that waits expires."""
        times = [at_us for one in self.held for _, at_us in self.open_waits(one, self.now_us)]
        return (min(times) + self.lifetime_us + 1) / 1e6 if times else None

    def open_waits(self, message: PlainMessage, now_us: int) -> list[Wait]:
        """Return what a message still has to wait for."""
        return [
            (k, at_us)
            for k, at_us in message.waits
            if at_us > self.delivered.get(k, -1) and at_us + self.lifetime_us >= now_us
        ]

    def copies(
        self, destinations: frozenset[int], now_us: int
    ) -> dict[int, tuple[Any, list[Wait]]]:
        """Return control information and waits for each destination, and note the send."""
        raise NotImplementedError

    def learn(self, message: PlainMessage, now_us: int) -> None:
        """Take over what a delivered message knows."""
        raise NotImplementedError


def merge_rows(mine: Rows, theirs: Rows) -> None:
    """Merge rows by sender: what one side has dropped and the other knows to be older, goes."""
    for k, their_row in theirs.items():
        my_row = mine.setdefault(k, {})
        my_last, their_last = max(my_row, default=-1), max(their_row, default=-1)
        for at_us in [*my_row]:
            if at_us in their_row:
                my_row[at_us] &= their_row[at_us]
            elif at_us <= their_last:
                del my_row[at_us]
        for at_us, open_at in their_row.items():
            if at_us > my_last:
                my_row[at_us] = set(open_at)
        served: set[int] = set()
        for at_us in sorted(my_row, reverse=True):
            my_row[at_us] -= served
            served |= my_row[at_us]


def purge(rows: Rows, dead_us: int) -> None:
    """Drop what has expired, and empty entries that are older than another of their sender."""
    for k, row in [*rows.items()]:
        last_us = max(row, default=-1)
        for at_us, open_at in [*row.items()]:
            if at_us < dead_us or (not open_at and at_us < last_us):
                del row[at_us]
        if not row:
            del rows[k]


class PlainJang(PlainProcess):
    """Paper 2 as it is written, with the repairs of traps T2.1 and T2.5."""

    def __init__(self, process: int, lifetime: float) -> None:
        super().__init__(process, lifetime)
        self.ci: Rows = {}

    def copies(
        self, destinations: frozenset[int], now_us: int
    ) -> dict[int, tuple[Any, list[Wait]]]:
        """Paper 2, sending, steps 1 to 5."""
        waits: dict[int, list[Wait]] = {to: [] for to in destinations}
        for k, row in self.ci.items():
            for at_us, open_at in row.items():
                if at_us >= now_us - self.keep_us:
                    for to in destinations & open_at:
                        waits[to].append((k, at_us))
                open_at.difference_update(destinations)
        purge(self.ci, now_us - self.keep_us)
        control = {k: {at: frozenset(to) for at, to in row.items()} for k, row in self.ci.items()}
        self.ci.setdefault(self.me, {})[self.clock_us] = set(destinations)
        return {to: (control, waits[to]) for to in destinations}

    def learn(self, message: PlainMessage, now_us: int) -> None:
        """Paper 2, receiving, steps 4 to 6; the message itself is entered first (T2.1)."""
        theirs = {k: {at: set(to) for at, to in row.items()} for k, row in message.control.items()}
        theirs.setdefault(message.sender, {})[message.sent_us] = set(message.destinations) - {
            self.me
        }
        merge_rows(self.ci, theirs)
        purge(self.ci, now_us - self.keep_us)


class PlainKs(PlainProcess):
    """Kshemkalyani and Singhal: a log of its own for each destination."""

    def __init__(self, process: int, lifetime: float) -> None:
        super().__init__(process, lifetime)
        self.log: Rows = {}

    def copies(
        self, destinations: frozenset[int], now_us: int
    ) -> dict[int, tuple[Any, list[Wait]]]:
        """For each destination: the log, in which it alone is left of all destinations."""
        found: dict[int, tuple[Any, list[Wait]]] = {}
        purge(self.log, now_us - self.keep_us)
        for to in destinations:
            log = {
                k: {
                    at: (open_at - destinations) | ({to} if to in open_at else set())
                    for at, open_at in row.items()
                }
                for k, row in self.log.items()
            }
            purge(log, now_us - self.keep_us)
            waits = [(k, at) for k, row in log.items() for at, left in row.items() if to in left]
            found[to] = (log, waits)
        for row in self.log.values():
            for open_at in row.values():
                open_at.difference_update(destinations)
        purge(self.log, now_us - self.keep_us)
        self.log.setdefault(self.me, {})[self.clock_us] = set(destinations)
        return found

    def learn(self, message: PlainMessage, now_us: int) -> None:
        """Merge the log of the message, without us, and the message itself."""
        theirs = {
            k: {at: to - {self.me} for at, to in row.items()} for k, row in message.control.items()
        }
        theirs.setdefault(message.sender, {})[message.sent_us] = set(message.destinations) - {
            self.me
        }
        merge_rows(self.log, theirs)
        purge(self.log, now_us - self.keep_us)


class PlainPrs(PlainProcess):
    """Prakash, Raynal and Singhal: for each destination the messages that it directly follows."""

    stands_in = True

    def __init__(self, process: int, lifetime: float) -> None:
        super().__init__(process, lifetime)
        self.last: dict[int, dict[int, int]] = {}  # by destination and sender: the time

    def copies(
        self, destinations: frozenset[int], now_us: int
    ) -> dict[int, tuple[Any, list[Wait]]]:
        """Carry all of it; what goes to a destination follows what is noted for it."""
        alive_us = now_us - self.keep_us
        control = {
            to: {k: at for k, at in row.items() if at >= alive_us} for to, row in self.last.items()
        }
        waits = {to: list(control.get(to, {}).items()) for to in destinations}
        for to in destinations:
            row = self.last.setdefault(to, {})
            if self.stands_in:
                row.clear()
            row[self.me] = self.clock_us
        return {to: (control, waits[to]) for to in destinations}

    def learn(self, message: PlainMessage, now_us: int) -> None:
        """Take the later time of each; where the message stands in, only its own."""
        for to, their_row in message.control.items():
            if self.stands_in and to in message.destinations:
                continue
            row = self.last.setdefault(to, {})
            for k, at_us in their_row.items():
                row[k] = max(at_us, row.get(k, -1))
        for to in message.destinations:
            self.last.setdefault(to, {})[message.sender] = message.sent_us
        alive_us = now_us - self.keep_us
        for to, row in self.last.items():
            self.last[to] = {k: at for k, at in row.items() if at >= alive_us}


class PlainRst(PlainPrs):
    """Raynal, Schiper and Toueg: the matrix of all last sends; nothing stands in for anything."""

    stands_in = False


TRANSCRIPTIONS: Final[dict[str, type[PlainProcess]]] = {
    "paper": PlainJang,
    "KS": PlainKs,
    "PRS": PlainPrs,
    "RST": PlainRst,
}


class _TranscribedRun(CausalRun):
    """Counts deliveries and processor time of messages that stay in memory."""

    def __init__(self, point: CausalPoint, clock: Callable[[], float]) -> None:
        super().__init__(point, TRANSCRIPTIONS)
        self.clock = clock
        self.number = self.arrivals = self.timed_sends = self.timed_arrivals = self.delivered = 0
        self.send_s = self.receive_s = self.transit_s = 0.0
        self.copies: list[dict[int, PlainMessage]] = []

    def send(self, sender: int, now_s: float) -> None:
        wanted = self.traffic.choose(sender)
        timed = self.number >= self.point.warm_up and self.number % SAMPLE == 0
        start = self.clock() if timed else 0.0
        self.copies.append(self.group[sender].send(wanted, PAYLOAD, now_s))
        if timed:
            self.timed_sends += 1
            self.send_s += self.clock() - start
        for to in sorted(wanted):
            self.traffic.travels(to, self.number, b"", now_s)
        self.number += 1

    def receive(self, copy: Copy, now_s: float) -> None:
        process, message = self.group[copy.to], self.copies[copy.number].pop(copy.to)
        self.arrivals += 1
        timed = self.number > self.point.warm_up and self.arrivals % SAMPLE == 0
        start = self.clock() if timed else 0.0
        delivered = process.receive(message, now_s)
        if timed:
            self.timed_arrivals += 1
            self.receive_s += self.clock() - start
        self.note(copy.to, delivered, now_s)
        if process.holding:
            self.wake_later(copy.to)

    def note(self, _to: int, outputs: list[Any], now_s: float) -> None:
        if self.number > self.point.warm_up:
            self.delivered += len(outputs)
            self.transit_s += sum(now_s - one.sent_us / 1e6 for one in outputs)


def run_transcribed(point: CausalPoint, *, clock: Callable[[], float] = time.process_time) -> Row:
    """Run one point with plain Python; deterministic except for processor times."""
    run = _TranscribedRun(point, clock)
    run.run_all()
    send_us = 1e6 * run.send_s / max(1, run.timed_sends)
    receive_us = 1e6 * run.receive_s / max(1, run.timed_arrivals)
    return {
        "algorithm": point.algorithm,
        "processes": point.processes,
        "pattern": point.pattern,
        "lifetime_s": point.lifetime_s,
        "seed": point.seed,
        "sends": point.sends,
        "delivered": run.delivered,
        "transit_ms": 1e3 * run.transit_s / max(1, run.delivered),
        "send_us": send_us,
        "receive_us": receive_us,
        "computation_us": send_us + receive_us,
    }
