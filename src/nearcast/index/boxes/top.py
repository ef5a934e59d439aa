"""The k best matches, without collecting all of them.

A branch-and-bound search: where boxes were split by rank, the child that may contain the better box
is visited first, and no leaf that cannot beat the k-th best box found so far. A node's bounds limit
its scores: least narrowness, greatest weight, least age. For `centre` the ranges of a leaf's lows
and highs give a least distance.

Scores are ordered by (score, age), less is better.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nearcast.index.boxes.match import (
    EIGHT,
    I_CHILD,
    I_COUNT,
    I_DIM,
    I_LEAF,
    NOT_FINITE,
    ONE,
    SIXTEEN,
    ZERO,
    U,
    ask_for_leaf,
    is_finite,
    leaf_hits,
    lowest_bit,
)
from nearcast.index.boxes.pools import (
    L_ROUTE,
    LEAF,
    M_COUNT,
    M_DIMS,
    M_LEVELS,
    Real,
    Truth,
    Whole,
    pools_at,
    prefetch,
)
from nearcast.kernels import entry_point, inner

SLACK = 1.0 - 1e-12  # a bound may be rounded up, but must not exceed the score it bounds
RANKED = U(1) << U(63)  # marks a node on the stack as one half of a split by rank
I_ROUTE = U(L_ROUTE)
TOGETHER = 16  # leaves that are scanned together


@inner
def _offset(low: Real, high: Real, x: Real) -> Real:
    """Return the distance of x from the centre of [low, high]: 0 there, 1 at the borders."""
    below, above = x * 0.5 - low * 0.5, high * 0.5 - x * 0.5
    width = below + above
    if not 0.0 < width < np.inf:
        return 0.0
    return abs(below - above) / width


@inner
def _centre(coords: Any, base: Any, point: Any) -> Real:
    """Return the root mean square of a box's offsets; an open side counts as 0."""
    total = 0.0
    for i in range(point.size):
        at = base + U(2 * i * LEAF)
        offset = _offset(coords[at], coords[at + U(LEAF)], point[i])
        total += offset * offset
    return math.sqrt(total / point.size)


@inner
def _least_offset(least: Real, low: Real, high: Real, most: Real, x: Real) -> Real:
    """Return a bound of the offset for lows in [least, low] and highs in [high, most]."""
    if least == -np.inf or most == np.inf:
        return 0.0
    below, below_most = max(0.0, x * 0.5 - low * 0.5), x * 0.5 - least * 0.5
    above, above_most = max(0.0, high * 0.5 - x * 0.5), most * 0.5 - x * 0.5
    if below > above_most:
        return (below - above_most) / (below + above_most)
    if above > below_most:
        return (above - below_most) / (above + below_most)
    return 0.0


@inner
def _least_centre(bounds: Any, at: Whole, point: Any) -> Real:
    """Return a bound of the distance from the centre, for boxes within a leaf's bounds."""
    total = 0.0
    for i in range(point.size):
        b = U(at + 4 * i)
        offset = _least_offset(
            bounds[b], bounds[b + ONE], bounds[b + U(2)], bounds[b + U(3)], point[i]
        )
        total += offset * offset
    return math.sqrt(total / point.size) * SLACK


@inner
def _in_hull(bounds: Any, at: Whole, point: Any) -> Truth:
    """Return whether the point is inside the hull of a leaf's boxes."""
    for i in range(point.size):
        b = U(at + 4 * i)
        if not bounds[b] <= point[i] <= bounds[b + U(3)]:
            return False
    return True


@inner
def _bound(bounds: Any, at: Whole, blend: Any) -> Real:
    """Return a lower bound of the scores in a node; its rank bounds begin at bounds[at]."""
    score = 0.0
    if blend[0] > 0.0:
        score += blend[0] * bounds[at]
    if blend[2] > 0.0:
        score -= blend[2] * bounds[at + 2]
    return score


@inner
def _before(scores: Any, ages: Any, a: Whole, b: Whole) -> Truth:
    return scores[a] < scores[b] or (scores[a] == scores[b] and ages[a] < ages[b])


@inner
def _swap(scores: Any, ages: Any, items: Any, a: Whole, b: Whole) -> None:
    scores[a], scores[b] = scores[b], scores[a]
    ages[a], ages[b] = ages[b], ages[a]
    items[a], items[b] = items[b], items[a]


@inner
def _rise(scores: Any, ages: Any, items: Any, at: Whole) -> None:
    """Restore a heap, the worst on top, whose entry `at` may belong higher."""
    while at:
        up = (at - 1) >> 1
        if not _before(scores, ages, up, at):
            return
        _swap(scores, ages, items, at, up)
        at = up


@inner
def _sink(scores: Any, ages: Any, items: Any, n: Whole) -> None:
    """Restore a heap of n whose top may belong lower."""
    at = 0
    while 2 * at + 1 < n:
        down = 2 * at + 1
        if down + 1 < n and _before(scores, ages, down, down + 1):
            down += 1
        if not _before(scores, ages, at, down):
            return
        _swap(scores, ages, items, at, down)
        at = down


@inner
def _scan(
    s: Any, leaves: Any, point: Any, blend: Any, scores: Any, ages: Any, best: Any, n: Whole
) -> Whole:
    """Offer the boxes of some leaves to the heap of the best; return its new size."""
    links, bits, coords, bounds = s.links, s.bits, s.coords, s.bounds
    keys, all_ages, narrow, weights = s.keys, s.ages, s.narrow, s.weights
    size, block = 4 * point.size + 3, U(LEAF * 2 * point.size)
    for node in leaves:
        at = np.int64(node) * size
        if not _in_hull(bounds, at, point):
            continue
        if n == best.size:
            bound = _bound(bounds, at + size - 3, blend)
            if blend[1] > 0.0:
                bound += blend[1] * _least_centre(bounds, at, point)
            if bound > scores[0] or (bound == scores[0] and bounds[at + size - 2] > ages[0]):
                continue
        leaf = U(links[node * SIXTEEN + I_LEAF])
        base, first = leaf * block, leaf * U(LEAF)
        count = U(links[node * SIXTEEN + I_COUNT])
        found = leaf_hits(coords, base, bits[node * EIGHT], count, point, point, ZERO, ONE)
        while found:
            place = lowest_bit(found)
            found &= found - ONE
            score, age = 0.0, np.float64(all_ages[first + place])
            if blend[0] > 0.0:
                score += blend[0] * narrow[first + place]
            if blend[1] > 0.0:
                score += blend[1] * _centre(coords, base + place, point)
            if blend[2] > 0.0:
                score -= blend[2] * (weights[first + place] if weights.size else 1.0)
            if n < best.size:
                scores[n], ages[n], best[n] = score, age, keys[first + place]
                _rise(scores, ages, best, n)
                n += 1
            elif score < scores[0] or (score == scores[0] and age < ages[0]):
                scores[0], ages[0], best[0] = score, age, keys[first + place]
                _sink(scores, ages, best, n)
    return n


@inner
def _search(s: Any, point: Any, blend: Any, stack: Any, scores: Any, ages: Any, best: Any) -> Whole:
    """Leave the best boxes in a heap (worst on top); return how many.

    Leaves are gathered before they are scanned, so that the memory loads several at once, but not
    beyond the next half of a split by rank, which they may make unnecessary.
    """
    nodes, links, coords, bounds = s.nodes, s.links, s.coords, s.bounds
    dims, size = point.size, 4 * point.size + 3
    block, ranks = U(LEAF * 2 * dims), 4 * dims
    leaves = np.empty(TOGETHER, dtype=np.uint64)
    stack[0] = ZERO
    top, n, waiting = 1, 0, 0
    while top:
        top -= 1
        node = stack[top] & ~RANKED
        if waiting and (waiting == TOGETHER or node != stack[top]):
            n = _scan(s, leaves[:waiting], point, blend, scores, ages, best, n)
            waiting = 0
        if n == best.size and node != stack[top]:
            at = np.int64(node) * size + ranks
            bound = _bound(bounds, at, blend)
            if bound > scores[0] or (bound == scores[0] and bounds[at + 1] > ages[0]):
                continue
        child = links[node * SIXTEEN + I_CHILD]
        if child < 0:
            leaves[waiting] = node
            waiting += 1
            ask_for_leaf(links, coords, node, block)
            for line in range(0, size, 8):
                prefetch(bounds, node * U(size) + U(line))
            continue
        prefetch(nodes, U(child) * EIGHT)
        prefetch(nodes, U(child) * EIGHT + EIGHT)
        x = point[U(links[node * SIXTEEN + I_DIM])]
        plane = node * EIGHT
        left = (nodes[plane] <= x) & (x <= nodes[plane + ONE])
        right = (nodes[plane + U(2)] <= x) & (x <= nodes[plane + U(3)])
        if left and right and links[node * SIXTEEN + I_ROUTE] == 2 * dims:
            # The better one goes on top of the stack.
            at = np.int64(child) * size + ranks
            one, two = _bound(bounds, at, blend), _bound(bounds, at + size, blend)
            later = one < two or (one == two and bounds[at + 1] < bounds[at + size + 1])
            stack[top] = RANKED | (U(child) + U(later))
            stack[top + 1] = RANKED | (U(child) + U(not later))
            top += 2
            continue
        stack[top] = U(child) + ONE
        top += right
        stack[top] = U(child)
        top += left
    return _scan(s, leaves[:waiting], point, blend, scores, ages, best, n)


@entry_point("int64, float64[::1], int32[::1], float64[::1], int64[:, ::1], boolean")
def top_points(
    address: Whole, points: Any, order: Any, blend: Any, out: Any, finite: Truth
) -> Whole:
    """Write the keys of each point's k best boxes, best first; return the last one's count.

    `out`, of shape (points, k), has -1 everywhere. `order` is the order in which to process the
    points. `finite` as in `match_one`.
    """
    s = pools_at(address)
    if finite and not is_finite(points):
        return NOT_FINITE
    dims = s.meta[M_DIMS]
    k = min(out.shape[1], s.meta[M_COUNT])
    scores = np.empty(k, dtype=np.float64)
    ages = np.empty(k, dtype=np.float64)
    best = np.empty(k, dtype=np.int64)
    stack = np.empty(s.meta[M_LEVELS] + 2, dtype=np.uint64)
    n = 0
    for row in order:
        n = 0
        if k:
            point = points[row * dims : (row + 1) * dims]
            n = _search(s, point, blend, stack, scores, ages, best)
        for rest in range(n - 1, -1, -1):
            out[row, rest] = best[0]
            _swap(scores, ages, best, 0, rest)
            _sink(scores, ages, best, rest)
    return n
