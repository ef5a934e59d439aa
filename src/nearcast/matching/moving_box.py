"""Boxes of `$near` subscriptions: new bounds for a new position, in a few microseconds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

from nearcast.model import ACCURACY_FLOOR, Box, Space
from nearcast.model.shapes import circle_reach
from nearcast.model.sphere import Bounds

Covered: TypeAlias = tuple[tuple[float, ...], tuple[float, ...], float]  # lows, highs, accuracy


@dataclass(frozen=True, slots=True)
class MovingBox:
    """One box of a `$near` subscription's conditions, prepared to be cut to a circle's bounds.

    It gives the same boxes as `Subscription.boxes`, without a value object per side.
    """

    lows: tuple[float, ...]
    highs: tuple[float, ...]
    places: tuple[int, int]  # positions of longitude and latitude among the attributes
    is_flat: bool  # there is no other attribute
    limits: Bounds  # west, south, east, north of the conditions within the space
    spans: tuple[float, float]  # of the space, in longitude and latitude
    other_bits: float  # accuracy of all sides except those two
    reach: tuple[float, float]  # extent of the circle: see `circle_reach`

    @classmethod
    def of(cls, box: Box, space: Space, radius_m: float) -> MovingBox:
        """Return the moving box for a box of conditions in a space with coordinates."""
        assert space.coordinates is not None
        lon, lat = space.coordinates
        ranges = space.extent.sides
        open_place = [
            side if place not in space.coordinates else ranges[place]
            for place, side in enumerate(box.sides)
        ]
        return cls(
            lows=box.lows,
            highs=box.highs,
            places=(lon, lat),
            is_flat=(lon, lat) == (0, 1) and len(ranges) == 2,
            limits=(
                max(box.lows[lon], ranges[lon].low),
                max(box.lows[lat], ranges[lat].low),
                min(box.highs[lon], ranges[lon].high),
                min(box.highs[lat], ranges[lat].high),
            ),
            spans=(ranges[lon].high - ranges[lon].low, ranges[lat].high - ranges[lat].low),
            other_bits=Box(tuple(open_place)).accuracy(space.extent),
            reach=circle_reach(radius_m),
        )

    def around(self, lon: float, lat: float) -> Covered | None:
        """Return the one box around a place; None if there is none, or if there may be several.

        Equal to `cut_to` of `circle_bounds`, as long as no pole and no seam is near.
        """
        reach, sine = self.reach
        south, north = lat - reach, lat + reach
        if south <= -90 or north >= 90:
            return None
        width = math.degrees(math.asin(min(1.0, sine / math.cos(math.radians(lat)))))
        west, east = lon - width, lon + width
        if west <= -180 or east >= 180:
            return None
        return self._cut(west, south, east, north)

    def cut_to(self, around: tuple[Bounds, ...]) -> list[Covered]:
        """Return the boxes of the conditions within a circle's covering boxes; O(attributes)."""
        cut = [self._cut(*bounds) for bounds in around]
        return [covered for covered in cut if covered is not None]

    def _cut(self, west: float, south: float, east: float, north: float) -> Covered | None:
        least_lon, least_lat, most_lon, most_lat = self.limits
        west = west if west > least_lon else least_lon  # noqa: FURB136 - half the time of max
        south = south if south > least_lat else least_lat  # noqa: FURB136
        east = east if east < most_lon else most_lon  # noqa: FURB136
        north = north if north < most_lat else most_lat  # noqa: FURB136
        if west > east or south > north:
            return None
        lon_span, lat_span = self.spans
        bits = _bits((east - west) / lon_span) + _bits((north - south) / lat_span)
        if self.is_flat:
            return (west, south), (east, north), self.other_bits + bits
        (lon, lat), lows, highs = self.places, list(self.lows), list(self.highs)
        lows[lon], highs[lon], lows[lat], highs[lat] = west, east, south, north
        return tuple(lows), tuple(highs), self.other_bits + bits


def _bits(share: float) -> float:
    return math.log2(min(1.0, max(ACCURACY_FLOOR, share)))
