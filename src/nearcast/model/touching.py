"""Whether two shapes share a place; for events with an extent.

Exact for boxes and circles, and for polygons with boxes and polygons. For a circle and a polygon
the polygon's edges, which are no great circles, are halved until the answer is clear, to the
millimetre.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from nearcast.model.errors import MisuseError
from nearcast.model.polygon import Polygon
from nearcast.model.shape_text import Shape
from nearcast.model.shapes import BoundingBox, Circle
from nearcast.model.sphere import HALF_TURN_M, Bounds, distance_m, distance_to_box_m
from nearcast.model.wording import shown

_NEAR_ENOUGH_M = 1e-3
_HALVINGS = 20_000


def touch(ours: Shape, theirs: Shape) -> bool:
    """Return whether the two shapes share a place; symmetric."""
    first, second = sorted((ours, theirs), key=_order)
    if isinstance(second, BoundingBox):
        return _boxes_touch(first, second)
    if isinstance(second, Circle):
        return _circle_touches(second, first)
    return _polygon_touches(second, first)


def _order(shape: Shape) -> int:
    for order, kind in enumerate((BoundingBox, Circle, Polygon)):
        if isinstance(shape, kind):
            return order
    raise MisuseError(shown(shape), where="touches", expected="a shape")


def _boxes_touch(ours: Shape, theirs: BoundingBox) -> bool:
    return any(box.intersects(other) for box in ours.boxes() for other in theirs.boxes())


def _circle_touches(circle: Circle, other: Shape) -> bool:
    if isinstance(other, Circle):
        reach_m = min(circle.radius_m + other.radius_m, HALF_TURN_M)
        return distance_m(circle.lon, circle.lat, other.lon, other.lat) <= reach_m
    lon, lat, radius_m = circle.lon, circle.lat, circle.radius_m
    return any(distance_to_box_m(lon, lat, bounds) <= radius_m for bounds in other.bounds())


def _polygon_touches(polygon: Polygon, other: Shape) -> bool:
    if isinstance(other, BoundingBox):
        return any(polygon.geometry.intersects(_flat(bounds)) for bounds in other.bounds())
    if isinstance(other, Circle):
        return _polygon_meets_circle(polygon, other)
    return _polygons_touch(polygon, other)


def _flat(bounds: Bounds) -> Any:
    """Return bounds as a Shapely geometry, also where they have no width or no height."""
    import shapely

    west, south, east, north = bounds
    if west == east and south == north:
        return shapely.Point(west, south)
    if west == east or south == north:
        return shapely.LineString([(west, south), (east, north)])
    return shapely.box(west, south, east, north)


def _polygons_touch(ours: Polygon, theirs: Polygon) -> bool:
    if ours.geometry.intersects(theirs.geometry):
        return True
    if any(ours.reaches_pole(pole) and theirs.reaches_pole(pole) for pole in (-90.0, 90.0)):
        return True
    return _meet_at_seam(ours, theirs) or _meet_at_seam(theirs, ours)


def _meet_at_seam(eastern: Polygon, western: Polygon) -> bool:
    """Return whether `eastern` at longitude 180 meets `western` at -180."""
    import shapely

    seam = shapely.LineString([(180, -90), (180, 90)])
    shared = eastern.geometry.intersection(seam)
    moved = shapely.transform(shared, lambda points: points - (360, 0))
    return bool(western.geometry.intersects(moved))


def _polygon_meets_circle(polygon: Polygon, circle: Circle) -> bool:
    if polygon.contains(circle.lon, circle.lat):
        return True
    edges = [
        (*start, *end) for part in polygon.parts for ring in part for start, end in pairwise(ring)
    ]
    return _some_edge_within(edges, circle)


def _some_edge_within(edges: list[tuple[float, float, float, float]], circle: Circle) -> bool:
    """Return whether an edge comes within the radius; edges in doubt are halved."""
    halvings = 0
    while edges:
        lon1, lat1, lon2, lat2 = edges.pop()
        bounds = (min(lon1, lon2), min(lat1, lat2), max(lon1, lon2), max(lat1, lat2))
        nearest_m = distance_to_box_m(circle.lon, circle.lat, bounds)
        if nearest_m > circle.radius_m:
            continue
        end_m = distance_m(circle.lon, circle.lat, lon1, lat1)
        halvings += 1
        # An adversary can make an edge follow the circle; then it counts as touching.
        if min(end_m, distance_m(circle.lon, circle.lat, lon2, lat2)) <= circle.radius_m:
            return True
        if halvings > _HALVINGS:
            return True
        if end_m - nearest_m > _NEAR_ENOUGH_M:
            middle = ((lon1 + lon2) / 2, (lat1 + lat2) / 2)
            edges += [(lon1, lat1, *middle), (*middle, lon2, lat2)]
    return False
