"""Rules that come with a login: with each new login, under any identifier, at every node."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.broker.conftest import Client, World
from tests.support.rules import Rule, allow
from tests.support.simulated_city import SimulatedCity
from tests.support.slow_city import go_on_until, has, send_to_n1, slow_city

from nearcast.broker import BrokerSettings, Connection, LoginVerdict
from nearcast.broker.session.connection import ForwardedIdentity, Proof
from nearcast.config import AuthSection, RuleSection
from nearcast.mqtt import (
    Connack,
    Connect,
    FilterRequest,
    ProtocolVersion,
    PublishAnswer,
    Suback,
)
from nearcast.server.auth.grants import Grants, LoginGrant, rules_in, rules_text
from nearcast.server.auth.logins import LoginAnswer, LoginRequest, login_of
from nearcast.server.auth.rules import ConfiguredAccess
from nearcast.simulator.mqtt_node import SimulatedClient

KEPT = {"session_expiry_interval": 1_000}
Badge = list[dict[str, object]] | None


class Badges:
    """A plugin; tests settle what it would say."""

    def check(self, _request: LoginRequest) -> LoginAnswer | None:
        return None


class BadgeAccess(ConfiguredAccess):
    """The access of a server whose logins bring the rules of the user name's badge along."""

    def __init__(
        self, badges: dict[str, list[dict[str, object]] | None], rules: Sequence[Rule] = ()
    ):
        sections = [
            RuleSection.model_validate({"user": u, "action": a, "topic": t, "allow": may})
            for u, a, t, may in rules
        ]
        section = AuthSection(anonymous="always", rules=sections)
        super().__init__(section, {}, [], plugins=[Badges()])
        self.badges = badges

    def authenticate(self, connect: Connect, connection: Connection) -> LoginVerdict:
        user = connect.user_name or ""
        if user not in self.badges:
            return LoginVerdict.WRONG_PASSWORD
        return self.gate.settle(connection, login_of(LoginAnswer(user, self.badges[user])))


def codes(client: Any, text: str) -> tuple[int, ...]:
    client.subscribe(text, 1)
    (answer,) = [one for one in client.take() if isinstance(one, Suback)]
    return answer.reasons


# --- one node -----------------------------------------------------------------------------------


def test_a_login_with_narrower_rules_ends_what_an_earlier_one_was_granted(make_world: Any):
    access = BadgeAccess({"ann": [{"topic": "a/#"}, {"topic": "b/#"}], "w": [{"topic": "#"}]})
    world = make_world(access=access, with_journal=True)
    access.gate.grants.notes = world.node.notes
    ann = world.welcome("ann", user_name="ann", props=KEPT)
    assert codes(ann, "a/#") == codes(ann, "b/#") == (1,)
    ann.lose()
    writer = world.welcome("w", user_name="w")
    writer.publish("a/1", b"queued", qos=1)
    access.badges["ann"] = [{"topic": "b/#"}]
    ann = world.welcome("ann", user_name="ann", clean_start=False, props=KEPT)
    for topic in ("a/2", "b/2"):
        writer.publish(topic, topic.encode(), qos=1)
    assert ann.payloads() == [b"b/2"]


def test_it_does_so_when_it_takes_a_live_connection_over(make_world: Any):
    access = BadgeAccess({"ann": [{"topic": "a/#"}], "w": [{"topic": "#"}]})
    world = make_world(access=access)
    first = world.welcome("ann", user_name="ann", props=KEPT)
    assert codes(first, "a/#") == (1,)
    access.badges["ann"] = []
    ann = world.welcome("ann", user_name="ann", clean_start=False, props=KEPT)
    world.welcome("w", user_name="w").publish("a/1", qos=1)
    assert ann.payloads() == first.payloads() == []


def test_a_login_without_rules_has_none_of_an_earlier_login(make_world: Any):
    access = BadgeAccess({"ann": [{"topic": "a/#"}]}, [allow("c/#")])
    world = make_world(access=access)
    world.welcome("ann", user_name="ann", props=KEPT).lose()
    access.badges["ann"] = None
    ann = world.welcome("ann", user_name="ann", clean_start=False, props=KEPT)
    assert codes(ann, "a/#") == (0x87,)
    assert codes(ann, "c/#") == (1,)


@pytest.mark.parametrize(
    ("settings", "client_id"),
    [
        ({}, ""),
        ({"same_identifier": "apart"}, "phone"),
        ({"same_identifier": "apart"}, ""),
        ({"username_is_client_id": True}, "phone"),
    ],
)
def test_rules_hold_whatever_the_session_is_called(
    make_world: Any, settings: dict[str, Any], client_id: str
):
    access = BadgeAccess({"ann": [{"topic": "a/#"}]})
    world = make_world(BrokerSettings(**settings), access=access)
    ann = world.welcome(client_id, user_name="ann")
    assert codes(ann, "a/#") == (1,)
    assert codes(ann, "b/#") == (0x87,)


@pytest.mark.parametrize("name", ["page:", "page:operator:", "page:viewer:bob"])
def test_no_login_proves_the_name_of_a_page(make_world: Any, name: str):
    world = make_world(access=BadgeAccess({name: [{"topic": "#"}]}))
    answers = [one for one in world.client("c", user_name=name).packets if isinstance(one, Connack)]
    assert [one.reason for one in answers] == [0x87]


def test_a_wrong_token_without_a_name_counts_once():
    from nearcast.server.auth.guesses import GuessThrottle

    throttle = GuessThrottle(5, 60_000)
    for _ in range(4):
        throttle.failed("10.0.0.7", "", 0)
    assert not throttle.waits("10.0.0.7", "", 0)
    throttle.failed("10.0.0.7", "", 0)
    assert throttle.waits("10.0.0.7", "", 0)
    assert not throttle.waits("10.0.0.7", "ann", 0)  # others at this address go on


def test_a_grant_is_kept_as_it_is_and_one_that_cannot_be_read_grants_nothing():
    rules = (RuleSection(topic="a/#"), RuleSection(topic="b", allow=False))
    for is_forwarded in (False, True):
        grant = LoginGrant(rules, is_forwarded=is_forwarded)
        assert LoginGrant.from_bytes(grant.to_bytes()) == grant
    assert rules_in(rules_text(rules)) == rules
    for bad in (b"", b"{", b"null", b"7", b'{"forwarded": 7}', b'[{"topic": ""}]', b'[{"of": 1}]'):
        assert LoginGrant.from_bytes(bad).rules == ()
        assert rules_in(bad) == ()
    grants = Grants()
    assert grants.set("ann", "c", LoginGrant(rules))
    assert not grants.set("ann", "c", LoginGrant(rules))
    assert grants.set("ann", "c", None)
    assert grants.find("ann", "c") is None


# --- another node -------------------------------------------------------------------------------


def relayed(world: World, rules: bytes | None) -> Client:
    """Return a client that another node relays, with the rules of its login there."""
    client = Client(world, ProtocolVersion.V5)
    client.link.forwarded = ForwardedIdentity("n1", "ann", rules)
    connect = Connect("phone", clean_start=False, user_name="ann")
    world.node.admit(client.link, connect, world.now_ms)
    return client


class RulesCity(SimulatedCity):
    """A session of ann at n0, by its own rules; she logs in at n1 with a badge."""

    def __init__(self, badge: Badge, home: ConfiguredAccess) -> None:
        self.entry = BadgeAccess({"ann": badge})
        self.home = home
        super().__init__(nodes=2)
        self.ann = SimulatedClient("phone", user_name="ann")
        self.admit(self.ann, "n0")
        self.run(50)
        self.leave("n0")
        self.admit(self.ann, "n1")
        self.run(50)
        assert self.ann.is_connected
        assert self.nodes["n1"].node.session_of("phone") is None

    def prepare(self) -> None:
        for name, access in (("n0", self.home), ("n1", self.entry)):
            node = self.nodes[name].node
            node.set_access(access, 0)
            access.gate.grants.notes = node.notes

    def leave(self, name: str) -> None:
        self.at(name, lambda node, now: node.drop(self.ann, now))
        self.run(50)

    def ask(self, text: str) -> int:
        """Subscribe as ann; return the reason code."""
        self.ann.ask(FilterRequest(text, 1))
        self.turn(self.ann)
        self.run(50)
        return self.ann.subacks[-1].reasons[0]

    def may_read(self, topic: str) -> bool:
        return self.nodes["n0"].node.state.access.may_subscribe("ann", "phone", topic)


def without_rules() -> ConfiguredAccess:
    return ConfiguredAccess(AuthSection(anonymous="always"), {}, [])


def with_badges() -> ConfiguredAccess:
    """Return the access of a node with a plugin of its own: what no rule allows is refused."""
    return BadgeAccess({"ann": [{"topic": "b/#"}], "r": [{"topic": "#"}]})


@pytest.mark.parametrize("make", [without_rules, with_badges])
@pytest.mark.parametrize("badge", [[{"topic": "a/#"}], [], None])
def test_rules_of_a_token_hold_where_the_session_is(make: Any, badge: Badge):
    city = RulesCity(badge, make())
    assert city.ask("a/#") == (1 if badge else 0x87)
    assert city.ask("b/#") == city.ask("#") == 0x87
    reader = SimulatedClient("r", user_name="r")
    city.admit(reader, "n0")
    city.run(50)
    reader.subscribe("#")
    city.turn(reader)
    city.run(50)
    for topic in ("a/1", "b/1"):
        city.publish(city.ann, topic, topic.encode(), 1)
        city.run(50)
    assert [one.payload for one in reader.received] == ([b"a/1"] if badge else [])
    city.leave("n1")  # they hold while the client is away, and after a restart of its node
    for _ in range(2):
        assert city.may_read("a/x") is bool(badge)
        assert not city.may_read("b/x")
        city.home.gate.grants._grants.clear()  # the journal's notes are left


def test_a_narrower_token_at_another_node_ends_what_the_session_had():
    city = RulesCity([{"topic": "a/#"}], with_badges())
    assert city.ask("a/#") == 1
    city.leave("n1")
    city.entry.badges["ann"] = [{"topic": "z"}]
    city.admit(city.ann, "n1")
    city.run(50)
    session = city.nodes["n0"].node.session_of("phone")
    assert session is not None
    assert session.subscriptions == {}


def test_a_removed_user_whose_session_is_elsewhere_is_sent_away_by_its_node():
    city = RulesCity([{"topic": "a/#"}], with_badges())
    gone = ConfiguredAccess(AuthSection(users=Path("users"), anonymous="never"), {"r": ""}, [])
    node = city.nodes["n1"].node
    node.set_access(gone, city.world.now)
    city.at("n1", lambda node, now: node.turn(now))
    city.run(50)
    assert not city.ann.is_connected


class NamelessBadges(BadgeAccess):
    """Logins without a name bring the rules of the badge "" along."""

    def authenticate(self, connect: Connect, connection: Connection) -> LoginVerdict:
        rules = tuple(RuleSection.model_validate(one) for one in self.badges[""] or ())
        connection.proof = Proof(None, 0, rules_text(rules))
        return LoginVerdict.WELCOME


@pytest.mark.parametrize("badge", [[{"topic": "city/#"}], []])
def test_a_session_that_moves_is_checked_under_the_rules_of_the_new_login(badge: Badge):
    city, ann, _ = slow_city()
    access = NamelessBadges({"": badge})
    city.nodes["n1"].node.set_access(access, city.world.now)
    access.gate.grants.notes = city.nodes["n1"].node.notes
    send_to_n1(city)
    city.admit(ann, "n1")
    go_on_until(city, lambda: has(city, "n1") and not has(city, "n0"))
    city.run(500)
    session = city.nodes["n1"].node.session_of("ann")
    assert session is not None
    assert len(session.subscriptions) == bool(badge)
    assert ann.is_connected


def test_a_message_of_a_node_that_knows_no_rules_grants_nothing_more(make_world: Any):
    world = make_world(access=BadgeAccess({"ann": [{"topic": "a/#"}]}, [allow("c/#")]))
    world.welcome("phone", user_name="ann", props=KEPT).lose()
    client = relayed(world, None)
    access = world.node.state.access
    assert client.link.permits == {}
    assert not access.may_publish("ann", "phone", "a/x")
    assert access.may_publish("ann", "phone", "c/x")


def test_what_a_relayed_client_may_not_publish_is_refused_where_its_session_is(make_world: Any):
    world = make_world(access=without_rules())
    client = relayed(world, rules_text((RuleSection(topic="a/#"),)))
    client.take()
    for topic, reason in (("a/x", 0x10), ("b/x", 0x87)):
        client.publish(topic, qos=1)
        found = [one for one in client.take() if isinstance(one, PublishAnswer)]
        assert [one.reason for one in found] == [reason]
