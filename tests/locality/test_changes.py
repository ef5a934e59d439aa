"""The next version of a plan: split, merged, and compared with the one before."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.locality import CellCounts, Plan, Rect, adapted, plan_diff
from nearcast.locality.layout.grid import Grid
from nearcast.model.errors import MisuseError, OutOfRangeError

SPACE = Rect(0.0, 0.0, 8.0, 8.0)
MARKS = st.integers(0, 16).map(lambda half: half / 2)
Places = list[tuple[float, float]]


def settled(plan: Plan, places: Places, capacity: int) -> Plan:
    """Split and merge for these users until nothing changes."""
    for _ in range(64):
        after = adapted(plan, loads(plan, places), capacity)
        if after is plan:
            return plan
        plan = after
    raise AssertionError("splitting and merging does not settle")


def loads(plan: Plan, places: Places) -> list[int]:
    xs, ys = [x for x, _ in places], [y for _, y in places]
    numbers = np.asarray(plan.leaf_numbers_at(xs, ys), dtype=np.intp)
    return list(map(int, np.bincount(numbers, minlength=len(plan.leaves))))


@given(st.lists(st.tuples(MARKS, MARKS), max_size=20), st.lists(st.tuples(MARKS, MARKS)))
def test_splitting_and_merging_settles_with_no_leaf_over_capacity_unless_it_cannot_split(
    places: Places, later: Places
) -> None:
    plan = Plan.build(SPACE, [Rect(2, 2, 4, 4)], CellCounts.empty(3))
    for users in (places, later, []):
        plan = settled(plan, users, 3)
        for leaf, load in zip(plan.leaves, loads(plan, users), strict=True):
            assert load <= 3 or leaf.depth >= 3
    assert [leaf.key for leaf in plan.leaves] == ["r0", "q"]
    assert plan.leaves[0].rect == Rect(2, 2, 4, 4)


def test_a_leaf_over_its_capacity_splits_and_empty_siblings_merge_again() -> None:
    plan = Plan.build(SPACE, [], CellCounts.empty(3))
    places = [(x, 1.0) for x in (0.5, 2.5, 4.5, 6.5, 0.6)]
    split = settled(plan, places, 3)

    assert len(split.leaves) > 1
    assert max(loads(split, places)) <= 3
    merged = settled(split, [], 3)
    assert [leaf.key for leaf in merged.leaves] == ["q"]
    assert merged.version > split.version > 1


def test_a_slow_region_over_its_capacity_gets_child_blocks_and_loses_them_again() -> None:
    plan = Plan.build(SPACE, [(2, 2, 4, 4)], CellCounts.empty(3))
    places = [(2.2, 2.2), (3.8, 2.2), (2.2, 3.8), (3.8, 3.8)]
    split = settled(plan, places, 2)

    assert [leaf.key for leaf in split.leaves][:4] == ["r0.0", "r0.1", "r0.2", "r0.3"]
    assert loads(split, places)[:4] == [1, 1, 1, 1]
    merged = settled(split, [], 2)
    assert merged.leaves[0].key == "r0"
    assert merged.leaves[0].rect == Rect(2, 2, 4, 4)


def test_a_leaf_of_whole_cells_splits_between_quadrants_and_merges_again() -> None:
    rect = Grid.over(SPACE, 3).closed_cells(2, 0, 6, 2)  # two quadrants of 2 x 2 cells
    plan = Plan(
        SPACE, [("r0", rect, 9), ("q", SPACE, 0)], layout="qr", depth=3, fanout=8, version=1
    )
    halves = adapted(plan, [9, 0], capacity=4)
    crowd = [(2.5, 0.5)] * 6 + [(2.5, 1.5)] * 3
    cells = settled(plan, crowd, 4)

    assert [(leaf.key, leaf.rect.west) for leaf in halves.leaves] == [
        ("r0.0", 2.0), ("r0.1", 4.0), ("q", 0.0),
    ]  # fmt: skip
    assert [leaf.key for leaf in cells.leaves] == ["r0.000", "r0.002", "r0.01", "r0.1", "q"]
    merged = settled(cells, [], 4)
    assert [leaf.key for leaf in merged.leaves] == ["r0", "q"]
    assert merged.leaves[0].rect == rect


def test_load_that_a_split_cannot_distribute_does_not_split_a_leaf() -> None:
    plan = Plan.build(SPACE, [], CellCounts.empty(3))

    assert adapted(plan, [9], capacity=2, divisible=[0]) is plan
    assert len(adapted(plan, [9], capacity=2, divisible=[3]).leaves) == 4


def test_a_crowd_on_one_point_splits_down_to_the_depth_limit_and_no_further() -> None:
    plan = settled(Plan.build(SPACE, [], CellCounts.empty(6)), [(3.3, 3.3)] * 50, 4)

    assert plan.height == 6


def test_children_keep_the_broker_of_their_parent_and_merging_takes_the_busiest() -> None:
    plan = Plan.build(SPACE, [], CellCounts.empty(3)).with_brokers([5])
    split = adapted(plan, [9], capacity=3)
    again = adapted(split.with_brokers([0, 1, 2, 3]), [0, 0, 1, 0], capacity=4)

    assert split.brokers == (5, 5, 5, 5)
    assert (again.brokers, again.version) == ((2,), 3)
    assert adapted(split, [1, 1, 1, 1], capacity=8) is split


def test_a_diff_names_what_is_added_removed_reshaped_and_moved() -> None:
    old = Plan.build(SPACE, [(1, 1, 2, 2)], CellCounts.empty(3)).with_brokers([0, 1])
    split = adapted(old, [0, 9], capacity=3)
    other = Plan.build(SPACE, [(1, 1, 3, 3)], CellCounts.empty(3), version=2).with_brokers([0, 0])
    diff = plan_diff(old, split)

    assert (diff.added, diff.removed) == (("q0", "q1", "q2", "q3"), ("q",))
    assert plan_diff(old, other).reshaped == ("r0",)
    assert plan_diff(old, other).moved == ("q",)
    assert not diff.is_empty
    assert plan_diff(old, old).is_empty
    assert any(line.startswith("+ q0") for line in diff.lines())
    assert "same leaves" in plan_diff(old, old).lines()[1]
    assert len(plan_diff(old, other).lines()) == 3
    with pytest.raises(MisuseError):
        plan_diff(old, Plan.build((0, 0, 1, 1), [], CellCounts.empty(3)))


def test_wrong_loads_and_capacities_are_refused() -> None:
    plan = Plan.build(SPACE, [], CellCounts.empty(3))
    with pytest.raises(MisuseError):
        adapted(plan, [], capacity=1)
    with pytest.raises(OutOfRangeError):
        adapted(plan, [0], capacity=0)
