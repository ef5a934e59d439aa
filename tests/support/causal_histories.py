"""A world for causal processes, and an oracle that knows only the definition.

The world keeps true time in whole microseconds, gives every process a clock of its own, and
loses, delays, reorders and doubles copies. The oracle is told of sends, arrivals and outputs;
it never looks inside a process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from random import Random

from nearcast.ordering import (
    CausalMessage,
    CausalProcess,
    Deliver,
    DiscardReason,
    Output,
    ProcessId,
)


def number_of(process: ProcessId) -> int:
    """Return the number of a process, which may have a name made of it: 7 or "n7"."""
    return int(str(process).removeprefix("n"))


class Broken(AssertionError):  # noqa: N818 - it names a finding
    """The oracle found something that the definition forbids."""


@dataclass
class Sent:
    index: int
    sender: int
    stamp_us: int
    own_us: int  # its own lifetime, or the group's
    past: int  # bit set of the messages that happened before it
    destinations: frozenset[int]


@dataclass
class Life:
    """One stay of a process in the group, from joining to leaving."""

    process: int
    number: int
    past: int = 0
    before: int = 0  # everything that happened before something delivered here
    arrived_us: dict[int, int] = field(default_factory=dict)
    delivered_us: dict[int, int] = field(default_factory=dict)
    discarded_us: dict[int, int] = field(default_factory=dict)
    ended_us: int | None = None


class Oracle:
    """Happened-before as bit sets of messages; promised instants from the definition."""

    def __init__(self, lifetime_us: int, skew_us: int) -> None:
        self.lifetime_us = lifetime_us
        self.skew_us = skew_us
        self.sent: list[Sent] = []
        self.by_stamp: dict[tuple[int, int], int] = {}
        self.lives: list[Life] = []
        self.deliveries = 0
        self.expected_discards = 0

    def joins(self, process: int) -> Life:
        self.lives.append(Life(process, len(self.lives)))
        return self.lives[-1]

    def sends(self, life: Life, copies: dict[int, CausalMessage], now_us: int, own_us: int) -> int:
        index = len(self.sent)
        stamp_us = next(iter(copies.values())).sent_us
        for earlier in self.sent:
            if life.past >> earlier.index & 1 and earlier.stamp_us >= stamp_us:
                raise Broken("a stamp that does not grow along a causal chain")
        if not now_us <= stamp_us <= now_us + self.skew_us:
            raise Broken("a stamp away from the sender's clock")
        self.sent.append(Sent(index, life.process, stamp_us, own_us, life.past, frozenset(copies)))
        self.by_stamp[life.process, stamp_us] = index
        life.past |= 1 << index
        return index

    def arrives(self, life: Life, index: int, now_us: int) -> None:
        life.arrived_us.setdefault(index, now_us)

    def says(self, life: Life, outputs: list[Output], now_us: int) -> None:
        for output in outputs:
            message = output.message
            index = self.by_stamp[number_of(message.sender), message.sent_us]
            if isinstance(output, Deliver):
                self._delivered(life, index, now_us)
            elif output.reason not in (
                DiscardReason.LATE,
                DiscardReason.DUPLICATE,
                DiscardReason.WAITED_TOO_LONG,
            ):
                raise Broken(f"discarded without cause: {output.reason}")
            elif output.reason is not DiscardReason.DUPLICATE:
                life.discarded_us.setdefault(index, now_us)

    def _delivered(self, life: Life, index: int, now_us: int) -> None:
        if index in life.delivered_us:
            raise Broken("delivered twice")
        if life.before >> index & 1:
            raise Broken("delivered after an effect of it")
        life.delivered_us[index] = now_us
        life.before |= self.sent[index].past
        life.past |= self.sent[index].past | 1 << index
        self.deliveries += 1

    def verdict(self) -> None:
        """Compare what happened with what was promised, to the microsecond."""
        for life in self.lives:
            self._judge(life)

    def _judge(self, life: Life) -> None:
        settled: dict[int, int] = {}
        for sent in self.sent:  # in order of true time, hence causes first
            if life.process not in sent.destinations:
                continue
            settled[sent.index] = sent.stamp_us + self.lifetime_us + 1
            arrived_us = life.arrived_us.get(sent.index)
            if arrived_us is None:
                continue
            deadline_us = sent.stamp_us + min(sent.own_us, self.lifetime_us)
            waits = [settled[p] for p in settled if sent.past >> p & 1]
            due_us = max([arrived_us, *waits])
            if due_us <= deadline_us:
                settled[sent.index] = due_us
                self._expect(life, sent, due_us)
            else:
                self.expected_discards += 1
                self._expect_discard(life, sent, max(arrived_us, deadline_us + 1))

    def _expect(self, life: Life, sent: Sent, due_us: int) -> None:
        if life.ended_us is not None and due_us >= life.ended_us:
            return
        got_us = life.delivered_us.get(sent.index)
        if got_us != due_us:
            raise Broken(f"message {sent.index} at {life.process}: due {due_us}, was {got_us}")

    def _expect_discard(self, life: Life, sent: Sent, due_us: int) -> None:
        if sent.index in life.delivered_us:
            raise Broken("delivered after its lifetime")
        if life.ended_us is not None and due_us >= life.ended_us:
            return
        if life.discarded_us.get(sent.index) != due_us:
            raise Broken(f"message {sent.index}: not discarded at {due_us}")


@dataclass
class Circumstances:
    """What a history is like; everything else follows from the seed."""

    processes: int
    sends: int
    loss: float
    doubled: float
    mean_gap_us: int
    mean_delay_us: int
    stragglers: bool
    lifetime_us: int
    skew_us: int
    grouped: bool
    most_destinations: int
    short_lived: float
    leaving: float
    on_the_wire: bool


def circumstances(seed: int) -> Circumstances:
    """Mostly few processes close in time, sometimes many: small domains make ties."""
    random = Random(seed)
    processes = random.choice([2, 3, 3, 4, 4, 5, 6, 8, 12, 64 if seed % 20 == 0 else 10])
    lifetime_us = random.choice([300, 5_000, 250_000])
    return Circumstances(
        processes=processes,
        sends=random.choice([60, 200]) if processes < 12 else 60,
        loss=random.choice([0, 0, 0.1, 0.3]),
        doubled=random.choice([0, 0.1]),
        mean_gap_us=max(1, lifetime_us // random.choice([2, 5, 20, 20, 60])),
        mean_delay_us=max(1, lifetime_us // random.choice([1, 2, 4, 10])),
        stragglers=random.random() < 0.5,
        lifetime_us=lifetime_us,
        skew_us=random.choice([0, 0, lifetime_us // 10, lifetime_us // 3, lifetime_us]),
        grouped=random.random() < 0.3,
        most_destinations=random.choice([1, 2, 2, 6]),
        short_lived=random.choice([0, 0, 0.2]),
        leaving=random.choice([0, 0, 0.05]),
        on_the_wire=random.random() < 0.5,
    )


def chains(seed: int) -> Circumstances:
    """Few processes, dense traffic, quick chains beside slow or lost copies, clocks far apart."""
    random = Random(seed)
    lifetime_us = 5_000
    return replace(
        circumstances(seed),
        processes=random.choice([3, 4, 5]),
        sends=250,
        loss=random.choice([0.1, 0.3]),
        mean_gap_us=lifetime_us // random.choice([20, 40]),
        stragglers=True,
        lifetime_us=lifetime_us,
        skew_us=random.choice([0, lifetime_us // 4, lifetime_us // 2]),
        grouped=False,
        most_destinations=2,
        leaving=0,
    )


Maker = Callable[..., CausalProcess]
Wire = Callable[[bytes], CausalMessage | bytes]
"""What a process gets for the bytes that arrive: a message, or the same bytes."""


class CausalWorld:
    """Run one seeded history of processes made by `maker` and let the oracle watch."""

    BURST_US = 20  # stamps may run ahead of the clock when many events share an instant

    def __init__(
        self, seed: int, maker: Maker, what: Circumstances, wire: Wire = CausalMessage.decode
    ) -> None:
        self.random = Random(seed)
        self.maker = maker
        self.wire = wire
        self.what = what
        self.allowed_us = what.skew_us + self.BURST_US
        self.oracle = Oracle(what.lifetime_us, self.allowed_us)
        self.queue: list[tuple[int, int, Callable[[], None]]] = []
        self.serial = 0
        self.now_us = 10 * what.lifetime_us + 1_000_000
        half = what.skew_us // 2
        self.offset_us = [self.random.randint(-half, half) for _ in range(what.processes)]
        self.groups = [self._some(range(what.processes)) for _ in range(4)]
        self.process: dict[int, CausalProcess] = {}
        self.life: dict[int, Life] = {}
        self.away: set[int] = set()
        for number in range(what.processes):
            if number >= 2 and self.random.random() < 0.1:
                self.at(self.random.randint(0, what.sends * what.mean_gap_us), self.joining(number))
            else:
                self.joining(number)()

    def _some(self, among: range) -> list[int]:
        return self.random.sample(list(among), self.random.randint(1, max(1, len(among) - 1)))

    def at(self, delay_us: int, action: Callable[[], None]) -> None:
        self.serial += 1
        heappush(self.queue, (self.now_us + delay_us, self.serial, action))

    def local_us(self, number: int) -> int:
        return self.now_us + self.offset_us[number]

    def run(self) -> Oracle:
        instant_us = 0
        for _ in range(self.what.sends):
            instant_us += int(self.random.expovariate(1 / self.what.mean_gap_us))
            self.at(instant_us, self.sending)
        while self.queue:
            self.now_us, _, action = heappop(self.queue)
            action()
        self.oracle.verdict()
        return self.oracle

    def joining(self, number: int) -> Callable[[], None]:
        def join() -> None:
            self.process[number] = self.maker(
                process=number,
                lifetime=self.what.lifetime_us / 1e6,
                skew=self.allowed_us / 1e6,
            )
            self.life[number] = self.oracle.joins(number)
            self.away.discard(number)

        return join

    def leave(self, number: int) -> None:
        self.life[number].ended_us = self.local_us(number)
        del self.process[number], self.life[number]
        self.away.add(number)
        for other in list(self.process):
            if self.random.random() < 0.8:
                delay_us = self.random.randint(0, self.what.lifetime_us)
                self.at(delay_us, lambda other=other: self.forgetting(other, number))  # type: ignore[misc]
        absence_us = 3 * (self.what.lifetime_us + self.allowed_us) + self.what.skew_us
        self.at(absence_us + 1, self.joining(number))

    def forgetting(self, other: int, gone: int) -> None:
        if other in self.process and gone in self.away:
            self.process[other].forget(gone)

    def sending(self) -> None:
        present = sorted(self.process)
        if len(present) < 2:
            return
        if self.random.random() < self.what.leaving and len(present) > 2:
            self.leave(self.random.choice(present))
            return
        number = self.random.choice(present)
        self._send(number, self._destinations(number, present))

    def _destinations(self, number: int, present: list[int]) -> set[int]:
        others = [p for p in range(self.what.processes) if p != number]
        wanted = set(
            self.random.sample(
                others, self.random.randint(1, min(len(others), self.what.most_destinations))
            )
        )
        if self.what.grouped:
            wanted = set(self.random.choice(self.groups)) & set(others) or wanted
        elif self.random.random() < 0.1:
            wanted = set(others)
        return wanted

    def _send(self, number: int, destinations: set[int]) -> None:
        now_us, own_us = self.local_us(number), self.what.lifetime_us
        if self.random.random() < self.what.short_lived:
            own_us = self.random.randint(1, own_us)
        copies = self.process[number].send(destinations, b"x", now_us / 1e6, lifetime=own_us / 1e6)
        index = self.oracle.sends(self.life[number], copies, now_us, own_us)  # type: ignore[arg-type]
        for to, message in copies.items():
            times = 2 if self.random.random() < self.what.doubled else 1
            for _ in range(times):
                if self.random.random() >= self.what.loss:
                    self._travel(int(to), index, message)

    def _travel(self, to: int, index: int, message: CausalMessage) -> None:
        arrived = self.wire(message.encode()) if self.what.on_the_wire else message
        self.at(self._delay_us(), lambda: self.arriving(to, index, arrived))

    def _delay_us(self) -> int:
        """Draw a delay; chains of quick copies that overtake a slow one are what order is for."""
        lifetime_us = self.what.lifetime_us
        if self.random.random() < 0.05:
            return self.random.choice([1, lifetime_us, lifetime_us + 1])
        if not self.what.stragglers:
            return 1 + int(self.random.expovariate(1 / self.what.mean_delay_us))
        if self.random.random() < 0.6:
            return 1 + self.random.randint(0, lifetime_us // 40)
        return 1 + self.random.randint(lifetime_us // 2, lifetime_us * 6 // 5)

    def arriving(self, to: int, index: int, message: CausalMessage | bytes) -> None:
        if to in self.process:
            now_us = self.local_us(to)
            self.oracle.arrives(self.life[to], index, now_us)
            self.oracle.says(self.life[to], self.process[to].receive(message, now_us / 1e6), now_us)
            self._wake_later(to)

    def _wake_later(self, number: int) -> None:
        wake = self.process[number].wake_at()
        if wake is not None:
            delay_us = round(wake * 1e6) - self.local_us(number)
            if delay_us <= 0:
                raise Broken("it wants waking at a time that is past")
            life = self.life[number]
            self.at(delay_us, lambda: self.waking(number, life))

    def waking(self, number: int, life: Life) -> None:
        if self.life.get(number) is life:
            now_us = self.local_us(number)
            self.oracle.says(life, self.process[number].advance(now_us / 1e6), now_us)
            self._wake_later(number)


def run_history(seed: int, maker: Maker, wire: Wire = CausalMessage.decode) -> Oracle:
    return CausalWorld(seed, maker, circumstances(seed), wire).run()


def run_chains(seed: int, maker: Maker) -> Oracle:
    return CausalWorld(seed, maker, chains(seed)).run()
