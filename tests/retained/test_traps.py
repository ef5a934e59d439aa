"""The traps of paper 4 (docs/papers/4-learned-retained.md): each fails on the literal reading."""

import math
from typing import Any

import pytest
from tests.support.retained_samples import COPY

from nearcast.broker.publish.message import Message, MessageHead
from nearcast.broker.retained.created import age_s
from nearcast.mqtt.properties import Properties, encode_property_content
from nearcast.mqtt.wire import encode_string
from nearcast.retained import (
    SEND_NOTHING,
    SEND_NOW,
    DecisionProcess,
    Evidence,
    Handling,
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
    best_reward,
    expected_reward,
    learn,
    share_of_gain,
    shipped_policy,
    solve,
)

NEVER_QUIET = Evidence(quiet_intervals=1000.0)


def core_of(mode: Mode, actions: Any = None, evidence: Evidence | None = None) -> RetainedDelivery:
    """Return a core; with a table for the topic `t`, else with the general policy."""
    setting = TopicSetting(mode, Weights(0.3, 5.0), hold_max_s=10.0)
    policies = Policies(general=shipped_policy())
    if actions is not None:
        policies = Policies(topics={"t": TopicPolicy(actions, Rates(), Weights())})
    core = RetainedDelivery(lambda _: setting, policies=policies, evidence=evidence)
    for second in range(61):
        core.on_publish("t", float(second), retain=True)
    return core


def test_t4_1_a_policy_is_compared_with_the_optimum_not_with_plain_mqtt() -> None:
    """Literally, always waiting "is better than plain MQTT" here. It reaches half of the gain."""
    process = DecisionProcess(Rates(0.1), Weights(0.7))
    always = process.always_wait()

    assert expected_reward(process, always) > expected_reward(process, process.plain())
    assert share_of_gain(process, always) == pytest.approx(0.53, abs=0.01)
    assert share_of_gain(process, learn(process, seed=1).actions) > 0.95
    assert expected_reward(process, solve(process).actions) == pytest.approx(best_reward(process))


def test_t4_2_nobody_waits_beyond_dmax_even_if_waiting_costs_nothing() -> None:
    """Literally, d stays at Dmax and the newcomer waits for ever."""
    free = DecisionProcess(weights=Weights(0.0, 5.0))  # traffic alone counts
    assert not solve(free).actions[-1].any()
    assert not learn(free, seed=1).actions[-1].any()

    core = core_of(Mode.WAIT, evidence=NEVER_QUIET)
    core.on_subscribe("t", "anna", 60.0, copy=COPY)
    assert core.advance(70.0) == [Release("t", ("anna",), ReleaseReason.DEADLINE)]
    quiet = core_of(Mode.WAIT)
    assert quiet.on_subscribe("t", "anna", 65.0, copy=COPY) == SEND_NOW


def test_t4_3_the_older_copy_never_follows_the_live_message() -> None:
    """Literally, a message that was held back is sent when its wait is over."""
    core = core_of(Mode.WAIT, evidence=NEVER_QUIET)
    core.on_subscribe("t", "anna", 60.0, copy=COPY)
    assert core.on_publish("t", 61.0, retain=True) == []  # it serves anna

    assert core.wake_at() is None
    assert core.advance(1000.0) == []


def test_t4_4_the_clients_wish_comes_first_and_the_default_is_no_wish() -> None:
    """Literally, retain handling 0 means "send now", and no policy would ever apply."""
    core = core_of(Mode.WAIT)
    new: dict[str, Any] = {"copy": COPY}
    assert isinstance(core.on_subscribe("t", "a", 60.0, handling=Handling.SEND, **new), Wait)
    assert core.on_subscribe("t", "b", 60.0, handling=Handling.SEND_IF_NEW, **new) == SEND_NOW
    assert core.on_subscribe("t", "c", 60.0, handling=Handling.NEVER, **new) == SEND_NOTHING
    assert core.on_subscribe("t", "d", 60.0, wish_now=True, **new) == SEND_NOW

    assert TopicSetting().mode is Mode.IMMEDIATE  # deferring is off unless switched on


def test_t4_5_a_policy_needs_evidence_of_the_topic_itself() -> None:
    """Literally, the policy for given rates decides on every topic from the first message on."""
    core = core_of(Mode.LEARNED)
    for number in range(7):
        core.on_publish("new", 60.0 + number / 100, retain=True)
    core.on_publish("slow", 60.1, retain=True)

    assert isinstance(core.on_subscribe("t", "a", 60.2, copy=COPY), Wait)
    assert core.on_subscribe("new", "a", 60.2, copy=COPY) == SEND_NOW  # seven publishes
    assert core.on_subscribe("slow", "a", 60.2, copy=COPY) == SEND_NOW  # one
    assert core.on_subscribe("never", "a", 60.2, copy=COPY) == SEND_NOW


def test_t4_6_each_newcomer_begins_to_wait_at_zero() -> None:
    """Literally ("sending: d' = d"), nobody waits any more once one newcomer has waited."""
    actions = DecisionProcess().plain()
    actions[:3, 1:-1] = 1  # waits for three steps, at any age
    core = core_of(Mode.LEARNED, actions, NEVER_QUIET)

    for begin, subscriber in ((60.0, "anna"), (64.0, "bert"), (68.0, "cleo")):
        assert core.on_subscribe("t", subscriber, begin, copy=COPY) == Wait(begin + 10.0)
        assert core.advance(begin + 2.9) == []
        assert core.advance(begin + 3.0) == [Release("t", (subscriber,), ReleaseReason.POLICY)]


def test_t4_7_only_a_newcomer_that_waits_costs_a_message() -> None:
    """Literally, f asks for a newcomer that the state does not have: sending always costs Cp."""
    environment = pytest.importorskip("nearcast.retained.environment")
    process = DecisionProcess(Rates(0.0, 0.0, 0.0), Weights(0.7, 5.0))  # nothing else happens
    world = environment.RetainedDeliveryEnvironment(process)
    world.reset(seed=1)
    _, first, *_ = world.step(0)
    (_, _, _, count, waiting), second, *_ = world.step(0)

    assert waiting == 0
    value = process.timeliness.value(process.caps.age_max)
    assert first == pytest.approx(0.7 * value * count - 0.3 * 5.0)
    assert second == pytest.approx(0.7 * value * count)


def test_t4_8_subscribers_do_not_grow_without_bound() -> None:
    """Literally, with λS > λU the number of subscribers drifts to infinity, here to the cap."""
    process = DecisionProcess(Rates(0.6, subscribe=0.2, leave=0.1))
    chances = process.subscribers
    mean = sum(number * chance for number, chance in enumerate(chances))

    assert mean == pytest.approx(0.2 / (1.0 - math.exp(-0.1)), rel=0.01)  # each may leave
    assert chances[-1] < 1e-6
    crowded = DecisionProcess(Rates(0.6, subscribe=50.0, leave=0.0)).subscribers
    assert crowded[-1] == pytest.approx(1.0)  # and there is a cap


def test_t4_9_policies_are_compared_by_the_gain_that_can_be_attained() -> None:
    """Literally, the reward: there, the best policy and plain MQTT are within 2 %."""
    process = DecisionProcess(Rates(1.0, subscribe=0.2, leave=0.02))
    plain, best = expected_reward(process, process.plain()), best_reward(process)
    assert abs(best / plain - 1.0) < 0.02
    assert share_of_gain(process, process.plain()) == 0.0
    assert share_of_gain(process, solve(process).actions) == pytest.approx(1.0)

    # The share does not depend on how many others there are; the ratio of rewards does.
    few, many = (DecisionProcess(Rates(0.1, s)) for s in (0.1, 0.2))
    always = few.always_wait()
    assert share_of_gain(few, always) == pytest.approx(share_of_gain(many, always))


def test_t4_10_a_publish_makes_the_message_young_again() -> None:
    """Literally, t only grows: t' = t + 1, whether a message came or not."""
    actions = DecisionProcess().plain()
    actions[:, 1:4] = 1  # waits where the message is young
    core = core_of(Mode.LEARNED, actions, NEVER_QUIET)
    assert core.on_subscribe("t", "a", 65.0, copy=RetainedCopy(age_s=5.0)) == SEND_NOW
    core.on_publish("t", 65.5, retain=True)
    assert isinstance(core.on_subscribe("t", "b", 65.5, copy=RetainedCopy(age_s=0.0)), Wait)

    process = DecisionProcess(Rates(0.6))
    assert process.start[:, 0].sum() == pytest.approx(1.0 - math.exp(-0.6))


def test_t4_10_the_age_counts_from_the_creation_that_the_publisher_stamps() -> None:
    """Literally, t' on sending needs the creation time, and nothing in the state has it."""
    now = 1_763_460_000.0
    content = encode_property_content(Properties(user_properties=(("$created", f"{now - 7.5}"),)))
    topic = encode_string("t")
    stamped = Message(MessageHead(topic, 1, 0, content), b"x")
    bare = Message(MessageHead(topic, 1, 0), b"x")

    assert age_s(stamped, "$created", now - 1.0, now) == 7.5
    assert age_s(bare, "$created", now - 1.0, now) == 1.0
