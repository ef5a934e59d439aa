"""Encodes packets: one function per packet type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nearcast.mqtt.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
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
)
from nearcast.mqtt.properties import NO_PROPERTIES, Properties, encode_properties
from nearcast.mqtt.wire import TWO_BYTES, encode_binary, encode_string, encode_variable_integer

V5 = ProtocolVersion.V5


def encode_packet(packet: Packet, version: ProtocolVersion = V5) -> bytes:
    """Return the packet's bytes; a CONNECT has its own version. O(size).

    >>> encode_packet(Publish("a", b"x"), ProtocolVersion.V311).hex()
    '300400016178'
    """
    if isinstance(packet, Connect):
        version = packet.version
    first, body = _ENCODERS[type(packet)](packet, version)
    return frame(first, body)


def frame(first: int, body: bytes) -> bytes:
    """Return a body with the fixed header in front."""
    return bytes((first,)) + encode_variable_integer(len(body)) + body


def _properties(properties: Properties, version: int) -> bytes:
    return encode_properties(properties) if version >= V5 else b""


def _connect(packet: Connect, version: int) -> tuple[int, bytes]:
    flags = packet.clean_start << 1
    parts = [encode_string(packet.client_id)]
    if packet.will is not None:
        will = packet.will
        flags |= 0x04 | will.qos << 3 | will.retain << 5
        parts += [_properties(will.properties, version), encode_string(will.topic)]
        parts.append(encode_binary(will.payload))
    if packet.user_name is not None:
        flags |= 0x80
        parts.append(encode_string(packet.user_name))
    if packet.password is not None:
        flags |= 0x40
        parts.append(encode_binary(packet.password))
    head = b"\0\4MQTT" + bytes((version, flags)) + TWO_BYTES[packet.keep_alive_s]
    return 0x10, head + _properties(packet.properties, version) + b"".join(parts)


def _connack(packet: Connack, version: int) -> tuple[int, bytes]:
    head = bytes((packet.session_present, packet.reason))
    return 0x20, head + _properties(packet.properties, version)


def _publish(packet: Publish, version: int) -> tuple[int, bytes]:
    first = 0x30 | packet.duplicate << 3 | packet.qos << 1 | packet.retain
    packet_id = TWO_BYTES[packet.packet_id] if packet.qos else b""
    head = encode_string(packet.topic) + packet_id
    return first, head + _properties(packet.properties, version) + packet.payload


def _answer(packet: PublishAnswer, version: int) -> tuple[int, bytes]:
    first = packet.kind << 4 | (2 if packet.kind == 6 else 0)
    body = TWO_BYTES[packet.packet_id]
    if version >= V5 and (packet.reason or packet.properties != NO_PROPERTIES):
        body += bytes((packet.reason,))
        if packet.properties != NO_PROPERTIES:
            body += encode_properties(packet.properties)
    return first, body


def _subscribe(packet: Subscribe, version: int) -> tuple[int, bytes]:
    parts = [TWO_BYTES[packet.packet_id], _properties(packet.properties, version)]
    for one in packet.requests:
        options = one.qos
        if version >= V5:
            options |= one.no_local << 2 | one.retain_as_published << 3 | one.retain_handling << 4
        parts.append(encode_string(one.topic_filter) + bytes((options,)))
    return 0x82, b"".join(parts)


def _suback(packet: Suback, version: int) -> tuple[int, bytes]:
    head = TWO_BYTES[packet.packet_id] + _properties(packet.properties, version)
    return 0x90, head + bytes(packet.reasons)


def _unsubscribe(packet: Unsubscribe, version: int) -> tuple[int, bytes]:
    head = TWO_BYTES[packet.packet_id] + _properties(packet.properties, version)
    return 0xA2, head + b"".join(encode_string(one) for one in packet.topic_filters)


def _unsuback(packet: Unsuback, version: int) -> tuple[int, bytes]:
    head = TWO_BYTES[packet.packet_id]
    if version < V5:
        return 0xB0, head
    return 0xB0, head + encode_properties(packet.properties) + bytes(packet.reasons)


def _pingreq(_: Pingreq, __: int) -> tuple[int, bytes]:
    return 0xC0, b""


def _pingresp(_: Pingresp, __: int) -> tuple[int, bytes]:
    return 0xD0, b""


def _reasoned(first: int) -> Callable[[Disconnect | Auth, int], tuple[int, bytes]]:
    def encode(packet: Disconnect | Auth, version: int) -> tuple[int, bytes]:
        if version < V5 or (not packet.reason and packet.properties == NO_PROPERTIES):
            return first, b""
        if packet.properties == NO_PROPERTIES:
            return first, bytes((packet.reason,))
        return first, bytes((packet.reason,)) + encode_properties(packet.properties)

    return encode


_ENCODERS: dict[type, Callable[[Any, int], tuple[int, bytes]]] = {
    Connect: _connect,
    Connack: _connack,
    Publish: _publish,
    PublishAnswer: _answer,
    Subscribe: _subscribe,
    Suback: _suback,
    Unsubscribe: _unsubscribe,
    Unsuback: _unsuback,
    Pingreq: _pingreq,
    Pingresp: _pingresp,
    Disconnect: _reasoned(0xE0),
    Auth: _reasoned(0xF0),
}
