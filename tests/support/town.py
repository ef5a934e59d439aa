"""A town on several real nodes: clients that move, events with a place, faults, and the truth.

One seed makes one run: who lives where, who wants what, who moves when, which faults and changes of
plan happen. What is due is worked out from the definition alone (`Subscription.covers`, with where
each client was at the instant of publication); by the end everything due at QoS 1 or 2 must have
arrived, once. While the network is calm (all nodes see each other, nothing is lost) the same holds
at QoS 0, and for what lives only a few seconds, also when a new plan has reached some nodes and
others not for a long while.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from random import Random

from tests.support.simulated_city import SimulatedCity

from nearcast.broker import BrokerSettings, SpaceSettings
from nearcast.cluster import LinkTiming, NamedPlan
from nearcast.cluster.spatial_routing import PATIENCE
from nearcast.locality import CellCounts, Plan
from nearcast.locality.registration.redirect_policy import RedirectRules
from nearcast.model import Attribute, Event, Space, Subscription, parse_shape
from nearcast.mqtt import Properties, Publish
from nearcast.simulator.mqtt_node import SimulatedClient
from nearcast.simulator.network import SimulatedLink, uniform

SPACE = Space(
    name="city",
    topic_filter="city/#",
    attributes=(Attribute.number("lon", -1, 1), Attribute.number("lat", -1, 1)),
    longitude="lon",
    latitude="lat",
)
_PLANNED = (-0.99, -0.99, 0.99, 0.99)
_PATIENCE = replace(PATIENCE, retry_ms=100, most_retry_ms=800, horizon_ms=200_000)
_LINK_TIMING = LinkTiming(hello_ms=200, beat_ms=1_500, silence_ms=3_200)
_WELL = SimulatedLink(delay=uniform(1, 3))
_NOTICED_MS = 2_000  # a link that has lost something knows it by the next beat
_ARRIVED_MS = 500  # what is under way in a calm network has arrived
_AWAY_MS = 5_000  # who is not heard for so long is away, and others stand in for it
_LIFETIME_S = 3
_WRITER, _GUEST = "writer", "guest"
_STEPS = 8
_KINDS = ("plan", "late plan", "cut", "link", "crash")
Place = tuple[float, float]


def town_plan(nodes: list[str], seed: int, version: int) -> NamedPlan:
    """Return a plan with a slow region and some Q leaves, shared out over the nodes at random."""
    random = Random(seed)
    region = (-0.5, -0.5, random.uniform(-0.3, 0.2), random.uniform(-0.3, 0.2))
    xs = [random.uniform(-0.99, 0.99) for _ in range(200)]
    ys = [random.uniform(-0.99, 0.99) for _ in range(200)]
    counts = CellCounts.from_positions(_PLANNED, [region], xs, ys, depth=5)
    plan = Plan.build(_PLANNED, [region], counts, capacity=40, version=version)
    brokers = [random.randrange(len(nodes)) for _ in plan.leaves]
    return NamedPlan(plan.with_brokers(brokers), tuple(nodes))


class Town(SimulatedCity):
    """Nodes, moving clients, a writer; `due` has what each client must have had by the end.

    With a guest, nobody lives at the last node but a second writer: it can leave for good.
    """

    def __init__(
        self,
        nodes: int,
        seed: int,
        link: SimulatedLink | None = None,
        people: int = 6,
        *,
        has_guest: bool = False,
        keep_digest: bool = False,
        redirect: RedirectRules | None = None,
    ) -> None:
        self.random = Random(seed)
        self._link = link or SimulatedLink(delay=uniform(1, 5))
        super().__init__(
            nodes,
            seed,
            self._link,
            meeting_ms=2_000,
            keep_digest=keep_digest,
            settings=BrokerSettings(position_journal_ms=0),
            spaces=[SpaceSettings(space=SPACE)],
            patience=_PATIENCE,
            link_timing=_LINK_TIMING,
            redirect=redirect,
        )
        self.clients: dict[str, SimulatedClient] = {}
        self.due: dict[str, Counter[bytes]] = {}
        self.is_calm = False
        self._guest = self.names[-1] if has_guest else None
        self._unsure: dict[str, Counter[bytes]] = {}  # may arrive, once
        self._places: dict[str, Place] = {}
        self._wishes: dict[str, Subscription] = {}
        self._events = 0
        for number in range(people):
            self._settle_in(f"c{number}", follows=bool(number % 3))
        self._writers = [_WRITER]
        self._admit_new(_WRITER)
        if self._guest is not None:
            self._writers.append(_GUEST)
            self._admit_new(_GUEST, self._guest)
        self.run(1_000)
        while not self._are_all_in():
            self.run(100)
        self.is_calm = not self._link.loss

    # --- people -----------------------------------------------------------------------------

    def _admit_new(self, name: str, home: str | None = None) -> SimulatedClient:
        client = self.clients[name] = SimulatedClient(name)
        nodes = [node for node in self.names if node != self._guest]
        self.admit(client, home or self.random.choice(nodes))
        return client

    def _settle_in(self, name: str, *, follows: bool) -> None:
        client = self._admit_new(name)
        self.due[name], self._unsure[name] = Counter(), Counter()
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
        self.turn(client)

    def _are_all_in(self) -> bool:
        clients = self.clients
        return all(one.is_connected for one in clients.values()) and all(
            clients[name].subacks for name in self._wishes
        )

    def anywhere(self) -> Place:
        """Return a place in town."""
        return (self.random.randint(-95, 95) / 100, self.random.randint(-95, 95) / 100)

    def move(self, name: str, place: Place) -> None:
        """Let a connected client be somewhere."""
        self._places[name] = place
        payload = f'{{"lon": {place[0]}, "lat": {place[1]}}}'
        self.publish(self.clients[name], "$position", payload.encode(), 1)

    def publish_at(
        self, place: Place, qos: int, *, writer: str = _WRITER, lifetime_s: int | None = None
    ) -> None:
        """Publish an event of a writer; note which clients must receive it, or may."""
        self._events += 1
        payload = f'{{"lon": {place[0]}, "lat": {place[1]}, "id": {self._events}}}'.encode()
        event = Event.of(SPACE, "city/news", {"lon": place[0], "lat": place[1]})
        is_sure = self.is_calm or (qos > 0 and lifetime_s is None)
        for name, wish in self._wishes.items():
            if wish.covers(event, self._places.get(name)):
                (self.due if is_sure else self._unsure)[name][payload] += 1
        properties = Properties(message_expiry_interval=lifetime_s)
        self.clients[writer].publish(Publish("city/news", payload, qos, properties=properties))
        self.turn(self.clients[writer])

    def wander(self, steps: int, writer: str | None = None) -> None:
        """Let people move and things happen, told of by one writer or any."""
        for _ in range(steps):
            name = self.random.choice(list(self._wishes))
            if name in self._places and self.clients[name].is_connected:
                self.move(name, self.anywhere())
            name = writer or self.random.choice(self._writers)
            qos = self.random.choice([0, 1, 1, 2, 2])
            lifetime_s = self.random.choice([None, None, _LIFETIME_S])
            if self.clients[name].is_connected:
                self.publish_at(self.anywhere(), qos, writer=name, lifetime_s=lifetime_s)
            self.run(self.random.randint(1, 40))  # instants are whole ms: no two things in one

    # --- faults and plans -------------------------------------------------------------------

    def calm(self) -> None:
        """Let the network be well, and wait until every node sees every other."""
        self.world.network.heal()
        self.world.network.link = _WELL
        self.run(_NOTICED_MS)
        while not all(
            peer.connection for node in self.nodes.values() for peer in node.mesh.peers.values()
        ):
            self.run(100)
        self.is_calm = True

    def disturb(self) -> None:
        """Let the network be as it was; what is under way arrives first."""
        if self.is_calm:
            self.run(_ARRIVED_MS)
        self.world.network.link = self._link
        self.is_calm = False

    def use_plan(self, plan: NamedPlan, steps_between: int = 0) -> None:
        """Let all nodes learn of a plan, one after the other."""
        self._teach(plan, self.names, steps_between)

    def use_plan_late(self, plan: NamedPlan) -> None:
        """Let some nodes of a calm network learn of a plan much later than others."""
        self.calm()
        names = self.random.sample(self.names, len(self.names))
        early = self.random.randint(1, len(names) - 1)
        self._teach(plan, names[:early], 1)
        self.wander(5)
        self.run(self.random.randint(1, 2_000 * _LIFETIME_S))
        self._teach(plan, names[early:], 1)
        self.disturb()

    def _teach(self, plan: NamedPlan, names: list[str], steps_between: int) -> None:
        for name in names:
            self.world.perform(name, self.nodes[name].use_plan(plan, self.world.now))
            self.wander(self.random.randint(0, steps_between))

    def cut_off(self, name: str) -> None:
        """Part one node from the others for a while."""
        self.disturb()
        others = [other for other in self.names if other != name]
        self.world.network.partition([[name], others])
        self.wander(5)
        self.run(self.random.randint(1, 4_000))
        self.world.network.heal()

    def cut_link(self, one: str, other: str) -> None:
        """Part two nodes that all others still see, for so long that others stand in for them."""
        self.disturb()
        self._cut(one, other)
        self.wander(3)
        self.run(self.random.randint(1, _AWAY_MS))
        self.wander(3)
        self.world.network.heal()

    def _cut(self, one: str, other: str) -> None:
        """Cut a link in one direction or both."""
        ways = self.random.choice([[(one, other)], [(other, one)], [(one, other), (other, one)]])
        for sender, receiver in ways:
            self.world.network.cut(sender, receiver)

    def crash_and_restart(self, name: str) -> None:
        """Kill a node and start it again; its clients come back."""
        self.disturb()
        self.crash(name)
        for client in self.clients.values():
            if self.homes[client.name] == name:
                client.lose()
        self.run(self.random.randint(1, 4_000))
        self.restart(name)
        for client in self.clients.values():
            if not client.is_connected:
                self.admit(client)

    def leave(self) -> None:
        """Let the guest's node leave for good as soon as it may, while it does not see another.

        What was published there is the others' from then on; it must arrive before anything else
        goes wrong.
        """
        assert self._guest is not None
        leaving, self._guest = self._guest, None
        self.disturb()
        self._cut(leaving, self.random.choice([name for name in self.names if name != leaving]))
        self.wander(4, _GUEST)
        self.run(self.random.randint(1, 2 * _AWAY_MS))
        self.wander(4, _GUEST)
        self.world.perform(leaving, self.nodes[leaving].leave(self.world.now))
        if not self._has_settled(leaving, 100):
            self.world.network.heal()
            assert self._has_settled(leaving, 1_000), f"{leaving} cannot leave"
        self._remove(leaving)
        self.world.network.heal()
        self._wait_for_all(40)

    def _has_settled(self, name: str, most_looks: int) -> bool:
        """Look now and then, as a server does, whether a node may leave."""
        for _ in range(most_looks):
            if not self.nodes[name].mesh.has_unsettled():
                return True
            self.run(50)
        return False

    def _remove(self, name: str) -> None:
        self.world.remove(name)
        del self.nodes[name], self.clients[_GUEST]
        self.names.remove(name)
        self._writers.remove(_GUEST)
        for one in self.random.sample(self.names, len(self.names)):
            self.world.perform(one, self.nodes[one].part(name, self.world.now))
            self.run(self.random.randint(1, 200))

    def heal(self) -> None:
        """Let the network be well, until nothing is missing; then a while more: nothing may double.

        After half a minute it is late for anything, and what is missing has been lost.
        """
        self.world.network.link = _WELL
        self._wait_for_all(25)
        self.run(3_000)

    def _wait_for_all(self, most_s: int) -> None:
        for _ in range(most_s):
            if not self.problems() and self._agree_on_plans():
                break
            self.run(1_000)

    def _agree_on_plans(self) -> bool:
        used = {node.mesh.plans for node in self.nodes.values()}
        return len(used) == 1 and not used.pop()[1]

    def problems(self) -> list[str]:
        """Return what was lost, doubled, or came to someone it was not for."""
        found = []
        for name, due in self.due.items():
            got = Counter(one.payload for one in self.clients[name].received)
            found += [f"{name} missed {one!r}" for one in due - got]
            allowed = due + self._unsure[name]
            found += [f"{name} has {one!r} too often" for one in got - allowed]
        if any(self.clients[writer].unsettled for writer in self._writers):
            found.append("publications were not acknowledged")
        return found


@dataclass(frozen=True, slots=True)
class TownReport:
    """What a run came to; `digest` tells it from any other, "" if none was kept."""

    seed: int
    nodes: int
    due: int
    crashes: int
    plan_version: int
    problems: tuple[str, ...]
    digest: str = ""
    has_left: bool = False


def run_town(
    seed: int, *, least_nodes: int = 4, most_nodes: int = 16, keep_digest: bool = False
) -> TownReport:
    """Make one run with faults during handovers and changes of plan; three nodes at least."""
    random = Random(seed)
    loss = random.choice([0.0, 0.1, 0.25])
    link = SimulatedLink(delay=uniform(1, 15), loss=loss, duplication=loss / 2)
    leave_at = random.choice([None, *range(2, _STEPS)])
    has_guest = leave_at is not None
    nodes = min(random.randint(least_nodes, most_nodes) for _ in "ab")  # a big town is dear
    town = Town(nodes, seed, link, has_guest=has_guest, keep_digest=keep_digest)
    kinds: Counter[str] = Counter()
    for step in range(_STEPS):
        town.wander(5)
        kind = random.choice(_KINDS) if step != leave_at else "leave"
        kinds[kind] += 1
        version = kinds["plan"] + kinds["late plan"]
        _happen(town, kind, random.sample(town.names, 2), seed, version)
    town.heal()
    due = sum(sum(one.values()) for one in town.due.values())
    problems = town.problems()
    if {node.mesh.plans for node in town.nodes.values()} != {(version, 0)}:
        problems.append(f"not all nodes use plan {version}")
    digest = town.world.digest() if keep_digest else ""
    return TownReport(seed, nodes, due, kinds["crash"], version, tuple(problems), digest, has_guest)


def _happen(town: Town, kind: str, names: list[str], seed: int, version: int) -> None:
    match kind:
        case "plan":
            town.use_plan(town_plan(town.names, seed + version, version), steps_between=2)
        case "late plan":
            town.use_plan_late(town_plan(town.names, seed + version, version))
        case "cut":
            town.cut_off(names[0])
        case "link":
            town.cut_link(*names)
        case "leave":
            town.leave()
        case _:
            town.crash_and_restart(names[0])
