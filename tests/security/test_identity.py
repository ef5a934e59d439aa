"""A session belongs to the user who made it: a client identifier is no key."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.rules import KnownUsers, allow, forbid
from tests.support.simulated_city import SimulatedCity

from nearcast.broker import BrokerSettings
from nearcast.mqtt import Connack, ProtocolVersion, ReasonCode
from nearcast.simulator.mqtt_node import SimulatedClient

KEPT = {"session_expiry_interval": 1_000}
APART = BrokerSettings(same_identifier="apart")


def connack(client: Any) -> Connack:
    packet = client.packets[0]
    assert isinstance(packet, Connack)
    return packet


def users(*names: str) -> KnownUsers:
    return KnownUsers(names or ("ann", "bob"), [allow("#", "ann"), allow("b/#", "bob")])


def ann_and_her_queue(world: Any) -> Any:
    ann = world.welcome("phone", user_name="ann", props=KEPT)
    ann.subscribe("a/secret", 1)
    return ann


@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize("clean", [True, False])
def test_another_user_is_refused_and_harms_nothing(make_world: Any, is_there, clean) -> None:
    world = make_world(access=users(), with_journal=True)
    ann = ann_and_her_queue(world)
    if not is_there:
        ann.lose()

    bob = world.client("phone", user_name="bob", clean_start=clean)

    assert connack(bob).reason == ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
    assert "another user" in (connack(bob).properties.reason_string or "")
    assert ann.is_closed is not is_there
    again = ann if is_there else world.welcome("phone", user_name="ann", clean_start=False)
    world.welcome("w", user_name="ann").publish("a/secret", b"to ann", qos=1)
    assert again.payloads() == [b"to ann"]


def test_a_client_of_mqtt_3_gets_identifier_rejected(make_world: Any) -> None:
    world = make_world(access=users())
    ann_and_her_queue(world)
    bob = world.client("phone", ProtocolVersion.V311, user_name="bob")
    assert connack(bob).reason == 2


def test_a_client_without_a_name_gets_no_session_of_a_user(make_world: Any) -> None:
    world = make_world(access=users())
    ann_and_her_queue(world)
    assert connack(world.client("phone")).reason == ReasonCode.CLIENT_IDENTIFIER_NOT_VALID


def test_the_owner_is_known_after_a_restart(make_world: Any) -> None:
    world = make_world(access=users(), with_journal=True)
    ann_and_her_queue(world)
    world.crash_and_restart()
    assert connack(world.client("phone", user_name="bob")).reason == 0x85
    ann = world.client("phone", user_name="ann", clean_start=False, props=KEPT)
    assert connack(ann).session_present


def test_who_takes_a_session_without_an_owner_owns_it_under_its_own_rules(make_world: Any) -> None:
    """What a client without a name subscribed to is checked for the user who gets its session."""
    rules = [forbid("a/#", "bob", "subscribe"), allow("#")]
    world = make_world(access=KnownUsers(["bob", "ann"], rules))
    nameless = world.welcome("phone", props=KEPT)
    nameless.subscribe("a/x", 1)
    nameless.subscribe("b/x", 1)
    nameless.lose()
    writer = world.welcome("w", user_name="ann")
    for payload in (b"not for bob", b"his"):
        writer.publish("b/x" if payload == b"his" else "a/x", payload, qos=1)

    bob = world.client("phone", user_name="bob", clean_start=False, props=KEPT)
    writer.publish("a/x", b"nor this", qos=1)

    assert connack(bob).session_present
    assert bob.payloads() == [b"his"]
    assert connack(world.client("phone", user_name="ann")).reason == 0x85


def test_users_are_kept_apart_where_that_is_set(make_world: Any) -> None:
    world = make_world(APART, access=users(), with_journal=True)
    ann = ann_and_her_queue(world)
    bob = world.welcome("phone", user_name="bob", props=KEPT)
    bob.subscribe("b/x", 1)
    assert not ann.is_closed
    assert set(world.node.state.sessions) == {"phone@ann", "phone@bob"}
    world.crash_and_restart()
    assert connack(world.client("phone", user_name="bob", clean_start=False)).session_present


@pytest.mark.parametrize(
    ("one", "other"), [(("a@b", "c"), ("a", "b@c")), (("a%40b", "c"), ("a@b", "c"))]
)
def test_no_two_users_that_are_apart_meet(make_world: Any, one, other) -> None:
    world = make_world(APART, access=KnownUsers(["c", "b@c"]))
    for client_id, user in (one, other):
        world.welcome(client_id, user_name=user)
    assert len(world.node.state.sessions) == 2


def test_an_identifier_that_looks_like_a_users_is_not_hers(make_world: Any) -> None:
    world = make_world(APART, access=users())
    world.welcome("phone@ann")
    world.welcome("phone", user_name="ann")
    assert set(world.node.state.sessions) == {"phone%40ann", "phone@ann"}


def test_an_assigned_identifier_is_the_one_to_come_back_with(make_world: Any) -> None:
    world = make_world(APART, access=users())
    first = world.client("", user_name="ann", props=KEPT)
    given = connack(first).properties.assigned_client_identifier
    again = world.client(given, user_name="ann", clean_start=False)
    assert connack(again).session_present


def test_the_user_name_is_the_identifier_where_that_is_set(make_world: Any) -> None:
    world = make_world(BrokerSettings(username_is_client_id=True), access=users())
    world.welcome("whatever", user_name="ann")
    other = world.welcome("something else", user_name="bob")
    assert set(world.node.state.sessions) == {"ann", "bob"}
    again = world.welcome("third", user_name="bob")
    assert other.is_closed
    assert not again.is_closed
    assert connack(world.client("nameless")).reason == 0x85


def test_no_user_gets_the_session_of_a_node(make_world: Any) -> None:
    settings = BrokerSettings(username_is_client_id=True)
    world = make_world(settings, access=KnownUsers(["$node/n1"]))
    assert connack(world.client("x", user_name="$node/n1")).reason == 0x85


def test_a_user_who_is_removed_during_the_login_is_refused(make_world: Any) -> None:
    world = make_world(access=users())
    before = world.node.state.access
    world.node.state.access = users("ann")
    world.node.state.access.authenticate = before.authenticate  # the verdict came before
    assert connack(world.client("p", user_name="bob")).reason == ReasonCode.NOT_AUTHORIZED


# --- in a cluster -----------------------------------------------------------------------------


def in_a_city(away: bool) -> tuple[SimulatedCity, SimulatedClient]:
    """Return a city in which ann has a session at n0."""
    city = SimulatedCity()
    ann = SimulatedClient("phone", user_name="ann")
    city.homes["phone"] = "n0"
    city.admit(ann)
    ann.subscribe("a/#")
    city.turn(ann)
    city.run(50)
    if away:
        city.at("n0", lambda node, now: node.drop(ann, now))
    return city, ann


def owner_at(city: SimulatedCity, name: str) -> str | None:
    session = city.nodes[name].node.session_of("phone")
    return None if session is None else session.user_name


@pytest.mark.parametrize("away", [True, False])
@pytest.mark.parametrize("clean", [True, False])
def test_another_user_is_refused_at_every_node(away: bool, clean: bool) -> None:
    city, ann = in_a_city(away)
    bob = SimulatedClient("phone", user_name="bob", is_clean=clean)
    city.at("n1", lambda node, now: node.admit(bob, now))
    city.run(50)
    assert not bob.is_connected
    assert owner_at(city, "n0") == "ann"
    assert city.nodes["n1"].node.session_of("phone") is None
    if away:
        city.admit(ann, "n2")
        city.run(50)
    writer = city.client("w", "n2")
    city.run(50)
    city.publish(writer, "a/b", b"x", 1)
    city.run(50)
    assert [one.payload for one in ann.received] == [b"x"]


def test_a_session_made_while_a_node_was_away_ends_no_session_of_another_user() -> None:
    city, ann = in_a_city(away=True)
    city.crash("n0")
    bob = SimulatedClient("phone", user_name="bob")
    city.at("n1", lambda node, now: node.admit(bob, now))
    city.run(10_000)
    assert bob.is_connected  # nobody who could know is there
    city.restart("n0")
    city.run(10_000)
    city.admit(ann, "n2")
    city.run(50)
    assert ann.is_connected
    assert owner_at(city, "n0") == "ann"


def test_a_check_that_is_abandoned_half_way_is_made_again(make_world: Any) -> None:
    """A user takes a session without an owner, and leaves while it is being checked."""
    rules = [forbid("a/#", "bob", "subscribe"), allow("#")]
    world = make_world(access=KnownUsers(["bob"], rules))
    nameless = world.welcome("phone", props=KEPT)
    for number in range(20):
        nameless.subscribe(f"a/{number}", 1)
    nameless.lose()
    world.node.slices.is_spent = lambda: True
    bob = world.client("phone", user_name="bob", clean_start=False, props=KEPT)
    assert bob.packets == []  # its session is being checked
    bob.lose()
    world.node.slices.is_spent = lambda: False
    bob = world.client("phone", user_name="bob", clean_start=False, props=KEPT)
    assert connack(bob).session_present
    assert world.node.state.sessions["phone"].subscriptions == {}
