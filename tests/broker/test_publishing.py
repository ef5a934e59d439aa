"""Publishing and delivery: sections 3.3, 4.3, 4.6, 4.9 and quotas."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nearcast.broker import BrokerSettings
from nearcast.mqtt import (
    Disconnect,
    MqttProtocolError,
    PacketReader,
    PacketType,
    Properties,
    ProtocolVersion,
    Publish,
    PublishAnswer,
    ReasonCode,
    encode_packet,
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


@given(
    cuts=st.lists(st.integers(1, 40), max_size=12),
    kinds=st.lists(
        st.tuples(
            st.integers(0, 2), st.sampled_from(["a", "a/b"]), st.integers(0, 3), st.booleans()
        ),
        max_size=12,
    ),
    version=st.sampled_from([V311, V5]),
    listeners=st.sampled_from([(V311,), (V5,), (V311, V5)]),
)
def test_runs_mean_the_same_in_any_portions(
    make_world: Any,
    cuts: list[int],
    kinds: list[tuple[int, str, int, bool]],
    version: ProtocolVersion,
    listeners: tuple[ProtocolVersion, ...],
) -> None:
    packets = [
        Publish(topic, b"x" * size, qos, retain, packet_id=number + 1 if qos else 0)
        for number, (qos, topic, size, retain) in enumerate(kinds)
    ]
    data = b"".join(encode_packet(packet, version) for packet in packets)

    def outcome(portions: list[bytes]) -> list[list[object]]:
        world = make_world()
        receivers = [world.welcome(f"r{one}", one) for one in listeners]
        for receiver in receivers:
            receiver.subscribe("#", 2)
            receiver.take()
        sender = world.welcome("s", version)
        sender.answers = False  # an answer must not land in the middle of a packet
        for portion in portions:
            sender.send_bytes(portion)
        return [
            [one for one in client.take() if isinstance(one, Publish)] for client in receivers
        ] + [list(sender.take())]

    portions, at = [], 0
    for cut in cuts:
        portions.append(data[at : at + cut])
        at += cut
    portions.append(data[at:])
    by_packet = [encode_packet(packet, version) for packet in packets]
    pieces, whole, each = outcome(portions), outcome([data]), outcome(by_packet)

    assert pieces[:-1] == whole[:-1] == each[:-1]
    assert [(one.topic, one.payload) for one in whole[0]] == [  # type: ignore[attr-defined]
        (packet.topic, packet.payload) for packet in packets
    ]


@given(st.binary(max_size=60), st.sampled_from([V311, V5]))
def test_the_hot_path_refuses_what_the_codec_refuses(
    make_world: Any, noise: bytes, version: ProtocolVersion
) -> None:
    """Behind a good PUBLISH header, whatever the body: both close or neither does."""
    for first in (0x30, 0x32, 0x34, 0x31, 0x3A, 0x38, 0x36, 0x40, 0x50, 0x62, 0x70):
        data = bytes((first, len(noise))) + noise
        world = make_world()
        client = world.welcome("c", version)
        client.send_bytes(data)
        try:
            (packet,) = PacketReader(version).feed(data)
        except MqttProtocolError:
            assert client.is_closed
        else:
            breaks = isinstance(packet, Publish) and (
                packet.properties.topic_alias is not None
                or packet.properties.subscription_identifiers
                or packet.topic.count("/") >= 128
            )
            assert client.is_closed == bool(breaks) or breaks


@pytest.mark.parametrize("qos", [1, 2])
@both
def test_identifier_zero_breaks_the_protocol_anywhere_in_a_run(
    world: Any, version: ProtocolVersion, qos: int
) -> None:
    receiver = world.welcome("r")
    receiver.subscribe("a", 2)
    receiver.take()
    sender = world.welcome("s", version, answers=False)
    good = encode_packet(Publish("a", b"x", qos, packet_id=1), version)
    sender.send_bytes(good + good.replace(b"\0\1a\0\1", b"\0\1a\0\0"))

    assert sender.is_closed
    assert receiver.payloads() == []


@pytest.mark.parametrize("qos", [1, 2])
def test_properties_in_the_middle_of_a_run_are_not_taken_for_payload(world: Any, qos: int) -> None:
    receiver = world.welcome("r")
    receiver.subscribe("a", 2)
    receiver.take()
    marked = Properties(payload_format_indicator=1)
    sender = world.welcome("s", answers=False)
    sender.send(
        Publish("a", b"12", qos, packet_id=1),
        Publish("a", b"", qos, packet_id=2, properties=marked),
    )

    seen = [(one.payload, one.properties) for one in receiver.publications()]
    assert seen == [(b"12", Properties()), (b"", marked)]


def test_a_client_may_have_so_many_in_flight_as_it_said(world: Any) -> None:
    receiver = world.welcome("r", answers=False, props={"receive_maximum": 2})
    receiver.subscribe("a", 2)
    receiver.take()
    sender = world.welcome("s")
    for number in range(5):
        sender.publish("a", b"%d" % number, 1 + number % 2)
    assert receiver.payloads() == [b"0", b"1"]

    receiver.send(PublishAnswer(PUBACK, 1))
    assert receiver.payloads() == [b"2"]
    receiver.send(PublishAnswer(PUBREC, 2))
    assert receiver.payloads() == []
    receiver.send(PublishAnswer(PUBCOMP, 2))
    assert receiver.payloads() == [b"3"]


def test_at_most_once_messages_do_not_count_against_the_window(world: Any) -> None:
    receiver = world.welcome("r", answers=False, props={"receive_maximum": 1})
    receiver.subscribe("a", 1)
    receiver.take()
    sender = world.welcome("s")
    for qos in (1, 1, 0):
        sender.publish("a", b"%d" % qos, qos)

    assert receiver.payloads() == [b"1", b"0"]


def test_a_client_that_sends_more_than_the_server_can_take_is_closed(make_world: Any) -> None:
    world = make_world(BrokerSettings(receive_maximum=2))
    client = world.welcome("c", answers=False)
    client.send(*(Publish("a", b"", 2, packet_id=number) for number in (1, 2)))
    assert not client.is_closed
    client.take()
    client.send(Publish("a", b"", 2, packet_id=3))

    (last,) = client.take()
    assert last.reason == ReasonCode.RECEIVE_MAXIMUM_EXCEEDED
    assert client.is_closed


def test_a_run_beyond_the_receive_maximum_delivers_nothing_that_is_not_acknowledged(
    make_world: Any,
) -> None:
    world = make_world(BrokerSettings(receive_maximum=2))
    receiver = world.welcome("r")
    receiver.subscribe("a", 2)
    receiver.take()
    client = world.welcome("c", answers=False, props={"session_expiry_interval": 60})
    client.send(*(Publish("a", b"x", 2, packet_id=number) for number in (1, 2, 3)))

    assert client.is_closed
    assert receiver.payloads() == []
    assert not world.node.state.sessions["c"].incoming


# --- properties ------------------------------------------------------------------------------


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


# --- topic aliases ---------------------------------------------------------------------------


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


# --- sizes -----------------------------------------------------------------------------------


def test_a_packet_above_the_servers_maximum_closes(make_world: Any) -> None:
    world = make_world(BrokerSettings(max_packet_bytes=100))
    client = world.welcome("c")
    client.publish("a", b"x" * 93)
    assert not client.is_closed
    client.publish("a", b"x" * 95)

    assert client.take()[-1].reason == ReasonCode.PACKET_TOO_LARGE


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_receiver_gets_nothing_above_its_own_maximum(world: Any, qos: int) -> None:
    receiver = world.welcome("r", props={"maximum_packet_size": 60})
    receiver.subscribe("a", qos)
    receiver.take()
    sender = world.welcome("s")
    sender.publish("a", b"x" * 100, qos)
    sender.publish("a", b"small", qos)

    assert receiver.payloads() == [b"small"]
    assert world.node.counters.dropped_too_large == 1
    assert world.node.state.held_bytes == 0


def test_a_packet_in_a_thousand_pieces_is_put_together(world: Any) -> None:
    receiver = world.welcome("r")
    receiver.subscribe("a")
    receiver.take()
    sender = world.welcome("s")
    data = encode_packet(Publish("a", b"x" * 100_000))
    for start in range(0, len(data), 100):
        sender.send_bytes(data[start : start + 100])

    assert receiver.payloads() == [b"x" * 100_000]


# --- quotas ----------------------------------------------------------------------------------


def test_a_stuck_client_loses_at_most_once_messages_and_they_are_counted(make_world: Any) -> None:
    world = make_world(BrokerSettings(session_queue_bytes=1000))
    stuck, other = world.welcome("stuck"), world.welcome("other")
    for client in (stuck, other):
        client.subscribe("a")
        client.take()
    stuck.link.is_paused = True
    sender = world.welcome("s")
    for _ in range(30):
        sender.publish("a", b"x" * 100)

    assert len(other.payloads()) == 30
    assert stuck.link.outbox_bytes <= 1000
    assert world.node.counters.dropped_slow == 30 - stuck.link.outbox_bytes // 106


@pytest.mark.parametrize("qos", [1, 2])
def test_a_publisher_hears_that_a_quota_is_exceeded(make_world: Any, qos: int) -> None:
    world = make_world(BrokerSettings(session_queue_bytes=1000))
    stuck = world.welcome("stuck", props={"session_expiry_interval": 60})
    stuck.subscribe("a", 2)
    stuck.lose()
    sender = world.welcome("s")
    for number in range(10):
        sender.publish("a", b"x" * 100, qos, retain=bool(number % 2))

    first = PUBACK if qos == 1 else PUBREC
    answers = [one.reason for one in sender.take() if one.kind is first]
    refused = answers.count(ReasonCode.QUOTA_EXCEEDED)
    assert answers == [0] * (10 - refused) + [ReasonCode.QUOTA_EXCEEDED] * refused
    assert 0 < refused < 10
    assert world.node.counters.dropped_quota == refused
    assert world.node.state.held_bytes <= 1000
    assert not world.node.state.sessions["s"].incoming


def test_the_total_quota_holds_over_all_sessions(make_world: Any) -> None:
    world = make_world(BrokerSettings(total_queue_bytes=1000))
    for name in ("a", "b"):
        client = world.welcome(name, props={"session_expiry_interval": 60})
        client.subscribe(name, 1)
        client.lose()
    sender = world.welcome("s")
    for number in range(20):
        sender.publish("ab"[number % 2], b"x" * 100, 1)

    assert world.node.state.held_bytes <= 1000
    assert world.node.counters.dropped_quota > 0


def test_a_message_for_many_counts_once_in_total(make_world: Any) -> None:
    world = make_world(BrokerSettings(total_queue_bytes=1000))
    for number in range(20):
        client = world.welcome(f"c{number}", props={"session_expiry_interval": 60})
        client.subscribe("a", 1)
        client.lose()
    world.welcome("s").publish("a", b"x" * 100, 1)

    assert world.node.counters.dropped_quota == 0
    assert 0 < world.node.state.held_bytes < 1000


def test_a_message_in_flight_to_many_counts_once_and_is_let_go(world: Any) -> None:
    clients = [world.welcome(f"c{number}", answers=False) for number in range(5)]
    for client in clients:
        client.subscribe("a", 1)
    sender = world.welcome("s")
    sender.publish("a", b"x" * 100, 1)
    one = world.node.state.held_bytes
    sender.publish("a", b"x" * 100, 1)

    assert 100 < one < 400
    assert world.node.state.held_bytes == 2 * one
    for client in clients:
        client.send(PublishAnswer(PUBACK, 1), PublishAnswer(PUBACK, 2))
    assert world.node.state.held_bytes == 0


def test_a_paused_client_gets_everything_once_it_reads_again(world: Any) -> None:
    client = world.welcome("c")
    client.subscribe("a", 1)
    client.take()
    client.link.is_paused = True
    sender = world.welcome("s")
    for number in range(10):
        sender.publish("a", b"%d" % number, 1)
    assert client.payloads() == []
    world.resume(client)

    assert client.payloads() == [b"%d" % number for number in range(10)]


def test_identifiers_in_use_are_passed_over(world: Any) -> None:
    receiver = world.welcome("r", answers=False)
    receiver.subscribe("a", 2)
    receiver.take()
    session = world.node.state.sessions["r"]
    sender = world.welcome("s")
    sender.publish("a", b"first", 1)
    sender.publish("a", b"second", 2)
    receiver.send(PublishAnswer(PUBREC, 2))
    session.last_packet_id = 65_535
    sender.publish("a", b"third", 1)
    session.window = 2
    sender.publish("a", b"waits", 1)
    session.window, session.last_packet_id = 65_535, 65_535
    receiver.send(PublishAnswer(PUBACK, 1))

    assert [one.packet_id for one in receiver.publications()] == [1, 2, 3, 1]


# --- dollars ---------------------------------------------------------------------------------


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


# --- runs over several topics ----------------------------------------------------------------

_good = st.builds(
    lambda topic, size, properties: Publish(topic, b"x" * size, properties=properties),
    st.sampled_from(["a", "b", "a/b"]),
    st.sampled_from([0, 1, 200]),
    st.sampled_from(
        [
            *[Properties()] * 4,
            Properties(content_type="t"),
            Properties(topic_alias=1),
            Properties(topic_alias=99),
            Properties(subscription_identifiers=(1,)),
        ]
    ),
)
_bad = st.sampled_from(["3000", "300100", "30020000", "3002000161", "30040003615f", "3003000161"])


@example([Publish("a"), Publish("b", properties=Properties(topic_alias=1))], V5, ["#"])
@example([Publish("a"), Publish("b", properties=Properties(topic_alias=99))], V5, ["#"])
@example([Publish("a"), "3003000162"], V5, ["#"])
@example([Publish("a"), Publish("b", b"x" * 200), Publish("b")], V311, ["#"])
@example([Publish("a"), Publish("b"), Publish("a/b")], V311, ["b", "#"])
@given(
    st.lists(st.one_of(_good, _good, _bad), max_size=8),
    st.sampled_from([V311, V5]),
    st.lists(st.sampled_from(["a", "b", "#", "a/#"]), min_size=1, max_size=3),
)
def test_a_read_full_of_packets_means_what_they_mean_one_by_one(
    make_world: Any, items: list[Publish | str], version: ProtocolVersion, filters: list[str]
) -> None:
    pieces = [
        bytes.fromhex(one) if isinstance(one, str) else encode_packet(one, version) for one in items
    ]

    def outcome(portions: list[bytes]) -> tuple[object, ...]:
        world = make_world()
        sender = world.welcome("s", version)
        receivers = [world.welcome(f"r{number}", version) for number in range(len(filters))]
        for topic in ("a", "b", "a/b"):
            sender.publish(topic, b"warm")
        for receiver, topic_filter in zip(receivers, filters, strict=True):
            receiver.subscribe(topic_filter)
        for topic in ("a", "b", "a/b"):
            sender.publish(topic, b"warm")
        for portion in portions:
            sender.send_bytes(portion)
        return sender.is_closed, [one.publications() for one in receivers]

    together, apart = outcome([b"".join(pieces)]), outcome(pieces)
    assert together == apart
