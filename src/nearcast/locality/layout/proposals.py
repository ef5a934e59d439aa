"""Four ways to lay out a network from one record, what each costs, and the one to use.

    q_only      quadrants, split where users are: no slow regions
    r_only      rectangles packed by load, and slow regions
    stays       the paper's form: R leaves over slow regions where that pays, quadrants elsewhere
    optimised   ours: the best of three
        cut     R leaves cut where few people cross (`cutting.py`)
        joined  quadrants joined to R leaves: each of its borders is one of Q-only's, too
        stays   as above

Lines that were cut where few people crossed may lie where a crowd stands on another day; borders of
`joined` only where those of Q-only lie. So `cut` and `stays` are used if they have been rehearsed:
learned from some days, and not worse than Q-only on others.

Read next: `costs.py`, `cutting.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from nearcast.locality.layout.balancing import assign_by_crossings, cut_for_brokers
from nearcast.locality.layout.costs import (
    LayoutCost,
    LayoutName,
    LayoutWeights,
    is_never_worse,
    layout_cost,
    plan_owners,
)
from nearcast.locality.layout.cutting import Prices, Reach, cut_space
from nearcast.locality.layout.grid import CellCounts, Grid
from nearcast.locality.layout.movement import CellRect, Movement, owners_of
from nearcast.locality.layout.plan import Plan
from nearcast.locality.layout.quadtree import block_of, split_by_load
from nearcast.locality.layout.rect import Rect

Chosen = Literal["cut", "joined", "stays", "q_only"]
NAMES: tuple[LayoutName, ...] = ("q_only", "r_only", "stays", "optimised")

FILL = 0.85
"""The share of a broker's capacity that is used on the days the layout is learned from."""
_WORSE = 1.0  # of Q-only's brokers and of its handovers, on the record learned from
_GAIN = 1.95  # brokers and handovers together, in Q-only's: less gain is not worth a change
_WHOLE = 1.1  # of what else would cross: up to that, each broker has one rectangle
_MOST_REGIONS = 64  # of slow regions, the heaviest
_LEAST_REGION = 0.05  # of a broker's capacity


@dataclass(frozen=True, slots=True, eq=False)
class Rehearsal:
    """The days of a record before and after an instant.

    `is_proof`: they are different days, so that what held on the later ones may be relied on.
    """

    before: Movement
    after: Movement
    is_proof: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Proposals:
    """The four layouts for one record; `chosen` names what `optimised` turned out to be.

    `first`: the broker of each leaf for which `optimised` was cut; None if it was cut for none.
    """

    plans: dict[LayoutName, Plan]
    learned: dict[LayoutName, LayoutCost]
    chosen: Chosen
    rehearsed: dict[LayoutName, LayoutCost]  # learned from the days before, on the days held out
    first: Sequence[int] | None = None

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
    rehearsal: Rehearsal | None = None,
    *,
    is_trusted: bool = False,
    brokers: int | None = None,
) -> Proposals:
    """Lay out a network in four ways; `capacity` is the number of users that a broker bears.

    Without a rehearsal on other days, `optimised` has no border that Q-only has not, unless the
    caller trusts that the next days are like this record. Where it may have lines of its own, it
    is cut for so many `brokers` first if that crosses less, and has stood the rehearsal too.
    """

    def drafts(part: Movement) -> _Drafts:
        return _Drafts(space, regions, part, capacity, reach, weights or LayoutWeights())

    def for_brokers(found: Proposals, part: Movement) -> Proposals:
        return _cut_for_brokers(found, part, brokers, capacity, reach, weights)

    is_proof = rehearsal is not None and rehearsal.is_proof
    if rehearsal is None:
        found = drafts(movement).proposals(is_free=is_trusted)
        return for_brokers(found, movement) if is_trusted else found
    before = drafts(rehearsal.before)
    rehearsed: dict[LayoutName, LayoutCost] = {}
    for is_free in (True, False) if is_proof else (False,):
        tried = before.proposals(is_free=is_free)
        rehearsed = tried.on(rehearsal.after, capacity, reach)
        if is_never_worse(rehearsed) and (tried.chosen in {"cut", "stays"} or not is_free):
            found = replace(drafts(movement).proposals(is_free=is_free), rehearsed=rehearsed)
            cut = for_brokers(tried, rehearsal.before) if is_free else tried
            costs = cut.on(rehearsal.after, capacity, reach)
            if cut.first is None or not is_never_worse(costs):
                return found
            whole = for_brokers(found, movement)
            return found if whole.first is None else replace(whole, rehearsed=costs)
    return drafts(movement).q_only(rehearsed)


def _cut_for_brokers(
    found: Proposals,
    movement: Movement,
    brokers: int | None,
    capacity: float,
    reach: Reach,
    weights: LayoutWeights | None,
) -> Proposals:
    """Return the proposals with `optimised` cut for the brokers first, where less crosses then."""
    if brokers is None or found.chosen not in {"cut", "stays"}:
        return found
    plan, first = layout_for_brokers(
        found.plans["optimised"], found, movement, brokers, capacity, reach, weights
    )
    if first is None:
        return found
    cost = layout_cost(plan, movement, capacity, reach)
    return replace(
        found,
        plans={**found.plans, "optimised": plan},
        learned={**found.learned, "optimised": cost},
        first=first,
    )


def propose_for_brokers(
    drafts: Proposals,
    movement: Movement,
    brokers: int,
    capacity: float,
    reach: Reach,
    weights: LayoutWeights | None = None,
) -> tuple[Plan, list[int]] | None:
    """Return a layout for so many brokers, and the broker of each leaf.

    The space is cut for the brokers first, then for their leaves. None if it cannot be cut into
    brokers of about equal load, or if that takes more leaves or handovers than Q-only.
    """
    rects = cut_for_brokers(movement, brokers, reach)
    if rects is None:
        return None
    base = drafts.learned["q_only"]
    space, weights = drafts.plans["q_only"].space, weights or LayoutWeights()
    draft = _Drafts(space, [], movement, capacity, reach, weights)
    prices, most_ms = _prices(base, weights, movement), FILL * draft.capacity_ms
    cuts = [cut_space(movement, most_ms, prices, reach, within=rect) for rect in rects]
    plan = draft.tiled([leaf for leaves in cuts for leaf in leaves])
    cost = layout_cost(plan, movement, capacity, reach)
    if not is_never_worse({"q_only": base, "optimised": cost}, most=_WORSE):
        return None
    parts = [part for part, leaves in enumerate(cuts) for _ in leaves]
    return plan, [*parts, *[0] * (len(plan.leaves) - len(parts))]


def layout_for_brokers(
    plan: Plan,
    drafts: Proposals,
    movement: Movement,
    brokers: int,
    capacity: float,
    reach: Reach,
    weights: LayoutWeights | None = None,
) -> tuple[Plan, list[int] | None]:
    """Return a plan that was cut for the brokers first, or another one of which far less crosses.

    The second value is the assignment that the latter was cut for; None for the plan itself.
    """
    found = propose_for_brokers(drafts, movement, brokers, capacity, reach, weights)
    if found is None:
        return plan, None
    cuts = [
        assign_by_crossings(
            one, movement, plan_owners(one, movement.depth), reach, brokers, first=first
        ).cut
        for one, first in ((plan, None), found)
    ]
    return found if cuts[1] <= _WHOLE * cuts[0] else (plan, None)


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

    def proposals(self, *, is_free: bool) -> Proposals:
        """Lay out in four ways; `is_free`: lines may lie elsewhere than Q-only's borders."""
        plans, costs = self._plain
        stays: list[tuple[Chosen, Plan]] = [("stays", plans["stays"])] if is_free else []
        chosen, best, cost = self._chosen([*self._searched(is_free=is_free), *stays])
        laid_out = {**plans, "optimised": best}
        return Proposals(laid_out, {**costs, "optimised": cost}, chosen, {})

    def best(self, *, is_free: bool) -> Plan:
        """Return the best of the layouts that are searched for, and quadrants."""
        return self._chosen(self._searched(is_free=is_free))[1]

    def _chosen(self, candidates: Iterable[tuple[Chosen, Plan]]) -> tuple[Chosen, Plan, LayoutCost]:
        """Return the cheapest layout that pays, its name and its cost; else quadrants."""
        base = self._cost(self._quadrants_alone)
        chosen: tuple[Chosen, Plan, LayoutCost] = ("q_only", self._quadrants_alone, base)
        for name, plan in candidates:
            cost = self._cost(plan)
            if self._pays(cost, base) and cost.relative(self.weights, base) < chosen[2].relative(
                self.weights, base
            ):
                chosen = (name, plan, cost)
        return chosen

    def q_only(self, rehearsed: dict[LayoutName, LayoutCost]) -> Proposals:
        """Return proposals that choose quadrants: nothing else has stood the rehearsal."""
        plans, costs = self._plain
        return Proposals(
            {**plans, "optimised": plans["q_only"]},
            {**costs, "optimised": costs["q_only"]},
            "q_only",
            {**rehearsed, "optimised": rehearsed["q_only"]},
        )

    @cached_property
    def _plain(self) -> tuple[dict[LayoutName, Plan], dict[LayoutName, LayoutCost]]:
        """The layouts without a search, and what they cost."""
        plans: dict[LayoutName, Plan] = {
            "q_only": self._quadrants_alone,
            "r_only": self._r_only(),
            "stays": self._stays(self._prices),
        }
        return plans, {name: self._cost(plan) for name, plan in plans.items()}

    @cached_property
    def _quadrants_alone(self) -> Plan:
        return self._with_quadrants([])

    @cached_property
    def _prices(self) -> Prices:
        return _prices(self._cost(self._quadrants_alone), self.weights, self.movement)

    def _searched(self, *, is_free: bool) -> Iterator[tuple[Chosen, Plan]]:
        most_ms, prices = FILL * self.capacity_ms, self._prices
        owners = plan_owners(self._quadrants_alone, self.grid.depth)
        joined = cut_space(self.movement, most_ms, prices, self.reach, along=owners)
        yield "joined", self.tiled(joined)
        if is_free:
            yield "cut", self.tiled(cut_space(self.movement, most_ms, prices, self.reach))

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

    def tiled(self, rects: Sequence[CellRect]) -> Plan:
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


def best_layout(
    space: Rect, movement: Movement, capacity: float, reach: Reach, weights: LayoutWeights,
    *, is_free: bool,
) -> Plan:  # fmt: skip
    """Return the optimised layout alone, without slow regions; `is_free`: with its own lines."""
    return _Drafts(space, [], movement, capacity, reach, weights).best(is_free=is_free)


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
