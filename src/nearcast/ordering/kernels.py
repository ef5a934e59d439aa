"""The kernels that a process calls: read, receive, advance, send.

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
from nearcast.ordering.codec import number_at, parse, renumber
from nearcast.ordering.holding import (
    deadline_us,
    has_to_wait,
    hold,
    is_due,
    is_free,
    lacks_room,
    let_go,
    note_next_wake,
    verdict,
)
from nearcast.ordering.layout import (
    BACKWARDS,
    BAD_INSTANT,
    CAPACITY,
    CLOCK,
    CONTRADICTION,
    COUNT,
    DELIVERED,
    DELIVERED_NOW,
    DESTINATIONS,
    DUE,
    DUPLICATE,
    FIRST_REASON,
    FUTURE,
    GROW,
    HIGHEST_NUMBER,
    HOLD,
    HOLDING,
    LAST_SENT,
    LATE,
    M_COUNT,
    M_OWN,
    M_SENDER,
    M_SENT,
    M_TO,
    M_WAITS,
    ME,
    N_DELIVERED,
    N_DISCARDED,
    N_OUT,
    N_SENT,
    N_SKEW,
    NEED_CAPACITY,
    NEXT_WAKE,
    NOT_FOR_US,
    NOW,
    RELEASED_OTHERS,
    SINCE,
    SKEW,
    STALLED,
    STRIDE,
    THEIRS,
    WAITED_TOO_LONG,
    WAITS,
    WATCHERS,
    WORDS,
    Buffer,
    State,
)
from nearcast.ordering.rows import absorb, drop_dead
from nearcast.ordering.sending import compose

_LAST_INSTANT_S = 9_000_000_000.0  # whole microseconds are exact in a float up to here


@inner
def instant_us(state: State, now: float) -> int:
    """Return `now` in microseconds, or why it cannot be."""
    if not 0.0 <= now <= _LAST_INSTANT_S:
        return BAD_INSTANT
    now_us = int(now * 1e6 + 0.5)
    return now_us if now_us >= state[NOW] else BACKWARDS


@inner
def pass_to(state: State, now_us: int) -> None:
    """Record the time; the first one is the start of this process."""
    state[NOW] = now_us
    if state[SINCE] < 0:
        state[SINCE] = now_us


# -- receiving -----------------------------------------------------------------------------------


@entry_point("int64[::1], Bytes(uint8, 1, 'C'), boolean, int64")
def read(state: State, data: bytes, whole: bool, most: int) -> int:
    """Read a message into a state; return where its control information ends, or what is wrong."""
    return parse(state, data, whole, most)


@entry_point("int64[::1], Bytes(uint8, 1, 'C'), Bytes(uint8, 1, 'C'), float64, boolean")
def receive(state: State, data: bytes, numbers: bytes, now: float, whole: bool) -> int:
    """Decide what becomes of a message that has just arrived, and do it.

    `numbers`: ours for those of its sender, if it has others. `whole`: the payload follows.
    `DUE` if `advance` has to come first.
    """
    now_us = instant_us(state, now)
    if now_us < 0:
        return now_us
    most = len(numbers) // 2 - 1 if len(numbers) else HIGHEST_NUMBER
    end = parse(state, data, whole, most)
    if end < 0:
        return end
    if len(numbers):
        renumber(state, numbers)
    if state[NEXT_WAKE] <= now_us:
        return DUE
    if lacks_room(state):
        return GROW
    pass_to(state, now_us)
    result = refusal(state, now_us)
    if result == DELIVERED_NOW and has_to_wait(state, now_us):
        result = hold(state)
    if result == DELIVERED_NOW:
        return deliver_first(state, now_us)
    if result >= FIRST_REASON:
        state[N_DISCARDED + result - FIRST_REASON] += 1
        state[N_SKEW] += result == FUTURE
    return result


@inner
def refusal(state: State, now_us: int) -> int:
    """Return why the message at hand is not to be delivered, or 0."""
    sender, sent_us = state[M_SENDER], state[M_SENT]
    if state[M_TO] != state[ME] or sender == state[ME]:
        return NOT_FOR_US
    if now_us > deadline_us(state):
        return LATE
    if sent_us > now_us + state[SKEW]:
        return FUTURE
    if sent_us <= state[state[DELIVERED] + sender]:
        return DUPLICATE
    return CONTRADICTION if is_lie(state) else DELIVERED_NOW


@inner
def is_lie(state: State) -> bool:
    """Notice claims that we can know to be false: sends of ours that we never made."""
    me, stride = state[ME], state[STRIDE]
    for wait in range(state[WAITS], state[WAITS] + 2 * state[M_WAITS], 2):
        if state[wait] == me:
            return True
    made_us = max(state[LAST_SENT], state[SINCE])
    for entry in range(state[THEIRS], state[THEIRS] + state[M_COUNT] * stride, stride):
        if state[entry] == me and state[entry + 1] > made_us:
            return True
    return False


@inner
def note_delivery(state: State) -> None:
    """Record that the message at hand is delivered (paper 2, receiving, step 3)."""
    sender, sent_us = state[M_SENDER], state[M_SENT]
    state[state[DELIVERED] + sender] = sent_us
    state[CLOCK] = max(state[CLOCK], sent_us)
    state[N_DELIVERED] += 1


@inner
def deliver_first(state: State, now_us: int) -> int:
    """Deliver the message that has arrived, then those that it releases."""
    note_delivery(state)
    absorb(state, now_us)
    if not state[state[WATCHERS] + state[M_SENDER]]:
        return DELIVERED_NOW
    state[N_OUT] = 0
    release(state, now_us)
    return RELEASED_OTHERS if state[N_OUT] or state[STALLED] else DELIVERED_NOW


@inner
def look_again(state: State, i: int, now_us: int) -> bool:
    """Deliver what waits in line `i`, or give it up; say whether it is gone."""
    result = verdict(state, i, now_us)
    if result == HOLD:
        return False
    if result == DELIVERED_NOW:
        note_delivery(state)
        absorb(state, now_us)
    else:
        state[N_DISCARDED + WAITED_TOO_LONG - FIRST_REASON] += 1
    let_go(state, i, result)
    return True


@inner
def release(state: State, now_us: int) -> None:
    """Deliver what waits for nothing but what is delivered now, also in chains (trap T2.4)."""
    again = True
    while again:
        again, i = False, 0
        while i < state[HOLDING]:
            if is_free(state, i) and look_again(state, i, now_us):
                again = True
            else:
                i += 1
    note_next_wake(state)


@entry_point("int64[::1], float64")
def advance(state: State, now: float) -> int:
    """Record that time has passed; deliver and give up what is due, forget what has expired.

    Return the instant. OUTS tells what has become of messages that waited.
    """
    now_us = instant_us(state, now)
    if now_us < 0:
        return now_us
    pass_to(state, now_us)
    state[N_OUT] = 0
    if state[STALLED]:
        state[STALLED] = 0
        release(state, now_us)
    while state[NEXT_WAKE] <= now_us and not state[STALLED]:
        i = 0
        while i < state[HOLDING]:
            if not is_due(state, i, now_us) or not look_again(state, i, now_us):
                i += 1
        release(state, now_us)
    drop_dead(state, now_us)
    return now_us


# -- sending -------------------------------------------------------------------------------------


@entry_point("int64[::1], uint8[::1], Bytes(uint8, 1, 'C'), int64, int64, float64")
def send(state: State, out: Buffer, numbers: bytes, own_us: int, payload: int, now: float) -> int:
    """Write a copy for each of `numbers` to `out`; return how many.

    STARTS says where they begin. All numbers must have room in the state.
    """
    now_us = instant_us(state, now)
    if now_us < 0:
        return now_us
    state[NEED_CAPACITY] = state[COUNT] + 2
    if state[NEED_CAPACITY] > state[CAPACITY]:
        return GROW
    stamp(state, numbers, own_us, now_us)
    copies = compose(state, out, payload, now_us)
    if copies >= 0:
        note_send(state, now_us)
    return copies


@inner
def stamp(state: State, numbers: bytes, own_us: int, now_us: int) -> None:
    """Make the message that is to be sent the one at hand."""
    for w in range(state[WORDS]):
        state[state[DESTINATIONS] + w] = 0
    for i in range(len(numbers) // 2):
        number = number_at(numbers, i)
        state[state[DESTINATIONS] + (number >> 6)] |= bit_at(number & 63)
    state[M_SENDER], state[M_SENT] = state[ME], max(now_us, state[CLOCK] + 1)
    state[M_OWN] = own_us


@inner
def note_send(state: State, now_us: int) -> None:
    """Record that the message at hand is on its way."""
    pass_to(state, now_us)
    state[CLOCK] = state[LAST_SENT] = state[M_SENT]
    state[N_SENT] += 1


# -- from Python -------------------------------------------------------------------------------


class Entries(NamedTuple):
    """Kernels for exactly the types they are called with here."""

    send: Callable[[State, Buffer, bytes, int, int, float], int]
    receive: Callable[[State, bytes, bytes, float, bool], int]
    advance: Callable[[State, float], int]


def entries() -> Entries:
    """Return the functions that a process calls, compiled or not; see `kernels.on_switch`."""
    return Entries(straight(send), straight(receive), straight(advance))


@cache
def straight(kernel: Any) -> Any:
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
