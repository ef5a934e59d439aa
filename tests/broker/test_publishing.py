"""Publishing and delivery at each quality, acknowledgements, topics: sections 3.3, 4.3 and 4.6."""

from __future__ import annotations

from typing import Any

import pytest

from nearcast.broker import BrokerSettings
from nearcast.mqtt import (
    PacketType,
    ProtocolVersion,
    Publish,
    PublishAnswer,
    ReasonCode,
)

V311, V5 = ProtocolVersion.V311, ProtocolVersion.V5
PUBACK, PUBREC, PUBREL, PUBCOMP = (PacketType(number) for number in (4, 5, 6, 7))
both = pytest.mark.parametrize("version", [V311, V5])


@pytest.mark.parametrize("to_version", [V311, V5])
@pytest.mark.parametrize("from_version", [V311, V5])
@pytest.mark.parametrize("sent", [0, 1, 2])
@pytest.mark.parametrize("granted", [0, 1, 2])
def test_a_message_arrives_at_the_lower_of_both_qualities(
    world: Any, from_version: ProtocolVersion, to_version: ProtocolVersion, sent: int, granted: int
) -> None:
    receiver = world.welcome("r", to_version)
    receiver.subscribe("a/b", granted)
    receiver.take()
    world.welcome("s", from_version).publish("a/b", b"hello", sent)

    (message,) = receiver.publications()
    assert (message.topic, message.payload) == ("a/b", b"hello")
    assert (message.qos, message.retain, message.duplicate) == (min(sent, granted), False, False)
    assert world.node.state.held_bytes == 0


@both
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_of_a_topic_arrive_in_the_order_in_which_they_came(
    world: Any, version: ProtocolVersion, qos: int
) -> None:
    """[MQTT-4.6.0-5]: out of one read, out of several, and out of a queue."""
    lasting = {"session_expiry_interval": 60} if version is V5 else {}
    receiver = world.welcome("r", version, clean_start=False, props=lasting)
    receiver.subscribe("a/+", 2)
    receiver.take()
    sender = world.welcome("s", version)
    expected = [str(one).encode() for one in range(30)]
    for start in range(0, 30, 5):
        if start == 20:
            receiver.lose()
        packets = [
            Publish("a/b", one, qos, packet_id=sender.next_id() if qos else 0)
            for one in expected[start : start + 5]
        ]
        sender.send(*packets)
    received = receiver.payloads()
    back = world.client("r", version, clean_start=False, props=lasting)

    assert received + back.payloads() == (expected if qos else expected[:20])


@both
def test_every_quality_is_answered_in_its_way(world: Any, version: ProtocolVersion) -> None:
    world.welcome("r").subscribe("a", 2)
    sender = world.welcome("s", version)
    sender.answers = False

    sender.publish("a", qos=0)
    assert sender.take() == []
    once = sender.publish("a", qos=1)
    assert sender.take() == [PublishAnswer(PUBACK, once)]
    exactly = sender.publish("a", qos=2)
    assert sender.take() == [PublishAnswer(PUBREC, exactly)]
    sender.send(PublishAnswer(PUBREL, exactly))
    assert sender.take() == [PublishAnswer(PUBCOMP, exactly)]


def test_a_message_for_nobody_is_said_to_be_so_in_mqtt_5(world: Any) -> None:
    new, old = world.welcome("n"), world.welcome("o", V311)
    new.publish("a", qos=1)
    new.publish("a", qos=2)
    old.publish("a", qos=1)

    answers = [one for one in new.take() if one.kind in (PUBACK, PUBREC)]
    assert [one.reason for one in answers] == [ReasonCode.NO_MATCHING_SUBSCRIBERS] * 2
    assert old.take() == [PublishAnswer(PUBACK, 1)]


def test_a_repeated_exactly_once_message_is_delivered_once(world: Any) -> None:
    receiver = world.welcome("r")
    receiver.subscribe("a", 2)
    sender = world.welcome("s", props={"session_expiry_interval": 60})
    sender.answers = False
    sender.send(Publish("a", b"x", 2, packet_id=7))
    sender.send(Publish("a", b"x", 2, duplicate=True, packet_id=7))
    sender.send(Publish("a", b"x", 2, packet_id=7), Publish("a", b"x", 2, packet_id=7))
    sender.lose()
    again = world.client("s", clean_start=False, props={"session_expiry_interval": 60})
    again.send(Publish("a", b"x", 2, duplicate=True, packet_id=7))
    assert receiver.payloads() == [b"x"]

    again.send(PublishAnswer(PUBREL, 7))
    again.send(Publish("a", b"y", 2, packet_id=7))
    assert receiver.payloads() == [b"y"]


@both
def test_an_at_least_once_message_sent_again_is_a_new_one(
    world: Any, version: ProtocolVersion
) -> None:
    receiver = world.welcome("r", version)
    receiver.subscribe("a", 2)
    receiver.take()
    sender = world.welcome("s", version)
    for again in (False, True, True):
        sender.send(Publish("a", b"x", 1, duplicate=again, packet_id=7))

    assert [one.duplicate for one in receiver.publications()] == [False] * 3
    assert sender.take() == [PublishAnswer(PUBACK, 7)] * 3


def test_an_identifier_released_twice_is_not_found_the_second_time(world: Any) -> None:
    new, old = world.welcome("n"), world.welcome("o", V311)
    for client in (new, old):
        client.send(PublishAnswer(PUBREL, 5))

    assert new.take() == [PublishAnswer(PUBCOMP, 5, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)]
    assert old.take() == [PublishAnswer(PUBCOMP, 5)]


def test_a_pubrec_for_nothing_is_answered_not_found(world: Any) -> None:
    client = world.welcome("n")
    client.send(PublishAnswer(PUBREC, 5))

    assert client.take() == [PublishAnswer(PUBREL, 5, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)]


def test_a_puback_for_an_exactly_once_message_breaks_the_protocol(world: Any) -> None:
    receiver = world.welcome("r", answers=False)
    receiver.subscribe("a", 2)
    world.welcome("s").publish("a", qos=2)
    receiver.take()
    receiver.send(PublishAnswer(PUBACK, 1))

    assert receiver.is_closed


def test_a_receiver_that_refuses_an_exactly_once_message_is_done_with_it(world: Any) -> None:
    receiver = world.welcome("r", answers=False)
    receiver.subscribe("a", 2)
    world.welcome("s").publish("a", qos=2)
    receiver.send(PublishAnswer(PUBREC, 1, 0x80))
    receiver.take()

    session = world.node.state.sessions["r"]
    assert (session.in_flight, session.exact, session.released) == ({}, set(), {})


@pytest.mark.parametrize("reason", [0, 0x80, 0x97])
def test_a_pubrec_does_not_settle_a_message_at_qos_1(world: Any, reason: int) -> None:
    receiver = world.welcome("r", answers=False)
    receiver.subscribe("a", 1)
    world.welcome("s").publish("a", qos=1)
    receiver.send(PublishAnswer(PUBREC, 1, reason))

    session = world.node.state.sessions["r"]
    assert list(session.in_flight) == [1]
    receiver.send(PublishAnswer(PUBACK, 1))
    assert not session.in_flight


@both
def test_what_was_not_answered_is_sent_again_in_order_and_marked(
    world: Any, version: ProtocolVersion
) -> None:
    props = {"session_expiry_interval": 60} if version is V5 else {}
    receiver = world.welcome("r", version, clean_start=False, answers=False, props=props)
    receiver.subscribe("a", 2)
    sender = world.welcome("s")
    for number, qos in enumerate((1, 2, 1, 2)):
        sender.publish("a", b"%d" % number, qos)
    receiver.take()
    receiver.send(PublishAnswer(PUBREC, 2))
    receiver.lose()
    sender.publish("a", b"4", 1)
    again = world.client("r", version, clean_start=False, answers=False, props=props)

    rest = again.take()[1:]
    assert rest[0] == PublishAnswer(PUBREL, 2)
    seen = [(one.payload, one.duplicate, one.packet_id) for one in rest[1:]]
    assert seen == [(b"0", True, 1), (b"2", True, 3), (b"3", True, 4), (b"4", False, 5)]


def test_clients_may_not_speak_for_the_broker(world: Any) -> None:
    listener = world.welcome("l")
    listener.subscribe("$SYS/#", 1)
    listener.take()
    client = world.welcome("c")
    for qos in (0, 1, 2):
        client.publish("$SYS/broker/version", b"mine", qos)

    reasons = [one.reason for one in client.take() if one.kind in (PUBACK, PUBREC)]
    assert reasons == [ReasonCode.NOT_AUTHORIZED] * 2
    assert listener.payloads() == []
    assert world.node.counters.dropped_forbidden == 3
    world.node.publish("$SYS/broker/version", b"ours", now_ms=world.now_ms)
    world.settle()
    assert listener.payloads() == [b"ours"]


def test_a_topic_too_deep_closes(make_world: Any) -> None:
    world = make_world(BrokerSettings(max_topic_levels=3))
    client = world.welcome("c")
    client.publish("a/b/c")
    assert not client.is_closed
    client.publish("a/b/c/d")

    assert client.take()[-1].reason == ReasonCode.TOPIC_NAME_INVALID
