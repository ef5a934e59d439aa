"""The boxes of a filter index that constrain one attribute, in an interval skip list each.

Subscriptions such as `20 <= age < 25` constrain one attribute of their space: they are intervals,
as in paper 1. There is one list for each attribute of a filter index.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nearcast.index.intervals.intervals import AnyIntervals, new_intervals
from nearcast.matching.ranking import Bounds, Rank
from nearcast.model import Box, Space

Ids = NDArray[np.int64]
Scored = tuple[float, int, int]  # score, birth number, box id


def only_attribute(lows: Sequence[float], highs: Sequence[float]) -> int | None:
    """Return the attribute that a box constrains, if it is the only one and has two ends."""
    found = None
    for at, (low, high) in enumerate(zip(lows, highs, strict=True)):
        if low == -math.inf and high == math.inf:
            continue
        if found is not None or low == -math.inf or high == math.inf:
            return None
        found = at
    return found


class AttributeLists:
    """Intervals by attribute; ids are those of the filter index."""

    __slots__ = ("_lists", "_space")

    def __init__(self, space: Space) -> None:
        self._space = space
        self._lists: dict[int, AnyIntervals] = {}

    def __len__(self) -> int:
        return sum(map(len, self._lists.values()))

    def __bool__(self) -> bool:
        return bool(self._lists)

    def add(
        self, box_id: int, at: int, low: float, high: float, weight: float, birth_number: int
    ) -> None:
        """Add an interval on an attribute."""
        intervals = self._lists.get(at)
        if intervals is None:
            side = self._space.extent.sides[at]
            extent = (side.closed_low, side.closed_high)
            intervals = self._lists[at] = new_intervals(extent, self._space.dimensions)
        intervals.add(box_id, low, high, weight=weight, age=birth_number)

    def remove(self, box_id: int) -> bool:
        """Remove a box; return False if it is not here."""
        for at, intervals in self._lists.items():
            if box_id in intervals:
                intervals.remove(box_id)
                if not len(intervals):
                    del self._lists[at]
                return True
        return False

    def bounds_of(self, box_id: int) -> Bounds | None:
        """Return the bounds of a box, in all attributes; None if it is not here."""
        for at, intervals in self._lists.items():
            if box_id in intervals:
                low, high = intervals.interval(box_id)
                before, after = at, self._space.dimensions - at - 1
                return (
                    (-math.inf,) * before + (low,) + (-math.inf,) * after,
                    (math.inf,) * before + (high,) + (math.inf,) * after,
                )
        return None

    # --- queries

    def match(self, point: Sequence[float]) -> list[Ids]:
        """Return the boxes that contain a point, one array for each attribute."""
        return [intervals.stab(point[at]) for at, intervals in self._lists.items()]

    def match_box(self, box: Box) -> list[Ids]:
        """Return the boxes that meet a box."""
        return [
            intervals.meeting(box.sides[at].closed_low, box.sides[at].closed_high)
            for at, intervals in self._lists.items()
        ]

    def match_many(self, points: NDArray[np.float64]) -> list[tuple[Ids, Ids]]:
        """Return offsets and boxes for points, for each attribute."""
        return [
            intervals.stab_many(np.ascontiguousarray(points[:, at]))
            for at, intervals in self._lists.items()
        ]

    def top(self, point: Sequence[float], k: int, rank: Rank) -> list[list[Scored]]:
        """Return the k best boxes that contain a point, best first, for each attribute."""
        return [intervals.top(point[at], k, rank) for at, intervals in self._lists.items()]
