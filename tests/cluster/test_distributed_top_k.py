"""`$top` over several nodes: the best of all, whoever's clients they are."""

from math import log2
from random import Random

import msgspec
import pytest
from tests.support.town import SPACE

from nearcast.broker import SpaceSettings
from nearcast.broker.publish.message import Message, MessageHead
from nearcast.cluster.messages import TopKCandidate, decode
from nearcast.model import Attribute, Space
from nearcast.model.sphere import distance_m
from nearcast.mqtt import FilterRequest, Properties, Publish
from nearcast.simulator.mqtt_node import SimulatedClient, SimulatedNode
from nearcast.simulator.network import SimulatedLink, uniform
from nearcast.simulator.world import World

Place = tuple[float, float]


class Couriers:
    """Nodes with couriers who want orders near them, and a shop that wants the nearest few."""

    def __init__(self, nodes: int, couriers: int, seed: int, loss: float = 0.0) -> None:
        self.random = Random(seed)
        link = SimulatedLink(delay=uniform(1, 5), loss=loss)
        self.world = World(seed, link=link, keep_digest=False)
        self.names = [f"n{number}" for number in range(nodes)]
        spaces = [SpaceSettings(space=SPACE)]
        self.nodes = {
            n: self.world.add(n, SimulatedNode(n, seed, spaces=spaces)) for n in self.names
        }
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


@pytest.mark.parametrize("seed", [1, 2])
def test_the_best_by_a_blend_are_those_of_all_nodes(seed: int):
    """Vacancies on one attribute, in the interval lists of three nodes, one of them few."""
    random = Random(seed)
    world = World(seed, link=SimulatedLink(delay=uniform(1, 5)), keep_digest=False)
    jobs = Space(name="jobs", topic_filter="jobs/#", attributes=(Attribute.number("pay", 0, 100),))
    names = ["n0", "n1", "n2"]
    nodes = {
        n: world.add(n, SimulatedNode(n, seed, spaces=[SpaceSettings(space=jobs)])) for n in names
    }
    for name, node in nodes.items():
        world.perform(name, node.meet(names, world.now))
    world.run(world.now + 4_000)

    def client(name: str, home: str) -> SimulatedClient:
        made = SimulatedClient(name)
        world.perform(home, nodes[home].admit(made, world.now))
        return made

    vacancies = []
    for number in range(70):
        home = names[0] if number < 30 else names[1] if number < 65 else names[2]
        low, width = random.uniform(0, 60), random.uniform(1, 40)
        employer = client(f"e{number}", home)
        employer.subscribe(f"$where/pay={low:.6f}..{low + width:.6f}/jobs/#")
        world.perform(home, nodes[home].turn(world.now))
        vacancies.append((round(low, 6), round(low + width, 6), employer))
    applicant = client("applicant", names[1])
    world.run(world.now + 4_000)
    for number in range(12):
        pay = random.uniform(0, 100)
        wish = (("$top", "4"), ("$rank", "centre:1,narrowest:3"))
        payload = f'{{"pay": {pay!r}, "number": {number}}}'.encode()
        applicant.publish(
            Publish("jobs/a", payload, 1, properties=Properties(user_properties=wish))
        )
        world.perform(names[1], nodes[names[1]].turn(world.now))
        world.run(world.now + 300)
        scores = sorted(
            (0.75 * log2((high - low) / 100) + 0.25 * abs(2 * pay - low - high) / (high - low), at)
            for at, (low, high, _) in enumerate(vacancies)
            if low <= pay <= high
        )
        got = [at for at, one in enumerate(vacancies)
               if any(m.payload == payload for m in one[2].received)]  # fmt: skip
        assert got == sorted(at for _, at in scores[:4])


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


class Crews(Couriers):
    """Couriers of whom some work in crews (share groups), and some are away."""

    def __init__(self, seed: int) -> None:
        super().__init__(3, 0, seed)
        self.crew: dict[str, str] = {}
        self.away: set[str] = set()
        for number in range(9):
            name = f"c{number}"
            self.couriers[name] = self.client(name)
            self.move(name, self.anywhere())
            self.crew[name] = self.random.choice(["", "red", "red", "blue"])
            shared = f"$share/{self.crew[name]}/" if self.crew[name] else ""
            self.couriers[name].subscribe(f"{shared}$near/400000m/city/#")
            self.turn(name)
        self.run(1_000)

    def come_and_go(self) -> None:
        """Let some be away, and others come back."""
        for name, client in self.couriers.items():
            home = self.homes[name]
            node, is_away = self.nodes[home], self.random.random() < 0.5
            if is_away and name not in self.away:
                self.world.perform(home, node.drop(client, self.world.now))
            elif not is_away and name in self.away:
                self.world.perform(home, node.admit(client, self.world.now))
            (self.away.add if is_away else self.away.discard)(name)
        self.run(200)

    def best(self, place: Place, k: int) -> list[str]:
        """Return who gets an order, by the definition: of a crew its best member who is there."""
        names = sorted(self.places, key=lambda name: distance_m(*self.places[name], *place))
        crews: dict[str, list[str]] = {}
        for name in names:
            crews.setdefault(self.crew[name] or name, []).append(name)
        return sorted(
            next((name for name in some if name not in self.away), some[0])
            for some in list(crews.values())[:k]
        )


@pytest.mark.parametrize("seed", range(6))
def test_of_a_share_group_the_best_member_who_is_there_gets_it_at_whatever_node(seed: int):
    town = Crews(seed)
    orders = {}
    for _ in range(8):
        town.come_and_go()
        place, k = town.anywhere(), town.random.randint(1, 3)
        orders[town.order(place, k, 1)] = town.best(place, k)
        town.run(200)
    for name in town.away:
        home = town.homes[name]
        client = town.couriers[name]
        town.world.perform(home, town.nodes[home].admit(client, town.world.now))
    town.run(2_000)
    assert {payload: town.who_has(payload) for payload in orders} == orders


@pytest.mark.parametrize(
    ("rank", "bare"),
    [
        ("nearest", "$near/400000m/city/#"),
        ("weight", "$where/lon >= -1/city/#"),
        ("weight", "city/#"),
    ],
)
def test_who_stands_in_for_a_group_need_not_be_among_the_best_of_its_node(rank: str, bare: str):
    """The best member of the crew is away; the other one has a better client beside it."""
    town = Couriers(3, 0, 1)
    for name, home, wish, place, weight in (
        ("best", "n1", f"$share/red/{bare}", (0.0, 0.1), "9"),
        ("single", "n2", bare, (0.0, 0.2), "5"),
        ("second", "n2", f"$share/red/{bare}", (0.0, 0.3), "1"),
    ):
        client = town.couriers[name] = SimulatedClient(name)
        town.homes[name] = home
        town.world.perform(home, town.nodes[home].admit(client, town.world.now))
        town.move(name, place)
        assert client._talk is not None
        properties = Properties(user_properties=(("$weight", weight),))
        client._talk.subscribe(FilterRequest(wish, 1), properties=properties)
        town.turn(name)
    town.run(500)
    best = town.couriers["best"]
    town.world.perform("n1", town.nodes["n1"].drop(best, town.world.now))
    town.run(500)

    asks = Properties(user_properties=(("$top", "1"), ("$rank", rank)))
    town.shop.publish(Publish("city/order", b'{"lon": 0, "lat": 0}', 1, properties=asks))
    town.turn("shop")
    town.run(500)
    assert town.who_has(b'{"lon": 0, "lat": 0}') == ["second"]


def test_a_bid_of_a_node_of_before_counts_as_it_did():
    before = msgspec.msgpack.encode(["b", 7, [[1.5, 3, 9, "ann", "g/city/#", 1.5]]])
    (bid,) = decode(before).bids  # type: ignore[attr-defined]
    assert bid == TopKCandidate(1.5, 3, 9, "ann", "g/city/#", 1.5, is_away=False, own=None)


def place_at(town: Couriers, home: str, *names: str) -> None:
    """Let couriers at one node want orders near the same place."""
    for name in names:
        client = town.couriers[name] = SimulatedClient(name)
        town.homes[name] = home
        town.world.perform(home, town.nodes[home].admit(client, town.world.now))
        town.move(name, (0.0, 0.1))
        client.subscribe("$near/400000m/city/#")
        town.turn(name)
    town.run(500)


@pytest.mark.parametrize(
    ("home", "order"),
    [("n0", ["n0", "n1", "n2"]), ("n1", ["n1", "n0", "n2"]), ("n2", ["n2", "n0", "n1"])],
)
def test_between_equals_the_node_of_publication_comes_first_then_the_others_by_name(
    home: str, order: list[str]
):
    town = Couriers(3, 0, 1)
    town.homes["shop"] = home
    town.shop = SimulatedClient("shop at home")
    town.world.perform(home, town.nodes[home].admit(town.shop, town.world.now))
    for name in reversed(town.names):  # who subscribed first comes first at its own node only
        place_at(town, name, f"at {name}")

    for most in (1, 2, 3):
        payload = town.order((0.0, most / 10), most, 1)
        town.run(500)
        assert town.who_has(payload) == sorted(f"at {name}" for name in order[:most])


def test_a_contest_that_is_decided_is_not_held_again_after_a_crash():
    town = Couriers(2, 0, 1)
    home = town.homes["shop"]
    for name in town.names:
        place_at(town, name, f"at {name}")
    for qos in (1, 2):
        payload = town.order((0.0, qos / 10), 2, qos)
        town.run(2_000)
        assert len(town.who_has(payload)) == 2
        state = town.nodes[home].node.state
        assert [key for key in state.notes if key[:1] == b"t"] == []

        town.world.crash(home)
        town.run(500)
        town.world.restart(home)
        town.world.perform(home, town.nodes[home].restart(town.world.now))
        for name, client in [*town.couriers.items(), ("shop", town.shop)]:
            if town.homes[name] == home:
                town.world.perform(home, town.nodes[home].admit(client, town.world.now))
        town.run(10_000)
        assert len(town.who_has(payload)) == 2


def test_where_nobody_else_is_to_be_asked_a_contest_is_decided_at_once():
    town = Couriers(1, 1, 1)
    mesh = town.nodes["n0"].mesh
    payload = b'{"lon": 0, "lat": 0}'
    message = Message(MessageHead(b"\x00\x0acity/order", len(payload), 1), payload)
    mesh._top_k.call(message, (1, "nearest"), "shop", [])
    assert not mesh._top_k.is_pending

    town.turn("shop")
    assert town.who_has(payload) == ["c0"]
