"""Bytes of control information, written: the other half of codec.py, which explains the forms.

Read next: sending.py.
"""

from __future__ import annotations

from nearcast.kernels import inner
from nearcast.ordering.bits import bit_at, lowest_one, ones, without_lowest
from nearcast.ordering.layout import (
    DESTINATIONS,
    M_ALGORITHM,
    M_OWN,
    M_SENDER,
    M_SENT,
    SCRATCH,
    STRIDE,
    WORDS,
    Buffer,
    State,
)

_MORE = 0x80
_BITS = 0x40
_LONG = 0x3F
_OWN_LIFETIME = 0x04
_TIME_BYTES = 7


@inner
def put_varint(out: Buffer, at: int, value: int) -> int:
    """Write a number in groups of seven bits; return the next position."""
    while value >= 0x80:
        out[at] = value & 0x7F | 0x80
        value >>= 7
        at += 1
    out[at] = value
    return at + 1


@inner
def put_fixed(out: Buffer, at: int, value: int, width: int) -> int:
    """Write the lowest `width` bytes of a number; return the next position."""
    for i in range(width):
        out[at + i] = value >> (8 * i) & 0xFF
    return at + width


@inner
def put_length(out: Buffer, at: int, length: int, flags: int) -> int:
    """Write the first byte of a set, and more if it is long."""
    if length < _LONG:
        out[at] = flags | length
        return at + 1
    out[at] = flags | _LONG
    return put_varint(out, at + 1, length - _LONG)


@inner
def put_set(out: Buffer, at: int, state: State, begin: int, words: int) -> int:
    """Write a set as gaps or as bits, whichever is smaller."""
    count, top = 0, -1
    for w in range(words):
        word = state[begin + w]
        if word:
            count += ones(word)
            top = w
    if count == 0:
        out[at] = 0
        return at + 1
    length = 8 * top + 8
    while not state[begin + top] >> (8 * (length - 8 * top - 1)) & 0xFF:
        length -= 1
    if count == 1 or count < length:
        after, last = put_length(out, at, count, 0), -1
        start = after
        for w in range(top + 1):
            word = state[begin + w]
            while word:
                number = 64 * w + lowest_one(word)
                word = without_lowest(word)
                after = put_varint(out, after, number - last - 1)
                last = number
        if after - start < length or count == 1:
            return after
    at = put_length(out, at, length, _BITS)
    for i in range(length):
        out[at + i] = state[begin + (i >> 3)] >> (8 * (i & 7)) & 0xFF
    return at + length


@inner
def put_entry(
    out: Buffer, at: int, state: State, time_us: int, begin: int, words: int, width: int
) -> tuple[int, int]:
    """Write a time and a set; return the next position and where the set begins."""
    at = put_fixed(out, at, time_us, width)
    return put_set(out, at, state, begin, words), at


@inner
def put_row(out: Buffer, at: int, state: State, begin: int, end: int, width: int) -> int:
    """Write the entries from `begin` to `end`, which are positions in the state."""
    stride, words, before = state[STRIDE], state[WORDS], -1
    for entry in range(begin, end, stride):
        if before >= 0:
            out[before] |= _MORE
        at, before = put_entry(out, at, state, state[entry + 1], entry + 2, words, width)
    return at


@inner
def put_table(out: Buffer, at: int, state: State, table: int, count: int, width: int) -> int:
    """Write a whole table as a body."""
    stride, words, scratch = state[STRIDE], state[WORDS], state[SCRATCH]
    end = table + count * stride
    for w in range(words):
        state[scratch + w] = 0
    for entry in range(table, end, stride):
        number = state[entry]
        state[scratch + (number >> 6)] |= bit_at(number & 63)
    at = put_set(out, at, state, scratch, words)
    begin = table
    while begin < end:
        after = begin
        while after < end and state[after] == state[begin]:
            after += stride
        at = put_row(out, at, state, begin, after, width)
        begin = after
    return at


@inner
def put_head(out: Buffer, at: int, state: State, width: int) -> int:
    """Write what comes before the destination, from the M_ scalars and DESTINATIONS."""
    own_us = state[M_OWN]
    out[at] = state[M_ALGORITHM] | width << 4 | (_OWN_LIFETIME if own_us else 0)
    at = put_varint(out, at + 1, state[M_SENDER])
    at = put_fixed(out, at, state[M_SENT], _TIME_BYTES)
    if own_us:
        at = put_varint(out, at, own_us)
    return put_set(out, at, state, state[DESTINATIONS], state[WORDS])


@inner
def most_bytes(state: State, entries: int) -> int:
    """Return what one copy takes at most."""
    a_set = 3 + 8 * state[WORDS]
    return int(64 + 2 * a_set + entries * (a_set + 2 * _TIME_BYTES + 4))
