"""`plan`: slow regions and positions become the plan of a broker cluster (paper 0).

Spark counts (`occupancy.py`); `nearcast/locality` builds the plan, assigns leaves to brokers and
compares plans. The load of a leaf is its mean number of users: the time spent in it divided by the
duration of the record.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pyspark.sql import DataFrame, SparkSession

from nearcast.eventlog import POSITIONS
from nearcast.locality import (
    Assignment,
    CellCounts,
    Plan,
    PlanDiff,
    Rect,
    assign_leaves,
    draw_plan,
    load_plan,
    plan_diff,
    plan_geojson,
    save_plan,
)
from nearcast.locality.layout.plan import Layout
from nearcast.model.errors import FileFormatError, MisuseError, OutOfRangeError
from nearcast.pipeline.job import JobResult
from nearcast.pipeline.jobs.occupancy import (
    Flows,
    central_space,
    collect_moves,
    moves_between_leaves,
    time_per_cell,
)
from nearcast.pipeline.sources.column_types import check_present
from nearcast.pipeline.sources.input_checks import check_table
from nearcast.pipeline.tables.transaction import read_table

PLAN_FILE, BEFORE_FILE = "plan.json", "plan-before.json"
_MOST_OUTSIDE = 0.5  # outside per inside position; above it the last plan's space is dropped


@dataclass(frozen=True, slots=True)
class PlanRules:
    """How to build the plan. Without a capacity, one is chosen that gives about `leaves` leaves."""

    leaves: int = 100
    capacity: float | None = None  # users at once
    brokers: int | None = None  # None: one broker per leaf
    depth: int = 9
    space: Rect | None = None  # None: the last plan's, or where nearly all positions are

    def __post_init__(self) -> None:
        for name, least in (("leaves", 1), ("brokers", 1), ("capacity", 1e-6)):
            found = getattr(self, name)
            if found is not None and not found >= least:
                raise OutOfRangeError(repr(found), where=f"--{name}", expected=f"{least:g} or more")


@dataclass(frozen=True, slots=True)
class Occupancy:
    """User-milliseconds per cell, and the duration of the record."""

    counts: CellCounts
    fixes: int
    left_out: int
    span_ms: int

    @property
    def users(self) -> float:
        """The mean number of concurrent users."""
        return float(self.counts.everyone.sum()) / self.span_ms


@dataclass(frozen=True, slots=True)
class PlanFound:
    """A plan, the counts behind it, and how it compares.

    `handovers` counts movements between leaves in the record: under this plan, with a quadtree
    alone ("q only"), and under the last plan.
    """

    plan: Plan
    is_new: bool  # False: the last plan stays
    occupancy: Occupancy
    regions: tuple[Rect, ...]
    regions_outside: int
    assignment: Assignment | None
    q_leaves: int  # of the quadtree alone, at the same capacity
    handovers: dict[str, int]
    diff: PlanDiff | None  # None: no last plan, or one of another space

    def summary(self) -> dict[str, Any]:
        """Return the result as fields for a report or JSON."""
        plan, diff = self.plan, self.diff
        return {
            "version": plan.version,
            "changed": self.is_new,
            "space": list(plan.space),
            "positions": self.occupancy.fixes,
            "outside_the_space": self.occupancy.left_out,
            "users_at_once": round(self.occupancy.users, 1),
            "regions": len(self.regions),
            "regions_outside": self.regions_outside,
            "leaves": len(plan.leaves),
            "leaves_q_only": self.q_leaves,
            "brokers": None if plan.brokers is None else len(set(plan.brokers)),
            "broker_changes": None if self.assignment is None else self.assignment.cut,
            "imbalance": None if self.assignment is None else round(self.assignment.imbalance, 2),
            "handovers": self.handovers,
            "leaves_added": 0 if diff is None else len(diff.added),
            "leaves_removed": 0 if diff is None else len(diff.removed),
            "leaves_reshaped": 0 if diff is None else len(diff.reshaped),
            "leaves_moved": 0 if diff is None else len(diff.moved),
        }

    def lines(self) -> list[str]:
        """Return the result for people."""
        told = self.summary()
        moved = ", ".join(f"{count:,} ({name})" for name, count in self.handovers.items())
        first = (
            f"plan {told['version']}: {told['leaves']} leaves for {told['regions']} slow regions "
            f"and {told['users_at_once']:g} users at once; quadrants alone would take "
            f"{told['leaves_q_only']}"
        )
        lines = [first, f"handovers in this record: {moved}"]
        if told["brokers"]:
            lines.append(
                f"{told['brokers']} brokers: {told['broker_changes']:,} of these change the "
                f"broker; the heaviest has {told['imbalance']:g} times the mean load"
            )
        if told["outside_the_space"]:
            lines.append(f"{told['outside_the_space']:,} positions lie outside the space")
        return lines + ([] if self.diff is None else self.diff.lines())


@dataclass(frozen=True, slots=True)
class PlanJob:
    """Lays out a plan from the tables of `ingest` and `regions`, and compares with the last one."""

    name: ClassVar[str] = "plan"
    positions: str
    regions: str
    output: str
    rules: PlanRules = field(default_factory=PlanRules)
    plan_file: Path | None = None  # None: in the output

    @property
    def path(self) -> Path:
        """The plan file, which also has the last plan."""
        return self.plan_file or Path(self.output) / PLAN_FILE

    def check(self) -> None:
        """Check that the last plan can be read, and that the tables exist."""
        last_plan(self.path)
        for root in (self.positions, self.regions):
            check_table(root)

    def run(self, spark: SparkSession) -> JobResult:
        """Return the plan; `save` writes it with a picture and a map."""
        regions = regions_of(read_table(spark, self.regions))
        positions, last = read_table(spark, self.positions), last_plan(self.path)
        found = lay_out(positions, regions, self.rules, last)
        return JobResult(
            found.summary(),
            [*found.lines(), f"Plan: {self.path}" + ("" if found.is_new else " (unchanged)")],
            {"plan": str(self.path)},
            save=partial(save_found, found, Path(self.output), self.path),
        )


def last_plan(path: Path) -> Plan | None:
    """Return the plan in force, None if there is none; raise FileFormatError if it is damaged."""
    if not path.exists():
        return None
    try:
        return load_plan(path)
    except FileFormatError as error:
        error.todo = "It stays as it is. To begin with a new plan, move it away and run again"
        raise


def lay_out(
    positions: DataFrame, regions: Sequence[Rect], rules: PlanRules, last: Plan | None = None
) -> PlanFound:
    """Return a plan for these positions; `last` is the plan that it would replace.

    Writes nothing. Two or three passes over the positions. The collected data has the size of the
    grid and of the plan, whatever the number of positions.
    """
    todo = "Give a table that 'nearcast pipeline ingest' wrote"
    check_present(positions, POSITIONS.names, "positions", todo)
    space, occupancy, inside = _counted(positions, regions, rules, last)
    capacity_ms = _capacity_ms(occupancy, rules)
    plan, q_only = (_built(space, inside, occupancy, capacity_ms, way) for way in ("qr", "q"))
    comparable = last if last is not None and last.space == space else None
    compared = [plan, q_only] + ([comparable] if comparable else [])
    flows = collect_moves(moves_between_leaves(positions, compared), len(compared))
    names = ("this plan", "q only", "last plan")
    handovers = {name: sum(each.values()) for name, each in zip(names, flows, strict=False)}
    assignment = _assigned(plan, flows[0], rules.brokers, comparable)
    version = 1 if last is None else last.version + 1
    new = _in_users(plan, occupancy.span_ms, assignment, version)
    diff = plan_diff(comparable, new) if comparable else None
    is_new = diff is None or not diff.is_empty
    return PlanFound(
        new if is_new or comparable is None else comparable,
        is_new, occupancy, tuple(inside), len(regions) - len(inside), assignment,
        len(q_only.leaves), handovers, diff,
    )  # fmt: skip


def _counted(
    positions: DataFrame, regions: Sequence[Rect], rules: PlanRules, last: Plan | None
) -> tuple[Rect, Occupancy, list[Rect]]:
    """Count in the requested space, else in the last plan's, else in the area of the positions.

    A last plan whose space contains few of the positions is for another city.
    """
    space = rules.space or (last.space if last else None)
    if space is not None:
        inside = [region for region in regions if region.intersects(space)]
        occupancy = count_occupancy(positions, space, inside, rules.depth)
        if rules.space or occupancy.left_out <= _MOST_OUTSIDE * occupancy.fixes:
            return space, _checked(occupancy, space), inside
    space = central_space(positions)
    inside = [region for region in regions if region.intersects(space)]
    return space, _checked(count_occupancy(positions, space, inside, rules.depth), space), inside


def count_occupancy(
    positions: DataFrame, space: Rect, regions: Sequence[Rect], depth: int
) -> Occupancy:
    """Count the time spent per cell and per region."""
    rows = time_per_cell(positions, space, regions, depth).toPandas()
    at_cell, at_region = rows[rows["cell"] >= 0], rows[rows["region"] >= 0]
    per_region = np.zeros(len(regions), np.int64)
    per_region[at_region["region"]] = at_region["inside_ms"]
    side = 1 << depth
    counts = CellCounts.from_cells(
        depth,
        at_cell["cell"].to_numpy() % side,
        at_cell["cell"].to_numpy() // side,
        at_cell["outside_ms"],
        at_cell["inside_ms"],
        per_region,
    )
    nowhere = rows[(rows["cell"] < 0) & (rows["region"] < 0)]
    span_us = (nowhere["last_us"].max() - nowhere["first_us"].min()) if len(nowhere) else 0
    return Occupancy(
        counts,
        int(at_cell["fixes"].sum()),
        int(nowhere["fixes"].sum()),
        1_000 if np.isnan(span_us) else max(1_000, round(span_us / 1e3)),
    )


def _checked(occupancy: Occupancy, space: Rect) -> Occupancy:
    if occupancy.fixes == 0 and occupancy.left_out == 0:
        raise MisuseError("no positions: the table is empty", todo="Give another --input")
    if occupancy.fixes == 0:
        raise MisuseError(
            f"{occupancy.left_out:,} positions, none of them in the space",
            where="plan",
            expected=f"positions in {tuple(space)}",
            todo="Give the bounds as west,south,east,north",
        )
    return occupancy


def _capacity_ms(occupancy: Occupancy, rules: PlanRules) -> int:
    users = rules.capacity
    if users is None:  # a split block has four children, about half of them in use
        users = max(1.0, 2 * occupancy.users / rules.leaves)
    return max(1, round(users * occupancy.span_ms))


def _built(
    space: Rect, regions: list[Rect], occupancy: Occupancy, capacity: int, way: Layout
) -> Plan:
    return Plan.build(space, regions, occupancy.counts, layout=way, capacity=capacity)


def _in_users(plan: Plan, span_ms: int, assignment: Assignment | None, version: int) -> Plan:
    leaves = [(leaf.key, leaf.rect, round(leaf.load / span_ms)) for leaf in plan.leaves]
    return plan.remade(leaves, None if assignment is None else assignment.brokers, version)


def _assigned(
    plan: Plan, flows: Flows, brokers: int | None, last: Plan | None
) -> Assignment | None:
    if brokers is None:
        return None
    found = assign_leaves(plan, flows, brokers)
    if last is None or last.brokers is None:
        return found
    names = _kept_names(plan, found.brokers, last)
    return Assignment(
        tuple(names[part] for part in found.brokers), found.cut, found.flow, found.imbalance
    )


def _kept_names(plan: Plan, brokers: Sequence[int], last: Plan) -> dict[int, int]:
    """Return a broker number for each part: the broker that serves most of its load today.

    Otherwise a plan that hardly differs would move every registration.
    """
    common: dict[tuple[int, int], int] = {}
    for leaf, part in zip(plan.leaves, brokers, strict=True):
        west, south, east, north = leaf.rect
        before = last.leaf_at((west + east) / 2, (south + north) / 2)
        key = (part, last.broker_of(before.number))
        common[key] = common.get(key, 0) + leaf.load + 1
    parts, free = sorted(set(brokers)), list(range(max(brokers) + 1))
    names: dict[int, int] = {}
    for part, name in sorted(common, key=lambda key: (-common[key], key)):
        if part not in names and name in free:
            names[part] = name
            free.remove(name)
    for part in parts:
        if part not in names:
            names[part] = free.pop(0)
    return names


def save_found(found: PlanFound, folder: Path, path: Path | None = None) -> None:
    """Write the plan file, the previous one, a map and a picture, unless nothing changed.

    The plan file is replaced atomically. `path` is the plan file, if not in the folder.
    """
    if not found.is_new:
        return
    folder.mkdir(parents=True, exist_ok=True)
    target = path or folder / PLAN_FILE
    title = f"Plan {found.plan.version}: {len(found.plan.leaves)} leaves"
    draw_plan(found.plan, folder / "plan.svg", title=title)  # the slow regions are its R leaves
    (folder / "plan.geojson").write_text(plan_geojson(found.plan, found.regions), encoding="utf-8")
    if target.exists():
        shutil.copyfile(target, folder / BEFORE_FILE)
    save_plan(found.plan, target)


def regions_of(table: DataFrame) -> list[Rect]:
    """Collect the rectangles of a regions table, which the job `regions` keeps small."""
    names = ("west", "south", "east", "north")
    check_present(
        table, list(names), "regions", "Give a table that 'nearcast pipeline regions' wrote"
    )
    rows = table.orderBy("region_id").select(*names).collect()
    return [Rect(*row) for row in rows]
