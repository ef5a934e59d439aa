"""Do plans of their own for hours and weekdays pay? Decided by the cost on days held out.

Each division of the week (`week.py`) is laid out from the first days, a plan per class, and judged
on the days held out, block by block: a leaf must bear the users of each block, not those of the
mean of a day. Its cost:

    brokers     of each leaf in the block where it needs the most; of the plan that needs the most
    handovers   of all blocks, and of each change of plan: everybody whose leaf becomes another one
    events      leaves per event, over all blocks

A division is used if it needs no more brokers than one plan for all times, and costs 2 % less.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nearcast.locality.layout.costs import (
    LayoutCost,
    LayoutWeights,
    brokers_by_leaf,
    layout_cost,
    plan_owners,
)
from nearcast.locality.layout.cutting import Reach
from nearcast.locality.layout.movement import Movement, Owners, joined_movement
from nearcast.locality.layout.plan import Plan
from nearcast.locality.layout.proposals import best_layout
from nearcast.locality.layout.rect import Rect
from nearcast.locality.schedule.week import BLOCKS, DIVISIONS, Division

WORTH = 0.98
"""Of the cost of one plan for all times; less gain is not worth the changes."""


@dataclass(frozen=True, slots=True, eq=False)
class WeekRecord:
    """A record by blocks of the week; `changes` counts how often a block follows another one."""

    blocks: Sequence[Movement]
    changes: Counter[tuple[int, int]]

    def of_class(self, division: Division, wanted: int) -> Movement:
        """Return the movement in all blocks of a class."""
        return joined_movement([self.blocks[b] for b in range(BLOCKS) if division[b] == wanted])


@dataclass(frozen=True, slots=True)
class DivisionCost:
    """What a division of the week costs on days held out."""

    cost: LayoutCost
    handovers_by_changes: int  # part of the handovers


@dataclass(frozen=True, slots=True)
class LayoutRules:
    """What the layouts of all classes have in common; `is_free`: lines of their own are proven."""

    space: Rect
    capacity: float
    reach: Reach
    weights: LayoutWeights
    is_free: bool

    def best(self, movement: Movement) -> Plan:
        """Return the layout for a movement."""
        return best_layout(
            self.space, movement, self.capacity, self.reach, self.weights, is_free=self.is_free
        )


@dataclass(frozen=True, slots=True, eq=False)
class TimeClasses:
    """Which division is best, and what each of them costs; one that cannot be judged is absent."""

    best: str
    costs: dict[str, DivisionCost]

    def rows(self) -> list[dict[str, Any]]:
        """Return the costs as rows for JSON."""
        return [
            {
                "division": name,
                "plans": len(set(DIVISIONS[name])),
                "brokers": one.cost.brokers,
                "handovers": one.cost.handovers,
                "handovers_by_changes": one.handovers_by_changes,
                "leaves_per_event": round(one.cost.leaves_per_event, 3),
                "chosen": name == self.best,
            }
            for name, one in self.costs.items()
        ]


def weigh_divisions(before: WeekRecord, after: WeekRecord, rules: LayoutRules) -> TimeClasses:
    """Lay out each division from the days before, and judge it on the days after.

    A division with a class in which nobody was seen, before or after, is left out.
    """
    costs = {}
    for name, division in DIVISIONS.items():
        classes = sorted(set(division))
        parts = [before.of_class(division, one) for one in classes]
        if all(part.time_ms.any() for part in parts) and _is_seen(after, division):
            plans = [rules.best(part) for part in parts]
            costs[name] = division_cost(division, plans, after, rules)
    always = costs.get("always")
    if always is None:
        return TimeClasses("always", costs)
    total = WORTH * always.cost.relative(rules.weights, always.cost)
    best = "always"
    for name, found in costs.items():
        relative = found.cost.relative(rules.weights, always.cost)
        if found.cost.brokers <= always.cost.brokers and relative < total:
            best, total = name, relative
    return TimeClasses(best, costs)


def _is_seen(record: WeekRecord, division: Division) -> bool:
    return all(record.of_class(division, one).time_ms.any() for one in set(division))


def division_cost(
    division: Division, plans: Sequence[Plan], record: WeekRecord, rules: LayoutRules
) -> DivisionCost:
    """Return what a division, with a plan per class, costs on a record."""
    owners = [plan_owners(plan, record.blocks[0].depth) for plan in plans]
    brokers = [np.zeros(len(plan.leaves), np.int64) for plan in plans]
    found: list[tuple[LayoutCost, int]] = []
    for block, movement in enumerate(record.blocks):
        if movement.time_ms.any():
            number = division[block]
            needed = brokers_by_leaf(plans[number], movement, rules.capacity)
            brokers[number] = np.maximum(brokers[number], needed)
            cost = layout_cost(plans[number], movement, rules.capacity, rules.reach)
            found.append((cost, int(movement.time_ms.sum())))
    moved = sum(
        times * handed_over(owners[division[one]], owners[division[other]], record.blocks[other])
        for (one, other), times in record.changes.items()
        if division[one] != division[other]
    )
    time_ms = max(1, sum(each for _, each in found))
    return DivisionCost(
        LayoutCost(
            max(int(needed.sum()) for needed in brokers),
            sum(cost.handovers for cost, _ in found) + round(moved),
            sum(cost.leaves_per_event * each for cost, each in found) / time_ms,
        ),
        round(moved),
    )


def handed_over(before: Owners, after: Owners, movement: Movement) -> float:
    """Return how many users get another leaf when a plan follows another one.

    A leaf of the new plan continues that leaf of the old one which it shares most users with, each
    only once; the heaviest pairs are matched first.
    """
    most = int(after.max()) + 1
    keys = before.ravel().astype(np.int64) * most + after.ravel()
    pairs, place = np.unique(keys, return_inverse=True)
    times = np.zeros(len(pairs), np.int64)
    np.add.at(times, place, movement.time_ms.ravel())
    stay, used = 0, (set[int](), set[int]())
    for number in np.argsort(-times, kind="stable").tolist():
        old, new = divmod(int(pairs[number]), most)
        if times[number] and old not in used[0] and new not in used[1]:
            used[0].add(old)
            used[1].add(new)
            stay += int(times[number])
    return (int(times.sum()) - stay) / movement.span_ms
