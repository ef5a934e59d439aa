"""Four ways to lay out a network from one record, what each costs, and the one to use.

    q_only      quadrants, split where users are: no slow regions
    r_only      rectangles packed by load, and slow regions
    stays       the paper's form: R leaves over slow regions where that pays, quadrants elsewhere
    optimised   ours: R leaves cut where few people cross (`cutting.py`), or the best of the others

The cost of a layout on a record: the brokers with users, the handovers, and the leaves that an
event reaches. No leaf has more users than a broker bears: one that has, on days that the layout has
not seen, counts as the parts into which it would be split.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from nearcast.locality.layout.cutting import Prices, Reach, cut_space
from nearcast.locality.layout.grid import CellCounts, Grid
from nearcast.locality.layout.movement import CellRect, Movement, Owners, owners_of
from nearcast.locality.layout.plan import Plan
from nearcast.locality.layout.quadtree import block_of, split_by_load
from nearcast.locality.layout.rect import Rect
from nearcast.model.errors import OutOfRangeError, UnknownNameError

LayoutName = Literal["q_only", "r_only", "stays", "optimised"]
NAMES: tuple[LayoutName, ...] = ("q_only", "r_only", "stays", "optimised")

FILL = 0.85
"""The share of a broker's capacity that is used on the days the layout is learned from."""
_WORSE = 1.0  # of Q-only's brokers and of its handovers, on the record learned from
_WIDER = 1.05  # of Q-only's leaves per event
_GAIN = 1.95  # brokers and handovers together, in Q-only's: less gain is not worth a change
_UNSEEN = 1.01  # of Q-only's brokers and handovers, on days that were not learned from
_MOST_REGIONS = 64  # of slow regions, the heaviest
_LEAST_REGION = 0.05  # of a broker's capacity


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


@dataclass(frozen=True, slots=True, eq=False)
class Proposals:
    """The four layouts for one record; `chosen` names what `optimised` turned out to be."""

    plans: dict[LayoutName, Plan]
    learned: dict[LayoutName, LayoutCost]
    chosen: Literal["cut", "stays", "q_only"]

    def on(self, movement: Movement, capacity: float, reach: Reach) -> dict[LayoutName, LayoutCost]:
        """Return what the layouts cost on another record."""
        return {
            name: layout_cost(plan, movement, capacity, reach) for name, plan in self.plans.items()
        }


def propose(
    space: Rect,
    regions: Sequence[Rect],
    movement: Movement,
    capacity: float,
    reach: Reach,
    weights: LayoutWeights | None = None,
) -> Proposals:
    """Lay out a network in four ways; `capacity` is the number of users that a broker bears."""
    return _Drafts(
        space, regions, movement, capacity, reach, weights or LayoutWeights()
    ).proposals()


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


class _Drafts:
    """The layouts under way."""

    def __init__(
        self,
        space: Rect,
        regions: Sequence[Rect],
        movement: Movement,
        capacity: float,
        reach: Reach,
        weights: LayoutWeights,
    ) -> None:
        self.grid = Grid.over(space, movement.depth)
        self.movement, self.capacity, self.reach = movement, capacity, reach
        self.weights = weights
        self.capacity_ms = max(1, math.floor(capacity * movement.span_ms))
        self.regions = sorted(
            {_covering_cells(self.grid, region) for region in regions if region.intersects(space)},
            key=lambda rect: (-movement.time_in(rect), rect),
        )

    def proposals(self) -> Proposals:
        q_only = self._with_quadrants([])
        base = self._cost(q_only)
        prices = _prices(base, self.weights, self.movement)
        plans: dict[LayoutName, Plan] = {
            "q_only": q_only,
            "r_only": self._r_only(),
            "stays": self._stays(prices),
        }
        costs = {name: self._cost(plan) for name, plan in plans.items()}
        drafts = {
            "cut": self._tiled(
                cut_space(self.movement, FILL * self.capacity_ms, prices, self.reach)
            ),
            "stays": plans["stays"],
        }
        chosen, best, cost = "q_only", q_only, base
        for name, plan in drafts.items():
            found = self._cost(plan)
            if self._pays(found, base) and found.relative(self.weights, base) < cost.relative(
                self.weights, base
            ):
                chosen, best, cost = name, plan, found
        plans["optimised"], costs["optimised"] = best, cost
        return Proposals(plans, costs, chosen)  # type: ignore[arg-type]

    def _pays(self, found: LayoutCost, base: LayoutCost) -> bool:
        """Return whether a layout is nowhere worse than Q-only, and better enough."""
        if found.brokers >= base.brokers and found.handovers >= base.handovers:
            return False
        gained = found.brokers / max(base.brokers, 1) + found.handovers / max(base.handovers, 1)
        both: dict[LayoutName, LayoutCost] = {"q_only": base, "optimised": found}
        return gained <= _GAIN and is_never_worse(both, most=_WORSE)

    def _cost(self, plan: Plan) -> LayoutCost:
        return layout_cost(plan, self.movement, self.capacity, self.reach)

    def _r_only(self) -> Plan:
        inside = owners_of([self.movement.everywhere, *self.regions], self.grid.side) > 0
        times = self.movement.time_ms
        counts = CellCounts(
            self.grid.depth,
            np.where(inside, 0, times),
            np.where(inside, times, 0),
            np.zeros(0, np.int64),
        )
        regions = [self.grid.closed_cells(*rect) for rect in self.regions]
        plan = Plan.build(self.grid.space, regions, counts, layout="r", capacity=self.capacity_ms)
        by_leaf = self.movement.time_by_owner(plan_owners(plan, self.grid.depth), len(plan.leaves))
        leaves = [
            (leaf.key, leaf.rect, self._users(time_ms))
            for leaf, time_ms in zip(plan.leaves, by_leaf, strict=True)
        ]
        return plan.remade(leaves, None, None)

    def _stays(self, prices: Prices) -> Plan:
        """Add slow regions, heaviest first, as long as each saves brokers and handovers in sum."""
        kept: list[CellRect] = []
        least = self._draft_cost(kept, prices)
        for region in self.regions[:_MOST_REGIONS]:
            if self.movement.time_in(region) < _LEAST_REGION * self.capacity_ms:
                break
            if any(region.meets(other) for other in kept):
                continue
            parts = cut_space(
                self.movement, FILL * self.capacity_ms, prices, self.reach, within=region
            )
            cost = self._draft_cost([*kept, *parts], prices)
            if cost < least:
                kept += parts
                least = cost
        return self._with_quadrants(kept)

    def _draft_cost(self, rects: Sequence[CellRect], prices: Prices) -> float:
        """Return what these R leaves and the quadrants behind them cost, without events."""
        blocks = self._quadrants(rects)
        tiles = [_block_cells(path, self.grid.depth) for path in blocks]
        owners = owners_of([*tiles, *rects], self.grid.side)
        brokers = sum(time_ms > 0 for time_ms in blocks.values()) + len(rects)
        return prices.broker * brokers + prices.handover * self.movement.handovers(owners)

    def _quadrants(self, rects: Sequence[CellRect]) -> dict[str, int]:
        """Return the blocks, by path, for the users outside these R leaves."""
        times = self.movement.time_ms.copy()
        for west, south, east, north in rects:
            times[south:north, west:east] = 0
        return split_by_load(times, self.capacity_ms, self.grid.depth)

    def _with_quadrants(self, rects: Sequence[CellRect]) -> Plan:
        """Return a plan of these R leaves, and of quadrants for the users outside them."""
        blocks = self._quadrants(rects)
        return self._plan(rects, [(f"q{path}", time_ms) for path, time_ms in blocks.items()])

    def _tiled(self, rects: Sequence[CellRect]) -> Plan:
        """Return a plan of R leaves that tile the space: nothing is left to the Q part."""
        return self._plan(rects, [("q", 0)])

    def _plan(self, rects: Sequence[CellRect], quadrants: Sequence[tuple[str, int]]) -> Plan:
        leaves = [
            (f"r{number}", self.grid.closed_cells(*rect), self._users(self.movement.time_in(rect)))
            for number, rect in enumerate(rects)
        ]
        leaves += [(key, self.grid.space, self._users(time_ms)) for key, time_ms in quadrants]
        return Plan(
            self.grid.space, leaves, layout="qr" if rects else "q", depth=self.grid.depth,
            fanout=8, version=1,
        )  # fmt: skip

    def _users(self, time_ms: int) -> int:
        return round(time_ms / self.movement.span_ms)


def _prices(base: LayoutCost, weights: LayoutWeights, movement: Movement) -> Prices:
    """Return what one broker, handover and reached leaf add to the relative cost."""
    events_ms = base.leaves_per_event * max(1, movement.time_in(movement.everywhere))
    total = weights.brokers + weights.handovers + weights.events
    return Prices(
        weights.brokers / max(1, base.brokers),
        weights.handovers / max(1, base.handovers),
        weights.events / max(1.0, events_ms),
        total / max(1, base.brokers),
    )


def _block_cells(path: str, depth: int) -> CellRect:
    """Return the cells of a quadrant."""
    level, column, row = block_of(path)
    wide = 1 << (depth - level)
    return CellRect(column * wide, row * wide, (column + 1) * wide, (row + 1) * wide)


def _covering_cells(grid: Grid, rect: Rect) -> CellRect:
    """Return the cells that a rectangle meets."""
    inside = rect.clamped(grid.space)
    west, south = grid.cell(inside.west, inside.south)
    east, north = grid.cell(inside.east, inside.north)
    return CellRect(west, south, east + 1, north + 1)


# --- the cost of a layout -------------------------------------------------------------------------


def plan_owners(plan: Plan, depth: int) -> Owners:
    """Return the leaf at the middle of each cell."""
    grid = Grid.over(plan.space, depth)
    xs, ys = (grid.xs[:-1] + grid.xs[1:]) / 2, (grid.ys[:-1] + grid.ys[1:]) / 2
    across, up = np.meshgrid(xs, ys)
    return plan.leaf_numbers_at(across.ravel(), up.ravel()).reshape(grid.side, grid.side)


def layout_cost(plan: Plan, movement: Movement, capacity: float, reach: Reach) -> LayoutCost:
    """Return what a plan costs on a record; each leaf stands for a broker of its own."""
    owners = _within_capacity(
        plan_owners(plan, movement.depth), movement, max(1.0, capacity * movement.span_ms)
    )
    times = movement.time_by_owner(owners, int(owners.max()) + 1)
    return LayoutCost(
        sum(time_ms > 0 for time_ms in times),
        movement.handovers(owners),
        _leaves_per_event(owners, movement, reach),
    )


def _within_capacity(owners: Owners, movement: Movement, most_ms: float) -> Owners:
    """Return the owners with each leaf over its capacity split, until none is or can be."""
    owners = owners.copy()
    todo = list(_leaf_cells(owners))
    free = len(todo) and max(number for number, _ in todo) + 1
    while todo:
        number, (west, south, east, north) = todo.pop()
        mine = owners[south:north, west:east] == number
        times = np.where(mine, movement.time_ms[south:north, west:east], 0)
        total = int(times.sum())
        if total <= most_ms or mine.sum() < 2:
            continue
        axis = 0 if east - west >= north - south else 1
        along = times.sum(axis=axis).cumsum()
        if len(along) < 2:
            continue
        line = 1 + min(int(np.searchsorted(along, total / 2)), len(along) - 2)
        part = mine.copy()
        if axis == 0:
            part[:, :line] = False
        else:
            part[:line, :] = False
        if not part.any() or part.sum() == mine.sum():
            continue
        owners[south:north, west:east][part] = free
        todo += [
            (leaf, (west + box[0], south + box[1], west + box[2], south + box[3]))
            for leaf, box in _leaf_cells(owners[south:north, west:east], (number, free))
        ]
        free += 1
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


def _leaves_per_event(owners: Owners, movement: Movement, reach: Reach) -> float:
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
