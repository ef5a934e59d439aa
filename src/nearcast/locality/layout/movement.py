"""How people moved, counted on a grid: the time they spent in each cell, their moves between cells.

A layout is judged and improved from these sums alone; Spark counts them with two group-bys. Their
size is that of the grid and of the paths people take, whatever the number of positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nearcast.locality.layout.grid import Grid
from nearcast.locality.layout.rect import Area
from nearcast.model.errors import MisuseError

Longs = NDArray[np.int64]
Owners = NDArray[np.int32]
"""The leaf that serves each cell, one row per row of cells."""

_FIRST_FIX_MS = 1_000  # a user's first position has no step, but the user was there


class CellRect(NamedTuple):
    """A rectangle of cells: columns `west` to `east` and rows `south` to `north`, ends excluded."""

    west: int
    south: int
    east: int
    north: int

    @property
    def cells(self) -> int:
        """Return the number of its cells."""
        return (self.east - self.west) * (self.north - self.south)

    def meets(self, other: CellRect) -> bool:
        """Return whether the two share a cell."""
        return (
            self.west < other.east
            and other.west < self.east
            and self.south < other.north
            and other.south < self.north
        )


@dataclass(frozen=True, eq=False)
class Movement:
    """The movement of a record on a grid of 2^depth × 2^depth cells.

    `time_ms[row, column]` is the time that all users together spent in a cell. `moves[i]` is how
    often users moved between the cells `low[i]` and `high[i]`, in either direction; cell numbers
    are row · side + column, and each pair occurs once. `span_ms` is the duration of the record, so
    the load of a cell, in users, is its time divided by the span.
    """

    depth: int
    time_ms: Longs
    low: Longs
    high: Longs
    moves: Longs
    span_ms: int

    def __post_init__(self) -> None:
        side = 1 << self.depth
        if self.time_ms.shape != (side, side) or self.time_ms.min(initial=0) < 0:
            raise MisuseError(
                f"an array of shape {self.time_ms.shape}",
                where="Movement.time_ms",
                expected=f"times from 0, shape {(side, side)}",
            )
        if not len(self.low) == len(self.high) == len(self.moves):
            raise MisuseError("columns of different lengths", where="Movement")

    @classmethod
    def from_tracks(
        cls,
        space: Area,
        users: ArrayLike,
        times_s: ArrayLike,
        xs: ArrayLike,
        ys: ArrayLike,
        depth: int = 9,
    ) -> Movement:
        """Count positions that are sorted by user and time; those outside the space are left out.

        A step counts where it ends, as in the pipeline.
        """
        grid = Grid.over(space, depth)
        user, t = np.asarray(users), np.asarray(times_s, np.float64)
        cell = grid.cells(np.asarray(xs, np.float64), np.asarray(ys, np.float64))
        follows = np.zeros(len(user), np.bool_)
        follows[1:] = user[1:] == user[:-1]
        step_ms = np.full(len(user), _FIRST_FIX_MS, np.int64)
        step_ms[1:][follows[1:]] = np.rint(1e3 * np.diff(t))[follows[1:]].astype(np.int64)
        inside = cell >= 0
        side = grid.side
        time_ms = np.zeros(side * side, np.int64)
        np.add.at(time_ms, cell[inside], np.maximum(step_ms[inside], 1))
        before, after = cell[:-1], cell[1:]
        moved = follows[1:] & (before >= 0) & (after >= 0) & (before != after)
        span_ms = round(1e3 * float(np.ptp(t))) if len(t) else 0
        return cls(
            depth,
            time_ms.reshape(side, side),
            *pair_counts(before[moved], after[moved], side * side),
            max(1_000, span_ms),
        )

    @property
    def side(self) -> int:
        """Return the number of cells along each axis."""
        return 1 << self.depth

    @property
    def everywhere(self) -> CellRect:
        """Return the rectangle of all cells."""
        return CellRect(0, 0, self.side, self.side)

    @cached_property
    def sums(self) -> Longs:
        """Return the time south-west of each corner of the grid."""
        sums = np.zeros((self.side + 1, self.side + 1), np.int64)
        sums[1:, 1:] = self.time_ms.cumsum(0).cumsum(1)
        return sums

    def time_in(self, rect: CellRect) -> int:
        """Return the time spent in a rectangle of cells; O(1)."""
        sums = self.sums
        west, south, east, north = rect
        return int(sums[north, east] - sums[south, east] - sums[north, west] + sums[south, west])

    def users_in(self, rect: CellRect) -> float:
        """Return the mean number of users in a rectangle of cells."""
        return self.time_in(rect) / self.span_ms

    @property
    def users(self) -> float:
        """Return the mean number of concurrent users."""
        return self.users_in(self.everywhere)

    def time_by_owner(self, owners: Owners, count: int) -> list[int]:
        """Return the time spent in the cells of each owner below `count`."""
        times = np.zeros(count, np.int64)
        np.add.at(times, owners.ravel(), self.time_ms.ravel())
        found: list[int] = times.tolist()
        return found

    def handovers(self, owners: Owners) -> int:
        """Return how many of the moves change the owner."""
        owner = owners.ravel()
        return int(self.moves[owner[self.low] != owner[self.high]].sum())

    def flows(self, owners: Owners) -> dict[tuple[int, int], int]:
        """Return the moves between each two owners, the smaller number first."""
        owner = owners.ravel()
        before, after = owner[self.low], owner[self.high]
        moved = before != after
        most = int(owner.max()) + 1
        low, high, moves = pair_counts(before[moved], after[moved], most, self.moves[moved])
        return dict(zip(zip(low.tolist(), high.tolist(), strict=True), moves.tolist(), strict=True))


def joined_movement(parts: Sequence[Movement]) -> Movement:
    """Return the movement of all parts together, which are of different times; one or more."""
    low, high, moves = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("low", "high", "moves")
    )
    cells = parts[0].side ** 2
    return Movement(
        parts[0].depth,
        sum((part.time_ms for part in parts[1:]), parts[0].time_ms),
        *pair_counts(low, high, cells, moves),
        sum(part.span_ms for part in parts),
    )


def pair_counts(
    before: ArrayLike, after: ArrayLike, most: int, times: ArrayLike | None = None
) -> tuple[Longs, Longs, Longs]:
    """Return each unordered pair of numbers below `most` once, and how often it occurs."""
    first, second = np.asarray(before, np.int64), np.asarray(after, np.int64)
    keys = np.minimum(first, second) * most + np.maximum(first, second)
    pairs, place = np.unique(keys, return_inverse=True)
    counts = np.zeros(len(pairs), np.int64)
    np.add.at(counts, place, 1 if times is None else np.asarray(times, np.int64))
    return pairs // most, pairs % most, counts


def time_near(movement: Movement, owners: Owners, reach: tuple[int, int]) -> Longs:
    """Return the time spent in cells of owner i from where an event reaches owner j, at [i, j].

    An event reaches so many columns and rows to each side; [i, i] is 0. O(owners · cells near).
    """
    count = int(owners.max()) + 1
    near = np.zeros((count, count), np.int64)
    across, up = reach
    for number in np.unique(owners).tolist():
        rows, columns = np.nonzero(owners == number)
        south, north = max(rows.min() - up, 0), min(rows.max() + 1 + up, movement.side)
        west, east = max(columns.min() - across, 0), min(columns.max() + 1 + across, movement.side)
        box = (slice(south, north), slice(west, east))
        mine = np.pad(owners[box] == number, ((up, up), (across, across)))
        sums = np.pad(mine.cumsum(0).cumsum(1), ((1, 0), (1, 0)))
        high, wide = 2 * up + 1, 2 * across + 1
        found = (
            sums[high:, wide:] - sums[:-high, wide:] - sums[high:, :-wide] + sums[:-high, :-wide]
        )
        times = np.where(found > 0, movement.time_ms[box], 0)
        np.add.at(near[:, number], owners[box].ravel(), times.ravel())
        near[number, number] = 0
    return near


def owners_of(rects: Sequence[CellRect], side: int) -> Owners:
    """Return the rectangle that has each cell; the last one where they overlap."""
    owners = np.zeros((side, side), np.int32)
    for number, (west, south, east, north) in enumerate(rects):
        owners[south:north, west:east] = number
    return owners
