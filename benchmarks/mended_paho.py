"""paho-mqtt for runs in which servers come and go."""

from __future__ import annotations

import paho.mqtt.client as paho
from paho.mqtt.enums import MessageState

_RECORDED = (MessageState.MQTT_MS_WAIT_FOR_PUBCOMP, MessageState.MQTT_MS_RESEND_PUBREL)


class Paho(paho.Client):
    """paho-mqtt, mended: it remembers over several attempts to reconnect what has been released.

    At the second attempt in a row paho 2.2 takes a message of QoS 2 whose PUBREC has come for one
    that was never sent, and publishes it anew: twice, as any broker must see it.
    """

    def _messages_reconnect_reset_out(self) -> None:
        with self._out_message_mutex:
            recorded = [one for one in self._out_messages.values() if one.state in _RECORDED]
        super()._messages_reconnect_reset_out()
        for one in recorded:
            one.state = MessageState.MQTT_MS_RESEND_PUBREL
