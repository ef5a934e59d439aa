"""Many PUBLISH packets in one read mean what each means alone, however the bytes are cut."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nearcast.mqtt import (
    MqttProtocolError,
    PacketReader,
    Properties,
    ProtocolVersion,
    Publish,
    encode_packet,
)

V311, V5 = ProtocolVersion.V311, ProtocolVersion.V5
both = pytest.mark.parametrize("version", [V311, V5])


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
