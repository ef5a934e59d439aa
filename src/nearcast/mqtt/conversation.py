"""The client's side of one connection, without input or output: bytes in, bytes and packets out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from nearcast.model.errors import LimitError
from nearcast.mqtt.encode import encode_packet
from nearcast.mqtt.errors import MqttProtocolError
from nearcast.mqtt.framing import PacketReader
from nearcast.mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    FilterRequest,
    Packet,
    Pingreq,
    Publish,
    PublishAnswer,
    Subscribe,
    Unsubscribe,
)
from nearcast.mqtt.properties import NO_PROPERTIES, PacketType, Properties

_PUBACK, _PUBREC, _PUBREL, _PUBCOMP = (PacketType(number) for number in (4, 5, 6, 7))


class Conversation:
    """Sends CONNECT at once, acknowledges publications, and tracks its own.

    Contract: the caller sends `take()` after every call and passes received bytes to `receive`.
    Each message is returned once, at QoS 2 when it is first received. `unsettled` maps packet
    identifiers to publications that the broker has not yet finally acknowledged. `answered` is
    called with each publication of QoS 1 or 2 that the broker has acknowledged, the reason code and
    the reason string.

    `earlier` is the conversation of a connection that was lost: its session is resumed if the
    broker still has it. Without `acknowledges`, the caller acknowledges messages of QoS 1 itself.

    Complexity: O(bytes); O(1) per packet.
    """

    def __init__(
        self, connect: Connect, earlier: Conversation | None = None, *, acknowledges: bool = True
    ) -> None:
        self._earlier = earlier
        self._acknowledges = acknowledges
        self.version = connect.version
        self.connack: Connack | None = None
        self.is_closed = False
        self.unsettled: dict[int, Publish] = {}
        self.answered: Callable[[Publish, int, str], None] = lambda *_: None
        self._reader = PacketReader(connect.version)
        self._outbox: list[bytes] = []
        self._incoming: set[int] = set()
        self._recorded: dict[int, None] = {}
        self._last_id = 0
        self._send(connect)

    def take(self) -> bytes:
        """Return and clear the bytes to send."""
        data = b"".join(self._outbox)
        self._outbox.clear()
        return data

    def _resume(self, earlier: Conversation) -> None:
        """Resume the session of an earlier connection, which the broker still has [MQTT-4.4.0-1].

        Unacknowledged publications are sent again; for those that the broker has recorded, only
        PUBREL.
        """
        self._incoming = set(earlier._incoming)
        self._last_id = earlier._last_id
        self.unsettled = dict(earlier.unsettled)
        self._recorded = dict(earlier._recorded)
        for packet_id, message in self.unsettled.items():
            if packet_id in self._recorded:
                self._send(PublishAnswer(_PUBREL, packet_id))
            else:
                self._send(replace(message, duplicate=True))

    def publish(self, message: Publish) -> None:
        """Publish a message; its packet identifier is assigned here."""
        if not message.qos:
            self._send(message)
            return
        packet_id = self._new_id()
        message = Publish(
            message.topic,
            message.payload,
            message.qos,
            message.retain,
            packet_id=packet_id,
            properties=message.properties,
        )
        self.unsettled[packet_id] = message
        self._send(message)

    def subscribe(self, *requests: FilterRequest, properties: Properties = NO_PROPERTIES) -> int:
        """Send SUBSCRIBE; return its packet identifier, which the SUBACK carries."""
        packet_id = self._new_id()
        self._send(Subscribe(packet_id, requests, properties))
        return packet_id

    def unsubscribe(self, *topic_filters: str) -> int:
        """Send UNSUBSCRIBE; return its packet identifier, which the UNSUBACK carries."""
        packet_id = self._new_id()
        self._send(Unsubscribe(packet_id, topic_filters))
        return packet_id

    def acknowledge(self, packet_ids: Iterable[int]) -> None:
        """Send PUBACK for received messages of QoS 1."""
        for packet_id in packet_ids:
            self._send(PublishAnswer(_PUBACK, packet_id))

    def ping(self) -> None:
        """Send PINGREQ."""
        self._send(Pingreq())

    def disconnect(self, reason: int = 0) -> None:
        """Send DISCONNECT."""
        self._send(Disconnect(reason))
        self.is_closed = True

    def receive(self, data: bytes) -> list[Packet]:
        """Process bytes; return the messages, and all packets that are not publish acks."""
        return [one for packet in self._reader.feed(data) if (one := self._take(packet))]

    def _send(self, packet: Packet) -> None:
        self._outbox.append(encode_packet(packet, self.version))

    def _new_id(self) -> int:
        for _ in range(65_535):
            self._last_id = self._last_id % 65_535 + 1
            if self._last_id not in self.unsettled:
                return self._last_id
        raise LimitError("65,535 publications without an answer", todo="Wait for answers first.")

    def _take(self, packet: Packet) -> Packet | None:
        if isinstance(packet, Connack):
            self.connack = packet
            if packet.session_present and self._earlier is not None:
                self._resume(self._earlier)
            self._earlier = None
        elif isinstance(packet, Publish):
            return self._take_message(packet)
        elif isinstance(packet, PublishAnswer):
            self._take_answer(packet)
            return None
        elif isinstance(packet, Disconnect):
            self.is_closed = True
        elif isinstance(packet, (Connect, Subscribe, Unsubscribe, Pingreq)):
            raise MqttProtocolError(type(packet).__name__.upper(), where="packet from a broker")
        return packet

    def _take_message(self, packet: Publish) -> Publish | None:
        if packet.qos == 1 and self._acknowledges:
            self._send(PublishAnswer(_PUBACK, packet.packet_id))
        elif packet.qos == 2:
            self._send(PublishAnswer(_PUBREC, packet.packet_id))
            if packet.packet_id in self._incoming:
                return None
            self._incoming.add(packet.packet_id)
        return packet

    def _take_answer(self, packet: PublishAnswer) -> None:
        if packet.kind is _PUBREL:
            self._incoming.discard(packet.packet_id)
            self._send(PublishAnswer(_PUBCOMP, packet.packet_id))
            return
        message = self.unsettled.get(packet.packet_id)
        if packet.kind is _PUBREC and packet.reason < 0x80:
            self._recorded[packet.packet_id] = None
            self._send(PublishAnswer(_PUBREL, packet.packet_id))
        else:
            self._recorded.pop(packet.packet_id, None)
            self.unsettled.pop(packet.packet_id, None)
        if message is not None and packet.kind is not _PUBCOMP:
            self.answered(message, packet.reason, packet.properties.reason_string or "")
