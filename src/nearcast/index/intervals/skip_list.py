"""The interval skip list of paper 1: nodes, levels, and ordered markers on edges.

An interval is kept as [low, above), `above` being the next float after its closed high end; so an
edge from node a to node b covers [a, b). A value equal to a node lies on the edges that leave it:
the paper's eqMarkers of a node are the markers on those edges (trap T1.5). Bounds are exact floats,
and `20 <= x < 25` ends one float before `20 <= x <= 25` (trap T1.3).

An interval marks an edge if it covers the edge (containment) and does not cover the edge one level
up that contains it (maximality): a staircase, up from its low node and down to its high node. The
markers of an edge are in order of (narrowness, age), by a real ordered insert (trap T1.2).

A node that comes or goes changes the edges around it. An interval that contains the node's value
has exactly one marked edge over it; if that edge changes, the interval takes all its markers back
before, and places them again afterwards (trap T1.4).

Read next: `runs.py`.
"""

from __future__ import annotations

from typing import Any

from nearcast.index.intervals.memory import (
    B_ABOVE,
    B_HIGH,
    B_LOW,
    B_WEIGHT,
    HEADER,
    L_AGE,
    L_HIGH_NODE,
    L_KEY,
    L_LOW_NODE,
    L_STEPS,
    LEVELS,
    LISTED,
    M_CELLS,
    M_FREE_CELL,
    M_FREE_NODE,
    M_FREE_PLACE,
    M_HEIGHT,
    M_LISTED,
    M_NODES,
    M_PLACES,
    M_RANDOM,
    N_LEVELS,
    N_MARKER,
    N_NEXT,
    N_OWNERS,
    PLACE_BITS,
    TAIL,
    memory_at,
)
from nearcast.index.intervals.runs import take_out
from nearcast.kernels import entry_point, inner

DONE, FULL, WORN = 0, 1, 2  # FULL: nothing was changed; WORN: done, and a run is half empty


@inner
def _random_levels(m: Any) -> Any:
    """Return k with probability 2**-k, at most LEVELS; the generator is part of the list."""
    state = m.meta[M_RANDOM] * 6364136223846793005 + 1442695040888963407
    m.meta[M_RANDOM] = state
    bits = (state >> 33) & 0x7FFFFFFF
    levels = 1
    while levels < LEVELS and bits & 1:
        bits >>= 1
        levels += 1
    return levels


# --- markers


@inner
def _before(m: Any, one: Any, other: Any) -> Any:
    """Return whether one interval is more accurate: narrower, or as narrow and older."""
    if m.listed[one, L_STEPS] != m.listed[other, L_STEPS]:
        return m.listed[one, L_STEPS] < m.listed[other, L_STEPS]
    return m.listed[one, L_AGE] < m.listed[other, L_AGE]


@inner
def _insert_marker(m: Any, node: Any, level: Any, place: Any) -> None:
    """Add a marker to an edge, in order. O(markers of the edge)."""
    cell = m.meta[M_FREE_CELL]
    if cell >= 0:
        m.meta[M_FREE_CELL] = m.cells[cell, 1]
    else:
        cell = m.meta[M_CELLS]
        m.meta[M_CELLS] = cell + 1
    before = -1
    after = m.nodes[node, N_MARKER + level]
    while after >= 0 and _before(m, m.cells[after, 0], place):
        before = after
        after = m.cells[after, 1]
    m.cells[cell, 0] = place
    m.cells[cell, 1] = after
    if before < 0:
        m.nodes[node, N_MARKER + level] = cell
    else:
        m.cells[before, 1] = cell


@inner
def _remove_marker(m: Any, node: Any, level: Any, place: Any) -> None:
    before = -1
    cell = m.nodes[node, N_MARKER + level]
    while m.cells[cell, 0] != place:
        before = cell
        cell = m.cells[cell, 1]
    if before < 0:
        m.nodes[node, N_MARKER + level] = m.cells[cell, 1]
    else:
        m.cells[before, 1] = m.cells[cell, 1]
    m.cells[cell, 1] = m.meta[M_FREE_CELL]
    m.meta[M_FREE_CELL] = cell


@inner
def _mark(m: Any, place: Any, on: Any) -> None:
    """Add the markers of an interval along its staircase, or remove them."""
    above = m.bounds[place, B_ABOVE]
    node = m.listed[place, L_LOW_NODE]
    level = 0
    while node != m.listed[place, L_HIGH_NODE]:
        levels = m.nodes[node, N_LEVELS]
        while level + 1 < levels and m.ends[m.nodes[node, N_NEXT + level + 1]] <= above:
            level += 1
        while m.ends[m.nodes[node, N_NEXT + level]] > above:
            level -= 1
        if on:
            _insert_marker(m, node, level, place)
        else:
            _remove_marker(m, node, level, place)
        node = m.nodes[node, N_NEXT + level]


@inner
def _gather(m: Any, node: Any, level: Any, count: Any) -> Any:
    """Append the intervals that mark an edge to those whose markers are being re-placed."""
    cell = m.nodes[node, N_MARKER + level]
    while cell >= 0:
        m.path[LEVELS + count] = m.cells[cell, 0]
        count += 1
        cell = m.cells[cell, 1]
    return count


# --- nodes


@inner
def _find_path(m: Any, value: Any) -> None:
    """Record on each level the last node before a value. Expected O(log n)."""
    node = HEADER
    for level in range(m.meta[M_HEIGHT] - 1, -1, -1):
        while m.ends[m.nodes[node, N_NEXT + level]] < value:
            node = m.nodes[node, N_NEXT + level]
        m.path[level] = node


@inner
def _own_node(m: Any, value: Any) -> Any:
    """Return the node at a value, made if needed, with one more owner."""
    _find_path(m, value)
    node = m.nodes[m.path[0], N_NEXT]
    if m.ends[node] == value:
        m.nodes[node, N_OWNERS] += 1
        return node
    levels = _random_levels(m)
    while m.meta[M_HEIGHT] < levels:
        m.path[m.meta[M_HEIGHT]] = HEADER
        m.meta[M_HEIGHT] += 1
    node = m.meta[M_FREE_NODE]
    if node >= 0:
        m.meta[M_FREE_NODE] = m.nodes[node, N_NEXT]
    else:
        node = m.meta[M_NODES]
        m.meta[M_NODES] = node + 1
    count = 0
    for level in range(levels):
        count = _gather(m, m.path[level], level, count)
    for index in range(count):
        _mark(m, m.path[LEVELS + index], False)
    m.ends[node] = value
    m.nodes[node, N_LEVELS] = levels
    m.nodes[node, N_OWNERS] = 1
    for level in range(levels):
        m.nodes[node, N_NEXT + level] = m.nodes[m.path[level], N_NEXT + level]
        m.nodes[node, N_MARKER + level] = -1
        m.nodes[m.path[level], N_NEXT + level] = node
    for index in range(count):
        _mark(m, m.path[LEVELS + index], True)
    return node


@inner
def _disown_node(m: Any, node: Any) -> None:
    """Remove an owner of a node, and the node with its last one."""
    m.nodes[node, N_OWNERS] -= 1
    if m.nodes[node, N_OWNERS] > 0:
        return
    _find_path(m, m.ends[node])
    levels = m.nodes[node, N_LEVELS]
    count = 0
    for level in range(levels):
        count = _gather(m, node, level, count)
    for index in range(count):
        _mark(m, m.path[LEVELS + index], False)
    for level in range(levels):
        m.nodes[m.path[level], N_NEXT + level] = m.nodes[node, N_NEXT + level]
    for index in range(count):
        _mark(m, m.path[LEVELS + index], True)
    m.nodes[node, N_NEXT] = m.meta[M_FREE_NODE]
    m.meta[M_FREE_NODE] = node
    while m.meta[M_HEIGHT] > 1 and m.nodes[HEADER, N_NEXT + m.meta[M_HEIGHT] - 1] == TAIL:
        m.meta[M_HEIGHT] -= 1


# --- changes


@entry_point("int64, int64, float64, float64, float64, float64, int64, int64")
def add(
    address: Any, key: Any, low: Any, high: Any, above: Any, weight: Any, steps: Any, age: Any
) -> Any:
    """Add an interval to the list, or return FULL. Expected O(log² n) for the n in the list."""
    m = memory_at(address)
    if m.meta[M_LISTED] == m.listed.shape[0]:
        return FULL
    place = m.meta[M_FREE_PLACE]
    if place >= 0:
        m.meta[M_FREE_PLACE] = m.listed[place, L_KEY]
    else:
        place = m.meta[M_PLACES]
        m.meta[M_PLACES] = place + 1
    m.meta[M_LISTED] += 1
    m.bounds[place, B_LOW] = low
    m.bounds[place, B_HIGH] = high
    m.bounds[place, B_ABOVE] = above
    m.bounds[place, B_WEIGHT] = weight
    m.listed[place, L_STEPS] = steps
    m.listed[place, L_AGE] = age
    m.listed[place, L_KEY] = key
    m.homes[key] = (LISTED << PLACE_BITS) | place
    m.listed[place, L_LOW_NODE] = _own_node(m, low)
    m.listed[place, L_HIGH_NODE] = _own_node(m, above)
    _mark(m, place, True)
    return DONE


@entry_point("int64, int64")
def remove(address: Any, key: Any) -> Any:
    """Remove an interval that is there, from the list or from its run."""
    m = memory_at(address)
    home = m.homes[key]
    m.homes[key] = -1
    place = home & ((1 << PLACE_BITS) - 1)
    if home >> PLACE_BITS != LISTED:
        return WORN if take_out(m, home >> PLACE_BITS, place) else DONE
    _mark(m, place, False)
    _disown_node(m, m.listed[place, L_LOW_NODE])
    _disown_node(m, m.listed[place, L_HIGH_NODE])
    m.listed[place, L_AGE] = -1
    m.listed[place, L_KEY] = m.meta[M_FREE_PLACE]
    m.meta[M_FREE_PLACE] = place
    m.meta[M_LISTED] -= 1
    return DONE
