"""Each trap of paper 2 by its name: what ours does, and what the literal reading does instead.

`docs/papers/2-delta-causal.md` describes the traps. Random histories notice the same mistakes in
`test_mutants.py`; the cluster's own tests are in `tests/cluster/test_causal_groups.py` and
`tests/cluster/test_causal_clients.py`.
"""

from __future__ import annotations

import pytest
from tests.support.causal_accounts import account_of
from tests.support.ordering_mutants import (
    ForgetsNobody,
    ForgetsWithoutSkew,
    MarkersForEver,
    MessageEnteredTooEarly,
    MessageNotEntered,
    NoChains,
    OwnLifetimeIgnored,
    RefusesEveryStampAhead,
    ShortLivedSettles,
    WaitsForTheWrongTime,
    expired_leaves_nothing,
    gone_stays_gone,
)

from nearcast.ordering import CausalMessage, Deliver, DeltaCausal, Output
from nearcast.ordering.layout import ME, table_of

Kind = type[DeltaCausal]


def group(kind: Kind, count: int, **more: float) -> list[DeltaCausal]:
    return [kind(process=p, lifetime=0.25, **more) for p in range(count)]


def payloads(outputs: list[Output]) -> list[bytes]:
    return [one.message.payload for one in outputs if isinstance(one, Deliver)]


@pytest.mark.parametrize(("kind", "is_right"), [(DeltaCausal, True), (MessageNotEntered, False)])
def test_t2_1_the_received_message_is_entered(kind: Kind, is_right: bool):
    asker, answerer, listener = group(kind, 3)
    question = asker.send({1, 2}, b"question", 1.0)
    answerer.receive(question[1], 1.01)
    answer = answerer.send({2}, b"answer", 1.02)[2]
    assert (listener.receive(answer, 1.03) == []) is is_right


@pytest.mark.parametrize(
    ("kind", "is_right"), [(DeltaCausal, True), (MessageEnteredTooEarly, False)]
)
def test_t2_1_the_received_message_is_entered_after_the_merge(kind: Kind, is_right: bool):
    zero, one, two, three = group(kind, 4)
    zero.send({3}, b"first", 1.0)  # on its way to 3, and only 0 knows
    second = zero.send({1}, b"second", 1.01)
    one.receive(second[1], 1.02)
    answer = one.send({3}, b"answer", 1.03)[3]
    assert (three.receive(answer, 1.04) == []) is is_right
    assert two.footprint == 0


class FullSetEntered(DeltaCausal):
    """T2.2: enters the whole destination set, the receiver included."""

    def receive(self, message: CausalMessage | bytes, now: float) -> list[Output]:
        outputs = super().receive(message, now)
        for row in table_of(self._state):
            row[2] |= 1 << int(self._state[ME])
        return outputs


@pytest.mark.parametrize(("kind", "is_right"), [(DeltaCausal, True), (FullSetEntered, False)])
def test_t2_2_a_process_is_never_in_its_own_rows(kind: Kind, is_right: bool):
    zero, one, _ = group(kind, 3)
    one.receive(zero.send({1, 2}, b"", 1.0)[1], 1.01)
    rows = account_of(one.send({2}, b"", 1.02)[2]).rows
    assert (not any(bits >> 1 & 1 for row in rows.values() for _, bits in row)) is is_right


@pytest.mark.parametrize(("kind", "is_right"), [(DeltaCausal, True), (WaitsForTheWrongTime, False)])
def test_t2_3_a_message_waits_for_the_time_of_the_old_message(kind: Kind, is_right: bool):
    zero, one, _ = group(kind, 3)
    question = zero.send({1, 2}, b"", 1.0)
    one.receive(question[1], 1.01)
    waits = one.send({2}, b"", 1.02)[2].waits
    assert (waits == {(0, question[2].sent_us)}) is is_right


@pytest.mark.parametrize(("kind", "is_right"), [(DeltaCausal, True), (NoChains, False)])
def test_t2_4_one_delivery_releases_a_chain(kind: Kind, is_right: bool):
    zero, one, two, three = group(kind, 4)
    first = zero.send({1, 3}, b"a", 1.0)
    one.receive(first[1], 1.01)
    second = one.send({2, 3}, b"b", 1.02)
    two.receive(second[2], 1.03)
    third = two.send({3}, b"c", 1.04)
    assert three.receive(third[3], 1.05) == three.receive(second[3], 1.06) == []
    assert (payloads(three.receive(first[3], 1.07)) == [b"a", b"b", b"c"]) is is_right


def test_t2_4_a_timer_releases_without_an_arrival():
    zero, one, two = group(DeltaCausal, 3)
    lost = zero.send({1, 2}, b"lost", 1.0)
    one.receive(lost[1], 1.01)
    assert two.receive(one.send({2}, b"answer", 1.02)[2], 1.03) == []
    wake = two.wake_at()  # without it, nothing would ever ask again
    assert wake == pytest.approx(1.250001)
    assert payloads(two.advance(1.25)) == []
    assert payloads(two.advance(1.250001)) == [b"answer"]


@pytest.mark.parametrize(("kind", "is_right"), [(DeltaCausal, True), (ForgetsNobody, False)])
def test_t2_5_who_has_gone_is_in_no_destination_set(kind: Kind, is_right: bool):
    assert gone_stays_gone(kind) is is_right


@pytest.mark.parametrize(("kind", "is_right"), [(DeltaCausal, True), (MarkersForEver, False)])
def test_t2_5_markers_go_when_they_expire(kind: Kind, is_right: bool):
    assert expired_leaves_nothing(kind) is is_right


@pytest.mark.parametrize(
    ("kind", "is_right"), [(DeltaCausal, True), (RefusesEveryStampAhead, False)]
)
def test_t2_6_a_stamp_ahead_within_the_skew_is_in_time(kind: Kind, is_right: bool):
    fast, slow = group(kind, 2, skew=0.1)
    arrived = slow.receive(fast.send({1}, b"x", 1.05)[1], 1.0)
    assert (payloads(arrived) == [b"x"]) is is_right


def test_t2_6_a_stamp_further_ahead_than_the_skew_is_told_and_counted():
    fast, slow = group(DeltaCausal, 2, skew=0.1)
    (told,) = slow.receive(fast.send({1}, b"x", 1.2)[1], 1.0)
    assert getattr(told, "reason").name == "FUTURE"  # noqa: B009 - an Output has one or not
    assert slow.counters.skew_violations == 1


@pytest.mark.parametrize(("kind", "is_right"), [(DeltaCausal, True), (ForgetsWithoutSkew, False)])
def test_t2_6_rows_are_kept_as_long_as_a_slower_clock_accepts_the_message(
    kind: Kind, is_right: bool
):
    zero, one, two = group(kind, 3, skew=0.1)
    question = zero.send({1, 2}, b"question", 1.0)
    one.receive(question[1], 1.01)
    answer = one.send({2}, b"answer", 1.27)[2]  # expired here; the clock of 2 is 0.1 s behind
    assert (two.receive(answer, 1.18) == []) is is_right


@pytest.mark.parametrize(("kind", "is_right"), [(DeltaCausal, True), (ShortLivedSettles, False)])
def test_t2_7_nobody_waits_less_because_a_message_is_short_lived(kind: Kind, is_right: bool):
    zero, one, two = group(kind, 3)
    lost = zero.send({1, 2}, b"lost", 1.0)
    one.receive(lost[1], 1.01)
    short = one.send({2}, b"short", 1.02, lifetime=0.05)
    later = one.send({2}, b"later", 1.03)
    assert two.receive(short[2], 1.04) == []
    assert len(two.advance(1.071)) == 1  # the short-lived one is discarded
    assert (two.receive(later[2], 1.08) == []) is is_right


@pytest.mark.parametrize(("kind", "is_right"), [(DeltaCausal, True), (OwnLifetimeIgnored, False)])
def test_t2_7_a_short_lived_message_alone_is_discarded_at_its_end(kind: Kind, is_right: bool):
    zero, one, two = group(kind, 3)
    one.receive(zero.send({1, 2}, b"lost", 1.0)[1], 1.01)
    two.receive(one.send({2}, b"short", 1.02, lifetime=0.05)[2], 1.04)
    assert (payloads(two.advance(1.26)) == []) is is_right


@pytest.mark.parametrize("is_adopted", [True, False])
def test_t2_8_a_client_that_moves_takes_its_past_along_as_a_message(is_adopted: bool):
    asker, old, new, listener = group(DeltaCausal, 4)
    question = asker.send({1, 3}, b"question", 1.0)
    old.receive(question[1], 1.01)
    past = old.send({2}, b"", 1.02)[2]
    if is_adopted:
        assert payloads(new.receive(past, 1.03)) == [b""]
    answer = new.send({3}, b"answer", 1.04)[3]
    assert (listener.receive(answer, 1.05) == []) is is_adopted


def test_t2_8_a_past_waits_for_what_is_on_its_way_to_the_new_process():
    asker, old, new = group(DeltaCausal, 3)
    question = asker.send({1, 2}, b"question", 1.0)
    old.receive(question[1], 1.01)
    assert new.receive(old.send({2}, b"", 1.02)[2], 1.03) == []
    assert payloads(new.receive(question[2], 1.04)) == [b"question", b""]
