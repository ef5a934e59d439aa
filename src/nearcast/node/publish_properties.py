"""The properties of an incoming PUBLISH, split into what the node uses and what it passes on."""

from __future__ import annotations

from dataclasses import dataclass, replace

from nearcast.mqtt.errors import MqttProtocolError
from nearcast.mqtt.properties import (
    PacketType,
    Properties,
    encode_property_content,
    read_properties,
)
from nearcast.mqtt.topics import check_topic_name

_LARGEST_KEPT = 256
_MOST_KEPT = 4_096


@dataclass(frozen=True, slots=True)
class PublishProperties:
    """`forward` goes to every receiver unchanged; the alias and the expiry do not."""

    forward: bytes = b""
    alias: int | None = None
    expiry_s: int | None = None


def split_properties(properties: Properties) -> PublishProperties:
    """Split checked properties; refuse what only a server may send (3.3.4-6)."""
    if properties.subscription_identifiers:
        raise MqttProtocolError("a subscription identifier", where="PUBLISH from a client")
    if properties.response_topic is not None:
        check_topic_name(properties.response_topic)
    passed_on = replace(
        properties, topic_alias=None, message_expiry_interval=None, will_delay_interval=None
    )
    return PublishProperties(
        encode_property_content(passed_on),
        properties.topic_alias,
        properties.message_expiry_interval,
    )


class PropertyReader:
    """Reads publish properties, remembering small ones: publishers repeat themselves.

    Complexity: O(bytes); O(1) parsing work for bytes seen before.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, PublishProperties] = {}

    def read(self, data: bytes, position: int, stop: int) -> tuple[PublishProperties, int]:
        """Return the properties that start at `position`, and the position behind them."""
        length = data[position] if position < stop else 0
        if length < 128:
            raw = data[position : position + 1 + length]
            known = self._known.get(raw)
            if known is not None and position + 1 + length <= stop:
                return known, position + 1 + length
        properties, behind = read_properties(data, position, stop, PacketType.PUBLISH)
        split = split_properties(properties)
        if behind - position <= _LARGEST_KEPT:
            if len(self._known) >= _MOST_KEPT:
                self._known.clear()
            self._known[data[position:behind]] = split
        return split, behind
