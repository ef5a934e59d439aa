"""How a process's knowledge lies in one flat array of int64, so that a kernel gets all of it.

A header of scalars, then regions. An entry is `STRIDE` numbers: sender, time, the words of its
destination set, and the words of the set of processes that know its row (those of a row's last
entry count). A table is a list of entries sorted by sender, then time; the entries of one sender
are its *row*. The last entry of a row may have an empty set: a marker.

A kernel that lacks room changes nothing, notes what it needs and returns `GROW`.

Read next: codec.py.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

State = NDArray[np.int64]
Buffer = NDArray[np.uint8]

HIGHEST_NUMBER: Final = 4095
"""The highest number of a process: a bit set of 512 bytes."""

# Scalars that describe the process; the kind of control information is part of a message's bytes
ME, LIFETIME, SKEW, KEEP, WIDTH, KIND, NOW, SINCE, CLOCK, LAST_SENT, SWEPT = range(11)
# The shape of the tables
WORDS, STRIDE, CAPACITY, COUNT, HELD_ROOM, CELL = range(11, 17)
# Where regions begin, in this order
TABLE, SPARE, THEIRS, DELIVERED, DESTINATIONS, HITS, ROWS, WAITS = range(17, 25)
SCRATCH, POSITIONS, STARTS, WATCHERS, UNTIL, HELD, CELLS, OUTS = range(25, 33)
# The message at hand
M_SENDER, M_SENT, M_OWN, M_TO, M_WIDTH, M_COUNT, M_WAITS, M_END = range(33, 41)
# What a kernel returns besides its result
NEED_NUMBER, NEED_CAPACITY, NEED_BYTES, NEED_HELD, NEED_CELL, N_OUT = range(41, 47)
# Messages that wait: how many, whether a release lacked room, when the next one is due
HOLDING, STALLED, NEXT_WAKE, SERIAL = range(47, 51)
# What has happened so far; N_DISCARDED is the first of one counter for each `DiscardReason`
N_SENT, N_DELIVERED, N_HELD, N_SKEW, N_DISCARDED = range(51, 56)
HEADER: Final = 64

ROW_COLUMNS: Final = 6
"""sender, begin and end in SPARE, begin and end of its bytes, place among the body's entries."""
HIT_COLUMNS: Final = 4
"""sender, time, row, index in SPARE or -1; then the words of those who now wait for it."""
H_SENDER, H_SENT, H_DEADLINE, H_WAIT_NUMBER, H_WAIT_TIME, H_WAKE = range(6)
H_SERIAL, H_WORDS, H_COUNT, H_WAITS, HELD_COLUMNS = range(6, 11)
OUT_COLUMNS: Final = 2
"""serial of a message that waited, result."""
NEVER: Final = 1 << 62

# Results of kernels. What was discarded is FIRST_REASON plus the place in `DiscardReason`
DELIVERED_NOW, RELEASED_OTHERS, HOLD, FIRST_REASON = range(4)
LATE, WAITED_TOO_LONG, DUPLICATE, FUTURE, NOT_FOR_US, UNKNOWN_PROCESS, CONTRADICTION = range(3, 10)
GROW, BAD_INSTANT, BACKWARDS, DUE = -1, -2, -3, -4
TRUNCATED, BAD_WIDTH, OTHER_KIND, BAD_SET, BAD_NUMBER, DISORDER = range(-10, -16, -1)
TO_ITSELF, NO_DESTINATION, NOT_PAST, BAD_POSITION, BAD_LENGTH, TOO_LONG = range(-16, -22, -1)


def new_state(
    words: int = 1, capacity: int = 32, held: int = 8, cell: int = 64, *, sets: int = 2
) -> State:
    """Return an empty state for numbers below 64 * `words` and `capacity` entries a table.

    `held` messages may wait, each in a cell of `cell` numbers (see holding.py). An entry has
    `sets` sets.
    """
    stride = 2 + sets * words
    sizes = {
        TABLE: capacity * stride,
        SPARE: capacity * stride,
        THEIRS: capacity * stride,
        DELIVERED: 64 * words,
        DESTINATIONS: words,
        HITS: capacity * (HIT_COLUMNS + words),
        ROWS: capacity * ROW_COLUMNS,
        WAITS: 2 * capacity,
        SCRATCH: words,
        POSITIONS: capacity // 64 + 1,
        STARTS: 64 * words + 1,
        WATCHERS: 64 * words,
        UNTIL: 64 * words,
        HELD: held * HELD_COLUMNS,
        CELLS: held * cell,
        OUTS: held * OUT_COLUMNS,
    }
    state = np.zeros(HEADER + sum(sizes.values()), np.int64)
    begin = HEADER
    for region, size in sizes.items():
        state[region] = begin
        begin += size
    state[[WORDS, STRIDE, CAPACITY, HELD_ROOM, CELL]] = words, stride, capacity, held, cell
    state[[NOW, SINCE, CLOCK, LAST_SENT]] = -1
    state[NEXT_WAKE] = NEVER
    state[state[DELIVERED] : state[DESTINATIONS]] = -1
    state[state[UNTIL] : state[HELD]] = -1
    return state


def grown(state: State, highest_number: int, capacity: int, held: int = 0, cell: int = 0) -> State:
    """Return the same knowledge with room for at least so much."""
    old_words = int(state[WORDS])
    words, sets = max(old_words, highest_number // 64 + 1), (int(state[STRIDE]) - 2) // old_words
    new = new_state(
        words,
        _doubled(capacity, int(state[CAPACITY])),
        _doubled(held, int(state[HELD_ROOM])),
        _doubled(cell, int(state[CELL])),
        sets=sets,
    )
    for scalars in (slice(ME, WORDS), slice(M_SENDER, HEADER)):
        new[scalars] = state[scalars]
    new[COUNT] = state[COUNT]
    for region in (DELIVERED, WATCHERS, UNTIL, HELD):
        begin, end = state[region], state[region + 1]
        new[new[region] : new[region] + end - begin] = state[begin:end]
    for i in range(int(state[HOLDING])):
        begin, to = state[CELLS] + i * state[CELL], new[CELLS] + i * new[CELL]
        new[to : to + state[CELL]] = state[begin : begin + state[CELL]]
    table, old = table_of(new), table_of(state)
    table[:, :2] = old[:, :2]
    for i in range(sets):
        to, begin = 2 + i * words, 2 + i * old_words
        table[:, to : to + old_words] = old[:, begin : begin + old_words]
    return new


def _doubled(wanted: int, present: int) -> int:
    return present if wanted <= present else 1 << (wanted - 1).bit_length()


def table_of(state: State) -> State:
    """Return the entries of TABLE as rows of a matrix, which share the state's memory."""
    begin, count, stride = int(state[TABLE]), int(state[COUNT]), int(state[STRIDE])
    return state[begin : begin + count * stride].reshape(count, stride)


def strip(state: State, number: int) -> None:
    """Take a process that has left out of all sets (trap T2.5).

    Entries with nobody left go, except the last of each sender, which is a marker.
    """
    words, table = int(state[WORDS]), table_of(state)
    if number >= 64 * words:
        return
    table.view(np.uint64)[:, 2 + (number >> 6) :: words] &= ~np.uint64(1 << (number & 63))
    is_last = np.append(table[1:, 0] != table[:-1, 0], True)[: len(table)]
    kept = table[is_last | table[:, 2 : 2 + words].any(axis=1)]
    state[COUNT] = len(kept)
    table[: len(kept)] = kept
