"""What a copy carries: kernels that write one copy of control information per destination.

Row bytes are made once; a copy is put together from them. Δ-causal leaves out, for each
destination, the rows that it knows; Kshemkalyani–Singhal writes anew, for each destination,
the rows in which it is left to wait; the other two carry one body for all.

Nothing is changed before all copies are written.

Read next: kernels.py.
"""

from __future__ import annotations

from nearcast.kernels import inner
from nearcast.ordering.bits import bit_at, load_word, lowest_one, store_word, without_lowest
from nearcast.ordering.layout import (
    ALGORITHM,
    CAPACITY,
    COUNT,
    DELTA_CAUSAL,
    DESTINATIONS,
    GROW,
    HIT_COLUMNS,
    HITS,
    KEEP,
    KSHEMKALYANI_SINGHAL,
    M_SENT,
    ME,
    NEED_BYTES,
    POSITIONS,
    PRAKASH_RAYNAL_SINGHAL,
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
from nearcast.ordering.rows import drop_dead, is_empty, note_send, row_end, swap
from nearcast.ordering.writing import (
    most_bytes,
    put_entry,
    put_fixed,
    put_head,
    put_row,
    put_set,
    put_table,
    put_varint,
)

_MORE = 0x80


@inner
def stand_in(state: State, now_us: int) -> tuple[int, int]:
    """Write to SPARE the rows without DESTINATIONS (sending steps 1 to 3).

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
            state[row + 5], state[row + 6] = begin, after
            rows += 1
        begin = after
    return rows, hits


@inner
def put_rows(out: Buffer, state: State, rows: int, width: int) -> int:
    """Write each row's bytes once, at the front of `out`; return where they end."""
    at = 0
    for r in range(rows):
        row = state[ROWS] + r * ROW_COLUMNS
        state[row + 3] = at
        at = put_row(out, at, state, state[row + 1], state[row + 2], width)
        state[row + 4] = at
    return at


@inner
def copy_bytes(out: Buffer, at: int, begin: int, end: int) -> int:
    """Copy what was written before; return the next position.

    Eight bytes at a time: up to seven too many, which what comes next overwrites.
    """
    for i in range(0, end - begin, 8):
        store_word(out, at + i, load_word(out, begin + i))
    return at + end - begin


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
            state[row + 7] = -1
        else:
            state[row + 7] = place
            place += (end - begin) // stride
            state[scratch + (state[row] >> 6)] |= bit_at(state[row] & 63)
    at = put_set(out, at, state, scratch, words)
    for r in range(rows):
        row = state[ROWS] + r * ROW_COLUMNS
        if state[row + 7] >= 0:
            at = copy_bytes(out, at, state[row + 3], state[row + 4])
    return at


@inner
def put_waits(out: Buffer, at: int, state: State, hits: int, to: int, width: int) -> int:
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
            if state[hit + 3] >= 0 and state[row + 7] >= 0:
                place = state[row + 7] + (state[hit + 3] - state[row + 1]) // stride
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
            if state[hit + 3] < 0 or state[row + 7] < 0:
                at = put_varint(out, at, state[hit])
                at = put_fixed(out, at, state[hit + 1], width)
    return at


@inner
def put_log(out: Buffer, at: int, state: State, rows: int, to: int, width: int, now_us: int) -> int:
    """Write Kshemkalyani and Singhal's log for one destination, which alone is left to wait."""
    stride, words, scratch = state[STRIDE], state[WORDS], state[SCRATCH]
    dead_us, word, bit = now_us - state[KEEP], to >> 6, bit_at(to & 63)
    for r in range(rows):
        row = state[ROWS] + r * ROW_COLUMNS
        waits = False
        for entry in range(state[row + 5], state[row + 6], stride):
            waits = waits or (state[entry + 2 + word] & bit != 0 and state[entry + 1] >= dead_us)
        if not waits:
            at = copy_bytes(out, at, state[row + 3], state[row + 4])
            continue
        before = -1
        for entry in range(state[row + 5], state[row + 6], stride):
            for w in range(words):
                state[scratch + w] = state[entry + 2 + w] & ~state[state[DESTINATIONS] + w]
            state[scratch + word] |= state[entry + 2 + word] & bit
            filled = not is_empty(state, scratch, words)
            if state[entry + 1] >= dead_us and (filled or entry + stride == state[row + 6]):
                if before >= 0:
                    out[before] |= _MORE
                at, before = put_entry(out, at, state, state[entry + 1], scratch, words, width)
    return at


@inner
def put_senders(out: Buffer, at: int, state: State, rows: int) -> int:
    """Write the set of all rows' senders."""
    words, scratch = state[WORDS], state[SCRATCH]
    for w in range(words):
        state[scratch + w] = 0
    for r in range(rows):
        number = state[state[ROWS] + r * ROW_COLUMNS]
        state[scratch + (number >> 6)] |= bit_at(number & 63)
    return put_set(out, at, state, scratch, words)


@inner
def compose(state: State, out: Buffer, payload: int, now_us: int) -> int:
    """Write the copies for DESTINATIONS; STARTS says where each begins. Return their number.

    The copies come in ascending order of their destinations.
    """
    algorithm, width, room = state[ALGORITHM], state[WIDTH], len(out)
    a_copy = most_bytes(state, state[COUNT])
    state[NEED_BYTES] = 4 * a_copy
    if room < 4 * a_copy:
        return GROW
    rows, hits, body, body_end = 0, 0, 0, 0
    if algorithm in (DELTA_CAUSAL, KSHEMKALYANI_SINGHAL):
        rows, hits = stand_in(state, now_us)
        at = put_rows(out, state, rows, width)
        if algorithm == KSHEMKALYANI_SINGHAL:
            body = at
            at = body_end = put_senders(out, at, state, rows)
    else:
        drop_dead(state, now_us)
        at = body_end = put_table(out, 0, state, state[TABLE], state[COUNT], width)
    head = at
    head_end = at = put_head(out, at, state, width)
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
            if algorithm == DELTA_CAUSAL:
                at = put_news(out, at, state, rows, to)
                at = put_waits(out, at, state, hits, to, width)
            else:
                at = copy_bytes(out, at, body, body_end)
                if algorithm == KSHEMKALYANI_SINGHAL:
                    at = put_log(out, at, state, rows, to, width, now_us)
            at = put_varint(out, at, payload)
    state[state[STARTS] + copies] = at
    note(state, rows)
    return copies


@inner
def note(state: State, rows: int) -> None:
    """Note that the copies are on their way (sending step 5)."""
    algorithm = state[ALGORITHM]
    if algorithm in (DELTA_CAUSAL, KSHEMKALYANI_SINGHAL):
        if algorithm == DELTA_CAUSAL:
            note_told(state, rows)
        enter_own(state, rows)
        return
    if algorithm == PRAKASH_RAYNAL_SINGHAL:
        take_out(state)
    note_send(state, state[ME], state[M_SENT], -1)


@inner
def note_told(state: State, rows: int) -> None:
    """Note that our destinations know all rows, unless these could outlive a lost copy."""
    words, stride, settled_us = state[WORDS], state[STRIDE], state[M_SENT] - state[SKEW]
    for r in range(rows):
        last = state[state[ROWS] + r * ROW_COLUMNS + 2] - stride
        if state[last + 1] <= settled_us:
            for w in range(words):
                state[last + 2 + words + w] |= state[state[DESTINATIONS] + w]


@inner
def enter_own(state: State, rows: int) -> None:
    """Enter our own send into SPARE, where it is known to nobody yet; then swap."""
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
    swap(state, end)


@inner
def take_out(state: State) -> None:
    """Take DESTINATIONS out of all rows of Prakash, Raynal and Singhal."""
    stride, words, table = state[STRIDE], state[WORDS], state[TABLE]
    out = table
    for entry in range(table, table + state[COUNT] * stride, stride):
        for w in range(words):
            state[out + 2 + w] = state[entry + 2 + w] & ~state[state[DESTINATIONS] + w]
        state[out], state[out + 1] = state[entry], state[entry + 1]
        out += 0 if is_empty(state, out + 2, words) else stride
    state[COUNT] = (out - table) // stride
