"""Compiled loops over positions: which cell, which leaf.

Flat arrays in, flat arrays out; the same functions serve a broker and an Arrow batch in Spark. A
cell is found by arithmetic and then corrected against the border numbers themselves, so the answer
is exact (see `grid.py`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nearcast.kernels import kernel


@kernel(inline="always")
def cell_of(value: float, borders: Any, scale: float) -> int:
    """Return the half-open cell of a value that lies within the borders; the last one is closed."""
    last = len(borders) - 2
    cell = int((value - borders[0]) * scale)
    cell = min(max(cell, 0), last)
    while cell > 0 and value < borders[cell]:
        cell -= 1
    while cell < last and value >= borders[cell + 1]:
        cell += 1
    return cell


@kernel(inline="always")
def first_region(x: float, y: float, rects: Any, items: Any, start: int, end: int) -> int:
    """Return the first of the listed rectangles that contains the point, or -1."""
    for place in range(start, end):
        number = items[place]
        if rects[number, 0] <= x <= rects[number, 2] and rects[number, 1] <= y <= rects[number, 3]:
            return int(number)
    return -1


@kernel
def count_positions_kernel(
    xs: Any, ys: Any, x_borders: Any, y_borders: Any, shift: int,
    rects: Any, starts: Any, items: Any, outside: Any, inside: Any, per_region: Any,
) -> int:  # fmt: skip
    """Count positions per cell, in and outside regions; return how many lie outside the space."""
    side = len(x_borders) - 1
    x_scale = side / (x_borders[-1] - x_borders[0])
    y_scale = side / (y_borders[-1] - y_borders[0])
    coarse_side = side >> shift
    left_out = 0
    for i in range(len(xs)):
        x, y = xs[i], ys[i]
        if not (x_borders[0] <= x <= x_borders[-1] and y_borders[0] <= y <= y_borders[-1]):
            left_out += 1
            continue
        column = cell_of(x, x_borders, x_scale)
        row = cell_of(y, y_borders, y_scale)
        cell = (row >> shift) * coarse_side + (column >> shift)
        region = first_region(x, y, rects, items, starts[cell], starts[cell + 1])
        if region >= 0:
            inside[row, column] += 1
            per_region[region] += 1
        else:
            outside[row, column] += 1
    return left_out


@kernel
def leaf_at_kernel(
    xs: Any, ys: Any, x_borders: Any, y_borders: Any,
    shift: int, rects: Any, starts: Any, items: Any,
    table: Any, table_shift: int, first_child: Any, leaf_of_node: Any, out: Any,
) -> None:  # fmt: skip
    """Write the leaf of each position into `out`; -1 where the position lies outside the space.

    `table` gives the Q node of each coarse cell; from there the Q part is descended bit by bit.
    """
    side = len(x_borders) - 1
    x_scale = side / (x_borders[-1] - x_borders[0])
    y_scale = side / (y_borders[-1] - y_borders[0])
    coarse_side = side >> shift
    table_side = side >> table_shift
    for i in range(len(xs)):
        x, y = xs[i], ys[i]
        if not (x_borders[0] <= x <= x_borders[-1] and y_borders[0] <= y <= y_borders[-1]):
            out[i] = -1
            continue
        column = cell_of(x, x_borders, x_scale)
        row = cell_of(y, y_borders, y_scale)
        cell = (row >> shift) * coarse_side + (column >> shift)
        leaf = first_region(x, y, rects, items, starts[cell], starts[cell + 1])
        if leaf < 0:
            node = table[(row >> table_shift) * table_side + (column >> table_shift)]
            level = table_shift
            while first_child[node] >= 0:
                level -= 1
                node = first_child[node] + ((row >> level) & 1) * 2 + ((column >> level) & 1)
            leaf = leaf_of_node[node]
        out[i] = leaf


def warm_up() -> None:
    """Compile the kernels, or load them from the cache, so that the first call is already fast."""
    borders = np.array([0.0, 1.0])
    rects, starts = np.zeros((0, 4)), np.zeros(2, np.int64)
    items, none = np.zeros(0, np.int32), np.array([-1], np.int32)
    zero, out = np.zeros(1), np.zeros(1, np.int32)
    grid = np.zeros((1, 1), np.int64)
    count_positions_kernel(
        zero,
        zero,
        borders,
        borders,
        0,
        rects,
        starts,
        items,
        grid,
        grid.copy(),
        np.zeros(0, np.int64),
    )
    leaf_at_kernel(
        zero, zero, borders, borders, 0, rects, starts, items,
        np.zeros(1, np.int32), 0, none, np.zeros(1, np.int32), out,
    )  # fmt: skip


# --- lines that cut a rectangle (`cutting.py`) ---------------------------------------------------

# A move is a row of `spans`: the first and last column, the first and last row of its two cells.


@kernel
def count_cuts(spans: Any, moves: Any, start: int, end: int, cuts: Any) -> None:
    """Add, for each axis and line, the moves between `start` and `end` that the line cuts.

    `cuts[axis, line]`: the line lies before that column or row.
    """
    for i in range(start, end):
        for axis in range(2):
            low, high = spans[i, 2 * axis], spans[i, 2 * axis + 1]
            if low != high:
                cuts[axis, low + 1] += moves[i]
                cuts[axis, high + 1] -= moves[i]
    for axis in range(2):
        total = 0
        for line in range(cuts.shape[1]):
            total += cuts[axis, line]
            cuts[axis, line] = total


@kernel
def sort_by_line(
    spans: Any, moves: Any, start: int, end: int, axis: int, line: int
) -> tuple[int, int]:
    """Order the moves: those wholly before the line, those wholly behind it, those it cuts.

    Return where the second and the third part begin.
    """
    first, second, third = start, start, end
    while second < third:
        if spans[second, 2 * axis + 1] < line:
            _swap(spans, moves, first, second)
            first += 1
            second += 1
        elif spans[second, 2 * axis] >= line:
            second += 1
        else:
            third -= 1
            _swap(spans, moves, second, third)
    return first, second


@kernel(inline="always")
def _swap(spans: Any, moves: Any, i: int, j: int) -> None:
    if i != j:
        for part in range(4):
            spans[i, part], spans[j, part] = spans[j, part], spans[i, part]
        moves[i], moves[j] = moves[j], moves[i]
