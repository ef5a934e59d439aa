"""What a layout costs on a record: its brokers, its handovers, the leaves that an event reaches.

No leaf has more users than a broker bears: one that has, on days that the layout has not seen,
counts as the parts into which the nodes would split it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nearcast.locality.layout.cutting import Reach
from nearcast.locality.layout.grid import Grid, halves_of_cells, quarters_of_cells
from nearcast.locality.layout.movement import CellRect, Movement, Owners
from nearcast.locality.layout.plan import Plan
from nearcast.model.errors import OutOfRangeError, UnknownNameError

LayoutName = Literal["q_only", "r_only", "stays", "optimised"]

_WIDER = 1.05  # of Q-only's leaves per event
_UNSEEN = 1.01  # of Q-only's brokers and handovers, on days that were not learned from


@dataclass(frozen=True, slots=True)
class LayoutWeights:
    """How much brokers, handovers and leaves per event count, each relative to Q-only's figure."""

    brokers: float = 1.0
    handovers: float = 1.0
    events: float = 0.3

    def __post_init__(self) -> None:
        if min(self.brokers, self.handovers, self.events) < 0 or self.brokers <= 0:
            raise OutOfRangeError(
                str(self), where="weights", expected="numbers from 0, and above 0 for brokers"
            )

    @classmethod
    def parse(cls, text: str) -> LayoutWeights:
        """Return weights written as `brokers=1,handovers=2,events=0.3`; others keep the default."""
        values: dict[str, float] = {}
        for part in text.split(","):
            name, _, value = (word.strip() for word in part.partition("="))
            if name not in cls.__slots__:
                raise UnknownNameError(
                    repr(name), where="--weights", expected=", ".join(cls.__slots__)
                )
            try:
                values[name] = float(value)
            except ValueError:
                raise OutOfRangeError(
                    repr(value), where=f"--weights, {name}", expected="a number"
                ) from None
        return cls(**values)


@dataclass(frozen=True, slots=True)
class LayoutCost:
    """What a layout costs on a record."""

    brokers: int
    handovers: int
    leaves_per_event: float

    def relative(self, weights: LayoutWeights, to: LayoutCost) -> float:
        """Return the weighted sum of the three figures, each relative to another layout's."""
        return (
            weights.brokers * self.brokers / max(to.brokers, 1)
            + weights.handovers * self.handovers / max(to.handovers, 1)
            + weights.events * self.leaves_per_event / max(to.leaves_per_event, 1.0)
        )


def is_never_worse(
    costs: dict[LayoutName, LayoutCost], name: LayoutName = "optimised", most: float = _UNSEEN
) -> bool:
    """Return whether a layout is nowhere worse than Q-only, within 1 % (5 % for events)."""
    found, q_only = costs[name], costs["q_only"]
    return (
        found.brokers <= math.ceil(most * q_only.brokers)
        and found.handovers <= most * q_only.handovers
        and found.leaves_per_event <= _WIDER * q_only.leaves_per_event
    )


def plan_owners(plan: Plan, depth: int) -> Owners:
    """Return the leaf at the middle of each cell."""
    grid = Grid.over(plan.space, depth)
    xs, ys = (grid.xs[:-1] + grid.xs[1:]) / 2, (grid.ys[:-1] + grid.ys[1:]) / 2
    across, up = np.meshgrid(xs, ys)
    return plan.leaf_numbers_at(across.ravel(), up.ravel()).reshape(grid.side, grid.side)


def layout_cost(plan: Plan, movement: Movement, capacity: float, reach: Reach) -> LayoutCost:
    """Return what a plan costs on a record; each leaf stands for a broker of its own.

    A leaf over its capacity falls apart as the nodes split it (`changes.split_leaf`). A leaf that
    was joined from quadrants falls apart into these, so that a plan of such leaves has no figure
    greater than that of the quadrants, on any record.
    """
    owners = plan_owners(plan, movement.depth)
    most_ms = max(1.0, capacity * movement.span_ms)
    owners = _within_capacity(owners, plan.r_count, movement, most_ms)
    times = movement.time_by_owner(owners, int(owners.max()) + 1)
    return LayoutCost(
        sum(time_ms > 0 for time_ms in times),
        movement.handovers(owners),
        leaves_per_event(owners, movement, reach),
    )


def brokers_by_leaf(plan: Plan, movement: Movement, capacity: float) -> NDArray[np.int64]:
    """Return how many brokers each leaf needs on a record: none without users, else its parts."""
    before = plan_owners(plan, movement.depth)
    after = _within_capacity(before, plan.r_count, movement, max(1.0, capacity * movement.span_ms))
    used, most = movement.time_ms.ravel() > 0, int(after.max()) + 1
    pairs = np.unique(before.ravel()[used].astype(np.int64) * most + after.ravel()[used])
    return np.bincount(pairs // most, minlength=len(plan.leaves))


def _within_capacity(owners: Owners, r_count: int, movement: Movement, most_ms: float) -> Owners:
    """Return the owners with each leaf over its capacity split, until none is or can be.

    The first `r_count` leaves are R leaves.
    """
    owners = owners.copy()
    todo = [(number, number < r_count, box) for number, box in _leaf_cells(owners)]
    free = int(owners.max()) + 1
    while todo:
        number, is_region, (west, south, east, north) = todo.pop()
        mine = owners[south:north, west:east] == number
        total = int(movement.time_ms[south:north, west:east][mine].sum())
        if total <= most_ms:
            continue
        split = halves_of_cells if is_region else quarters_of_cells
        parts = split((west, south, east, north))
        if len(parts) == 1:
            continue
        for place, (_, box) in enumerate(parts):
            leaf = free if place else number
            here = owners[box[1] : box[3], box[0] : box[2]]
            here[here == number] = leaf
            todo.append((leaf, is_region, box))
            free += place > 0
    return owners


def _leaf_cells(
    owners: Owners, wanted: Sequence[int] | None = None
) -> Iterator[tuple[int, tuple[int, int, int, int]]]:
    """Yield each leaf, and the columns and rows between which its cells lie."""
    rows, columns = np.indices(owners.shape)
    numbers = owners.ravel()
    order = np.argsort(numbers, kind="stable")
    leaves, starts = np.unique(numbers[order], return_index=True)
    by = [np.asarray(one).ravel()[order] for one in (columns, rows)]
    low = [np.minimum.reduceat(one, starts) for one in by]
    high = [np.maximum.reduceat(one, starts) + 1 for one in by]
    for place, leaf in enumerate(leaves.tolist()):
        if wanted is None or leaf in wanted:
            yield leaf, (
                int(low[0][place]), int(low[1][place]), int(high[0][place]), int(high[1][place]),
            )  # fmt: skip


def leaves_per_event(owners: Owners, movement: Movement, reach: Reach) -> float:
    """Return how many leaves an event reaches, on average, where users are."""
    total = movement.time_in(movement.everywhere)
    if not total:
        return 1.0
    side, (across, up) = movement.side, reach
    reached = 0
    for leaf, (west, south, east, north) in _leaf_cells(owners):
        box = CellRect(
            max(west - across, 0),
            max(south - up, 0),
            min(east + across, side),
            min(north + up, side),
        )
        if (owners[south:north, west:east] == leaf).all():
            reached += movement.time_in(box)
            continue
        mine = np.pad(owners == leaf, ((up, up), (across, across)))
        sums = np.pad(mine.cumsum(0).cumsum(1), ((1, 0), (1, 0)))
        high, wide = 2 * up + 1, 2 * across + 1
        near = sums[high:, wide:] - sums[:-high, wide:] - sums[high:, :-wide] + sums[:-high, :-wide]
        reached += int(movement.time_ms[near > 0].sum())
    return reached / total


def layout_rows(costs: dict[LayoutName, LayoutCost], days: str) -> list[dict[str, Any]]:
    """Return the costs as rows for JSON."""
    return [
        {
            "layout": name,
            "days": days,
            "brokers": cost.brokers,
            "handovers": cost.handovers,
            "leaves_per_event": round(cost.leaves_per_event, 3),
        }
        for name, cost in costs.items()
    ]
