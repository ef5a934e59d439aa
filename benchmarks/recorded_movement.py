"""Plans on recorded movement: layouts, speed classes and assignments (paper 0).

    python -m benchmarks.recorded_movement RECORD.parquet SLOW_MPS MIDDLING_MPS

The record has the columns `user_id`, `t`, `lon` and `lat`. Slow regions are found in it, by mean
speed and time spent per cell. Plans are built from the first half of the record and judged on the
rest, so that none can use the future. Prints one JSON object per row.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nearcast.locality.layout.balancing import assign_leaves, movement_flows, naive_assignment
from nearcast.locality.layout.grid import CellCounts, Grid, space_rect
from nearcast.locality.layout.plan import Plan
from nearcast.locality.layout.rect import Rect
from nearcast.locality.layout.slow_regions import (
    METRES_PER_DEGREE,
    RegionRules,
    connected,
    well_filled,
)
from nearcast.model.errors import EnvironmentProblem, FileFormatError, MisuseError
from nearcast.papers.qr_network.routing import LeafRouter

Floats = NDArray[np.float64]
_MOST_GAP_S = 600.0


# --- mobility classes ---------------------------------------------------------------------------

# The paper has two classes, slow and normal, and names more as future work. The score of a cell is
# the mean speed of the users that spend time in it; cells with too little time have none. Classes
# below the last are regions of the R part; the last class belongs to the Q part. One threshold
# gives the paper's two classes; two thresholds give slow and middling regions.


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


# --- records ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Fixes:
    """Recorded positions, sorted by user and time.

    User numbers, seconds from the first position.
    """

    users: NDArray[np.int64]
    seconds: Floats
    xs: Floats
    ys: Floats

    @classmethod
    def from_parquet(cls, path: Path, *, most_rows: int | None = None) -> Fixes:
        """Read the columns `user_id`, `t`, `lon`, `lat`.

        Raise FileFormatError if they are missing.
        """
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        try:
            table = pq.read_table(path, columns=["user_id", "t", "lon", "lat"])
        except FileNotFoundError:
            raise EnvironmentProblem(
                f"there is no file {path.name}", where="trajectories"
            ) from None
        except (pa.ArrowInvalid, KeyError) as error:
            raise FileFormatError(str(error).splitlines()[0], where=path.name) from None
        if table.num_columns != 4:
            raise FileFormatError(
                f"columns {table.column_names}", where=path.name, expected="user_id, t, lon, lat"
            )
        table = table.slice(0, most_rows) if most_rows is not None else table
        users = pc.dictionary_encode(table["user_id"]).combine_chunks().indices.to_numpy()
        t = table["t"].cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_numpy() / 1e6
        return cls(
            users.astype(np.int64),
            t - t.min() if len(t) else t,
            table["lon"].to_numpy().astype(np.float64),
            table["lat"].to_numpy().astype(np.float64),
        )

    def in_metres(self) -> Fixes:
        """Return positions in degrees as metres east and north of the south-west corner.

        Straight meridians and parallels at the middle latitude: accurate to a percent over a city.
        """
        south, north = float(self.ys.min()), float(self.ys.max())
        east_m = METRES_PER_DEGREE * math.cos(math.radians((south + north) / 2))
        xs, ys = (self.xs - self.xs.min()) * east_m, (self.ys - south) * METRES_PER_DEGREE
        return Fixes(self.users, self.seconds, xs, ys)

    def central(self, share: float = 0.98) -> Rect:
        """Return the rectangle that contains this share of the positions along each axis."""
        rest = (1 - share) / 2
        west, east = np.quantile(self.xs, [rest, 1 - rest])
        south, north = np.quantile(self.ys, [rest, 1 - rest])
        return Rect(float(west), float(south), float(east), float(north))


@dataclass(frozen=True, slots=True)
class RecordedRow:
    """The result of one plan on one record."""

    record: str
    layout: str
    thresholds_mps: tuple[float, ...]
    regions: int
    brokers: int
    handovers: int
    handovers_per_user_hour: float
    messages_per_event: float


@dataclass(frozen=True, slots=True)
class AssignmentRow:
    """Leaves on few brokers: the share of movements between leaves that change the broker."""

    record: str
    leaves: int
    brokers: int
    naive_cut_share: float
    naive_imbalance: float
    cut_share: float
    imbalance: float


@dataclass(frozen=True, slots=True)
class Halves:
    """A record cut by time: the part to build plans from, and the part to judge them by."""

    name: str
    space: Rect
    before: Fixes
    after: Fixes

    @classmethod
    def of(cls, name: str, fixes: Fixes, *, first_share: float = 0.5) -> Halves:
        """Cut a record at a share of its positions by time."""
        space = fixes.central()
        cut = float(np.quantile(fixes.seconds, first_share))
        early = fixes.seconds <= cut
        return cls(name, space, _part(fixes, early), _part(fixes, ~early))


def _part(fixes: Fixes, chosen: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Fixes:
    return Fixes(fixes.users[chosen], fixes.seconds[chosen], fixes.xs[chosen], fixes.ys[chosen])


def found_regions(
    halves: Halves, thresholds_mps: Sequence[float], *, depth: int = 7, busy: float = 2.0
) -> list[Rect]:
    """Return the regions of all speed classes except the fastest.

    A cell counts if at least `busy` times the mean time of a visited cell was spent in it.
    """
    fixes = halves.before
    mobility = Mobility.of_fixes(
        halves.space, fixes.users, fixes.seconds, fixes.xs, fixes.ys, depth
    )
    visited = mobility.time_s[mobility.time_s > 0]
    least = busy * float(visited.mean()) if len(visited) else 0.0
    classes = mobility.classes(thresholds_mps, least)
    return [
        region
        for wanted in range(len(thresholds_mps))
        for region in regions_of_class(mobility, classes, wanted)
    ]


def plan_of(
    halves: Halves, layout: str, regions: Sequence[Rect], *, leaves: int = 100, depth: int = 9
) -> Plan:
    """Build a plan from the first part; the capacity aims at `leaves` leaves."""
    fixes = halves.before
    used = [] if layout == "q" else list(regions)
    counts = CellCounts.from_positions(halves.space, used, fixes.xs, fixes.ys, depth=depth)
    capacity = max(1, 2 * len(fixes.xs) // leaves)
    return Plan.build(halves.space, used, counts, layout=layout, capacity=capacity)  # type: ignore[arg-type]


def judge_plan(
    halves: Halves, plan: Plan, thresholds_mps: Sequence[float] = (), *, events: int = 500
) -> RecordedRow:
    """Count handovers on the second part, and messages for events at positions of people."""
    fixes = halves.after
    flows = movement_flows(fixes.users, plan.leaf_numbers_at(fixes.xs, fixes.ys))
    handovers = sum(flows.values())
    passed = np.diff(fixes.seconds)
    same = (fixes.users[1:] == fixes.users[:-1]) & (passed > 0) & (passed < 600)
    hours = float(passed[same].sum()) / 3600
    router = LeafRouter(plan)
    random = np.random.default_rng(1)
    inside = plan.leaf_numbers_at(fixes.xs, fixes.ys) >= 0
    chosen = random.choice(np.flatnonzero(inside), events)
    start = router.from_r if plan.layout == "r" else router.from_q
    sent = [start((float(fixes.xs[i]), float(fixes.ys[i]))).messages for i in chosen]
    return RecordedRow(
        halves.name, plan.layout, tuple(thresholds_mps), plan.r_count, len(plan.leaves),
        handovers, handovers / hours if hours else 0.0, float(np.mean(sent)),
    )  # fmt: skip


def compare_layouts(halves: Halves, threshold_mps: float) -> list[RecordedRow]:
    """Judge Q, Q+R and R (packed) on a record."""
    regions = found_regions(halves, [threshold_mps])
    return [
        judge_plan(halves, plan_of(halves, layout, regions), [threshold_mps])
        for layout in ("q", "qr", "r")
    ]


def compare_classes(halves: Halves, slow_mps: float, middling_mps: float) -> list[RecordedRow]:
    """Judge Q+R with two classes (cut low, cut high) and with three."""
    choices = ([slow_mps], [middling_mps], [slow_mps, middling_mps])
    return [
        judge_plan(halves, plan_of(halves, "qr", found_regions(halves, chosen)), chosen)
        for chosen in choices
    ]


def compare_assignments(halves: Halves, plan: Plan, brokers: Sequence[int]) -> list[AssignmentRow]:
    """Assign a plan's leaves to few brokers by the first part; judge by the second."""
    before, after = halves.before, halves.after
    known = plan.leaf_numbers_at(before.xs, before.ys)
    flows = movement_flows(before.users, known)
    loads = np.bincount(known[known >= 0], minlength=len(plan.leaves)).tolist()
    future = movement_flows(after.users, plan.leaf_numbers_at(after.xs, after.ys))
    rows = []
    for count in brokers:
        naive = naive_assignment(plan, flows, count, loads)
        ours = assign_leaves(plan, flows, count, loads, tolerance=0.1)
        shares = [
            sum(n for (a, b), n in future.items() if chosen[a] != chosen[b]) / sum(future.values())
            for chosen in (naive.brokers, ours.brokers)
        ]
        rows.append(
            AssignmentRow(
                halves.name, len(plan.leaves), count, shares[0], naive.imbalance, shares[1],
                ours.imbalance,
            )
        )  # fmt: skip
    return rows


def main() -> None:
    """Compare layouts, classes and assignments on one record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("record", type=Path)
    parser.add_argument("slow_mps", type=float)
    parser.add_argument("middling_mps", type=float)
    given = parser.parse_args()
    halves = Halves.of(given.record.stem, Fixes.from_parquet(given.record).in_metres())
    plan = plan_of(halves, "qr", found_regions(halves, [given.slow_mps]))
    rows: list[Any] = compare_layouts(halves, given.slow_mps)
    rows += compare_classes(halves, given.slow_mps, given.middling_mps)
    rows += compare_assignments(halves, plan, (2, 4, 8, 16))
    for row in rows:
        print(json.dumps(asdict(row)))


if __name__ == "__main__":
    main()
