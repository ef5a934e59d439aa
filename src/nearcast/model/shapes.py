"""Areas on the earth: bounding boxes and circles (polygons are in `polygon`).

Every shape has the same methods:

| method | answer |
|---|---|
| `boxes()` | flat (longitude, latitude) boxes that cover it, for an index |
| `bounds()` | the same as bare (west, south, east, north) |
| `contains(lon, lat)`, `contains_many(lons, lats)` | is the place in it? Edges are |
| `touches(other)` | do the two shapes share a place? |
| `str(shape)`, `shape.level()` | canonical text, and the text for a `$area/…/` level |
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nearcast.model.box import Box
from nearcast.model.errors import OutOfRangeError
from nearcast.model.quantities import as_number, number_text
from nearcast.model.sphere import (
    EARTH_RADIUS_M,
    HALF_TURN_M,
    Bounds,
    checked_place,
    checked_places,
    distance_m,
    distances_m,
    flat_boxes,
    seamless_bounds,
)
from nearcast.model.where.levels import encode_level

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from nearcast.model.polygon import Polygon

_MARGIN_M = 1e-3  # a circle's boxes are this much wider, so that rounding never excludes a place
_ROUNDING_M = 1e-4  # places this close to the edge are checked one by one


@dataclass(frozen=True, slots=True)
class BoundingBox:
    """From west to east and from south to north; `west > east` crosses the antimeridian.

    >>> fiji = BoundingBox(177, -20, -178, -15)
    >>> fiji.contains(180, -17), fiji.contains(-180, -17), fiji.contains(0, -17)
    (True, True, False)
    """

    west: float
    south: float
    east: float
    north: float

    def __post_init__(self) -> None:
        west, south = checked_place(self.west, self.south, "bbox: the south-western corner")
        east, north = checked_place(self.east, self.north, "bbox: the north-eastern corner")
        if south > north:
            raise OutOfRangeError(
                f"south {number_text(south)} above north {number_text(north)}",
                where="bbox",
                expected="west, south, east, north",
            )
        for name, value in (("west", west), ("south", south), ("east", east), ("north", north)):
            object.__setattr__(self, name, value)

    def bounds(self) -> tuple[Bounds, ...]:
        """Return (west, south, east, north) of the flat boxes that are exactly this area."""
        return seamless_bounds(self.west, self.south, self.east, self.north)

    def boxes(self) -> tuple[Box, ...]:
        """Return the boxes that are exactly this area."""
        return flat_boxes(self.bounds())

    def contains(self, lon: float, lat: float) -> bool:
        """Return whether the place lies in the area; O(1)."""
        lon, lat = checked_place(lon, lat, "a place")
        return any(w <= lon <= e and s <= lat <= n for w, s, e, n in self.bounds())

    def contains_many(self, lons: ArrayLike, lats: ArrayLike) -> NDArray[np.bool_]:
        """Return for each place whether it lies in the area; O(places)."""
        import numpy as np

        east, north = checked_places(lons, lats)
        inside = np.zeros(east.shape, dtype=np.bool_)
        for box in self.boxes():
            (low_lon, low_lat), (high_lon, high_lat) = box.lows, box.highs
            inside |= (
                (low_lon <= east) & (east <= high_lon) & (low_lat <= north) & (north <= high_lat)
            )
        return inside

    def touches(self, other: BoundingBox | Circle | Polygon) -> bool:
        """Return whether the two shapes share a place."""
        from nearcast.model.touching import touch

        return touch(self, other)

    def level(self) -> str:
        """Return the text for one level of a topic filter."""
        return ",".join(map(number_text, (self.west, self.south, self.east, self.north)))

    def __str__(self) -> str:
        return f"bbox({self.level()})"


@dataclass(frozen=True, slots=True)
class Circle:
    """All places within a radius in metres, on the sphere.

    >>> Circle(2.35, 48.85, 500).contains(2.351, 48.851)
    True
    >>> [str(box) for box in Circle(0, 89.999, 1000).boxes()]
    ['[-180, 180] × [89.99000678736955, 90]']
    """

    lon: float
    lat: float
    radius_m: float

    def __post_init__(self) -> None:
        lon, lat = checked_place(self.lon, self.lat, "circle: the centre")
        radius_m = as_number(self.radius_m, "circle: radius")
        if not 0 < radius_m <= HALF_TURN_M:
            raise OutOfRangeError(
                f"{number_text(radius_m)}m",
                where="circle: radius",
                expected="above 0m and at most 20015km, half-way round the earth",
            )
        put = object.__setattr__
        put(self, "lon", lon)
        put(self, "lat", lat)
        put(self, "radius_m", radius_m)

    def boxes(self) -> tuple[Box, ...]:
        """Return the smallest boxes that cover the circle, a millimetre wider; O(1)."""
        return flat_boxes(self.bounds())

    def bounds(self) -> tuple[Bounds, ...]:
        """Return (west, south, east, north) of these boxes, without value objects; O(1).

        A circle that contains a pole spans all longitudes. Otherwise its meridians of tangency are
        asin(sin(r/R) / cos(lat)) away.
        """
        return circle_bounds(self.lon, self.lat, self.radius_m)

    def contains(self, lon: float, lat: float) -> bool:
        """Return whether the place lies in the circle; O(1)."""
        place = checked_place(lon, lat, "a place")
        return distance_m(self.lon, self.lat, *place) <= self.radius_m

    def contains_many(self, lons: ArrayLike, lats: ArrayLike) -> NDArray[np.bool_]:
        """Return for each place whether it lies in the circle, as `contains` does; O(places)."""
        import numpy as np

        east, north = checked_places(lons, lats)
        distances = distances_m(self.lon, self.lat, east, north)
        inside: NDArray[np.bool_] = distances <= self.radius_m
        for close in np.flatnonzero(np.abs(distances - self.radius_m) < _ROUNDING_M):
            inside[close] = self.contains(float(east[close]), float(north[close]))
        return inside

    def touches(self, other: BoundingBox | Circle | Polygon) -> bool:
        """Return whether the two shapes share a place."""
        from nearcast.model.touching import touch

        return touch(self, other)

    def level(self) -> str:
        """Return the text for one level of a topic filter."""
        return encode_level(",".join(self._pieces()))

    def _pieces(self) -> tuple[str, str, str]:
        return number_text(self.lon), number_text(self.lat), f"{number_text(self.radius_m)}m"

    def __str__(self) -> str:
        return f"circle({','.join(self._pieces())})"


def circle_reach(radius_m: float) -> tuple[float, float]:
    """Return the extent of a circle's bounds, in degrees of latitude, and its sine."""
    angle = (radius_m + _MARGIN_M) / EARTH_RADIUS_M
    return math.degrees(angle), math.sin(angle)


def circle_bounds(lon: float, lat: float, radius_m: float) -> tuple[Bounds, ...]:
    """Return the bounds of a circle as `Circle.bounds` does; arguments are not checked."""
    reach, sine = circle_reach(radius_m)
    south, north = lat - reach, lat + reach
    if south <= -90 or north >= 90:
        return seamless_bounds(-180.0, max(south, -90.0), 180.0, min(north, 90.0))
    ratio = sine / math.cos(math.radians(lat))
    width = math.degrees(math.asin(min(1.0, ratio)))
    west, east = lon - width, lon + width
    if west > -180 and east < 180:
        return ((west, south, east, north),)
    west, east = west + 360 * (west < -180), east - 360 * (east > 180)
    return seamless_bounds(west, south, east, north)
