"""Retained delivery in the node: each trap by itself."""

import math
from random import Random

import numpy as np
import pytest
from tests.support.invariants import check_retained_delivery
from tests.support.retained_samples import COPY, GENERAL, SENDING, THRIFTY, WAITING

from nearcast.model.errors import OutOfRangeError
from nearcast.retained import (
    SEND_NOTHING,
    SEND_NOW,
    DecisionProcess,
    Evidence,
    Handling,
    LearningBounds,
    Mode,
    Policies,
    Rates,
    Release,
    ReleaseReason,
    RetainedCopy,
    RetainedDelivery,
    TopicPolicy,
    TopicSetting,
    Wait,
    Weights,
    shipped_policy,
    solve,
)


def delivery(
    mode: Mode = Mode.LEARNED,
    *,
    policies: Policies = GENERAL,
    weights: Weights = THRIFTY,
    evidence: Evidence | None = None,
    learning: LearningBounds | None = None,
) -> RetainedDelivery:
    setting = TopicSetting(mode, weights, hold_max_s=10.0)
    return RetainedDelivery(
        lambda _: setting, policies=policies, evidence=evidence, learning=learning
    )


def quick_topic(core: RetainedDelivery, topic: str = "t", until: float = 60.0) -> float:
    """Publish once a second; return the instant of the last publish."""
    for second in range(int(until) + 1):
        assert core.on_publish(topic, float(second), retain=True) == []
    return until


def test_by_default_everyone_gets_the_copy_at_once() -> None:
    core = RetainedDelivery(lambda _: TopicSetting(), policies=GENERAL)
    now = quick_topic(core)

    assert core.on_subscribe("t", "anna", now, copy=COPY) == SEND_NOW
    assert core.wake_at() is None
    assert core.estimate("t", now) is None  # and such a topic costs no memory


def test_on_a_quick_topic_a_newcomer_waits_and_the_next_publish_serves_it() -> None:
    core = delivery()
    now = quick_topic(core)

    assert core.on_subscribe("t", "anna", now + 0.5, copy=COPY) == Wait(now + 10.5)
    assert core.waiting("t") == 1
    assert core.on_publish("t", now + 1.0, retain=True) == []  # the live message stands in
    assert core.waiting("t") == 0
    assert core.wake_at() is None
    assert core.advance(now + 20.0) == []  # T4.3: the older copy never follows


def test_without_evidence_it_is_plain_mqtt() -> None:
    core = delivery()
    for second in range(7):
        core.on_publish("t", float(second), retain=True)

    assert core.on_subscribe("t", "anna", 7.0, copy=COPY) == SEND_NOW
    core.on_publish("t", 7.5, retain=True)
    core.on_publish("t", 8.0, retain=True)
    core.on_publish("t", 8.5, retain=True)
    assert isinstance(core.on_subscribe("t", "bert", 9.0, copy=COPY), Wait)


def test_without_any_policy_it_is_plain_mqtt() -> None:
    core = delivery(policies=Policies())

    assert core.on_subscribe("t", "anna", quick_topic(core), copy=COPY) == SEND_NOW


def test_a_slow_topic_is_quiet_and_sends_at_once() -> None:
    core = delivery()
    for round_ in range(60):
        core.on_publish("t", 15.0 * round_, retain=True)  # slower than Dmax = 10 s

    assert core.on_subscribe("t", "anna", 15.0 * 59 + 1, copy=COPY) == SEND_NOW


@pytest.mark.parametrize("mode", [Mode.LEARNED, Mode.WAIT])
def test_on_a_topic_gone_quiet_a_newcomer_gets_the_copy_at_once(mode: Mode) -> None:
    core = delivery(mode)
    now = quick_topic(core)

    assert isinstance(core.on_subscribe("t", "anna", now + 3.0, copy=COPY), Wait)
    assert core.on_subscribe("t", "bert", now + 5.0, copy=COPY) == SEND_NOW


def test_where_intervals_vary_a_longer_silence_is_no_end() -> None:
    """Of a memoryless topic, one newcomer in eleven comes in an interval of four mean ones."""
    core, random, now = delivery(), Random(1), 0.0
    for _ in range(500):
        now += random.expovariate(1.0)
        core.on_publish("t", now, retain=True)

    assert isinstance(core.on_subscribe("t", "anna", now + 5.0, copy=COPY), Wait)
    assert core.on_subscribe("t", "bert", now + 8.0, copy=COPY) == SEND_NOW


def test_silence_ends_a_wait_before_dmax() -> None:
    core = delivery()
    now = quick_topic(core)
    core.on_subscribe("t", "anna", now + 0.1, copy=COPY)
    released: list[Release] = []
    while (wake := core.wake_at()) is not None:
        released += core.advance(wake)
        last = wake

    assert released == [Release("t", ("anna",), ReleaseReason.QUIET)]
    assert now + 3.0 < last < now + 5.0  # four mean intervals, not Dmax


def test_at_dmax_the_copy_is_sent() -> None:
    evidence = Evidence(quiet_intervals=1000.0)
    core = delivery(Mode.WAIT, evidence=evidence)
    now = quick_topic(core)
    core.on_subscribe("t", "anna", now, copy=COPY)

    assert core.advance(math.nextafter(now + 10.0, 0)) == []
    assert core.wake_at() == now + 10.0
    assert core.advance(now + 10.0) == [Release("t", ("anna",), ReleaseReason.DEADLINE)]


def test_an_old_message_is_a_quiet_topic_whatever_its_arrival_says() -> None:
    core = delivery()
    now = quick_topic(core)

    old = RetainedCopy(age_s=19.5)  # stamped by the publisher long before it arrived
    assert core.on_subscribe("t", "anna", now, copy=old) == SEND_NOW
    ancient = RetainedCopy(age_s=math.inf)
    assert core.on_subscribe("t", "adam", now, copy=ancient) == SEND_NOW
    ahead = RetainedCopy(age_s=-5.0)  # a publisher whose clock runs ahead
    assert isinstance(core.on_subscribe("t", "bert", now, copy=ahead), Wait)
    assert isinstance(core.on_subscribe("t", "cleo", now, copy=RetainedCopy(age_s=math.nan)), Wait)


def test_what_the_subscriber_asks_for_comes_first() -> None:
    core = delivery(Mode.WAIT)
    now = quick_topic(core)

    assert core.on_subscribe("t", "a", now, copy=COPY, wish_now=True) == SEND_NOW
    assert core.on_subscribe("t", "b", now, copy=COPY, handling=Handling.NEVER) == SEND_NOTHING
    new = core.on_subscribe("t", "c", now, copy=COPY, handling=Handling.SEND_IF_NEW)
    assert new == SEND_NOW
    again = core.on_subscribe("t", "c", now, copy=COPY, handling=Handling.SEND_IF_NEW, existed=True)
    assert again == SEND_NOTHING
    assert core.on_subscribe("t", "d", now, copy=None) == SEND_NOTHING
    assert isinstance(core.on_subscribe("t", "e", now, copy=COPY), Wait)


def test_someone_waiting_who_then_wants_it_now_gets_it_once() -> None:
    core = delivery(Mode.WAIT)
    now = quick_topic(core)
    core.on_subscribe("t", "anna", now, copy=COPY)

    assert core.on_subscribe("t", "anna", now, copy=COPY, existed=True, wish_now=True) == SEND_NOW
    assert core.advance(now + 30.0) == []


def test_subscribing_again_while_waiting_does_not_move_the_deadline() -> None:
    core = delivery(Mode.WAIT)
    now = quick_topic(core)
    first = core.on_subscribe("t", "anna", now, copy=COPY)

    assert core.on_subscribe("t", "anna", now + 2.5, copy=COPY, existed=True) == first
    assert core.waiting("t") == 1


def test_a_publish_that_does_not_stand_in_lets_the_copy_go_first() -> None:
    for retain, qos, missed in ((False, 2, ()), (True, 0, ()), (True, 2, ("anna",))):
        core = delivery(Mode.WAIT)
        now = quick_topic(core)
        core.on_subscribe("t", "anna", now, copy=RetainedCopy(qos=1), qos=2)

        released = core.on_publish("t", now + 1, retain=retain, qos=qos, missed=missed)
        assert released == [Release("t", ("anna",), ReleaseReason.BEFORE_LIVE)]
        assert core.advance(now + 30.0) == []


def test_a_subscriber_of_qos_0_is_served_by_any_retained_publish() -> None:
    core = delivery(Mode.WAIT)
    now = quick_topic(core)
    core.on_subscribe("t", "anna", now, copy=RetainedCopy(qos=2), qos=0)

    assert core.on_publish("t", now + 1, retain=True, qos=0) == []


def test_publishes_without_the_retain_flag_are_no_evidence() -> None:
    core = delivery()
    for second in range(60):
        core.on_publish("t", float(second), retain=False)

    assert core.on_subscribe("t", "anna", 60.0, copy=COPY) == SEND_NOW


def test_a_copy_that_would_expire_while_held_is_not_held() -> None:
    core = delivery(Mode.WAIT)
    now = quick_topic(core)

    soon, late = RetainedCopy(expires_in_s=10.0), RetainedCopy(expires_in_s=10.1)
    assert core.on_subscribe("t", "anna", now, copy=soon) == SEND_NOW
    assert isinstance(core.on_subscribe("t", "bert", now, copy=late), Wait)


def test_who_leaves_gets_nothing_any_more() -> None:
    core = delivery(Mode.WAIT)
    now = quick_topic(core)
    core.on_subscribe("t", "anna", now, copy=COPY)
    core.on_subscribe("t", "bert", now, copy=RetainedCopy(qos=1), qos=1)
    core.on_unsubscribe("t", "anna", now + 1)

    assert core.on_disconnect("bert", now + 1, session_kept=False) == []
    assert core.wake_at() is None
    assert core.advance(now + 30.0) == []


def test_a_kept_session_gets_the_copy_into_its_queue_unless_it_is_qos_0() -> None:
    core = delivery(Mode.WAIT)
    now = quick_topic(core)
    core.on_subscribe("t", "anna", now, copy=RetainedCopy(qos=1), qos=1)
    core.on_subscribe("t", "bert", now, copy=RetainedCopy(qos=1), qos=0)

    queued = core.on_disconnect("anna", now + 1, session_kept=True)
    assert queued == [Release("t", ("anna",), ReleaseReason.OFFLINE)]
    assert core.on_disconnect("bert", now + 1, session_kept=True) == []
    assert core.on_disconnect("nobody", now + 1, session_kept=True) == []


def test_a_topic_deleted_while_someone_waits_ends_the_wait_and_is_forgotten() -> None:
    core = delivery(Mode.WAIT)
    now = quick_topic(core)
    core.on_subscribe("t", "anna", now, copy=COPY)

    assert core.on_topic_deleted("t", now + 1) == ["anna"]
    assert core.advance(now + 30.0) == []
    assert core.estimate("t", now + 30.0) is None
    assert core.on_topic_deleted("t", now + 31.0) == []


def test_a_storm_waits_as_one_and_is_released_as_one() -> None:
    evidence = Evidence(quiet_intervals=1000.0)
    core = delivery(Mode.WAIT, evidence=evidence)
    now = quick_topic(core)
    for number in range(2000):
        core.on_subscribe("t", number, now + number / 10_000, copy=COPY)
    wakes = 0
    released: list[Release] = []
    while (wake := core.wake_at()) is not None:
        wakes += 1
        released += core.advance(wake)

    assert [len(release.subscribers) for release in released] == [2000]
    assert wakes <= 11


def test_newcomers_of_different_steps_have_deadlines_of_their_own() -> None:
    evidence = Evidence(quiet_intervals=1000.0)
    core = delivery(Mode.WAIT, evidence=evidence)
    now = quick_topic(core)
    core.on_subscribe("t", "anna", now, copy=COPY)
    core.on_subscribe("t", "bert", now + 3.0, copy=COPY)

    assert core.advance(now + 10.0) == [Release("t", ("anna",), ReleaseReason.DEADLINE)]
    assert core.advance(now + 13.0) == [Release("t", ("bert",), ReleaseReason.DEADLINE)]


def test_a_topics_own_table_overrules_the_general_policy() -> None:
    generous = Weights(0.99, 1.0)  # the general policy would send
    waiting = delivery(policies=Policies(topics={"t": WAITING}), weights=generous)
    sending = delivery(
        policies=Policies(general=shipped_policy(), topics={"t": SENDING}), weights=THRIFTY
    )

    assert isinstance(waiting.on_subscribe("t", "a", quick_topic(waiting), copy=COPY), Wait)
    assert sending.on_subscribe("t", "a", quick_topic(sending), copy=COPY) == SEND_NOW


def test_a_table_is_read_at_the_steps_held_and_the_age() -> None:
    actions = DecisionProcess().plain()
    actions[0, 3] = actions[1, 4] = 1  # held 0 steps at age 3, held 1 step at age 4
    policies = Policies(topics={"t": TopicPolicy(actions, Rates(), Weights())})
    core = delivery(policies=policies, evidence=Evidence(quiet_intervals=50.0))
    now = quick_topic(core)

    assert core.on_subscribe("t", "a", now, copy=RetainedCopy(age_s=1.5)) == SEND_NOW
    answer = core.on_subscribe("t", "b", now, copy=RetainedCopy(age_s=2.0))
    assert answer == Wait(now + 10.0)
    assert core.advance(now + 1.0) == []
    assert core.wake_at() == pytest.approx(now + 2.0)
    assert core.advance(now + 2.0) == [Release("t", ("b",), ReleaseReason.POLICY)]


def test_new_policies_release_whom_they_would_not_hold() -> None:
    core = delivery(policies=Policies(topics={"t": WAITING}))
    now = quick_topic(core)
    core.on_subscribe("t", "anna", now, copy=COPY)

    assert core.load(Policies(topics={"t": WAITING}), now + 0.5) == []
    released = core.load(Policies(topics={"t": SENDING}), now + 1.0)
    assert released == [Release("t", ("anna",), ReleaseReason.POLICY)]
    assert core.wake_at() is None


def test_a_longer_dmax_does_not_move_a_deadline_already_promised() -> None:
    settings = {"t": TopicSetting(Mode.WAIT, hold_max_s=10.0)}
    core = RetainedDelivery(settings.__getitem__, evidence=Evidence(quiet_intervals=1000.0))
    now = quick_topic(core)
    core.on_subscribe("t", "anna", now, copy=COPY)
    settings["t"] = TopicSetting(Mode.WAIT, hold_max_s=100.0)
    core.load(Policies(), now + 1.0)

    assert core.advance(now + 10.0) == [Release("t", ("anna",), ReleaseReason.DEADLINE)]


def test_a_clock_set_back_does_not_make_anyone_wait_longer() -> None:
    core = delivery(Mode.WAIT, evidence=Evidence(quiet_intervals=1000.0))
    now = quick_topic(core)
    core.on_subscribe("t", "anna", now, copy=COPY)
    core.advance(now + 4.0)
    back = now - 3600.0
    assert core.advance(back) == []  # no time has passed since the last call, for all we know
    wakes = []
    released: list[Release] = []
    while not released:
        wake = core.wake_at()
        assert wake is not None
        wakes.append(wake)
        released = core.advance(wake)

    assert wakes[-1] == pytest.approx(back + 6.0)
    assert released == [Release("t", ("anna",), ReleaseReason.DEADLINE)]


def test_a_clock_set_forward_releases_and_trusts_nothing_old() -> None:
    core = delivery()
    now = quick_topic(core)
    core.on_subscribe("t", "anna", now, copy=COPY)

    assert [r.subscribers for r in core.advance(now + 86_400.0)] == [("anna",)]
    assert core.on_subscribe("t", "bert", now + 86_400.0, copy=COPY) == SEND_NOW


@pytest.mark.parametrize("now", [math.nan, math.inf, -math.inf])
def test_an_instant_that_is_none_is_refused_and_changes_nothing(now: float) -> None:
    core = delivery(Mode.WAIT)
    last = quick_topic(core)
    core.on_subscribe("t", "anna", last, copy=COPY)

    with pytest.raises(OutOfRangeError):
        core.on_publish("t", now, retain=True)
    with pytest.raises(OutOfRangeError):
        core.on_subscribe("t", "bert", now, copy=COPY)
    with pytest.raises(OutOfRangeError):
        core.on_topic_deleted("t", now)
    assert core.waiting("t") == 1
    check_retained_delivery(core)


def test_it_learns_on_its_own_only_within_its_bounds() -> None:
    bounds = LearningBounds(tables_max=1, publishes_min=20.0, pause_s=3.0)
    core = delivery(policies=Policies(), learning=bounds)
    assert core.to_learn("t", 0.0) is None  # never seen
    for second in range(61):
        core.on_publish("t", float(second), retain=True)
        core.on_publish("u", float(second), retain=True)
    now = 60.0
    process = core.to_learn("t", now)

    assert process is not None
    assert process.rates.publish == pytest.approx(1.0, rel=0.1)  # a step is a second here
    assert process.weights == THRIFTY
    table = TopicPolicy(solve(process).actions, process.rates, process.weights)
    assert core.on_subscribe("t", "a", now, copy=COPY) == SEND_NOW
    assert core.adopt("t", table)
    assert isinstance(core.on_subscribe("t", "b", now, copy=COPY), Wait)
    assert core.to_learn("u", now) is None  # one table is the bound
    assert core.to_learn("t", now + 2.0) is None  # too soon
    assert not core.adopt("u", table)
    odd = TopicPolicy(np.zeros((2, 2), dtype=np.uint8), Rates(), Weights())
    assert not core.adopt("t", odd)
    for second in range(63, 171):
        core.on_publish("t", float(second), retain=True)
    assert core.to_learn("t", 170.0) is not None
    assert isinstance(core.on_subscribe("t", "c", 170.0, copy=COPY), Wait)  # the old table serves
    core.load(Policies(topics={"u": table}), 170.5)  # what is loaded comes before what was learned
    assert core.on_subscribe("t", "d", 170.6, copy=COPY) == SEND_NOW
    for second in range(171, 200):
        core.on_publish("u", float(second), retain=True)
    assert core.to_learn("u", 200.0) is None  # a table from a file needs no other


def test_topics_are_learned_in_the_order_in_which_newcomers_came_to_them() -> None:
    bounds = LearningBounds(tables_max=2, publishes_min=20.0, pause_s=100.0)
    core = delivery(policies=Policies(), learning=bounds)
    for second in range(61):
        for topic in ("s", "t", "u"):
            core.on_publish(topic, float(second), retain=True)
    assert core.next_to_learn(60.0) is None  # nobody came to any
    for topic in ("u", "new", "s", "t"):  # of which the bound lets two be thought of
        core.on_subscribe(topic, "anna", 60.0, copy=COPY)
    found = core.next_to_learn(60.0)
    assert found is not None
    assert found[0] == "u"
    assert core.next_to_learn(60.0) is None  # "new" is not known well enough


def test_a_topic_whose_setting_forbids_it_is_not_learned() -> None:
    setting = TopicSetting(Mode.LEARNED, THRIFTY, 10.0, learns=False)
    bounds = LearningBounds(tables_max=9, publishes_min=20.0)
    core = RetainedDelivery(lambda _: setting, policies=Policies(), learning=bounds)
    for second in range(61):
        core.on_publish("t", float(second), retain=True)
    core.on_subscribe("t", "anna", 60.0, copy=COPY)
    assert core.next_to_learn(60.0) is None
    assert core.to_learn("t", 60.0) is None


def test_unless_asked_it_learns_nothing() -> None:
    core = delivery()

    assert core.to_learn("t", quick_topic(core)) is None
