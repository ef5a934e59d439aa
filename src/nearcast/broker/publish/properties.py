"""The properties of an incoming PUBLISH, split into those the broker uses and those it forwards."""

from __future__ import annotations

from dataclasses import replace

from nearcast.broker.publish.message import Message, MessageHead
from nearcast.model import PublishRequest, read_publication
from nearcast.model.requests import PUBLISHING
from nearcast.mqtt.errors import MqttProtocolError
from nearcast.mqtt.properties import (
    MOST_USER_PROPERTIES,
    NO_PROPERTIES,
    UNLIMITED,
    PacketType,
    Properties,
    encode_property_content,
    read_properties,
)
from nearcast.mqtt.topics import check_topic_name
from nearcast.mqtt.wire import encode_variable_integer

_OF_SPACES = frozenset(PUBLISHING)
_INSTRUCTIONS = _OF_SPACES - {"$area"}
_LARGEST_KEPT = 256
_MOST_KEPT = 4_096


class PublishProperties:
    """`forward` goes to every receiver unchanged; the alias and the expiry do not.

    In a space, the instructions among the user properties (such as `$top`) are removed
    (`bare_forward`) and parsed (`request`), once for all publications with the same bytes.
    """

    __slots__ = (
        "_bare_forward",
        "_request",
        "_whole",
        "alias",
        "expiry_s",
        "forward",
        "groups",
        "user",
    )

    def __init__(
        self,
        forward: bytes = b"",
        alias: int | None = None,
        expiry_s: int | None = None,
        whole: Properties = NO_PROPERTIES,
        groups: tuple[int, ...] = (),
    ) -> None:
        self.groups = groups
        self.forward = forward
        self.alias = alias
        self.expiry_s = expiry_s
        self.user = whole.user_properties
        self._whole = whole
        self._request: PublishRequest | None = None
        self._bare_forward: bytes | None = None

    @property
    def response_topic(self) -> str | None:
        """The topic of the response."""
        return self._whole.response_topic

    @property
    def correlation(self) -> bytes | None:
        """The Correlation Data of the response."""
        return self._whole.correlation_data

    @property
    def request(self) -> PublishRequest:
        """The parsed instructions among the user properties; raises MisuseError."""
        if self._request is None:
            self._request = read_publication(self.user)
        return self._request

    @property
    def of_spaces(self) -> tuple[str, ...]:
        """The names of the user properties that have a meaning in a space only."""
        return tuple(name for name, _ in self.user if name in _OF_SPACES)

    @property
    def bare_forward(self) -> bytes:
        """The properties for receivers in a space: all except the instructions.

        An event's `$area` is not an instruction: it is the place of the event.
        """
        if self._bare_forward is None:
            rest = tuple(one for one in self.user if one[0] not in _INSTRUCTIONS)
            self._bare_forward = self.forward
            if len(rest) < len(self.user):
                bare = replace(self._whole, user_properties=rest)
                self._bare_forward = encode_property_content(bare)
        return self._bare_forward

    def without(self, name: str) -> bytes:
        """Return the encoded properties without the user properties of one name."""
        rest = tuple(one for one in self.user if one[0] != name)
        return encode_property_content(replace(self._whole, user_properties=rest))


def split_properties(properties: Properties, *, from_node: bool = False) -> PublishProperties:
    """Split checked properties; refuse a client's subscription identifiers [MQTT-3.3.4-6].

    Between nodes, subscription identifiers are the numbers of share groups.
    """
    groups = properties.subscription_identifiers
    if groups and not from_node:
        raise MqttProtocolError("a subscription identifier", where="PUBLISH from a client")
    if properties.response_topic is not None:
        check_topic_name(properties.response_topic)
    passed_on = replace(
        properties,
        topic_alias=None,
        message_expiry_interval=None,
        will_delay_interval=None,
        subscription_identifiers=(),
    )
    return PublishProperties(
        encode_property_content(passed_on),
        properties.topic_alias,
        properties.message_expiry_interval,
        passed_on,
        groups,
    )


def reread_properties(content: bytes) -> PublishProperties:
    """Parse encoded properties that were checked before; for wills and stored messages."""
    if not content:
        return PublishProperties()
    data = encode_variable_integer(len(content)) + content
    return split_properties(read_properties(data, 0, len(data), PacketType.PUBLISH, UNLIMITED)[0])


class PropertyReader:
    """Parses publish properties and caches small ones: publishers repeat themselves.

    Complexity: O(bytes); O(1) parsing work for bytes seen before.
    """

    def __init__(self, *, from_node: bool = False) -> None:
        self._known: dict[bytes, PublishProperties] = {}
        self._from_node = from_node
        self._most = UNLIMITED if from_node else MOST_USER_PROPERTIES

    def read(self, data: bytes, position: int, stop: int) -> tuple[PublishProperties, int]:
        """Return the properties that start at `position`, and the position behind them."""
        length = data[position] if position < stop else 0
        if length < 128:
            raw = data[position : position + 1 + length]
            known = self._known.get(raw)
            if known is not None and position + 1 + length <= stop:
                return known, position + 1 + length
        properties, behind = read_properties(data, position, stop, PacketType.PUBLISH, self._most)
        split = split_properties(properties, from_node=self._from_node)
        if behind - position <= _LARGEST_KEPT:
            if len(self._known) >= _MOST_KEPT:
                self._known.clear()
            self._known[data[position:behind]] = split
        return split, behind


def bare_message(message: Message, properties: PublishProperties) -> Message:
    """Return the message without the instructions among its properties."""
    head, forward = message.head, properties.bare_forward
    if forward == head.properties:
        return message
    bare = MessageHead(head.topic, head.payload_size, head.qos, forward)
    return Message(bare, message.payload, message.expires_at_ms)
