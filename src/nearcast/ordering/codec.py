"""Bytes for sets, times and rows of control information; kernels that the four algorithms share.

    varint   7 bits a byte, lowest first, the top bit says "more follows"
    set      one byte of form and length, then either the gaps between ascending numbers
             (varints) or a bit set, whichever is smaller
    time     the lowest `width` bytes of a microsecond count; the reader knows the message's
             own time, and no entry is older than the window that `width` bytes span
    row      what is known of one sender: (time, set) pairs, oldest first; the top bit of a
             set's first byte says that another pair follows
    body     the set of senders, then a row for each
    waits    set of positions among the body's entries, then count and (number, time) of those
             that are in no row of this body

A reader returns the next position, or a negative code of layout.py.

Read next: rows.py.
"""

from __future__ import annotations

from numba import njit

from nearcast.ordering.bits import lowest_one, ones
from nearcast.ordering.layout import (
    BAD_LENGTH,
    BAD_NUMBER,
    BAD_POSITION,
    BAD_SET,
    BAD_WIDTH,
    CAPACITY,
    DELTA_CAUSAL,
    DESTINATIONS,
    DISORDER,
    GROW,
    HIGHEST_NUMBER,
    M_ALGORITHM,
    M_COUNT,
    M_NEWEST,
    M_OWN,
    M_SENDER,
    M_SENT,
    M_TO,
    M_WAITS,
    NEED_CAPACITY,
    NEED_NUMBER,
    NO_DESTINATION,
    NOT_PAST,
    POSITIONS,
    SCRATCH,
    STRIDE,
    THEIRS,
    TO_ITSELF,
    TOO_LONG,
    TRUNCATED,
    WAITS,
    WORDS,
    Buffer,
    State,
)

_MORE = 0x80
_BITS = 0x40
_LONG = 0x3F
_OWN_LIFETIME = 0x04
_TIME_BYTES = 7


@njit(cache=True)
def read_varint(data: bytes, at: int, size: int) -> tuple[int, int]:
    """Return (value, next position)."""
    value, shift = 0, 0
    while True:
        if at >= size:
            return 0, TRUNCATED
        byte = data[at] & 0xFF
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 56:
            return 0, TOO_LONG


@njit(cache=True)
def read_fixed(data: bytes, at: int, width: int) -> int:
    """Return a number of `width` bytes, lowest first."""
    value = 0
    for i in range(width):
        value |= (data[at + i] & 0xFF) << (8 * i)
    return value


@njit(cache=True)
def open_set(data: bytes, at: int, size: int) -> tuple[int, int, int]:
    """Return (first byte, length, position of what follows)."""
    if at >= size:
        return 0, 0, TRUNCATED
    first = data[at] & 0xFF
    at += 1
    length = first & _LONG
    if length == _LONG:
        extra, at = read_varint(data, at, size)
        length += extra
    if at >= 0 and length > HIGHEST_NUMBER + 1:
        return 0, 0, BAD_SET
    if at >= 0 and first & _BITS and at + length > size:
        return 0, 0, TRUNCATED
    return first, length, at


@njit(cache=True)
def read_set(  # noqa: C901, PLR0912 - two forms
    data: bytes, at: int, size: int, wanted: int, state: State, store: int, words: int
) -> tuple[int, int, bool]:
    """Return (next position, highest number or -1, whether `wanted` is in it).

    With `store` ≥ 0 the set is also written there, as far as `words` reach.
    """
    first, length, at = open_set(data, at, size)
    if at < 0:
        return at, -1, False
    if store >= 0:
        for w in range(words):
            state[store + w] = 0
    highest, has = -1, False
    if first & _BITS:
        if length > HIGHEST_NUMBER // 8 + 1:
            return BAD_SET, -1, False
        for i in range(length):
            byte = data[at + i] & 0xFF
            if byte:
                top = 7
                while not byte >> top & 1:
                    top -= 1
                highest = 8 * i + top
                if store >= 0 and i >> 3 < words:
                    state[store + (i >> 3)] |= byte << (8 * (i & 7))
        if wanted >= 0 and wanted >> 3 < length:
            has = data[at + (wanted >> 3)] >> (wanted & 7) & 1 == 1
        return at + length, highest, has
    for _ in range(length):
        gap, at = read_varint(data, at, size)
        if at < 0:
            return at, -1, False
        if gap > HIGHEST_NUMBER or highest + gap + 1 > HIGHEST_NUMBER:
            return BAD_NUMBER, -1, False
        highest += gap + 1
        has = has or highest == wanted
        if store >= 0 and highest >> 6 < words:
            state[store + (highest >> 6)] |= 1 << (highest & 63)
    return at, highest, has


@njit(cache=True)
def read_row(
    data: bytes,
    at: int,
    size: int,
    width: int,
    sent_us: int,
    sender: int,
    state: State,
    store: bool,
    count: int,
    most: int,
) -> tuple[int, int, int]:
    """Return (next position, entries so far, time of the last); entries go to THEIRS."""
    window, before = (1 << 8 * width) - 1, -1
    words, stride, capacity = state[WORDS], state[STRIDE], state[CAPACITY]
    while True:
        if at + width >= size:
            return TRUNCATED, 0, 0
        time_us = sent_us - ((sent_us - read_fixed(data, at, width)) & window)
        if time_us <= before:
            return DISORDER, 0, 0
        before = time_us
        at += width
        more = data[at] & _MORE
        keep = -1
        if store and count < capacity:
            entry = state[THEIRS] + count * stride
            state[entry], state[entry + 1] = sender, time_us
            keep = entry + 2
        at, highest, itself = read_set(data, at, size, sender, state, keep, words)
        if at < 0:
            return at, 0, 0
        if itself:
            return TO_ITSELF, 0, 0
        if highest > most:
            return BAD_NUMBER, 0, 0
        if store and highest > state[NEED_NUMBER]:
            state[NEED_NUMBER] = highest
        count += 1
        if not more:
            return at, count, time_us


@njit(cache=True)
def read_body(
    data: bytes, at: int, size: int, width: int, sent_us: int, state: State, store: bool, most: int
) -> tuple[int, int, int]:
    """Return (next position, how many entries, time of the newest or -1)."""
    first, length, begin = open_set(data, at, size)
    if begin < 0:
        return begin, 0, 0
    if first & _MORE or (first & _BITS and length > HIGHEST_NUMBER // 8 + 1):
        return BAD_SET, 0, 0
    at, highest, _ = read_set(data, at, size, -1, state, -1, 0)
    if at < 0:
        return at, 0, 0
    if highest > most:
        return BAD_NUMBER, 0, 0
    if store and highest > state[NEED_NUMBER]:
        state[NEED_NUMBER] = highest
    count, newest, sender, place = 0, -1, -1, begin
    while sender < highest:
        if first & _BITS:
            sender += 1
            if not data[begin + (sender >> 3)] >> (sender & 7) & 1:
                continue
        else:
            gap, place = read_varint(data, place, size)
            sender += gap + 1
        at, count, last = read_row(
            data, at, size, width, sent_us, sender, state, store, count, most
        )
        if at < 0:
            return at, 0, 0
        newest = max(newest, last)
    return at, count, newest


@njit(cache=True)
def read_waits(  # noqa: C901, PLR0911, PLR0912 - one exit per complaint
    data: bytes,
    at: int,
    size: int,
    width: int,
    sent_us: int,
    entries: int,
    state: State,
    store: bool,
    most: int,
) -> tuple[int, int]:
    """Return (next position, how many waits); they go to WAITS as (number, time)."""
    if at < size and data[at] & _MORE:
        return BAD_SET, 0
    capacity, stride, count = state[CAPACITY], state[STRIDE], 0
    keep = state[POSITIONS] if store else -1
    at, highest, _ = read_set(data, at, size, -1, state, keep, capacity // 64 + 1)
    if at < 0:
        return at, 0
    if highest >= entries:
        return BAD_POSITION, 0
    if store and highest < capacity:
        for place in range(highest + 1):
            if state[keep + (place >> 6)] >> (place & 63) & 1:
                entry, to = state[THEIRS] + place * stride, state[WAITS] + 2 * count
                state[to], state[to + 1] = state[entry], state[entry + 1]
                count += 1
    rest, at = read_varint(data, at, size)
    window = (1 << 8 * width) - 1
    for _ in range(rest):
        number, at = read_varint(data, at, size)
        if at < 0:
            return at, 0
        if number > most:
            return BAD_NUMBER, 0
        if at + width > size:
            return TRUNCATED, 0
        time_us = sent_us - ((sent_us - read_fixed(data, at, width)) & window)
        at += width
        if time_us >= sent_us:
            return NOT_PAST, 0
        if store:
            state[NEED_NUMBER] = max(state[NEED_NUMBER], number)
            if count < capacity:
                to = state[WAITS] + 2 * count
                state[to], state[to + 1] = number, time_us
        count += 1
    return at, count


@njit(cache=True)
def parse(  # noqa: C901, PLR0911, PLR0912 - one exit per complaint
    state: State, data: bytes, store: bool, most: int
) -> int:
    """Read a message's control information; return where it ends.

    Without `store` only the bytes are judged, payload included, and the state is not written
    to. With it the message is known to be good, and fills the M_ scalars, DESTINATIONS, THEIRS
    and WAITS; `GROW` if they are too small.
    """
    size = len(data)
    if size < 2 + _TIME_BYTES:
        return TRUNCATED
    flags = data[0] & 0xFF
    width = flags >> 4
    if width < 2 or width > _TIME_BYTES or flags & 0x08:
        return BAD_WIDTH
    sender, at = read_varint(data, 1, size)
    if at < 0:
        return at
    if sender > most:
        return BAD_NUMBER
    if at + _TIME_BYTES > size:
        return TRUNCATED
    sent_us = read_fixed(data, at, _TIME_BYTES)
    at += _TIME_BYTES
    own_us = 0
    if flags & _OWN_LIFETIME:
        own_us, at = read_varint(data, at, size)
        if at < 0:
            return at
    if at < size and data[at] & _MORE:
        return BAD_SET
    begin = at
    keep = state[DESTINATIONS] if store else -1
    at, highest, itself = read_set(data, begin, size, sender, state, keep, state[WORDS])
    if at < 0:
        return at
    if itself:
        return TO_ITSELF
    if highest > most:
        return BAD_NUMBER
    to, at = read_varint(data, at, size)
    if at < 0:
        return at
    if to > HIGHEST_NUMBER or not read_set(data, begin, size, to, state, -1, 0)[2]:
        return NO_DESTINATION
    if store:
        state[NEED_NUMBER] = max(sender, highest)
    at, count, newest = read_body(data, at, size, width, sent_us, state, store, most)
    if at < 0:
        return at
    if newest >= sent_us:
        return NOT_PAST
    waits = 0
    if flags & 3 == DELTA_CAUSAL:
        at, waits = read_waits(data, at, size, width, sent_us, count, state, store, most)
        if at < 0:
            return at
    payload, at = read_varint(data, at, size)
    if at < 0:
        return at
    if not store:
        return at if at + payload == size else BAD_LENGTH
    if state[NEED_NUMBER] >= 64 * state[WORDS] or max(count, waits) > state[CAPACITY]:
        state[NEED_CAPACITY] = max(count, waits)
        return GROW
    state[M_SENDER], state[M_SENT], state[M_OWN], state[M_TO] = sender, sent_us, own_us, to
    state[M_COUNT], state[M_WAITS], state[M_NEWEST] = count, waits, newest
    state[M_ALGORITHM] = flags & 3
    return at


# -- writing -----------------------------------------------------------------------------------


@njit(cache=True)
def put_varint(out: Buffer, at: int, value: int) -> int:
    """Write a number in groups of seven bits; return the next position."""
    while value >= 0x80:
        out[at] = value & 0x7F | 0x80
        value >>= 7
        at += 1
    out[at] = value
    return at + 1


@njit(cache=True)
def put_fixed(out: Buffer, at: int, value: int, width: int) -> int:
    """Write the lowest `width` bytes of a number; return the next position."""
    for i in range(width):
        out[at + i] = value >> (8 * i) & 0xFF
    return at + width


@njit(cache=True)
def put_length(out: Buffer, at: int, length: int, flags: int) -> int:
    """Write the first byte of a set, and more if it is long."""
    if length < _LONG:
        out[at] = flags | length
        return at + 1
    out[at] = flags | _LONG
    return put_varint(out, at + 1, length - _LONG)


@njit(cache=True)
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
                word &= word - 1
                after = put_varint(out, after, number - last - 1)
                last = number
        if after - start < length or count == 1:
            return after
    at = put_length(out, at, length, _BITS)
    for i in range(length):
        out[at + i] = state[begin + (i >> 3)] >> (8 * (i & 7)) & 0xFF
    return at + length


@njit(cache=True)
def put_entry(
    out: Buffer, at: int, state: State, time_us: int, begin: int, words: int, width: int
) -> tuple[int, int]:
    """Write a time and a set; return the next position and where the set begins."""
    at = put_fixed(out, at, time_us, width)
    return put_set(out, at, state, begin, words), at


@njit(cache=True)
def put_row(out: Buffer, at: int, state: State, begin: int, end: int, width: int) -> int:
    """Write the entries from `begin` to `end`, which are positions in the state."""
    stride, words, before = state[STRIDE], state[WORDS], -1
    for entry in range(begin, end, stride):
        if before >= 0:
            out[before] |= _MORE
        at, before = put_entry(out, at, state, state[entry + 1], entry + 2, words, width)
    return at


@njit(cache=True)
def put_table(out: Buffer, at: int, state: State, table: int, count: int, width: int) -> int:
    """Write a whole table as a body."""
    stride, words, scratch = state[STRIDE], state[WORDS], state[SCRATCH]
    end = table + count * stride
    for w in range(words):
        state[scratch + w] = 0
    for entry in range(table, end, stride):
        number = state[entry]
        state[scratch + (number >> 6)] |= 1 << (number & 63)
    at = put_set(out, at, state, scratch, words)
    begin = table
    while begin < end:
        after = begin
        while after < end and state[after] == state[begin]:
            after += stride
        at = put_row(out, at, state, begin, after, width)
        begin = after
    return at


@njit(cache=True)
def put_head(out: Buffer, at: int, state: State, width: int) -> int:
    """Write what comes before the destination, from the M_ scalars and DESTINATIONS."""
    own_us = state[M_OWN]
    out[at] = state[M_ALGORITHM] | width << 4 | (_OWN_LIFETIME if own_us else 0)
    at = put_varint(out, at + 1, state[M_SENDER])
    at = put_fixed(out, at, state[M_SENT], _TIME_BYTES)
    if own_us:
        at = put_varint(out, at, own_us)
    return put_set(out, at, state, state[DESTINATIONS], state[WORDS])


@njit(cache=True)
def most_bytes(state: State, entries: int) -> int:
    """Return what one copy takes at most."""
    a_set = 3 + 8 * state[WORDS]
    return int(64 + 2 * a_set + entries * (a_set + 2 * _TIME_BYTES + 4))
