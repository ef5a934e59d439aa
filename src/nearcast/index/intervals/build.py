"""The interval skip list in bulk, built from arrays.

`store.py` calls these in turn, and enlarges the arena in between.

A list built in bulk has its nodes and marker lists side by side in the order of keys, which suits
the processor's caches. Nothing else differs from a list made by adding one interval after another:
levels are random, markers and their order are the same.

Previous: `scores.py`; this is the last file.
"""

from __future__ import annotations

from nearcast.index.intervals.kernels import (
    KEY_IN_USE,
    OK,
    mistake_in,
    step,
    write_record,
)
from nearcast.index.intervals.lists import (
    E_BLOCK,
    E_INFO,
    E_NEXT,
    E_NEXT_KEY,
    R_HIGH,
    R_HIGH_NODE,
    R_LOW,
    R_LOW_NODE,
    R_WIDTH,
    entry_of,
    write_list,
)
from nearcast.index.intervals.memory import (
    S_COUNT,
    S_HEADER,
    S_HEIGHT,
    S_LISTED,
    S_RANDOM,
    S_RECORDS,
    S_RECORDS_USED,
    S_TAIL,
    find_slot,
    float_of,
    load,
    remember_key,
    store,
)
from nearcast.index.intervals.nodes import (
    ABOVE_ALL,
    BELOW_ALL,
    TOP,
    edge_at,
    level_count,
    random_levels,
    set_height,
    take_node,
)
from nearcast.index.intervals.runs import IN_LIST, R_HOME
from nearcast.kernels import entry_point, inner


@entry_point("int64, int64[::1], float64[::1], float64[::1], int64[::1], float64[::1], int64[::1]")
def fill_records(s, keys, lows, highs, openness, weights, ends):  # type: ignore[no-untyped-def]
    """Write all records of an empty list; return the first error, and its row.

    `ends` gets the ordinals of all low ends, then of all high ends.
    """
    count = len(keys)
    for slot in range(count):
        mistake = mistake_in(lows[slot], highs[slot], openness[slot], weights[slot])
        if mistake == OK and find_slot(s, keys[slot]) >= 0:
            mistake = KEY_IN_USE
        if mistake != OK:
            return mistake, slot
        write_record(s, slot, keys[slot], lows[slot], highs[slot], openness[slot], weights[slot])
        remember_key(s, keys[slot], slot)
        store(s, S_COUNT, slot + 1)
        store(s, S_RECORDS_USED, slot + 1)
        record = load(s, S_RECORDS) + (slot << 6)
        ends[slot] = load(record, R_LOW)
        ends[count + slot] = load(record, R_HIGH)
    return OK, 0


@entry_point("int64, float64[::1]")
def read_widths(s, widths):  # type: ignore[no-untyped-def]
    """Copy the widths of slots 0, 1, …."""
    for slot in range(len(widths)):
        widths[slot] = float_of(load(load(s, S_RECORDS) + (slot << 6), R_WIDTH))


@entry_point("int64, int64")
def node_words(s, nodes):  # type: ignore[no-untyped-def]
    """Return how many words the next nodes will take; their levels are drawn, and drawn again."""
    state = load(s, S_RANDOM)
    words = 0
    for _ in range(nodes):
        words += 4 + 4 * random_levels(s)
    store(s, S_RANDOM, state)
    return words


@inner
def _append_node(s, key, lasts):  # type: ignore[no-untyped-def]
    levels = random_levels(s)
    node = take_node(s, key, levels)
    if levels > load(s, S_HEIGHT):
        set_height(s, levels)
    for level in range(levels):
        edge = edge_at(node, level)
        store(edge, E_NEXT, load(s, S_TAIL))
        store(edge, E_NEXT_KEY, ABOVE_ALL)
        store(edge, E_BLOCK, 0)
        store(edge, E_INFO, 0)
        store(lasts[level], E_NEXT, node)
        store(lasts[level], E_NEXT_KEY, key)
        lasts[level] = edge
    return node


@entry_point("int64, int64[::1], int64[::1], int64[::1]")
def link_nodes(s, ends, order, lasts):  # type: ignore[no-untyped-def]
    """Make a node of each different end point, in ascending order; record it in the records."""
    count = len(ends) // 2
    for level in range(TOP):
        lasts[level] = edge_at(load(s, S_HEADER), level)
    node = load(s, S_HEADER)
    key = BELOW_ALL
    for index in range(len(order)):
        end = order[index]
        slot = end % count
        if ends[slot] == ends[count + slot]:
            continue  # no float lies inside
        if ends[end] == ABOVE_ALL:
            node = load(s, S_TAIL)
        elif ends[end] != key:
            key = ends[end]
            node = _append_node(s, key, lasts)
        if BELOW_ALL < ends[end] < ABOVE_ALL:
            store(node, 1, load(node, 1) + 256)
        record = load(s, S_RECORDS) + (slot << 6)
        store(record, R_LOW_NODE if end < count else R_HIGH_NODE, node)


@inner
def _is_boundless(s, record):  # type: ignore[no-untyped-def]
    low_is_open = load(record, R_LOW_NODE) == load(s, S_HEADER)
    return low_is_open and load(record, R_HIGH_NODE) == load(s, S_TAIL)


@entry_point("int64, int64[::1]")
def count_markers(s, order):  # type: ignore[no-untyped-def]
    """Count, in the edges themselves, how many markers each will carry; return the sum."""
    total = 0
    for index in range(len(order)):
        record = load(s, S_RECORDS) + (order[index] << 6)
        node = load(record, R_LOW_NODE)
        level = 0
        if load(record, R_HOME) == IN_LIST:
            store(s, S_LISTED, load(s, S_LISTED) + 1)
        if _is_boundless(s, record):
            edge = edge_at(node, TOP)
            store(edge, E_INFO, load(edge, E_INFO) + 1)
            total += 1
            continue
        while node != load(record, R_HIGH_NODE):
            level = step(node, level, load(record, R_HIGH))
            edge = edge_at(node, level)
            store(edge, E_INFO, load(edge, E_INFO) + 1)
            total += 1
            node = load(edge, E_NEXT)
    return total


@entry_point("int64")
def marker_words(s):  # type: ignore[no-untyped-def]
    """Return an upper bound of the words that the counted markers take."""
    header = load(s, S_HEADER)
    words = 2 * load(edge_at(header, TOP), E_INFO) + 2
    node = header
    while node != load(s, S_TAIL):
        for level in range(level_count(node)):
            words += 2 * load(edge_at(node, level), E_INFO) + 2
        node = load(edge_at(node, 0), E_NEXT)
    return words


@inner
def _allot(edge, place):  # type: ignore[no-untyped-def]
    store(edge, E_BLOCK, place)
    return place + (load(edge, E_INFO) << 3)


@inner
def _put(edge, entry):  # type: ignore[no-untyped-def]
    place = load(edge, E_BLOCK)
    store(place, 0, entry)
    store(edge, E_BLOCK, place + 8)


@inner
def _keep(s, edge):  # type: ignore[no-untyped-def]
    length = load(edge, E_INFO)
    write_list(s, edge, load(edge, E_BLOCK) - (length << 3), length)


@entry_point("int64, int64[::1], int64")
def place_markers(s, by_width, entries):  # type: ignore[no-untyped-def]
    """Write each edge's markers; added in order of accuracy, they are in order on each edge."""
    header = load(s, S_HEADER)
    place = _allot(edge_at(header, TOP), entries)
    node = header
    while node != load(s, S_TAIL):
        for level in range(level_count(node)):
            place = _allot(edge_at(node, level), place)
        node = load(edge_at(node, 0), E_NEXT)
    for index in range(len(by_width)):
        slot = by_width[index]
        record = load(s, S_RECORDS) + (slot << 6)
        entry = entry_of(float_of(load(record, R_WIDTH)), slot)
        node = load(record, R_LOW_NODE)
        level = 0
        if _is_boundless(s, record):
            _put(edge_at(node, TOP), entry)
            continue
        while node != load(record, R_HIGH_NODE):
            level = step(node, level, load(record, R_HIGH))
            _put(edge_at(node, level), entry)
            node = load(edge_at(node, level), E_NEXT)
    _keep(s, edge_at(header, TOP))
    node = header
    while node != load(s, S_TAIL):
        for level in range(level_count(node)):
            _keep(s, edge_at(node, level))
        node = load(edge_at(node, 0), E_NEXT)
