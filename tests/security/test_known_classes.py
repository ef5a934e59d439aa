"""Classes of vulnerabilities that other brokers had, one test each, named after the class."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.rules import KnownUsers, allow, forbid
from tests.support.shop_space import SHOPS

from nearcast.broker import BrokerSettings, Connection, LoginVerdict, SpaceSettings
from nearcast.config import AuthSection, Configuration, NodeSection, RuleSection
from nearcast.model.errors import FileFormatError
from nearcast.mqtt import (
    Connack,
    Connect,
    Disconnect,
    FilterRequest,
    PacketType,
    Properties,
    ProtocolVersion,
    Publish,
    PublishAnswer,
    Suback,
    Subscribe,
    encode_packet,
)
from nearcast.mqtt.packets import Will
from nearcast.server import hash_password
from nearcast.server.auth.rules import ConfiguredAccess, make_access

V311, V5 = ProtocolVersion.V311, ProtocolVersion.V5
KEPT = {"session_expiry_interval": 1_000}


def bystander(world: Any) -> Any:
    """Return a client that must be served whatever others do."""
    client = world.welcome("bystander")
    client.subscribe("by")
    client.take()
    return client


def is_served(world: Any, client: Any) -> bool:
    world.welcome("helper").publish("by", b"still")
    return bool(client.payloads() == [b"still"])


# --- rules --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["#", "+", "a/#", "+/x", "bob/secret", "%c", "%u"])
@pytest.mark.parametrize("mark", ["%u", "%c"])
def test_pattern_rules_are_not_widened_by_names_with_wildcards(
    make_world: Any, name: str, mark: str
) -> None:
    world = make_world(access=KnownUsers([name, "eve"], [allow(f"own/{mark}/#")]))
    identifiers = {"%u": ("eve", name), "%c": (name, "eve")}[mark]
    client = world.welcome(identifiers[0], user_name=identifiers[1])
    for text in ("own/bob/x", "own/bob/secret/x", "own/+/x", "own/#", "own/a/b", "own/ann"):
        found = [one for one in client.subscribe(text) if isinstance(one, Suback)]
        assert found[-1].reasons[0] == 0x87
        client.take()


def test_a_rule_that_forbids_is_not_skipped_for_a_name_with_a_wildcard() -> None:
    rules = [forbid("own/%u/locked"), allow("own/#")]
    access = KnownUsers([], rules)
    for name, may in (("ann", False), ("a/b", False), ("#", False), ("+", False)):
        assert access.may_publish(name, "c", f"own/{name.strip('#+')}/locked") is may
    assert access.may_publish("ann", "c", "own/ann/open")


def test_a_user_who_is_named_as_a_mark_gets_no_topic_of_another(make_world: Any) -> None:
    """The name %c was replaced by the client identifier in a second round."""
    world = make_world(access=KnownUsers(["%c"], [allow("own/%u/#")]))
    eve = world.welcome("ann", user_name="%c")
    answers = [one for one in eve.subscribe("own/ann/x") if isinstance(one, Suback)]
    assert answers[0].reasons[0] == 0x87
    eve.take()
    answers = [one for one in eve.subscribe("own/%c/x") if isinstance(one, Suback)]
    assert answers[0].reasons[0] == 0


def test_a_reload_applies_to_who_is_connected(make_world: Any) -> None:
    world = make_world(access=KnownUsers(["ann"]))
    ann = world.welcome("ann", user_name="ann")
    ann.subscribe("a")
    world.node.set_access(KnownUsers(["ann"], [allow("b")]), world.now_ms)
    world.welcome("w", user_name="ann").publish("a")
    assert ann.payloads() == []


def test_a_durable_subscription_ends_when_it_is_revoked(make_world: Any) -> None:
    world = make_world(access=KnownUsers(["ann"]), with_journal=True)
    ann = world.welcome("ann", user_name="ann", props=KEPT)
    ann.subscribe("a", 1)
    ann.lose()
    world.options["access"] = KnownUsers(["ann", "w"], [allow("#", "w")])
    world.crash_and_restart()
    world.welcome("w", user_name="w").publish("a", qos=1)
    assert world.welcome("ann", user_name="ann", clean_start=False).payloads() == []


def test_retained_and_replayed_messages_follow_the_new_rules(make_world: Any) -> None:
    world = make_world(access=KnownUsers(["ann"]), with_journal=True)
    ann = world.welcome("ann", user_name="ann", props=KEPT, answers=False)
    ann.subscribe("a/#", 1)
    world.welcome("w").publish("a/1", b"sent, not acknowledged", qos=1, retain=True)
    ann.lose()
    world.welcome("w").publish("a/2", b"queued", qos=1, retain=True)
    world.options["access"] = KnownUsers(["ann"], [forbid("a/#", "ann"), allow("#")])
    world.crash_and_restart()
    ann = world.welcome("ann", user_name="ann", clean_start=False)
    for text in ("a/#", "a/1", "#", "+/1", "$share/g/a/#"):
        ann.subscribe(text, 1)
    assert ann.payloads() == []


def test_an_empty_list_of_users_or_a_bad_line_lets_nobody_in_as_somebody(tmp_path: Path) -> None:
    users = tmp_path / "users.txt"
    section = AuthSection(anonymous="never", users=users)
    configuration = Configuration(node=NodeSection(data=tmp_path), auth=section)
    users.write_text("")
    connect = Connect("c", user_name="root", password=b"")
    access, connection = make_access(configuration), Connection()
    assert access.authenticate(connect, connection) is LoginVerdict.LATER
    connection.connect = connect
    assert access.check(connection).verdict is LoginVerdict.WRONG_PASSWORD
    for line in ("root", "root:", ":x", "root:plain", "root:scrypt$$$$", "root:scrypt$1$1"):
        users.write_text(f"ann:{hash_password(b'x', b'salt')}\n{line}\n")
        with pytest.raises(FileFormatError, match="line 2"):
            make_access(configuration)


def test_a_known_user_without_a_password_is_refused() -> None:
    users = {"ann": hash_password(b"pw", b"salt")}
    access = ConfiguredAccess(AuthSection(anonymous="always"), users, [])
    for password in (None, b""):
        connect = Connect("c", user_name="ann", password=password)
        verdict = access.authenticate(connect, Connection())
        if verdict is LoginVerdict.LATER:
            verdict = access.check_password(connect)
        assert verdict is LoginVerdict.WRONG_PASSWORD


# --- topics and wills ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "topic",
    ["$", "$x", "$SYS/x", "$share/g/x", "$nearcast/x", "$CONTROL/x", "$queue/x", "$where/x"],
)
def test_an_unknown_dollar_topic_ends_nobody_elses_connection(make_world: Any, topic: str) -> None:
    world = make_world(spaces=[SpaceSettings(space=SHOPS)])
    by = bystander(world)
    for version in (V311, V5):
        for qos in (0, 1, 2):
            for retain in (False, True):
                world.welcome("eve", version).publish(topic, qos=qos, retain=retain)
    world.welcome("eve").subscribe(topic)
    assert is_served(world, by)


def test_65_400_slashes_are_refused_at_once(make_world: Any) -> None:
    world = make_world()
    by = bystander(world)
    deep = "/" * 65_400
    began_s = time.process_time()
    eve = world.welcome("eve")
    eve.publish(deep, qos=1)
    assert eve.is_closed
    eve = world.welcome("eve")
    assert next(one for one in eve.subscribe(deep) if isinstance(one, Suback)).reasons[0] == 0x8F
    assert world.client("eve2", will=Will(deep, b"x")).is_closed
    assert time.process_time() - began_s < 1
    assert is_served(world, by)


def test_a_will_delay_beyond_the_session_expiry_ends_with_the_session(make_world: Any) -> None:
    world = make_world(with_journal=True)
    reader = world.welcome("r", props=KEPT)
    reader.subscribe("w", 1)
    will = Will("w", b"gone", 1, properties=Properties(will_delay_interval=0xFFFF_FFFF))
    world.welcome("eve", will=will, props={"session_expiry_interval": 5}).lose()
    assert reader.payloads() == []
    world.wait(6_000)
    assert reader.payloads() == [b"gone"]
    world.wait(60_000)
    world.crash_and_restart()
    assert world.welcome("r", clean_start=False).payloads() == []


@pytest.mark.parametrize(
    "properties",
    [
        b"\x23\x00\x01",  # a topic alias
        b"\x0b\x01",  # a subscription identifier
        b"\x11\x00\x00\x00\x05",  # a session expiry
        b"\x01\x02",  # a payload format that does not exist
        b"\x01\x00\x01\x00",  # a property twice
        b"\x7f\x00",  # a property that does not exist
        b"\x08\x00\x03a/#",  # a response topic with a wildcard
        b"\x26\x00\x01a",  # half a user property
    ],
)
def test_a_will_with_invalid_properties_is_refused(make_world: Any, properties: bytes) -> None:
    world = make_world()
    by = bystander(world)
    body = b"\0\4MQTT\5\x06\0\0\0" + b"\0\3eve"
    body += bytes((len(properties),)) + properties + b"\0\1w" + b"\0\1x"
    eve = type(by)(world, V5)
    eve.send_bytes(bytes((0x10, len(body))) + body)
    assert eve.is_closed
    assert not any(isinstance(one, Connack) and one.reason == 0 for one in eve.packets)
    assert is_served(world, by)


# --- packets ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad", [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"a\0b"]
)
def test_invalid_utf_8_is_not_passed_on(make_world: Any, bad: bytes) -> None:
    world = make_world()
    reader = world.welcome("r")
    reader.subscribe("#")
    reader.take()
    topic = len(bad).to_bytes(2, "big") + bad
    for version, middle in ((V311, b""), (V5, b"\0")):
        for first, number in ((0x30, b""), (0x32, b"\0\1"), (0x34, b"\0\1")):
            eve = world.welcome("eve", version)
            body = topic + number + middle + b"x"
            eve.send_bytes(bytes((first, len(body))) + body)
            assert eve.is_closed
    assert reader.take() == []


@pytest.mark.parametrize(
    "packet", [b"\x20\x02\0\0", b"\x20\x03\0\0\0", b"\x90\x03\0\1\0", b"\xb0\x02\0\1", b"\xd0\0"]
)
@pytest.mark.parametrize("logged_in", [True, False])
def test_a_client_that_sends_what_only_a_broker_sends_is_closed(
    make_world: Any, packet: bytes, logged_in: bool
) -> None:
    world = make_world()
    by = bystander(world)
    eve = world.welcome("eve") if logged_in else type(by)(world, V5)
    eve.send_bytes(packet)
    assert eve.is_closed
    assert is_served(world, by)


def test_half_a_connect_holds_nothing_for_long(make_world: Any) -> None:
    world = make_world()
    by = bystander(world)
    whole = encode_packet(Connect("eve", user_name="u", password=b"p", will=Will("w", b"x")))
    halves = []
    for end in range(1, len(whole)):
        eve = type(by)(world, V5)
        eve.send_bytes(whole[:end])
        halves.append(eve)
    assert is_served(world, by)
    world.wait(11_000)
    assert all(one.is_closed for one in halves)
    assert "eve" not in world.node.state.sessions
    for end in range(1, len(whole)):
        eve = type(by)(world, V5)
        eve.send_bytes(whole[:end])
        eve.lose()
    assert not world.node.state.connections - {one.link for one in world.clients}


@pytest.mark.parametrize("first", [0x10, 0x30, 0x32, 0x40, 0x62, 0x82, 0xC0, 0xE0, 0xF0])
@pytest.mark.parametrize("logged_in", [True, False])
def test_a_length_of_five_bytes_is_refused(make_world: Any, first: int, logged_in: bool) -> None:
    world = make_world()
    by = bystander(world)
    eve = world.welcome("eve") if logged_in else type(by)(world, V5)
    eve.send_bytes(bytes((first,)) + b"\xff\xff\xff\xff\x01" + bytes(64))
    assert eve.is_closed
    assert is_served(world, by)


def test_the_same_qos_2_identifier_for_ever_delivers_and_keeps_one(make_world: Any) -> None:
    world = make_world(with_journal=True)
    reader = world.welcome("r")
    reader.subscribe("a", 2)
    reader.take()
    eve = world.welcome("eve", props=KEPT, answers=False)
    packet = encode_packet(Publish("a", bytes(1_000), 2, packet_id=7))
    for _ in range(500):
        eve.send_bytes(packet)
    eve.send_bytes(packet * 500)
    assert len(reader.payloads()) == 1
    assert world.node.state.sessions["eve"].incoming == {7}
    assert sum(map(len, world.stored)) < 10_000
    assert world.node.state.held_bytes == 0
    for _ in range(500):  # and never released by the receiver
        eve.send(PublishAnswer(PacketType.PUBREC, 9))
    assert not world.node.state.sessions["eve"].released


@pytest.mark.parametrize(
    ("properties", "forwarded"),
    [
        (b"\x23\x00\x05", b""),  # a topic alias is the connection's
        (b"\x02\x00\x00\x00\x09", b"\x02\x00\x00\x00\x09"),
        (b"\x0b\x05", None),  # a subscription identifier is not the publisher's
        (b"\x11\x00\x00\x00\x05", None),
        (b"\x21\x00\x05", None),
        (b"\x1f\x00\x01x", None),
        (b"\x15\x00\x01x", None),
    ],
)
def test_an_inapplicable_property_is_not_forwarded(
    make_world: Any, properties: bytes, forwarded: bytes | None
) -> None:
    world = make_world()
    reader = world.welcome("r")
    reader.subscribe("a")
    reader.take()
    before = len(reader.all_bytes)
    eve = world.welcome("eve")
    body = b"\0\1a" + bytes((len(properties),)) + properties + b"x"
    eve.send_bytes(bytes((0x30, len(body))) + body)
    assert eve.is_closed is (forwarded is None)
    got = reader.all_bytes[before:]
    if forwarded is None:
        assert got == b""
    else:
        expected = b"\0\1a" + bytes((len(forwarded),)) + forwarded + b"x"
        assert got == bytes((0x30, len(expected))) + expected


# --- the language of filters ----------------------------------------------------------------------

EXHAUSTING = [
    "(" * 5_000 + "price < 1" + ")" * 5_000,
    "not " * 4_000 + "price < 1",
    " and ".join(f"(price < {n} or price > {n + 1})" for n in range(300)),
    " or ".join(f"(price < {n} and kind = food)" for n in range(500)),
    "price in (" + ",".join(map(str, range(3_000))) + ")",
    "price < 1e999999",
    "price < " + "9" * 10_000,
    "kind = " + '"' + "a" * 15_000 + '"',
]


@pytest.mark.parametrize("where", EXHAUSTING, ids=range(len(EXHAUSTING)))
def test_the_language_of_conditions_exhausts_nothing(make_world: Any, where: str) -> None:
    world = make_world(spaces=[SpaceSettings(space=SHOPS)])
    by = bystander(world)
    eve = world.welcome("eve")
    began_s = time.process_time()
    properties = Properties(user_properties=(("$where", where),))
    eve.send(Subscribe(1, (FilterRequest("shops/#"),), properties))
    assert time.process_time() - began_s < 3
    (answer,) = [one for one in eve.take() if isinstance(one, Suback)]
    assert answer.reasons[0] in {0, 0x8F, 0x97}
    assert not eve.is_closed
    assert is_served(world, by)


@pytest.mark.parametrize("sign", ["\n", "\r", "\t", "\x1b[2J", "\x7f", "\x85", "\ufeff", "\u202e"])
def test_control_characters_reach_no_log_line_and_no_other_packet(
    make_world: Any, sign: str, caplog: pytest.LogCaptureFixture
) -> None:
    from nearcast.server.client_log import ClientLog

    world = make_world(BrokerSettings(printable_topics=True), access=KnownUsers([], [allow("by")]))
    world.node.observe(ClientLog())
    by = bystander(world)
    with caplog.at_level("DEBUG", "nearcast.clients"):
        eve = world.welcome(f"e{sign}ve", will=None)
        eve.publish(f"a{sign}b", qos=1)
        eve = world.client(f"e{sign}", user_name=f"u{sign}", password=b"x")
        eve.subscribe(f"b{sign}y")
    for record in caplog.records:
        text = record.getMessage()
        assert all(one.isprintable() for one in text), text
    assert is_served(world, by)


def test_rules_are_read_whole_or_not_at_all() -> None:
    for wrong in ({"topic": ""}, {"action": "read"}, {"allow": "no"}, {"topics": "#"}):
        with pytest.raises(ValueError, match="validation error"):
            RuleSection.model_validate(wrong)


def test_a_disconnect_with_a_longer_session_than_asked_for_is_refused(make_world: Any) -> None:
    world = make_world()
    eve = world.welcome("eve")
    eve.send(Disconnect(0, Properties(session_expiry_interval=60)))
    assert "eve" not in world.node.state.sessions
