"""Adding and removing one interval: its record, its two nodes, and its markers.

The marked edges of an interval form a staircase, up from its low node and down to its high node,
without gap or overlap.

A new interval goes into the list. If the list is full, or the arena may be too small, the kernel
reports it before it changes anything, and `store.py` makes room.

Previous: `runs.py`; next: `queries.py`.
"""

from __future__ import annotations

import math

from nearcast.index.intervals.lists import (
    E_BLOCK,
    E_NEXT,
    E_NEXT_KEY,
    R_AGE,
    R_HIGH,
    R_HIGH_NODE,
    R_LOW,
    R_LOW_NODE,
    R_WEIGHT,
    R_WIDTH,
    entry_of,
    insert_marker,
    read_list,
    record_of,
    remove_marker,
)
from nearcast.index.intervals.memory import (
    S_ASK,
    S_COUNT,
    S_EXTENT_HIGH,
    S_EXTENT_LOW,
    S_FREE_BLOCK,
    S_FREE_SLOT,
    S_HEADER,
    S_KEYS,
    S_LIST_LIMIT,
    S_LISTED,
    S_MARKER_LIMIT,
    S_MARKERS,
    S_NEXT_AGE,
    S_NODES,
    S_PATH,
    S_RECORD_CAPACITY,
    S_RECORDS,
    S_RECORDS_USED,
    S_STAIRS,
    S_TABLE_BITS,
    S_TAIL,
    S_WORN_RUN,
    bits_of,
    find_slot,
    float_of,
    forget_key,
    free_words,
    load,
    ordinal,
    prefetch,
    remember_key,
    scratch,
    store,
    take_words,
)
from nearcast.index.intervals.nodes import (
    ABOVE_ALL,
    BELOW_ALL,
    LEVELS,
    TOP,
    bare_edge,
    disown_nodes,
    edge_at,
    level_count,
    own_nodes,
    set_height,
)
from nearcast.index.intervals.runs import IN_LIST, IN_RUN, NOWHERE, R_HOME, R_RUN, take_out
from nearcast.kernels import entry_point, inner

# Upper bound of what one change of the list takes of the arena. Each of two new nodes may copy
# every marker to either side of a split edge, into blocks of up to twice their size; promoted
# markers and a staircase may double every list once more. Besides, a list may begin on every edge
# of a staircase.
WORDS_A_MARKER = 16
WORDS_A_CHANGE = 16_384

OK = 0
KEY_IN_USE = 1
KEY_MISSING = 2
NOT_A_NUMBER = 3
UPSIDE_DOWN = 4
EMPTY = 5
BAD_WEIGHT = 6
NO_ROOM = 8
WORN = 9  # done, and a run should be merged


@entry_point("int64")
def found(s):  # type: ignore[no-untyped-def]
    """Create an empty list at the beginning of an unused arena."""
    for word in range(S_FREE_BLOCK, S_PATH):
        store(s, word, 0)
    tail = take_words(s, 4)
    store(tail, 0, ABOVE_ALL)
    store(tail, 1, 0)
    header = take_words(s, 4 + 4 * LEVELS)
    store(header, 0, BELOW_ALL)
    for level in range(LEVELS):
        bare_edge(edge_at(header, level), tail, ABOVE_ALL)
    store(s, S_TAIL, tail)
    store(s, S_HEADER, header)
    store(s, S_LISTED, 0)
    store(s, S_MARKERS, 0)
    store(s, S_NODES, 0)
    set_height(s, 1)


@inner
def step(node, level, high):  # type: ignore[no-untyped-def]
    """Return the level of the highest edge from `node` that ends by `high`, near `level`."""
    best = level
    levels = level_count(node)
    while best + 1 < levels and load(edge_at(node, best + 1), E_NEXT_KEY) <= high:
        best += 1
    while load(edge_at(node, best), E_NEXT_KEY) > high:
        best -= 1
    return best


@inner
def _mark_stairs(s, stairs, entry, on):  # type: ignore[no-untyped-def]
    for index in range(stairs):
        edge = load(s, S_STAIRS + index)
        if on:
            insert_marker(s, edge, entry)
        else:
            remove_marker(s, edge, entry)


@inner
def _mark(s, slot, on):  # type: ignore[no-untyped-def]
    """Add an interval's markers to its staircase, or remove them. Expected O(log n) edges.

    Edges are gathered first, so that their lists are being loaded when they are needed.
    """
    record = load(s, S_RECORDS) + (slot << 6)
    entry = entry_of(float_of(load(record, R_WIDTH)), slot)
    high = load(record, R_HIGH)
    node = load(record, R_LOW_NODE)
    last = load(record, R_HIGH_NODE)
    if node == load(s, S_HEADER) and last == load(s, S_TAIL):
        store(s, S_STAIRS, edge_at(node, TOP))
        _mark_stairs(s, 1, entry, on)
        return
    level = 0
    stairs = 0
    while node != last:
        level = step(node, level, high)
        edge = edge_at(node, level)
        node = load(edge, E_NEXT)
        prefetch(load(edge, E_BLOCK))
        store(s, S_STAIRS + stairs, edge)
        stairs += 1
        if stairs == 100:
            _mark_stairs(s, stairs, entry, on)
            stairs = 0
    _mark_stairs(s, stairs, entry, on)


@inner
def mistake_in(low, high, openness, weight):  # type: ignore[no-untyped-def]
    """Return the error of an interval, or OK."""
    if math.isnan(low) or math.isnan(high):
        return NOT_A_NUMBER
    if low > high:
        return UPSIDE_DOWN
    if (low == high and openness != 0) or low == math.inf or high == -math.inf:
        return EMPTY
    if not math.isfinite(weight):
        return BAD_WEIGHT
    return OK


@inner
def write_record(s, slot, key, low, high, openness, weight):  # type: ignore[no-untyped-def]
    """Write a record, except its nodes."""
    record = load(s, S_RECORDS) + (slot << 6)
    opens = openness | (low == -math.inf) | ((high == math.inf) << 1)
    first = BELOW_ALL if low == -math.inf else ordinal(low) + (openness & 1)
    above = ABOVE_ALL if high == math.inf else ordinal(high) + 1 - (openness >> 1)
    shown_low = float_of(load(s, S_EXTENT_LOW)) if low == -math.inf else low
    shown_high = float_of(load(s, S_EXTENT_HIGH)) if high == math.inf else high
    store(load(s, S_KEYS), slot, key)
    store(record, R_LOW, first)
    store(record, R_HIGH, above)
    store(record, R_WIDTH, bits_of(max(0.0, shown_high - shown_low) + 0.0))
    store(record, R_AGE, (load(s, S_NEXT_AGE) << 2) | opens)
    store(record, R_WEIGHT, bits_of(weight + 0.0))
    store(record, R_LOW_NODE, 0)
    store(record, R_HIGH_NODE, 0)
    store(record, R_HOME, IN_LIST if first < above else NOWHERE)  # there may be no float inside
    store(s, S_NEXT_AGE, load(s, S_NEXT_AGE) + 1)


@inner
def _take_slot(s):  # type: ignore[no-untyped-def]
    slot = load(s, S_FREE_SLOT)
    if slot >= 0:
        store(s, S_FREE_SLOT, load(load(s, S_KEYS), slot))
        return slot
    slot = load(s, S_RECORDS_USED)
    store(s, S_RECORDS_USED, slot + 1)
    return slot


@inner
def _arena_will_do(s):  # type: ignore[no-untyped-def]
    return free_words(s) >= WORDS_A_MARKER * load(s, S_MARKERS) + WORDS_A_CHANGE


@inner
def _list_has_room(s):  # type: ignore[no-untyped-def]
    fits = load(s, S_LISTED) < load(s, S_LIST_LIMIT)
    fits &= load(s, S_MARKERS) < load(s, S_MARKER_LIMIT)
    return fits & _arena_will_do(s)


@inner
def _has_room(s):  # type: ignore[no-untyped-def]
    """Return whether one more interval fits everywhere."""
    fits = 2 * (load(s, S_COUNT) + 1) <= (1 << load(s, S_TABLE_BITS))
    fits &= (load(s, S_FREE_SLOT) >= 0) | (load(s, S_RECORDS_USED) < load(s, S_RECORD_CAPACITY))
    return fits & _list_has_room(s)


@entry_point("int64")
def list_has_room(s):  # type: ignore[no-untyped-def]
    """Return whether the list has room for one more interval, and any change."""
    return _list_has_room(s)


@entry_point("int64")
def add(s):  # type: ignore[no-untyped-def]
    """Add the interval in the query, or return why not and change nothing. Expected O(log² n).

    In the query: key, low, high, openness, weight.
    """
    key = load(s, S_ASK)
    low = float_of(load(s, S_ASK + 1))
    high = float_of(load(s, S_ASK + 2))
    openness = load(s, S_ASK + 3)
    weight = float_of(load(s, S_ASK + 4))
    mistake = mistake_in(low, high, openness, weight)
    if mistake != OK:
        return mistake
    if find_slot(s, key) >= 0:
        return KEY_IN_USE
    if not _has_room(s):
        return NO_ROOM
    slot = _take_slot(s)
    write_record(s, slot, key, low, high, openness, weight)
    remember_key(s, key, slot)
    store(s, S_COUNT, load(s, S_COUNT) + 1)
    record = load(s, S_RECORDS) + (slot << 6)
    if load(record, R_HOME) == IN_LIST:
        store(s, S_LISTED, load(s, S_LISTED) + 1)
        own_nodes(s, record)
        _mark(s, slot, True)
    return OK


@entry_point("int64")
def remove(s):  # type: ignore[no-untyped-def]
    """Remove the interval whose key is in the query, or return why not and change nothing.

    From the list: with its markers and the nodes that only it used, expected O(log² n). From a run:
    O(log n); a run that is worn out is recorded.
    """
    key = load(s, S_ASK)
    slot = find_slot(s, key)
    if slot < 0:
        return KEY_MISSING
    record = load(s, S_RECORDS) + (slot << 6)
    home = load(record, R_HOME)
    if home == IN_LIST:
        if not _arena_will_do(s):
            return NO_ROOM
        _mark(s, slot, False)
        disown_nodes(s, record)
        store(s, S_LISTED, load(s, S_LISTED) - 1)
    elif home == IN_RUN and take_out(record):
        store(s, S_WORN_RUN, load(record, R_RUN))
    forget_key(s, key)
    store(record, R_AGE, -1)
    store(load(s, S_KEYS), slot, load(s, S_FREE_SLOT))
    store(s, S_FREE_SLOT, slot)
    store(s, S_COUNT, load(s, S_COUNT) - 1)
    return OK if load(s, S_WORN_RUN) == 0 else WORN


@entry_point("int64, int64")
def slot_of(s, key):  # type: ignore[no-untyped-def]
    """Return the slot of a key, or -1."""
    return find_slot(s, key)


@inner
def _copy_starting(s, edge, key, slots, found):  # type: ignore[no-untyped-def]
    """Append the slots of an edge's markers whose interval begins where the edge does."""
    records = load(s, S_RECORDS)
    place = scratch(s)
    for index in range(read_list(edge, place)):
        entry = load(place, index)
        if load(record_of(records, entry), R_LOW) == key:
            slots[found] = entry & 0xFFFFFFFF
            found += 1
    return found


@entry_point("int64, int64[::1]")
def listed_slots(s, slots):  # type: ignore[no-untyped-def]
    """Write the slots of the list's intervals, by low end: each marks one edge from there."""
    found = 0
    header = load(s, S_HEADER)
    node = header
    while node != load(s, S_TAIL):
        for level in range(TOP if node == header else level_count(node)):
            found = _copy_starting(s, edge_at(node, level), load(node, 0), slots, found)
        if node == header:
            found = _copy_starting(s, edge_at(node, TOP), BELOW_ALL, slots, found)
        node = load(edge_at(node, 0), E_NEXT)
    return found
