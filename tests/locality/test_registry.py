"""Whatever the history, an event reaches exactly the subscribers it matches, each once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.support import small_plans
from tests.support.small_plans import SPACE, rects

from nearcast.locality import CellCounts, Plan, Rect, Registry, adapted, decide, plan_diff
from nearcast.locality.registration.registry import register
from nearcast.model.errors import KeyInUseError, KeyMissingError, MisuseError, OutOfRangeError

WIDE_MARKS = st.integers(-4, 20).map(lambda half: half / 2)


def plans() -> st.SearchStrategy[Plan]:
    layouts = st.sampled_from(["qr", "q", "r"])
    return small_plans.plans(5, layout=layouts, capacity=st.integers(1, 4))


@given(plans(), rects(WIDE_MARKS), rects(WIDE_MARKS))
def test_an_event_and_a_subscription_that_match_share_a_leaf_and_are_delivered_once(
    plan: Plan, area: Rect, event: Rect
) -> None:
    if not event.intersects(SPACE):
        return
    registry: Registry[str] = Registry(plan)
    registry.register("s", area)
    delivery = registry.publish(event)

    assert delivery.subscribers == (("s",) if area.intersects(event) else ())
    assert set(delivery.idle_leaves) <= set(delivery.leaves)
    if not delivery.subscribers:
        assert delivery.idle_leaves == delivery.leaves


@given(plans(), rects(), st.lists(rects(), min_size=1, max_size=6))
def test_a_decision_enters_and_leaves_what_the_definition_says(
    plan: Plan, area: Rect, moves: list[Rect]
) -> None:
    held = register(plan, area)
    for move in moves:
        handover = decide(plan, held, move)
        before, after = set(held.leaves), set(plan.leaves_for_subscription(move))
        assert set(handover.entered) == after - before
        assert set(handover.left) == before - after
        assert set(handover.registration.leaves) == after
        assert handover.registration.area == move
        held = handover.registration


class RegistryAgreesWithScan(RuleBasedStateMachine):
    """The registry, which splits and merges at a capacity of 3, beside a plain dictionary."""

    @initialize(plan=plans())
    def start(self, plan: Plan) -> None:
        self.registry: Registry[int] = Registry(plan, capacity=3)
        self.scan: dict[int, Rect] = {}

    @rule(one=st.integers(0, 9), area=rects())
    def register_or_move(self, one: int, area: Rect) -> None:
        if one in self.scan:
            self.registry.move(one, area)
        else:
            self.registry.register(one, area)
        self.scan[one] = area

    @rule(one=st.integers(0, 9))
    def remove(self, one: int) -> None:
        if one in self.scan:
            self.registry.remove(one)
            del self.scan[one]

    @rule(plan=plans())
    def change_plan(self, plan: Plan) -> None:
        self.registry.change_plan(plan)

    @rule(event=rects())
    def publish(self, event: Rect) -> None:
        got = self.registry.publish(event).subscribers
        assert sorted(got) == sorted(s for s, area in self.scan.items() if area.intersects(event))

    @invariant()
    def invariants_hold(self) -> None:
        if hasattr(self, "registry"):
            self.registry.check_invariants()


TestRegistryAgreesWithScan = RegistryAgreesWithScan.TestCase
TestRegistryAgreesWithScan.settings = settings(stateful_step_count=16)


def test_a_leaf_over_its_capacity_splits_and_empty_siblings_merge_again() -> None:
    registry: Registry[int] = Registry(Plan.build(SPACE, [], CellCounts.empty(3)), capacity=3)
    for user, x in enumerate((0.5, 2.5, 4.5, 6.5, 0.6)):
        registry.register(user, (x, 1.0))
    split = registry.plan

    assert len(split.leaves) > 1
    assert max(registry.loads()) <= 3
    for user in range(5):
        registry.remove(user)
    assert [leaf.key for leaf in registry.plan.leaves] == ["q"]
    assert registry.plan.version > split.version > 1


def test_a_slow_region_over_its_capacity_gets_child_blocks_and_loses_them_again() -> None:
    plan = Plan.build(SPACE, [(2, 2, 4, 4)], CellCounts.empty(3))
    registry: Registry[int] = Registry(plan, capacity=2)
    for user, place in enumerate([(2.2, 2.2), (3.8, 2.2), (2.2, 3.8), (3.8, 3.8)]):
        registry.register(user, place)

    keys = [leaf.key for leaf in registry.plan.leaves]
    assert keys[:4] == ["r0.0", "r0.1", "r0.2", "r0.3"]
    assert [len(registry.publish(place).subscribers) for place in [(2.2, 2.2), (3.8, 3.8)]] == [
        1,
        1,
    ]
    for user in range(4):
        registry.remove(user)
    assert registry.plan.leaves[0].key == "r0"
    assert registry.plan.leaves[0].rect == Rect(2, 2, 4, 4)


def test_areas_that_cover_a_whole_leaf_do_not_split_it() -> None:
    registry: Registry[int] = Registry(Plan.build(SPACE, [], CellCounts.empty(3)), capacity=2)
    for user in range(9):
        registry.register(user, SPACE)

    assert len(registry.plan.leaves) == 1


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


def test_misuse_is_refused_and_changes_nothing() -> None:
    registry: Registry[str] = Registry(Plan.build(SPACE, [], CellCounts.empty(3)))
    registry.register("a", (1, 1))
    with pytest.raises(KeyInUseError):
        registry.register("a", (2, 2))
    with pytest.raises(KeyMissingError):
        registry.move("b", (2, 2))
    with pytest.raises(OutOfRangeError):
        registry.move("a", (float("nan"), 1))
    with pytest.raises(OutOfRangeError):
        registry.publish((9, 9))
    with pytest.raises(MisuseError):
        adapted(registry.plan, [], capacity=1)
    with pytest.raises(OutOfRangeError):
        adapted(registry.plan, [0], capacity=0)
    registry.check_invariants()
    assert registry.publish((1, 1)).subscribers == ("a",)
    assert len(registry) == 1
