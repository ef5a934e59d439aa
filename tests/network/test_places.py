"""Clients that move, on several real nodes: who was near when it happened hears of it, once."""

import pytest
from hypothesis import settings

from nearcast.simulator.town import Town, run_town, town_plan

assert settings.default is not None
IS_SOAK = settings.default.max_examples > 50
RUNS = range(2_000) if IS_SOAK else range(10)


@pytest.mark.parametrize("with_plan", [False, True])
def test_who_is_near_hears_of_it_on_whatever_node(with_plan: bool):
    town = Town(4, 7)
    if with_plan:
        town.use_plan(town_plan(town.names, 7, 1))
        town.run(2_000)
        assert {node.mesh.plans for node in town.nodes.values()} == {(1, 0)}
    town.wander(120)
    town.run(5_000)
    assert sum(sum(one.values()) for one in town.due.values()) > 30
    assert town.problems() == []


def test_with_a_plan_registrations_are_handed_over():
    town = Town(4, 9)
    town.use_plan(town_plan(town.names, 9, 1))
    town.run(2_000)
    town.wander(30)
    assert sum(node.mesh.handovers for node in town.nodes.values()) > 5


def test_a_change_of_plan_loses_and_doubles_nothing():
    town = Town(4, 8)
    for version in range(1, 6):
        town.use_plan(town_plan(town.names, version, version), steps_between=3)
        town.wander(10)
    town.run(5_000)
    assert {node.mesh.plans for node in town.nodes.values()} == {(5, 0)}
    assert town.problems() == []


@pytest.mark.timeout(36_000)
def test_faults_and_plans_lose_nothing_acknowledged_and_double_nothing():
    reports = [run_town(seed, most_nodes=16 if IS_SOAK else 6) for seed in RUNS]
    assert [(one.seed, one.problems) for one in reports if one.problems] == []
    assert sum(one.due for one in reports) > 5 * len(reports)
    assert sum(one.crashes for one in reports) > len(reports)
    assert sum(one.plan_version for one in reports) > len(reports)
