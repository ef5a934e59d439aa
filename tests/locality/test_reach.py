"""Whatever the history, an event reaches exactly the subscribers it matches, each once."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from tests.support.two_nodes import TwoNodes

from nearcast.locality import CellCounts, Plan, Rect

SPACE = Rect(0.0, 0.0, 8.0, 8.0)
MARKS = st.integers(0, 16).map(lambda half: half / 2)
WIDE_MARKS = st.integers(-4, 20).map(lambda half: half / 2)


@st.composite
def rects(draw: st.DrawFn, marks: st.SearchStrategy[float] = MARKS) -> Rect:
    x, y = sorted(draw(st.tuples(marks, marks))), sorted(draw(st.tuples(marks, marks)))
    return Rect(x[0], y[0], x[1], y[1])


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    regions = draw(st.lists(rects(), max_size=5))
    points = draw(st.lists(st.tuples(MARKS, MARKS), max_size=20))
    xs, ys = [p[0] for p in points], [p[1] for p in points]
    return Plan.build(
        SPACE,
        regions,
        CellCounts.from_positions(SPACE, regions, xs, ys, depth=3),
        layout=draw(st.sampled_from(["qr", "q", "r"])),
        capacity=draw(st.integers(1, 4)),
    )


@given(plans(), rects(WIDE_MARKS), rects(WIDE_MARKS))
def test_an_event_and_a_subscription_that_match_share_a_leaf_and_are_delivered_once(
    plan: Plan, area: Rect, event: Rect
) -> None:
    nodes = TwoNodes(plan)
    nodes.subscribe("s", area)

    assert nodes.publish(event) == (["s"] if area.intersects(event) else [])
    if area.intersects(event) and event.intersects(SPACE) and area.intersects(SPACE):
        shared = {plan.leaves[n].key for n in plan.leaves_for_event(event)} & nodes.leaves_of("s")
        assert shared or not area.clamped(SPACE).intersects(event.clamped(SPACE))


@given(plans(), rects(), st.lists(rects(), min_size=1, max_size=6))
def test_after_each_move_a_subscription_is_at_the_leaves_that_the_plan_gives(
    plan: Plan, area: Rect, moves: list[Rect]
) -> None:
    nodes = TwoNodes(plan)
    nodes.subscribe("s", area)
    for move in moves:
        nodes.move("s", move)
        assert nodes.leaves_of("s") == {
            plan.leaves[number].key for number in plan.leaves_for_subscription(move)
        }


class NodesAgreeWithScan(RuleBasedStateMachine):
    """Two nodes that change their plan, beside a plain dictionary."""

    @initialize(plan=plans())
    def start(self, plan: Plan) -> None:
        self.nodes = TwoNodes(plan)
        self.scan: dict[str, Rect] = {}

    @rule(number=st.integers(0, 9), area=rects())
    def subscribe_or_move(self, number: int, area: Rect) -> None:
        name = f"s{number}"
        (self.nodes.move if name in self.scan else self.nodes.subscribe)(name, area)
        self.scan[name] = area

    @rule(number=st.integers(0, 9))
    def unsubscribe(self, number: int) -> None:
        if self.scan.pop(f"s{number}", None) is not None:
            self.nodes.unsubscribe(f"s{number}")

    @rule(plan=plans())
    def change_plan(self, plan: Plan) -> None:
        self.nodes.use_plan(plan)
        versions = {node.locality.plans.versions for node in self.nodes.nodes.values()}
        assert len(versions) == 1
        assert not versions.pop()[1]

    @rule(event=rects())
    def publish(self, event: Rect) -> None:
        due = sorted(name for name, area in self.scan.items() if area.intersects(event))
        assert self.nodes.publish(event) == due


TestNodesAgreeWithScan = NodesAgreeWithScan.TestCase
TestNodesAgreeWithScan.settings = settings(stateful_step_count=16)
