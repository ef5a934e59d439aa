"""A city where all move and few publish: nodes say less than a third of what flooding would."""

import math

import numpy as np
import pytest
from tests.support.simulated_city import SimulatedCity
from tests.support.town import SPACE

from nearcast.broker import SpaceSettings
from nearcast.cluster import NamedPlan
from nearcast.locality import CellCounts, Plan, Rect, assign_leaves
from nearcast.model import EARTH_RADIUS_M, distance_m
from nearcast.simulator.movers import RandomWaypoints
from nearcast.simulator.mqtt_node import SimulatedClient

SIDE_M, RADIUS_M, STEP_S, PEOPLE = 6_000.0, 300.0, 5.0, 100
_PER_DEGREE = math.pi * EARTH_RADIUS_M / 180
Place = tuple[float, float]


def payload(place: Place) -> bytes:
    return f'{{"lon":{place[0]:.6f},"lat":{place[1]:.6f}}}'.encode()


class Crowd:
    """People with `$near`, each at the node that held the place where the day began."""

    def __init__(self, nodes: int) -> None:
        self.city = SimulatedCity(nodes, spaces=[SpaceSettings(space=SPACE)])
        self.random = np.random.default_rng(nodes)
        square = Rect(0.0, 0.0, SIDE_M, SIDE_M)
        speeds = [3.5, 10.5] * (PEOPLE // 2)
        self._movers = RandomWaypoints([square] * PEOPLE, speeds, self.random)
        self._follow_a_plan()
        self.people = [self._person(n, place) for n, place in enumerate(self.places())]
        self.city.run(1_000)

    def places(self) -> list[Place]:
        xs, ys = self._movers.xs / _PER_DEGREE, self._movers.ys / _PER_DEGREE
        return list(zip(xs.round(6).tolist(), ys.round(6).tolist(), strict=True))

    def _follow_a_plan(self) -> None:
        side, names = SIDE_M / _PER_DEGREE, self.city.names
        whole = (0.0, 0.0, side, side)
        xs, ys = zip(*self.places(), strict=True)
        counts = CellCounts.from_positions(whole, [], xs, ys, depth=6)
        plan = Plan.build(whole, [], counts, capacity=PEOPLE // (4 * len(names)), version=1)
        plan = plan.with_brokers(assign_leaves(plan, {}, len(names)).brokers)
        self._plan = NamedPlan(plan, tuple(names))
        for name in names:
            self.city.at(name, lambda node, now: node.use_plan(self._plan, now))
        self.city.run(2_000)

    def _person(self, number: int, place: Place) -> SimulatedClient:
        home = str(next(iter(self._plan.holders(Rect.at(*place)))))
        person = self.city.client(f"p{number}", home)
        self.city.run(10)
        self.city.publish(person, "$position", payload(place), 1)
        person.subscribe(f"$near/{RADIUS_M:g}m/city/#")
        self.city.turn(person)
        return person

    def sent(self) -> int:
        return sum(node.mesh.counts.messages_sent for node in self.city.nodes.values())

    def step(self, share: float) -> int:
        """Let all move, then some tell; return how many did. Who is near must hear of it, once."""
        self._movers.step(STEP_S)
        places = self.places()
        for person, place in zip(self.people, places, strict=True):
            self.city.publish(person, "$position", payload(place), 1)
            person.received.clear()
        self.city.run(2_500)
        told = np.flatnonzero(self.random.random(PEOPLE) < share).tolist()
        for number in told:
            self.city.publish(self.people[number], "city/news", payload(places[number]), 1)
        self.city.run(2_500)
        for person, place in zip(self.people, places, strict=True):
            near = [n for n in told if distance_m(*places[n], *place) <= RADIUS_M]
            heard = sorted(one.payload for one in person.received)
            assert heard == sorted(payload(places[n]) for n in near)
        return len(told)


@pytest.mark.parametrize(("share", "times"), [(1.0, 7.5), (0.2, 3.75)])
def test_nodes_say_far_less_than_flooding_would(share: float, times: float) -> None:
    """9.0 and 4.1 times less when this was written."""
    nodes = 4
    crowd = Crowd(nodes)
    before = crowd.sent()
    published = sum(crowd.step(share) for _ in range(12))

    to_every_node_and_an_answer = 2 * published * (nodes - 1)
    assert times * (crowd.sent() - before) < to_every_node_and_an_answer
