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
# The shape of the tables
WORDS: Final = 11
STRIDE: Final = 12
CAPACITY: Final = 13
COUNT: Final = 14
# Where regions begin
TABLE: Final = 15
SPARE: Final = 16
THEIRS: Final = 17
DELIVERED: Final = 18
EVER: Final = 19
DESTINATIONS: Final = 20
HITS: Final = 21
ROWS: Final = 22
WAITS: Final = 23
SCRATCH: Final = 24
POSITIONS: Final = 25
STARTS: Final = 26
# The message at hand
M_SENDER: Final = 27
M_SENT: Final = 28
M_OWN: Final = 29
M_TO: Final = 30
M_COUNT: Final = 31
M_WAITS: Final = 32
M_NEWEST: Final = 33
M_ALGORITHM: Final = 34
# What a kernel has to say besides its result
WAIT_NUMBER: Final = 35
WAIT_TIME: Final = 36
NEED_NUMBER: Final = 37
NEED_CAPACITY: Final = 38
NEED_BYTES: Final = 39
# What has happened so far
N_SENT: Final = 40
N_DELIVERED: Final = 41
N_HELD: Final = 42
N_SKEW: Final = 43
N_DISCARDED: Final = 44  # one for each `Reason`
HEADER: Final = 52

ROW_COLUMNS: Final = 8
"""sender, begin and end in SPARE, begin and end of its bytes, begin and end in TABLE, place."""
HIT_COLUMNS: Final = 4
"""sender, time, row, index in SPARE or -1; then the words of those who now wait for it."""

# Results of kernels: not negative is fine, and which reason is told by place in `Reason`
DELIVERED_NOW: Final = 0
HOLD: Final = 1
FIRST_REASON: Final = 2
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


def new_state(algorithm: int, words: int = 1, capacity: int = 32) -> State:
    """Return an empty state for numbers below 64 * `words` and `capacity` entries a table."""
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
    )
    state = np.zeros(HEADER + sum(size for _, size in regions), np.int64)
    begin = HEADER
    for name, size in regions:
        state[name] = begin
        begin += size
    state[[WORDS, STRIDE, CAPACITY, ALGORITHM]] = words, stride, capacity, algorithm
    state[[NOW, SINCE, CLOCK, LAST_SENT]] = -1
    state[state[DELIVERED] : state[EVER]] = -1
    return state


def grown(state: State, highest_number: int, capacity: int) -> State:
    """Return the same knowledge with room for `highest_number` and `capacity` entries."""
    words = max(int(state[WORDS]), highest_number // 64 + 1)
    if capacity > state[CAPACITY]:
        capacity = 1 << (capacity - 1).bit_length()
    new = new_state(int(state[ALGORITHM]), words, max(capacity, int(state[CAPACITY])))
    for scalars in (range(WORDS), range(M_SENDER, HEADER)):
        for name in scalars:
            new[name] = state[name]
    new[COUNT] = count = int(state[COUNT])
    for region in (DELIVERED, EVER):
        begin, end = state[region], state[region + 1]
        new[new[region] : new[region] + end - begin] = state[begin:end]
    old_words, old = int(state[WORDS]), _table(state, count)
    table = _table(new, count)
    table[:, : 2 + old_words] = old[:, : 2 + old_words]
    table[:, 2 + words : 2 + words + old_words] = old[:, 2 + old_words :]
    return new


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
