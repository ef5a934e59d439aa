"""Mobility classes: each cell of the space gets a mean speed, and thresholds make classes of it.

The paper has two classes, slow and normal, and names more as future work. The score of a cell is
the mean speed of the users who spend time in it; cells with too little time have none. Classes
below the last are regions of the R part; the last class belongs to the Q part. One threshold gives
the paper's two classes; two thresholds give slow and middling regions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nearcast.locality.layout.grid import Grid, space_rect
from nearcast.locality.layout.rect import Rect
from nearcast.locality.layout.slow_regions import RegionRules, connected, well_filled
from nearcast.model.errors import MisuseError

_MOST_GAP_S = 600.0


@dataclass(frozen=True, slots=True, eq=False)
class Mobility:
    """Time spent and distance covered in each cell, rows from the south.

    `time_s` and `path` are sums over all users; `path` is in units of the space.
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
        """Sum up fixes sorted by user and time; a step counts for the cell in which it begins.

        Steps over a gap of ten minutes, and those that begin or end outside the space, are left
        out.
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
        """Return each cell's class: 0 up to the first speed threshold, and so on.

        A cell with less than `least_time_s` of time is in the last class.
        """
        if list(thresholds) != sorted(thresholds):
            raise MisuseError(f"{list(thresholds)}", where="thresholds", expected="ascending order")
        speed = np.divide(
            self.path, self.time_s, out=np.full_like(self.path, np.inf), where=self.time_s > 0
        )
        found: NDArray[np.int64] = np.searchsorted(np.asarray(thresholds), speed, "left")
        found[self.time_s < least_time_s] = len(thresholds)
        return found


def regions_of_class(
    mobility: Mobility, classes: NDArray[np.int64], wanted: int, rules: RegionRules | None = None
) -> list[Rect]:
    """Return rectangles around connected cells of a class, cut until each is mostly filled.

    The rules are those of `slow_regions.py`; the largest rectangle comes first.
    """
    rules = rules if rules is not None else RegionRules()
    rows, columns = np.nonzero(classes == wanted)
    cells = list(zip(columns.tolist(), rows.tolist(), strict=True))
    parts = [part for group in connected(cells) for part in well_filled(group, rules)]
    rects = [_around(mobility.grid, part) for part in parts if len(part) >= rules.min_cells]
    return sorted(rects, key=lambda rect: (-rect.area, rect))


def _around(grid: Grid, cells: list[tuple[int, int]]) -> Rect:
    columns, rows = [column for column, _ in cells], [row for _, row in cells]
    low = grid.block(grid.depth, min(columns), min(rows))
    return low.joined(grid.block(grid.depth, max(columns), max(rows)))
