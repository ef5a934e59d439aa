"""What one client sends may harm that client and nobody else: wills, numbers, mistakes of ours."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from nearcast.broker import BrokerSettings, SpaceSettings
from nearcast.broker.publish.message import Message, MessageHead
from nearcast.model import Attribute, Space
from nearcast.mqtt import (
    Connack,
    Disconnect,
    FilterRequest,
    Properties,
    ProtocolVersion,
    PublishAnswer,
    ReasonCode,
    Suback,
    Subscribe,
    Will,
    encode_packet,
)
from nearcast.mqtt.properties import MOST_USER_PROPERTIES

V311, V5 = ProtocolVersion.V311, ProtocolVersion.V5
SPACE = SpaceSettings(
    space=Space(
        name="shops", topic_filter="shops/#", attributes=(Attribute.number("price", 0, 100),)
    )
)


@pytest.fixture
def shops(make_world: Any) -> Any:
    return make_world(spaces=[SPACE], with_journal=True)


# --- wills ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topic", "pairs", "reason"),
    [
        ("/".join("x" * 129), (), ReasonCode.TOPIC_NAME_INVALID),
        ("$SYS/broker/uptime", (), ReasonCode.TOPIC_NAME_INVALID),
        ("$nearcast/explain", (), ReasonCode.TOPIC_NAME_INVALID),
        ("$position", (), ReasonCode.TOPIC_NAME_INVALID),
        ("shops/1", (("$lifetime", "99999999h"),), ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR),
        ("shops/1", (("$top", "0"),), ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR),
        ("shops/1", (("$reply", "matches"),), ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR),
        ("$top/0/shops/1", (), ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR),
        ("$top/1/elsewhere", (), ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR),
    ],
)
def test_a_will_that_could_not_be_published_is_refused_at_connect(
    shops: Any, topic: str, pairs: tuple[tuple[str, str], ...], reason: ReasonCode
) -> None:
    will = Will(topic, b"{}", properties=Properties(user_properties=pairs))
    refused = shops.client("c", will=will, props={"session_expiry_interval": 60})

    assert [one.reason for one in refused.take()] == [reason]
    assert refused.is_closed
    assert "c" not in shops.node.state.sessions
    assert shops.client("d", V311, will=Will(topic, b"{}")).take() in ([], [Connack(False, 0)])


def test_a_will_that_newer_settings_forbid_does_not_keep_the_broker_from_starting(
    make_world: Any,
) -> None:
    world = make_world(with_journal=True)
    lasting = {"session_expiry_interval": 60}
    world.welcome("deep", will=Will("a/b/c/d", b"gone"), props=lasting)
    delayed = Properties(will_delay_interval=5)
    world.welcome("late", will=Will("a/b/c", b"gone", properties=delayed), props=lasting)
    world.welcome("flat", will=Will("flat", b"gone", retain=True))
    world.settings = replace(world.settings, max_topic_levels=2)
    world.crash_and_restart()

    assert len(world.set_aside) == 1
    assert world.node.state.retained.get("flat").payload == b"gone"
    assert list(world.node.state.sessions) == ["deep", "late"]
    world.wait(5_000)
    assert world.node.counters.dropped_invalid == 1


def test_a_will_asks_no_question_about_others(shops: Any) -> None:
    ann = shops.welcome("ann")
    ann.subscribe("answers")
    ann.take()
    asker = shops.welcome("asker", will=Will("later", b"x"))
    question = b'{"client": "ann", "topic": "shops/1"}'
    stored = shops.node.state.sessions["asker"].will
    properties = Properties(response_topic="answers")
    head = MessageHead(b"\0\x11$nearcast/explain", len(question), 0, encode_properties(properties))
    stored.message = Message(head, question)  # as an older version has stored it
    asker.lose()

    assert ann.payloads() == []


def encode_properties(properties: Properties) -> bytes:
    from nearcast.mqtt.properties import encode_property_content

    return encode_property_content(properties)


# --- numbers and texts ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "question",
    [
        b'{"client": "\\ud800", "topic": "a"}',
        b'{"client": "a", "topic": "\\udfff"}',
        b'{"client": "a", "topic": "a", "payload": "\\ud800"}',
        b'{"client": "a", "topic": "shops/1", "payload": {"price": "\\ud800"}}',
        b'{"client": "a", "topic": "a", "properties": {"\\ud800": "\\udc00"}}',
    ],
)
def test_a_question_with_half_a_character_is_answered(shops: Any, question: bytes) -> None:
    ann = shops.welcome("ann")
    ann.subscribe("answers")
    ann.take()
    ann.publish("$nearcast/explain", question, 1, properties=Properties(response_topic="answers"))

    (answer,) = ann.publications()
    assert "problem" in json.loads(answer.payload) or "because" in json.loads(answer.payload)
    assert not ann.is_closed


def test_a_response_topic_too_deep_is_answered(shops: Any) -> None:
    ann = shops.welcome("ann")
    properties = Properties(response_topic="/" * 200)
    ann.publish("$nearcast/explain", b'{"client": "a", "topic": "a"}', 1, properties=properties)

    (answer,) = ann.take()
    assert answer.reason == ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
    assert not ann.is_closed


def test_a_lifetime_beyond_what_mqtt_can_say_is_refused(shops: Any) -> None:
    ann = shops.welcome("ann")
    lasting = Properties(user_properties=(("$lifetime", "99999999h"),))
    ann.publish("shops/1", b'{"price": 1}', 1, retain=True, properties=lasting)
    longest = Properties(user_properties=(("$lifetime", "4294967295s"),))
    ann.publish("shops/2", b'{"price": 2}', 1, retain=True, properties=longest)

    answers = [one.reason for one in ann.take() if isinstance(one, PublishAnswer)]
    assert answers == [ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, 0x10]
    bob = shops.welcome("bob")
    bob.subscribe("#")
    (message,) = bob.publications()
    assert message.properties.message_expiry_interval == 0xFFFF_FFFF


@pytest.mark.parametrize("qos", [0, 1])
def test_a_poisoned_message_of_an_older_version_throws_nobody_out(world: Any, qos: int) -> None:
    head = MessageHead(b"\0\1p", 1, 1, retain=True)
    world.node.state.retained.put("p", Message(head, b"x", 10**18))
    ann = world.welcome("ann")
    ann.subscribe("#", qos)

    (message,) = ann.publications()
    assert message.properties.message_expiry_interval == 0xFFFF_FFFF
    assert not ann.is_closed


@pytest.mark.parametrize(
    "text", ["#" * 65_535, "\x01" * 65_535 + "#"[:0], "$near/" + "\x7f" * 60_000]
)
def test_a_filter_as_long_as_can_be_is_answered_in_few_words(shops: Any, text: str) -> None:
    ann = shops.welcome("ann")
    ann.send(Subscribe(1, (FilterRequest(text, 0), FilterRequest("+" * 60_000, 0))))

    (answer,) = ann.take()
    assert isinstance(answer, Suback)
    assert answer.reasons[1] == ReasonCode.TOPIC_FILTER_INVALID
    assert len(answer.properties.reason_string or "") in range(1, 1_001)
    assert not ann.is_closed


def test_a_position_of_a_client_with_a_very_long_name_is_shown_to_nobody(make_world: Any) -> None:
    world = make_world(spaces=[replace(SPACE, positions="public")])
    ann = world.welcome("/" * 40_000)
    ann.publish("$position", b'{"lon": 8.5, "lat": 47.4}')

    assert not ann.is_closed
    assert world.node.state.sessions[ann.link.session.client_id].position == (8.5, 47.4)


# --- user properties -----------------------------------------------------------------------------


def many(count: int) -> Properties:
    return Properties(user_properties=(("a", "b"),) * count)


def test_user_properties_are_bounded_in_number(make_world: Any) -> None:
    world = make_world()
    most = MOST_USER_PROPERTIES
    welcome = world.client("a", properties=many(most))
    refused = world.client("b", properties=many(most + 1))
    bad_will = world.client("c", will=Will("w", b"", properties=many(most + 1)))
    welcome.publish("t", b"", 1, properties=many(most))
    welcome.publish("t", b"", 1, properties=many(most + 1))

    quota = ReasonCode.QUOTA_EXCEEDED
    assert [one.reason for one in welcome.take()] == [0, 0x10, quota]
    assert [one.reason for one in refused.take()] == [quota]
    assert [one.reason for one in bad_will.take()] == [quota]


# --- mistakes of our own -------------------------------------------------------------------------


class MistakeError(Exception):
    """Something that nobody foresaw."""


def listening(world: Any) -> list[tuple[str, str]]:
    """Let the node go on after mistakes, and return where it tells of them."""
    told: list[tuple[str, str]] = []
    failures = world.node.state.failures
    failures.listener = lambda fingerprint, doing, _problem: told.append((fingerprint, doing))
    return told


def fail(*_given: Any, **_named: Any) -> Any:
    raise MistakeError


@pytest.mark.plain
def test_without_a_listener_a_mistake_is_raised(world: Any) -> None:
    world.node._subscribing.subscribe = fail
    ann = world.welcome("ann")

    with pytest.raises(MistakeError):
        ann.subscribe("a")


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.plain
def test_a_mistake_ends_the_connection_that_caused_it_and_no_other(
    world: Any, version: ProtocolVersion
) -> None:
    bob = world.welcome("bob")
    bob.subscribe("b")
    bob.take()
    told = listening(world)
    world.node._subscribing.subscribe = fail
    for name in ("ann", "cyd"):
        client = world.welcome(name, version)
        client.subscribe("a")
        answers = client.take()
        assert client.is_closed
        assert [type(one) for one in answers] == ([Disconnect] if version is V5 else [])
        assert all(one.reason == ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR for one in answers)

    world.welcome("dan").publish("b", b"still here")
    assert bob.payloads() == [b"still here"]
    assert len(told) == 1  # once for each place
    assert world.node.state.failures.count == 2
    assert list(world.node.state.failures.by_fingerprint.values()) == [2]


@pytest.mark.plain
def test_a_mistake_at_connect_is_answered(world: Any) -> None:
    listening(world)
    world.node._handshake._connack = fail
    new, old = world.client("ann"), world.client("bob", V311)

    assert [one.reason for one in new.take()] == [ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR]
    assert old.take() == []
    assert new.is_closed
    assert old.is_closed


@pytest.mark.plain
def test_a_mistake_with_one_receiver_is_not_felt_by_publisher_and_other_receivers(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = {name: world.welcome(name) for name in ("a", "b", "c")}
    limited = world.welcome("d", props={"maximum_packet_size": 1_000})
    for client in (*clients.values(), limited):
        client.subscribe("t", 1)
        client.take()
    told = listening(world)
    delivery = world.node._delivery
    send = delivery._send_run
    monkeypatch.setattr(
        delivery,
        "_send_run",
        lambda session, *rest: fail() if session.client_id == "b" else send(session, *rest),
    )
    sender = world.welcome("sender")
    for qos in (1, 2):
        sender.publish("t", b"x", qos)

    assert not sender.is_closed
    assert clients["a"].payloads() == clients["c"].payloads() == limited.payloads() == [b"x"] * 2
    assert clients["b"].payloads() == []
    assert not clients["b"].is_closed
    assert [doing for _, doing in told] == ["delivering at QoS 1 or 2"]


@pytest.mark.plain
def test_a_queued_message_that_cannot_be_written_is_passed_over(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    props = {"session_expiry_interval": 60}
    first = world.welcome("ann", props=props)
    first.subscribe("t", 1)
    first.lose()
    sender = world.welcome("sender")
    for payload in (b"1", b"poison", b"3"):
        sender.publish("t", payload, 1)
    listening(world)
    wire = Message.wire
    monkeypatch.setattr(
        Message,
        "wire",
        lambda self, *a, **k: fail() if self.payload == b"poison" else wire(self, *a, **k),
    )
    again = world.client("ann", clean_start=False, props=props)

    assert again.payloads() == [b"1", b"3"]
    assert not again.is_closed
    assert world.node.state.held_bytes == 0
    assert world.node.state.failures.count == 1


def test_a_mistake_with_a_will_is_felt_by_nobody(make_world: Any) -> None:
    world = make_world(with_journal=True)
    listening(world)
    world.node._lifecycle.publish_will = fail
    gone = world.welcome("gone", will=Will("w", b"x"))
    later = world.welcome(
        "later",
        will=Will("w", b"x", properties=Properties(will_delay_interval=5)),
        props={"session_expiry_interval": 9},
    )
    gone.lose()
    later.lose()
    world.wait(20_000)

    assert world.node.state.sessions == {}
    assert world.node.state.failures.count == 2


def test_a_mistake_of_one_timer_leaves_the_others_theirs(world: Any) -> None:
    listening(world)
    done: list[int] = []
    for number, action in enumerate((done.append, fail, done.append)):
        world.node.state.timers.at(world.now_ms + 5, action, number)
    world.wait(5)

    assert done == [0, 2]
    assert world.node.state.failures.count == 1


@pytest.mark.plain
def test_at_the_end_of_the_broker_a_mistake_with_one_client_leaves_the_others_theirs(
    world: Any,
) -> None:
    ann, bob = world.welcome("ann"), world.welcome("bob")
    listening(world)
    world.node._lifecycle.detach = fail
    for client in (ann, bob):
        world.node.disconnect(client.link, ReasonCode.SERVER_SHUTTING_DOWN, world.now_ms)
    world.settle()

    assert ann.is_closed
    assert bob.is_closed
    assert bob.take()[0].reason == ReasonCode.SERVER_SHUTTING_DOWN


# --- settings ------------------------------------------------------------------------------------


def test_a_maximum_quality_is_told_and_held_to(make_world: Any) -> None:
    world = make_world(BrokerSettings(maximum_qos=1))
    ann = world.client("ann")
    assert ann.take()[0].properties.maximum_qos == 1
    ann.subscribe("a", 2)
    assert ann.take()[0].reasons == (1,)
    ann.publish("a", b"x", 1)
    assert len(ann.take()) == 2
    ann.publish("a", b"x", 2)

    assert [one.reason for one in ann.take()] == [ReasonCode.QOS_NOT_SUPPORTED]
    willed = world.client("bob", will=Will("w", b"x", 2))
    assert [one.reason for one in willed.take()] == [ReasonCode.QOS_NOT_SUPPORTED]
    old = world.welcome("old", V311)
    old.publish("a", b"x", 2)
    assert old.is_closed


def test_without_retain_nothing_is_retained_and_clients_are_told(make_world: Any) -> None:
    world = make_world(BrokerSettings(retain_available=False))
    ann = world.client("ann")
    assert ann.take()[0].properties.retain_available == 0
    for qos in (0, 1, 2):
        sender = world.welcome(f"s{qos}")
        sender.publish("a", b"x", qos, retain=True)
        assert [one.reason for one in sender.take()] == [ReasonCode.RETAIN_NOT_SUPPORTED]
    willed = world.client("bob", will=Will("w", b"x", retain=True))

    assert [one.reason for one in willed.take()] == [ReasonCode.RETAIN_NOT_SUPPORTED]
    assert world.node.state.retained.count == 0


@pytest.mark.parametrize("topic", ["t", "shops/1"])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_payload_above_the_limit_is_not_delivered(make_world: Any, qos: int, topic: str) -> None:
    world = make_world(BrokerSettings(max_message_bytes=20), spaces=[SPACE])
    ann = world.welcome("ann")
    ann.subscribe("#", qos)
    ann.take()
    sender = world.welcome("sender")
    right, wrong = b'{"price":1}' + b" " * 9, b'{"price":1}' + b" " * 10
    for payload in (right, wrong, right):
        sender.publish(topic, payload, qos)
    run = b"".join(
        encode_packet(one) for one in [publication(topic, p, qos) for p in (right, wrong)]
    )
    sender.send_bytes(run)

    assert ann.payloads() == [right] * 3
    reasons = [one.reason for one in sender.take() if one.kind in (4, 5)] if qos else []
    assert reasons == ([0, 0x97, 0, 0, 0x97] if qos else [])
    assert world.node.counters.dropped_too_large == 2
    large = world.client("bob", will=Will("w", wrong))
    assert [one.reason for one in large.take()] == [ReasonCode.PACKET_TOO_LARGE]


_next_id = iter(range(100, 60_000))


def publication(topic: str, payload: bytes, qos: int) -> Any:
    from nearcast.mqtt import Publish

    return Publish(topic, payload, qos, packet_id=next(_next_id) if qos else 0)


@pytest.mark.parametrize(("wanted_s", "reason"), [(0, 2), (61, 2), (60, 0), (1, 0)])
def test_a_client_of_3_1_1_with_a_longer_keep_alive_than_allowed_is_refused(
    make_world: Any, wanted_s: int, reason: int
) -> None:
    world = make_world(BrokerSettings(max_keep_alive_s=60, keep_alive_s=60))
    assert world.client("old", V311, keep_alive_s=wanted_s).take() == [Connack(False, reason)]

    (told,) = world.client("new", keep_alive_s=wanted_s).take()
    assert told.properties.server_keep_alive == (60 if reason else None)


@pytest.mark.parametrize(
    "character", ["\x01", "\x1f", "\x7f", "\x9f", "\ufdd0", "\uffff", "\U0010fffe"]
)
def test_control_characters_in_topics_are_refused_where_that_is_set(
    make_world: Any, character: str
) -> None:
    world = make_world(BrokerSettings(printable_topics=True))
    ann = world.welcome("ann")
    ann.send(Subscribe(1, (FilterRequest(f"a{character}/#", 0), FilterRequest("é/€/😀", 0))))
    assert ann.take()[0].reasons == (ReasonCode.TOPIC_FILTER_INVALID, 0)
    willed = world.client("bob", will=Will(f"w{character}", b""))
    assert [one.reason for one in willed.take()] == [ReasonCode.TOPIC_NAME_INVALID]
    ann.publish(f"a{character}")

    assert [one.reason for one in ann.take()] == [ReasonCode.TOPIC_NAME_INVALID]
    tolerant = make_world().welcome("cyd")
    tolerant.publish(f"a{character}", b"x", 1)
    assert not tolerant.is_closed
