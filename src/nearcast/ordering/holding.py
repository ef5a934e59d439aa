"""Messages that wait: kernels that hold them, look at them again, and release them.

HELD has a line of numbers for each, without gaps; CELLS, in the same order, the predecessors that
it waits for, as pairs of number and time, and the bytes of its control information. A message
watches one predecessor at a time; when that is settled it is looked at again, and may find
another. WATCHERS counts, for each process, how many watch a message of it. NEXT_WAKE is the
earliest instant at which one of them is due without any arrival.

What lacks room in the tables goes on waiting, and STALLED is set: the caller makes room and comes
again in the same instant.

Read next: kernels.py.
"""

from __future__ import annotations

from typing import Any

from nearcast.kernels import inner
from nearcast.ordering.bits import as_bytes
from nearcast.ordering.codec import parse
from nearcast.ordering.layout import (
    ALGORITHM,
    CAPACITY,
    CELL,
    CELLS,
    CLOCK,
    COUNT,
    DELIVERED,
    DELIVERED_NOW,
    DELTA_CAUSAL,
    FIRST_REASON,
    H_COUNT,
    H_DEADLINE,
    H_LENGTH,
    H_SENDER,
    H_SENT,
    H_SERIAL,
    H_WAIT_NUMBER,
    H_WAIT_TIME,
    H_WAITS,
    H_WAKE,
    HELD,
    HELD_COLUMNS,
    HIGHEST_NUMBER,
    HOLD,
    HOLDING,
    LIFETIME,
    M_COUNT,
    M_OWN,
    M_SENDER,
    M_SENT,
    M_WAITS,
    ME,
    N_DELIVERED,
    N_DISCARDED,
    N_HELD,
    N_OUT,
    NEED_CAPACITY,
    NEVER,
    NEXT_WAKE,
    OUT_COLUMNS,
    OUTS,
    SERIAL,
    STALLED,
    STRIDE,
    THEIRS,
    UNTIL,
    WAITS,
    WATCHERS,
    State,
)
from nearcast.ordering.rows import absorb

# Reasons, in the order of `Reason`
LATE = FIRST_REASON
WAITED_TOO_LONG = FIRST_REASON + 1
DUPLICATE = FIRST_REASON + 2
FUTURE = FIRST_REASON + 3
NOT_FOR_US = FIRST_REASON + 4
UNKNOWN_PROCESS = FIRST_REASON + 5
CONTRADICTION = FIRST_REASON + 6
OTHER_ALGORITHM = FIRST_REASON + 7
MALFORMED = FIRST_REASON + 8


@inner
def put_output(state: State, place: int, serial: int, result: int, end: int) -> None:
    """Tell what has become of a message."""
    out = state[OUTS] + state[N_OUT] * OUT_COLUMNS
    state[out], state[out + 1], state[out + 2], state[out + 3] = place, serial, result, end
    state[N_OUT] += 1


@inner
def settle(state: State, now_us: int) -> int:
    """Deliver the message at hand unless a predecessor is neither delivered nor expired.

    Then WAITS has those that are not, and no others.
    """
    alive_us, delivered, waits, unsettled = (
        now_us - state[LIFETIME],
        state[DELIVERED],
        state[WAITS],
        0,
    )
    if state[ALGORITHM] == DELTA_CAUSAL:
        for wait in range(waits, waits + 2 * state[M_WAITS], 2):
            number, time_us = state[wait], state[wait + 1]
            if time_us >= alive_us and state[delivered + number] < time_us:
                state[waits + unsettled], state[waits + unsettled + 1] = number, time_us
                unsettled += 2
    else:
        stride, at, bit = state[STRIDE], 2 + (state[ME] >> 6), state[ME] & 63
        for entry in range(state[THEIRS], state[THEIRS] + state[M_COUNT] * stride, stride):
            number, time_us = state[entry], state[entry + 1]
            if (
                state[entry + at] >> bit & 1
                and time_us >= alive_us
                and state[delivered + number] < time_us
            ):
                state[waits + unsettled], state[waits + unsettled + 1] = number, time_us
                unsettled += 2
    if unsettled:
        state[M_WAITS] = unsettled // 2
        return HOLD
    deliver(state, now_us)
    return DELIVERED_NOW


@inner
def deliver(state: State, now_us: int) -> None:
    """Note that the message at hand is delivered, and take over what it knows."""
    sender, sent_us = state[M_SENDER], state[M_SENT]
    state[state[DELIVERED] + sender] = sent_us
    state[CLOCK] = max(state[CLOCK], sent_us)
    state[N_DELIVERED] += 1
    absorb(state, now_us)


@inner
def cell_of(state: State, i: int) -> int:
    """Return where the waits of line `i` are, as pairs of number and time; then come its bytes."""
    return int(state[CELLS] + i * state[CELL])


@inner
def bytes_of(state: State, i: int) -> Any:
    """Return the bytes of the message in line `i`."""
    cell = cell_of(state, i)
    waits = state[state[HELD] + i * HELD_COLUMNS + H_WAITS]
    return as_bytes(state, cell + 2 * waits, cell + state[CELL])


@inner
def is_held(state: State, sender: int, sent_us: int) -> bool:
    """Say whether a message waits already. O(1) unless it is older than one that was held."""
    until = state[UNTIL] + sender
    if sent_us > state[until]:
        state[until] = sent_us
        return False
    for i in range(state[HOLDING]):
        line = state[HELD] + i * HELD_COLUMNS
        if state[line + H_SENDER] == sender and state[line + H_SENT] == sent_us:
            return True
    return False


@inner
def hold(state: State, data: bytes, begin: int, end: int) -> int:
    """Let the message at hand wait, unless it does already."""
    sender, sent_us, own_us = state[M_SENDER], state[M_SENT], state[M_OWN]
    if is_held(state, sender, sent_us):
        return DUPLICATE
    i = state[HOLDING]
    line, cell = state[HELD] + i * HELD_COLUMNS, cell_of(state, i)
    lifetime_us = own_us if 0 < own_us < state[LIFETIME] else state[LIFETIME]
    state[SERIAL] += 1
    state[line + H_SENDER], state[line + H_SENT] = sender, sent_us
    state[line + H_DEADLINE], state[line + H_SERIAL] = sent_us + lifetime_us, state[SERIAL]
    state[line + H_LENGTH], state[line + H_COUNT] = end - begin, state[M_COUNT] + 2
    state[line + H_WAITS] = state[M_WAITS]
    for w in range(2 * state[M_WAITS]):
        state[cell + w] = state[state[WAITS] + w]
    room = bytes_of(state, i)
    for at in range(begin, end):
        room[at - begin] = data[at]
    state[HOLDING] += 1
    state[N_HELD] += 1
    watch(state, line, cell)
    return HOLD


@inner
def watch(state: State, line: int, wait: int) -> None:
    """Note which of its predecessors a message is held for, and until when."""
    number, time_us = state[wait], state[wait + 1]
    state[line + H_WAIT_NUMBER], state[line + H_WAIT_TIME] = number, time_us
    wake_us = min(time_us + state[LIFETIME], state[line + H_DEADLINE]) + 1
    state[line + H_WAKE] = wake_us
    state[state[WATCHERS] + number] += 1
    state[NEXT_WAKE] = min(state[NEXT_WAKE], wake_us)


@inner
def drop(state: State, i: int) -> None:
    """Take a line out; the last one takes its place."""
    last = state[HOLDING] - 1
    line, other = state[HELD] + i * HELD_COLUMNS, state[HELD] + last * HELD_COLUMNS
    if i != last:
        for c in range(HELD_COLUMNS):
            state[line + c] = state[other + c]
        to, begin = cell_of(state, i), cell_of(state, last)
        for w in range(2 * state[line + H_WAITS] + ((state[line + H_LENGTH] + 7) >> 3)):
            state[to + w] = state[begin + w]
    state[HOLDING] = last


@inner
def next_wait(state: State, i: int, now_us: int) -> int:
    """Return where the first predecessor of line `i` is that is not settled, or -1."""
    alive_us, delivered, cell = now_us - state[LIFETIME], state[DELIVERED], cell_of(state, i)
    waits = state[state[HELD] + i * HELD_COLUMNS + H_WAITS]
    for wait in range(cell, cell + 2 * waits, 2):
        time_us = state[wait + 1]
        if time_us >= alive_us and state[delivered + state[wait]] < time_us:
            return int(wait)
    return -1


@inner
def look_again(state: State, i: int, now_us: int) -> int:
    """Deliver what waits in line `i`, give it up, or say that it goes on waiting."""
    line = state[HELD] + i * HELD_COLUMNS
    serial, length, watched = state[line + H_SERIAL], state[line + H_LENGTH], line + H_WAIT_NUMBER
    result = DELIVERED_NOW
    if now_us > state[line + H_DEADLINE]:
        result = WAITED_TOO_LONG
        state[N_DISCARDED + WAITED_TOO_LONG - FIRST_REASON] += 1
    else:
        wait = next_wait(state, i, now_us)
        if wait >= 0:
            state[state[WATCHERS] + state[watched]] -= 1
            watch(state, line, wait)
            return HOLD
        state[NEED_CAPACITY] = state[COUNT] + state[line + H_COUNT]
        if state[NEED_CAPACITY] > state[CAPACITY]:
            state[STALLED] = 1
            return HOLD
        parse(state, bytes_of(state, i), 0, length, True, False, HIGHEST_NUMBER)
        deliver(state, now_us)
    state[state[WATCHERS] + state[watched]] -= 1
    drop(state, i)
    put_output(state, -1, serial, result, length)
    return result


@inner
def release(state: State, now_us: int) -> None:
    """Deliver what waits for nothing but what is delivered now, also in chains (trap T2.4)."""
    again, delivered = True, state[DELIVERED]
    while again:
        again, i = False, 0
        while i < state[HOLDING]:
            line = state[HELD] + i * HELD_COLUMNS
            number = state[line + H_WAIT_NUMBER]
            settled = state[line + H_WAIT_TIME] <= state[delivered + number]
            if settled and look_again(state, i, now_us) != HOLD:
                again = True
            else:
                i += 1
    note_next_wake(state)


@inner
def wake(state: State, now_us: int) -> None:
    """Deliver or give up what is due because time has passed."""
    while state[NEXT_WAKE] <= now_us and not state[STALLED]:
        i = 0
        while i < state[HOLDING]:
            due = state[state[HELD] + i * HELD_COLUMNS + H_WAKE] <= now_us
            if not due or look_again(state, i, now_us) == HOLD:
                i += 1
        release(state, now_us)


@inner
def note_next_wake(state: State) -> None:
    """Find out when the next one is due."""
    earliest = NEVER
    for i in range(state[HOLDING]):
        earliest = min(earliest, state[state[HELD] + i * HELD_COLUMNS + H_WAKE])
    state[NEXT_WAKE] = earliest
