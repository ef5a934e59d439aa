"""What the four algorithms have in common for their user: calls, checks, waiting, releasing.

What a copy carries and what a delivery teaches is decided by kernels over one flat array
(layout.py); this file keeps the messages that wait, and the timers.

Rules of this file:
    1. Times come in as seconds and are whole microseconds from there on.
    2. A message is in time up to and including its deadline.
    3. All checks come before the first change: a call that raises has changed nothing.
    4. Stamps grow along every causal chain, whatever the clocks say: a send is stamped
       later than everything its sender has delivered (a hybrid logical clock).

Read next: delta_causal.py.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from heapq import heappop, heappush
from math import isfinite
from typing import ClassVar, Final, Self

import numpy as np

from nearcast.model.errors import MisuseError, OutOfRangeError
from nearcast.ordering import kernels, layout, snapshots
from nearcast.ordering.account import write_account
from nearcast.ordering.clocks import LAST_INSTANT_S, MICROSECONDS, duration_us, time_width
from nearcast.ordering.layout import (
    DELIVERED_NOW,
    HOLD,
    M_OWN,
    M_SENDER,
    M_SENT,
    N_HELD,
    NOW,
    WAIT_NUMBER,
    WAIT_TIME,
    State,
)
from nearcast.ordering.message import (
    Algorithm,
    Counters,
    Deliver,
    Discard,
    Message,
    Output,
    Reason,
)
from nearcast.ordering.names import Names, ProcessId

DEFAULT_SKEW_S: Final = 0.01
"""What synchronised clocks on the Internet may differ (paper, section 2.2: 5 to 10 ms)."""

_REASONS: Final = tuple(Reason)
_new = tuple.__new__  # half the time of the class's own, and most of a send is making copies


class Held:
    """A message that waits; `wait` is the one predecessor that is watched for it."""

    __slots__ = ("deadline_us", "key", "message", "wait_number", "wait_us", "wake_us")

    def __init__(self, message: Message, key: tuple[int, int], deadline_us: int) -> None:
        self.message = message
        self.key = key  # (number of its sender, sent_us)
        self.deadline_us = deadline_us
        self.wait_number = -1
        self.wait_us = -1
        self.wake_us = -1


class CausalProcess:
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
    practice), f destinations, w words of 64 bits per set: `send` O(n e w f) at worst,
    `receive` O(n e w); memory O(n e w + held messages).
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
        lifetime_us = duration_us(lifetime, "lifetime", least_us=1)
        skew_us = duration_us(skew, "skew", least_us=0)
        self._names = Names(process, processes)
        self.process = process
        state = layout.new_state(self.algorithm)
        state[layout.LIFETIME], state[layout.SKEW] = lifetime_us, skew_us
        state[layout.KEEP] = lifetime_us + skew_us
        state[layout.WIDTH] = time_width(lifetime_us + 3 * skew_us)
        state[layout.ME] = self._names.own
        state[layout.CLOSED] = self._names.closed
        self._lifetime_us = lifetime_us
        self._offsets: dict[ProcessId, float] = {}
        self._held: dict[tuple[int, int], Held] = {}
        self._watched: dict[int, list[Held]] = {}
        self._timers: list[tuple[int, int, Held]] = []
        self._serial = 0
        self._ever = 0
        self._use(state)
        self._use_bytes(1024)
        self._note_names()

    @property
    def lifetime(self) -> float:
        """The group's lifetime Δ in seconds."""
        return self._lifetime_us / MICROSECONDS

    @property
    def counters(self) -> Counters:
        """What has happened so far."""
        peek = self._peek
        discarded = {r: peek[layout.N_DISCARDED + i] for i, r in enumerate(_REASONS)}
        return Counters(
            peek[layout.N_SENT],
            peek[layout.N_DELIVERED],
            peek[layout.N_HELD],
            peek[layout.N_SKEW],
            discarded,
        )

    @property
    def holding(self) -> int:
        """How many messages wait at this moment."""
        return len(self._held)

    @property
    def footprint(self) -> int:
        """How many entries are kept at this moment; what is alive within the lifetime bounds it."""
        return self._peek[layout.COUNT] + len(self._held) + len(self._timers)

    @property
    def size_bytes(self) -> int:
        """Memory of tables and buffers; it follows the most that was ever alive at once."""
        return self._state.nbytes + len(self._out)

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
        own_us = 0 if lifetime is None else self._own_lifetime_us(lifetime)
        if type(payload) is not bytes:
            payload = _bytes_of(payload)
        now = self._float(now)
        wanted = set(destinations) if type(destinations) is not set else destinations
        numbers = self._numbers_of(wanted, destinations)
        wire = array("H", numbers).tobytes()
        copies = kernels.send(self._state, self._out, wire, own_us, len(payload), now)
        while copies < 0:
            self._make_room(copies, now)
            copies = kernels.send(self._state, self._out, wire, own_us, len(payload), now)
        return self._copies(numbers, payload)

    def _copies(self, numbers: list[int], payload: bytes) -> dict[ProcessId, Message]:
        """Cut what the kernel wrote into messages."""
        table, first = self._names.table, self._peek[layout.STARTS]
        starts = self._peek[first : first + len(numbers) + 1].tolist()
        offset = starts[0]
        written = self._view[offset : starts[-1]].tobytes()
        numbers.sort()
        copies: dict[ProcessId, Message] = {}
        begin = 0
        for number, start in zip(numbers, starts[1:], strict=True):
            end = start - offset
            copies[table[number] if table else number] = _new(
                Message, (written[begin:end], end - begin, payload, table)
            )
            begin = end
        return copies

    # -- receiving -------------------------------------------------------------------------

    def receive(self, message: Message, now: float) -> list[Output]:
        """Return what is to be delivered or discarded now that `message` has arrived."""
        if type(now) is not float:
            now = self._float(now)
        timers = self._timers
        due = timers and timers[0][0] <= now * 1e6 + 0.5
        outputs: list[Output] = self.advance(now) if due else []
        if message.names != self._names.table:
            renumbered = self._renumbered(message)
            if renumbered is None:
                self._tick(now)
                return [*outputs, self._discard(message, Reason.UNKNOWN_PROCESS)]
            message = renumbered
        result = kernels.receive(self._state, message.data, now)
        if result == DELIVERED_NOW:
            outputs.append(_new(Deliver, (message,)))
            if self._watched and self._peek[M_SENDER] in self._watched:
                self._release_after(self._peek[M_SENDER], outputs)
            return outputs
        while result < 0:
            self._make_room(result, now)
            result = kernels.receive(self._state, message.data, now)
        return self._otherwise(message, result, outputs)

    def _otherwise(self, message: Message, result: int, outputs: list[Output]) -> list[Output]:
        """Deliver, hold or discard, as the kernel says."""
        if result == DELIVERED_NOW:
            outputs.append(Deliver(message))
            self._release_after(self._peek[M_SENDER], outputs)
        elif result == HOLD:
            self._hold_new(message, outputs)
        else:
            reason = _REASONS[result - layout.FIRST_REASON]
            if reason is Reason.FUTURE:
                self._peek[layout.N_SKEW] += 1
            outputs.append(self._discard(message, reason))
        return outputs

    def advance(self, now: float) -> list[Output]:
        """Return what is to be delivered or discarded because time has passed."""
        now_us = self._tick(self._float(now))
        outputs: list[Output] = []
        timers = self._timers
        while timers and timers[0][0] <= now_us:
            wake_us, _, held = heappop(timers)
            if held.wake_us == wake_us:
                self._unwatch(held)
                if self._look_again(held, outputs):
                    self._release_after(held.key[0], outputs)
        return outputs

    def wake_at(self) -> float | None:
        """Return when `advance` will next have something to say, if nothing arrives."""
        timers = self._timers
        while timers and timers[0][2].wake_us != timers[0][0]:
            heappop(timers)
        return timers[0][0] / MICROSECONDS if timers else None

    def _hold_new(self, message: Message, outputs: list[Output]) -> None:
        peek = self._peek
        sent_us, own_us = peek[M_SENT], peek[M_OWN]
        key = (peek[M_SENDER], sent_us)
        if key in self._held:
            outputs.append(self._discard(message, Reason.DUPLICATE))
            return
        lifetime_us = min(own_us, self._lifetime_us) if own_us else self._lifetime_us
        held = self._held[key] = Held(message, key, sent_us + lifetime_us)
        peek[N_HELD] += 1
        self._hold(held)

    def _hold_again(
        self, message: Message, key: tuple[int, int], deadline_us: int, number: int, wait_us: int
    ) -> None:
        """Go on holding what was held before a restart."""
        held = self._held[key] = Held(message, key, deadline_us)
        self._file(held, number, wait_us)

    def _hold(self, held: Held) -> None:
        """File `held` under the unsettled predecessor that the kernel named."""
        self._file(held, self._peek[WAIT_NUMBER], self._peek[WAIT_TIME])

    def _file(self, held: Held, number: int, wait_us: int) -> None:
        held.wait_number, held.wait_us = number, wait_us
        held.wake_us = min(wait_us + self._lifetime_us, held.deadline_us) + 1
        self._watched.setdefault(number, []).append(held)
        self._serial += 1
        heappush(self._timers, (held.wake_us, self._serial, held))

    def _release_after(self, sender: int, outputs: list[Output]) -> None:
        """Deliver what a delivery from `sender` releases, also in chains (trap T2.4)."""
        senders = [sender]
        for number in senders:
            senders += self._released_by(number, outputs)

    def _released_by(self, sender: int, outputs: list[Output]) -> list[int]:
        """Deliver what waited for `sender` alone; return whose messages these were."""
        watching = self._watched.pop(sender, None)
        if watching is None:
            return []
        delivered_us = self._peek[self._peek[layout.DELIVERED] + sender]
        released = []
        for held in watching:
            if held.wait_number != sender:
                continue  # no longer waits, or for another
            if held.wait_us > delivered_us:
                self._watched.setdefault(sender, []).append(held)
            elif self._look_again(held, outputs):
                released.append(held.key[0])
        return released

    def _unwatch(self, held: Held) -> None:
        watching = self._watched[held.wait_number]
        watching.remove(held)
        if not watching:
            del self._watched[held.wait_number]

    def _look_again(self, held: Held, outputs: list[Output]) -> bool:
        """Deliver `held` if it may go now; else file it anew, or give it up."""
        now_us = self._peek[NOW]
        in_time = now_us <= held.deadline_us
        if in_time:
            result = kernels.look_again(self._state, held.message.data, now_us)
            while result < 0:
                self._make_room(result, 0.0)
                result = kernels.look_again(self._state, held.message.data, now_us)
            if result == HOLD:
                self._hold(held)
                return False
        held.wait_number, held.wake_us = -1, -1
        del self._held[held.key]
        if in_time:
            outputs.append(Deliver(held.message))
        else:
            outputs.append(self._discard(held.message, Reason.WAITED_TOO_LONG))
        return in_time

    def _discard(self, message: Message, reason: Reason) -> Discard:
        self._peek[layout.N_DISCARDED + _REASONS.index(reason)] += 1
        return Discard(message, reason)

    # -- a restart, a takeover -------------------------------------------------------------

    def snapshot(self) -> bytes:
        """Return all that this process knows and holds, for `restore`. O(memory).

        It must be the last state before the process stops: others rely on what a process has
        told them, so one that goes back to an older state breaks order until lifetime and
        skew have passed.
        """
        return snapshots.written(self)

    @classmethod
    def restore(cls, snapshot: bytes) -> Self:
        """Return the process that `snapshot` was taken of, here or elsewhere.

        Call `advance` next. `PeerProtocolError` if the bytes are damaged, or of another kind.
        """
        return snapshots.restored(cls, snapshot)

    # -- membership and clocks -------------------------------------------------------------

    def admit(self, process: ProcessId) -> None:
        """Add a member to a closed group. All members must admit in the same order."""
        self._names.admit(process)
        self._note_names()

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
            kernels.strip(self._state, number)

    def observe_offset(self, process: ProcessId, offset: float) -> bool:
        """Note how far another's clock was measured to be ahead; say whether that is allowed.

        A larger difference than `skew` is counted as a violation. Stamps are never corrected
        by it: two processes would then disagree about one message's deadline. `offset_of` in
        clocks.py computes it from one question and its answer.
        """
        if not isfinite(offset):
            raise OutOfRangeError(f"{offset}", where="offset", expected="seconds")
        self._names.number(process)
        self._note_names()
        self._offsets[process] = offset
        allowed = abs(offset) * MICROSECONDS <= self._peek[layout.SKEW]
        if not allowed:
            self._peek[layout.N_SKEW] += 1
        return allowed

    # -- checks and bookkeeping ------------------------------------------------------------

    def _numbers_of(self, wanted: set[ProcessId], given: object) -> list[int]:
        if isinstance(given, str | bytes):
            raise MisuseError(repr(given), where="destinations", expected="a set of ids")
        if not wanted:
            raise MisuseError("no destination", where="send", expected="at least one")
        if self.process in wanted:
            raise MisuseError("the sender itself", where="destinations", expected="only others")
        numbers = self._names.numbers(wanted)
        if self._names.ever != self._ever:
            self._note_names()
        return numbers

    def _own_lifetime_us(self, lifetime: float) -> int:
        own_us = duration_us(lifetime, "lifetime", least_us=1)
        if own_us > self._lifetime_us:
            raise OutOfRangeError(
                f"{lifetime} s", where="lifetime", expected=f"at most the group's {self.lifetime} s"
            )
        return own_us

    def _float(self, now: float) -> float:
        """Return `now` as a float that is no earlier than before."""
        now = float(now)
        if not 0 <= now <= LAST_INSTANT_S or int(now * 1e6 + 0.5) < self._peek[layout.NOW]:
            raise self._bad_instant(now)
        return now

    def _bad_instant(self, now: float) -> MisuseError:
        if not 0 <= now <= LAST_INSTANT_S:
            return OutOfRangeError(f"{now}", where="now", expected="seconds from 0 to 9e9")
        last = self._peek[layout.NOW] / MICROSECONDS
        return MisuseError(f"now = {now}", expected=f"at least {last}, the last one")

    def _tick(self, now: float) -> int:
        now_us: int = kernels.tick(self._state, now)
        if now_us < 0:
            raise self._bad_instant(now)
        return now_us

    def _use(self, state: State) -> None:
        self._state = state
        self._peek: memoryview[int] = memoryview(state.data)  # reads a number far quicker

    def _use_bytes(self, room: int) -> None:
        self._out = np.zeros(room, np.uint8)
        self._view = memoryview(self._out.data)

    def _make_room(self, result: int, now: float) -> None:
        """Give a kernel the room it lacked, or raise what it complained of."""
        if result != layout.GROW:
            raise self._bad_instant(now)
        peek = self._peek
        number, capacity = peek[layout.NEED_NUMBER], peek[layout.NEED_CAPACITY]
        if number >= 64 * peek[layout.WORDS] or capacity > peek[layout.CAPACITY]:
            self._use(layout.grown(self._state, number, capacity))
        if peek[layout.NEED_BYTES] > len(self._out):
            self._use_bytes(peek[layout.NEED_BYTES])

    def _note_names(self) -> None:
        """Let the kernels know who has ever been a member."""
        self._ever = ever = self._names.ever
        highest = ever.bit_length() - 1
        if highest >= 64 * self._peek[layout.WORDS]:
            self._use(layout.grown(self._state, highest, 0))
        layout.set_words(self._state, self._peek[layout.EVER], ever)

    def _renumbered(self, message: Message) -> Message | None:
        """Return the message in our numbers, or None if it names somebody unknown."""
        ours = self._names.translation(message.names)
        if ours is None:
            return None
        self._note_names()
        payload = message.payload
        data = write_account(message.account().renumbered(ours), len(payload))
        return Message(data, len(data), payload, self._names.table)


def _bytes_of(payload: object) -> bytes:
    if isinstance(payload, bytes):
        return payload
    if isinstance(payload, bytearray | memoryview):
        return bytes(payload)
    raise MisuseError(type(payload).__name__, where="payload", expected="bytes")
