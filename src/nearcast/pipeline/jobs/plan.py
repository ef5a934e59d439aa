"""`plan`: slow regions and positions become the plan of a broker cluster (paper 0).

Spark counts (`occupancy.py`); `nearcast/locality` lays the plan out in four ways, judges them, and
assigns leaves to brokers. The plan is learned from the whole record. To see what such a plan is
worth on days it has not seen, layouts are also learned from the first part of the record and judged
on the rest: where that is worse than quadrants alone, or no other day is in the record, the plan
only joins quadrants; where nothing is gained, it has quadrants only.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from nearcast.eventlog import POSITIONS
from nearcast.eventlog.stores import is_url
from nearcast.locality import (
    Assignment,
    Plan,
    PlanDiff,
    Rect,
    draw_layouts,
    draw_plan,
    load_plan,
    plan_diff,
    plan_geojson,
    save_plan,
)
from nearcast.locality.layout.balancing import crossings
from nearcast.locality.layout.costs import (
    LayoutCost,
    LayoutName,
    LayoutWeights,
    is_never_worse,
    layout_cost,
    layout_rows,
    plan_owners,
)
from nearcast.locality.layout.cutting import Reach
from nearcast.locality.layout.movement import Movement, Owners
from nearcast.locality.layout.proposals import Proposals, Rehearsal, propose
from nearcast.locality.layout.tracks import MobilityKind
from nearcast.locality.schedule.week import time_zone
from nearcast.locality.schedule.worth import LayoutRules
from nearcast.model.errors import FileFormatError, MisuseError, OutOfRangeError
from nearcast.pipeline.job import JobResult
from nearcast.pipeline.jobs.occupancy import (
    Counted,
    RecordParts,
    central_space,
    count_movement,
    record_ends,
)
from nearcast.pipeline.jobs.plan_assigning import assigned_leaves
from nearcast.pipeline.jobs.plan_schedules import SCHEDULE_FILE, ScheduleFound, schedule_of
from nearcast.pipeline.sources.column_types import check_present
from nearcast.pipeline.sources.input_checks import check_table
from nearcast.pipeline.tables.output_files import local_file, output_folder
from nearcast.pipeline.tables.places import write_boxes
from nearcast.pipeline.tables.transaction import read_table

PLAN_FILE, BEFORE_FILE = "plan.json", "plan-before.json"
EVENT_M = 300.0
"""How far an event is of interest: what it reaches is a part of a layout's cost."""
_DEGREE_M = 111_320.0
_GOOD_ENOUGH = 1.02  # of the new plan's cost: if the last plan costs less than that, it stays
_PROOF_MS = 36 * 3_600_000  # of record: if it is shorter, the part held out is of the same day
_REASONS = {
    "q_only": "Nothing is gained over quadrants alone: the plan has quadrants only",
    "joined": "Other lines were worse on days held out, or no other day is in the record: the plan "
    "joins quadrants",
}
_MOST_OUTSIDE = 0.5  # outside per inside position; above it the last plan's space is dropped


@dataclass(frozen=True, slots=True)
class PlanRules:
    """How to build the plan. Without a capacity, one is chosen that gives about `leaves` leaves."""

    leaves: int = 100
    capacity: float | None = None  # users at once
    brokers: int | None = None  # None: one broker per leaf
    depth: int = 9
    space: Rect | None = None  # None: the last plan's, or where nearly all positions are
    weights: LayoutWeights = field(default_factory=LayoutWeights)
    hold_out: float = 0.4  # the share of the record, at its end, that layouts are judged on
    time_zone: str | None = None  # of the clock by which plans may change; None: they do not

    def __post_init__(self) -> None:
        for name, least in (("leaves", 1), ("brokers", 1), ("capacity", 1e-6)):
            found = getattr(self, name)
            if found is not None and not found >= least:
                raise OutOfRangeError(repr(found), where=f"--{name}", expected=f"{least:g} or more")
        if not 0 <= self.hold_out <= 0.9:
            raise OutOfRangeError(repr(self.hold_out), where="--hold-out", expected="0 to 0.9")
        if self.time_zone is not None:
            time_zone(self.time_zone)


@dataclass(frozen=True, slots=True, eq=False)
class PlanFound:
    """A plan, the counts behind it, and how it compares.

    `proposals` are the four layouts for the whole record, with their costs on days that were held
    out, learned from the days before them. `handovers` counts movements between leaves in the
    record: under this plan, with a quadtree alone ("q only"), and under the last one.
    """

    plan: Plan
    is_new: bool  # False: the last plan stays
    counted: Counted
    regions: tuple[Rect, ...]
    regions_outside: int
    assignment: Assignment | None
    proposals: Proposals
    handovers: dict[str, int]
    kinds: list[dict[str, Any]]  # of those who stand, walk and ride: users and handovers
    scheduled: ScheduleFound | None  # None without a time zone
    diff: PlanDiff | None  # None: no last plan, or one of another space

    @property
    def layouts(self) -> list[dict[str, Any]]:
        """What each layout costs, on the days it was learned from and on days held out."""
        held_out = layout_rows(self.proposals.rehearsed, "held_out")
        return layout_rows(self.proposals.learned, "learned") + held_out

    def summary(self) -> dict[str, Any]:
        """Return the result as fields for a report or JSON."""
        plan, diff = self.plan, self.diff
        return {
            "version": plan.version,
            "changed": self.is_new,
            "space": list(plan.space),
            "positions": self.counted.fixes,
            "outside_the_space": self.counted.left_out,
            "users_at_once": round(self.counted.whole.users, 1),
            "regions": len(self.regions),
            "regions_outside": self.regions_outside,
            "leaves": len(plan.leaves),
            "leaves_q_only": len(self.proposals.plans["q_only"].leaves),
            "brokers": None if plan.brokers is None else len(set(plan.brokers)),
            "broker_changes": None if self.assignment is None else self.assignment.cut,
            "imbalance": None if self.assignment is None else round(self.assignment.imbalance, 2),
            "handovers": self.handovers,
            "leaves_added": 0 if diff is None else len(diff.added),
            "leaves_removed": 0 if diff is None else len(diff.removed),
            "leaves_reshaped": 0 if diff is None else len(diff.reshaped),
            "leaves_moved": 0 if diff is None else len(diff.moved),
            "layouts": self.layouts,
            "kinds": self.kinds,
            "time_classes": None if self.scheduled is None else self.scheduled.classes.rows(),
        }

    def lines(self) -> list[str]:
        """Return the result for people."""
        told = self.summary()
        moved = ", ".join(f"{count:,} ({name})" for name, count in self.handovers.items())
        first = (
            f"plan {told['version']}: {told['leaves']} leaves for {told['users_at_once']:g} users "
            f"at once; quadrants alone would take {told['leaves_q_only']}"
        )
        lines = [first, *_table(self.layouts)]
        lines += [] if self.proposals.chosen not in _REASONS else [_REASONS[self.proposals.chosen]]
        lines.append(f"handovers in this record: {moved}")
        lines += [
            f"  those who {row['kind']}: {row['users_at_once']:g} users at once, "
            f"{row['handovers']:,} handovers, {row['handovers_q_only']:,} (q only)"
            for row in self.kinds
        ]
        lines += [] if self.scheduled is None else self.scheduled.lines()
        if told["brokers"]:
            lines.append(
                f"{told['brokers']} brokers: {told['broker_changes']:,} of these change the "
                f"broker; the heaviest has {told['imbalance']:g} times the mean load"
            )
        if told["outside_the_space"]:
            lines.append(f"{told['outside_the_space']:,} positions lie outside the space")
        return lines + ([] if self.diff is None else self.diff.lines())


def _table(layouts: Sequence[dict[str, Any]]) -> list[str]:
    """Return the costs of the layouts as a table for people."""
    rows = [
        f"{row['layout']:<11} {row['days']:<9} {row['brokers']:>8,} {row['handovers']:>10,} "
        f"{row['leaves_per_event']:>17.2f}"
        for row in layouts
    ]
    return ["layout      days       brokers  handovers  leaves per event", *rows]


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
        if self.plan_file is not None or not is_url(self.output):
            last_plan(self.path)
        for root in (self.positions, self.regions):
            check_table(root)

    def run(self, spark: SparkSession) -> JobResult:
        """Return the plan; `save` writes it with a picture and a map."""
        regions = regions_of(read_table(spark, self.regions))
        positions = read_table(spark, self.positions)
        with local_file(self._place()) as file:
            last = last_plan(file)
        found = lay_out(positions, regions, self.rules, last)
        return JobResult(
            found.summary(),
            [*found.lines(), f"Plan: {self._place()}" + ("" if found.is_new else " (unchanged)")],
            {"plan": self._place()},
            save=partial(self._save, found),
        )

    def _place(self) -> str:
        if self.plan_file is None and is_url(self.output):
            return f"{self.output.rstrip('/')}/{PLAN_FILE}"
        return str(self.path)

    def _save(self, found: PlanFound) -> None:
        with output_folder(self.output, PLAN_FILE) as folder:
            save_found(found, folder, self.plan_file)


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

    Writes nothing. Three or four passes over the positions. The collected data has the size of the
    grid and of the paths people take, whatever the number of positions.
    """
    todo = "Give a table that 'nearcast pipeline ingest' wrote"
    check_present(positions, POSITIONS.names, "positions", todo)
    space, counted, inside = _counted(positions, regions, rules, last)
    capacity, reach = _capacity(counted.whole, rules), _reach(space, rules.depth)
    rehearsal = _rehearsal(counted)
    proposals = propose(
        space, inside, counted.whole, capacity, reach, rules.weights, rehearsal,
        is_trusted=rules.hold_out == 0, brokers=rules.brokers,
    )  # fmt: skip
    plan, first = proposals.plans["optimised"], proposals.first
    is_free = proposals.chosen in {"cut", "stays"}  # lines of its own are proven
    comparable = last if last is not None and last.space == space else None
    if comparable and _is_still_good(comparable, plan, proposals, counted.whole, capacity, rules):
        plan, first = comparable, None
    compared = [plan, proposals.plans["q_only"]] + ([comparable] if comparable else [])
    owners = [plan_owners(one, rules.depth) for one in compared]
    flows = [counted.whole.flows(each) for each in owners]
    names = ("this plan", "q only", "last plan")
    handovers = {name: sum(each.values()) for name, each in zip(names, flows, strict=False)}
    times_ms = counted.whole.time_by_owner(owners[0], len(plan.leaves))
    assignment = assigned_leaves(plan, counted.whole, reach, rules.brokers, comparable, first)
    users = [round(time_ms / counted.whole.span_ms) for time_ms in times_ms]
    leaves = [(leaf.key, leaf.rect, users[leaf.number]) for leaf in plan.leaves]
    version = 1 if last is None else last.version + 1
    new = plan.remade(leaves, None if assignment is None else assignment.brokers, version)
    new = new.with_flows(crossings(counted.whole, owners[0], reach))
    layout = LayoutRules(space, capacity, reach, rules.weights, is_free)
    scheduled = schedule_of(counted, new, layout, rules.time_zone, rules.brokers)
    diff = plan_diff(comparable, new) if comparable else None
    is_new = diff is None or not diff.is_empty
    return PlanFound(
        new if is_new or comparable is None else comparable,
        is_new, counted, tuple(inside), len(regions) - len(inside), assignment,
        proposals, handovers, _by_kind(counted, owners), scheduled, diff,
    )  # fmt: skip


def _counted(
    positions: DataFrame, regions: Sequence[Rect], rules: PlanRules, last: Plan | None
) -> tuple[Rect, Counted, list[Rect]]:
    """Count in the requested space, else in the last plan's, else in the area of the positions.

    A last plan whose space contains few of the positions is for another city.
    """
    first_us, last_us = record_ends(positions)
    until_us = last_us - round(rules.hold_out * (last_us - first_us))
    parts = RecordParts(until_us, rules.time_zone)
    space = rules.space or (last.space if last else None)
    if space is not None:
        counted = count_movement(positions, space, rules.depth, parts)
        if rules.space or counted.left_out <= _MOST_OUTSIDE * counted.fixes:
            return space, _checked(counted, space), _met(regions, space)
    space = central_space(positions)
    counted = count_movement(positions, space, rules.depth, parts)
    return space, _checked(counted, space), _met(regions, space)


def _met(regions: Sequence[Rect], space: Rect) -> list[Rect]:
    return [region for region in regions if region.intersects(space)]


def _checked(counted: Counted, space: Rect) -> Counted:
    if counted.fixes == 0 and counted.left_out == 0:
        raise MisuseError("no positions: the table is empty", todo="Give another --input")
    if counted.fixes == 0:
        raise MisuseError(
            f"{counted.left_out:,} positions, none of them in the space",
            where="plan",
            expected=f"positions in {tuple(space)}",
            todo="Give the bounds as west,south,east,north",
        )
    return counted


def _capacity(movement: Movement, rules: PlanRules) -> float:
    if rules.capacity is not None:
        return rules.capacity
    # A split block has four children, about half of them in use.
    return max(1.0, 2 * movement.users / rules.leaves)


def _reach(space: Rect, depth: int) -> Reach:
    """Return how many cells an event reaches that is of interest within `EVENT_M`."""
    middle = math.radians((space.south + space.north) / 2)
    metres = (_DEGREE_M * max(0.01, math.cos(middle)), _DEGREE_M)
    sides = (space.east - space.west, space.north - space.south)
    across, up = (
        max(1, min(1 << depth, round(EVENT_M / (side * one / (1 << depth)))))
        for side, one in zip(sides, metres, strict=True)
    )
    return across, up


def _rehearsal(counted: Counted) -> Rehearsal | None:
    """Return the two parts of the record; None if one of them is empty."""
    if not counted.late.time_ms.any() or not counted.early.time_ms.any():
        return None
    return Rehearsal(counted.early, counted.late, counted.whole.span_ms >= _PROOF_MS)


def _by_kind(counted: Counted, owners: Sequence[Owners]) -> list[dict[str, Any]]:
    """Return the users of each kind of mobility, and their handovers with and without the plan."""
    return [
        {
            "kind": kind.name.lower(),
            "users_at_once": round(movement.users, 1),
            "handovers": movement.handovers(owners[0]),
            "handovers_q_only": movement.handovers(owners[1]),
        }
        for kind, movement in zip(MobilityKind, counted.kinds, strict=True)
    ]


def _is_still_good(
    last: Plan, plan: Plan, proposals: Proposals, movement: Movement, capacity: float,
    rules: PlanRules,
) -> bool:  # fmt: skip
    """Return whether the last plan costs hardly more than the new one: then nobody need move."""
    brokers = None if last.brokers is None else len(set(last.brokers))
    if brokers != rules.brokers or last.grid.depth != rules.depth:
        return False
    base, reach = proposals.learned["q_only"], _reach(last.space, rules.depth)
    before, after = (layout_cost(one, movement, capacity, reach) for one in (last, plan))
    costs: dict[LayoutName, LayoutCost] = {"q_only": base, "optimised": before}
    limit = _GOOD_ENOUGH * after.relative(rules.weights, base)
    return is_never_worse(costs) and before.relative(rules.weights, base) <= limit


def save_found(found: PlanFound, folder: Path, path: Path | None = None) -> None:
    """Write the plan file, the previous one, a map and a picture, unless nothing changed.

    A schedule, with its plans, is written if it pays; an old one is removed.

    The plan file is replaced atomically. `path` is the plan file, if not in the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SCHEDULE_FILE).unlink(missing_ok=True)
    if found.scheduled is not None:
        found.scheduled.save(folder)
    if not found.is_new:
        return
    target = path or folder / PLAN_FILE
    title = f"Plan {found.plan.version}: {len(found.plan.leaves)} leaves"
    draw_plan(found.plan, folder / "plan.svg", title=title, regions=found.regions)
    draw_layouts(found.proposals.plans, folder / "layouts.svg")
    (folder / "plan.geojson").write_text(plan_geojson(found.plan, found.regions), encoding="utf-8")
    write_boxes(leaves_table(found.plan), folder / "plan.parquet")
    if target.exists():
        shutil.copyfile(target, folder / BEFORE_FILE)
    save_plan(found.plan, target)


def leaves_table(plan: Plan) -> pa.Table:
    """Return the leaves of a plan as rows, for `plan.parquet`."""
    rows = [
        {
            "leaf": leaf.key, "kind": str(getattr(leaf.kind, "value", leaf.kind)),
            "west": leaf.rect.west, "south": leaf.rect.south,
            "east": leaf.rect.east, "north": leaf.rect.north, "load": leaf.load,
        }
        for leaf in plan.leaves
    ]  # fmt: skip
    return pa.Table.from_pylist(rows)


def regions_of(table: DataFrame) -> list[Rect]:
    """Collect the rectangles of a regions table, which the job `regions` keeps small."""
    names = ("west", "south", "east", "north")
    check_present(
        table, list(names), "regions", "Give a table that 'nearcast pipeline regions' wrote"
    )
    rows = table.orderBy("region_id").select(*names).collect()
    return [Rect(*row) for row in rows]
