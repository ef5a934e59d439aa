"""A town on several real nodes: clients that move, events with a place, faults, and the truth.

One seed makes one run: who lives where, who wants what, who moves when, which faults and changes of
plan happen. What is due is worked out from the definition alone (`Subscription.covers`, with where
each client was at the instant of publication); by the end everything due at QoS 1 or 2 must have
arrived, once.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random

from nearcast.locality import Counts, Plan, Timing
from nearcast.model import Attribute, Event, Space, Subscription, parse_shape
from nearcast.mqtt import Publish
from nearcast.network import LinkTiming, NamedPlan
from nearcast.network.geography import PATIENCE
from nearcast.node import NodeSettings, SpaceSettings
from nearcast.simulator.mqtt_node import MqttNode, SimulatedClient
from nearcast.simulator.network import Link, uniform
from nearcast.simulator.world import World

SPACE = Space(
    name="city",
    topic_filter="city/#",
    attributes=(Attribute.number("lon", -1, 1), Attribute.number("lat", -1, 1)),
    longitude="lon",
    latitude="lat",
)
_PLANNED = (-0.99, -0.99, 0.99, 0.99)
_PATIENCE = Timing(
    retry_ms=100, most_retry_ms=800, probe_ms=500, horizon_ms=200_000, slack=PATIENCE.slack
)
_LINK_TIMING = LinkTiming(hello_ms=200, beat_ms=1_500, silence_ms=5_000)
_WRITER = "writer"
Place = tuple[float, float]


def town_plan(nodes: list[str], seed: int, version: int) -> NamedPlan:
    """Return a plan with a slow region and some Q leaves, shared out over the nodes at random."""
    random = Random(seed)
    region = (-0.5, -0.5, random.uniform(-0.3, 0.2), random.uniform(-0.3, 0.2))
    xs = [random.uniform(-0.99, 0.99) for _ in range(200)]
    ys = [random.uniform(-0.99, 0.99) for _ in range(200)]
    counts = Counts.from_positions(_PLANNED, [region], xs, ys, depth=5)
    plan = Plan.build(_PLANNED, [region], counts, capacity=40, version=version)
    brokers = [random.randrange(len(nodes)) for _ in plan.leaves]
    return NamedPlan(plan.with_brokers(brokers), tuple(nodes))


class Town:
    """Nodes, moving clients, a writer; `due` has what each client must have had by the end."""

    def __init__(self, nodes: int, seed: int, link: Link | None = None, people: int = 6) -> None:
        self.random = Random(seed)
        self.world = World(seed, link=link or Link(delay=uniform(1, 5)), keep_digest=False)
        self.names = [f"n{number}" for number in range(nodes)]
        self.nodes = {name: self.world.add(name, self._node(name, seed)) for name in self.names}
        self.clients: dict[str, SimulatedClient] = {}
        self.due: dict[str, Counter[bytes]] = {}
        self._homes: dict[str, str] = {}
        self._places: dict[str, Place] = {}
        self._wishes: dict[str, Subscription] = {}
        self._events = 0
        for name in self.names:
            self.world.perform(name, self.nodes[name].meet(self.names, self.world.now))
        self.run(2_000)
        for number in range(people):
            self._settle_in(f"c{number}", follows=bool(number % 3))
        self._admit_new(_WRITER)
        self.run(5_000)

    @staticmethod
    def _node(name: str, seed: int) -> MqttNode:
        return MqttNode(
            name,
            seed,
            settings=NodeSettings(position_journal_ms=0),
            spaces=[SpaceSettings(space=SPACE)],
            patience=_PATIENCE,
            link_timing=_LINK_TIMING,
        )

    def run(self, ms: int) -> None:
        """Let time pass."""
        self.world.run(self.world.now + ms)

    # --- people -----------------------------------------------------------------------------

    def _admit_new(self, name: str) -> SimulatedClient:
        client = self.clients[name] = SimulatedClient(name)
        self._homes[name] = self.random.choice(self.names)
        self._admit(client)
        return client

    def _admit(self, client: SimulatedClient) -> None:
        home = self._homes[client.name]
        self.world.perform(home, self.nodes[home].admit(client, self.world.now))

    def _settle_in(self, name: str, *, follows: bool) -> None:
        client = self._admit_new(name)
        self.due[name] = Counter()
        if follows:
            self.move(name, self.anywhere())
            radius_m = self.random.choice([20_000, 60_000])
            text, wish = f"$near/{radius_m}m", Subscription(topic_filter="city/#", near_m=radius_m)
        else:
            west, south = self.random.randint(-90, 0) / 100, self.random.randint(-90, 0) / 100
            sides = f"{west},{south},{west + 0.8},{south + 0.7}"
            area = parse_shape(f"bbox({sides})")
            text, wish = f"$area/{sides}", Subscription(topic_filter="city/#", area=area)
        client.subscribe(f"{text}/city/#")
        self._wishes[name] = wish
        self._turn(name)

    def _turn(self, name: str) -> None:
        home = self._homes[name]
        self.world.perform(home, self.nodes[home].turn(self.world.now))

    def anywhere(self) -> Place:
        """Return a place in town."""
        return (self.random.randint(-95, 95) / 100, self.random.randint(-95, 95) / 100)

    def move(self, name: str, place: Place) -> None:
        """Let a connected client be somewhere."""
        self._places[name] = place
        payload = f'{{"lon": {place[0]}, "lat": {place[1]}}}'
        self.clients[name].publish(Publish("$position", payload.encode(), 1))
        self._turn(name)

    def publish(self, place: Place, qos: int) -> None:
        """Let the writer tell of something; note who must hear of it."""
        self._events += 1
        payload = f'{{"lon": {place[0]}, "lat": {place[1]}, "id": {self._events}}}'.encode()
        event = Event.of(SPACE, "city/news", {"lon": place[0], "lat": place[1]})
        for name, wish in self._wishes.items():
            if wish.covers(event, self._places.get(name)):
                self.due[name][payload] += 1
        self.clients[_WRITER].publish(Publish("city/news", payload, qos))
        self._turn(_WRITER)

    def wander(self, steps: int) -> None:
        """Let people move and things happen."""
        for _ in range(steps):
            name = self.random.choice(list(self._wishes))
            if name in self._places and self.clients[name].is_connected:
                self.move(name, self.anywhere())
            if self.clients[_WRITER].is_connected:
                self.publish(self.anywhere(), qos=self.random.choice([1, 2]))
            self.run(self.random.randint(1, 40))  # instants are whole ms: no two things in one

    # --- faults and plans -------------------------------------------------------------------

    def use_plan(self, plan: NamedPlan, steps_between: int = 0) -> None:
        """Let all nodes learn of a plan, one after the other."""
        for name in self.names:
            self.world.perform(name, self.nodes[name].use_plan(plan, self.world.now))
            self.wander(self.random.randint(0, steps_between))

    def cut_off(self, name: str) -> None:
        """Part one node from the others for a while."""
        others = [one for one in self.names if one != name]
        self.world.network.partition([[name], others])
        self.wander(5)
        self.run(self.random.randint(1, 4_000))
        self.world.network.heal()

    def crash(self, name: str) -> None:
        """Kill a node and start it again; its clients come back."""
        self.world.crash(name)
        for client in self.clients.values():
            if self._homes[client.name] == name:
                client.lose()
        self.run(self.random.randint(1, 4_000))
        self.world.restart(name)
        self.world.perform(name, self.nodes[name].restart(self.world.now))
        for client in self.clients.values():
            if not client.is_connected:
                self._admit(client)

    def heal(self) -> None:
        """Let the network be well, until nothing is missing; then a while more: nothing may double.

        After half a minute it is late for anything, and what is missing has been lost.
        """
        self.world.network.link = Link(delay=uniform(1, 3))
        for _ in range(25):
            if not self.problems() and self._agree_on_plans():
                break
            self.run(1_000)
        self.run(5_000)

    def _agree_on_plans(self) -> bool:
        used = {node.mesh.plans for node in self.nodes.values()}
        return len(used) == 1 and not used.pop()[1]

    def problems(self) -> list[str]:
        """Return what was lost, doubled, or came to someone it was not for."""
        found = []
        for name, due in self.due.items():
            got = Counter(one.payload for one in self.clients[name].received)
            found += [f"{name} missed {one!r}" for one in due - got]
            found += [f"{name} has {one!r} too often" for one in got - due]
        if self.clients[_WRITER].unsettled:
            found.append("publications were not acknowledged")
        return found


@dataclass(frozen=True, slots=True)
class TownReport:
    """What a run came to."""

    seed: int
    nodes: int
    due: int
    crashes: int
    plan_version: int
    problems: tuple[str, ...]


def run_town(seed: int, *, least_nodes: int = 4, most_nodes: int = 16) -> TownReport:
    """Make one run with faults during handovers and changes of plan."""
    random = Random(seed)
    loss = random.choice([0.0, 0.1, 0.25])
    link = Link(delay=uniform(1, 15), loss=loss, duplication=loss / 2)
    town = Town(random.randint(least_nodes, most_nodes), seed, link)
    town.run(5_000)
    version = crashes = 0
    for _ in range(8):
        town.wander(5)
        kind = random.choice(["plan", "cut", "crash"])
        name = random.choice(town.names)
        if kind == "plan":
            version += 1
            town.use_plan(town_plan(town.names, seed + version, version), steps_between=2)
        elif kind == "cut":
            town.cut_off(name)
        else:
            crashes += 1
            town.crash(name)
    town.heal()
    due = sum(sum(one.values()) for one in town.due.values())
    problems = town.problems()
    if {node.mesh.plans for node in town.nodes.values()} != {(version, 0)}:
        problems.append(f"not all nodes use plan {version}")
    return TownReport(seed, len(town.names), due, crashes, version, tuple(problems))
