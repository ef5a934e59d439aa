"""Intervals for a server: a table at first, an `IntervalSkipList` when its kernels are compiled.

As `nearcast/index/boxes/boxes.py` does for boxes: NumPy scans the table as a whole, and the kernels
are not even imported for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from nearcast.index.intervals.input import LARGEST, check_interval, key_in_use, key_missing
from nearcast.kernels import is_switched, on_switch

if TYPE_CHECKING:
    from nearcast.index.intervals.interval_skip_list import IntervalSkipList

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def new_intervals(extent: tuple[float, float], dimensions: int) -> AnyIntervals:
    """Return an empty `IntervalSkipList`, or its substitute until its kernels are compiled."""
    if not is_switched():
        return Intervals(extent, dimensions)
    from nearcast.index.intervals.interval_skip_list import IntervalSkipList

    return IntervalSkipList(extent, dimensions=dimensions)


class IntervalTable:
    """Intervals in plain arrays, a row for each key; as `IntervalSkipList`, without ranks.

    Complexity: changes O(1), growth amortised; queries O(greatest key).
    """

    __slots__ = ("_ages", "_bounds", "_count", "_weights")

    def __init__(self) -> None:
        self._count = 0
        self._bounds: Floats = np.empty((2, 0))  # lows, highs; a row without interval: inf, -inf
        self._weights: Floats = np.empty(0)
        self._ages: Ints = np.empty(0, np.int64)

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: object) -> bool:
        lows = self._bounds[0]
        return isinstance(key, int) and 0 <= key < lows.size and bool(lows[key] < math.inf)

    def add(self, key: int, low: float, high: float, *, weight: float = 1.0, age: int = 0) -> None:
        """Add an interval under a new key."""
        check_interval(low, high, weight, "add")
        if key in self:
            raise key_in_use(key, "add")
        if key >= self._ages.size:
            more = max(64, key + 1 - self._ages.size, self._ages.size)
            empty = np.array([[math.inf], [-math.inf]]).repeat(more, axis=1)
            self._bounds = np.concatenate([self._bounds, empty], axis=1)
            self._weights = np.concatenate([self._weights, np.ones(more)])
            self._ages = np.concatenate([self._ages, np.zeros(more, np.int64)])
        self._bounds[:, key] = low, high
        self._weights[key], self._ages[key] = weight, age
        self._count += 1

    def remove(self, key: int) -> None:
        """Remove an interval."""
        if key not in self:
            raise key_missing(key, "remove")
        self._bounds[:, key] = math.inf, -math.inf
        self._count -= 1

    def stab(self, x: float) -> Ints:
        """Return the keys of all intervals that contain x."""
        return self.meeting(x, x)

    def meeting(self, low: float, high: float) -> Ints:
        """Return the keys of all intervals that meet [low, high]."""
        lows, highs = self._bounds
        low, high = max(low, -LARGEST), min(high, LARGEST)  # no row without interval meets these
        return np.flatnonzero((lows <= high) & (highs >= low))

    def stab_many(self, xs: npt.ArrayLike) -> tuple[Ints, Ints]:
        """Return (offsets, keys): the keys for xs[i] are keys[offsets[i]:offsets[i + 1]]."""
        found = [self.stab(x) for x in np.asarray(xs, np.float64).tolist()]
        offsets = np.cumsum([0, *map(len, found)])
        return offsets, np.concatenate([np.empty(0, np.int64), *found])

    def interval(self, key: int) -> tuple[float, float]:
        """Return the bounds of an interval."""
        if key not in self:
            raise key_missing(key, "interval")
        low, high = self._bounds[:, key].tolist()
        return low, high

    def listed(self, extent: tuple[float, float], dimensions: int) -> IntervalSkipList:
        """Return a list of the same intervals, with the same keys and ages."""
        from nearcast.index.intervals.interval_skip_list import IntervalSkipList

        keys = np.flatnonzero(self._bounds[0] < math.inf)
        lows, highs = self._bounds[:, keys]
        return IntervalSkipList.from_arrays(
            keys,
            lows,
            highs,
            weights=self._weights[keys],
            ages=self._ages[keys],
            extent=extent,
            dimensions=dimensions,
        )


class Intervals:
    """An `IntervalTable` that becomes an `IntervalSkipList` when the kernels are compiled.

    The methods of either are attributes of this object, so that the indirection costs nothing.
    """

    __slots__ = (
        "__weakref__",
        "_dimensions",
        "_extent",
        "_used",
        "add",
        "interval",
        "meeting",
        "remove",
        "stab",
        "stab_many",
        "top",
    )

    add: Callable[..., None]
    remove: Callable[[int], None]
    stab: Callable[[float], Ints]
    meeting: Callable[[float, float], Ints]
    stab_many: Callable[[npt.ArrayLike], tuple[Ints, Ints]]
    interval: Callable[[int], tuple[float, float]]
    top: Callable[..., list[tuple[float, int, int]]]

    def __init__(self, extent: tuple[float, float], dimensions: int) -> None:
        self._extent = extent
        self._dimensions = dimensions
        self._use(IntervalTable())
        on_switch(self.become_listed)

    def __len__(self) -> int:
        return len(self._used)

    def __contains__(self, key: object) -> bool:
        return key in self._used

    def become_listed(self) -> None:
        """Build the list, and use it from now on. O(n log n)."""
        if isinstance(self._used, IntervalTable):
            used = self._used.listed(self._extent, self._dimensions)
            self._use(used)
            self.top = used.top

    def _use(self, used: IntervalTable | IntervalSkipList) -> None:
        self._used = used
        self.add, self.remove, self.interval = used.add, used.remove, used.interval
        self.stab, self.meeting, self.stab_many = used.stab, used.meeting, used.stab_many


AnyIntervals: TypeAlias = "IntervalSkipList | Intervals"
