"""What a change of plan means for each node, against people who are counted one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.small_plans import plans

from nearcast.locality import Plan, Rect, adapted, node_changes, plan_diff
from nearcast.model.errors import MisuseError

SPACE = Rect(0.0, 0.0, 8.0, 8.0)


def four(brokers: list[int], loads: tuple[int, ...] = (10, 20, 30, 40), version: int = 1) -> Plan:
    leaves = [(f"q{digit}", SPACE, load) for digit, load in zip("0123", loads, strict=True)]
    return Plan(SPACE, leaves, layout="q", depth=3, fanout=8, version=version, brokers=brokers)


def test_leaves_and_users_that_come_and_go_are_told_for_each_node():
    old = four([0, 0, 1, 1]).with_nodes(["a", "b"])
    new = four([0, 1, 2, 0], version=2).with_nodes(["a", "b", "c"])

    found = {one.node: one for one in node_changes(old, new)}

    assert sorted(found) == ["a", "b", "c"]
    assert (found["a"].gained, found["a"].lost) == (("q3",), ("q1",))
    assert (found["b"].gained, found["b"].lost) == (("q1",), ("q2", "q3"))
    assert (found["c"].gained, found["c"].lost) == (("q2",), ())
    assert [(one.users_in, one.users_out) for one in found.values()] == [
        (40, 20),
        (20, 70),
        (30, 0),
    ]
    assert [(one.users_before, one.users_after) for one in found.values()] == [
        (30, 50), (70, 20), (0, 30)
    ]  # fmt: skip
    assert [(one.leaves_before, one.leaves_after) for one in found.values()] == [
        (2, 2), (2, 1), (0, 1)
    ]  # fmt: skip
    assert plan_diff(old, new).moved == ("q1", "q2", "q3")


def test_names_count_and_not_the_numbers_behind_them():
    old, new = four([0, 0, 1, 1]).with_nodes(["a", "b"]), four([1, 1, 0, 0]).with_nodes(["b", "a"])

    assert all(one.users_in == one.users_out == 0 for one in node_changes(old, new))
    assert plan_diff(old, new).is_empty
    assert plan_diff(old.with_nodes(None), new).moved == ("q0", "q1", "q2", "q3")


def test_a_leaf_that_is_split_moves_the_people_of_the_parts_that_go():
    old = four([0, 0, 1, 1]).with_nodes(["a", "b"])
    split = adapted(old, [40, 20, 30, 40], capacity=35)
    new = split.with_brokers([1 if leaf.key == "q03" else split.broker_of(leaf.number)
                              for leaf in split.leaves])  # fmt: skip

    found = {one.node: one for one in node_changes(old, new)}

    assert found["a"].users_out == found["b"].users_in == 10
    assert "q03" in found["b"].gained
    assert (found["a"].users_in, found["b"].users_out) == (0, 0)


def test_plans_that_assign_no_brokers_or_other_spaces_cannot_be_compared_by_node():
    plan = four([0, 0, 1, 1])
    bare = plan.remade([(leaf.key, leaf.rect, leaf.load) for leaf in plan.leaves], None, None)
    assert node_changes(plan, bare) == node_changes(bare, plan) == ()
    assert [one.node for one in node_changes(plan, plan)] == ["broker 0", "broker 1"]
    place = Rect(0, 0, 1, 1)
    other = Plan(place, [("q", place, 1)], layout="q", depth=3, fanout=8, version=1, brokers=[0])
    with pytest.raises(MisuseError):
        node_changes(plan, other)


@given(plans(capacity=st.integers(1, 3)), plans(capacity=st.integers(1, 3)), st.integers(1, 3))
def test_everybody_who_leaves_a_node_comes_to_another_and_nobody_moves_between_equal_plans(
    old: Plan, new: Plan, count: int
):
    old = old.with_brokers([n % count for n in range(len(old.leaves))])
    new = new.with_brokers([n % 2 for n in range(len(new.leaves))])

    found = node_changes(old, new)

    assert abs(sum(one.users_in - one.users_out for one in found)) <= len(found)
    assert sum(one.users_after for one in found) == sum(leaf.load for leaf in new.leaves)
    for one in found:
        assert 0 <= one.users_in <= one.users_after + 1
    assert all(one.users_in == one.users_out == 0 for one in node_changes(new, new))
