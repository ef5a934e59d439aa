"""The k best intervals that contain a value, by any blend of ranks.

A score is a · narrowness + b · centre - c · weight, less is better, ties go to the older interval.
In the list the markers of an edge are in order of narrowness: where it alone makes a score too
great, the rest of the edge is skipped. The paper takes edges from the lowest level upwards until it
has k, which errs (trap T1.1); here every edge of the path is compared. In a run, the most promising
nodes are visited first, and not at all if they cannot beat the k-th best. So results are exact,
and matches are not collected.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import carray  # type: ignore[attr-defined]

from nearcast.index.boxes.pools import prefetch
from nearcast.index.intervals.memory import (
    B_HIGH,
    B_LOW,
    B_WEIGHT,
    HEADER,
    L_AGE,
    L_KEY,
    L_STEPS,
    M_DIMENSIONS,
    M_HEIGHT,
    M_RUNS,
    M_TOUCHED,
    N_MARKER,
    N_NEXT,
    STEP,
    memory_at,
    pointer,
)
from nearcast.index.intervals.runs import GROUP, H_BEGIN, H_LEVELS, run_at
from nearcast.kernels import entry_point, inner

SLACK = 1.0 - 1e-9  # more than any rounding error of a bound
TINY = 1e-290  # below this, floats are too sparse for a bound
FLOOR = -20.0  # an interval is at least 2**-20 of the range wide, or counts so


# --- scores


@inner
def _centre(low: Any, high: Any, x: Any, dimensions: Any) -> Any:
    """Return the distance of x from the centre as the box index has it, other attributes open."""
    below, beyond = x * 0.5 - low * 0.5, high * 0.5 - x * 0.5
    width = below + beyond
    if not 0.0 < width < np.inf:
        return 0.0
    offset = abs(below - beyond) / width
    return math.sqrt(offset * offset / dimensions)


@inner
def _score(narrowness: Any, centre: Any, weight: Any, shares: Any) -> Any:
    """Return the blend; terms in this order, so that it is the same number everywhere."""
    score = 0.0
    if shares[0] > 0.0:
        score += shares[0] * narrowness
    if shares[1] > 0.0:
        score += shares[1] * centre
    if shares[2] > 0.0:
        score -= shares[2] * weight
    return score


@inner
def _least_centre(x: Any, first: Any, beyond: Any, most: Any, width: Any, dimensions: Any) -> Any:
    """Return a lower bound of `_centre` for intervals that contain x.

    They begin from `first` to `beyond`, end by `most`, and are `width` wide at least.
    """
    nearest, farthest = max(0.0, x * 0.5 - beyond * 0.5), x * 0.5 - first * 0.5
    above, above_most = max(0.0, width * 0.5 - farthest), most * 0.5 - x * 0.5
    offset = 0.0
    if nearest > above_most >= 0.0:
        offset = (nearest - above_most) / (nearest + above_most)
    elif above > farthest >= 0.0:
        offset = (above - farthest) / (above + farthest)
    return math.sqrt(offset * offset / dimensions) * SLACK


@inner
def _log2_below(value: Any) -> Any:
    """Return a number at most log2(value), and at most 0.09 less: a float's bits are nearly that.

    The exponent is the whole part, and the logarithm of the mantissa is at least the mantissa - 1.
    """
    return np.float64(value).view(np.int64) * 2.0**-52 - 1023.0


@inner
def _least_score(run: Any, node: Any, x: Any, span_log2: Any, dimensions: Any, shares: Any) -> Any:
    """Return a lower bound of the scores of a node's intervals that contain x.

    Such an interval is at least as wide as x is far from its low end.
    """
    least = run.least_steps[node] * STEP
    beyond = run.first_lows[node + 1]
    narrowness = least
    if shares[0] > 0.0 and x - beyond > TINY:
        narrowness = max(least, _log2_below(x - beyond) - span_log2 - 2.0 * STEP)
    centre = 0.0
    if shares[1] > 0.0:
        width = 2.0 ** (least + span_log2 - STEP) * SLACK if least > FLOOR else 0.0
        first, most = run.first_lows[node], run.greatest_highs[node]
        centre = _least_centre(x, first, min(beyond, x), most, width, dimensions)
    return _score(narrowness, centre, run.greatest_weights[node], shares)


# --- the heap of the best, the worst on top: score, age, key


@inner
def _after(heap: Any, one: Any, other: Any) -> Any:
    if heap[one, 0] != heap[other, 0]:
        return heap[one, 0] > heap[other, 0]
    return heap[one, 1] > heap[other, 1]


@inner
def _swap(heap: Any, one: Any, other: Any) -> None:
    for column in range(3):
        heap[one, column], heap[other, column] = heap[other, column], heap[one, column]


@inner
def _sink(heap: Any, size: Any) -> None:
    at = 0
    while 2 * at + 1 < size:
        down = 2 * at + 1
        if down + 1 < size and _after(heap, down + 1, down):
            down += 1
        if not _after(heap, down, at):
            return
        _swap(heap, at, down)
        at = down


@inner
def _is_hopeless(heap: Any, size: Any, score: Any, age: Any) -> Any:
    """Return whether (score, age) comes after the worst of k that were found."""
    if size < heap.shape[0]:
        return False
    return score > heap[0, 0] or (score == heap[0, 0] and age > heap[0, 1])


@inner
def _offer(heap: Any, size: Any, score: Any, age: Any, key: Any) -> Any:
    """Add a candidate if it is among the best k; return the heap's size."""
    if _is_hopeless(heap, size, score, age):
        return size
    at = size if size < heap.shape[0] else 0
    heap[at, 0], heap[at, 1], heap[at, 2] = score, age, key
    if size == heap.shape[0]:
        _sink(heap, size)
        return size
    while at and _after(heap, at, (at - 1) >> 1):
        _swap(heap, at, (at - 1) >> 1)
        at = (at - 1) >> 1
    return size + 1


# --- searches


@inner
def _best_in_list(m: Any, x: Any, shares: Any, heap: Any) -> Any:
    """Leave the best k of the list in the heap; return its size."""
    size = 0
    touched = 0
    node = HEADER
    dimensions = m.meta[M_DIMENSIONS]
    for level in range(m.meta[M_HEIGHT] - 1, -1, -1):
        while m.ends[m.nodes[node, N_NEXT + level]] <= x:
            node = m.nodes[node, N_NEXT + level]
        cell = m.nodes[node, N_MARKER + level]
        while cell >= 0:
            place = m.cells[cell, 0]
            cell = m.cells[cell, 1]
            touched += 1
            narrowness = m.listed[place, L_STEPS] * STEP
            age = m.listed[place, L_AGE]
            if shares[2] == 0.0 and _is_hopeless(heap, size, shares[0] * narrowness, age):
                if shares[0] * narrowness > heap[0, 0]:
                    break
                continue
            centre = 0.0
            if shares[1] > 0.0:
                centre = _centre(m.bounds[place, B_LOW], m.bounds[place, B_HIGH], x, dimensions)
            score = _score(narrowness, centre, m.bounds[place, B_WEIGHT], shares)
            size = _offer(heap, size, score, age, m.listed[place, L_KEY])
    m.meta[M_TOUCHED] = touched
    return size


@inner
def _push_children(
    m: Any, run: Any, level: Any, node: Any, x: Any, span_log2: Any, shares: Any, heap: Any,
    size: Any, top: Any,
) -> Any:  # fmt: skip
    """Push the promising nodes of `level` below a node, the most promising on top."""
    floor = top
    stack = m.stack
    begin = run.header[H_BEGIN + level]
    dimensions = m.meta[M_DIMENSIONS]
    for child in range(node * GROUP, (node + 1) * GROUP):
        if run.first_lows[begin + child] > x:
            break
        if run.greatest_highs[begin + child] < x:
            continue
        bound = _least_score(run, begin + child, x, span_log2, dimensions, shares)
        age = run.least_ages[begin + child]
        if _is_hopeless(heap, size, bound, age):
            continue
        spot = top
        while spot > floor and (
            bound > stack[spot - 1, 0] or (bound == stack[spot - 1, 0] and age > stack[spot - 1, 1])
        ):
            stack[spot, 0], stack[spot, 1] = stack[spot - 1, 0], stack[spot - 1, 1]
            stack[spot, 2] = stack[spot - 1, 2]
            spot -= 1
        stack[spot, 0], stack[spot, 1], stack[spot, 2] = bound, age, child * GROUP + level
        top += 1
        if level == 1:
            for half in (0, GROUP // 2):
                prefetch(run.lows, child * GROUP + half)
                prefetch(run.highs, child * GROUP + half)
                prefetch(run.steps, child * GROUP + half)
    return top


@inner
def _scan(m: Any, run: Any, group: Any, x: Any, shares: Any, heap: Any, size: Any) -> Any:
    """Offer the intervals of a group that contain x."""
    for place in range(group * GROUP, (group + 1) * GROUP):
        if run.lows[place] <= x <= run.highs[place]:
            centre = 0.0
            if shares[1] > 0.0:
                low, high = run.lows[place], run.highs[place]
                centre = _centre(low, high, x, m.meta[M_DIMENSIONS])
            score = _score(run.steps[place] * STEP, centre, run.weights[place], shares)
            if size == heap.shape[0] and score > heap[0, 0]:
                continue
            size = _offer(heap, size, score, run.ages[place], run.keys[place])
    return size


@inner
def _best_in_run(
    m: Any, number: Any, x: Any, span_log2: Any, shares: Any, heap: Any, size: Any
) -> Any:
    """Improve the heap by a run's intervals; return its size."""
    run = run_at(m, number)
    level = run.header[H_LEVELS] + 1
    node: Any = 0
    top = 0
    while True:
        if level > 1:
            top = _push_children(m, run, level - 1, node, x, span_log2, shares, heap, size, top)
        else:
            size = _scan(m, run, node, x, shares, heap, size)
            m.meta[M_TOUCHED] += GROUP
        while top and _is_hopeless(heap, size, m.stack[top - 1, 0], m.stack[top - 1, 1]):
            top -= 1
        if top == 0:
            return size
        top -= 1
        level = np.int64(m.stack[top, 2]) % GROUP
        node = np.int64(m.stack[top, 2]) // GROUP


@entry_point("int64, float64, int64, float64, float64, float64, float64, int64")
def top(
    address: Any, x: Any, k: Any, span_log2: Any, narrowest: Any, centre: Any, weight: Any, out: Any
) -> Any:
    """Write (score, age, key) of the k best that contain x, best first; return how many.

    `span_log2` is of the attribute's range; the shares of a blend follow it.
    """
    m = memory_at(address)
    heap = carray(pointer(out), (k, 3), np.float64)
    shares = (narrowest, centre, weight)
    size = _best_in_list(m, x, shares, heap)
    for number in range(m.meta[M_RUNS]):
        size = _best_in_run(m, number, x, span_log2, shares, heap, size)
    for last in range(size - 1, 0, -1):
        _swap(heap, 0, last)
        _sink(heap, last)
    return size
