"""The codec: round trips, prefixes, portions, and what must be refused."""

from __future__ import annotations

import contextlib
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.model.errors import LimitError
from nearcast.mqtt import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    FilterRequest,
    MalformedPacketError,
    MqttProtocolError,
    Packet,
    PacketReader,
    PacketType,
    Pingreq,
    Pingresp,
    Properties,
    ProtocolVersion,
    Publish,
    PublishAnswer,
    ReasonCode,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    Will,
    decode_packet,
    encode_packet,
)
from nearcast.mqtt.properties import _TABLE
from nearcast.mqtt.reasons import DISCONNECT_REASONS
from nearcast.mqtt.wire import encode_variable_integer, read_variable_integer

V311, V5 = ProtocolVersion.V311, ProtocolVersion.V5
versions = st.sampled_from([V311, V5])
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6)
topics = texts.map(lambda text: text.replace("+", "p").replace("#", "h") or "t")
packet_ids = st.integers(1, 65_535)
blobs = st.binary(max_size=8)

_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "byte": st.integers(0, 255),
    "two": st.integers(0, 65_535),
    "four": st.integers(0, 2**32 - 1),
    "variable": st.integers(0, 268_435_455),
    "string": topics,
    "reason": texts,
    "binary": blobs,
    "pair": st.tuples(texts, texts),
}


def properties_of(kind: PacketType) -> st.SearchStrategy[Properties]:
    """All properties that packets of this kind may carry, by the table of section 2.2.2.2."""
    optional = {}
    for _, name, value_kind, packets, allowed in _TABLE:
        if kind not in packets:
            continue
        values = _VALUES[value_kind]
        if allowed is not None:
            values = st.integers(allowed.start, allowed.stop - 1)
        if name == "user_properties":
            values = st.lists(values, max_size=3).map(tuple)
        if name == "subscription_identifiers":
            count = 1 if kind is PacketType.SUBSCRIBE else 3
            values = st.lists(values, max_size=count).map(tuple)
        optional[name] = values
    return st.fixed_dictionaries({}, optional=optional).map(lambda given: Properties(**given))


@st.composite
def wills(draw: st.DrawFn, version: ProtocolVersion) -> Will:
    properties = draw(properties_of(PacketType.WILL)) if version is V5 else Properties()
    return Will(draw(topics), draw(blobs), draw(st.integers(0, 2)), draw(st.booleans()), properties)


@st.composite
def connects(draw: st.DrawFn, version: ProtocolVersion) -> Connect:
    user_name = draw(st.none() | texts)
    may_have_password = version is V5 or user_name is not None
    properties = draw(properties_of(PacketType.CONNECT)) if version is V5 else Properties()
    if properties.authentication_method is None:
        properties = Properties(
            **{
                name: getattr(properties, name)
                for name in (one.name for one in fields(Properties))
                if name != "authentication_data"
            }
        )
    return Connect(
        draw(texts),
        version,
        draw(st.booleans()),
        draw(st.integers(0, 65_535)),
        draw(st.none() | wills(version)),
        user_name,
        draw(st.none() | blobs) if may_have_password else None,
        properties,
    )


@st.composite
def publishes(draw: st.DrawFn, version: ProtocolVersion) -> Publish:
    qos = draw(st.integers(0, 2))
    properties = draw(properties_of(PacketType.PUBLISH)) if version is V5 else Properties()
    topic = draw(topics)
    if properties.topic_alias is not None and draw(st.booleans()):
        topic = ""
    return Publish(
        topic,
        draw(st.binary(max_size=300)),
        qos,
        draw(st.booleans()),
        bool(qos) and draw(st.booleans()),
        draw(packet_ids) if qos else 0,
        properties,
    )


def answers(version: ProtocolVersion) -> st.SearchStrategy[PublishAnswer]:
    def of(kind: PacketType) -> st.SearchStrategy[PublishAnswer]:
        if version is V311:
            return st.builds(PublishAnswer, st.just(kind), packet_ids)
        first = kind in (PacketType.PUBACK, PacketType.PUBREC)
        reasons = [0, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99] if first else [0, 0x92]
        return st.builds(
            PublishAnswer, st.just(kind), packet_ids, st.sampled_from(reasons), properties_of(kind)
        )

    kinds = [PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP]
    return st.sampled_from(kinds).flatmap(of)


def requests(version: ProtocolVersion) -> st.SearchStrategy[FilterRequest]:
    if version is V311:
        return st.builds(FilterRequest, texts, st.integers(0, 2))
    return st.builds(
        FilterRequest,
        texts,
        st.integers(0, 2),
        st.booleans(),
        st.booleans(),
        st.integers(0, 2),
    )


@st.composite
def versioned_packets(draw: st.DrawFn) -> tuple[ProtocolVersion, Packet]:
    version = draw(versions)

    def props(kind: PacketType) -> st.SearchStrategy[Properties]:
        return properties_of(kind) if version is V5 else st.just(Properties())

    reasons = st.lists(st.integers(0, 255), max_size=3).map(tuple)
    kinds: list[st.SearchStrategy[Packet]] = [
        connects(version),
        st.builds(Connack, st.booleans(), st.integers(0, 255), props(PacketType.CONNACK)),
        publishes(version),
        answers(version),
        st.builds(
            Subscribe,
            packet_ids,
            st.lists(requests(version), min_size=1, max_size=3).map(tuple),
            props(PacketType.SUBSCRIBE),
        ),
        st.builds(Suback, packet_ids, reasons, props(PacketType.SUBACK)),
        st.builds(
            Unsubscribe,
            packet_ids,
            st.lists(texts, min_size=1, max_size=3).map(tuple),
            props(PacketType.UNSUBSCRIBE),
        ),
        st.builds(
            Unsuback,
            packet_ids,
            reasons if version is V5 else st.just(()),
            props(PacketType.UNSUBACK),
        ),
        st.just(Pingreq()),
        st.just(Pingresp()),
        st.builds(
            Disconnect,
            st.sampled_from(sorted(DISCONNECT_REASONS)) if version is V5 else st.just(0),
            props(PacketType.DISCONNECT),
        ),
    ]
    if version is V5:
        kinds.append(
            st.builds(Auth, st.sampled_from([0, 0x18, 0x19]), properties_of(PacketType.AUTH))
        )
    return version, draw(st.one_of(kinds))


def whole(data: bytes, version: ProtocolVersion) -> list[Packet]:
    return PacketReader(version).feed(data)


def verdict(data: bytes, version: ProtocolVersion, portion: int) -> object:
    """Return the packets, or the reason of the refusal, when fed so many bytes at a time."""
    reader = PacketReader(version)
    packets: list[Packet] = []
    try:
        for start in range(0, len(data), portion):
            packets += reader.feed(data[start : start + portion])
    except MqttProtocolError as error:
        return packets, error.reason
    return packets, None


@given(versioned_packets())
def test_a_packet_survives_encoding_and_decoding(case: tuple[ProtocolVersion, Packet]) -> None:
    version, packet = case

    assert whole(encode_packet(packet, version), version) == [packet]


@given(versioned_packets())
def test_no_true_prefix_of_a_packet_is_a_packet(case: tuple[ProtocolVersion, Packet]) -> None:
    version, packet = case
    data = encode_packet(packet, version)

    assert all(whole(data[:cut], version) == [] for cut in range(len(data)))


@given(versioned_packets())
def test_a_body_cut_short_under_its_own_length_is_refused_or_read_without_other_errors(
    case: tuple[ProtocolVersion, Packet],
) -> None:
    version, packet = case
    encoded = encode_packet(packet, version)
    _, start = read_variable_integer(encoded, 1, len(encoded))
    for cut in range(len(encoded) - start):
        with contextlib.suppress(MqttProtocolError):
            decode_packet(encoded[0], encoded[start : start + cut], version)


@given(st.lists(versioned_packets(), max_size=4), st.integers(1, 9))
def test_bytes_mean_the_same_in_any_portions(
    cases: list[tuple[ProtocolVersion, Packet]], portion: int
) -> None:
    version = cases[0][0] if cases else V5
    data = b"".join(encode_packet(p, version) for v, p in cases if v is version)

    assert verdict(data, version, portion) == verdict(data, version, max(1, len(data)))


@given(st.binary(max_size=40), versions, st.integers(1, 9))
def test_noise_means_the_same_in_any_portions(
    data: bytes, version: ProtocolVersion, portion: int
) -> None:
    in_portions, at_once = verdict(data, version, portion), verdict(data, version, 40)
    assert isinstance(in_portions, tuple)
    assert isinstance(at_once, tuple)

    assert in_portions[1] == at_once[1]
    if at_once[1] is None:
        assert in_portions == at_once


@given(versioned_packets(), st.data())
def test_a_mutated_packet_raises_the_protocol_error_or_nothing(
    case: tuple[ProtocolVersion, Packet], data: st.DataObject
) -> None:
    version, packet = case
    encoded = bytearray(encode_packet(packet, version))
    for _ in range(data.draw(st.integers(1, 3))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))

    verdict(bytes(encoded), version, len(encoded))


@given(st.integers(0, 268_435_455))
def test_variable_integers_take_the_fewest_bytes(value: int) -> None:
    encoded = encode_variable_integer(value)

    assert read_variable_integer(encoded, 0, len(encoded)) == (value, len(encoded))
    assert len(encoded) == max(1, -(-value.bit_length() // 7))


@pytest.mark.parametrize("value", [-1, 268_435_456])
def test_variable_integers_beyond_four_bytes_are_the_callers_mistake(value: int) -> None:
    with pytest.raises(LimitError):
        encode_variable_integer(value)


REFUSED = {
    "packet type 0": ("0000", V5, ReasonCode.PROTOCOL_ERROR),
    "AUTH in 3.1.1": ("f000", V311, ReasonCode.PROTOCOL_ERROR),
    "QoS 3": ("360500016100 0178", V311, ReasonCode.MALFORMED_PACKET),
    "duplicate at QoS 0": ("3803000161", V311, ReasonCode.MALFORMED_PACKET),
    "packet identifier 0": ("320500016100 00", V311, ReasonCode.PROTOCOL_ERROR),
    "publish to a wildcard": ("3003000123", V311, ReasonCode.TOPIC_NAME_INVALID),
    "publish to nothing": ("30020000", V311, ReasonCode.TOPIC_NAME_INVALID),
    "publish to nothing, no alias": ("3003000000", V5, ReasonCode.TOPIC_NAME_INVALID),
    "U+0000 in a topic": ("3003000100", V311, ReasonCode.MALFORMED_PACKET),
    "a surrogate in a topic": ("30050003eda080", V311, ReasonCode.MALFORMED_PACKET),
    "a topic longer than the packet": ("3003000561", V311, ReasonCode.MALFORMED_PACKET),
    "a superfluous length byte": ("308400 00016161", V311, ReasonCode.MALFORMED_PACKET),
    "five length bytes": ("308080808001", V5, ReasonCode.MALFORMED_PACKET),
    "unknown property": ("30060001610104 00", V5, ReasonCode.MALFORMED_PACKET),
    "property of another packet": ("3009000161051100000001", V5, ReasonCode.PROTOCOL_ERROR),
    "property twice": ("30080001610401000100", V5, ReasonCode.PROTOCOL_ERROR),
    "payload format 2": ("3006000161020102", V5, ReasonCode.PROTOCOL_ERROR),
    "subscription identifier 0": ("8208000102 0b00 000161 00", V5, ReasonCode.PROTOCOL_ERROR),
    "SUBSCRIBE with flags 0": ("80060001000161 00", V311, ReasonCode.MALFORMED_PACKET),
    "SUBSCRIBE without filters": ("82020001", V311, ReasonCode.PROTOCOL_ERROR),
    "SUBSCRIBE with QoS 3": ("82060001000161 03", V311, ReasonCode.MALFORMED_PACKET),
    "SUBSCRIBE with no local in 3.1.1": ("82060001000161 04", V311, ReasonCode.MALFORMED_PACKET),
    "retain handling 3": ("8207000100 000161 30", V5, ReasonCode.MALFORMED_PACKET),
    "UNSUBSCRIBE without filters": ("a2020001", V311, ReasonCode.PROTOCOL_ERROR),
    "PUBREL with flags 0": ("60020001", V311, ReasonCode.MALFORMED_PACKET),
    "PUBACK of a reason unknown": ("4003000105", V5, ReasonCode.PROTOCOL_ERROR),
    "PINGREQ with a body": ("c00100", V311, ReasonCode.MALFORMED_PACKET),
    "DISCONNECT of a reason unknown": ("e00105", V5, ReasonCode.PROTOCOL_ERROR),
    "DISCONNECT of a reason of CONNACK": ("e00186", V5, ReasonCode.PROTOCOL_ERROR),
    "DISCONNECT with a body in 3.1.1": ("e00100", V311, ReasonCode.MALFORMED_PACKET),
    "CONNECT of 3.1": (
        "100c00064d514973647003020000",
        V311,
        ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
    ),
    "CONNECT, reserved flag": ("100c00044d51545404010000 0000", V311, ReasonCode.MALFORMED_PACKET),
    "CONNECT, will QoS 3": ("100c00044d515454041e0000 0000", V311, ReasonCode.MALFORMED_PACKET),
    "CONNECT, will QoS without will": (
        "100c00044d515454040a0000 0000",
        V311,
        ReasonCode.MALFORMED_PACKET,
    ),
    "CONNECT, password without name": (
        "100e00044d51545404420000 0000 0000",
        V311,
        ReasonCode.MALFORMED_PACKET,
    ),
    "CONNECT, bytes behind": ("100d00044d51545404020000 0000 00", V311, 0x81),
    "CONNECT, receive maximum 0": ("101000044d51545405020000 03210000 0000", V5, 0x82),
    "CONNECT, data without method": ("101100044d51545405020000 0416000161 0000", V5, 0x82),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_breaks_the_rules_is_refused_with_its_reason(name: str) -> None:
    text, version, reason = REFUSED[name]

    with pytest.raises(MqttProtocolError) as caught:
        whole(bytes.fromhex(text.replace(" ", "")), version)
    assert caught.value.reason == reason


def test_no_local_on_a_shared_subscription_is_refused() -> None:
    packet = Subscribe(1, (FilterRequest("$share/g/a", 0, True),))

    with pytest.raises(MqttProtocolError):
        whole(encode_packet(packet), V5)


def test_a_packet_above_the_limit_is_refused_before_its_body_arrives() -> None:
    reader = PacketReader(V5, maximum_packet_size=10)

    assert reader.feed(bytes([0x30, 8])) == []
    with pytest.raises(MqttProtocolError) as caught:
        PacketReader(V5, maximum_packet_size=10).feed(bytes([0x30, 9]))
    assert caught.value.reason == ReasonCode.PACKET_TOO_LARGE


def test_malformed_packets_carry_the_reason_of_their_kind() -> None:
    assert MalformedPacketError("x").reason is ReasonCode.MALFORMED_PACKET


@pytest.mark.parametrize("version", [ProtocolVersion.V311, ProtocolVersion.V5])
@pytest.mark.parametrize("field", [b"the-client", b"the-will", b"the-user"])
@pytest.mark.parametrize("bad", [b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"\0"])
def test_strings_of_connect_are_utf_8(version: ProtocolVersion, field: bytes, bad: bytes) -> None:
    connect = Connect("the-client", version, will=Will("the-will", b""), user_name="the-user")
    raw = encode_packet(connect, version)
    body = raw[2:].replace(field, bad + field[len(bad) :])

    with pytest.raises(MalformedPacketError):
        decode_packet(0x10, body, version)


def test_in_mqtt_5_a_password_needs_no_user_name() -> None:
    token = Connect("ann", password=b"token")
    packet = decode_packet(0x10, encode_packet(token)[2:])

    assert packet == token
    old = encode_packet(
        replace(token, version=ProtocolVersion.V311, user_name="u"), ProtocolVersion.V311
    )
    without = old[2:].replace(b"\0\1u", b"")
    flags = bytes((without[7] & 0x7F,))
    with pytest.raises(MalformedPacketError):
        decode_packet(0x10, without[:7] + flags + without[8:], ProtocolVersion.V311)
