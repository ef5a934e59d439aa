"""What the four algorithms have in common: time, checks, waiting, releasing.

An algorithm adds three things: what a copy carries (`_compose`), what it must wait for
(`_waits_of`), and what its delivery teaches (`_absorb`).

Rules of this file:
    1. Times come in as seconds and are whole microseconds from there on.
    2. A message is in time up to and including its deadline.
    3. All checks come before the first change: a call that raises has changed nothing.
    4. Stamps grow along every causal chain, whatever the clocks say: a send is stamped
       later than everything its sender has delivered (a hybrid logical clock).

Read next: delta_causal.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import isfinite
from typing import ClassVar, Final

from nearcast.model.errors import MisuseError, OutOfRangeError
from nearcast.ordering.message import (
    MICROSECONDS,
    Algorithm,
    Body,
    Cast,
    Deliver,
    Discard,
    Message,
    Output,
    ProcessId,
    Reason,
    Wait,
)
from nearcast.ordering.names import Names
from nearcast.ordering.wire import Row, numbers_in, time_width

DEFAULT_SKEW_S: Final = 0.01
"""What synchronised clocks on the Internet may differ (paper, section 2.2: 5 to 10 ms)."""

_LAST_INSTANT_S: Final = 9_000_000_000.0  # whole microseconds are exact in a float up to here


@dataclass(slots=True)
class Counters:
    """What has happened so far."""

    sent: int = 0
    delivered: int = 0
    held: int = 0
    skew_violations: int = 0
    discarded: dict[Reason, int] = field(default_factory=lambda: dict.fromkeys(Reason, 0))


class _Held:
    """A message that waits; `wait` is the one predecessor that is watched for it."""

    __slots__ = ("deadline_us", "message", "wait", "waits", "wake_us")

    def __init__(self, message: Message, waits: tuple[Wait, ...], deadline_us: int) -> None:
        self.message = message
        self.waits = waits
        self.deadline_us = deadline_us
        self.wait: Wait | None = None
        self.wake_us = 0


class CausalProcess(ABC):
    """One process of a causal group.

    Contract:
        - `now` is the process's own clock and never runs backwards;
        - all processes of the group have the same `lifetime` and `skew`;
        - clocks of any two processes differ by at most `skew`;
        - a runtime that calls `advance` at every `wake_at()` delivers in time every message
          that arrives in time.

    A message stamped further ahead than `skew` is discarded and counted: it would drag our
    own stamps ahead. One stamped ahead within `skew` counts as sent just now.

    Complexity: n senders alive within the lifetime, e entries known of each (1 to 2 in
    practice), f destinations: `send` O(n e + f), `receive` O(n e) at worst, less what is
    equal on both sides; memory O(n e + held messages).
    """

    algorithm: ClassVar[Algorithm]

    def __init__(
        self,
        process: ProcessId,
        lifetime: float,
        *,
        skew: float = DEFAULT_SKEW_S,
        processes: Iterable[ProcessId] | None = None,
    ) -> None:
        self._lifetime_us = _duration_us(lifetime, "lifetime", least_us=1)
        self._skew_us = _duration_us(skew, "skew", least_us=0)
        self._keep_us = self._lifetime_us + self._skew_us
        self._width = time_width(self._keep_us + 2 * self._skew_us)
        self._names = Names(process, processes)
        self.process = process
        self.counters = Counters()
        self._me = self._names.own
        self._my_bit = 1 << self._me
        self._rows: dict[int, Row] = {}
        self._delivered: dict[int, int] = {}
        self._offsets: dict[ProcessId, float] = {}
        self._now_us = -1
        self._since_us = -1
        self._clock_us = -1
        self._last_sent_us = -1
        self._sweep_us = 0
        self._held: dict[Wait, _Held] = {}
        self._watched: dict[int, list[_Held]] = {}
        self._timers: list[tuple[int, int, _Held]] = []
        self._serial = 0

    @property
    def lifetime(self) -> float:
        """The group's lifetime Δ in seconds."""
        return self._lifetime_us / MICROSECONDS

    @property
    def holding(self) -> int:
        """How many messages wait at this moment."""
        return len(self._held)

    @property
    def footprint(self) -> int:
        """How many entries are kept at this moment; what is alive within the lifetime bounds it."""
        entries = sum(len(row.entries) for row in self._rows.values())
        return entries + len(self._delivered) + len(self._held) + len(self._timers)

    @property
    def offsets(self) -> dict[ProcessId, float]:
        """The clock offsets that were measured, in seconds, by process."""
        return dict(self._offsets)

    # -- sending ---------------------------------------------------------------------------

    def send(
        self,
        destinations: Iterable[ProcessId],
        payload: bytes,
        now: float,
        *,
        lifetime: float | None = None,
    ) -> dict[ProcessId, Message]:
        """Return one copy for each destination.

        `lifetime` may be shorter than the group's: the message is then discarded at its end
        if it still waits. How long others wait for it stays the same (trap T2.7).
        """
        now_us = self._instant_us(now)
        own_us = 0 if lifetime is None else self._own_lifetime_us(lifetime)
        numbers = self._numbers_of(destinations)
        payload = _bytes_of(payload)
        self._passes(now_us)
        bits = 0
        for number in numbers:
            bits |= 1 << number
        sent_us = max(now_us, self._clock_us + 1)
        cast = Cast(self.algorithm, self._me, sent_us, bits, own_us, self._names.table, payload)
        copies = self._compose(cast, numbers, now_us)
        self._clock_us = self._last_sent_us = sent_us
        self.counters.sent += 1
        if cast.names:
            return {message.destination: message for message in copies}
        return {message.to: message for message in copies}

    @abstractmethod
    def _compose(self, cast: Cast, numbers: list[int], now_us: int) -> list[Message]:
        """Return the copies with their control information, and note that they were sent."""

    # -- receiving -------------------------------------------------------------------------

    def receive(self, message: Message, now: float) -> list[Output]:
        """Return what is to be delivered or discarded now that `message` has arrived."""
        now_us = self._instant_us(now)
        self._passes(now_us)
        outputs: list[Output] = []
        if self._timers and self._timers[0][0] <= now_us:
            self._release_due(now_us, outputs)
        if message.cast.names != self._names.table:
            renumbered = self._renumbered(message)
            if renumbered is None:
                return [*outputs, self._discard(message, Reason.UNKNOWN_PROCESS)]
            message = renumbered
        reason = self._refusal(message, now_us)
        if reason is not None:
            return [*outputs, self._discard(message, reason)]
        waits = self._waits_of(message)
        wait = self._unsettled(waits, now_us) if waits else None
        if wait is None:
            self._deliver(message, now_us, outputs)
        else:
            self._hold(_Held(message, waits, self._deadline_us(message)), wait)
        return outputs

    def advance(self, now: float) -> list[Output]:
        """Return what is to be delivered or discarded because time has passed."""
        now_us = self._instant_us(now)
        self._passes(now_us)
        outputs: list[Output] = []
        self._release_due(now_us, outputs)
        return outputs

    def wake_at(self) -> float | None:
        """Return when `advance` will next have something to say, if nothing arrives."""
        timers = self._timers
        while timers and timers[0][2].wake_us != timers[0][0]:
            heappop(timers)
        return timers[0][0] / MICROSECONDS if timers else None

    def _waits_of(self, message: Message) -> tuple[Wait, ...]:
        """Return what must be delivered or expired before `message`."""
        return message.waits

    @abstractmethod
    def _absorb(self, message: Message) -> None:
        """Take over what the delivered `message` knows."""

    def _refusal(  # noqa: PLR0911 - one line per reason
        self, message: Message, now_us: int
    ) -> Reason | None:
        cast = message.cast
        sent_us = cast.sent_us
        if message.to != self._me or cast.sender == self._me:
            return Reason.NOT_FOR_US
        if cast.algorithm is not self.algorithm:
            return Reason.OTHER_ALGORITHM
        if now_us > self._deadline_us(message):
            return Reason.LATE
        if sent_us > now_us + self._skew_us:
            self.counters.skew_violations += 1
            return Reason.FUTURE
        if sent_us <= self._delivered.get(cast.sender, -1) or (cast.sender, sent_us) in self._held:
            return Reason.DUPLICATE
        if self._names.closed and (cast.destinations | 1 << cast.sender) & ~self._names.ever:
            return Reason.UNKNOWN_PROCESS
        return self._lie(message)

    def _lie(self, message: Message) -> Reason | None:
        """Notice claims that we can know to be false: the future as past, sends we never made."""
        sent_us, me = message.cast.sent_us, self._me
        if message.body.newest_us >= sent_us or not message.cast.destinations & self._my_bit:
            return Reason.CONTRADICTION
        for number, wait_us in message.waits:
            if wait_us >= sent_us or number == me:
                return Reason.CONTRADICTION
        mine = message.body.rows.get(me)
        if mine and mine.last_us > max(self._last_sent_us, self._since_us):
            return Reason.CONTRADICTION
        return None

    def _deadline_us(self, message: Message) -> int:
        own_us = message.cast.lifetime_us
        if own_us and own_us < self._lifetime_us:
            return message.cast.sent_us + own_us
        return message.cast.sent_us + self._lifetime_us

    def _unsettled(self, waits: tuple[Wait, ...], now_us: int) -> Wait | None:
        """Return a predecessor that is neither delivered nor expired. O(waits)."""
        delivered = self._delivered
        alive_us = now_us - self._lifetime_us
        for wait in waits:
            if wait[1] >= alive_us and delivered.get(wait[0], -1) < wait[1]:
                return wait
        return None

    def _hold(self, held: _Held, wait: Wait) -> None:
        """File `held` under one unsettled predecessor; when that settles, look again."""
        message = held.message
        if held.wait is None:
            self._held[message.cast.sender, message.cast.sent_us] = held
            self.counters.held += 1
        held.wait = wait
        held.wake_us = min(wait[1] + self._lifetime_us, held.deadline_us) + 1
        self._watched.setdefault(wait[0], []).append(held)
        self._serial += 1
        heappush(self._timers, (held.wake_us, self._serial, held))

    def _deliver(self, message: Message, now_us: int, outputs: list[Output]) -> None:
        """Deliver, and whatever this releases, also in chains (trap T2.4)."""
        ready = [message]
        for released in ready:
            cast = released.cast
            outputs.append(Deliver(released))
            self.counters.delivered += 1
            self._delivered[cast.sender] = cast.sent_us
            self._clock_us = max(self._clock_us, cast.sent_us)
            self._absorb(released)
            if cast.sender in self._watched:
                ready += self._released_by(cast.sender, now_us, outputs)

    def _released_by(self, sender: int, now_us: int, outputs: list[Output]) -> list[Message]:
        delivered_us = self._delivered[sender]
        watching = self._watched.pop(sender)
        ready = []
        for held in watching:
            wait = held.wait
            if wait is None or wait[0] != sender:
                continue  # no longer waits, or for another
            if wait[1] > delivered_us:
                self._watched.setdefault(sender, []).append(held)
            elif self._look_again(held, now_us, outputs):
                ready.append(held.message)
        return ready

    def _release_due(self, now_us: int, outputs: list[Output]) -> None:
        timers = self._timers
        while timers and timers[0][0] <= now_us:
            wake_us, _, held = heappop(timers)
            if held.wake_us == wake_us:
                self._unwatch(held)
                if self._look_again(held, now_us, outputs):
                    self._deliver(held.message, now_us, outputs)

    def _unwatch(self, held: _Held) -> None:
        if held.wait is not None:
            watching = self._watched[held.wait[0]]
            watching.remove(held)
            if not watching:
                del self._watched[held.wait[0]]

    def _look_again(self, held: _Held, now_us: int, outputs: list[Output]) -> bool:
        """Say whether `held` may go now; else file it anew, or give it up."""
        if now_us <= held.deadline_us:
            wait = self._unsettled(held.waits, now_us)
            if wait is not None:
                self._hold(held, wait)
                return False
        held.wait, held.wake_us = None, -1
        cast = held.message.cast
        del self._held[cast.sender, cast.sent_us]
        if now_us <= held.deadline_us:
            return True
        outputs.append(self._discard(held.message, Reason.WAITED_TOO_LONG))
        return False

    def _discard(self, message: Message, reason: Reason) -> Discard:
        self.counters.discarded[reason] += 1
        return Discard(message, reason)

    # -- membership and clocks -------------------------------------------------------------

    def admit(self, process: ProcessId) -> None:
        """Add a member to a closed group. All members must admit in the same order."""
        self._names.admit(process)

    def forget(self, process: ProcessId) -> None:
        """Take a process that has left out of all destination sets (trap T2.5).

        What it sent is still delivered, and waited for, until it expires. It may come back
        under the same id once lifetime and skew have passed. O(n e).
        """
        if process == self.process:
            raise MisuseError(f"process {process!r} itself", expected="another one")
        number = self._names.known(process)
        self._names.drop(process)
        self._offsets.pop(process, None)
        if number is not None:
            self._strip(1 << number)

    def observe_offset(self, process: ProcessId, offset: float) -> bool:
        """Note how far another's clock was measured to be ahead; say whether that is allowed.

        A larger difference than `skew` is counted as a violation. Stamps are never corrected
        by it: two processes would then disagree about one message's deadline.
        """
        if not isfinite(offset):
            raise OutOfRangeError(f"{offset}", where="offset", expected="seconds")
        self._names.number(process)
        self._offsets[process] = offset
        allowed = abs(offset) * MICROSECONDS <= self._skew_us
        if not allowed:
            self.counters.skew_violations += 1
        return allowed

    def _strip(self, bits: int) -> None:
        for number, row in list(self._rows.items()):
            if row.union & bits:
                stripped = [(at, kept & ~bits) for at, kept in row.entries]
                last_us = stripped[-1][0]
                self._rows[number] = Row(tuple([e for e in stripped if e[1] or e[0] == last_us]))

    # -- checks and bookkeeping ------------------------------------------------------------

    def _numbers_of(self, destinations: Iterable[ProcessId]) -> list[int]:
        if isinstance(destinations, str | bytes):
            raise MisuseError(repr(destinations), where="destinations", expected="a set of ids")
        wanted = set(destinations)
        if not wanted:
            raise MisuseError("no destination", where="send", expected="at least one")
        if self.process in wanted:
            raise MisuseError("the sender itself", where="destinations", expected="only others")
        return self._names.numbers(wanted)

    def _own_lifetime_us(self, lifetime: float) -> int:
        own_us = _duration_us(lifetime, "lifetime", least_us=1)
        if own_us > self._lifetime_us:
            raise OutOfRangeError(
                f"{lifetime} s", where="lifetime", expected=f"at most the group's {self.lifetime} s"
            )
        return own_us

    def _instant_us(self, now: float) -> int:
        if not 0 <= now <= _LAST_INSTANT_S:
            raise OutOfRangeError(f"{now}", where="now", expected="seconds from 0 to 9e9")
        now_us = int(now * 1e6 + 0.5)
        if now_us < self._now_us:
            raise MisuseError(
                f"now = {now}", expected=f"at least {self._now_us / MICROSECONDS}, the last one"
            )
        return now_us

    def _passes(self, now_us: int) -> None:
        self._now_us = now_us
        if now_us >= self._sweep_us:
            if self._since_us < 0:
                self._since_us = now_us
            self._sweep(now_us)

    def _sweep(self, now_us: int) -> None:
        """Forget what has expired everywhere; once per lifetime, so O(1) amortised per call."""
        self._sweep_us = now_us + self._keep_us
        dead_us = now_us - self._keep_us
        self._delivered = {k: at for k, at in self._delivered.items() if at >= dead_us}
        for number, row in list(self._rows.items()):
            if row.first_us < dead_us:
                alive = tuple([entry for entry in row.entries if entry[0] >= dead_us])
                if alive:
                    self._rows[number] = Row(alive)
                else:
                    del self._rows[number]

    def _renumbered(self, message: Message) -> Message | None:
        """Return the message in our numbers, or None if it names somebody unknown."""
        ours = self._names.translation(message.cast.names)
        if ours is None:
            return None
        cast = message.cast._replace(
            names=self._names.table,
            sender=ours[message.cast.sender],
            destinations=_translated(message.cast.destinations, ours),
        )
        rows = {
            ours[k]: Row(tuple([(at, _translated(bits, ours)) for at, bits in row.entries]))
            for k, row in message.body.rows.items()
        }
        body = Body(rows, message.body.newest_us, message.body.width)
        waits = tuple([(ours[k], at) for k, at in message.waits])
        return Message(cast, ours[message.to], body, waits)


def _translated(bits: int, ours: list[int]) -> int:
    translated = 0
    for number in numbers_in(bits):
        translated |= 1 << ours[number]
    return translated


def _duration_us(seconds: float, what: str, *, least_us: int) -> int:
    if not 0 <= seconds <= _LAST_INSTANT_S or round(seconds * MICROSECONDS) < least_us:
        raise OutOfRangeError(
            f"{seconds}", where=what, expected=f"seconds, at least {least_us / MICROSECONDS}"
        )
    return round(seconds * MICROSECONDS)


def _bytes_of(payload: object) -> bytes:
    if isinstance(payload, bytes):
        return payload
    if isinstance(payload, bytearray | memoryview):
        return bytes(payload)
    raise MisuseError(type(payload).__name__, where="payload", expected="bytes")
