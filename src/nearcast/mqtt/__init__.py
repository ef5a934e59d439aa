"""MQTT 3.1.1 and 5: packets, properties, topics, and a client's side of the conversation.

Does: turn bytes into packets and packets into bytes; check all that can be checked in one
packet alone. Section numbers in docstrings are those of the MQTT 5.0 specification.

Will not: open sockets, look at a clock, remember anything about a session of the broker
(`nearcast.node` does), or decide who may do what.

Read next: `packets` (the vocabulary), then `decode` and `encode`; `framing` finds packets in
a stream; `properties` is one table; `topics` has the rules for names and filters;
`conversation` is a client.
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
