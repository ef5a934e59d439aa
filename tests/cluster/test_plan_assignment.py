"""Who holds which place while nodes are away, gone, or about to leave."""

import pytest
from tests.support.town import town_plan

from nearcast.cluster import NamedPlan
from nearcast.cluster.plan_assignment import PlanAssignment
from nearcast.locality import Rect

NAMES = ["n0", "n1", "n2", "n3"]
HERE = Rect.at(0.1, 0.1)


def held_by(holder: str) -> NamedPlan:
    plan = town_plan(NAMES, 1, 1).plan
    return NamedPlan(plan.with_brokers([NAMES.index(holder)] * len(plan.leaves)), tuple(NAMES))


def layout_at(name: str, holder: str | None) -> PlanAssignment:
    """Return what a node knows that sees all others; without a holder there is no plan."""
    layout = PlanAssignment(name)
    layout.know(one for one in NAMES if one != name)
    if holder is not None:
        layout.prepare(held_by(holder))
        layout.commit()
    return layout


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
    layout = layout_at("n1", "n2")
    for name in away:
        assert layout.set_away(name, is_away=True)
    assert list(layout.holders_of_event(HERE)) == holders
    assert list(layout.holders_of_subscription(HERE)) == holders
    assert len(set(layout.holders_of_event(HERE).values())) == 1
    for name in away:
        assert layout.set_away(name, is_away=False)
    assert list(layout.holders_of_event(HERE)) == ["n2"]


def test_who_is_gone_is_replaced() -> None:
    layout = layout_at("n1", "n2")
    layout.know(["n0", "n3"])
    assert list(layout.holders_of_event(HERE)) == ["n3"]
    assert list(layout.holders_of_subscription(HERE)) == ["n3"]
    layout.know(["n0", "n2", "n3"])  # it comes again
    assert list(layout.holders_of_event(HERE)) == ["n2"]


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
    layout = layout_at("n1", holder)
    for name in away:
        layout.set_away(name, is_away=True)
    layout.leave()
    assert list(layout.holders_of_event(HERE)) == holders


def test_without_a_plan_who_stays_holds_its_own_events() -> None:
    layout = layout_at("n1", None)
    assert list(layout.holders_of_event(HERE)) == ["n1"]
    assert list(layout.holders_of_subscription(HERE)) == ["n0", "n2", "n3"]
