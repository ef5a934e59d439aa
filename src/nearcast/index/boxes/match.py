"""Which boxes an event meets: one event at a time, or many at once.

An event is a box too, [low, high] in each attribute; for a point both are equal. One event walks
the tree with a stack. Many events go through it together: every node is visited once for all of
them, with the list of those that may meet something below it, and passes each child the part of its
list that meets the child's hull. So a leaf is loaded into the cache once, whatever the order of the
events, and there are no unpredictable branches.

In a leaf, the hits are the bits of a word: one comparison of all places per bound.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nearcast.index.boxes.pools import (
    HIGHEST,
    L_CHILD,
    L_COUNT,
    L_DIM,
    L_LEAF,
    LEAF,
    M_DIMS,
    M_LEVELS,
    Real,
    Truth,
    Whole,
    event_at,
    found_at,
    is_point_at,
    pools_at,
    prefetch,
)
from nearcast.kernels import entry_point, inner

NOT_FINITE = -1
# Numba checks at every access whether a signed index is negative, which prevents vectorised loops;
# so kernels use unsigned indexes where time is spent.
U = np.uint64
ZERO, ONE, ALL = U(0), U(1), U(0xFFFFFFFFFFFFFFFF)
EIGHT, SIXTEEN = U(8), U(16)
I_CHILD, I_DIM, I_LEAF, I_COUNT = U(L_CHILD), U(L_DIM), U(L_LEAF), U(L_COUNT)
NEARBY = 16  # events that need not be sorted among each other


@inner
def is_finite(values: Any) -> Truth:
    """Return whether there is neither NaN nor infinity."""
    finite = True
    for value in values:
        finite &= abs(value) <= HIGHEST
    return finite


@inner
def hits(coords: Any, base: Any, low: Real, high: Real) -> Any:
    """Return the places of a leaf, as bits, whose interval at coords[base] meets [low, high]."""
    found = ZERO
    for j in range(LEAF):
        at = base + U(j)
        meets = (coords[at] <= high) & (low <= coords[at + U(LEAF)])
        found |= U(meets) << U(j)
    return found


@inner
def leaf_hits(
    coords: Any, base: Any, bounded: Any, count: Any, low: Any, high: Any, at: Any, step: Any
) -> Any:
    """Return the places of a leaf that meet an event, whose bounds are `step` apart.

    `base` is where the leaf's numbers begin, `bounded` its attributes; all unsigned.
    """
    found = ALL if count == U(LEAF) else (ONE << count) - ONE
    while bounded:
        if bounded & ONE:
            found &= hits(coords, base, low[at], high[at])
            if found == ZERO:
                break
        bounded >>= ONE
        base += U(2 * LEAF)
        at += step
    return found


@inner
def lowest_bit(word: Any) -> Any:
    """Return the index of the lowest bit that is set."""
    return popcount((word & (~word + ONE)) - ONE)


@inner
def popcount(word: Any) -> Any:
    """Return the number of set bits; LLVM compiles the pattern to one instruction."""
    word -= (word >> ONE) & U(0x5555555555555555)
    word = (word & U(0x3333333333333333)) + ((word >> U(2)) & U(0x3333333333333333))
    word = (word + (word >> U(4))) & U(0x0F0F0F0F0F0F0F0F)
    return (word * U(0x0101010101010101)) >> U(56)


@inner
def ask_for_leaf(links: Any, coords: Any, node: Any, block: Any) -> None:
    """Prefetch the bounds of a leaf in its first attribute, if the node is a leaf."""
    if links[node * SIXTEEN + I_CHILD] < 0:
        base = U(links[node * SIXTEEN + I_LEAF]) * block
        for line in range(LEAF // 4):
            prefetch(coords, base + U(8 * line))


@entry_point("int64")
def match_one(address: Whole) -> Whole:
    """Write the keys of the boxes that meet the event; return how many there are.

    The address table has the places of event and keys, and whether the event is a point: then only
    the lows are read. If there are more keys than room, the rest is only counted. Returns
    NOT_FINITE
    for a point with NaN or infinity.
    """
    s = pools_at(address)
    low, high = event_at(address, s.meta[M_DIMS])
    if is_point_at(address):
        high = low
        if not is_finite(low):
            return NOT_FINITE
    out = found_at(address)
    nodes, links, bits, coords, keys = s.nodes, s.links, s.bits, s.coords, s.keys
    block = U(LEAF * 2 * low.size)
    # First the walk, which prefetches the leaves it finds; then the leaves. So the memory loads all
    # of them at once.
    leaves = np.empty(64 + s.meta[M_LEVELS] + 2, dtype=np.uint64)
    stack = leaves[64:]
    stack[0] = ZERO
    top, waiting, count = 1, 0, 0
    while top:
        top -= 1
        node = stack[top]
        child = links[node * SIXTEEN + I_CHILD]
        if child >= 0:
            at = U(child) * EIGHT
            prefetch(nodes, at)
            prefetch(nodes, at + EIGHT)
            dim = U(links[node * SIXTEEN + I_DIM])
            below, above = low[dim], high[dim]
            at = node * EIGHT
            stack[top] = U(child) + ONE
            top += (nodes[at + U(2)] <= above) & (below <= nodes[at + U(3)])
            stack[top] = U(child)
            top += (nodes[at] <= above) & (below <= nodes[at + ONE])
            continue
        leaves[waiting] = node
        waiting += 1
        leaf = U(links[node * SIXTEEN + I_LEAF])
        ask_for_leaf(links, coords, node, block)
        prefetch(keys, leaf * U(LEAF))
        if waiting == 64:
            count = _scan(leaves, waiting, links, bits, coords, keys, low, high, out, count)
            waiting = 0
    return _scan(leaves, waiting, links, bits, coords, keys, low, high, out, count)


@inner
def _scan(
    leaves: Any,
    waiting: Whole,
    links: Any,
    bits: Any,
    coords: Any,
    keys: Any,
    low: Any,
    high: Any,
    out: Any,
    count: Whole,
) -> Whole:
    """Append the keys of the boxes in some leaves that meet the event; return the new count."""
    block = U(LEAF * 2 * low.size)
    for k in range(waiting):
        node = leaves[k]
        leaf = U(links[node * SIXTEEN + I_LEAF])
        boxes = U(links[node * SIXTEEN + I_COUNT])
        bounded = bits[node * EIGHT]
        found = leaf_hits(coords, leaf * block, bounded, boxes, low, high, ZERO, ONE)
        while found:
            if count < out.size:
                out[count] = keys[leaf * U(LEAF) + lowest_bit(found)]
            count += 1
            found &= found - ONE
    return count


@entry_point("int64, float64[::1], int32[::1]")
def nearby_order(address: Whole, low: Any, order: Any) -> None:
    """Write the events in an order in which neighbours visit the same part of the tree.

    The events go down the tree, each to one child only, until few of them are together.
    """
    s = pools_at(address)
    nodes, links = s.nodes, s.links
    n, dims = order.size, s.meta[M_DIMS]
    for event in range(n):
        order[event] = event
    aside = np.empty(n, dtype=np.int32)
    stack = [(np.int64(0), 0, n)]
    while len(stack) > 0:
        node, start, end = stack.pop()
        child = np.int64(links[node * 16 + L_CHILD])
        if child < 0 or end - start <= NEARBY:
            continue
        dim, bar = np.int64(links[node * 16 + L_DIM]), nodes[node * 8 + 2]
        left, right = start, 0
        for k in range(start, end):
            event = order[k]
            turns = low[event * dims + dim] >= bar
            order[left] = event
            aside[right] = event
            left += not turns
            right += turns
        for k in range(right):
            order[left + k] = aside[k]
        stack.append((child, start, left))
        stack.append((child + 1, left, end))


@inner
def _columns(rows: Any, order: Any, dims: Whole) -> Any:
    """Return the rows in a given order, attribute after attribute."""
    n = order.size
    columns = np.empty(n * dims, dtype=np.float64)
    for k in range(n):
        row = np.int64(order[k]) * dims
        for i in range(dims):
            columns[i * n + k] = rows[row + i]
    return columns


@entry_point("int64, float64[::1], float64[::1], int32[::1], int32[::1], int64[::1]")
def match_chunk(  # noqa: PLR0915 - one loop, whose parts share all they know
    address: Whole, lows: Any, highs: Any, order: Any, pair_events: Any, pair_keys: Any
) -> Whole:
    """Write (k, key) for every box that the event order[k] meets; return how many.

    Bounds are by event: lows[event * dims + i]. Pairs are written while there is room for
    LEAF more, else only counted.
    """
    s = pools_at(address)
    nodes, links, bits, coords, keys = s.nodes, s.links, s.bits, s.coords, s.keys
    n, block = U(order.size), U(LEAF * 2 * s.meta[M_DIMS])
    low = _columns(lows, order, s.meta[M_DIMS])
    high = _columns(highs, order, s.meta[M_DIMS])
    room = U(pair_keys.size - LEAF)
    levels = s.meta[M_LEVELS] + 1
    events = np.empty(order.size * (levels + 1) + 1, dtype=np.uint32)
    events[: order.size] = np.arange(order.size)
    todo = np.zeros((levels + 1, 3), dtype=np.uint64)
    todo[0, 2] = n
    top, count = 1, ZERO
    while top:
        top -= 1
        node, start, end = todo[top, 0], todo[top, 1], todo[top, 2]
        child = links[node * SIXTEEN + I_CHILD]
        if child < 0:
            leaf = U(links[node * SIXTEEN + I_LEAF])
            boxes = U(links[node * SIXTEEN + I_COUNT])
            bounded = bits[node * EIGHT]
            if top:
                ask_for_leaf(links, coords, todo[top - 1, 0], block)
            for k in range(start, end):
                event = U(events[k])
                found = leaf_hits(coords, leaf * block, bounded, boxes, low, high, event, n)
                if count > room:
                    count += popcount(found)
                    continue
                while found:
                    pair_keys[count] = keys[leaf * U(LEAF) + lowest_bit(found)]
                    pair_events[count] = event
                    count += ONE
                    found &= found - ONE
            continue
        at, plane = U(links[node * SIXTEEN + I_DIM]) * n, node * EIGHT
        left_low, left_high = nodes[plane], nodes[plane + ONE]
        right_low, right_high = nodes[plane + U(2)], nodes[plane + U(3)]
        # The right child's list replaces this one in place; the left child's goes behind it and is
        # consumed before the right child is visited.
        prefetch(nodes, U(child) * EIGHT)
        prefetch(nodes, U(child) * EIGHT + EIGHT)
        right, left = start, end
        for k in range(start, end):
            event = U(events[k])
            below, above = low[at + event], high[at + event]
            events[left] = event
            left += U((left_low <= above) & (below <= left_high))
            events[right] = event
            right += U((right_low <= above) & (below <= right_high))
        if right > start:
            todo[top, 0], todo[top, 1], todo[top, 2] = U(child) + ONE, start, right
            top += 1
        if left > end:
            todo[top, 0], todo[top, 1], todo[top, 2] = U(child), end, left
            top += 1
    return np.int64(count)


@entry_point("int32[::1], int64[::1], int64, int64[::1], int64[::1]")
def sort_pairs(pair_events: Any, pair_keys: Any, count: Whole, starts: Any, out: Any) -> None:
    """Sort pairs by event: the keys of event k become out[starts[k]:starts[k + 1]]."""
    n = starts.size - 1
    starts[:] = 0
    for k in range(count):
        starts[pair_events[k] + 1] += 1
    for event in range(n):
        starts[event + 1] += starts[event]
    cursor = starts[:-1].copy()
    for k in range(count):
        event = pair_events[k]
        out[cursor[event]] = pair_keys[k]
        cursor[event] += 1


@entry_point("int32[::1], int64[::1], int64[::1], int64[::1], int64[::1]")
def put_back(order: Any, starts: Any, found: Any, offsets: Any, out: Any) -> None:
    """Copy the keys of event order[k] from found[starts[k]:] to out[offsets[order[k]]:]."""
    for k in range(order.size):
        at = offsets[order[k]]
        for j in range(starts[k], starts[k + 1]):
            out[at] = found[j]
            at += 1
