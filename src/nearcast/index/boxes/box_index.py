"""The box index: boxes on several attributes; which of them an event meets, and which fit best.

`BoxIndex` is a binary tree over flat arrays, compiled with Numba. Reading path: this file (the
public class), `pools.py` (memory), `build.py` (the shape of the tree), `tree.py` and `change.py`
(changes), `match.py`, `top.py` (queries), `file.py` (files). `docs/box-index.md` has a drawing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from struct import error as StructError  # noqa: N812 - it is a class

import numpy as np
import numpy.typing as npt

from nearcast.index.boxes import change
from nearcast.index.boxes import file as box_file
from nearcast.index.boxes import input as given
from nearcast.index.boxes import match as matching
from nearcast.index.boxes import top as ranking
from nearcast.index.boxes.input import Bounds, Rank, rows_of
from nearcast.index.boxes.pools import (
    FILL,
    L_CHILD,
    LEAF,
    M_BUILT,
    M_COUNT,
    M_DIMS,
    M_LEAVES,
    M_NEXT_AGE,
    M_NODES,
    MOST_AGES,
    T_FOUND,
    T_IS_POINT,
    Floats,
    Int32s,
    Ints,
    Pools,
    address_table,
    boxes_at,
    count_below,
    empty_pools,
    grown,
    pools_of,
    slots_for,
    stored,
)
from nearcast.index.boxes.split import LEAST
from nearcast.index.boxes.tree import narrowness_of_all
from nearcast.model.errors import LimitError

ROOM = 8  # leaves that one change may need; half as many nodes
PAIRS_AT_ONCE = 1 << 18  # (event, key) pairs that `match_many` aims at before sorting
EVENTS_AT_ONCE = 1 << 13
SOON_FOUND = 256  # keys for which there is always room
_ONE_EVENT = np.zeros(1, dtype=np.int32)


class BoxIndex:
    """Boxes under int64 keys; finds those that contain a point or meet a box, or the k best.

    Bounds are closed and exact float64. An infinite bound leaves its side open, so a box can
    leave attributes unconstrained; boxes that constrain different attributes are kept apart.

    Ranks, less is better, ties go to the older box (`move` keeps the age):

    - `narrowest`: the sum over the attributes of log2(width / range), rounded to 2^-24. The
      range comes from `extent`, and the width is the part inside it, so that an unconstrained
      attribute counts 0; a share below 2^-20 counts -20. Where an attribute's extent is not given
      (or infinite) its range is 1, an open side counts 1024, and the floor is -1074.
    - `centre`: the root mean square, over the attributes, of the distance from the box's
      centre as a share of half its width: 0 at the centre, 1 in the corners. An attribute
      with an open side counts 0, since it has no centre.
    - `weight`: the greater `weight` (1 unless given) first.
    - a blend such as {"narrowest": 1, "weight": 0.5}: the weighted sum of the three, with
      `weight` counting negatively.

    Complexity, for n boxes and m matches: `match` O(log n + m) where boxes overlap little,
    O(n) at worst; `add`, `remove` and `move` O(log n), amortised over rebuilds; `top` visits
    what its bounds cannot exclude. The order of matches is not specified.

    >>> boxes = BoxIndex(dimensions=2)
    >>> boxes.add(7, (0, 0), (10, 10))
    >>> boxes.add(8, (5, 5), (6, float("inf")))
    >>> sorted(boxes.match((5.5, 6)).tolist())
    [7, 8]
    >>> boxes.move(7, (20, 20), (30, 30))
    >>> boxes.match((5.5, 6)).tolist()
    [8]
    """

    __slots__ = (
        "_address",
        "_buffer",
        "_dims",
        "_event",
        "_found",
        "_highs",
        "_lows",
        "_mapped",
        "_pack",
        "_pools",
        "_room",
        "_table",
    )

    def __init__(self, dimensions: int, *, extent: tuple[Bounds, Bounds] | None = None) -> None:
        dims = given.dimensions_of(dimensions)
        self._dims = dims
        self._pack = Struct(f"={dims}d").pack_into
        self._event: Floats = np.zeros(2 * dims)
        self._buffer = self._event.data
        self._lows, self._highs = self._event[:dims], self._event[dims:]
        self._found: Ints = np.empty(SOON_FOUND, dtype=np.int64)
        self._mapped = False
        self._install(empty_pools(dims, given.extent_of(extent, dims), 0))

    @classmethod
    def from_arrays(
        cls,
        keys: npt.ArrayLike,
        lows: npt.ArrayLike,
        highs: npt.ArrayLike,
        *,
        weights: npt.ArrayLike | None = None,
        extent: tuple[Bounds, Bounds] | None = None,
    ) -> BoxIndex:
        """Build an index of n boxes at once; row order is age order. O(n log n)."""
        low_rows, high_rows = rows_of(lows, None, "lows"), rows_of(highs, None, "highs")
        index = cls(low_rows.shape[1], extent=extent)
        boxes = given.boxes_of(low_rows, high_rows)
        count = len(low_rows)
        if count > given.MOST_BOXES:
            raise LimitError(str(count), where="boxes", expected=f"at most {given.MOST_BOXES}")
        key_row, weight_row = given.keys_of(keys, count), given.weights_of(weights, count)
        index._fill(boxes, key_row, np.arange(count, dtype=np.uint32), weight_row)
        return index

    @property
    def dimensions(self) -> int:
        """Return the number of attributes."""
        return self._dims

    @property
    def nbytes(self) -> int:
        """Return the bytes of all arrays, room for growth included."""
        return sum(int(pool.nbytes) for pool in stored(self._pools).values()) + int(
            self._table.nbytes
        )

    def __len__(self) -> int:
        return int(self._pools.meta[M_COUNT])

    def __contains__(self, key: object) -> bool:
        if not isinstance(key, int | np.integer) or not -(2**63) <= key < 2**63:
            return False
        return bool(change.find(self._address, int(key)) >= 0)

    # --- changes

    def add(self, key: int, lows: Bounds, highs: Bounds, *, weight: float = 1.0) -> None:
        """Add a box under a new key; it is younger than all others. O(log n) amortised."""
        key = given.key_of(key)
        self._take_box(lows, highs)
        if weight != 1.0:
            weight = given.weight_of(weight)
            self._want_weights()
        if self._room < 1:
            self._make_room()
        self._room -= 1
        while (status := change.add(self._address, key, weight)) != change.OK:
            self._settle(status, key)

    def move(self, key: int, lows: Bounds, highs: Bounds) -> None:
        """Replace the box of a key; its age and weight stay. O(log n) amortised."""
        key = given.key_of(key)
        self._take_box(lows, highs)
        if self._room < 1:
            self._make_room()
        self._room -= 1
        while (status := change.move(self._address, key)) != change.OK:
            self._settle(status, key)

    def remove(self, key: int) -> None:
        """Remove a key and its box. O(log n)."""
        key = given.key_of(key)
        if self._mapped:
            self._make_room()
        status = change.remove(self._address, key)
        if status != change.OK:
            self._settle(status, key)

    def rebuild(self) -> None:
        """Rebuild the tree as `from_arrays` would; never needed, O(n log n).

        The index does this itself when it has grown fourfold. It also helps at a quiet moment after
        most boxes have changed their nature (other attributes, other sizes).
        """
        pools = self._pools
        positions = pools.slots[pools.slots >= 0]
        positions = positions[np.argsort(pools.ages[positions])]
        weights = pools.weights[positions] if pools.weights.size else pools.weights
        ages = np.arange(positions.size, dtype=np.uint32)
        self._fill(boxes_at(pools, positions).ravel(), pools.keys[positions], ages, weights)

    # --- queries

    def match(self, point: Bounds) -> Ints:
        """Return the keys of the boxes that contain a point, in no particular order."""
        try:
            self._pack(self._buffer, 0, *point)
        except (TypeError, OverflowError, StructError):
            raise given.wrong_length(point, self._dims) from None
        count = matching.match_one(self._address)
        if 0 <= count <= SOON_FOUND:
            return self._found[:count].copy()
        return self._match_one()

    def match_box(self, lows: Bounds, highs: Bounds) -> Ints:
        """Return the keys of the boxes that meet a box; infinite bounds are open."""
        self._take_box(lows, highs)
        if not given.is_box(lows, highs):
            raise given.bad_box(self._lows, self._highs)
        self._table[T_IS_POINT] = False
        try:
            return self._match_one()
        finally:
            self._table[T_IS_POINT] = True

    def match_many(self, points: npt.ArrayLike) -> tuple[Ints, Ints]:
        """Match n points: the keys for point e are keys[offsets[e]:offsets[e + 1]]."""
        rows = rows_of(points, self._dims, "points")
        if not np.isfinite(rows).all():
            raise given.not_finite("match_many")
        return self._match_rows(rows, rows)

    def match_pairs(self, points: npt.ArrayLike) -> Iterator[tuple[Floats, Int32s, Ints]]:
        """Yield some points at a time, in an order of the index, with the boxes that contain them.

        That is: the points, and pairs of a row of these and a key, in no order. The arrays of pairs
        are used again for the next points.
        """
        rows = rows_of(points, self._dims, "points")
        if not np.isfinite(rows).all():
            raise given.not_finite("match_pairs")
        near = rows[self._nearby_order(rows.ravel())]
        flat = near.ravel()
        for events, places, keys in self._pair_chunks(
            flat, flat, np.arange(len(near), dtype=np.int32)
        ):
            yield near[events[0] : events[-1] + 1], places, keys

    def top(self, point: Bounds, k: int, rank: Rank = "narrowest") -> Ints:
        """Return the keys of the k best boxes that contain a point, best first."""
        self._take(point, 0)
        return self._top_one(self._lows, k, rank)

    def top_many(self, points: npt.ArrayLike, k: int, rank: Rank = "narrowest") -> Ints:
        """Return an (n, k) array: the keys of the best boxes, -1 where fewer match."""
        return self._top_rows(rows_of(points, self._dims, "points"), k, rank)

    def box(self, key: int) -> tuple[Floats, Floats]:
        """Return the lows and highs stored under a key."""
        position = change.find(self._address, given.key_of(key))
        if position < 0:
            raise given.key_missing(key)
        box = boxes_at(self._pools, np.array([position]))[0]
        return box[0::2].copy(), box[1::2].copy()

    # --- files

    def arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return the arrays that the index consists of, for `restored`."""
        return stored(self._pools)

    @classmethod
    def restored(cls, arrays: dict[str, npt.NDArray[np.generic]]) -> BoxIndex:
        """Return the index with these arrays, which are of `arrays`; they are not checked."""
        pools = pools_of(arrays)
        index = cls(int(pools.meta[M_DIMS]))
        index._install(pools)
        return index

    def save(self, path: str | Path) -> None:
        """Write the index to a new or empty directory, for `open`. See `file.py`."""
        box_file.save(self._pools, Path(path))

    @classmethod
    def open(cls, path: str | Path) -> BoxIndex:
        """Open a saved index, memory-mapped; the first change copies it into memory."""
        pools = box_file.load(Path(path))
        index = cls(int(pools.meta[M_DIMS]))
        index._mapped = True
        index._install(pools)
        return index

    # --- arguments

    def _take_box(self, lows: Bounds, highs: Bounds) -> None:
        try:
            self._pack(self._buffer, 0, *lows)
            self._pack(self._buffer, 8 * self._dims, *highs)
        except (TypeError, OverflowError, StructError):
            self._take(lows, 0)  # raises if this one was wrong
            self._take(highs, 8 * self._dims)

    def _take(self, numbers: Bounds, place: int) -> None:
        """Write numbers where kernels expect the event; `place` in bytes."""
        try:
            self._pack(self._buffer, place, *numbers)
        except (TypeError, OverflowError, StructError):
            raise given.wrong_length(numbers, self._dims) from None

    # --- computing results

    def _match_one(self) -> Ints:
        count = matching.match_one(self._address)
        if count > self._found.size:
            self._found = np.empty(2 * count, dtype=np.int64)
            self._table[T_FOUND : T_FOUND + 2] = self._found.ctypes.data, self._found.size
            matching.match_one(self._address)
        elif count == matching.NOT_FINITE:
            raise given.not_finite("match")
        return self._found[:count].copy()

    def _nearby_order(self, low: Floats) -> Int32s:
        """Return the events in an order in which neighbours are near each other in the tree."""
        order = np.empty(low.size // self._dims, dtype=np.int32)
        matching.nearby_order(self._address, low, order)
        return order

    def _match_rows(self, lows: Floats, highs: Floats) -> tuple[Ints, Ints]:
        """Match neighbouring events together, in chunks whose pairs stay in the cache."""
        low, high = lows.ravel(), highs.ravel()
        order = self._nearby_order(low)
        counts = np.zeros(len(lows) + 1, dtype=np.int64)
        chunks = []
        for part in self._match_chunks(low, high, order):
            chunks.append(part)
            counts[part[0] + 1] = np.diff(part[1])
        offsets = np.cumsum(counts)
        keys = np.empty(offsets[-1], dtype=np.int64)
        for events, starts, found in chunks:
            matching.put_back(events, starts, found, offsets, keys)
        return offsets, keys

    def _match_chunks(
        self, low: Floats, high: Floats, order: Int32s
    ) -> Iterator[tuple[Int32s, Ints, Ints]]:
        """Yield for some events at a time: their numbers, where the keys of each start, keys."""
        for events, places, keys in self._pair_chunks(low, high, order):
            starts = np.empty(events.size + 1, dtype=np.int64)
            found = np.empty(keys.size, dtype=np.int64)
            matching.sort_pairs(places, keys, keys.size, starts, found)
            yield events, starts, found

    def _pair_chunks(
        self, low: Floats, high: Floats, order: Int32s
    ) -> Iterator[tuple[Int32s, Int32s, Ints]]:
        """Yield for some events at a time: their numbers, and pairs of a place there and a key.

        The arrays of pairs are used again for the next events.
        """
        pair_events = np.empty(PAIRS_AT_ONCE, dtype=np.int32)
        pair_keys = np.empty(PAIRS_AT_ONCE, dtype=np.int64)
        start, chunk = 0, 512
        while start < order.size:
            events = order[start : start + chunk]
            count = matching.match_chunk(self._address, low, high, events, pair_events, pair_keys)
            if count > pair_keys.size - LEAF:
                pair_events = np.empty(count * 5 // 4 + LEAF, dtype=np.int32)
                pair_keys = np.empty(count * 5 // 4 + LEAF, dtype=np.int64)
                continue
            yield events, pair_events[:count], pair_keys[:count]
            start += events.size
            chunk = min(EVENTS_AT_ONCE, max(64, PAIRS_AT_ONCE * events.size // (2 * count + 1)))

    def _top_one(self, point: Floats, k: int, rank: Rank) -> Ints:
        out = np.full((1, min(given.whole(k, "k"), max(1, len(self)))), -1, dtype=np.int64)
        blend = given.blend_of(rank)
        count = ranking.top_points(self._address, point, _ONE_EVENT, blend, out, True)
        if count == matching.NOT_FINITE:
            raise given.not_finite("top")
        return out[0, :count]

    def _top_rows(self, rows: Floats, k: int, rank: Rank) -> Ints:
        """Rank neighbouring events one after the other, while their part of the tree is cached."""
        out = np.full((len(rows), given.whole(k, "k")), -1, dtype=np.int64)
        blend = given.blend_of(rank)
        order = self._nearby_order(rows.ravel())
        count = ranking.top_points(self._address, rows.ravel(), order, blend, out, True)
        if count == matching.NOT_FINITE:
            raise given.not_finite("top_many")
        return out

    # --- memory

    def _install(self, pools: Pools) -> None:
        """Use these pools."""
        self._pools = pools
        self._table = address_table(pools, self._event, self._found)
        self._address = int(self._table.ctypes.data)
        self._count_room()

    def _count_room(self) -> None:
        """Compute `_room`: for how many changes the pools surely have room."""
        pools = self._pools
        leaves = pools.leaf_node.size - 1 - int(pools.meta[M_LEAVES])
        nodes = pools.nodes.size // 8 - int(pools.meta[M_NODES])
        slots = pools.slots.size * 7 // 10 - int(pools.meta[M_COUNT])
        ages = MOST_AGES - int(pools.meta[M_NEXT_AGE])
        grow = 4 * int(pools.meta[M_BUILT]) + 256 - int(pools.meta[M_COUNT])
        room = min(leaves // ROOM, nodes // (2 * ROOM), slots, ages, grow)
        self._room = 0 if self._mapped else room

    def _make_room(self) -> None:
        """Ensure room for at least one change: copy, renumber, rebuild or grow as needed."""
        if self._mapped:
            self._mapped = False
            self._install(grown(self._pools, 0, 0, copy=True))
        meta = self._pools.meta
        if meta[M_NEXT_AGE] >= MOST_AGES or meta[M_COUNT] >= 4 * meta[M_BUILT] + 256:
            self.rebuild()
        if len(self) >= self._pools.slots.size * 7 // 10:
            self._grow_slots()
        self._count_room()
        if self._room < 1:
            leaves, nodes = int(meta[M_LEAVES]), int(meta[M_NODES])
            leaves += leaves // 48 + 32 * ROOM
            nodes += nodes // 48 + 64 * ROOM
            self._install(grown(self._pools, leaves, nodes))

    def _grow_slots(self) -> None:
        old = self._pools.slots
        slots = np.full(slots_for(len(self) * 3 // 2), -1, dtype=np.int32)
        self._install(self._pools._replace(slots=slots))
        change.move_slots(self._address, old)

    def _want_weights(self) -> None:
        """Give every box its own weight; until then all weigh 1."""
        if not self._pools.weights.size:
            weights = np.ones(self._pools.keys.size)
            self._install(self._pools._replace(weights=weights))

    def _fill(
        self, boxes: Floats, keys: Ints, ages: npt.NDArray[np.uint32], weights: Floats
    ) -> None:
        """Replace everything by these boxes; if a key is there twice, raise and change nothing."""
        narrow = np.empty(keys.size)
        narrowness_of_all(boxes, self._dims, self._pools.extent, narrow)
        for room in (keys.size, keys.size * 3 // 2, keys.size * (FILL // LEAST + 1) + 64):
            pools = empty_pools(self._dims, self._pools.extent, room, weighed=weights.size > 0)
            table = address_table(pools, self._event, self._found)
            status = change.build_all(int(table.ctypes.data), boxes, keys, ages, narrow, weights)
            if status >= 0:
                raise given.key_in_use(int(keys[status]))
            if status == change.OK:
                break
        pools.meta[M_NEXT_AGE] = keys.size
        self._install(pools)

    def _settle(self, status: int, key: int) -> None:
        """Handle the status of a change: rebuild a subtree, or raise."""
        if status >= 0:
            self._rebuild_subtree(status)
        elif status == change.KEY_IN_USE:
            raise given.key_in_use(key)
        elif status == change.KEY_MISSING:
            raise given.key_missing(key)
        else:
            raise given.bad_box(self._lows, self._highs)

    def _rebuild_subtree(self, node: int) -> None:
        """Rebuild a full leaf, or a subtree that has become too high, then others that have."""
        while node >= 0:
            pools = self._pools
            is_leaf = pools.links[16 * node + L_CHILD] < 0
            count = LEAF if is_leaf else count_below(pools, node)
            leaves = int(pools.meta[M_LEAVES]) + count // LEAST + 2 * ROOM
            nodes = int(pools.meta[M_NODES]) + 2 * (count // LEAST) + 4 * ROOM
            if leaves > pools.leaf_node.size or nodes > pools.nodes.size // 8:
                self._install(grown(pools, leaves, nodes))
            node = change.rebuild(self._address, node, count)
            if not is_leaf:  # `_room` reckons with a leaf
                self._count_room()
