"""The packets of MQTT as values (section 3), one class each; the four publish acks share one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from nearcast.mqtt.properties import NO_PROPERTIES, PacketType, Properties


class ProtocolVersion(IntEnum):
    """The protocol level byte of CONNECT."""

    V311 = 4
    V5 = 5


@dataclass(frozen=True, slots=True)
class Will:
    """The message that the server publishes when the connection ends abnormally (3.1.2.5)."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class Connect:
    """The first packet of a client (3.1)."""

    client_id: str
    version: ProtocolVersion = ProtocolVersion.V5
    clean_start: bool = True
    keep_alive_s: int = 0
    will: Will | None = None
    user_name: str | None = None
    password: bytes | None = None
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class Connack:
    """The response to CONNECT (3.2); `reason` is the return code in 3.1.1."""

    session_present: bool = False
    reason: int = 0
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class Publish:
    """A message (3.3); `packet_id` is 0 at QoS 0 [MQTT-2.2.1-2]."""

    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    duplicate: bool = False
    packet_id: int = 0
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class PublishAnswer:
    """PUBACK, PUBREC, PUBREL or PUBCOMP (3.4 to 3.7)."""

    kind: PacketType
    packet_id: int
    reason: int = 0
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class FilterRequest:
    """One topic filter of a SUBSCRIBE with its options (3.8.3.1)."""

    topic_filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


@dataclass(frozen=True, slots=True)
class Subscribe:
    """A request to add subscriptions (3.8)."""

    packet_id: int
    requests: tuple[FilterRequest, ...]
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class Suback:
    """The response to SUBSCRIBE (3.9), one reason code per filter."""

    packet_id: int
    reasons: tuple[int, ...]
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """A request to remove subscriptions (3.10)."""

    packet_id: int
    topic_filters: tuple[str, ...]
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class Unsuback:
    """The response to UNSUBSCRIBE (3.11); 3.1.1 has no reason codes."""

    packet_id: int
    reasons: tuple[int, ...] = ()
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class Pingreq:
    """A keep-alive request (3.12)."""


@dataclass(frozen=True, slots=True)
class Pingresp:
    """The response to PINGREQ (3.13)."""


@dataclass(frozen=True, slots=True)
class Disconnect:
    """The last packet of a connection (3.14)."""

    reason: int = 0
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class Auth:
    """A step of enhanced authentication (3.15), MQTT 5 only."""

    reason: int = 0
    properties: Properties = NO_PROPERTIES


Packet = (
    Connect
    | Connack
    | Publish
    | PublishAnswer
    | Subscribe
    | Suback
    | Unsubscribe
    | Unsuback
    | Pingreq
    | Pingresp
    | Disconnect
    | Auth
)
