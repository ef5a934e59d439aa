"""Scores, and the heap of the best k: shared by ranking in the list and in runs.

A score is a · width + b · offset - c · weight, less is better, ties go to the older interval.
The offset is the distance of the value from the interval's centre as a share of half its width:
0 at the centre, 1 at the ends; 0 also where an interval is open on a side, or a point. This is
the rank `centre` of `BoxIndex` too.

Previous: `queries.py`; next: `scores.py`.
"""

from __future__ import annotations

import math

from nearcast.index.intervals.memory import (
    S_KEYS,
    bits_of,
    float_of,
    load,
    store,
    value_of,
)
from nearcast.index.intervals.nodes import ABOVE_ALL, BELOW_ALL
from nearcast.kernels import inner


@inner
def offset_of(first, above, opens, x):  # type: ignore[no-untyped-def]
    """Return the distance of x from the centre: 0 there, 1 at the ends."""
    if first == BELOW_ALL or (above == ABOVE_ALL and opens & 2):
        return 0.0
    low = value_of(first - (opens & 1))
    high = value_of(above - 1 + ((opens >> 1) & 1))
    below = x * 0.5 - low * 0.5
    beyond = high * 0.5 - x * 0.5
    if not 0.0 < below + beyond < math.inf:
        return 0.0
    return abs(below - beyond) / (below + beyond)


@inner
def blend(width, offset, weight, a, b, c):  # type: ignore[no-untyped-def]
    """Return a score, lower is better. Monotone in each argument, rounding included."""
    score = 0.0
    if a != 0.0:
        score += a * width
    if b != 0.0:
        score += b * offset
    if c != 0.0:
        score -= c * weight
    return score


@inner
def copy_triple(target, source):  # type: ignore[no-untyped-def]
    """Copy three words."""
    store(target, 0, load(source, 0))
    store(target, 1, load(source, 1))
    store(target, 2, load(source, 2))


@inner
def worse(score, age, best):  # type: ignore[no-untyped-def]
    """Return whether (score, age) comes after the candidate at `best`."""
    other = float_of(load(best, 0))
    return score > other or (score == other and age > load(best, 1))


@inner
def sink_best(bests, place, size, spare):  # type: ignore[no-untyped-def]
    """Sift a candidate down the heap of the best; the worst of them is on top."""
    spot = place
    copy_triple(spare, bests + 24 * spot)
    while True:
        child = 2 * spot + 1
        if child >= size:
            break
        left = bests + 24 * child
        if child + 1 < size and worse(float_of(load(left + 24, 0)), load(left + 24, 1), left):
            child += 1
        chosen = bests + 24 * child
        if not worse(float_of(load(chosen, 0)), load(chosen, 1), spare):
            break
        copy_triple(bests + 24 * spot, chosen)
        spot = child
    copy_triple(bests + 24 * spot, spare)


@inner
def rise_best(bests, place, spare):  # type: ignore[no-untyped-def]
    """Sift the candidate at the end of the heap up."""
    spot = place
    copy_triple(spare, bests + 24 * spot)
    score = float_of(load(spare, 0))
    age = load(spare, 1)
    while spot > 0:
        parent = (spot - 1) >> 1
        if not worse(score, age, bests + 24 * parent):
            break
        copy_triple(bests + 24 * spot, bests + 24 * parent)
        spot = parent
    copy_triple(bests + 24 * spot, spare)


@inner
def offer(bests, size, k, spare, score, age, slot):  # type: ignore[no-untyped-def]
    """Add a candidate to the best k if it belongs there; return their new number."""
    if size == k and worse(score, age, bests):
        return size
    candidate = bests + 24 * (size if size < k else 0)
    store(candidate, 0, bits_of(score))
    store(candidate, 1, age)
    store(candidate, 2, slot)
    if size < k:
        rise_best(bests, size, spare)
        return size + 1
    sink_best(bests, 0, size, spare)
    return size


@inner
def write_best(s, bests, size, spare, out):  # type: ignore[no-untyped-def]
    """Empty the heap, the worst first, into `out` from its end."""
    keys = load(s, S_KEYS)
    for last in range(size - 1, -1, -1):
        store(out, last, load(keys, load(bests, 2)))
        copy_triple(bests, bests + 24 * last)
        sink_best(bests, 0, last, spare)
