"""Nodes that begin anew, or are gone for good: nobody goes by what their last life told."""

from __future__ import annotations

import pytest

from nearcast.locality import CellCounts, Plan, Rect, adapted
from nearcast.locality.registration.gateway import Gateway
from nearcast.locality.registration.holder import Holder
from nearcast.locality.registration.messages import (
    CoverSpan,
    EventOffer,
    HolderMatch,
    Known,
    Outgoing,
    PlacedEvent,
    Probe,
    Register,
    Timing,
)
from nearcast.locality.registration.plan_assignment import NamedPlan, PlanAssignment
from nearcast.locality.registration.retry import RetryUntilAcked

TIMING = Timing(retry_ms=100, most_retry_ms=400, probe_ms=500, lease_ms=2_000, horizon_ms=10_000)
HERE = Rect(1, 1, 2, 2)
EVENT = PlacedEvent((9, 1), Rect.at(1.5, 1.5), 5, 9_000, 1)
OFFER = EventOffer(9, EVENT, 1, ("q0",))


def register(gateway: int, name: str, revision: int, life: int) -> Register:
    return Register(gateway, name, revision, (CoverSpan(("q0",), HERE, 0, None),), life)


def told(out: list[Outgoing]) -> set[tuple[int | str, str]]:
    """Return whom matches are for: gateway and subscription."""
    matches = [(one.to, one.message) for one in out if type(one.message) is HolderMatch]
    return {(to, name) for to, match in matches for name in match.subscriptions}


@pytest.fixture
def holder() -> Holder:
    """Return a holder that knows two subscriptions of gateway 1, in its life 10, and one of 2."""
    holder = Holder(0, 1, TIMING)
    for one in (register(1, "a", 7, 10), register(1, "b", 7, 10), register(2, "c", 7, 10)):
        holder.receive(one, now=1)
    return holder


def test_a_new_life_ends_what_the_last_one_told(holder: Holder) -> None:
    assert [type(one.message) for one in holder.receive(Probe(1, 11), now=2)] == [Known]
    assert holder.loads() == {"q0": 1}
    assert told(holder.receive(OFFER, now=6)) == {(2, "c")}


def test_a_registration_begins_a_life_as_well_whatever_its_revision(holder: Holder) -> None:
    """Clocks may go back, and revisions begin with them."""
    (known,) = holder.receive(register(1, "a", 3, 11), now=2)
    assert known.message.revision == 3
    assert told(holder.receive(OFFER, now=6)) == {(1, "a"), (2, "c")}


def test_who_speaks_in_the_same_life_or_of_none_ends_nothing(holder: Holder) -> None:
    holder.receive(Probe(1, 10), now=2)
    holder.receive(Probe(1), now=2)
    holder.receive(register(1, "d", 1, 0), now=2)
    assert told(holder.receive(OFFER, now=6)) == {(1, "a"), (1, "b"), (1, "d"), (2, "c")}


def test_what_a_life_said_that_is_over_is_not_heard(holder: Holder) -> None:
    holder.receive(Probe(1, 12), now=2)
    assert holder.receive(register(1, "a", 9, 11), now=3) == []
    assert holder.receive(Probe(1, 11), now=3) == []
    assert told(holder.receive(OFFER, now=6)) == {(2, "c")}


def test_what_a_new_life_tells_finds_what_happened_meanwhile(holder: Holder) -> None:
    holder.receive(Probe(1, 11), now=2)
    holder.receive(OFFER, now=6)
    assert told(holder.receive(register(1, "a", 1, 11), now=7)) == {(1, "a")}


def test_a_gateway_that_is_gone_is_not_waited_for(holder: Holder) -> None:
    holder.receive(OFFER, now=6)
    holder.forget(1)
    assert holder.loads() == {"q0": 1}
    assert {one.to for one in holder.advance(now=200)} == {2}
    holder.forget(2)
    assert not holder.awaits_ack_of(9)
    assert holder.advance(now=600) == []


def test_a_gateway_that_was_gone_and_joins_again_hears_of_what_it_may_have_missed(
    holder: Holder,
) -> None:
    holder.receive(OFFER, now=6)
    holder.forget(1)
    (known, *more) = holder.receive(register(1, "a", 8, 10), now=7)
    assert told(more) == {(1, "a")}
    first = Holder(0, 1, TIMING).receive(Probe(1), now=0)[0].message
    assert known.message.table > first.table  # it was forgotten, and tells all again


def test_nothing_more_is_sent_to_a_holder_that_is_gone() -> None:
    four = adapted(Plan.build(Rect(0, 0, 8, 8), [], CellCounts.empty(2)), [9], capacity=3)

    def plan(version: int, *brokers: int) -> NamedPlan:
        return NamedPlan(four.with_brokers(brokers, version=version), ("n0", "n1"))

    plans = PlanAssignment("n5")
    plans.know(["n0", "n1"])
    plans.current = plan(1, 0, 1, 0, 1)
    retry = RetryUntilAcked("n5", TIMING, probes=True)
    retry.life = 77
    gateway = Gateway("n5", plans, retry, TIMING)
    (first,) = gateway.subscribe("s", HERE, now=0)
    assert (first.to, first.message.life) == ("n0", 77)
    retry.send("n1", "other", 1, "other", 0, 10_000)

    plans.current = plan(2, 1, 1, 1, 1)
    gateway.forget("n0")
    retry.forget("n0")
    assert {out.to for out in gateway.plans_changed(now=50)} == {"n1"}
    assert {out.to for out in retry.advance(now=200)} == {"n1"}

    plans.current = plan(3, 0, 0, 0, 0)
    gateway.plans_changed(now=300)  # n1 is to keep it for events that are late
    gateway.forget("n1")
    retry.forget("n1")
    assert {out.to for out in gateway.move("s", Rect(6, 6, 7, 7), now=400)} == {"n0"}
    gateway.forget("n0")
    retry.forget("n0")
    assert retry.pending() == 0
    assert retry.wake_at() is None


def test_whoever_can_be_heard_learns_of_the_life_of_a_node_even_if_it_has_nothing_to_tell() -> None:
    retry = RetryUntilAcked(5, TIMING, probes=True)
    retry.life = 77
    assert retry.again(1, 0) == [Outgoing(1, Probe(5, 77))]
    retry.send(1, "s", 1, "s", 0, 10_000)
    assert retry.again(1, 0) == [Outgoing(1, Probe(5, 77)), Outgoing(1, "s")]
    assert RetryUntilAcked(5, TIMING, probes=False).again(1, 0) == []

    retry.heard(1, (1, 1), 1)
    retry.acknowledged(1, "s", 1)
    assert retry.advance(1 + TIMING.probe_ms) == [Outgoing(1, Probe(5, 77))]


def test_an_event_past_its_deadline_is_told_to_nobody_who_registers_then() -> None:
    holder = Holder(0, 1, TIMING)
    holder.receive(OFFER, now=6)
    before, at = EVENT.deadline - 1, EVENT.deadline

    assert told(holder.receive(register(1, "a", 1, 10), now=before)) == {(1, "a")}
    assert told(holder.receive(register(1, "b", 1, 10), now=at)) == set()


def test_a_peer_that_was_told_nothing_for_a_while_is_asked_again_once_there_is_something() -> None:
    retry = RetryUntilAcked("me", TIMING, probes=True)
    for now in (0, 10_000):
        retry.send("peer", "item", 1, "message", now, now + 1_000)
        retry.heard("peer", (1, 1), now + 1)
        retry.acknowledged("peer", "item", 1)
        asked = retry.advance(now + 1 + TIMING.probe_ms)
        assert [type(one.message) for one in asked] == [Probe]
        for later in range(now + 600, now + 3_000, 100):  # the item is over: nothing to ask for
            retry.advance(later)
        assert retry.wake_at() is None


@pytest.mark.parametrize("early_ms", [1, 0])
def test_a_registration_is_forgotten_a_horizon_after_its_last_span_has_ended(early_ms: int) -> None:
    holder = Holder(0, 1, TIMING)
    holder.receive(Register(1, "a", 1, (CoverSpan(("q0",), HERE, 0, 100),)), now=1)
    now = 100 + TIMING.horizon_ms - early_ms
    holder.receive(Probe(1), now=now)  # its gateway is there all the time
    holder.advance(now)

    assert holder.loads() == ({"q0": 1} if early_ms else {})
