"""People with MQTT clients, for the examples: a stock paho-mqtt client and an inbox each."""

from __future__ import annotations

import argparse
import json
import threading
from dataclasses import dataclass
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.subscribeoptions import SubscribeOptions

from nearcast.client import (
    POSITION_TOPIC,
    Delivered,
    Offer,
    Selection,
    delivered,
    position,
    position_properties,
)

WAIT_S = 30


@dataclass(frozen=True)
class Letter:
    """A message that somebody got."""

    topic: str
    body: Any
    about: Delivered  # rank and distance, for those who asked with explain=True
    retained: bool


class Person:
    """A paho client: says where it is, subscribes, publishes, keeps what it gets."""

    def __init__(
        self, name: str, host: str, port: int, place: tuple[float, float] | None = None
    ) -> None:
        self.name = name
        self.place = place
        self.inbox: list[Letter] = []
        self._connected, self._caught_up = threading.Event(), threading.Event()
        self._answers: dict[int | None, Any] = {}
        self._answered = threading.Condition()
        client = paho.Client(CallbackAPIVersion.VERSION2, name, protocol=paho.MQTTv5)
        client.on_connect = lambda *_: self._connected.set()
        client.on_message = self._on_message
        client.on_subscribe = client.on_unsubscribe = self._on_answer
        properties = None if place is None else position_properties(*place)
        try:
            client.connect(host, port, properties=properties)
        except OSError as problem:
            raise SystemExit(f"{host}:{port}: {problem}. Start a broker: nearcast serve") from None
        client.loop_start()
        self._client = client
        if not self._connected.wait(WAIT_S):
            raise SystemExit(f"{name}: no answer from {host}:{port}")
        self.subscribe(f"echo/{name}")

    def goes_to(self, lon: float, lat: float) -> None:
        """Tell the broker, and nobody else, where this person is."""
        self.place = (lon, lat)
        self._client.publish(POSITION_TOPIC, position(lon, lat), qos=1).wait_for_publish(WAIT_S)

    def subscribe(
        self, topic_filter: str, wish: Selection | None = None, *, not_my_own: bool = False
    ) -> None:
        options = SubscribeOptions(qos=1, noLocal=not_my_own)
        properties = wish.properties() if wish else None
        _, number = self._client.subscribe(topic_filter, options=options, properties=properties)
        self._wait_for(number)

    def unsubscribe(self, topic_filter: str, wish: Selection | None = None) -> None:
        properties = wish.for_unsubscribe() if wish else None
        _, number = self._client.unsubscribe(topic_filter, properties=properties)
        self._wait_for(number)

    def publish(
        self,
        topic: str,
        body: Any,
        offer: Offer | None = None,
        *,
        retain: bool = False,
        answer_to: str | None = None,
    ) -> None:
        """Publish JSON and wait until the broker has taken it."""
        properties = offer.properties(response_topic=answer_to) if offer else None
        sent = self._client.publish(topic, json.dumps(body), 1, retain, properties)
        sent.wait_for_publish(WAIT_S)

    def letters(self) -> list[Letter]:
        """Return what came since the last call; nothing is still on its way.

        The broker delivers in order, so what this person says to itself now comes last.
        """
        self._caught_up.clear()
        self.publish(f"echo/{self.name}", None)
        if not self._caught_up.wait(WAIT_S):
            raise SystemExit(f"{self.name} hears nothing")
        got, self.inbox = self.inbox, []
        return got

    def leave(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def _on_message(self, _client: Any, _data: Any, message: paho.MQTTMessage) -> None:
        if message.topic == f"echo/{self.name}":
            self._caught_up.set()
            return
        about = delivered(message.properties)
        body = json.loads(message.payload)
        self.inbox.append(Letter(message.topic, body, about, message.retain))

    def _on_answer(self, _client: Any, _data: Any, number: int, codes: Any, answer: Any) -> None:
        with self._answered:
            self._answers[number] = (codes, answer)
            self._answered.notify_all()

    def _wait_for(self, number: int | None) -> None:
        with self._answered:
            if not self._answered.wait_for(lambda: number in self._answers, WAIT_S):
                raise SystemExit(f"{self.name}: no answer from the broker")
            codes, answer = self._answers.pop(number)
        if any(code.is_failure for code in codes):
            raise SystemExit(f"{self.name}: {getattr(answer, 'ReasonString', codes)}")


def check_space(host: str, port: int, topic_filter: str) -> None:
    """End with the broker's own words if it knows no space for these topics."""
    visitor = Person("visitor", host, port)
    visitor.subscribe(f"$retained/now/{topic_filter}")
    visitor.leave()


def arguments(description: str | None) -> argparse.Namespace:
    """Return where the broker is."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=1883)
    return parser.parse_args()
