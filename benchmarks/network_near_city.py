"""A city of people with `$near` on several nodes that follow a plan, for `network.py`.

Everybody is connected to the node that held the place where the day began, walks or drives (three
times as fast), says so every five seconds, and publishes now and then what happens at the own
place, through the own node. All that nodes say to each other is counted, registrations and answers
included, beside flooding: every publication to every other node. Who gets what is compared with
brute force.
"""

from __future__ import annotations

import asyncio
import math
import random
import socket
import time
from collections import Counter
from typing import Any, Protocol

import numpy as np
from benchmarks.broker_load import framed, link, read_packet, string
from benchmarks.network_handovers import SPACE, wait_until
from benchmarks.network_nodes import Nodes
from numpy.typing import NDArray

from nearcast.cluster import NamedPlan
from nearcast.config import NetworkSection
from nearcast.locality import CellCounts, Plan, Rect, assign_leaves
from nearcast.model import EARTH_RADIUS_M, distance_m
from nearcast.server.cluster.nats_admin import share_plan
from nearcast.simulator.movers import RandomWaypoints

SIDE_M, RADIUS_M, STEP_S = 6_000.0, 300.0, 5.0
CITY = {**SPACE, "name": "city", "topics": "city/#"}
_PER_DEGREE = math.pi * EARTH_RADIUS_M / 180
Place = tuple[float, float]


class Person:
    """A client that wants what is near and tells what happens where it is."""

    def __init__(self, nodes: Nodes, home: int, name: str, place: Place) -> None:
        self.home = home
        self.place = place
        self.sock = link(nodes.ports[home], 4, name)
        self.move(place)
        read_packet(self.sock)
        wish = string(f"$near/{RADIUS_M:g}m/city/#")
        self.sock.sendall(framed(0x82, b"\0\1" + wish + b"\0"))
        read_packet(self.sock)

    def move(self, place: Place) -> None:
        self.place = place
        self.sock.sendall(framed(0x32, string("$position") + b"\0\1" + payload_of(place)))

    def tell(self) -> None:
        self.sock.sendall(framed(0x32, string("city/news") + b"\0\2" + payload_of(self.place)))


def payload_of(place: Place) -> bytes:
    return f'{{"lon":{place[0]:.6f},"lat":{place[1]:.6f}}}'.encode()


def places_of(movers: Movers) -> list[Place]:
    return [
        (round(x / _PER_DEGREE, 6), round(y / _PER_DEGREE, 6))
        for x, y in zip(movers.xs.tolist(), movers.ys.tolist(), strict=True)
    ]


def _share_plan(nodes: Nodes, places: list[Place]) -> NamedPlan:
    """Let the nodes follow a plan of Q leaves, some for each node."""
    side = SIDE_M / _PER_DEGREE
    whole = (0.0, 0.0, side, side)
    xs, ys = ([place[axis] for place in places] for axis in (0, 1))
    counts = CellCounts.from_positions(whole, [], xs, ys, depth=6)
    capacity = len(places) // (4 * len(nodes.ports))
    plan = Plan.build(whole, [], counts, capacity=capacity, version=1)
    loads = [leaf.load for leaf in plan.leaves]
    plan = plan.with_brokers(assign_leaves(plan, {}, len(nodes.ports), loads).brokers)
    named = asyncio.run(share_plan(NetworkSection(join=[nodes.address]), plan))
    wait_until(lambda: all(one.plan == 1 for one in nodes.members()), "use the plan")
    return named


def holder_of(named: NamedPlan, place: Place) -> int:
    broker = named.plan.broker_of(named.plan.leaf_at(*place).number)
    return int(named.nodes[broker].rpartition("-")[2])


class Movers(Protocol):
    """People in metres from the south-west corner, who go on by steps."""

    xs: NDArray[np.float64]
    ys: NDArray[np.float64]

    def step(self, seconds: float, /) -> None:
        """Let everybody go on."""


class NearCity:
    """People on the nodes, who move and tell."""

    def __init__(self, nodes: Nodes, movers: Movers, named: NamedPlan, seed: int) -> None:
        self._rng = random.Random(seed)
        self._movers, self._named = movers, named
        places = places_of(movers)
        self._people = [
            Person(nodes, holder_of(self._named, place), f"person{number}", place)
            for number, place in enumerate(places)
        ]
        self.hops: Counter[int] = Counter()
        self.delivered = 0

    def step(self, share: float) -> int:
        """Let everybody move, some tell; return the publications."""
        self._movers.step(STEP_S)
        for one, place in zip(self._people, places_of(self._movers), strict=True):
            one.move(place)
        for one in self._people:
            _read_one(one.sock)
        time.sleep(0.2)  # no event is under way while somebody moves
        tellers = [one for one in self._people if self._rng.random() < share]
        for one in tellers:
            one.tell()
        for one in self._people:
            self._check(one, tellers)
        return len(tellers)

    def _check(self, person: Person, tellers: list[Person]) -> None:
        """Read all that is due to someone, and see that it is just that."""
        due = Counter(
            payload_of(one.place)
            for one in tellers
            if distance_m(*one.place, *person.place) <= RADIUS_M
        )
        for one in tellers:
            if due[payload_of(one.place)]:
                self.hops[self._hops(one, person)] += 1
        acknowledged = person in tellers
        got: Counter[bytes] = Counter()
        while got.total() < due.total() or acknowledged:
            first, body = read_packet(person.sock)
            if first >> 4 == 4:
                acknowledged = False
            else:
                got[body[2 + len("city/news") :]] += 1
        self.delivered += got.total()
        if got != due:
            message = f"{due - got} missing, {got - due} too much"
            raise RuntimeError(message)

    def _hops(self, teller: Person, person: Person) -> int:
        if teller.home == person.home:
            return 0
        holder = holder_of(self._named, teller.place)
        return (teller.home != holder) + (holder != person.home)

    def close(self) -> None:
        for one in self._people:
            one.sock.close()


def _read_one(sock: socket.socket) -> None:
    first, _ = read_packet(sock)
    if first >> 4 != 4:
        message = "something came that was not due"
        raise RuntimeError(message)


def near_city(nodes: Nodes, people: int, steps: int, share: float) -> dict[str, Any]:
    """Return what nodes said to each other, what flooding would send, and the hops."""
    seed = len(nodes.ports)
    speeds = [3.5] * (people // 2) + [10.5] * (people - people // 2)
    area = Rect(0.0, 0.0, SIDE_M, SIDE_M)
    movers = RandomWaypoints([area] * people, speeds, np.random.default_rng(seed))
    city = NearCity(nodes, movers, _share_plan(nodes, places_of(movers)), seed)
    time.sleep(2)  # what the nodes have counted is told once a second
    before = sum(one.messages_sent for one in nodes.members())
    published = sum(city.step(share) for _ in range(steps))
    time.sleep(2)
    sent = sum(one.messages_sent for one in nodes.members()) - before
    city.close()
    flooded = published * (len(nodes.ports) - 1)
    hops = {count: city.hops[count] for count in (0, 1, 2)}
    return {"published": published, "sent": sent, "flooded": flooded, "hops": hops}
