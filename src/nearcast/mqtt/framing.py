"""Framing: the boundaries of packets in a stream of bytes."""

from __future__ import annotations

from nearcast.mqtt.decode import decode_packet
from nearcast.mqtt.errors import MalformedPacketError, MqttProtocolError
from nearcast.mqtt.packets import Connect, Packet, ProtocolVersion
from nearcast.mqtt.reasons import ReasonCode

LARGEST_PACKET = 268_435_455 + 5


def long_length(data: bytes, position: int, end: int) -> tuple[int, int]:
    """Return the remaining length that starts at `position`, and the position behind it.

    The position is -1 while bytes are missing. An encoding that is longer than necessary is refused
    [MQTT-1.5.5-1].

    >>> long_length(bytes([0x80]), 0, 1)
    (0, -1)
    """
    value = shift = 0
    for at in range(position, position + 4):
        if at >= end:
            return value, -1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if byte == 0 and shift:
                raise MalformedPacketError("superfluous length bytes", where="fixed header")
            return value, at + 1
        shift += 7
    raise MalformedPacketError("more than four length bytes", where="fixed header")


def too_large(size: int, limit: int) -> MqttProtocolError:
    """Return the error for a packet above the maximum packet size."""
    return MqttProtocolError(
        f"a packet of {size} bytes",
        reason=ReasonCode.PACKET_TOO_LARGE,
        expected=f"at most {limit}",
    )


class PacketReader:
    """Packets from bytes that arrive in any portions; for clients and tests.

    After an error the reader cannot be used: the start of the next packet is unknown. Complexity:
    O(bytes), however they are split.
    """

    __slots__ = ("_limit", "_parts", "_size", "_wanted", "version")

    def __init__(
        self,
        version: ProtocolVersion = ProtocolVersion.V5,
        maximum_packet_size: int = LARGEST_PACKET,
    ) -> None:
        self.version = version
        self._limit = maximum_packet_size
        self._parts: list[bytes] = []
        self._size = 0
        self._wanted = 2

    def feed(self, data: bytes) -> list[Packet]:
        """Add bytes; return the packets that are complete now."""
        self._parts.append(data)
        self._size += len(data)
        if self._size < self._wanted:
            return []
        buffer = data if len(self._parts) == 1 else b"".join(self._parts)
        packets, consumed = self._split(buffer)
        self._parts = [buffer[consumed:]] if consumed < len(buffer) else []
        self._size = len(buffer) - consumed
        return packets

    def _split(self, data: bytes) -> tuple[list[Packet], int]:
        packets: list[Packet] = []
        position, end = 0, len(data)
        self._wanted = 2
        while end - position >= 2:
            length, body = long_length(data, position + 1, end)
            if body < 0:
                self._wanted = end - position + 1
                break
            stop = body + length
            if stop - position > self._limit:
                raise too_large(stop - position, self._limit)
            if stop > end:
                self._wanted = stop - position
                break
            packet = decode_packet(data[position], data[body:stop], self.version)
            if isinstance(packet, Connect):
                self.version = packet.version
            packets.append(packet)
            position = stop
        return packets, position
