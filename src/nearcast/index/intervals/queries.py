"""Queries of the interval skip list: the intervals that contain a value, and the narrowest ones.

In the list all follow the ordinary search path. It advances while the next key is *not above* the
value, so a node equal to the value is reached, and the edges that leave it are read (trap T1.5).

- `stab` copies the markers of the path's edges: no test, no duplicate; then it queries the runs.
- `narrowest_in_list` merges the path's sorted lists through a heap: the exact k narrowest in
  O(path + k · log path), where the paper's level-by-level walk errs (trap T1.1).
- `top_paper` is that walk, fixed only as T1.5 requires. It ignores runs.

Previous: `kernels.py`; next: `scores.py` (ranks).
"""

from __future__ import annotations

import math

from nearcast.index.intervals.lists import (
    E_BLOCK,
    E_NEXT,
    E_NEXT_KEY,
    before,
    list_length,
)
from nearcast.index.intervals.memory import (
    S_CURSORS,
    S_EDGES,
    S_HEADER,
    S_HEAP,
    S_HEIGHT,
    S_KEYS,
    S_PATH,
    S_RECORDS,
    S_RUN,
    S_RUN_COUNT,
    S_TOUCHED,
    load,
    ordinal,
    prefetch,
    store,
)
from nearcast.index.intervals.nodes import TOP, edge_at
from nearcast.index.intervals.runs import stab_run
from nearcast.kernels import entry_point, inner

NOT_FINITE = -1
SLOT_MASK = 0xFFFFFFFF

# A cursor: the position of a merge in one list.
_ENTRY = 0
_POINTER = 1
_END = 2


@inner
def walk(s, number):  # type: ignore[no-untyped-def]
    """Record the marked edges over a value, top down; return how many. Expected O(log n)."""
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


@inner
def _copy_keys(keys, block, length, out):  # type: ignore[no-untyped-def]
    for index in range(length):
        store(out, index, load(keys, load(block, index) & SLOT_MASK))


@inner
def _stab(s, number, out, capacity):  # type: ignore[no-untyped-def]
    """Write the keys of all that contain a value, while they fit; return their number."""
    edges = walk(s, number)
    total = 0
    for index in range(edges):
        total += list_length(load(s, S_PATH + index))
    if total <= capacity:
        keys = load(s, S_KEYS)
        target = out
        for index in range(edges):
            edge = load(s, S_PATH + index)
            _copy_keys(keys, load(edge, E_BLOCK), list_length(edge), target)
            target += list_length(edge) << 3
    for index in range(load(s, S_RUN_COUNT)):
        total = stab_run(s, load(s, S_RUN + index), number, out, total, capacity)
    return total


@entry_point("int64, float64, int64, int64")
def stab(s, x, out, capacity):  # type: ignore[no-untyped-def]
    """Write the keys of all intervals that contain x, while they fit; return their number."""
    if not math.isfinite(x):
        return NOT_FINITE
    return _stab(s, ordinal(x), out, capacity)


@entry_point("int64, float64[::1], int64, int64[::1], int64, int64")
def stab_some(s, xs, first, offsets, out, capacity):  # type: ignore[no-untyped-def]
    """Answer xs[first:] one after the other while the keys fit; return where it stopped.

    offsets[i + 1] is set for each value answered, counted from 0 at xs[first].
    """
    total = 0
    for index in range(first, len(xs)):
        found = _stab(s, ordinal(xs[index]), out + (total << 3), capacity - total)
        if total + found > capacity:
            return index
        total += found
        offsets[index + 1] = total
    return len(xs)


@inner
def _cursor(s, index):  # type: ignore[no-untyped-def]
    return s + ((S_CURSORS + 8 * index) << 3)


@inner
def _open_cursor(cursor, edge):  # type: ignore[no-untyped-def]
    block = load(edge, E_BLOCK)
    store(cursor, _ENTRY, load(block, 0))
    store(cursor, _POINTER, block)
    store(cursor, _END, block + (list_length(edge) << 3))


@inner
def _advance(cursor):  # type: ignore[no-untyped-def]
    """Move to the next entry; return whether there is one."""
    pointer = load(cursor, _POINTER) + 8
    if pointer == load(cursor, _END):
        return False
    store(cursor, _POINTER, pointer)
    store(cursor, _ENTRY, load(pointer, 0))
    return True


@inner
def _sink(s, records, place, size):  # type: ignore[no-untyped-def]
    """Sift the cursor at `place` of the heap down."""
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


@inner
def _merge_lists(s, path, size, k, out):  # type: ignore[no-untyped-def]
    """Write the slots of the k narrowest markers on the `size` edges listed at `path`."""
    records = load(s, S_RECORDS)
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
        store(out, found, load(cursor, _ENTRY) & SLOT_MASK)
        found += 1
        if found == k:
            break
        if not _advance(cursor):
            left -= 1
            store(s, S_HEAP, load(s, S_HEAP + left))
        _sink(s, records, 0, left)
    return found


@inner
def narrowest_in_list(s, number, k, out):  # type: ignore[no-untyped-def]
    """Write the slots of the k narrowest in the list that contain a value; return how many."""
    edges = walk(s, number)
    found = _merge_lists(s, s + (S_PATH << 3), edges, k, out)
    store(s, S_EDGES, edges)
    store(s, S_TOUCHED, found + edges)  # those returned, and one more inspected in each list
    return found


@entry_point("int64, float64, int64, int64")
def top_paper(s, x, k, out):  # type: ignore[no-untyped-def]
    """Write k keys in the paper's order: lowest edge first, each list in order of accuracy.

    The edges that leave a node equal to x are its eqMarkers, and are read as one list.
    """
    if not math.isfinite(x):
        return NOT_FINITE
    number = ordinal(x)
    edges = walk(s, number)
    first_equal = edges - _edges_from_equal_node(s, number, edges)
    path = s + (S_PATH << 3)
    found = _merge_lists(s, path + (first_equal << 3), edges - first_equal, k, out)
    for index in range(first_equal - 1, -1, -1):
        if found == k:
            break
        found += _merge_lists(s, path + (index << 3), 1, k - found, out + (found << 3))
    store(s, S_EDGES, edges)
    store(s, S_TOUCHED, found)
    _copy_keys(load(s, S_KEYS), out, found, out)
    return found


@inner
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
