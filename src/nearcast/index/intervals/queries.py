"""Queries: the intervals that contain a value, or meet a range of values.

In the list the query follows the ordinary search path and reads the markers of the edges that it
descends from. It advances while the next node is *not above* the value, so a node equal to the
value is reached (trap T1.5). In a run only groups are read that may have a match.

Read next: `top.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray  # type: ignore[attr-defined]

from nearcast.index.intervals.memory import (
    B_HIGH,
    B_LOW,
    HEADER,
    L_AGE,
    L_KEY,
    M_HEIGHT,
    M_PLACES,
    M_RUNS,
    N_MARKER,
    N_NEXT,
    memory_at,
    pointer,
)
from nearcast.index.intervals.runs import GROUP, H_BEGIN, H_LEVELS, run_at
from nearcast.kernels import entry_point, inner


@inner
def _stab_list(m: Any, value: Any, out: Any, found: Any) -> Any:
    """Append the keys of the list's intervals that contain a value; there is room for all."""
    node = HEADER
    for level in range(m.meta[M_HEIGHT] - 1, -1, -1):
        while m.ends[m.nodes[node, N_NEXT + level]] <= value:
            node = m.nodes[node, N_NEXT + level]
        cell = m.nodes[node, N_MARKER + level]
        while cell >= 0:
            out[found] = m.listed[m.cells[cell, 0], L_KEY]
            found += 1
            cell = m.cells[cell, 1]
    return found


@inner
def _meet_list(m: Any, low: Any, high: Any, out: Any, found: Any) -> Any:
    """Append the keys of the list's intervals that meet a range: the list is small, and scanned."""
    for place in range(m.meta[M_PLACES]):
        meets = m.bounds[place, B_LOW] <= high and m.bounds[place, B_HIGH] >= low
        if meets and m.listed[place, L_AGE] >= 0:
            out[found] = m.listed[place, L_KEY]
            found += 1
    return found


@inner
def _meet_run(m: Any, number: Any, low: Any, high: Any, out: Any, found: Any) -> Any:
    """Append the keys of a run's intervals that meet a range; those that do not fit are counted."""
    run = run_at(m, number)
    levels = run.header[H_LEVELS]
    m.stack[0, 0] = 0
    m.stack[0, 1] = levels + 1
    top = 1
    while top:
        top -= 1
        group = np.int64(m.stack[top, 0]) * GROUP
        level = np.int64(m.stack[top, 1]) - 1
        if level == 0:
            if found + GROUP > out.size:
                for place in range(group, group + GROUP):
                    found += (run.lows[place] <= high) & (run.highs[place] >= low)
                continue
            for place in range(group, group + GROUP):
                out[found] = run.keys[place]
                found += (run.lows[place] <= high) & (run.highs[place] >= low)
            continue
        begin = run.header[H_BEGIN + level]
        for child in range(group, group + GROUP):
            if run.first_lows[begin + child] > high:
                break
            m.stack[top, 0] = child
            m.stack[top, 1] = level
            top += run.greatest_highs[begin + child] >= low
    return found


@inner
def _meet(m: Any, low: Any, high: Any, out: Any) -> Any:
    found = _stab_list(m, low, out, 0) if low == high else _meet_list(m, low, high, out, 0)
    for number in range(m.meta[M_RUNS]):
        found = _meet_run(m, number, low, high, out, found)
    return found


@entry_point("int64, float64, float64, int64, int64")
def meet(address: Any, low: Any, high: Any, out: Any, room: Any) -> Any:
    """Write the keys of the intervals that meet a range; return how many there are.

    `room` is more than the list has; where it is too small for the runs, the rest is counted.
    Expected O(log² n + matches) where neighbours are about as wide.
    """
    return _meet(memory_at(address), low, high, carray(pointer(out), (room,), np.int64))


@entry_point("int64, float64[::1], int64, int64[::1], int64[::1]")
def stab_some(address: Any, values: Any, first: Any, offsets: Any, out: Any) -> Any:
    """Answer values[first:] one after the other while the keys fit; return where it stopped.

    offsets[i + 1] is set for each value answered, counted from 0 at values[first].
    """
    m = memory_at(address)
    total = 0
    for index in range(first, values.size):
        if out.size - total < m.listed.shape[0] + GROUP:
            return index
        found = _meet(m, values[index], values[index], out[total:])
        if found + GROUP > out.size - total:
            return index
        total += found
        offsets[index + 1] = total
    return values.size
