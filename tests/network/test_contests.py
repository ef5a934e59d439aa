"""`$top` over several nodes: the best of all, whoever's clients they are."""

from random import Random

import pytest

from nearcast.model.sphere import distance_m
from nearcast.mqtt import Properties, Publish
from nearcast.node import SpaceSettings
from nearcast.simulator.mqtt_node import MqttNode, SimulatedClient
from nearcast.simulator.network import Link, uniform
from nearcast.simulator.town import SPACE
from nearcast.simulator.world import World

Place = tuple[float, float]


class Couriers:
    """Nodes with couriers who want orders near them, and a shop that wants the nearest few."""

    def __init__(self, nodes: int, couriers: int, seed: int, loss: float = 0.0) -> None:
        self.random = Random(seed)
        link = Link(delay=uniform(1, 5), loss=loss)
        self.world = World(seed, link=link, keep_digest=False)
        self.names = [f"n{number}" for number in range(nodes)]
        spaces = [SpaceSettings(space=SPACE)]
        self.nodes = {n: self.world.add(n, MqttNode(n, seed, spaces=spaces)) for n in self.names}
        for name, node in self.nodes.items():
            self.world.perform(name, node.meet(self.names, self.world.now))
        self.run(4_000)
        self.homes: dict[str, str] = {}
        self.couriers: dict[str, SimulatedClient] = {}
        self.places: dict[str, Place] = {}
        for number in range(couriers):
            name = f"c{number}"
            client = self.couriers[name] = self.client(name)
            self.move(name, self.anywhere())
            client.subscribe("$near/400000m/city/#")
            self.turn(name)
        self.shop = self.client("shop")
        self.run(4_000)

    def client(self, name: str) -> SimulatedClient:
        client = SimulatedClient(name)
        self.homes[name] = home = self.random.choice(self.names)
        self.world.perform(home, self.nodes[home].admit(client, self.world.now))
        return client

    def run(self, ms: int) -> None:
        self.world.run(self.world.now + ms)

    def turn(self, name: str) -> None:
        home = self.homes[name]
        self.world.perform(home, self.nodes[home].turn(self.world.now))

    def anywhere(self) -> Place:
        return (self.random.uniform(-0.9, 0.9), self.random.uniform(-0.9, 0.9))

    def move(self, name: str, place: Place) -> None:
        self.places[name] = place
        payload = f'{{"lon": {place[0]}, "lat": {place[1]}}}'.encode()
        self.couriers[name].publish(Publish("$position", payload, 1))
        self.turn(name)

    def order(self, place: Place, k: int, qos: int) -> bytes:
        payload = f'{{"lon": {place[0]}, "lat": {place[1]}}}'.encode()
        wish = Properties(user_properties=(("$top", str(k)), ("$rank", "nearest")))
        self.shop.publish(Publish("city/order", payload, qos, properties=wish))
        self.turn("shop")
        return payload

    def nearest(self, place: Place, k: int) -> set[str]:
        by_distance = sorted(self.places, key=lambda name: distance_m(*self.places[name], *place))
        return set(by_distance[:k])

    def who_has(self, payload: bytes) -> list[str]:
        return sorted(
            name
            for name, client in self.couriers.items()
            for one in client.received
            if one.payload == payload
        )


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_an_order_reaches_the_nearest_couriers_of_all_nodes(qos: int):
    town = Couriers(4, 12, qos)
    for number in range(15):
        town.move(f"c{number % 12}", town.anywhere())
        place, k = town.anywhere(), town.random.randint(1, 5)
        payload = town.order(place, k, qos)
        expected = town.nearest(place, k)
        town.run(200)
        assert town.who_has(payload) == sorted(expected)
    assert town.shop.unsettled == 0


def test_a_node_that_is_away_does_not_hold_up_the_others():
    town = Couriers(3, 9, 5)
    away = next(name for name in town.names if name != town.homes["shop"])
    town.world.crash(away)
    payload = town.order((0.0, 0.0), 2, 1)
    town.run(8_000)
    here = [name for name in town.places if town.homes[name] != away]
    got = town.who_has(payload)
    assert len(got) == 2
    assert set(got) <= set(here)


@pytest.mark.parametrize("seed", range(4))
def test_a_crash_in_the_middle_of_a_contest_loses_and_doubles_nothing(seed: int):
    town = Couriers(3, 6, seed, loss=0.1)
    home = town.homes["shop"]
    payload = town.order((0.1, 0.1), 2, 2)
    town.run(town.random.randint(0, 4))
    town.world.crash(home)
    for name, client in [*town.couriers.items(), ("shop", town.shop)]:
        if town.homes[name] == home:
            client.lose()
    town.run(1_000)
    town.world.restart(home)
    town.world.perform(home, town.nodes[home].restart(town.world.now))
    for name, client in [*town.couriers.items(), ("shop", town.shop)]:
        if town.homes[name] == home:
            town.world.perform(home, town.nodes[home].admit(client, town.world.now))
    town.run(30_000)
    got = town.who_has(payload)
    assert len(got) == len(set(got)) == 2
