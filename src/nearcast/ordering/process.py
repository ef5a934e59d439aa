"""A process for its user: calls, checks, outputs.

What a copy carries, what a delivery teaches and what has to wait is decided by kernels over one
flat array (layout.py); this file checks what comes in, and turns numbers into messages.

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
from collections.abc import Callable, Iterable
from math import inf, isfinite
from operator import gt
from typing import ClassVar, Final

import numpy as np

from nearcast.kernels import is_switched, on_switch
from nearcast.model.errors import MisuseError, OutOfRangeError
from nearcast.ordering import layout
from nearcast.ordering.clocks import LAST_INSTANT_S, MICROSECONDS, duration_us, time_width
from nearcast.ordering.kernels import Entries
from nearcast.ordering.layout import DELIVERED_NOW, FIRST_REASON, HOLD, RELEASED_OTHERS, State
from nearcast.ordering.message import (
    CausalCounters,
    CausalMessage,
    Deliver,
    Discard,
    DiscardReason,
    Output,
    complaint,
)
from nearcast.ordering.names import Names, ProcessId

DEFAULT_SKEW_S: Final = 0.01
"""What synchronised clocks on the Internet may differ (paper, section 2.2: 5 to 10 ms)."""

_REASONS: Final = tuple(DiscardReason)
_NEEDS: Final = (layout.NEED_NUMBER, layout.NEED_CAPACITY, layout.NEED_HELD, layout.NEED_CELL)
_ROOMS: Final = (layout.CAPACITY, layout.HELD_ROOM, layout.CELL)
_MOST_REMEMBERED: Final = 1024  # sets of destinations; groups send to the same ones
_new = tuple.__new__  # half the time of the class's own, and most of a send is making copies


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
    `receive` O(n e w); memory O((1 + held messages) n e w).
    """

    kernels: ClassVar[Callable[[], Entries]]
    kind: ClassVar[int] = 0
    """Of the control information, as in the first byte of a message."""
    sets: ClassVar[int] = 2
    """How many sets an entry has: its destinations, and who knows its row."""

    def __init__(
        self, process: ProcessId, lifetime: float, *, skew: float = DEFAULT_SKEW_S
    ) -> None:
        lifetime_us = duration_us(lifetime, "lifetime", least_us=1)
        skew_us = duration_us(skew, "skew", least_us=0)
        self._names = Names(process)
        self.process = process
        state = layout.new_state(sets=self.sets)
        state[layout.LIFETIME], state[layout.SKEW] = lifetime_us, skew_us
        state[layout.KEEP] = lifetime_us + skew_us
        state[layout.WIDTH] = time_width(lifetime_us + 3 * skew_us)
        state[layout.ME], state[layout.KIND] = self._names.own, self.kind
        self._lifetime_us = lifetime_us
        self._held: dict[int, CausalMessage] = {}
        self._wanted: dict[frozenset[ProcessId], tuple[list[int], bytes]] = {}
        self._take_kernels()
        self._use(state)
        self._use_bytes(1024)
        self._make_room_for_names()

    @property
    def lifetime(self) -> float:
        """The group's lifetime Δ in seconds."""
        return self._lifetime_us / MICROSECONDS

    @property
    def counters(self) -> CausalCounters:
        """What has happened so far."""
        peek = self._peek
        discarded = {r: peek[layout.N_DISCARDED + i] for i, r in enumerate(_REASONS)}
        return CausalCounters(
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
        return self._peek[layout.COUNT] + len(self._held)

    @property
    def size_bytes(self) -> int:
        """Memory of tables and buffers; it follows the most that was ever alive at once."""
        return self._state.nbytes + len(self._out)

    # -- sending ---------------------------------------------------------------------------

    def send(
        self,
        destinations: Iterable[ProcessId],
        payload: bytes,
        now: float,
        *,
        lifetime: float | None = None,
    ) -> dict[ProcessId, CausalMessage]:
        """Return one copy for each destination.

        `lifetime` may be shorter than the group's: the message is then discarded at its end
        if it still waits. How long others wait for it stays the same (trap T2.7).
        """
        own_us = 0 if lifetime is None else self._own_lifetime_us(lifetime)
        if type(payload) is not bytes:
            payload = _bytes_of(payload)
        now = self._float(now)
        key = frozenset(destinations)
        wanted = self._wanted.get(key) or self._numbers_of(key, destinations)
        numbers, wire = wanted
        copies = self._send(self._state, self._out, wire, own_us, len(payload), now)
        while copies < 0:
            self._make_room(copies, now)
            copies = self._send(self._state, self._out, wire, own_us, len(payload), now)
        return self._copies(numbers, payload)

    def _copies(self, numbers: list[int], payload: bytes) -> dict[ProcessId, CausalMessage]:
        """Cut what the kernel wrote into messages."""
        table, first = self._names.table, self._peek[layout.STARTS]
        starts = self._peek[first : first + len(numbers) + 1].tolist()
        offset = starts[0]
        written = self._view[offset : starts[-1]].tobytes()
        copies: dict[ProcessId, CausalMessage] = {}
        begin = 0
        for number, start in zip(numbers, starts[1:], strict=True):
            end = start - offset
            copies[table[number] if table else number] = _new(
                CausalMessage, (written[begin:end], end - begin, payload, table)
            )
            begin = end
        return copies

    # -- receiving -------------------------------------------------------------------------

    def receive(self, message: CausalMessage | bytes, now: float) -> list[Output]:
        """Return what is to be delivered or discarded now that `message` has arrived.

        Bytes are judged and received in one step; `PeerProtocolError` if they are no message.
        """
        names, numbers, whole = self._names.table, b"", False
        if not isinstance(message, CausalMessage):
            message, whole = self._whole(message)
        if message.names is not names and message.names != names:
            theirs = self._names.translation(message.names)
            if theirs is None:
                return [*self.advance(now), self._discard(message, DiscardReason.UNKNOWN_PROCESS)]
            self._make_room_for_names()
            numbers = theirs
        if type(now) is not float:
            now = float(now)
        result = self._receive(self._state, message.data, numbers, now, whole)
        if result == DELIVERED_NOW and not whole:
            return [_new(Deliver, (message,))]
        outputs: list[Output] = []
        while result < 0:
            if result == layout.DUE:
                outputs += self.advance(now)
            else:
                self._make_room(result, now)
            result = self._receive(self._state, message.data, numbers, now, whole)
        if whole:
            message = _new(CausalMessage, (message.data, self._peek[layout.M_END], None, names))
        return self._told(outputs, result, message, now)

    def _whole(self, data: bytes) -> tuple[CausalMessage, bool]:
        """Return a message of these bytes, and whether it is still to be judged."""
        data = _bytes_of(data)
        if self._names.table:
            return CausalMessage.decode(data), False
        return _new(CausalMessage, (data, len(data), None, ())), True

    def _told(
        self, outputs: list[Output], result: int, message: CausalMessage, now: float
    ) -> list[Output]:
        """Return outputs with what the kernel said of an arrival, and of what it released."""
        if result == HOLD:
            self._held[self._peek[layout.SERIAL]] = message
        elif result >= FIRST_REASON:
            outputs.append(Discard(message, _REASONS[result - FIRST_REASON]))
        else:
            outputs.append(_new(Deliver, (message,)))
        return self._released(outputs, now) if result == RELEASED_OTHERS else outputs

    def _released(self, outputs: list[Output], now: float) -> list[Output]:
        """Return outputs with what OUTS tells; go on if the kernel stalled for want of room."""
        peek, begin = self._peek, self._peek[layout.OUTS]
        told = peek[begin : begin + peek[layout.N_OUT] * layout.OUT_COLUMNS].tolist()
        for serial, result in zip(told[::2], told[1::2], strict=True):
            message = self._held.pop(serial)
            if result == DELIVERED_NOW:
                outputs.append(_new(Deliver, (message,)))
            else:
                outputs.append(Discard(message, _REASONS[result - FIRST_REASON]))
        if peek[layout.STALLED]:
            self._make_room(layout.GROW, now)
            outputs += self.advance(now)
        return outputs

    def advance(self, now: float) -> list[Output]:
        """Return what is to be delivered or discarded because time has passed."""
        now = self._float(now)
        self._advance(self._state, now)
        return self._released([], now)

    def wake_at(self) -> float | None:
        """Return when `advance` will next have something to say, if nothing arrives."""
        return self._peek[layout.NEXT_WAKE] / MICROSECONDS if self._held else None

    def _discard(self, message: CausalMessage, reason: DiscardReason) -> Discard:
        self._peek[layout.N_DISCARDED + _REASONS.index(reason)] += 1
        return Discard(message, reason)

    # -- membership and clocks -------------------------------------------------------------

    def forget(self, process: ProcessId) -> None:
        """Take a process that has left out of all destination sets (trap T2.5).

        What it sent is still delivered, and waited for, until it expires. It may come back
        under the same id once lifetime and skew have passed. O(n e).
        """
        if process == self.process:
            raise MisuseError(f"process {process!r} itself", expected="another one")
        number = self._names.known(process)
        if number is not None:
            layout.strip(self._state, number)

    def observe_offset(self, process: ProcessId, offset: float, *, error: float = 0.0) -> bool:
        """Record how far another's clock was measured to be ahead; return whether that is allowed.

        What is certainly a larger difference than `skew`, the measurement being true to within
        `error`, is counted as a violation. Stamps are never corrected by it: two processes would
        then disagree about one message's deadline.
        """
        if not (isfinite(offset) and 0 <= error < inf):
            raise OutOfRangeError(f"{offset} ± {error}", where="offset", expected="seconds")
        self._names.check(process)
        allowed = (abs(offset) - error) * MICROSECONDS <= self._peek[layout.SKEW]
        if not allowed:
            self._peek[layout.N_SKEW] += 1
        return allowed

    # -- checks and bookkeeping ------------------------------------------------------------

    def _numbers_of(self, wanted: frozenset[ProcessId], given: object) -> tuple[list[int], bytes]:
        """Return the numbers of destinations, ascending, also as bytes; they are remembered."""
        if isinstance(given, str | bytes):
            raise MisuseError(repr(given), where="destinations", expected="a set of ids")
        if not wanted:
            raise MisuseError("no destination", where="send", expected="at least one")
        if self.process in wanted:
            raise MisuseError("the sender itself", where="destinations", expected="only others")
        numbers = sorted(self._names.numbers(wanted))
        self._make_room_for_names()
        if len(self._wanted) >= _MOST_REMEMBERED:
            self._wanted.clear()
        self._wanted[wanted] = known = (numbers, array("H", numbers).tobytes())
        return known

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

    def _take_kernels(self) -> None:
        """Call kernels as they are now: in Python, until they are compiled."""
        self._send, self._receive, self._advance = type(self).kernels()
        if not is_switched():
            on_switch(self._take_kernels)

    def _use(self, state: State) -> None:
        self._state = state
        self._peek: memoryview[int] = memoryview(state.data)  # reads a number far quicker

    def _use_bytes(self, room: int) -> None:
        self._out = np.zeros(room, np.uint8)
        self._view = memoryview(self._out.data)

    def _make_room(self, result: int, now: float) -> None:
        """Give a kernel the room it lacked, or raise what it complained of."""
        if result in (layout.BAD_INSTANT, layout.BACKWARDS):
            raise self._bad_instant(now)
        if result != layout.GROW:
            raise complaint(result)
        peek = self._peek
        need = [peek[name] for name in _NEEDS]
        rooms = (64 * peek[layout.WORDS] - 1, *(peek[name] for name in _ROOMS))
        if any(map(gt, need, rooms)):
            self._use(layout.grown(self._state, *need))
        if peek[layout.NEED_BYTES] > len(self._out):
            self._use_bytes(peek[layout.NEED_BYTES])

    def _make_room_for_names(self) -> None:
        if self._names.highest >= 64 * self._peek[layout.WORDS]:
            self._use(layout.grown(self._state, self._names.highest, 0))


def _bytes_of(payload: object) -> bytes:
    if isinstance(payload, bytes):
        return payload
    if isinstance(payload, bytearray | memoryview):
        return bytes(payload)
    raise MisuseError(type(payload).__name__, where="payload or message", expected="bytes")
