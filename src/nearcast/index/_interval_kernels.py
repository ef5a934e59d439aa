"""Adding and removing one interval: its record, its two nodes, and its markers.

The marked edges of an interval form a staircase, up from its low node and down to its high node,
without gap or overlap.

Previous: `_interval_nodes.py`; next: `_interval_queries.py`.
"""

from __future__ import annotations

import math

from numba import njit

from nearcast.index._interval_lists import (
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
    remove_marker,
)
from nearcast.index._interval_memory import (
    S_CHUNK_BITS,
    S_COUNT,
    S_EXTENT_HIGH,
    S_EXTENT_LOW,
    S_FREE_SLOT,
    S_HEADER,
    S_KEYS,
    S_NEXT_AGE,
    S_RANDOM,
    S_RECORDS,
    S_RECORDS_USED,
    S_STAIRS,
    S_TAIL,
    bits_of,
    find_slot,
    float_of,
    forget_key,
    inlined,
    load,
    ordinal,
    prefetch,
    remember_key,
    reserve_keys,
    reserve_records,
    store,
    take_words,
)
from nearcast.index._interval_nodes import (
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

MOST_SLOTS = 1 << 32

OK = 0
KEY_IN_USE = 1
KEY_MISSING = 2
NOT_A_NUMBER = 3
UPSIDE_DOWN = 4
EMPTY = 5
BAD_WEIGHT = 6
TOO_MANY = 7


@njit(cache=True)
def found(s, seed, chunk_bits):  # type: ignore[no-untyped-def]
    """Make an empty list in a table of zeros."""
    store(s, S_CHUNK_BITS, chunk_bits)
    store(s, S_RANDOM, seed)
    store(s, S_FREE_SLOT, -1)
    reserve_keys(s, 8)
    tail = take_words(s, 4)
    store(tail, 0, ABOVE_ALL)
    store(tail, 1, 0)
    header = take_words(s, 4 + 4 * LEVELS)
    store(header, 0, BELOW_ALL)
    for level in range(LEVELS):
        bare_edge(edge_at(header, level), tail, ABOVE_ALL)
    store(s, S_TAIL, tail)
    store(s, S_HEADER, header)
    set_height(s, 1)


@inlined
def step(node, level, high):  # type: ignore[no-untyped-def]
    """Return the level of the highest edge from `node` that ends by `high`, near `level`."""
    best = level
    levels = level_count(node)
    while best + 1 < levels and load(edge_at(node, best + 1), E_NEXT_KEY) <= high:
        best += 1
    while load(edge_at(node, best), E_NEXT_KEY) > high:
        best -= 1
    return best


@inlined
def _mark_stairs(s, stairs, entry, on):  # type: ignore[no-untyped-def]
    for index in range(stairs):
        edge = load(s, S_STAIRS + index)
        if on:
            insert_marker(s, edge, entry)
        else:
            remove_marker(s, edge, entry)


@inlined
def _mark(s, slot, on):  # type: ignore[no-untyped-def]
    """Put an interval's markers on its staircase, or take them off. Expected O(log n) edges.

    Edges are gathered first, so that their lists are on the way from memory when needed.
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


@inlined
def mistake_in(low, high, openness, weight):  # type: ignore[no-untyped-def]
    """Return what is wrong with an interval, or OK."""
    if math.isnan(low) or math.isnan(high):
        return NOT_A_NUMBER
    if low > high:
        return UPSIDE_DOWN
    if (low == high and openness != 0) or low == math.inf or high == -math.inf:
        return EMPTY
    if not math.isfinite(weight):
        return BAD_WEIGHT
    return OK


@inlined
def write_record(s, slot, key, low, high, openness, weight):  # type: ignore[no-untyped-def]
    """Fill in a record, all but its nodes."""
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
    store(s, S_NEXT_AGE, load(s, S_NEXT_AGE) + 1)


@inlined
def _take_slot(s):  # type: ignore[no-untyped-def]
    slot = load(s, S_FREE_SLOT)
    if slot >= 0:
        store(s, S_FREE_SLOT, load(load(s, S_KEYS), slot))
        return slot
    slot = load(s, S_RECORDS_USED)
    reserve_records(s, slot + 1)
    store(s, S_RECORDS_USED, slot + 1)
    return slot


@njit(cache=True)
def add(s, key, low, high, openness, weight):  # type: ignore[no-untyped-def]
    """Add an interval, or say why not and change nothing. Expected O(log² n)."""
    mistake = mistake_in(low, high, openness, weight)
    if mistake != OK:
        return mistake
    if find_slot(s, key) >= 0:
        return KEY_IN_USE
    if load(s, S_COUNT) >= MOST_SLOTS:
        return TOO_MANY
    slot = _take_slot(s)
    write_record(s, slot, key, low, high, openness, weight)
    remember_key(s, key, slot)
    store(s, S_COUNT, load(s, S_COUNT) + 1)
    record = load(s, S_RECORDS) + (slot << 6)
    if load(record, R_LOW) < load(record, R_HIGH):  # else no float lies inside
        own_nodes(s, record)
        _mark(s, slot, True)
    return OK


@njit(cache=True)
def remove(s, key):  # type: ignore[no-untyped-def]
    """Remove an interval, its markers, and the nodes that were its alone. Expected O(log² n)."""
    slot = find_slot(s, key)
    if slot < 0:
        return KEY_MISSING
    record = load(s, S_RECORDS) + (slot << 6)
    if load(record, R_LOW) < load(record, R_HIGH):
        _mark(s, slot, False)
        disown_nodes(s, record)
    forget_key(s, key)
    store(record, R_AGE, -1)
    store(load(s, S_KEYS), slot, load(s, S_FREE_SLOT))
    store(s, S_FREE_SLOT, slot)
    store(s, S_COUNT, load(s, S_COUNT) - 1)
    return OK


@njit(cache=True)
def slot_of(s, key):  # type: ignore[no-untyped-def]
    """Return the slot of a key, or -1."""
    return find_slot(s, key)
