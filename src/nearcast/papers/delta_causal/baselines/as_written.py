"""The paper's own algorithm: kernels that send all rows to every destination.

It receives as ours does (`nearcast.ordering.kernels`). What differs is what a copy carries: the
whole of CI, markers as well, whether or not the destination knows it (paper 2, sending, step 4).
The repairs of traps T2.1 to T2.6 are in it.

Read next: processes.py.
"""

from __future__ import annotations

from nearcast.kernels import entry_point, inner
from nearcast.ordering import kernels
from nearcast.ordering.bits import lowest_one, without_lowest
from nearcast.ordering.kernels import Entries, instant_us, note_send, stamp, straight
from nearcast.ordering.layout import (
    CAPACITY,
    COUNT,
    DESTINATIONS,
    GROW,
    NEED_BYTES,
    NEED_CAPACITY,
    ROW_COLUMNS,
    ROWS,
    SPARE,
    STARTS,
    STRIDE,
    WORDS,
    Buffer,
    State,
)
from nearcast.ordering.sending import (
    copy_bytes,
    enter_own,
    most_bytes,
    put_head,
    put_row,
    put_varint,
    put_waits,
    stand_in,
)
from nearcast.papers.delta_causal.baselines.bodies import put_senders


@inner
def put_all_rows(out: Buffer, state: State, rows: int) -> int:
    """Write the body that all copies share, at the front of `out`; return where it ends."""
    stride, place = state[STRIDE], 0
    end = state[state[ROWS] + (rows - 1) * ROW_COLUMNS + 2] if rows else state[SPARE]
    at = put_senders(out, 0, state, state[SPARE], end)
    for r in range(rows):
        row = state[ROWS] + r * ROW_COLUMNS
        at = put_row(out, at, state, state[row + 1], state[row + 2])
        state[row + 5] = place
        place += (state[row + 2] - state[row + 1]) // stride
    return at


@inner
def compose(state: State, out: Buffer, payload: int, now_us: int) -> int:
    """Write the copies for DESTINATIONS; STARTS says where each begins. Return their number."""
    room, a_copy = len(out), most_bytes(state)
    state[NEED_BYTES] = 4 * a_copy
    if room < 4 * a_copy:
        return GROW
    rows, hits = stand_in(state, now_us)
    head = put_all_rows(out, state, rows)
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
            at = copy_bytes(out, at, 0, head)
            at = put_waits(out, at, state, hits, to)
            at = put_varint(out, at, payload)
    state[state[STARTS] + copies] = at
    enter_own(state, rows)
    return copies


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


def entries() -> Entries:
    """Return the functions that the algorithm calls, compiled or not."""
    return Entries(straight(send), straight(kernels.receive), straight(kernels.advance))
