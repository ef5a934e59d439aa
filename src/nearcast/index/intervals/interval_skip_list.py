"""The interval skip list: intervals on one attribute, ranked (paper 1).

Reading path: this file (the public class), `memory.py`, `skip_list.py` (the paper's structure),
`runs.py` (where intervals go when the list is full), `queries.py`, `top.py`. `intervals.py` has
what a server uses until the kernels are compiled.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from nearcast.index.boxes.input import Rank, blend_of
from nearcast.index.intervals import queries, skip_list
from nearcast.index.intervals import top as ranking
from nearcast.index.intervals.input import (
    LARGEST,
    check_interval,
    checked_range,
    key_in_use,
    key_missing,
    not_finite,
    steps_of,
    steps_of_all,
)
from nearcast.index.intervals.memory import (
    L_AGE,
    L_KEY,
    L_STEPS,
    LISTED,
    M_PLACES,
    M_RUN,
    M_RUN_LENGTH,
    M_RUNS,
    M_TOUCHED,
    MOST_RUNS,
    PLACE_BITS,
    Memory,
    address_table,
    empty_list,
    new_memory,
)
from nearcast.index.intervals.runs import (
    GROUP,
    H_ENTRIES,
    HEADER_WORDS,
    Columns,
    build_run,
    content_of,
    merged,
)

_LIMIT = 128  # most intervals in the list before they become a run
_LIKE_SIZE = 3  # a run is merged with new intervals unless it is this many times larger
_ROOM = 1024  # keys for which there is always room
_AT_ONCE = 1 << 16
_SHARES = {"narrowest": (1.0, 0.0, 0.0), "centre": (0.0, 1.0, 0.0), "weight": (0.0, 0.0, 1.0)}

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Ranked = tuple[float, int, int]  # score, age, key


class IntervalSkipList:
    """Closed finite intervals on one attribute: which contain a value, which of them rank best.

    Keys are small whole numbers from 0, used again when they are free: a table of homes has a
    place for each. `extent` is the attribute's range. Ranks are those of a `BoxIndex` of
    `dimensions` attributes of which all others are open, number for number: `narrowest`, `centre`,
    `weight`, or a blend. Ties go to the interval of less `age`, which the caller gives.

    New intervals go into an interval skip list as in paper 1. When it is full, they become a sorted
    run, and runs of similar size are merged. Levels are random; the generator is part of the list
    and starts from `seed`, so that equal histories give equal lists.

    Complexity, for n intervals: `add` amortised O(log n), `remove` O(log n), `stab` expected
    O(log² n + matches); `top` visits what its bounds cannot exclude. A failed call changes nothing.
    Not thread-safe.

    >>> jobs = IntervalSkipList((0, 100))
    >>> for key, (low, high) in enumerate([(20, 60), (20, 25), (30, 40)]):
    ...     jobs.add(key, low, high, age=key)
    >>> sorted(jobs.stab(25).tolist()), [key for _, _, key in jobs.top(25, 1)]
    ([0, 1], [1])
    """

    def __init__(
        self,
        extent: tuple[float, float],
        *,
        dimensions: int = 1,
        seed: int = 0,
        _limit: int = _LIMIT,
    ) -> None:
        self._extent = checked_range(extent)
        self._span = self._extent[1] - self._extent[0]
        self._span_log2 = math.log2(self._span)
        self._memory: Memory = new_memory(_limit, seed, dimensions)
        self._runs: list[Ints] = []
        self._count = 0
        self._install()
        self._make_answer(_ROOM)
        self._make_best(64)

    @classmethod
    def from_arrays(
        cls,
        keys: npt.ArrayLike,
        lows: npt.ArrayLike,
        highs: npt.ArrayLike,
        *,
        extent: tuple[float, float],
        weights: npt.ArrayLike = 1.0,
        ages: npt.ArrayLike | None = None,
        dimensions: int = 1,
        seed: int = 0,
        _limit: int = _LIMIT,
    ) -> IntervalSkipList:
        """Build a list at once, as one run; ages ascend with the rows unless given. O(n log n)."""
        index = cls(extent, dimensions=dimensions, seed=seed, _limit=_limit)
        key_row = np.asarray(keys, np.int64)
        count = len(key_row)
        low_row, high_row = np.asarray(lows, np.float64), np.asarray(highs, np.float64)
        for row in np.flatnonzero(~((low_row <= high_row) & np.isfinite(high_row - low_row)))[:1]:
            check_interval(float(low_row[row]), float(high_row[row]), 1.0, f"row {row}")
        if len(np.unique(key_row)) < count:
            raise key_in_use(int(key_row[0]), "from_arrays")
        content = Columns(
            low_row,
            high_row,
            np.broadcast_to(np.asarray(weights, np.float64), count),
            steps_of_all(low_row, high_row, index._extent),
            np.arange(count) if ages is None else np.asarray(ages, np.int64),
            key_row,
        )
        index._reserve(int(key_row.max(initial=0)))
        index._count = count
        index._set_runs(0, [merged([content])])
        return index

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: object) -> bool:
        homes = self._homes
        return isinstance(key, int) and 0 <= key < homes.size and homes.item(key) >= 0

    # --- changes

    def add(self, key: int, low: float, high: float, *, weight: float = 1.0, age: int = 0) -> None:
        """Add an interval under a new key. Amortised O(log n)."""
        low, high, weight = float(low), float(high), float(weight)  # as the kernel is compiled
        if not (low <= high and high - low < math.inf and math.isfinite(weight)):
            check_interval(low, high, weight, "add")
        if not 0 <= key < self._homes.size:
            self._reserve(key)
        elif self._homes.item(key) >= 0:
            raise key_in_use(key, "add")
        steps = steps_of(low, high, self._span)
        above = math.nextafter(high, math.inf)
        if skip_list.add(self._address, key, low, high, above, weight, steps, age):
            self._make_run()
            skip_list.add(self._address, key, low, high, above, weight, steps, age)
        self._count += 1

    def remove(self, key: int) -> None:
        """Remove an interval. Expected O(log² n) in the list, O(log n) in a run."""
        home = self._homes.item(key) if 0 <= key < self._homes.size else -1
        if home < 0:
            raise key_missing(key, "remove")
        self._count -= 1
        if skip_list.remove(self._address, key) == skip_list.WORN:
            number = home >> PLACE_BITS
            self._set_runs(number, [content_of(run) for run in self._runs[number:]])

    def _make_run(self) -> None:
        """Move the list into a run, and merge that with runs of similar size."""
        listed = self._listed()
        first, total = len(self._runs), len(listed.keys)
        while first and (
            self._runs[first - 1][H_ENTRIES] <= _LIKE_SIZE * total or first >= MOST_RUNS
        ):
            first -= 1
            total += int(self._runs[first][H_ENTRIES])
        self._set_runs(first, [content_of(run) for run in self._runs[first:]] + [listed])
        empty_list(self._memory)

    def _set_runs(self, first: int, parts: list[Columns]) -> None:
        """Replace all runs from `first` on by one of these intervals."""
        content = merged(parts)
        runs = self._runs[:first]
        if len(content.keys):
            runs.append(build_run(content))
            self._memory.homes[content.keys] = np.arange(len(content.keys)) | first << PLACE_BITS
        self._runs = runs
        meta = self._memory.meta
        meta[M_RUNS] = len(runs)
        for number, run in enumerate(runs):
            meta[M_RUN + number], meta[M_RUN_LENGTH + number] = run.ctypes.data, run.size

    def _listed(self) -> Columns:
        """Return the intervals in the list."""
        used = int(self._memory.meta[M_PLACES])
        words = self._memory.listed[:used]
        live = words[:, L_AGE] >= 0
        bounds, words = self._memory.bounds[:used][live], words[live]
        return Columns(
            bounds[:, 0], bounds[:, 1], bounds[:, 3],
            words[:, L_STEPS], words[:, L_AGE], words[:, L_KEY],
        )  # fmt: skip

    def _reserve(self, key: int) -> None:
        """Make room for a key in the table of homes."""
        homes = self._memory.homes
        if key < 0 or key >= 1 << PLACE_BITS:
            raise key_missing(key, "add")
        if key >= homes.size:
            grown = np.full(max(key + 1, 2 * homes.size), -1, np.int64)
            grown[: homes.size] = homes
            self._memory = self._memory._replace(homes=grown)
            self._install()

    def _install(self) -> None:
        self._homes = self._memory.homes
        self._table = address_table(self._memory)
        self._address = int(self._table.ctypes.data)

    # --- queries

    def stab(self, x: float) -> Ints:
        """Return the keys of all intervals that contain x, in no particular order."""
        return self.meeting(x, x)

    def meeting(self, low: float, high: float) -> Ints:
        """Return the keys of all intervals that meet [low, high]; its ends may be infinite."""
        if not low <= high:
            raise not_finite(low, "meeting")
        # A place without interval is [inf, -inf], which meets no range of finite ends.
        low, high = max(float(low), -LARGEST), min(float(high), LARGEST)
        found = queries.meet(self._address, low, high, self._answer_at, self._room)
        if found + GROUP > self._room:
            self._make_answer(2 * found + _ROOM)
            queries.meet(self._address, low, high, self._answer_at, self._room)
        return self._answer[:found].copy()

    def _make_answer(self, room: int) -> None:
        self._answer: Ints = np.empty(room, np.int64)
        self._answer_at, self._room = self._answer.ctypes.data, room

    def _make_best(self, room: int) -> None:
        self._best: Floats = np.empty((room, 3))
        self._best_at = self._best.ctypes.data

    def stab_many(self, xs: npt.ArrayLike) -> tuple[Ints, Ints]:
        """Return (offsets, keys): the keys for xs[i] are keys[offsets[i]:offsets[i + 1]]."""
        values = np.require(xs, np.float64, ("C", "W"))
        offsets = np.zeros(len(values) + 1, np.int64)
        parts = [np.empty(0, np.int64)]
        first, room = 0, _AT_ONCE
        while first < len(values):
            out = np.empty(room, np.int64)
            last = queries.stab_some(self._address, values, first, offsets, out)
            if last == first:  # one answer is longer than that
                room *= 2
                continue
            parts.append(out[: offsets[last]])
            offsets[first + 1 : last + 1] += offsets[first]
            first = last
        return offsets, np.concatenate(parts)

    def top(self, x: float, k: int, rank: Rank = "narrowest") -> list[Ranked]:
        """Return score, age and key of the k best intervals that contain x, the best first."""
        shares = _SHARES.get(rank) if isinstance(rank, str) else None
        if shares is None:
            shares = tuple(blend_of(rank).tolist())
        if k > len(self._best):
            k = min(k, max(1, self._count))
            if k > len(self._best):
                self._make_best(2 * k)
        x = float(x)
        if not math.isfinite(x):
            raise not_finite(x, "top")
        found = ranking.top(self._address, x, k, self._span_log2, *shares, self._best_at)
        return [(score, int(age), int(key)) for score, age, key in self._best[:found].tolist()]

    def interval(self, key: int) -> tuple[float, float]:
        """Return the bounds of an interval."""
        if key not in self:
            raise key_missing(key, "interval")
        home = int(self._memory.homes[key])
        number, place = home >> PLACE_BITS, home & ((1 << PLACE_BITS) - 1)
        if number == LISTED:
            low, high = self._memory.bounds[place, :2].tolist()
        else:
            ends = self._runs[number][HEADER_WORDS:].view(np.float64)
            columns = (int(self._runs[number][H_ENTRIES]) // GROUP + 1) * GROUP
            low, high = float(ends[place]), float(ends[columns + place])
        return low, high

    @property
    def touched(self) -> int:
        """Return how many markers, and intervals in runs, the last `top` looked at."""
        return int(self._memory.meta[M_TOUCHED])

    @property
    def nbytes(self) -> int:
        """Return the bytes of all arrays, unused room included."""
        return sum(int(array.nbytes) for array in (*self._memory, *self._runs))
