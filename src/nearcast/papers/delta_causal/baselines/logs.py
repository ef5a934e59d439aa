"""Kshemkalyani–Singhal: kernels for a log of messages, which each destination gets as it needs it.

Read next: kernels.py.
"""

from __future__ import annotations

from nearcast.kernels import inner
from nearcast.ordering.bits import bit_at
from nearcast.ordering.codec import MORE
from nearcast.ordering.layout import (
    COUNT,
    DESTINATIONS,
    KEEP,
    M_COUNT,
    M_SENDER,
    M_SENT,
    ME,
    ROW_COLUMNS,
    ROWS,
    SCRATCH,
    SPARE,
    STRIDE,
    TABLE,
    THEIRS,
    WIDTH,
    WORDS,
    Buffer,
    State,
)
from nearcast.ordering.rows import enter, is_empty, merge_entries, row_end
from nearcast.ordering.sending import copy_bytes, put_fixed, put_set
from nearcast.papers.delta_causal.baselines.bodies import copy_alive, swap
from nearcast.papers.delta_causal.baselines.matrices import NOBODY


@inner
def merge_logs(state: State, now_us: int) -> None:
    """Take over the log of the message at hand, and the message itself."""
    enter(state)
    without_me(state)
    stride, dead_us = state[STRIDE], now_us - state[KEEP]
    mine, theirs, out = state[TABLE], state[THEIRS], state[SPARE]
    mine_end = mine + state[COUNT] * stride
    theirs_end = theirs + state[M_COUNT] * stride
    while mine < mine_end or theirs < theirs_end:
        a = state[mine] if mine < mine_end else NOBODY
        b = state[theirs] if theirs < theirs_end else NOBODY
        mine_row = row_end(state, mine, mine_end) if a <= b else mine
        row = row_end(state, theirs, theirs_end) if b <= a else theirs
        if a < b:
            out = copy_alive(state, mine, mine_row, out, dead_us)
        else:
            serves_us = state[M_SENT] if a == b == state[M_SENDER] else -1
            out, _ = merge_entries(state, mine, mine_row, theirs, row, out, dead_us, serves_us)
        mine, theirs = mine_row, row
    swap(state, out)


@inner
def without_me(state: State) -> None:
    """Take us out of all destination sets of the message at hand."""
    stride, at, bit = state[STRIDE], 2 + (state[ME] >> 6), bit_at(state[ME] & 63)
    for entry in range(state[THEIRS], state[THEIRS] + state[M_COUNT] * stride, stride):
        state[entry + at] &= ~bit


@inner
def put_log(out: Buffer, at: int, state: State, rows: int, to: int, now_us: int) -> int:
    """Write the rows for one destination, which alone is left to wait.

    Only those in which it is left differ from what `put_rows` wrote.
    """
    stride, word, bit, dead_us = state[STRIDE], to >> 6, to & 63, now_us - state[KEEP]
    begin, end = state[TABLE], state[TABLE] + state[COUNT] * stride
    for r in range(rows):
        row = state[ROWS] + r * ROW_COLUMNS
        while state[begin] != state[row]:
            begin += stride
        after, waits = row_end(state, begin, end), False
        for entry in range(begin, after, stride):
            left = state[entry + 2 + word] >> bit & 1
            waits = waits or (left and state[entry + 1] >= dead_us)
        if waits:
            at = put_row_for(out, at, state, begin, after, to, dead_us)
        else:
            at = copy_bytes(out, at, state[row + 3], state[row + 4])
        begin = after
    return at


@inner
def put_row_for(
    out: Buffer, at: int, state: State, begin: int, end: int, to: int, dead_us: int
) -> int:
    """Write one row, in which `to` is left of all DESTINATIONS."""
    stride, words, scratch, before = state[STRIDE], state[WORDS], state[SCRATCH], -1
    word, bit = to >> 6, bit_at(to & 63)
    for entry in range(begin, end, stride):
        for w in range(words):
            state[scratch + w] = state[entry + 2 + w] & ~state[state[DESTINATIONS] + w]
        state[scratch + word] |= state[entry + 2 + word] & bit
        filled = not is_empty(state, scratch, words)
        if state[entry + 1] >= dead_us and (filled or entry + stride == end):
            if before >= 0:
                out[before] |= MORE
            before = put_fixed(out, at, state[entry + 1], state[WIDTH])
            at = put_set(out, before, state, scratch, words)
    return at
