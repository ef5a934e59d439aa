"""The interval skip list in bulk: built from arrays, and dumped for checks.

`store.py` calls these in turn, and enlarges the arena in between.

A list built in bulk has its nodes and marker lists side by side in the order of keys, which suits
the processor's caches. Nothing else differs from a list made by adding one interval after another:
levels are random, markers and their order are the same.

Previous: `scores.py`; this is the last file.
"""

from __future__ import annotations

from nearcast.index.intervals.best import shown_high, shown_low
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
    R_AGE,
    R_HIGH,
    R_HIGH_NODE,
    R_LOW,
    R_LOW_NODE,
    R_WEIGHT,
    R_WIDTH,
    entry_of,
    list_length,
    read_list,
    write_list,
)
from nearcast.index.intervals.memory import (
    S_CHUNK_BITS,
    S_COUNT,
    S_HEADER,
    S_HEIGHT,
    S_KEYS,
    S_LISTED,
    S_RANDOM,
    S_RECORDS,
    S_RECORDS_USED,
    S_TAIL,
    find_slot,
    float_of,
    inlined,
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
from nearcast.kernels import kernel


@kernel
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


@kernel
def read_widths(s, widths):  # type: ignore[no-untyped-def]
    """Copy the widths of slots 0, 1, …."""
    for slot in range(len(widths)):
        widths[slot] = float_of(load(load(s, S_RECORDS) + (slot << 6), R_WIDTH))


@kernel
def node_words(s, nodes):  # type: ignore[no-untyped-def]
    """Return how many words the next nodes will take; their levels are drawn, and drawn again."""
    state = load(s, S_RANDOM)
    words = 0
    for _ in range(nodes):
        words += 4 + 4 * random_levels(s)
    store(s, S_RANDOM, state)
    return words


@inlined
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


@kernel
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


@inlined
def _is_boundless(s, record):  # type: ignore[no-untyped-def]
    low_is_open = load(record, R_LOW_NODE) == load(s, S_HEADER)
    return low_is_open and load(record, R_HIGH_NODE) == load(s, S_TAIL)


@kernel
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


@inlined
def _list_words(s, length):  # type: ignore[no-untyped-def]
    """Return an upper bound of the words that `write_list` takes."""
    chunk = 1 << load(s, S_CHUNK_BITS)
    if length <= chunk >> 1:
        return 2 * length + 2
    chunks = length // (3 * chunk // 4) + 2
    return chunks * chunk + 8 * (chunks + 2)


@kernel
def marker_words(s):  # type: ignore[no-untyped-def]
    """Return an upper bound of the words that the counted markers take."""
    header = load(s, S_HEADER)
    words = _list_words(s, load(edge_at(header, TOP), E_INFO))
    node = header
    while node != load(s, S_TAIL):
        for level in range(level_count(node)):
            words += _list_words(s, load(edge_at(node, level), E_INFO))
        node = load(edge_at(node, 0), E_NEXT)
    return words


@inlined
def _allot(edge, place):  # type: ignore[no-untyped-def]
    store(edge, E_BLOCK, place)
    return place + (load(edge, E_INFO) << 3)


@inlined
def _put(edge, entry):  # type: ignore[no-untyped-def]
    place = load(edge, E_BLOCK)
    store(place, 0, entry)
    store(edge, E_BLOCK, place + 8)


@inlined
def _keep(s, edge):  # type: ignore[no-untyped-def]
    length = load(edge, E_INFO)
    write_list(s, edge, load(edge, E_BLOCK) - (length << 3), length)


@kernel
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


@kernel
def dump_nodes(s, nodes):  # type: ignore[no-untyped-def]
    """Write key, levels and owners of each node, header first; return how many there are."""
    node = load(s, S_HEADER)
    count = 0
    while node != load(s, S_TAIL):
        if count < len(nodes):
            nodes[count, 0] = load(node, 0)
            nodes[count, 1] = level_count(node)
            nodes[count, 2] = load(node, 1) >> 8
        count += 1
        node = load(edge_at(node, 0), E_NEXT)
    return count


@kernel
def dump_edges(s, level, edges, entries, capacity):  # type: ignore[no-untyped-def]
    """Write left key, right key, cached right key and end of markers of a level's edges."""
    node = load(s, S_HEADER)
    count = 0
    markers = 0
    while node != load(s, S_TAIL):
        edge = edge_at(node, level)
        if markers + list_length(edge) <= capacity:
            read_list(edge, entries + (markers << 3))
        markers += list_length(edge)
        if count < len(edges):
            edges[count, 0] = load(node, 0)
            edges[count, 1] = load(load(edge, E_NEXT), 0)
            edges[count, 2] = load(edge, E_NEXT_KEY)
            edges[count, 3] = markers
        count += 1
        node = load(edge, E_NEXT)
    return count, markers


@kernel
def dump_records(s, words, values):  # type: ignore[no-untyped-def]
    """Write key, first, above, age, slot found, openness, home; low, high, width, weight."""
    for slot in range(load(s, S_RECORDS_USED)):
        record = load(s, S_RECORDS) + (slot << 6)
        words[slot, 0] = load(load(s, S_KEYS), slot)
        words[slot, 1] = load(record, R_LOW)
        words[slot, 2] = load(record, R_HIGH)
        words[slot, 3] = load(record, R_AGE) >> 2
        words[slot, 5] = load(record, R_AGE) & 3
        words[slot, 6] = load(record, R_HOME)
        if load(record, R_AGE) < 0:
            continue
        words[slot, 4] = find_slot(s, words[slot, 0])
        values[slot, 0] = shown_low(s, record)
        values[slot, 1] = shown_high(s, record)
        values[slot, 2] = float_of(load(record, R_WIDTH))
        values[slot, 3] = float_of(load(record, R_WEIGHT))


@kernel
def bounds(s, slot):  # type: ignore[no-untyped-def]
    """Return low and high of a slot."""
    record = load(s, S_RECORDS) + (slot << 6)
    return shown_low(s, record), shown_high(s, record)
