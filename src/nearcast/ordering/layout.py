"""How a process's knowledge lies in one flat array of int64, so that a kernel gets all of it.

A header of scalars, then regions. An entry is `STRIDE` numbers: sender, time, the words of its
destination set, and for Δ-causal the words of the set of processes that know its row (those of
a row's last entry count). A table is a list of entries sorted by sender, then time; the
entries of one sender are its *row*. The last entry of a row may have an empty set: a marker.

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

# Scalars that describe the process
ME: Final = 0
LIFETIME: Final = 1
SKEW: Final = 2
KEEP: Final = 3
WIDTH: Final = 4
ALGORITHM: Final = 5
NOW: Final = 6
SINCE: Final = 7
CLOCK: Final = 8
LAST_SENT: Final = 9
CLOSED: Final = 10
SWEPT: Final = 11
# The shape of the tables
WORDS: Final = 12
STRIDE: Final = 13
CAPACITY: Final = 14
COUNT: Final = 15
HELD_ROOM: Final = 16
CELL: Final = 17
# Where regions begin
TABLE: Final = 18
SPARE: Final = 19
THEIRS: Final = 20
DELIVERED: Final = 21
EVER: Final = 22
DESTINATIONS: Final = 23
HITS: Final = 24
ROWS: Final = 25
WAITS: Final = 26
SCRATCH: Final = 27
POSITIONS: Final = 28
STARTS: Final = 29
WATCHERS: Final = 30
UNTIL: Final = 31
HELD: Final = 32
CELLS: Final = 33
OUTS: Final = 34
# The message at hand
M_SENDER: Final = 35
M_SENT: Final = 36
M_OWN: Final = 37
M_TO: Final = 38
M_COUNT: Final = 39
M_WAITS: Final = 40
M_NEWEST: Final = 41
M_ALGORITHM: Final = 42
M_END: Final = 43
# What a kernel has to say besides its result
WAIT_NUMBER: Final = 44
WAIT_TIME: Final = 45
NEED_NUMBER: Final = 46
NEED_CAPACITY: Final = 47
NEED_BYTES: Final = 48
NEED_HELD: Final = 49
NEED_CELL: Final = 50
N_OUT: Final = 51
# What waits
HOLDING: Final = 52
STALLED: Final = 53
NEXT_WAKE: Final = 54
SERIAL: Final = 55
# What has happened so far
N_SENT: Final = 56
N_DELIVERED: Final = 57
N_HELD: Final = 58
N_SKEW: Final = 59
N_DISCARDED: Final = 60  # one for each `Reason`
HEADER: Final = 72

ROW_COLUMNS: Final = 8
"""sender, begin and end in SPARE, begin and end of its bytes, begin and end in TABLE, place."""
HIT_COLUMNS: Final = 4
"""sender, time, row, index in SPARE or -1; then the words of those who now wait for it."""

HELD_COLUMNS: Final = 10
H_SENDER: Final = 0
H_SENT: Final = 1
H_DEADLINE: Final = 2
H_WAIT_NUMBER: Final = 3
H_WAIT_TIME: Final = 4
H_WAKE: Final = 5
H_SERIAL: Final = 6
H_LENGTH: Final = 7
H_COUNT: Final = 8
H_WAITS: Final = 9
OUT_COLUMNS: Final = 4
"""place in what arrived or -1, serial of what waits or -1, result, end of control information."""
OUTS_SPARE: Final = 64
"""One call may tell of all that waits, and of so many arrivals."""
NEVER: Final = 1 << 62

# Results of kernels: not negative is fine, and which reason is told by place in `Reason`
DELIVERED_NOW: Final = 0
HOLD: Final = 1
FIRST_REASON: Final = 2
OUTPUTS: Final = 100
"""What becomes of a message, and of others, is told in OUTS."""
GROW: Final = -1
BAD_INSTANT: Final = -2
BACKWARDS: Final = -3
TRUNCATED: Final = -10
BAD_WIDTH: Final = -11
BAD_SET: Final = -12
BAD_NUMBER: Final = -13
DISORDER: Final = -14
TO_ITSELF: Final = -15
NO_DESTINATION: Final = -16
NOT_PAST: Final = -17
BAD_POSITION: Final = -18
BAD_LENGTH: Final = -19
TOO_LONG: Final = -20

DELTA_CAUSAL: Final = 0
RAYNAL_SCHIPER_TOUEG: Final = 1
PRAKASH_RAYNAL_SINGHAL: Final = 2
KSHEMKALYANI_SINGHAL: Final = 3


def new_state(
    algorithm: int, words: int = 1, capacity: int = 32, held: int = 4, cell: int = 16
) -> State:
    """Return an empty state for numbers below 64 * `words` and `capacity` entries a table.

    `held` messages may wait, each in a cell of `cell` numbers (see holding.py).
    """
    stride = 2 + (2 * words if algorithm == DELTA_CAUSAL else words)
    table = capacity * stride
    regions = (
        (TABLE, table),
        (SPARE, table),
        (THEIRS, table),
        (DELIVERED, 64 * words),
        (EVER, words),
        (DESTINATIONS, words),
        (HITS, capacity * (HIT_COLUMNS + words)),
        (ROWS, capacity * ROW_COLUMNS),
        (WAITS, 2 * capacity),
        (SCRATCH, words),
        (POSITIONS, capacity // 64 + 1),
        (STARTS, 64 * words + 1),
        (WATCHERS, 64 * words),
        (UNTIL, 64 * words),
        (HELD, held * HELD_COLUMNS),
        (CELLS, held * cell),
        (OUTS, (held + OUTS_SPARE) * OUT_COLUMNS),
    )
    state = np.zeros(HEADER + sum(size for _, size in regions), np.int64)
    begin = HEADER
    for name, size in regions:
        state[name] = begin
        begin += size
    state[[WORDS, STRIDE, CAPACITY, ALGORITHM]] = words, stride, capacity, algorithm
    state[[HELD_ROOM, CELL]] = held, cell
    state[[NOW, SINCE, CLOCK, LAST_SENT]] = -1
    state[NEXT_WAKE] = NEVER
    state[state[DELIVERED] : state[EVER]] = -1
    state[state[UNTIL] : state[HELD]] = -1
    return state


def grown(state: State, highest_number: int, capacity: int, held: int = 0, cell: int = 0) -> State:
    """Return the same knowledge with room for at least so much."""
    words = max(int(state[WORDS]), highest_number // 64 + 1)
    new = new_state(
        int(state[ALGORITHM]),
        words,
        _doubled(capacity, int(state[CAPACITY])),
        _doubled(held, int(state[HELD_ROOM])),
        _doubled(cell, int(state[CELL])),
    )
    for scalars in (range(WORDS), range(M_SENDER, HEADER)):
        for name in scalars:
            new[name] = state[name]
    new[COUNT] = count = int(state[COUNT])
    for region in (DELIVERED, EVER, WATCHERS, UNTIL, HELD, OUTS):
        begin, end = state[region], state[region + 1] if region < OUTS else len(state)
        new[new[region] : new[region] + end - begin] = state[begin:end]
    _copy_table(state, new, count)
    for i in range(int(state[HOLDING])):
        begin, to = state[CELLS] + i * state[CELL], new[CELLS] + i * new[CELL]
        new[to : to + state[CELL]] = state[begin : begin + state[CELL]]
    return new


def _doubled(wanted: int, present: int) -> int:
    return present if wanted <= present else 1 << (wanted - 1).bit_length()


def _copy_table(state: State, new: State, count: int) -> None:
    words, old_words, old = int(new[WORDS]), int(state[WORDS]), _table(state, count)
    table = _table(new, count)
    table[:, : 2 + old_words] = old[:, : 2 + old_words]
    table[:, 2 + words : 2 + words + old_words] = old[:, 2 + old_words :]


def _table(state: State, count: int) -> State:
    stride, begin = int(state[STRIDE]), int(state[TABLE])
    return state[begin : begin + count * stride].reshape(count, stride)


def entries_of(state: State, region: int, count: int) -> list[tuple[int, int, int]]:
    """Return (sender, time, destination bits) of a table's entries."""
    stride, words, begin = int(state[STRIDE]), int(state[WORDS]), int(state[region])
    found = []
    for at in range(begin, begin + count * stride, stride):
        bits = int.from_bytes(state[at + 2 : at + 2 + words].tobytes(), "little")
        found.append((int(state[at]), int(state[at + 1]), bits))
    return found


def set_words(state: State, at: int, bits: int) -> None:
    """Write a set of numbers as words."""
    words = int(state[WORDS])
    state[at : at + words] = np.frombuffer(bits.to_bytes(8 * words, "little"), np.int64)


def numbers_in(bits: int) -> list[int]:
    """Return the positions of the ones, ascending.

    >>> numbers_in(0b10110)
    [1, 2, 4]
    """
    numbers = []
    while bits:
        lowest = bits & -bits
        numbers.append(lowest.bit_length() - 1)
        bits ^= lowest
    return numbers
