"""Control information, read: kernels that fill a state with what the bytes of a message say.

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

A reader returns the next position, or a negative code of layout.py; `most` is the highest number
that a process may have. What is read goes to the M_ scalars, DESTINATIONS, THEIRS and WAITS.

Read next: sending.py, which writes the same; rows.py.
"""

from __future__ import annotations

from nearcast.kernels import inner
from nearcast.ordering.bits import bit_at, highest_one, load_word, lowest_one, without_lowest
from nearcast.ordering.layout import (
    BAD_LENGTH,
    BAD_NUMBER,
    BAD_POSITION,
    BAD_SET,
    BAD_WIDTH,
    CAPACITY,
    DESTINATIONS,
    DISORDER,
    GROW,
    HIGHEST_NUMBER,
    KIND,
    M_COUNT,
    M_END,
    M_OWN,
    M_SENDER,
    M_SENT,
    M_TO,
    M_WAITS,
    M_WIDTH,
    NEED_CAPACITY,
    NEED_NUMBER,
    NO_DESTINATION,
    NOT_PAST,
    OTHER_KIND,
    POSITIONS,
    SCRATCH,
    SPARE,
    STARTS,
    STRIDE,
    THEIRS,
    TO_ITSELF,
    TOO_LONG,
    TRUNCATED,
    WAITS,
    WORDS,
    State,
)

MORE = 0x80
BITS = 0x40
LONG = 0x3F
KINDS = 0x03
OWN_LIFETIME = 0x04
NAMED = 0x08
TIME_BYTES = 7


@inner
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


@inner
def read_word(data: bytes, at: int, count: int) -> int:
    """Return a word of at most 8 bytes, lowest first; they must be there."""
    if at + 8 <= len(data):
        word = load_word(data, at)
        return word if count == 8 else word & ((1 << 8 * count) - 1)
    word = 0
    for i in range(count):
        word |= (data[at + i] & 0xFF) << 8 * i
    return word


@inner
def read_set(  # noqa: C901, PLR0912 - two forms
    data: bytes, at: int, size: int, state: State, store: int, words: int
) -> tuple[int, int, int]:
    """Write a set to `store`; return (next position, highest number or -1, whether more follows).

    Numbers that `words` cannot hold are not written; the highest one tells.
    """
    if at >= size:
        return TRUNCATED, -1, 0
    first = data[at] & 0xFF
    length, at, highest = first & LONG, at + 1, -1
    if length == LONG:
        extra, at = read_varint(data, at, size)
        length += extra
    for w in range(words):
        state[store + w] = 0
    if at >= 0 and first & BITS:
        if length > HIGHEST_NUMBER // 8 + 1:
            return BAD_SET, -1, 0
        if at + length > size:
            return TRUNCATED, -1, 0
        for w in range((length + 7) >> 3):
            word = read_word(data, at + 8 * w, min(8, length - 8 * w))
            if word:
                highest = 64 * w + highest_one(word)
            if w < words:
                state[store + w] = word
        return at + length, highest, first & MORE
    for _ in range(length):
        if at < 0:
            break
        gap, at = read_varint(data, at, size)
        highest += gap + 1
        if gap > HIGHEST_NUMBER or highest > HIGHEST_NUMBER:
            return BAD_NUMBER, -1, 0
        if highest >> 6 < words:
            state[store + (highest >> 6)] |= bit_at(highest & 63)
    return at, highest, first & MORE


@inner
def has(state: State, begin: int, number: int) -> bool:
    """Return whether a number is in the set at `begin`, which must have room for it."""
    return bool(state[begin + (number >> 6)] >> (number & 63) & 1)


@inner
def out_of_range(state: State, number: int, most: int) -> int:
    """Return what is wrong with a number, `GROW` if the state has no room for it, or 0."""
    if number > most:
        return BAD_NUMBER
    if number >= 64 * state[WORDS]:
        state[NEED_NUMBER] = number
        return GROW
    return 0


@inner
def read_head(state: State, data: bytes, size: int, most: int) -> int:
    """Read what comes before the body."""
    if size < 2 + TIME_BYTES:
        return TRUNCATED
    flags = data[0] & 0xFF
    state[M_WIDTH] = flags >> 4
    if flags >> 4 < 2 or flags >> 4 > TIME_BYTES or flags & NAMED:
        return BAD_WIDTH
    if flags & KINDS != state[KIND]:
        return OTHER_KIND
    state[M_SENDER], at = read_varint(data, 1, size)
    if at < 0:
        return at
    if at + TIME_BYTES > size:
        return TRUNCATED
    state[M_SENT], state[M_OWN] = read_word(data, at, TIME_BYTES), 0
    at += TIME_BYTES
    if flags & OWN_LIFETIME:
        state[M_OWN], at = read_varint(data, at, size)
    return read_destinations(state, data, at, size, most) if at >= 0 else at


@inner
def read_destinations(state: State, data: bytes, at: int, size: int, most: int) -> int:
    """Read who gets the message, and whom this copy is for."""
    destinations, sender = state[DESTINATIONS], state[M_SENDER]
    at, highest, more = read_set(data, at, size, state, destinations, state[WORDS])
    if at < 0:
        return at
    if more:
        return BAD_SET
    wrong = out_of_range(state, max(sender, highest), most)
    if wrong:
        return wrong
    if has(state, destinations, sender):
        return TO_ITSELF
    state[M_TO], at = read_varint(data, at, size)
    if at >= 0 and (state[M_TO] > highest or not has(state, destinations, state[M_TO])):
        return NO_DESTINATION
    return at


@inner
def read_row(  # noqa: PLR0911 - one exit per complaint
    state: State, data: bytes, at: int, size: int, sender: int, most: int
) -> int:
    """Read what is known of one sender."""
    words, stride, capacity = state[WORDS], state[STRIDE], state[CAPACITY]
    width, sent_us, before, more = state[M_WIDTH], state[M_SENT], -1, 1
    while more:
        if at + width >= size:
            return TRUNCATED
        if state[M_COUNT] >= capacity:
            state[NEED_CAPACITY] = capacity + 1
            return GROW
        time_us = read_time(data, at, width, sent_us)
        if time_us <= before:
            return DISORDER
        if time_us >= sent_us:
            return NOT_PAST
        entry = state[THEIRS] + state[M_COUNT] * stride
        state[entry], state[entry + 1] = sender, time_us
        at, highest, more = read_set(data, at + width, size, state, entry + 2, words)
        if at < 0:
            return at
        wrong = out_of_range(state, highest, most)
        if wrong:
            return wrong
        if has(state, entry + 2, sender):
            return TO_ITSELF
        state[M_COUNT] += 1
        before = time_us
    return at


@inner
def read_time(data: bytes, at: int, width: int, sent_us: int) -> int:
    """Return the latest time up to `sent_us` that has these lowest bytes."""
    return sent_us - ((sent_us - read_word(data, at, width)) & ((1 << 8 * width) - 1))


@inner
def read_body(state: State, data: bytes, at: int, size: int, most: int) -> int:
    """Read the set of senders, then their rows."""
    scratch, words = state[SCRATCH], state[WORDS]
    state[M_COUNT] = 0
    at, highest, more = read_set(data, at, size, state, scratch, words)
    if at < 0:
        return at
    if more:
        return BAD_SET
    wrong = out_of_range(state, highest, most)
    if wrong:
        return wrong
    for w in range(words):
        word = state[scratch + w]
        while word:
            at = read_row(state, data, at, size, 64 * w + lowest_one(word), most)
            if at < 0:
                return at
            word = without_lowest(word)
    return at


@inner
def read_waits(  # noqa: PLR0911 - one exit per complaint
    state: State, data: bytes, at: int, size: int, most: int
) -> int:
    """Read what the message waits for, as pairs of number and time."""
    positions, to, end = state[POSITIONS], state[WAITS], state[WAITS] + 2 * state[CAPACITY]
    at, highest, more = read_set(data, at, size, state, positions, state[CAPACITY] // 64 + 1)
    if at < 0:
        return at
    if more:
        return BAD_SET
    if highest >= state[M_COUNT]:
        return BAD_POSITION
    for place in range(highest + 1):
        if has(state, positions, place):
            entry = state[THEIRS] + place * state[STRIDE]
            state[to], state[to + 1] = state[entry], state[entry + 1]
            to += 2
    rest, at = read_varint(data, at, size)
    width, sent_us = state[M_WIDTH], state[M_SENT]
    for _ in range(rest):
        number, at = read_varint(data, at, size)
        if at < 0:
            return at
        if at + width > size:
            return TRUNCATED
        if to >= end:
            state[NEED_CAPACITY] = state[CAPACITY] + 1
            return GROW
        wrong = out_of_range(state, number, most)
        if wrong:
            return wrong
        state[to], state[to + 1] = number, read_time(data, at, width, sent_us)
        if state[to + 1] >= sent_us:
            return NOT_PAST
        at += width
        to += 2
    state[M_WAITS] = (to - state[WAITS]) // 2
    return at


@inner
def read_end(state: State, data: bytes, at: int, size: int, whole: bool) -> int:
    """Read the length of the payload; `whole`: the payload follows, and nothing else."""
    payload, at = read_varint(data, at, size)
    if at >= 0 and whole and at + payload != size:
        return BAD_LENGTH
    state[M_END] = at
    return at


@inner
def parse(state: State, data: bytes, whole: bool, most: int) -> int:
    """Read a message; return where its control information ends."""
    size = len(data)
    at = read_head(state, data, size, most)
    if at >= 0:
        at = read_body(state, data, at, size, most)
    if at >= 0:
        at = read_waits(state, data, at, size, most)
    return read_end(state, data, at, size, whole) if at >= 0 else at


# -- names that the sender numbers otherwise -----------------------------------------------------


@inner
def number_at(numbers: bytes, place: int) -> int:
    """Return one of several numbers of two bytes each."""
    return numbers[2 * place] & 0xFF | (numbers[2 * place + 1] & 0xFF) << 8


@inner
def renumber_set(state: State, begin: int, numbers: bytes) -> None:
    """Replace each number k of a set by the k-th of `numbers`."""
    words, scratch = state[WORDS], state[SCRATCH]
    for w in range(words):
        state[scratch + w] = 0
    for w in range(words):
        word = state[begin + w]
        while word:
            number = number_at(numbers, 64 * w + lowest_one(word))
            state[scratch + (number >> 6)] |= bit_at(number & 63)
            word = without_lowest(word)
    for w in range(words):
        state[begin + w] = state[scratch + w]


@inner
def renumber(state: State, numbers: bytes) -> None:
    """Replace each number k of the message at hand by the k-th of `numbers`, all different."""
    stride, words = state[STRIDE], state[WORDS]
    state[M_SENDER] = number_at(numbers, state[M_SENDER])
    state[M_TO] = number_at(numbers, state[M_TO])
    renumber_set(state, state[DESTINATIONS], numbers)
    for wait in range(state[WAITS], state[WAITS] + 2 * state[M_WAITS], 2):
        state[wait] = number_at(numbers, state[wait])
    before, end = -1, state[THEIRS] + state[M_COUNT] * stride
    for entry in range(state[THEIRS], end, stride):
        renumber_set(state, entry + 2, numbers)
    for w in range(words):
        state[state[SCRATCH] + w] = 0
    for entry in range(state[THEIRS], end, stride):
        if state[entry] != before:
            before = state[entry]
            number = number_at(numbers, before)
            state[state[SCRATCH] + (number >> 6)] |= bit_at(number & 63)
            state[state[STARTS] + number] = entry
    sort_rows(state, end)


@inner
def sort_rows(state: State, end: int) -> None:
    """Sort THEIRS, up to `end`, by the numbers in SCRATCH; STARTS says where their rows begin.

    What POSITIONS says of them is sorted along: it comes first in WAITS.
    """
    stride, words, out, wait = state[STRIDE], state[WORDS], state[SPARE], state[WAITS]
    for w in range(words):
        word = state[state[SCRATCH] + w]
        while word:
            number = 64 * w + lowest_one(word)
            word = without_lowest(word)
            entry = state[state[STARTS] + number]
            before = state[entry]
            while entry < end and state[entry] == before:
                state[out] = number
                for i in range(1, 2 + words):
                    state[out + i] = state[entry + i]
                if has(state, state[POSITIONS], (entry - state[THEIRS]) // stride):
                    state[wait], state[wait + 1] = number, state[entry + 1]
                    wait += 2
                out += stride
                entry += stride
    state[THEIRS], state[SPARE] = state[SPARE], state[THEIRS]
