"""Polygons as in RFC 7946 (GeoJSON): straight edges in longitude and latitude, holes, parts.

An edge that crosses the antimeridian cannot be distinguished from one that goes the long way round,
so an edge over 180 degrees is refused; such a polygon is cut in two at 180 (RFC 7946, 3.1.9).
Shapely does the geometry. It is imported when the first polygon is made.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

from nearcast.model.box import Box
from nearcast.model.errors import LimitError, ShapeError
from nearcast.model.quantities import number_text
from nearcast.model.sphere import Bounds, checked_place, checked_places, flat_boxes, seamless_bounds
from nearcast.model.where.levels import encode_level
from nearcast.model.wording import shown

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from nearcast.model.shapes import BoundingBox, Circle

Ring: TypeAlias = tuple[tuple[float, float], ...]
Part: TypeAlias = tuple[Ring, ...]  # the outline, then the holes

VERTEX_LIMIT = 20_000
PAIR_LIMIT = 1_000_000
"""The most pairs of overlapping edges: Shapely compares each to check a polygon, 10 ns a pair."""
FEW_EDGES = 1_400  # all pairs of so few are below PAIR_LIMIT

_BOX_LIMIT = 8  # parts beyond this share boxes


@dataclass(frozen=True, slots=True)
class Polygon:
    """One or more outlines with holes; their edges belong to them.

    >>> square = Polygon(((((0, 0), (4, 0), (4, 4), (0, 4), (0, 0)),),))
    >>> square.contains(4, 2), square.contains(5, 2)
    (True, False)
    """

    parts: tuple[Part, ...]
    geometry: Any = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        vertices = sum(len(ring) for part in self.parts for ring in part)
        if vertices > VERTEX_LIMIT:
            raise LimitError(
                f"{vertices} points", where="polygon", expected=f"at most {VERTEX_LIMIT}"
            )
        parts = tuple(
            tuple(_ring(ring, f"part {p}, ring {r}") for r, ring in enumerate(part))
            for p, part in enumerate(self.parts)
        )
        if not parts or not all(parts):
            raise ShapeError("a polygon without points", expected="an outline of 4 points or more")
        if vertices > FEW_EDGES:
            _check_edges(parts)
        object.__setattr__(self, "parts", parts)
        object.__setattr__(self, "geometry", _geometry(parts))

    def boxes(self) -> tuple[Box, ...]:
        """Return covering boxes: one for each part, at most eight that cover all parts.

        Where a part touches the antimeridian or a pole, one more for the other spellings.
        """
        return flat_boxes(self.bounds())

    def bounds(self) -> tuple[Bounds, ...]:
        """Return (west, south, east, north) of these boxes."""
        import shapely

        bounds = sorted(tuple(shapely.bounds(part).tolist()) for part in self.geometry.geoms)
        return tuple(box for group in _grouped(bounds) for box in seamless_bounds(*_around(group)))

    def contains(self, lon: float, lat: float) -> bool:
        """Return whether the place lies in the polygon or on an edge; O(log vertices) or so."""
        return bool(self.contains_many([lon], [lat])[0])

    def contains_many(self, lons: ArrayLike, lats: ArrayLike) -> NDArray[np.bool_]:
        """Return for each place whether it lies in the polygon or on an edge."""
        import numpy as np
        import shapely

        east, north = checked_places(lons, lats)
        shapely.prepare(self.geometry)  # at the first call only
        inside: NDArray[np.bool_] = shapely.intersects_xy(self.geometry, east, north)
        seam = np.flatnonzero(np.abs(east) == 180)
        inside[seam] |= shapely.intersects_xy(self.geometry, -east[seam], north[seam])
        for pole in (-90.0, 90.0):
            at_pole = north == pole
            if at_pole.any():
                inside[at_pole] = self.reaches_pole(pole)
        return inside

    def reaches_pole(self, pole: float) -> bool:
        """Return whether the pole at latitude 90 or -90 lies in the polygon or on an edge."""
        _, south, _, north = self.geometry.bounds
        return bool(pole in (south, north))

    def touches(self, other: BoundingBox | Circle | Polygon) -> bool:
        """Return whether the two shapes share a place."""
        from nearcast.model.touching import touch

        return touch(self, other)

    def level(self) -> str:
        """Return the text for one level of a topic filter."""
        return encode_level(str(self))

    def __str__(self) -> str:
        parts = [_listed(_listed(map(_point_text, ring)) for ring in part) for part in self.parts]
        if len(parts) == 1:
            return f'geojson({{"type":"Polygon","coordinates":{parts[0]}}})'
        return f'geojson({{"type":"MultiPolygon","coordinates":{_listed(parts)}}})'


def _point_text(point: tuple[float, float]) -> str:
    return _listed(map(number_text, point))


def _listed(items: Iterable[str]) -> str:
    return f"[{','.join(items)}]"


def _ring(ring: Iterable[Iterable[float]], where: str) -> Ring:
    points = tuple(_point(point, f"{where}, point {n}") for n, point in enumerate(ring))
    if len(points) < 4:
        raise ShapeError(f"{len(points)} points", where=where, expected="4 or more")
    if points[0] != points[-1]:
        raise ShapeError(
            f"a first point {points[0]} that is not the last {points[-1]}",
            where=where,
            expected="a closed ring",
            todo="Repeat the first point at the end.",
        )
    for n, ((lon, _), (next_lon, _)) in enumerate(pairwise(points)):
        if abs(next_lon - lon) > 180:
            raise ShapeError(
                f"an edge from longitude {number_text(lon)} to {number_text(next_lon)}",
                where=f"{where}, point {n}",
                expected="edges of at most 180 degrees",
                todo="Cut a polygon that crosses the antimeridian in two at 180 (MultiPolygon); "
                "put another point on an edge that is meant to be that long.",
            )
    return points


def _point(point: Iterable[float], where: str) -> tuple[float, float]:
    values = tuple(point) if isinstance(point, (list, tuple)) else ()
    if len(values) not in (2, 3):
        raise ShapeError(shown(point), where=where, expected="longitude and latitude")
    return checked_place(values[0], values[1], where)


def _check_edges(parts: tuple[Part, ...]) -> None:
    """Refuse so many overlapping long edges that checking the polygon would take long.

    The boxes of two edges overlap only if their longitudes do, and their latitudes: the smaller of
    both numbers is an upper bound of the pairs that Shapely compares. O(n log n).
    """
    import numpy as np

    rings = [ring for part in parts for ring in part]
    points = np.array([point for ring in rings for point in ring])
    ends = np.cumsum([len(ring) for ring in rings])[:-1] - 1  # no edge leads to the next ring
    low, high = (
        np.delete(edge(points[:-1], points[1:]), ends, axis=0) for edge in (np.minimum, np.maximum)
    )
    pairs = min(_overlaps(low[:, axis], high[:, axis]) for axis in (0, 1))
    if pairs > PAIR_LIMIT:
        raise LimitError(
            f"{pairs} pairs of edges side by side",
            where="polygon",
            expected=f"at most {PAIR_LIMIT}",
            todo="Draw it with fewer or shorter edges.",
        )


def _overlaps(low: NDArray[np.float64], high: NDArray[np.float64]) -> int:
    """Return how many pairs of these intervals share a number."""
    import numpy as np

    count = len(low)
    apart = int(np.searchsorted(np.sort(high), low, side="left").sum())
    return count * (count - 1) // 2 - apart


def _geometry(parts: tuple[Part, ...]) -> Any:
    import shapely

    outlines = [shapely.polygons(rings[0], rings[1:] or None) for rings in parts]
    geometry = shapely.multipolygons(outlines)
    if not geometry.is_valid:
        reason = shapely.is_valid_reason(geometry).replace("[", " at [").lower()
        raise ShapeError(
            reason,
            where="polygon",
            expected="rings that do not cross themselves or each other",
        )
    return geometry


def _grouped(bounds: list[Bounds]) -> list[list[Bounds]]:
    """Return the bounds, sorted by west, in at most _BOX_LIMIT groups: cut at wide gaps."""
    gaps = [after[0] - before[2] for before, after in pairwise(bounds)]
    widest = sorted(range(len(gaps)), key=lambda n: -gaps[n])[: _BOX_LIMIT - 1]
    cuts = [0, *sorted(n + 1 for n in widest), len(bounds)]
    return [bounds[start:end] for start, end in pairwise(cuts)]


def _around(group: list[Bounds]) -> Bounds:
    wests, souths, easts, norths = zip(*group, strict=True)
    return min(wests), min(souths), max(easts), max(norths)
