"""Real nodes that adapt their plan while clients get everything once; and rivals of a proposal."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.commands import nearcast
from tests.support.real_cluster import Got, RealCluster
from tests.support.space_sections import placed_section
from tests.support.waiting import wait_for

from nearcast.config import NetworkSection
from nearcast.locality import NamedPlan, Plan, Rect
from nearcast.locality.registration.leaf_loads import PlanProposal
from nearcast.model.errors import EnvironmentProblem, KeyInUseError
from nearcast.server.cluster.nats_admin import share_plan
from nearcast.server.cluster.nats_sharing import look_at_plan
from nearcast.server.learned.artefacts import LearnedArtefacts

pytestmark = pytest.mark.server
CONFIG = "[network]\nadapt = true\n" + placed_section("city", lon=(-1, 1), lat=(-1, 1))
SOON = """
from nearcast.cluster import spatial_part
from nearcast.locality.layout import adapting
spatial_part.REPORT_MS = 500
adapting.AdaptRules.__init__.__defaults__ = (1.5, 1.2, 20.0, 2.0, 4.0, 4, 0.0)
"""
AREA = Rect(-1.0, -1.0, 1.0, 1.0)
NODES = ("a", "b", "c")


def plan(version: int) -> Plan:
    """Four quarters: the south belongs to a, the north to b and c."""
    leaves = [(f"q{digit}", AREA, 10) for digit in "0123"]
    return Plan(AREA, leaves, layout="q", depth=6, fanout=8, version=version,
                brokers=[0, 0, 1, 2], nodes=NODES)  # fmt: skip


def news(number: int, lon: float, lat: float) -> bytes:
    return json.dumps({"lon": lon, "lat": lat, "id": number}).encode()


def first_holders(section: NetworkSection, unnamed: Plan) -> tuple[str, str]:
    """Return who would get the south-west and the north-east of a first plan."""
    named = asyncio.run(look_at_plan(section, unnamed)).plan.plan
    return named.node_of(0), named.node_of(3)


def test_leaves_of_a_busy_node_move_and_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    with RealCluster(tmp_path, CONFIG) as cluster:
        for name in NODES:
            cluster.begin(name, SOON)
        for name in NODES:
            wait_for(lambda name=name: cluster.node(name).has_said("Ready."), 60)  # type: ignore[misc]
        cluster.join(*NODES)
        section = NetworkSection(join=[cluster.address])
        for number, (node, lon) in enumerate((("c", -0.5), ("a", 0.5))):
            cluster.client(node, f"early{number}").publish("$position", news(0, lon, lon), 1)
        unnamed = plan(1).with_nodes(None)
        wait_for(lambda: first_holders(section, unnamed) == ("c", "a"))
        asyncio.run(share_plan(section, plan(1)))
        wait_for(lambda: all(one.plan == 1 for one in cluster.members().values()))
        spots = [(-0.3 - 0.02 * n, -0.3 - 0.02 * n) for n in range(6)]
        people = [cluster.client(NODES[n % 3], f"p{n}") for n in range(6)]
        for person, spot in zip(people, spots, strict=True):
            person.publish("$position", news(0, *spot), 1)
            person.subscribe("$near/500m/city/#", 1)
        shop, told = cluster.client("b"), 0
        deadline = time.monotonic() + 60
        while cluster.members()["c"].plan < 2:
            assert time.monotonic() < deadline, cluster.log("a")
            for spot in spots:
                told += 1
                shop.publish(f"city/{told}", news(told, *spot), 1)
        for spot in spots:  # under the adapted plan
            told += 1
            shop.publish(f"city/{told}", news(told, *spot), 1)

        got: list[Got] = []

        def has_all() -> bool:
            got.extend(one for person in people for one in person.rest(0.2))
            return len(got) >= told

        wait_for(has_all)
        assert sorted(int(one[0].split("/")[1]) for one in got) == list(range(1, told + 1))
        assert "is proposed: a has" in cluster.log("a")
        for name in NODES:
            assert "plan 2 is taken up" in cluster.log(name)
        members = cluster.members()
        assert members["a"].plans_proposed >= 1
        assert members["b"].plans_proposed == members["c"].plans_proposed == 0
        assert any(one.load for one in members.values())
        shown = nearcast("nodes", "--join", cluster.address).stdout
        assert "load" in shown


class Store:
    """Shared settings that answer a write with an error, or keep it."""

    def __init__(self, problem: Exception | None = None) -> None:
        self._problem = problem
        self.written: list[tuple[bytes, int | None]] = []

    async def put(self, _name: str, data: bytes, *, at_ms: int, expected: int | None) -> None:
        del at_ms
        if self._problem is not None:
            raise self._problem
        self.written.append((data, expected))


def artefacts(store: Store, last: NamedPlan) -> LearnedArtefacts:
    node: Any = SimpleNamespace(deferred_retained=None, spaces=[])
    found = LearnedArtefacts(node, lambda: 5, Path())
    found._shared = store  # type: ignore[assignment]
    found._plan, found._plan_version = last, 7
    return found


def proposal(version: int) -> PlanProposal:
    return PlanProposal(NamedPlan(plan(version), NODES), "a has 90 messages a minute")


def test_a_proposal_replaces_only_the_plan_that_it_was_made_from(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    store = Store()
    known = artefacts(store, NamedPlan(plan(1), NODES))
    asyncio.run(known.share_proposal(proposal(2)))
    assert store.written == [(proposal(2).plan.to_bytes(), 7)]
    assert "plan 2 is proposed: a has 90 messages a minute" in caplog.text

    newer = artefacts(store, NamedPlan(plan(5), NODES))  # an operator was faster
    asyncio.run(newer.share_proposal(proposal(2)))
    assert len(store.written) == 1
    assert "plan 2 is not proposed: the network shares plan 5 already" in caplog.text


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        (KeyInUseError("another"), "plan 2 is not proposed: another one was shared meanwhile"),
        (EnvironmentProblem("no NATS"), "plan 2 could not be shared: no NATS"),
    ],
)
def test_a_proposal_that_was_outrun_or_cannot_be_written_says_so(
    caplog: pytest.LogCaptureFixture, problem: Exception, said: str
) -> None:
    caplog.set_level(logging.INFO)
    known = artefacts(Store(problem), NamedPlan(plan(1), NODES))
    asyncio.run(known.share_proposal(proposal(2)))
    assert said in caplog.text
