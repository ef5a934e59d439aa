"""A network that is really cut while two nodes propose an adapted plan at once.

Node a is the first by name, so it is the one that proposes; it holds no leaves. All that it writes
to NATS passes a relay, and that stops as soon as a begins to write the plan that it proposes. The
others do not see a any more, so that b is the first, and proposes a plan of the same version.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from tests.server.test_network_adapting import AREA, CONFIG, news
from tests.support.holding_line import HoldingLine
from tests.support.real_cluster import Got, RealCluster
from tests.support.waiting import wait_for

from nearcast.broker import Broker
from nearcast.config import NetworkSection
from nearcast.locality import NamedPlan, Plan
from nearcast.server.cluster.nats_admin import share_plan
from nearcast.server.storage.journal_file import JournalFile

pytestmark = [pytest.mark.server, pytest.mark.timeout(300)]
SOON = """
from nearcast.cluster import spatial_part
from nearcast.locality.layout import adapting
spatial_part.REPORT_MS = 500
adapting.AdaptRules.__init__.__defaults__ = (1.9, 1.8, 20.0, 2.0, 8.0, 4, 0.0)
"""
PATIENT = """
from nearcast.nats import connection
connection.connect.__kwdefaults__["timeout_s"] = 120.0
connection._PING_S = 120
"""
WRITES_PLAN = rb"H?PUB \$KV\.[^ ]*shared\.plan "
NODES = ("a", "b", "c")
IS_SOAK = settings.default is not None and settings.default.max_examples > 50
SPOTS = [(lon, lat) for lon in (-0.7, -0.3, 0.3, 0.7) for lat in (-0.7, -0.3)][1:7]


def first_plan() -> Plan:
    """Four quarters: the south, where everybody is, belongs to b, the north to c."""
    leaves = [(f"q{digit}", AREA, 10) for digit in "0123"]
    return Plan(AREA, leaves, layout="q", depth=6, fanout=8, version=1,
                brokers=[1, 1, 2, 2], nodes=NODES)  # fmt: skip


class Rivals:
    """Three nodes, two people of each who hear what is near, and one at each who tells."""

    def __init__(self, cluster: RealCluster, line: HoldingLine, prelude: str) -> None:
        self.cluster, self.line = cluster, line
        for name in NODES:
            cluster.begin(name, SOON + prelude, address=line.address if name == "a" else "")
        for name in NODES:
            wait_for(lambda name=name: cluster.node(name).has_said("Ready."), 60)  # type: ignore[misc]
        cluster.join(*NODES)
        asyncio.run(share_plan(NetworkSection(join=[cluster.address]), first_plan()))
        wait_for(lambda: all(one.plan == 1 for one in cluster.members().values()))
        self.people = [cluster.client(NODES[n % 3], f"p{n}") for n in range(6)]
        for person, spot in zip(self.people, SPOTS, strict=True):
            person.publish("$position", news(0, *spot), 1)
            person.subscribe("$near/500m/city/#", 1)
        self.tellers = {name: cluster.client(name, f"teller-{name}") for name in NODES}
        self.told = 0
        self.got: list[Got] = []

    def tell(self, *names: str) -> None:
        """Tell something at every spot, from each of these nodes."""
        for name in names:
            for spot in SPOTS:
                self.told += 1
                self.tellers[name].publish(f"city/{self.told}", news(self.told, *spot), 1)

    def tell_until(self, is_so: object, *names: str) -> None:
        deadline = time.monotonic() + 90
        while not is_so():  # type: ignore[operator]
            assert time.monotonic() < deadline, self.cluster.log("a") + self.cluster.log("b")
            self.tell(*names)

    def has_all(self) -> bool:
        self.got.extend(one for person in self.people for one in person.rest(0.2))
        return len({topic for topic, _, _ in self.got}) >= self.told

    def has_said(self, name: str, words: str) -> bool:
        return self.cluster.node(name).has_said(words)


def plan_on_disk(directory: Path) -> NamedPlan:
    """Return the plan in the journal of a node that has ended."""
    broker = Broker(with_journal=True)
    broker.restore(JournalFile(directory / "journal").batches(), 0)
    return NamedPlan.from_bytes(broker.notes.get(b"c", b""))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RealCluster]:
    with RealCluster(tmp_path, CONFIG) as found:
        yield found


@pytest.fixture
def line(cluster: RealCluster) -> Iterator[HoldingLine]:
    found = HoldingLine(cluster.nats_port)
    yield found
    found.close()


@pytest.mark.parametrize(
    ("prelude", "said"),
    [
        pytest.param(
            PATIENT,
            "plan 2 is not proposed: another one was shared meanwhile",
            id="patient",
            marks=pytest.mark.skipif(not IS_SOAK, reason="a soak: what a rare setting does"),
        ),
        pytest.param("", "plan 2 could not be shared: ", id="as nodes are"),
    ],
)
def test_of_two_plans_proposed_in_a_cut_network_one_wins_and_nothing_is_lost(
    cluster: RealCluster, line: HoldingLine, prelude: str, said: str
) -> None:
    """A patient node waits for the answer of NATS; others give up first, and write all the same."""
    rivals = Rivals(cluster, line, prelude)
    line.hold_at(WRITES_PLAN)
    rivals.tell_until(lambda: line.is_holding, "b", "c")
    for name in ("b", "c"):  # while a is cut off, and has proposed
        rivals.tell_until(lambda name=name: rivals.has_said(name, "plan 2 is taken up"), *NODES)
    assert "plan 2 is proposed: b has" in cluster.log("b")
    assert "plan 2 is taken up" not in cluster.log("a")
    line.release()
    wait_for(lambda: rivals.has_said("a", said), said=lambda: cluster.log("a"))
    wait_for(lambda: rivals.has_said("a", "plan 2 is taken up"), said=lambda: cluster.log("a"))
    wait_for(lambda: len({one.plan for one in cluster.members().values()}) == 1)
    rivals.tell(*NODES)

    wait_for(rivals.has_all)
    times = Counter(int(topic.split("/")[1]) for topic, _, _ in rivals.got)
    assert times == dict.fromkeys(range(1, rivals.told + 1), 1)
    assert "plan 2 is proposed" not in cluster.log("a")
    cluster.end(*NODES)
    plans = [plan_on_disk(cluster.directory / name) for name in NODES]
    assert plans[0].version >= 2
    assert len({one.to_bytes() for one in plans}) == 1
