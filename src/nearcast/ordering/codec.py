"""Bytes for sets, times and rows of control information, read; all four algorithms share them.

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

Read next: writing.py, rows.py.
"""

from __future__ import annotations

from nearcast.kernels import inner
from nearcast.ordering.bits import bit_at, byte_at, highest_one, load_word, lowest_one
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
    M_END,
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

Bytes = bytes | Buffer
"""A message, or the same in a cell of holding.py; compiled for each."""

_MORE = 0x80
_BITS = 0x40
_LONG = 0x3F
_OWN_LIFETIME = 0x04
_TIME_BYTES = 7


@inner
def read_varint(data: Bytes, at: int, size: int) -> tuple[int, int]:
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


@inner
def read_fixed(data: Bytes, at: int, width: int) -> int:
    """Return a number of at most 7 bytes, lowest first."""
    if at + 8 <= len(data):
        return load_word(data, at) & ((1 << 8 * width) - 1)
    value = 0
    for i in range(width):
        value |= (data[at + i] & 0xFF) << (8 * i)
    return value


@inner
def open_set(data: Bytes, at: int, size: int) -> tuple[int, int, int]:
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


@inner
def read_set(  # noqa: C901, PLR0911, PLR0912 - two forms, one of them quick
    data: Bytes, at: int, size: int, wanted: int, state: State, store: int, words: int
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
    if first & _BITS and 0 < length <= 8 and at + 8 <= len(data):
        word = load_word(data, at)
        if length < 8:
            word &= (1 << 8 * length) - 1
        if word:
            highest = highest_one(word)
        if store >= 0:
            state[store] = word
        return at + length, highest, 0 <= wanted <= highest and word >> wanted & 1 == 1
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
                    state[store + (i >> 3)] |= byte_at(byte, i & 7)
        if wanted >= 0 and wanted >> 3 < length:
            has = data[at + (wanted >> 3)] >> (wanted & 7) & 1 == 1
        return at + length, highest, has
    for _ in range(length):
        if at < size and data[at] & 0xFF < 0x80:
            gap = data[at] & 0xFF
            at += 1
        else:
            gap, at = read_varint(data, at, size)
            if at < 0:
                return at, -1, False
        if gap > HIGHEST_NUMBER or highest + gap + 1 > HIGHEST_NUMBER:
            return BAD_NUMBER, -1, False
        highest += gap + 1
        has = has or highest == wanted
        if store >= 0 and highest >> 6 < words:
            state[store + (highest >> 6)] |= bit_at(highest & 63)
    return at, highest, has


@inner
def read_row(
    data: Bytes,
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


@inner
def next_in(state: State, begin: int, number: int) -> int:
    """Return the first member of a set that is not below `number`; there must be one."""
    at = begin + (number >> 6)
    word = state[at] & -1 << (number & 63)
    while word == 0:
        at += 1
        word = state[at]
    return int(64 * (at - begin) + lowest_one(word))


@inner
def read_body(
    data: Bytes, at: int, size: int, width: int, sent_us: int, state: State, store: bool, most: int
) -> tuple[int, int, int]:
    """Return (next position, how many entries, time of the newest or -1)."""
    first, length, begin = open_set(data, at, size)
    if begin < 0:
        return begin, 0, 0
    if first & _MORE or (first & _BITS and length > HIGHEST_NUMBER // 8 + 1):
        return BAD_SET, 0, 0
    scratch, words = state[SCRATCH], state[WORDS]
    at, highest, _ = read_set(data, at, size, -1, state, scratch if store else -1, words)
    if at < 0:
        return at, 0, 0
    if highest > most:
        return BAD_NUMBER, 0, 0
    if store and highest > state[NEED_NUMBER]:
        state[NEED_NUMBER] = highest
    quick = store and highest < 64 * words
    count, newest, sender, place = 0, -1, -1, begin
    while sender < highest:
        if quick:
            sender = next_in(state, scratch, sender + 1)
        elif first & _BITS:
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


@inner
def read_waits(  # noqa: C901, PLR0911, PLR0912 - one exit per complaint
    data: Bytes,
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


@inner
def parse(  # noqa: C901, PLR0911, PLR0912 - one exit per complaint
    state: State, data: Bytes, begin: int, size: int, store: bool, whole: bool, most: int
) -> int:
    """Read the control information between `begin` and `size`; return where it ends.

    `whole`: the payload follows, up to `size`. With `store` the M_ scalars, DESTINATIONS, THEIRS
    and WAITS are filled; `GROW` if they are too small. Nothing else is changed.
    """
    if size < begin + 2 + _TIME_BYTES:
        return TRUNCATED
    flags = data[begin] & 0xFF
    width = flags >> 4
    if width < 2 or width > _TIME_BYTES or flags & 0x08:
        return BAD_WIDTH
    sender, at = read_varint(data, begin + 1, size)
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
    first = at
    keep = state[DESTINATIONS] if store else -1
    at, highest, itself = read_set(data, first, size, sender, state, keep, state[WORDS])
    if at < 0:
        return at
    if itself:
        return TO_ITSELF
    if highest > most:
        return BAD_NUMBER
    to, at = read_varint(data, at, size)
    if at < 0:
        return at
    if to > HIGHEST_NUMBER:
        return NO_DESTINATION
    if store and highest < 64 * state[WORDS]:
        if to > highest or not state[keep + (to >> 6)] >> (to & 63) & 1:
            return NO_DESTINATION
    elif not read_set(data, first, size, to, state, -1, 0)[2]:
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
    if whole and at + payload != size:
        return BAD_LENGTH
    if not store:
        return at
    if state[NEED_NUMBER] >= 64 * state[WORDS] or max(count, waits) > state[CAPACITY]:
        state[NEED_CAPACITY] = max(count, waits)
        return GROW
    state[M_SENDER], state[M_SENT], state[M_OWN], state[M_TO] = sender, sent_us, own_us, to
    state[M_COUNT], state[M_WAITS], state[M_NEWEST] = count, waits, newest
    state[M_ALGORITHM], state[M_END] = flags & 3, at - begin
    return at
