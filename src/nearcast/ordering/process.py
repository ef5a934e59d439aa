"""What the four algorithms have in common for their user: calls, checks, waiting, releasing.

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
from collections.abc import Iterable, Sequence
from math import inf, isfinite
from operator import gt
from typing import ClassVar, Final, Self

import numpy as np

from nearcast.kernels import is_switched, on_switch
from nearcast.model.errors import MisuseError, OutOfRangeError, PeerProtocolError
from nearcast.ordering import kernels, layout, snapshots
from nearcast.ordering.account import write_account
from nearcast.ordering.clocks import LAST_INSTANT_S, MICROSECONDS, duration_us, time_width
from nearcast.ordering.layout import (
    DELIVERED_NOW,
    FIRST_REASON,
    HIGHEST_NUMBER,
    HOLD,
    M_END,
    NEXT_WAKE,
    OUT_COLUMNS,
    OUTPUTS,
    SERIAL,
    State,
)
from nearcast.ordering.message import (
    NAMED,
    Algorithm,
    Counters,
    Deliver,
    Discard,
    Message,
    Output,
    Reason,
    complaint,
)
from nearcast.ordering.names import Names, ProcessId

DEFAULT_SKEW_S: Final = 0.01
"""What synchronised clocks on the Internet may differ (paper, section 2.2: 5 to 10 ms)."""

_REASONS: Final = tuple(Reason)
_NEEDS: Final = (
    layout.NEED_NUMBER,
    layout.NEED_CAPACITY,
    layout.NEED_HELD,
    layout.NEED_CELL,
)
_ROOMS: Final = (layout.CAPACITY, layout.HELD_ROOM, layout.CELL)
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
        self._held: dict[int, Message] = {}
        self._ever = 0
        self._take_entries()
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
        return self._peek[layout.COUNT] + len(self._held)

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
        copies = self._send(self._state, self._out, wire, own_us, len(payload), now)
        while copies < 0:
            self._make_room(copies, now)
            copies = self._send(self._state, self._out, wire, own_us, len(payload), now)
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

    def receive(self, message: Message | bytes, now: float) -> list[Output]:
        """Return what is to be delivered or discarded now that `message` has arrived.

        Bytes are judged and received in one step; `PeerProtocolError` if they are no message.
        """
        if not isinstance(message, Message):
            return self._receive_bytes(_bytes_of(message), now)
        names = self._names.table
        if message.names is not names and message.names != names:
            return self._receive_renumbered(message, now)
        if type(now) is not float:
            now = float(now)
        result = self._receive(self._state, message.data, now, False, HIGHEST_NUMBER)
        if result == DELIVERED_NOW:
            return [_new(Deliver, (message,))]
        while result < 0:
            self._make_room(result, now)
            result = self._receive(self._state, message.data, now, False, HIGHEST_NUMBER)
        return self._said(result, message, now)

    def _receive_bytes(self, data: bytes, now: float) -> list[Output]:
        names = self._names.table
        if names and (not data or data[0] & NAMED or not self._names.closed):
            return self.receive(Message.decode(data), now)
        if type(now) is not float:
            now = float(now)
        most = len(names) - 1 if names else HIGHEST_NUMBER
        result = self._receive(self._state, data, now, True, most)
        while result < 0:
            self._make_room(result, now)
            result = self._receive(self._state, data, now, True, most)
        if result == OUTPUTS:
            outputs: list[Output] = []
            self._collect(outputs, (data,), now)
            return outputs
        message: Message = _new(Message, (data, self._peek[M_END], None, names))
        return [_new(Deliver, (message,))] if not result else self._said(result, message, now)

    def receive_many(self, messages: Sequence[bytes], now: float) -> list[Output]:
        """Receive all that is at hand, in this order; in one step, unless processes have names.

        As `receive`, but what is no message is discarded as malformed and counted, so that one
        damaged message does not keep the others.
        """
        now = self._float(now)
        if self._names.table:
            return [output for data in messages for output in self._receive_or_discard(data, now)]
        messages = [_bytes_of(one) for one in messages]
        data = b"".join(messages)
        lengths = array("I", map(len, messages)).tobytes()
        outputs: list[Output] = []
        done = begin = 0
        while done < len(messages):
            result = self._receive_many(
                self._state, data, lengths, done, begin, now, HIGHEST_NUMBER
            )
            if result < 0:
                self._make_room(result, now)
                continue
            begin += sum(map(len, messages[done:result])) if result < len(messages) else 0
            done = result
            self._collect(outputs, messages, now)
        return outputs

    def _receive_or_discard(self, data: bytes, now: float) -> list[Output]:
        try:
            return self.receive(data, now)
        except PeerProtocolError:
            return [self._discard(Message(data, 0, None, ()), Reason.MALFORMED)]

    def _receive_renumbered(self, message: Message, now: float) -> list[Output]:
        """Receive from one who numbers the names otherwise."""
        now = self._float(now)
        renumbered = self._renumbered(message)
        if renumbered is not None:
            return self.receive(renumbered, now)
        return [*self.advance(now), self._discard(message, Reason.UNKNOWN_PROCESS)]

    def _said(self, result: int, message: Message, now: float) -> list[Output]:
        """Return outputs for what the kernel said of one arrival."""
        outputs: list[Output] = []
        if result == OUTPUTS:
            self._collect(outputs, (message,), now)
        elif result == HOLD:
            self._held[self._peek[SERIAL]] = message
        elif result == DELIVERED_NOW:
            outputs.append(_new(Deliver, (message,)))
        else:
            outputs.append(Discard(message, _REASONS[result - FIRST_REASON]))
        return outputs

    def _collect(
        self, outputs: list[Output], arrived: Sequence[Message | bytes], now: float
    ) -> None:
        """Turn what the kernel told in OUTS into outputs; go on if it stalled for want of room."""
        peek, held, names = self._peek, self._held, self._names.table
        begin = peek[layout.OUTS]
        told = peek[begin : begin + peek[layout.N_OUT] * OUT_COLUMNS].tolist()
        for at in range(0, len(told), OUT_COLUMNS):
            place, serial, result, end = told[at : at + OUT_COLUMNS]
            if place < 0:
                message = held.pop(serial)
            else:
                one = arrived[place]
                message = (
                    one if isinstance(one, Message) else _new(Message, (one, end, None, names))
                )
            if result == DELIVERED_NOW:
                outputs.append(_new(Deliver, (message,)))
            elif result == HOLD:
                held[serial] = message
            else:
                outputs.append(Discard(message, _REASONS[result - FIRST_REASON]))
        if peek[layout.STALLED]:
            self._make_room(layout.GROW, now)
            outputs += self.advance(now)

    def advance(self, now: float) -> list[Output]:
        """Return what is to be delivered or discarded because time has passed."""
        now = self._float(now)
        self._advance(self._state, now)
        outputs: list[Output] = []
        if self._peek[layout.N_OUT] or self._peek[layout.STALLED]:
            self._collect(outputs, (), now)
        return outputs

    def wake_at(self) -> float | None:
        """Return when `advance` will next have something to say, if nothing arrives."""
        return self._peek[NEXT_WAKE] / MICROSECONDS if self._held else None

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
            self._entries.strip(self._state, number)

    def observe_offset(self, process: ProcessId, offset: float, *, error: float = 0.0) -> bool:
        """Note how far another's clock was measured to be ahead; say whether that is allowed.

        What is certainly a larger difference than `skew`, the measurement being true to within
        `error`, is counted as a violation. Stamps are never corrected
        by it: two processes would then disagree about one message's deadline. `offset_of` in
        clocks.py computes it from one question and its answer.
        """
        if not (isfinite(offset) and 0 <= error < inf):
            raise OutOfRangeError(f"{offset} ± {error}", where="offset", expected="seconds")
        self._names.check(process)
        self._offsets[process] = offset
        allowed = (abs(offset) - error) * MICROSECONDS <= self._peek[layout.SKEW]
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

    def _take_entries(self) -> None:
        """Call kernels as they are now: in Python, until they are compiled."""
        self._entries = entries = kernels.entries()
        self._send, self._receive, self._receive_many, self._advance = entries[:4]
        if not is_switched():
            on_switch(self._take_entries)

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
    raise MisuseError(type(payload).__name__, where="payload or message", expected="bytes")
