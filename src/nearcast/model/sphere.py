"""Places and distances on the sphere of WGS84's mean radius, in degrees and metres.

Longitude 180 and -180 are one meridian, and at latitude 90 or -90 every longitude is one place. A
flat index does not know this, so `seamless_bounds` adds boxes of no width or height where a box
touches the seam or a pole.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias

from nearcast.model.box import Box
from nearcast.model.errors import MisuseError, OutOfRangeError
from nearcast.model.quantities import as_number, number_text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

Bounds: TypeAlias = tuple[float, float, float, float]  # west, south, east, north

EARTH_RADIUS_M = 6_371_008.8
HALF_TURN_M = math.pi * EARTH_RADIUS_M
"""The distance to the far side of the earth."""


def distance_m(lon1: float, lat1: float, lon2: float, lat2: float) -> float:
    """Return the great-circle distance in metres.

    The haversine formula, with both h and 1 - h as sums of squares, so that it is accurate for
    places close together and for places on opposite sides alike.

    >>> round(distance_m(2.3522, 48.8566, 13.405, 52.52) / 1000)
    877
    """
    half_lat, mean_lat = math.radians((lat2 - lat1) / 2), math.radians((lat1 + lat2) / 2)
    half_lon = math.radians((lon2 - lon1) / 2)
    near = math.hypot(
        math.sin(half_lat) * math.cos(half_lon), math.cos(mean_lat) * math.sin(half_lon)
    )
    far = math.hypot(
        math.cos(half_lat) * math.cos(half_lon), math.sin(mean_lat) * math.sin(half_lon)
    )
    return 2 * EARTH_RADIUS_M * math.atan2(near, far)


def distances_m(
    lon: float | NDArray[np.float64],
    lat: float | NDArray[np.float64],
    lons: NDArray[np.float64],
    lats: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the distances from one place, or from one each, to many.

    Within about a nanometre of `distance_m`.
    """
    import numpy as np

    half_lat, mean_lat = np.radians((lats - lat) / 2), np.radians((lats + lat) / 2)
    half_lon = np.radians((lons - lon) / 2)
    near = np.hypot(np.sin(half_lat) * np.cos(half_lon), np.cos(mean_lat) * np.sin(half_lon))
    far = np.hypot(np.cos(half_lat) * np.cos(half_lon), np.sin(mean_lat) * np.sin(half_lon))
    distances: NDArray[np.float64] = 2 * EARTH_RADIUS_M * np.arctan2(near, far)
    return distances


def distance_to_box_m(lon: float, lat: float, bounds: Bounds) -> float:
    """Return the distance to the nearest place of a box with west <= east; O(1).

    On one parallel the distance grows with the difference in longitude, so the nearest place is on
    the place's own meridian if the box contains it, else on the western or eastern edge.
    """
    west, south, east, north = bounds
    if west <= lon <= east:
        return distance_m(lon, lat, lon, min(max(lat, south), north))
    return min(_distance_to_meridian_m(lon, lat, edge, south, north) for edge in (west, east))


def _distance_to_meridian_m(
    lon: float, lat: float, meridian: float, south: float, north: float
) -> float:
    # Along a meridian the cosine of the distance is a cosine around the foot of the perpendicular.
    angle = math.radians(lat)
    across = math.cos(angle) * math.cos(math.radians(lon - meridian))
    foot = math.degrees(math.atan2(math.sin(angle), across))
    latitudes = (south, north, foot) if south < foot < north else (south, north)
    return min(distance_m(lon, lat, meridian, latitude) for latitude in latitudes)


def checked_place(lon: object, lat: object, where: str) -> tuple[float, float]:
    """Return longitude and latitude in degrees, or raise with a hint if they look swapped."""
    if lon.__class__ is float and lat.__class__ is float:
        east, north = lon + 0.0, lat + 0.0
        if -180 <= east <= 180 and -90 <= north <= 90:
            return east, north
    east, north = as_number(lon, f"{where}: longitude"), as_number(lat, f"{where}: latitude")
    if abs(east) <= 180 and abs(north) <= 90:
        return east, north
    swapped = abs(east) <= 90 and abs(north) <= 180
    which, value, end = ("latitude", north, 90) if abs(north) > 90 else ("longitude", east, 180)
    raise OutOfRangeError(
        f"{which} {number_text(value)}",
        where=where,
        expected=f"degrees from -{end} to {end}",
        todo="Longitude comes first, then latitude: are the two swapped?" if swapped else "",
    )


def checked_places(
    lons: ArrayLike, lats: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return two arrays of one shape, all of them places on earth."""
    import numpy as np

    try:
        east, north = np.asarray(lons, dtype=np.float64), np.asarray(lats, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise MisuseError("something else", where="places", expected="arrays of numbers") from None
    if east.shape != north.shape or east.ndim != 1:
        raise MisuseError(
            f"shapes {east.shape} and {north.shape}", where="places", expected="two equal rows"
        )
    bad = ~((np.abs(east) <= 180) & (np.abs(north) <= 90))
    if bad.any():
        first = int(bad.argmax())
        checked_place(float(east[first]), float(north[first]), f"place {first}")
    return east, north


def seamless_bounds(west: float, south: float, east: float, north: float) -> tuple[Bounds, ...]:
    """Return flat bounds that contain every spelling of each place of the box; O(1).

    `west > east` means that it crosses the antimeridian. At most two, one more for the seam and
    two for the poles.

    >>> seamless_bounds(170, 0, 180, 10)
    ((170, 0, 180, 10), (-180.0, 0, -180.0, 10))
    """
    if west > east:
        spans = [(west, 180.0), (-180.0, east)]
    elif west == -180 and east == 180:
        return ((west, south, east, north),)
    else:
        spans = [(west, east)]
        spans += [(-edge, -edge) for edge in (180.0, -180.0) if edge in (west, east)]
    bounds = [(start, south, end, north) for start, end in spans]
    bounds += [(-180.0, pole, 180.0, pole) for pole in (-90.0, 90.0) if pole in (south, north)]
    return tuple(bounds)


def flat_boxes(bounds: Iterable[Bounds]) -> tuple[Box, ...]:
    """Return the bounds as boxes of longitude and latitude."""
    return tuple(Box.of((west, south), (east, north)) for west, south, east, north in bounds)
