"""Assign many leaves to few brokers: equal load, and few users that change broker as they move.

The paper names a limited number of brokers as future work; this is our reading. Leaves are the
vertices of a graph. The weight of an edge is how often users moved from one leaf to the other;
cutting the edge means that each of them changes broker. The goal: N parts of about equal load, with
little weight cut.

The method is a standard one: cut the leaves into runs of about equal load, in an order in which
neighbours lie together (a Z-order curve, by x, by y, along the heaviest edges); then move single
leaves to the part with the greatest gain, at most one leaf out of balance on the way, and keep the
best balanced state of each pass (Fiduccia and Mattheyses). The best of the four results is used.

Where no movements were counted, the borders between leaves replace them: the longer a border, the
more people cross it. So each broker gets leaves that lie together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nearcast.locality.layout.plan import Plan
from nearcast.locality.layout.plan_parts import Flows
from nearcast.model.errors import MisuseError, OutOfRangeError

Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Assignment:
    """Which broker serves each leaf, and what that costs.

    `cut` is the weight of movements between leaves of different brokers, `flow` that of all
    movements between leaves; `imbalance` is the heaviest broker's load over the average.
    """

    brokers: tuple[int, ...]
    cut: int
    flow: int
    imbalance: float

    @property
    def cut_share(self) -> float:
        """Return the share of movements between leaves that also change broker."""
        return self.cut / self.flow if self.flow else 0.0


def movement_flows(users: ArrayLike, leaves: ArrayLike) -> dict[tuple[int, int], int]:
    """Count movements between leaves in fixes that are sorted by user and time.

    `leaves` comes from `Plan.leaf_numbers_at`; -1 (no leaf) is no movement. O(n log n).
    """
    user, where = np.asarray(users), np.asarray(leaves, np.int64)
    before, after = where[:-1], where[1:]
    moved = (user[1:] == user[:-1]) & (before != after) & (before >= 0) & (after >= 0)
    low, high = np.minimum(before, after)[moved], np.maximum(before, after)[moved]
    pairs, counts = np.unique(np.stack([low, high], axis=1), axis=0, return_counts=True)
    return {(int(a), int(b)): int(n) for (a, b), n in zip(pairs, counts, strict=True)}


def border_flows(plan: Plan) -> dict[tuple[int, int], int]:
    """Return the length of the border between two leaves, in thousandths of the space's sides.

    It replaces movements where none were counted. For an R leaf and a Q leaf that contains a part
    of it, it is the width plus the height of that part. O(leaves²), in arrays.
    """
    space = plan.space
    sides = np.array([space.east - space.west, space.north - space.south])
    rects = np.array([leaf.rect for leaf in plan.leaves])
    found: dict[tuple[int, int], int] = {}
    for number, (*low, east, north) in enumerate(rects[:-1]):
        others = rects[number + 1 :]
        common = np.minimum(others[:, 2:], (east, north)) - np.maximum(others[:, :2], low)
        lengths = np.rint(1000 * (common / sides).sum(axis=1)).astype(int)
        for other in np.flatnonzero((common >= 0).all(axis=1) & (lengths > 0)).tolist():
            found[number, number + 1 + other] = int(lengths[other])
    return found


def naive_assignment(plan: Plan, flows: Flows, brokers: int, loads: Sequence[int]) -> Assignment:
    """Assign the leaves greedily: the heaviest first, each to the broker with the least load.

    This is the usual way to balance load; it ignores movement.
    """
    _check(plan, brokers, loads)
    total = [0] * brokers
    chosen = [0] * len(loads)
    for leaf in sorted(range(len(loads)), key=lambda n: (-loads[n], n)):
        chosen[leaf] = total.index(min(total))
        total[chosen[leaf]] += loads[leaf]
    return judged_assignment(chosen, flows, brokers, loads)


def assign_leaves(
    plan: Plan,
    flows: Flows,
    brokers: int,
    loads: Sequence[int] | None = None,
    *,
    tolerance: float = 0.1,
    passes: int = 8,
) -> Assignment:
    """Assign the leaves to `brokers` brokers: balanced by load, with few movements cut.

    No broker gets more than (1 + `tolerance`) times the average load, unless a single leaf is
    heavier than that. Without flows, the borders between brokers are made as short as possible
    (`border_flows`). Deterministic. Complexity: O(leaves · brokers) for each move of a leaf, in
    arrays.
    """
    loads = [leaf.load for leaf in plan.leaves] if loads is None else loads
    _check(plan, brokers, loads)
    most = max(*loads, (1 + tolerance) * sum(loads) / brokers)
    paths = flows or border_flows(plan)
    found = []
    for order in _orders(plan, paths, len(loads)):
        parts = _Parts(_even_runs(order, brokers, loads), paths, brokers, loads, most)
        for _ in range(passes):
            if not (parts.improve(most) | parts.improve(most + max(loads))):
                break
        found.append((not parts.is_balanced, parts.cut(paths), parts.chosen))
    return judged_assignment(min(found)[2], flows, brokers, loads)


class _Parts:
    """The parts of the graph while they are improved.

    `pull[leaf, part]` is the weight of the edges between a leaf and the leaves of a part.
    """

    def __init__(
        self, chosen: list[int], flows: Flows, brokers: int, loads: Sequence[int], most: float
    ) -> None:
        self.chosen = chosen
        self.loads = np.array(loads, np.int64)
        self.most = most
        self.near: list[dict[int, int]] = [{} for _ in loads]
        self.pull = np.zeros((len(loads), brokers), np.int64)
        for (a, b), weight in flows.items():
            self.near[a][b] = self.near[b][a] = weight
            self.pull[a, chosen[b]] += weight
            self.pull[b, chosen[a]] += weight
        self.total = np.zeros(brokers, np.int64)
        np.add.at(self.total, chosen, self.loads)

    def improve(self, allowed: float) -> bool:
        """Move each leaf at most once, best gain first; keep the best state; return if it is new.

        No part may become heavier than `allowed` on the way. A state is better when it is balanced
        and the other is not, or when it cuts less.
        """
        gain = kept = 0
        begun = best = (self.is_balanced, 0)
        moves: list[tuple[int, int]] = []
        free = np.ones(len(self.loads), np.bool_)
        while (move := self._best_move(free, allowed)) is not None:
            value, leaf, part = move
            moves.append((leaf, self.chosen[leaf]))
            self._move(leaf, part)
            free[leaf] = False
            gain += value
            state = (self.is_balanced, gain)
            if state > best:
                best, kept = state, len(moves)
            elif len(moves) - kept > _PATIENCE:
                break
        for leaf, before in reversed(moves[kept:]):
            self._move(leaf, before)
        return best > begun

    def cut(self, flows: Flows) -> int:
        """Return the weight between parts."""
        return sum(n for (a, b), n in flows.items() if self.chosen[a] != self.chosen[b])

    @property
    def is_balanced(self) -> bool:
        """Whether no part is too heavy."""
        return bool(self.total.max() <= self.most)

    def _best_move(self, free: Flags, allowed: float) -> tuple[int, int, int] | None:
        """Return the gain, the leaf to move and its new part; None if no leaf can move."""
        leaves = np.arange(len(self.loads))
        gains = self.pull - self.pull[leaves, self.chosen][:, np.newaxis]
        can = free[:, np.newaxis] & (self.total + self.loads[:, np.newaxis] <= allowed)
        can[leaves, self.chosen] = False
        if not can.any():
            return None
        leaf, part = divmod(int(np.where(can, gains, _WORST).argmax()), len(self.total))
        return int(gains[leaf, part]), leaf, part

    def _move(self, leaf: int, part: int) -> None:
        before = self.chosen[leaf]
        self.total[before] -= self.loads[leaf]
        self.total[part] += self.loads[leaf]
        for other, weight in self.near[leaf].items():
            self.pull[other, before] -= weight
            self.pull[other, part] += weight
        self.chosen[leaf] = part


_PATIENCE = 30
_WORST = np.iinfo(np.int64).min


def _orders(plan: Plan, flows: Flows, leaves: int) -> list[list[int]]:
    """Return orders in which neighbours lie together."""
    rects = [leaf.rect for leaf in plan.leaves]
    keys: tuple[list[float], ...] = (
        [_z_place(plan, n) for n in range(leaves)],
        [rect.west + rect.east for rect in rects],
        [rect.south + rect.north for rect in rects],
    )
    orders = [sorted(range(leaves), key=lambda n: (key[n], n)) for key in keys]
    return [*orders, _along_flows(flows, leaves)]


def _along_flows(flows: Flows, leaves: int) -> list[int]:
    """Return the leaves, each next one being that with the heaviest edges to those before it."""
    pull = [0] * leaves
    near: list[dict[int, int]] = [{} for _ in range(leaves)]
    for (a, b), weight in flows.items():
        near[a][b] = near[b][a] = weight
    left, order = set(range(leaves)), []
    while left:
        leaf = max(left, key=lambda n: (pull[n], -n))
        left.discard(leaf)
        order.append(leaf)
        for other, weight in near[leaf].items():
            pull[other] += weight
    return order


def _even_runs(order: list[int], brokers: int, loads: Sequence[int]) -> list[int]:
    """Cut an order into runs of about equal load."""
    chosen = [0] * len(loads)
    total = sum(loads)
    done, part = 0.0, 0
    for leaf in order:
        middle = done + loads[leaf] / 2
        part = min(brokers - 1, max(part, int(middle * brokers / total) if total else 0))
        chosen[leaf] = part
        done += loads[leaf]
    return chosen


def _z_place(plan: Plan, leaf: int) -> int:
    rect = plan.leaves[leaf].rect
    column, row = plan.grid.cell((rect.west + rect.east) / 2, (rect.south + rect.north) / 2)
    place = 0
    for bit in range(plan.grid.depth):
        place |= (column >> bit & 1) << (2 * bit) | (row >> bit & 1) << (2 * bit + 1)
    return place


def judged_assignment(
    chosen: Sequence[int], flows: Flows, brokers: int, loads: Sequence[int]
) -> Assignment:
    """Return an assignment with what it costs."""
    cut = sum(n for (a, b), n in flows.items() if chosen[a] != chosen[b])
    total = [0] * brokers
    for leaf, part in enumerate(chosen):
        total[part] += loads[leaf]
    average = sum(loads) / brokers
    imbalance = max(total) / average if average else 1.0
    return Assignment(tuple(chosen), cut, sum(flows.values()), imbalance)


Name = TypeVar("Name", int, str)


def names_of_parts(
    plan: Plan, parts: Sequence[int], names: Sequence[Name], today: Sequence[Name | None]
) -> tuple[Name, ...]:
    """Return the broker or node of each part: the one that holds most of its load today.

    `today` has the holder of each leaf, None for one that holds nothing any more. Otherwise a plan
    that hardly differs would move every registration.
    """
    common: Counter[tuple[int, Name]] = Counter()
    for leaf, part, name in zip(plan.leaves, parts, today, strict=True):
        if name is not None:
            common[part, name] += leaf.load + 1
    found: dict[int, Name] = {}
    free = list(names)
    for part, name in sorted(common, key=lambda key: (-common[key], key)):
        if part not in found and name in free:
            found[part] = name
            free.remove(name)
    return tuple(found[part] if part in found else free.pop(0) for part in range(len(names)))


def _check(plan: Plan, brokers: int, loads: Sequence[int]) -> None:
    if brokers < 1:
        raise OutOfRangeError(str(brokers), where="brokers", expected="1 or more")
    if len(loads) != len(plan.leaves):
        raise MisuseError(
            f"{len(loads)} loads", where="loads", expected=f"{len(plan.leaves)}, one per leaf"
        )
