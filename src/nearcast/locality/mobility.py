"""Kinds of mobility: each cell of the space gets a score, thresholds make classes of it.

The paper has two classes, slow and normal, and names more as future work. The score of a cell is
the mean speed of those who spend their time in it; cells with too little time have none. Classes
below the last are regions of the R part; the last is the Q part's. With one threshold that is the
paper; with two there are slow and middling regions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nearcast.locality.grid import Grid, space_rect
from nearcast.locality.rect import Rect
from nearcast.model.errors import MisuseError

_MOST_GAP_S = 600.0


@dataclass(frozen=True, slots=True, eq=False)
class Mobility:
    """Time spent and distance gone in each cell, rows from the south.

    `time_s` and `path` are sums over all users; path is in units of the space.
    """

    grid: Grid
    time_s: NDArray[np.float64]
    path: NDArray[np.float64]

    @classmethod
    def of_fixes(
        cls,
        space: Any,
        users: ArrayLike,
        seconds: ArrayLike,
        xs: ArrayLike,
        ys: ArrayLike,
        depth: int,
    ) -> Mobility:
        """Sum up fixes that are sorted by user and time; a step counts for the cell it begins in.

        Steps over a gap of ten minutes, or that begin or end outside the space, are left out.
        """
        grid = Grid.over(space_rect(space), depth)
        who, t = np.asarray(users), np.asarray(seconds, np.float64)
        x, y = np.asarray(xs, np.float64), np.asarray(ys, np.float64)
        if not (len(who) == len(t) == len(x) == len(y)):
            raise MisuseError("columns of different length", where="fixes", expected="equal length")
        passed = np.diff(t)
        west, south, east, north = grid.space
        inside = (x >= west) & (x <= east) & (y >= south) & (y <= north)
        good = (who[1:] == who[:-1]) & (passed > 0) & (passed < _MOST_GAP_S)
        good &= inside[1:] & inside[:-1]
        columns = np.minimum(np.searchsorted(grid.xs, x[:-1][good], "right") - 1, grid.side - 1)
        rows = np.minimum(np.searchsorted(grid.ys, y[:-1][good], "right") - 1, grid.side - 1)
        time_s, path = np.zeros((2, grid.side, grid.side))
        np.add.at(time_s, (rows, columns), passed[good])
        np.add.at(path, (rows, columns), np.hypot(np.diff(x), np.diff(y))[good])
        return cls(grid, time_s, path)

    def classes(self, thresholds: Sequence[float], least_time_s: float) -> NDArray[np.int64]:
        """Return each cell's class: 0 up to the first threshold of speed, and so on.

        A cell in which less than `least_time_s` was spent is in the last class.
        """
        if list(thresholds) != sorted(thresholds):
            raise MisuseError(f"{list(thresholds)}", where="thresholds", expected="ascending order")
        speed = np.divide(
            self.path, self.time_s, out=np.full_like(self.path, np.inf), where=self.time_s > 0
        )
        found: NDArray[np.int64] = np.searchsorted(np.asarray(thresholds), speed, "left")
        found[self.time_s < least_time_s] = len(thresholds)
        return found


def regions_of_class(mobility: Mobility, classes: NDArray[np.int64], wanted: int) -> list[Rect]:
    """Return rectangles that together cover the cells of a class, and none besides.

    Runs of cells in a row are joined with equal runs in the rows above: few and large rectangles
    for regions that look like city blocks. O(cells).
    """
    grid = mobility.grid
    open_runs: dict[tuple[int, int], int] = {}
    rects = []
    for row in range(grid.side + 1):
        runs = set(_runs(classes[row] == wanted)) if row < grid.side else set()
        for run in [run for run in open_runs if run not in runs]:
            first = open_runs.pop(run)
            low = grid.block(grid.depth, run[0], first)
            rects.append(low.joined(grid.block(grid.depth, run[1], row - 1)))
        for run in sorted(runs):
            open_runs.setdefault(run, row)
    return sorted(rects, key=lambda rect: (-rect.area, rect))


def _runs(row: NDArray[np.bool_]) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate(([False], row, [False])).astype(np.int8)))
    return [(int(a), int(b) - 1) for a, b in zip(edges[::2], edges[1::2], strict=True)]
