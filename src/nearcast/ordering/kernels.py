"""The kernels that a process calls: judge, receive, look again, send, adopt, forget.

Each gets the whole state. A result below zero means that nothing was changed.

Read next: process.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np

from nearcast.kernels import compile_entry, entry_point, inner
from nearcast.ordering.bits import bit_at
from nearcast.ordering.codec import parse, read_body, read_fixed
from nearcast.ordering.holding import (
    CONTRADICTION,
    DUPLICATE,
    FUTURE,
    LATE,
    MALFORMED,
    NOT_FOR_US,
    OTHER_ALGORITHM,
    UNKNOWN_PROCESS,
    hold,
    put_output,
    release,
    settle,
    wake,
)
from nearcast.ordering.layout import (
    ALGORITHM,
    BACKWARDS,
    BAD_INSTANT,
    BAD_LENGTH,
    BAD_WIDTH,
    CAPACITY,
    CELL,
    CLOCK,
    CLOSED,
    COUNT,
    DELIVERED,
    DELIVERED_NOW,
    DELTA_CAUSAL,
    DESTINATIONS,
    EVER,
    FIRST_REASON,
    GROW,
    HELD_ROOM,
    HIGHEST_NUMBER,
    HOLD,
    HOLDING,
    LAST_SENT,
    LIFETIME,
    M_ALGORITHM,
    M_COUNT,
    M_OWN,
    M_SENDER,
    M_SENT,
    M_TO,
    M_WAITS,
    ME,
    N_DISCARDED,
    N_OUT,
    N_SENT,
    N_SKEW,
    NEED_CAPACITY,
    NEED_CELL,
    NEED_HELD,
    NEED_NUMBER,
    NEXT_WAKE,
    NOT_PAST,
    NOW,
    OUTPUTS,
    OUTS_SPARE,
    POSITIONS,
    SERIAL,
    SINCE,
    SKEW,
    STALLED,
    STRIDE,
    TABLE,
    THEIRS,
    TRUNCATED,
    WAITS,
    WATCHERS,
    WIDTH,
    WORDS,
    Buffer,
    State,
)
from nearcast.ordering.rows import drop_dead, is_empty, merge_logs
from nearcast.ordering.sending import compose
from nearcast.ordering.writing import put_fixed, put_head, put_set, put_table, put_varint

_LAST_INSTANT_S = 9_000_000_000.0  # whole microseconds are exact in a float up to here


@entry_point("int64[::1], Bytes(uint8, 1, 'C'), int64")
def judge(state: State, data: bytes, most: int) -> int:
    """Return where the control information of a whole message ends, or what is wrong with it."""
    return parse(state, data, 0, len(data), False, True, most)


@inner
def instant_us(state: State, now: float) -> int:
    """Return `now` in microseconds, or why it cannot be."""
    if not 0.0 <= now <= _LAST_INSTANT_S:
        return BAD_INSTANT
    now_us = int(now * 1e6 + 0.5)
    return now_us if now_us >= state[NOW] else BACKWARDS


@inner
def pass_to(state: State, now_us: int) -> None:
    """Note the time; the first one is since when we have been here."""
    state[NOW] = now_us
    if state[SINCE] < 0:
        state[SINCE] = now_us


@entry_point("int64[::1], float64")
def advance(state: State, now: float) -> int:
    """Note that time has passed; deliver and give up what is due, forget what has expired.

    Return the instant.
    """
    now_us = instant_us(state, now)
    if now_us < 0:
        return now_us
    pass_to(state, now_us)
    state[N_OUT] = 0
    if state[STALLED]:
        state[STALLED] = 0
        release(state, now_us)
    wake(state, now_us)
    drop_dead(state, now_us)
    return now_us


@entry_point("int64[::1], Bytes(uint8, 1, 'C'), float64, boolean, int64")
def receive(state: State, data: bytes, now: float, whole: bool, most: int) -> int:
    """Say what becomes of a message that has just arrived, and do it.

    The result is that of the message itself, unless others are delivered or given up too: then
    it is `OUTPUTS`.
    """
    now_us = instant_us(state, now)
    if now_us < 0:
        return now_us
    end = parse(state, data, 0, len(data), True, whole, most)
    if end < 0:
        return end
    if lacks_room(state, end):
        return GROW
    pass_to(state, now_us)
    state[N_OUT] = 0
    due = state[NEXT_WAKE] <= now_us
    result = take_in(state, data, 0, end, now_us, 0)
    return OUTPUTS if due or state[N_OUT] > 1 or state[STALLED] else result


@entry_point("int64[::1], Bytes(uint8, 1, 'C'), Bytes(uint8, 1, 'C'), int64, int64, float64, int64")
def receive_many(
    state: State, data: bytes, lengths: bytes, done: int, begin: int, now: float, most: int
) -> int:
    """Receive messages that lie one after the other; return how many are done with.

    `lengths` has four bytes for each. `done` of them, up to `begin`, were received before. Stops
    early where room lacks, or where OUTS is full; a message that is none is counted as such.
    """
    now_us = instant_us(state, now)
    if now_us < 0:
        return now_us
    state[N_OUT] = 0
    while done < len(lengths) // 4:
        size = begin + read_fixed(lengths, 4 * done, 4)
        if state[STALLED] or state[N_OUT] + state[HOLDING] + 2 > state[HELD_ROOM] + OUTS_SPARE:
            return done
        end = parse(state, data, begin, size, True, True, most)
        if end == GROW or (end >= 0 and lacks_room(state, end - begin)):
            return GROW if state[N_OUT] == 0 else done
        pass_to(state, now_us)
        if end < 0:
            state[N_DISCARDED + MALFORMED - FIRST_REASON] += 1
            put_output(state, done, -1, MALFORMED, 0)
        else:
            take_in(state, data, begin, end, now_us, done)
        done += 1
        begin = size
    return done


@inner
def take_in(state: State, data: bytes, begin: int, end: int, now_us: int, place: int) -> int:
    """Deliver, hold or discard the message at hand, after what is due; return what it was."""
    if state[NEXT_WAKE] <= now_us:
        wake(state, now_us)
        parse(state, data, begin, end, True, False, HIGHEST_NUMBER)
    result = refusal(state, now_us)
    if result == 0:
        result = settle(state, now_us)
        if result == HOLD:
            result = hold(state, data, begin, end)
    sender, length = state[M_SENDER], end - begin
    put_output(state, place, state[SERIAL] if result == HOLD else -1, result, length)
    if result == DELIVERED_NOW:
        if state[state[WATCHERS] + sender]:
            release(state, now_us)
    elif result >= FIRST_REASON:
        state[N_DISCARDED + result - FIRST_REASON] += 1
        state[N_SKEW] += result == FUTURE
    return result


@entry_point("int64[::1], Bytes(uint8, 1, 'C')")
def read(state: State, data: bytes) -> int:
    """Fill the state with a message that `judge` found good, to look at it."""
    return parse(state, data, 0, len(data), True, False, HIGHEST_NUMBER)


@inner
def lacks_room(state: State, length: int) -> bool:
    """Say whether the message at hand might not fit, delivered or held."""
    state[NEED_CAPACITY] = need = state[COUNT] + state[M_COUNT] + 2
    waits = state[M_WAITS] if state[M_ALGORITHM] == DELTA_CAUSAL else state[M_COUNT]
    state[NEED_HELD], state[NEED_CELL] = state[HOLDING] + 1, 2 * waits + ((length + 7) >> 3)
    return bool(
        need > state[CAPACITY]
        or state[NEED_HELD] > state[HELD_ROOM]
        or state[NEED_CELL] > state[CELL]
    )


@inner
def refusal(state: State, now_us: int) -> int:  # noqa: PLR0911 - one exit per reason
    """Return why the message at hand is not to be delivered, or 0."""
    sender, sent_us, own_us = state[M_SENDER], state[M_SENT], state[M_OWN]
    lifetime_us = own_us if 0 < own_us < state[LIFETIME] else state[LIFETIME]
    if state[M_TO] != state[ME] or sender == state[ME]:
        return NOT_FOR_US
    if state[M_ALGORITHM] != state[ALGORITHM]:
        return OTHER_ALGORITHM
    if now_us > sent_us + lifetime_us:
        return LATE
    if sent_us > now_us + state[SKEW]:
        return FUTURE
    if sent_us <= state[state[DELIVERED] + sender]:
        return DUPLICATE
    if state[CLOSED] and is_strange(state):
        return UNKNOWN_PROCESS
    return CONTRADICTION if is_lie(state) else 0


@inner
def is_strange(state: State) -> bool:
    """Say whether sender or destinations were never members of a closed group."""
    ever, sender = state[EVER], state[M_SENDER]
    if not state[ever + (sender >> 6)] >> (sender & 63) & 1:
        return True
    strangers = 0
    for w in range(state[WORDS]):
        strangers |= state[state[DESTINATIONS] + w] & ~state[ever + w]
    return strangers != 0


@inner
def is_lie(state: State) -> bool:
    """Notice claims that we can know to be false: sends of ours that we never made."""
    me, stride = state[ME], state[STRIDE]
    for i in range(state[M_WAITS]):
        if state[state[WAITS] + 2 * i] == me:
            return True
    made_us = max(state[LAST_SENT], state[SINCE])
    for entry in range(state[THEIRS], state[THEIRS] + state[M_COUNT] * stride, stride):
        if state[entry] == me and state[entry + 1] > made_us:
            return True
    return False


@entry_point("int64[::1], uint8[::1], Bytes(uint8, 1, 'C'), int64, int64, float64")
def send(state: State, out: Buffer, numbers: bytes, own_us: int, payload: int, now: float) -> int:
    """Write a copy for each of `numbers` (two bytes each) to `out`; return how many.

    STARTS says where they begin. All numbers must have room in the state.
    """
    now_us = instant_us(state, now)
    if now_us < 0:
        return now_us
    state[NEED_CAPACITY] = state[COUNT] + 2
    if state[NEED_CAPACITY] > state[CAPACITY]:
        return GROW
    for w in range(state[WORDS]):
        state[state[DESTINATIONS] + w] = 0
    for i in range(0, len(numbers), 2):
        number = numbers[i] & 0xFF | (numbers[i + 1] & 0xFF) << 8
        state[state[DESTINATIONS] + (number >> 6)] |= bit_at(number & 63)
    sent_us = max(now_us, state[CLOCK] + 1)
    state[M_SENDER], state[M_SENT], state[M_OWN] = state[ME], sent_us, own_us
    state[M_ALGORITHM] = state[ALGORITHM]
    copies = compose(state, out, payload, now_us)
    if copies >= 0:
        pass_to(state, now_us)
        state[CLOCK] = state[LAST_SENT] = sent_us
        state[N_SENT] += 1
    return copies


@entry_point("int64[::1], uint8[::1], int64")
def write(state: State, out: Buffer, payload: int) -> int:
    """Write a message from the M_ scalars, DESTINATIONS, THEIRS and WAITS; return its length."""
    width, stride, positions = state[WIDTH], state[STRIDE], state[POSITIONS]
    at = put_varint(out, put_head(out, 0, state, width), state[M_TO])
    at = put_table(out, at, state, state[THEIRS], state[M_COUNT], width)
    if state[M_ALGORITHM] == DELTA_CAUSAL:
        for w in range(state[CAPACITY] // 64 + 1):
            state[positions + w] = 0
        rest = 0
        for i in range(state[M_WAITS]):
            wait = state[WAITS] + 2 * i
            found = False
            for place in range(state[M_COUNT]):
                entry = state[THEIRS] + place * stride
                if state[entry] == state[wait] and state[entry + 1] == state[wait + 1]:
                    state[positions + (place >> 6)] |= bit_at(place & 63)
                    found = True
            if not found:
                to = state[WAITS] + 2 * rest
                state[to], state[to + 1] = state[wait], state[wait + 1]
                rest += 1
        at = put_set(out, at, state, positions, state[CAPACITY] // 64 + 1)
        at = put_varint(out, at, rest)
        for i in range(rest):
            at = put_varint(out, at, state[state[WAITS] + 2 * i])
            at = put_fixed(out, at, state[state[WAITS] + 2 * i + 1], width)
    return put_varint(out, at, payload)


# -- a client that moves, a process that leaves ---------------------------------------------


@entry_point("int64[::1], uint8[::1], float64")
def write_past(state: State, out: Buffer, now: float) -> int:
    """Write width, instant and all rows; return the length."""
    now_us = instant_us(state, now)
    pass_to(state, now_us)
    drop_dead(state, now_us)
    out[0] = state[WIDTH]
    at = put_fixed(out, 1, max(now_us, state[CLOCK] + 1), 7)
    return put_table(out, at, state, state[TABLE], state[COUNT], state[WIDTH])


@entry_point("int64[::1], Bytes(uint8, 1, 'C'), float64")
def adopt(  # noqa: PLR0911 - one exit per complaint
    state: State, data: bytes, now: float
) -> int:
    """Merge a past written by `write_past`; return 0, or what is wrong with it.

    Entries of which we may be a destination keep us until they are delivered here.
    """
    now_us = instant_us(state, now)
    if now_us < 0:
        return now_us
    size = len(data)
    if size < 9:
        return TRUNCATED
    width, at_us = data[0] & 0xFF, read_fixed(data, 1, 7)
    if width < 2 or width > 7:
        return BAD_WIDTH
    if at_us > now_us + state[SKEW] + 1:
        return NOT_PAST
    state[NEED_NUMBER] = 0
    at, count, newest = read_body(data, 8, size, width, at_us, state, True, HIGHEST_NUMBER)
    if at < 0:
        return at
    if at != size:
        return BAD_LENGTH
    if newest >= at_us:
        return NOT_PAST
    state[M_COUNT] = count
    state[NEED_CAPACITY] = state[COUNT] + count + 2
    if state[NEED_CAPACITY] > state[CAPACITY] or state[NEED_NUMBER] >= 64 * state[WORDS]:
        return GROW
    pass_to(state, now_us)
    state[CLOCK] = max(state[CLOCK], newest)
    merge_logs(state, now_us, True)
    note_arrivals(state)
    return 0


@inner
def note_arrivals(state: State) -> None:
    """Take us out of what was delivered here already (trap T2.2)."""
    stride, me, delivered = state[STRIDE], state[ME], state[DELIVERED]
    at, bit = 2 + (me >> 6), bit_at(me & 63)
    for entry in range(state[TABLE], state[TABLE] + state[COUNT] * stride, stride):
        if state[entry + 1] <= state[delivered + state[entry]]:
            state[entry + at] &= ~bit
    drop_empty(state)


@entry_point("int64[::1], int64")
def strip(state: State, number: int) -> None:
    """Take a process that has left out of all sets (trap T2.5)."""
    stride, words = state[STRIDE], state[WORDS]
    if number >= 64 * words:
        return
    at, bit = number >> 6, bit_at(number & 63)
    for entry in range(state[TABLE], state[TABLE] + state[COUNT] * stride, stride):
        state[entry + 2 + at] &= ~bit
        if stride > 2 + words:
            state[entry + 2 + words + at] &= ~bit
    drop_empty(state)


@inner
def drop_empty(state: State) -> None:
    """Drop entries with nobody left, but keep the last of each sender as a marker."""
    stride, words, table = state[STRIDE], state[WORDS], state[TABLE]
    end, out = table + state[COUNT] * stride, table
    for entry in range(table, end, stride):
        after = entry + stride
        last = after == end or state[after] != state[entry]
        if last or not is_empty(state, entry + 2, words):
            for i in range(stride):
                state[out + i] = state[entry + i]
            out += stride
    state[COUNT] = (out - table) // stride


# -- from Python -------------------------------------------------------------------------------


class Entries(NamedTuple):
    """Kernels for exactly the types they are called with here."""

    send: Callable[[State, Buffer, bytes, int, int, float], int]
    receive: Callable[[State, bytes, float, bool, int], int]
    receive_many: Callable[[State, bytes, bytes, int, int, float, int], int]
    advance: Callable[[State, float], int]
    judge: Callable[[State, bytes, int], int]
    read: Callable[[State, bytes], int]
    write: Callable[[State, Buffer, int], int]
    write_past: Callable[[State, Buffer, float], int]
    adopt: Callable[[State, bytes, float], int]
    strip: Callable[[State, int], None]


def entries() -> Entries:
    """Return the functions that a process calls, compiled or not; see `kernels.on_switch`."""
    return _entries_with(send)


@cache
def _entries_with(_send: object) -> Entries:
    own = globals()
    return Entries(*(_straight(own[name]) for name in Entries._fields))


def _straight(kernel: Any) -> Any:
    """Return the compiled function itself, which does not look at the types of arguments.

    Numba's dispatcher does, and that takes 0.3 µs, a fifth of a whole receive. A function of Python
    gets memory instead of arrays: its numbers are those of Python, and ten times as quick.
    """
    if isinstance(kernel, FunctionType):
        return partial(_on_memory, kernel)
    return compile_entry(kernel)


def _on_memory(kernel: FunctionType, state: State, *rest: Any) -> int:
    more = (memoryview(one.data) if isinstance(one, np.ndarray) else one for one in rest)
    return kernel(memoryview(state.data), *more)  # type: ignore[no-any-return]
