"""Positions: how a client sends one, what follows it, what comes into range."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.support.shop_space import BREAD, FAR, HERE, NEARBY, Shops

from nearcast.broker import BrokerSettings
from nearcast.mqtt import (
    Properties,
)


def test_near_follows_the_client_and_tells_when_nobody_knows_where_it_is(shops: Shops) -> None:
    ann = shops.client("ann")
    answer = shops.subscribe(ann, "shops/#", near="500m")
    assert answer.reasons == (0,)
    assert "$position" in (answer.properties.reason_string or "")

    shops.publish()
    shops.move(ann, NEARBY)
    shops.publish()
    shops.move(ann, FAR)
    shops.publish()

    assert len(ann.payloads()) == 1


@pytest.mark.parametrize("pairs", [(("lon", "8.5"), ("lat", "47.5")), (("$position", "8.5,47.5"),)])
def test_a_position_may_come_with_connect(shops: Shops, pairs: Any) -> None:
    ann = shops.client("ann", properties=Properties(user_properties=pairs))
    assert shops.subscribe(ann, "shops/#", near="500m").properties.reason_string is None
    shops.publish()
    assert len(ann.payloads()) == 1


def test_a_bad_position_on_connect_is_told_and_the_client_is_welcome(shops: Shops) -> None:
    pairs = (("lon", "8"), ("lat", "95"))
    client = shops.world.client("ann", properties=Properties(user_properties=pairs))
    connack = client.packets[0]
    assert connack.reason == 0
    assert "latitude 95" in connack.properties.reason_string


@pytest.mark.parametrize("takes", [False, True])
def test_a_position_may_come_with_any_publish_where_that_is_set(
    make_world: Any, takes: bool
) -> None:
    shops = Shops(make_world, node=BrokerSettings(position_on_publish=takes))
    ann = shops.client("ann")
    shops.subscribe(ann, "shops/#", near="500m")
    ann.publish("hello", properties=Properties(user_properties=(("lon", "8.5"), ("lat", "47.5"))))
    shops.publish()
    assert len(ann.payloads()) == takes


@pytest.mark.parametrize(
    "payload",
    [b"", b"x", b"[]", b"{}", b'{"lon": 8}', b'{"lon": 8, "lat": 95}', b'{"lon": "a", "lat": 1}',
     b'{"lon": NaN, "lat": 1}', b"\xff", b'{"lon": null, "lat": 1}', b'{"lon": true, "lat": 1}'],
)  # fmt: skip
def test_a_bad_position_is_answered_and_changes_nothing(shops: Shops, payload: bytes) -> None:
    ann = shops.client("ann")
    shops.move(ann, HERE)
    packet_id = ann.publish("$position", payload, 1)

    (answer,) = ann.take()
    assert (answer.packet_id, answer.reason) == (packet_id, 0x83)
    assert answer.properties.reason_string
    assert shops.world.node.state.sessions["ann"].position == HERE
    assert shops.world.node.counters.positions_refused == 1


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_position_that_was_acknowledged_survives_a_crash(make_world: Any, qos: int) -> None:
    shops = Shops(make_world, with_journal=True)
    ann = shops.client("ann", props={"session_expiry_interval": 60})
    for place in (FAR, NEARBY, HERE):
        ann.publish("$position", json.dumps({"lon": place[0], "lat": place[1]}).encode(), qos)

    shops.world.crash_and_restart()

    expected = HERE if qos else FAR  # what nobody waits for is stored now and then
    assert shops.world.node.state.sessions["ann"].position == expected


def test_positions_are_private_unless_a_space_says_otherwise(make_world: Any) -> None:
    for public in (False, True):
        shops = Shops(make_world, positions="public" if public else "private")
        ann, spy = shops.client("a/nn"), shops.client("spy")
        code = shops.subscribe(spy, "$position/+").reasons[0]
        shops.subscribe(spy, "#")
        shops.move(ann, HERE)
        spy.publish("$position/a%2Fnn", b"forged")
        assert code == (0 if public else 0x87)
        seen = [(one.topic, one.payload) for one in spy.publications()]
        assert seen == ([("$position/a%2Fnn", b'{"lon":8.5,"lat":47.5}')] if public else [])


def test_a_position_is_shown_on_the_longest_topic_there_may_be(make_world: Any) -> None:
    shops = Shops(make_world, positions="public")
    room = 65_535 - len("$position/")
    spy = shops.client("spy")
    shops.subscribe(spy, "$position/+")
    for name in ("a" * room, "a" * (room - 3) + "/", "a" * (room - 2) + "/"):
        shops.move(shops.client(name), HERE)

    shown = [len(one.topic) for one in spy.publications()]
    assert shown == [65_535, 65_535]  # the third one would be longer


def test_coming_near_a_retained_message_delivers_it_once_until_it_is_left_behind(
    make_world: Any,
) -> None:
    shops = Shops(make_world, hysteresis=0.5)  # 500 m to come in, 750 m to leave
    ann = shops.client("ann")
    shops.subscribe(ann, "shops/#", near="500m")
    shops.publish(BREAD, retain=True)
    steps = [(8.51, 47.5, 0), (8.505, 47.5, 1), (8.509, 47.5, 1), (8.505, 47.5, 1)]
    steps += [(8.511, 47.5, 1), (8.505, 47.5, 2)]  # 825 m away, and back

    total = 0
    for lon, lat, expected in steps:
        shops.move(ann, (lon, lat))
        packets = ann.publications()
        assert all(one.retain for one in packets)
        total += len(packets)
        assert total == expected


def test_retained_messages_are_sent_only_where_they_match(shops: Shops) -> None:
    shops.publish(BREAD, topic="shops/1", retain=True)
    shops.publish({**BREAD, "price": 50}, topic="shops/2", retain=True)
    shops.publish(b"no JSON", topic="shops/3", retain=True)
    ann, bob = shops.client("ann"), shops.client("bob")
    shops.subscribe(ann, "shops/#", where="price < 5")
    shops.subscribe(bob, "shops/#")

    assert [one.topic for one in ann.publications()] == ["shops/1"]
    assert len(bob.publications()) == 3
