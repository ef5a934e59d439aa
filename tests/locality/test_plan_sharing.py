"""Which node gets each leaf of a plan that is shared; one absence moves no other's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.small_plans import plans

from nearcast.locality import NamedPlan, Plan, Rect
from nearcast.locality.layout.balancing import assign_leaves
from nearcast.locality.registration.plan_sharing import plan_for_nodes
from nearcast.model.errors import UnknownNameError

SPACE = Rect(0.0, 0.0, 8.0, 8.0)
NODES = ["east", "north", "south", "west"]
PATHS = [f"{one}{two}" for one in "0123" for two in "0123"]


def grid(load: int = 10, *, version: int = 1) -> Plan:
    """Return a plan of sixteen equal blocks."""
    leaves = [(f"q{path}", SPACE, load) for path in PATHS]
    return Plan(SPACE, leaves, layout="q", depth=3, fanout=8, version=version)


def quarters(*, version: int = 1) -> Plan:
    """Return the sixteen blocks, four side by side for each node, which it names."""
    return grid(version=version).with_brokers([n // 4 for n in range(16)]).with_nodes(NODES)


def holders(named: NamedPlan) -> list[str]:
    return [named.nodes[named.plan.broker_of(leaf.number)] for leaf in named.plan.leaves]


@pytest.mark.parametrize("absent", NODES)
def test_leaves_go_to_the_nodes_that_a_plan_names_though_one_of_four_is_away(absent: str):
    there = [name for name in NODES if name != absent]

    found = plan_for_nodes(quarters(), there, away=[absent])

    assert holders(found) == [NODES[n // 4] for n in range(16)]
    assert list(found.nodes) == NODES


def test_a_named_node_that_nobody_knows_is_an_error_that_names_all_and_the_way_out():
    with pytest.raises(UnknownNameError) as problem:
        plan_for_nodes(quarters(), ["east", "north", "other"], away=["west"])

    said = str(problem.value)
    assert "no node 'south'" in said
    assert "east, north, other, west" in said
    assert "--reassign" in said


@pytest.mark.parametrize("away", [[], ["south"]])
def test_reassigning_moves_the_leaves_of_the_missing_node_alone_and_shares_them_out(
    away: list[str],
):
    there = ["east", "north", "west"]

    found = plan_for_nodes(quarters(), there, away=away, reassigns=True)

    before = holders(NamedPlan(quarters(), tuple(NODES)))
    after = holders(found)
    assert [b for a, b in zip(before, after, strict=True) if a != "south"] == [
        a for a in before if a != "south"
    ]
    assert sorted(after.count(name) for name in there) == [5, 5, 6]
    assert list(found.nodes) == there


def test_a_name_without_leaves_need_not_be_known_and_a_new_node_may_stand_in():
    plan = quarters().with_nodes([*NODES, "gone"])
    found = plan_for_nodes(plan, [*NODES, "new"])
    assert found.nodes == (*NODES, "new")


@pytest.mark.parametrize("absent", NODES)
@pytest.mark.parametrize("brokers", [None, [n // 4 for n in range(16)]])
def test_without_names_one_absent_node_of_four_moves_no_leaf_of_the_others(
    absent: str, brokers: list[int] | None
):
    force = NamedPlan(quarters(), tuple(NODES))
    new = grid(version=2) if brokers is None else grid(version=2).with_brokers(brokers)
    there = [name for name in NODES if name != absent]

    found = plan_for_nodes(new, there, away=[absent], last=force)

    moved = [
        (a, b) for a, b in zip(holders(force), holders(found), strict=True) if a not in (absent, b)
    ]
    assert moved == []
    assert set(holders(found)) == set(there)
    assert found.plan.nodes == found.nodes


def test_numbers_become_the_nodes_that_hold_most_of_them_today():
    force = NamedPlan(quarters(), tuple(NODES))
    turned = grid(version=2).with_brokers([(n // 4 + 1) % 4 for n in range(16)])

    found = plan_for_nodes(turned, NODES, last=force)

    assert holders(found) == holders(force)
    assert found.plan.brokers == turned.brokers


def test_without_a_plan_in_force_number_n_is_the_nth_node():
    found = plan_for_nodes(grid().with_brokers([n // 4 for n in range(16)]), NODES)
    assert holders(found) == [NODES[n // 4] for n in range(16)]


def test_a_new_node_gets_a_share_of_an_unnamed_plan():
    force = NamedPlan(grid().with_brokers([n // 6 for n in range(16)]), tuple(NODES[:3]))
    found = plan_for_nodes(grid(version=2), NODES, last=force)
    assert sorted(holders(found).count(name) for name in NODES) == [4, 4, 4, 4]


def test_movements_of_the_file_decide_and_holders_are_given_up_where_they_cut_far_more():
    across = {(a, a + 8): 1_000 for a in range(8)}  # people commute from south to north
    plan = grid(version=2).with_flows(across)
    force = NamedPlan(grid().with_brokers([n // 8 for n in range(16)]), ("a", "b"))

    found = holders(plan_for_nodes(plan, ["a", "b"], last=force))

    assert all(found[a] == found[b] for a, b in across)
    assert found.count("a") == 8
    assert holders(plan_for_nodes(grid(version=2), ["a", "b"], last=force)) == holders(force)


def test_a_plan_in_force_of_another_city_is_no_guide():
    other = Plan(Rect(90, 90, 91, 91), [("q", Rect(90, 90, 91, 91), 5)], layout="q", depth=3,
                 fanout=8, version=1, brokers=[0])  # fmt: skip
    found = plan_for_nodes(grid(version=2), NODES, last=NamedPlan(other, ("west",)))
    assert sorted(holders(found).count(name) for name in NODES) == [4, 4, 4, 4]
    assert found.nodes[0] == "west"  # it goes on to hold what lies outside


@given(
    plans(capacity=st.integers(1, 4)),
    st.lists(st.sampled_from(NODES), min_size=1, unique=True),
    st.integers(1, 4),
    st.booleans(),
)
def test_every_leaf_has_a_node_that_is_there_and_those_that_are_keep_theirs(
    plan: Plan, present: list[str], count: int, is_named: bool
):
    plan = plan.with_brokers(assign_leaves(plan, {}, count).brokers)
    if is_named:
        plan = plan.with_nodes(NODES)

    found = holders(plan_for_nodes(plan, present, reassigns=True))

    assert set(found) <= set(present)
    for leaf, name in zip(plan.leaves, found, strict=True):
        if is_named and plan.node_of(leaf.number) in present:
            assert name == plan.node_of(leaf.number)


def test_a_new_node_gets_leaves_though_the_others_could_bear_them():
    paths = [f"{one}{two}" for one in PATHS for two in "0123"]
    fine = Plan(SPACE, [(f"q{path}", SPACE, 10) for path in paths], layout="q", depth=3, fanout=8,
                version=1, brokers=[n // 16 for n in range(64)], nodes=NODES)  # fmt: skip
    new = fine.with_nodes(None).remade([(f"q{path}", SPACE, 10) for path in paths], None, 2)
    found = plan_for_nodes(new, [*NODES, "new"], last=NamedPlan(fine, tuple(NODES)))
    assert holders(found).count("new") == 8


def test_a_first_plan_gives_each_part_to_the_node_that_its_clients_are_connected_to():
    """Otherwise nearly every event would cross: it is published at one node and held at another."""
    plan = grid(version=1).with_nodes(None)
    brokers = [leaf.number // 4 for leaf in plan.leaves]
    middles = [
        ((west + east) / 2, (south + north) / 2)
        for west, south, east, north in (leaf.rect for leaf in plan.leaves)
    ]
    turned = [NODES[(part + 2) % 4] for part in brokers]
    clients = {
        name: [middles[n] for n, home in enumerate(turned) if home == name] for name in NODES
    }
    clients["unknown"] = [middles[0]] * 9  # a node that is not there does not count
    clients[NODES[0]] = [*clients[NODES[0]], (99.0, 99.0)]  # nor does a place outside
    found = plan_for_nodes(plan.with_brokers(brokers), NODES, clients=clients)
    assert holders(found) == turned
    last = NamedPlan(plan.with_brokers(brokers), tuple(NODES))
    kept = plan_for_nodes(plan.with_brokers(brokers, 2), NODES, clients=clients, last=last)
    assert holders(kept) == [NODES[part] for part in brokers]  # registrations are there already
