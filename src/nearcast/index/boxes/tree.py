"""Inserting and removing boxes, and the hash table of their keys.

Bounds are exact at all times: removing a box shrinks its leaf's bounds, and those of the
ancestors as far as they change. So even many moves do not loosen the tree. Three rules keep its
shape:

- a full leaf becomes two before a box is added to it; two sibling leaves that easily fit one
  become one;
- a subtree that has become much higher than it was when built is built again (`too_high`),
  so sorted input does not degrade it to a list; this is the scapegoat tree's rule, with the
  height a build really gave in place of a logarithm, because sets taken apart need not halve;
- the whole tree is built again when it has grown fourfold (`BoxIndex` does that), because
  routes chosen for a few boxes may not suit many.

Read `match.py` next.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nearcast.index.boxes.build import (
    build,
    clear_bounds,
    free_leaf,
    free_pair,
    gather_bounds,
    set_planes,
    widen,
)
from nearcast.index.boxes.pools import (
    HIGHEST,
    L_CHILD,
    L_COUNT,
    L_DIM,
    L_HEIGHT,
    L_LEAF,
    L_PARENT,
    L_ROUTE,
    LEAF,
    M_DIMS,
    M_LEVELS,
    Real,
    Truth,
    Whole,
)
from nearcast.index.boxes.split import route_value
from nearcast.kernels import entry_point, inner

FREE, TAKEN = -1, -2  # hash slots without a position: never used; of a box being moved
MERGE = 52  # two sibling leaves with at most this many boxes become one
OPEN_WIDTH_LOG2 = 1024.0  # log2 of an open side where the attribute's range is unknown
STEPS = 2.0**24  # narrowness is rounded to 1/STEPS, so that equal volumes tie


@inner
def narrowness(box: Any, at: Whole, dims: Whole, extent: Any) -> Real:
    """Return the sum over the attributes of log2(width / range); see `BoxIndex`."""
    total = 0.0
    for i in range(dims):
        low, high = box[at + 2 * i], box[at + 2 * i + 1]
        least, most = extent[2 * i], extent[2 * i + 1]
        if most - least <= HIGHEST:
            share = (min(high, most) - max(low, least)) / (most - least)
            floor = extent[2 * dims]
            total += max(math.log2(share), floor) if share > 0.0 else floor
        else:
            width = high - low
            floor = extent[2 * dims + 1]
            if width > HIGHEST:
                total += OPEN_WIDTH_LOG2
            else:
                total += max(math.log2(width), floor) if width > 0.0 else floor
    return math.floor(total * STEPS + 0.5) / STEPS


@entry_point("float64[::1], int64, float64[::1], float64[::1]")
def narrowness_of_all(box: Any, dims: Whole, extent: Any, out: Any) -> None:
    """Write the narrowness of every box to `out`."""
    for k in range(out.size):
        out[k] = narrowness(box, k * 2 * dims, dims, extent)


@inner
def _home(key: Whole, size: Whole) -> Whole:
    mixed = np.uint64(key)
    mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(32)
    return np.int64(mixed & np.uint64(size - 1))


@inner
def slot_of(s: Any, key: Whole) -> Whole:
    """Return the hash slot of a key, or -1 - the free slot where it would go."""
    size = s.slots.size
    at = _home(key, size)
    while s.slots[at] != FREE:
        if s.slots[at] >= 0 and s.keys[s.slots[at]] == key:
            return at
        at = (at + 1) & (size - 1)
    return -1 - at


@inner
def _forget(s: Any, at: Whole) -> None:
    """Free a hash slot and close the gap behind it (no tombstones)."""
    size = s.slots.size
    gap = at
    at = (at + 1) & (size - 1)
    while s.slots[at] >= 0:
        home = _home(s.keys[s.slots[at]], size)
        if ((at - home) & (size - 1)) >= ((at - gap) & (size - 1)):
            s.slots[gap] = s.slots[at]
            gap = at
        at = (at + 1) & (size - 1)
    s.slots[gap] = -1


@inner
def enter_all(s: Any, keys: Any, placed: Any) -> Whole:
    """Add keys at their positions to the hash table; return the row of a repeated key, or -1."""
    for row in range(keys.size):
        slot = slot_of(s, keys[row])
        if slot >= 0:
            return row
        s.slots[-1 - slot] = placed[row]
    return -1


@inner
def reenter_all(s: Any, old: Any) -> None:
    """Add the keys of an older, smaller hash table."""
    size = s.slots.size
    for position in old:
        if position >= 0:
            at = _home(s.keys[position], size)
            while s.slots[at] != FREE:
                at = (at + 1) & (size - 1)
            s.slots[at] = position


@inner
def _next_child(s: Any, node: Whole, box: Any, narrow: Real, age: Whole) -> Whole:
    """Return the child of an inner node to which its route leads a box."""
    dims = s.meta[M_DIMS]
    route = s.links[node * 16 + L_ROUTE]
    value = route_value(box, 0, route, dims, narrow)
    bar = s.routes[2 * node]
    right = value > bar or (value == bar and (route != 2 * dims or age >= s.routes[2 * node + 1]))
    return s.links[node * 16 + L_CHILD] + right


@inner
def leaf_for(s: Any, box: Any, narrow: Real, age: Whole) -> Whole:
    """Return the leaf's node for a box."""
    node = np.int64(0)
    while s.links[node * 16 + L_CHILD] >= 0:
        node = np.int64(_next_child(s, node, box, narrow, age))
    return node


@inner
def is_full(s: Any, node: Whole) -> Truth:
    """Return whether a leaf has no room for one more box."""
    return s.links[node * 16 + L_COUNT] == LEAF


@inner
def _descend(s: Any, box: Any, narrow: Real, age: Whole, weight: Real) -> Whole:
    """Return the leaf's node for a box, extending all bounds on the way."""
    dims = s.meta[M_DIMS]
    node = np.int64(0)
    widen(s.bounds, 0, dims, box, 0, narrow, age, weight)
    while s.links[node * 16 + L_CHILD] >= 0:
        child = np.int64(_next_child(s, node, box, narrow, age))
        widen(s.bounds, child, dims, box, 0, narrow, age, weight)
        set_planes(s.bounds, s.nodes, s.links, node, dims)
        node = child
    return node


@inner
def _put(
    s: Any, position: Whole, box: Any, key: Whole, age: Whole, narrow: Real, weight: Real
) -> None:
    """Write a box at a position of a leaf."""
    dims = s.meta[M_DIMS]
    leaf = position // LEAF
    base = leaf * LEAF * 2 * dims + position % LEAF
    node = s.leaf_node[leaf]
    seen = s.bits[node * 8]
    for c in range(2 * dims):
        s.coords[base + c * LEAF] = box[c]
        if abs(box[c]) <= HIGHEST:
            seen |= np.uint64(1) << np.uint64(c // 2)
    s.bits[node * 8] = seen
    s.keys[position] = key
    s.ages[position] = age
    s.narrow[position] = narrow
    if s.weights.size:
        s.weights[position] = weight


@inner
def insert(
    s: Any, box: Any, key: Whole, age: Whole, narrow: Real, weight: Real, slot: Whole
) -> None:
    """Insert a box, its hash slot given; the leaf for it has room."""
    node = _descend(s, box, narrow, age, weight)
    count = s.links[node * 16 + L_COUNT]
    position = s.links[node * 16 + L_LEAF] * LEAF + count
    _put(s, position, box, key, age, narrow, weight)
    s.links[node * 16 + L_COUNT] = count + 1
    s.slots[slot] = position


@inner
def _slots_of_all(s: Any, keys: Any) -> Any:
    slots = np.empty(keys.size, dtype=np.int64)
    for k in range(keys.size):
        slots[k] = slot_of(s, keys[k])
    return slots


@inner
def _relocate(
    s: Any, node: Whole, boxes: Any, keys: Any, ages: Any, narrows: Any, weights: Any, slots: Any
) -> None:
    """Build a subtree at a node from boxes that were elsewhere, and update their slots."""
    placed = np.empty(keys.size, dtype=np.int32)
    build(s, node, boxes, keys, ages, narrows, weights, placed)
    for k in range(keys.size):
        s.slots[slots[k]] = placed[k]


@inner
def too_high(s: Any, node: Whole) -> Whole:
    """Return the lowest ancestor much higher than when it was built, or -1; record the depth."""
    height = s.links[node * 16 + L_HEIGHT]
    found = -1
    node = s.links[node * 16 + L_PARENT]
    while node >= 0:
        height += 1
        if found < 0 and height > 2 * s.links[node * 16 + L_HEIGHT] + 6:
            found = node
        node = s.links[node * 16 + L_PARENT]
    s.meta[M_LEVELS] = max(s.meta[M_LEVELS], height + 1)
    return found


@inner
def _clear(s: Any, root: Whole) -> None:
    """Free everything below a node, and its leaf if it is one."""
    stack = [root]
    while len(stack) > 0:
        node = stack.pop()
        child = np.int64(s.links[node * 16 + L_CHILD])
        if child >= 0:
            stack.append(child)
            stack.append(child + 1)
            free_pair(s, child)  # their links stay readable
        else:
            free_leaf(s, s.links[node * 16 + L_LEAF])


@inner
def collected(s: Any, root: Whole, n: Whole) -> Any:
    """Return copies of a subtree's n boxes."""
    dims = s.meta[M_DIMS]
    boxes = np.empty(n * 2 * dims, dtype=np.float64)
    keys = np.empty(n, dtype=np.int64)
    ages = np.empty(n, dtype=np.uint32)
    narrows = np.empty(n, dtype=np.float64)
    weights = np.empty(n if s.weights.size else 0, dtype=np.float64)
    stack = [root]
    k = 0
    while len(stack) > 0:
        node = stack.pop()
        child = s.links[node * 16 + L_CHILD]
        if child >= 0:
            stack.append(np.int64(child + 1))
            stack.append(np.int64(child))
            continue
        leaf = s.links[node * 16 + L_LEAF]
        for j in range(s.links[node * 16 + L_COUNT]):
            position = leaf * LEAF + j
            keys[k], ages[k], narrows[k] = s.keys[position], s.ages[position], s.narrow[position]
            if s.weights.size:
                weights[k] = s.weights[position]
            for c in range(2 * dims):
                boxes[k * 2 * dims + c] = s.coords[(leaf * 2 * dims + c) * LEAF + j]
            k += 1
    return boxes, keys, ages, narrows, weights


@inner
def _renew_leaf(s: Any, node: Whole) -> Truth:
    """Make a leaf's bounds exact again; return whether they changed."""
    dims = s.meta[M_DIMS]
    size = 4 * dims + 3
    before = s.bounds[node * size : (node + 1) * size].copy()
    clear_bounds(s, node)
    leaf = s.links[node * 16 + L_LEAF]
    box = np.empty(2 * dims, dtype=np.float64)
    seen = np.uint64(0)
    for j in range(s.links[node * 16 + L_COUNT]):
        for c in range(2 * dims):
            box[c] = s.coords[(leaf * 2 * dims + c) * LEAF + j]
            if abs(box[c]) <= HIGHEST:
                seen |= np.uint64(1) << np.uint64(c // 2)
        position = leaf * LEAF + j
        weight = s.weights[position] if s.weights.size else 1.0
        widen(s.bounds, node, dims, box, 0, s.narrow[position], s.ages[position], weight)
    s.bits[node * 8] = seen
    changed = False
    for c in range(size):
        changed |= before[c] != s.bounds[node * size + c]
    return changed


@inner
def _on_the_rim(s: Any, node: Whole, position: Whole) -> Truth:
    """Return whether the box at a position determines any of a leaf's bounds."""
    dims = s.meta[M_DIMS]
    b = node * (4 * dims + 3)
    base = position // LEAF * LEAF * 2 * dims + position % LEAF
    for i in range(dims):
        low, high = s.coords[base + 2 * i * LEAF], s.coords[base + (2 * i + 1) * LEAF]
        if low == s.bounds[b] or low == s.bounds[b + 1]:
            return True
        if high == s.bounds[b + 2] or high == s.bounds[b + 3]:
            return True
        b += 4
    weight = s.weights[position] if s.weights.size else 1.0
    return (
        s.narrow[position] == s.bounds[b]
        or s.ages[position] == s.bounds[b + 1]
        or (weight == s.bounds[b + 2] and s.weights.size > 0)
    )


@inner
def _copy_place(s: Any, source: Whole, target: Whole) -> None:
    """Copy a box from one position to another, and update its hash slot."""
    s.slots[slot_of(s, s.keys[source])] = target
    dims = s.meta[M_DIMS]
    one = source // LEAF * LEAF * 2 * dims + source % LEAF
    two = target // LEAF * LEAF * 2 * dims + target % LEAF
    for c in range(2 * dims):
        s.coords[two + c * LEAF] = s.coords[one + c * LEAF]
    s.keys[target] = s.keys[source]
    s.ages[target] = s.ages[source]
    s.narrow[target] = s.narrow[source]
    if s.weights.size:
        s.weights[target] = s.weights[source]


@inner
def _take_out(s: Any, position: Whole) -> None:
    """Remove the box at a position; the caller handles its hash slot, which is now invalid."""
    dims = s.meta[M_DIMS]
    leaf = position // LEAF
    node = np.int64(s.leaf_node[leaf])
    rim = _on_the_rim(s, node, position)
    last = s.links[node * 16 + L_COUNT] - 1
    if leaf * LEAF + last != position:
        _copy_place(s, leaf * LEAF + last, position)
    for i in range(dims):
        s.coords[(leaf * 2 * dims + 2 * i) * LEAF + last] = np.inf
        s.coords[(leaf * 2 * dims + 2 * i + 1) * LEAF + last] = -np.inf
    s.links[node * 16 + L_COUNT] = last
    if rim and _renew_leaf(s, node):
        parent = s.links[node * 16 + L_PARENT]
        while parent >= 0 and gather_bounds(s.bounds, s.nodes, s.links, parent, dims):
            parent = s.links[parent * 16 + L_PARENT]
    _join(s, node)


@inner
def _join(s: Any, node: Whole) -> None:
    """Merge a leaf with its sibling leaf if both are small, or drop it if it is empty."""
    parent = np.int64(s.links[node * 16 + L_PARENT])
    if parent < 0:
        return
    sibling = node ^ 1
    count = s.links[node * 16 + L_COUNT]
    if s.links[sibling * 16 + L_CHILD] < 0:
        if count + s.links[sibling * 16 + L_COUNT] <= MERGE:
            _merge(s, parent, node, sibling)
    elif count == 0:
        _lift(s, parent, node, sibling)


@inner
def _merge(s: Any, parent: Whole, node: Whole, sibling: Whole) -> None:
    """Make a parent the leaf with the boxes of its two leaves."""
    kept, freed = s.links[sibling * 16 + L_LEAF], s.links[node * 16 + L_LEAF]
    count = s.links[sibling * 16 + L_COUNT]
    for j in range(s.links[node * 16 + L_COUNT]):
        _copy_place(s, freed * LEAF + j, kept * LEAF + count)
        count += 1
    s.bits[parent * 8] = s.bits[node * 8] | s.bits[sibling * 8]
    s.leaf_node[kept] = parent
    free_leaf(s, freed)
    s.links[parent * 16 + L_CHILD] = -1
    s.links[parent * 16 + L_LEAF] = kept
    s.links[parent * 16 + L_COUNT] = count
    s.links[parent * 16 + L_HEIGHT] = 0
    free_pair(s, min(node, sibling))


@inner
def _lift(s: Any, parent: Whole, node: Whole, sibling: Whole) -> None:
    """Put an inner node in its parent's place; its sibling is an empty leaf."""
    free_leaf(s, s.links[node * 16 + L_LEAF])
    for field in (L_CHILD, L_DIM, L_ROUTE, L_HEIGHT):
        s.links[parent * 16 + field] = s.links[sibling * 16 + field]
    s.routes[2 * parent] = s.routes[2 * sibling]
    s.routes[2 * parent + 1] = s.routes[2 * sibling + 1]
    child = s.links[sibling * 16 + L_CHILD]
    s.links[child * 16 + L_PARENT] = parent
    s.links[child * 16 + 16 + L_PARENT] = parent
    set_planes(s.bounds, s.nodes, s.links, parent, s.meta[M_DIMS])
    free_pair(s, min(node, sibling))
