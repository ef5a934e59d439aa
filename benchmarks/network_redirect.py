"""What the near broker saves: messages between nodes per delivery, with redirects off and on.

People with `$near` live on four simulated nodes (the real code, simulated time) that follow a plan.
The day begins at home, and everybody is connected to the node that holds that place. After ten
minutes they go to work, stay there for half an hour, and walk about within 200 m. With redirects
on, clients follow every offer. Who gets what is compared with brute force.

    python benchmarks/network_redirect.py [PEOPLE] [SEED]
"""

from __future__ import annotations

import json
import math
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

from nearcast.broker import BrokerSettings, SpaceSettings
from nearcast.cluster import NamedPlan
from nearcast.locality import CellCounts, Plan, assign_leaves
from nearcast.locality.registration.redirect_policy import RedirectRules
from nearcast.model import EARTH_RADIUS_M, Attribute, Space, distance_m
from nearcast.mqtt import Publish
from nearcast.simulator.mqtt_node import SimulatedClient, SimulatedNode
from nearcast.simulator.network import SimulatedLink, uniform
from nearcast.simulator.world import World

NODES = ["n0", "n1", "n2", "n3"]
SIDE_M, RADIUS_M, ABOUT_M = 4_000.0, 300.0, 200.0
HOME_S, WORK_S, LAST_S = 600, 1_800, 900
MOVE_S, TELL_S = 10, 20
_PER_DEGREE = math.pi * EARTH_RADIUS_M / 180
SIDE = SIDE_M / _PER_DEGREE
SPACE = Space(
    name="city",
    topic_filter="city/#",
    attributes=(Attribute.number("lon", -1, 1), Attribute.number("lat", -1, 1)),
    longitude="lon",
    latitude="lat",
)
Place = tuple[float, float]


@dataclass
class Person:
    client: SimulatedClient
    home: Place
    work: Place
    node: str
    place: Place = (0.0, 0.0)
    due: Counter[bytes] = field(default_factory=Counter)


class RedirectedCity:
    """The nodes, the people, and what each of them must have received."""

    def __init__(self, people: int, seed: int, rules: RedirectRules | None) -> None:
        self.rng = random.Random(seed)
        self.world = World(seed, link=SimulatedLink(delay=uniform(1, 3)), keep_digest=False)
        settings = BrokerSettings(position_journal_ms=60_000)
        spaces = [SpaceSettings(space=SPACE)]
        self.nodes = {
            name: self.world.add(
                name, SimulatedNode(name, seed, settings=settings, spaces=spaces, redirect=rules)
            )
            for name in NODES
        }
        for node in self.nodes.values():
            self.world.perform(node.name, node.meet(NODES, self.world.now))
        places = [(self._anywhere(), self._anywhere()) for _ in range(people)]
        self.plan = self._share_plan([place for both in places for place in both])
        self.run(3_000)
        self.people = [
            Person(SimulatedClient(f"p{number}"), home, work, self.holder(home))
            for number, (home, work) in enumerate(places)
        ]
        self.told = self.moved = 0
        for one in self.people:
            self.admit(one)
        self.run(1_000)
        for one in self.people:
            self.move(one, one.home)
            one.client.subscribe(f"$near/{RADIUS_M:g}m/city/#")
            self.turn(one)
        self.run(1_000)

    def _anywhere(self) -> Place:
        return (self.rng.random() * SIDE, self.rng.random() * SIDE)

    def _share_plan(self, places: list[Place]) -> NamedPlan:
        whole = (0.0, 0.0, SIDE, SIDE)
        xs, ys = ([place[axis] for place in places] for axis in (0, 1))
        counts = CellCounts.from_positions(whole, [], xs, ys, depth=6)
        plan = Plan.build(whole, [], counts, capacity=max(4, len(places) // 16), version=1)
        loads = [leaf.load for leaf in plan.leaves]
        plan = plan.with_brokers(assign_leaves(plan, {}, len(NODES), loads).brokers)
        named = NamedPlan(plan, tuple(NODES))
        for node in self.nodes.values():
            self.world.perform(node.name, node.use_plan(named, self.world.now))
        return named

    def holder(self, place: Place) -> str:
        return NODES[self.plan.plan.broker_of(self.plan.plan.leaf_at(*place).number)]

    def run(self, ms: int) -> None:
        self.world.run(self.world.now + ms)

    def admit(self, one: Person) -> None:
        node = self.nodes[one.node]
        self.world.perform(one.node, node.admit(one.client, self.world.now))

    def turn(self, one: Person) -> None:
        self.world.perform(one.node, self.nodes[one.node].turn(self.world.now))

    def move(self, one: Person, place: Place) -> None:
        one.place = place
        one.client.publish(Publish("$position", _payload(place), 1))
        self.turn(one)

    def tell(self, one: Person) -> None:
        self.told += 1
        payload = _payload(one.place, self.told)
        for other in self.people:
            if distance_m(*other.place, *one.place) <= RADIUS_M:
                other.due[payload] += 1
        one.client.publish(Publish("city/news", payload, 1 + self.told % 2))
        self.turn(one)

    def live(self, seconds: int, *, at_work: bool) -> None:
        """Let everybody walk about and tell, each at moments of their own."""
        steps = []
        for one in self.people:
            for every_s, do in ((MOVE_S, self._walk), (TELL_S, self._tell)):
                first = self.rng.randrange(every_s * 1000)
                times = range(first, seconds * 1000, every_s * 1000)
                steps += [(at, self.rng.random(), do, one) for at in times]
        began = self.world.now
        for at, _, do, one in sorted(steps, key=lambda step: step[:2]):
            self.run(max(1, began + at - self.world.now))  # no two things in one instant
            self._follow()
            if one.client.is_connected:
                do(one, at_work)

    def _walk(self, one: Person, at_work: bool) -> None:
        lon, lat = one.work if at_work else one.home
        east, north = (self.rng.uniform(-ABOUT_M, ABOUT_M) / _PER_DEGREE for _ in "ab")
        self.move(one, (min(max(lon + east, 0), SIDE), min(max(lat + north, 0), SIDE)))

    def _tell(self, one: Person, _at_work: bool) -> None:
        self.tell(one)

    def _follow(self) -> None:
        for one in self.people:
            if one.client.referred_to is not None and not one.client.is_connected:
                one.node, one.client.referred_to = one.client.referred_to.split(":")[0], None
                self.moved += 1
                self.admit(one)

    def messages(self) -> int:
        return sum(node.mesh.counts.messages_sent for node in self.nodes.values())

    def received(self) -> int:
        return sum(len(one.client.received) for one in self.people)

    def mistakes(self) -> tuple[int, int]:
        """Return how many deliveries are missing, and how many are too much."""
        missing = extra = 0
        for one in self.people:
            got = Counter(message.payload for message in one.client.received)
            missing += (one.due - got).total()
            extra += (got - one.due).total()
        return missing, extra

    def at_holder(self) -> int:
        return sum(one.node == self.holder(one.place) for one in self.people)


def _payload(place: Place, number: int = 0) -> bytes:
    return json.dumps({"lon": place[0], "lat": place[1], "id": number}).encode()


def measure(people: int, seed: int, rules: RedirectRules | None) -> None:
    began_s = time.perf_counter()
    city = RedirectedCity(people, seed, rules)
    print(f"redirect {'off' if rules is None else 'offer'}, {people} people, seed {seed}")
    for text, seconds, at_work in (
        ("at home", HOME_S, False),
        ("at work, the first 15 minutes", WORK_S - LAST_S, True),
        ("at work, the last 15 minutes", LAST_S, True),
    ):
        messages, received = city.messages(), city.received()
        city.live(seconds, at_work=at_work)
        messages, received = city.messages() - messages, city.received() - received
        print(
            f"  {text}: {messages} messages, {received} deliveries, {messages / received:.2f} each;"
            f" {city.at_holder()} at the holder of their place, {city.moved} moved so far",
            flush=True,
        )
    city.run(10_000)
    missing, extra = city.mistakes()
    counts = [node.mesh.counts for node in city.nodes.values()]
    offered = sum(one.redirects_offered for one in counts)
    followed = sum(one.redirects_followed for one in counts)
    print(f"  offered {offered}, followed {followed}, missing {missing}, too much {extra}")
    print(f"  took {time.perf_counter() - began_s:.0f} s")


def main() -> None:
    people = int(sys.argv[1]) if len(sys.argv) > 1 else 120
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    for rules in (None, RedirectRules()):
        measure(people, seed, rules)


if __name__ == "__main__":
    main()
