"""Windows, sizes and quotas: receive maximum, packet size, queues, identifiers."""

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
    encode_packet,
)

V311, V5 = ProtocolVersion.V311, ProtocolVersion.V5
PUBACK = PacketType.PUBACK
PUBREC = PacketType.PUBREC
PUBCOMP = PacketType.PUBCOMP


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
