"""The inside of an interval skip list: its edges, and checks of the paper's invariants."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nearcast.index import IntervalSkipList
from nearcast.index.intervals import memory, runs


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge of the list: it covers the values in [left, right)."""

    level: int  # from 1
    left: float
    right: float
    markers: tuple[int, ...]  # keys, the most accurate first


def edges_of(index: IntervalSkipList) -> list[Edge]:
    """Return all edges of the list, lowest level first, from left to right."""
    m = index._memory
    found = []
    for level in range(int(m.meta[memory.M_HEIGHT])):
        node = memory.HEADER
        while node != memory.TAIL:
            following = int(m.nodes[node, memory.N_NEXT + level])
            cell, markers = int(m.nodes[node, memory.N_MARKER + level]), []
            while cell >= 0:
                markers.append(int(m.listed[m.cells[cell, 0], memory.L_KEY]))
                cell = int(m.cells[cell, 1])
            ends = float(m.ends[node]), float(m.ends[following])
            found.append(Edge(level + 1, *ends, tuple(markers)))
            node = following
    return found


def check_intervals(index: IntervalSkipList) -> None:
    """Raise AssertionError if an invariant is broken. O(edges · intervals)."""
    _check_markers(index)
    _check_runs(index)


def _check_markers(index: IntervalSkipList) -> None:
    """Compare the markers with their definition: containment, maximality, order."""
    m = index._memory
    edges = edges_of(index)
    listed = {}
    for place in range(int(m.meta[memory.M_PLACES])):
        steps, age, key, *_ = m.listed[place].tolist()
        if age >= 0:
            low, _, above, _ = m.bounds[place].tolist()
            listed[key] = (steps, age, low, above)
    assert len(listed) == m.meta[memory.M_LISTED]
    ends = {end for _, _, low, above in listed.values() for end in (low, above)}
    assert {edge.left for edge in edges} == ends | {-np.inf}, "a node without owner, or none"
    for edge in edges:
        upper = [
            one
            for one in edges
            if one.level == edge.level + 1 and one.left <= edge.left and edge.right <= one.right
        ]
        wanted = [
            key
            for key, (_, _, low, above) in listed.items()
            if low <= edge.left
            and edge.right <= above
            and not any(low <= one.left and one.right <= above for one in upper)
        ]
        assert list(edge.markers) == sorted(wanted, key=lambda key: listed[key][:2])
    cells = int(m.meta[memory.M_CELLS])
    assert cells <= len(m.cells)


def _check_runs(index: IntervalSkipList) -> None:
    homes = index._memory.homes
    count = int(index._memory.meta[memory.M_LISTED])
    for number, block in enumerate(index._runs):
        content = runs.content_of(block)
        count += len(content.keys)
        assert np.all(np.diff(content.lows) >= 0)
        places = homes[content.keys] & ((1 << memory.PLACE_BITS) - 1)
        assert np.all(homes[content.keys] >> memory.PLACE_BITS == number)
        assert np.all(np.diff(places) > 0)
        live = block[runs.H_ENTRIES] - block[runs.H_REMOVED]
        assert live == len(content.keys) >= block[runs.H_REMOVED]
    assert count == len(index) == np.count_nonzero(homes >= 0)
