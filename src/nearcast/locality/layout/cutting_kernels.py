"""Compiled loops of `cutting.py`: count what each line would cut, and sort moves by a line.

A move is a row of `spans`: the first and last column, the first and last row of its two cells.
"""

from __future__ import annotations

from typing import Any

from nearcast.kernels import kernel


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
