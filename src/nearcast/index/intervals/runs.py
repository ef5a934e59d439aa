"""Runs: intervals that left the skip list, sorted by low end, with a tree of bounds (ours).

A run is one block of memory:

    header   entries | removed | levels | where each level begins among the nodes
    entries  low | high | weight | steps | age | key          one column after the other
    nodes    first low | greatest high | greatest weight | least steps | least age

A node of level 1 stands for 16 entries, one of level 2 for 16 nodes of level 1, and so on, up to 16
nodes or fewer. Columns are filled up to whole groups with intervals that contain nothing. A removed
interval stays in its place and ends before it begins; its nodes' greatest high is corrected.

NumPy builds runs, kernels read them. Read next: `queries.py`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import carray  # type: ignore[attr-defined]
from numpy.typing import NDArray

from nearcast.index.intervals.memory import M_RUN, M_RUN_LENGTH, pointer
from nearcast.kernels import inner

GROUP = 16
HEADER_WORDS = 16
H_ENTRIES, H_REMOVED, H_LEVELS, H_BEGIN = 0, 1, 2, 2  # level 1 begins at word H_BEGIN + 1

Words = NDArray[np.int64]


class Columns(NamedTuple):
    """Intervals as columns; `lows` ascend in a run."""

    lows: NDArray[Any]
    highs: NDArray[Any]
    weights: NDArray[Any]
    steps: NDArray[Any]  # whole numbers, as the rest
    ages: NDArray[Any]
    keys: NDArray[Any]


class RunView(NamedTuple):
    """The views that a kernel has of a run."""

    header: Any
    lows: Any
    highs: Any
    weights: Any
    steps: Any
    ages: Any
    keys: Any
    first_lows: Any
    greatest_highs: Any
    greatest_weights: Any
    least_steps: Any
    least_ages: Any


def _padded(count: int) -> int:
    """Return how many places a column of `count` has; at least one is spare."""
    return (count // GROUP + 1) * GROUP


def build_run(content: Columns) -> Words:
    """Return the block of a run. O(n)."""
    count = len(content.lows)
    sizes = [-(-count // GROUP)]
    while sizes[-1] > GROUP:
        sizes.append(-(-sizes[-1] // GROUP))
    places, nodes = _padded(count), sum(map(_padded, sizes))
    block = np.zeros(HEADER_WORDS + 6 * places + 5 * nodes, np.int64)
    begins = np.cumsum([0, *map(_padded, sizes[:-1])])
    block[: 3 + len(sizes)] = [count, 0, len(sizes), *begins]
    entries = block[HEADER_WORDS : HEADER_WORDS + 6 * places].reshape(6, places)
    floats = entries.view(np.float64)
    floats[0], floats[1], floats[2] = np.inf, -np.inf, -np.inf
    entries[3:5] = np.iinfo(np.int64).max
    for column, values in zip((*floats[:3], *entries[3:]), content, strict=True):
        column[:count] = values
    _build_nodes(block[HEADER_WORDS + 6 * places :].reshape(5, nodes), entries, sizes)
    return block


def _build_nodes(nodes: Words, entries: Words, sizes: list[int]) -> None:
    """Sum up groups of entries, then groups of nodes."""
    below = entries[:5]
    begin = 0
    for size in sizes:
        end = begin + _padded(size)
        level, whole = nodes[:, begin:end], size * GROUP
        floats, words = below[:3, :whole].view(np.float64), below[3:, :whole]
        shown = level[:3].view(np.float64)
        shown[0], shown[1], shown[2], level[3:] = np.inf, -np.inf, -np.inf, np.iinfo(np.int64).max
        shown[0, :size] = floats[0, ::GROUP]
        shown[1, :size] = floats[1].reshape(-1, GROUP).max(axis=1)
        shown[2, :size] = floats[2].reshape(-1, GROUP).max(axis=1)
        level[3:, :size] = words.reshape(2, -1, GROUP).min(axis=2)
        below, begin = level, end


def content_of(block: Words) -> Columns:
    """Return the intervals of a run that were not removed."""
    count = int(block[H_ENTRIES])
    entries = block[HEADER_WORDS : HEADER_WORDS + 6 * _padded(count)].reshape(6, -1)[:, :count]
    kept = entries[:, entries[1].view(np.float64) > -np.inf]
    return Columns(*kept[:3].view(np.float64), *kept[3:])


def merged(parts: list[Columns]) -> Columns:
    """Return several contents as one, by low end."""
    joined = Columns(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    order = np.argsort(joined.lows, kind="stable")
    return Columns(*(column[order] for column in joined))


@inner
def run_at(m: Any, number: Any) -> Any:
    """Return the views of a run."""
    address, length = m.meta[M_RUN + number], m.meta[M_RUN_LENGTH + number]
    header = carray(pointer(address), (HEADER_WORDS,), np.int64)
    places = (header[H_ENTRIES] // GROUP + 1) * GROUP
    nodes = (length - HEADER_WORDS - 6 * places) // 5
    here = address + 8 * HEADER_WORDS
    there = here + 48 * places
    return RunView(
        header,
        carray(pointer(here), (places,), np.float64),
        carray(pointer(here + 8 * places), (places,), np.float64),
        carray(pointer(here + 16 * places), (places,), np.float64),
        carray(pointer(here + 24 * places), (places,), np.int64),
        carray(pointer(here + 32 * places), (places,), np.int64),
        carray(pointer(here + 40 * places), (places,), np.int64),
        carray(pointer(there), (nodes,), np.float64),
        carray(pointer(there + 8 * nodes), (nodes,), np.float64),
        carray(pointer(there + 16 * nodes), (nodes,), np.float64),
        carray(pointer(there + 24 * nodes), (nodes,), np.int64),
        carray(pointer(there + 32 * nodes), (nodes,), np.int64),
    )


@inner
def _greatest(highs: Any, begin: Any) -> Any:
    found = -np.inf
    for place in range(begin, begin + GROUP):
        found = max(found, highs[place])
    return found


@inner
def take_out(m: Any, number: Any, place: Any) -> Any:
    """Empty an interval of a run; return whether half of the run is empty. O(log n)."""
    run = run_at(m, number)
    run.highs[place] = -np.inf
    greatest = _greatest(run.highs, place // GROUP * GROUP)
    for level in range(1, run.header[H_LEVELS] + 1):
        place //= GROUP
        begin = run.header[H_BEGIN + level]
        if run.greatest_highs[begin + place] == greatest:
            break
        run.greatest_highs[begin + place] = greatest
        greatest = _greatest(run.greatest_highs, begin + place // GROUP * GROUP)
    run.header[H_REMOVED] += 1
    return 2 * run.header[H_REMOVED] > run.header[H_ENTRIES]
