"""Raynal–Schiper–Toueg and Prakash–Raynal–Singhal: kernels for the last sends to each destination.

    matrix   Raynal–Schiper–Toueg: for each sender and destination the later time
    direct   Prakash–Raynal–Singhal: the later time, where the message does not stand in

Read next: logs.py.
"""

from __future__ import annotations

from nearcast.kernels import inner
from nearcast.ordering.bits import bit_at
from nearcast.ordering.layout import (
    COUNT,
    DESTINATIONS,
    KEEP,
    M_COUNT,
    M_SENDER,
    M_SENT,
    ME,
    SCRATCH,
    SPARE,
    STRIDE,
    TABLE,
    THEIRS,
    WORDS,
    State,
)
from nearcast.ordering.rows import is_empty, row_end
from nearcast.papers.delta_causal.baselines.bodies import copy_alive, swap

NOBODY = 1 << 40  # above every number


@inner
def latest_of(
    state: State, mine: int, mine_end: int, theirs: int, theirs_end: int, out: int, served: int
) -> int:
    """Write, for each destination, the later of two times; return the next free position.

    Where `served` ≥ 0 points at a set, what they list of these destinations is left out.
    Goes backwards, then turns the result round.
    """
    stride, words, seen = state[STRIDE], state[WORDS], state[SCRATCH]
    for w in range(words):
        state[seen + w] = 0
    a, b, start = mine_end - stride, theirs_end - stride, out
    while a >= mine or b >= theirs:
        at_a = state[a + 1] if a >= mine else -1
        at_b = state[b + 1] if b >= theirs else -1
        time_us = max(at_a, at_b)
        filled = False
        for w in range(words):
            listed = state[b + 2 + w] if at_b == time_us else 0
            bits = listed | (state[a + 2 + w] if at_a == time_us else 0)
            bits &= ~state[seen + w]
            state[seen + w] |= bits
            if served >= 0:
                bits &= ~(listed & state[served + w])
            state[out + 2 + w] = bits
            filled = filled or bits != 0
        if filled:
            state[out] = state[a] if at_a == time_us else state[b]
            state[out + 1] = time_us
            out += stride
        a -= stride if at_a == time_us else 0
        b -= stride if at_b == time_us else 0
    turn_round(state, start, out)
    return out


@inner
def turn_round(state: State, begin: int, end: int) -> None:
    """Reverse the order of entries."""
    stride = state[STRIDE]
    low, high = begin, end - stride
    while low < high:
        for i in range(stride):
            state[low + i], state[high + i] = state[high + i], state[low + i]
        low += stride
        high -= stride


@inner
def merge_latest(state: State, now_us: int, direct: bool) -> None:
    """Take over the rows of the message at hand, then the message itself."""
    stride, dead_us = state[STRIDE], now_us - state[KEEP]
    mine, theirs, out = state[TABLE], state[THEIRS], state[SPARE]
    mine_end = mine + state[COUNT] * stride
    theirs_end = theirs + state[M_COUNT] * stride
    served = state[DESTINATIONS] if direct else -1
    while mine < mine_end or theirs < theirs_end:
        a = state[mine] if mine < mine_end else NOBODY
        b = state[theirs] if theirs < theirs_end else NOBODY
        mine_row = row_end(state, mine, mine_end) if a <= b else mine
        row = row_end(state, theirs, theirs_end) if b <= a else theirs
        if mine_row > mine and row == theirs:
            out = copy_alive(state, mine, mine_row, out, dead_us)
        else:
            out = latest_of(state, mine, mine_row, theirs, row, out, served)
        mine, theirs = mine_row, row
    swap(state, out)
    enter_latest(state, state[ME] if direct else -1)


@inner
def enter_latest(state: State, skip: int) -> None:
    """Append the message at hand to its sender's row, as the latest to all it goes to.

    Its destinations are DESTINATIONS less the number `skip`.
    """
    stride, words, sender = state[STRIDE], state[WORDS], state[M_SENDER]
    entry, out = state[TABLE], state[SPARE]
    end = entry + state[COUNT] * stride
    while entry < end and state[entry] < sender:
        for i in range(stride):
            state[out + i] = state[entry + i]
        entry += stride
        out += stride
    while entry < end and state[entry] == sender:
        filled = False
        for w in range(words):
            bits = state[entry + 2 + w] & ~state[state[DESTINATIONS] + w]
            if skip >> 6 == w:
                bits |= state[entry + 2 + w] & bit_at(skip & 63)
            state[out + 2 + w] = bits
            filled = filled or bits != 0
        state[out], state[out + 1] = sender, state[entry + 1]
        out += stride if filled else 0
        entry += stride
    filled = False
    for w in range(words):
        bits = state[state[DESTINATIONS] + w]
        if skip >> 6 == w:
            bits &= ~bit_at(skip & 63)
        state[out + 2 + w] = bits
        filled = filled or bits != 0
    state[out], state[out + 1] = sender, state[M_SENT]
    out += stride if filled else 0
    for i in range(end - entry):
        state[out + i] = state[entry + i]
    swap(state, out + end - entry)


@inner
def note_latest(state: State, direct: bool) -> None:
    """Record a send of ours; `direct`: nobody has to wait any more for what it stands in for."""
    stride, words, table = state[STRIDE], state[WORDS], state[TABLE]
    if direct:
        out = table
        for entry in range(table, table + state[COUNT] * stride, stride):
            for w in range(words):
                state[out + 2 + w] = state[entry + 2 + w] & ~state[state[DESTINATIONS] + w]
            state[out], state[out + 1] = state[entry], state[entry + 1]
            out += 0 if is_empty(state, out + 2, words) else stride
        state[COUNT] = (out - table) // stride
    enter_latest(state, -1)
