"""Where to split a set of boxes, and the splitting itself.

How `choose` selects the route, in this order:

1. *Sets apart.* Where some boxes leave an attribute open and some do not, these are
   separated first. So subscriptions to different sets of attributes end up in different
   subtrees, each of which has only its own attributes.
2. *Narrow from wide.* Where a point in the middle meets many boxes, the narrower half is
   separated before any split in space, and again the narrower half of that, until few are
   met: `top` finds the best in a small tree, and the narrowest are not mixed with others.
3. *Space.* The attribute with the least expected cost, the chance that an event which visits
   the node visits the left child plus the chance that it visits the right one: 1 at best,
   2 at worst.
4. *Rank.* Where boxes overlap so much that space does not help, narrow ones are separated
   from wide ones and old from new, which serves `top`, and which always works, even
   for a million equal boxes: no two have the same age.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nearcast.index.boxes.pools import (
    HIGHEST,
    Real,
    Truth,
    Whole,
)
from nearcast.kernels import inner

MANY = 2048  # from this many boxes on a sample's quantile is as good as the true one
CROWD = 32  # a point that meets at most this many boxes does not meet many
SAMPLE = 64  # boxes inspected to choose a route
LEAST = 12  # least boxes of a leaf after a build of more than FILL
POOR = 1.7  # a split in space with this expected cost or more is not worth it


@inner
def route_value(box: Any, at: Whole, route: Whole, dims: Whole, narrow: Real) -> Real:
    """Return the number of a box by which a route decides."""
    if route < 2 * dims:
        return box[at + route]
    return narrow


@inner
def _apart(box: Any, order: Any, start: Whole, end: Whole, step: Whole, dims: Whole) -> Whole:
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


@inner
def _cost(
    box: Any, order: Any, start: Whole, end: Whole, step: Whole, dims: Whole, i: Whole
) -> Any:
    """Return the expected cost of a split of attribute i, and the route (-1: impossible).

    The trial split is at the mean.
    """
    least, most = np.inf, -np.inf
    low_least, low_most = np.inf, -np.inf
    low_sum, high_sum, count = 0.0, 0.0, 0
    for k in range(start, end, step):
        low = box[order[k] * 2 * dims + 2 * i]
        high = box[order[k] * 2 * dims + 2 * i + 1]
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
    if not whole > 0.0:  # the smallest floats have no quarters
        return 2.0, -1
    return (left + right) / whole, 2 * i + side


@inner
def crowd(box: Any, order: Any, start: Whole, end: Whole, dims: Whole) -> Real:
    """Return how many of the boxes contain the centre of one of them, by a sample."""
    step, probes = 256, 64
    rows = np.empty(((end - start) // step, 2 * dims), dtype=np.float64)
    for k in range(rows.shape[0]):
        at = np.int64(order[start + k * step]) * 2 * dims
        for c in range(2 * dims):
            rows[k, c] = box[at + c]
    found = 0
    for probe in range(probes):
        at = np.int64(order[start + step // 2 + probe * ((end - start - step) // probes)])
        for k in range(rows.shape[0]):
            inside = True
            for i in range(dims):
                low, high = box[at * 2 * dims + 2 * i], box[at * 2 * dims + 2 * i + 1]
                x = low * 0.5 + high * 0.5
                if low < -HIGHEST or high > HIGHEST:
                    x = high if low < -HIGHEST else low
                if not (rows[k, 2 * i] <= x <= rows[k, 2 * i + 1]):
                    inside = False
                    break
            found += inside
    return found * step / probes


@inner
def choose(box: Any, order: Any, start: Whole, end: Whole, dims: Whole) -> Any:
    """Return route, test attribute, and whether to take sets apart, for order[start:end]."""
    step = max(1, (end - start) // SAMPLE)
    apart = _apart(box, order, start, end, step, dims)
    if apart >= 0:
        return apart, apart // 2, True
    best, best_route = np.inf, -1
    for i in range(dims):
        cost, route = _cost(box, order, start, end, step, dims, i)
        if route >= 0 and cost < best:
            best, best_route = cost, route
    if best_route < 0:
        return 2 * dims, 0, False
    if best > POOR:
        return 2 * dims, best_route // 2, False
    return best_route, best_route // 2, False


@inner
def _select(values: Any, order: Any, start: Whole, end: Whole, nth: Whole) -> None:
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


@inner
def _pack(values: Any, order: Any, start: Whole, end: Whole, bar: Real, equal: Truth) -> Whole:
    """Move values below the bar (or equal, if `equal`) to the left; return the border."""
    at = start
    for k in range(start, end):
        value = values[k]
        if value < bar or (equal and value == bar):
            values[k], values[at] = values[at], value
            order[k], order[at] = order[at], order[k]
            at += 1
    return at


@inner
def _divide(values: Any, order: Any, start: Whole, end: Whole, nth: Whole) -> Any:
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


@inner
def _divide_roughly(
    box: Any, order: Any, start: Whole, end: Whole, nth: Whole, route: Whole, dims: Whole
) -> Any:
    """Split many boxes by a coordinate, near the nth by a sample, in one pass."""
    step = (end - start) // (2 * SAMPLE)
    sample = np.empty(2 * SAMPLE, dtype=np.float64)
    for k in range(2 * SAMPLE):
        sample[k] = box[np.int64(order[start + k * step]) * 2 * dims + route]
    middle = (nth - start) * 2 * SAMPLE // (end - start)
    _select(sample, np.empty(2 * SAMPLE, dtype=np.int32), 0, 2 * SAMPLE, middle)
    bar = sample[middle]
    stride, first = np.uint64(2 * dims), np.uint64(route)
    border = np.uint64(start)
    for k in range(np.uint64(start), np.uint64(end)):
        row = order[k]
        below = box[np.uint64(row) * stride + first] < bar
        order[k] = order[border]
        order[border] = row
        border += np.uint64(below)
    return np.int64(border), bar


@inner
def _divide_by_rank(
    ages: Any, values: Any, order: Any, start: Whole, end: Whole, nth: Whole
) -> Any:
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


@inner
def partition(
    box: Any,
    narrow: Any,
    ages: Any,
    values: Any,
    order: Any,
    start: Whole,
    end: Whole,
    nth: Whole,
    route: Whole,
    dims: Whole,
    sets_apart: Truth,
) -> Any:
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
