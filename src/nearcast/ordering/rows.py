"""What a delivery teaches: kernels that merge the rows of a message into ours.

Per sender, whoever knows the later message has had its say on the earlier ones; what both list
keeps the intersection (paper 2, receiving, steps 4 to 6). Only the rows that a message carries are
touched. Each row also remembers who knows it: that is not the paper's, see delta_causal.py.

Read next: sending.py.
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
    SKEW,
    SPARE,
    STRIDE,
    SWEPT,
    TABLE,
    THEIRS,
    WORDS,
    State,
)


@inner
def row_end(state: State, begin: int, end: int) -> int:
    """Return where the row that begins at `begin` ends."""
    stride, sender = state[STRIDE], state[begin]
    while begin < end and state[begin] == sender:
        begin += stride
    return begin


@inner
def is_empty(state: State, begin: int, words: int) -> bool:
    """Return whether a set has nobody in it."""
    somebody = 0
    for w in range(words):
        somebody |= state[begin + w]
    return somebody == 0


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
def merge_entries(
    state: State,
    mine: int,
    mine_end: int,
    theirs: int,
    theirs_end: int,
    out: int,
    dead_us: int,
    serves_us: int,
) -> tuple[int, bool]:
    """Write what both together know of one sender; return the next free position.

    We may know nothing. Also return whether the newer row has destinations that the older one says
    nothing of. `serves_us` is the time of the message if it is this sender's and we know the
    sender: we need nothing older of it.
    """
    stride, words, alone, common_us = state[STRIDE], state[WORDS], False, -1
    newer, newer_end, older, older_end = theirs, theirs_end, mine, mine_end
    if mine < mine_end:
        common_us = state[mine_end - stride + 1]
        if common_us >= state[theirs_end - stride + 1]:
            newer, newer_end, older, older_end = mine, mine_end, theirs, theirs_end
            common_us = state[theirs_end - stride + 1]
    me_at, me_bit = state[ME] >> 6, bit_at(state[ME] & 63)
    for entry in range(newer, newer_end, stride):
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
        if filled or entry == newer_end - stride:
            state[out], state[out + 1] = state[entry], time_us
            alone = alone or (filled and time_us > common_us)
            out += stride
    return out, alone


@inner
def note_knowers(state: State, last: int, mine: int, told: bool) -> None:
    """Set who knows a row: those who knew ours, if `mine` ≥ 0; and the message's own, if `told`.

    What a message carries is known to its sender. To its other destinations it is known, or
    has expired, before anything that follows the message is delivered there; expired only if
    it is older than the message by the skew.
    """
    words = state[WORDS]
    knowers = last + 2 + words
    everyone = told and state[last + 1] <= state[M_SENT] - state[SKEW]
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
    state: State, mine: int, mine_end: int, theirs: int, theirs_end: int, dead_us: int
) -> int:
    """Write to SPARE what is known of one sender, and who knows it; return where it ends.

    Knowers of ours still know the result if it has no destination that ours lacks.
    """
    stride, spare, serves_us = state[STRIDE], state[SPARE], -1
    is_known, is_newer = mine < mine_end, False
    if is_known:
        is_newer = state[mine_end - stride + 1] >= state[theirs_end - stride + 1]
        serves_us = state[M_SENT] if state[theirs] == state[M_SENDER] else -1
    end, alone = merge_entries(state, mine, mine_end, theirs, theirs_end, spare, dead_us, serves_us)
    if end > spare:
        kept = mine_end - stride if is_known and (is_newer or not alone) else -1
        note_knowers(state, end - stride, kept, not (is_newer and alone))
    return end


@inner
def merge_single(state: State, mine: int, theirs: int) -> None:
    """Do what `merge_row` does for two rows of one entry each, in place: most rows are such."""
    words, time_us, their_us = state[WORDS], state[mine + 1], state[theirs + 1]
    filled = 0
    for w in range(words):
        bits = state[mine + 2 + w] if time_us > their_us else state[theirs + 2 + w]
        if time_us == their_us:
            bits &= state[mine + 2 + w]
        state[mine + 2 + w] = bits
        filled |= bits
    if state[mine] == state[M_SENDER]:
        state[mine + 2 + (state[ME] >> 6)] &= ~bit_at(state[ME] & 63)
        filled = 0 if is_empty(state, mine + 2, words) else 1
    state[mine + 1] = max(time_us, their_us)
    alone = filled != 0 and time_us != their_us
    kept = -1 if alone and time_us < their_us else mine
    note_knowers(state, mine, kept, not (alone and time_us > their_us))


@inner
def replace_row(state: State, begin: int, end: int, new_end: int) -> int:
    """Put what SPARE holds up to `new_end` in the place of a row; return where it ends."""
    spare, table_end = state[SPARE], state[TABLE] + state[COUNT] * state[STRIDE]
    size: int = new_end - spare
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
    return begin + size


@inner
def merge_news(state: State, now_us: int) -> None:
    """Take receiving steps 4 to 6 for the rows in THEIRS; the others stay."""
    stride, dead_us = state[STRIDE], now_us - state[KEEP]
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
        is_single = after - mine == stride and row - theirs == stride
        if is_single and max(state[mine + 1], state[theirs + 1]) >= dead_us:
            merge_single(state, mine, theirs)
            mine = after
        else:
            end = merge_row(state, mine, after, theirs, row, dead_us)
            mine = replace_row(state, mine, after, end)
        theirs = row


@inner
def absorb(state: State, now_us: int) -> None:
    """Take over what the message at hand knows, and the message itself.

    What has expired in other rows goes with the next send, or four times within a lifetime.
    """
    if now_us > state[SWEPT] + (state[KEEP] >> 2):
        state[SWEPT] = now_us
        drop_dead(state, now_us)
    enter(state)
    merge_news(state, now_us)
