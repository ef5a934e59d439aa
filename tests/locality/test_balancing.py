"""Leaves on few brokers: balanced, with few paths cut."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.locality import CellCounts, Plan, Rect, adapted
from nearcast.locality.layout.balancing import (
    _Parts,
    assign_leaves,
    border_flows,
    movement_flows,
    naive_assignment,
)
from nearcast.model.errors import MisuseError, OutOfRangeError

SPACE = Rect(0.0, 0.0, 8.0, 8.0)


def sixteen() -> Plan:
    """Sixteen equal blocks of two by two units."""
    plan = Plan.build(SPACE, [], CellCounts.empty(3))
    for _ in range(2):
        plan = adapted(plan, [9] * len(plan.leaves), capacity=3)
    return plan


def four() -> Plan:
    return adapted(Plan.build(SPACE, [], CellCounts.empty(3)), [9], capacity=3)


def test_flows_count_movements_of_the_same_user_between_two_leaves_either_way() -> None:
    users = [1, 1, 1, 1, 2, 2, 3, 3]
    leaves = [0, 1, 0, 0, 0, 2, -1, 2]

    assert movement_flows(users, leaves) == {(0, 1): 2, (0, 2): 1}
    assert movement_flows([], []) == {}


@given(
    st.dictionaries(st.tuples(st.integers(0, 3), st.integers(0, 3)), st.integers(1, 9), max_size=6),
    st.lists(st.integers(1, 9), min_size=4, max_size=4),
    st.integers(1, 4),
)
def test_costs_are_what_the_definition_says_and_the_balance_is_kept(
    raw: dict[tuple[int, int], int], loads: list[int], brokers: int
) -> None:
    flows = {(min(a, b), max(a, b)): n for (a, b), n in raw.items() if a != b}
    plan = four()
    for found in (
        assign_leaves(plan, flows, brokers, loads),
        naive_assignment(plan, flows, brokers, loads),
    ):
        parts = found.brokers
        totals = [sum(loads[n] for n in range(4) if parts[n] == b) for b in range(brokers)]
        assert found.cut == sum(n for (a, b), n in flows.items() if parts[a] != parts[b])
        assert found.flow == sum(flows.values())
        assert found.imbalance == pytest.approx(max(totals) / (sum(loads) / brokers))
        assert set(parts) <= set(range(brokers))


def best_cut(flows: dict[tuple[int, int], int], loads: list[int], brokers: int, most: float) -> int:
    """Oracle: try every assignment."""
    best = None
    for parts in itertools.product(range(brokers), repeat=len(loads)):
        totals = [0] * brokers
        for leaf, part in enumerate(parts):
            totals[part] += loads[leaf]
        if max(totals) <= most:
            cut = sum(n for (a, b), n in flows.items() if parts[a] != parts[b])
            best = cut if best is None else min(best, cut)
    assert best is not None
    return best


def test_two_towns_joined_by_one_road_are_cut_at_the_road() -> None:
    plan, loads = sixteen(), [1] * 16
    west = [n for n in range(16) if plan.leaves[n].rect.east <= 4]
    towns = [west, [n for n in range(16) if n not in west]]
    flows = {(min(a, b), max(a, b)): 10 for t in towns for a, b in itertools.pairwise(t)}
    flows[min(west[0], towns[1][0]), max(west[0], towns[1][0])] = 1
    found = assign_leaves(plan, flows, 2, loads)

    assert found.cut == 1
    assert found.imbalance == 1.0
    assert naive_assignment(plan, flows, 2, loads).cut > 10


@pytest.mark.parametrize("seed", range(6))
def test_the_cut_is_near_the_best_there_is_on_small_plans(seed: int) -> None:
    random = np.random.default_rng(seed)
    plan = adapted(four(), [9, 0, 0, 0], capacity=4)
    loads = random.integers(1, 5, len(plan.leaves)).tolist()
    pairs = itertools.combinations(range(len(loads)), 2)
    flows = {pair: int(random.integers(1, 20)) for pair in pairs if random.random() < 0.5}
    most = max(*loads, 1.4 * sum(loads) / 2)

    found = assign_leaves(plan, flows, 2, loads, tolerance=0.4)
    assert found.cut <= 1.4 * best_cut(flows, loads, 2, most)


def test_borders_are_as_long_as_what_two_leaves_share() -> None:
    quarters = four()
    rects = [leaf.rect for leaf in quarters.leaves]
    touching = {
        (a, b): 500  # half a side of the space, in thousandths
        for a, b in itertools.combinations(range(4), 2)
        if rects[a].west == rects[b].west or rects[a].south == rects[b].south
    }

    assert border_flows(quarters) == touching  # corners that touch are no border
    assert border_flows(Plan.build(SPACE, [], CellCounts.empty(3))) == {}


def test_a_slow_region_borders_on_the_leaves_around_it() -> None:
    plan = Plan.build(SPACE, [(1.0, 1.0, 3.0, 2.0)], CellCounts.empty(3))
    assert [leaf.kind for leaf in plan.leaves] == ["r", "q"]

    assert border_flows(plan) == {(0, 1): 375}  # two eighths wide, one eighth high


@pytest.mark.parametrize("brokers", [2, 4])
def test_where_nobody_counted_movements_each_broker_gets_leaves_that_lie_together(
    brokers: int,
) -> None:
    plan, loads = sixteen(), [1] * 16
    found = assign_leaves(plan, {}, brokers, loads)
    inside = [
        length
        for (a, b), length in border_flows(plan).items()
        if found.brokers[a] == found.brokers[b]
    ]

    whole = 24 * 250  # all borders; the shortest cuts are one line through the middle, or two
    assert sum(inside) == whole - 1000 * (1 if brokers == 2 else 2)
    assert found.imbalance == 1.0
    assert (found.cut, found.flow) == (0, 0)  # what was counted: nothing


@pytest.mark.parametrize("seed", range(8))
def test_borders_cut_are_shorter_than_those_of_strips(seed: int) -> None:
    random = np.random.default_rng(seed)
    xs, ys = random.uniform(0, 8, (2, 200))
    counts = CellCounts.from_positions(SPACE, [], xs, ys, depth=6)
    plan = Plan.build(SPACE, [], counts, capacity=12)
    borders = border_flows(plan)

    def cut(parts: list[int]) -> int:
        return sum(length for (a, b), length in borders.items() if parts[a] != parts[b])

    wests, souths = ([leaf.rect[axis] for leaf in plan.leaves] for axis in (0, 1))
    strips = [[min(3, int(low // 2)) for low in lows] for lows in (wests, souths)]
    found = assign_leaves(plan, {}, 4)
    assert cut(list(found.brokers)) < 0.72 * min(map(cut, strips))
    assert found.imbalance <= 1.2


def test_counted_movements_count_and_borders_do_not() -> None:
    plan = four()
    diagonal = {(0, 3): 1, (1, 2): 1}  # leaves that share a corner only
    assert assign_leaves(plan, diagonal, 2, [1] * 4).cut == 0


def test_one_broker_cuts_nothing_and_a_plan_without_users_is_assigned_all_the_same() -> None:
    assert assign_leaves(four(), {(0, 1): 5}, 1).cut == 0
    empty = assign_leaves(four(), {}, 3)
    assert (len(empty.brokers), empty.cut) == (4, 0)


def test_bad_parameters_are_refused() -> None:
    with pytest.raises(OutOfRangeError):
        assign_leaves(four(), {}, 0)
    with pytest.raises(MisuseError):
        naive_assignment(four(), {}, 2, [1])


def test_a_balanced_state_is_better_than_one_that_is_not_whatever_they_cut() -> None:
    parts = _Parts([0, 1, 1, 1], {(1, 3): 5}, 2, [3, 3, 1, 1], most=4.4)
    improved = parts.improve(7.4)

    assert improved
    assert max(parts.total) <= 4.4
