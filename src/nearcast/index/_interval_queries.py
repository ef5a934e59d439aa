"""Questions to the interval skip list: who contains a value, and who fits it best.

All walk the ordinary search path. It advances while the next key is *not above* the value, so a
node equal to the value is reached, and the edges that leave it are read (trap T1.5).

- `stab` copies the markers of the path's edges: no test, no duplicate.
- `top` merges the path's sorted lists through a heap: the exact k narrowest in
  O(path + k · log path), where the paper's level-by-level walk errs (trap T1.1).
- `top_paper` is that walk, mended only as T1.5 asks.
- `top_by_score` is for ranks that the lists are not sorted by: best first over chunks, each with
  a lower bound of its scores, until no chunk can better the k-th.

Previous: `_interval_kernels.py`; next: `_interval_build.py`.
"""

from __future__ import annotations

import math

from numba import njit

from nearcast.index._interval_kernels import TOP, edge_at
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
    before,
    chunk_record,
    is_chunked,
    list_length,
    record_of,
)
from nearcast.index._interval_memory import (
    S_CURSORS,
    S_EDGES,
    S_EXTENT_HIGH,
    S_EXTENT_LOW,
    S_HEADER,
    S_HEAP,
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
    prefetch,
    scratch,
    store,
    value_of,
)

NOT_FINITE = -1
SLOT_MASK = 0xFFFFFFFF
TOGETHER = 16

# A cursor: where a merge stands in one list.
_ENTRY = 0
_POINTER = 1
_END = 2
_CHUNK = 3
_LAST_CHUNK = 4

_BELOW_ALL = -0x7FF0000000000001
_ABOVE_ALL = 0x7FF0000000000000


@inlined
def _walk(s, number):  # type: ignore[no-untyped-def]
    """Note the marked edges over a value, from the top down; return how many. Expected O(log n)."""
    node = load(s, S_HEADER)
    marked = 0
    if list_length(edge_at(node, TOP)) > 0:
        store(s, S_PATH, edge_at(node, TOP))
        marked = 1
    for level in range(load(s, S_HEIGHT) - 1, -1, -1):
        edge = edge_at(node, level)
        while load(edge, E_NEXT_KEY) <= number:
            node = load(edge, E_NEXT)
            edge = edge_at(node, level)
        if list_length(edge) > 0:
            prefetch(load(edge, E_BLOCK))
            store(s, S_PATH + marked, edge)
            marked += 1
    return marked


@inlined
def _copy_keys(keys, block, length, out):  # type: ignore[no-untyped-def]
    for index in range(length):
        store(out, index, load(keys, load(block, index) & SLOT_MASK))


@inlined
def _copy_list(keys, edge, out):  # type: ignore[no-untyped-def]
    block = load(edge, E_BLOCK)
    if not is_chunked(edge):
        _copy_keys(keys, block, list_length(edge), out)
        return
    target = out
    for number in range(load(block, 0)):
        chunk = chunk_record(block, number)
        _copy_keys(keys, load(chunk, C_CHUNK), load(chunk, C_LENGTH), target)
        target += load(chunk, C_LENGTH) << 3


@njit(cache=True)
def stab(s, x, out, capacity):  # type: ignore[no-untyped-def]
    """Write the keys of all intervals that contain x, if they fit; return how many they are."""
    if not math.isfinite(x):
        return NOT_FINITE
    edges = _walk(s, ordinal(x))
    total = 0
    for index in range(edges):
        total += list_length(load(s, S_PATH + index))
    if total > capacity:
        return total
    keys = load(s, S_KEYS)
    target = out
    for index in range(edges):
        edge = load(s, S_PATH + index)
        _copy_list(keys, edge, target)
        target += list_length(edge) << 3
    return total


@inlined
def _walk_together(s, xs, first, count, walks):  # type: ignore[no-untyped-def]
    """Walk for several values in turns: each steps while the others wait for memory.

    A walk is 40 words: value, node, level, number of marked edges, these edges.
    """
    header = load(s, S_HEADER)
    top_edge = edge_at(header, TOP)
    for index in range(count):
        walk = walks + 320 * index
        store(walk, 0, ordinal(xs[first + index]))
        store(walk, 1, header)
        store(walk, 2, load(s, S_HEIGHT) - 1)
        store(walk, 3, 0)
        if list_length(top_edge) > 0:
            store(walk, 3, 1)
            store(walk, 4, top_edge)
    under_way = count
    while under_way > 0:
        for index in range(count):
            walk = walks + 320 * index
            level = load(walk, 2)
            if level < 0:
                continue
            edge = edge_at(load(walk, 1), level)
            if load(edge, E_NEXT_KEY) <= load(walk, 0):
                node = load(edge, E_NEXT)
                store(walk, 1, node)
                prefetch(edge_at(node, level))
                continue
            if list_length(edge) > 0:
                prefetch(load(edge, E_BLOCK))
                store(walk, 4 + load(walk, 3), edge)
                store(walk, 3, load(walk, 3) + 1)
            store(walk, 2, level - 1)
            if level == 0:
                under_way -= 1


@njit(cache=True)
def find_marked_edges(s, xs, first, last, offsets, edges):  # type: ignore[no-untyped-def]
    """List the marked edges over xs[first:last] one after the other, and add up their markers.

    Returns the number of edges; offsets[first + 1:last + 1] continue from offsets[first].
    """
    walks = scratch(s, 40 * TOGETHER)
    used = 0
    total = offsets[first]
    for start in range(first, last, TOGETHER):
        count = min(TOGETHER, last - start)
        _walk_together(s, xs, start, count, walks)
        for index in range(count):
            walk = walks + 320 * index
            for number in range(load(walk, 3)):
                edge = load(walk, 4 + number)
                edges[used] = edge
                used += 1
                total += list_length(edge)
            offsets[start + index + 1] = total
    return used


@njit(cache=True)
def copy_marked_edges(s, edges, count, out):  # type: ignore[no-untyped-def]
    """Write the keys of all markers on the listed edges."""
    keys = load(s, S_KEYS)
    target = out
    for index in range(count):
        if index + 8 < count:
            prefetch(load(edges[index + 8], E_BLOCK))
        _copy_list(keys, edges[index], target)
        target += list_length(edges[index]) << 3


@inlined
def _cursor(s, index):  # type: ignore[no-untyped-def]
    return s + ((S_CURSORS + 8 * index) << 3)


@inlined
def _open_cursor(cursor, edge):  # type: ignore[no-untyped-def]
    block = load(edge, E_BLOCK)
    if is_chunked(edge):
        chunk = chunk_record(block, 0)
        store(cursor, _CHUNK, chunk)
        store(cursor, _LAST_CHUNK, chunk_record(block, load(block, 0) - 1))
        store(cursor, _ENTRY, load(chunk, C_FIRST))
        store(cursor, _POINTER, load(chunk, C_CHUNK))
        store(cursor, _END, load(chunk, C_CHUNK) + (load(chunk, C_LENGTH) << 3))
    else:
        store(cursor, _CHUNK, 0)
        store(cursor, _LAST_CHUNK, 0)
        store(cursor, _ENTRY, load(block, 0))
        store(cursor, _POINTER, block)
        store(cursor, _END, block + (list_length(edge) << 3))


@inlined
def _advance(cursor):  # type: ignore[no-untyped-def]
    """Go to the next entry; return whether there is one."""
    pointer = load(cursor, _POINTER) + 8
    if pointer == load(cursor, _END):
        chunk = load(cursor, _CHUNK)
        if chunk == load(cursor, _LAST_CHUNK):
            return False
        chunk += 32
        store(cursor, _CHUNK, chunk)
        pointer = load(chunk, C_CHUNK)
        store(cursor, _END, pointer + (load(chunk, C_LENGTH) << 3))
    store(cursor, _POINTER, pointer)
    store(cursor, _ENTRY, load(pointer, 0))
    return True


@inlined
def _sink(s, records, place, size):  # type: ignore[no-untyped-def]
    """Let the cursor at `place` of the heap sink to where it belongs."""
    spot = place
    cursor = load(s, S_HEAP + spot)
    entry = load(cursor, _ENTRY)
    while True:
        child = 2 * spot + 1
        if child >= size:
            break
        lower = load(s, S_HEAP + child)
        if child + 1 < size:
            other = load(s, S_HEAP + child + 1)
            if before(records, load(other, _ENTRY), load(lower, _ENTRY)):
                child += 1
                lower = other
        if not before(records, load(lower, _ENTRY), entry):
            break
        store(s, S_HEAP + spot, lower)
        spot = child
    store(s, S_HEAP + spot, cursor)


@inlined
def _merge_lists(s, path, size, k, out):  # type: ignore[no-untyped-def]
    """Write the keys of the k narrowest markers on the `size` edges listed at `path`."""
    records = load(s, S_RECORDS)
    keys = load(s, S_KEYS)
    for index in range(size):
        cursor = _cursor(s, index)
        _open_cursor(cursor, load(path, index))
        store(s, S_HEAP + index, cursor)
    for place in range(size // 2 - 1, -1, -1):
        _sink(s, records, place, size)
    found = 0
    left = size
    while found < k and left > 0:
        cursor = load(s, S_HEAP)
        store(out, found, load(keys, load(cursor, _ENTRY) & SLOT_MASK))
        found += 1
        if found == k:
            break
        if not _advance(cursor):
            left -= 1
            store(s, S_HEAP, load(s, S_HEAP + left))
        _sink(s, records, 0, left)
    return found


@njit(cache=True)
def top(s, x, k, out):  # type: ignore[no-untyped-def]
    """Write the keys of the k narrowest intervals that contain x; return how many there are."""
    if not math.isfinite(x):
        return NOT_FINITE
    edges = _walk(s, ordinal(x))
    found = _merge_lists(s, s + (S_PATH << 3), edges, k, out)
    store(s, S_EDGES, edges)
    store(s, S_TOUCHED, found + edges)  # what was taken, and one more to look at in each list
    return found


@njit(cache=True)
def top_paper(s, x, k, out):  # type: ignore[no-untyped-def]
    """Write k keys in the paper's order: lowest edge first, each list in order of accuracy.

    The edges that leave a node equal to x are its eqMarkers, and are read as one list.
    """
    if not math.isfinite(x):
        return NOT_FINITE
    number = ordinal(x)
    edges = _walk(s, number)
    first_equal = edges - _edges_from_equal_node(s, number, edges)
    path = s + (S_PATH << 3)
    found = _merge_lists(s, path + (first_equal << 3), edges - first_equal, k, out)
    for index in range(first_equal - 1, -1, -1):
        if found == k:
            break
        found += _merge_lists(s, path + (index << 3), 1, k - found, out + (found << 3))
    store(s, S_EDGES, edges)
    store(s, S_TOUCHED, found)
    return found


@inlined
def _edges_from_equal_node(s, number, edges):  # type: ignore[no-untyped-def]
    """Return how many of the path's last marked edges leave a node equal to the value."""
    node = load(s, S_HEADER)
    marked = 0
    for level in range(load(s, S_HEIGHT) - 1, -1, -1):
        while load(edge_at(node, level), E_NEXT_KEY) <= number:
            node = load(edge_at(node, level), E_NEXT)
        if load(node, 0) == number and list_length(edge_at(node, level)) > 0:
            marked += 1
    return min(marked, edges)


@inlined
def shown_low(s, record):  # type: ignore[no-untyped-def]
    """Return the lower bound as it was given; the extent's, if there is none."""
    first = load(record, R_LOW)
    if first == _BELOW_ALL:
        return float_of(load(s, S_EXTENT_LOW))
    return value_of(first - (load(record, R_AGE) & 1))


@inlined
def shown_high(s, record):  # type: ignore[no-untyped-def]
    """Return the upper bound as it was given; the extent's, if there is none."""
    above = load(record, R_HIGH)
    if above == _ABOVE_ALL and load(record, R_AGE) & 2:
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
    edges = _walk(s, number)
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


@inlined
def _fill_up(target, found, k):  # type: ignore[no-untyped-def]
    for place in range(found, k):
        store(target, place, -1)


@njit(cache=True)
def top_many(s, xs, k, out):  # type: ignore[no-untyped-def]
    """Write a row of the k narrowest for each value, -1 where there are fewer."""
    walks = scratch(s, 40 * TOGETHER)
    for start in range(0, len(xs), TOGETHER):
        count = min(TOGETHER, len(xs) - start)
        _walk_together(s, xs, start, count, walks)
        for index in range(count):
            walk = walks + 320 * index
            target = out + (((start + index) * k) << 3)
            _fill_up(target, _merge_lists(s, walk + 32, load(walk, 3), k, target), k)


@njit(cache=True)
def top_many_by_score(s, xs, k, out, a, b, c):  # type: ignore[no-untyped-def]
    """Write a row of the k best by score for each value, -1 where there are fewer."""
    for index in range(len(xs)):
        target = out + ((index * k) << 3)
        _fill_up(target, _top_by_score(s, xs[index], k, target, a, b, c), k)
