"""A broker process with a space, and stock paho clients."""

from __future__ import annotations

import json
import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from tests.support.commands import served

CONFIGURATION = """
[[listener]]
port = 0

[durability]
mode = "off"

[[space]]
name = "shops"
topics = "shops/#"
longitude = "lon"
latitude = "lat"
missing = "none"

[space.attributes]
price = { low = 0, high = 100 }
lon = { low = -180, high = 180, path = "at.lon" }
lat = { low = -90, high = 90, path = "at.lat" }
"""
WAIT_S = 60.0


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    folder: Path = tmp_path_factory.mktemp("broker")
    (folder / "nearcast.toml").write_text(CONFIGURATION)
    with served("--config", "nearcast.toml", cwd=folder) as ports:
        yield ports["tcp"]


class Client:
    """A paho client whose messages wait in a queue."""

    def __init__(self, port: int, name: str, protocol: MQTTProtocolVersion) -> None:
        self.messages: queue.Queue[Any] = queue.Queue()
        self._answers: queue.Queue[Any] = queue.Queue()
        self.paho = paho.Client(
            CallbackAPIVersion.VERSION2,
            name,
            protocol=protocol,
        )
        self.paho.on_message = lambda *args: self.messages.put(args[2])
        self.paho.on_subscribe = lambda *args: self._answers.put(args[3])
        self.paho.connect("127.0.0.1", port)
        self.paho.loop_start()

    def subscribe(self, text: str, pairs: list[tuple[str, str]] | None = None) -> Any:
        properties = None
        if pairs:
            properties = Properties(PacketTypes.SUBSCRIBE)
            properties.UserProperty = pairs
        self.paho.subscribe(text, 1, properties=properties) if pairs else self.paho.subscribe(
            text, 1
        )
        return self._answers.get(timeout=WAIT_S)

    def publish(self, topic: str, document: object) -> None:
        self.paho.publish(topic, json.dumps(document), 1).wait_for_publish(WAIT_S)

    def next(self) -> tuple[str, Any]:
        message = self.messages.get(timeout=WAIT_S)
        return message.topic, json.loads(message.payload)

    def stop(self) -> None:
        self.paho.disconnect()
        self.paho.loop_stop()


@pytest.fixture
def clients(port: int) -> Iterator[list[Client]]:
    made = [
        Client(port, "new", MQTTProtocolVersion.MQTTv5),
        Client(port, "old", MQTTProtocolVersion.MQTTv311),
    ]
    yield made
    for one in made:
        one.stop()


def test_both_versions_select_move_and_rank(clients: list[Client]) -> None:
    new, old = clients
    at = {"lon": 8.5, "lat": 47.5}
    new.publish("$position", at)
    old.publish("$position", {"lon": 8.503, "lat": 47.5})
    assert [code.value for code in new.subscribe("shops/#", [("$near", "1km")])] == [1]
    assert [code.value for code in old.subscribe("$near/1km/$where/price<50/shops/#")] == [1]

    new.publish("shops/1", {"price": 3, "at": at})
    old.publish("$top/1/$rank/nearest/shops/2", {"price": 4, "at": at})
    old.publish("shops/3", {"price": 5, "at": {"lon": 9.5, "lat": 47.5}})
    new.publish("shops/4", {"price": 60, "at": at})
    old.publish("shops/5", {"price": 7, "at": at})

    assert [new.next()[0] for _ in range(4)] == ["shops/1", "shops/2", "shops/4", "shops/5"]
    assert [old.next()[0] for _ in range(2)] == ["shops/1", "shops/5"]
    assert new.messages.empty()
    assert old.messages.empty()


def test_a_bad_wish_is_a_failure_that_paho_sees(clients: list[Client]) -> None:
    new, old = clients
    assert [code.value for code in new.subscribe("shops/#", [("$near", "-3m")])] == [0x8F]
    assert [code.value for code in old.subscribe("$area/1,2/shops/#")] == [0x80]
    assert [code.value for code in old.subscribe("shops/9")] == [1]
