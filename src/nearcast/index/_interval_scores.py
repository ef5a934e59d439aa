"""Ranks that the marker lists are not sorted by: weight, centre, blends.

Best first over the lists and chunks of the search path, each with a lower bound of its scores,
until none can better the k-th: exact, and without collecting all matches.

Previous: `_interval_queries.py`; next: `_interval_build.py`.
"""

from __future__ import annotations

import math

from numba import njit

from nearcast.index._interval_lists import (
    C_CHUNK,
    C_FIRST,
    C_LENGTH,
    C_WEIGHT,
    E_BLOCK,
    E_NEXT,
    E_NEXT_KEY,
    R_AGE,
    R_HIGH,
    R_LOW,
    R_WEIGHT,
    R_WIDTH,
    chunk_record,
    is_chunked,
    list_length,
    record_of,
)
from nearcast.index._interval_memory import (
    S_EDGES,
    S_EXTENT_HIGH,
    S_EXTENT_LOW,
    S_HEADER,
    S_HEIGHT,
    S_KEYS,
    S_PATH,
    S_REACH,
    S_RECORDS,
    S_TOUCHED,
    bits_of,
    float_of,
    float_of_single,
    inlined,
    load,
    ordinal,
    scratch,
    store,
    value_of,
)
from nearcast.index._interval_nodes import (
    ABOVE_ALL,
    BELOW_ALL,
    TOP,
    edge_at,
)
from nearcast.index._interval_queries import (
    NOT_FINITE,
    SLOT_MASK,
    fill_up,
    walk,
)


@inlined
def shown_low(s, record):  # type: ignore[no-untyped-def]
    """Return the lower bound as it was given; the extent's, if there is none."""
    first = load(record, R_LOW)
    if first == BELOW_ALL:
        return float_of(load(s, S_EXTENT_LOW))
    return value_of(first - (load(record, R_AGE) & 1))


@inlined
def shown_high(s, record):  # type: ignore[no-untyped-def]
    """Return the upper bound as it was given; the extent's, if there is none."""
    above = load(record, R_HIGH)
    if above == ABOVE_ALL and load(record, R_AGE) & 2:
        return float_of(load(s, S_EXTENT_HIGH))
    return value_of(above - 1 + ((load(record, R_AGE) >> 1) & 1))


@inlined
def _distance(s, record, x):  # type: ignore[no-untyped-def]
    """Return how far x is from the interval's centre; infinity where there is none."""
    low = shown_low(s, record)
    high = shown_high(s, record)
    if math.isinf(low) or math.isinf(high):
        return math.inf
    return abs(x - (0.5 * low + 0.5 * high))


@inlined
def _blend(width, distance, weight, a, b, c):  # type: ignore[no-untyped-def]
    """Return a score, lower is better. Monotone in each argument, rounding included."""
    score = 0.0
    if a != 0.0:
        score += a * width
    if b != 0.0:
        score += b * distance
    if c != 0.0:
        score -= c * weight
    return score


@inlined
def _least_width(entry):  # type: ignore[no-untyped-def]
    """Return a lower bound of an entry's width: one step below its single precision form."""
    return float_of_single(max((entry >> 32) - 1, 0))


@inlined
def _walk_with_reach(s, x, number):  # type: ignore[no-untyped-def]
    """Walk as `_walk`; note also how far from x an interval on that edge may end at most.

    An interval that marks an edge does not cover the edge above: one of its ends is within that.
    So x is farther than half the width less this reach from its centre.
    """
    node = load(s, S_HEADER)
    edges = walk(s, number)
    reach = math.inf
    index = 0
    if edges > 0 and load(s, S_PATH) == edge_at(node, TOP):
        store(s, S_REACH, bits_of(reach))
        index = 1
    for level in range(load(s, S_HEIGHT) - 1, -1, -1):
        edge = edge_at(node, level)
        while load(edge, E_NEXT_KEY) <= number:
            node = load(edge, E_NEXT)
            edge = edge_at(node, level)
        if index < edges and edge == load(s, S_PATH + index):
            store(s, S_REACH + index, bits_of(reach))
            index += 1
        reach = max(x - value_of(load(node, 0)), value_of(load(edge, E_NEXT_KEY)) - x)
    return edges


@inlined
def _bound(entry, reach, weight, x, a, b, c):  # type: ignore[no-untyped-def]
    """Return a lower bound of the scores in a run of entries that begins with `entry`."""
    width = _least_width(entry)
    distance = 0.5 * width - reach
    distance -= 1e-12 * (width + abs(reach) + abs(x))  # more than rounding can ever be off
    if not distance > 0.0:
        distance = 0.0
    return _blend(width, distance, weight, a, b, c)


@inlined
def _count_runs(s, edges):  # type: ignore[no-untyped-def]
    runs = 0
    total = 0
    for index in range(edges):
        edge = load(s, S_PATH + index)
        total += list_length(edge)
        runs += load(load(edge, E_BLOCK), 0) if is_chunked(edge) else 1
    return runs, total


@inlined
def _write_run(run, bound, block, length):  # type: ignore[no-untyped-def]
    store(run, 0, bits_of(bound))
    store(run, 1, block)
    store(run, 2, length)


@inlined
def _write_runs(s, edges, runs, x, a, b, c):  # type: ignore[no-untyped-def]
    """Write bound, address and length of every flat list and every chunk on the path."""
    run = runs
    for index in range(edges):
        edge = load(s, S_PATH + index)
        reach = float_of(load(s, S_REACH + index))
        block = load(edge, E_BLOCK)
        if not is_chunked(edge):
            bound = _bound(load(block, 0), reach, math.inf, x, a, b, c)
            _write_run(run, bound, block, list_length(edge))
            run += 24
            continue
        for number in range(load(block, 0)):
            chunk = chunk_record(block, number)
            weight = float_of(load(chunk, C_WEIGHT))
            bound = _bound(load(chunk, C_FIRST), reach, weight, x, a, b, c)
            _write_run(run, bound, load(chunk, C_CHUNK), load(chunk, C_LENGTH))
            run += 24


@inlined
def _copy_triple(target, source):  # type: ignore[no-untyped-def]
    store(target, 0, load(source, 0))
    store(target, 1, load(source, 1))
    store(target, 2, load(source, 2))


@inlined
def _sink_run(runs, place, size, spare):  # type: ignore[no-untyped-def]
    """Let a run sink in the heap of runs; the least bound is on top."""
    spot = place
    _copy_triple(spare, runs + 24 * spot)
    bound = float_of(load(spare, 0))
    while True:
        child = 2 * spot + 1
        if child >= size:
            break
        if child + 1 < size and float_of(load(runs + 24 * (child + 1), 0)) < float_of(
            load(runs + 24 * child, 0)
        ):
            child += 1
        if float_of(load(runs + 24 * child, 0)) >= bound:
            break
        _copy_triple(runs + 24 * spot, runs + 24 * child)
        spot = child
    _copy_triple(runs + 24 * spot, spare)


@inlined
def _worse(score, age, best):  # type: ignore[no-untyped-def]
    """Return whether (score, age) comes after the candidate at `best`."""
    other = float_of(load(best, 0))
    return score > other or (score == other and age > load(best, 1))


@inlined
def _sink_best(bests, place, size, spare):  # type: ignore[no-untyped-def]
    """Let a candidate sink in the heap of the best; the worst of them is on top."""
    spot = place
    _copy_triple(spare, bests + 24 * spot)
    while True:
        child = 2 * spot + 1
        if child >= size:
            break
        left = bests + 24 * child
        if child + 1 < size and _worse(float_of(load(left + 24, 0)), load(left + 24, 1), left):
            child += 1
        chosen = bests + 24 * child
        if not _worse(float_of(load(chosen, 0)), load(chosen, 1), spare):
            break
        _copy_triple(bests + 24 * spot, chosen)
        spot = child
    _copy_triple(bests + 24 * spot, spare)


@inlined
def _rise_best(bests, place, spare):  # type: ignore[no-untyped-def]
    """Let the candidate at the end of the heap rise."""
    spot = place
    _copy_triple(spare, bests + 24 * spot)
    score = float_of(load(spare, 0))
    age = load(spare, 1)
    while spot > 0:
        parent = (spot - 1) >> 1
        if not _worse(score, age, bests + 24 * parent):
            break
        _copy_triple(bests + 24 * spot, bests + 24 * parent)
        spot = parent
    _copy_triple(bests + 24 * spot, spare)


@inlined
def _scan_run(s, run, x, k, bests, size, spare, a, b, c):  # type: ignore[no-untyped-def]
    """Offer every entry of a run to the heap of the best k; return the heap's size."""
    records = load(s, S_RECORDS)
    filled = size
    block = load(run, 1)
    for index in range(load(run, 2)):
        entry = load(block, index)
        record = record_of(records, entry)
        distance = _distance(s, record, x) if b != 0.0 else 0.0
        width = float_of(load(record, R_WIDTH))
        score = _blend(width, distance, float_of(load(record, R_WEIGHT)), a, b, c)
        age = load(record, R_AGE)
        place = 0
        if filled < k:
            place = filled
        elif _worse(score, age, bests):
            continue
        candidate = bests + 24 * place
        store(candidate, 0, bits_of(score))
        store(candidate, 1, age)
        store(candidate, 2, entry & SLOT_MASK)
        if filled < k:
            _rise_best(bests, filled, spare)
            filled += 1
        else:
            _sink_best(bests, 0, filled, spare)
    return filled


@inlined
def _write_best(s, bests, size, spare, out):  # type: ignore[no-untyped-def]
    """Empty the heap, the worst first, into `out` from its end."""
    keys = load(s, S_KEYS)
    for last in range(size - 1, -1, -1):
        store(out, last, load(keys, load(bests, 2)))
        _copy_triple(bests, bests + 24 * last)
        _sink_best(bests, 0, last, spare)


@inlined
def _top_by_score(s, x, k, out, a, b, c):  # type: ignore[no-untyped-def]
    """Write the k keys of least a·width + b·distance - c·weight; return how many there are."""
    edges = _walk_with_reach(s, x, ordinal(x))
    runs, total = _count_runs(s, edges)
    wanted = min(k, total)
    spare = scratch(s, 3 * (runs + wanted + 1))
    heap = spare + 24
    bests = heap + 24 * runs
    _write_runs(s, edges, heap, x, a, b, c)
    for place in range(runs // 2 - 1, -1, -1):
        _sink_run(heap, place, runs, spare)
    size = 0
    touched = 0
    while runs > 0 and wanted > 0:
        if size == wanted and float_of(load(heap, 0)) > float_of(load(bests, 0)):
            break
        touched += load(heap, 2)
        size = _scan_run(s, heap, x, wanted, bests, size, spare, a, b, c)
        runs -= 1
        _copy_triple(heap, heap + 24 * runs)
        _sink_run(heap, 0, runs, spare)
    store(s, S_EDGES, edges)
    store(s, S_TOUCHED, touched)
    _write_best(s, bests, size, spare, out)
    return size


@njit(cache=True)
def top_by_score(s, x, k, out, a, b, c):  # type: ignore[no-untyped-def]
    """Answer one value by score."""
    if not math.isfinite(x):
        return NOT_FINITE
    return _top_by_score(s, x, k, out, a, b, c)


@njit(cache=True)
def top_many_by_score(s, xs, k, out, a, b, c):  # type: ignore[no-untyped-def]
    """Write a row of the k best by score for each value, -1 where there are fewer."""
    for index in range(len(xs)):
        target = out + ((index * k) << 3)
        fill_up(target, _top_by_score(s, xs[index], k, target, a, b, c), k)
