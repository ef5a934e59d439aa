"""A plan that follows the load: a concert, calm nights, and loads that only flicker."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nearcast.locality import CellCounts, Plan, Rect, assign_leaves
from nearcast.locality.layout.adapting import AdaptRules, LoadMeter, PlanAdapter
from nearcast.locality.layout.changes import plan_diff
from nearcast.model.errors import MisuseError, OutOfRangeError

SPACE = Rect(0.0, 0.0, 1.0, 1.0)
NODES = 4
PEOPLE = 1_000


def even_plan(seed: int = 1) -> Plan:
    xs, ys = np.random.default_rng(seed).random((2, PEOPLE))
    counts = CellCounts.from_positions(SPACE, [], xs, ys, depth=8)
    plan = Plan.build(SPACE, [], counts, layout="q", capacity=100)
    return plan.with_brokers(assign_leaves(plan, {}, NODES).brokers)


def loads_of(plan: Plan, places: np.ndarray) -> list[float]:
    leaves = plan.leaf_numbers_at(places[:, 0], places[:, 1])
    return [float(count) for count in np.bincount(leaves, minlength=len(plan.leaves))]


def node_loads(plan: Plan, loads: list[float]) -> list[float]:
    found = [0.0] * NODES
    for leaf, load in enumerate(loads):
        found[plan.broker_of(leaf)] += load
    return found


def concert(seed: int) -> list[np.ndarray]:
    """Where people are, every ten seconds: 30 % walk to one block, stay, and walk home."""
    rng = np.random.default_rng(seed)
    homes = rng.random((PEOPLE, 2))
    stage = np.array([0.71, 0.68]) + rng.normal(0, 0.015, (PEOPLE, 2))
    goes = rng.random(PEOPLE) < 0.3
    steps = []
    for step in range(300):
        share = np.clip(step / 60, 0, 1) - np.clip((step - 180) / 60, 0, 1)
        at = np.where(goes[:, None], homes + share * (stage - homes), homes)
        steps.append(np.clip(at + rng.normal(0, 0.001, at.shape), 0, 1))
    return steps


def test_at_a_concert_no_node_stays_much_busier_than_the_others() -> None:
    fixed = plan = even_plan()
    adapter, before, after, plans = PlanAdapter(), 0.0, 0.0, 0
    for step, places in enumerate(concert(3)):
        loads = loads_of(plan, places)
        if 120 <= step < 180:  # all have arrived, and there was time to adapt
            before = max(before, *node_loads(fixed, loads_of(fixed, places)))
            after = max(after, *node_loads(plan, loads))
        found = adapter.propose(plan, loads, now_s=10.0 * step)
        if found is not None:
            assert found.version == plan.version + 1
            plan, plans = found, plans + 1
    assert before > 1.8 * PEOPLE / NODES
    assert after < 1.55 * PEOPLE / NODES
    assert 1 <= plans <= 12
    ends = node_loads(plan, loads_of(plan, concert(3)[-1]))
    assert max(ends) <= 1.6 * PEOPLE / NODES


def test_a_change_is_small_and_every_leaf_has_a_node() -> None:
    plan = even_plan()
    places = concert(4)[150]
    adapter = PlanAdapter(AdaptRules(most_changes=2))
    assert adapter.propose(plan, loads_of(plan, places), 0.0) is None  # not sustained yet
    found = adapter.propose(plan, loads_of(plan, places), 40.0)
    assert found is not None
    assert found.brokers is not None
    assert set(found.brokers) <= set(range(NODES))
    diff = plan_diff(plan, found)
    assert len(diff.removed) + len(diff.moved) <= 2
    assert not diff.is_empty


def test_nothing_changes_twice_within_the_gap_nor_for_a_flicker() -> None:
    plan = even_plan()
    crowd, calm = loads_of(plan, concert(5)[150]), loads_of(plan, concert(5)[0])
    adapter = PlanAdapter()
    for second in range(0, 300, 10):  # never busy for half a minute
        assert adapter.propose(plan, crowd if second % 40 < 20 else calm, float(second)) is None
    assert adapter.propose(plan, crowd, 300.0) is None
    found = adapter.propose(plan, crowd, 331.0)
    assert found is not None
    for second in range(332, 391):
        again = adapter.propose(found, loads_of(found, concert(5)[150]), float(second))
        assert again is None


def test_one_leaf_with_all_the_load_is_split_and_shared_out() -> None:
    plan = even_plan()
    heavy = [1.0] * len(plan.leaves)
    heavy[5] = 500.0
    adapter = PlanAdapter(AdaptRules(sustained_s=0.0))
    found = adapter.propose(plan, heavy, 0.0)
    assert found is not None
    children = [leaf for leaf in found.leaves if leaf.key.startswith(plan.leaves[5].key)]
    assert len(children) >= 4
    assert len({found.broker_of(leaf.number) for leaf in children}) > 1


def test_calm_siblings_become_one_leaf_again() -> None:
    plan = even_plan()
    heavy = [1.0] * len(plan.leaves)
    heavy[5] = 500.0
    adapter = PlanAdapter(AdaptRules(sustained_s=0.0, least_gap_s=0.0))
    split = adapter.propose(plan, heavy, 0.0)
    assert split is not None
    quiet = [20.0] * len(split.leaves)
    for leaf in split.leaves:
        if leaf.key not in {one.key for one in plan.leaves}:
            quiet[leaf.number] = 0.0
    merged = adapter.propose(split, quiet, 1.0)
    assert merged is not None
    assert len(merged.leaves) < len(split.leaves)


def test_a_crowd_on_one_point_does_not_split_for_ever() -> None:
    plan = even_plan()
    adapter = PlanAdapter(AdaptRules(sustained_s=0.0, least_gap_s=0.0))
    places = np.full((PEOPLE, 2), 0.3)
    for second in range(200):
        found = adapter.propose(plan, loads_of(plan, places), float(second))
        plan = plan if found is None else found
    assert len(plan.leaves) < 100


def test_bad_rules_and_loads_are_refused() -> None:
    with pytest.raises(OutOfRangeError, match="until > 1"):
        AdaptRules(over=0.9)
    with pytest.raises(MisuseError, match="3 loads"):
        PlanAdapter().propose(even_plan(), [1.0, 2.0, 3.0], 0.0)


def test_a_meter_forgets_half_in_a_half_life() -> None:
    meter = LoadMeter(half_life_s=10.0)
    assert meter.add(8.0, 0.0) == 8.0
    assert math.isclose(meter.add(0.0, 10.0), 4.0)
    assert math.isclose(meter.add(0.0, 5.0), 4.0)  # the clock was set back
    assert math.isclose(meter.add(4.0, 1_000.0), 4.0)
