"""Decodes packets: one function per packet type, chosen by the first byte.

`decode_packet` is for whole packets. The broker's hot path parses PUBLISH and its acks itself,
straight from the receive buffer; it must accept and refuse exactly what the functions here do (a
test compares them).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from nearcast.mqtt import wire
from nearcast.mqtt.errors import MalformedPacketError, MqttProtocolError
from nearcast.mqtt.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    FilterRequest,
    Packet,
    Pingreq,
    Pingresp,
    ProtocolVersion,
    Publish,
    PublishAnswer,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    Will,
)
from nearcast.mqtt.properties import (
    NO_PROPERTIES,
    UNLIMITED,
    PacketType,
    Properties,
    read_properties,
)
from nearcast.mqtt.reasons import DISCONNECT_REASONS, ReasonCode
from nearcast.mqtt.topics import check_topic_name

V5 = ProtocolVersion.V5
_KINDS: Final = tuple(PacketType)


def decode_packet(first: int, body: bytes, version: ProtocolVersion = V5) -> Packet:
    """Return the packet of a first byte and a body (all bytes behind the length).

    CONNECT has its own version; for all others `version` decides. Raises `MqttProtocolError` and
    nothing else. O(len(body)).
    """
    kind = _KINDS[first >> 4]
    if kind is PacketType.PUBLISH:
        return _decode_publish(first, body, version)
    if first & 0x0F != _FLAGS.get(kind, 0):  # [MQTT-2.1.3-1]
        raise MalformedPacketError(f"flags {first & 0x0F:04b}", where=kind.name)
    if kind is PacketType.WILL or (kind is PacketType.AUTH and version < V5):
        raise MqttProtocolError(f"packet type {first >> 4}", expected="1 … 14 (15 in MQTT 5)")
    return _DECODERS[kind](body, version)


def _properties(
    body: bytes, position: int, packet: PacketType, version: int
) -> tuple[Properties, int]:
    if version < V5:
        return NO_PROPERTIES, position
    return read_properties(body, position, len(body), packet)


def _packet_id(body: bytes, position: int, where: str) -> tuple[int, int]:
    packet_id, position = wire.read_two_bytes(body, position, len(body))
    if not packet_id:  # [MQTT-2.2.1-3]
        raise MqttProtocolError("packet identifier 0", where=where, expected="1 … 65,535")
    return packet_id, position


def _end(body: bytes, position: int, where: str) -> None:
    if position != len(body):
        raise MalformedPacketError(f"{len(body) - position} bytes too many", where=where)


# --- CONNECT ---------------------------------------------------------------------------------


def _decode_connect(body: bytes, _: ProtocolVersion) -> Connect:
    stop = len(body)
    version, position = _read_version(body)
    flags, position = wire.read_byte(body, position, stop)
    _check_connect_flags(flags, version)
    keep_alive_s, position = wire.read_two_bytes(body, position, stop)
    properties, position = _properties(body, position, PacketType.CONNECT, version)
    if properties.authentication_data is not None and properties.authentication_method is None:
        raise MqttProtocolError("authentication data without a method", where="CONNECT")
    client_id, position = wire.read_string(body, position, stop)
    will: Will | None = None
    if flags & 0x04:
        will, position = _read_will(body, position, flags, version)
    user_name = password = None
    if flags & 0x80:
        user_name, position = wire.read_string(body, position, stop)
    if flags & 0x40:
        password, position = wire.read_binary(body, position, stop)
    _end(body, position, "CONNECT")
    return Connect(
        client_id,
        version,
        bool(flags & 0x02),
        keep_alive_s,
        will,
        user_name,
        password,
        properties,
    )


def _read_version(body: bytes) -> tuple[ProtocolVersion, int]:
    name, position = wire.read_binary(body, 0, len(body))
    level, position = wire.read_byte(body, position, len(body))
    if name not in (b"MQTT", b"MQIsdp"):  # closed without a CONNACK [MQTT-3.1.2-1]
        raise MalformedPacketError(f"protocol {name[:16]!r}", where="CONNECT", expected="MQTT")
    if name != b"MQTT" or level not in (4, 5):  # [MQTT-3.1.2-2]
        raise MqttProtocolError(
            f"protocol {name[:16]!r} level {level}",
            reason=ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
            where="CONNECT",
            expected="MQTT level 4 or 5",
        )
    return V5 if level == 5 else ProtocolVersion.V311, position


def _check_connect_flags(flags: int, version: int) -> None:
    will_bits = flags & 0x38
    if flags & 0x01:  # [MQTT-3.1.2-3]
        raise MalformedPacketError("the reserved flag", where="CONNECT", expected="0")
    if flags & 0x18 == 0x18 or (will_bits and not flags & 0x04):  # [MQTT-3.1.2-11] to 13
        raise MalformedPacketError(f"will flags {flags:08b}", where="CONNECT")
    if version < V5 and flags & 0xC0 == 0x40:  # [MQTT-3.1.2-22] of 3.1.1
        raise MalformedPacketError("a password without a user name", where="CONNECT")


def _read_will(body: bytes, position: int, flags: int, version: int) -> tuple[Will, int]:
    properties, position = _properties(body, position, PacketType.WILL, version)
    topic, position = wire.read_string(body, position, len(body))
    payload, position = wire.read_binary(body, position, len(body))
    check_topic_name(topic)
    _check_response_topic(properties)
    return Will(topic, payload, flags >> 3 & 3, bool(flags & 0x20), properties), position


def _decode_connack(body: bytes, version: ProtocolVersion) -> Connack:
    flags, position = wire.read_byte(body, 0, len(body))
    if flags > 1:  # [MQTT-3.2.2-1]
        raise MalformedPacketError(f"flags {flags:08b}", where="CONNACK")
    reason, position = wire.read_byte(body, position, len(body))
    properties, position = _properties(body, position, PacketType.CONNACK, version)
    _end(body, position, "CONNACK")
    return Connack(bool(flags), reason, properties)


# --- PUBLISH and its acks --------------------------------------------------------------------


def _decode_publish(first: int, body: bytes, version: ProtocolVersion) -> Publish:
    qos = first >> 1 & 3
    if qos == 3 or (first & 0x08 and not qos):  # [MQTT-3.3.1-4], [MQTT-3.3.1-2]
        raise MalformedPacketError(f"flags {first & 0x0F:04b}", where="PUBLISH")
    topic, position = wire.read_string(body, 0, len(body))
    packet_id = 0
    if qos:
        packet_id, position = _packet_id(body, position, "PUBLISH")
    properties = NO_PROPERTIES
    if version >= V5:  # unlimited: a broker may add to the publisher's user properties
        properties, position = read_properties(
            body, position, len(body), PacketType.PUBLISH, UNLIMITED
        )
    if topic or properties.topic_alias is None:
        check_topic_name(topic)
    _check_response_topic(properties)
    return Publish(
        topic, body[position:], qos, bool(first & 1), bool(first & 8), packet_id, properties
    )


def _check_response_topic(properties: Properties) -> None:
    if properties.response_topic is not None:
        check_topic_name(properties.response_topic)  # [MQTT-3.3.2-14]


def _decode_answer(kind: PacketType) -> Callable[[bytes, ProtocolVersion], PublishAnswer]:
    def decode(body: bytes, version: ProtocolVersion) -> PublishAnswer:
        packet_id, position = _packet_id(body, 0, kind.name)
        if version < V5 or len(body) == 2:
            _end(body, position, kind.name)
            return PublishAnswer(kind, packet_id)
        reason, position = wire.read_byte(body, position, len(body))
        properties = NO_PROPERTIES
        if len(body) > 3:
            properties, position = read_properties(body, position, len(body), kind)
            _end(body, position, kind.name)
        if reason not in _ANSWER_REASONS[kind]:  # [MQTT-3.4.2-1] and its like
            raise MqttProtocolError(f"reason code 0x{reason:02X}", where=kind.name)
        return PublishAnswer(kind, packet_id, reason, properties)

    return decode


# --- SUBSCRIBE, UNSUBSCRIBE and their acks ---------------------------------------------------


def _decode_subscribe(body: bytes, version: ProtocolVersion) -> Subscribe:
    packet_id, position = _packet_id(body, 0, "SUBSCRIBE")
    properties, position = _properties(body, position, PacketType.SUBSCRIBE, version)
    requests: list[FilterRequest] = []
    while position < len(body):
        request, position = _read_request(body, position, version)
        requests.append(request)
    if not requests:  # [MQTT-3.8.3-2]
        raise MqttProtocolError("no topic filter", where="SUBSCRIBE", expected="at least one")
    return Subscribe(packet_id, tuple(requests), properties)


def _read_request(body: bytes, position: int, version: int) -> tuple[FilterRequest, int]:
    topic_filter, position = wire.read_string(body, position, len(body))
    options, position = wire.read_byte(body, position, len(body))
    reserved = 0xC0 if version >= V5 else 0xFC
    if options & reserved or options & 3 == 3 or options & 0x30 == 0x30:  # [MQTT-3.8.3-5]
        raise MalformedPacketError(f"options {options:08b}", where="SUBSCRIBE")
    request = FilterRequest(
        topic_filter, options & 3, bool(options & 4), bool(options & 8), options >> 4 & 3
    )
    if request.no_local and topic_filter.startswith("$share/"):  # [MQTT-3.8.3-4]
        raise MqttProtocolError("no local on a shared subscription", where="SUBSCRIBE")
    return request, position


def _decode_unsubscribe(body: bytes, version: ProtocolVersion) -> Unsubscribe:
    packet_id, position = _packet_id(body, 0, "UNSUBSCRIBE")
    properties, position = _properties(body, position, PacketType.UNSUBSCRIBE, version)
    filters: list[str] = []
    while position < len(body):
        topic_filter, position = wire.read_string(body, position, len(body))
        filters.append(topic_filter)
    if not filters:  # [MQTT-3.10.3-2]
        raise MqttProtocolError("no topic filter", where="UNSUBSCRIBE", expected="at least one")
    return Unsubscribe(packet_id, tuple(filters), properties)


def _decode_suback(body: bytes, version: ProtocolVersion) -> Suback:
    packet_id, position = _packet_id(body, 0, "SUBACK")
    properties, position = _properties(body, position, PacketType.SUBACK, version)
    return Suback(packet_id, tuple(body[position:]), properties)


def _decode_unsuback(body: bytes, version: ProtocolVersion) -> Unsuback:
    packet_id, position = _packet_id(body, 0, "UNSUBACK")
    properties, position = _properties(body, position, PacketType.UNSUBACK, version)
    if version < V5:
        _end(body, position, "UNSUBACK")
    return Unsuback(packet_id, tuple(body[position:]), properties)


# --- the rest --------------------------------------------------------------------------------


def _decode_pingreq(body: bytes, _: ProtocolVersion) -> Pingreq:
    _end(body, 0, "PINGREQ")
    return Pingreq()


def _decode_pingresp(body: bytes, _: ProtocolVersion) -> Pingresp:
    _end(body, 0, "PINGRESP")
    return Pingresp()


def _decode_reasoned(
    body: bytes, version: ProtocolVersion, kind: PacketType
) -> tuple[int, Properties]:
    if version < V5 or not body:
        _end(body, 0, kind.name)
        return 0, NO_PROPERTIES
    properties, position = NO_PROPERTIES, 1
    if len(body) > 1:
        properties, position = read_properties(body, 1, len(body), kind)
    _end(body, position, kind.name)
    return body[0], properties


def _decode_disconnect(body: bytes, version: ProtocolVersion) -> Disconnect:
    reason, properties = _decode_reasoned(body, version, PacketType.DISCONNECT)
    if reason not in DISCONNECT_REASONS:  # [MQTT-3.14.2-1]
        raise MqttProtocolError(f"reason code 0x{reason:02X}", where="DISCONNECT")
    return Disconnect(reason, properties)


def _decode_auth(body: bytes, version: ProtocolVersion) -> Auth:
    reason, properties = _decode_reasoned(body, version, PacketType.AUTH)
    if reason not in (0x00, 0x18, 0x19):  # [MQTT-3.15.2-1]
        raise MqttProtocolError(f"reason code 0x{reason:02X}", where="AUTH")
    return Auth(reason, properties)


_FLAGS = {PacketType.PUBREL: 2, PacketType.SUBSCRIBE: 2, PacketType.UNSUBSCRIBE: 2}
_FIRST_ANSWERS = frozenset({0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99})
_SECOND_ANSWERS = frozenset({0x00, 0x92})
_ANSWER_REASONS = {
    PacketType.PUBACK: _FIRST_ANSWERS,
    PacketType.PUBREC: _FIRST_ANSWERS,
    PacketType.PUBREL: _SECOND_ANSWERS,
    PacketType.PUBCOMP: _SECOND_ANSWERS,
}
_DECODERS: dict[PacketType, Callable[[bytes, ProtocolVersion], Packet]] = {
    PacketType.CONNECT: _decode_connect,
    PacketType.CONNACK: _decode_connack,
    PacketType.PUBACK: _decode_answer(PacketType.PUBACK),
    PacketType.PUBREC: _decode_answer(PacketType.PUBREC),
    PacketType.PUBREL: _decode_answer(PacketType.PUBREL),
    PacketType.PUBCOMP: _decode_answer(PacketType.PUBCOMP),
    PacketType.SUBSCRIBE: _decode_subscribe,
    PacketType.SUBACK: _decode_suback,
    PacketType.UNSUBSCRIBE: _decode_unsubscribe,
    PacketType.UNSUBACK: _decode_unsuback,
    PacketType.PINGREQ: _decode_pingreq,
    PacketType.PINGRESP: _decode_pingresp,
    PacketType.DISCONNECT: _decode_disconnect,
    PacketType.AUTH: _decode_auth,
}
