"""Which broker gets which leaves of a plan that the pipeline lays out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nearcast.locality import Assignment, Plan
from nearcast.locality.layout.balancing import (
    assign_by_crossings,
    crossings,
    judged_assignment,
    names_of_parts,
)
from nearcast.locality.layout.costs import plan_owners
from nearcast.locality.layout.cutting import Reach
from nearcast.locality.layout.movement import Movement, Owners

_CUTS = 1.1  # of a new assignment's cut and imbalance: up to that, leaves stay with their brokers


def assigned_leaves(
    plan: Plan,
    movement: Movement,
    reach: Reach,
    brokers: int | None,
    last: Plan | None,
    first: Sequence[int] | None = None,
) -> Assignment | None:
    """Return the leaves shared out among so many brokers; near to how the last plan has them.

    `first` is an assignment to compare, and to improve.
    """
    if brokers is None:
        return None
    owners = plan_owners(plan, movement.depth)
    parts = _parts(plan, movement, owners, reach, brokers, last, first)
    times_ms = movement.time_by_owner(owners, len(plan.leaves))
    return judged_assignment(parts, movement.flows(owners), brokers, times_ms)


def _parts(
    plan: Plan, movement: Movement, owners: Owners, reach: Reach, brokers: int,
    last: Plan | None, first: Sequence[int] | None,
) -> Sequence[int]:  # fmt: skip
    """Return the broker of each leaf; leaves stay with their brokers if that is as good."""
    found = assign_by_crossings(plan, movement, owners, reach, brokers, first=first)
    if last is None or last.brokers is None:
        return found.brokers
    if plan is last:
        by_broker = np.asarray(last.brokers, np.int32)[owners]
        cut = sum(crossings(movement, by_broker, reach).values())
        times_ms = movement.time_by_owner(owners, len(plan.leaves))
        imbalance = judged_assignment(last.brokers, {}, brokers, times_ms).imbalance
        if cut <= _CUTS * found.cut and imbalance <= _CUTS * found.imbalance:
            return last.brokers
    numbers = range(max(found.brokers) + 1)
    names = names_of_parts(plan, found.brokers, numbers, _brokers_today(plan, last))
    return [names[part] for part in found.brokers]


def _brokers_today(plan: Plan, last: Plan) -> list[int]:
    """Return the broker that has the middle of each leaf under the last plan."""
    middles = (
        ((west + east) / 2, (south + north) / 2)
        for west, south, east, north in (leaf.rect for leaf in plan.leaves)
    )
    return [last.broker_of(last.leaf_at(x, y).number) for x, y in middles]
