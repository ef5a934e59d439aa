"""The k best matches, without looking at all of them.

Best-first search: nodes wait in a heap under the best score that anything in them could
have, by their bounds: least narrowness, greatest weight, and from the ranges of lows and
highs the least distance of the event from a centre. The search ends when the best node
waiting cannot beat the k-th box found. Scores are ordered by (score, age), less is better.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from nearcast.index._box_match import NOT_FINITE, ONE, ZERO, U, is_finite, leaf_hits, lowest_bit
from nearcast.index._box_pools import L_CHILD, L_COUNT, L_LEAF, LEAF, M_COUNT, M_DIMS, pools_at

SLACK = 1.0 - 1e-12  # a bound may be rounded up, but must not exceed the score it bounds


@njit(cache=True)
def _offset(low: float, high: float, x: float) -> float:
    """Return how far x is from the centre of [low, high]: 0 there, 1 at the borders."""
    below, above = x * 0.5 - low * 0.5, high * 0.5 - x * 0.5
    width = below + above
    if not 0.0 < width < np.inf:
        return 0.0
    return abs(below - above) / width


@njit(cache=True)
def _centre(s: Any, position: int, point: Any) -> float:
    """Return the root mean square of a box's offsets; an open side counts as 0."""
    dims = s.meta[M_DIMS]
    base = position // LEAF * LEAF * 2 * dims + position % LEAF
    total = 0.0
    for i in range(dims):
        low, high = s.coords[base + 2 * i * LEAF], s.coords[base + (2 * i + 1) * LEAF]
        offset = _offset(low, high, point[i])
        total += offset * offset
    return math.sqrt(total / dims)


@njit(cache=True)
def _least_offset(least: float, low: float, high: float, most: float, x: float) -> float:
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


@njit(cache=True)
def _bound(s: Any, node: int, point: Any, blend: Any) -> float:
    """Return what no score below a node is under; +inf if the point is outside its hull."""
    dims = s.meta[M_DIMS]
    at = node * (4 * dims + 3)
    score, total = 0.0, 0.0
    for i in range(dims):
        x = point[i]
        least, most = s.bounds[at], s.bounds[at + 3]
        if not least <= x <= most:
            return np.inf
        if blend[1] > 0.0:
            offset = _least_offset(least, s.bounds[at + 1], s.bounds[at + 2], most, x)
            total += offset * offset
        at += 4
    if blend[0] > 0.0:
        score += blend[0] * s.bounds[at]
    if blend[1] > 0.0:
        score += blend[1] * (math.sqrt(total / dims) * SLACK)
    if blend[2] > 0.0:
        score -= blend[2] * s.bounds[at + 2]
    return score


@njit(cache=True)
def _score(s: Any, position: int, point: Any, blend: Any) -> float:
    """Return a box's score; the same operations in the same order as in `_bound`."""
    score = 0.0
    if blend[0] > 0.0:
        score += blend[0] * s.narrow[position]
    if blend[1] > 0.0:
        score += blend[1] * _centre(s, position, point)
    if blend[2] > 0.0:
        score -= blend[2] * (s.weights[position] if s.weights.size else 1.0)
    return score


@njit(cache=True)
def _before(scores: Any, ages: Any, a: int, b: int) -> bool:
    return scores[a] < scores[b] or (scores[a] == scores[b] and ages[a] < ages[b])


@njit(cache=True)
def _swap(scores: Any, ages: Any, items: Any, a: int, b: int) -> None:
    scores[a], scores[b] = scores[b], scores[a]
    ages[a], ages[b] = ages[b], ages[a]
    items[a], items[b] = items[b], items[a]


@njit(cache=True)
def _rise(scores: Any, ages: Any, items: Any, at: int, sign: bool) -> None:
    """Restore a heap whose entry `at` may belong higher; `sign`: the least is on top."""
    while at:
        up = (at - 1) >> 1
        if _before(scores, ages, at, up) != sign:
            return
        _swap(scores, ages, items, at, up)
        at = up


@njit(cache=True)
def _sink(scores: Any, ages: Any, items: Any, n: int, sign: bool) -> None:
    """Restore a heap of n whose top may belong lower."""
    at = 0
    while 2 * at + 1 < n:
        down = 2 * at + 1
        if down + 1 < n and _before(scores, ages, down + 1, down) == sign:
            down += 1
        if _before(scores, ages, down, at) != sign:
            return
        _swap(scores, ages, items, at, down)
        at = down


@njit(cache=True)
def _grown(array: Any) -> Any:
    larger = np.empty(2 * array.size, dtype=array.dtype)
    larger[: array.size] = array
    return larger


@njit(cache=True)
def _scan_leaf(
    s: Any, node: int, point: Any, blend: Any, scores: Any, ages: Any, keys: Any, n: int
) -> int:
    """Offer a leaf's matches to the heap of the best (worst on top); return its new size."""
    leaf = np.int64(s.links[node * 16 + L_LEAF])
    boxes = U(s.links[node * 16 + L_COUNT])
    base = U(leaf * LEAF * 2 * point.size)
    found = leaf_hits(s.coords, base, s.bits[node * 8], boxes, point, point, ZERO, ONE)
    while found:
        position = leaf * LEAF + np.int64(lowest_bit(found))
        found &= found - ONE
        score, age = _score(s, position, point, blend), np.float64(s.ages[position])
        if n < keys.size:
            scores[n], ages[n], keys[n] = score, age, s.keys[position]
            _rise(scores, ages, keys, n, False)
            n += 1
        elif score < scores[0] or (score == scores[0] and age < ages[0]):
            scores[0], ages[0], keys[0] = score, age, s.keys[position]
            _sink(scores, ages, keys, n, False)
    return n


@njit(cache=True)
def _hopeless(score: float, age: float, scores: Any, ages: Any, n: int) -> bool:
    """Say whether nothing from (score, age) up can be among the best."""
    if score == np.inf:
        return True
    return n == scores.size and (score > scores[0] or (score == scores[0] and age > ages[0]))


@njit(cache=True)
def _search(s: Any, point: Any, blend: Any, scores: Any, ages: Any, keys: Any) -> int:
    """Leave the best boxes in a heap (worst on top); return how many."""
    oldest = 4 * s.meta[M_DIMS] + 1
    size = 4 * s.meta[M_DIMS] + 3
    wait_scores = np.empty(128, dtype=np.float64)
    wait_ages = np.empty(128, dtype=np.float64)
    wait_nodes = np.empty(128, dtype=np.int64)
    waiting, n = 0, 0
    node = np.int64(0) if _bound(s, 0, point, blend) < np.inf else np.int64(-1)
    while node >= 0:
        child = np.int64(s.links[node * 16 + L_CHILD])
        follow = np.int64(-1)
        if child < 0:
            n = _scan_leaf(s, node, point, blend, scores, ages, keys, n)
        else:
            one, two = _bound(s, child, point, blend), _bound(s, child + 1, point, blend)
            old_one = s.bounds[child * size + oldest]
            old_two = s.bounds[child * size + size + oldest]
            follow, other = child, child + 1
            if two < one or (two == one and old_two < old_one):
                follow, other = other, follow
                one, two, old_one, old_two = two, one, old_two, old_one
            if _hopeless(one, old_one, scores, ages, n):
                follow = np.int64(-1)
            if not _hopeless(two, old_two, scores, ages, n):
                if waiting == wait_nodes.size:
                    wait_scores, wait_ages = _grown(wait_scores), _grown(wait_ages)
                    wait_nodes = _grown(wait_nodes)
                wait_scores[waiting], wait_ages[waiting] = two, old_two
                wait_nodes[waiting] = other
                _rise(wait_scores, wait_ages, wait_nodes, waiting, True)
                waiting += 1
        if follow < 0 and waiting:
            if _hopeless(wait_scores[0], wait_ages[0], scores, ages, n):
                break
            follow = wait_nodes[0]
            waiting -= 1
            _swap(wait_scores, wait_ages, wait_nodes, 0, waiting)
            _sink(wait_scores, wait_ages, wait_nodes, waiting, True)
        node = follow
    return n


@njit(cache=True)
def top_points(address: int, points: Any, blend: Any, out: Any, finite: bool) -> int:
    """Write the keys of each point's k best boxes, best first; return the last one's count.

    `out`, of shape (points, k), holds -1 everywhere. `finite` as in `match_one`.
    """
    s = pools_at(address)
    if finite and not is_finite(points):
        return NOT_FINITE
    dims = s.meta[M_DIMS]
    k = min(out.shape[1], s.meta[M_COUNT])
    scores = np.empty(k, dtype=np.float64)
    ages = np.empty(k, dtype=np.float64)
    keys = np.empty(k, dtype=np.int64)
    n = 0
    for row in range(out.shape[0]):
        n = 0
        if k:
            n = _search(s, points[row * dims : (row + 1) * dims], blend, scores, ages, keys)
        for rest in range(n - 1, -1, -1):
            out[row, rest] = keys[0]
            _swap(scores, ages, keys, 0, rest)
            _sink(scores, ages, keys, rest, False)
    return n
