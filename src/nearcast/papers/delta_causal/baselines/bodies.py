"""Kernels that write a whole table, as a baseline carries it.

Read next: matrices.py.
"""

from __future__ import annotations

from nearcast.kernels import inner
from nearcast.ordering.bits import bit_at
from nearcast.ordering.layout import COUNT, SCRATCH, SPARE, STRIDE, TABLE, WORDS, Buffer, State
from nearcast.ordering.rows import row_end
from nearcast.ordering.sending import put_row, put_set


@inner
def put_senders(out: Buffer, at: int, state: State, table: int, end: int) -> int:
    """Write the set of the senders of entries; return the next position."""
    words, scratch = state[WORDS], state[SCRATCH]
    for w in range(words):
        state[scratch + w] = 0
    for entry in range(table, end, state[STRIDE]):
        number = state[entry]
        state[scratch + (number >> 6)] |= bit_at(number & 63)
    return put_set(out, at, state, scratch, words)


@inner
def put_table(out: Buffer, at: int, state: State) -> int:
    """Write the table as a body; return the next position."""
    begin = state[TABLE]
    end = begin + state[COUNT] * state[STRIDE]
    at = put_senders(out, at, state, begin, end)
    while begin < end:
        after = row_end(state, begin, end)
        at = put_row(out, at, state, begin, after)
        begin = after
    return at


@inner
def copy_alive(state: State, begin: int, end: int, out: int, dead_us: int) -> int:
    """Copy entries of a row that have not expired; return the next free position."""
    stride = state[STRIDE]
    while begin < end and state[begin + 1] < dead_us:
        begin += stride
    for i in range(begin, end):
        state[out + i - begin] = state[i]
    return out + max(0, end - begin)


@inner
def swap(state: State, out: int) -> None:
    """Make what was written to SPARE, up to `out`, the table."""
    state[COUNT] = (out - state[SPARE]) // state[STRIDE]
    state[TABLE], state[SPARE] = state[SPARE], state[TABLE]
