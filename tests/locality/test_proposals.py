"""The four layouts: never worse than quadrants, within capacity, and as the definition counts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import movements as made
from tests.support.movements import SPACE, Record

from nearcast.locality import Plan, Rect
from nearcast.locality.layout.changes import Part, plan_of_parts, split_leaf
from nearcast.locality.layout.costs import (
    LayoutCost,
    LayoutWeights,
    is_never_worse,
    layout_cost,
    layout_rows,
    plan_owners,
)
from nearcast.locality.layout.movement import Movement, joined_movement
from nearcast.locality.layout.proposals import NAMES, Rehearsal, propose
from nearcast.model.errors import OutOfRangeError, UnknownNameError

REACH = (1, 1)
KINDS: dict[str, Callable[[int], Record]] = {
    "random walks": made.random_walks,
    "commuters": made.commuters,
    "cabs": made.cabs,
    "concert": made.concert,
    "concert that moves": lambda seed: made.concert(seed, moves=True),
    "one person": made.one_person,
    "nobody": made.nobody,
    "everybody on one point": made.one_point,
    "commuters, time reversed": lambda seed: made.commuters(seed).reversed(),
    "cabs, time reversed": lambda seed: made.cabs(seed).reversed(),
}


def slow_regions(movement: Movement) -> list[Rect]:
    """Single cells where people spend much time, as a simple stand-in for slow regions."""
    most = np.sort(movement.time_ms.ravel())[-20:]
    places = np.argwhere(movement.time_ms >= max(1, most[0]))
    side = movement.side
    return [
        Rect(c / side, r / side, (c + 0.9) / side, (r + 0.9) / side) for r, c in places.tolist()
    ]


@pytest.mark.parametrize("capacity", [2.0, 6.0])
@pytest.mark.parametrize("kind", KINDS)
def test_never_worse_than_quadrants(kind: str, capacity: float) -> None:
    record = KINDS[kind](7)
    learned = record.day(0).movement()
    found = propose(SPACE, slow_regions(learned), learned, capacity, REACH)
    assert is_never_worse(found.learned, most=1.0)
    assert set(found.plans) == set(NAMES)
    costs = found.on(record.day(1).movement(), capacity, REACH)
    assert is_never_worse(costs, most=1.0), costs


def test_a_concert_that_moves_onto_a_line() -> None:
    """Learned from one day, with lines of its own an event reaches 7 % more leaves on the next."""
    capacity = 12.0
    record = made.concert(4, 120, moves=True)
    first, second = record.day(0).movement(), record.day(1).movement()
    safe = propose(SPACE, [], first, capacity, REACH)
    assert is_never_worse(safe.on(second, capacity, REACH), most=1.0)
    other = made.concert(4, 120).day(1).movement()  # rehearsed on a day like the first
    free = propose(SPACE, [], first, capacity, REACH, rehearsal=Rehearsal(first, other))
    assert free.chosen == "cut"
    assert not is_never_worse(free.on(second, capacity, REACH))
    moved = propose(SPACE, [], first, capacity, REACH, rehearsal=Rehearsal(first, second))
    assert moved.chosen == "joined"
    same_day = Rehearsal(first, other, is_proof=False)
    assert propose(SPACE, [], first, capacity, REACH, rehearsal=same_day).chosen == "joined"


@pytest.mark.parametrize("kind", [made.commuters, made.cabs])
@pytest.mark.parametrize("brokers", [None, 4])
def test_proven_lines_are_never_worse_on_a_third_day(
    kind: Callable[..., Record], brokers: int | None
) -> None:
    chosen = set()
    for seed in range(3):
        record = kind(seed, days=3)
        first, second, third = (record.day(number).movement() for number in range(3))
        both = joined_movement([first, second])
        found = propose(
            SPACE, [], both, 6.0, REACH, rehearsal=Rehearsal(first, second), brokers=brokers
        )
        assert is_never_worse(found.on(third, 6.0, REACH))
        chosen.add(found.chosen)
    assert chosen == {"cut"}


def test_a_layout_cut_for_brokers_is_the_one_that_is_compared() -> None:
    record = made.commuters(2)
    first, second = record.day(0).movement(), record.day(1).movement()
    plain = propose(SPACE, [], first, 3.0, REACH, rehearsal=Rehearsal(first, second))
    found = propose(SPACE, [], first, 3.0, REACH, rehearsal=Rehearsal(first, second), brokers=4)
    assert found.first is not None
    assert set(found.first) == {0, 1, 2, 3}
    assert len(found.first) == len(found.plans["optimised"].leaves)
    assert found.plans["optimised"] != plain.plans["optimised"]
    cost = layout_cost(found.plans["optimised"], first, 3.0, REACH)
    assert found.learned["optimised"] == cost
    assert is_never_worse(found.rehearsed)


def some_movement(draw: st.DrawFn, side: int = 8) -> Movement:
    cells = st.integers(0, side * side - 1)
    times = np.zeros(side * side, np.int64)
    for cell, time_ms in draw(st.dictionaries(cells, st.integers(1, 9), max_size=30)).items():
        times[cell] = 1000 * time_ms
    used = np.flatnonzero(times).tolist()
    moves: dict[tuple[int, int], int] = {}
    if len(used) > 1:
        pairs = st.tuples(st.sampled_from(used), st.sampled_from(used)).filter(
            lambda p: p[0] < p[1]
        )
        moves = draw(st.dictionaries(pairs, st.integers(1, 9), max_size=30))
    low, high = (np.array([pair[end] for pair in moves], np.int64) for end in (0, 1))
    counts = np.array(list(moves.values()), np.int64)
    return Movement(3, times.reshape(side, side), low, high, counts, 1000)


movements = st.composite(some_movement)


@given(movements(), movements(), st.sampled_from([3.0, 6.0, 12.0, 25.0]))
def test_joined_quadrants_are_never_worse_on_any_record(
    learned: Movement, unseen: Movement, capacity: float
) -> None:
    found = propose(SPACE, [], learned, capacity, REACH)
    costs = found.on(unseen, capacity, REACH)
    ours, quadrants = costs["optimised"], costs["q_only"]
    assert ours.brokers <= quadrants.brokers
    assert ours.handovers <= quadrants.handovers
    assert ours.leaves_per_event <= quadrants.leaves_per_event + 1e-9


def split_by_nodes(plan: Plan, movement: Movement, capacity: float) -> Plan:
    """Return the plan after nodes have split each leaf over its capacity, as often as they can."""
    most_ms = max(1.0, capacity * movement.span_ms)
    while True:
        times = movement.time_by_owner(plan_owners(plan, movement.depth), len(plan.leaves))
        parts: list[Part] = []
        for leaf in plan.leaves:
            part = (leaf.key, leaf.rect, leaf.load, 0)
            over = times[leaf.number] > most_ms
            parts += split_leaf(plan, part) if over else [part]
        if len(parts) == len(plan.leaves):
            return plan
        plan = plan_of_parts(plan, parts)


@given(movements(), movements(), st.sampled_from([3.0, 6.0, 12.0, 25.0]))
def test_a_leaf_over_its_capacity_counts_as_the_parts_that_nodes_split_it_into(
    learned: Movement, unseen: Movement, capacity: float
) -> None:
    trusted = propose(SPACE, [], learned, capacity, REACH, is_trusted=True)
    found = propose(SPACE, [], learned, capacity, REACH)
    for plan in (trusted.plans["optimised"], found.plans["optimised"], found.plans["q_only"]):
        split = split_by_nodes(plan, unseen, capacity)
        assert layout_cost(plan, unseen, capacity, REACH) == layout_cost(split, unseen, 1e9, REACH)


@pytest.mark.parametrize("kind", ["random walks", "commuters", "cabs", "concert that moves"])
def test_joined_leaves_that_nodes_split_are_never_worse_than_quadrants(kind: str) -> None:
    for seed in (4, 5):
        record = KINDS[kind](seed)
        found = propose(SPACE, [], record.day(0).movement(), 6.0, REACH)
        unseen = record.day(1).movement()
        ours, quadrants = (
            layout_cost(split_by_nodes(found.plans[name], unseen, 6.0), unseen, 1e9, REACH)
            for name in ("optimised", "q_only")
        )
        assert ours.brokers <= quadrants.brokers
        assert ours.handovers <= quadrants.handovers
        assert ours.leaves_per_event <= quadrants.leaves_per_event + 1e-9


@given(movements(), st.sampled_from([3.0, 6.0, 12.0]))
def test_joined_leaves_are_whole_quadrants(movement: Movement, capacity: float) -> None:
    found = propose(SPACE, [], movement, capacity, REACH)
    quadrants, ours = (
        plan_owners(found.plans[name], 3).ravel().tolist() for name in ("q_only", "optimised")
    )
    assert len(set(zip(quadrants, ours, strict=True))) == len(set(quadrants))


@pytest.mark.parametrize("kind", ["random walks", "commuters", "cabs", "concert"])
def test_on_the_day_after_fewer_brokers_and_fewer_handovers(kind: str) -> None:
    gains = []
    for seed in range(3):
        record = KINDS[kind](seed)
        found = propose(SPACE, [], record.day(0).movement(), 4.0, REACH)
        costs = found.on(record.day(1).movement(), 4.0, REACH)
        ours, quadrants = costs["optimised"], costs["q_only"]
        gains.append(
            (ours.brokers / quadrants.brokers, ours.handovers / max(1, quadrants.handovers))
        )
    brokers, handovers = np.median(gains, axis=0)
    assert brokers <= 0.8
    assert handovers <= 0.95


def test_where_nothing_is_gained_quadrants_are_laid_out() -> None:
    for record in (made.nobody(1), made.one_point(1)):
        found = propose(SPACE, [], record.movement(), 5.0, REACH)
        assert found.chosen == "q_only"
        assert found.plans["optimised"] == found.plans["q_only"]


def test_slow_regions_become_leaves_where_that_pays() -> None:
    movement = made.commuters(3).movement()
    found = propose(SPACE, slow_regions(movement), movement, 3.0, REACH)
    assert found.plans["stays"].r_count > 0
    base, stays = found.learned["q_only"], found.learned["stays"]
    without_events = LayoutWeights(events=0)
    assert stays.relative(without_events, base) < base.relative(without_events, base)


def users_by_leaf(plan: Plan, movement: Movement) -> list[float]:
    times = movement.time_by_owner(plan_owners(plan, movement.depth), len(plan.leaves))
    return [time_ms / movement.span_ms for time_ms in times]


def brute_cost(plan: Plan, movement: Movement, reach: int) -> LayoutCost:
    """The definition, from the plan's own lookups; for plans within capacity."""
    side = movement.side
    middles = [(i + 0.5) / side for i in range(side)]
    owner = {
        row * side + column: plan.leaf_at(x, y).number
        for row, y in enumerate(middles)
        for column, x in enumerate(middles)
    }
    handovers = sum(
        int(moves)
        for low, high, moves in zip(movement.low, movement.high, movement.moves, strict=True)
        if owner[int(low)] != owner[int(high)]
    )
    used, reached = set(), 0
    for cell, leaf in owner.items():
        time_ms = int(movement.time_ms.flat[cell])
        if time_ms:
            used.add(leaf)
            row, column = divmod(cell, side)
            near = {
                owner[r * side + c]
                for r in range(max(0, row - reach), min(side, row + reach + 1))
                for c in range(max(0, column - reach), min(side, column + reach + 1))
            }
            reached += time_ms * len(near)
    return LayoutCost(len(used), handovers, reached / int(movement.time_ms.sum()))


@pytest.mark.parametrize("kind", ["random walks", "cabs", "commuters"])
def test_the_cost_is_the_one_of_the_definition(kind: str) -> None:
    movement = KINDS[kind](4).movement(depth=4)
    found = propose(SPACE, slow_regions(movement), movement, 5.0, REACH)
    for name in ("q_only", "stays", "optimised"):
        plan = found.plans[name]
        if max(users_by_leaf(plan, movement)) <= 5.0:
            expected = brute_cost(plan, movement, 1)
            cost = layout_cost(plan, movement, 5.0, REACH)
            assert (cost.brokers, cost.handovers) == (expected.brokers, expected.handovers)
            assert cost.leaves_per_event == pytest.approx(expected.leaves_per_event)


def test_no_leaf_is_planned_above_the_capacity_unless_it_is_one_cell() -> None:
    for kind in ("cabs", "concert", "random walks"):
        movement = KINDS[kind](5).movement()
        plan = propose(SPACE, [], movement, 4.0, REACH).plans["optimised"]
        owners = plan_owners(plan, movement.depth)
        for leaf, users in enumerate(users_by_leaf(plan, movement)):
            assert users <= 4.0 or int((owners == leaf).sum()) == 1


def test_leaves_that_touch_share_no_point_and_leave_none_out() -> None:
    movement = made.cabs(6).movement()
    plan = propose(SPACE, [], movement, 4.0, REACH).plans["optimised"]
    borders = sorted({x for leaf in plan.leaves for x in (leaf.rect.west, leaf.rect.east)})
    points = [min(1.0, x) for border in borders for x in (border, np.nextafter(border, 2))]
    for x in points:
        for y in points:
            homes = [leaf for leaf in plan.leaves[: plan.r_count] if leaf.rect.contains(x, y)]
            assert len(homes) == 1
            assert plan.leaf_at(x, y) == homes[0]


def test_a_leaf_over_its_capacity_counts_as_its_parts() -> None:
    movement = made.cabs(8).movement()
    plan = Plan(SPACE, [("q", SPACE, 0)], layout="q", depth=6, fanout=8, version=1)
    users = movement.users
    assert layout_cost(plan, movement, users + 1, REACH).brokers == 1
    assert layout_cost(plan, movement, users + 1, REACH).handovers == 0
    split = layout_cost(plan, movement, users / 4, REACH)
    assert split.brokers >= 4
    assert split.handovers > 0


def test_weights() -> None:
    assert LayoutWeights.parse("handovers=2, events=0") == LayoutWeights(1.0, 2.0, 0.0)
    movement = made.cabs(9).movement()
    few = propose(SPACE, [], movement, 3.0, REACH, LayoutWeights(1, 0.01, 0)).learned["optimised"]
    calm = propose(SPACE, [], movement, 3.0, REACH, LayoutWeights(0.01, 1, 0)).learned["optimised"]
    assert calm.handovers <= few.handovers
    with pytest.raises(UnknownNameError, match="handover"):
        LayoutWeights.parse("handover=2")
    with pytest.raises(OutOfRangeError, match="a number"):
        LayoutWeights.parse("handovers=many")
    with pytest.raises(OutOfRangeError, match="above 0"):
        LayoutWeights(brokers=0)


def test_rows_for_json() -> None:
    found = layout_rows({"q_only": LayoutCost(3, 5, 1.23456)}, "learned")
    assert found == [
        {
            "layout": "q_only",
            "days": "learned",
            "brokers": 3,
            "handovers": 5,
            "leaves_per_event": 1.235,
        }
    ]


@pytest.mark.parametrize(("brokers", "handovers", "leaves"), [(101, 101, 2.1), (101, 0, 0.0)])
def test_a_layout_may_be_as_much_worse_as_the_rule_allows_and_no_more(
    brokers: int, handovers: int, leaves: float
) -> None:
    q_only = LayoutCost(100, 100, 2.0)
    assert is_never_worse({"q_only": q_only, "optimised": LayoutCost(brokers, handovers, leaves)})
    for worse in (LayoutCost(103, 0, 0.0), LayoutCost(0, 102, 0.0), LayoutCost(0, 0, 2.11)):
        assert not is_never_worse({"q_only": q_only, "optimised": worse})
