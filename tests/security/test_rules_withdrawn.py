"""Rules and users that change: what was granted before ends, for live and durable sessions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.support.rules import KnownUsers, allow, forbid
from tests.support.shop_space import SHOPS

from nearcast.broker import BrokerSettings, RetainedSettings, SpaceSettings
from nearcast.mqtt import Disconnect, PacketType, Properties, ProtocolVersion, PublishAnswer
from nearcast.mqtt.packets import Will

KEPT = {"session_expiry_interval": 1_000}
ALL = KnownUsers(["ann", "bob"], [allow("#")])
NO_A = KnownUsers(["ann", "bob"], [forbid("a/#", "ann", "subscribe"), allow("#")])
NO_BOB = KnownUsers(["ann"], [allow("#")])


def change(world: Any, access: KnownUsers) -> None:
    world.node.set_access(access, world.now_ms)
    world.settle()


@pytest.mark.parametrize("text", ["a/x", "#", "+/x", "$share/g/a/#", "$share/g/#"])
@pytest.mark.parametrize("is_there", [True, False])
def test_a_subscription_ends_with_its_rule(make_world: Any, text: str, is_there: bool) -> None:
    world = make_world(access=ALL)
    ann = world.welcome("ann", user_name="ann", props=KEPT)
    ann.subscribe(text, 1)
    ann.subscribe("b/x", 1)
    if not is_there:
        ann.lose()
    change(world, NO_A)
    writer = world.welcome("w")
    for topic in ("a/x", "b/x"):
        writer.publish(topic, topic.encode(), qos=1)
    if not is_there:
        ann = world.welcome("ann", user_name="ann", clean_start=False)
    assert ann.payloads() == [b"b/x"]
    assert world.node.state.subscriptions == 1


def test_it_stays_ended_after_a_restart(make_world: Any) -> None:
    world = make_world(access=ALL, with_journal=True)
    world.welcome("ann", user_name="ann", props=KEPT).subscribe("a/x", 1)
    change(world, NO_A)
    world.options["access"] = ALL
    world.crash_and_restart()
    world.welcome("w").publish("a/x", qos=1)
    assert world.welcome("ann", user_name="ann", clean_start=False).payloads() == []


def test_new_rules_apply_to_durable_sessions_at_the_start(make_world: Any) -> None:
    world = make_world(access=ALL, with_journal=True)
    ann = world.welcome("ann", user_name="ann", props=KEPT)
    ann.subscribe("a/x", 1)
    ann.subscribe("b/x", 1)
    ann.lose()
    writer = world.welcome("w")
    for topic in ("a/x", "b/x"):
        writer.publish(topic, topic.encode(), qos=1)
    world.options["access"] = NO_A
    world.crash_and_restart()
    world.welcome("w").publish("a/x", b"later", qos=1)
    ann = world.welcome("ann", user_name="ann", clean_start=False)
    assert ann.payloads() == [b"b/x"]
    assert world.node.counters.dropped_revoked == 1


@pytest.mark.parametrize("qos", [1, 2])
def test_what_was_sent_and_never_acknowledged_is_not_sent_again(make_world: Any, qos: int) -> None:
    world = make_world(access=ALL, with_journal=True)
    ann = world.welcome("ann", user_name="ann", props=KEPT, answers=False)
    ann.subscribe("a/x", qos)
    world.welcome("w").publish("a/x", b"secret", qos=qos)
    assert ann.payloads() == [b"secret"]
    ann.lose()
    change(world, NO_A)
    assert world.welcome("ann", user_name="ann", clean_start=False).payloads() == []
    world.options["access"] = NO_A
    world.crash_and_restart()
    ann = world.welcome("ann", user_name="ann", clean_start=False)
    assert ann.payloads() == []
    assert world.node.state.held_bytes == 0


def test_messages_behind_a_full_window_are_dropped(make_world: Any) -> None:
    world = make_world(access=ALL)
    props = {"receive_maximum": 1, **KEPT}
    ann = world.welcome("ann", user_name="ann", props=props, answers=False)
    ann.subscribe("a/x", 1)
    writer = world.welcome("w")
    writer.publish("a/x", b"1", qos=1)
    writer.publish("a/x", b"2", qos=1)
    (sent,) = ann.publications()
    change(world, NO_A)
    ann.send(PublishAnswer(PacketType.PUBACK, sent.packet_id))
    assert ann.payloads() == []
    assert world.node.state.held_bytes == 0


def test_the_rest_of_the_retained_messages_is_not_sent(make_world: Any) -> None:
    world = make_world(BrokerSettings(outbox_window_bytes=100), access=ALL)
    writer = world.welcome("w")
    for number in range(50):
        writer.publish(f"a/{number}", bytes(100), retain=True)
    ann = world.welcome("ann", user_name="ann")
    ann.link.is_paused = True
    ann.subscribe("a/#", 1)
    change(world, NO_A)
    world.resume(ann)
    assert len(ann.publications()) < 10


def test_deferred_retained_messages_are_not_sent(make_world: Any) -> None:
    held = RetainedSettings(topics="a/#", mode="wait", hold_max_s=5)
    world = make_world(access=ALL, retained=[held])
    writer = world.welcome("w")
    for number in range(3):
        writer.publish("a/x", b"%d" % number, retain=True)
        world.wait(1_000)
    ann = world.welcome("ann", user_name="ann")
    ann.subscribe("a/x", 1)
    change(world, NO_A)
    world.wait(20_000)
    assert ann.payloads() == []


def test_a_share_group_skips_a_member_that_may_not_read(make_world: Any) -> None:
    world = make_world(access=ALL)
    ann, bob = (world.welcome(name, user_name=name) for name in ("ann", "bob"))
    for one in (ann, bob):
        one.subscribe("$share/g/a/x", 1)
    change(world, NO_A)
    writer = world.welcome("w")
    for _ in range(4):
        writer.publish("a/x", qos=1)
    assert (len(ann.payloads()), len(bob.payloads())) == (0, 4)


@pytest.mark.parametrize("version", [ProtocolVersion.V311, ProtocolVersion.V5])
def test_a_will_is_checked_when_it_is_published(make_world: Any, version: Any) -> None:
    world = make_world(access=ALL)
    reader = world.welcome("r")
    reader.subscribe("w/x")
    bob = world.welcome("bob", version, user_name="bob", will=Will("w/x", b"gone"))
    change(world, KnownUsers(["bob"], [forbid("w/#", "bob", "publish"), allow("#")]))
    bob.lose()
    assert reader.payloads() == []


def test_a_removed_user_is_disconnected_and_nothing_of_it_stays(make_world: Any) -> None:
    world = make_world(access=ALL, with_journal=True)
    reader = world.welcome("r")
    reader.subscribe("w/x")
    bob = world.welcome("bob", user_name="bob", will=Will("w/x", b"gone"), props=KEPT)
    away = world.welcome("bob2", user_name="bob", props=KEPT)
    for one in (bob, away):
        one.subscribe("b/x", 1)
    away.lose()
    change(world, NO_BOB)
    assert bob.is_closed
    told = next(one for one in bob.take() if isinstance(one, Disconnect))
    assert (told.reason, told.properties.reason_string) == (0x87, "this user may no longer log in")
    assert reader.payloads() == []
    assert set(world.node.state.sessions) == {"r"}
    world.crash_and_restart()
    assert set(world.node.state.sessions) == set()


def test_clients_without_a_name_go_where_they_are_not_welcome_any_more(make_world: Any) -> None:
    world = make_world(access=ALL)
    nameless, ann = world.welcome("n"), world.welcome("ann", user_name="ann")
    change(world, KnownUsers(["ann"], [allow("#")], anonymous=False))
    assert (nameless.is_closed, ann.is_closed) == (True, False)


def test_publishing_ends_with_its_rule(make_world: Any) -> None:
    world = make_world(access=KnownUsers([]))
    writer, reader = world.welcome("w"), world.welcome("r")
    reader.subscribe("a/x")
    writer.publish("a/x", b"1")
    change(world, KnownUsers([], [forbid("a/#", action="publish"), allow("#")]))
    writer.publish("a/x", b"2")  # the same bytes again: the shortest of all ways
    assert reader.payloads() == [b"1"]


# --- spaces -----------------------------------------------------------------------------------

BREAD = json.dumps({"price": 3, "kind": "food", "lon": 8.5, "lat": 47.5}).encode()
AT_HOME = Properties(user_properties=(("lon", "8.5"), ("lat", "47.5")))
NO_SHOPS = KnownUsers(["ann"], [forbid("shops/#", "ann", "subscribe"), allow("#")])


@pytest.mark.parametrize("text", ["$near/500m/shops/#", "$where/price<5/shops/#", "shops/1"])
@pytest.mark.parametrize("way", ["all", "top", "explained", "shared"])
def test_a_content_subscription_ends_with_its_rule(make_world: Any, text: str, way: str) -> None:
    world = make_world(spaces=[SpaceSettings(space=SHOPS)], access=ALL)
    ann = world.welcome("ann", user_name="ann", properties=AT_HOME)
    ann.subscribe(f"$share/g/{text}" if way == "shared" else text)
    writer = world.welcome("w")
    instructions = (("$top", "3"),) if way == "top" else ()
    for access in (ALL, NO_SHOPS):
        change(world, access)
        for qos in (0, 1):
            properties = Properties(user_properties=instructions)
            writer.publish("shops/1", BREAD, qos=qos, properties=properties)
        assert len(ann.payloads()) == (2 if access is ALL else 0)


def test_a_retained_message_that_comes_near_is_not_delivered(make_world: Any) -> None:
    world = make_world(spaces=[SpaceSettings(space=SHOPS)], access=ALL)
    world.welcome("w").publish("shops/1", BREAD, retain=True)
    ann = world.welcome("ann", user_name="ann")
    ann.subscribe("$near/500m/shops/#")
    change(world, NO_SHOPS)
    ann.publish("$position", b'{"lon": 8.5, "lat": 47.5}')
    assert ann.payloads() == []


def test_positions_that_are_private_again_are_not_shown(make_world: Any) -> None:
    shown = [SpaceSettings(space=SHOPS, positions="public")]
    world = make_world(spaces=shown, with_journal=True)
    world.welcome("spy", props=KEPT).subscribe("$position/#", 1)
    world.options["spaces"] = [SpaceSettings(space=SHOPS)]
    world.crash_and_restart()
    assert world.node.state.subscriptions == 0


# --- slices -----------------------------------------------------------------------------------


def test_a_session_is_checked_before_its_client_gets_it(make_world: Any) -> None:
    """Sessions are checked in slices: a client that comes back earlier is checked then."""
    world = make_world(access=ALL)
    for number in range(20):
        client = world.welcome(f"c{number}", user_name="ann", props=KEPT)
        client.subscribe("a/x", 1)
        client.lose()
    world.welcome("w").publish("a/x", b"old", qos=1)
    world.node.slices.is_spent = lambda: True
    world.node.set_access(NO_A, world.now_ms)
    assert len(world.node.slices.backlog) == 1
    world.node.slices.is_spent = lambda: False
    back = world.welcome("c15", user_name="ann", clean_start=False)
    assert back.payloads() == []
    assert world.node.state.subscriptions == 19
    world.node.serve_backlog(world.now_ms)
    assert world.node.state.subscriptions == 0
    assert not world.node.slices.backlog


def test_a_second_change_replaces_the_first(make_world: Any) -> None:
    world = make_world(access=ALL)
    for number in range(5):
        world.welcome(f"c{number}", user_name="ann", props=KEPT).subscribe("a/x", 1)
    world.node.slices.is_spent = lambda: True
    world.node.set_access(NO_A, world.now_ms)
    world.node.set_access(ALL, world.now_ms)
    world.node.slices.is_spent = lambda: False
    while world.node.slices.backlog:
        world.node.serve_backlog(world.now_ms)
    assert world.node.state.subscriptions >= 4
