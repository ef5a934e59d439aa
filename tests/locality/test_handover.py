"""Handover and change of plan: no loss, no double delivery, whatever order messages come in."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from nearcast.locality import CellCounts, Plan, Rect, adapted
from nearcast.locality.registration.gateway import Gateway
from nearcast.locality.registration.holder import Holder
from nearcast.locality.registration.messages import (
    Commit,
    CoverSpan,
    DeliverToClient,
    EventId,
    EventOffer,
    HolderMatch,
    Known,
    MatchTaken,
    Outgoing,
    PlacedEvent,
    PlanStatus,
    Prepare,
    Probe,
    Register,
    Timing,
)
from nearcast.locality.registration.outbox import EventOutbox
from nearcast.locality.registration.retry import RetryUntilAcked
from nearcast.locality.registration.rollout import Phase, Rollout
from nearcast.locality.registration.view import PlanView
from nearcast.model.errors import KeyInUseError, KeyMissingError, MisuseError, OutOfRangeError

SPACE = Rect(0.0, 0.0, 8.0, 8.0)
TIMING = Timing(retry_ms=100, most_retry_ms=400, probe_ms=500, lease_ms=2_000, horizon_ms=10_000)
WEST, EAST = Rect(1, 1, 2, 2), Rect(6, 1, 7, 2)


def halves(version: int = 1, *, swapped: bool = False) -> Plan:
    """Four blocks: broker 0 has the west, broker 1 the east; the other way round if swapped."""
    root = Plan.build(SPACE, [], CellCounts.empty(2))
    four = adapted(root, [9], capacity=3)
    west, east = (1, 0) if swapped else (0, 1)
    return four.with_brokers([west, east, west, east], version=version)


class Node:
    """The cores of one node, joined by hand."""

    def __init__(self, number: int, plan: Plan, nodes: int = 3) -> None:
        self.number, self.starts = number, 1
        self.view = PlanView(plan)
        self.pursuit = RetryUntilAcked(number, TIMING, probes=True)
        self.gateway = Gateway(number, self.view, self.pursuit, TIMING)
        self.spool = EventOutbox(number, self.view, self.pursuit, TIMING)
        self.holder = Holder(number, 1, TIMING)
        self.rollout = Rollout(number, range(nodes), TIMING)

    def receive(self, message: Any, now: int) -> list[Any]:
        if isinstance(message, Known):
            out: list[Any] = list(self.pursuit.heard(message.holder, message.table, now))
            if message.key and self.pursuit.is_known_table(message.holder, message.table):
                self.pursuit.acknowledged(message.holder, message.key, message.revision)
            return out
        if isinstance(message, HolderMatch):
            return list(self.gateway.matched(message, now))
        if isinstance(message, Prepare | Commit):
            changed, answer = self.view.receive(message, self.number)
            more = (
                self.gateway.plans_changed(now) + self.spool.plans_changed(now) if changed else []
            )
            return [answer, *more]
        if isinstance(message, PlanStatus):
            return list(self.rollout.receive(message, now))
        return list(self.holder.receive(message, now))

    def advance(self, now: int) -> list[Any]:
        parts = (self.gateway, self.spool, self.holder, self.pursuit, self.rollout)
        return [output for part in parts for output in part.advance(now)]

    def restart(self, now: int) -> list[Any]:
        self.starts += 1
        self.holder = Holder(self.number, self.starts, TIMING)
        self.pursuit = RetryUntilAcked(self.number, TIMING, probes=True)
        return list(
            self.gateway.restarted(self.pursuit, now) + self.spool.restarted(self.pursuit, now)
        )


def one(messages: list[Any], kind: type) -> Any:
    found = [m.message for m in messages if isinstance(m, Outgoing) and isinstance(m.message, kind)]
    assert len(found) == 1, messages
    return found[0]


def delivered(outputs: list[Any]) -> list[tuple[str, EventId]]:
    return [(o.subscription, o.event.event_id) for o in outputs if isinstance(o, DeliverToClient)]


# --- T0.6: between the old table and the new one -----------------------------------------------


def test_t0_6_leaving_the_old_table_before_entering_the_new_one_loses_what_comes_between() -> None:
    """The literal reading, in one process, for comparison."""
    from nearcast.locality import Registry

    registry: Registry[str] = Registry(halves())
    registry.register("s", WEST)
    registry.remove("s")
    assert registry.publish((6.5, 1.5)).subscribers == ()  # lost
    registry.register("s", EAST)


def test_t0_6_an_event_that_comes_before_the_registration_is_found_when_it_arrives() -> None:
    node, east = Node(0, halves()), Holder(1, 1, TIMING)
    node.gateway.subscribe("s", WEST, now=0)
    moving = node.gateway.move("s", EAST, now=10)
    event, offers = node.spool.publish((6.5, 1.5), now=11)

    assert (
        delivered(east.receive(one(offers, EventOffer), now=12)) == []
    )  # nobody is known here yet
    register = next(m.message for m in moving if m.to == 1)
    match = one(east.receive(register, now=20), HolderMatch)
    assert delivered(node.gateway.matched(match, now=21)) == [("s", event.event_id)]


def test_t0_6_an_event_of_before_the_move_is_found_at_the_old_holder_however_late_it_comes() -> (
    None
):
    node, west = Node(0, halves()), Holder(0, 1, TIMING)
    west.receive(one(node.gateway.subscribe("s", WEST, now=0), Register), now=1)
    event, offers = node.spool.publish((1.5, 1.5), now=5)
    later, late_offers = node.spool.publish((1.5, 1.5), now=15)
    leaving = next(m.message for m in node.gateway.move("s", EAST, now=10) if m.to == 0)
    west.receive(leaving, now=12)

    match = one(west.receive(one(offers, EventOffer), now=500), HolderMatch)
    assert delivered(node.gateway.matched(match, now=501)) == [("s", event.event_id)]
    assert [m.message for m in west.receive(one(late_offers, EventOffer), now=502)] == [
        Known(0, (1, 1), ("e", later.event_id), 2)
    ]


def test_a_match_from_two_holders_or_twice_from_one_is_delivered_once_and_acknowledged_always() -> (
    None
):
    node = Node(0, halves())
    node.gateway.subscribe("s", Rect(1, 1, 7, 2), now=0)
    event = PlacedEvent((2, 1), Rect(3, 1, 5, 2), 5, 5_000, qos=1)
    outputs = [
        node.gateway.matched(HolderMatch(holder, event, 1, ("s",)), now=9) for holder in (0, 1, 1)
    ]

    assert [delivered(output) for output in outputs] == [[("s", (2, 1))], [], []]
    assert [output[-1] for output in outputs] == [
        Outgoing(holder, MatchTaken(0, (2, 1), 1)) for holder in (0, 1, 1)
    ]


def test_a_match_is_checked_against_where_the_client_was_at_publication() -> None:
    node = Node(0, halves())
    node.gateway.subscribe("s", WEST, now=10)
    node.gateway.move("s", EAST, now=20)
    node.gateway.unsubscribe("s", now=30)

    def due(at: int, place: Rect, number: int) -> bool:
        event = PlacedEvent((2, number), place, at, 5_000, qos=0)
        return bool(
            delivered(node.gateway.matched(HolderMatch(1, event, 1, ("s", "nobody")), now=40))
        )

    assert [due(at, WEST, at) for at in (9, 10, 19, 20, 30)] == [False, True, True, False, False]
    assert [due(at, EAST, at + 50) for at in (19, 20, 29, 30)] == [False, True, True, False]


def test_an_event_is_not_delivered_at_or_after_its_deadline() -> None:
    node = Node(0, halves())
    node.gateway.subscribe("s", WEST, now=0)
    event = PlacedEvent((2, 1), WEST, 5, 100, qos=1)

    assert delivered(node.gateway.matched(HolderMatch(1, event, 1, ("s",)), now=100)) == []
    assert delivered(node.gateway.matched(HolderMatch(1, event, 1, ("s",)), now=99)) == [
        ("s", (2, 1))
    ]


def test_an_expired_event_is_not_taken_in_and_one_held_is_forgotten_at_its_deadline() -> None:
    holder = Holder(0, 1, TIMING)
    event = PlacedEvent((2, 1), WEST, 5, 100, qos=1)
    register = Register(1, "s", 1, (CoverSpan(("q0",), WEST, 0, None),))
    holder.receive(EventOffer(2, event, 1, ("q0",)), now=50)
    holder.advance(now=100)

    assert [type(m.message) for m in holder.receive(register, now=101)] == [Known]
    assert [type(m.message) for m in holder.receive(EventOffer(2, event, 2, ("q0",)), now=102)] == [
        Known
    ]


# --- what is told again ------------------------------------------------------------------------


def test_a_holder_that_forgot_is_told_everything_again_once_it_answers() -> None:
    node = Node(0, halves())
    told = node.gateway.subscribe("s", WEST, now=0)
    _, offers = node.spool.publish((1.5, 1.5), now=1)
    before = Holder(0, 1, TIMING)
    for message in (one(told, Register), one(offers, EventOffer)):
        for answer in before.receive(message, now=2):
            node.receive(answer.message, now=3)
    assert node.pursuit.pending() == 0

    after = Holder(0, 2, TIMING)
    probe = one(node.advance(now=600), Probe)
    known = one(after.receive(probe, now=601), Known)
    again = node.receive(known, now=602)
    assert {type(m.message) for m in again} == {Register, EventOffer}
    assert node.pursuit.pending() == 2


def test_a_late_answer_of_an_earlier_incarnation_counts_for_nothing() -> None:
    node = Node(0, halves())
    register = one(node.gateway.subscribe("s", WEST, now=0), Register)
    old = one(Holder(0, 1, TIMING).receive(register, now=1), Known)
    fresh = one(Holder(0, 2, TIMING).receive(Probe(0), now=2), Known)
    node.receive(fresh, now=3)
    node.receive(old, now=4)

    assert node.pursuit.pending() == 1  # the second incarnation does not have it


def test_what_is_not_acknowledged_is_told_again_at_growing_intervals_until_it_is_given_up() -> None:
    pursuit = RetryUntilAcked(0, TIMING, probes=True)
    pursuit.tell(1, "k", 1, "hello", now=0, give_up_at=1_600)
    sent = []
    while (at := pursuit.wake_at()) is not None:
        sent += [at] * len(pursuit.advance(at))

    assert sent == [100, 300, 700, 1_100, 1_500]
    assert len(pursuit) == 0


def test_an_older_acknowledgement_does_not_end_the_pursuit_of_a_newer_revision() -> None:
    pursuit = RetryUntilAcked(0, TIMING, probes=False)
    pursuit.tell(1, "k", 1, "old", now=0, give_up_at=9_999)
    pursuit.tell(1, "k", 2, "new", now=1, give_up_at=9_999)
    pursuit.acknowledged(1, "k", 1)

    assert pursuit.pending() == 1
    assert pursuit.message(1, "k") == "new"
    pursuit.acknowledged(1, "k", 2)
    assert pursuit.pending() == 0


def test_an_older_registration_that_comes_late_does_not_undo_a_newer_one() -> None:
    holder = Holder(0, 1, TIMING)
    newer = Register(1, "s", 2, (CoverSpan(("q0",), WEST, 10, None),))
    older = Register(1, "s", 1, (CoverSpan(("q1",), EAST, 0, None),))
    holder.receive(newer, now=20)
    holder.receive(older, now=21)

    assert holder.loads() == {"q0": 1}


def test_a_holder_forgets_a_silent_gateway_after_its_lease_and_names_a_new_table_afterwards() -> (
    None
):
    holder = Holder(0, 1, TIMING)
    first = one(
        holder.receive(Register(1, "s", 1, (CoverSpan(("q0",), WEST, 0, None),)), now=0), Known
    )
    holder.advance(now=2_000)
    again = one(holder.receive(Probe(1), now=2_001), Known)

    assert holder.loads() == {}
    assert again.table > first.table


def test_a_holder_gives_back_the_memory_of_what_is_over() -> None:
    holder = Holder(0, 1, TIMING)
    holder.receive(Register(1, "s", 1, (CoverSpan(("q0",), WEST, 0, 5),)), now=6)
    holder.receive(EventOffer(2, PlacedEvent((2, 1), WEST, 0, 900, 1), 1, ("q0",)), now=7)
    now = 7
    while (at := holder.wake_at()) is not None and now < 60_000:
        now = max(at, now + 1)
        holder.advance(now)

    assert holder.loads() == {}
    assert holder.wake_at() is None
    assert now <= 2_000 * 7


def test_a_gateway_gives_back_the_memory_of_what_is_over() -> None:
    node = Node(0, halves())
    node.gateway.subscribe("s", WEST, now=0)
    for step in range(40):
        node.gateway.move("s", Rect(1 + step % 2 * 5, 1, 2 + step % 2 * 5, 2), now=10 + step)
    node.gateway.unsubscribe("s", now=60)
    for now in (10_000, 20_100, 30_200):
        node.gateway.advance(now)

    assert node.gateway.wake_at() is None
    assert len(node.pursuit) == 0


@pytest.mark.parametrize("is_answered", [False, True])
def test_a_holder_drops_the_match_of_an_event_at_its_deadline(is_answered: bool) -> None:
    holder = Holder(0, 1, TIMING)
    holder.receive(Register(1, "s", 1, (CoverSpan(("q0",), WEST, 0, None),)), now=0)
    match = one(
        holder.receive(EventOffer(2, PlacedEvent((2, 1), WEST, 5, 900, 1), 1, ("q0",)), now=6),
        HolderMatch,
    )
    if is_answered:
        holder.receive(MatchTaken(1, match.event.event_id, match.revision), now=7)
    assert len(holder._pursuit) == 1
    holder.advance(now=900)

    assert len(holder._pursuit) == 0


def test_a_gateway_remembers_an_event_that_it_delivered_until_its_deadline() -> None:
    node = Node(0, halves())
    node.gateway.subscribe("s", WEST, now=0)
    for number, deadline in ((1, 9_000), (2, 10_001)):
        event = PlacedEvent((2, number), WEST, 5, deadline, qos=1)
        node.gateway.matched(HolderMatch(1, event, 1, ("s",)), now=10)
    node.gateway.advance(now=10_000)

    assert node.gateway._subscriptions["s"].delivered == {(2, 2): 10_001}


def test_qos_0_is_offered_and_matched_once_without_pursuit() -> None:
    node, west = Node(0, halves()), Holder(0, 1, TIMING)
    west.receive(one(node.gateway.subscribe("s", WEST, now=0), Register), now=1)
    _, offers = node.spool.publish((1.5, 1.5), now=2, qos=0)
    match = one(west.receive(one(offers, EventOffer), now=3), HolderMatch)

    assert [type(o) for o in node.gateway.matched(match, now=4)] == [DeliverToClient]
    assert [m for m in west.advance(now=150) if isinstance(m.message, HolderMatch)] == []
    assert len(node.spool) == 0


def test_a_move_within_the_slack_needs_no_message_and_is_still_exact() -> None:
    view = PlanView(halves())
    pursuit = RetryUntilAcked(0, TIMING, probes=False)
    gateway = Gateway(0, view, pursuit, Timing(slack=1.0))
    gateway.subscribe("s", WEST, now=0)

    assert gateway.move("s", Rect(1.5, 1.5, 2.5, 2.5), now=10) == []
    assert gateway.move("s", Rect(2.5, 1.5, 3.5, 2.5), now=20) != []
    missed = PlacedEvent(
        (1, 1), Rect(1, 1, 1.2, 1.2), 15, 5_000, 0
    )  # inside the cover, not the area
    assert delivered(gateway.matched(HolderMatch(0, missed, 1, ("s",)), now=30)) == []


def test_many_quick_moves_are_told_in_few_spans() -> None:
    node = Node(0, halves())
    node.gateway.subscribe("s", WEST, now=0)
    for step in range(100):
        out = node.gateway.move("s", WEST.grown(step / 200), now=step + 1)
    spans = one(out, Register).spans

    assert len(spans) <= 8
    assert (spans[0].since, spans[-1].until) == (0, None)


def test_the_work_of_a_handover_is_bounded_by_the_leaves_it_concerns() -> None:
    node = Node(0, halves())
    node.gateway.subscribe("s", WEST, now=0)
    messages = node.gateway.move("s", EAST, now=10)

    assert sorted(m.to for m in messages) == [0, 1]  # one to the old holder, one to the new
    assert node.gateway.leaves_of("s") == {1: ("q1",)}


# --- change of plan ------------------------------------------------------------------------------


def test_nobody_leaves_the_old_plan_before_all_have_learnt_the_new_one() -> None:
    rollout = Rollout(0, [0, 1, 2], TIMING)
    plan = halves(2, swapped=True)
    assert [m.to for m in rollout.propose(plan, now=0)] == [0, 1, 2]

    assert rollout.receive(PlanStatus(0, 1, 2), now=1) == []
    assert rollout.receive(PlanStatus(1, 1, 2), now=2) == []
    assert rollout.receive(PlanStatus(2, 1, None), now=3) == []  # has not learnt it
    assert [m.to for m in rollout.advance(now=100)] == [2]
    commits = rollout.receive(PlanStatus(2, 1, 2), now=101)
    assert [m.message for m in commits] == [Commit(0, 2)] * 3
    for node in (0, 1, 2):
        rollout.receive(PlanStatus(node, 2, None), now=110)
    assert rollout.phase is Phase.IDLE
    assert rollout.wake_at() is None


def test_a_node_that_is_gone_for_good_does_not_hold_a_change_up() -> None:
    rollout = Rollout(0, [0, 1], TIMING)
    rollout.propose(halves(2), now=0)
    rollout.receive(PlanStatus(0, 1, 2), now=1)

    assert [m.message for m in rollout.forget(1, now=2)] == [Commit(0, 2)]


def test_only_one_change_at_a_time_and_only_the_next_version() -> None:
    rollout, view = Rollout(0, [0], TIMING), PlanView(halves())
    rollout.propose(halves(2), now=0)
    with pytest.raises(MisuseError):
        rollout.propose(halves(3), now=1)
    assert not view.prepare(halves(3))
    assert not view.commit(2)
    assert view.prepare(halves(2))
    assert not view.prepare(halves(2))
    assert view.commit(2)
    with pytest.raises(MisuseError):
        view.prepare(Plan.build((0, 0, 1, 1), [], CellCounts.empty(2), version=3))


def test_while_two_plans_are_in_use_both_holders_are_told_and_the_old_one_is_ended_afterwards() -> (
    None
):
    node = Node(0, halves())
    node.gateway.subscribe("s", WEST, now=0)
    _, first = node.spool.publish((1.5, 1.5), now=1)
    prepared = node.receive(Prepare(9, halves(2, swapped=True)), now=10)
    committed = node.receive(Commit(9, 2), now=20)

    assert [m.to for m in first] == [0]
    assert sorted((m.to, type(m.message).__name__) for m in prepared) == [
        (1, "EventOffer"), (1, "Register"), (9, "PlanStatus"),
    ]  # fmt: skip
    register = one(committed, Register)
    assert [(s.since, s.until) for s in register.spans] == [(0, 20)]


def test_an_event_under_way_since_before_the_change_is_still_matched_at_the_old_holder() -> None:
    node, west = Node(0, halves()), Holder(0, 1, TIMING)
    west.receive(one(node.gateway.subscribe("s", WEST, now=0), Register), now=1)
    event, offers = node.spool.publish((1.5, 1.5), now=5, qos=0)
    node.receive(Prepare(9, halves(2, swapped=True)), now=10)
    west.receive(one(node.receive(Commit(9, 2), now=20), Register), now=21)
    moving = node.gateway.move("s", EAST, now=25)  # which broker 0 has now
    west.receive(next(m.message for m in moving if m.to == 0), now=26)

    match = one(west.receive(one(offers, EventOffer), now=30), HolderMatch)
    assert delivered(node.gateway.matched(match, now=31)) == [("s", event.event_id)]


# --- any order at all --------------------------------------------------------------------------


class AnyOrder(RuleBasedStateMachine):
    """Three nodes; messages come twice, late or never, in any order; nodes crash anywhere."""

    @initialize()
    def start(self) -> None:
        self.now = 0
        self.version = 1
        self.nodes = [Node(n, halves()) for n in range(3)]
        self.bag: list[Outgoing] = []
        self.history: dict[str, list[tuple[int, Rect | None]]] = {}
        self.events: list[PlacedEvent] = []
        self.got: list[tuple[str, EventId]] = []

    def take(self, outputs: list[Any]) -> None:
        self.bag += [o for o in outputs if isinstance(o, Outgoing)]
        self.got += delivered(outputs)

    def follow(self, name: str, area: Rect | None) -> None:
        self.history.setdefault(name, []).append((self.now, area))

    @rule(name=st.sampled_from(["s0", "s1", "s2"]), area=st.sampled_from([WEST, EAST, SPACE]))
    def subscribe_or_move(self, name: str, area: Rect) -> None:
        gateway = self.nodes[int(name[1])].gateway
        active = name in self.history and self.history[name][-1][1] is not None
        self.follow(name, area)
        change = gateway.move if active else gateway.subscribe
        self.take(change(name, area, self.now))

    @rule(name=st.sampled_from(["s0", "s1", "s2"]))
    def unsubscribe(self, name: str) -> None:
        if name in self.history and self.history[name][-1][1] is not None:
            self.follow(name, None)
            self.take(self.nodes[int(name[1])].gateway.unsubscribe(name, self.now))

    @rule(node=st.integers(0, 2), place=st.sampled_from([(1.5, 1.5), (6.5, 1.5), (1, 1, 7, 2)]))
    def publish(self, node: int, place: tuple[float, ...]) -> None:
        event, out = self.nodes[node].spool.publish(place, self.now)
        self.events.append(event)
        self.take(out)

    @precondition(lambda self: self.bag)
    @rule(which=st.integers(0, 99), keep=st.booleans())
    def deliver(self, which: int, keep: bool) -> None:
        place = which % len(self.bag)
        message = self.bag[place] if keep else self.bag.pop(place)
        self.take(self.nodes[int(message.to)].receive(message.message, self.now))

    @precondition(lambda self: self.bag)
    @rule(which=st.integers(0, 99))
    def drop(self, which: int) -> None:
        self.bag.pop(which % len(self.bag))

    @rule(ms=st.sampled_from([1, 60, 250, 700]))
    def wait(self, ms: int) -> None:
        self.now += ms
        for node in self.nodes:
            self.take(node.advance(self.now))

    @rule(node=st.integers(0, 2))
    def crash(self, node: int) -> None:
        self.take(self.nodes[node].restart(self.now))

    @rule()
    def new_plan(self) -> None:
        rollout = self.nodes[0].rollout
        if rollout.phase is Phase.IDLE and self.version < 4:
            self.version += 1
            self.take(
                rollout.propose(halves(self.version, swapped=self.version % 2 == 0), self.now)
            )

    def teardown(self) -> None:
        """Heal: deliver everything for a while, then judge by the definition."""
        if not hasattr(self, "nodes"):
            return
        for _ in range(40):
            self.now += 50
            for node in self.nodes:
                self.take(node.advance(self.now))
            for _ in range(8):
                bag, self.bag = self.bag, []
                for message in bag:
                    self.take(self.nodes[int(message.to)].receive(message.message, self.now))
        assert self.nodes[0].rollout.phase is Phase.IDLE
        assert sorted(self.got) == sorted(self.due())

    def due(self) -> list[tuple[str, EventId]]:
        pairs = []
        for event in self.events:
            for name, history in self.history.items():
                areas = [area for since, area in history if since <= event.published_at]
                alive = self.now < event.deadline
                was_delivered = (name, event.event_id) in self.got
                if (
                    areas
                    and areas[-1]
                    and areas[-1].intersects(event.area)
                    and (alive or was_delivered)
                ):
                    pairs.append((name, event.event_id))
        return pairs


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(stateful_step_count=40)


def test_misuse_is_refused_and_changes_nothing() -> None:
    node = Node(0, halves())
    node.gateway.subscribe("s", WEST, now=0)
    with pytest.raises(KeyInUseError):
        node.gateway.subscribe("s", WEST, now=1)
    with pytest.raises(KeyMissingError):
        node.gateway.move("t", WEST, now=1)
    with pytest.raises(OutOfRangeError):
        node.gateway.move("s", (float("nan"), 0), now=1)
    for bad in ({"qos": 3}, {"lifetime_ms": 0}):
        with pytest.raises(OutOfRangeError):
            node.spool.publish((1, 1), now=1, **bad)  # type: ignore[arg-type]
    with pytest.raises(OutOfRangeError):
        node.spool.publish((9, 9), now=1)
    assert len(node.spool) == 0
    assert node.gateway.leaves_of("s") == {0: ("q0",)}


def test_a_lifetime_beyond_the_horizon_is_cut_to_it() -> None:
    node = Node(0, halves())
    event, _ = node.spool.publish((1, 1), now=100, lifetime_ms=99_999)
    short, _ = node.spool.publish((1, 1), now=100, lifetime_ms=5)
    node.spool.advance(now=105)

    assert (event.deadline, short.deadline) == (10_100, 105)
    assert len(node.spool) == 1
    assert node.spool.wake_at() == 10_100


def test_an_event_offered_for_other_leaves_later_is_known_at_both_and_forgotten_at_both() -> None:
    holder = Holder(0, 1, TIMING)
    event = PlacedEvent((2, 1), SPACE, 5, 900, qos=1)
    holder.receive(EventOffer(2, event, 1, ("q0",)), now=10)
    holder.receive(EventOffer(2, event, 2, ("q1",)), now=11)
    in_q0 = Register(1, "s", 1, (CoverSpan(("q0",), WEST, 0, None),))
    assert one(holder.receive(in_q0, now=12), HolderMatch).subscriptions == ("s",)

    holder.advance(now=900)
    later = Register(1, "t", 1, (CoverSpan(("q0", "q1"), WEST, 0, None),))
    assert [type(m.message) for m in holder.receive(later, now=901)] == [Known]


def test_who_is_back_is_asked_at_once_what_it_remembers() -> None:
    pursuit = RetryUntilAcked(0, TIMING, probes=True)
    first, second = Known(1, (1, 1)), Known(1, (2, 1))
    pursuit.tell(1, "kept", 1, "kept", 0, 10_000)
    assert pursuit.again(1, 1) == [Outgoing(1, Probe(0)), Outgoing(1, "kept")]

    pursuit.heard(1, first.table, 2)
    pursuit.acknowledged(1, "kept", 1)
    assert pursuit.again(1, 3) == [Outgoing(1, Probe(0))]
    assert pursuit.heard(1, first.table, 4) == []
    assert pursuit.heard(1, second.table, 5) == [Outgoing(1, "kept")]


def test_a_node_that_serves_its_own_clients_at_once_hears_nothing_of_its_own_events() -> None:
    """Other gateways do, whichever of event and registration comes first."""
    event = PlacedEvent((1, 1), Rect.at(1.5, 1.5), 5, 5_000, 1)
    offer = EventOffer(1, event, 1, ("q0",))
    registers = [Register(n, "s", 1, (CoverSpan(("q0",), WEST, 0, None),)) for n in (1, 2)]
    told = {}
    for tells in (True, False):
        for messages in ([offer, *registers], [*registers, offer]):
            holder = Holder(0, 1, TIMING, tells_publishers=tells)
            out = [o for m in messages for o in holder.receive(m, now=6)]
            told[tells, messages[0] is offer] = {
                o.to for o in out if type(o.message) is HolderMatch
            }
            assert holder.is_pursuing(1)

    assert told == {
        (True, True): {1, 2},
        (True, False): {1, 2},
        (False, True): {2},
        (False, False): {2},
    }


def test_when_a_peer_is_back_it_hears_again_what_it_has_not_acknowledged() -> None:
    pursuit = RetryUntilAcked(0, Timing(retry_ms=1_000), probes=False)
    for key in ("known", "lost"):
        pursuit.tell(1, key, 1, key, 0, 10_000)
    pursuit.acknowledged(1, "known", 1)

    assert [out.message for out in pursuit.again(1, 10)] == ["lost"]
    assert pursuit.wake_at() == 1_010
    assert pursuit.again(2, 10) == []


def test_a_spool_that_begins_a_new_life_is_not_taken_for_an_older_one():
    view = PlanView(halves())
    before = EventOutbox(0, view, RetryUntilAcked(0, TIMING, probes=True), TIMING)
    told = [out.message for _ in range(3) for out in before.publish(WEST, 0)[1]]
    kept = told[-1].event
    after = EventOutbox(0, view, RetryUntilAcked(0, TIMING, probes=True), TIMING)
    after.begin(1_000)
    after.restore(kept)
    again = [out.message for out in after.restarted(RetryUntilAcked(0, TIMING, probes=True), 10)]
    assert [one.event for one in again] == [kept]
    assert min(one.revision for one in again) > max(one.revision for one in told)
    event, _ = after.publish(WEST, 10)
    assert event.event_id not in {one.event.event_id for one in told}
    after.begin(5)  # numbers never go back
    assert after.publish(WEST, 10)[0].event_id[1] > event.event_id[1]
