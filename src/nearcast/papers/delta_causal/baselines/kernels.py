"""The kernels that a baseline calls; as those of `nearcast.ordering`, with other rows.

A message waits for the entries of its rows that have its destination left. Numba compiles no
function as an argument of another and keeps the result, so receiving is written here once more,
as short as it can be, around the same parts.

Read next: ../experiment.py.
"""

from __future__ import annotations

from nearcast.kernels import entry_point, inner
from nearcast.ordering.bits import lowest_one, without_lowest
from nearcast.ordering.codec import has, read_body, read_end, read_head
from nearcast.ordering.holding import (
    has_to_wait,
    hold,
    is_due,
    is_free,
    lacks_room,
    let_go,
    note_next_wake,
    verdict,
)
from nearcast.ordering.kernels import (
    Entries,
    instant_us,
    note_delivery,
    note_send,
    pass_to,
    refusal,
    stamp,
    straight,
)
from nearcast.ordering.layout import (
    CAPACITY,
    COUNT,
    DELIVERED_NOW,
    DESTINATIONS,
    DUE,
    FIRST_REASON,
    FUTURE,
    GROW,
    HIGHEST_NUMBER,
    HOLD,
    HOLDING,
    KIND,
    M_COUNT,
    M_SENDER,
    M_WAITS,
    ME,
    N_DISCARDED,
    N_OUT,
    N_SKEW,
    NEED_BYTES,
    NEED_CAPACITY,
    NEXT_WAKE,
    RELEASED_OTHERS,
    ROW_COLUMNS,
    ROWS,
    SPARE,
    STALLED,
    STARTS,
    STRIDE,
    THEIRS,
    WAITED_TOO_LONG,
    WAITS,
    WATCHERS,
    WORDS,
    Buffer,
    State,
)
from nearcast.ordering.rows import drop_dead
from nearcast.ordering.sending import (
    copy_bytes,
    enter_own,
    most_bytes,
    put_head,
    put_rows,
    put_varint,
    stand_in,
)
from nearcast.papers.delta_causal.baselines.bodies import put_senders, put_table
from nearcast.papers.delta_causal.baselines.logs import merge_logs, put_log
from nearcast.papers.delta_causal.baselines.matrices import merge_latest, note_latest

RAYNAL_SCHIPER_TOUEG, PRAKASH_RAYNAL_SINGHAL, KSHEMKALYANI_SINGHAL = 1, 2, 3


# -- receiving -----------------------------------------------------------------------------------


@inner
def parse(state: State, data: bytes, whole: bool) -> int:
    """Read a message; return where its control information ends."""
    size = len(data)
    at = read_head(state, data, size, HIGHEST_NUMBER)
    if at >= 0:
        at = read_body(state, data, at, size, HIGHEST_NUMBER)
    if at < 0:
        return at
    to, stride = state[WAITS], state[STRIDE]
    if state[ME] < 64 * state[WORDS]:
        for entry in range(state[THEIRS], state[THEIRS] + state[M_COUNT] * stride, stride):
            if has(state, entry + 2, state[ME]):
                state[to], state[to + 1] = state[entry], state[entry + 1]
                to += 2
    state[M_WAITS] = (to - state[WAITS]) // 2
    return read_end(state, data, at, size, whole)


@inner
def deliver(state: State, now_us: int) -> None:
    """Record that the message at hand is delivered, and take over what it knows."""
    note_delivery(state)
    if state[KIND] == KSHEMKALYANI_SINGHAL:
        merge_logs(state, now_us)
    else:
        merge_latest(state, now_us, state[KIND] == PRAKASH_RAYNAL_SINGHAL)


@inner
def look_again(state: State, i: int, now_us: int) -> bool:
    """Deliver what waits in line `i`, or give it up; say whether it is gone."""
    result = verdict(state, i, now_us)
    if result == HOLD:
        return False
    if result == DELIVERED_NOW:
        deliver(state, now_us)
    else:
        state[N_DISCARDED + WAITED_TOO_LONG - FIRST_REASON] += 1
    let_go(state, i, result)
    return True


@inner
def release(state: State, now_us: int) -> None:
    """Deliver what waits for nothing but what is delivered now, also in chains."""
    again = True
    while again:
        again, i = False, 0
        while i < state[HOLDING]:
            if is_free(state, i) and look_again(state, i, now_us):
                again = True
            else:
                i += 1
    note_next_wake(state)


@entry_point("int64[::1], Bytes(uint8, 1, 'C'), Bytes(uint8, 1, 'C'), float64, boolean")
def receive(state: State, data: bytes, _numbers: bytes, now: float, whole: bool) -> int:
    """Decide what becomes of a message that has just arrived, and do it."""
    now_us = instant_us(state, now)
    if now_us < 0:
        return now_us
    end = parse(state, data, whole)
    if end < 0:
        return end
    if state[NEXT_WAKE] <= now_us:
        return DUE
    if lacks_room(state):
        return GROW
    pass_to(state, now_us)
    result = refusal(state, now_us)
    if result == DELIVERED_NOW and has_to_wait(state, now_us):
        result = hold(state)
    if result >= FIRST_REASON:
        state[N_DISCARDED + result - FIRST_REASON] += 1
        state[N_SKEW] += result == FUTURE
    if result != DELIVERED_NOW:
        return result
    deliver(state, now_us)
    state[N_OUT] = 0
    if state[state[WATCHERS] + state[M_SENDER]]:
        release(state, now_us)
    return RELEASED_OTHERS if state[N_OUT] or state[STALLED] else DELIVERED_NOW


@entry_point("int64[::1], float64")
def advance(state: State, now: float) -> int:
    """Record that time has passed; deliver and give up what is due, forget what has expired."""
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
    """Write a copy for each of `numbers` to `out`; return how many."""
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
def compose(state: State, out: Buffer, payload: int, now_us: int) -> int:
    """Write the copies for DESTINATIONS; STARTS says where each begins. Return their number."""
    room, a_copy = len(out), most_bytes(state)
    state[NEED_BYTES] = 4 * a_copy
    if room < 4 * a_copy:
        return GROW
    rows, body, keeps_log = 0, 0, state[KIND] == KSHEMKALYANI_SINGHAL
    if keeps_log:
        rows, _ = stand_in(state, now_us)
        body = put_rows(out, state, rows)
        last = state[ROWS] + (rows - 1) * ROW_COLUMNS
        end = state[last + 2] if rows else state[SPARE]
        head = put_senders(out, body, state, state[SPARE], end)
    else:
        drop_dead(state, now_us)
        head = put_table(out, body, state)
    head_end = at = put_head(out, head, state)
    copies = 0
    for w in range(state[WORDS]):
        word = state[state[DESTINATIONS] + w]
        while word:
            to = 64 * w + lowest_one(word)
            word = without_lowest(word)
            if room - at < a_copy:
                state[NEED_BYTES] = 2 * room
                return GROW
            state[state[STARTS] + copies] = at
            copies += 1
            at = put_varint(out, copy_bytes(out, at, head, head_end), to)
            at = copy_bytes(out, at, body, head)
            if keeps_log:
                at = put_log(out, at, state, rows, to, now_us)
            at = put_varint(out, at, payload)
    state[state[STARTS] + copies] = at
    if keeps_log:
        enter_own(state, rows)
    else:
        note_latest(state, state[KIND] == PRAKASH_RAYNAL_SINGHAL)
    return copies


def entries() -> Entries:
    """Return the functions that a baseline calls, compiled or not."""
    return Entries(straight(send), straight(receive), straight(advance))
