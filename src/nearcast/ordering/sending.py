"""What a copy carries: kernels that write one copy of control information per destination.

The bytes of a row are made once; a copy is put together from them. It leaves out the rows that its
destination knows. Nothing is changed before all copies are written. codec.py explains the forms.

Read next: kernels.py.
"""

from __future__ import annotations

from nearcast.kernels import inner
from nearcast.ordering.bits import (
    bit_at,
    highest_one,
    load_word,
    lowest_one,
    ones,
    store_word,
    without_lowest,
)
from nearcast.ordering.codec import BITS, LONG, MORE, OWN_LIFETIME, TIME_BYTES
from nearcast.ordering.layout import (
    CAPACITY,
    COUNT,
    DESTINATIONS,
    GROW,
    HIT_COLUMNS,
    HITS,
    KEEP,
    KIND,
    M_OWN,
    M_SENDER,
    M_SENT,
    ME,
    NEED_BYTES,
    POSITIONS,
    ROW_COLUMNS,
    ROWS,
    SCRATCH,
    SKEW,
    SPARE,
    STARTS,
    STRIDE,
    TABLE,
    WIDTH,
    WORDS,
    Buffer,
    State,
)
from nearcast.ordering.rows import is_empty, row_end

# -- forms ---------------------------------------------------------------------------------------


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
def put_length(out: Buffer, at: int, length: int, form: int) -> int:
    """Write the first byte of a set, and more if it is long."""
    if length < LONG:
        out[at] = form | length
        return at + 1
    out[at] = form | LONG
    return put_varint(out, at + 1, length - LONG)


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
    length = 8 * top + (highest_one(state[begin + top]) >> 3) + 1
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
    at = put_length(out, at, length, BITS)
    for i in range(length):
        out[at + i] = state[begin + (i >> 3)] >> (8 * (i & 7)) & 0xFF
    return at + length


@inner
def put_row(out: Buffer, at: int, state: State, begin: int, end: int) -> int:
    """Write the entries from `begin` to `end`, which are positions in the state."""
    stride, words, width, before = state[STRIDE], state[WORDS], state[WIDTH], -1
    for entry in range(begin, end, stride):
        if before >= 0:
            out[before] |= MORE
        before = put_fixed(out, at, state[entry + 1], width)
        at = put_set(out, before, state, entry + 2, words)
    return at


@inner
def put_head(out: Buffer, at: int, state: State) -> int:
    """Write what comes before the destination, from the M_ scalars and DESTINATIONS."""
    own_us = state[M_OWN]
    out[at] = state[KIND] | state[WIDTH] << 4 | (OWN_LIFETIME if own_us else 0)
    at = put_varint(out, at + 1, state[M_SENDER])
    at = put_fixed(out, at, state[M_SENT], TIME_BYTES)
    if own_us:
        at = put_varint(out, at, own_us)
    return put_set(out, at, state, state[DESTINATIONS], state[WORDS])


@inner
def copy_bytes(out: Buffer, at: int, begin: int, end: int) -> int:
    """Copy what was written before; return the next position.

    Eight bytes at a time: up to seven too many, which what comes next overwrites.
    """
    for i in range(0, end - begin, 8):
        store_word(out, at + i, load_word(out, begin + i))
    return at + end - begin


@inner
def most_bytes(state: State) -> int:
    """Return what one copy takes at most."""
    a_set, entries = 3 + 8 * state[WORDS], state[COUNT]
    most: int = 64 + 2 * a_set + entries * (a_set + 2 * TIME_BYTES + 4)
    return most


# -- copies --------------------------------------------------------------------------------------


@inner
def stand_in(state: State, now_us: int) -> tuple[int, int]:
    """Write to SPARE the rows without DESTINATIONS (paper 2, sending, steps 1 to 3).

    Return (rows, hits): what was taken out is in HITS, and ROWS says where each row lies.
    """
    stride, words, dead_us = state[STRIDE], state[WORDS], now_us - state[KEEP]
    begin, out = state[TABLE], state[SPARE]
    end = begin + state[COUNT] * stride
    rows, hits = 0, 0
    while begin < end:
        after, start = row_end(state, begin, end), out
        for entry in range(begin, after, stride):
            if state[entry + 1] < dead_us:
                continue
            hit = state[HITS] + hits * (HIT_COLUMNS + words)
            taken, filled = False, False
            for w in range(words):
                bits = state[entry + 2 + w]
                gone = bits & state[state[DESTINATIONS] + w]
                state[hit + HIT_COLUMNS + w] = gone
                state[out + 2 + w] = bits ^ gone
                taken = taken or gone != 0
                filled = filled or bits != gone
            kept = filled or entry + stride == after
            if taken:
                state[hit], state[hit + 1] = state[entry], state[entry + 1]
                state[hit + 2], state[hit + 3] = rows, out if kept else -1
                hits += 1
            if kept:
                state[out], state[out + 1] = state[entry], state[entry + 1]
                for w in range(2 + words, stride):
                    state[out + w] = state[entry + w]
                out += stride
        if out > start:
            row = state[ROWS] + rows * ROW_COLUMNS
            state[row], state[row + 1], state[row + 2] = state[begin], start, out
            rows += 1
        begin = after
    return rows, hits


@inner
def put_rows(out: Buffer, state: State, rows: int) -> int:
    """Write each row's bytes once, at the front of `out`; return where they end."""
    at = 0
    for r in range(rows):
        row = state[ROWS] + r * ROW_COLUMNS
        state[row + 3] = at
        at = put_row(out, at, state, state[row + 1], state[row + 2])
        state[row + 4] = at
    return at


@inner
def put_news(out: Buffer, at: int, state: State, rows: int, to: int) -> int:
    """Write the body for one destination: rows with somebody left that it does not know.

    Our own row always goes along: with this message as its last entry it speaks for all our
    earlier ones, and would otherwise say that they are settled.
    """
    words, stride, scratch = state[WORDS], state[STRIDE], state[SCRATCH]
    word, bit, me = to >> 6, to & 63, state[ME]
    for w in range(words):
        state[scratch + w] = 0
    place = 0
    for r in range(rows):
        row = state[ROWS] + r * ROW_COLUMNS
        begin, end = state[row + 1], state[row + 2]
        last = end - stride
        told = state[row] != me and state[last + 2 + words + word] >> bit & 1
        if told or (last == begin and is_empty(state, last + 2, words)):
            state[row + 5] = -1
        else:
            state[row + 5] = place
            place += (end - begin) // stride
            state[scratch + (state[row] >> 6)] |= bit_at(state[row] & 63)
    at = put_set(out, at, state, scratch, words)
    for r in range(rows):
        row = state[ROWS] + r * ROW_COLUMNS
        if state[row + 5] >= 0:
            at = copy_bytes(out, at, state[row + 3], state[row + 4])
    return at


@inner
def put_waits(out: Buffer, at: int, state: State, hits: int, to: int) -> int:
    """Write what the copy for `to` waits for: places in the body, or number and time."""
    stride, words, positions = state[STRIDE], state[WORDS], state[POSITIONS]
    many = state[CAPACITY] // 64 + 1
    word, bit, rest = to >> 6, to & 63, 0
    for w in range(many):
        state[positions + w] = 0
    for h in range(hits):
        hit = state[HITS] + h * (HIT_COLUMNS + words)
        if state[hit + HIT_COLUMNS + word] >> bit & 1:
            row = state[ROWS] + state[hit + 2] * ROW_COLUMNS
            if state[hit + 3] >= 0 and state[row + 5] >= 0:
                place = state[row + 5] + (state[hit + 3] - state[row + 1]) // stride
                state[positions + (place >> 6)] |= bit_at(place & 63)
            else:
                rest += 1
    at = put_varint(out, put_set(out, at, state, positions, many), rest)
    if rest == 0:
        return at
    for h in range(hits):
        hit = state[HITS] + h * (HIT_COLUMNS + words)
        if state[hit + HIT_COLUMNS + word] >> bit & 1:
            row = state[ROWS] + state[hit + 2] * ROW_COLUMNS
            if state[hit + 3] < 0 or state[row + 5] < 0:
                at = put_varint(out, at, state[hit])
                at = put_fixed(out, at, state[hit + 1], state[WIDTH])
    return at


@inner
def compose(state: State, out: Buffer, payload: int, now_us: int) -> int:
    """Write the copies for DESTINATIONS; STARTS says where each begins. Return their number.

    The copies come in ascending order of their destinations.
    """
    room, a_copy = len(out), most_bytes(state)
    state[NEED_BYTES] = 4 * a_copy
    if room < 4 * a_copy:
        return GROW
    rows, hits = stand_in(state, now_us)
    head = put_rows(out, state, rows)
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
            at = put_news(out, at, state, rows, to)
            at = put_waits(out, at, state, hits, to)
            at = put_varint(out, at, payload)
    state[state[STARTS] + copies] = at
    note_told(state, rows)
    enter_own(state, rows)
    return copies


@inner
def note_told(state: State, rows: int) -> None:
    """Record that our destinations know all rows, unless these could outlive a lost copy."""
    words, stride, settled_us = state[WORDS], state[STRIDE], state[M_SENT] - state[SKEW]
    for r in range(rows):
        last = state[state[ROWS] + r * ROW_COLUMNS + 2] - stride
        if state[last + 1] <= settled_us:
            for w in range(words):
                state[last + 2 + words + w] |= state[state[DESTINATIONS] + w]


@inner
def enter_own(state: State, rows: int) -> None:
    """Enter our own send into SPARE, known to nobody yet; then SPARE is the table (step 5)."""
    stride, words, me, spare = state[STRIDE], state[WORDS], state[ME], state[SPARE]
    end = state[state[ROWS] + (rows - 1) * ROW_COLUMNS + 2] if rows else spare
    place = end
    while place > spare and state[place - stride] > me:
        place -= stride
    before = place - stride
    if place > spare and state[before] == me and is_empty(state, before + 2, words):
        place = before  # a marker that has served
    else:
        for i in range(end - 1, place - 1, -1):
            state[i + stride] = state[i]
        end += stride
    state[place], state[place + 1] = me, state[M_SENT]
    for w in range(words):
        state[place + 2 + w] = state[state[DESTINATIONS] + w]
    for i in range(2 + words, stride):
        state[place + i] = 0
    state[COUNT] = (end - spare) // stride
    state[TABLE], state[SPARE] = spare, state[TABLE]
