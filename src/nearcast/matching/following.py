"""Subscriptions that follow their owner: new bounds for a new position, in a few microseconds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

from nearcast.model import ACCURACY_FLOOR, Box, Space
from nearcast.model.sphere import Bounds

Covered: TypeAlias = tuple[tuple[float, ...], tuple[float, ...], float]  # lows, highs, accuracy


@dataclass(frozen=True, slots=True)
class Follower:
    """One box of the conditions of a `$near` subscription, ready to be cut to a circle's bounds.

    It yields what `Subscription.boxes` yields, without a value object per side.
    """

    lows: tuple[float, ...]
    highs: tuple[float, ...]
    places: tuple[int, int]  # of longitude and latitude
    extent: tuple[float, float, float, float]  # west, south, east, north of the space
    other_bits: float  # accuracy of all sides but those two

    @classmethod
    def of(cls, box: Box, space: Space) -> Follower:
        """Prepare a box of conditions in a space with coordinates."""
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
            extent=(ranges[lon].low, ranges[lat].low, ranges[lon].high, ranges[lat].high),
            other_bits=Box(tuple(open_place)).accuracy(space.extent),
        )

    def cut_to(self, around: tuple[Bounds, ...]) -> list[Covered]:
        """Return the boxes of the conditions within a circle's covering boxes; O(attributes)."""
        lon, lat = self.places
        least_lon, least_lat, most_lon, most_lat = self.extent
        cut: list[Covered] = []
        for west, south, east, north in around:
            west = max(west, self.lows[lon], least_lon)  # noqa: PLW2901 - cut
            south = max(south, self.lows[lat], least_lat)  # noqa: PLW2901
            east = min(east, self.highs[lon], most_lon)  # noqa: PLW2901
            north = min(north, self.highs[lat], most_lat)  # noqa: PLW2901
            if west > east or south > north:
                continue
            lows, highs = list(self.lows), list(self.highs)
            lows[lon], highs[lon], lows[lat], highs[lat] = west, east, south, north
            bits = _bits(east - west, most_lon - least_lon) + _bits(
                north - south, most_lat - least_lat
            )
            cut.append((tuple(lows), tuple(highs), self.other_bits + bits))
        return cut


def _bits(width: float, whole: float) -> float:
    return math.log2(min(1.0, max(ACCURACY_FLOOR, width / whole)))
