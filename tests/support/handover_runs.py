"""Seeded runs of 4 to 16 broker nodes with faults during handovers and changes of plan.

One seed makes one run: how many nodes, which plan, who moves where, what is published, and which
faults happen when. Until `HEAL_MS` the network misbehaves; then it heals, and by `END_MS` all that
is due must have been delivered. What is due is worked out from the definition alone: an event is
due to a subscription whose area, at the instant of publication, meets the event's (`judge`).
Clients move at odd instants and publish at even ones, so that no two things happen at once.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.support.locality_node import (
    Acknowledged,
    DeliverToClient,
    Followed,
    LocalityActor,
    Move,
    SimPublish,
    SimSubscribe,
    SimUnsubscribe,
    UsePlan,
)

from nearcast.locality.layout.grid import CellCounts
from nearcast.locality.layout.plan import Plan
from nearcast.locality.layout.rect import Rect
from nearcast.locality.registration.messages import (
    EventOffer,
    HolderMatch,
    PlacedEvent,
    Register,
    Timing,
)
from nearcast.locality.registration.plan_assignment import NamedPlan
from nearcast.simulator.network import SimulatedLink, constant, exponential, uniform
from nearcast.simulator.world import World

SPACE = Rect(0.0, 0.0, 64.0, 64.0)
HEAL_MS = 6_000
END_MS = 12_000
TIMING = Timing(
    retry_ms=150, most_retry_ms=1_200, probe_ms=1_200, lease_ms=4_000, horizon_ms=40_000
)


@dataclass(frozen=True, slots=True)
class Faults:
    """Which faults a run may have; all of them by default."""

    loss: bool = True
    duplication: bool = True
    reordering: bool = True
    partitions: bool = True
    crashes: bool = True
    deaths: bool = True
    plan_changes: bool = True

    @classmethod
    def none_but_delay(cls) -> Faults:
        """Return what no one would call a fault: messages overtake each other, plans change."""
        return cls(loss=False, partitions=False, crashes=False, deaths=False)


@dataclass(frozen=True, slots=True)
class RunReport:
    """What a run came to; `problems` is empty when every promise was kept."""

    seed: int
    nodes: int
    digest: str
    problems: tuple[str, ...]
    counts: dict[str, int]


@dataclass(slots=True)
class _Log:
    """The truth, as the nodes' clients and publishers saw it."""

    followed: dict[str, list[tuple[int, Rect | None]]] = field(default_factory=dict)
    gateway_of: dict[str, str] = field(default_factory=dict)
    published: list[PlacedEvent] = field(default_factory=list)
    delivered: list[tuple[int, str, PlacedEvent]] = field(default_factory=list)
    dropped: set[tuple[str, object]] = field(default_factory=set)
    crashes: list[tuple[int, str]] = field(default_factory=list)
    dead: set[str] = field(default_factory=set)

    def observe(self, now: int, node: Any, output: Any) -> None:
        if isinstance(output, DeliverToClient):
            self.delivered.append((now, output.subscription, output.event))
        elif isinstance(output, Acknowledged):
            self.published.append(output.event)
        elif isinstance(output, Followed):
            self.followed.setdefault(output.subscription, []).append((now, output.area))
            self.gateway_of[output.subscription] = node

    def note_drop(self, _now: int, _sender: Any, _to: Any, message: Any) -> None:
        if isinstance(message, EventOffer | HolderMatch):
            self.dropped.add(("event", message.event.event_id))
        elif isinstance(message, Register):
            self.dropped.add(("subscription", message.subscription))


class HandoverRun:
    """One run: build it from a seed, `execute` it, get a report."""

    def __init__(self, seed: int, faults: Faults | None = None) -> None:
        self.seed = seed
        self.faults = faults if faults is not None else Faults()
        self.random = Random(f"handover/{seed}")
        self.log = _Log()
        self.node_count = self.random.randint(4, 16)
        self.spots = [(self.random.uniform(4, 60), self.random.uniform(4, 60)) for _ in range(4)]
        self.world = World(
            seed,
            link=self._link(),
            observer=self.log.observe,
            drop_observer=self.log.note_drop,
        )
        self.names = [f"n{number}" for number in range(self.node_count)]
        self.newest = random_plan(self.random, self.names, self.names)
        self.nodes = {
            name: self.world.add(name, LocalityActor(name, self.names, self.newest, TIMING))
            for name in self.names
        }

    def execute(self) -> RunReport:
        """Run to the end and judge."""
        self._schedule_clients()
        self._schedule_publishers()
        self._schedule_faults()
        if self.faults.plan_changes:
            self._schedule_plans()
        self.world.call_at(HEAL_MS, self._heal)
        self.world.run(until=END_MS)
        problems = judge(self.log, END_MS)
        problems += self._unfinished()
        return RunReport(
            self.seed, self.node_count, self.world.digest(), tuple(problems), self._counts()
        )

    def _link(self) -> SimulatedLink:
        random, faults = self.random, self.faults
        delay = random.choice([uniform(1, 30), exponential(20, least=1, most=400), constant(5)])
        return SimulatedLink(
            delay,
            loss=random.choice([0.0, 0.05, 0.3]) if faults.loss else 0.0,
            duplication=random.choice([0.0, 0.1, 0.3]) if faults.duplication else 0.0,
            reordering=random.choice([0.0, 0.5, 1.0]) if faults.reordering else 0.0,
        )

    def _schedule_clients(self) -> None:
        random = self.random
        for number in range(random.randint(8, 24)):
            name, gateway = f"s{number}", random.choice(self.names)
            reach = random.choice([0.5, 2.0, 6.0])
            x, y = self._place(6.0)
            at = 2 * random.randint(0, 1_500) + 1
            self.world.post(gateway, SimSubscribe(name, Rect.around(x, y, reach)), at=at)
            for _ in range(random.randint(0, 25)):
                at += 2 * random.randint(3, 350)
                if at >= HEAL_MS:
                    break
                if random.random() < 0.3:
                    x, y = self._place(6.0)  # a long way at once
                else:
                    x, y = x + random.uniform(-2, 2), y + random.uniform(-2, 2)
                self._client(gateway, name, Move(name, Rect.around(x, y, reach)), at)
            if random.random() < 0.1:
                self._client(gateway, name, SimUnsubscribe(name), at + 50)

    def _place(self, spread: float) -> tuple[float, float]:
        """Return a place near one of the run's hot spots, in the space."""
        x, y = self.random.choice(self.spots)
        dx, dy = self.random.gauss(0, spread), self.random.gauss(0, spread)
        return min(max(x + dx, 0.0), 64.0), min(max(y + dy, 0.0), 64.0)

    def _client(self, gateway: str, name: str, request: Any, at: int) -> None:
        """Make a client act only if its gateway knows it: a crash may have met its SUBSCRIBE."""

        def act() -> None:
            if self.world.alive(gateway) and self.log.followed.get(name, [(0, None)])[-1][1]:
                self.world.post(gateway, request)

        self.world.call_at(at, act)

    def _schedule_publishers(self) -> None:
        random = self.random
        for _ in range(random.randint(30, 90)):
            x, y = self._place(8.0)
            area = Rect.at(x, y)
            if random.random() < 0.5:
                area = Rect.around(x, y, random.choice([1.0, 5.0, 20.0])).clamped(SPACE)
            request = SimPublish(
                area,
                qos=random.choice([0, 1, 1, 2]),
                lifetime_ms=random.choice([40_000, 40_000, 40_000, 500, 3_000]),
            )
            at = 2 * random.randint(0, HEAL_MS // 2 + 500)
            self.world.post(random.choice(self.names), request, at=at)

    def _schedule_faults(self) -> None:
        random, names = self.random, self.names
        if self.faults.partitions:
            for _ in range(random.randint(0, 3)):
                side = random.sample(names, random.randint(1, len(names) - 1))
                start = random.randint(0, HEAL_MS - 1)
                self.world.call_at(start, lambda side=side: self.world.network.partition([side]))  # type: ignore[misc]
                self.world.call_at(start + random.randint(50, 2_500), self.world.network.heal)
            for _ in range(random.randint(0, 3)):
                a, b = random.sample(names, 2)
                at = random.randint(0, HEAL_MS - 1)
                self.world.call_at(at, lambda a=a, b=b: self.world.network.cut(a, b))  # type: ignore[misc]
        if self.faults.crashes:
            for _ in range(random.randint(0, 5)):
                node, at = random.choice(names), random.randint(0, HEAL_MS - 1)
                self.world.call_at(at, lambda node=node: self._crash(node))  # type: ignore[misc]
                back = at + random.randint(1, 2_500)
                self.world.call_at(back, lambda node=node: self._restart(node))  # type: ignore[misc]

    def _schedule_plans(self) -> None:
        random = self.random
        for _ in range(random.randint(0, 3)):
            self.world.call_at(random.randint(0, HEAL_MS - 1), lambda: self._propose(self.names))
        if self.faults.deaths and random.random() < 0.3:
            victim = random.choice(self.names)
            self.world.call_at(random.randint(0, HEAL_MS), lambda: self._kill(victim))
            self.world.call_at(HEAL_MS + 1, lambda: self._declare_dead(victim))

    def _propose(self, holders: list[str]) -> None:
        """Store a new plan; the nodes that are up learn of it one after the other."""
        self.newest = random_plan(self.random, self.names, holders, self.newest.version + 1)
        for name in self.names:
            at = self.world.now + self.random.randint(0, 400)
            self.world.call_at(at, lambda name=name: self._learn(name))  # type: ignore[misc]

    def _learn(self, name: str) -> None:
        if self.world.alive(name):
            self.world.post(name, UsePlan(self.newest))

    def _crash(self, node: str) -> None:
        if self.world.alive(node):
            self.log.crashes.append((self.world.now, node))
            self.world.crash(node)

    def _restart(self, node: str) -> None:
        if not self.world.alive(node) and node not in self.log.dead:
            self.world.restart(node)
            self.world.perform(node, self.nodes[node].restart(self.world.now))
            self._learn(node)

    def _kill(self, node: str) -> None:
        self._crash(node)
        self.log.dead.add(node)

    def _declare_dead(self, victim: str) -> None:
        """As membership would: take the node out, and move its leaves to the others."""
        left = [name for name in self.names if name != victim]
        for name in left:
            self.world.perform(name, self.nodes[name].part(victim, self.world.now))
        self._propose(left)

    def _heal(self) -> None:
        network = self.world.network
        network.heal()
        network.link = SimulatedLink(uniform(1, 30), reordering=1.0)
        for node in self.nodes:
            self._restart(node)

    def _unfinished(self) -> list[str]:
        """Return what should have come to an end, and has not."""
        alive = [node for name, node in self.nodes.items() if name not in self.log.dead]
        versions = {node.locality.plans.versions for node in alive}
        if versions == {(self.newest.version, 0)}:
            return []
        return [f"nodes use other plans than {self.newest.version} at the end: {versions}"]

    def _counts(self) -> dict[str, int]:
        counts: Counter[str] = Counter()
        counts.update(self.world.counts)
        counts.update({f"network {k}": v for k, v in self.world.network.counts.items()})
        counts["published"] = len(self.log.published)
        counts["deliveries"] = len(self.log.delivered)
        counts["moves"] = sum(len(h) - 1 for h in self.log.followed.values())
        counts["plan version"] = self.newest.version
        counts["lost at QoS 0"] = sum(1 for _ in missing(self.log, END_MS, qos_0=True))
        return dict(counts)


def judge(log: _Log, end: int) -> list[str]:
    """Compare what was delivered with what was due, from the definition; return what is wrong."""
    problems = []
    seen = Counter((name, event.event_id) for _, name, event in log.delivered)
    problems += [f"{key} delivered {n} times" for key, n in seen.items() if n > 1]
    for at, name, event in log.delivered:
        if at >= event.deadline:
            problems.append(f"{event.event_id} delivered to {name} at {at}, after its deadline")
        area = area_at(log, name, event.published_at)
        if area is None or not area.intersects(event.area):
            problems.append(f"{event.event_id} delivered to {name}, to whom it was not due")
    problems += [
        f"{event.event_id} lost for {name}" for name, event in missing(log, end, qos_0=False)
    ]
    problems += [
        f"{event.event_id} (QoS 0) lost for {name} without a fault"
        for name, event in missing(log, end, qos_0=True)
        if not _explained(log, name, event)
    ]
    return problems


def missing(log: _Log, end: int, *, qos_0: bool) -> list[tuple[str, PlacedEvent]]:
    """Return the pairs that were due to a living gateway, have not expired, and did not arrive."""
    seen = {(name, event.event_id) for _, name, event in log.delivered}
    return [
        (name, event)
        for event in log.published
        if (event.qos == 0) == qos_0 and event.deadline > end and event.event_id[0] not in log.dead
        for name in log.followed
        if log.gateway_of[name] not in log.dead and (name, event.event_id) not in seen
        if (area := area_at(log, name, event.published_at)) and area.intersects(event.area)
    ]


def area_at(log: _Log, name: str, at: int) -> Rect | None:
    """Return where a subscription was at an instant, by what its client was told."""
    areas = [area for since, area in log.followed[name] if since <= at]
    return areas[-1] if areas else None


def _explained(log: _Log, name: str, event: PlacedEvent) -> bool:
    """Tell whether a fault explains the loss: a dropped message of the pair, or a crash nearby."""
    if ("event", event.event_id) in log.dropped or ("subscription", name) in log.dropped:
        return True
    return any(abs(at - event.published_at) < 5_000 for at, _ in log.crashes)


def random_plan(
    random: Random, nodes: list[str], holders: list[str], version: int = 1
) -> NamedPlan:
    """Return a plan with overlapping regions and a crowd here and there, on the holders."""
    regions = []
    for _ in range(random.randint(0, 5)):
        x, y = random.uniform(0, 56), random.uniform(0, 56)
        regions.append(
            Rect(x, y, x + random.uniform(1, 20), y + random.uniform(1, 20)).clamped(SPACE)
        )
    users = [(random.gauss(32, 14) % 64, random.gauss(20, 9) % 64) for _ in range(120)]
    xs, ys = [x for x, _ in users], [y for _, y in users]
    counts = CellCounts.from_positions(SPACE, regions, xs, ys, depth=5)
    layout = random.choice(["qr", "qr", "qr", "q", "r"])
    plan = Plan.build(SPACE, regions, counts, capacity=12, layout=layout, version=version)  # type: ignore[arg-type]
    brokers = [nodes.index(random.choice(holders)) for _ in plan.leaves]
    return NamedPlan(plan.with_brokers(brokers), tuple(nodes))
