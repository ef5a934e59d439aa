"""Acknowledgements in runs mean what they mean one by one, in memory and in the journal."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nearcast.broker.persistence.journal import Journal
from nearcast.broker.publish.message import Message, MessageHead
from nearcast.mqtt import PacketType, ProtocolVersion, Publish, PublishAnswer, encode_packet
from nearcast.mqtt.wire import encode_string

V5 = ProtocolVersion.V5
PUBACK, PUBREC, PUBREL, PUBCOMP = (PacketType(number) for number in (4, 5, 6, 7))
LASTING = {"session_expiry_interval": 600}


def client_with_messages(world: Any) -> Any:
    """Return a client with messages 1 to 4 in flight, and identifiers 1 and 2 of its own."""
    client = world.welcome("c", V5, clean_start=False, props=LASTING, answers=False)
    client.subscribe("once", 1)
    client.subscribe("exact", 2)
    other = world.welcome("d", V5, clean_start=False, props=LASTING, answers=False)
    other.subscribe("once", 1)
    sender = world.welcome("s")
    for topic, qos in (("once", 1), ("exact", 2), ("once", 1), ("exact", 2)):
        sender.publish(topic, topic.encode(), qos)
    for number in (1, 2):
        client.send(Publish("nowhere", b"", 2, packet_id=number))
    client.take()
    return client


def state_of(world: Any) -> tuple[Any, ...]:
    state = world.node.state
    session = state.sessions["c"]
    return (
        list(session.in_flight),
        sorted(session.exact),
        list(session.released),
        sorted(session.incoming),
        session.held_bytes,
        state.held_bytes,
    )


@given(
    st.lists(
        st.tuples(
            st.sampled_from([PUBACK, PUBREC, PUBREL, PUBCOMP]),
            st.lists(st.integers(1, 5), min_size=1, max_size=4),
        ),
        max_size=5,
    )
)
@example([(PUBREC, [2, 2]), (PUBCOMP, [2, 2]), (PUBREL, [1, 1])])
def test_a_run_means_what_its_acknowledgements_mean_one_by_one(make_world: Any, history: Any):
    runs, singles = make_world(with_journal=True), make_world(with_journal=True)
    in_runs, one_by_one = client_with_messages(runs), client_with_messages(singles)
    for kind, numbers in history:
        packets = [encode_packet(PublishAnswer(kind, number), V5) for number in numbers]
        exact = set(singles.node.state.sessions["c"].exact)
        if kind is PUBACK and exact & set(numbers):
            continue  # a protocol error, which ends a run at once
        in_runs.send_bytes(b"".join(packets))
        for packet in packets:
            one_by_one.send_bytes(packet)
        assert state_of(runs) == state_of(singles)
        answers, expected = in_runs.take(), one_by_one.take()
        assert [one for one in answers if not one.reason] == [
            one for one in expected if not one.reason
        ]
    before = state_of(runs)
    for world in (runs, singles):
        world.crash_and_restart()
    assert state_of(runs) == state_of(singles) == before


@pytest.mark.parametrize("durable", [True, False])
def test_a_message_is_held_until_its_last_receiver_has_acknowledged_it(
    make_world: Any, durable: bool
):
    world = make_world(with_journal=durable)
    client = client_with_messages(world)
    state = world.node.state
    sizes = {one.size for one in state.sessions["c"].in_flight.values()}
    assert len(sizes) == 2  # by their topics
    client.send(*[PublishAnswer(PUBACK, number) for number in (1, 3)])
    once = state.sessions["d"].held_bytes
    assert once > 0
    assert state.held_bytes == once + state.sessions["c"].held_bytes
    client.send(*[PublishAnswer(PUBREC, number) for number in (2, 4)])
    assert (state.held_bytes, state.sessions["c"].held_bytes) == (once, 0)


@st.composite
def runs_of_messages(draw: st.DrawFn) -> list[Message]:
    """Draw messages of a few heads, some of them in the journal before."""
    heads = [
        MessageHead(encode_string(topic), 1, qos, properties, retain)
        for topic, qos, properties, retain in draw(
            st.lists(
                st.tuples(
                    st.sampled_from(["a", "b/c", "ü" * 32_767]),
                    st.integers(1, 2),
                    st.sampled_from([b"", b"\x03\0\x01x"]),
                    st.booleans(),
                ),
                min_size=1,
                max_size=2,
            )
        )
    ]
    rows = st.tuples(st.sampled_from(heads), st.binary(max_size=3), st.sampled_from([0, 1 << 40]))
    messages = [Message(*row) for row in draw(st.lists(rows, min_size=1, max_size=6))]
    for number, message in enumerate(messages):
        message.number = draw(st.sampled_from([0, number + 1]))
    return messages


def copy_of(message: Message) -> Message:
    copy = Message(message.head, message.payload, message.expires_at_ms)
    copy.number = message.number
    return copy


def two_heads() -> list[Message]:
    heads = [MessageHead(encode_string(topic), 1, 1) for topic in ("a", "b/c")]
    return [Message(head, b"x") for head in heads]


@given(runs_of_messages())
@example(two_heads())
def test_the_messages_of_a_run_are_recorded_as_one_by_one(messages: list[Message]):
    again = [copy_of(one) for one in messages]
    identifiers = list(range(7, 7 + len(messages)))
    run, each = Journal(10), Journal(10)
    run.sent(3, messages, identifiers, 1)
    for one in again:
        each.named(one)
    each.sent(3, again, identifiers, 1)
    assert run.take() == each.take()
    assert [one.number for one in messages] == [one.number for one in again]
    run.message(last := Message(messages[0].head, b"x"))
    assert last.number not in {0, *(one.number for one in messages)}


@pytest.mark.parametrize("version", [ProtocolVersion.V311, ProtocolVersion.V5])
@pytest.mark.parametrize("first", [0x34, 0x3C])
def test_a_lone_packet_of_qos_2_that_comes_again_before_pubrel_is_delivered_once(
    make_world: Any, version: ProtocolVersion, first: int
) -> None:
    """[MQTT-4.3.3-10] Each packet is a read of its own, with DUP and without."""
    world = make_world()
    reader = world.welcome("r")
    reader.subscribe("a", 2)
    sender = world.welcome("s", version, answers=False)
    sender.publish("a", b"warm")  # its route is known from here on
    assert reader.payloads() == [b"warm"]
    rest = b"\0\x01a\0\x07" + b"\0" * (version is ProtocolVersion.V5) + b"once"
    for start in (0x34, first, first):
        sender.send_bytes(bytes((start, len(rest))) + rest)
    kinds = [packet.kind for packet in sender.take() if isinstance(packet, PublishAnswer)]
    assert kinds == [PacketType.PUBREC] * 3
    assert reader.payloads() == [b"once"]
    sender.send(PublishAnswer(PacketType.PUBREL, 7))
    sender.send_bytes(bytes((0x34, len(rest))) + rest)
    assert reader.payloads() == [b"once"]  # the identifier is free again: a new message
