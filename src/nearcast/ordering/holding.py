"""Messages that wait: kernels that hold them, look at them again, and let them go.

HELD has a line of numbers for each, without gaps; CELLS, in the same order, what it waits for as
pairs of number and time, its destinations, and its entries. A message watches one predecessor at a
time; when that is settled it is looked at again, and may find another. WATCHERS counts, for each
process, how many watch a message of it. NEXT_WAKE is the earliest instant at which one of them is
due without any arrival.

What lacks room in the tables goes on waiting, and STALLED is set: the caller makes room and comes
again in the same instant.

Read next: kernels.py.
"""

from __future__ import annotations

from nearcast.kernels import inner
from nearcast.ordering.layout import (
    CAPACITY,
    CELL,
    CELLS,
    COUNT,
    DELIVERED,
    DELIVERED_NOW,
    DESTINATIONS,
    DUPLICATE,
    H_COUNT,
    H_DEADLINE,
    H_SENDER,
    H_SENT,
    H_SERIAL,
    H_WAIT_NUMBER,
    H_WAIT_TIME,
    H_WAITS,
    H_WAKE,
    H_WORDS,
    HELD,
    HELD_COLUMNS,
    HELD_ROOM,
    HOLD,
    HOLDING,
    LIFETIME,
    M_COUNT,
    M_OWN,
    M_SENDER,
    M_SENT,
    M_WAITS,
    N_HELD,
    N_OUT,
    NEED_CAPACITY,
    NEED_CELL,
    NEED_HELD,
    NEVER,
    NEXT_WAKE,
    OUT_COLUMNS,
    OUTS,
    SERIAL,
    STALLED,
    STRIDE,
    THEIRS,
    UNTIL,
    WAITED_TOO_LONG,
    WAITS,
    WATCHERS,
    WORDS,
    State,
)


@inner
def deadline_us(state: State) -> int:
    """Return until when the message at hand may be delivered."""
    own_us = state[M_OWN]
    lifetime_us = own_us if 0 < own_us < state[LIFETIME] else state[LIFETIME]
    deadline: int = state[M_SENT] + lifetime_us
    return deadline


@inner
def has_to_wait(state: State, now_us: int) -> bool:
    """Return whether a predecessor of the message at hand is neither delivered nor expired.

    WAITS keeps those that are not, and no others.
    """
    alive_us, delivered, waits = now_us - state[LIFETIME], state[DELIVERED], state[WAITS]
    left = waits
    for wait in range(waits, waits + 2 * state[M_WAITS], 2):
        number, time_us = state[wait], state[wait + 1]
        if time_us >= alive_us and state[delivered + number] < time_us:
            state[left], state[left + 1] = number, time_us
            left += 2
    state[M_WAITS] = (left - waits) // 2
    waits_for_some: bool = left > waits
    return waits_for_some


@inner
def lacks_room(state: State) -> bool:
    """Return whether the message at hand might not fit, delivered or held."""
    words = state[WORDS]
    state[NEED_CAPACITY] = state[COUNT] + state[M_COUNT] + 2
    state[NEED_HELD] = state[HOLDING] + 1
    state[NEED_CELL] = 2 * state[M_WAITS] + words + state[M_COUNT] * (2 + words)
    lacks: bool = state[NEED_CAPACITY] > state[CAPACITY]
    return lacks or state[NEED_HELD] > state[HELD_ROOM] or state[NEED_CELL] > state[CELL]


@inner
def is_held(state: State, sender: int, sent_us: int) -> bool:
    """Return whether a message waits already. O(1) unless it is older than one that was held."""
    until = state[UNTIL] + sender
    if sent_us > state[until]:
        state[until] = sent_us
        return False
    for i in range(state[HOLDING]):
        line = state[HELD] + i * HELD_COLUMNS
        if state[line + H_SENDER] == sender and state[line + H_SENT] == sent_us:
            return True
    return False


@inner
def hold(state: State) -> int:
    """Make the message at hand wait, unless it does already."""
    if is_held(state, state[M_SENDER], state[M_SENT]):
        return DUPLICATE
    i, words = state[HOLDING], state[WORDS]
    line, cell = state[HELD] + i * HELD_COLUMNS, state[CELLS] + i * state[CELL]
    state[SERIAL] += 1
    state[line + H_SENDER], state[line + H_SENT] = state[M_SENDER], state[M_SENT]
    state[line + H_DEADLINE], state[line + H_SERIAL] = deadline_us(state), state[SERIAL]
    state[line + H_WORDS], state[line + H_COUNT] = words, state[M_COUNT]
    state[line + H_WAITS] = state[M_WAITS]
    watch(state, line, state[WAITS])
    for w in range(2 * state[M_WAITS]):
        state[cell + w] = state[state[WAITS] + w]
    to = cell + 2 * state[M_WAITS]
    for w in range(words):
        state[to + w] = state[state[DESTINATIONS] + w]
    to += words
    theirs, stride = state[THEIRS], state[STRIDE]
    for entry in range(theirs, theirs + state[M_COUNT] * stride, stride):
        for w in range(2 + words):
            state[to + w] = state[entry + w]
        to += 2 + words
    state[HOLDING] += 1
    state[N_HELD] += 1
    return HOLD


@inner
def take_back(state: State, i: int) -> None:
    """Make the message in line `i` the one at hand; sets may have become longer meanwhile."""
    line, stride, words = state[HELD] + i * HELD_COLUMNS, state[STRIDE], state[WORDS]
    state[M_SENDER], state[M_SENT] = state[line + H_SENDER], state[line + H_SENT]
    state[M_COUNT], had = state[line + H_COUNT], state[line + H_WORDS]
    at = state[CELLS] + i * state[CELL] + 2 * state[line + H_WAITS]
    for w in range(words):
        state[state[DESTINATIONS] + w] = state[at + w] if w < had else 0
    at += had
    theirs = state[THEIRS]
    for entry in range(theirs, theirs + state[M_COUNT] * stride, stride):
        for w in range(2 + words):
            state[entry + w] = state[at + w] if w < 2 + had else 0
        at += 2 + had


@inner
def watch(state: State, line: int, wait: int) -> None:
    """Record which of its predecessors a message is held for, and until when."""
    number, time_us = state[wait], state[wait + 1]
    state[line + H_WAIT_NUMBER], state[line + H_WAIT_TIME] = number, time_us
    wake_us = min(time_us + state[LIFETIME], state[line + H_DEADLINE]) + 1
    state[line + H_WAKE] = wake_us
    state[state[WATCHERS] + number] += 1
    state[NEXT_WAKE] = min(state[NEXT_WAKE], wake_us)


@inner
def next_wait(state: State, i: int, now_us: int) -> int:
    """Return where the first predecessor of line `i` is that is not settled, or -1."""
    alive_us, delivered = now_us - state[LIFETIME], state[DELIVERED]
    cell, waits = state[CELLS] + i * state[CELL], state[state[HELD] + i * HELD_COLUMNS + H_WAITS]
    for wait in range(cell, cell + 2 * waits, 2):
        time_us = state[wait + 1]
        if time_us >= alive_us and state[delivered + state[wait]] < time_us:
            return wait
    return -1


@inner
def verdict(state: State, i: int, now_us: int) -> int:
    """Decide what becomes of the message in line `i`; if it is delivered, it is the one at hand."""
    line = state[HELD] + i * HELD_COLUMNS
    if now_us > state[line + H_DEADLINE]:
        return WAITED_TOO_LONG
    wait = next_wait(state, i, now_us)
    if wait >= 0:
        state[state[WATCHERS] + state[line + H_WAIT_NUMBER]] -= 1
        watch(state, line, wait)
        return HOLD
    state[NEED_CAPACITY] = state[COUNT] + state[line + H_COUNT] + 2
    if state[NEED_CAPACITY] > state[CAPACITY]:
        state[STALLED] = 1
        return HOLD
    take_back(state, i)
    return DELIVERED_NOW


@inner
def let_go(state: State, i: int, result: int) -> None:
    """Take line `i` out, where the last one takes its place, and tell what became of it."""
    last = state[HOLDING] - 1
    line, other = state[HELD] + i * HELD_COLUMNS, state[HELD] + last * HELD_COLUMNS
    out = state[OUTS] + state[N_OUT] * OUT_COLUMNS
    state[out], state[out + 1] = state[line + H_SERIAL], result
    state[N_OUT] += 1
    state[state[WATCHERS] + state[line + H_WAIT_NUMBER]] -= 1
    state[HOLDING] = last
    if i == last:
        return
    for c in range(HELD_COLUMNS):
        state[line + c] = state[other + c]
    to, begin, words = (
        state[CELLS] + i * state[CELL],
        state[CELLS] + last * state[CELL],
        state[line + H_WORDS],
    )
    for w in range(2 * state[line + H_WAITS] + words + state[line + H_COUNT] * (2 + words)):
        state[to + w] = state[begin + w]


@inner
def is_free(state: State, i: int) -> bool:
    """Return whether what line `i` watches has been delivered."""
    line = state[HELD] + i * HELD_COLUMNS
    last_us = state[state[DELIVERED] + state[line + H_WAIT_NUMBER]]
    delivered: bool = state[line + H_WAIT_TIME] <= last_us
    return delivered


@inner
def is_due(state: State, i: int, now_us: int) -> bool:
    """Return whether line `i` has to be looked at because time has passed."""
    due: bool = state[state[HELD] + i * HELD_COLUMNS + H_WAKE] <= now_us
    return due


@inner
def note_next_wake(state: State) -> None:
    """Find out when the next one is due."""
    earliest = NEVER
    for i in range(state[HOLDING]):
        earliest = min(earliest, state[state[HELD] + i * HELD_COLUMNS + H_WAKE])
    state[NEXT_WAKE] = earliest
