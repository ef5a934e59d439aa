"""A client's step that was acknowledged survives a crash, also for what is published elsewhere."""

import json

import pytest
from tests.support.town import SPACE

from nearcast.broker import SpaceSettings
from nearcast.mqtt import Publish
from nearcast.simulator.mqtt_node import SimulatedClient, SimulatedNode
from nearcast.simulator.network import SimulatedLink, uniform
from nearcast.simulator.world import World

OLD, NEW = (0.1, 0.1), (0.5, 0.5)


class Pair:
    """A walker at one node, a shop at another."""

    def __init__(self) -> None:
        self.world = World(1, link=SimulatedLink(delay=uniform(1, 3)), keep_digest=False)
        spaces = [SpaceSettings(space=SPACE)]
        self.nodes = {name: SimulatedNode(name, 1, spaces=spaces) for name in ("here", "there")}
        for name, node in self.nodes.items():
            self.world.add(name, node)
        for name, node in self.nodes.items():
            self.world.perform(name, node.meet(list(self.nodes), self.world.now))
        self.run(1_000)
        self.walker, self.shop = SimulatedClient("walker"), SimulatedClient("shop")
        self.admit("here", self.walker)
        self.admit("there", self.shop)
        self.walker.subscribe("$near/500m/city/#", 1)
        self.turn("here")
        self.run(1_000)

    def run(self, ms: int) -> None:
        self.world.run(self.world.now + ms)

    def admit(self, name: str, client: SimulatedClient) -> None:
        self.world.perform(name, self.nodes[name].admit(client, self.world.now))

    def turn(self, name: str) -> None:
        self.world.perform(name, self.nodes[name].turn(self.world.now))

    def step(self, place: tuple[float, float], qos: int) -> None:
        payload = json.dumps({"lon": place[0], "lat": place[1]}).encode()
        self.walker.publish(Publish("$position", payload, qos))
        self.turn("here")
        self.run(100)

    def offer(self, place: tuple[float, float]) -> None:
        payload = json.dumps({"lon": place[0], "lat": place[1]}).encode()
        self.shop.publish(Publish("city/x", payload, 1))
        self.turn("there")

    def heard(self) -> list[tuple[float, float]]:
        values = [json.loads(one.payload) for one in self.walker.received]
        return [(one["lon"], one["lat"]) for one in values]


@pytest.mark.parametrize("qos", [1, 2])
def test_what_is_offered_where_a_client_stood_before_the_crash_reaches_it(qos: int):
    pair = Pair()
    pair.step(OLD, qos)
    pair.step(NEW, qos)
    pair.run(2_000)

    pair.world.crash("here")
    pair.offer(NEW)
    pair.offer(OLD)
    pair.run(500)
    pair.world.restart("here")
    pair.world.perform("here", pair.nodes["here"].restart(pair.world.now))
    pair.run(500)
    pair.admit("here", pair.walker)
    pair.run(8_000)

    assert pair.heard() == [NEW]
