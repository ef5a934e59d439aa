"""Cut a space into rectangles: few of them, and few people who move from one to another.

    ┌────────────┬─────┐     A rectangle with more users than a broker should have is cut in two
    │            │     │     by a line, and so on: a tree of lines. Its cost is the sum of
    ├──────┬─────┤     │
    │      │     │     │     a broker for each rectangle at the bottom,
    │      │     ├─────┤     the moves that each line cuts (handovers),
    └──────┴─────┴─────┘     the events near each line, which reach both sides.

The search tries the most promising lines of each rectangle and keeps the tree of the least cost.
With all lines tried it would find the best tree there is (a test compares); with a few, where few
brokers are needed, and one or two elsewhere, it takes a second or two. Complexity: the number of
rectangles seen × the moves inside each; both are bounded by `_MOST_VISITS`.

Paper 0 has no such step: it takes slow regions as they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nearcast.locality.layout.kernels import count_cuts, sort_by_line
from nearcast.locality.layout.movement import CellRect, Movement, Owners

Reach = tuple[int, int]
"""How many cells an event reaches to each side: columns and rows."""

_BANDS = 5  # of each axis and band of the load's share, the best line is a candidate
_FEW_LINES = 6  # if an axis has no more, each is a candidate
_BREADTH = (1, 1, 4, 3, 2, 2, 2, 2, 2)  # candidates that are tried, by brokers needed; then 1
_MOST_VISITS = 40_000_000  # of moves; after that only the best candidate is tried
_EPS = 1e-9


@dataclass(frozen=True, slots=True)
class Prices:
    """What a broker, a handover and an event that reaches a second leaf cost.

    `line` only guides the search: lines are compared by what they cut, plus `line`, divided by
    √(smaller share of the load), so that slivers are tried last.
    """

    broker: float
    handover: float
    event: float  # for each millisecond that a user spends where an event would reach both leaves
    line: float


class _Line(NamedTuple):
    """A way to cut a rectangle: the line lies before that column (axis 0) or row (axis 1)."""

    score: float
    axis: int
    at: int
    price: float


def cut_space(
    movement: Movement,
    most_ms: float,
    prices: Prices,
    reach: Reach,
    *,
    within: CellRect | None = None,
    along: Owners | None = None,
    breadth: tuple[int, ...] = _BREADTH,
) -> list[CellRect]:
    """Return rectangles that tile the space, or `within`, with at most `most_ms` in each.

    A single cell may have more: borders lie on the grid. With `along`, lines run along the borders
    of these leaves only, so that no leaf is cut: each rectangle is a union of whole leaves, and a
    leaf with more than `most_ms` is one by itself. Deterministic.
    """
    rect = within or movement.everywhere
    inside = None if along is None else _Unbroken(along)
    return _Search(movement, rect, most_ms, prices, reach, breadth, inside).cut()


class _Unbroken:
    """Which lines through a rectangle cut no leaf. O(lines) per rectangle."""

    def __init__(self, owners: Owners) -> None:
        side = len(owners)
        # the cells before each line, summed along it, that belong to the same leaf as those behind
        self._same = np.zeros((2, side + 1, side + 1), np.int64)
        self._same[0, 1:side, 1:] = (owners[:, 1:] == owners[:, :-1]).T.cumsum(1)
        self._same[1, 1:side, 1:] = (owners[1:] == owners[:-1]).cumsum(1)

    def lines(self, rect: CellRect, axis: int, at: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return those of the lines that cut no leaf."""
        low, high = (rect.south, rect.north) if axis == 0 else (rect.west, rect.east)
        same = self._same[axis, at]
        found: NDArray[np.int64] = at[same[:, high] == same[:, low]]
        return found


class _Search:
    """The search under way; `_best` has the cost and the line of each rectangle seen so far."""

    def __init__(
        self,
        movement: Movement,
        rect: CellRect,
        most_ms: float,
        prices: Prices,
        reach: Reach,
        breadth: tuple[int, ...],
        unbroken: _Unbroken | None,
    ) -> None:
        self._movement, self._rect, self._unbroken = movement, rect, unbroken
        self._most_ms, self._prices = most_ms, prices
        self._reach, self._breadth = reach, breadth
        side = movement.side
        columns = np.stack([movement.low % side, movement.high % side])
        rows = np.stack([movement.low // side, movement.high // side])
        spans = np.stack([columns.min(0), columns.max(0), rows.min(0), rows.max(0)], axis=1)
        inside = (spans[:, 0] >= rect.west) & (spans[:, 1] < rect.east)
        inside &= (spans[:, 2] >= rect.south) & (spans[:, 3] < rect.north)
        self._spans = np.ascontiguousarray(spans[inside], np.int16)
        self._moves = movement.moves[inside]
        self._best: dict[CellRect, tuple[float, _Line | None]] = {}
        self._visits = 0

    def cut(self) -> list[CellRect]:
        """Return the parts of the rectangle in the best tree that was found."""
        self._solve(self._rect, 0, len(self._moves))
        found, left = [], [self._rect]
        while left:
            rect = left.pop()
            line = self._best[rect][1] if rect in self._best else None
            if line is None:
                found.append(rect)
            else:
                left.extend(reversed(_halves(rect, line.axis, line.at)))
        return found

    def _solve(self, rect: CellRect, start: int, end: int) -> float:
        """Return the least cost found for a rectangle, whose moves are those from start to end."""
        time_ms = self._movement.time_in(rect)
        if time_ms <= self._most_ms or rect.cells == 1:
            return self._prices.broker
        if rect in self._best:
            return self._best[rect][0]
        self._visits += end - start
        needed = math.ceil(time_ms / self._most_ms)
        is_spent = self._visits > _MOST_VISITS or needed >= len(self._breadth)
        tried = 1 if is_spent else self._breadth[needed]
        best: tuple[float, _Line | None] = (math.inf, None)
        for line in sorted(self._lines(rect, start, end, time_ms))[:tried]:
            behind, cut = sort_by_line(self._spans, self._moves, start, end, line.axis, line.at)
            low, high = _halves(rect, line.axis, line.at)
            cost = line.price + self._solve(low, start, behind)
            if cost < best[0]:
                cost += self._solve(high, behind, cut)
                best = min(best, (cost, line))
        if best[1] is None:  # all of it lies in one cell
            best = (self._prices.broker, None)
        self._best[rect] = best
        return best[0]

    def _lines(self, rect: CellRect, start: int, end: int, time_ms: int) -> list[_Line]:
        """Return the most promising lines: of each axis, the best of each band."""
        cuts = np.zeros((2, self._movement.side + 2), np.int64)
        count_cuts(self._spans, self._moves, start, end, cuts)
        found = []
        for axis, low, high in ((0, rect.west, rect.east), (1, rect.south, rect.north)):
            at = np.arange(low + 1, high)
            if self._unbroken is not None:
                at = self._unbroken.lines(rect, axis, at)
            before = self._time_before(rect, axis, at)
            inside = (before > 0) & (before < time_ms)
            at, before = at[inside], before[inside]
            if not len(at):
                continue
            price = self._prices.handover * cuts[axis, at]
            price = price + self._prices.event * self._time_near(rect, axis, at)
            scores = self._scores(before, time_ms, price)
            bands = np.minimum(before * _BANDS // time_ms, _BANDS - 1)
            if len(at) <= _FEW_LINES:
                bands = np.arange(len(at))
            for band in range(max(_BANDS, _FEW_LINES)):
                chosen = np.flatnonzero(bands == band)
                if len(chosen):
                    place = chosen[scores[chosen].argmin()]
                    found.append(
                        _Line(float(scores[place]), axis, int(at[place]), float(price[place]))
                    )
        return found

    def _scores(
        self, before: NDArray[np.int64], time_ms: int, price: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return how promising lines are, least first: what they cut, the brokers they waste."""
        parts = [np.ceil(one / self._most_ms - _EPS) for one in (before, time_ms - before)]
        wasted = parts[0] + parts[1] - max(2, math.ceil(time_ms / self._most_ms - _EPS))
        share = np.minimum(before, time_ms - before) / time_ms
        scores: NDArray[np.float64] = (price + self._prices.line) / np.sqrt(share)
        return scores + self._prices.broker * wasted

    def _time_before(self, rect: CellRect, axis: int, at: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the time spent in the part of a rectangle before each line."""
        sums = self._movement.sums
        west, south, east, north = rect
        if axis == 0:
            found = sums[north, at] - sums[south, at] - sums[north, west] + sums[south, west]
        else:
            found = sums[at, east] - sums[at, west] - sums[south, east] + sums[south, west]
        return found  # type: ignore[no-any-return]

    def _time_near(self, rect: CellRect, axis: int, at: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the time spent where an event reaches both sides of each line."""
        sums, side = self._movement.sums, self._movement.side
        near = self._reach[axis]
        low, high = np.maximum(at - near, 0), np.minimum(at + near, side)
        across = self._reach[1 - axis]
        ends = (rect.south, rect.north) if axis == 0 else (rect.west, rect.east)
        first, last = max(ends[0] - across, 0), min(ends[1] + across, side)
        if axis == 0:
            found = sums[last, high] - sums[first, high] - sums[last, low] + sums[first, low]
        else:
            found = sums[high, last] - sums[high, first] - sums[low, last] + sums[low, first]
        return found  # type: ignore[no-any-return]


def _halves(rect: CellRect, axis: int, at: int) -> tuple[CellRect, CellRect]:
    west, south, east, north = rect
    if axis == 0:
        return CellRect(west, south, at, north), CellRect(at, south, east, north)
    return CellRect(west, south, east, at), CellRect(west, at, east, north)
