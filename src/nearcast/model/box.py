"""Intervals with open and closed ends, and boxes: one interval for each attribute of a space.

        ┌────────────┐ kind        A box is the selection of one conjunction of conditions. A side
        │  price<5,  │             from -inf to +inf is an unconstrained attribute; it is
        │  kind=food │             the only kind of side in which a missing value (MISSING) lies.
        └────────────┘ price

Everything is exact on float64: an open end is the next float64, so `x < 25` is
`x <= nextafter(25, -inf)`, and kernels see closed bounds only.
"""

from __future__ import annotations

import math
import numbers
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nearcast.model.errors import MisuseError, OutOfRangeError
from nearcast.model.quantities import number_text
from nearcast.model.wording import shown

ACCURACY_FLOOR = 2.0**-20
"""The narrowest width that a side counts, as a share of its attribute's range: a millionth."""

MISSING = sys.float_info.max
"""Where a missing value lies when the space has `missing = "none"`.

Finite, since indexes refuse infinity in a point; and no attribute reaches this value.
"""


@dataclass(frozen=True, slots=True)
class Interval:
    """A set of float64 from `low` to `high`, never empty; an open end is excluded.

    >>> week = Interval(0, 7, high_open=True)
    >>> 7.0 in week, 6.5 in week, week.closed_high
    (False, True, 6.999999999999999)
    """

    low: float
    high: float
    low_open: bool = False
    high_open: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "low", _bound(self.low, "low"))
        object.__setattr__(self, "high", _bound(self.high, "high"))
        if self.closed_low > self.closed_high:
            raise OutOfRangeError(str(self), expected="an interval with a value in it")

    @property
    def closed_low(self) -> float:
        """Return the smallest float64 in the interval."""
        return math.nextafter(self.low, math.inf) if self.low_open else self.low

    @property
    def closed_high(self) -> float:
        """Return the largest float64 in the interval."""
        return math.nextafter(self.high, -math.inf) if self.high_open else self.high

    @property
    def width(self) -> float:
        """Return the length between the closed ends."""
        return 0.0 if self.low == self.high else self.closed_high - self.closed_low

    def __contains__(self, value: float) -> bool:
        return self.closed_low <= value <= self.closed_high

    def covers(self, other: Interval) -> bool:
        """Return whether every value of `other` lies in this interval."""
        return self.closed_low <= other.closed_low and other.closed_high <= self.closed_high

    def intersects(self, other: Interval) -> bool:
        """Return whether the two share a value."""
        return self.closed_low <= other.closed_high and other.closed_low <= self.closed_high

    def intersection(self, other: Interval) -> Interval | None:
        """Return the values the two share, or None; O(1)."""
        if not self.intersects(other):
            return None
        lower = self if self.closed_low >= other.closed_low else other
        upper = self if self.closed_high <= other.closed_high else other
        if lower is upper:
            return lower
        return Interval(lower.low, upper.high, lower.low_open, upper.high_open)

    def __str__(self) -> str:
        left, right = "(" if self.low_open else "[", ")" if self.high_open else "]"
        return f"{left}{_bound_text(self.low)}, {_bound_text(self.high)}{right}"


def _bound(value: object, which: str) -> float:
    if type(value) is float and value == value:  # noqa: PLR0124 - no NaN; the usual case, quickly
        return value + 0.0
    if not isinstance(value, bool) and isinstance(value, numbers.Real):
        try:
            bound = float(value)
        except OverflowError:
            bound = math.nan
        if not math.isnan(bound):
            return bound + 0.0
    raise OutOfRangeError(shown(value), where=which, expected="a number; infinity is allowed")


def _bound_text(value: float) -> str:
    return number_text(value) if math.isfinite(value) else str(value)


EVERYTHING = Interval(-math.inf, math.inf)
"""The side of an unconstrained attribute."""


@dataclass(frozen=True, slots=True)
class Box:
    """One interval for each attribute, in the order of the space's attributes.

    All methods are O(n) for n sides; a box or point of another n is a MisuseError.

    >>> box = Box.of(lows=(0, 20), highs=(5, 25))
    >>> box.contains((5, 20)), box.contains((5, 19))
    (True, False)
    """

    sides: tuple[Interval, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "sides", tuple(self.sides))
        if not self.sides or not all(isinstance(side, Interval) for side in self.sides):
            raise MisuseError(shown(self.sides), where="a box", expected="one Interval or more")

    @classmethod
    def of(cls, lows: Iterable[float], highs: Iterable[float]) -> Box:
        """Return the box with these closed bounds."""
        lows, highs = tuple(lows), tuple(highs)
        if len(lows) != len(highs):
            raise MisuseError(
                f"{len(lows)} lows and {len(highs)} highs", expected="as many of each"
            )
        return cls(tuple(Interval(low, high) for low, high in zip(lows, highs, strict=True)))

    @classmethod
    def everything(cls, dimensions: int) -> Box:
        """Return the box of a subscription without conditions."""
        return cls((EVERYTHING,) * dimensions)

    @property
    def dimensions(self) -> int:
        """Return the number of sides."""
        return len(self.sides)

    @property
    def lows(self) -> tuple[float, ...]:
        """Return the closed low bounds, as the indexes expect them."""
        return tuple(side.closed_low for side in self.sides)

    @property
    def highs(self) -> tuple[float, ...]:
        """Return the closed high bounds, as the indexes expect them."""
        return tuple(side.closed_high for side in self.sides)

    def contains(self, point: Sequence[float]) -> bool:
        """Return whether the point lies in the box."""
        self._same(len(point), "a point")
        if any(math.isnan(value) for value in point):
            raise OutOfRangeError("NaN", where="a point", expected="numbers")
        return all(value in side for side, value in zip(self.sides, point, strict=True))

    def covers(self, other: Box) -> bool:
        """Return whether every point of `other` lies in this box."""
        self._same(other.dimensions, "a box")
        return all(
            ours.covers(theirs) for ours, theirs in zip(self.sides, other.sides, strict=True)
        )

    def intersects(self, other: Box) -> bool:
        """Return whether the two boxes share a point."""
        self._same(other.dimensions, "a box")
        return all(map(Interval.intersects, self.sides, other.sides))

    def intersection(self, other: Box) -> Box | None:
        """Return the box of the points the two share, or None."""
        self._same(other.dimensions, "a box")
        shared = tuple(map(Interval.intersection, self.sides, other.sides))
        sides = tuple(side for side in shared if side is not None)
        return Box(sides) if len(sides) == len(shared) else None

    def accuracy(self, extent: Box) -> float:
        """Return how narrow the box is within `extent`, in bits: 0 is everything, less is narrower.

        The sum over the sides, from first to last, of log2(width / width of the extent's side), the
        ratio clamped to [ACCURACY_FLOOR, 1]: an unconstrained attribute counts as its whole range,
        an equality as the floor (docs/papers/1-ranked-matching.md).
        """
        self._same(extent.dimensions, "an extent")
        return sum(map(_bits, self.sides, extent.sides), 0.0)

    def _same(self, dimensions: int, what: str) -> None:
        if dimensions != len(self.sides):
            raise MisuseError(
                f"{what} of {dimensions} dimensions", expected=f"{len(self.sides)} as in the box"
            )

    def __str__(self) -> str:
        return " × ".join(map(str, self.sides))


def _bits(side: Interval, extent: Interval) -> float:
    if not math.isfinite(side.width) or extent.width == 0:
        return 0.0
    ratio = side.width / extent.width
    return math.log2(min(1.0, max(ACCURACY_FLOOR, ratio)))
