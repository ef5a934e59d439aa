"""Rectangles of a plan: closed, exact on float64.

A plan works on the two coordinates of a space, so a rectangle here is four numbers. Bounds are
closed; an open end is written as the closed end at the next representable number. So "do these
rectangles cover that one?" has an exact answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from nearcast.model.errors import OutOfRangeError, ShapeError

Point: TypeAlias = tuple[float, float]
"""(x, y), which in a geographic space is (longitude, latitude)."""


class Rect(NamedTuple):
    """All points with west ≤ x ≤ east and south ≤ y ≤ north.

    >>> Rect(0, 0, 2, 1).intersects(Rect(2, 1, 3, 3))
    True
    """

    west: float
    south: float
    east: float
    north: float

    @classmethod
    def at(cls, x: float, y: float) -> Rect:
        """Return the rectangle that contains one point only."""
        return cls(x, y, x, y)

    @classmethod
    def around(cls, x: float, y: float, reach_x: float, reach_y: float | None = None) -> Rect:
        """Return the rectangle that extends `reach_x` and `reach_y` to each side of a point."""
        reach_y = reach_x if reach_y is None else reach_y
        return cls(x - reach_x, y - reach_y, x + reach_x, y + reach_y)

    @property
    def area(self) -> float:
        """Return width times height."""
        return (self.east - self.west) * (self.north - self.south)

    def contains(self, x: float, y: float) -> bool:
        """Return whether a point lies in the rectangle, borders included."""
        return self.west <= x <= self.east and self.south <= y <= self.north

    def covers(self, other: Rect) -> bool:
        """Return whether the other rectangle lies wholly in this one."""
        return (
            self.west <= other.west
            and self.south <= other.south
            and other.east <= self.east
            and other.north <= self.north
        )

    def intersects(self, other: Rect) -> bool:
        """Return whether the two share a point; a common border is enough."""
        return (
            self.west <= other.east
            and other.west <= self.east
            and self.south <= other.north
            and other.south <= self.north
        )

    def clamped(self, to: Rect) -> Rect:
        """Return the rectangle with each bound moved to the nearest place in `to`.

        Two rectangles that share a point still share one after both were clamped.
        """
        return Rect(
            min(max(self.west, to.west), to.east),
            min(max(self.south, to.south), to.north),
            min(max(self.east, to.west), to.east),
            min(max(self.north, to.south), to.north),
        )

    def joined(self, other: Rect) -> Rect:
        """Return the smallest rectangle that covers both."""
        return Rect(
            min(self.west, other.west),
            min(self.south, other.south),
            max(self.east, other.east),
            max(self.north, other.north),
        )

    def grown(self, by: float) -> Rect:
        """Return the rectangle with each border moved outwards by `by`."""
        return Rect(self.west - by, self.south - by, self.east + by, self.north + by)

    def quarters(self) -> tuple[Rect, Rect, Rect, Rect]:
        """Return the four closed quarters: south-west, south-east, north-west, north-east."""
        x, y = (self.west + self.east) / 2, (self.south + self.north) / 2
        return (
            Rect(self.west, self.south, x, y),
            Rect(x, self.south, self.east, y),
            Rect(self.west, y, x, self.north),
            Rect(x, y, self.east, self.north),
        )


@runtime_checkable
class Bounded(Protocol):
    """A shape of the model: it has one covering rectangle, or two at the antimeridian."""

    def bounds(self) -> tuple[tuple[float, float, float, float], ...]:
        """Return (west, south, east, north) of each covering rectangle, closed."""
        ...


Area: TypeAlias = Rect | Sequence[float]


def covering_rects(area: Area | Bounded, where: str) -> tuple[Rect, ...]:
    """Return the rectangles that cover an area: the area itself, a point, or those of a shape."""
    if isinstance(area, (tuple, list)) or not isinstance(area, Bounded):
        return (checked_rect(area, where),)
    return tuple(checked_rect(bounds, where) for bounds in area.bounds())


def checked_rect(area: Any, where: str) -> Rect:
    """Return an area of four numbers, or two (a point), as a rectangle.

    NaN, infinity and swapped bounds are errors.
    """
    numbers = area
    try:
        values = tuple(float(value) for value in numbers)
    except (TypeError, ValueError):
        raise ShapeError(repr(area), where=where, expected=_EXPECTED) from None
    if len(values) == 2:
        values = values * 2
    if len(values) != 4:
        raise ShapeError(f"{len(values)} numbers", where=where, expected=_EXPECTED)
    if not all(map(math.isfinite, values)):
        raise OutOfRangeError(repr(values), where=where, expected="finite numbers")
    rect = Rect(*values)
    if rect.west > rect.east or rect.south > rect.north:
        raise ShapeError(repr(rect), where=where, expected="west <= east and south <= north")
    return rect


_EXPECTED = "a point (x, y), a rectangle (west, south, east, north), or a shape"


def is_covered(rect: Rect, covers: Iterable[Rect]) -> bool:
    """Return whether every float64 point of `rect` lies in one of the closed `covers`.

    Exact. Complexity: each cover cuts a remaining piece into four at most; O(n) for the one or
    two covers that meet a leaf in practice.

    >>> is_covered(Rect(0, 0, 2, 1), [Rect(0, 0, 1, 1), Rect(1, 0, 2, 1)])
    True
    >>> is_covered(Rect(0, 0, 2, 1), [Rect(0, 0, 1, 1), Rect(1.5, 0, 2, 1)])
    False
    """
    pieces = [rect]
    for cover in covers:
        pieces = [rest for piece in pieces for rest in _outside(piece, cover)]
        if not pieces:
            return True
    return False


def _outside(piece: Rect, cover: Rect) -> list[Rect]:
    """Return `piece` without `cover`, as closed rectangles on the float64 grid."""
    if not piece.intersects(cover):
        return [piece]
    west, south, east, north = piece
    rest = []
    if west < cover.west:
        rest.append(Rect(west, south, math.nextafter(cover.west, -math.inf), north))
        west = cover.west
    if east > cover.east:
        rest.append(Rect(math.nextafter(cover.east, math.inf), south, east, north))
        east = cover.east
    if south < cover.south:
        rest.append(Rect(west, south, east, math.nextafter(cover.south, -math.inf)))
    if north > cover.north:
        rest.append(Rect(west, math.nextafter(cover.north, math.inf), east, north))
    return rest
