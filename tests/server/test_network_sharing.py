"""Plans, policies and histograms that real nodes take up while they run; and what is refused."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from tests.support.commands import nearcast
from tests.support.real_cluster import PahoClient, RealCluster
from tests.support.space_sections import placed_section
from tests.support.waiting import wait_for

from nearcast.cli.sharing import share_plan_file
from nearcast.config import NetworkSection
from nearcast.locality import NamedPlan, Plan, Rect, load_plan, save_plan
from nearcast.locality.schedule.plan_schedule import DAYS, ScheduledPlans, load_schedule
from nearcast.model.errors import FileFormatError, KeyInUseError, UnknownNameError
from nearcast.nats.connection import close, connect
from nearcast.overlay import Extent
from nearcast.pipeline.jobs.histogram import EventHistogram, save_histogram
from nearcast.retained import Policies, Rates, Weights, solve, write_policies
from nearcast.retained.policyfile import TopicPolicy
from nearcast.server.cluster.nats_members import open_bucket
from nearcast.server.cluster.nats_settings import PLAN, SCHEDULE, SharedSettings
from nearcast.server.cluster.nats_sharing import (
    PlanOffer,
    look_at_plan,
    make_scheduled_change,
    now_ms,
    offer_plan,
    share_histograms,
    share_policies,
)

pytestmark = pytest.mark.server

CONFIG = '[durability]\nmode = "power"\n' + placed_section("shops", lon=(-1, 1), lat=(-1, 1))
LEARNED = '[[retained]]\ntopics = "plant/#"\nmode = "learned"\nhold = "5s"\nomega = 0.3\n'
NODES = ["east", "north", "south", "west"]
AREA = Rect(-1.0, -1.0, 1.0, 1.0)
SPOTS = [(-0.5, -0.5), (0.5, -0.5), (-0.5, 0.5), (0.5, 0.5)]  # one in each quarter


def plan(version: int, *, nodes: list[str] | None = None, brokers: str = "0123") -> Plan:
    """Return a plan of four quarters."""
    leaves = [(f"q{digit}", AREA, 10) for digit in "0123"]
    numbers = [int(one) for one in brokers] or None
    return Plan(AREA, leaves, layout="q", depth=3, fanout=8, version=version, brokers=numbers,
                nodes=nodes)  # fmt: skip


def nodes_command(cluster: RealCluster, *options: str) -> tuple[int, str]:
    done = nearcast("nodes", "--join", cluster.address, *options)
    return done.returncode, done.stdout + done.stderr


def share(cluster: RealCluster, new: Plan, *options: str) -> tuple[int, str]:
    path = cluster.directory / "plan.json"
    save_plan(new, path)
    return nodes_command(cluster, "--plan", str(path), *options)


def section(cluster: RealCluster) -> NetworkSection:
    return NetworkSection(join=[cluster.address])


def in_force(cluster: RealCluster) -> NamedPlan:
    async def read() -> NamedPlan:
        client = await connect(section(cluster), "test", timeout_s=30)
        kept = await open_bucket(client, section(cluster), expires=False)
        found = await SharedSettings(client, kept).get(PLAN)
        await close(client)
        return NamedPlan.from_bytes(found.data)

    return asyncio.run(read())


def holders(named: NamedPlan) -> dict[str, str]:
    return {leaf.key: named.plan.node_of(leaf.number) for leaf in named.plan.leaves}


def have_plan(cluster: RealCluster, version: int, *names: str) -> bool:
    members = cluster.members()
    return all(name in members and members[name].plan == version for name in names)


class Street:
    """A walker at one node and a shop at another: whatever is offered near the walker arrives."""

    def __init__(self, walker: PahoClient, shop: PahoClient) -> None:
        self._walker, self._shop = walker, shop
        self._numbers = count()
        self.heard: list[str] = []
        walker.subscribe("$near/500m/shops/#", 1)

    def offer(self, lon: float, lat: float) -> str:
        topic = f"shops/{next(self._numbers)}"
        self._shop.publish(topic, json.dumps({"lon": lon, "lat": lat}).encode(), 1)
        return topic

    def walk_about(self) -> None:
        """Go to each quarter; once an offer has arrived there, further ones must, too."""
        for lon, lat in SPOTS:
            self._walker.publish("$position", json.dumps({"lon": lon, "lat": lat}).encode(), 1)
            wait_for(lambda: self._hears(self.offer(lon, lat)))  # noqa: B023 - at once
            wanted = [self.offer(lon + 0.001, lat) for _ in range(5)]
            wait_for(lambda: all(self._hears(one) for one in wanted))  # noqa: B023 - at once

    def _hears(self, topic: str) -> bool:
        self.heard += [got[0] for got in self._walker.rest(0.1)]
        return topic in self.heard


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    with RealCluster(tmp_path_factory.mktemp("four"), CONFIG) as cluster:
        cluster.start(*NODES)
        cluster.join(*NODES)
        yield cluster


def test_one_absent_node_moves_no_leaf_of_others_and_comes_back_to_the_newest_plan(
    four: RealCluster,
):
    named = plan(1, nodes=["west", "south", "north", "east"])
    street = Street(four.client("east"), four.client("north"))
    street.walk_about()  # without a plan
    assert share(four, named) == (0, "Plan 1 is shared with west, south, north, east.\n")
    wait_for(lambda: have_plan(four, 1, *NODES))
    before = holders(in_force(four))
    assert before == {"q0": "west", "q1": "south", "q2": "north", "q3": "east"}
    street.walk_about()

    four.end("south")
    wait_for(lambda: set(four.members()) == {*NODES} - {"south"})
    _, said = share(four, plan(2, brokers=""))  # no names: those that are there
    assert "Plan 2 is shared with west, north, east." in said
    after = holders(in_force(four))
    assert {key: name for key, name in after.items() if key != "q1"} == {
        key: name for key, name in before.items() if key != "q1"
    }
    assert after["q1"] in ("west", "north", "east")

    # The nodes wait for south, which knows plan 1 only; the next plan waits for both.
    code, said = share(four, named.numbered(3))
    assert code == 0
    assert "south is away: another node stands in until it is back." in said
    assert "Plan 2 is still being taken up (east, north, south, west); plan 3 follows." in said
    street.walk_about()

    four.start("south")
    wait_for(lambda: have_plan(four, 3, *NODES))
    assert holders(in_force(four)) == before
    street.walk_about()


def test_a_plan_of_a_node_that_nobody_knows_is_refused_and_may_be_reassigned(four: RealCluster):
    last = in_force(four).version if _has_plan(four) else 0
    other = plan(last + 1, nodes=["west", "moon", "north", "east"])
    code, said = share(four, other)
    assert code == 2
    assert "no node 'moon'" in said
    assert "east, north, south, west" in said
    assert "--reassign" in said
    assert (in_force(four).version if _has_plan(four) else 0) == last

    code, said = share(four, other, "--reassign")
    assert (code, said.splitlines()[0]) == (
        0, f"Plan {last + 1} is shared with west, north, east, south."
    )  # fmt: skip
    assert holders(in_force(four)) == {"q0": "west", "q1": "south", "q2": "north", "q3": "east"}
    wait_for(lambda: have_plan(four, last + 1, *NODES))


def _has_plan(cluster: RealCluster) -> bool:
    offer = asyncio.run(look_at_plan(section(cluster), plan(1, nodes=NODES)))
    return offer.last is not None


def test_of_two_operators_one_wins_and_the_other_is_told_also_afterwards(four: RealCluster):
    async def both() -> list[PlanOffer | BaseException]:
        return await asyncio.gather(
            *(offer_plan(section(four), one) for one in (one, other)), return_exceptions=True
        )

    next_version = 1 + (in_force(four).version if _has_plan(four) else 0)
    one, other = plan(next_version, nodes=NODES), plan(next_version, nodes=NODES[::-1])
    results = asyncio.run(both())

    (winner,) = (found for found in results if isinstance(found, PlanOffer))
    (told,) = (found for found in results if isinstance(found, KeyInUseError))
    assert "version" in str(told) or "after" in str(told)
    assert in_force(four) == winner.plan
    loser = other if winner.plan.nodes == tuple(NODES) else one
    with pytest.raises(KeyInUseError, match=f"found plan {next_version}; expected a plan after"):
        asyncio.run(offer_plan(section(four), loser))
    with pytest.raises(KeyInUseError, match=f'"version" in the file to {next_version + 1}'):
        asyncio.run(offer_plan(section(four), loser.numbered(1)))
    again = asyncio.run(offer_plan(section(four), winner.plan.plan))  # the same plan does no harm
    assert again.is_in_force
    assert in_force(four) == winner.plan
    renumbered = asyncio.run(offer_plan(section(four), loser, renumbers=True))
    assert renumbered.plan.version == next_version + 1
    assert holders(in_force(four)) == holders(renumbered.plan)
    wait_for(lambda: have_plan(four, next_version + 1, *NODES))


def test_nodes_change_plans_by_the_clock_and_an_operator_ends_that(four: RealCluster):
    """Now, a missed change, a clock set back, and two nodes at once."""
    day, night = plan(1, brokers="0011"), plan(1, brokers="2233")
    folder = four.directory
    save_plan(day, folder / "day.json")
    save_plan(night, folder / "night.json")
    at = {"12:00": "day.json", "00:00": "night.json"}
    changes = [{"days": list(DAYS), "at": time, "plan": name} for time, name in at.items()]
    fields = {"format": "nearcast-schedule", "format_version": 1, "time_zone": "UTC"}
    (folder / "schedule.json").write_text(json.dumps({**fields, "changes": changes}))
    code, told = nodes_command(four, "--plan", str(folder / "schedule.json"))
    assert code == 0, told
    assert "follows at" in told
    shared = load_schedule(folder / "schedule.json")
    due, first = shared.schedule.plan_at(now_ms()), in_force(four)
    assert first.plan.brokers == {"day.json": (0, 0, 1, 1), "night.json": (2, 2, 3, 3)}[due]
    wait_for(lambda: have_plan(four, first.version, *NODES))
    later = shared.schedule.following(now_ms() + 3 * 86_400_000)  # days were missed
    assert sum(one is not None for one in make_change(four, later.at_ms + 5)) == 1
    second = in_force(four)
    assert second.version == first.version + 1
    assert len(set(second.plan.brokers or ())) == 2
    for now in (later.at_ms + 5, later.at_ms - 1, now_ms()):  # made already, and a clock set back
        assert make_change(four, now) == [None, None]
    assert in_force(four) == second
    assert due in at.values()
    last = plan(second.version + 1, nodes=NODES)
    asyncio.run(offer_plan(section(four), last))  # an operator ends the schedule
    assert make_change(four, later.at_ms + 9 * 86_400_000) == [None, None]
    assert in_force(four).version == last.version
    wait_for(lambda: have_plan(four, last.version, *NODES))


def make_change(cluster: RealCluster, now: int) -> list[PlanOffer | None]:
    """Let two nodes try to make the change that is due."""

    async def both() -> list[PlanOffer | None]:
        clients = [await connect(section(cluster), "test", timeout_s=30) for _ in range(2)]
        kept = await open_bucket(clients[0], section(cluster), expires=False)
        found = await SharedSettings(clients[0], kept).get(SCHEDULE)
        plans = ScheduledPlans.from_bytes(found.data) or load_schedule(
            cluster.directory / "schedule.json"
        )
        results = await asyncio.gather(
            *(make_scheduled_change(one, section(cluster), plans, now) for one in clients),
            return_exceptions=True,
        )
        for client in clients:
            await close(client)
        assert all(isinstance(one, PlanOffer | KeyInUseError | None) for one in results), results
        return [one if isinstance(one, PlanOffer) else None for one in results]

    return asyncio.run(both())


def test_a_new_plan_gets_the_next_number_and_its_file_the_names_of_the_nodes_that_have_it(
    four: RealCluster,
):
    version = in_force(four).version if _has_plan(four) else 0
    path = four.directory / "new.json"
    save_plan(plan(1, nodes=["west", "moon", "north", "east"]).with_flows({(0, 1): 7}), path)
    with pytest.raises(UnknownNameError):
        share_plan_file(section(four), path, is_new=True)

    lines, told = share_plan_file(section(four), path, is_new=True, reassigns=True)

    written = load_plan(path)
    assert told["plan"] == written.version == max(1, version + 1)
    assert written.nodes == ("west", "north", "east", "south")
    assert [written.node_of(n) for n in range(4)] == ["west", "south", "north", "east"]
    assert written.flows == {(0, 1): 7}
    assert lines[0].startswith(f"Plan {written.version} is shared with")
    bare = plan(1, brokers="")
    save_plan(bare, path)
    share_plan_file(section(four), path, is_new=True)
    assert load_plan(path) == bare.numbered(written.version + 1)  # brokers stay open
    wait_for(lambda: have_plan(four, written.version + 1, *NODES))


def test_an_operator_sees_for_whom_a_plan_changes_something_before_it_does(four: RealCluster):
    version = 1 + (in_force(four).version if _has_plan(four) else 0)
    assert share(four, plan(version, nodes=NODES))[0] == 0
    path = four.directory / "next.json"
    save_plan(plan(version + 1, nodes=NODES, brokers="0122"), path)

    done = nearcast("plan", "diff", str(path), "--join", four.address)

    assert done.returncode == 1
    assert done.stdout.startswith(f"plan {version} -> {version + 1}\n")
    assert "~ q3 goes to another broker" in done.stdout
    rows = {row.split()[0]: row.split()[1:] for row in done.stdout.splitlines() if row}
    assert rows["south"] == ["2", "1", "0", "20", "10", "0"]
    assert rows["west"] == ["0", "0", "1", "0", "0", "10"]
    assert "About 10 of 40 users change their node" in done.stdout
    assert in_force(four).version == version  # it was only looked at
    shown = json.loads(nearcast("plan", "diff", str(path), "--join", four.address, "--json").stdout)
    assert shown["registrations_handed_over"] == 10
    assert {one["node"]: one["gained"] for one in shown["nodes"]}["south"] == ["q3"]


# --- policies and histograms ----------------------------------------------------------------------


def policies() -> Policies:
    """Return policies by which a newcomer of plant/heat waits for the next message."""
    rates, weights = Rates(publish=3.0), Weights(omega=0.3)
    actions = solve(Policies().process(rates, weights)).actions
    return Policies(topics={"plant/heat": TopicPolicy(actions, rates, weights)})


def histogram_text(folder: Path) -> str:
    extent = Extent((-1.0, -1.0), (1.0, 1.0))
    found = EventHistogram("shops", ("lon", "lat"), extent, 4, np.array([[3.0, 0.0], [0.0, 1.0]]),
                           None)  # fmt: skip
    save_histogram(found, folder / "histogram-shops.json")
    return (folder / "histogram-shops.json").read_text()


def first_of(cluster: RealCluster, node: str, news: PahoClient) -> bytes:
    """Return what a newcomer gets first, while news come."""
    newcomer = cluster.client(node)
    newcomer.subscribe("plant/heat", 1)
    first: list[bytes] = []
    while not first:
        first += [payload for _, payload, _ in newcomer.rest(0.1)]
        if not first:
            news.publish("plant/heat", b"next", 1, retain=True)
    newcomer.close()
    return first[0]


def test_running_nodes_decide_by_policies_and_histograms_that_are_shared(tmp_path: Path):
    with RealCluster(tmp_path / "nodes", CONFIG + LEARNED) as cluster:
        plain = tmp_path / "plain.toml"
        plain.write_text(CONFIG)
        cluster.start("a", "b")
        cluster.start("plain", config=plain)
        cluster.join("a", "b", "plain")
        none, waiting = tmp_path / "none.json", tmp_path / "waiting.json"
        write_policies(Policies(), none)
        write_policies(policies(), waiting)
        news = cluster.client("a")
        for path, expected in ((none, b"old"), (waiting, b"next"), (none, b"old")):
            said = sum(cluster.log(name).count("policies of the network are used") for name in "ab")
            assert nodes_command(cluster, "--policies", str(path))[0] == 0
            wait_for(lambda said=said: said + 2 == sum(  # type: ignore[misc]
                cluster.log(name).count("policies of the network are used") for name in "ab"
            ))  # fmt: skip
            for _ in range(12):  # evenly: a topic in bursts begins with plain MQTT
                news.publish("plant/heat", b"old", 1, retain=True)
                time.sleep(0.25)
            wait_for(lambda: all(_has_retained(cluster, name) for name in "ab"))
            for name in "ab":
                assert first_of(cluster, name, news) == expected, (path, name)
                news.publish("plant/heat", b"old", 1, retain=True)
                wait_for(lambda: all(_has_retained(cluster, name) for name in "ab"))
        assert "no [[retained]] block here asks for them" in cluster.log("plain")

        texts = {"shops": histogram_text(tmp_path), "pubs": histogram_text(tmp_path)}
        assert asyncio.run(share_histograms(section(cluster), texts)) == 1
        for name in ("a", "b", "plain"):
            wait_for(lambda name=name: "histograms of the network are used: shops"  # type: ignore[misc]
                     in cluster.log(name))  # fmt: skip
            assert "a histogram of pubs: no such space here" in cluster.log(name)
        with pytest.raises(FileFormatError, match="shops"):
            asyncio.run(share_histograms(section(cluster), {"shops": "{}"}))
        with pytest.raises(FileFormatError):
            asyncio.run(share_policies(section(cluster), "{}"))


def _has_retained(cluster: RealCluster, node: str) -> bool:
    """Return whether a node has the retained message `old`, asking for it at once."""
    client = cluster.client(node)
    client.subscribe("$retained/now/plant/heat", 1)
    found = [payload for _, payload, _ in client.rest(0.1)]
    client.close()
    return b"old" in found


def test_unknown_names_are_found_before_anything_is_written(four: RealCluster):
    before = in_force(four) if _has_plan(four) else None
    with pytest.raises(UnknownNameError):
        asyncio.run(offer_plan(section(four), plan(99, nodes=["moon", "a", "b", "c"])))
    assert (in_force(four) if _has_plan(four) else None) == before
