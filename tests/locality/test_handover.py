"""Handover and change of plan, case by case: no loss, no double delivery."""

from __future__ import annotations

import pytest
from tests.support.handover_nodes import (
    EAST,
    SPACE,
    TIMING,
    WEST,
    halves,
    node_at,
    one,
    plans_of,
    published,
)

from nearcast.locality import Rect
from nearcast.locality.registration.gateway import Gateway
from nearcast.locality.registration.holder import Holder
from nearcast.locality.registration.messages import (
    CoverSpan,
    EventOffer,
    HolderMatch,
    Known,
    MatchTaken,
    Outgoing,
    PlacedEvent,
    Probe,
    Register,
    Timing,
)
from nearcast.locality.registration.outbox import EventOutbox
from nearcast.locality.registration.retry import RetryUntilAcked
from nearcast.model.errors import KeyInUseError, KeyMissingError, OutOfRangeError

# --- T0.6: between the old table and the new one -----------------------------------------------


def test_t0_6_leaving_the_old_table_before_entering_the_new_one_loses_what_comes_between() -> None:
    """The literal reading, in one process, for comparison."""
    tables: dict[str, set[str]] = {key: set() for key in ("q0", "q1")}
    plan = halves().plan
    (old,), (new,) = (
        [plan.leaves[number].key for number in plan.leaves_for_subscription(area)]
        for area in (WEST, EAST)
    )
    tables[old].add("s")
    tables[old].remove("s")
    (leaf,) = plan.leaves_for_event((6.5, 1.5))
    assert tables[plan.leaves[leaf].key] == set()  # lost
    tables[new].add("s")


def test_t0_6_an_event_that_comes_before_the_registration_is_found_when_it_arrives() -> None:
    gateway, east = node_at("n0").gateway, Holder("n1", 1, TIMING)
    gateway.subscribe("s", WEST, now=0)
    moving = gateway.move("s", EAST, now=10)
    event_id, offer = published((6.5, 1.5), 11)

    east.receive(offer, now=12)  # nobody is known here yet
    register = next(m.message for m in moving if m.to == "n1")
    match = one(east.receive(register, now=20), HolderMatch)
    assert match.event.event_id == event_id
    assert gateway.matched(match, now=21)[0] == ["s"]


def test_t0_6_an_event_of_before_the_move_is_found_at_the_old_holder_however_late_it_comes() -> (
    None
):
    gateway, west, publisher = node_at("n0").gateway, Holder("n0", 1, TIMING), node_at("n2")
    west.receive(one(gateway.subscribe("s", WEST, now=0), Register), now=1)
    _, offers = publisher.outbox.publish((1.5, 1.5), now=5)
    later, late_offers = publisher.outbox.publish((1.5, 1.5), now=15)
    leaving = next(m.message for m in gateway.move("s", EAST, now=10) if m.to == "n0")
    west.receive(leaving, now=12)

    match = one(west.receive(one(offers, EventOffer), now=500), HolderMatch)
    assert gateway.matched(match, now=501)[0] == ["s"]
    late_offer = one(late_offers, EventOffer)
    assert [m.message for m in west.receive(late_offer, now=502)] == [
        Known("n0", (1, 2), ("e", later.event_id), late_offer.revision)
    ]


def test_a_match_from_two_holders_or_twice_from_one_is_delivered_once_and_acknowledged_always() -> (
    None
):
    gateway = node_at("n0").gateway
    gateway.subscribe("s", Rect(1, 1, 7, 2), now=0)
    event = PlacedEvent(("n2", 1), Rect(3, 1, 5, 2), 5, 5_000, qos=1)
    matched = [
        gateway.matched(HolderMatch(holder, event, 1, ("s",)), now=9) for holder in (0, 1, 1)
    ]

    assert [due for due, _ in matched] == [["s"], [], []]
    assert [answers for _, answers in matched] == [
        [Outgoing(holder, MatchTaken("n0", ("n2", 1), 1))] for holder in (0, 1, 1)
    ]


def test_a_match_is_checked_against_where_the_client_was_at_publication() -> None:
    gateway = node_at("n0").gateway
    gateway.subscribe("s", WEST, now=10)
    gateway.move("s", EAST, now=20)
    gateway.unsubscribe("s", now=30)

    def due(at: int, place: Rect, number: int) -> bool:
        event = PlacedEvent(("n2", number), place, at, 5_000, qos=0)
        return bool(gateway.matched(HolderMatch(1, event, 1, ("s", "nobody")), now=40)[0])

    assert [due(at, WEST, at) for at in (9, 10, 19, 20, 30)] == [False, True, True, False, False]
    assert [due(at, EAST, at + 50) for at in (19, 20, 29, 30)] == [False, True, True, False]


def test_an_event_is_not_delivered_at_or_after_its_deadline() -> None:
    gateway = node_at("n0").gateway
    gateway.subscribe("s", WEST, now=0)
    match = HolderMatch(1, PlacedEvent(("n2", 1), WEST, 5, 100, qos=1), 1, ("s",))

    assert gateway.matched(match, now=100)[0] == []
    assert gateway.matched(match, now=99)[0] == ["s"]


def test_a_node_delivers_events_of_other_nodes_alone_and_acknowledges_all() -> None:
    node = node_at("n0")
    node.subscribe("s", WEST, now=0)
    node.take(1)
    for publisher in ("n0", "n2"):
        event = PlacedEvent((publisher, 1), WEST, 5, 100, qos=1)
        node.receive(HolderMatch("n1", event, 1, ("s",)), now=9)

    assert node._host.got == [("s", ("n2", 1))]  # type: ignore[attr-defined]
    assert [type(out.message) for out in node.take(9)] == [MatchTaken, MatchTaken]


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


def test_a_holder_that_forgot_is_sent_everything_again_once_it_answers() -> None:
    node = node_at("n2")
    sent = node.gateway.subscribe("s", WEST, now=0)
    _, offers = node.outbox.publish((1.5, 1.5), now=1)
    before = Holder("n0", 1, TIMING)
    for message in (one(sent, Register), one(offers, EventOffer)):
        for answer in before.receive(message, now=2):
            node.receive(answer.message, now=3)
    assert node.retry.pending() == 0

    after = Holder("n0", 2, TIMING)
    node.advance(now=600)
    probe = one(node.take(600), Probe)
    known = one(after.receive(probe, now=601), Known)
    node.receive(known, now=602)
    assert {type(m.message) for m in node.take(602)} == {Register, EventOffer}
    assert node.retry.pending() == 2


def test_a_late_answer_of_an_earlier_incarnation_counts_for_nothing() -> None:
    node = node_at("n2")
    register = one(node.gateway.subscribe("s", WEST, now=0), Register)
    old = one(Holder("n0", 1, TIMING).receive(register, now=1), Known)
    fresh = one(Holder("n0", 2, TIMING).receive(Probe("n2"), now=2), Known)
    node.receive(fresh, now=3)
    node.receive(old, now=4)

    assert node.retry.pending() == 1  # the second incarnation does not have it


def test_what_is_not_acknowledged_is_sent_again_at_growing_intervals_until_it_is_given_up() -> None:
    retry = RetryUntilAcked(0, TIMING, probes=True)
    retry.send(1, "k", 1, "hello", now=0, give_up_at=1_600)
    sent = []
    while (at := retry.wake_at()) is not None:
        sent += [at] * len(retry.advance(at))

    assert sent == [100, 300, 700, 1_100, 1_500]
    assert len(retry) == 0


def test_an_older_acknowledgement_does_not_end_the_retries_of_a_newer_revision() -> None:
    retry = RetryUntilAcked(0, TIMING, probes=False)
    retry.send(1, "k", 1, "old", now=0, give_up_at=9_999)
    retry.send(1, "k", 2, "new", now=1, give_up_at=9_999)
    retry.acknowledged(1, "k", 1)

    assert retry.pending() == 1
    assert retry.again(1, 2) == [Outgoing(1, "new")]
    retry.acknowledged(1, "k", 2)
    assert retry.pending() == 0


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
    node = node_at("n0")
    node.gateway.subscribe("s", WEST, now=0)
    for step in range(40):
        node.gateway.move("s", Rect(1 + step % 2 * 5, 1, 2 + step % 2 * 5, 2), now=10 + step)
    node.gateway.unsubscribe("s", now=60)
    for now in (10_000, 20_100, 30_200):
        node.gateway.advance(now)

    assert node.gateway.wake_at() is None
    assert len(node.retry) == 0


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
    assert len(holder._retry) == 1
    holder.advance(now=900)

    assert len(holder._retry) == 0


def test_a_gateway_remembers_an_event_that_it_delivered_until_its_deadline() -> None:
    node = node_at("n0")
    node.gateway.subscribe("s", WEST, now=0)
    for number, deadline in ((1, 9_000), (2, 10_001)):
        event = PlacedEvent((2, number), WEST, 5, deadline, qos=1)
        node.gateway.matched(HolderMatch(1, event, 1, ("s",)), now=10)
    node.gateway.advance(now=10_000)

    assert node.gateway._subscriptions["s"].delivered == {(2, 2): 10_001}


def test_qos_0_is_offered_and_matched_once_without_retries() -> None:
    node, west, publisher = node_at("n1"), Holder("n0", 1, TIMING), node_at("n2")
    west.receive(one(node.gateway.subscribe("s", WEST, now=0), Register), now=1)
    _, offers = publisher.outbox.publish((1.5, 1.5), now=2, qos=0)
    match = one(west.receive(one(offers, EventOffer), now=3), HolderMatch)

    assert node.gateway.matched(match, now=4) == (["s"], [])
    assert [m for m in west.advance(now=150) if isinstance(m.message, HolderMatch)] == []
    assert len(publisher.outbox) == 0


def test_a_move_within_the_slack_needs_no_message_and_is_still_exact() -> None:
    retry = RetryUntilAcked("n0", TIMING, probes=False)
    gateway = Gateway("n0", plans_of("n0"), retry, Timing(slack=1.0))
    gateway.subscribe("s", WEST, now=0)

    assert gateway.move("s", Rect(1.5, 1.5, 2.5, 2.5), now=10) == []
    assert gateway.move("s", Rect(2.5, 1.5, 3.5, 2.5), now=20) != []
    missed = PlacedEvent(
        (1, 1), Rect(1, 1, 1.2, 1.2), 15, 5_000, 0
    )  # inside the cover, not the area
    assert gateway.matched(HolderMatch(0, missed, 1, ("s",)), now=30)[0] == []


def test_many_quick_moves_are_told_in_few_spans() -> None:
    node = node_at("n0")
    node.gateway.subscribe("s", WEST, now=0)
    for step in range(100):
        out = node.gateway.move("s", WEST.grown(step / 200), now=step + 1)
    spans = one(out, Register).spans

    assert len(spans) <= 8
    assert (spans[0].since, spans[-1].until) == (0, None)


def test_the_work_of_a_handover_is_bounded_by_the_leaves_it_concerns() -> None:
    node = node_at("n0")
    node.gateway.subscribe("s", WEST, now=0)
    messages = node.gateway.move("s", EAST, now=10)

    assert sorted(m.to for m in messages) == ["n0", "n1"]  # one to the old holder, one to the new
    assert node.gateway.leaves_of("s") == {"n1": ("1:q1",)}


# --- change of plan ------------------------------------------------------------------------------


def test_nobody_leaves_the_old_plan_before_all_use_the_new_one() -> None:
    node = node_at("n0")
    assert node.use(halves(2, swapped=True), now=0)
    assert not node.use(halves(2), now=1)
    seen = []
    for name, versions in (("n1", (1, 2)), ("n2", (1, 0)), ("n2", (2, 0))):
        seen.append(node.plans.versions)
        node.uses(name, versions, now=2)

    assert seen == [(1, 2)] * 3
    assert node.plans.versions == (2, 0)
    assert node._host.changes == 2  # type: ignore[attr-defined]


def test_a_node_that_is_gone_for_good_does_not_hold_a_change_up() -> None:
    node = node_at("n0")
    node.use(halves(2), now=0)
    node.uses("n1", (1, 2), now=1)
    node.know(["n1"], now=2)

    assert node.plans.versions == (2, 0)


def test_a_plan_that_comes_during_a_change_waits_for_it_and_an_older_one_is_ignored() -> None:
    node = node_at("n0")
    node.use(halves(2), now=0)
    assert not node.use(halves(5), now=1)
    assert not node.use(halves(3), now=1)
    for name in ("n1", "n2"):
        node.uses(name, (1, 2), now=2)

    assert node.plans.versions == (2, 5)


def test_while_two_plans_are_in_use_both_holders_are_sent_it_and_the_old_one_is_ended_after() -> (
    None
):
    node = node_at("n2")
    node.subscribe("s", WEST, now=0)
    node.publish((1.5, 1.5), now=1, qos=1, lifetime_ms=None)
    first = node.take(1)
    node.use(halves(2, swapped=True), now=10)
    both = node.take(10)
    for name in ("n0", "n1"):
        node.uses(name, (1, 2), now=20)

    assert [m.to for m in first] == ["n0", "n0"]
    assert sorted((m.to, type(m.message).__name__) for m in both) == [
        ("n1", "EventOffer"), ("n1", "Register"),
    ]  # fmt: skip
    register = one(node.take(20), Register)
    assert [(s.since, s.until) for s in register.spans] == [(0, 20)]


def test_an_event_under_way_since_before_the_change_is_still_matched_at_the_old_holder() -> None:
    node, west = node_at("n2"), Holder("n0", 1, TIMING)
    west.receive(one(node.gateway.subscribe("s", WEST, now=0), Register), now=1)
    _, offers = node_at("n1").outbox.publish((1.5, 1.5), now=5, qos=0)
    node.use(halves(2, swapped=True), now=10)
    node.take(10)
    for name in ("n0", "n1"):
        node.uses(name, (1, 2), now=20)
    west.receive(one(node.take(20), Register), now=21)
    moving = node.gateway.move("s", EAST, now=25)  # which n0 has now
    west.receive(next(m.message for m in moving if m.to == "n0"), now=26)

    match = one(west.receive(one(offers, EventOffer), now=30), HolderMatch)
    assert node.gateway.matched(match, now=31)[0] == ["s"]


def test_misuse_is_refused_and_changes_nothing() -> None:
    node = node_at("n0")
    node.gateway.subscribe("s", WEST, now=0)
    with pytest.raises(KeyInUseError):
        node.gateway.subscribe("s", WEST, now=1)
    with pytest.raises(KeyMissingError):
        node.gateway.move("t", WEST, now=1)
    with pytest.raises(OutOfRangeError):
        node.gateway.move("s", (float("nan"), 0), now=1)
    for bad in ({"qos": 3}, {"lifetime_ms": 0}):
        with pytest.raises(OutOfRangeError):
            node.outbox.publish((1, 1), now=1, **bad)  # type: ignore[arg-type]
    assert len(node.outbox) == 0
    assert node.gateway.leaves_of("s") == {"n0": ("1:q0",)}


def test_a_lifetime_beyond_the_horizon_is_cut_to_it() -> None:
    node = node_at("n0")
    event, _ = node.outbox.publish((1, 1), now=100, lifetime_ms=99_999)
    short, _ = node.outbox.publish((1, 1), now=100, lifetime_ms=5)
    node.outbox.advance(now=105)

    assert (event.deadline, short.deadline) == (10_100, 105)
    assert len(node.outbox) == 1
    assert node.outbox.wake_at() == 10_100


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
    retry = RetryUntilAcked(0, TIMING, probes=True)
    first, second = Known(1, (1, 1)), Known(1, (2, 1))
    retry.send(1, "kept", 1, "kept", 0, 10_000)
    assert retry.again(1, 1) == [Outgoing(1, Probe(0)), Outgoing(1, "kept")]

    retry.heard(1, first.table, 2)
    retry.acknowledged(1, "kept", 1)
    assert retry.again(1, 3) == [Outgoing(1, Probe(0))]
    assert retry.heard(1, first.table, 4) == []
    assert retry.heard(1, second.table, 5) == [Outgoing(1, "kept")]


def test_a_node_that_serves_its_own_clients_at_once_gets_no_match_of_its_own_events() -> None:
    """Other gateways do, whichever of event and registration comes first."""
    event = PlacedEvent((1, 1), Rect.at(1.5, 1.5), 5, 5_000, 1)
    offer = EventOffer(1, event, 1, ("q0",))
    registers = [Register(n, "s", 1, (CoverSpan(("q0",), WEST, 0, None),)) for n in (1, 2)]
    for messages in ([offer, *registers], [*registers, offer]):
        holder = Holder(0, 1, TIMING)
        out = [o for m in messages for o in holder.receive(m, now=6)]
        assert {o.to for o in out if type(o.message) is HolderMatch} == {2}
        assert holder.awaits_ack_of(1)


def test_when_a_peer_is_back_it_hears_again_what_it_has_not_acknowledged() -> None:
    retry = RetryUntilAcked(0, Timing(retry_ms=1_000), probes=False)
    for key in ("known", "lost"):
        retry.send(1, key, 1, key, 0, 10_000)
    retry.acknowledged(1, "known", 1)

    assert [out.message for out in retry.again(1, 10)] == ["lost"]
    assert retry.wake_at() == 1_010
    assert retry.again(2, 10) == []


def test_an_outbox_that_begins_a_new_life_is_not_taken_for_an_older_one():
    plans = plans_of("n0")
    before = EventOutbox("n0", plans, RetryUntilAcked("n0", TIMING, probes=True), TIMING)
    told = [out.message for _ in range(3) for out in before.publish(WEST, 0)[1]]
    kept = told[-1].event
    after = EventOutbox("n0", plans, RetryUntilAcked("n0", TIMING, probes=True), TIMING)
    after.begin(1_000)
    after.restore(kept)
    again = [out.message for out in after.plans_changed(10)]
    assert [one.event for one in again] == [kept]
    assert min(one.revision for one in again) > max(one.revision for one in told)
    event, _ = after.publish(WEST, 10)
    assert event.event_id not in {one.event.event_id for one in told}
    after.begin(5)  # numbers never go back
    assert after.publish(WEST, 10)[0].event_id[1] > event.event_id[1]


def test_an_event_that_was_restored_is_offered_once_however_often_plans_change():
    plans = plans_of("n0")
    first, again = (
        EventOutbox("n0", plans, RetryUntilAcked("n0", TIMING, probes=True), TIMING) for _ in "ab"
    )
    event, offers = first.publish(WEST, 0)
    again.restore(event)
    assert [out.to for out in again.plans_changed(10)] == [out.to for out in offers]
    assert offers
    assert again.plans_changed(20) == []
