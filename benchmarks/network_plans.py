"""Messages between four nodes per delivery under two plans, foretold by the simulator and measured.

A city of 6 km: most people walk about near one of seven places, the others drive between them.
Both plans are learned from the first half of their movement, at the same capacity: quadrants alone,
and the optimised layout for four brokers. In the second half everybody has `$near` and is connected
to the node that held the place where it began. The simulator runs the code of the nodes in
simulated time; the real nodes are four processes over NATS. Flooding, with an answer to each
message, is calculated. Who gets what is compared with brute force, in both.

    python -m benchmarks.network_plans [--people 160] [--steps 40] [--seeds 1,2] [--no-real]
"""

from __future__ import annotations

import argparse
import asyncio
import math
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from benchmarks.network_handovers import wait_until
from benchmarks.network_near_city import (
    CITY,
    RADIUS_M,
    SIDE_M,
    STEP_S,
    NearCity,
    holder_of,
    payload_of,
    places_of,
)
from benchmarks.network_nodes import Nodes
from numpy.typing import NDArray

from nearcast.broker import SpaceSettings
from nearcast.cluster import NamedPlan
from nearcast.config import NetworkSection
from nearcast.locality import Plan, Rect
from nearcast.locality.layout.balancing import assign_by_crossings
from nearcast.locality.layout.costs import plan_owners
from nearcast.locality.layout.movement import Movement
from nearcast.locality.layout.proposals import propose
from nearcast.model import EARTH_RADIUS_M, Attribute, Space, distance_m
from nearcast.mqtt import Publish
from nearcast.server.cluster.nats_admin import share_plan
from nearcast.simulator.mqtt_node import SimulatedClient, SimulatedNode
from nearcast.simulator.network import SimulatedLink, uniform
from nearcast.simulator.world import World

NAMES = tuple(f"node-{number}" for number in range(4))
SHARE, LEAVES, DEPTH = 0.2, 40, 7
_PER_DEGREE = math.pi * EARTH_RADIUS_M / 180
_HOT, _AROUND_M = 7, 250.0
Tracks = NDArray[np.float64]
"""Metres from the south-west corner: [step, person, axis]."""


def town(people: int, steps: int, seed: int) -> Tracks:
    """Return where everybody is: four in five walk near a place, the others drive."""
    rng = np.random.default_rng(seed)
    hot = rng.uniform(600, SIDE_M - 600, (_HOT, 2))
    weights = rng.dirichlet(np.full(_HOT, 3.0))
    around = hot[rng.choice(_HOT, people, p=weights)]
    drives = np.arange(people) % 5 == 0

    def goal(person: int) -> NDArray[np.float64]:
        centre = hot[rng.choice(_HOT, p=weights)] if drives[person] else around[person]
        angle, radius = rng.uniform(0, math.tau), _AROUND_M * math.sqrt(rng.random())
        there = centre + radius * np.array([math.cos(angle), math.sin(angle)])
        inside: NDArray[np.float64] = np.clip(there, 0, SIDE_M)
        return inside

    at, goals = (np.array([goal(person) for person in range(people)]) for _ in "ab")
    found = np.empty((steps + 1, people, 2))
    for step in range(steps + 1):
        found[step] = at
        for person in range(people):
            way_m = STEP_S * (10.5 if drives[person] else 1.4)
            left_m = math.dist(at[person], goals[person])
            if left_m <= way_m:
                at[person], goals[person] = goals[person], goal(person)
            else:
                at[person] += (goals[person] - at[person]) * way_m / left_m
    return found


class Recorded:
    """People who move as in a record."""

    def __init__(self, tracks: Tracks) -> None:
        self._tracks = iter(tracks)
        self.step(0)

    def step(self, _seconds: float) -> None:
        self.xs, self.ys = next(self._tracks).T


def plans(tracks: Tracks) -> dict[str, NamedPlan]:
    """Return quadrants alone and the optimised layout, learned from a record, on four nodes."""
    steps, people, _ = tracks.shape
    users, flat = np.repeat(np.arange(people), steps), tracks.transpose(1, 0, 2).reshape(-1, 2)
    flat = flat / _PER_DEGREE
    times_s = np.tile(np.arange(steps) * STEP_S, people)
    side = SIDE_M / _PER_DEGREE
    space = Rect(0.0, 0.0, side, side)
    movement = Movement.from_tracks(space, users, times_s, flat[:, 0], flat[:, 1], DEPTH)
    cells = round(RADIUS_M / SIDE_M * (1 << DEPTH))
    reach, capacity = (cells, cells), 2 * movement.users / LEAVES
    drafts = propose(  # as `nearcast pipeline plan --hold-out 0` does: all days are like this one
        space, [], movement, capacity, reach, is_trusted=True, brokers=len(NAMES)
    )
    layouts: dict[str, tuple[Plan, Sequence[int] | None]] = {
        "quadrants": (drafts.plans["q_only"], None),
        "optimised": (drafts.plans["optimised"], drafts.first),
    }
    found = {}
    for version, (name, (plan, first)) in enumerate(layouts.items(), 1):
        owners = plan_owners(plan, DEPTH)
        parts = assign_by_crossings(plan, movement, owners, reach, len(NAMES), first=first).brokers
        found[name] = NamedPlan(plan.with_brokers(parts, version), NAMES)
    return found


@dataclass(frozen=True)
class Told:
    """What nodes said, and for what."""

    messages: int
    delivered: int
    published: int

    @property
    def each(self) -> float:
        return self.messages / self.delivered

    @property
    def flooded(self) -> float:
        """Messages per delivery if each event went to every node, and each answered."""
        return 2 * (len(NAMES) - 1) * self.published / self.delivered


def simulated(tracks: Tracks, named: NamedPlan, seed: int) -> Told:
    """Live under a plan on simulated nodes."""
    space = Space(
        name="city",
        topic_filter="city/#",
        attributes=(Attribute.number("lon", -180, 180), Attribute.number("lat", -90, 90)),
        longitude="lon",
        latitude="lat",
    )
    world = World(seed, link=SimulatedLink(delay=uniform(1, 3)), keep_digest=False)
    nodes = {
        name: world.add(name, SimulatedNode(name, seed, spaces=[SpaceSettings(space=space)]))
        for name in NAMES
    }
    for name, node in nodes.items():
        world.perform(name, node.meet(list(NAMES), world.now))
    world.run(world.now + 1_000)
    for name, node in nodes.items():
        world.perform(name, node.use_plan(named, world.now))
    world.run(world.now + 2_000)
    movers, rng = Recorded(tracks), np.random.default_rng(seed)
    places = places_of(movers)
    homes = [NAMES[holder_of(named, place)] for place in places]
    people = [SimulatedClient(f"person{number}") for number in range(len(places))]

    def turn(number: int) -> None:
        world.perform(homes[number], nodes[homes[number]].turn(world.now))

    def publish(number: int, topic: str) -> None:
        people[number].publish(Publish(topic, payload_of(places[number]), 1))
        turn(number)

    for number, client in enumerate(people):
        world.perform(homes[number], nodes[homes[number]].admit(client, world.now))
        world.run(world.now + 5)
        publish(number, "$position")
        client.subscribe(f"$near/{RADIUS_M:g}m/city/#")
        turn(number)
    world.run(world.now + 1_000)
    before = sum(node.mesh.counts.messages_sent for node in nodes.values())
    delivered = published = 0
    for _ in range(len(tracks) - 1):
        movers.step(STEP_S)
        places = places_of(movers)
        for number, client in enumerate(people):
            publish(number, "$position")
            client.received.clear()
        world.run(world.now + 500)
        tellers = np.flatnonzero(rng.random(len(people)) < SHARE).tolist()
        for number in tellers:
            publish(number, "city/news")
        world.run(world.now + 500)
        published += len(tellers)
        for number, client in enumerate(people):
            due = Counter(
                payload_of(places[teller])
                for teller in tellers
                if distance_m(*places[teller], *places[number]) <= RADIUS_M
            )
            if Counter(one.payload for one in client.received) != due:
                raise RuntimeError("the simulated nodes delivered something else than is due")
            delivered += due.total()
    sent = sum(node.mesh.counts.messages_sent for node in nodes.values()) - before
    return Told(sent, delivered, published)


def real(nodes: Nodes, tracks: Tracks, named: NamedPlan, seed: int) -> Told:
    """Live under a plan on real nodes."""
    version = max(one.plan for one in nodes.members()) + 1
    plan = named.plan.with_nodes(named.nodes).numbered(version)
    asyncio.run(share_plan(NetworkSection(join=[nodes.address]), plan))
    wait_until(lambda: all(one.plan == version for one in nodes.members()), "use the plan")
    city = NearCity(nodes, Recorded(tracks), named, seed)
    time.sleep(2)  # what the nodes have counted is told once a second
    before = sum(one.messages_sent for one in nodes.members())
    published = sum(city.step(SHARE) for _ in range(len(tracks) - 1))
    time.sleep(2)
    sent = sum(one.messages_sent for one in nodes.members()) - before
    city.close()
    return Told(sent, city.delivered, published)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--people", type=int, default=160)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seeds", default="1,2")
    parser.add_argument("--no-real", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        nodes = None if options.no_real else Nodes(Path(directory), 4, "off", [CITY])
        try:
            for seed in map(int, options.seeds.split(",")):
                compare(options.people, options.steps, seed, nodes)
        finally:
            if nodes is not None:
                nodes.close()


def compare(people: int, steps: int, seed: int, nodes: Nodes | None) -> None:
    tracks = town(people, 4 * steps, seed)
    learned, lived = tracks[: 3 * steps + 1], tracks[3 * steps :]
    print(f"seed {seed}: {people} people, messages between nodes per delivery", flush=True)
    rows: dict[str, list[Told]] = {}
    for name, named in plans(learned).items():
        rows[name] = [simulated(lived, named, seed)]
        if nodes is not None:
            rows[name].append(real(nodes, lived, named, seed))
        cells = "  ".join(f"{one.each:.3f} (flooding {one.flooded:.3f})" for one in rows[name])
        print(f"  {name:10} {len(named.plan.leaves):3} leaves  {cells}", flush=True)
    for name, base in (("quadrants", "each"), ("flooding", "flooded")):
        factors = [
            ours.each / getattr(other, base)
            for ours, other in zip(rows["optimised"], rows["quadrants"], strict=True)
        ]
        text = "  ".join(f"{factor:.3f}" for factor in factors)
        print(f"  optimised : {name:10} {text}", flush=True)


if __name__ == "__main__":
    main()
