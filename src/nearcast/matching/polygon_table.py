"""Point in polygon for many boxes at once, as compiled code over flat arrays.

The edges of a polygon are kept in horizontal *slabs*: a point is compared only with the edges of
its own slab. A ray to the east counts the edges that it crosses. Where rounding could change the
answer (the point lies on an edge, or closer than floating-point numbers can tell), the kernel
answers UNCERTAIN, and `Polygon.contains_many`, whose predicates are exact, decides. So the answer
is always that of `Polygon`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from nearcast.kernels import entry_point, inner
from nearcast.model import Polygon
from nearcast.model.shape_text import Shape

NONE: Final = -1  # the box has no polygon
GENERAL: Final = -2  # the box has several shapes: Python decides

OUTSIDE: Final = 0
INSIDE: Final = 1
UNCERTAIN: Final = 2

_PASSES: Final = 0  # the ray passes the edge; 1 if it crosses it
_ON_EDGE: Final = 2
_UNCLEAR: Final = 3

_ROUNDING: Final = 3.4e-16  # relative error of an orientation (Shewchuk 1997), rounded up
_UNDERFLOW: Final = 1e-300
_EDGES_PER_SLAB: Final = 8
_COPIES: Final = 4  # slabs list an edge at most this many times, on average

HEAD = np.dtype(
    [("south", np.float64), ("scale", np.float64), ("slabs", np.int64), ("first", np.int64)]
)
"""A polygon: slabs are counted from the south, and `first` is the place of its first slab."""


@inner
def _crossing(ax: float, ay: float, bx: float, by: float, x: float, y: float) -> int:
    """Return whether a ray from the point to the east crosses the edge, or what is in the way."""
    if ax == x and ay == y:
        return _ON_EDGE
    if (ay > y) == (by > y):
        is_on = ay == y and by == y and min(ax, bx) <= x <= max(ax, bx)
        return _ON_EDGE if is_on else _PASSES
    if ax == bx:
        return _ON_EDGE if x == ax else int(ax > x)
    left, right = (ax - x) * (by - y), (ay - y) * (bx - x)
    if abs(left - right) <= _ROUNDING * (abs(left) + abs(right)) + _UNDERFLOW:
        return _UNCLEAR
    return int((left > right) == (by > ay))


@inner
def _verdict(
    souths: Any, scales: Any, slabs: Any, firsts: Any, starts: Any, edges: Any,
    slot: int, x: float, y: float,
) -> int:  # fmt: skip
    if not -180.0 < x < 180.0 or not -90.0 < y < 90.0:
        return UNCERTAIN  # places at the seam and the poles have several spellings
    up = y - souths[slot]
    slab = int(min(up * scales[slot], 9.0e15))
    if up < 0.0 or slab >= slabs[slot]:
        return OUTSIDE
    at = firsts[slot] + slab
    inside = OUTSIDE
    for edge in range(starts[at], starts[at + 1]):
        found = _crossing(edges[edge, 0], edges[edge, 1], edges[edge, 2], edges[edge, 3], x, y)
        if found == _ON_EDGE:
            return INSIDE
        if found == _UNCLEAR:
            return UNCERTAIN
        inside ^= found
    return inside


@entry_point(
    "int64[::1], int64[::1], float64[::1], float64[::1], int64[::1], float64[:], float64[:], "
    "int64[:], int64[:], int64[::1], float64[:, ::1], int8[::1]"
)
def _verdicts(
    events: Any, ids: Any, lons: Any, lats: Any, slots: Any, souths: Any, scales: Any,
    slabs: Any, firsts: Any, starts: Any, edges: Any, out: Any,
) -> None:  # fmt: skip
    for i in range(ids.size):
        box = ids[i]
        slot = slots[box] if box < slots.size else NONE  # boxes without shapes are not entered
        if slot == NONE:
            out[i] = INSIDE
        elif slot == GENERAL:
            out[i] = UNCERTAIN
        else:
            event = events[i]
            out[i] = _verdict(
                souths, scales, slabs, firsts, starts, edges, slot, lons[event], lats[event]
            )


@entry_point(
    "int32[::1], int64[::1], float64[::1], float64[::1], int64[::1], float64[:], float64[:], "
    "int64[:], int64[:], int64[::1], float64[:, ::1], int64[::1], int64[::1]"
)
def _count_inside(
    events: Any, ids: Any, lons: Any, lats: Any, slots: Any, souths: Any, scales: Any,
    slabs: Any, firsts: Any, starts: Any, edges: Any, counts: Any, uncertain: Any,
) -> int:  # fmt: skip
    left = 0
    for i in range(ids.size):
        box = ids[i]
        slot = slots[box] if box < slots.size else NONE
        if slot == NONE:
            counts[box] += 1
            continue
        found = UNCERTAIN
        if slot != GENERAL:
            event = events[i]
            found = _verdict(
                souths, scales, slabs, firsts, starts, edges, slot, lons[event], lats[event]
            )
        counts[box] += found == INSIDE
        uncertain[left] = i
        left += found == UNCERTAIN
    return left


class PolygonTable:
    """The polygons of the boxes of a filter index.

    `put` takes O(edges), `drop` O(1), both amortised. Memory: 32 bytes for an edge and slab.
    """

    __slots__ = ("_edge_count", "_free", "_head_count", "_start_count", "_unused", "edges", "heads",
                 "slots", "starts")  # fmt: skip

    def __init__(self) -> None:
        self.slots = np.full(16, NONE, np.int64)  # of each box id
        self.heads = np.zeros(4, HEAD)
        self.starts = np.zeros(64, np.int64)
        self.edges = np.zeros((64, 4), np.float64)
        self._head_count = self._start_count = self._edge_count = 0
        self._unused = 0  # edges of polygons that are gone
        self._free: list[int] = []  # slots that can be used again

    @classmethod
    def of(cls, shapes: Mapping[int, tuple[Shape, ...]]) -> PolygonTable:
        """Return a table of the shapes of each box id."""
        table = cls()
        for box_id, of_box in shapes.items():
            table.put(box_id, of_box)
        return table

    @classmethod
    def of_edges(
        cls, edges: NDArray[np.float64], counts: NDArray[np.int64]
    ) -> tuple[PolygonTable, NDArray[np.int64]]:
        """Return a table of many polygons, without boxes, and the slot of each.

        `edges` has them polygon after polygon, `counts` how many each has. `slots` is for the
        caller to fill; several boxes may have one polygon then, and `drop` must not be called.
        """
        table = cls()
        ends = np.cumsum(counts)
        begins = ends - counts
        is_small = counts < 2 * _EDGES_PER_SLAB
        numbers = np.arange(int(is_small.sum()))
        slot_of = np.empty(len(counts), np.int64)
        slot_of[is_small] = numbers
        table.heads = np.zeros(len(counts), HEAD)
        if numbers.size:
            souths = np.minimum.reduceat(edges[:, 1], begins)  # each corner begins an edge
            table.heads["south"][numbers] = souths[is_small]
            table.heads["slabs"][numbers], table.heads["first"][numbers] = 1, 2 * numbers
            small_ends = np.cumsum(counts[is_small])
            table.starts = np.stack([small_ends - counts[is_small], small_ends], 1).ravel()
            table.edges = np.ascontiguousarray(edges[np.repeat(is_small, counts)])
        table._head_count, table._start_count = numbers.size, 2 * numbers.size
        table._edge_count = len(table.edges) if numbers.size else 0
        for at in np.flatnonzero(~is_small).tolist():
            slot_of[at] = table._add(_Slabs.of(edges[begins[at] : ends[at]]))
        return table, slot_of

    def put(self, box_id: int, shapes: tuple[Shape, ...]) -> None:
        """Add the shapes of a box."""
        if box_id >= len(self.slots):
            wider = np.full(max(2 * len(self.slots), box_id + 1), NONE, np.int64)
            wider[: len(self.slots)] = self.slots
            self.slots = wider
        if len(shapes) == 1 and isinstance(shapes[0], Polygon):
            self.slots[box_id] = self._add(_Slabs.of(_edges_of(shapes[0])))
        else:
            self.slots[box_id] = GENERAL

    def drop(self, box_id: int) -> None:
        """Remove the shapes of a box, if it has any."""
        slot = int(self.slots[box_id]) if box_id < len(self.slots) else NONE
        if slot == NONE:
            return
        self.slots[box_id] = NONE
        if slot == GENERAL:
            return
        head = self.heads[slot]
        first, slabs = int(head["first"]), int(head["slabs"])
        self._unused += int(self.starts[first + slabs] - self.starts[first])
        self._free.append(slot)
        if self._unused > 1024 and self._unused > self._edge_count // 2:
            self._compact()

    def _add(self, slabs: _Slabs) -> int:
        slot = self._free.pop() if self._free else self._head_count
        if slot == self._head_count:
            self._head_count += 1
        self.heads = _grown(self.heads, self._head_count)
        first, count = self._start_count, len(slabs.starts)
        self.starts = _grown(self.starts, first + count)
        self.starts[first : first + count] = slabs.starts + self._edge_count
        self._start_count += count
        begin, self._edge_count = self._edge_count, self._edge_count + len(slabs.edges)
        self.edges = _grown(self.edges, self._edge_count)
        self.edges[begin : self._edge_count] = slabs.edges
        self.heads[slot] = (slabs.south, slabs.scale, count - 1, first)
        return slot

    def _compact(self) -> None:
        """Copy what is in use, so that removed polygons give their memory back."""
        old = PolygonTable.__new__(PolygonTable)
        for name in self.__slots__:
            setattr(old, name, getattr(self, name))
        self.__init__()  # type: ignore[misc]
        self.slots = old.slots
        for box_id in np.flatnonzero(old.slots >= 0).tolist():
            self.slots[box_id] = self._add(old._slabs_of(int(old.slots[box_id])))

    def _slabs_of(self, slot: int) -> _Slabs:
        head = self.heads[slot]
        first, count = int(head["first"]), int(head["slabs"]) + 1
        starts = self.starts[first : first + count]
        edges = self.edges[starts[0] : starts[-1]]
        return _Slabs(float(head["south"]), float(head["scale"]), starts - starts[0], edges)

    def verdicts(
        self,
        events: NDArray[np.int64],
        ids: NDArray[np.int64],
        lons: NDArray[np.float64],
        lats: NDArray[np.float64],
    ) -> NDArray[np.int8]:
        """Return OUTSIDE, INSIDE or UNCERTAIN for each pair of an event and a box."""
        out = np.empty(len(ids), np.int8)
        heads = self.heads
        _verdicts(
            events, ids, lons, lats, self.slots, heads["south"], heads["scale"], heads["slabs"],
            heads["first"], self.starts, self.edges, out,
        )  # fmt: skip
        return out

    def count_inside(
        self,
        events: NDArray[np.int32],
        ids: NDArray[np.int64],
        lons: NDArray[np.float64],
        lats: NDArray[np.float64],
        counts: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Add to the count of each box its pairs that are INSIDE; return which are UNCERTAIN."""
        uncertain = np.empty(len(ids), np.int64)
        heads = self.heads
        left = _count_inside(
            events, ids, lons, lats, self.slots, heads["south"], heads["scale"], heads["slabs"],
            heads["first"], self.starts, self.edges, counts, uncertain,
        )  # fmt: skip
        return uncertain[:left]

    # --- files

    def of_boxes(self, boxes: list[int]) -> PolygonTable:
        """Return a table of these boxes alone, numbered anew from 0."""
        table = PolygonTable()
        table.slots = np.full(len(boxes), NONE, np.int64)
        for number, box_id in enumerate(boxes):
            slot = int(self.slots[box_id]) if box_id < len(self.slots) else NONE
            table.slots[number] = table._add(self._slabs_of(slot)) if slot >= 0 else slot
        return table

    def save(self, path: Path) -> None:
        """Write the table to a new directory."""
        path.mkdir()
        for name, array in self.arrays().items():
            np.save(path / f"{name}.npy", array)

    @classmethod
    def open(cls, path: Path) -> PolygonTable:
        """Map the files of `save` into memory, to be read only."""
        return cls.restored(
            {
                name: np.load(path / f"{name}.npy", mmap_mode="r").view(np.ndarray)
                for name in ("slots", "heads", "starts", "edges")
            }
        )

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that the table consists of, for `restored`."""
        return {
            "slots": self.slots,
            "heads": self.heads[: self._head_count],
            "starts": self.starts[: self._start_count],
            "edges": self.edges[: self._edge_count],
        }

    @classmethod
    def restored(cls, arrays: Mapping[str, NDArray[Any]]) -> PolygonTable:
        """Return the table with these arrays, to be read only."""
        table = cls()
        for name, array in arrays.items():
            setattr(table, name, array)
        table._head_count, table._start_count = len(table.heads), len(table.starts)
        table._edge_count = len(table.edges)
        return table


@dataclass(frozen=True, slots=True)
class _Slabs:
    """The edges of one polygon, sorted by slab; an edge stands in each slab that it reaches."""

    south: float
    scale: float  # slabs per degree
    starts: NDArray[np.int64]  # where each slab begins in `edges`, and where the last ends
    edges: NDArray[np.float64]

    @classmethod
    def of(cls, edges: NDArray[np.float64]) -> _Slabs:
        if len(edges) < 2 * _EDGES_PER_SLAB:
            return cls(float(edges[:, 1].min()), 0.0, np.array([0, len(edges)]), edges)
        low, high = np.minimum(edges[:, 1], edges[:, 3]), np.maximum(edges[:, 1], edges[:, 3])
        south, north = float(low.min()), float(high.max())
        slabs = max(1, len(edges) // _EDGES_PER_SLAB)
        while True:
            scale = slabs / (north - south) if slabs > 1 else 0.0
            if not math.isfinite(scale):
                slabs, scale = 1, 0.0
            # The kernel computes slabs by the same monotone expression: no edge can be missed.
            begin = ((low - south) * scale).astype(np.int64)
            copies = ((high - south) * scale).astype(np.int64) - begin + 1
            if slabs == 1 or copies.sum() <= _COPIES * len(edges):
                break
            slabs //= 2
        total = int((north - south) * scale) + 1
        rows = np.repeat(np.arange(len(edges)), copies)
        within = np.arange(len(rows)) - np.repeat(np.cumsum(copies) - copies, copies)
        slab = begin[rows] + within
        order = np.argsort(slab, kind="stable")
        starts = np.concatenate([[0], np.cumsum(np.bincount(slab, minlength=total))])
        return cls(south, scale, starts, np.ascontiguousarray(edges[rows[order]]))


def _edges_of(polygon: Polygon) -> NDArray[np.float64]:
    return np.array(
        [(*a, *b) for part in polygon.parts for ring in part for a, b in pairwise(ring)],
        np.float64,
    )


def _grown(array: NDArray[Any], size: int) -> NDArray[Any]:
    """Return the array, or a copy with at least twice the room where `size` does not fit."""
    if size <= len(array):
        return array
    wider = np.zeros((max(size, 2 * len(array)), *array.shape[1:]), array.dtype)
    wider[: len(array)] = array
    return wider


def pairs_inside(
    table: PolygonTable,
    shapes: Mapping[int, tuple[Shape, ...]],
    events: NDArray[np.int64],
    ids: NDArray[np.int64],
    lons: NDArray[np.float64],
    lats: NDArray[np.float64],
) -> NDArray[np.bool_]:
    """Return for each pair whether all `shapes` of the box contain the event."""
    verdicts = table.verdicts(events, ids, lons, lats)
    inside: NDArray[np.bool_] = verdicts == INSIDE
    open_pairs = np.flatnonzero(verdicts == UNCERTAIN)
    if not open_pairs.size:
        return inside
    order = open_pairs[np.argsort(ids[open_pairs], kind="stable")]
    cuts = np.flatnonzero(np.diff(ids[order])) + 1
    for begin, end in pairwise([0, *cuts.tolist(), len(order)]):
        at = order[begin:end]
        points = lons[events[at]], lats[events[at]]
        inside[at] = True
        for shape in shapes[int(ids[at[0]])]:
            inside[at] &= shape.contains_many(*points)
    return inside
