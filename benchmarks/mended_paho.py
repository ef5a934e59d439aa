"""paho-mqtt for runs in which servers come and go."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import MessageState, MQTTErrorCode

_MOST_PACKETS = 50_000
_MOST_BYTES = 80
_RECORDED = (MessageState.MQTT_MS_WAIT_FOR_PUBCOMP, MessageState.MQTT_MS_RESEND_PUBREL)


class Paho(paho.Client):
    """paho-mqtt, mended: it remembers over several attempts to reconnect what has been released.

    At the second attempt in a row paho 2.2 takes a message of QoS 2 whose PUBREC has come for one
    that was never sent, and publishes it anew: twice, as any broker must see it.

    `packets` has what went over the wire last: when, whether it came in, its first byte, and what
    follows the length, cut off.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.packets: deque[tuple[float, bool, int, bytes]] = deque(maxlen=_MOST_PACKETS)
        super().__init__(*arguments, **options)

    def _packet_handle(self) -> MQTTErrorCode:
        content = bytes(self._in_packet["packet"][:_MOST_BYTES])
        self.packets.append((time.time(), True, self._in_packet["command"], content))
        return super()._packet_handle()

    def _packet_queue(
        self, command: int, packet: bytes | bytearray, *rest: Any, **options: Any
    ) -> MQTTErrorCode:
        body = 2 if packet[1] < 128 else 3
        content = bytes(packet[body : body + _MOST_BYTES])
        self.packets.append((time.time(), False, packet[0], content))
        return super()._packet_queue(command, packet, *rest, **options)

    def _messages_reconnect_reset_out(self) -> None:
        with self._out_message_mutex:
            recorded = [one for one in self._out_messages.values() if one.state in _RECORDED]
        super()._messages_reconnect_reset_out()
        for one in recorded:
            one.state = MessageState.MQTT_MS_RESEND_PUBREL
