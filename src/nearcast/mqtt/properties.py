"""The properties of MQTT 5 (section 2.2.2), declared in one table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any

from nearcast.mqtt import wire
from nearcast.mqtt.errors import MalformedPacketError, MqttProtocolError
from nearcast.mqtt.reasons import ReasonCode


class PacketType(IntEnum):
    """The upper four bits of a packet's first byte; WILL stands for the will's properties."""

    WILL = 0
    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


@dataclass(frozen=True, slots=True, repr=False)
class Properties:
    """All properties that any packet may carry; those not sent are None or empty."""

    payload_format_indicator: int | None = None
    message_expiry_interval: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    subscription_identifiers: tuple[int, ...] = ()
    session_expiry_interval: int | None = None
    assigned_client_identifier: str | None = None
    server_keep_alive: int | None = None
    authentication_method: str | None = None
    authentication_data: bytes | None = None
    request_problem_information: int | None = None
    will_delay_interval: int | None = None
    request_response_information: int | None = None
    response_information: str | None = None
    server_reference: str | None = None
    reason_string: str | None = None
    receive_maximum: int | None = None
    topic_alias_maximum: int | None = None
    topic_alias: int | None = None
    maximum_qos: int | None = None
    retain_available: int | None = None
    user_properties: tuple[tuple[str, str], ...] = ()
    maximum_packet_size: int | None = None
    wildcard_subscription_available: int | None = None
    subscription_identifier_available: int | None = None
    shared_subscription_available: int | None = None

    def __repr__(self) -> str:
        """Show only the properties that were sent.

        >>> Properties(topic_alias=3)
        Properties(topic_alias=3)
        """
        sent = [
            f"{one.name}={getattr(self, one.name)!r}"
            for one in fields(self)
            if getattr(self, one.name) not in (None, ())
        ]
        return f"Properties({', '.join(sent)})"


NO_PROPERTIES = Properties()

MOST_USER_PROPERTIES = 1_000
"""The number of user properties that one packet of a client may carry."""
UNLIMITED = 1 << 62
_LONGEST_REASON = 1_000  # characters: at most 4,000 bytes, so it always fits its length field

Reader = Callable[[bytes, int, int], tuple[Any, int]]
Writer = Callable[[Any], bytes]


def _write_byte(value: int) -> bytes:
    return value.to_bytes(1, "big")


def _write_two(value: int) -> bytes:
    return value.to_bytes(2, "big")


def _write_four(value: int) -> bytes:
    return value.to_bytes(4, "big")


def _write_pair(value: tuple[str, str]) -> bytes:
    return wire.encode_string(value[0]) + wire.encode_string(value[1])


def _write_reason(value: str) -> bytes:
    """Encode a reason string: truncated, and without characters that UTF-8 cannot encode.

    It quotes what a client sent, so nothing in it may make the response fail.
    """
    text = value if len(value) <= _LONGEST_REASON else value[: _LONGEST_REASON - 1] + "…"
    return wire.encode_binary(text.encode(errors="backslashreplace").replace(b"\0", b"\\0"))


_KINDS: dict[str, tuple[Reader, Writer]] = {
    "byte": (wire.read_byte, _write_byte),
    "two": (wire.read_two_bytes, _write_two),
    "four": (wire.read_four_bytes, _write_four),
    "variable": (wire.read_variable_integer, wire.encode_variable_integer),
    "string": (wire.read_string, wire.encode_string),
    "binary": (wire.read_binary, wire.encode_binary),
    "pair": (wire.read_pair, _write_pair),
    "reason": (wire.read_string, _write_reason),
}

_P = PacketType
_ACKS = (_P.PUBACK, _P.PUBREC, _P.PUBREL, _P.PUBCOMP, _P.SUBACK, _P.UNSUBACK)
_ANY = frozenset(PacketType) - {_P.PINGREQ, _P.PINGRESP}

# identifier, name, kind, packets that may carry it, allowed values (None: all)
_TABLE: tuple[tuple[int, str, str, frozenset[PacketType], range | None], ...] = (
    (0x01, "payload_format_indicator", "byte", frozenset({_P.PUBLISH, _P.WILL}), range(2)),
    (0x02, "message_expiry_interval", "four", frozenset({_P.PUBLISH, _P.WILL}), None),
    (0x03, "content_type", "string", frozenset({_P.PUBLISH, _P.WILL}), None),
    (0x08, "response_topic", "string", frozenset({_P.PUBLISH, _P.WILL}), None),
    (0x09, "correlation_data", "binary", frozenset({_P.PUBLISH, _P.WILL}), None),
    (
        0x0B,
        "subscription_identifiers",
        "variable",
        frozenset({_P.PUBLISH, _P.SUBSCRIBE}),
        range(1, 268_435_456),
    ),
    (
        0x11,
        "session_expiry_interval",
        "four",
        frozenset({_P.CONNECT, _P.CONNACK, _P.DISCONNECT}),
        None,
    ),
    (0x12, "assigned_client_identifier", "string", frozenset({_P.CONNACK}), None),
    (0x13, "server_keep_alive", "two", frozenset({_P.CONNACK}), None),
    (
        0x15,
        "authentication_method",
        "string",
        frozenset({_P.CONNECT, _P.CONNACK, _P.AUTH}),
        None,
    ),
    (0x16, "authentication_data", "binary", frozenset({_P.CONNECT, _P.CONNACK, _P.AUTH}), None),
    (0x17, "request_problem_information", "byte", frozenset({_P.CONNECT}), range(2)),
    (0x18, "will_delay_interval", "four", frozenset({_P.WILL}), None),
    (0x19, "request_response_information", "byte", frozenset({_P.CONNECT}), range(2)),
    (0x1A, "response_information", "string", frozenset({_P.CONNACK}), None),
    (0x1C, "server_reference", "string", frozenset({_P.CONNACK, _P.DISCONNECT}), None),
    (
        0x1F,
        "reason_string",
        "reason",
        frozenset({_P.CONNACK, *_ACKS, _P.DISCONNECT, _P.AUTH}),
        None,
    ),
    (0x21, "receive_maximum", "two", frozenset({_P.CONNECT, _P.CONNACK}), range(1, 65_536)),
    (0x22, "topic_alias_maximum", "two", frozenset({_P.CONNECT, _P.CONNACK}), None),
    # An alias of 0 has a reason code of its own: see `check_topic_alias`.
    (0x23, "topic_alias", "two", frozenset({_P.PUBLISH}), None),
    (0x24, "maximum_qos", "byte", frozenset({_P.CONNACK}), range(2)),
    (0x25, "retain_available", "byte", frozenset({_P.CONNACK}), range(2)),
    (0x26, "user_properties", "pair", _ANY, None),
    (
        0x27,
        "maximum_packet_size",
        "four",
        frozenset({_P.CONNECT, _P.CONNACK}),
        range(1, 1 << 32),
    ),
    (0x28, "wildcard_subscription_available", "byte", frozenset({_P.CONNACK}), range(2)),
    (0x29, "subscription_identifier_available", "byte", frozenset({_P.CONNACK}), range(2)),
    (0x2A, "shared_subscription_available", "byte", frozenset({_P.CONNACK}), range(2)),
)
_BY_IDENTIFIER = {row[0]: (row[1], *_KINDS[row[2]], row[3], row[4]) for row in _TABLE}
_REPEATABLE = frozenset({"user_properties", "subscription_identifiers"})
assert [f.name for f in fields(Properties)] == [row[1] for row in _TABLE]


def read_properties(
    data: bytes,
    position: int,
    stop: int,
    packet: PacketType,
    most: int = MOST_USER_PROPERTIES,
) -> tuple[Properties, int]:
    """Return the properties at `position` of a packet of that type, and the position behind.

    Refuses unknown identifiers, properties of other packets, repetitions, values out of range and
    more than `most` user properties. O(bytes read).
    """
    length, position = wire.read_variable_integer(data, position, stop)
    behind = position + length
    if behind > stop:
        raise MalformedPacketError("the end of the packet", expected=f"{length} property bytes")
    if not length:
        return NO_PROPERTIES, behind
    found: dict[str, Any] = {}
    while position < behind:
        position = _read_one(data, position, behind, packet, found)
        if len(found.get("user_properties", ())) > most:
            raise MqttProtocolError(
                f"more than {most} user properties",
                reason=ReasonCode.QUOTA_EXCEEDED,
                where=packet.name,
                expected=f"at most {most}",
            )
    for name in found.keys() & _REPEATABLE:
        found[name] = tuple(found[name])  # built as a list: appending to a tuple copies it
    return Properties(**found), behind


def _read_one(
    data: bytes, position: int, stop: int, packet: PacketType, found: dict[str, Any]
) -> int:
    identifier, position = wire.read_variable_integer(data, position, stop)
    row = _BY_IDENTIFIER.get(identifier)
    if row is None:
        raise MalformedPacketError(f"property 0x{identifier:02X}", where=packet.name)
    name, read, _, packets, allowed = row
    if packet not in packets:
        raise MqttProtocolError(f"property {name}", where=packet.name)
    value, position = read(data, position, stop)
    if allowed is not None and value not in allowed:
        raise MqttProtocolError(
            f"{name} = {value}",
            where=packet.name,
            expected=f"{allowed.start} … {allowed.stop - 1}",
        )
    if name in _REPEATABLE and not (packet is _P.SUBSCRIBE and name == "subscription_identifiers"):
        found.setdefault(name, []).append(value)
        return position
    if name in found:
        raise MqttProtocolError(f"{name} twice", where=packet.name, expected="once at most")
    found[name] = (value,) if name in _REPEATABLE else value
    return position


def encode_properties(properties: Properties) -> bytes:
    """Return the encoded properties with their length in front; O(size) [MQTT-2.2.2-1]."""
    if properties == NO_PROPERTIES:
        return b"\0"
    content = encode_property_content(properties)
    return wire.encode_variable_integer(len(content)) + content


def encode_property_content(properties: Properties) -> bytes:
    """Return the encoded properties without their length."""
    parts: list[bytes] = []
    for identifier, name, kind, _, _ in _TABLE:
        value = getattr(properties, name)
        if value is None or value == ():
            continue
        write = _KINDS[kind][1]
        prefix = bytes((identifier,))
        if name in _REPEATABLE:
            parts.extend(prefix + write(one) for one in value)
        else:
            parts.append(prefix + write(value))
    return b"".join(parts)


def check_topic_alias(alias: int, maximum: int) -> None:
    """Refuse an alias of 0 [MQTT-3.3.2-8] or above the announced maximum [MQTT-3.3.2-9]."""
    if not 1 <= alias <= maximum:
        raise MqttProtocolError(
            f"topic alias {alias}",
            reason=ReasonCode.TOPIC_ALIAS_INVALID,
            expected=f"1 … {maximum}" if maximum else "none: aliases are off",
        )
