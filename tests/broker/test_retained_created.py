"""The creation time that a publisher stamps, `nearcast policy explain`, and what was learned."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.broker import RetainedSettings, SpaceSettings
from nearcast.broker.publish.message import Message, MessageHead
from nearcast.broker.retained.created import AHEAD_S, age_s, created_s
from nearcast.model import Attribute, MisuseError, Space
from nearcast.mqtt import Properties, Publish, PublishAnswer
from nearcast.mqtt.properties import encode_property_content
from nearcast.mqtt.wire import encode_string

NOW_S = 1_763_460_000.0
SETTINGS = (
    RetainedSettings(topics="own/#", omega=0.3, created="made_at"),
    RetainedSettings(topics="now/#", mode="immediate"),
    RetainedSettings(topics="#", omega=0.3),
)


def message(*values: str, name: str = "$created") -> Message:
    user = tuple((name, value) for value in values)
    content = encode_property_content(Properties(user_properties=user))
    return Message(MessageHead(encode_string("t"), 1, 0, content), b"x")


@pytest.mark.parametrize("value", [f"{NOW_S}", f"{NOW_S - 3600}", "946684800", f"{NOW_S + 1.5}"])
def test_a_plausible_creation_time_is_used(value: str) -> None:
    assert created_s(message(value), "$created", NOW_S) == float(value)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("yesterday", "'yesterday'; expected a Unix time in seconds"),
        ("", "''; expected"),
        ("nan", "'nan'; expected"),
        ("-inf", "'-inf'; expected"),
        ("1e400", "'1e400'; expected"),
        ("-5", "'-5'; expected"),
        ("0", "'0'; expected"),
        ("12", "since 2000"),
        (f"{NOW_S + 60}", "60 s in the future"),
        (f"{NOW_S * 1000:.0f}", "Is it in milliseconds?"),
        ("1e300", "in the future"),
    ],
)
def test_a_creation_time_that_cannot_be_is_an_answer(value: str, told: str) -> None:
    with pytest.raises(MisuseError, match="created") as problem:
        created_s(message(value), "$created", NOW_S)
    assert told in str(problem.value)
    assert age_s(message(value), "$created", NOW_S - 4.0, NOW_S) == 4.0  # its arrival counts


def test_two_creation_times_are_none() -> None:
    with pytest.raises(MisuseError, match="2 values"):
        created_s(message("1", "2"), "$created", NOW_S)


@given(
    st.one_of(st.none(), st.floats(-1e4, 1e4).map(lambda ago: NOW_S - ago)),
    st.one_of(st.just(-math.inf), st.floats(0, 1e4).map(lambda ago: NOW_S - ago)),
)
def test_a_message_is_as_old_as_the_older_of_its_two_times(
    made_s: float | None, arrived_s: float
) -> None:
    one = message() if made_s is None else message(repr(made_s))
    times = [arrived_s]
    if made_s is not None and made_s <= NOW_S + AHEAD_S:
        times = [made_s] if arrived_s == -math.inf else [made_s, arrived_s]
    assert age_s(one, "$created", arrived_s, NOW_S) == max(0.0, NOW_S - min(times))


# -- in the node -----------------------------------------------------------------------------------


@pytest.fixture
def world(make_world: Any) -> Any:
    made = make_world(retained=SETTINGS, with_journal=True)
    made.wait(int(NOW_S * 1000) - made.now_ms)
    return made


def steady(world: Any, topic: str, lag_s: float | None, name: str = "$created") -> Any:
    """Publish a topic every 0.5 s, each message `lag_s` old; return the publisher."""
    source = world.welcome(f"source of {topic}")
    for number in range(20):
        world.wait(500)
        user = () if lag_s is None else ((name, f"{world.now_ms / 1000 - lag_s:.3f}"),)
        stamp = Properties(user_properties=user)
        source.send(Publish(topic, b"%d" % number, retain=True, properties=stamp))
    return source


@pytest.mark.parametrize(
    ("topic", "name", "lag_s", "waits"),
    [
        ("a", "$created", None, True),
        ("a", "$created", 1.0, True),
        ("a", "$created", 25.0, False),  # as old as a message of a quiet topic
        ("a", "made_at", 25.0, True),  # not this block's property
        ("own/a", "made_at", 25.0, False),
        ("a", "$created", -25.0, True),  # in the future: not used
    ],
)
def test_the_creation_time_counts_for_the_age(
    world: Any, topic: str, name: str, lag_s: float | None, waits: bool
) -> None:
    steady(world, topic, lag_s, name)
    ann = world.welcome("ann")
    ann.subscribe(topic)

    assert ann.payloads() == ([] if waits else [b"19"])


@pytest.mark.parametrize("topic", ["a", "place/a"])
def test_a_bad_creation_time_is_answered_and_the_message_goes_out(
    make_world: Any, topic: str
) -> None:
    x = Attribute.number("x", 0, 1)
    place = SpaceSettings(space=Space(name="p", topic_filter="place/#", attributes=(x,)))
    world = make_world(retained=SETTINGS, spaces=(place,))
    ann, source = world.welcome("ann"), world.welcome("source")
    ann.subscribe("#")
    bad = Properties(user_properties=(("$created", "soon"),))
    payload = b'{"x": 0.5}'
    source.publish(topic, payload, 1, retain=True, properties=bad)

    (answer,) = (one for one in source.take() if isinstance(one, PublishAnswer))
    assert answer.reason < 0x80
    assert answer.properties.reason_string is not None
    assert "$created: found 'soon'" in answer.properties.reason_string
    assert "counts from its arrival" in answer.properties.reason_string
    assert ann.payloads() == [payload]
    assert world.node.state.retained.get(topic) is not None
    assert world.node.counters.retained_created_ignored == 1


def test_where_no_policy_decides_the_property_is_the_clients_own(world: Any) -> None:
    source = world.welcome("source")
    bad = Properties(user_properties=(("$created", "soon"),))
    source.send(Publish("now/a", b"1", 1, retain=True, packet_id=5, properties=bad))
    source.send(Publish("a", b"1", 1, packet_id=6, properties=bad))

    assert world.node.counters.retained_created_ignored == 0


# -- explain ---------------------------------------------------------------------------------------


def ask(world: Any, question: object) -> dict[str, Any]:
    asker = world.welcome("asker")
    asker.subscribe("answers", 1)
    reply = Properties(response_topic="answers")
    asker.send(
        Publish(
            "$nearcast/explain", json.dumps(question).encode(), 1, packet_id=9, properties=reply
        )
    )
    (payload,) = asker.payloads()
    found: dict[str, Any] = json.loads(payload)
    return found


def test_explain_says_what_then_happens(world: Any) -> None:
    for topic, lag_s in (("old", 25.0), ("quick", None)):
        steady(world, topic, lag_s)
    world.welcome("other").publish("few", b"1", retain=True)
    expected = {
        "quick": ("wait", "the model decides"),
        "old": ("send", "the retained message is old"),
        "few": ("send", "fewer than 1 publishes within Dmax"),
        "now/a": ("nothing", "no message is retained"),
    }
    for topic, (decision, because) in expected.items():
        found = ask(world, {"newcomer": topic})
        assert (found["decision"], because in found["because"]) == (decision, True), found
        ann = world.welcome(f"ann of {topic}")
        ann.subscribe(topic)
        assert bool(ann.payloads()) == (decision == "send")
        assert world.node.deferred_retained._core.waiting(topic) == (decision == "wait")
    found = ask(world, {"newcomer": "quick"})
    assert found["setting"]["topics"] == "#"
    assert found["rates"]["publish_per_s"] == pytest.approx(2.0, rel=0.1)
    assert found["model"] == {"policy": "the general policy", "decision": "wait"}
    assert found["experience"]["follows"] == "model"


def test_explain_counts_experience(world: Any) -> None:
    source = steady(world, "quick", None)
    for number in range(5):
        world.welcome(f"ann {number}").subscribe("quick")
        world.wait(500)
        source.publish("quick", b"new", retain=True)
    found = ask(world, {"newcomer": "quick"})

    assert found["experience"]["count"] == pytest.approx(5.0, abs=0.1)
    assert found["experience"]["gain_of_model"] > 0.5  # half a step of waiting saved a message


@pytest.mark.parametrize("topic", ["", "a/+", "#", 7, None, "\ud800"])
def test_a_question_about_no_topic_is_answered(world: Any, topic: object) -> None:
    assert "newcomer" in ask(world, {"newcomer": topic})["problem"]


def test_without_a_block_every_topic_is_plain_mqtt(make_world: Any) -> None:
    found = ask(make_world(), {"newcomer": "a"})

    assert found["decision"] == "send"
    assert "no [[retained]] block" in found["because"]


# -- what was learned ------------------------------------------------------------------------------


def test_what_was_learned_is_kept_for_the_blocks_that_are_still_there(
    world: Any, make_world: Any
) -> None:
    source = steady(world, "quick", None)
    world.welcome("ann").subscribe("quick")
    source.publish("quick", b"new", retain=True)
    text = world.node.deferred_retained.experience_text()

    again = make_world(retained=SETTINGS).node.deferred_retained
    assert again.restore_experience(text, "file") == 1
    assert again.experience_text() == text
    changed = make_world(retained=(RetainedSettings(topics="#", omega=0.4),)).node.deferred_retained
    assert changed.restore_experience(text, "file") == 0
