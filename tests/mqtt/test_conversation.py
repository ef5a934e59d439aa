"""A client's side of a connection."""

from __future__ import annotations

import pytest

from nearcast.model.errors import LimitError
from nearcast.mqtt import (
    Connack,
    Connect,
    Conversation,
    Disconnect,
    FilterRequest,
    MqttProtocolError,
    Packet,
    PacketReader,
    PacketType,
    Pingreq,
    Properties,
    ProtocolVersion,
    Publish,
    PublishAnswer,
    Suback,
    Subscribe,
    Unsubscribe,
    encode_packet,
)

PUBACK, PUBREC, PUBREL, PUBCOMP = (PacketType(number) for number in (4, 5, 6, 7))


def begun() -> Conversation:
    conversation = Conversation(Connect("c"))
    said(conversation)
    hear(conversation, Connack())
    return conversation


def said(conversation: Conversation) -> list[Packet]:
    return PacketReader(conversation.version).feed(conversation.take())


def hear(conversation: Conversation, *packets: Packet) -> list[Packet]:
    return conversation.receive(
        b"".join(encode_packet(packet, conversation.version) for packet in packets)
    )


@pytest.mark.parametrize("version", list(ProtocolVersion))
def test_connect_is_the_first_thing_said(version: ProtocolVersion) -> None:
    connect = Connect("c", version)
    conversation = Conversation(connect)

    assert said(conversation) == [connect]
    assert hear(conversation, Connack(True)) == [Connack(True)]
    assert conversation.connack == Connack(True)


def test_publications_are_unsettled_until_their_last_answer() -> None:
    conversation = begun()
    for qos in (0, 1, 2):
        conversation.publish(Publish("a", b"x", qos))
    assert [getattr(one, "packet_id", None) for one in said(conversation)] == [0, 1, 2]
    assert set(conversation.unsettled) == {1, 2}

    assert hear(conversation, PublishAnswer(PUBACK, 1), PublishAnswer(PUBREC, 2)) == []
    assert said(conversation) == [PublishAnswer(PUBREL, 2)]
    assert set(conversation.unsettled) == {2}
    hear(conversation, PublishAnswer(PUBCOMP, 2))
    assert not conversation.unsettled


def test_answers_to_publications_are_told_with_their_reason_strings() -> None:
    conversation = begun()
    told: list[tuple[int, str]] = []
    conversation.answered = lambda _, reason, text: told.append((reason, text))
    for qos in (1, 2, 2):
        conversation.publish(Publish("a", b"x", qos))
    why = Properties(reason_string="not yours")
    hear(conversation, PublishAnswer(PUBACK, 1, 0x97), PublishAnswer(PUBREC, 2, 0x87, why))
    hear(conversation, PublishAnswer(PUBREC, 3, 0), PublishAnswer(PUBCOMP, 3))

    assert told == [(0x97, ""), (0x87, "not yours"), (0, "")]
    assert not conversation.unsettled


def test_an_exactly_once_message_is_given_out_once() -> None:
    conversation = begun()
    message = Publish("a", b"x", 2, packet_id=5)
    again = Publish("a", b"x", 2, duplicate=True, packet_id=5)

    assert hear(conversation, message, again) == [message]
    assert said(conversation) == [PublishAnswer(PUBREC, 5)] * 2
    hear(conversation, PublishAnswer(PUBREL, 5))
    assert said(conversation) == [PublishAnswer(PUBCOMP, 5)]
    assert hear(conversation, message) == [message]


def test_requests_have_identifiers_of_their_own() -> None:
    conversation = begun()
    first = conversation.subscribe(FilterRequest("a"))
    second = conversation.unsubscribe("a")
    conversation.ping()

    assert said(conversation) == [
        Subscribe(first, (FilterRequest("a"),)),
        Unsubscribe(second, ("a",)),
        Pingreq(),
    ]
    assert first != second
    assert hear(conversation, Suback(first, (0,))) == [Suback(first, (0,))]


def test_identifiers_run_out_at_65_535() -> None:
    conversation = begun()
    conversation.unsettled = {number: Publish("a") for number in range(1, 65_536)}

    with pytest.raises(LimitError):
        conversation.publish(Publish("a", b"", 1))


def test_both_ends_can_close() -> None:
    ours, theirs = begun(), begun()
    ours.disconnect()
    hear(theirs, Disconnect(0x8B))

    assert said(ours) == [Disconnect()]
    assert ours.is_closed
    assert theirs.is_closed


def test_a_broker_does_not_say_what_clients_say() -> None:
    with pytest.raises(MqttProtocolError):
        hear(begun(), Pingreq())
