"""Slow moving regions (paper 0): areas where users are dense, slow and connected.

Time and distance are summed per cell of a square grid. A cell is *slow* when most of the time spent
in it was spent slowly, and *dense* when more time was spent in it than in an average visited cell.
Slow and dense cells that touch, corners included, form a region. A region is output as rectangles;
a ragged one is cut until its rectangles are mostly filled.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from nearcast.model.errors import OutOfRangeError

Cell: TypeAlias = tuple[int, int]  # column, row

METRES_PER_DEGREE = 6_371_008.8 * math.pi / 180


@dataclass(frozen=True, slots=True)
class CellGrid:
    """Square cells of `cell_m` metres, measured on the parallel `at_lat`; (0, 0) begins at 0, 0."""

    cell_m: float
    at_lat: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.cell_m) and self.cell_m > 0):
            raise OutOfRangeError(f"{self.cell_m:g}", where="cell_m", expected="metres above 0")
        if not abs(self.at_lat) < 89:
            raise OutOfRangeError(
                f"{self.at_lat:g}", where="at_lat", expected="a latitude between -89 and 89"
            )

    @property
    def lat_step(self) -> float:
        """Return the degrees of latitude per cell."""
        return self.cell_m / METRES_PER_DEGREE

    @property
    def lon_step(self) -> float:
        """Return the degrees of longitude per cell."""
        return self.lat_step / math.cos(math.radians(self.at_lat))

    def bounds(self, cells: Iterable[Cell]) -> tuple[float, float, float, float]:
        """Return west, south, east, north of the rectangle around cells."""
        columns, rows = zip(*cells, strict=True)
        return (
            min(columns) * self.lon_step,
            min(rows) * self.lat_step,
            (max(columns) + 1) * self.lon_step,
            (max(rows) + 1) * self.lat_step,
        )


@dataclass(frozen=True, slots=True)
class RegionRules:
    """Thresholds of a region; the defaults find places where San Francisco's cabs stand."""

    slow_mps: float = 1.5  # a step up to this speed counts as slow: a stroll
    slow_share: float = 0.5  # at least this share of a cell's time must be slow
    density: float = 3.0  # times the time spent in an average visited cell
    min_cells: int = 2  # a smaller group is noise
    min_fill: float = 0.5  # at least this share of a rectangle's cells belongs to the region


@dataclass(frozen=True, slots=True)
class CellUse:
    """Sums over all hours of one cell."""

    dwell_s: float
    slow_s: float
    distance_m: float


@dataclass(frozen=True, slots=True)
class SlowRegion:
    """A rectangle of slow and dense cells."""

    bounds: tuple[float, float, float, float]  # west, south, east, north
    cells: int
    use: CellUse


def slow_regions(
    cells: dict[Cell, CellUse], rules: RegionRules, grid: CellGrid
) -> list[SlowRegion]:
    """Return the regions that slow and dense cells form, the busiest first.

    `cells` holds only cells that are already slow and dense (the caller filters them). Complexity:
    O(n log n) for n cells.
    """
    regions = [
        SlowRegion(grid.bounds(part), len(part), _total(cells[cell] for cell in part))
        for group in connected(cells)
        for part in well_filled(group, rules)
        if len(part) >= rules.min_cells
    ]
    return sorted(regions, key=lambda region: (-region.use.dwell_s, region.bounds))


def connected(cells: Iterable[Cell]) -> list[list[Cell]]:
    """Group cells that touch, corners included.

    >>> connected([(0, 0), (1, 1), (5, 5)])
    [[(0, 0), (1, 1)], [(5, 5)]]
    """
    left = set(cells)
    groups = []
    for start in sorted(left):
        if start not in left:
            continue
        left.discard(start)
        group, frontier = [start], [start]
        while frontier:
            column, row = frontier.pop()
            for near in ((column + i, row + j) for i in (-1, 0, 1) for j in (-1, 0, 1)):
                if near in left:
                    left.discard(near)
                    group.append(near)
                    frontier.append(near)
        groups.append(sorted(group))
    return groups


def well_filled(group: list[Cell], rules: RegionRules) -> list[list[Cell]]:
    """Return the group cut into parts, each of which fills its rectangle well enough."""
    done, todo = [], [group]
    while todo:
        part = todo.pop()
        if len(part) < rules.min_cells or len(part) >= rules.min_fill * _area(part):
            done.append(part)
        else:
            todo += _best_cut(part)
    return sorted(done)


def _best_cut(part: list[Cell]) -> list[list[Cell]]:
    """Return the two parts of the cut whose rectangles together are smallest."""
    best: tuple[int, list[list[Cell]]] | None = None
    for axis in (0, 1):
        for at in range(min(c[axis] for c in part) + 1, max(c[axis] for c in part) + 1):
            halves = [[c for c in part if c[axis] < at], [c for c in part if c[axis] >= at]]
            if not (halves[0] and halves[1]):
                continue
            size = _area(halves[0]) + _area(halves[1])
            if best is None or size < best[0]:
                best = (size, halves)
    assert best is not None, "two cells or more can always be cut"
    return best[1]


def _area(part: list[Cell]) -> int:
    """Return the number of cells of the rectangle around a part."""
    columns, rows = [cell[0] for cell in part], [cell[1] for cell in part]
    return (max(columns) - min(columns) + 1) * (max(rows) - min(rows) + 1)


def _total(uses: Iterable[CellUse]) -> CellUse:
    dwell_s = slow_s = distance_m = 0.0
    for use in uses:
        dwell_s += use.dwell_s
        slow_s += use.slow_s
        distance_m += use.distance_m
    return CellUse(dwell_s, slow_s, distance_m)
