"""The memory of an interval skip list, and the moves between its parts.

An interval is in one of two places: in the skip list, which takes new ones, or in a *run*
(`runs.py`). When the list is full, its intervals become a run, together with all runs that are not
much larger; so there are few runs, each larger than all after it, and an interval is moved O(log n)
times in its life. A run of which half was removed is rebuilt.

Every array is NumPy's, and all arrays that a change needs exist before the change begins: if memory
runs out, the list is unchanged.

Previous: `interval_skip_list.py` (the public class); next: `memory.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from nearcast.index.intervals import build, kernels, memory, runs
from nearcast.index.intervals.lists import R_AGE, R_HIGH, R_LOW, R_WEIGHT
from nearcast.index.intervals.nodes import ABOVE_ALL, BELOW_ALL
from nearcast.model.errors import LimitError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Words = NDArray[np.int64]
    Floats = NDArray[np.float64]

MARKERS_AN_INTERVAL: Final = 8  # more than most need in a list of a few thousand
LEAST_MARKERS: Final = 1 << 10
MOST_MARKERS: Final = 1 << 15
MOST_INTERVALS: Final = 1 << 32  # a marker has 32 bits for the slot
LIKE_SIZE: Final = 3  # a run is merged with new intervals unless it is this many times larger


def _values(ordinals: Words) -> Floats:
    """Return the floats with these ordinals."""
    bits = np.where(ordinals >= 0, ordinals, ordinals ^ 0x7FFFFFFFFFFFFFFF)
    return bits.view(np.float64)


def _aligned(words: int) -> Words:
    """Return an array aligned to a cache line."""
    raw: Words = np.empty(words + 8, dtype=np.int64)
    start = -raw.ctypes.data % 64 // 8
    return raw[start : start + words]


class Store:
    """The arrays behind one list, and the table of words through which kernels find them."""

    __slots__ = ("address", "arenas", "keys", "records", "runs", "scratch", "state", "table")

    def __init__(self, extent: tuple[float, float], seed: int, limit: int) -> None:
        self.state: Words = np.zeros(memory.STATE_WORDS, dtype=np.int64)
        self.address = int(self.state.ctypes.data)
        self.state.view(np.float64)[[memory.S_EXTENT_LOW, memory.S_EXTENT_HIGH]] = extent
        self.state[memory.S_RANDOM] = seed
        self.state[memory.S_FREE_SLOT] = -1
        self.state[memory.S_LIST_LIMIT] = limit
        markers = min(max(LEAST_MARKERS, MARKERS_AN_INTERVAL * limit), MOST_MARKERS)
        self.state[memory.S_MARKER_LIMIT] = markers
        self.runs: list[Words] = []
        self.records: Words = np.empty(0, dtype=np.int64)
        self.keys: Words = np.empty(0, dtype=np.int64)
        self.table: Words = np.empty(0, dtype=np.int64)
        self.scratch: Words = np.empty(0, dtype=np.int64)
        self.reserve_records(16)
        self.reserve_keys(8)
        self.reserve_scratch(1)
        self.arenas = [self._new_arena()]
        self._begin_list()

    def __len__(self) -> int:
        return int(self.state[memory.S_COUNT])

    @property
    def changes(self) -> tuple[int, int]:
        """Return a pair that differs after every change: intervals ever added, and present."""
        return int(self.state[memory.S_NEXT_AGE]), len(self)

    @property
    def nbytes(self) -> int:
        """Return the bytes of all arrays, room for growth included."""
        arrays = [self.records, self.keys, self.table, self.scratch, *self.arenas, *self.runs]
        return sum(int(array.nbytes) for array in arrays)

    # --- room

    def _new_arena(self) -> Words:
        """Return memory for a full list and its next change."""
        markers = int(self.state[memory.S_MARKER_LIMIT])
        return _aligned(2 * (kernels.WORDS_A_MARKER * markers + kernels.WORDS_A_CHANGE))

    def _use_arena(self, arena: Words) -> None:
        self.state[memory.S_BUMP] = arena.ctypes.data
        self.state[memory.S_BUMP_END] = arena.ctypes.data + arena.nbytes

    def _begin_list(self) -> None:
        """Empty the list; its arena is used from the start again."""
        del self.arenas[1:]
        self._use_arena(self.arenas[0])
        kernels.found(self.address)

    def _more_arena(self, words: int) -> None:
        """Ensure `words` contiguous free words in the arena."""
        free = int(self.state[memory.S_BUMP_END] - self.state[memory.S_BUMP]) // 8
        if free < words:
            self.arenas.append(_aligned(words))
            self._use_arena(self.arenas[-1])

    def reserve_records(self, count: int) -> None:
        """Ensure room for `count` intervals."""
        capacity = int(self.state[memory.S_RECORD_CAPACITY])
        if count <= capacity:
            return
        capacity = max(count, capacity + capacity // 2)
        records, keys = _aligned(8 * capacity), _aligned(capacity)
        records[: self.records.size] = self.records
        keys[: self.keys.size] = self.keys
        self.records, self.keys = records, keys
        self.state[memory.S_RECORDS] = records.ctypes.data
        self.state[memory.S_KEYS] = keys.ctypes.data
        self.state[memory.S_RECORD_CAPACITY] = capacity

    def reserve_keys(self, count: int) -> None:
        """Ensure a key table for `count` keys, at most half full."""
        if self.table.size and 2 * count <= self.table.size // 2:
            return
        bits = max(4, (2 * count - 1).bit_length())
        table = _aligned(2 << bits)
        table[1::2] = -1
        old, self.table = self.table, table
        self.state[memory.S_TABLE] = table.ctypes.data
        self.state[memory.S_TABLE_BITS] = bits
        memory.move_keys(self.address, old)

    def reserve_scratch(self, k: int) -> None:
        """Ensure room for the best k, and for the scratch area of a change."""
        words = 6 * int(self.state[memory.S_MARKER_LIMIT]) + 4 * k + 4096
        if self.scratch.size < words:
            self.scratch = _aligned(words + words // 4)
            self.state[memory.S_SCRATCH] = self.scratch.ctypes.data
            self.state[memory.S_SCRATCH_WORDS] = self.scratch.size

    def make_room(self) -> None:
        """Ensure room for one more interval, and for any change of the list."""
        count = len(self) + 1
        if count > MOST_INTERVALS:
            raise LimitError(str(count), where="intervals", expected=f"at most {MOST_INTERVALS}")
        self.reserve_keys(count)
        if self.state[memory.S_FREE_SLOT] < 0:
            self.reserve_records(int(self.state[memory.S_RECORDS_USED]) + 1)
        if not kernels.list_has_room(self.address):
            self.make_run()

    # --- runs

    def _listed(self) -> Words:
        """Return the slots of the intervals in the list, by low end."""
        slots = np.empty(int(self.state[memory.S_LISTED]), dtype=np.int64)
        kernels.listed_slots(self.address, slots)
        return slots

    def _live(self, number: int) -> Words:
        """Return the slots in a run, by low end."""
        run = self.runs[number]
        slots = np.empty(int(run[runs.H_ENTRIES] - run[runs.H_REMOVED]), dtype=np.int64)
        runs.live_slots(run.ctypes.data, slots)
        return slots

    def make_run(self) -> None:
        """Move the list into a run, and merge that with runs of similar size."""
        sizes = [int(run[runs.H_ENTRIES]) for run in self.runs]
        first, total = len(sizes), int(self.state[memory.S_LISTED])
        while first > 0 and (sizes[first - 1] <= LIKE_SIZE * total or first >= memory.MOST_RUNS):
            first -= 1
            total += sizes[first]
        slots = self._listed()
        self._merge_from(first, slots)
        self._begin_list()

    def gather(self) -> None:
        """Merge everything into one run."""
        self._merge_from(0, self._listed())
        self._begin_list()

    def _merge_from(self, first: int, slots: Words) -> None:
        """Merge all runs from `first` on, and these slots, into one."""
        for number in range(len(self.runs) - 1, first - 1, -1):
            other = self._live(number)
            merged = np.empty(slots.size + other.size, dtype=np.int64)
            runs.merge_slots(self.address, other, slots, merged)
            slots = merged
        kept = self.runs[:first]
        if slots.size:
            run = _aligned(runs.run_words(slots.size))
            kept.append(run)
            runs.fill_run(self.address, run.ctypes.data, slots)
        self._note_runs(kept)

    def _note_runs(self, kept: list[Words]) -> None:
        self.runs = kept
        addresses = [run.ctypes.data for run in kept]
        self.state[memory.S_RUN : memory.S_RUN + len(kept)] = addresses
        self.state[memory.S_RUN_COUNT] = len(kept)

    def mend_worn_run(self) -> None:
        """Rebuild a run of which half was removed, together with the smaller ones.

        The removal is done; if memory is short, this can wait.
        """
        worn = int(self.state[memory.S_WORN_RUN])
        self.state[memory.S_WORN_RUN] = 0
        addresses = [run.ctypes.data for run in self.runs]
        if worn not in addresses:
            return
        try:
            self._merge_from(addresses.index(worn), np.empty(0, dtype=np.int64))
        except MemoryError:
            return

    # --- content

    def bounds(self, slots: Words) -> tuple[Floats, Floats]:
        """Return the bounds of some slots, infinite where an interval has none."""
        first, above, age = self.records.reshape(-1, 8)[slots][:, [R_LOW, R_HIGH, R_AGE]].T
        lows = np.where(first == BELOW_ALL, -np.inf, _values(first - (age & 1)))
        is_open = (above == ABOVE_ALL) & (age & 2 > 0)
        return lows, np.where(is_open, np.inf, _values(above - 1 + (age >> 1 & 1)))

    def columns(self) -> tuple[NDArray[Any], ...]:
        """Return keys, lows, highs, openness of both and weights, the oldest interval first."""
        records = self.records.reshape(-1, 8)[: int(self.state[memory.S_RECORDS_USED])]
        ages = records[:, R_AGE]
        slots = np.argsort(ages)[np.count_nonzero(ages < 0) :]
        opens = ages[slots] & 3
        weights = records[slots, R_WEIGHT].view(np.float64)
        return self.keys[slots], *self.bounds(slots), opens & 1 > 0, opens & 2 > 0, weights

    # --- bulk building

    def fill(
        self, keys: Words, lows: Floats, highs: Floats, openness: Words, weights: Floats
    ) -> tuple[int, int]:
        """Fill an empty store; return the first error and its row, or OK."""
        count = len(keys)
        self.reserve_records(count + count // 8)
        self.reserve_keys(count + count // 8)
        ends = np.empty(2 * count, dtype=np.int64)
        mistake, at = build.fill_records(self.address, keys, lows, highs, openness, weights, ends)
        if mistake == kernels.OK:
            if count <= self.state[memory.S_LIST_LIMIT]:
                self._build_list(ends, count)
            else:
                inside = np.flatnonzero(ends[:count] < ends[count:])
                order = np.argsort(ends[inside], kind="stable")
                self._merge_from(0, inside[order])
        return mistake, at

    def _build_list(self, ends: Words, count: int) -> None:
        order = np.argsort(ends, kind="stable")
        self._more_arena(int(build.node_words(self.address, 2 * count)))
        build.link_nodes(self.address, ends, order, np.empty(64, dtype=np.int64))
        total = build.count_markers(self.address, order[order < count])
        self._more_arena(int(build.marker_words(self.address)))
        widths = np.empty(count)
        build.read_widths(self.address, widths)
        by_width = np.argsort(widths, kind="stable")
        entries = np.empty(total, dtype=np.int64)
        build.place_markers(self.address, by_width, entries.ctypes.data)
