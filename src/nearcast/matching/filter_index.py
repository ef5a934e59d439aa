"""The filter index: the subscriptions of one topic filter in one space.

Few boxes are scanned one by one. From `MANY` on, those that constrain one attribute are in the
interval skip list of that attribute (paper 1), the others in a `BoxIndex`, and a query merges both.
Conditions that a box cannot express (the exact border of a circle or polygon) are checked on the
few boxes found.

Read next: `attribute_lists.py`, `exact_shapes.py`, `query.py`, and `rows.py`.
"""

from __future__ import annotations

import math
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from nearcast.index.boxes.boxes import AnyBoxes, boxes_from_arrays, ranked
from nearcast.matching.attribute_lists import AttributeLists, Scored, only_attribute
from nearcast.matching.event_pairs import first_of_each, joined
from nearcast.matching.exact import keys_inside_circles
from nearcast.matching.exact_shapes import ExactShapes
from nearcast.matching.moving_box import Covered
from nearcast.matching.polygon_table import PolygonTable
from nearcast.matching.query import Query
from nearcast.matching.ranking import (
    SCORES,
    Bounds,
    Match,
    Rank,
    ScoredBoxes,
    accuracies,
    distance_of,
    is_indexed,
)
from nearcast.matching.rows import ROW, Rows
from nearcast.model import MISSING, RANKS, Box, Space
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

    Complexity: as `IntervalSkipList` for boxes that constrain one attribute, as `BoxIndex` for the
    others, plus O(1) for each box that is found and has a circle.
    """

    __slots__ = (
        "_bounds",
        "_extent",
        "_in_order",
        "_index",
        "_is_fixed",
        "_lists",
        "_rows",
        "_several",
        "_shapes",
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
        self._is_fixed = False  # the result of `of`: box ids are counted from 0, oldest first
        self._lists = AttributeLists(space)
        self._shapes = ExactShapes(space, self._rows)
        self._several = 0  # boxes of subscriptions with more than one
        self._youngest = -1
        self._in_order = True  # boxes entered the index in order of birth
        self._viewed: NDArray[np.void] | None = None
        self._views: tuple[Any, ...] = ()

    @classmethod
    def of(
        cls,
        space: Space,
        rows: Rows,
        index: BoxIndex,
        rough: MutableMapping[int, tuple[Shape, ...]],
        polygons: PolygonTable,
    ) -> FilterIndex:
        """Return a filter index from the result of `contents`; it answers only point queries."""
        shelf = cls(space)
        shelf._is_fixed = True
        shelf._rows, shelf._index = rows, index
        shelf._shapes = ExactShapes(space, rows, rough, polygons)
        shelf._shapes.has_circles = bool(np.isfinite(rows.table["radius_m"]).any())
        keys = np.sort(rows.table["key"])
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
        return cls.of(space, Rows(table), index, {}, PolygonTable())

    def contents(
        self,
    ) -> tuple[NDArray[np.void], BoxIndex, dict[int, list[str]], PolygonTable]:
        """Return rows, index and exact shapes for a file: box ids counted from 0, oldest first."""
        if self._is_fixed:
            assert self._index is not None
            fixed: BoxIndex = self._index  # type: ignore[assignment]
            return self._rows.table, fixed, *self._shapes.contents()
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
        return rows, index, *self._shapes.of_boxes(ids)

    def __len__(self) -> int:
        return len(self._bounds) if self._index is None else len(self._index) + len(self._lists)

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
            self._shapes.has_circles |= placed.radius_m is not None
            self._shapes.put(box_id, placed.rough, placed.flat)
            self._add_bounds(box_id, box.lows, box.highs)
            ids.append(box_id)
        return ids

    def take(self, ids: Sequence[int]) -> None:
        """Remove boxes that `put` returned."""
        self._several -= len(ids) if len(ids) > 1 else 0
        for box_id in ids:
            if self._index is None:
                del self._bounds[box_id]
            elif not self._lists.remove(box_id):
                self._index.remove(box_id)
            self._shapes.drop(box_id)
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

    def _add_bounds(self, box_id: int, lows: tuple[float, ...], highs: tuple[float, ...]) -> None:
        if self._index is not None:
            if not self._add_to_list(box_id, lows, highs):
                weight = float(self._rows.table[box_id]["weight"])
                self._index.add(box_id, lows, highs, weight=weight)
            return
        self._bounds[box_id] = (lows, highs)
        if len(self._bounds) >= MANY:
            self._index = self._built(list(self._bounds))
            self._bounds = {}

    def _add_to_list(self, box_id: int, lows: tuple[float, ...], highs: tuple[float, ...]) -> bool:
        """Add a box to the list of its attribute; return False if it needs the box index.

        A box with a place may move, and one with shapes is more than an interval.
        """
        at = only_attribute(lows, highs)
        row = self._rows.table[box_id]
        if at is None or row["lon"] == row["lon"] or box_id in self._shapes:
            return False
        weight, birth = float(row["weight"]), int(row["age"])
        self._lists.add(box_id, at, lows[at], highs[at], weight, birth)
        return True

    def _built(self, ids: list[int]) -> AnyBoxes:
        """Fill the lists and build the index; boxes enter in order of birth."""
        ids.sort(key=lambda box_id: int(self._rows.table[box_id]["age"]))
        self._in_order = True
        ids = [box_id for box_id in ids if not self._add_to_list(box_id, *self._bounds[box_id])]
        shape = (-1, self.space.dimensions)
        lows = np.array([self._bounds[box_id][0] for box_id in ids]).reshape(shape)
        highs = np.array([self._bounds[box_id][1] for box_id in ids]).reshape(shape)
        weights = self._rows.table[ids]["weight"] if ids else np.empty(0)
        return boxes_from_arrays(
            np.array(ids, np.int64), lows, highs, weights=weights, extent=self._extent
        )

    # --- queries for one event

    def match(self, query: Query) -> list[int]:
        """Return the keys of the subscriptions that match, each once."""
        return self._keys(self._shapes.exact(self._candidates(query), query))

    def match_point(self, point: tuple[float, ...]) -> list[int]:
        """Return what `match` returns for a point, without building a `Query`; for the broker."""
        index = self._index
        if index is None or self._shapes.rough:
            return self.match(self._point_query(point))
        ids = self._at_point(index, point)
        if not ids.size:
            return []
        if not self._shapes.has_circles:
            return self._keys(ids)
        lon_at, lat_at = self.space.coordinates or (0, 0)
        lon, lat = point[lon_at], point[lat_at]
        if MISSING in (lon, lat):
            return self._keys(ids)
        keys: list[int] = keys_inside_circles(ids, (lon, lat), self._columns()[:4]).tolist()
        return list(dict.fromkeys(keys)) if self._several else keys

    def _at_point(self, index: AnyBoxes, point: tuple[float, ...]) -> Ids:
        """Return the boxes that contain a point, of the lists and the index."""
        if not self._lists:
            return index.match(point)
        found = self._lists.match(point)
        if len(index):
            found.append(index.match(point))
        return found[0] if len(found) == 1 else np.concatenate(found)

    def top(self, query: Query, k: int, rank: Rank) -> list[Scored]:
        """Return score, birth number and box id of the k best subscriptions, best first."""
        index = None if self._index is None else ranked(self._index)
        if index is None or query.point is None or not is_indexed(rank):
            found = self._scored(self._shapes.exact(self._candidates(query), query), query, rank)
            return self._distinct(sorted(found))[:k]
        want = k
        while True:
            sources = self._lists.top(query.point, want, rank)
            ends = [each[-1] for each in sources if len(each) == want]
            if len(index):
                boxes, end = self._top_boxes(index, query, want, rank)
                sources.append(boxes)
                ends += end
            found = sources[0] if len(sources) == 1 else sorted(chain.from_iterable(sources))
            best = self._distinct(found)[:k]
            if not ends or (len(best) == k and best[-1] <= min(ends)):
                return best
            want *= 4  # some were outside their exact shape, duplicates, or tie with the last

    def _top_boxes(
        self, index: BoxIndex, query: Query, want: int, rank: Rank
    ) -> tuple[list[Scored], list[Scored]]:
        """Return the best boxes of the index, and whom all others come after, if there are more.

        The index breaks ties by the order in which boxes entered it. A box that entered late (its
        owner's position became known, or crossed the antimeridian) may be older than that order
        suggests, so all boxes that tie with the last have to be seen.
        """
        ids = index.top(query.point, want, rank)  # type: ignore[arg-type]
        found = sorted(self._scored(self._shapes.exact(ids, query), query, rank))
        if len(ids) < want:
            return found, []
        ((score, birth, box_id),) = self._scored(ids[-1:], query, rank)
        return found, [(score, birth if self._in_order else -1, box_id)]

    def matches(self, found: list[Scored], query: Query) -> list[Match]:
        """Return the matches of some results of `top`."""
        ids = [box_id for _, _, box_id in found]
        _, _, _, keys, accuracies_ = self._columns()
        rows = zip(keys[ids].tolist(), accuracies_[ids].tolist(), found, strict=True)
        if query.place is None:
            return [Match(key, accuracy, None, score) for key, accuracy, (score, _, _) in rows]
        table = self._rows.table
        return [
            Match(key, accuracy, _metres(distance_of(table[box_id], query)), score)
            for key, accuracy, (score, _, box_id) in rows
        ]

    def _candidates(self, query: Query) -> Ids:
        if query.point is not None:
            if self._index is not None:
                return self._at_point(self._index, query.point)
            return self._scan(query.point, query.point)
        found: list[Ids] = []
        for box in query.boxes:
            if self._index is None:
                found.append(self._scan(box.lows, box.highs))
            else:
                found += self._lists.match_box(box)
                found.append(self._index.match_box(box.lows, box.highs))
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

    def _keys(self, ids: Ids) -> list[int]:
        keys: list[int] = self._rows.table["key"][ids].tolist()
        return list(dict.fromkeys(keys)) if self._several else keys

    def _scored(self, ids: Ids, query: Query, rank: Rank) -> list[Scored]:
        """Return score, birth number and id of boxes, in the order of `ids`."""
        births = self._rows.table["age"][ids].tolist()
        return list(zip(self._scores(ids, query, rank), births, ids.tolist(), strict=True))

    def _distinct(self, found: list[Scored]) -> list[Scored]:
        """Return each subscription's first box."""
        if not self._several:
            return found
        keys = self._columns()[3]
        first: dict[int, Scored] = {}
        for each in found:
            first.setdefault(int(keys[each[2]]), each)
        return list(first.values())

    def _scores(self, ids: Ids, query: Query, rank: Rank) -> list[float]:
        """Return the score of each box; less is better."""
        boxes = ScoredBoxes(ids.tolist(), self._rows.table[ids], query, self._bounds_of)
        if isinstance(rank, str):
            return SCORES[rank](boxes)
        total = np.zeros(len(ids))
        for name, declared in RANKS.items():  # in this order, as the indexes add them up
            if rank.get(name):
                total += rank[name] * (np.array(SCORES[name](boxes)) / declared.blend_unit)
        return total.tolist()

    def _bounds_of(self, box_id: int) -> Bounds:
        if self._index is None:
            return self._bounds[box_id]
        listed = self._lists.bounds_of(box_id)
        if listed is not None:
            return listed
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
        offsets, ids = self._at_points(self._index, points)
        events = np.repeat(np.arange(len(points)), np.diff(offsets))
        keep = self._shapes.exact_pairs(events, ids, points)
        keys = self._rows.table["key"][ids]
        if self._several:
            keep &= first_of_each(events, keys, keep)
        if keep.all():
            return offsets, keys
        counts = np.bincount(events[keep], minlength=len(points))
        return np.concatenate([[0], np.cumsum(counts)]), keys[keep]

    def _at_points(self, index: AnyBoxes, points: NDArray[np.float64]) -> tuple[Ids, Ids]:
        """Return offsets and boxes for points, of the lists and the index."""
        parts = self._lists.match_many(points)
        if len(index) or not parts:
            parts.append(index.match_many(points))
        return joined(parts, len(points))

    def count_points(self, points: NDArray[np.float64]) -> tuple[Ids, Ids]:
        """Return the keys that match some of the points, each once, and how many points."""
        index = None if self._index is None else ranked(self._index)
        if index is None or self._lists or self._several or self._shapes.has_circles:
            return np.unique(self.match_points(points)[1], return_counts=True)
        counts = self._shapes.count_pairs(index.match_pairs(points))
        found = np.flatnonzero(counts)
        return self._rows.table["key"][found], counts[found]

    def top_points(self, points: NDArray[np.float64], k: int, rank: Rank) -> Ids | None:
        """Return the ranked keys for many points, or None where each needs its own query."""
        index = None if self._index is None else ranked(self._index)
        if index is None or self._several or self._lists:
            return None
        if not (is_indexed(rank) and self._in_order):
            return None
        if not len(index):
            return np.full((len(points), k), -1, np.int64)
        if self._shapes.are_boxes:
            ids = index.top_many(points, k, rank)
            keys: Ids = np.where(ids >= 0, self._rows.table["key"][ids], -1)
            return keys
        return self._top_exact(index, points, k, rank)

    def _top_exact(self, index: BoxIndex, points: NDArray[np.float64], k: int, rank: Rank) -> Ids:
        """Return the ranked keys where boxes are candidates: more of them until k are exact."""
        keys: Ids = np.full((len(points), k), -1, np.int64)
        rows, want = np.arange(len(points)), 2 * k
        while rows.size:
            ids = index.top_many(points[rows], want, rank)
            found = ids >= 0
            events, candidates = np.nonzero(found)[0], ids[found]
            keep = self._shapes.exact_pairs(events, candidates, points[rows])
            events, candidates = events[keep], candidates[keep]
            counts = np.bincount(events, minlength=len(rows))
            nth = np.arange(len(events)) - (np.cumsum(counts) - counts)[events]
            is_settled = (counts >= k) | ~found[:, -1]
            best = (nth < k) & is_settled[events]
            keys[rows[events[best]], nth[best]] = self._rows.table["key"][candidates[best]]
            rows, want = rows[~is_settled], 4 * want
        return keys

    def _point_query(self, row: Sequence[float]) -> Query:
        place = None
        if self.space.coordinates is not None:
            lon, lat = (row[at] for at in self.space.coordinates)
            place = None if MISSING in (lon, lat) else (lon, lat)
        return Query(tuple(row), (), place, None)


def _metres(far: float) -> float | None:
    return far if math.isfinite(far) else None
