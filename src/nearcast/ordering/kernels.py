"""The kernels that a process calls: judge, receive, look again, send, adopt, forget.

Each gets the whole state. A result below zero means that nothing was changed.

Read next: process.py.
"""

from __future__ import annotations

from numba import njit

from nearcast.ordering.codec import (
    parse,
    put_fixed,
    put_head,
    put_set,
    put_table,
    put_varint,
    read_body,
    read_fixed,
)
from nearcast.ordering.layout import (
    ALGORITHM,
    BACKWARDS,
    BAD_INSTANT,
    BAD_LENGTH,
    BAD_WIDTH,
    CAPACITY,
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
    HIGHEST_NUMBER,
    HOLD,
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
    N_DELIVERED,
    N_SENT,
    NEED_CAPACITY,
    NEED_NUMBER,
    NOT_PAST,
    NOW,
    POSITIONS,
    SINCE,
    SKEW,
    STRIDE,
    TABLE,
    THEIRS,
    TRUNCATED,
    WAIT_NUMBER,
    WAIT_TIME,
    WAITS,
    WIDTH,
    WORDS,
    Buffer,
    State,
)
from nearcast.ordering.rows import absorb, drop_dead, is_empty, merge_logs
from nearcast.ordering.sending import compose

# Reasons, in the order of `Reason`
LATE = FIRST_REASON
WAITED_TOO_LONG = FIRST_REASON + 1
DUPLICATE = FIRST_REASON + 2
FUTURE = FIRST_REASON + 3
NOT_FOR_US = FIRST_REASON + 4
UNKNOWN_PROCESS = FIRST_REASON + 5
CONTRADICTION = FIRST_REASON + 6
OTHER_ALGORITHM = FIRST_REASON + 7

_LAST_INSTANT_S = 9_000_000_000.0  # whole microseconds are exact in a float up to here


@njit(cache=True)
def judge(state: State, data: bytes, most: int) -> int:
    """Return where the control information of a whole message ends, or what is wrong with it."""
    return parse(state, data, False, most)


@njit(cache=True)
def instant_us(state: State, now: float) -> int:
    """Return `now` in microseconds, or why it cannot be."""
    if not 0.0 <= now <= _LAST_INSTANT_S:
        return BAD_INSTANT
    now_us = int(now * 1e6 + 0.5)
    return now_us if now_us >= state[NOW] else BACKWARDS


@njit(cache=True)
def pass_to(state: State, now_us: int) -> None:
    """Note the time; the first one is since when we have been here."""
    state[NOW] = now_us
    if state[SINCE] < 0:
        state[SINCE] = now_us


@njit(cache=True)
def tick(state: State, now: float) -> int:
    """Note that time has passed, and forget what has expired; return the instant."""
    now_us = instant_us(state, now)
    if now_us >= 0:
        pass_to(state, now_us)
        drop_dead(state, now_us)
    return now_us


@njit(cache=True)
def receive(state: State, data: bytes, now: float) -> int:
    """Say what becomes of a message that has just arrived, and if it is delivered, do it."""
    now_us = instant_us(state, now)
    if now_us < 0:
        return now_us
    if parse(state, data, True, HIGHEST_NUMBER) < 0 or lacks_room(state):
        return GROW
    pass_to(state, now_us)
    reason = refusal(state, now_us)
    if reason:
        return reason
    return settle(state, now_us)


@njit(cache=True)
def look_again(state: State, data: bytes, now_us: int) -> int:
    """Deliver a message that waited, or say for what it still waits."""
    if parse(state, data, True, HIGHEST_NUMBER) < 0 or lacks_room(state):
        return GROW
    return settle(state, now_us)


@njit(cache=True)
def read(state: State, data: bytes) -> int:
    """Fill the state with a message that `judge` found good, to look at it."""
    return parse(state, data, True, HIGHEST_NUMBER)


@njit(cache=True)
def lacks_room(state: State) -> bool:
    """Say whether both tables together might not fit into one."""
    state[NEED_CAPACITY] = state[COUNT] + state[M_COUNT] + 2
    return bool(state[NEED_CAPACITY] > state[CAPACITY])


@njit(cache=True)
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


@njit(cache=True)
def is_strange(state: State) -> bool:
    """Say whether sender or destinations were never members of a closed group."""
    ever, sender = state[EVER], state[M_SENDER]
    if not state[ever + (sender >> 6)] >> (sender & 63) & 1:
        return True
    strangers = 0
    for w in range(state[WORDS]):
        strangers |= state[state[DESTINATIONS] + w] & ~state[ever + w]
    return strangers != 0


@njit(cache=True)
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


@njit(cache=True)
def settle(state: State, now_us: int) -> int:
    """Deliver the message at hand unless a predecessor is neither delivered nor expired."""
    alive_us, delivered = now_us - state[LIFETIME], state[DELIVERED]
    if state[ALGORITHM] == DELTA_CAUSAL:
        for i in range(state[M_WAITS]):
            wait = state[WAITS] + 2 * i
            number, time_us = state[wait], state[wait + 1]
            if time_us >= alive_us and state[delivered + number] < time_us:
                state[WAIT_NUMBER], state[WAIT_TIME] = number, time_us
                return HOLD
    else:
        stride, at, bit = state[STRIDE], 2 + (state[ME] >> 6), state[ME] & 63
        for entry in range(state[THEIRS], state[THEIRS] + state[M_COUNT] * stride, stride):
            number, time_us = state[entry], state[entry + 1]
            if (
                state[entry + at] >> bit & 1
                and time_us >= alive_us
                and state[delivered + number] < time_us
            ):
                state[WAIT_NUMBER], state[WAIT_TIME] = number, time_us
                return HOLD
    sender, sent_us = state[M_SENDER], state[M_SENT]
    state[delivered + sender] = sent_us
    state[CLOCK] = max(state[CLOCK], sent_us)
    state[N_DELIVERED] += 1
    absorb(state, now_us)
    return DELIVERED_NOW


@njit(cache=True)
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
        state[state[DESTINATIONS] + (number >> 6)] |= 1 << (number & 63)
    sent_us = max(now_us, state[CLOCK] + 1)
    state[M_SENDER], state[M_SENT], state[M_OWN] = state[ME], sent_us, own_us
    state[M_ALGORITHM] = state[ALGORITHM]
    copies = compose(state, out, payload, now_us)
    if copies >= 0:
        pass_to(state, now_us)
        state[CLOCK] = state[LAST_SENT] = sent_us
        state[N_SENT] += 1
    return copies


@njit(cache=True)
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
                    state[positions + (place >> 6)] |= 1 << (place & 63)
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


@njit(cache=True)
def write_past(state: State, out: Buffer, now_us: int) -> int:
    """Write width, instant and all rows; return the length."""
    drop_dead(state, now_us)
    out[0] = state[WIDTH]
    at = put_fixed(out, 1, max(now_us, state[CLOCK] + 1), 7)
    return put_table(out, at, state, state[TABLE], state[COUNT], state[WIDTH])


@njit(cache=True)
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
    if lacks_room(state) or state[NEED_NUMBER] >= 64 * state[WORDS]:
        return GROW
    pass_to(state, now_us)
    state[CLOCK] = max(state[CLOCK], newest)
    merge_logs(state, now_us, True)
    note_arrivals(state)
    return 0


@njit(cache=True)
def note_arrivals(state: State) -> None:
    """Take us out of what was delivered here already (trap T2.2)."""
    stride, me, delivered = state[STRIDE], state[ME], state[DELIVERED]
    at, bit = 2 + (me >> 6), 1 << (me & 63)
    for entry in range(state[TABLE], state[TABLE] + state[COUNT] * stride, stride):
        if state[entry + 1] <= state[delivered + state[entry]]:
            state[entry + at] &= ~bit
    drop_empty(state)


@njit(cache=True)
def strip(state: State, number: int) -> None:
    """Take a process that has left out of all sets (trap T2.5)."""
    stride, words = state[STRIDE], state[WORDS]
    if number >= 64 * words:
        return
    at, bit = number >> 6, 1 << (number & 63)
    for entry in range(state[TABLE], state[TABLE] + state[COUNT] * stride, stride):
        state[entry + 2 + at] &= ~bit
        if stride > 2 + words:
            state[entry + 2 + words + at] &= ~bit
    drop_empty(state)


@njit(cache=True)
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
