"""Properties of a PUBLISH: what travels, expiry, topic aliases."""

from __future__ import annotations

from typing import Any

import pytest

from nearcast.broker import BrokerSettings
from nearcast.mqtt import (
    Disconnect,
    Properties,
    ProtocolVersion,
    ReasonCode,
)

V311, V5 = ProtocolVersion.V311, ProtocolVersion.V5


def test_properties_travel_unaltered_and_in_order(world: Any) -> None:
    receiver = world.welcome("r")
    receiver.subscribe("a", 1)
    receiver.take()
    properties = Properties(
        payload_format_indicator=1,
        content_type="text/plain",
        response_topic="answers/here",
        correlation_data=b"\0\1",
        user_properties=(("b", "2"), ("a", "1"), ("b", "2")),
    )
    sender = world.welcome("s")
    for qos in (0, 1, 1):
        sender.publish("a", b"x", qos, properties=properties)

    assert [one.properties for one in receiver.publications()] == [properties] * 3


def test_properties_stay_behind_on_the_way_to_3_1_1(world: Any) -> None:
    receiver = world.welcome("r", V311)
    receiver.subscribe("a", 1)
    receiver.take()
    world.welcome("s").publish("a", b"x", 1, properties=Properties(content_type="text/plain"))

    assert receiver.payloads() == [b"x"]


def test_a_client_may_not_send_a_subscription_identifier(world: Any) -> None:
    client = world.welcome("c")
    client.publish("a", properties=Properties(subscription_identifiers=(1,)))

    assert client.is_closed


def test_a_message_expires_in_the_queue_and_its_lifetime_shrinks(world: Any) -> None:
    props = {"session_expiry_interval": 60}
    receiver = world.welcome("r", props=props)
    receiver.subscribe("a", 1)
    receiver.lose()
    sender = world.welcome("s")
    for seconds in (5, 20):
        sender.publish(
            "a", b"%d" % seconds, 1, properties=Properties(message_expiry_interval=seconds)
        )
    world.wait(5_000)
    again = world.client("r", clean_start=False, props=props)

    (message,) = again.publications()
    assert (message.payload, message.properties.message_expiry_interval) == (b"20", 15)
    assert world.node.counters.dropped_expired == 1
    assert world.node.state.held_bytes == 0


def test_an_expiry_passes_through_where_nothing_waits(world: Any) -> None:
    receiver = world.welcome("r")
    receiver.subscribe("a", 1)
    receiver.take()
    sender = world.welcome("s")
    for qos in (0, 1):
        sender.publish("a", b"x", qos, properties=Properties(message_expiry_interval=7))

    seen = [one.properties.message_expiry_interval for one in receiver.publications()]
    assert seen == [7, 7]


def test_a_client_may_use_aliases_up_to_the_maximum(make_world: Any) -> None:
    world = make_world(BrokerSettings(topic_alias_maximum=2))
    receiver = world.welcome("r")
    receiver.subscribe("#", 1)
    receiver.take()
    sender = world.welcome("s")
    for topic, alias in (("a", 1), ("b", 2), ("", 1), ("", 2), ("c", 1), ("", 1)):
        sender.publish(topic, b"x", properties=Properties(topic_alias=alias))

    messages = receiver.publications()
    assert [one.topic for one in messages] == ["a", "b", "a", "b", "c", "c"]
    assert all(one.properties.topic_alias is None for one in messages)
    sender.publish("a", properties=Properties(topic_alias=3))
    assert sender.take()[-1].reason == ReasonCode.TOPIC_ALIAS_INVALID


@pytest.mark.parametrize(("topic", "alias"), [("a", 0), ("", 1)])
def test_alias_zero_and_an_alias_never_introduced_are_refused(
    world: Any, topic: str, alias: int
) -> None:
    client = world.welcome("c")
    client.publish(topic, properties=Properties(topic_alias=alias))

    assert isinstance(client.take()[-1], Disconnect)


def test_the_server_uses_aliases_towards_those_who_want_them(world: Any) -> None:
    receiver = world.welcome("r", props={"topic_alias_maximum": 1})
    receiver.subscribe("#", 1)
    receiver.take()
    sender = world.welcome("s")
    for topic, qos in (("long/topic", 0), ("long/topic", 1), ("other", 0), ("long/topic", 0)):
        sender.publish(topic, b"x", qos)

    seen = [(one.topic, one.properties.topic_alias) for one in receiver.publications()]
    assert seen == [("long/topic", 1), ("", 1), ("other", None), ("", 1)]


def test_aliases_die_with_the_connection(world: Any) -> None:
    props = {"topic_alias_maximum": 5, "session_expiry_interval": 60}
    receiver = world.welcome("r", props=props)
    receiver.subscribe("a", 1)
    world.welcome("s").publish("a", b"x", 1)
    receiver.take()
    receiver.lose()
    again = world.client("r", clean_start=False, props=props)
    world.welcome("t").publish("a", b"y", 1)

    assert [(one.topic, one.properties.topic_alias) for one in again.publications()] == [("a", 1)]
