"""MQTT 3.1.1 and 5: packets, properties, topics, and the client's side of a connection.

The package decodes and encodes packets and checks everything that can be checked in one packet
alone. Section numbers in docstrings are those of the MQTT 5.0 specification, as are statement
numbers such as [MQTT-3.3.1-2] unless noted; `docs/mqtt-conformance.md` lists them. It opens no
sockets, reads no clock, keeps no broker session (`nearcast.broker` does) and authorises nothing.

Read next: `packets.py` (the packets as values), `decode.py` and `encode.py`, `framing.py` (packets
in a stream), `properties.py` (one table), `topics.py` (names and filters), `conversation.py` (a
client).
"""

from nearcast.mqtt.conversation import Conversation
from nearcast.mqtt.decode import decode_packet
from nearcast.mqtt.encode import encode_packet
from nearcast.mqtt.errors import MalformedPacketError, MqttProtocolError
from nearcast.mqtt.framing import PacketReader
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
from nearcast.mqtt.properties import NO_PROPERTIES, PacketType, Properties
from nearcast.mqtt.reasons import ReasonCode
from nearcast.mqtt.topics import SharedFilter, check_topic_filter, check_topic_name, split_shared

__all__ = [
    "NO_PROPERTIES",
    "Auth",
    "Connack",
    "Connect",
    "Conversation",
    "Disconnect",
    "FilterRequest",
    "MalformedPacketError",
    "MqttProtocolError",
    "Packet",
    "PacketReader",
    "PacketType",
    "Pingreq",
    "Pingresp",
    "Properties",
    "ProtocolVersion",
    "Publish",
    "PublishAnswer",
    "ReasonCode",
    "SharedFilter",
    "Suback",
    "Subscribe",
    "Unsuback",
    "Unsubscribe",
    "Will",
    "check_topic_filter",
    "check_topic_name",
    "decode_packet",
    "encode_packet",
    "split_shared",
]
