"""CONNECT: sections 3.1, 3.2 and 4.1."""

from __future__ import annotations

from typing import Any

import pytest

from nearcast.broker import BrokerSettings, Connection, LoginVerdict, OpenAccess
from nearcast.mqtt import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    FilterRequest,
    Pingreq,
    Pingresp,
    Properties,
    ProtocolVersion,
    Publish,
    ReasonCode,
    Subscribe,
    Will,
    encode_packet,
)

V311, V5 = ProtocolVersion.V311, ProtocolVersion.V5
both = pytest.mark.parametrize("version", [V311, V5])


@both
def test_a_client_is_welcomed_and_pinged(world: Any, version: ProtocolVersion) -> None:
    client = world.client("ann", version)
    (answer,) = client.take()

    assert (answer.reason, answer.session_present) == (0, False)
    client.send(Pingreq())
    assert client.take() == [Pingresp()]


def test_the_first_packet_must_be_connect(world: Any) -> None:
    client = world.client("ann")
    fresh = type(client)(world, V5)
    fresh.send(Pingreq())

    assert fresh.is_closed
    assert fresh.take() == []


def test_a_second_connect_closes_the_connection(world: Any) -> None:
    client = world.welcome("ann")
    client.send(Connect("ann"))

    assert [type(one) for one in client.take()] == [Disconnect]
    assert client.is_closed


def test_an_unknown_protocol_level_is_answered_in_words_the_client_knows(world: Any) -> None:
    old = type(world.client("x"))(world, V311)
    old.send_bytes(bytes.fromhex("100c00044d515454030200000000"))
    new = type(old)(world, V5)
    new.send_bytes(bytes.fromhex("100c00044d515454060200000000"))

    assert old.take() == [Connack(False, 1)]
    assert [one.reason for one in new.take()] == [ReasonCode.UNSUPPORTED_PROTOCOL_VERSION]
    assert old.is_closed
    assert new.is_closed


def test_a_client_without_a_name_gets_one_and_hears_it(world: Any) -> None:
    first, second = world.client(""), world.client("")
    names = {one.packets[0].properties.assigned_client_identifier for one in (first, second)}

    assert len(names) == 2
    assert None not in names


def test_in_3_1_1_a_nameless_client_must_start_clean(world: Any) -> None:
    assert world.client("", V311, clean_start=False).take() == [Connack(False, 2)]
    assert world.client("", V311).take() == [Connack(False, 0)]


def test_enhanced_authentication_is_refused(world: Any) -> None:
    client = world.client("ann", props={"authentication_method": "SCRAM"})

    assert [one.reason for one in client.take()] == [ReasonCode.BAD_AUTHENTICATION_METHOD]
    assert client.is_closed


def test_an_auth_packet_breaks_the_protocol(world: Any) -> None:
    client = world.welcome("ann")
    client.send(Auth(0x19))

    (answer,) = client.take()
    assert answer.reason == ReasonCode.PROTOCOL_ERROR
    assert client.is_closed


def test_the_server_states_its_terms(make_world: Any) -> None:
    settings = BrokerSettings(
        receive_maximum=10, keep_alive_s=30, topic_alias_maximum=5, session_expiry_s=100
    )
    world = make_world(settings)
    client = world.client("ann", keep_alive_s=60, props={"session_expiry_interval": 1000})

    assert client.packets[0].properties == Properties(
        session_expiry_interval=100,
        server_keep_alive=30,
        receive_maximum=10,
        topic_alias_maximum=5,
        maximum_packet_size=1 << 20,
    )


@both
def test_a_session_is_kept_and_told(world: Any, version: ProtocolVersion) -> None:
    props = {"session_expiry_interval": 60} if version is V5 else {}
    first = world.welcome("ann", version, clean_start=False, props=props)
    first.subscribe("a", 1)
    first.lose()
    again = world.client("ann", version, clean_start=False, props=props)

    assert again.packets[0].session_present
    world.welcome("bob").publish("a", b"hello")
    assert again.payloads() == [b"hello"]


def test_a_session_may_come_back_with_another_version_or_other_wishes(world: Any) -> None:
    sender = world.welcome("s")
    old = world.welcome("ann", V311, clean_start=False)
    old.subscribe("a", 1)
    for qos in (0, 1):
        sender.publish("a", b"x", qos)
    wishes = {"session_expiry_interval": 60, "topic_alias_maximum": 3}
    new = world.welcome("ann", clean_start=False, props=wishes)
    for qos in (0, 1):
        sender.publish("a", b"y", qos)

    assert [one.payload for one in old.publications()] == [b"x", b"x"]
    seen = [(one.payload, one.topic, one.properties.topic_alias) for one in new.publications()]
    assert seen == [(b"y", "a", 1), (b"y", "", 1)]


@both
def test_a_clean_start_forgets_the_session(world: Any, version: ProtocolVersion) -> None:
    props = {"session_expiry_interval": 60} if version is V5 else {}
    world.welcome("ann", version, clean_start=False, props=props).subscribe("a", 1)
    again = world.client("ann", version, clean_start=True, props=props)

    assert not again.packets[0].session_present
    world.welcome("bob").publish("a", b"hello")
    assert again.payloads() == []


def test_a_session_ends_with_its_expiry(world: Any) -> None:
    props = {"session_expiry_interval": 10}
    world.welcome("ann", props=props).lose()
    world.wait(9_999)
    assert world.client("ann", clean_start=False, props=props).packets[0].session_present
    world.clients[-1].lose()
    world.wait(10_000)

    assert not world.client("ann", clean_start=False).packets[0].session_present
    assert world.node.counters.sessions_expired == 1


def test_no_session_ends_while_its_client_is_there(world: Any) -> None:
    props = {"session_expiry_interval": 10}
    client = world.welcome("ann", props=props)
    client.subscribe("a")
    client.lose()
    world.wait(5_000)
    back = world.client("ann", clean_start=False, props=props)
    back.take()
    world.wait(60_000)
    world.welcome("s").publish("a", b"still served")

    assert back.payloads() == [b"still served"]
    assert world.node.counters.sessions_expired == 0


def test_what_a_session_held_is_let_go_and_counted_when_it_ends(world: Any) -> None:
    client = world.welcome("ann", answers=False, props={"session_expiry_interval": 10})
    client.subscribe("a", 1)
    sender = world.welcome("s")
    sender.publish("a", b"in flight", 1)
    client.lose()
    sender.publish("a", b"queued", 1)
    assert world.node.state.held_bytes > 0
    world.wait(10_000)

    assert world.node.state.held_bytes == 0
    assert world.node.counters.dropped_ended == 1


def test_without_an_expiry_a_session_ends_with_its_connection(world: Any) -> None:
    world.welcome("ann").lose()

    assert not world.client("ann", clean_start=False).packets[0].session_present
    assert set(world.node.state.sessions) == {"ann"}


def test_disconnect_may_shorten_the_expiry_and_not_lengthen_it_from_zero(world: Any) -> None:
    shorter = world.welcome("ann", props={"session_expiry_interval": 60})
    shorter.send(Disconnect(0, Properties(session_expiry_interval=0)))
    assert "ann" not in world.node.state.sessions

    longer = world.welcome("bob")
    longer.send(Disconnect(0, Properties(session_expiry_interval=60)))
    assert [one.reason for one in longer.take()] == [ReasonCode.PROTOCOL_ERROR]


FROM_CLIENTS = {
    *(0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x90),
    *(0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99),
}
"""Table 3-10 of MQTT 5: the reasons of DISCONNECT that are sent by a client."""


@pytest.mark.parametrize("reason", range(256))
def test_a_client_disconnects_with_a_reason_of_clients(world: Any, reason: int) -> None:
    """Others are protocol errors, also those of servers; 0 alone withdraws the will."""
    watcher = world.welcome("watcher")
    watcher.subscribe("w")
    client = world.welcome("ann", will=Will("w", b"gone"))
    client.send_bytes(bytes((0xE0, 0x01, reason)))

    expected = [] if reason in FROM_CLIENTS else [ReasonCode.PROTOCOL_ERROR]
    assert [one.reason for one in client.take()] == expected
    assert client.link.is_closing
    assert watcher.payloads() == ([] if reason == 0 else [b"gone"])
    assert world.node.counters.protocol_errors == len(expected)


@both
def test_a_newer_connection_takes_over(world: Any, version: ProtocolVersion) -> None:
    older = world.welcome("ann", version)
    newer = world.welcome("ann", version)

    expected = [Disconnect(ReasonCode.SESSION_TAKEN_OVER)] if version is V5 else []
    assert older.take() == expected
    assert older.is_closed
    newer.send(Pingreq())
    assert newer.take() == [Pingresp()]
    assert world.node.state.connected == 1


def test_silence_beyond_one_and_a_half_keep_alives_closes(world: Any) -> None:
    client = world.welcome("ann", keep_alive_s=10)
    for pause_ms in (500, 14_000):
        world.wait(pause_ms)
        client.send(Pingreq())
        client.take()
    world.wait(14_999)
    assert not client.is_closed
    world.wait(1)

    assert client.take() == [Disconnect(ReasonCode.KEEP_ALIVE_TIMEOUT)]
    assert client.is_closed


def test_a_3_1_1_client_with_keep_alive_zero_may_be_silent_for_ever(world: Any) -> None:
    client = world.welcome("ann", V311)
    world.wait(10**9)

    assert not client.is_closed


def test_bytes_that_make_no_packet_are_no_sign_of_life(world: Any) -> None:
    client = world.welcome("ann", keep_alive_s=10)
    for byte in encode_packet(Publish("a", b"x" * 100))[:20]:
        world.wait(1_000)
        client.send_bytes(bytes((byte,)))

    assert client.is_closed


def test_who_does_not_say_connect_in_time_is_closed(world: Any) -> None:
    silent = type(world.welcome("x"))(world, V5)
    world.wait(9_999)
    assert not silent.is_closed
    world.wait(1)

    assert silent.is_closed


def test_one_client_too_many_is_refused(make_world: Any) -> None:
    world = make_world(BrokerSettings(max_connections=1))
    world.welcome("ann")

    assert [one.reason for one in world.client("bob").take()] == [ReasonCode.QUOTA_EXCEEDED]
    assert world.client("cyd", V311).take() == [Connack(False, 3)]
    world.welcome("ann")


def test_far_too_many_connections_are_closed_unheard(make_world: Any) -> None:
    world = make_world(BrokerSettings(max_open_connections=1))
    world.welcome("ann")
    link = Connection()
    world.node.open(link, world.now_ms)

    assert link.is_closing
    assert world.node.counters.connects_refused == 1


@pytest.mark.parametrize("name", ["$SYS/x", "$SYS"])
def test_a_will_may_not_go_to_the_brokers_own_topics(world: Any, name: str) -> None:
    client = world.client("ann", will=Will(name, b"x"))

    assert [one.reason for one in client.take()] == [ReasonCode.TOPIC_NAME_INVALID]


class LateAccess(OpenAccess):
    """Wants to think about everybody."""

    def authenticate(self, _connect: Connect, _connection: Connection) -> LoginVerdict:
        return LoginVerdict.LATER


def test_what_comes_before_the_password_is_checked_waits(make_world: Any) -> None:
    world = make_world(access=LateAccess())
    client = world.client("ann")
    client.send(Subscribe(1, (FilterRequest("a"),)), Pingreq())
    assert client.take() == []
    (link,) = world.node.take_questions()

    world.node.authenticated(link, LoginVerdict.WELCOME, world.now_ms)
    world.settle()
    assert [type(one).__name__ for one in client.take()] == ["Connack", "Suback", "Pingresp"]


def test_who_talks_on_and_on_before_the_password_is_checked_is_closed(make_world: Any) -> None:
    settings = BrokerSettings(max_connect_bytes=1000, newcomer_bytes=50)
    world = make_world(settings, access=LateAccess())
    client = world.client("ann")
    for _ in range(9):
        client.send(Publish("a", b"x" * 100))
    assert not client.is_closed
    client.send(Publish("a", b"x" * 100))

    assert client.is_closed


@pytest.mark.parametrize(
    ("verdict", "reason", "code"),
    [
        (LoginVerdict.WRONG_PASSWORD, ReasonCode.BAD_USER_NAME_OR_PASSWORD, 4),
        (LoginVerdict.FORBIDDEN, ReasonCode.NOT_AUTHORIZED, 5),
    ],
)
def test_who_is_not_welcome_hears_why(
    make_world: Any, verdict: LoginVerdict, reason: ReasonCode, code: int
) -> None:
    world = make_world(access=LateAccess())
    new, old = world.client("ann"), world.client("bob", V311)
    for link in world.node.take_questions():
        world.node.authenticated(link, verdict, world.now_ms)
    world.settle()

    assert [one.reason for one in new.take()] == [reason]
    assert old.take() == [Connack(False, code)]
    assert new.is_closed
    assert not world.node.state.sessions


def test_a_verdict_about_somebody_who_left_changes_nothing(make_world: Any) -> None:
    world = make_world(access=LateAccess())
    client = world.client("ann")
    (link,) = world.node.take_questions()
    client.lose()
    world.node.authenticated(link, LoginVerdict.WELCOME, world.now_ms)

    assert not world.node.state.sessions
    assert world.node.state.connected == 0


def test_a_malformed_connect_is_answered_and_closed(world: Any) -> None:
    client = type(world.welcome("x"))(world, V5)
    client.send_bytes(bytes.fromhex("100c00044d515454050100000000"))

    assert [one.reason for one in client.take()] == [ReasonCode.MALFORMED_PACKET]
    assert client.is_closed


def test_in_3_1_1_a_connect_that_breaks_the_rules_closes_without_a_word(world: Any) -> None:
    client = type(world.welcome("x"))(world, V311)
    client.send_bytes(bytes.fromhex("100c00044d515454040100000000"))

    assert client.take() == []
    assert client.is_closed


def test_reason_strings_are_kept_from_those_who_do_not_want_them(world: Any) -> None:
    for wants in (0, 1):
        client = world.welcome(f"c{wants}", props={"request_problem_information": wants})
        client.send_bytes(bytes.fromhex("c00100"))
        (answer,) = client.take()
        assert (answer.properties.reason_string is not None) == bool(wants)


@both
def test_a_session_without_expiry_ends_when_it_is_taken_over(
    world: Any, version: ProtocolVersion
) -> None:
    first = world.welcome("ann", version)  # a clean session, or one with session expiry 0
    first.subscribe("a", 1)
    again = world.client("ann", version, clean_start=False)

    assert first.is_closed
    assert again.packets[0].session_present is False
    again.take()
    world.welcome("bob").publish("a", b"for nobody")
    assert again.payloads() == []


@pytest.mark.parametrize("most", range(1, 20))
def test_a_client_that_takes_less_than_a_connack_gets_nothing_larger_and_changes_nothing(
    world: Any, most: int
) -> None:
    lasting = {"session_expiry_interval": 60}
    first = world.welcome("ann", props=lasting)
    first.subscribe("a")
    again = world.client("ann", clean_start=False, props={**lasting, "maximum_packet_size": most})

    answers = again.take()
    assert len(again.all_bytes) <= most
    assert all(isinstance(one, Connack) for one in answers)  # [MQTT-3.14.0-1]
    if answers and answers[0].reason == 0:
        assert most >= 13
        assert first.is_closed
    else:
        assert again.is_closed
        assert [one.reason for one in answers] == [ReasonCode.PACKET_TOO_LARGE] * (most >= 5)
        assert not first.is_closed


def test_an_answer_larger_than_the_client_takes_is_not_sent(world: Any) -> None:
    ann = world.welcome("ann", props={"maximum_packet_size": 20})
    ann.send(Subscribe(1, tuple(FilterRequest(f"a/{n}") for n in range(30))))
    ann.send(Pingreq())

    assert ann.take() == [Pingresp()]
    assert world.node.counters.dropped_too_large == 1


@pytest.mark.parametrize("name", ["hjmw", "mqtt", "MQTTX", "", "M"])
@both
def test_another_protocol_is_closed_without_a_word(
    world: Any, name: str, version: ProtocolVersion
) -> None:
    raw = encode_packet(Connect("ann", version), version)
    body = len(name).to_bytes(2, "big") + name.encode() + raw[8:]
    fresh = type(world.client("x"))(world, version)
    fresh.send_bytes(bytes((0x10, len(body))) + body)

    assert fresh.is_closed
    assert fresh.all_bytes == b""


def test_mqtt_3_1_hears_that_its_version_is_not_spoken(world: Any) -> None:
    old = type(world.client("x"))(world, V311)
    body = b"\0\6MQIsdp\3\2\0\x3c\0\3ann"
    old.send_bytes(bytes((0x10, len(body))) + body)

    assert old.take() == [Connack(False, 1)]
    assert old.is_closed
