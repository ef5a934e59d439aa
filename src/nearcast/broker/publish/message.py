"""A message inside the broker: what all receivers share, encoded once.

A `MessageHead` has what the messages of one run have in common (topic, properties, QoS, size) and
caches its encodings. A `Message` adds the payload. No object is created per delivery.
"""

from __future__ import annotations

from typing import Final

from nearcast.mqtt.wire import ONE_BYTE, TWO_BYTES, encode_variable_integer

OVERHEAD_BYTES: Final = 120  # the Python objects of a message, counted in the quotas


class MessageHead:
    """Topic (with its two length bytes), encoded properties, QoS and payload size.

    `size` is that of each of its messages for the quotas.
    """

    __slots__ = (
        "_form",
        "_forms",
        "_key",
        "payload_size",
        "properties",
        "qos",
        "retain",
        "size",
        "topic",
    )

    def __init__(
        self,
        topic: bytes,
        payload_size: int,
        qos: int,
        properties: bytes = b"",
        retain: bool = False,
    ) -> None:
        self.topic = topic
        self.payload_size = payload_size
        self.qos = qos
        self.properties = properties
        self.retain = retain
        self.size = payload_size + len(topic) + len(properties) + OVERHEAD_BYTES
        # Most messages go out in one form: only further ones need a dictionary.
        self._key = -1
        self._form: tuple[bytes, bytes] = (b"", b"")
        self._forms: dict[int, tuple[bytes, bytes]] | None = None

    def form(self, version: int, qos: int) -> tuple[bytes, bytes]:
        """Return the bytes before and behind the packet identifier, up to the payload."""
        key = version << 2 | qos
        if key == self._key:
            return self._form
        if self._key < 0:
            self._key, self._form = key, self._make_form(version, qos)
            return self._form
        if self._forms is None:
            self._forms = {}
        form = self._forms.get(key)
        if form is None:
            form = self._forms[key] = self._make_form(version, qos)
        return form

    def _make_form(self, version: int, qos: int) -> tuple[bytes, bytes]:
        middle = b""
        if version >= 5:
            middle = encode_variable_integer(len(self.properties)) + self.properties
        packet_id_size = 2 if qos else 0
        length = len(self.topic) + packet_id_size + len(middle) + self.payload_size
        first = 0x30 | qos << 1 | self.retain
        return ONE_BYTE[first] + encode_variable_integer(length) + self.topic, middle

    def variant(
        self, *, retain: bool, identifiers: tuple[int, ...] = (), extra: bytes = b""
    ) -> MessageHead:
        """Return this head with another RETAIN flag, subscription identifiers and properties."""
        numbers = [b"\x0b" + encode_variable_integer(identifier) for identifier in identifiers]
        properties = b"".join((self.properties, *numbers, extra))
        return MessageHead(self.topic, self.payload_size, self.qos, properties, retain)


class Message:
    """A payload and its head; `expires_at_ms` is 0 for no expiry.

    `holder_count` is how many sessions have it queued or in flight; `number` is its number in the
    journal, 0 while it has none; `was_refused` says that some session had no room for it.
    """

    __slots__ = ("expires_at_ms", "head", "holder_count", "number", "payload", "was_refused")

    def __init__(self, head: MessageHead, payload: bytes, expires_at_ms: int = 0) -> None:
        self.head = head
        self.payload = payload
        self.expires_at_ms = expires_at_ms
        self.holder_count = 0
        self.number = 0
        self.was_refused = False

    @property
    def size(self) -> int:
        """Its size for the quotas, in bytes."""
        return self.head.size

    def wire(
        self, version: int, qos: int, packet_id: int, *, now_ms: int, duplicate: bool = False
    ) -> bytes:
        """Return the PUBLISH packet for one receiver, with the remaining expiry [MQTT-3.3.2-6]."""
        head = self.head
        if self.expires_at_ms and version >= 5:
            left_s = min(max(1, -(-(self.expires_at_ms - now_ms) // 1000)), 0xFFFF_FFFF)
            expiry = b"\x02" + left_s.to_bytes(4, "big")
            head = MessageHead(
                head.topic, head.payload_size, head.qos, expiry + head.properties, head.retain
            )
        before, middle = head.form(version, qos)
        if duplicate:
            before = bytes((before[0] | 8,)) + before[1:]
        packet_id_bytes = TWO_BYTES[packet_id] if qos else b""
        return b"".join((before, packet_id_bytes, middle, self.payload))

    def variant(
        self, *, retain: bool, identifiers: tuple[int, ...] = (), extra: bytes = b""
    ) -> Message:
        """Return this message with another RETAIN flag, subscription identifiers and properties."""
        head = self.head.variant(retain=retain, identifiers=identifiers, extra=extra)
        return Message(head, self.payload, self.expires_at_ms)

    def topic_text(self) -> str:
        """Return the topic as text."""
        return self.head.topic[2:].decode()


def aliased(packet_topic: bytes, wire: bytes, alias: int, *, known: bool, qos: int) -> bytes:
    """Return an MQTT 5 PUBLISH with a topic alias; a known alias replaces the topic.

    O(size): this is one encoding per receiver, only for clients that asked for aliases.
    """
    start = 1
    while wire[start] & 0x80:
        start += 1
    start += 1
    topic_end = start + len(packet_topic)
    id_end = topic_end + (2 if qos else 0)
    length, shift, at = 0, 0, id_end
    while True:
        byte = wire[at]
        length |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            break
        shift += 7
    topic = b"\0\0" if known else packet_topic
    properties = encode_variable_integer(length + 3) + b"\x23" + TWO_BYTES[alias]
    body = topic + wire[topic_end:id_end] + properties + wire[at:]
    return wire[:1] + encode_variable_integer(len(body)) + body


def recode_run(chunk: bytes, size: int, head_size: int, topic: bytes, version: int) -> bytes:
    """Return a run of QoS 0 packets of one head, without properties, for `version`. O(chunk)."""
    middle = b"\0" if version >= 5 else b""
    length = len(topic) + len(middle) + size - head_size
    head = b"\x30" + encode_variable_integer(length) + topic + middle
    return b"".join([head + chunk[at + head_size : at + size] for at in range(0, len(chunk), size)])
