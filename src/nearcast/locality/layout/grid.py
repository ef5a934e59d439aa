"""The fine grid under a plan, and the number of users in each of its cells.

Every border of the Q part is one number of a list of float64 per axis. A cell is half-open ([west,
east) × [south, north)); only the space's own east and north edges are closed. The cell of a point
is found by comparing with these very numbers, never by arithmetic alone, so that registering,
routing, counting and drawing cannot disagree about a border (trap T0.4).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nearcast.locality.layout.rect import Area, Rect, checked_rect
from nearcast.model.errors import LimitError, MisuseError, OutOfRangeError, ShapeError

DEPTH_LIMIT = 12
"""The deepest Q part: blocks of 1/4096 of the space's side (trap T0.5)."""

Floats = NDArray[np.float64]
Longs = NDArray[np.int64]


def space_rect(space: Any) -> Rect:
    """Return the rectangle of a space: a model `Space` with coordinates, or four numbers."""
    coordinates = getattr(space, "coordinates", None)
    if hasattr(space, "extent") and hasattr(space, "dimensions"):
        if coordinates is None:
            raise MisuseError(
                f"space {space.name!r} without coordinates",
                where="plan",
                expected="a space that names its longitude and latitude",
            )
        lows, highs = space.extent.lows, space.extent.highs
        x, y = coordinates
        space = (lows[x], lows[y], highs[x], highs[y])
    rect = checked_rect(space, "space of a plan")
    if not (rect.west < rect.east and rect.south < rect.north):
        raise ShapeError(repr(rect), where="space of a plan", expected="width and height above 0")
    return rect


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """The 2ᵈ × 2ᵈ cells of a space, for a depth d.

    >>> grid = Grid.over((0, 0, 8, 8), depth=3)
    >>> grid.cell(3.0, 7.999), grid.cell(8.0, 0.0)
    ((3, 7), (7, 0))
    """

    space: Rect
    depth: int
    xs: Floats
    ys: Floats
    _x_list: list[float]
    _y_list: list[float]

    @classmethod
    def over(cls, space: Area, depth: int) -> Grid:
        """Return the grid of a space; raise for a space too narrow for so many borders."""
        rect = space_rect(space)
        if not 0 <= depth <= DEPTH_LIMIT:
            raise LimitError(str(depth), where="grid depth", expected=f"0 to {DEPTH_LIMIT}")
        xs = _borders(rect.west, rect.east, depth)
        ys = _borders(rect.south, rect.north, depth)
        return cls(rect, depth, xs, ys, xs.tolist(), ys.tolist())

    @property
    def side(self) -> int:
        """Return the number of cells along one axis."""
        return 1 << self.depth

    def cell(self, x: float, y: float) -> tuple[int, int]:
        """Return the column and row of a point that lies in the space; O(depth)."""
        column, row = bisect_right(self._x_list, x), bisect_right(self._y_list, y)
        most = 1 << self.depth  # the outer edge is closed: its points lie in the last cell
        return (column - 1 if column <= most else most - 1, row - 1 if row <= most else most - 1)

    def cells(self, xs: Floats, ys: Floats) -> Longs:
        """Return the number (row · side + column) of each point's cell; -1 outside the space."""
        west, south, east, north = self.space
        inside = (west <= xs) & (xs <= east) & (south <= ys) & (ys <= north)  # NaN is not
        last = self.side - 1
        column = np.minimum(np.searchsorted(self.xs, xs, "right") - 1, last)
        row = np.minimum(np.searchsorted(self.ys, ys, "right") - 1, last)
        numbers: Longs = np.where(inside, row * self.side + column, -1)
        return numbers

    def closed_cells(self, west: int, south: int, east: int, north: int) -> Rect:
        """Return the exact set of points of columns west to east and rows south to north.

        The ends are excluded. Rectangles of cells that touch share no point.
        """
        x, y = self._x_list[east], self._y_list[north]
        return Rect(
            self._x_list[west],
            self._y_list[south],
            x if east == self.side else float(np.nextafter(x, -np.inf)),
            y if north == self.side else float(np.nextafter(y, -np.inf)),
        )

    def whole_cells(self, rect: Rect) -> Cells | None:
        """Return the cells (west, south, east, north) of a rectangle made by `closed_cells`.

        None if the rectangle is not made of whole cells.
        """
        west, south = bisect_left(self._x_list, rect.west), bisect_left(self._y_list, rect.south)
        east, north = bisect_left(self._x_list, rect.east), bisect_left(self._y_list, rect.north)
        if not (west < east <= self.side and south < north <= self.side):
            return None
        return (
            (west, south, east, north)
            if self.closed_cells(west, south, east, north) == rect
            else None
        )

    def block(self, depth: int, column: int, row: int) -> Rect:
        """Return a block's nominal rectangle, as drawn: its east and north border included."""
        shift = self.depth - depth
        return Rect(
            self._x_list[column << shift],
            self._y_list[row << shift],
            self._x_list[(column + 1) << shift],
            self._y_list[(row + 1) << shift],
        )

    def closed_block(self, depth: int, column: int, row: int) -> Rect:
        """Return the exact set of points of a half-open block, as a closed rectangle."""
        west, south, east, north = self.block(depth, column, row)
        last = (1 << depth) - 1
        if column != last:
            east = float(np.nextafter(east, -np.inf))
        if row != last:
            north = float(np.nextafter(north, -np.inf))
        return Rect(west, south, east, north)


Cells: TypeAlias = tuple[int, int, int, int]
"""Columns west to east and rows south to north, ends excluded."""


def halves_of_cells(cells: Cells) -> list[tuple[str, Cells]]:
    """Return the two parts into which a rectangle of cells is split, each with its digit.

    It is cut along the coarsest line of the grid inside it, which cuts no quadrant that is smaller
    than the rectangle. A single cell is its only part.

    >>> halves_of_cells((2, 0, 6, 2))  # between two quadrants of 2 x 2 cells
    [('0', (2, 0, 4, 2)), ('1', (4, 0, 6, 2))]
    >>> halves_of_cells((2, 1, 3, 3))
    [('0', (2, 1, 3, 2)), ('2', (2, 2, 3, 3))]
    """
    west, south, east, north = cells
    across, x = _coarsest_line(west, east - 1)
    up, y = _coarsest_line(south, north - 1)
    if not across and not up:
        return [("", cells)]
    if across >= up:
        return [("0", (west, south, x, north)), ("1", (x, south, east, north))]
    return [("0", (west, south, east, y)), ("2", (west, y, east, north))]


def quarters_of_cells(cells: Cells) -> list[tuple[str, Cells]]:
    """Return the quarters of a quadrant, each with its digit; a single cell is its only part.

    A rectangle inside a quadrant is cut where the quadrant's own quarters, or theirs, cut it.

    >>> [part for _, part in quarters_of_cells((0, 0, 2, 2))]
    [(0, 0, 1, 1), (1, 0, 2, 1), (0, 1, 1, 2), (1, 1, 2, 2)]
    """
    west, south, east, north = cells
    across, x = _coarsest_line(west, east - 1)
    up, y = _coarsest_line(south, north - 1)
    if not across and not up:
        return [("", cells)]
    columns = [(west, east)] if across < up else [(west, x), (x, east)]
    rows = [(south, north)] if up < across else [(south, y), (y, north)]
    return [
        (str(2 * row + column), (low_x, low_y, high_x, high_y))
        for row, (low_y, high_y) in enumerate(rows)
        for column, (low_x, high_x) in enumerate(columns)
    ]


def _coarsest_line(first: int, last: int) -> tuple[int, int]:
    """Return the spacing and the place of the coarsest line between two columns; (0, 0): none.

    A line lies before the column of its number.
    """
    if first == last:
        return 0, 0
    spacing = 1
    while first // (2 * spacing) != last // (2 * spacing):
        spacing *= 2
    return spacing, last // spacing * spacing


def _borders(low: float, high: float, depth: int) -> Floats:
    borders = np.linspace(low, high, (1 << depth) + 1)
    if not (np.diff(borders) > 0).all():
        raise OutOfRangeError(
            f"{low!r} to {high!r}",
            where="space of a plan",
            expected=f"room for {1 << depth} cells of float64 numbers along each axis",
        )
    return borders


@dataclass(frozen=True, slots=True, eq=False)
class CellCounts:
    """How many users (or fixes) each fine cell holds, counted inside and outside slow regions.

    `outside` and `inside` have one row per row of cells, from the south; `per_region` counts a user
    in the first region that contains it; `left_out` is the number of positions that were NaN or lay
    outside the space. Spark computes these numbers with a group-by; `from_positions` computes them
    here.
    """

    depth: int
    outside: Longs
    inside: Longs
    per_region: Longs
    left_out: int = 0

    def __post_init__(self) -> None:
        side = 1 << self.depth
        for name in ("outside", "inside"):
            grid = getattr(self, name)
            if grid.shape != (side, side) or not np.issubdtype(grid.dtype, np.integer):
                raise MisuseError(
                    f"{grid.dtype} array of shape {grid.shape}",
                    where=f"CellCounts.{name}",
                    expected=f"whole numbers, shape {(side, side)}",
                )
        if min(self.outside.min(), self.inside.min(), self.per_region.min(initial=0)) < 0:
            raise OutOfRangeError("a number below 0", where="CellCounts", expected="counts from 0")

    @property
    def everyone(self) -> Longs:
        """Return the users of each cell, inside and outside regions."""
        total: Longs = self.outside + self.inside
        return total

    @classmethod
    def empty(cls, depth: int, regions: int = 0) -> CellCounts:
        """Return the counts of a space without users."""
        side = 1 << depth
        zeros = np.zeros((side, side), np.int64)
        return cls(depth, zeros, zeros.copy(), np.zeros(regions, np.int64))

    @classmethod
    def from_positions(
        cls,
        space: Any,
        regions: ArrayLike,
        xs: ArrayLike,
        ys: ArrayLike,
        depth: int = 10,
    ) -> CellCounts:
        """Count positions per cell; a position in a region (border included) counts as inside.

        Complexity: O(positions × regions over one cell of a coarse grid). Positions that are NaN,
        infinite or outside the space are left out and counted in `left_out`.
        """
        grid = Grid.over(space_rect(space), depth)
        rects = checked_regions(grid.space, regions)
        x, y = np.ascontiguousarray(xs, np.float64), np.ascontiguousarray(ys, np.float64)
        if x.shape != y.shape or x.ndim != 1:
            raise MisuseError(
                f"shapes {x.shape} and {y.shape}", where="positions", expected="two equal columns"
            )
        level, starts, items = region_cells(grid, rects)
        outside, inside = np.zeros((2, grid.side, grid.side), np.int64)
        per_region = np.zeros(len(rects), np.int64)
        from nearcast.locality.layout.kernels import count_positions_kernel

        left_out = count_positions_kernel(
            x, y, grid.xs, grid.ys, grid.depth - level, rects, starts, items,
            outside, inside, per_region,
        )  # fmt: skip
        return cls(depth, outside, inside, per_region, int(left_out))


def checked_regions(space: Rect, regions: Any) -> Floats:
    """Return regions as rows (west, south, east, north), clipped to the space.

    Raises for a region wholly outside the space: a sign of swapped coordinates.
    """
    rects = [checked_rect(region, f"slow region {i}") for i, region in enumerate(regions)]
    for i, rect in enumerate(rects):
        if not rect.intersects(space):
            raise OutOfRangeError(
                f"{tuple(rect)}",
                where=f"slow region {i}",
                expected=f"a region that meets the space {tuple(space)}",
                todo="Check the order of the coordinates: west, south, east, north",
            )
    rows: Floats = np.array([rect.clamped(space) for rect in rects], np.float64).reshape(-1, 4)
    return rows


_MOST_ENTRIES = 1 << 21


def region_cells(grid: Grid, rects: Floats) -> tuple[int, Longs, NDArray[np.int32]]:
    """Return which rectangles meet each cell of a coarse grid: (level, starts, items).

    Cell `row * side + column` has `items[starts[cell]:starts[cell + 1]]`, in ascending order. The
    level is as fine as possible with short lists and a total below two million.
    """
    spans = _cell_spans(grid, rects)
    level = min(grid.depth, 8)
    while level > 0 and _entries(spans >> (grid.depth - level)) > _MOST_ENTRIES:
        level -= 1
    spans = spans >> (grid.depth - level)
    side = 1 << level
    cells, owners = [np.empty(0, np.int64)], [np.empty(0, np.int32)]
    for number, (c0, r0, c1, r1) in enumerate(spans):
        covered = (np.arange(r0, r1 + 1)[:, None] * side + np.arange(c0, c1 + 1)).ravel()
        cells.append(covered)
        owners.append(np.full(len(covered), number, np.int32))
    cell, owner = np.concatenate(cells), np.concatenate(owners)
    order = np.argsort(cell, kind="stable")
    starts = np.searchsorted(cell[order], np.arange(side * side + 1)).astype(np.int64)
    return level, starts, owner[order]


def _cell_spans(grid: Grid, rects: Floats) -> Longs:
    """Return first column, first row, last column, last row of each rectangle."""
    last = grid.side - 1
    spans = [
        np.searchsorted(borders, rects[:, place], side="right") - 1
        for place, borders in ((0, grid.xs), (1, grid.ys), (2, grid.xs), (3, grid.ys))
    ]
    return np.minimum(np.stack(spans, axis=1), last).astype(np.int64)


def _entries(spans: Longs) -> int:
    wide, high = spans[:, 2] - spans[:, 0] + 1, spans[:, 3] - spans[:, 1] + 1
    return int((wide * high).sum())
