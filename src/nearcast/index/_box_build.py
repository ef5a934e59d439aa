"""How a set of boxes becomes a tree, and a full leaf becomes two.

The tree is binary. Each inner node sends a box left or right by one number of it (a *route*):
the low or the high of an attribute, the side in an attribute, or the rank (narrowness, age).
For queries it keeps the hull of either child in one attribute: most children that cannot
hold a match are ruled out by two comparisons.

Which route to take (`_choose`), in this order:

1. *Sets apart.* Where part of the boxes leave an attribute open and part do not, these are
   separated first. So subscriptions to different sets of attributes end up in different
   subtrees, each of which only knows its own attributes.
2. *Space.* The attribute with the least expected cost, the chance that an event which visits
   the node visits the left child plus the chance that it visits the right one: 1 at best,
   2 at worst.
3. *Sides apart.* If large boxes among small ones spoil the split, they are separated.
4. *Rank.* Where boxes overlap so much that space does not help, narrow ones are separated
   from wide ones and old from new, which is what `top` wants, and which always works, even
   for a million equal boxes: no two have the same age.

Read `_box_tree.py` next.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from nearcast.index._box_pools import (
    FILL,
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
)

MANY = 2048  # boxes from which on a sample's quantile is as good as the true one
SAMPLE = 64  # boxes looked at to choose a route
LEAST = 12  # boxes that a build leaves in a leaf at least, where there are more than FILL
POOR = 1.7  # expected cost from which a split in space is not worth having
HIGHEST = np.finfo(np.float64).max


@njit(cache=True)
def fresh_leaf(s: Any) -> int:
    """Take a leaf from the free list or the pool's end; its places are all void."""
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


@njit(cache=True)
def free_leaf(s: Any, leaf: int) -> None:
    """Give a leaf back."""
    s.leaf_node[leaf] = s.meta[M_LEAF_FREE]
    s.meta[M_LEAF_FREE] = leaf


@njit(cache=True)
def fresh_pair(s: Any) -> int:
    """Take two neighbouring nodes; return the left one."""
    pair = s.meta[M_NODE_FREE]
    if pair >= 0:
        s.meta[M_NODE_FREE] = s.links[pair * 16 + L_PARENT]
        return pair
    pair = s.meta[M_NODES]
    s.meta[M_NODES] = pair + 2
    return pair


@njit(cache=True)
def free_pair(s: Any, pair: int) -> None:
    """Give two neighbouring nodes back."""
    s.links[pair * 16 + L_PARENT] = s.meta[M_NODE_FREE]
    s.meta[M_NODE_FREE] = pair


@njit(cache=True)
def clear_bounds(s: Any, node: int) -> None:
    """Make a node's bounds those of no box."""
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


@njit(cache=True)
def widen(
    bounds: Any, node: int, dims: int, box: Any, at: int, narrow: float, age: float, weight: float
) -> None:
    """Make a node's bounds cover one more box, whose numbers begin at box[at].

    (This and the next two take the arrays they need, not all pools: to hand those over costs
    more than what is done here.)
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


@njit(cache=True)
def gather_bounds(bounds: Any, nodes: Any, links: Any, node: int, dims: int) -> bool:
    """Make an inner node's bounds and planes those of its children; say whether they changed."""
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


@njit(cache=True)
def set_planes(bounds: Any, nodes: Any, links: Any, node: int, dims: int) -> None:
    """Copy the children's hulls in the node's test attribute to where queries look."""
    size = 4 * dims + 3
    at = links[node * 16 + L_CHILD] * size + 4 * links[node * 16 + L_DIM]
    nodes[node * 8] = bounds[at]
    nodes[node * 8 + 1] = bounds[at + 3]
    nodes[node * 8 + 2] = bounds[at + size]
    nodes[node * 8 + 3] = bounds[at + size + 3]


@njit(cache=True)
def route_value(box: Any, at: int, route: int, dims: int, narrow: float) -> float:
    """Return the number of a box by which a route decides."""
    if route < 2 * dims:
        return box[at + route]
    if route == 2 * dims:
        return narrow
    side = 2 * (route - 2 * dims - 1)
    return box[at + side + 1] - box[at + side]


@njit(cache=True)
def _apart(box: Any, order: Any, start: int, end: int, step: int, dims: int) -> int:
    """Return the coordinate in which open and bounded boxes are best separated, or -1."""
    best, best_route = 0, -1
    seen = (end - start + step - 1) // step
    for c in range(2 * dims):
        bounded = 0
        for k in range(start, end, step):
            bounded += abs(box[order[k] * 2 * dims + c]) <= HIGHEST
        minority = min(bounded, seen - bounded)
        if minority > best:
            best, best_route = minority, c
    if best * 16 >= seen and best * step >= LEAST:
        return best_route
    return -1


@njit(cache=True)
def _cost(
    box: Any, order: Any, start: int, end: int, step: int, dims: int, i: int, limit: float
) -> tuple[float, int]:
    """Return the expected cost of a split of attribute i, and the route (-1: impossible).

    Boxes whose side exceeds the limit are not looked at. The trial split is at the mean.
    """
    least, most = np.inf, -np.inf
    low_least, low_most = np.inf, -np.inf
    low_sum, high_sum, count = 0.0, 0.0, 0
    for k in range(start, end, step):
        low = box[order[k] * 2 * dims + 2 * i]
        high = box[order[k] * 2 * dims + 2 * i + 1]
        if high - low > limit:
            continue
        count += 1
        if low >= -HIGHEST:
            least, most = min(least, low), max(most, low)
        if high <= HIGHEST:
            least, most = min(least, high), max(most, high)
        low_least, low_most = min(low_least, low), max(low_most, low)
        low_sum += low * 0.0078125  # so that 64 numbers of 1e308 do not overflow
        high_sum += high * 0.0078125
    if count < 2 or not least < most:
        return 2.0, -1
    side = 0 if low_least < low_most and low_least >= -HIGHEST else 1
    mean = (high_sum if side else low_sum) / count * 128.0
    if not abs(mean) <= HIGHEST:
        mean = least * 0.5 + most * 0.5
    left_high, right_low = -np.inf, np.inf
    lefts = 0
    for k in range(start, end, step):
        at = order[k] * 2 * dims + 2 * i
        if box[at + 1] - box[at] > limit:
            continue
        if box[at + side] < mean:
            left_high = max(left_high, box[at + 1])
            lefts += 1
        else:
            right_low = min(right_low, box[at])
    if not 0 < lefts < count:
        return 2.0, -1
    # Quarters keep the differences finite for bounds of either sign near the largest float.
    whole = most * 0.25 - least * 0.25
    left = min(left_high, most) * 0.25 - least * 0.25
    right = most * 0.25 - max(right_low, least) * 0.25
    return (left + right) / whole, 2 * i + side


@njit(cache=True)
def _choose(box: Any, order: Any, start: int, end: int, dims: int) -> tuple[int, int, bool]:
    """Return route, test attribute, and whether to take sets apart, for order[start:end]."""
    step = max(1, (end - start) // SAMPLE)
    apart = _apart(box, order, start, end, step, dims)
    if apart >= 0:
        return apart, apart // 2, True
    best, best_route = np.inf, -1
    for i in range(dims):
        cost, route = _cost(box, order, start, end, step, dims, i, np.inf)
        if route >= 0 and cost < best:
            best, best_route = cost, route
    if best_route < 0:
        return 2 * dims, 0, False
    if best > POOR:
        return 2 * dims, best_route // 2, False
    return best_route, best_route // 2, False


@njit(cache=True)
def _select(values: Any, order: Any, start: int, end: int, nth: int) -> None:
    """Quickselect: values[nth] becomes what it would be if values[start:end] were sorted."""
    lo, hi = start, end - 1
    while lo < hi:
        mid = (lo + hi) >> 1
        a, b, c = values[lo], values[mid], values[hi]
        pivot = max(min(a, b), min(max(a, b), c))
        i, j = lo, hi
        while i <= j:
            while values[i] < pivot:
                i += 1
            while pivot < values[j]:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                order[i], order[j] = order[j], order[i]
                i += 1
                j -= 1
        if nth <= j:
            hi = j
        elif nth >= i:
            lo = i
        else:
            return


@njit(cache=True)
def _pack(values: Any, order: Any, start: int, end: int, bar: float, equal: bool) -> int:
    """Move what is below the bar (or equal to it, if asked) to the left; return the border."""
    at = start
    for k in range(start, end):
        value = values[k]
        if value < bar or (equal and value == bar):
            values[k], values[at] = values[at], value
            order[k], order[at] = order[at], order[k]
            at += 1
    return at


@njit(cache=True)
def _divide(values: Any, order: Any, start: int, end: int, nth: int) -> tuple[int, float]:
    """Split at a value near the nth, equal values together; return the border and the bar.

    The bar is the least value on the right. The border is `start` if all values are equal.
    """
    _select(values, order, start, end, nth)
    bar = values[nth]
    below = _pack(values, order, start, end, bar, False)
    upto = _pack(values, order, below, end, bar, True)
    if below > start and (nth - below <= upto - nth or upto == end):
        return below, bar
    if upto == end:
        return start, bar
    bar = np.inf
    for k in range(upto, end):
        bar = min(bar, values[k])
    return upto, bar


@njit(cache=True)
def _divide_roughly(
    box: Any, order: Any, start: int, end: int, nth: int, route: int, dims: int
) -> tuple[int, float]:
    """Split many boxes by a coordinate, near the nth as a sample has it, in one pass."""
    step = (end - start) // (2 * SAMPLE)
    sample = np.empty(2 * SAMPLE, dtype=np.float64)
    for k in range(2 * SAMPLE):
        sample[k] = box[np.int64(order[start + k * step]) * 2 * dims + route]
    sample.sort()
    bar = sample[(nth - start) * 2 * SAMPLE // (end - start)]
    stride, first = np.uint64(2 * dims), np.uint64(route)
    border = np.uint64(start)
    for k in range(np.uint64(start), np.uint64(end)):
        row = order[k]
        below = box[np.uint64(row) * stride + first] < bar
        order[k] = order[border]
        order[border] = row
        border += np.uint64(below)
    return np.int64(border), bar


@njit(cache=True)
def _divide_by_rank(
    ages: Any, values: Any, order: Any, start: int, end: int, nth: int
) -> tuple[int, float, float]:
    """Split by narrowness and, among equals, by age; return border, bar and age at the bar."""
    _select(values, order, start, end, nth)
    bar = values[nth]
    below = _pack(values, order, start, end, bar, False)
    upto = _pack(values, order, below, end, bar, True)
    if upto - below == 1:
        if below == start:
            below, upto = upto, end
            bar = np.inf
            for k in range(below, end):
                bar = min(bar, values[k])
        return below, bar, 0.0
    for k in range(below, upto):
        values[k] = ages[order[k]]
    _select(values, order, below, upto, max(nth, below + 1))
    nth = max(nth, below + 1)
    return nth, bar, values[nth]


@njit(cache=True)
def _partition(
    box: Any,
    narrow: Any,
    ages: Any,
    values: Any,
    order: Any,
    start: int,
    end: int,
    nth: int,
    route: int,
    dims: int,
    sets_apart: bool,
) -> tuple[int, float, float]:
    """Order order[start:end] by a route; return border, bar and age at the bar."""
    if route < 2 * dims and not sets_apart and end - start > MANY:
        border, bar = _divide_roughly(box, order, start, end, nth, route, dims)
        if border - start >= LEAST and end - border >= LEAST:
            return border, bar, 0.0
    for k in range(start, end):
        row = np.uint64(order[k])
        values[k] = route_value(box, row * np.uint64(2 * dims), route, dims, narrow[row])
    if route == 2 * dims:
        return _divide_by_rank(ages, values, order, start, end, nth)
    if sets_apart:
        bar = -HIGHEST if route % 2 == 0 else np.inf
        return _pack(values, order, start, end, bar, False), bar, 0.0
    border, bar = _divide(values, order, start, end, nth)
    return border, bar, 0.0


@njit(cache=True)
def _fill_leaf(
    s: Any,
    node: int,
    box: Any,
    keys: Any,
    ages: Any,
    narrow: Any,
    weights: Any,
    order: Any,
    start: int,
    end: int,
    placed: Any,
) -> None:
    """Make a node a leaf that holds order[start:end]; note where each box went."""
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
        widen(bounds, node, dims, box, at, narrow[row], ages[row], weight)
    s.bits[node * 8] = dims_seen


@njit(cache=True)
def build(
    s: Any, root: int, box: Any, keys: Any, ages: Any, narrow: Any, weights: Any, placed: Any
) -> bool:
    """Make a subtree of boxes at a node that has neither leaf nor children; O(n log n).

    `box` has low and high of every attribute, box after box; `placed` receives each box's
    position. Parents' bounds and the hash table are the caller's affair. Return False, with
    the pools in disorder, if they have no room; room for n / LEAST + 2 leaves and twice as
    many nodes is always enough.
    """
    n = keys.size
    dims = s.meta[M_DIMS]
    order = np.arange(n).astype(np.int32)
    values = np.empty(n, dtype=np.float64)
    stack = [(root, 0, n)]
    made = [root]
    while len(stack) > 0:
        node, start, end = stack.pop()
        m = end - start
        if s.meta[M_LEAVES] + 1 >= s.leaf_node.size or s.meta[M_NODES] + 2 > s.nodes.size // 8:
            return False
        if m <= FILL or (m <= LEAF and n <= LEAF):
            _fill_leaf(s, node, box, keys, ages, narrow, weights, order, start, end, placed)
            continue
        leaves = (m + FILL - 1) // FILL
        nth = start + (m * (leaves // 2)) // leaves
        route, dim, apart = _choose(box, order, start, end, dims)
        border, bar, age = _partition(
            box, narrow, ages, values, order, start, end, nth, route, dims, apart
        )
        if border - start < LEAST or end - border < LEAST:
            route = 2 * dims
            border, bar, age = _partition(
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
        stack.append((pair + 1, border, end))
        stack.append((pair, start, border))
    _close(s, made)
    return True


@njit(cache=True)
def _close(s: Any, made: Any) -> None:
    """Set bounds, planes and heights of the nodes made, children before parents."""
    for k in range(len(made) - 1, -1, -1):
        for side in range(1 if k == 0 else 2):
            node = made[k] + side
            child = s.links[node * 16 + L_CHILD]
            if child >= 0:
                gather_bounds(s.bounds, s.nodes, s.links, node, s.meta[M_DIMS])
                taller = max(s.links[child * 16 + L_HEIGHT], s.links[child * 16 + 16 + L_HEIGHT])
                s.links[node * 16 + L_HEIGHT] = taller + 1
