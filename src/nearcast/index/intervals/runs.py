"""Runs: intervals moved out of the skip list, sorted by their low end, with a tree of bounds.

New intervals go into the list; when it is full, they become a run, and runs of similar size
are merged into one (`store.py` decides when). A run is one block of memory:

    header   entries | padded | removed | levels | … | address and size of each level
    entries  first | above | key | width | age | weight | slot        one column after the other
    level 1  first | above | width | age | weight | closed width      one node for 16 entries
    level 2  the same, one node for 16 nodes of level 1; and so on, up to 16 nodes or fewer

A node has its first low end, the greatest `above` (exactly: removing an interval lowers it), and
bounds for ranking: least width, least age, greatest weight, and the least width if all its
intervals have two ends, else 0. Columns are filled up to whole groups of 16 with intervals that
contain nothing.

A removed interval stays in place, but ends before it begins.

Previous: `nodes.py`; next: `kernels.py`.
"""

from __future__ import annotations

import math

from nearcast.index.intervals.lists import (
    R_AGE,
    R_HIGH,
    R_HIGH_NODE,
    R_LOW,
    R_LOW_NODE,
    R_WEIGHT,
    R_WIDTH,
)
from nearcast.index.intervals.memory import (
    S_KEYS,
    S_RECORDS,
    S_STACK,
    bits_of,
    float_of,
    load,
    prefetch,
    store,
)
from nearcast.index.intervals.nodes import ABOVE_ALL, BELOW_ALL
from nearcast.kernels import entry_point, inner

R_RUN = R_LOW_NODE  # for an interval in a run, these words are its position
R_PLACE = R_HIGH_NODE
R_HOME = 7  # one of:
IN_LIST = 0
IN_RUN = 1
NOWHERE = 2  # an interval between neighbouring floats contains nothing

GROUP = 16
MOST_LEVELS = 10

# The header, in words.
H_ENTRIES = 0
H_PADDED = 1
H_REMOVED = 2
H_LEVELS = 3
H_LEVEL = 8  # address of each level's nodes
H_NODES = 20  # padded number of nodes in each level
HEADER = 32

C_FIRST = 0
C_ABOVE = 1
C_KEY = 2
C_WIDTH = 3
C_AGE = 4
C_WEIGHT = 5
C_SLOT = 6
COLUMNS = 7

N_FIRST = 0
N_ABOVE = 1
N_WIDTH = 2
N_AGE = 3
N_WEIGHT = 4
N_CLOSED = 5
NODE_COLUMNS = 6


def padded(count: int) -> int:
    """Return how many places a column of `count` has; at least one is spare."""
    return (count // GROUP + 1) * GROUP


def level_sizes(count: int) -> list[int]:
    """Return how many nodes each level has, from level 1 up."""
    sizes = [-(-count // GROUP)]
    while sizes[-1] > GROUP:
        sizes.append(-(-sizes[-1] // GROUP))
    return sizes


def run_words(count: int) -> int:
    """Return how many words a run of `count` intervals needs."""
    nodes = sum(padded(size) for size in level_sizes(count))
    return HEADER + COLUMNS * padded(count) + NODE_COLUMNS * nodes


@inner
def column(run, number):  # type: ignore[no-untyped-def]
    """Return the address of a column of entries."""
    return run + ((HEADER + number * load(run, H_PADDED)) << 3)


@inner
def node_column(run, level, number):  # type: ignore[no-untyped-def]
    """Return the address of a column of a level's nodes."""
    return load(run, H_LEVEL + level) + ((number * load(run, H_NODES + level)) << 3)


@inner
def _padded(count):  # type: ignore[no-untyped-def]
    return ((count >> 4) + 1) << 4


@inner
def _lay_out(run, count):  # type: ignore[no-untyped-def]
    """Write the header."""
    store(run, H_ENTRIES, count)
    store(run, H_PADDED, _padded(count))
    store(run, H_REMOVED, 0)
    place = run + ((HEADER + COLUMNS * _padded(count)) << 3)
    level = 0
    size = count
    while level == 0 or size > GROUP:
        level += 1
        size = (size + GROUP - 1) >> 4
        store(run, H_LEVEL + level, place)
        store(run, H_NODES + level, _padded(size))
        place += (NODE_COLUMNS * _padded(size)) << 3
    store(run, H_LEVELS, level)


@inner
def _fill_entries(s, run, slots):  # type: ignore[no-untyped-def]
    records = load(s, S_RECORDS)
    keys = load(s, S_KEYS)
    firsts, aboves = column(run, C_FIRST), column(run, C_ABOVE)
    run_keys, run_slots = column(run, C_KEY), column(run, C_SLOT)
    widths, ages, weights = column(run, C_WIDTH), column(run, C_AGE), column(run, C_WEIGHT)
    count = len(slots)
    for place in range(count):
        if place + GROUP < count:
            prefetch(records + (slots[place + GROUP] << 6))
        slot = slots[place]
        record = records + (slot << 6)
        store(firsts, place, load(record, R_LOW))
        store(aboves, place, load(record, R_HIGH))
        store(run_keys, place, load(keys, slot))
        store(widths, place, load(record, R_WIDTH))
        store(ages, place, load(record, R_AGE))
        store(weights, place, load(record, R_WEIGHT))
        store(run_slots, place, slot)
        store(record, R_RUN, run)
        store(record, R_PLACE, place)
        store(record, R_HOME, IN_RUN)
    for place in range(count, _padded(count)):
        store(firsts, place, ABOVE_ALL)
        store(aboves, place, BELOW_ALL)
        store(run_keys, place, 0)


@inner
def _closed_width(first, above, width, age):  # type: ignore[no-untyped-def]
    """Return the width of an interval with two ends, else 0."""
    low_is_open = first == BELOW_ALL
    high_is_open = above == ABOVE_ALL and age & 2
    return 0.0 if low_is_open or high_is_open else width


@inner
def _write_node(run, level, node, first, above, width, age, weight, closed):  # type: ignore[no-untyped-def]
    store(node_column(run, level, N_FIRST), node, first)
    store(node_column(run, level, N_ABOVE), node, above)
    store(node_column(run, level, N_WIDTH), node, bits_of(width))
    store(node_column(run, level, N_AGE), node, age)
    store(node_column(run, level, N_WEIGHT), node, bits_of(weight))
    store(node_column(run, level, N_CLOSED), node, bits_of(closed))


@inner
def _sum_up(run, level, node, begin, end):  # type: ignore[no-untyped-def]
    """Make a node of level 1 from entries, or of a higher level from nodes below."""
    above = BELOW_ALL
    width, weight, closed = math.inf, -math.inf, math.inf
    age = ABOVE_ALL
    if level == 1:
        firsts, aboves = column(run, C_FIRST), column(run, C_ABOVE)
        widths, ages, weights = column(run, C_WIDTH), column(run, C_AGE), column(run, C_WEIGHT)
    else:
        firsts = node_column(run, level - 1, N_FIRST)
        aboves = node_column(run, level - 1, N_ABOVE)
        widths = node_column(run, level - 1, N_WIDTH)
        ages = node_column(run, level - 1, N_AGE)
        weights = node_column(run, level - 1, N_WEIGHT)
    for place in range(begin, end):
        this = float_of(load(widths, place))
        above = max(above, load(aboves, place))
        width = min(width, this)
        age = min(age, load(ages, place))
        weight = max(weight, float_of(load(weights, place)))
        if level == 1:
            this = _closed_width(load(firsts, place), load(aboves, place), this, load(ages, place))
        else:
            this = float_of(load(node_column(run, level - 1, N_CLOSED), place))
        closed = min(closed, this)
    _write_node(run, level, node, load(firsts, begin), above, width, age, weight, closed)


@entry_point("int64, int64, int64[::1]")
def fill_run(s, run, slots):  # type: ignore[no-untyped-def]
    """Make a run of the intervals in `slots`, which ascend by low end. O(n)."""
    _lay_out(run, len(slots))
    _fill_entries(s, run, slots)
    size = len(slots)
    for level in range(1, load(run, H_LEVELS) + 1):
        nodes = (size + GROUP - 1) >> 4
        for node in range(nodes):
            _sum_up(run, level, node, node << 4, min((node + 1) << 4, size))
        for node in range(nodes, load(run, H_NODES + level)):
            _write_node(run, level, node, ABOVE_ALL, BELOW_ALL, math.inf, ABOVE_ALL, -math.inf, 0.0)
        size = nodes


@entry_point("int64, int64[::1]")
def live_slots(run, slots):  # type: ignore[no-untyped-def]
    """Write the slots of a run's intervals that were not removed, by low end."""
    found = 0
    firsts, aboves, all_slots = column(run, C_FIRST), column(run, C_ABOVE), column(run, C_SLOT)
    for place in range(load(run, H_ENTRIES)):
        if load(firsts, place) < load(aboves, place):
            slots[found] = load(all_slots, place)
            found += 1
    return found


@entry_point("int64, int64[::1], int64[::1], int64[::1]")
def merge_slots(s, one, other, target):  # type: ignore[no-untyped-def]
    """Merge two sequences of slots that ascend by low end."""
    records = load(s, S_RECORDS)
    left = 0
    right = 0
    for place in range(len(target)):
        take_left = right == len(other)
        if left < len(one) and not take_left:
            low = load(records + (one[left] << 6), R_LOW)
            take_left = low <= load(records + (other[right] << 6), R_LOW)
        if take_left:
            target[place] = one[left]
            left += 1
        else:
            target[place] = other[right]
            right += 1


@inner
def take_out(record):  # type: ignore[no-untyped-def]
    """Empty an interval of a run; return whether the run is worn out.

    O(log n): the greatest `above` is corrected in the nodes over it, as far up as it changes.
    """
    run = load(record, R_RUN)
    place = load(record, R_PLACE)
    store(column(run, C_ABOVE), place, BELOW_ALL)
    aboves = column(run, C_ABOVE)
    for level in range(1, load(run, H_LEVELS) + 1):
        group = aboves + ((place >> 4) << 7)
        greatest = BELOW_ALL
        for index in range(GROUP):
            greatest = max(greatest, load(group, index))
        place >>= 4
        aboves = node_column(run, level, N_ABOVE)
        if load(aboves, place) == greatest:
            break
        store(aboves, place, greatest)
    removed = load(run, H_REMOVED) + 1
    store(run, H_REMOVED, removed)
    return 2 * removed > load(run, H_ENTRIES)


@inner
def _copy_ended_later(aboves, keys, number, out, found):  # type: ignore[no-untyped-def]
    """Append the keys of a group's intervals that end after a value; all begin before it."""
    for index in range(GROUP):
        store(out, found, load(keys, index))
        found += load(aboves, index) > number
    return found


@inner
def _copy_containing(firsts, aboves, keys, number, out, found):  # type: ignore[no-untyped-def]
    for index in range(GROUP):
        store(out, found, load(keys, index))
        found += (load(firsts, index) <= number) & (load(aboves, index) > number)
    return found


@inner
def _count_begun(firsts, number):  # type: ignore[no-untyped-def]
    count = 0
    for index in range(GROUP):
        count += load(firsts, index) <= number
    return count


@inner
def _ask_for_group(aboves, keys, group):  # type: ignore[no-untyped-def]
    place = group << 7
    prefetch(aboves + place)
    prefetch(aboves + place + 64)
    prefetch(keys + place)
    prefetch(keys + place + 64)


@inner
def stab_run(s, run, number, out, found, capacity):  # type: ignore[no-untyped-def]
    """Append the keys of the intervals that contain a value, while they fit; return the count.

    One path leads down to the last interval that begins by the value; to its left only nodes with
    an interval that ends after the value are visited. O(log n + matches · log n) at worst, O(log n
    + matches) where neighbours in the run are about as long.
    """
    aboves, keys = column(run, C_ABOVE), column(run, C_KEY)
    stack = s + (S_STACK << 3)
    top = 0
    group = 0
    for level in range(load(run, H_LEVELS), 0, -1):
        begin = group << 4
        begun = _count_begun(node_column(run, level, N_FIRST) + (begin << 3), number)
        node_aboves = node_column(run, level, N_ABOVE)
        for node in range(begin, begin + begun - 1):
            store(stack, top, (node << 4) | level)
            if load(node_aboves, node) > number:
                top += 1
                if level == 1:
                    _ask_for_group(aboves, keys, node)
        group = begin + begun - 1
        if begun == 0 or load(node_aboves, group) <= number:
            group = -1
            break
    if group >= 0:
        at = group << 7
        target = out if found + GROUP <= capacity else s + ((S_STACK + 600) << 3)
        base = found if found + GROUP <= capacity else 0
        firsts = column(run, C_FIRST)
        found += _copy_containing(firsts + at, aboves + at, keys + at, number, target, base) - base
    while top > 0:
        top -= 1
        level = load(stack, top) & 15
        node = load(stack, top) >> 4
        if level > 1:
            lower = node_column(run, level - 1, N_ABOVE)
            for child in range(node << 4, (node + 1) << 4):
                store(stack, top, (child << 4) | (level - 1))
                top += load(lower, child) > number
            continue
        at = node << 7
        if found + GROUP <= capacity:
            found = _copy_ended_later(aboves + at, keys + at, number, out, found)
        else:
            spill = s + ((S_STACK + 600) << 3)
            found += _copy_ended_later(aboves + at, keys + at, number, spill, 0)
    return found
