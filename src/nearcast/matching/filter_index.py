"""The filter index: the subscriptions of one topic filter in one space.

Few boxes are scanned one by one; from `MANY` on they are in a `BoxIndex`. Conditions that a box
cannot express (the exact border of a circle or polygon) are checked on the few boxes found.

Read next: `query.py`, and `rows.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from nearcast.index.boxes.boxes import AnyBoxes, boxes_from_arrays, ranked
from nearcast.matching.exact import inside_circles, keys_inside_circles, pairs_inside_circles
from nearcast.matching.moving_box import Covered
from nearcast.matching.query import Query
from nearcast.matching.ranking import (
    SCORES,
    Bounds,
    Rank,
    ScoredBoxes,
    accuracies,
    is_indexed,
)
from nearcast.matching.rows import ROW, Rows
from nearcast.model import MISSING, Box, Circle, Space
from nearcast.model.shape_text import Shape

if TYPE_CHECKING:
    from nearcast.index.boxes.box_index import BoxIndex

MANY: Final = 24

Ids: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class FilterIndexEntry:
    """A subscription's part of a filter index: boxes, and shapes that boxes cannot express."""

    key: int
    birth_number: int  # a greater one is younger
    weight: float
    boxes: tuple[Box, ...]
    place: tuple[float, float] | None  # the subscriber, or the middle of the area
    radius_m: float | None  # a circle around `place`
    rough: tuple[Shape, ...] = ()  # further shapes that do not fill their boxes
    flat: tuple[Shape, ...] = ()  # shapes equal to their boxes, unless the event has an extent


class FilterIndex:
    """Boxes of one topic filter in one space, found exactly by point or box.

    Complexity: as `BoxIndex`, plus O(1) for each box that is found and has a circle.
    """

    __slots__ = (
        "_bounds",
        "_extent",
        "_flat",
        "_has_circles",
        "_in_order",
        "_index",
        "_rough",
        "_rows",
        "_several",
        "_viewed",
        "_views",
        "_youngest",
        "owners",
        "space",
    )

    def __init__(self, space: Space) -> None:
        self.space = space
        self._extent = (space.extent.lows, space.extent.highs)
        self.owners = 0  # number of subscriptions here, including those without a box
        self._rows = Rows()
        self._bounds: dict[int, Bounds] = {}  # only while there is no index
        self._index: AnyBoxes | None = None
        self._rough: dict[int, tuple[Shape, ...]] = {}
        self._flat: dict[int, tuple[Shape, ...]] = {}
        self._several = 0  # boxes of subscriptions with more than one
        self._has_circles = False
        self._youngest = -1
        self._in_order = True  # boxes entered the index in order of birth
        self._viewed: NDArray[np.void] | None = None
        self._views: tuple[Any, ...] = ()

    @classmethod
    def of(
        cls, space: Space, rows: Rows, index: BoxIndex, rough: dict[int, tuple[Shape, ...]]
    ) -> FilterIndex:
        """Return a filter index from the result of `contents`; it answers only point queries."""
        shelf = cls(space)
        shelf._rows, shelf._index, shelf._rough = rows, index, rough
        table = rows.table
        shelf._has_circles = bool(np.isfinite(table["radius_m"]).any())
        keys = np.sort(table["key"])
        shelf._several = int(np.count_nonzero(keys[1:] == keys[:-1]))
        return shelf

    @classmethod
    def of_boxes(
        cls,
        space: Space,
        keys: npt.ArrayLike,
        lows: npt.ArrayLike,
        highs: npt.ArrayLike,
        weights: npt.ArrayLike | None = None,
    ) -> FilterIndex:
        """Return a filter index of plain boxes, one for each key; row order is birth order."""
        extent = (space.extent.lows, space.extent.highs)
        owners = np.asarray(keys, np.int64)
        ids = np.arange(len(owners))
        from nearcast.index.boxes.box_index import BoxIndex

        index = BoxIndex.from_arrays(ids, lows, highs, weights=weights, extent=extent)
        table = np.zeros(len(owners), ROW)
        table["key"], table["age"] = owners, ids
        table["weight"] = 1.0 if weights is None else weights
        table["accuracy"] = accuracies(lows, highs, space.extent)
        for name in ("lon", "lat", "radius_m"):
            table[name] = math.nan
        return cls.of(space, Rows(table), index, {})

    def contents(self) -> tuple[NDArray[np.void], BoxIndex, dict[int, list[str]]]:
        """Return rows, index and exact shapes for a file: box ids counted from 0, oldest first."""
        ids = sorted(
            self._rows.used(), key=lambda box_id: (int(self._rows.table[box_id]["age"]), box_id)
        )
        rows = self._rows.table[ids]
        bounds = [self._bounds_of(box_id) for box_id in ids]
        dimensions = self.space.dimensions
        lows = np.array([low for low, _ in bounds], np.float64).reshape(-1, dimensions)
        highs = np.array([high for _, high in bounds], np.float64).reshape(-1, dimensions)
        from nearcast.index.boxes.box_index import BoxIndex

        index = BoxIndex.from_arrays(
            np.arange(len(ids)), lows, highs, weights=rows["weight"], extent=self._extent
        )
        shapes = {
            new: [str(shape) for shape in self._rough[old]]
            for new, old in enumerate(ids)
            if old in self._rough
        }
        return rows, index, shapes

    def bounds(self) -> list[Bounds]:
        """Return the closed bounds of all boxes."""
        return [self._bounds_of(box_id) for box_id in self._rows.used()]

    def __len__(self) -> int:
        return len(self._bounds) if self._index is None else len(self._index)

    # --- changes

    def put(self, placed: FilterIndexEntry) -> list[int]:
        """Add a subscription's boxes; return their ids."""
        ids = []
        self._in_order = self._in_order and placed.birth_number >= self._youngest
        self._youngest = max(self._youngest, placed.birth_number)
        self._several += len(placed.boxes) if len(placed.boxes) > 1 else 0
        for box in placed.boxes:
            lon, lat = placed.place or (math.nan, math.nan)
            radius_m = math.nan if placed.radius_m is None else placed.radius_m
            accuracy = box.accuracy(self.space.extent)
            row = (placed.key, placed.birth_number, accuracy, placed.weight, lon, lat, radius_m)
            box_id = self._rows.put(row)
            self._has_circles = self._has_circles or placed.radius_m is not None
            if placed.rough:
                self._rough[box_id] = placed.rough
            if placed.flat:
                self._flat[box_id] = placed.flat
            self._add_bounds(box_id, box.lows, box.highs, placed.weight)
            ids.append(box_id)
        return ids

    def take(self, ids: Sequence[int]) -> None:
        """Remove boxes that `put` returned."""
        self._several -= len(ids) if len(ids) > 1 else 0
        for box_id in ids:
            if self._index is None:
                del self._bounds[box_id]
            else:
                self._index.remove(box_id)
            self._rough.pop(box_id, None)
            self._flat.pop(box_id, None)
            self._rows.drop(box_id)

    def move(self, box_id: int, covered: Covered, place: tuple[float, float]) -> None:
        """Change the bounds of a box and the centre of its circle; birth number and weight stay."""
        lows, highs, accuracy = covered
        if self._index is None:
            self._bounds[box_id] = (lows, highs)
        else:
            self._index.move(box_id, lows, highs)
        lons, lats, _, _, widths = self._columns()
        lons[box_id], lats[box_id] = place
        widths[box_id] = accuracy

    def _columns(self) -> tuple[Any, ...]:
        """Return the current columns: longitudes, latitudes, radii, keys and accuracies."""
        table = self._rows.table
        if table is not self._viewed:
            self._viewed = table
            names = ("lon", "lat", "radius_m", "key", "accuracy")
            self._views = tuple(table[name] for name in names)
        return self._views

    def _add_bounds(
        self, box_id: int, lows: tuple[float, ...], highs: tuple[float, ...], weight: float
    ) -> None:
        if self._index is not None:
            self._index.add(box_id, lows, highs, weight=weight)
            return
        self._bounds[box_id] = (lows, highs)
        if len(self._bounds) >= MANY:
            self._index = self._built(list(self._bounds))
            self._bounds = {}

    def _built(self, ids: list[int]) -> AnyBoxes:
        """Build the index; boxes enter in order of birth."""
        ids.sort(key=lambda box_id: int(self._rows.table[box_id]["age"]))
        self._in_order = True
        lows = np.array([self._bounds[box_id][0] for box_id in ids])
        highs = np.array([self._bounds[box_id][1] for box_id in ids])
        rows = self._rows.table[ids]
        return boxes_from_arrays(ids, lows, highs, weights=rows["weight"], extent=self._extent)

    # --- queries for one event

    def match(self, query: Query) -> list[int]:
        """Return the keys of the subscriptions that match the event, each once."""
        return self._keys(self._exact(self._candidates(query), query))

    def match_point(self, point: tuple[float, ...]) -> list[int]:
        """Return what `match` returns for a point, without building a `Query`; for the broker."""
        index = self._index
        if index is None or self._rough:
            return self.match(self._point_query(point))
        ids = index.match(point)
        if not ids.size:
            return []
        if not self._has_circles:
            return self._keys(ids)
        lon_at, lat_at = self.space.coordinates or (0, 0)
        lon, lat = point[lon_at], point[lat_at]
        if MISSING in (lon, lat):
            return self._keys(ids)
        keys: list[int] = keys_inside_circles(ids, (lon, lat), self._columns()[:4]).tolist()
        return list(dict.fromkeys(keys)) if self._several else keys

    def top(self, query: Query, k: int, rank: Rank) -> list[tuple[float, int, int]]:
        """Return score, birth number and box id of the k best subscriptions, best first."""
        index = None if self._index is None else ranked(self._index)
        if index is None or query.point is None or not is_indexed(rank):
            return self._best(self._exact(self._candidates(query), query), query, k, rank)
        want = k
        while True:
            ids = index.top(query.point, want, rank)
            best = self._best(self._exact(ids, query), query, k, rank)
            if len(ids) < want or (len(best) == k and self._is_settled(best, ids, query, rank)):
                return best
            want *= 4  # some were outside their exact shape, duplicates, or tie with the last

    def _is_settled(
        self, best: list[tuple[float, int, int]], ids: Ids, query: Query, rank: Rank
    ) -> bool:
        """Return whether no box beyond `ids` can be among the best.

        The index breaks ties by the order in which boxes entered it. A box that entered late (its
        owner's position became known, or crossed the antimeridian) may be older than that order
        suggests, so all boxes that tie with the last of the best have to be seen.
        """
        return self._in_order or self._scores(ids[-1:], query, rank)[0] > best[-1][0]

    def row(self, box_id: int) -> np.void:
        """Return the row of a box."""
        return self._rows.table[box_id]  # type: ignore[no-any-return]

    def _candidates(self, query: Query) -> Ids:
        if query.point is not None:
            if self._index is not None:
                return self._index.match(query.point)
            return self._scan(query.point, query.point)
        found = [
            self._scan(box.lows, box.highs)
            if self._index is None
            else self._index.match_box(box.lows, box.highs)
            for box in query.boxes
        ]
        return found[0] if len(found) == 1 else np.unique(np.concatenate(found))

    def _scan(self, lows: Sequence[float], highs: Sequence[float]) -> Ids:
        found = [
            box_id
            for box_id, bounds in self._bounds.items()
            if all(
                low <= end and begin <= high
                for low, high, begin, end in zip(lows, highs, *bounds, strict=True)
            )
        ]
        return np.array(found, np.int64)

    def _exact(self, ids: Ids, query: Query) -> Ids:
        """Return the boxes whose exact shapes meet the event."""
        if query.area is not None:
            return self._touching(ids, query.area)
        if query.place is None or not len(ids):  # without a place, the boxes have decided
            return ids
        lon, lat = query.place
        if self._has_circles:
            ids = inside_circles(ids, self._rows.table, lon, lat)
        if not self._rough:
            return ids
        rough = self._rough
        kept = [
            i for i in ids.tolist() if all(shape.contains(lon, lat) for shape in rough.get(i, ()))
        ]
        return np.array(kept, np.int64)

    def _touching(self, ids: Ids, area: Shape) -> Ids:
        kept = [i for i in ids.tolist() if all(s.touches(area) for s in self._shapes(i))]
        return np.array(kept, np.int64)

    def _shapes(self, box_id: int) -> tuple[Shape, ...]:
        """Return all shapes of a box, as they were given."""
        row = self._rows.table[box_id]
        lon, lat, radius_m = (float(row[name]) for name in ("lon", "lat", "radius_m"))
        circle = () if math.isnan(radius_m) else (Circle(lon, lat, radius_m),)
        return (*circle, *self._rough.get(box_id, ()), *self._flat.get(box_id, ()))

    def _keys(self, ids: Ids) -> list[int]:
        keys: list[int] = self._rows.table["key"][ids].tolist()
        return list(dict.fromkeys(keys)) if self._several else keys

    def _best(self, ids: Ids, query: Query, k: int, rank: Rank) -> list[tuple[float, int, int]]:
        """Score boxes, keep each subscription's best, and return the k best."""
        scores = self._scores(ids, query, rank)
        births = self._rows.table["age"][ids].tolist()
        order = sorted(zip(scores, births, ids.tolist(), strict=True))
        if self._several:
            first: dict[int, tuple[float, int, int]] = {}
            for each in order:
                first.setdefault(int(self._rows.table[each[2]]["key"]), each)
            order = list(first.values())
        return order[:k]

    def _scores(self, ids: Ids, query: Query, rank: Rank) -> list[float]:
        """Return the score of each box; less is better."""
        boxes = ScoredBoxes(ids.tolist(), self._rows.table[ids], query, self._bounds_of)
        if isinstance(rank, str):
            return SCORES[rank](boxes)
        total = np.zeros(len(ids))
        for name, share in rank.items():
            if share:
                total += share * np.array(SCORES[name](boxes))
        return total.tolist()

    def _bounds_of(self, box_id: int) -> Bounds:
        if self._index is None:
            return self._bounds[box_id]
        lows, highs = self._index.box(box_id)
        return tuple(lows.tolist()), tuple(highs.tolist())

    # --- queries for many events

    def match_points(self, points: NDArray[np.float64]) -> tuple[Ids, Ids]:
        """Return offsets and keys for points; MISSING represents a missing value."""
        if self._index is None:
            queries = [self._point_query(row) for row in points.tolist()]
            found = [self.match(query) for query in queries]
            offsets = np.cumsum([0, *map(len, found)])
            return offsets, np.array([key for keys in found for key in keys], np.int64)
        offsets, ids = self._index.match_many(points)
        events = np.repeat(np.arange(len(points)), np.diff(offsets))
        keep = self._exact_pairs(events, ids, points)
        keys = self._rows.table["key"][ids]
        if self._several:
            keep &= _first_of_each(events, keys, keep)
        if keep.all():
            return offsets, keys
        counts = np.bincount(events[keep], minlength=len(points))
        return np.concatenate([[0], np.cumsum(counts)]), keys[keep]

    def top_points(self, points: NDArray[np.float64], k: int, rank: Rank) -> Ids | None:
        """Return the ranked keys for many points, or None where each needs its own query."""
        index = None if self._index is None else ranked(self._index)
        if index is None or self._several or self._has_circles or self._rough:
            return None
        if not (is_indexed(rank) and self._in_order):
            return None
        ids = index.top_many(points, k, rank)
        keys: Ids = np.where(ids >= 0, self._rows.table["key"][ids], -1)
        return keys

    def _point_query(self, row: Sequence[float]) -> Query:
        place = None
        if self.space.coordinates is not None:
            lon, lat = (row[at] for at in self.space.coordinates)
            place = None if MISSING in (lon, lat) else (lon, lat)
        return Query(tuple(row), (), place, None)

    def _exact_pairs(self, events: Ids, ids: Ids, points: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return for each pair whether the box's exact shapes contain the event."""
        keep = np.ones(len(ids), np.bool_)
        if self.space.coordinates is None or not (self._has_circles or self._rough):
            return keep
        lons, lats = (np.ascontiguousarray(points[:, at]) for at in self.space.coordinates)
        has_place = (lons != MISSING) & (lats != MISSING)
        if self._has_circles:
            keep = pairs_inside_circles(events, ids, self._rows.table, lons, lats)
            keep |= ~has_place[events]
        rough = np.isin(ids, list(self._rough)) & has_place[events]
        for box_id in np.unique(ids[rough]).tolist():
            at = np.flatnonzero(rough & (ids == box_id))
            for shape in self._rough[box_id]:
                keep[at] &= shape.contains_many(lons[events[at]], lats[events[at]])
        return keep


def _first_of_each(events: Ids, keys: Ids, keep: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which kept pairs are the first with their event and key."""
    order = np.lexsort((~keep, keys, events))
    same = np.zeros(len(keys), np.bool_)
    same[1:] = (np.diff(events[order]) == 0) & (np.diff(keys[order]) == 0)
    first = np.empty(len(keys), np.bool_)
    first[order] = ~same
    return first
