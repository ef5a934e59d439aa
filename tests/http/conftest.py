"""A broker with operators, a space and a crowd of clients, for all tests of a file."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt.client import Client, MQTTMessage, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from tests.support.broker_process import BrokerProcess
from tests.support.http_caller import Caller
from tests.support.waiting import wait_for

from nearcast.server.http.operators import set_operator

SHOPS = {
    "name": "shops",
    "topics": "shops/#",
    "longitude": "lon",
    "latitude": "lat",
    "attributes": {
        "lon": {"low": -180, "high": 180},
        "lat": {"low": -90, "high": 90},
        "price": {"low": 0, "high": 1000},
        "kind": {"categories": ["food", "tools"]},
    },
}
PASSWORD = "correct horse"


@dataclass
class ManagedBroker:
    """A broker with an operator (ann), a viewer (vic) and an operator's token."""

    broker: BrokerProcess
    token: str

    @property
    def port(self) -> int:
        return self.broker.ports["http"]

    def nobody(self) -> Caller:
        return Caller(self.port)

    def operator(self) -> Caller:
        return Caller(self.port).log_in("ann", PASSWORD)

    def viewer(self) -> Caller:
        return Caller(self.port).log_in("vic", PASSWORD)

    def program(self) -> Caller:
        return Caller(self.port, headers={"Authorization": f"Bearer {self.token}"})


def managed(directory: Path, http: dict[str, Any] | None = None, **sections: Any) -> ManagedBroker:
    """Start a broker with operators."""
    path = directory / "operators.txt"
    set_operator(path, "ann", "operator", PASSWORD.encode())
    set_operator(path, "vic", "viewer", PASSWORD.encode())
    token = set_operator(path, "bot", "operator", None)
    assert token is not None
    section = {"address": "127.0.0.1:0", "operators": str(path), **(http or {})}
    broker = BrokerProcess(directory, **{"http": section, "space": [SHOPS], **sections})
    return ManagedBroker(broker.start(), token)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ManagedBroker]:
    one = managed(tmp_path_factory.mktemp("managed"))
    yield one
    one.broker.end(signal.SIGKILL)


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[Callable[..., BrokerProcess]]:
    started: list[BrokerProcess] = []

    def start(**sections: Any) -> BrokerProcess:
        started.append(BrokerProcess(tmp_path, **sections).start())
        return started[-1]

    yield start
    for one in started:
        one.end(signal.SIGKILL)


@pytest.fixture
def start_site(tmp_path: Path) -> Iterator[Callable[..., ManagedBroker]]:
    started: list[ManagedBroker] = []

    def start(http: dict[str, Any] | None = None, **sections: Any) -> ManagedBroker:
        directory = tmp_path / f"managed{len(started)}"
        directory.mkdir()
        started.append(managed(directory, http, **sections))
        return started[-1]

    yield start
    for one in started:
        one.broker.end(signal.SIGKILL)


class Mover:
    """An MQTT 5 client with a position."""

    def __init__(self, port: int, name: str, **options: Any) -> None:
        self.got: list[MQTTMessage] = []
        self.codes: list[Any] = []
        self.refused: list[Any] = []
        self.granted: list[Any] = []
        self.ended: list[Any] = []
        self.client = Client(CallbackAPIVersion.VERSION2, name, protocol=MQTTv5, **options)
        self.client.on_message = lambda _c, _u, message: self.got.append(message)
        self.client.on_connect = lambda _c, _u, _f, code, _p: self.codes.append(code)
        self.client.on_subscribe = lambda _c, _u, _m, codes, _p: self.granted.extend(codes)
        self.client.on_disconnect = lambda _c, _u, _f, code, _p: self.ended.append(code)
        self._host, self._port = "127.0.0.1", port

    def connect(self, position: tuple[float, float] | None = None, **options: Any) -> Mover:
        properties = Properties(PacketTypes.CONNECT)
        if position is not None:
            pairs = list(zip(("lon", "lat"), map(str, position), strict=True))
            properties.UserProperty = pairs
        for name, value in options.items():
            setattr(properties, name, value)
        self.client.connect(self._host, self._port, properties=properties)
        self.client.loop_start()
        wait_for(lambda: self.codes)
        return self

    def subscribe(self, topic_filter: str, qos: int = 0) -> Any:
        before = len(self.granted)
        self.client.subscribe(topic_filter, qos)
        wait_for(lambda: len(self.granted) > before)
        return self.granted[-1]

    def move(self, lon: float, lat: float) -> None:
        self.client.publish("$position", json.dumps({"lon": lon, "lat": lat}))

    def end(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()
        for one in (self.client._sockpairR, self.client._sockpairW):  # it leaves them open
            if one is not None:
                one.close()


@pytest.fixture
def mover(site: ManagedBroker) -> Iterator[Callable[..., Mover]]:
    """Return what connects a client to the broker, with a position."""
    made: list[Mover] = []

    def make(name: str, position: tuple[float, float] | None = None, **options: Any) -> Mover:
        made.append(Mover(site.broker.port, name).connect(position, **options))
        return made[-1]

    yield make
    for one in made:
        one.end()


@pytest.fixture
def page(site: ManagedBroker) -> Iterator[Callable[..., Mover]]:
    """Return what connects a page's MQTT client, with the login of a caller."""
    made: list[Mover] = []

    def make(caller: Caller, name: str, **headers: str) -> Mover:
        one = Mover(site.port, name, transport="websockets")
        one.client.ws_set_options(path="/mqtt", headers={"Cookie": caller.cookie, **headers})
        made.append(one.connect())
        return one

    yield make
    for one in made:
        one.end()
