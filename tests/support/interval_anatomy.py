"""The interval skip list dumped: nodes, edges, markers, runs, and checks of its invariants."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nearcast.index import IntervalSkipList
from nearcast.index.intervals import kernels, lists, memory, runs
from nearcast.index.intervals.nodes import ABOVE_ALL, BELOW_ALL, TOP

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nearcast.index.intervals.store import Store

    Words = NDArray[np.int64]
    Floats = NDArray[np.float64]

SLOT_MASK = 0xFFFFFFFF


def _value(number: np.int64) -> float:
    """Return the float with this ordinal."""
    bits = number if number >= 0 else number ^ np.int64(0x7FFFFFFFFFFFFFFF)
    return float(bits.view(np.float64))


@dataclass(frozen=True, slots=True)
class Level:
    """The edges of one level, from left to right; markers as slots."""

    number: int  # from 0
    left: Words
    right: Words
    cached_right: Words
    ends: Words  # end of each edge's markers in `slots`
    slots: Words

    def edge_of_marker(self) -> Words:
        """Return for each marker the number of its edge."""
        return np.repeat(np.arange(len(self.left)), np.diff(self.ends, prepend=0))


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge of a list: it covers the values in [left, right)."""

    level: int  # from 1
    left: float
    right: float
    markers: tuple[int, ...]  # keys, the most accurate first


def edges_of(index: IntervalSkipList) -> list[Edge]:
    """Return all edges, lowest level first, from left to right.

    If there are runs, these are the edges of one list with all intervals, built for this.
    """
    return [Edge(*each) for each in Anatomy(index._whole_list()._store).edges()]


def check_intervals(index: IntervalSkipList) -> None:
    """Raise AssertionError if an invariant of paper 1 is broken. O(markers · log)."""
    Anatomy(index._store).check()


def _words_at(address: int, count: int) -> Words:
    if count == 0:
        return np.empty(0, dtype=np.int64)
    words: Words = np.ctypeslib.as_array((ctypes.c_int64 * count).from_address(address)).copy()
    return words


class Anatomy:
    """A snapshot of everything inside a list."""

    def __init__(self, store: Store) -> None:
        self.state = state = store.state
        self.runs = [RunView(run) for run in store.runs]
        used = int(state[memory.S_RECORDS_USED])
        records = store.records.reshape(-1, 8)[:used]
        ages = records[:, lists.R_AGE]
        self.live = np.flatnonzero(ages >= 0)
        found = [kernels.slot_of(store.address, int(key)) for key in store.keys[self.live]]
        slots = np.full(used, -1, dtype=np.int64)
        slots[self.live] = found
        words = (store.keys[:used], records[:, lists.R_LOW], records[:, lists.R_HIGH], ages >> 2)
        self.words = np.column_stack([*words, slots, ages & 3, records[:, runs.R_HOME]])
        self.widths = records[:, lists.R_WIDTH].copy().view(np.float64)
        self.weights = records[:, lists.R_WEIGHT].copy().view(np.float64)
        self.nodes = np.array(list(self._nodes()), dtype=np.int64)
        height = int(state[memory.S_HEIGHT])
        self.levels = [self._level(number) for number in (*range(height), TOP)]

    def _nodes(self) -> Iterator[tuple[int, int, int]]:
        """Yield key, levels and owners of each node, header first."""
        node = int(self.state[memory.S_HEADER])
        while node != self.state[memory.S_TAIL]:
            key, info = _words_at(node, 2).tolist()
            yield key, info & 0xFF, info >> 8
            node = int(self._edge(node, 0)[lists.E_NEXT])

    @staticmethod
    def _edge(node: int, level: int) -> Words:
        return _words_at(node + 32 + 32 * level, 4)

    def _level(self, number: int) -> Level:
        rows, entries = [], [np.empty(0, dtype=np.int64)]
        node, markers = int(self.state[memory.S_HEADER]), 0
        while node != self.state[memory.S_TAIL]:
            edge = self._edge(node, number)
            length, following = int(edge[lists.E_INFO]) & 0xFFFFFFFF, int(edge[lists.E_NEXT])
            entries.append(_words_at(int(edge[lists.E_BLOCK]), length))
            markers += length
            left, right = int(_words_at(node, 1)[0]), int(_words_at(following, 1)[0])
            rows.append((left, right, int(edge[lists.E_NEXT_KEY]), markers))
            node = following
        left, right, cached_right, ends = np.array(rows, dtype=np.int64).T
        return Level(number, left, right, cached_right, ends, np.concatenate(entries) & SLOT_MASK)

    def edges(self) -> Iterator[tuple[int, float, float, tuple[int, ...]]]:
        """Yield level (from 1), left, right and the markers' keys of each edge."""
        for level in self.levels:
            starts = np.append(0, level.ends[:-1])
            keys = self.words[level.slots, 0]
            for number, left in enumerate(level.left):
                markers = keys[starts[number] : level.ends[number]]
                right = level.right[number]
                yield level.number + 1, _value(left), _value(right), tuple(markers.tolist())

    def check(self) -> None:
        """Raise AssertionError unless the invariants of paper 1 and of this package hold."""
        self._check_counts()
        self._check_nodes()
        for number, level in enumerate(self.levels):
            above = self.levels[number + 1] if number + 1 < len(self.levels) else None
            self._check_links(level)
            self._check_order(level)
            self._check_cover(level, above)
        self._check_tiling()
        for run in self.runs:
            run.check()
        self._check_homes()

    def _check_counts(self) -> None:
        assert len(self.live) == self.state[memory.S_COUNT], "the count is off"
        assert (self.words[self.live, 4] == self.live).all(), "the key table leads elsewhere"
        markers = sum(len(level.slots) for level in self.levels)
        assert markers == self.state[memory.S_MARKERS], "the number of markers is off"
        assert len(self.nodes) - 1 == self.state[memory.S_NODES], "the number of nodes is off"

    def _placed(self) -> Words:
        """Return the slots of the intervals in the list."""
        placed: Words = self.live[self.words[self.live, 6] == runs.IN_LIST]
        return placed

    def _check_homes(self) -> None:
        """Check that each interval is in the list or in one run, or contains no float."""
        words, live = self.words, self.live
        nowhere = live[words[live, 6] == runs.NOWHERE]
        assert (words[nowhere, 1] >= words[nowhere, 2]).all(), "an interval got lost"
        in_runs = live[words[live, 6] == runs.IN_RUN]
        found = [run.column(runs.C_SLOT)[run.live] for run in self.runs]
        slots = np.concatenate([np.empty(0, dtype=np.int64), *found])
        assert np.array_equal(np.sort(slots), in_runs), "the runs hold others than they should"
        assert len(self._placed()) == self.state[memory.S_LISTED], "the list's count is off"
        for run in self.runs:
            run.check_content(words, self.widths, self.weights)

    def _check_nodes(self) -> None:
        """Check that each node is the end of as many intervals as it records, at least one."""
        ends = self.words[self._placed(), 1:3].ravel()
        ends = ends[(ends != BELOW_ALL) & (ends != ABOVE_ALL)]
        keys, owners = np.unique(ends, return_counts=True)
        assert np.array_equal(self.nodes[1:, 0], keys), "nodes are not the end points"
        assert np.array_equal(self.nodes[1:, 2], owners), "a node's owners are miscounted"
        height = self.nodes[1:, 1].max(initial=1)
        assert height == self.state[memory.S_HEIGHT] == self.nodes[0, 1], "the height is off"

    def _check_links(self, level: Level) -> None:
        """Check that a level links, in order, the header and all nodes that are high enough."""
        keys = self.nodes[self.nodes[:, 1] > level.number, 0]
        if level.number == TOP:
            keys = self.nodes[:1, 0]
        assert np.array_equal(level.left, keys), "a level misses nodes, or has too many"
        assert np.array_equal(level.right[:-1], keys[1:]), "an edge leads astray"
        assert level.right[-1] == ABOVE_ALL, "a level does not reach the end"
        assert np.array_equal(level.right, level.cached_right), "an edge misremembers its end"

    def _check_order(self, level: Level) -> None:
        """Check that markers of an edge ascend by (width, age); so none is there twice."""
        widths = self.widths[level.slots]
        ages = self.words[level.slots, 3]
        same_edge = np.diff(level.edge_of_marker()) == 0
        wider = widths[1:] > widths[:-1]
        younger = (widths[1:] == widths[:-1]) & (ages[1:] > ages[:-1])
        assert (wider | younger)[same_edge].all(), "markers out of order"

    def _check_cover(self, level: Level, above: Level | None) -> None:
        """Check containment and maximality: the edge above, around this one, is not covered."""
        edge = level.edge_of_marker()
        first, beyond = self.words[level.slots, 1], self.words[level.slots, 2]
        covers = (first <= level.left[edge]) & (level.right[edge] <= beyond)
        assert covers.all(), "a marker on an edge that its interval does not cover"
        if above is None:
            return
        upper = np.searchsorted(above.left, level.left, side="right")[edge] - 1
        covers_more = (first <= above.left[upper]) & (above.right[upper] <= beyond)
        assert not covers_more.any(), "a marker that belongs on a higher edge"

    def _check_tiling(self) -> None:
        """Check that the edges an interval marks cover it without gap or overlap."""
        slots = np.concatenate([level.slots for level in self.levels])
        left = np.concatenate([level.left[level.edge_of_marker()] for level in self.levels])
        right = np.concatenate([level.right[level.edge_of_marker()] for level in self.levels])
        order = np.lexsort((left, slots))
        slots, left, right = slots[order], left[order], right[order]
        fresh = np.flatnonzero(np.diff(slots, prepend=-1))
        last = np.append(fresh[1:], len(slots)) - 1
        inner = np.setdiff1d(np.arange(1, len(slots)), fresh)
        assert np.array_equal(slots[fresh], np.sort(self._placed())), "an interval has no marker"
        assert (left[fresh] == self.words[slots[fresh], 1]).all(), "a gap at the low end"
        assert (right[last[: len(fresh)]] == self.words[slots[fresh], 2]).all(), "a gap at the top"
        assert (left[inner] == right[inner - 1]).all(), "a gap or an overlap between markers"


class RunView:
    """One run, read from its memory."""

    def __init__(self, words: Words) -> None:
        self.words = words
        self.entries = int(words[runs.H_ENTRIES])
        self.live = np.flatnonzero(self.column(runs.C_FIRST) < self.column(runs.C_ABOVE))

    def column(self, number: int) -> Words:
        """Return a column of the entries."""
        start = runs.HEADER + number * int(self.words[runs.H_PADDED])
        return self.words[start : start + self.entries]

    def nodes(self, level: int, number: int) -> Words:
        """Return a column of a level's nodes, padding included."""
        size = int(self.words[runs.H_NODES + level])
        start = (int(self.words[runs.H_LEVEL + level]) - self.words.ctypes.data) // 8
        return self.words[start + number * size : start + (number + 1) * size]

    def check(self) -> None:
        """Check order and bounds."""
        firsts = self.column(runs.C_FIRST)
        assert (firsts[1:] >= firsts[:-1]).all(), "a run out of order"
        assert self.entries - len(self.live) == self.words[runs.H_REMOVED], "removals miscounted"
        sizes = runs.level_sizes(self.entries)
        assert len(sizes) == self.words[runs.H_LEVELS], "a run has other levels than it should"
        below = [self.column(n) for n in (runs.C_FIRST, runs.C_ABOVE)]
        for level, size in enumerate(sizes, start=1):
            starts = np.arange(0, len(below[0]), runs.GROUP)
            below = [below[0][starts], np.maximum.reduceat(below[1], starts)]
            for number, expected in zip((runs.N_FIRST, runs.N_ABOVE), below, strict=True):
                column = self.nodes(level, number)
                assert np.array_equal(column[:size], expected), "a node is not what is below it"
                padding = ABOVE_ALL if number == runs.N_FIRST else BELOW_ALL
                assert (column[size:] == padding).all(), "a run's padding is not empty"

    def check_content(self, words: Words, widths: Floats, weights: Floats) -> None:
        """Check entries against the records, and that the nodes' bounds are valid."""
        slots = self.column(runs.C_SLOT)[self.live]
        for number, word in ((runs.C_KEY, 0), (runs.C_FIRST, 1), (runs.C_ABOVE, 2)):
            assert np.array_equal(self.column(number)[self.live], words[slots, word]), "a stray"
        open_low = words[slots, 1] == BELOW_ALL
        open_high = (words[slots, 2] == ABOVE_ALL) & (words[slots, 5] >= 2)
        closed = np.where(open_low | open_high, 0.0, widths[slots])
        node = self.live
        for level in range(1, int(self.words[runs.H_LEVELS]) + 1):
            node = node // runs.GROUP
            narrowest = self.nodes(level, runs.N_WIDTH).view(np.float64)[node]
            heaviest = self.nodes(level, runs.N_WEIGHT).view(np.float64)[node]
            ages = self.nodes(level, runs.N_AGE)[node]
            assert (narrowest <= widths[slots]).all(), "a bound above a width"
            assert (heaviest >= weights[slots]).all(), "a bound below a weight"
            assert (ages >> 2 <= words[slots, 3]).all(), "a bound above an age"
            least = self.nodes(level, runs.N_CLOSED).view(np.float64)[node]
            assert (least <= closed).all(), "a bound above a closed width"
