"""Which boxes an event meets: one event at a time, or many at once.

An event is a box too, [low, high] in each attribute; of a point both are the same. One event
walks the tree with a stack. Many events go through it together: every node is visited once
for all of them, with the list of those that may meet something below it, and hands each child
the part of its list that meets the child's hull. So a leaf is brought into the cache once,
whatever the order of the events, and there is no branch for the processor to guess wrong.

In a leaf, the hits are the bits of a word: one comparison of all places per bound.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from nearcast.index._box_build import HIGHEST
from nearcast.index._box_pools import (
    L_CHILD,
    L_COUNT,
    L_DIM,
    L_LEAF,
    LEAF,
    M_DIMS,
    M_LEVELS,
    pools_at,
)

NOT_FINITE = -1


@njit(cache=True)
def is_finite(values: Any) -> bool:
    """Say whether there is neither NaN nor infinity."""
    finite = True
    for value in values:
        finite &= abs(value) <= HIGHEST
    return finite


@njit(cache=True)
def hits(coords: Any, base: int, low: float, high: float) -> Any:
    """Return the places of a leaf, as bits, whose interval at coords[base] meets [low, high]."""
    found = np.uint64(0)
    for j in range(LEAF):
        meets = (coords[base + j] <= high) & (low <= coords[base + LEAF + j])
        found |= np.uint64(meets) << np.uint64(j)
    return found


@njit(cache=True)
def leaf_hits(s: Any, leaf: int, count: int, low: Any, high: Any, at: int, step: int) -> Any:
    """Return the places of a leaf that meet an event, whose bounds are `step` apart."""
    dims = s.meta[M_DIMS]
    found = (np.uint64(1) << np.uint64(count)) - np.uint64(1)
    bounded = s.leaf_dims[leaf]
    base = leaf * LEAF * 2 * dims
    i = 0
    while bounded:
        if bounded & np.uint64(1):
            at_i = at + i * step
            found &= hits(s.coords, base + i * 2 * LEAF, low[at_i], high[at_i])
            if found == 0:
                break
        bounded >>= np.uint64(1)
        i += 1
    return found


@njit(cache=True)
def lowest_bit(word: Any) -> int:
    """Return the index of the lowest bit that is set."""
    return np.int64(_popcount((word & (~word + np.uint64(1))) - np.uint64(1)))


@njit(cache=True)
def _popcount(word: Any) -> Any:
    """Count bits; LLVM knows the pattern and makes one instruction of it."""
    word -= (word >> np.uint64(1)) & np.uint64(0x5555555555555555)
    word = (word & np.uint64(0x3333333333333333)) + (
        (word >> np.uint64(2)) & np.uint64(0x3333333333333333)
    )
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return (word * np.uint64(0x0101010101010101)) >> np.uint64(56)


@njit(cache=True)
def match_one(table: Any, low: Any, high: Any, out: Any, finite: bool) -> int:
    """Write the keys of the boxes that meet [low, high]; return how many there are.

    If there are more than `out` holds, the rest is only counted. If `finite` is asked for
    and not given: NOT_FINITE.
    """
    s = pools_at(table)
    if finite and not is_finite(low):
        return NOT_FINITE
    count = 0
    stack = np.empty(s.meta[M_LEVELS] + 2, dtype=np.int64)
    stack[0] = 0
    top = 1
    while top:
        top -= 1
        node = stack[top]
        child = s.links[node * 8 + L_CHILD]
        if child >= 0:
            dim = s.links[node * 8 + L_DIM]
            below, above = low[dim], high[dim]
            stack[top] = child + 1
            top += (s.planes[node * 4 + 2] <= above) & (below <= s.planes[node * 4 + 3])
            stack[top] = child
            top += (s.planes[node * 4] <= above) & (below <= s.planes[node * 4 + 1])
            continue
        leaf = np.int64(s.links[node * 8 + L_LEAF])
        found = leaf_hits(s, leaf, s.links[node * 8 + L_COUNT], low, high, 0, 1)
        while found:
            if count < out.size:
                out[count] = s.keys[leaf * LEAF + lowest_bit(found)]
            count += 1
            found &= found - np.uint64(1)
    return count


@njit(cache=True)
def _leaf_pairs(
    s: Any,
    node: int,
    low: Any,
    high: Any,
    n: int,
    events: Any,
    start: int,
    end: int,
    pair_events: Any,
    pair_keys: Any,
    count: int,
) -> int:
    """Append (event, key) for every hit in one leaf; beyond the room only count."""
    leaf = np.int64(s.links[node * 8 + L_LEAF])
    boxes = s.links[node * 8 + L_COUNT]
    room = pair_keys.size - LEAF
    for k in range(start, end):
        event = events[k]
        found = leaf_hits(s, leaf, boxes, low, high, event, n)
        if count > room:
            count += np.int64(_popcount(found))
            continue
        while found:
            pair_keys[count] = s.keys[leaf * LEAF + lowest_bit(found)]
            pair_events[count] = event
            count += 1
            found &= found - np.uint64(1)
    return count


@njit(cache=True)
def match_chunk(table: Any, low: Any, high: Any, n: int, pair_events: Any, pair_keys: Any) -> int:
    """Write (event, key) for every box that one of n events meets; return how many.

    Bounds are by attribute: low[i * n + event]. Pairs are written while there is room for
    LEAF more, else only counted.
    """
    s = pools_at(table)
    levels = s.meta[M_LEVELS] + 1
    events = np.empty(n * (levels + 1) + 1, dtype=np.int32)
    for event in range(n):
        events[event] = event
    nodes = np.empty(levels + 1, dtype=np.int64)
    starts = np.empty(levels + 1, dtype=np.int64)
    ends = np.empty(levels + 1, dtype=np.int64)
    nodes[0], starts[0], ends[0] = 0, 0, n
    top, count = 1, 0
    while top:
        top -= 1
        node, start, end = nodes[top], starts[top], ends[top]
        child = np.int64(s.links[node * 8 + L_CHILD])
        if child < 0:
            count = _leaf_pairs(
                s, node, low, high, n, events, start, end, pair_events, pair_keys, count
            )
            continue
        at = np.int64(s.links[node * 8 + L_DIM]) * n
        left_low, left_high = s.planes[node * 4], s.planes[node * 4 + 1]
        right_low, right_high = s.planes[node * 4 + 2], s.planes[node * 4 + 3]
        # The right child's list replaces this one in place, the left child's goes behind it
        # and is used up before the right one's turn comes.
        right, left = start, end
        for k in range(start, end):
            event = events[k]
            below, above = low[at + event], high[at + event]
            events[left] = event
            left += (left_low <= above) & (below <= left_high)
            events[right] = event
            right += (right_low <= above) & (below <= right_high)
        if right > start:
            nodes[top], starts[top], ends[top] = child + 1, start, right
            top += 1
        if left > end:
            nodes[top], starts[top], ends[top] = child, end, left
            top += 1
    return count


@njit(cache=True)
def sort_pairs(pair_events: Any, pair_keys: Any, count: int, offsets: Any, out: Any) -> None:
    """Sort pairs by event: those of event e become out[offsets[e] - offsets[0]:].

    `offsets[0]` is given, the others are written.
    """
    n = offsets.size - 1
    cursor = np.zeros(n + 1, dtype=np.int64)
    for k in range(count):
        cursor[pair_events[k] + 1] += 1
    for event in range(n):
        cursor[event + 1] += cursor[event]
        offsets[event + 1] = offsets[0] + cursor[event + 1]
    for k in range(count):
        event = pair_events[k]
        out[cursor[event]] = pair_keys[k]
        cursor[event] += 1
