"""Assign many leaves to few brokers: about equal load, and little that crosses between brokers.

The paper names a limited number of brokers as future work; this is our reading. Leaves are the
vertices of a graph. The weight of an edge is what concerns both leaves: users who moved from one to
the other, and events in one that reach the other (`crossings`); cutting the edge means that two
brokers must speak about each of them. The goal: N parts of about equal load, with little weight
cut.

The method is a standard one: cut the leaves into runs of about equal load, in an order in which
neighbours lie together (a Z-order curve, by x, by y, along the heaviest edges); then move single
leaves to the part with the greatest gain, at most one leaf out of balance on the way, and keep the
best balanced state of each pass (Fiduccia and Mattheyses). The best of the results is used.

Leaves that were cut without regard to brokers may leave no good border between brokers. So
`cut_for_brokers` cuts the space into one rectangle for each broker first.

Where no movements were counted, the borders between leaves replace them: the longer a border, the
more people cross it. So each broker gets leaves that lie together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nearcast.locality.layout.movement import CellRect, Longs, Movement, Owners, time_near
from nearcast.locality.layout.plan import Plan
from nearcast.locality.layout.plan_parts import Flows
from nearcast.model.errors import MisuseError, OutOfRangeError

Flags = NDArray[np.bool_]
EVENT_MS = 60_000
"""A user is taken to publish once in this time, when movements and events are weighed."""
TOLERANCE = 0.2
"""How much more than the average load a broker may get: a fifth buys far fewer crossings."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """Which broker serves each leaf, and what that costs.

    `cut` is the weight of what crosses between leaves of different brokers, `flow` that of all that
    crosses between leaves; `imbalance` is the heaviest broker's load over the average.
    """

    brokers: tuple[int, ...]
    cut: int
    flow: int
    imbalance: float


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


def crossings(
    movement: Movement, owners: Owners, reach: tuple[int, int]
) -> dict[tuple[int, int], int]:
    """Return what concerns each two leaves, or brokers: moves between them, and events near both.

    `owners` has the leaf of each cell, `reach` how many cells an event reaches to each side. An
    event of a user in one leaf that reaches the other counts as a move between them does.
    """
    near = time_near(movement, owners, reach)
    found: Counter[tuple[int, int]] = Counter(movement.flows(owners))
    events = np.rint(np.triu(near + near.T, 1) / EVENT_MS).astype(np.int64)
    for one, other in np.argwhere(events).tolist():
        found[one, other] += int(events[one, other])
    return dict(found)


def border_flows(plan: Plan) -> dict[tuple[int, int], int]:
    """Return the length of the border between two leaves, in thousandths of the space's sides.

    It replaces movements where none were counted. For an R leaf and a Q leaf that contains a part
    of it, it is the width plus the height of that part. R leaves that tile the space end at the
    number before the border of the next one, and have that border in common. O(leaves²), in arrays.
    """
    space = plan.space
    sides = np.array([space.east - space.west, space.north - space.south])
    rects = np.array([leaf.rect for leaf in plan.leaves])
    found: dict[tuple[int, int], int] = {}
    for number, (*low, east, north) in enumerate(rects[:-1]):
        others = rects[number + 1 :]
        common = np.minimum(others[:, 2:], (east, north)) - np.maximum(others[:, :2], low)
        lengths = np.rint(1000 * (common / sides).sum(axis=1)).astype(int)
        touches = (common >= -_TOUCHING * sides).all(axis=1)
        for other in np.flatnonzero(touches & (lengths > 0)).tolist():
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
    tolerance: float = TOLERANCE,
) -> Assignment:
    """Assign the leaves to `brokers` brokers: balanced by load, with little cut.

    No broker gets more than (1 + `tolerance`) times the average load, unless a single leaf is
    heavier than that. Without flows, the borders between brokers are made as short as possible
    (`border_flows`). Deterministic. Complexity: O(leaves · brokers) for each move of a leaf, in
    arrays.
    """
    loads = [leaf.load for leaf in plan.leaves] if loads is None else loads
    _check(plan, brokers, loads)
    paths = flows or border_flows(plan)
    found = _candidates(plan, paths, brokers, loads, tolerance)
    best = min(found, key=lambda parts: (not parts.is_balanced, parts.cut(paths), parts.chosen))
    return judged_assignment(best.chosen, flows, brokers, loads)


def assign_by_crossings(
    plan: Plan,
    movement: Movement,
    owners: Owners,
    reach: tuple[int, int],
    brokers: int,
    *,
    first: Sequence[int] | None = None,
    tolerance: float = TOLERANCE,
) -> Assignment:
    """Assign the leaves as `assign_leaves` does, by all that crosses between brokers.

    `owners` has the leaf of each cell of the movement's grid. An event that reaches several leaves
    of another broker crosses once: pairs of leaves cannot tell, so results are compared by counting
    again for whole brokers. `first` is an assignment to compare, and to improve.
    """
    loads = movement.time_by_owner(owners, len(plan.leaves))
    _check(plan, brokers, loads)
    flows = crossings(movement, owners, reach)
    found = _candidates(plan, flows or border_flows(plan), brokers, loads, tolerance, first)

    def cost(parts: _Parts) -> int:
        by_broker = np.asarray(parts.chosen, np.int32)[owners]
        return sum(crossings(movement, by_broker, reach).values())

    best = min(found, key=lambda parts: (not parts.is_balanced, cost(parts), parts.chosen))
    return replace(judged_assignment(best.chosen, flows, brokers, loads), cut=cost(best))


def _candidates(
    plan: Plan,
    paths: Flows,
    brokers: int,
    loads: Sequence[int],
    tolerance: float,
    first: Sequence[int] | None = None,
) -> list[_Parts]:
    """Return good assignments, one for each order of the leaves; `first`, and `first` improved."""
    most = max(*loads, (1 + tolerance) * sum(loads) / brokers)
    starts = [_even_runs(order, brokers, loads) for order in _orders(plan, paths, len(loads))]
    found = [
        _Parts(chosen, paths, brokers, loads, most)
        for chosen in (starts if first is None else [*starts, list(first)])
    ]
    for parts in found:
        for _ in range(_PASSES):
            if not (parts.improve(most) | parts.improve(most + max(loads))):
                break
    return found if first is None else [*found, _Parts(list(first), paths, brokers, loads, most)]


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


_PASSES = 8
_PATIENCE = 30
_TOUCHING = 1e-9  # of the space's sides
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


# --- one rectangle for each broker ----------------------------------------------------------------

_LINES = {2: 400, 3: 8, 4: 8, 5: 3, 6: 3, 7: 3, 8: 3}  # tried of each axis, by brokers; else 1
_NONE = float("inf")


class _Moves(NamedTuple):
    """Moves between cells, each from one column and row to another."""

    columns: tuple[Longs, Longs]
    rows: tuple[Longs, Longs]
    counts: Longs


def cut_for_brokers(
    movement: Movement, brokers: int, reach: tuple[int, int], *, tolerance: float = TOLERANCE
) -> list[CellRect] | None:
    """Cut the space into one rectangle for each broker, where little crosses; None if it cannot be.

    No rectangle has more than (1 + `tolerance`) times the average load. The best lines of each
    rectangle are tried, all of them for the last two brokers. Deterministic.
    """
    if brokers < 1:
        raise OutOfRangeError(str(brokers), where="brokers", expected="1 or more")
    mean_ms = movement.time_in(movement.everywhere) / brokers
    if not mean_ms:
        return None
    return _BrokerCuts(movement, reach, (1 + tolerance) * mean_ms).cut(brokers)


class _BrokerCuts:
    """The search of `cut_for_brokers`: a tree of lines, remembered by rectangle and brokers."""

    def __init__(self, movement: Movement, reach: tuple[int, int], most_ms: float) -> None:
        self._movement, self._reach, self._most_ms = movement, reach, most_ms
        self._known: dict[tuple[CellRect, int], tuple[float, tuple[CellRect, ...]]] = {}

    def cut(self, brokers: int) -> list[CellRect] | None:
        side, low, high = self._movement.side, self._movement.low, self._movement.high
        moves = _Moves((low % side, high % side), (low // side, high // side), self._movement.moves)
        price, rects = self._best(self._movement.everywhere, brokers, moves)
        return list(rects) if price < _NONE else None

    def _best(
        self, rect: CellRect, brokers: int, moves: _Moves
    ) -> tuple[float, tuple[CellRect, ...]]:
        """Return the least cost of the lines inside a rectangle, and the parts."""
        if brokers == 1:
            return 0.0, (rect,)
        if (rect, brokers) not in self._known:
            moves = _inside(rect, moves)
            best: tuple[float, tuple[CellRect, ...]] = (_NONE, ())
            for axis in (0, 1):
                for price, one, other, count in self._lines(rect, axis, brokers, moves):
                    if price >= best[0]:
                        break
                    first = self._best(one, count, moves)
                    second = self._best(other, brokers - count, moves)
                    total = price + first[0] + second[0]
                    if total < best[0]:
                        best = (total, first[1] + second[1])
            self._known[rect, brokers] = best
        return self._known[rect, brokers]

    def _lines(
        self, rect: CellRect, axis: int, brokers: int, moves: _Moves
    ) -> Iterator[tuple[float, CellRect, CellRect, int]]:
        """Yield the cheapest lines across an axis: cost, both parts, and brokers of the first."""
        west, south, east, north = rect
        times = self._movement.time_ms[south:north, west:east].sum(axis=axis)
        sums = np.concatenate([[0], times.cumsum()])
        prices = _cuts(moves, axis, rect[axis], len(times)) + _near(sums, self._reach[axis])
        left = _LINES.get(brokers, 1)
        for at in (np.argsort(prices[1:-1], kind="stable") + 1).tolist():
            for count in range(1, brokers):
                if not (
                    sums[at] <= count * self._most_ms
                    and sums[-1] - sums[at] <= (brokers - count) * self._most_ms
                ):
                    continue
                if not left:
                    return
                left -= 1
                if axis == 0:
                    parts = rect._replace(east=west + at), rect._replace(west=west + at)
                else:
                    parts = rect._replace(north=south + at), rect._replace(south=south + at)
                yield float(prices[at]), *parts, count


def _inside(rect: CellRect, moves: _Moves) -> _Moves:
    """Return the moves that begin and end in a rectangle."""
    is_in = np.ones(len(moves.counts), np.bool_)
    for axis, ends in enumerate((moves.columns, moves.rows)):
        for end in ends:
            is_in &= (end >= rect[axis]) & (end < rect[axis + 2])
    (a, b), (c, d) = moves.columns, moves.rows
    return _Moves((a[is_in], b[is_in]), (c[is_in], d[is_in]), moves.counts[is_in])


def _cuts(moves: _Moves, axis: int, first: int, size: int) -> NDArray[np.float64]:
    """Return how many moves each line before a column or row cuts."""
    one, other = moves.columns if axis == 0 else moves.rows
    changes = np.zeros(size + 1, np.float64)
    np.add.at(changes, np.minimum(one, other) - first + 1, moves.counts)
    np.add.at(changes, np.maximum(one, other) - first + 1, -moves.counts)
    return changes.cumsum()


def _near(sums: Longs, reach: int) -> NDArray[np.float64]:
    """Return how many events happen within reach of each line."""
    at = np.arange(len(sums))
    high, low = np.minimum(at + reach, len(sums) - 1), np.maximum(at - reach, 0)
    return (sums[high] - sums[low]) / EVENT_MS
