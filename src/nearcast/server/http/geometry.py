"""Shapes of subscriptions and events as GeoJSON geometries, to be drawn."""

from __future__ import annotations

import math
from typing import Any

from nearcast.model import BoundingBox, Circle, Polygon
from nearcast.model.shape_text import Shape

_CORNERS = 48
_EARTH_M = 6_371_008.8


def geometry_of(shape: Shape | None) -> dict[str, Any] | None:
    """Return a shape as a GeoJSON geometry; a circle becomes a polygon of 48 corners."""
    if shape is None:
        return None
    if isinstance(shape, Polygon):
        parts = [[[list(point) for point in ring] for ring in part] for part in shape.parts]
        return {"type": "MultiPolygon", "coordinates": parts}
    if isinstance(shape, Circle):
        return {"type": "Polygon", "coordinates": [_circle(shape)]}
    return _box(shape)


def _box(box: BoundingBox) -> dict[str, Any]:
    """Return a box; one over the antimeridian reaches beyond 180 degrees, as maps draw it."""
    east = box.east + 360 if box.west > box.east else box.east
    corners = ((box.west, box.south), (east, box.south), (east, box.north), (box.west, box.north))
    ring = [list(one) for one in (*corners, corners[0])]
    return {"type": "Polygon", "coordinates": [ring]}


def _circle(circle: Circle) -> list[list[float]]:
    """Return points on the sphere at the radius, as bearings from the centre."""
    angle, lat = circle.radius_m / _EARTH_M, math.radians(circle.lat)
    ring: list[list[float]] = []
    for number in range(_CORNERS + 1):
        bearing = 2 * math.pi * (number % _CORNERS) / _CORNERS
        sine = math.sin(lat) * math.cos(angle)
        sine += math.cos(lat) * math.sin(angle) * math.cos(bearing)
        to = math.asin(max(-1.0, min(1.0, sine)))
        across = math.sin(bearing) * math.sin(angle) * math.cos(lat)
        turn = math.atan2(across, math.cos(angle) - math.sin(lat) * math.sin(to))
        ring.append([round(circle.lon + math.degrees(turn), 7), round(math.degrees(to), 7)])
    return ring
