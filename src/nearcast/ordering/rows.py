"""What a delivery teaches: kernels that merge the rows of a message into ours.

    logs       Δ-causal and Kshemkalyani–Singhal: per sender, whoever knows the later message
               has had its say on the earlier ones; what both list keeps the intersection
    matrix     Raynal–Schiper–Toueg: per cell the later time
    direct     Prakash–Raynal–Singhal: the later time, where the message does not stand in

All of them read TABLE and THEIRS, write SPARE, and then change places: one pass, O(entries).

Read next: sending.py.
"""

from __future__ import annotations

from nearcast.kernels import inner
from nearcast.ordering.bits import bit_at
from nearcast.ordering.layout import (
    ALGORITHM,
    COUNT,
    DELTA_CAUSAL,
    DESTINATIONS,
    KEEP,
    KSHEMKALYANI_SINGHAL,
    M_COUNT,
    M_SENDER,
    M_SENT,
    ME,
    PRAKASH_RAYNAL_SINGHAL,
    SCRATCH,
    SKEW,
    SPARE,
    STRIDE,
    SWEPT,
    TABLE,
    THEIRS,
    WORDS,
    State,
)

_NOBODY = 1 << 40  # above every number


@inner
def row_end(state: State, begin: int, end: int) -> int:
    """Return where the row that begins at `begin` ends."""
    stride, sender = state[STRIDE], state[begin]
    while begin < end and state[begin] == sender:
        begin += stride
    return begin


@inner
def is_empty(state: State, begin: int, words: int) -> bool:
    """Say whether a set has nobody in it."""
    somebody = 0
    for w in range(words):
        somebody |= state[begin + w]
    return somebody == 0


@inner
def copy_alive(state: State, begin: int, end: int, out: int, dead_us: int) -> int:
    """Copy entries that have not expired; return the next free position."""
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


@inner
def drop_dead(state: State, now_us: int) -> None:
    """Take out of the table what has expired on every clock."""
    stride, dead_us, table = state[STRIDE], now_us - state[KEEP], state[TABLE]
    end = table + state[COUNT] * stride
    begin = table
    while begin < end and state[begin + 1] >= dead_us:
        begin += stride
    out = begin
    for entry in range(begin, end, stride):
        if state[entry + 1] >= dead_us:
            for i in range(stride):
                state[out + i] = state[entry + i]
            out += stride
    state[COUNT] = (out - table) // stride


@inner
def enter(state: State) -> None:
    """Put the message itself into THEIRS, as its sender's last entry, without us (T2.1, T2.2)."""
    stride, words, sender = state[STRIDE], state[WORDS], state[M_SENDER]
    theirs, count = state[THEIRS], state[M_COUNT]
    place = count
    while place > 0 and state[theirs + (place - 1) * stride] > sender:
        place -= 1
    entry = theirs + place * stride
    before = entry - stride
    if place > 0 and state[before] == sender and is_empty(state, before + 2, words):
        entry = before  # a marker that has served
    else:
        for i in range(theirs + count * stride - 1, entry - 1, -1):
            state[i + stride] = state[i]
        state[M_COUNT] = count + 1
    state[entry], state[entry + 1] = sender, state[M_SENT]
    for w in range(words):
        state[entry + 2 + w] = state[state[DESTINATIONS] + w]
    state[entry + 2 + (state[ME] >> 6)] &= ~bit_at(state[ME] & 63)


@inner
def without_me(state: State, table: int, count: int) -> None:
    """Take us out of all destination sets of a table."""
    stride, at, bit = state[STRIDE], 2 + (state[ME] >> 6), bit_at(state[ME] & 63)
    for entry in range(table, table + count * stride, stride):
        state[entry + at] &= ~bit


# -- logs --------------------------------------------------------------------------------------


@inner
def note_knowers(state: State, last: int, mine: int, told: bool, carrier_us: int) -> None:
    """Set who knows a row: those who knew ours, if `mine` ≥ 0; and the message's own, if `told`.

    What a message carries is known to its sender. To its other destinations it is known, or
    has expired, before anything that follows the message is delivered there; expired only if
    it is older than the message by the skew.
    """
    words = state[WORDS]
    knowers = last + 2 + words
    everyone = told and state[last + 1] <= carrier_us - state[SKEW]
    for w in range(words):
        known = state[mine + 2 + words + w] if mine >= 0 else 0
        if everyone:
            known |= state[state[DESTINATIONS] + w]
        state[knowers + w] = known
    if told:
        sender = state[M_SENDER]
        state[knowers + (sender >> 6)] |= bit_at(sender & 63)


@inner
def merge_row(
    state: State,
    mine: int,
    mine_end: int,
    theirs: int,
    theirs_end: int,
    out: int,
    dead_us: int,
    serves_us: int,
) -> int:
    """Write what both together know of one sender; return the next free position.

    `serves_us` is the time of the message if it is this sender's: we need nothing older of it.
    Knowers of ours still know the result if it has no destination that ours lacks.
    """
    stride, words = state[STRIDE], state[WORDS]
    mine_last, theirs_last = mine_end - stride, theirs_end - stride
    ours_is_newer = state[mine_last + 1] >= state[theirs_last + 1]
    if ours_is_newer:
        newer, newer_last, older, older_end = mine, mine_last, theirs, theirs_end
    else:
        newer, newer_last, older, older_end = theirs, theirs_last, mine, mine_end
    common_us = state[older_end - stride + 1]
    alone, start = False, out
    me_at, me_bit = state[ME] >> 6, bit_at(state[ME] & 63)
    for entry in range(newer, newer_last + stride, stride):
        time_us = state[entry + 1]
        if time_us < dead_us:
            continue
        while older < older_end and state[older + 1] < time_us:
            older += stride
        both = older < older_end and state[older + 1] == time_us
        filled = False
        for w in range(words):
            bits = state[entry + 2 + w]
            if time_us <= common_us:
                bits = bits & state[older + 2 + w] if both else 0
            if w == me_at and time_us <= serves_us:
                bits &= ~me_bit
            state[out + 2 + w] = bits
            filled = filled or bits != 0
        if filled or entry == newer_last:
            state[out], state[out + 1] = state[entry], time_us
            alone = alone or (filled and time_us > common_us)
            out += stride
    if out > start and stride > 2 + words:
        kept = mine_last if ours_is_newer or not alone else -1
        told = not ours_is_newer or not alone
        note_knowers(state, out - stride, kept, told and serves_us > -2, state[M_SENT])
    return out


@inner
def take_row(
    state: State, theirs: int, theirs_end: int, out: int, dead_us: int, adopting: bool
) -> int:
    """Copy a row that only they know."""
    stride, words, start = state[STRIDE], state[WORDS], out
    for entry in range(theirs, theirs_end, stride):
        last = entry + stride == theirs_end
        if state[entry + 1] >= dead_us and (last or not is_empty(state, entry + 2, words)):
            for i in range(2 + words):
                state[out + i] = state[entry + i]
            out += stride
    if out > start and stride > 2 + words:
        note_knowers(state, out - stride, -1, not adopting, state[M_SENT])
    return out


@inner
def merge_logs(state: State, now_us: int, adopting: bool) -> None:
    """Take receiving steps 4 to 6 of the paper for all rows."""
    stride, dead_us = state[STRIDE], now_us - state[KEEP]
    mine, theirs, out = state[TABLE], state[THEIRS], state[SPARE]
    mine_end = mine + state[COUNT] * stride
    theirs_end = theirs + state[M_COUNT] * stride
    sender = -1 if adopting else state[M_SENDER]
    while mine < mine_end or theirs < theirs_end:
        a = state[mine] if mine < mine_end else _NOBODY
        b = state[theirs] if theirs < theirs_end else _NOBODY
        if a < b:
            end = row_end(state, mine, mine_end)
            out = copy_alive(state, mine, end, out, dead_us)
            mine = end
        elif b < a:
            end = row_end(state, theirs, theirs_end)
            out = take_row(state, theirs, end, out, dead_us, adopting)
            theirs = end
        else:
            mine_row, row = row_end(state, mine, mine_end), row_end(state, theirs, theirs_end)
            serves_us = -2 if adopting else (state[M_SENT] if a == sender else -1)
            out = merge_row(state, mine, mine_row, theirs, row, out, dead_us, serves_us)
            mine, theirs = mine_row, row
    swap(state, out)


@inner
def replace_row(state: State, begin: int, end: int, new_end: int) -> int:
    """Put what SPARE holds up to `new_end` in the place of a row; return where it ends."""
    spare, table_end = state[SPARE], state[TABLE] + state[COUNT] * state[STRIDE]
    size = new_end - spare
    further = size - (end - begin)
    if further > 0:
        for i in range(table_end - 1, end - 1, -1):
            state[i + further] = state[i]
    elif further < 0:
        for i in range(end, table_end):
            state[i + further] = state[i]
    for i in range(size):
        state[begin + i] = state[spare + i]
    state[COUNT] += further // state[STRIDE]
    return int(begin + size)


@inner
def merge_news(state: State, now_us: int) -> None:
    """Take receiving steps 4 to 6 for the rows that a message carries; the others stay.

    Quicker than `merge_logs` where messages carry few of all rows. What has expired in the
    others goes with the next send, or four times within a lifetime.
    """
    if now_us > state[SWEPT] + (state[KEEP] >> 2):
        state[SWEPT] = now_us
        drop_dead(state, now_us)
    stride, dead_us, out = state[STRIDE], now_us - state[KEEP], state[SPARE]
    mine, theirs = state[TABLE], state[THEIRS]
    theirs_end = theirs + state[M_COUNT] * stride
    while theirs < theirs_end:
        number, row = state[theirs], row_end(state, theirs, theirs_end)
        mine_end = state[TABLE] + state[COUNT] * stride
        while mine < mine_end and state[mine] < number:
            mine += stride
        after = mine
        while after < mine_end and state[after] == number:
            after += stride
        if after > mine:
            serves_us = state[M_SENT] if number == state[M_SENDER] else -1
            new_end = merge_row(state, mine, after, theirs, row, out, dead_us, serves_us)
        else:
            new_end = take_row(state, theirs, row, out, dead_us, False)
        mine = replace_row(state, mine, after, new_end)
        theirs = row


# -- matrix and direct dependencies -----------------------------------------------------------


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
    """Take over their rows, for each cell the later time; `direct`: less what is served."""
    stride, dead_us = state[STRIDE], now_us - state[KEEP]
    mine, theirs, out = state[TABLE], state[THEIRS], state[SPARE]
    mine_end = mine + state[COUNT] * stride
    theirs_end = theirs + state[M_COUNT] * stride
    served = state[DESTINATIONS] if direct else -1
    while mine < mine_end or theirs < theirs_end:
        a = state[mine] if mine < mine_end else _NOBODY
        b = state[theirs] if theirs < theirs_end else _NOBODY
        mine_row = row_end(state, mine, mine_end) if a <= b else mine
        row = row_end(state, theirs, theirs_end) if b <= a else theirs
        if mine_row > mine and row == theirs:
            out = copy_alive(state, mine, mine_row, out, dead_us)
        else:
            out = latest_of(state, mine, mine_row, theirs, row, out, served)
        mine, theirs = mine_row, row
    swap(state, out)


@inner
def note_send(state: State, sender: int, sent_us: int, skip: int) -> None:
    """Append a send to its sender's row, where it is the latest to all it goes to.

    Its destinations are DESTINATIONS less the number `skip`. Written to SPARE, then swapped.
    """
    stride, words = state[STRIDE], state[WORDS]
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
    state[out], state[out + 1] = sender, sent_us
    out += stride if filled else 0
    for i in range(end - entry):
        state[out + i] = state[entry + i]
    swap(state, out + end - entry)


@inner
def absorb(state: State, now_us: int) -> None:
    """Take over what the message at hand knows, and the message itself."""
    algorithm = state[ALGORITHM]
    if algorithm in (DELTA_CAUSAL, KSHEMKALYANI_SINGHAL):
        enter(state)
        if algorithm == KSHEMKALYANI_SINGHAL:
            without_me(state, state[THEIRS], state[M_COUNT])
            merge_logs(state, now_us, False)
        else:
            merge_news(state, now_us)
    else:
        direct = algorithm == PRAKASH_RAYNAL_SINGHAL
        merge_latest(state, now_us, direct)
        note_send(state, state[M_SENDER], state[M_SENT], state[ME] if direct else -1)
