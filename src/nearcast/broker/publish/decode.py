"""Decode: the parts of a PUBLISH packet, read straight from the receive buffer."""

from __future__ import annotations

from nearcast.broker.publish.message import Message, MessageHead
from nearcast.broker.session.connection import Connection
from nearcast.mqtt import MqttProtocolError
from nearcast.mqtt.errors import MalformedPacketError
from nearcast.mqtt.properties import check_topic_alias


def messages_of_run(chunk: bytes, size: int, head_size: int, topic: bytes) -> list[Message]:
    """Return the messages of a run of QoS 0 packets without properties."""
    head = MessageHead(topic, size - head_size, 0)
    return [Message(head, chunk[at + head_size : at + size]) for at in range(0, len(chunk), size)]


def end_of_topic(data: bytes, body: int, stop: int) -> int:
    """Return the position behind the topic, which must be within the packet."""
    end = stop + 1
    if body + 2 <= stop:
        end = body + 2 + (data[body] << 8 | data[body + 1])
    if end > stop:
        raise MalformedPacketError("the end of the packet", where="PUBLISH", expected="a topic")
    return end


def topic_of_alias(connection: Connection, topic: bytes, alias: int, maximum: int) -> bytes:
    """Return the topic of an alias; with a topic, the alias is defined or replaced."""
    check_topic_alias(alias, maximum)
    if connection.aliases_in is None:
        connection.aliases_in = {}
    if topic != b"\0\0":
        connection.aliases_in[alias] = topic
        return topic
    known = connection.aliases_in.get(alias)
    if known is None:
        raise MqttProtocolError(
            f"topic alias {alias}", expected="one that was introduced with a topic"
        )
    return known
