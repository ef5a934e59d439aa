"""Plans of their own for hours and weekdays, where that pays on days held out.

`locality/schedule/worth.py` decides; here the plans of the chosen division are laid out from the
whole record, and written beside a schedule that names them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nearcast.locality import Plan, save_plan
from nearcast.locality.layout.balancing import crossings
from nearcast.locality.layout.costs import plan_owners
from nearcast.locality.layout.movement import joined_movement
from nearcast.locality.schedule.plan_schedule import PlanSchedule, WeeklyChange, save_schedule
from nearcast.locality.schedule.week import DIVISIONS, changes_of, class_name, time_zone
from nearcast.locality.schedule.worth import LayoutRules, TimeClasses, WeekRecord, weigh_divisions
from nearcast.pipeline.jobs.occupancy import Counted
from nearcast.pipeline.jobs.plan_assigning import assigned_leaves

SCHEDULE_FILE = "schedule.json"


@dataclass(frozen=True, slots=True, eq=False)
class ScheduleFound:
    """What time classes cost, and the plans of the division that pays, by file name."""

    classes: TimeClasses
    schedule: PlanSchedule | None  # None: one plan for all times is best
    plans: dict[str, Plan]

    def lines(self) -> list[str]:
        """Return the costs as a table for people, and the choice."""
        rows = [
            f"{row['division']:<14} {row['plans']:>5} {row['brokers']:>8,} {row['handovers']:>10,} "
            f"{row['handovers_by_changes']:>12,} {row['leaves_per_event']:>17.2f}"
            for row in self.classes.rows()
        ]
        told = "One plan for all times is best"
        if self.schedule is not None:
            told = f"Plans by {self.classes.best} pay: {SCHEDULE_FILE} has when they change"
        head = "time classes   plans  brokers  handovers  (by changes)  leaves per event"
        return [head, *rows, told] if rows else ["Nobody was seen on the days held out"]

    def save(self, folder: Path) -> None:
        """Write the plan files, then the schedule that names them, if one pays."""
        if self.schedule is None:
            return
        for name, plan in self.plans.items():
            save_plan(plan, folder / name)
        save_schedule(self.schedule, folder / SCHEDULE_FILE)


def schedule_of(
    counted: Counted, plan: Plan, layout: LayoutRules, zone: str | None, brokers: int | None
) -> ScheduleFound | None:
    """Weigh time classes on the days held out; lay out the plans of the best division.

    `plan` is the one for all times; the leaves of the others go to brokers as near to its as can
    be. None without a time zone.
    """
    if counted.week is None or zone is None:
        return None
    classes = weigh_divisions(*counted.week, layout)
    if classes.best == "always":
        return ScheduleFound(classes, None, {})
    division = DIVISIONS[classes.best]
    whole = WeekRecord(
        [joined_movement(both) for both in zip(*(one.blocks for one in counted.week), strict=True)],
        counted.week[0].changes + counted.week[1].changes,
    )
    plans, names = {}, {}
    for number in sorted(set(division)):
        names[number] = f"plan-{class_name(division, number)}.json"
        movement = whole.of_class(division, number)
        found = layout.best(movement)
        owners = plan_owners(found, movement.depth)
        times_ms = movement.time_by_owner(owners, len(found.leaves))
        assignment = assigned_leaves(found, movement, layout.reach, brokers, plan)
        users = [round(time_ms / movement.span_ms) for time_ms in times_ms]
        leaves = [(leaf.key, leaf.rect, users[leaf.number]) for leaf in found.leaves]
        shared_out = None if assignment is None else assignment.brokers
        new = found.remade(leaves, shared_out, plan.version)
        plans[names[number]] = new.with_flows(crossings(movement, owners, layout.reach))
    changes = tuple(
        WeeklyChange(days, 60 * hour, names[number]) for days, hour, number in changes_of(division)
    )
    return ScheduleFound(classes, PlanSchedule(time_zone(zone), changes), plans)
