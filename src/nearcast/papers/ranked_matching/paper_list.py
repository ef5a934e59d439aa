"""The interval skip list of paper 1 with all its intervals, built at once, and its ranked walks.

What a broker uses (`nearcast/index/intervals`) has only the newest intervals in such a list; this
one is what the paper's claims are about. Intervals are kept as [low, next float after high), so
the eqMarkers of a node are the markers on the edges that leave it. Markers follow containment and
maximality; those of an edge are in order of width, then age.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_MOST_LEVELS = 32


class Walked(NamedTuple):
    """An answer: keys, best first, markers touched, and marked edges on the search path."""

    keys: list[int]
    touched: int
    edges: int


class PaperList:
    """Closed intervals under the keys 0, 1, …, which are their ages; it does not change.

    A node has k levels with probability (1 - p) · p^(k-1).
    """

    def __init__(self, lows: Floats, highs: Floats, *, seed: int = 0, p: float = 0.5) -> None:
        above = np.nextafter(highs, np.inf)
        ends = np.unique(np.concatenate([lows, above]))
        random = np.random.default_rng([seed, 17])
        levels = np.minimum(random.geometric(1 - p, len(ends)), _MOST_LEVELS)
        self._ends = np.concatenate([[-np.inf], ends, [np.inf]])
        self._levels = np.concatenate([[levels.max()], levels, [levels.max()]])
        self._next = self._linked()
        self._widths = highs - lows
        first, last = (np.searchsorted(self._ends, some) for some in (lows, above))
        self._place_markers(first, last)
        self._end_list = self._ends.tolist()
        self._next_lists = [row.tolist() for row in self._next]

    def _linked(self) -> Ints:
        """Return the next node of every node, for each level."""
        found = np.zeros((self._levels.max(), len(self._ends)), np.int64)
        for level in range(len(found)):
            nodes = np.flatnonzero(self._levels > level)
            found[level, nodes[:-1]] = nodes[1:]
        return found

    def _place_markers(self, first: Ints, last: Ints) -> None:
        """Climb and descend the staircases of all intervals at once, a step at a time."""
        node, level = first.copy(), np.zeros(len(first), np.int64)
        edges, owners, active = [], [], np.arange(len(first))
        while active.size:
            here, up = node[active], level[active]
            while True:
                higher = np.minimum(up + 1, self._levels[here] - 1)
                climbs = (higher > up) & (self._next[higher, here] <= last[active])
                if not climbs.any():
                    break
                up = up + climbs
            while (falls := self._next[up, here] > last[active]).any():
                up = up - falls
            edges.append(here * _MOST_LEVELS + up)
            owners.append(active)
            node[active], level[active] = self._next[up, here], up
            active = active[node[active] != last[active]]
        edge, owner = np.concatenate(edges), np.concatenate(owners)
        order = np.lexsort((owner, self._widths[owner], edge))
        marked, starts = np.unique(edge[order], return_index=True)
        bounds = [*starts.tolist(), len(order)]
        keys = owner[order].tolist()
        self._markers = {
            one: keys[bounds[at] : bounds[at + 1]] for at, one in enumerate(marked.tolist())
        }

    def _path(self, value: float, *, stops_before: bool = False) -> list[tuple[int, list[int]]]:
        """Return the marked edges over a value, top down, each with its left node.

        `stops_before` reads the paper's loop as printed: it advances while the next key is *less*
        than the value, and never reaches a node that equals it.
        """
        node, found = 0, []
        for level in range(len(self._next_lists) - 1, -1, -1):
            following = self._next_lists[level]
            while True:
                end = self._end_list[following[node]]
                if not (end < value or (end == value and not stops_before)):
                    break
                node = following[node]
            markers = self._markers.get(node * _MOST_LEVELS + level)
            if markers:
                found.append((node, markers))
        return found

    def stab(self, value: float) -> list[int]:
        """Return the keys of all intervals that contain a value."""
        return [key for _, markers in self._path(value) for key in markers]

    def paper_walk(self, value: float, k: int, *, as_printed: bool = False) -> Walked:
        """Pop the path from the lowest level up, and take markers until there are k.

        The edges that leave a node equal to the value are its eqMarkers, and are read as one list;
        `as_printed`, they are never read.
        """
        path = self._path(value, stops_before=as_printed)
        equal = [markers for node, markers in path if self._end_list[node] == value]
        lists = [self._merged(equal)] if equal else []
        lists += [markers for _, markers in path[: len(path) - len(equal)]][::-1]
        found: list[int] = []
        for markers in lists:
            found += markers[: k - len(found)]
        return Walked(found, len(found), len(path))

    def exact_merge(self, value: float, k: int) -> Walked:
        """Merge the sorted markers of the path's edges with a heap."""
        lists = [markers for _, markers in self._path(value)]
        heads = [(self._widths[one[0]], one[0], at, 0) for at, one in enumerate(lists)]
        heapq.heapify(heads)
        found: list[int] = []
        touched = len(heads)
        while heads and len(found) < k:
            _, key, at, place = heads[0]
            found.append(key)
            if place + 1 < len(lists[at]) and len(found) < k:
                following = lists[at][place + 1]
                heapq.heapreplace(heads, (self._widths[following], following, at, place + 1))
                touched += 1
            else:
                heapq.heappop(heads)
        return Walked(found, touched, len(lists))

    def _merged(self, lists: list[list[int]]) -> list[int]:
        return sorted((key for one in lists for key in one), key=lambda k: (self._widths[k], k))
