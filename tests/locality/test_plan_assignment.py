"""The holders of a place while nodes are away, gone, or about to leave."""

import pytest
from tests.support.town import town_plan

from nearcast.cluster import NamedPlan
from nearcast.locality import Rect
from nearcast.locality.registration.plan_assignment import PlanAssignment

NAMES = ["n0", "n1", "n2", "n3"]
HERE = Rect.at(0.1, 0.1)


def held_by(holder: str) -> NamedPlan:
    plan = town_plan(NAMES, 1, 1).plan
    return NamedPlan(plan.with_brokers([NAMES.index(holder)] * len(plan.leaves)), tuple(NAMES))


def plans_at(name: str, holder: str | None) -> PlanAssignment:
    """Return the plans of a node that sees all others; without a holder there is no plan."""
    plans = PlanAssignment(name)
    plans.know(one for one in NAMES if one != name)
    if holder is not None:
        plans.prepare(held_by(holder))
        plans.commit()
    return plans


@pytest.mark.parametrize(
    ("away", "holders"),
    [
        ([], ["n2"]),
        (["n2"], ["n2", "n3"]),  # beside it: others may see it still
        (["n3"], ["n2"]),
        (["n2", "n3"], ["n2", "n3", "n0"]),
        (["n0", "n2", "n3"], ["n2", "n3", "n0", "n1"]),
    ],
)
def test_who_is_away_has_all_after_it_beside_it_up_to_one_that_is_there(
    away: list[str], holders: list[str]
) -> None:
    plans = plans_at("n1", "n2")
    for name in away:
        assert plans.set_away(name, is_away=True)
    assert list(plans.holders_of_event(HERE)) == holders
    assert list(plans.holders_of_subscription(HERE)) == holders
    assert len(set(plans.holders_of_event(HERE).values())) == 1
    for name in away:
        assert plans.set_away(name, is_away=False)
    assert list(plans.holders_of_event(HERE)) == ["n2"]


def test_who_is_gone_is_replaced() -> None:
    plans = plans_at("n1", "n2")
    plans.know(["n0", "n3"])
    assert list(plans.holders_of_event(HERE)) == ["n3"]
    assert list(plans.holders_of_subscription(HERE)) == ["n3"]
    plans.know(["n0", "n2", "n3"])  # it comes again
    assert list(plans.holders_of_event(HERE)) == ["n2"]


@pytest.mark.parametrize(
    ("holder", "away", "holders"),
    [
        ("n1", [], ["n1", "n2"]),
        ("n1", ["n2"], ["n1", "n2", "n3"]),  # others see n2, or do not: both are possible
        ("n2", [], ["n2"]),
        ("n2", ["n2"], ["n2", "n3"]),
        ("n0", ["n0", "n2", "n3"], ["n0", "n1", "n2", "n3"]),
        (None, [], ["n1", "n0", "n2", "n3"]),
    ],
)
def test_who_leaves_lets_others_hold_its_events(
    holder: str | None, away: list[str], holders: list[str]
) -> None:
    plans = plans_at("n1", holder)
    for name in away:
        plans.set_away(name, is_away=True)
    plans.leave()
    assert list(plans.holders_of_event(HERE)) == holders


def test_without_a_plan_who_stays_holds_its_own_events() -> None:
    plans = plans_at("n1", None)
    assert list(plans.holders_of_event(HERE)) == ["n1"]
    assert list(plans.holders_of_subscription(HERE)) == ["n0", "n2", "n3"]
