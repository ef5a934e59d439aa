"""Boxes as plain closed float tuples, and the extent of the space in which they lie.

A box is `(lows, highs)`, both ends included, as the indexes take it. A side from -inf to +inf is an
unconstrained attribute. A side with `low == high` is an equality: it has no volume, so volumes use
a floor of `FLOOR` of the attribute's range per side; equalities can then still be compared.

Read next: `density.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TypeAlias

from nearcast.model.errors import MisuseError, OutOfRangeError

Corner: TypeAlias = tuple[float, ...]
Bounds: TypeAlias = tuple[Corner, Corner]

FLOOR = 2.0**-12
"""The narrowest width of a side in a volume, as a share of its attribute's range."""


def union(a: Bounds, b: Bounds) -> Bounds:
    """Return the smallest box around both; O(n)."""
    return tuple(map(min, a[0], b[0])), tuple(map(max, a[1], b[1]))


def union_of(boxes: Iterable[Bounds]) -> Bounds:
    """Return the smallest box around all; at least one is needed."""
    return reduce(union, boxes)


def intersection(a: Bounds, b: Bounds) -> Bounds | None:
    """Return the points that both contain, or None; O(n)."""
    lows, highs = tuple(map(max, a[0], b[0])), tuple(map(min, a[1], b[1]))
    for low, high in zip(lows, highs, strict=True):
        if low > high:
            return None
    return lows, highs


def overlap(a: Bounds, b: Bounds) -> Bounds | None:
    """Return the intersection, or None where two boxes only touch: no events are shared there.

    A side without width does not touch the other; it lies within it.
    """
    both = intersection(a, b)
    if both is None:
        return None
    for low, high, la, ha, lb, hb in zip(*both, *a, *b, strict=True):
        if low == high and la < ha and lb < hb:
            return None
    return both


def intersects(a: Bounds, b: Bounds) -> bool:
    """Return whether two boxes share a point; O(n)."""
    for low, high, other_low, other_high in zip(a[0], a[1], b[0], b[1], strict=True):
        if low > other_high or other_low > high:
            return False
    return True


def covers(outer: Bounds, inner: Bounds) -> bool:
    """Return whether every point of `inner` lies in `outer`; O(n)."""
    for low, high, other_low, other_high in zip(*outer, *inner, strict=True):
        if other_low < low or other_high > high:
            return False
    return True


@dataclass(frozen=True, slots=True)
class Extent:
    """The ranges of a space's attributes; known to every peer (paper 3, S_c).

    >>> extent = Extent((0.0, 0.0), (1000.0, 1000.0))
    >>> extent.volume(((0.0, 0.0), (500.0, 100.0)))
    0.05
    """

    lows: Corner
    highs: Corner
    _widths: Corner = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        lows, highs = tuple(map(float, self.lows)), tuple(map(float, self.highs))
        finite = all(map(math.isfinite, lows + highs))
        if not lows or len(lows) != len(highs) or not finite or any(map(float.__ge__, lows, highs)):
            raise OutOfRangeError(
                f"{self.lows} to {self.highs}",
                where="Extent",
                expected="finite lows below as many finite highs",
            )
        object.__setattr__(self, "lows", lows)
        object.__setattr__(self, "highs", highs)
        object.__setattr__(self, "_widths", tuple(h - w for w, h in zip(lows, highs, strict=True)))

    @property
    def dimensions(self) -> int:
        """Return the number of attributes."""
        return len(self.lows)

    def volume(self, box: Bounds) -> float:
        """Return the share of the space that the box fills, each side at least `FLOOR`; O(n)."""
        product = 1.0
        for low, high, least, most, width in zip(
            box[0], box[1], self.lows, self.highs, self._widths, strict=True
        ):
            start = low if low > least else least  # noqa: FURB136 - the hottest lines of a join
            end = high if high < most else most  # noqa: FURB136
            share = (end - start) / width
            product *= share if share > FLOOR else FLOOR  # noqa: FURB136
        return product

    def margin(self, box: Bounds) -> float:
        """Return the sum of the box's sides, each as a share of its attribute's range; O(n)."""
        total = 0.0
        for low, high, least, most, width in zip(
            box[0], box[1], self.lows, self.highs, self._widths, strict=True
        ):
            total += ((min(most, high)) - (max(least, low))) / width
        return total

    def enlargement(self, box: Bounds, newcomer: Bounds) -> tuple[float, float]:
        """Return the growth of `box`, in volume and then in margin, when it includes `newcomer`.

        The margin decides where volumes cannot: among boxes without volume.
        """
        if covers(box, newcomer):
            return (0.0, 0.0)
        grown = union(box, newcomer)
        return (
            self.volume(grown) - self.volume(box),
            self.margin(grown) - self.margin(box),
        )

    def checked(self, lows: Sequence[float], highs: Sequence[float], *, where: str) -> Bounds:
        """Return the box; raise for NaN, wrong length, low above high, or outside the space."""
        n = self.dimensions
        if len(lows) != n or len(highs) != n:
            raise MisuseError(
                f"{len(lows)} lows and {len(highs)} highs", where=where, expected=f"{n} of each"
            )
        box = (tuple(map(float, lows)), tuple(map(float, highs)))
        for low, high in zip(*box, strict=True):
            if not low <= high:
                raise OutOfRangeError(
                    f"{low} to {high}", where=where, expected="two numbers, the lower first"
                )
        if not intersects(box, (self.lows, self.highs)):
            raise OutOfRangeError(
                f"{box[0]} to {box[1]}",
                where=where,
                expected=f"a box that meets the space {self.lows} to {self.highs}",
            )
        return box

    def is_sound(self, box: object) -> bool:
        """Return whether an object received from another peer is a box of this space."""
        try:
            self.checked(box[0], box[1], where="a peer's box")  # type: ignore[index]
        except (TypeError, ValueError, LookupError):
            return False
        return isinstance(box, tuple) and all(isinstance(corner, tuple) for corner in box)
