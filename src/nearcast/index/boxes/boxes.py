"""Boxes for a server: a table at first, a `BoxIndex` as soon as its kernels are compiled.

Until then a table answers, which NumPy scans as a whole: 0.3 ms for 100,000 boxes, where the tree's
kernels run by Python would take hundreds of times as long to build. The kernels are not even
imported for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from nearcast.index.boxes import input as given
from nearcast.kernels import is_switched, on_switch

if TYPE_CHECKING:
    from nearcast.index.boxes.box_index import BoxIndex

Bounds = given.Bounds
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Extent = tuple[Bounds, Bounds]


def new_boxes(dimensions: int) -> AnyBoxes:
    """Return an empty `BoxIndex`, or its substitute until its kernels are compiled."""
    if not is_switched():
        return Boxes(BoxTable(dimensions), None)
    from nearcast.index.boxes.box_index import BoxIndex

    return BoxIndex(dimensions)


def boxes_from_arrays(
    keys: npt.ArrayLike,
    lows: npt.ArrayLike,
    highs: npt.ArrayLike,
    *,
    weights: npt.ArrayLike | None = None,
    extent: Extent | None = None,
) -> AnyBoxes:
    """Return what `BoxIndex.from_arrays` returns, or its substitute with the same boxes."""
    if is_switched():
        from nearcast.index.boxes.box_index import BoxIndex

        return BoxIndex.from_arrays(keys, lows, highs, weights=weights, extent=extent)
    low_rows, high_rows = given.rows_of(lows, None, "lows"), given.rows_of(highs, None, "highs")
    key_row = given.keys_of(keys, len(low_rows))
    weight_row = given.weights_of(
        np.ones(len(key_row)) if weights is None else weights, len(key_row)
    )
    table = BoxTable(low_rows.shape[1])
    for key, low, high, weight in zip(
        key_row.tolist(), low_rows, high_rows, weight_row, strict=True
    ):
        table.add(key, low, high, weight=float(weight))
    return Boxes(table, extent)


class BoxTable:
    """Boxes under int64 keys in plain arrays; finds those that contain a point or meet a box.

    As `BoxIndex`, without ranks. Complexity: changes O(dimensions), queries O(n).
    """

    __slots__ = ("_ages", "_bounds", "_count", "_dims", "_keys", "_next_age", "_rows", "_weights")

    def __init__(self, dimensions: int) -> None:
        self._dims = given.dimensions_of(dimensions)
        self._rows: dict[int, int] = {}  # the row of a key's box
        self._count = self._next_age = 0
        self._keys: Ints = np.zeros(64, np.int64)
        self._ages: Ints = np.zeros(64, np.int64)
        self._weights: Floats = np.ones(64)
        self._bounds: Floats = np.zeros((2, self._dims, 64))  # lows, highs

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: object) -> bool:
        return key in self._rows

    def add(self, key: int, lows: Bounds, highs: Bounds, *, weight: float = 1.0) -> None:
        """Add a box under a new key; it is younger than all others."""
        key, box = given.key_of(key), self._box(lows, highs)
        weight = given.weight_of(weight)
        if key in self._rows:
            raise given.key_in_use(key)
        row = self._count
        if row == len(self._keys):
            self._grow()
        self._rows[key] = row
        self._keys[row], self._ages[row], self._weights[row] = key, self._next_age, weight
        self._bounds[:, :, row] = box
        self._count += 1
        self._next_age += 1

    def move(self, key: int, lows: Bounds, highs: Bounds) -> None:
        """Replace the box of a key; its age and weight stay."""
        row, box = self._row(key), self._box(lows, highs)
        self._bounds[:, :, row] = box

    def remove(self, key: int) -> None:
        """Remove a key and its box; the last row takes its place."""
        row = self._row(key)
        last = self._count - 1
        for array in (self._keys, self._ages, self._weights):
            array[row] = array[last]
        self._bounds[:, :, row] = self._bounds[:, :, last]
        self._rows[int(self._keys[row])] = row
        del self._rows[key]
        self._count = last

    def match(self, point: Bounds) -> Ints:
        """Return the keys of the boxes that contain a point, in no particular order."""
        values = self._numbers(point)
        if not np.isfinite(values).all():
            raise given.not_finite("match")
        return self._meeting(values, values)

    def match_box(self, lows: Bounds, highs: Bounds) -> Ints:
        """Return the keys of the boxes that meet a box; infinite bounds are open."""
        low, high = self._box(lows, highs)
        return self._meeting(low, high)

    def match_many(self, points: npt.ArrayLike) -> tuple[Ints, Ints]:
        """Match n points: the keys for point e are keys[offsets[e]:offsets[e + 1]]."""
        found = [self.match(row) for row in given.rows_of(points, self._dims, "points")]
        offsets = np.cumsum([0, *map(len, found)])
        return offsets, np.concatenate([np.empty(0, np.int64), *found])

    def box(self, key: int) -> tuple[Floats, Floats]:
        """Return the lows and highs stored under a key."""
        low, high = self._bounds[:, :, self._row(key)]
        return low.copy(), high.copy()

    def indexed(self, extent: Extent | None) -> BoxIndex:
        """Return an index of the same boxes, with the same ages."""
        from nearcast.index.boxes.box_index import BoxIndex

        if not self._count:
            return BoxIndex(self._dims, extent=extent)
        order = np.argsort(self._ages[: self._count])
        lows, highs = (np.ascontiguousarray(one[:, order].T) for one in self._bounds)
        weights = self._weights[order]
        weighed = None if (weights == 1.0).all() else weights
        return BoxIndex.from_arrays(self._keys[order], lows, highs, weights=weighed, extent=extent)

    def _meeting(self, low: Floats, high: Floats) -> Ints:
        count = self._count
        lows, highs = self._bounds
        rows = np.flatnonzero((lows[0, :count] <= high[0]) & (low[0] <= highs[0, :count]))
        for i in range(1, self._dims):
            rows = rows[(lows[i, rows] <= high[i]) & (low[i] <= highs[i, rows])]
        return self._keys[rows]

    def _row(self, key: int) -> int:
        row = self._rows.get(given.key_of(key))
        if row is None:
            raise given.key_missing(key)
        return row

    def _box(self, lows: Bounds, highs: Bounds) -> tuple[Floats, Floats]:
        low, high = self._numbers(lows), self._numbers(highs)
        if not ((low <= high) & (low < np.inf) & (high > -np.inf)).all():
            raise given.bad_box(low, high)
        return low, high

    def _numbers(self, values: Bounds) -> Floats:
        try:
            found = np.array([float(value) for value in values])
        except (TypeError, ValueError, OverflowError):
            found = np.empty(0)
        if len(found) != self._dims:
            raise given.wrong_length(values, self._dims)
        return found

    def _grow(self) -> None:
        self._keys, self._ages = (np.concatenate([a, a]) for a in (self._keys, self._ages))
        self._weights = np.concatenate([self._weights, self._weights])
        self._bounds = np.concatenate([self._bounds, self._bounds], axis=2)


class Boxes:
    """A `BoxTable` that becomes a `BoxIndex` when the kernels are compiled.

    The methods of either are attributes of this object, so that the indirection costs nothing.
    """

    __slots__ = (
        "__weakref__",
        "_extent",
        "_used",
        "add",
        "box",
        "match",
        "match_box",
        "match_many",
        "move",
        "remove",
    )

    add: Callable[..., None]
    move: Callable[[int, Bounds, Bounds], None]
    remove: Callable[[int], None]
    match: Callable[[Bounds], Ints]
    match_box: Callable[[Bounds, Bounds], Ints]
    match_many: Callable[[npt.ArrayLike], tuple[Ints, Ints]]
    box: Callable[[int], tuple[Floats, Floats]]

    def __init__(self, table: BoxTable, extent: Extent | None) -> None:
        self._extent = extent
        self._use(table)
        on_switch(self.become_indexed)

    def __len__(self) -> int:
        return len(self._used)

    def __contains__(self, key: object) -> bool:
        return key in self._used

    def become_indexed(self) -> None:
        """Build the index, and use it from now on. O(n log n)."""
        if isinstance(self._used, BoxTable):
            self._use(self._used.indexed(self._extent))

    @property
    def ranked(self) -> BoxIndex | None:
        """Return the index, which supports ranks; None until it is built."""
        return None if isinstance(self._used, BoxTable) else self._used

    def _use(self, used: BoxTable | BoxIndex) -> None:
        self._used = used
        self.add, self.move, self.remove = used.add, used.move, used.remove
        self.match, self.match_box, self.match_many = used.match, used.match_box, used.match_many
        self.box = used.box


AnyBoxes: TypeAlias = "BoxIndex | Boxes"


def ranked(boxes: AnyBoxes) -> BoxIndex | None:
    """Return the index that supports ranks; None until it is built."""
    return boxes.ranked if isinstance(boxes, Boxes) else boxes
