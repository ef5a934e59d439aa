"""E(x): how many events fall into a box (paper 3, "Tree"; trap T3.5).

Volume assumes that events are spread evenly. Where events were counted, a histogram is better.
Every density has a `kind`, so that a result can name the one it used.

Read next: `election.py`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import product
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from nearcast.model.errors import LimitError, MisuseError, OutOfRangeError
from nearcast.overlay.bounds import FLOOR, Bounds, Extent

MOST_CELLS = 4_000_000


class Density(Protocol):
    """The function E(x). It is monotonic: `a` within `b` implies E(a) ≤ E(b)."""

    kind: str

    def expected(self, box: Bounds) -> float:
        """Return the share of all events that fall into the box."""
        ...


class UniformDensity:
    """Events spread evenly over the space: E(x) is the volume of x. O(n).

    >>> UniformDensity(Extent((0.0,), (10.0,))).expected(((2.0,), (7.0,)))
    0.5
    """

    kind = "volume"

    def __init__(self, extent: Extent) -> None:
        self.expected = extent.volume


class GridDensity:
    """E(x) from counted events in a grid of cells, evenly spread within each cell.

    Boxes without volume count as `FLOOR` of the range wide. Complexity: O(4ⁿ) for n attributes,
    whatever the number of cells (a table of running sums); meant for n ≤ 4. Beyond that, use
    `MarginalDensity`.

    >>> extent = Extent((0.0,), (10.0,))
    >>> GridDensity(extent, np.array([3, 1])).expected(((0.0,), (5.0,)))
    0.75
    """

    kind = "histogram"

    def __init__(self, extent: Extent, counts: NDArray[np.generic]) -> None:
        table = np.asarray(counts, dtype=np.float64)
        if table.ndim != extent.dimensions or table.size == 0:
            raise MisuseError(
                f"a histogram of {table.ndim} dimensions and {table.size} cells",
                where="GridDensity",
                expected=f"{extent.dimensions} dimensions",
            )
        if table.size > MOST_CELLS:
            raise LimitError(f"{table.size} cells", expected=f"at most {MOST_CELLS}")
        if not np.isfinite(table).all() or (table < 0).any() or table.sum() <= 0:
            raise OutOfRangeError("counts that are no counts", expected="numbers ≥ 0, not all 0")
        running = np.pad(table / table.sum(), [(1, 0)] * table.ndim)
        for axis in range(table.ndim):
            running = running.cumsum(axis=axis)
        self._running = running.ravel().tolist()
        self._strides = [int(stride // 8) for stride in running.strides]
        self._cells = table.shape
        self._extent = extent

    @classmethod
    def of_events(cls, extent: Extent, points: NDArray[np.float64], cells: int) -> GridDensity:
        """Count points, one row each, into `cells` cells per attribute."""
        ranges = list(zip(extent.lows, extent.highs, strict=True))
        if cells**extent.dimensions > MOST_CELLS:
            raise LimitError(f"{cells}^{extent.dimensions} cells", expected=f"≤ {MOST_CELLS}")
        return cls(extent, np.histogramdd(points, bins=cells, range=ranges)[0])

    def expected(self, box: Bounds) -> float:
        """Return the share of all counted events that fall into the box."""
        sides = [
            (self._place(axis, low), self._place(axis, high))
            for axis, (low, high) in enumerate(_widened(self._extent, box))
        ]
        total = 0.0
        for corner in product((0, 1), repeat=len(sides)):
            sign = -1.0 if (len(corner) - sum(corner)) % 2 else 1.0
            places = [side[end] for side, end in zip(sides, corner, strict=True)]
            total += sign * self._below(places, 0, 0)
        return max(0.0, total)

    def _place(self, axis: int, value: float) -> tuple[int, float]:
        low, high = self._extent.lows[axis], self._extent.highs[axis]
        cells = self._cells[axis]
        position = min(max((value - low) / (high - low) * cells, 0.0), float(cells))
        cell = min(int(position), cells - 1)
        return cell, position - cell

    def _below(self, places: Sequence[tuple[int, float]], axis: int, offset: int) -> float:
        """Return the share below a corner: multilinear between the running sums around it."""
        if axis == len(places):
            return float(self._running[offset])
        cell, part = places[axis]
        stride = self._strides[axis]
        offset += cell * stride
        lower = self._below(places, axis + 1, offset) if part < 1.0 else 0.0
        upper = self._below(places, axis + 1, offset + stride) if part > 0.0 else 0.0
        return lower * (1.0 - part) + upper * part


class MarginalDensity:
    """E(x) from one sorted sample per attribute, the attributes taken as independent. O(n log s).

    >>> extent = Extent((0.0, 0.0), (10.0, 10.0))
    >>> points = np.array([[1.0, 1.0], [2.0, 2.0], [9.0, 3.0], [9.5, 9.0]])
    >>> MarginalDensity(extent, points).expected(((0.0, 0.0), (5.0, 5.0)))
    0.375
    """

    kind = "marginals"

    def __init__(self, extent: Extent, points: NDArray[np.float64]) -> None:
        if points.ndim != 2 or points.shape[1] != extent.dimensions or len(points) == 0:
            raise MisuseError(f"points of shape {points.shape}", expected="one row per event")
        self._extent = extent
        self._columns = [sorted(column) for column in points.T.tolist()]

    def expected(self, box: Bounds) -> float:
        """Return the product over the attributes of the share of events within the side."""
        share = 1.0
        for column, (low, high) in zip(self._columns, _widened(self._extent, box), strict=True):
            inside = bisect_right(column, high) - _below(column, low)
            share *= inside / len(column)
        return share


def _below(column: list[float], value: float) -> int:
    """Return how many values are strictly below."""
    return bisect_right(column, np.nextafter(value, -np.inf))


def _widened(extent: Extent, box: Bounds) -> list[tuple[float, float]]:
    """Return the sides; those narrower than the floor are widened to it around their middle."""
    sides = []
    for low, high, least, most in zip(*box, extent.lows, extent.highs, strict=True):
        start, end = max(low, least), min(high, most)
        short = max(0.0, (most - least) * FLOOR - (end - start))
        sides.append((start - short / 2, end + short / 2))
    return sides
