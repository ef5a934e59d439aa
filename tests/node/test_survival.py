"""What a node's journal brings back (the property test is in test_model)."""

from __future__ import annotations

from typing import Any

import pytest

from nearcast.model.errors import FileFormatError
from nearcast.mqtt import PacketType, Properties, ProtocolVersion, Publish, PublishAnswer, Will
from nearcast.node import Node
from nearcast.node.journal import HEADER, Kind, split_records

LASTING = {"session_expiry_interval": 3600}
V311 = ProtocolVersion.V311


def returned(world: Any, name: str, **rest: Any) -> Any:
    return world.client(name, clean_start=False, props=LASTING, **rest)


def test_queued_in_flight_and_released_messages_come_back(make_world: Any) -> None:
    world = make_world(with_journal=True)
    receiver = world.welcome("r", answers=False, props={**LASTING, "receive_maximum": 3})
    receiver.subscribe("a", 2)
    sender = world.welcome("s")
    for number in range(5):
        sender.publish("a", b"%d" % number, 1 + number % 2)
    receiver.send(PublishAnswer(PacketType.PUBREC, 2))
    world.crash_and_restart()
    again = returned(world, "r", answers=False)

    rest = again.take()[1:]
    assert rest[0] == PublishAnswer(PacketType.PUBREL, 2)
    assert [(one.payload, one.duplicate, one.qos) for one in rest[1:]] == [
        (b"0", True, 1),
        (b"2", True, 1),
        (b"3", False, 2),
        (b"4", False, 1),
    ]


def test_an_exactly_once_message_is_not_taken_twice_over_a_crash(make_world: Any) -> None:
    world = make_world(with_journal=True)
    receiver = world.welcome("r", props=LASTING)
    receiver.subscribe("a", 2)
    receiver.take()
    sender = world.welcome("s", answers=False, props=LASTING)
    sender.send(Publish("a", b"x", 2, packet_id=7))
    assert receiver.payloads() == [b"x"]
    world.crash_and_restart()
    receiver, sender = returned(world, "r"), returned(world, "s", answers=False)
    sender.send(Publish("a", b"x", 2, duplicate=True, packet_id=7))

    assert receiver.payloads() == []
    assert PublishAnswer(PacketType.PUBREC, 7) in sender.take()


def test_a_session_without_expiry_does_not_come_back(make_world: Any) -> None:
    world = make_world(with_journal=True)
    world.welcome("r").subscribe("a", 1)
    world.crash_and_restart()

    assert not world.node.state.sessions
    assert world.node.state.router.subscription_count == 0


def test_the_expiry_goes_on_while_the_broker_is_away(make_world: Any) -> None:
    world = make_world(with_journal=True)
    world.welcome("r", props=LASTING).lose()
    world.crash_and_restart(after_ms=3_600_000)
    world.wait(1)

    assert not world.node.state.sessions


def test_wills_are_executed_after_a_crash(make_world: Any) -> None:
    world = make_world(with_journal=True)
    heir = world.welcome("heir", props=LASTING)
    heir.subscribe("w", 1)
    world.welcome("c", V311, will=Will("w", b"at once", 1))
    late = Will("w", b"later", 1, properties=Properties(will_delay_interval=5))
    world.welcome("d", will=late, props=LASTING)
    world.crash_and_restart()

    assert returned(world, "heir").payloads() == [b"at once"]
    world.wait(5_000)
    assert world.clients[-1].payloads() == [b"later"]


def test_retained_messages_come_back_and_forgotten_ones_do_not(make_world: Any) -> None:
    world = make_world(with_journal=True)
    sender = world.welcome("s")
    for topic, payload in (("a", b"1"), ("b", b"2"), ("b", b""), ("c", b"3"), ("c", b"4")):
        sender.publish(topic, payload, 1, retain=True)
    world.node.publish("$SYS/x", b"5", now_ms=world.now_ms, retain=True)
    world.crash_and_restart()

    found = {one.topic_text(): one.payload for one in world.node.state.retained.all()}
    assert found == {"a": b"1", "c": b"4"}


def test_a_snapshot_tells_what_the_whole_journal_tells(make_world: Any) -> None:
    world = make_world(with_journal=True)
    receiver = world.welcome("r", answers=False, props={**LASTING, "receive_maximum": 2})
    receiver.subscribe("a", 2, identifier=4, no_local=True)
    receiver.subscribe("$share/g/b", 1)
    sender = world.welcome("s", props=LASTING, answers=False, will=Will("w", b"x", 1))
    for number in range(6):
        sender.publish("a", b"%d" % number, 2, retain=number == 3)
    receiver.send(PublishAnswer(PacketType.PUBREC, 1))
    short = b"".join(world.node.snapshot())
    nodes = [Node(with_journal=True), Node(with_journal=True)]
    nodes[0].restore(world.stored, world.now_ms)
    nodes[1].restore([short], world.now_ms)

    def essence(node: Node) -> object:
        return [
            (
                session.client_id,
                session.expiry_s,
                [(p, m.payload, p in session.exact) for p, m in session.in_flight.items()],
                list(session.released),
                sorted(session.incoming),
                [(m.payload, qos) for m, qos in session.queue],
                {
                    text: (one.qos, one.identifier, one.no_local, one.group)
                    for text, one in session.subscriptions.items()
                },
                session.held_bytes,
            )
            for session in sorted(node.state.sessions.values(), key=lambda one: one.client_id)
        ] + [sorted(one.payload for one in node.state.retained.all()), node.state.held_bytes]

    assert essence(nodes[0]) == essence(nodes[1])
    assert len(short) < sum(map(len, world.stored))


def test_a_session_that_becomes_lasting_by_takeover_is_told_in_full(make_world: Any) -> None:
    world = make_world(with_journal=True)
    first = world.welcome("r", answers=False, props={"receive_maximum": 1})
    first.subscribe("a", 1)
    sender = world.welcome("s")
    for number in range(3):
        sender.publish("a", b"%d" % number, 1)
    second = returned(world, "r", answers=False)
    second.take()
    world.crash_and_restart()

    assert returned(world, "r").payloads() == [b"0", b"1", b"2"]


def test_the_brokers_own_topics_are_not_stored(make_world: Any) -> None:
    world = make_world(with_journal=True)
    world.node.publish("$SYS/x", b"5", now_ms=world.now_ms, retain=True)

    assert b"".join(world.node.snapshot()) == b""


def test_records_that_make_no_sense_are_named(make_world: Any) -> None:
    world = make_world(with_journal=True)
    client = world.welcome("r", answers=False, props=LASTING)
    client.subscribe("a", 1)
    world.welcome("s").publish("a", b"x", 1)
    records = [(kind, body) for batch in world.stored for kind, body in split_records(batch)]
    whole = [HEADER.pack(kind, len(body)) + body for kind, body in records]
    without_message = [one for one in whole if one[0] != Kind.MESSAGE]
    cut = [HEADER.pack(kind, len(body) // 2) + body[: len(body) // 2] for kind, body in records]

    for damaged in (without_message, cut):
        with pytest.raises(FileFormatError):
            Node(with_journal=True).restore([b"".join(damaged)], world.now_ms)


@pytest.mark.parametrize("damage", [b"\x63\x00\x00\x00\x00", b"\x01\x00", b"\x05\xff\x00\x00\x00"])
def test_damaged_records_are_named(damage: bytes) -> None:
    with pytest.raises(FileFormatError):
        list(split_records(damage))
