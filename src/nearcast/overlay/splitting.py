"""Splitting a group that has too many members (trap T3.2): Guttman's quadratic split, and R*'s.

Both take the boxes and the least size of a part and return two lists of positions that partition
them.

Read next: `messages.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from itertools import combinations

from nearcast.model.errors import OutOfRangeError
from nearcast.overlay.bounds import Bounds, Extent, intersection, union, union_of


class Split(Enum):
    """The algorithm that splits a group."""

    QUADRATIC = "quadratic"
    RSTAR = "rstar"


def split(
    boxes: Sequence[Bounds], least: int, extent: Extent, way: Split
) -> tuple[list[int], list[int]]:
    """Partition the positions of `boxes` into two parts of at least `least`; O(m² n)."""
    if len(boxes) < 2 * least or least < 1:
        raise OutOfRangeError(f"{len(boxes)} boxes", expected=f"at least {2 * least} to split")
    return (quadratic if way is Split.QUADRATIC else rstar)(boxes, least, extent)


def quadratic(boxes: Sequence[Bounds], least: int, extent: Extent) -> tuple[list[int], list[int]]:
    """Start from the pair that wastes most together; add the most decided member next."""
    seeds = max(combinations(range(len(boxes)), 2), key=lambda pair: _waste(boxes, pair, extent))
    parts = ([seeds[0]], [seeds[1]])
    covers = [boxes[seeds[0]], boxes[seeds[1]]]
    rest = [place for place in range(len(boxes)) if place not in seeds]
    while rest:
        for part in parts:
            if len(part) + len(rest) == least:
                part.extend(rest)
                return parts
        growth = {
            place: tuple(extent.enlargement(cover, boxes[place]) for cover in covers)
            for place in rest
        }
        place = max(rest, key=lambda p: abs(growth[p][0][0] - growth[p][1][0]))
        rest.remove(place)
        keys = [
            (growth[place][side], extent.volume(covers[side]), len(parts[side])) for side in (0, 1)
        ]
        side = 0 if keys[0] <= keys[1] else 1
        parts[side].append(place)
        covers[side] = union(covers[side], boxes[place])
    return parts


def _waste(boxes: Sequence[Bounds], pair: tuple[int, int], extent: Extent) -> tuple[float, float]:
    a, b = boxes[pair[0]], boxes[pair[1]]
    both = union(a, b)
    return (
        extent.volume(both) - extent.volume(a) - extent.volume(b),
        extent.margin(both) - extent.margin(a) - extent.margin(b),
    )


def rstar(boxes: Sequence[Bounds], least: int, extent: Extent) -> tuple[list[int], list[int]]:
    """Choose the axis with the least margins, then the cut with the least overlap.

    R*'s split without its forced re-insertion: here an entry is a peer, and moving it costs
    messages.
    """
    best: tuple[float, list[list[int]]] | None = None
    for axis in range(extent.dimensions):
        orders = [
            sorted(range(len(boxes)), key=lambda p: (boxes[p][end][axis], boxes[p][1 - end][axis]))
            for end in (0, 1)
        ]
        total = sum(_margins(boxes, order, least, extent) for order in orders)
        if best is None or total < best[0]:
            best = (total, orders)
    assert best is not None
    cuts = [
        (order[:cut], order[cut:])
        for order in best[1]
        for cut in range(least, len(boxes) - least + 1)
    ]
    return min(cuts, key=lambda parts: _cut_cost(boxes, parts, extent))


def _margins(boxes: Sequence[Bounds], order: list[int], least: int, extent: Extent) -> float:
    total = 0.0
    for cut in range(least, len(order) - least + 1):
        total += extent.margin(union_of(boxes[p] for p in order[:cut]))
        total += extent.margin(union_of(boxes[p] for p in order[cut:]))
    return total


def _cut_cost(
    boxes: Sequence[Bounds], parts: tuple[list[int], list[int]], extent: Extent
) -> tuple[float, float]:
    first, second = (union_of(boxes[p] for p in part) for part in parts)
    both = intersection(first, second)
    overlap = extent.volume(both) if both is not None else 0.0
    return overlap, extent.volume(first) + extent.volume(second)
