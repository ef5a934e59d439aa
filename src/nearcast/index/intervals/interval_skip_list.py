"""The public interval skip list: ranked stabbing queries on one attribute (paper 1).

Read this file first; then `store.py`, `memory.py`, `lists.py`,
`nodes.py`, `runs.py`, `kernels.py`, `queries.py`,
`best.py`, `scores.py` and `build.py`, which do the work.
"""

from __future__ import annotations

import operator
from struct import Struct
from struct import error as StructError  # noqa: N812 - it is a class
from typing import TYPE_CHECKING, Any, NoReturn, SupportsFloat, SupportsIndex

import numpy as np

from nearcast.index.boxes.input import Rank, blend_of, key_of
from nearcast.index.intervals import kernels, memory, queries, scores
from nearcast.index.intervals.arguments import (
    bad_value,
    checked_extent,
    checked_k,
    checked_method,
    column,
    complain,
    key_array,
    missing,
    number,
    value_array,
)
from nearcast.index.intervals.store import Store
from nearcast.model.errors import MisuseError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Keys = NDArray[np.int64]

_LIST_LIMIT = 256  # most intervals in the list before they become a run
_NO_LIMIT = 1 << 40
_SOON_FOUND = 256  # keys for which there is always room
_AT_ONCE = 1 << 16  # least room for keys in `stab_many`
_NO_KEYS = np.empty(0, dtype=np.int64)
_COLUMNS = ("lows", "highs", "low_open", "high_open", "weights")
_NARROWEST = (1.0, 0.0, 0.0)  # the width itself, so that no rounding makes a tie

# Layouts of a query for a kernel, in words.
_pack_interval = Struct("=qddqd").pack_into
_pack_key = Struct("=q").pack_into
_pack_question = Struct("=qqqqqddd").pack_into


class IntervalSkipList:
    """Intervals on one attribute: which contain a value, and which of them rank best.

    Keys are any int64. An infinite bound means "open on this side". `extent`, the attribute's
    range, gives the width of an interval without bounds, and is the unit of widths in blended
    ranks; without it such an interval is infinitely wide and widths count in the attribute's own
    unit.

    Ranks, less is better, ties go to the older interval:

    - `narrowest`: the width.
    - `centre`: the distance of the value from the interval's centre as a share of half its width:
      0 at the centre, 1 at the ends; 0 for a point, and for an interval with an open side, which
      has no centre. This is the rank `centre` of `BoxIndex` too.
    - `weight`: the greater `weight` (1 unless given) first.
    - a blend such as {"narrowest": 0.7, "weight": 0.3}: least 0.7 · width / range - 0.3 · weight,
      the range being the extent's, or 1 without extent.

    New intervals go into an interval skip list as in paper 1. When it has some hundreds, they
    become a sorted run, and runs of similar size are merged; so the list stays small and most
    intervals are in a few runs with a tree of bounds over each. Levels are random; the generator is
    part of the list and starts from `seed`, so that equal histories give equal lists.

    Complexity, for n intervals: `add` amortised O(log n), `remove` O(log n), `stab` expected
    O(log² n + matches); `top` visits what its bounds cannot exclude, and in the list itself
    finds the narrowest in O(log n + k log log n) however many match. A failed call changes
    nothing. Not thread-safe.

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
        _limit: int = _LIST_LIMIT,
    ) -> None:
        self._extent = checked_extent(extent)
        self._unit = 1.0 if extent is None else self._extent[1] - self._extent[0]
        self._seed = operator.index(seed)
        signed_seed = (self._seed + (1 << 63)) % (1 << 64) - (1 << 63)
        self._store = Store(self._extent, signed_seed, _limit)
        self._state: Keys = self._store.state
        self._address: int = self._store.address
        self._ask = self._state.data.cast("B")[8 * memory.S_ASK :]
        self._value = np.empty(1)
        self._value_address = self._value.ctypes.data
        self._add = kernels.add
        self._remove = kernels.remove
        self._stab = queries.stab
        self._top = scores.top
        self._whole: IntervalSkipList | None = None
        self._whole_at = (0, 0)
        self._make_answer(_SOON_FOUND)

    def _make_answer(self, capacity: int) -> None:
        self._answer: Keys = np.empty(capacity + 16, dtype=np.int64)
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
        _limit: int = _LIST_LIMIT,
    ) -> IntervalSkipList:
        """Build a list at once; earlier intervals are older. O(n log n)."""
        index = cls(seed, extent, _limit=_limit)
        index._build(key_array(keys), lows, highs, low_open, high_open, weights)
        return index

    def _build(self, keys: Keys, *rest: ArrayLike) -> None:
        lows, highs, low_open, high_open, weights = (
            column(each, len(keys), name) for each, name in zip(rest, _COLUMNS, strict=True)
        )
        openness = (low_open != 0) + 2 * (high_open != 0).astype(np.int64)
        mistake, at = self._store.fill(keys, lows, highs, openness, weights)
        if mistake:
            complain(mistake, int(keys[at]), float(lows[at]), float(highs[at]), f"row {at}")

    def add(
        self,
        key: SupportsIndex,
        low: SupportsFloat,
        high: SupportsFloat,
        low_open: bool = False,
        high_open: bool = False,
        weight: SupportsFloat = 1.0,
    ) -> None:
        """Add an interval. Amortised O(log n) beside the list, which is small."""
        opens = (1 if low_open else 0) | (2 if high_open else 0)
        try:
            _pack_interval(self._ask, 0, key, low, high, opens, weight)
        except (StructError, TypeError, OverflowError):
            self._refuse(key, low, high, weight)
        status = self._add(self._address)
        if status:
            self._settle_add(status, key, low, high)

    def _settle_add(
        self, status: int, key: SupportsIndex, low: SupportsFloat, high: SupportsFloat
    ) -> None:
        """Make room and add again, or raise for an invalid interval."""
        if status == kernels.NO_ROOM:
            self._store.make_room()
            status = self._add(self._address)
        if status:
            complain(status, key_of(key), float(low), float(high), "add")

    @staticmethod
    def _refuse(key: SupportsIndex, *numbers: SupportsFloat) -> NoReturn:
        key_of(key)
        for each, name in zip(numbers, ("low", "high", "weight"), strict=True):
            number(each, name)
        raise AssertionError("`struct` refused what is fine")

    def remove(self, key: SupportsIndex) -> None:
        """Remove an interval. Expected O(log² n) in the list, O(log n) in a run."""
        try:
            _pack_key(self._ask, 0, key)
        except (StructError, TypeError, OverflowError):
            key_of(key)
            raise
        status = self._remove(self._address)
        if status:
            self._settle_remove(status, key)

    def _settle_remove(self, status: int, key: SupportsIndex) -> None:
        if status == kernels.NO_ROOM:
            self._store.make_run()
            status = self._remove(self._address)
        if status == kernels.KEY_MISSING:
            raise missing(key, "remove")
        if status == kernels.WORN:
            self._store.mend_worn_run()

    def rebuild(self) -> None:
        """Move everything into one run; never needed, O(n). Queries are fastest after it."""
        self._store.gather()

    def __contains__(self, key: object) -> bool:
        try:
            number = key_of(key)
        except MisuseError:
            return False
        slot: int = kernels.slot_of(self._address, number)
        return slot >= 0

    def __len__(self) -> int:
        return len(self._store)

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
        parts = [_NO_KEYS]
        first, room = 0, _AT_ONCE
        while first < len(values):
            out = np.empty(room + 16, dtype=np.int64)
            last = queries.stab_some(self._address, values, first, offsets, out.ctypes.data, room)
            if last == first:  # one result is longer than that
                room *= 2
                continue
            parts.append(out[: offsets[last]])
            room = int(offsets[last] / (last - first) * (len(values) - last) * 1.1) + _AT_ONCE
            offsets[first + 1 : last + 1] += offsets[first]
            first = last
        return offsets, parts[1] if len(parts) == 2 else np.concatenate(parts)

    def top(
        self, x: SupportsFloat, k: SupportsIndex, rank: Rank = "narrowest", method: str = "exact"
    ) -> Keys:
        """Return the keys of the k best intervals that contain x, the best first.

        `rank` is a name or a blend, see the class. `method="paper"` walks as paper 1 does, which is
        wrong now and then (trap T1.1); it needs all intervals in one skip list, which is built for
        it if there are runs, and kept until the next change.
        """
        value = float(x)
        wanted = checked_k(k)
        if wanted > _SOON_FOUND:
            wanted = min(wanted, len(self))
        if wanted > self._answer_capacity:
            self._make_answer(2 * wanted)
        if method != "exact" and checked_method(method, rank) == "paper":
            found = self._top_paper(value, min(wanted, len(self)))
        else:
            self._value[0] = value
            out = self._answer_address
            found = self._top_rows(self._value_address, 1, wanted, out, 0, rank)
        if found < 0:
            raise bad_value(value, "top")
        return self._answer[:found].copy()

    def _top_rows(
        self, values: int, count: int, wanted: int, out: int, room: int, rank: Rank
    ) -> int:
        """Rank for `count` values in rows of `room` keys; values and rows are addresses."""
        shares = _NARROWEST if rank == "narrowest" else self._coefficients(rank)
        if wanted > 512:
            self._store.reserve_scratch(wanted)
        _pack_question(self._ask, 0, values, count, wanted, out, room, *shares)
        found: int = self._top(self._address)
        return found

    def _top_paper(self, value: float, wanted: int) -> int:
        whole_list = self._whole_list()
        found: int = queries.top_paper(whole_list._address, value, wanted, self._answer_address)
        for word in (memory.S_TOUCHED, memory.S_EDGES):
            self._state[word] = whole_list._state[word]
        return found

    def _whole_list(self) -> IntervalSkipList:
        """Return a list that has all intervals in one skip list, without runs."""
        if not self._store.runs:
            return self
        if self._whole is None or self._whole_at != self._store.changes:
            self._whole = _rebuild(_NO_LIMIT, *self._content())
            self._whole_at = self._store.changes
        return self._whole

    def _coefficients(self, rank: Rank) -> tuple[float, float, float]:
        narrowest, centre, weight = blend_of(rank).tolist()
        return narrowest / self._unit, centre, weight

    def top_many(self, xs: ArrayLike, k: SupportsIndex, rank: Rank = "narrowest") -> Keys:
        """Return an array of shape (len(xs), k), best first, -1 where fewer match."""
        values = value_array(xs, "top_many")
        room = checked_k(k)
        out = np.empty((len(values), room), dtype=np.int64)
        wanted = min(room, len(self))
        self._top_rows(values.ctypes.data, len(values), wanted, out.ctypes.data, room, rank)
        return out

    def interval(self, key: SupportsIndex) -> tuple[float, float]:
        """Return the bounds of an interval; the extent's where it has none."""
        slot = kernels.slot_of(self._address, key_of(key))
        if slot < 0:
            raise missing(key, "interval")
        (low,), (high,) = self._store.bounds(np.array([slot]))
        least, most = self._extent
        return float(low) if low > -np.inf else least, float(high) if high < np.inf else most

    @property
    def touched(self) -> tuple[int, int]:
        """Return how many markers and marked edges the last `top` visited (claim C1.1).

        Intervals visited in runs count as markers.
        """
        return int(self._state[memory.S_TOUCHED]), int(self._state[memory.S_EDGES])

    @property
    def reserved_bytes(self) -> int:
        """Return the memory of the list in bytes, spare room included."""
        return int(self._store.nbytes)

    def _content(self) -> tuple[Any, ...]:
        extent = None if self._unit == 1.0 and self._extent[1] == np.inf else self._extent
        return *self._store.columns(), self._seed, extent

    def __reduce__(self) -> tuple[object, ...]:
        """Return what pickle needs: the same intervals in the same order of age."""
        return _rebuild, (_LIST_LIMIT, *self._content())


def _rebuild(
    limit: int,
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
        _limit=limit,
    )
