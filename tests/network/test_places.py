"""Clients that move, on several real nodes: who was near when it happened hears of it, once."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearcast.locality import Counts, Plan, Timing
from nearcast.model import Attribute, Event, Space, Subscription, parse_shape
from nearcast.mqtt import Publish
from nearcast.network import NamedPlan
from nearcast.node import NodeSettings, SpaceSettings
from nearcast.simulator.mqtt_node import MqttNode, SimulatedClient
from nearcast.simulator.network import Link, uniform
from nearcast.simulator.world import World

assert settings.default is not None
RUNS = max(3, settings.default.max_examples // 5)

SPACE = Space(
    name="city",
    topic_filter="city/#",
    attributes=(Attribute.number("lon", -1, 1), Attribute.number("lat", -1, 1)),
    longitude="lon",
    latitude="lat",
)
PATIENCE = Timing(retry_ms=100, most_retry_ms=800, probe_ms=500, horizon_ms=200_000)
Place = tuple[float, float]


def a_plan(nodes: list[str], seed: int, version: int = 1) -> NamedPlan:
    """Return a plan with a slow region and some Q leaves, shared out over the nodes."""
    random = Random(seed)
    region = (-0.5, -0.5, random.uniform(-0.3, 0.2), random.uniform(-0.3, 0.2))
    xs = [random.uniform(-0.99, 0.99) for _ in range(200)]
    ys = [random.uniform(-0.99, 0.99) for _ in range(200)]
    counts = Counts.from_positions((-0.99, -0.99, 0.99, 0.99), [region], xs, ys, depth=5)
    plan = Plan.build((-0.99, -0.99, 0.99, 0.99), [region], counts, capacity=40, version=version)
    brokers = [random.randrange(len(nodes)) for _ in plan.leaves]
    return NamedPlan(plan.with_brokers(brokers), tuple(nodes))


class Town:
    """Nodes, moving clients, and the truth: who was where when an event was published."""

    def __init__(self, nodes: int, seed: int, link: Link | None = None) -> None:
        self.random = Random(seed)
        self.world = World(seed, link=link or Link(delay=uniform(1, 5)), keep_digest=False)
        self.names = [f"n{number}" for number in range(nodes)]
        self.nodes = {}
        for name in self.names:
            node = MqttNode(
                name,
                seed,
                settings=NodeSettings(position_journal_ms=0),
                spaces=[SpaceSettings(space=SPACE)],
                patience=PATIENCE,
            )
            self.nodes[name] = self.world.add(name, node)
        self.homes: dict[str, str] = {}
        self.places: dict[str, Place] = {}
        self.wishes: dict[str, Subscription] = {}
        self.due: dict[str, Counter[bytes]] = {}
        self.clients: dict[str, SimulatedClient] = {}
        self.serial = 0
        for name in self.names:
            self.world.perform(name, self.nodes[name].meet(self.names, self.world.now))
        self.run(2_000)

    def run(self, ms: int) -> None:
        self.world.run(self.world.now + ms)

    def client(self, name: str, home: str) -> SimulatedClient:
        client = self.clients[name] = SimulatedClient(name)
        self.homes[name] = home
        self.due[name] = Counter()
        self.admit(client)
        return client

    def admit(self, client: SimulatedClient) -> None:
        home = self.homes[client.name]
        self.world.perform(home, self.nodes[home].admit(client, self.world.now))

    def say(self, client: SimulatedClient, topic: str, payload: str, qos: int = 1) -> None:
        home = self.homes[client.name]
        client.publish(Publish(topic, payload.encode(), qos))
        self.world.perform(home, self.nodes[home].turn(self.world.now))

    def subscribe(self, client: SimulatedClient, text: str, wish: Subscription) -> None:
        home = self.homes[client.name]
        client.subscribe(text)
        self.wishes[client.name] = wish
        self.world.perform(home, self.nodes[home].turn(self.world.now))

    def move(self, client: SimulatedClient, place: Place) -> None:
        self.places[client.name] = place
        self.say(client, "$position", f'{{"lon": {place[0]}, "lat": {place[1]}}}')

    def publish(self, client: SimulatedClient, place: Place, qos: int = 1) -> None:
        self.serial += 1
        payload = f'{{"lon": {place[0]}, "lat": {place[1]}, "id": {self.serial}}}'
        event = Event.of(SPACE, "city/news", {"lon": place[0], "lat": place[1]})
        for name, wish in self.wishes.items():
            if wish.covers(event, self.places.get(name)):
                self.due[name][payload.encode()] += 1
        self.say(client, "city/news", payload, qos)

    def anywhere(self) -> Place:
        return (self.random.randint(-95, 95) / 100, self.random.randint(-95, 95) / 100)

    def check(self) -> None:
        for name in self.wishes:
            got = Counter(one.payload for one in self.clients[name].received)
            assert got == self.due[name], f"{name} at {self.homes[name]}"


def a_town(nodes: int, seed: int, link: Link | None = None) -> Town:
    town = Town(nodes, seed, link)
    for number in range(6):
        client = town.client(f"c{number}", town.random.choice(town.names))
        if number % 3:
            radius_m = town.random.choice([20_000, 60_000])
            wish = Subscription(topic_filter="city/#", near_m=radius_m)
            town.move(client, town.anywhere())
            town.subscribe(client, f"$near/{radius_m}m/city/#", wish)
        else:
            west, south = town.random.randint(-90, 0) / 100, town.random.randint(-90, 0) / 100
            text = f"$area/{west},{south},{west + 0.8},{south + 0.7}/city/#"
            area = parse_shape(f"bbox({west},{south},{west + 0.8},{south + 0.7})")
            town.subscribe(client, text, Subscription(topic_filter="city/#", area=area))
    town.client("w", town.random.choice(town.names))
    town.run(8_000)
    return town


def wander(town: Town, steps: int) -> None:
    for _ in range(steps):
        name = town.random.choice([one for one in town.clients if one != "w"])
        client = town.clients[name]
        if name in town.places and client.is_connected:
            town.move(client, town.anywhere())
        writer = town.clients["w"]
        if writer.is_connected:
            town.publish(writer, town.anywhere(), qos=town.random.choice([1, 2]))
        town.run(town.random.randint(1, 40))  # instants are milliseconds: no two things in one


@pytest.mark.parametrize("with_plan", [False, True])
def test_who_is_near_hears_of_it_on_whatever_node(with_plan: bool):
    town = a_town(4, 7)
    if with_plan:
        plan = a_plan(town.names, 7)
        for name in town.names:
            town.world.perform(name, town.nodes[name].use_plan(plan, town.world.now))
        town.run(2_000)
        assert {node.mesh.plans for node in town.nodes.values()} == {(1, 0)}
    wander(town, 120)
    town.run(5_000)
    assert sum(sum(one.values()) for one in town.due.values()) > 30
    town.check()


def test_a_change_of_plan_loses_and_doubles_nothing():
    town = a_town(4, 8)
    for version in range(1, 6):
        plan = a_plan(town.names, version, version)
        for name in town.names:
            wander(town, 3)
            town.world.perform(name, town.nodes[name].use_plan(plan, town.world.now))
        wander(town, 10)
    town.run(5_000)
    assert {node.mesh.plans for node in town.nodes.values()} == {(5, 0)}
    town.check()


@settings(max_examples=RUNS)
@given(st.integers(0, 100_000))
def test_faults_and_plans_lose_nothing_acknowledged_and_double_nothing(seed: int):
    random = Random(seed)
    loss = random.choice([0.0, 0.1, 0.25])
    link = Link(delay=uniform(1, 15), loss=loss, duplication=loss / 2)
    town = a_town(random.randint(2, 4), seed, link)
    town.run(10_000)
    version = 0
    for _ in range(8):
        wander(town, 5)
        kind = random.choice(["plan", "cut", "crash"])
        name = random.choice(town.names)
        if kind == "plan":
            version += 1
            plan = a_plan(town.names, seed + version, version)
            for one in town.names:
                town.world.perform(one, town.nodes[one].use_plan(plan, town.world.now))
                wander(town, random.randint(0, 2))
        elif kind == "cut":
            others = [one for one in town.names if one != name]
            town.world.network.partition([[name], others])
            wander(town, 5)
            town.run(random.randint(1, 4_000))
            town.world.network.heal()
        else:
            town.run(10_000)  # where clients were before a crash is on disk; how they got there not
            town.world.crash(name)
            for client in town.clients.values():
                if town.homes[client.name] == name:
                    client.lose()
            town.run(random.randint(1, 4_000))
            town.world.restart(name)
            town.world.perform(name, town.nodes[name].restart(town.world.now))
            for client in town.clients.values():
                if not client.is_connected:
                    town.admit(client)
    town.world.network.link = Link(delay=uniform(1, 3))
    town.run(60_000)
    assert {node.mesh.plans for node in town.nodes.values()} == {(version, 0)}
    assert town.clients["w"].unsettled == 0
    town.check()
