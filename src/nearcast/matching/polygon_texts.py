"""Reads many GeoJSON polygons at once, as arrays.

Most areas of a large table are one outline with or without holes, away from the antimeridian and
the poles. Those are read here, two orders faster than one by one, by the same rules: a text that
is anything else, or that breaks a rule, is left out, and `parse_shape` accepts or refuses it.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from nearcast.model.polygon import FEW_EDGES
from nearcast.model.where.tokens import LENGTH_LIMIT

Ids = NDArray[np.int64]
Floats = NDArray[np.float64]

_POLYGON = r'\{\s*"type"\s*:\s*"Polygon"\s*,\s*"coordinates"\s*:\s*(\[[-+0-9.eE,\[\]\s]*\])\s*\}'
_SIMPLE = re.compile(rf"\s*(?:geojson\s*\(\s*{_POLYGON}\s*\)|{_POLYGON})\s*", re.ASCII)


@dataclass(frozen=True, slots=True)
class ManyPolygons:
    """Polygons of one outline each, with their holes, as arrays."""

    rows: Ids  # which of the texts they are, ascending
    bounds: Floats  # of each: west, south, east, north
    middles: Floats  # of each: longitude and latitude of the centroid
    edges: Floats  # from and to, as in PolygonTable; polygon after polygon
    edge_counts: Ids

    def of_rows(self, keep: NDArray[np.bool_]) -> ManyPolygons:
        """Return some of them."""
        if keep.all():
            return self
        edges = self.edges[np.repeat(keep, self.edge_counts)]
        counts = self.edge_counts[keep]
        return ManyPolygons(self.rows[keep], self.bounds[keep], self.middles[keep], edges, counts)


@dataclass(slots=True)
class _Rings:
    """Numbers of rings, one after the other; nothing is checked yet."""

    numbers: array[float]
    ring_sizes: list[int]  # points of each
    ring_counts: list[int]  # rings of each polygon
    rows: list[int]

    def add(self, row: int, rings: Iterable[list[list[float]]]) -> None:
        """Append a polygon, or nothing if it is no list of rings of points of two numbers."""
        before, sizes = len(self.numbers), []
        try:
            for ring in rings:
                if set(map(len, ring)) != {2}:
                    raise TypeError
                self.numbers.extend(chain.from_iterable(ring))
                sizes.append(len(ring))
        except (TypeError, OverflowError):
            del self.numbers[before:]
            return
        if sizes:
            self.ring_sizes += sizes
            self.ring_counts.append(len(sizes))
            self.rows.append(row)


def read_polygons(texts: Sequence[str | None]) -> ManyPolygons:
    """Return the simple polygons of these texts; O(length), plus Shapely's check of each."""
    rings = _Rings(array("d"), [], [], [])
    for row, text in enumerate(texts):
        found = _SIMPLE.fullmatch(text) if text and len(text) <= LENGTH_LIMIT else None
        if found is not None:
            try:
                rings.add(row, json.loads(found[1] or found[2]))
            except (ValueError, RecursionError):
                continue
    return _checked(rings)


def _checked(rings: _Rings) -> ManyPolygons:
    """Return the polygons that keep the rules of `Polygon` and need one box."""
    points = np.frombuffer(rings.numbers, np.float64).reshape(-1, 2) + 0.0  # there is no -0
    ring_sizes, ring_counts = np.array(rings.ring_sizes, np.int64), np.array(rings.ring_counts)
    ring_counts, rows = ring_counts.astype(np.int64), np.array(rings.rows, np.int64)
    if not rows.size:
        nothing = np.zeros((0, 4))
        return ManyPolygons(rows, nothing, nothing[:, :2], nothing, rows)
    good = _good(points, ring_sizes, ring_counts)
    ring_good = np.repeat(good, ring_counts)
    points, ring_sizes = points[np.repeat(ring_good, ring_sizes)], ring_sizes[ring_good]
    return _valid(points, ring_sizes, ring_counts[good], rows[good])


def _good(points: Floats, ring_sizes: Ids, ring_counts: Ids) -> NDArray[np.bool_]:
    """Return which polygons have closed rings of four points or more, in range, edges not long."""
    ends = np.cumsum(ring_sizes)
    starts = ends - ring_sizes
    inside = (np.abs(points) < (180.0, 90.0)).all(axis=1)
    steps = np.zeros(len(points))
    with np.errstate(invalid="ignore"):
        steps[1:] = np.abs(np.diff(points[:, 0]))
    steps[starts] = 0.0
    ring_good = (
        (ring_sizes >= 4)
        & (points[starts] == points[ends - 1]).all(axis=1)
        & np.logical_and.reduceat(inside & (steps <= 180.0), starts)
    )
    first_rings = np.cumsum(ring_counts) - ring_counts
    vertices: Ids = np.add.reduceat(ring_sizes, first_rings)
    good: NDArray[np.bool_] = np.logical_and.reduceat(ring_good, first_rings)
    return good & (vertices <= FEW_EDGES)


def _valid(points: Floats, ring_sizes: Ids, ring_counts: Ids, rows: Ids) -> ManyPolygons:
    import shapely

    polygon_of_ring = np.repeat(np.arange(len(rows)), ring_counts)
    ring_of_point = np.repeat(np.arange(len(ring_sizes)), ring_sizes)
    rings = shapely.linearrings(points, indices=ring_of_point)
    polygons = shapely.polygons(rings, indices=polygon_of_ring)
    valid = shapely.is_valid(polygons)
    centroids = shapely.centroid(polygons[valid])
    middles = np.stack([shapely.get_x(centroids), shapely.get_y(centroids)], axis=1)
    is_edge = np.ones(len(points), np.bool_)
    is_edge[np.cumsum(ring_sizes) - 1] = False
    is_edge &= valid[polygon_of_ring[ring_of_point]]
    at = np.flatnonzero(is_edge)
    edges = np.concatenate([points[at], points[at + 1]], axis=1)
    sizes = np.bincount(polygon_of_ring, ring_sizes - 1, len(rows)).astype(np.int64)
    return ManyPolygons(rows[valid], shapely.bounds(polygons[valid]), middles, edges, sizes[valid])
