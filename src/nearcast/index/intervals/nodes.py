"""Nodes of the interval skip list: finding, making and removing them.

Every interval is stored half open, [first value inside, first value above), over the ordinals of
floats; `20 <= age < 25` and `20 <= age <= 25` differ by one ordinal at the upper end (trap T1.3).
So an edge from node a to node b covers [a, b), its left end included, and no value is ever
"equal to a node but on none of its edges": the eqMarkers of a node are the markers on the edges
that leave it, at all its levels.

The marker invariants (paper 1, "Interval skip list"): an interval marks an edge if and only if it
covers the edge (containment) and does not cover the edge one level up that contains it
(maximality). Adding or removing a node changes the edges around it; here the markers of other
intervals are updated (trap T1.4).

    node:  key | levels + 256 · intervals that end here | – | – | edge of level 0 | edge 1 | …

Levels count from 0 in here. `TOP`, above all nodes, has the intervals without any bound.

Previous: `lists.py`; next: `kernels.py`.
"""

from __future__ import annotations

from nearcast.index.intervals.lists import (
    E_BLOCK,
    E_INFO,
    E_NEXT,
    E_NEXT_KEY,
    R_HIGH,
    R_LOW,
    R_LOW_NODE,
    before,
    clear_list,
    insert_marker,
    list_length,
    read_list,
    record_of,
    remove_marker,
    write_list,
)
from nearcast.index.intervals.memory import (
    S_FREE_NODE,
    S_HEADER,
    S_HEIGHT,
    S_HIGH_PATH,
    S_LOW_PATH,
    S_NODES,
    S_RANDOM,
    S_RECORDS,
    S_TAIL,
    load,
    prefetch,
    scratch,
    store,
    take_words,
)
from nearcast.kernels import inner

LEVELS = 32
TOP = LEVELS - 1
BELOW_ALL = -0x7FF0000000000001  # the ordinal of minus infinity
ABOVE_ALL = 0x7FF0000000000000  # the ordinal of infinity


@inner
def edge_at(node, level):  # type: ignore[no-untyped-def]
    """Return the address of a node's edge."""
    return node + 32 + (level << 5)


@inner
def level_count(node):  # type: ignore[no-untyped-def]
    """Return how many levels a node has; the header has as many as the list."""
    return load(node, 1) & 0xFF


@inner
def _next_random(s):  # type: ignore[no-untyped-def]
    """Return 64 random bits (splitmix64); the state is part of the list."""
    state = load(s, S_RANDOM) - 7046029254386353131
    store(s, S_RANDOM, state)
    mixed = (state ^ ((state >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
    mixed = (mixed ^ ((mixed >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
    return mixed ^ ((mixed >> 31) & 0x1FFFFFFFF)


@inner
def random_levels(s):  # type: ignore[no-untyped-def]
    """Return k with probability 2**-k, at most TOP."""
    bits = _next_random(s)
    levels = 1
    while levels < TOP and bits & 1:
        bits >>= 1
        levels += 1
    return levels


@inner
def _link(edge, node, key):  # type: ignore[no-untyped-def]
    store(edge, E_NEXT, node)
    store(edge, E_NEXT_KEY, key)


@inner
def bare_edge(edge, node, key):  # type: ignore[no-untyped-def]
    """Make an edge to `node` without markers."""
    _link(edge, node, key)
    store(edge, E_BLOCK, 0)
    store(edge, E_INFO, 0)


@inner
def set_height(s, height):  # type: ignore[no-untyped-def]
    """Record how many levels are in use."""
    store(s, S_HEIGHT, height)
    store(load(s, S_HEADER), 1, height)


@inner
def take_node(s, key, levels):  # type: ignore[no-untyped-def]
    """Return a node of `levels` levels, a free one if there is one."""
    node = load(s, S_FREE_NODE + levels)
    if node != 0:
        store(s, S_FREE_NODE + levels, load(node, 0))
    else:
        node = take_words(s, 4 + 4 * levels)
    store(node, 0, key)
    store(node, 1, levels)
    store(s, S_NODES, load(s, S_NODES) + 1)
    return node


@inner
def _path_node(path, level):  # type: ignore[no-untyped-def]
    return load(path, level)


@inner
def _path_next(path, level):  # type: ignore[no-untyped-def]
    return load(path, LEVELS + level)


@inner
def _path_next_key(path, level):  # type: ignore[no-untyped-def]
    return load(path, 2 * LEVELS + level)


@inner
def _note(path, level, node, next_node, next_key):  # type: ignore[no-untyped-def]
    store(path, level, node)
    store(path, LEVELS + level, next_node)
    store(path, 2 * LEVELS + level, next_key)


@inner
def _find_paths(s, low, high):  # type: ignore[no-untyped-def]
    """Record on each level the last node before an end point and the one after; for both ends.

    The two searches alternate, so that one works while the other waits for memory. Expected O(log
    n).
    """
    low_path = s + (S_LOW_PATH << 3)
    high_path = s + (S_HIGH_PATH << 3)
    low_node = load(s, S_HEADER)
    high_node = low_node
    low_level = load(s, S_HEIGHT) - 1
    high_level = low_level
    while low_level >= 0 or high_level >= 0:
        if low_level >= 0:
            edge = edge_at(low_node, low_level)
            if load(edge, E_NEXT_KEY) < low:
                low_node = load(edge, E_NEXT)
                prefetch(edge_at(low_node, low_level))
            else:
                _note(low_path, low_level, low_node, load(edge, E_NEXT), load(edge, E_NEXT_KEY))
                low_level -= 1
        if high_level >= 0:
            edge = edge_at(high_node, high_level)
            if load(edge, E_NEXT_KEY) < high:
                high_node = load(edge, E_NEXT)
                prefetch(edge_at(high_node, high_level))
            else:
                _note(high_path, high_level, high_node, load(edge, E_NEXT), load(edge, E_NEXT_KEY))
                high_level -= 1


@inner
def _mark_left(s, path, entry, low, high, on):  # type: ignore[no-untyped-def]
    """Add an entry to, or remove it from, the left chains of levels low … high - 1.

    The chain of a level runs between the path's nodes of the level above and of that level.
    """
    for level in range(low, high):
        node = _path_node(path, level + 1)
        while node != _path_node(path, level):
            edge = edge_at(node, level)
            if on:
                insert_marker(s, edge, entry)
            else:
                remove_marker(s, edge, entry)
            node = load(edge, E_NEXT)


@inner
def _mark_right(s, path, entry, low, high, on):  # type: ignore[no-untyped-def]
    """Do the same on the right, from the path's far end of a level to that of the level above."""
    for level in range(low, high):
        node = _path_next(path, level)
        while node != _path_next(path, level + 1):
            edge = edge_at(node, level)
            if on:
                insert_marker(s, edge, entry)
            else:
                remove_marker(s, edge, entry)
            node = load(edge, E_NEXT)


@inner
def _reach_left(path, low, level, levels):  # type: ignore[no-untyped-def]
    """Return the highest level, from `level` up, whose path node is not before `low`."""
    reach = level
    while reach + 1 < levels and low <= load(_path_node(path, reach + 1), 0):
        reach += 1
    return reach


@inner
def _reach_right(path, high, level, levels):  # type: ignore[no-untyped-def]
    """Return the highest level, from `level` up, whose far end is not above `high`."""
    reach = level
    while reach + 1 < levels and _path_next_key(path, reach + 1) <= high:
        reach += 1
    return reach


@inner
def _prefetch_records(records, place, length):  # type: ignore[no-untyped-def]
    for index in range(length):
        prefetch(record_of(records, load(place, index)))


@inner
def _split_markers(s, path, node, level, levels):  # type: ignore[no-untyped-def]
    """Distribute the markers of the edge that a new node splits; promote those that reach higher.

    An interval that covered the split edge covers both halves. On one of the sides (never on both)
    it may cover the new edges one or more levels up, and then marks the highest of them instead of
    the chains below (maximality).
    """
    left = edge_at(_path_node(path, level), level)
    right = edge_at(node, level)
    length = list_length(left)
    place = scratch(s)
    read_list(left, place)
    if level == levels - 1:  # there is no higher edge to reach
        write_list(s, right, place, length)
        return
    keep_left = place + (length << 3)
    keep_right = keep_left + (length << 3)
    lefts = 0
    rights = 0
    records = load(s, S_RECORDS)
    _prefetch_records(records, place, length)
    for index in range(length):
        entry = load(place, index)
        record = record_of(records, entry)
        reach = _reach_left(path, load(record, R_LOW), level, levels)
        if reach == level:
            store(keep_left, lefts, entry)
            lefts += 1
        else:
            _mark_left(s, path, entry, level, reach, False)
            insert_marker(s, edge_at(_path_node(path, reach), reach), entry)
        reach = _reach_right(path, load(record, R_HIGH), level, levels)
        if reach == level:
            store(keep_right, rights, entry)
            rights += 1
        else:
            _mark_right(s, path, entry, level, reach, False)
            insert_marker(s, edge_at(node, reach), entry)
    if lefts < length:
        clear_list(s, left)
        write_list(s, left, keep_left, lefts)
    write_list(s, right, keep_right, rights)


@inner
def _insert_node(s, path, key):  # type: ignore[no-untyped-def]
    """Insert a node where the path leads, and update the markers of the split edges."""
    levels = random_levels(s)
    height = load(s, S_HEIGHT)
    if levels > height:
        for level in range(height, levels):
            _note(path, level, load(s, S_HEADER), load(s, S_TAIL), ABOVE_ALL)
        set_height(s, levels)
    node = take_node(s, key, levels)
    for level in range(levels - 1, -1, -1):
        left = edge_at(_path_node(path, level), level)
        bare_edge(edge_at(node, level), _path_next(path, level), _path_next_key(path, level))
        if list_length(left) > 0:
            _split_markers(s, path, node, level, levels)
        _link(left, node, key)
    return node


@inner
def _own_node(s, path, key):  # type: ignore[no-untyped-def]
    """Return the node of an end point, created if needed, with one more owner."""
    if key == BELOW_ALL:
        return load(s, S_HEADER)
    if key == ABOVE_ALL:
        return load(s, S_TAIL)
    node = _path_next(path, 0)
    if _path_next_key(path, 0) != key:
        node = _insert_node(s, path, key)
    store(node, 1, load(node, 1) + 256)
    return node


@inner
def _put_before(s, path, height, node, key):  # type: ignore[no-untyped-def]
    """Correct the path to a high end for a low node that may have been inserted meanwhile."""
    for level in range(level_count(node)):
        if level >= height:
            _note(path, level, node, load(s, S_TAIL), ABOVE_ALL)
        elif load(_path_node(path, level), 0) < key:
            store(path, level, node)


@inner
def own_nodes(s, record):  # type: ignore[no-untyped-def]
    """Add or find the two nodes of an interval, and count it as their owner."""
    low = load(record, R_LOW)
    high = load(record, R_HIGH)
    low_path = s + (S_LOW_PATH << 3)
    high_path = s + (S_HIGH_PATH << 3)
    height = load(s, S_HEIGHT)
    _find_paths(s, low, high)
    for end in range(2):  # a loop, so that the code is inlined only once
        path = high_path if end else low_path
        node = _own_node(s, path, high if end else low)
        store(record, R_LOW_NODE + end, node)
        if end == 0 and low != BELOW_ALL:
            _put_before(s, high_path, height, node, low)


@inner
def _join_markers(s, path, node, level, levels):  # type: ignore[no-untyped-def]
    """Keep on the joined edge what belongs there, and demote markers that were higher on one side.

    No interval ends at the node, so an interval that marks an edge into it also marks one out of
    it, each on the highest level that its ends allow. Joined, the lower of the two levels counts;
    on the side that reached higher the interval goes down to the chains between (trap T1.4).
    """
    left = edge_at(_path_node(path, level), level)
    right = edge_at(node, level)
    if levels == 1:  # none reached higher: both have the same markers
        clear_list(s, right)
        return
    lefts = list_length(left)
    rights = list_length(right)
    place = scratch(s)
    other = place + (lefts << 3)
    joined = other + (rights << 3)
    read_list(left, place)
    read_list(right, other)
    records = load(s, S_RECORDS)
    _prefetch_records(records, place, lefts + rights)
    kept = 0
    for index in range(lefts):
        entry = load(place, index)
        reach = _reach_right(path, load(record_of(records, entry), R_HIGH), 0, level + 1)
        if reach == level:
            store(place, kept, entry)
            kept += 1
        else:
            _mark_left(s, path, entry, reach, level, True)
    from_right = 0
    for index in range(rights):
        entry = load(other, index)
        reach = _reach_left(path, load(record_of(records, entry), R_LOW), 0, levels)
        if reach < level:
            _mark_right(s, path, entry, reach, level, True)
        elif reach > level:
            store(other, from_right, entry)
            from_right += 1
    clear_list(s, right)
    if kept < lefts or from_right > 0:
        _merge(records, place, kept, other, from_right, joined)
        clear_list(s, left)
        write_list(s, left, joined, kept + from_right)


@inner
def _merge(records, one, ones, other, others, target):  # type: ignore[no-untyped-def]
    """Merge two sorted runs of entries."""
    left = 0
    right = 0
    for index in range(ones + others):
        take_left = right == others
        if left < ones and not take_left:
            take_left = before(records, load(one, left), load(other, right))
        if take_left:
            store(target, index, load(one, left))
            left += 1
        else:
            store(target, index, load(other, right))
            right += 1


@inner
def _remove_node(s, path, node):  # type: ignore[no-untyped-def]
    levels = level_count(node)
    for level in range(levels):
        edge = edge_at(node, level)
        before_it = _path_node(path, level)
        _note(path, level, before_it, load(edge, E_NEXT), load(edge, E_NEXT_KEY))
    for level in range(levels):
        left = edge_at(_path_node(path, level), level)
        if list_length(left) > 0 or list_length(edge_at(node, level)) > 0:
            _join_markers(s, path, node, level, levels)
        _link(left, _path_next(path, level), _path_next_key(path, level))
    store(node, 0, load(s, S_FREE_NODE + levels))
    store(s, S_FREE_NODE + levels, node)
    store(s, S_NODES, load(s, S_NODES) - 1)
    height = load(s, S_HEIGHT)
    while height > 1 and load(edge_at(load(s, S_HEADER), height - 1), E_NEXT_KEY) == ABOVE_ALL:
        height -= 1
    set_height(s, height)


@inner
def _disown_node(s, path, node):  # type: ignore[no-untyped-def]
    """Remove one owner from a node, and the node with its last one; return whether it went."""
    if node == load(s, S_HEADER) or node == load(s, S_TAIL):
        return False
    store(node, 1, load(node, 1) - 256)
    if load(node, 1) >= 256:
        return False
    _remove_node(s, path, node)
    return True


@inner
def disown_nodes(s, record):  # type: ignore[no-untyped-def]
    """Remove an interval as owner of its two nodes."""
    low_path = s + (S_LOW_PATH << 3)
    high_path = s + (S_HIGH_PATH << 3)
    low_node = load(record, R_LOW_NODE)
    _find_paths(s, load(record, R_LOW), load(record, R_HIGH))
    for end in range(2):
        went = _disown_node(s, high_path if end else low_path, load(record, R_LOW_NODE + end))
        if went and end == 0:
            for level in range(LEVELS):
                if _path_node(high_path, level) == low_node:
                    store(high_path, level, _path_node(low_path, level))
