"""The load of leaves as holders measure it, and when the one node proposes an adapted plan."""

from __future__ import annotations

import pytest

from nearcast.locality import NamedPlan, Plan, Rect, Timing
from nearcast.locality.layout.adapting import AdaptRules
from nearcast.locality.registration.holder import Holder
from nearcast.locality.registration.leaf_loads import LeafLoads, PlanProposal, PlanProposer
from nearcast.locality.registration.messages import (
    CoverSpan,
    EventOffer,
    PlacedEvent,
    Register,
)

SPACE = Rect(0.0, 0.0, 8.0, 8.0)
NODES = ("a", "b", "c")
RULES = AdaptRules(least_load=10, sustained_s=10, least_gap_s=30)


def named(version: int = 1, brokers: str = "0012") -> NamedPlan:
    leaves = [(f"q{digit}", SPACE, 10) for digit in "0123"]
    plan = Plan(SPACE, leaves, layout="q", depth=4, fanout=8, version=version,
                brokers=[int(one) for one in brokers])  # fmt: skip
    return NamedPlan(plan, NODES)


class Watched:
    """The first of three nodes, `a`, and what the others report."""

    def __init__(self) -> None:
        self.proposer = PlanProposer("a", RULES)
        self.now = 0

    def tick(
        self,
        plan: NamedPlan,
        *,
        peers: tuple[str, ...] = ("b", "c"),
        silent: str = "",
        is_changing: bool = False,
        version: int | None = None,
    ) -> PlanProposal | None:
        """Five seconds later all but one report: a has two busy leaves, the others calm ones."""
        self.now += 5_000
        for name in {"a", *peers} - {silent}:
            loads = {
                leaf.key: 50.0 if leaf.key in ("q0", "q1") else 5.0
                for leaf in plan.plan.leaves
                if plan.plan.node_of(leaf.number) == name
            }
            self.proposer.report(name, version or plan.version, loads, self.now)
        return self.proposer.propose(plan, peers, self.now, is_changing=is_changing)

    def ticks(self, count: int, plan: NamedPlan, **options: object) -> list[PlanProposal | None]:
        return [self.tick(plan, **options) for _ in range(count)]  # type: ignore[arg-type]


def test_a_busy_node_gives_a_leaf_away_after_a_while_and_not_again_within_the_gap() -> None:
    watched, plan = Watched(), named()
    found = watched.ticks(8, plan)
    first = next(n for n, one in enumerate(found) if one is not None)
    assert first >= 6  # thirty seconds after the plan was seen first
    proposal = found[first]
    assert proposal is not None
    assert proposal.reason == "a has 100 messages a minute, the mean is 37"
    assert proposal.plan.version == 2
    left = [leaf.load for leaf in proposal.plan.plan.leaves
            if proposal.plan.plan.node_of(leaf.number) == "a"]  # fmt: skip
    assert sum(left) <= 65  # four changes at once: a leaf is split, three parts of it move
    assert sum(one is not None for one in found) == 1


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"is_changing": True}, "a change of plan is under way"),
        ({"peers": ("b",)}, "c has leaves and is away"),
        ({"silent": "b"}, "b does not report its load"),
        ({"version": 7}, "a, b, c does not report its load"),  # of another plan
    ],
)
def test_nothing_is_proposed_while_loads_are_not_known(
    options: dict[str, object], reason: str
) -> None:
    watched = Watched()
    assert not any(watched.ticks(3, named()))  # busy, but the plan is new
    assert not any(watched.ticks(20, named(), **options))
    assert watched.proposer.waits_for == reason
    found = watched.ticks(3, named())
    assert found[0] is None  # busy for so long is counted from now on
    assert watched.proposer.waits_for == ""
    assert found[2] is not None


def test_an_old_report_does_not_count() -> None:
    watched = Watched()
    watched.tick(named())
    assert not any(watched.ticks(10, named(), silent="c"))
    assert watched.proposer.waits_for == "c does not report its load"


def test_a_node_that_joined_since_gets_leaves() -> None:
    watched, plan = Watched(), named()
    found = [one for one in watched.ticks(10, plan, peers=("b", "c", "new")) if one is not None]
    assert found[0].plan.nodes == (*NODES, "new")
    holders = {found[0].plan.plan.node_of(leaf.number) for leaf in found[0].plan.plan.leaves}
    assert "new" in holders


def test_a_node_that_is_away_and_has_no_leaves_gets_none() -> None:
    """It would be the least busy of all, and another node would have to stand in for it."""
    watched, plan = Watched(), named(brokers="0001")
    found = [one for one in watched.ticks(10, plan, peers=("b",)) if one is not None]
    assert found[0].plan.nodes == NODES
    holders = {found[0].plan.plan.node_of(leaf.number) for leaf in found[0].plan.plan.leaves}
    assert holders == {"a", "b"}
    assert found[0].reason == "a has 105 messages a minute, the mean is 55"


def test_a_new_plan_of_somebody_else_starts_the_gap_again() -> None:
    watched = Watched()
    assert not any(watched.ticks(5, named()))
    assert not any(watched.ticks(6, named(version=4)))  # an operator shared it
    assert any(watched.ticks(3, named(version=4)))


def test_a_holder_measures_registrations_events_and_matches_of_its_own_leaves() -> None:
    holder, loads, plan = Holder("a", 1, Timing()), LeafLoads("a"), named()
    cover = Rect(1.0, 1.0, 2.0, 2.0)
    for number in range(3):
        span = CoverSpan(("1:q0",), cover, 0, None)
        holder.receive(Register("b", f"s{number}", 1, (span,)), 0)
    assert loads.measure(holder, plan, 0) == {"q0": 3.0, "q1": 0.0}
    event = PlacedEvent(("c", 1), Rect.at(1.5, 1.5), 10, 60_000, 1)
    for _ in range(2):  # the second time it is known
        holder.receive(EventOffer("c", event, 1, ("1:q0",)), 10)
    # one event and three matches in six seconds are 40 a minute, beside three registrations
    (busy, calm) = loads.measure(holder, plan, 6_000).values()
    share = 1 - 0.5 ** (6 / 20)
    assert busy == pytest.approx(3 + share * 40)
    assert calm == 0.0
    assert loads.measure(holder, named(version=2), 8_000)["q0"] < busy  # of another plan
