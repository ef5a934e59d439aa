"""Protocol errors of the other side, with the reason code that the specification requires.

PeerProtocolError
└── MqttProtocolError             has the reason code
    └── MalformedPacketError      bytes that are no packet (0x81)
"""

from __future__ import annotations

from nearcast.model.errors import PeerProtocolError
from nearcast.mqtt.reasons import ReasonCode


class MqttProtocolError(PeerProtocolError):
    """A violation of MQTT; `reason` is the code for DISCONNECT or CONNACK."""

    def __init__(
        self,
        found: str,
        *,
        reason: ReasonCode = ReasonCode.PROTOCOL_ERROR,
        where: str = "",
        expected: str = "",
        todo: str = "",
    ) -> None:
        self.reason = reason
        super().__init__(found, where=where, expected=expected, todo=todo)


class MalformedPacketError(MqttProtocolError):
    """Bytes that cannot be decoded as the packet they claim to be."""

    def __init__(self, found: str, *, where: str = "", expected: str = "", todo: str = "") -> None:
        super().__init__(
            found, reason=ReasonCode.MALFORMED_PACKET, where=where, expected=expected, todo=todo
        )
