"""Building: a set of boxes becomes a tree, and a full leaf becomes two.

The tree is binary. Each inner node sends a box left or right by one of its numbers (a *route*): the
low or the high of an attribute, or the rank (narrowness, age). For queries it keeps the hull of
either child in one attribute: two comparisons exclude most children that cannot contain a match.

`split.py` chooses the route. Read it next, then `tree.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nearcast.index.boxes.pools import (
    FILL,
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
    M_LEAF_FREE,
    M_LEAVES,
    M_NODE_FREE,
    M_NODES,
    Real,
    Truth,
    Whole,
)
from nearcast.index.boxes.split import CROWD, LEAST, MANY, choose, crowd, partition
from nearcast.kernels import inner


@inner
def fresh_leaf(s: Any) -> Whole:
    """Return a leaf from the free list or the pool's end; all its places are void."""
    leaf = s.meta[M_LEAF_FREE]
    if leaf >= 0:
        s.meta[M_LEAF_FREE] = s.leaf_node[leaf]
    else:
        leaf = s.meta[M_LEAVES]
        s.meta[M_LEAVES] = leaf + 1
    dims = s.meta[M_DIMS]
    base = leaf * LEAF * 2 * dims
    for _ in range(dims):
        for j in range(LEAF):
            s.coords[base + j] = np.inf
            s.coords[base + LEAF + j] = -np.inf
        base += 2 * LEAF
    return leaf


@inner
def free_leaf(s: Any, leaf: Whole) -> None:
    """Put a leaf on the free list."""
    s.leaf_node[leaf] = s.meta[M_LEAF_FREE]
    s.meta[M_LEAF_FREE] = leaf


@inner
def fresh_pair(s: Any) -> Whole:
    """Return the left one of two free neighbouring nodes."""
    pair = s.meta[M_NODE_FREE]
    if pair >= 0:
        s.meta[M_NODE_FREE] = s.links[pair * 16 + L_PARENT]
        return pair
    pair = s.meta[M_NODES]
    s.meta[M_NODES] = pair + 2
    return pair


@inner
def free_pair(s: Any, pair: Whole) -> None:
    """Put two neighbouring nodes on the free list."""
    s.links[pair * 16 + L_PARENT] = s.meta[M_NODE_FREE]
    s.meta[M_NODE_FREE] = pair


@inner
def clear_bounds(s: Any, node: Whole) -> None:
    """Reset a node's bounds to those of no box."""
    dims = s.meta[M_DIMS]
    at = node * (4 * dims + 3)
    for _ in range(dims):
        s.bounds[at] = np.inf
        s.bounds[at + 1] = -np.inf
        s.bounds[at + 2] = np.inf
        s.bounds[at + 3] = -np.inf
        at += 4
    s.bounds[at] = np.inf
    s.bounds[at + 1] = np.inf
    s.bounds[at + 2] = -np.inf


@inner
def widen(
    bounds: Any,
    node: Whole,
    dims: Whole,
    box: Any,
    at: Whole,
    narrow: Real,
    age: Real,
    weight: Real,
) -> None:
    """Extend a node's bounds to cover one more box, whose numbers begin at box[at].

    (This and the next two take the arrays they need, not all pools: passing those would cost more
    than the work done here.)
    """
    b, a = np.uint64(node * (4 * dims + 3)), np.uint64(at)
    for _ in range(dims):
        low, high = box[a], box[a + np.uint64(1)]
        bounds[b] = min(bounds[b], low)
        bounds[b + np.uint64(1)] = max(bounds[b + np.uint64(1)], low)
        bounds[b + np.uint64(2)] = min(bounds[b + np.uint64(2)], high)
        bounds[b + np.uint64(3)] = max(bounds[b + np.uint64(3)], high)
        a += np.uint64(2)
        b += np.uint64(4)
    bounds[b] = min(bounds[b], narrow)
    bounds[b + np.uint64(1)] = min(bounds[b + np.uint64(1)], age)
    bounds[b + np.uint64(2)] = max(bounds[b + np.uint64(2)], weight)


@inner
def gather_bounds(bounds: Any, nodes: Any, links: Any, node: Whole, dims: Whole) -> Truth:
    """Set an inner node's bounds and planes from its children; return whether they changed."""
    size = 4 * dims + 3
    mine = node * size
    left = links[node * 16 + L_CHILD] * size
    right = left + size
    changed = False
    for c in range(size):
        one, two = bounds[left + c], bounds[right + c]
        # Greatest low, greatest high and greatest weight; the least of everything else.
        greatest = (c & 1) == 1 if c < 4 * dims else c == 4 * dims + 2
        value = max(one, two) if greatest else min(one, two)
        changed |= value != bounds[mine + c]
        bounds[mine + c] = value
    set_planes(bounds, nodes, links, node, dims)
    return changed


@inner
def set_planes(bounds: Any, nodes: Any, links: Any, node: Whole, dims: Whole) -> None:
    """Copy the children's hulls in the node's test attribute to where queries read them."""
    size = 4 * dims + 3
    at = links[node * 16 + L_CHILD] * size + 4 * links[node * 16 + L_DIM]
    nodes[node * 8] = bounds[at]
    nodes[node * 8 + 1] = bounds[at + 3]
    nodes[node * 8 + 2] = bounds[at + size]
    nodes[node * 8 + 3] = bounds[at + size + 3]


@inner
def _fill_leaf(
    s: Any,
    node: Whole,
    box: Any,
    keys: Any,
    ages: Any,
    narrow: Any,
    weights: Any,
    order: Any,
    start: Whole,
    end: Whole,
    placed: Any,
) -> None:
    """Make a node a leaf with order[start:end]; record the position of each box."""
    dims = s.meta[M_DIMS]
    leaf = fresh_leaf(s)
    s.leaf_node[leaf] = node
    s.links[node * 16 + L_CHILD] = -1
    s.links[node * 16 + L_LEAF] = leaf
    s.links[node * 16 + L_COUNT] = end - start
    s.links[node * 16 + L_HEIGHT] = 0
    clear_bounds(s, node)
    dims_seen = np.uint64(0)
    bounds, coords = s.bounds, s.coords
    weighed, weight = weights.size > 0, 1.0
    for k in range(start, end):
        row = np.int64(order[k])
        position = leaf * LEAF + k - start
        placed[row] = position
        s.keys[position] = keys[row]
        s.ages[position] = ages[row]
        s.narrow[position] = narrow[row]
        if weighed:
            weight = weights[row]
            s.weights[position] = weight
        at = np.uint64(row * 2 * dims)
        base = np.uint64(leaf * LEAF * 2 * dims + k - start)
        for c in range(2 * dims):
            value = box[at + np.uint64(c)]
            coords[base + np.uint64(c * LEAF)] = value
            dims_seen |= np.uint64(abs(value) <= HIGHEST) << np.uint64(c // 2)
        widen(bounds, node, dims, box, row * 2 * dims, narrow[row], ages[row], weight)
    s.bits[node * 8] = dims_seen


@inner
def build(
    s: Any, root: Whole, box: Any, keys: Any, ages: Any, narrow: Any, weights: Any, placed: Any
) -> Truth:
    """Build a subtree of boxes at a node that has neither leaf nor children; O(n log n).

    `box` has low and high of every attribute, box after box; `placed` receives each box's position.
    The caller updates the parents' bounds and the hash table. Return False, with the pools in an
    undefined state, if they have no room; room for n / LEAST + 2 leaves and twice as many nodes is
    always enough.
    """
    n = keys.size
    dims = s.meta[M_DIMS]
    order = np.arange(n).astype(np.int32)
    values = np.empty(n, dtype=np.float64)
    stack = [(root, 0, n, True)]
    made = [root]
    while len(stack) > 0:
        node, start, end, upper = stack.pop()
        m = end - start
        if s.meta[M_LEAVES] + 1 >= s.leaf_node.size or s.meta[M_NODES] + 2 > s.nodes.size // 8:
            return False
        if m <= FILL or n < LEAF:  # a full leaf becomes two
            _fill_leaf(s, node, box, keys, ages, narrow, weights, order, start, end, placed)
            continue
        leaves = (m + FILL - 1) // FILL
        nth = start + (m * (leaves // 2)) // leaves
        route, dim, apart = choose(box, order, start, end, dims)
        upper = upper and m > MANY
        if upper and not apart:
            upper = crowd(box, order, start, end, dims) > CROWD
            if upper:
                route = 2 * dims
        border, bar, age = partition(
            box, narrow, ages, values, order, start, end, nth, route, dims, apart
        )
        if border - start < LEAST or end - border < LEAST:
            route = 2 * dims
            border, bar, age = partition(
                box, narrow, ages, values, order, start, end, nth, route, dims, False
            )
        pair = fresh_pair(s)
        at = node * 16
        s.links[at + L_CHILD] = pair
        s.links[at + L_DIM] = dim
        s.links[at + L_LEAF] = -1
        s.links[at + L_COUNT] = 0
        s.links[at + L_ROUTE] = route
        s.routes[2 * node] = bar
        s.routes[2 * node + 1] = age
        s.links[pair * 16 + L_PARENT] = node
        s.links[pair * 16 + 16 + L_PARENT] = node
        made.append(pair)
        stack.append((pair + 1, border, end, upper and apart))
        stack.append((pair, start, border, upper))
    _close(s, made)
    return True


@inner
def _close(s: Any, made: Any) -> None:
    """Set bounds, planes and heights of the new nodes, children before parents."""
    for k in range(len(made) - 1, -1, -1):
        for side in range(1 if k == 0 else 2):
            node = made[k] + side
            child = s.links[node * 16 + L_CHILD]
            if child >= 0:
                gather_bounds(s.bounds, s.nodes, s.links, node, s.meta[M_DIMS])
                taller = max(s.links[child * 16 + L_HEIGHT], s.links[child * 16 + 16 + L_HEIGHT])
                s.links[node * 16 + L_HEIGHT] = taller + 1
