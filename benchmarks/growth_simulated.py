"""Nodes in the simulator under a plan that was made for many users, for `growth.py`.

The code of the nodes runs in simulated time, with clients that have `$near`, move each five
minutes, and publish now and then where they are. A step of five minutes is played in one second,
with a horizon just below: so the nodes forget between two steps what they forget in five minutes,
and need not be simulated while nothing happens. Who gets what is compared with brute force.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
from benchmarks.growth_paper import PER_DEGREE, RADIUS_M, People, texts
from benchmarks.made_movement import STEP_S
from numpy.typing import NDArray

from nearcast.broker import SpaceSettings
from nearcast.cluster import LinkTiming, NamedPlan
from nearcast.cluster.spatial_routing import PATIENCE
from nearcast.locality.layout.plan import Plan
from nearcast.model import Attribute, Space, distance_m
from nearcast.mqtt import Publish
from nearcast.simulator.mqtt_node import SimulatedClient, SimulatedNode
from nearcast.simulator.network import SimulatedLink, uniform
from nearcast.simulator.world import World

_FOREVER_MS = 1_000_000_000
_HALF_MS = 500  # of a step
TIMING = replace(PATIENCE, horizon_ms=900, probe_ms=_FOREVER_MS, lease_ms=_FOREVER_MS)
_LINKS = LinkTiming(hello_ms=200, beat_ms=_FOREVER_MS, silence_ms=2 * _FOREVER_MS)
_NEAR_DEGREES = 1.01 * RADIUS_M / PER_DEGREE
Place = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Simulated:
    """What the nodes said in some hours of some people, and what these people got."""

    people: int
    hours: float
    events: int
    messages: int
    handovers: int
    delivered: int

    def line(self, events_h: float) -> str:
        """Return it as the paper does (`Paper.line`)."""
        user_hours = self.people * self.hours
        return texts(self.handovers / user_hours, self.messages / user_hours, events_h)


def simulated(
    plan: Plan, brokers: NDArray[np.int32], nodes: int, people: People, events_h: float
) -> Simulated:
    """Play the steps of some people on so many nodes."""
    return _Run(plan, brokers, nodes, people).play(events_h)


class _Run:
    def __init__(self, plan: Plan, brokers: NDArray[np.int32], nodes: int, people: People) -> None:
        self._people = people
        names = [f"n{number}" for number in range(nodes)]
        named = NamedPlan(plan.with_brokers(brokers.tolist(), 1), tuple(names))
        space = Space(
            name="city",
            topic_filter="city/#",
            attributes=(Attribute.number("lon", -180, 180), Attribute.number("lat", -90, 90)),
            longitude="lon",
            latitude="lat",
        )
        self._world = World(1, link=SimulatedLink(delay=uniform(1, 3)), keep_digest=False)
        self._nodes = {
            name: self._world.add(
                name,
                SimulatedNode(
                    name, 1, spaces=[SpaceSettings(space=space)], patience=TIMING,
                    link_timing=_LINKS,
                ),
            )
            for name in names
        }  # fmt: skip
        for name, node in self._nodes.items():
            self._world.perform(name, node.meet(names, self._world.now))
        self._run(2_000)
        for name, node in self._nodes.items():
            self._world.perform(name, node.use_plan(named, self._world.now))
        self._run(2_000)
        leaves = plan.leaf_numbers_at(people.home_lons, people.home_lats)
        self._homes = [names[brokers[leaf]] for leaf in leaves.tolist()]
        self._clients = [
            SimulatedClient(f"p{number}", 0, is_clean=True) for number in range(len(self._homes))
        ]

    def _run(self, ms: int) -> None:
        self._world.run(self._world.now + ms)

    def _turn(self, person: int) -> None:
        home = self._homes[person]
        self._world.perform(home, self._nodes[home].turn(self._world.now))

    def _publish(self, person: int, topic: str, place: Place) -> None:
        self._clients[person].publish(Publish(topic, payload_of(place), 1))
        self._turn(person)

    def play(self, events_h: float) -> Simulated:
        """Play all steps; people publish so often, at random."""
        rng = np.random.default_rng(1)
        steps = self._places(0)
        for person, (client, place) in enumerate(zip(self._clients, steps, strict=True)):
            home = self._homes[person]
            self._world.perform(home, self._nodes[home].admit(client, self._world.now))
            self._publish(person, "$position", place)
            client.subscribe(f"$near/{RADIUS_M:g}m/city/#", 1)
            self._turn(person)
        self._run(2 * _HALF_MS)
        before = self._counts()
        events = delivered = 0
        for step in range(1, self._people.lons.shape[1]):
            places = self._places(step)
            for person, place in enumerate(places):
                self._publish(person, "$position", place)
                self._clients[person].received.clear()
            self._run(_HALF_MS)
            share = events_h * STEP_S / 3600
            tellers = np.flatnonzero(rng.random(len(places)) < share).tolist()
            for person in tellers:
                self._publish(person, "city/news", places[person])
            self._run(_HALF_MS)
            events += len(tellers)
            delivered += self._checked(places, tellers)
        messages, handovers = np.subtract(self._counts(), before).tolist()
        people = len(self._clients)
        return Simulated(people, self._people.hours, events, messages, handovers, delivered)

    def _places(self, step: int) -> list[Place]:
        lons, lats = self._people.lons[:, step], self._people.lats[:, step]
        return list(zip(lons.tolist(), lats.tolist(), strict=True))

    def _counts(self) -> tuple[int, int]:
        meshes = [node.mesh for node in self._nodes.values()]
        return sum(one.counts.messages_sent for one in meshes), sum(m.handovers for m in meshes)

    def _checked(self, places: list[Place], tellers: list[int]) -> int:
        """Return how many deliveries there were; raise if they are not those that were due."""
        due: list[Counter[bytes]] = [Counter() for _ in places]
        for teller in tellers:
            payload = payload_of(places[teller])
            for person, place in enumerate(places):
                if (
                    abs(place[0] - places[teller][0]) <= _NEAR_DEGREES
                    and abs(place[1] - places[teller][1]) <= _NEAR_DEGREES
                    and distance_m(*places[teller], *place) <= RADIUS_M
                ):
                    due[person][payload] += 1
        for client, wanted in zip(self._clients, due, strict=True):
            if Counter(one.payload for one in client.received) != wanted:
                raise RuntimeError("the simulated nodes delivered something else than is due")
        return sum(wanted.total() for wanted in due)


def payload_of(place: Place) -> bytes:
    return f'{{"lon":{place[0]:.6f},"lat":{place[1]:.6f}}}'.encode()
