"""Simulated nodes that adapt their plan: a concert, and everything that may get in the way."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest
from tests.support.simulated_city import SimulatedCity
from tests.support.town import SPACE

from nearcast.broker import SpaceSettings
from nearcast.cluster import NamedPlan
from nearcast.locality import Plan, Rect, plan_diff
from nearcast.locality.layout.adapting import AdaptRules
from nearcast.locality.registration.leaf_loads import PlanProposal
from nearcast.simulator.mqtt_node import SimulatedClient
from nearcast.simulator.network import SimulatedLink, uniform

SIDE = 0.04  # degrees, about 4.5 km
AREA = Rect(0.0, 0.0, SIDE, SIDE)
STAGE = (0.031, 0.029)
RULES = AdaptRules(least_load=20, sustained_s=15, least_gap_s=20)
Place = tuple[float, float]


def payload(place: Place, number: int = 0) -> bytes:
    return json.dumps({"lon": place[0], "lat": place[1], "id": number}).encode()


def sixteen(version: int = 1) -> NamedPlan:
    """Sixteen quadrants, four for each node."""
    leaves = [(f"q{one}{two}", AREA, 10) for one in "0123" for two in "0123"]
    plan = Plan(AREA, leaves, layout="q", depth=6, fanout=8, version=version,
                brokers=[n // 4 for n in range(16)])  # fmt: skip
    return NamedPlan(plan, ("n0", "n1", "n2", "n3"))


class Concert:
    """People with `$near`; 30 % of them walk to one block, stay, and go home again."""

    def __init__(self, people: int, rules: AdaptRules | None, seed: int = 1) -> None:
        self.random = random.Random(seed)
        link = SimulatedLink(delay=uniform(1, 3))
        self.city = SimulatedCity(
            4, seed, link, keep_digest=False, spaces=[SpaceSettings(space=SPACE)], adapt=rules
        )
        self.plan = sixteen()
        self.share(self.plan)
        self.proposals: list[PlanProposal] = []
        self.homes = [
            (self.random.random() * SIDE, self.random.random() * SIDE) for _ in range(people)
        ]
        self.places = list(self.homes)
        self.stages = [
            tuple(at + self.random.gauss(0, 1.5e-3) for at in STAGE) for _ in range(people)
        ]  # one block, about 300 m wide
        self.goes = [n < 0.3 * people for n in range(people)]
        self.due: list[Counter[bytes]] = [Counter() for _ in range(people)]
        self.told = 0
        self.busiest: list[float] = []
        self.clients = [self.person(n) for n in range(people)]
        self.city.run(2_000)

    def person(self, number: int) -> SimulatedClient:
        home = str(next(iter(self.plan.holders(Rect.at(*self.homes[number])))))
        client = self.city.client(f"p{number}", home)
        self.city.run(5)
        self.city.publish(client, "$position", payload(self.homes[number]), 1)
        client.subscribe("$near/200m/city/#")
        self.city.turn(client)
        return client

    def share(self, plan: NamedPlan, *, without: str = "") -> None:
        for name in self.city.names:
            if name != without:
                self.city.at(name, lambda node, now: node.use_plan(plan, now))
        self.city.run(500)

    def adopt(self) -> list[PlanProposal]:
        """Share what nodes propose; the store takes the first plan of a version only."""
        found = [
            proposal
            for node in self.city.nodes.values()
            if (proposal := node.mesh.take_proposal()) is not None
        ]
        for proposal in found:
            if proposal.plan.version == self.plan.version + 1:
                self.plan = proposal.plan
                self.proposals.append(proposal)
                self.share(self.plan)
        return found

    def step(self, share: float, tell: float = 0.1) -> None:
        """Five seconds: everybody goes on, some tell, the nodes adapt if they want to."""
        for number, client in enumerate(self.clients):
            (x, y), stage = self.homes[number], self.stages[number]
            away = share if self.goes[number] else 0.0
            place = (
                x + away * (stage[0] - x) + self.random.gauss(0, 1e-4),
                y + away * (stage[1] - y) + self.random.gauss(0, 1e-4),
            )
            place = (min(max(place[0], 0), SIDE), min(max(place[1], 0), SIDE))
            self.places[number] = place
            self.city.publish(client, "$position", payload(place), 1)
        self.city.run(2_500)
        for number, client in enumerate(self.clients):
            if self.random.random() < tell:
                self.tell(number, client)
        self.city.run(2_500)
        self.adopt()
        self.busiest.append(max(self.loads().values()))

    def tell(self, number: int, client: SimulatedClient) -> None:
        from nearcast.model import distance_m

        self.told += 1
        news = payload(self.places[number], self.told)
        for other, place in enumerate(self.places):
            if distance_m(*place, *self.places[number]) <= 200:
                self.due[other][news] += 1
        self.city.publish(client, "city/news", news, 1)

    def loads(self) -> Counter[str]:
        """Return how many people each node holds under its plan: adapting or not, the same."""
        found: Counter[str] = Counter()
        for place in self.places:
            found[str(next(iter(self.plan.holders(Rect.at(*place)))))] += 1
        return found

    def wrong(self) -> tuple[int, int]:
        """Return how many deliveries are missing, and how many are too many."""
        missing = extra = 0
        for client, due in zip(self.clients, self.due, strict=True):
            got = Counter(one.payload for one in client.received)
            missing += (due - got).total()
            extra += (got - due).total()
        return missing, extra

    def handovers(self) -> int:
        return sum(node.mesh.handovers for node in self.city.nodes.values())


def evening(rules: AdaptRules | None, people: int = 60) -> Concert:
    concert = Concert(people, rules)
    for step in range(60):  # five minutes: there in one, two there, home in one
        concert.step(min(step / 12, 1.0) if step < 36 else max(0.0, 1 - (step - 36) / 12))
    concert.city.run(5_000)
    return concert


def test_at_a_concert_the_busiest_node_is_relieved_and_nothing_is_lost() -> None:
    fixed, adapting = evening(None), evening(RULES)
    assert fixed.wrong() == adapting.wrong() == (0, 0)
    assert not fixed.proposals
    assert 1 <= len(adapting.proposals) <= 8
    crowded = slice(26, 36)  # all are there, and the nodes had a minute
    assert max(adapting.busiest[crowded]) <= 0.8 * max(fixed.busiest[crowded])
    versions = {node.mesh.plans for node in adapting.city.nodes.values()}
    assert versions == {(adapting.plan.version, 0)}


@pytest.fixture
def crowd() -> Concert:
    """Everybody who goes is at the concert, and the nodes have not adapted yet."""
    concert = Concert(60, AdaptRules(least_load=20, sustained_s=30, least_gap_s=20))
    for _ in range(3):
        concert.step(1.0)
    assert not concert.proposals
    return concert


def until_proposed(
    concert: Concert, steps: int = 20, *, is_quiet: bool = False
) -> list[PlanProposal]:
    """Let people stay where they are, and tell unless it `is_quiet`, until a node proposes."""
    for _ in range(steps):
        for number, client in enumerate(concert.clients if not is_quiet else []):
            concert.city.publish(client, "$position", payload(concert.places[number]), 1)
            if number % 6 == 0:
                concert.tell(number, client)
        concert.city.run(5_000)
        found = [
            proposal
            for node in concert.city.nodes.values()
            if (proposal := node.mesh.take_proposal()) is not None
        ]
        if found:
            return found
    return []


def test_one_node_proposes_and_says_why(crowd: Concert) -> None:
    (found,) = until_proposed(crowd)
    assert found.plan.version == 2
    assert found.plan.nodes == crowd.plan.nodes
    assert "messages a minute" in found.reason
    assert not plan_diff(crowd.plan.plan, found.plan.plan).is_empty
    counts = [node.mesh.counts.plans_proposed for node in crowd.city.nodes.values()]
    assert counts == [1, 0, 0, 0]


def test_two_nodes_that_propose_at_once_lose_nothing(crowd: Concert) -> None:
    """As two halves of a cut network could: a second plan of a version is refused by all nodes.

    That the store lets only one be shared is in `tests/server/test_network_adapting.py`.
    """
    (found,) = until_proposed(crowd)
    other = found.plan.plan.with_brokers([0] * len(found.plan.plan.leaves))
    rival = NamedPlan(other.with_nodes(None), found.plan.nodes)
    crowd.share(found.plan)
    crowd.plan = found.plan
    for name in crowd.city.names:  # a plan of the same version that comes later has no effect
        assert not crowd.city.nodes[name].mesh.use_plan(rival, crowd.city.world.now)
    for _ in range(4):
        crowd.step(1.0)
    crowd.city.run(5_000)
    assert crowd.wrong() == (0, 0)
    assert {node.mesh.plans[0] for node in crowd.city.nodes.values()} == {crowd.plan.version}


def test_nothing_is_proposed_while_a_plan_is_rolling_out(crowd: Concert) -> None:
    moved = sixteen(2)
    crowd.plan = moved
    crowd.share(moved, without="n3")  # it hears of the plan later
    assert crowd.city.nodes["n0"].mesh.plans == (1, 2)
    assert until_proposed(crowd, 10) == []
    assert "under way" in crowd.city.nodes["n0"].mesh._spatial.waits_for  # type: ignore[attr-defined]
    crowd.city.at("n3", lambda node, now: node.use_plan(moved, now))
    crowd.city.run(1_000)
    assert [one.plan.version for one in until_proposed(crowd)] == [3]
    crowd.city.run(5_000)
    assert crowd.wrong() == (0, 0)


def test_a_node_that_comes_back_with_an_old_plan_gets_the_adapted_one(crowd: Concert) -> None:
    crowd.city.crash("n3")
    crowd.city.run(2_000)
    assert until_proposed(crowd, 10, is_quiet=True) == []  # its leaves have no known load
    assert "n3 has leaves and is away" in crowd.city.nodes["n0"].mesh._spatial.waits_for  # type: ignore[attr-defined]
    crowd.city.restart("n3")
    for client in crowd.clients:
        if crowd.city.homes[client.name] == "n3":
            crowd.city.admit(client)
    crowd.city.run(3_000)
    (found,) = until_proposed(crowd)
    crowd.plan = found.plan
    crowd.share(found.plan, without="n3")
    crowd.city.crash("n3")
    crowd.city.run(3_000)
    crowd.city.restart("n3")  # with plan 1 in its journal
    for client in crowd.clients:
        if crowd.city.homes[client.name] == "n3":
            crowd.city.admit(client)
    crowd.city.run(3_000)
    assert crowd.city.nodes["n3"].mesh.plans[0] == 1
    crowd.share(found.plan)
    crowd.city.run(70_000)
    assert {node.mesh.plans for node in crowd.city.nodes.values()} == {(2, 0)}
    missing, extra = crowd.wrong()
    assert (missing, extra) == (0, 0)


def test_a_node_that_does_not_report_is_named_and_nothing_changes() -> None:
    concert = Concert(40, RULES)
    silent = concert.city.nodes["n2"].mesh._spatial
    silent._proposer = None  # type: ignore[attr-defined]  # adapt = false
    for _ in range(10):
        concert.step(1.0)
    assert not concert.proposals
    waits = concert.city.nodes["n0"].mesh._spatial.waits_for  # type: ignore[attr-defined]
    assert waits == "n2 does not report its load"
