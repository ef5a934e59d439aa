"""The exact shapes of the boxes of a filter index: from candidates to matches.

A box covers a subscription's circles and polygons. What an index finds by boxes is checked here.
"""

from __future__ import annotations

import math
from collections import UserDict
from collections.abc import Iterable, Mapping, MutableMapping

import numpy as np
from numpy.typing import NDArray

from nearcast.matching.exact import inside_circles, pairs_inside_circles
from nearcast.matching.polygon_table import PolygonTable, pairs_inside
from nearcast.matching.query import Query
from nearcast.matching.rows import Rows
from nearcast.model import MISSING, Circle, Space, parse_shape
from nearcast.model.shape_text import Shape

Ids = NDArray[np.int64]
Int32s = NDArray[np.int32]


class ShapesFromText(UserDict[int, tuple[Shape, ...]]):
    """The exact shapes of box ids, each parsed when it is first asked for: that is rare."""

    def __init__(self, texts: Mapping[int, list[str]]) -> None:
        super().__init__()
        self._texts = texts
        self.data = dict.fromkeys(texts, ())

    def __getitem__(self, box_id: int) -> tuple[Shape, ...]:
        """Return the shapes of a box."""
        if not self.data[box_id]:
            self.data[box_id] = tuple(map(parse_shape, self._texts[box_id]))
        return self.data[box_id]

    def texts(self) -> dict[int, list[str]]:
        """Return the text of every shape; those that were parsed need not be printed."""
        return {
            box_id: self._texts.get(box_id) or [str(shape) for shape in shapes]
            for box_id, shapes in self.data.items()
        }


class ExactShapes:
    """Which boxes have shapes beside their bounds; circles stand in the rows themselves."""

    __slots__ = ("_flat", "_polygons", "_rows", "_space", "has_circles", "rough")

    def __init__(
        self,
        space: Space,
        rows: Rows,
        rough: MutableMapping[int, tuple[Shape, ...]] | None = None,
        polygons: PolygonTable | None = None,
    ) -> None:
        self._space = space
        self._rows = rows
        self.rough = {} if rough is None else rough  # shapes that do not fill their boxes
        self._polygons = polygons or PolygonTable()  # the same shapes, for the kernel
        self._flat: dict[int, tuple[Shape, ...]] = {}  # equal to their boxes, for points
        self.has_circles = False

    def put(self, box_id: int, rough: tuple[Shape, ...], flat: tuple[Shape, ...]) -> None:
        """Add shapes of a box."""
        if rough:
            self.rough[box_id] = rough
            self._polygons.put(box_id, rough)
        if flat:
            self._flat[box_id] = flat

    def drop(self, box_id: int) -> None:
        """Remove the shapes of a box, if it has any."""
        if self.rough.pop(box_id, None) is not None:
            self._polygons.drop(box_id)
        self._flat.pop(box_id, None)

    def __contains__(self, box_id: int) -> bool:
        return box_id in self.rough or box_id in self._flat

    @property
    def are_boxes(self) -> bool:
        """Whether a point inside a box is inside its shapes, for all boxes."""
        return not (self.has_circles or self.rough)

    def of_boxes(self, ids: list[int]) -> tuple[dict[int, list[str]], PolygonTable]:
        """Return texts and polygons of these boxes alone, numbered anew from 0."""
        texts = {
            new: [str(shape) for shape in self.rough[old]]
            for new, old in enumerate(ids)
            if old in self.rough
        }
        return texts, self._polygons.of_boxes(ids)

    def contents(self) -> tuple[dict[int, list[str]], PolygonTable]:
        """Return texts and polygons of all boxes, under their own ids."""
        if isinstance(self.rough, ShapesFromText):
            return self.rough.texts(), self._polygons
        texts = {box_id: [str(each) for each in shapes] for box_id, shapes in self.rough.items()}
        return texts, self._polygons

    def exact(self, ids: Ids, query: Query) -> Ids:
        """Return the boxes whose exact shapes meet the event."""
        if query.area is not None:
            return self._touching(ids, query.area)
        if query.place is None or not len(ids):  # without a place, the boxes have decided
            return ids
        lon, lat = query.place
        if self.has_circles:
            ids = inside_circles(ids, self._rows.table, lon, lat)
        if not self.rough:
            return ids
        events, lons, lats = np.zeros(len(ids), np.int64), np.array([lon]), np.array([lat])
        return ids[pairs_inside(self._polygons, self.rough, events, ids, lons, lats)]

    def _touching(self, ids: Ids, area: Shape) -> Ids:
        kept = [i for i in ids.tolist() if all(s.touches(area) for s in self._shapes(i))]
        return np.array(kept, np.int64)

    def _shapes(self, box_id: int) -> tuple[Shape, ...]:
        """Return all shapes of a box, as they were given."""
        row = self._rows.table[box_id]
        lon, lat, radius_m = (float(row[name]) for name in ("lon", "lat", "radius_m"))
        circle = () if math.isnan(radius_m) else (Circle(lon, lat, radius_m),)
        return (*circle, *self.rough.get(box_id, ()), *self._flat.get(box_id, ()))

    def exact_pairs(self, events: Ids, ids: Ids, points: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return for each pair whether the box's exact shapes contain the event."""
        keep = np.ones(len(ids), np.bool_)
        if self._space.coordinates is None or self.are_boxes:
            return keep
        lons, lats = (np.ascontiguousarray(points[:, at]) for at in self._space.coordinates)
        has_place = (lons != MISSING) & (lats != MISSING)
        if self.has_circles:
            keep = pairs_inside_circles(events, ids, self._rows.table, lons, lats)
            keep |= ~has_place[events]
        if self.rough:
            with_place = slice(None) if has_place.all() else np.flatnonzero(has_place[events])
            keep[with_place] &= pairs_inside(
                self._polygons, self.rough, events[with_place], ids[with_place], lons, lats
            )
        return keep

    def count_pairs(self, found: Iterable[tuple[NDArray[np.float64], Int32s, Ids]]) -> Ids:
        """Return how many events each box contains; not for boxes with circles.

        `found` has some events at a time, with pairs of an event and a box.
        """
        counts = np.zeros(len(self._rows.table), np.int64)
        lon_at, lat_at = self._space.coordinates or (0, 0)
        for points, events, ids in found:
            lons, lats = (np.ascontiguousarray(points[:, at]) for at in (lon_at, lat_at))
            left = self._polygons.count_inside(events, ids, lons, lats, counts)
            if left.size:
                inside = self.exact_pairs(events[left].astype(np.int64), ids[left], points)
                np.add.at(counts, ids[left][inside], 1)
        return counts
