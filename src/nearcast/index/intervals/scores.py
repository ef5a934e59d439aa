"""The best k by any rank: in the list, then in the runs, into one heap.

In the list, the narrowest come from a merge of sorted marker lists; for the other ranks the marker
lists are scanned. In a run, the most promising nodes are visited first, each with a lower bound,
and skipped when they cannot beat the k-th. So results are exact, and matches are not collected.

Previous: `best.py`; next: `build.py`.
"""

from __future__ import annotations

import math

from nearcast.index.intervals.best import (
    blend,
    copy_triple,
    offer,
    offset_of,
    worse,
    write_best,
)
from nearcast.index.intervals.lists import (
    E_BLOCK,
    R_AGE,
    R_HIGH,
    R_LOW,
    R_WEIGHT,
    R_WIDTH,
    list_length,
    record_of,
)
from nearcast.index.intervals.memory import (
    S_ASK,
    S_EDGES,
    S_EXTENT_HIGH,
    S_EXTENT_LOW,
    S_PATH,
    S_RECORDS,
    S_RUN,
    S_RUN_COUNT,
    S_STACK,
    S_TOUCHED,
    bits_of,
    float_of,
    load,
    ordinal,
    prefetch,
    scratch,
    store,
    value_of,
)
from nearcast.index.intervals.nodes import BELOW_ALL
from nearcast.index.intervals.queries import (
    NOT_FINITE,
    SLOT_MASK,
    narrowest_in_list,
    walk,
)
from nearcast.index.intervals.runs import (
    C_ABOVE,
    C_AGE,
    C_FIRST,
    C_SLOT,
    C_WEIGHT,
    C_WIDTH,
    GROUP,
    H_LEVELS,
    N_ABOVE,
    N_AGE,
    N_CLOSED,
    N_FIRST,
    N_WEIGHT,
    N_WIDTH,
    column,
    node_column,
)
from nearcast.kernels import entry_point, inner

SLACK = 1e-9  # more than any rounding error, for offsets between 0 and 1
TINY = 1e-290  # below this, floats are too sparse for a bound


@inner
def _best_in_list(s, x, k, bests, spare, a, b, c):  # type: ignore[no-untyped-def]
    """Leave the best k of the list in a heap; return how many there are.

    Widths ascend along an edge: where they alone make a score too great, the rest is skipped.
    """
    edges = walk(s, ordinal(x))
    records = load(s, S_RECORDS)
    size = 0
    touched = 0
    for number in range(edges):
        edge = load(s, S_PATH + number)
        block = load(edge, E_BLOCK)
        for index in range(list_length(edge)):
            entry = load(block, index)
            record = record_of(records, entry)
            width = float_of(load(record, R_WIDTH))
            touched += 1
            if c == 0.0 and size == k and a * width > float_of(load(bests, 0)):
                break
            age = load(record, R_AGE)
            offset = 0.0
            if b != 0.0:
                offset = offset_of(load(record, R_LOW), load(record, R_HIGH), age & 3, x)
            score = blend(width, offset, float_of(load(record, R_WEIGHT)), a, b, c)
            size = offer(bests, size, k, spare, score, age, entry & SLOT_MASK)
    store(s, S_EDGES, edges)
    store(s, S_TOUCHED, touched)
    return size


@inner
def _narrowest_as_heap(s, number, k, bests, slots):  # type: ignore[no-untyped-def]
    """Leave the k narrowest of the list in a heap: descending order is one."""
    found = narrowest_in_list(s, number, k, slots)
    for index in range(found):
        slot = load(slots, index)
        record = load(s, S_RECORDS) + (slot << 6)
        candidate = bests + 24 * (found - 1 - index)
        store(candidate, 0, load(record, R_WIDTH))
        store(candidate, 1, load(record, R_AGE))
        store(candidate, 2, slot)
    return found


@inner
def _least_offset(x, first, beyond, above, closed):  # type: ignore[no-untyped-def]
    """Return a lower bound of the offsets of a node's intervals.

    They begin from `first` to `beyond`, end by `above`, and are `closed` wide at least; where one
    of them lacks an end, `closed` is 0 or the others are infinite, and the bound is 0.
    """
    farthest = x * 0.5 - first * 0.5  # half the distance of x from a low end
    nearest = x * 0.5 - beyond * 0.5
    span = above * 0.5 - first * 0.5
    bound = 0.0
    if TINY < closed < math.inf:
        bound = 1.0 - 4.0 * (farthest / closed)
    if nearest > 0.0 and TINY < span < math.inf:
        bound = max(bound, 2.0 * (nearest / span) - 1.0)
    return max(0.0, bound - SLACK)


@inner
def _least_score(s, run, level, node, x, a, b, c):  # type: ignore[no-untyped-def]
    """Return a lower bound of the scores in a node's intervals that contain x.

    Such an interval is at least as wide as x is far from its low end; with an end of its own
    or, x being within the extent, with the extent's.
    """
    firsts = node_column(run, level, N_FIRST)
    beyond = value_of(load(firsts, node + 1))
    width = float_of(load(node_column(run, level, N_WIDTH), node))
    low = float_of(load(s, S_EXTENT_LOW))
    if low <= x <= float_of(load(s, S_EXTENT_HIGH)):
        width = max(width, x - max(beyond, low))
    offset = 0.0
    if b != 0.0:
        closed = float_of(load(node_column(run, level, N_CLOSED), node))
        above = value_of(load(node_column(run, level, N_ABOVE), node))
        first = load(firsts, node)
        low = -math.inf if first == BELOW_ALL else value_of(first - 1)  # that of an open end
        offset = _least_offset(x, low, beyond, above, closed)
    weight = float_of(load(node_column(run, level, N_WEIGHT), node)) if c != 0.0 else 0.0
    return blend(width, offset, weight, a, b, c)


@inner
def _hopeless(bound, age, bests, size, k):  # type: ignore[no-untyped-def]
    return size == k and worse(bound, age, bests)


@inner
def _ask_for_group(run, group):  # type: ignore[no-untyped-def]
    """Prefetch the first columns of a group, while others are scanned."""
    for number in (C_FIRST, C_ABOVE, C_WIDTH):
        place = column(run, number) + (group << 7)
        prefetch(place)
        prefetch(place + 64)


@inner
def _push_children(s, run, level, node, x, number, stack, top, bests, size, k, a, b, c):  # type: ignore[no-untyped-def]
    """Push the promising nodes of `level` below a node, the most promising on top."""
    floor = top
    firsts = node_column(run, level, N_FIRST)
    aboves = node_column(run, level, N_ABOVE)
    ages = node_column(run, level, N_AGE)
    for child in range(node << 4, (node + 1) << 4):
        if load(firsts, child) > number:
            break
        if load(aboves, child) <= number:
            continue
        bound = _least_score(s, run, level, child, x, a, b, c)
        age = load(ages, child)
        if _hopeless(bound, age, bests, size, k):
            continue
        spot = top
        while spot > floor:
            other = stack + 24 * (spot - 1)
            if not worse(bound, age, other):
                break
            copy_triple(other + 24, other)
            spot -= 1
        if level == 1:
            _ask_for_group(run, child)
        target = stack + 24 * spot
        store(target, 0, bits_of(bound))
        store(target, 1, age)
        store(target, 2, (child << 4) | level)
        top += 1
    return top


@inner
def _scan_group(run, group, x, number, bests, size, k, spare, a, b, c):  # type: ignore[no-untyped-def]
    """Offer the intervals of a group of entries that contain x."""
    firsts, aboves = column(run, C_FIRST), column(run, C_ABOVE)
    widths, weights = column(run, C_WIDTH), column(run, C_WEIGHT)
    ages, slots = column(run, C_AGE), column(run, C_SLOT)
    for place in range(group << 4, (group + 1) << 4):
        first, above = load(firsts, place), load(aboves, place)
        if first > number or above <= number:
            continue
        offset = offset_of(first, above, load(ages, place) & 3, x) if b != 0.0 else 0.0
        weight = float_of(load(weights, place)) if c != 0.0 else 0.0
        score = blend(float_of(load(widths, place)), offset, weight, a, b, c)
        if size == k and score > float_of(load(bests, 0)):
            continue  # without reading the other columns, which are far away
        size = offer(bests, size, k, spare, score, load(ages, place), load(slots, place))
    return size


@inner
def _best_in_run(s, run, x, k, bests, size, spare, a, b, c):  # type: ignore[no-untyped-def]
    """Improve the heap of the best k by the intervals of a run; return the heap's size."""
    number = ordinal(x)
    stack = s + (S_STACK << 3)
    touched = 0
    node = 0
    level = load(run, H_LEVELS) + 1
    top = 0
    while True:
        if level > 1:
            top = _push_children(
                s, run, level - 1, node, x, number, stack, top, bests, size, k, a, b, c
            )
        else:
            size = _scan_group(run, node, x, number, bests, size, k, spare, a, b, c)
            touched += GROUP
        while top > 0:
            top -= 1
            here = stack + 24 * top
            if not _hopeless(float_of(load(here, 0)), load(here, 1), bests, size, k):
                break
        else:
            break
        level = load(here, 2) & 15
        node = load(here, 2) >> 4
    store(s, S_TOUCHED, load(s, S_TOUCHED) + touched)
    return size


@inner
def _top(s, x, k, out, a, b, c):  # type: ignore[no-untyped-def]
    """Write the k keys of least score; return how many there are."""
    spare = scratch(s)
    bests = spare + 24
    heap = bests + 24 * k
    if b == 0.0 and c == 0.0:
        size = _narrowest_as_heap(s, ordinal(x), k, bests, heap)
    else:
        size = _best_in_list(s, x, k, bests, spare, a, b, c)
    for index in range(load(s, S_RUN_COUNT)):
        size = _best_in_run(s, load(s, S_RUN + index), x, k, bests, size, spare, a, b, c)
    write_best(s, bests, size, spare, out)
    return size


@entry_point("int64")
def top(s):  # type: ignore[no-untyped-def]
    """Write a row of the k best keys for each value queried; return how many the last has.

    In the query: address of the values, their number, k, address of the rows, room in a row, a, b,
    c. The rest of a row gets -1.
    """
    xs = load(s, S_ASK)
    k = load(s, S_ASK + 2)
    out = load(s, S_ASK + 3)
    row = load(s, S_ASK + 4)
    a = float_of(load(s, S_ASK + 5))
    b = float_of(load(s, S_ASK + 6))
    c = float_of(load(s, S_ASK + 7))
    found = 0
    for index in range(load(s, S_ASK + 1)):
        x = float_of(load(xs, index))
        if not math.isfinite(x):
            return NOT_FINITE
        target = out + ((index * row) << 3)
        found = _top(s, x, k, target, a, b, c) if k > 0 else 0
        for place in range(found, row):
            store(target, place, -1)
    return found
