"""The public interval skip list: ranked stabbing queries on one attribute (paper 1).

Read this file first; then `_interval_memory.py`, `_interval_lists.py`, `_interval_nodes.py`,
`_interval_kernels.py`, `_interval_queries.py`, `_interval_scores.py` and `_interval_build.py`,
which do the work. Numba is imported when the
first list is made, so that importing this module costs next to nothing.
"""

from __future__ import annotations

import operator
import weakref
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, SupportsFloat, SupportsIndex

import numpy as np

from nearcast.index._interval_arguments import (
    Rank,
    bad_value,
    checked_extent,
    checked_k,
    checked_method,
    checked_rank,
    column,
    complain,
    key_array,
    missing,
    value_array,
    whole,
)
from nearcast.model.errors import MisuseError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Keys = NDArray[np.int64]

_CHUNK_BITS = 7
_BLOCK = 1 << 15  # values that `stab_many` answers at a time
_MOST_EDGES = 33  # on one path
_NO_KEYS = np.empty(0, dtype=np.int64)
_COLUMNS = ("lows", "highs", "low_open", "high_open", "weights")


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge of the list as `edges()` shows it: it stands for the values in [left, right)."""

    level: int  # from 1
    left: float
    right: float
    markers: tuple[int, ...]  # keys, the most accurate first


@dataclass(frozen=True, slots=True)
class _Kernels:
    """The compiled half, loaded once."""

    base: ModuleType
    memory: ModuleType
    queries: ModuleType
    scores: ModuleType
    build: ModuleType


_kernels: _Kernels | None = None


def _load_kernels() -> _Kernels:
    global _kernels  # noqa: PLW0603 - a module is loaded once per process
    if _kernels is None:
        from nearcast.index import _interval_build as build
        from nearcast.index import _interval_kernels as base
        from nearcast.index import _interval_memory as memory
        from nearcast.index import _interval_queries as queries
        from nearcast.index import _interval_scores as scores

        _kernels = _Kernels(base, memory, queries, scores, build)
    return _kernels


def _release(state: Keys) -> None:
    _load_kernels().memory.release_all(state.ctypes.data)


def warm_up() -> None:
    """Compile, or load from the disk cache, all that a list will ever call.

    Call it at the start of a process that serves: the first run on a machine compiles for
    about a minute, later ones load in well under a second.
    """
    index = IntervalSkipList.from_arrays([1], [0.0], [1.0])
    index.add(2, 0.5, 2.0)
    index.stab(0.5)
    index.stab_many([0.5])
    index.top(0.5, 1)
    index.top(0.5, 1, method="paper")
    index.top(0.5, 1, rank="weight")
    index.top_many([0.5], 1)
    index.top_many([0.5], 1, rank="weight")
    index.check_invariants()
    index.remove(2)
    assert 1 in index
    assert index.interval(1) == (0.0, 1.0)


class IntervalSkipList:
    """Intervals on one attribute: which contain a value, and which of them fit it best.

    Keys are any int64. An infinite bound means "open on this side". `extent`, the attribute's
    range, says how wide an interval without bounds counts, and is the unit of blended ranks;
    without it such an interval is infinitely wide and lengths count in the attribute's own unit.
    Ties go to the older interval.

    Levels are random; the generator is part of the list and starts from `seed`, so that equal
    histories give equal lists.

    Complexity, for n intervals: `add` and `remove` expected O(log² n), `stab` expected
    O(log n + matches), `top` by narrowness expected O(log n + k log log n) however many match.
    A failed call changes nothing. Not for use by several threads at once.

    >>> index = IntervalSkipList(seed=0)
    >>> index.add(1, 20, 25)
    >>> index.add(2, 20, 60)
    >>> index.add(3, 25, 30, low_open=True)
    >>> index.top(25, k=2).tolist()
    [1, 2]
    """

    def __init__(
        self,
        seed: int = 0,
        extent: tuple[float, float] | None = None,
        *,
        _chunk_bits: int = _CHUNK_BITS,
    ) -> None:
        kernels = _load_kernels()
        self._extent = checked_extent(extent)
        self._unit = 1.0 if extent is None else self._extent[1] - self._extent[0]
        self._seed = operator.index(seed)
        self._state = np.zeros(kernels.memory.STATE_WORDS, dtype=np.int64)
        self._address = self._state.ctypes.data
        words = self._state.view(np.float64)
        words[kernels.memory.S_EXTENT_LOW] = self._extent[0]
        words[kernels.memory.S_EXTENT_HIGH] = self._extent[1]
        signed_seed = (self._seed + (1 << 63)) % (1 << 64) - (1 << 63)
        kernels.base.found(self._address, signed_seed, _chunk_bits)
        weakref.finalize(self, _release, self._state).atexit = False
        self._add = kernels.base.add
        self._remove = kernels.base.remove
        self._stab = kernels.queries.stab
        self._top = kernels.queries.top
        self._make_answer(256)

    def _make_answer(self, capacity: int) -> None:
        self._answer: Keys = np.empty(capacity, dtype=np.int64)
        self._answer_address = self._answer.ctypes.data
        self._answer_capacity = capacity

    @classmethod
    def from_arrays(
        cls,
        keys: ArrayLike,
        lows: ArrayLike,
        highs: ArrayLike,
        *,
        low_open: ArrayLike = False,
        high_open: ArrayLike = False,
        weights: ArrayLike = 1.0,
        seed: int = 0,
        extent: tuple[float, float] | None = None,
        _chunk_bits: int = _CHUNK_BITS,
    ) -> IntervalSkipList:
        """Build a list at once; earlier intervals are older. O(n log n)."""
        index = cls(seed, extent, _chunk_bits=_chunk_bits)
        index._build(key_array(keys), lows, highs, low_open, high_open, weights)
        return index

    def _build(self, keys: Keys, *rest: ArrayLike) -> None:
        lows, highs, low_open, high_open, weights = (
            column(each, len(keys), name) for each, name in zip(rest, _COLUMNS, strict=True)
        )
        openness = (low_open != 0) + 2 * (high_open != 0).astype(np.int64)
        build = _load_kernels().build
        ends = np.empty(2 * len(keys), dtype=np.int64)
        mistake, at = build.fill_records(self._address, keys, lows, highs, openness, weights, ends)
        if mistake:
            complain(mistake, int(keys[at]), float(lows[at]), float(highs[at]), f"row {at}")
        order = np.argsort(ends, kind="stable")
        build.link_nodes(self._address, ends, order, np.empty(64, dtype=np.int64))
        total = build.count_markers(self._address, order[order < len(keys)])
        widths = np.empty(len(keys))
        build.read_widths(self._address, widths)
        by_width = np.argsort(widths, kind="stable")
        entries = np.empty(total, dtype=np.int64)
        build.place_markers(self._address, by_width, entries.ctypes.data)

    def add(
        self,
        key: SupportsIndex,
        low: SupportsFloat,
        high: SupportsFloat,
        low_open: bool = False,
        high_open: bool = False,
        weight: SupportsFloat = 1.0,
    ) -> None:
        """Add an interval. Expected O(log² n)."""
        mistake = self._add(
            self._address,
            whole(key),
            float(low),
            float(high),
            (1 if low_open else 0) | (2 if high_open else 0),
            float(weight),
        )
        if mistake:
            complain(mistake, int(key), float(low), float(high), "add")

    def remove(self, key: SupportsIndex) -> None:
        """Remove an interval with all its markers. Expected O(log² n)."""
        if self._remove(self._address, whole(key)):
            raise missing(key, "remove")

    def __contains__(self, key: object) -> bool:
        try:
            number = whole(key)  # type: ignore[arg-type]
        except MisuseError:
            return False
        slot: int = _load_kernels().base.slot_of(self._address, number)
        return slot >= 0

    def __len__(self) -> int:
        return int(self._state[_load_kernels().memory.S_COUNT])

    def stab(self, x: SupportsFloat) -> Keys:
        """Return the keys of all intervals that contain x, in no particular order."""
        value = float(x)
        found = self._stab(self._address, value, self._answer_address, self._answer_capacity)
        if found > self._answer_capacity:
            self._make_answer(2 * found)
            found = self._stab(self._address, value, self._answer_address, 2 * found)
        if found < 0:
            raise bad_value(value, "stab")
        return self._answer[:found].copy()

    def stab_many(self, xs: ArrayLike) -> tuple[Keys, Keys]:
        """Return (offsets, keys): the keys for xs[i] are keys[offsets[i]:offsets[i + 1]]."""
        values = value_array(xs, "stab_many")
        offsets = np.zeros(len(values) + 1, dtype=np.int64)
        parts = [
            self._stab_block(values, first, min(first + _BLOCK, len(values)), offsets)
            for first in range(0, len(values), _BLOCK)
        ]
        return offsets, parts[0] if len(parts) == 1 else np.concatenate([_NO_KEYS, *parts])

    def _stab_block(
        self, values: NDArray[np.float64], first: int, last: int, offsets: Keys
    ) -> Keys:
        queries = _load_kernels().queries
        edges = np.empty(_MOST_EDGES * (last - first), dtype=np.int64)
        count = queries.find_marked_edges(self._address, values, first, last, offsets, edges)
        keys = np.empty(offsets[last] - offsets[first], dtype=np.int64)
        queries.copy_marked_edges(self._address, edges, count, keys.ctypes.data)
        return keys

    def top(
        self, x: SupportsFloat, k: SupportsIndex, rank: Rank = "narrowest", method: str = "exact"
    ) -> Keys:
        """Return the keys of the k best intervals that contain x, the best first.

        `rank` is "narrowest", "centre" (least distance of x from the interval's centre),
        "weight" (greatest first), or a blend such as {"narrowest": 0.7, "weight": 0.3}: least
        0.7 · width / range - 0.3 · weight, the range being the extent's, or 1 without extent.
        `method="paper"` walks as paper 1 does, which is wrong now and then (trap T1.1).
        """
        value = float(x)
        wanted = min(checked_k(k), len(self))
        if wanted > self._answer_capacity:
            self._make_answer(2 * wanted)
        if rank == "narrowest" and method == "exact":
            found = self._top(self._address, value, wanted, self._answer_address)
        else:
            found = self._top_otherwise(value, wanted, rank, method)
        if found < 0:
            raise bad_value(value, "top")
        return self._answer[:found].copy()

    def _top_otherwise(self, value: float, wanted: int, rank: Rank, method: str) -> int:
        queries = _load_kernels().queries
        out = self._answer_address
        found: int
        if checked_method(method, rank) == "paper":
            found = queries.top_paper(self._address, value, wanted, out)
        else:
            shares = self._coefficients(rank)
            found = _load_kernels().scores.top_by_score(self._address, value, wanted, out, *shares)
        return found

    def _coefficients(self, rank: Rank) -> tuple[float, float, float]:
        shares = checked_rank(rank)
        return (
            shares.get("narrowest", 0.0) / self._unit,
            shares.get("centre", 0.0) / self._unit,
            float(shares.get("weight", 0.0)),
        )

    def top_many(self, xs: ArrayLike, k: SupportsIndex, rank: Rank = "narrowest") -> Keys:
        """Return an array of shape (len(xs), k), best first, -1 where fewer match."""
        values = value_array(xs, "top_many")
        wanted = checked_k(k)
        out = np.empty((len(values), wanted), dtype=np.int64)
        shares = self._coefficients(rank)
        queries = _load_kernels().queries
        if rank == "narrowest":
            queries.top_many(self._address, values, wanted, out.ctypes.data)
        else:
            _load_kernels().scores.top_many_by_score(
                self._address, values, wanted, out.ctypes.data, *shares
            )
        return out

    def interval(self, key: SupportsIndex) -> tuple[float, float]:
        """Return the bounds of an interval; the extent's where it has none."""
        slot = _load_kernels().base.slot_of(self._address, whole(key))
        if slot < 0:
            raise missing(key, "interval")
        low, high = _load_kernels().build.bounds(self._address, slot)
        return float(low), float(high)

    @property
    def touched(self) -> tuple[int, int]:
        """Markers and marked edges that the last `top` looked at (claim C1.1)."""
        memory = _load_kernels().memory
        return int(self._state[memory.S_TOUCHED]), int(self._state[memory.S_EDGES])

    @property
    def reserved_bytes(self) -> int:
        """Memory that the list holds, spare room included."""
        memory = _load_kernels().memory
        records = 72 * int(self._state[memory.S_RECORD_CAPACITY])
        table = 16 << int(self._state[memory.S_TABLE_BITS])
        scratch = 8 * int(self._state[memory.S_SCRATCH_WORDS])
        return int(self._state[memory.S_BYTES]) + records + table + scratch

    def edges(self) -> list[Edge]:
        """Return all edges, lowest level first, from left to right. For checks and teaching."""
        from nearcast.index._interval_check import Anatomy

        return [Edge(*each) for each in Anatomy(self._state).edges()]

    def check_invariants(self) -> None:
        """Raise AssertionError if the structure is not what paper 1 says. O(markers · log)."""
        from nearcast.index._interval_check import Anatomy

        Anatomy(self._state).check()

    def __reduce__(self) -> tuple[object, ...]:
        """Copy and pickle by content: the same intervals in the same order of age."""
        from nearcast.index._interval_check import Anatomy

        extent = None if self._unit == 1.0 and self._extent[1] == np.inf else self._extent
        return _rebuild, (*Anatomy(self._state).columns(), self._seed, extent)


def _rebuild(
    keys: Keys,
    lows: ArrayLike,
    highs: ArrayLike,
    low_open: ArrayLike,
    high_open: ArrayLike,
    weights: ArrayLike,
    seed: int,
    extent: tuple[float, float] | None,
) -> IntervalSkipList:
    return IntervalSkipList.from_arrays(
        keys,
        lows,
        highs,
        low_open=low_open,
        high_open=high_open,
        weights=weights,
        seed=seed,
        extent=extent,
    )
