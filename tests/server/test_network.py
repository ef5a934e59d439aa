"""Real nodes over a real NATS: what one node's clients publish reaches those of the others."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from tests.support.commands import NEARCAST, nearcast
from tests.support.real_cluster import PahoClient, RealCluster
from tests.support.space_sections import placed_section
from tests.support.waiting import START_S, WAIT_S, wait_for

from nearcast.config import NetworkSection
from nearcast.locality import CellCounts, Plan, plan_to_json
from nearcast.nats.connection import close, connect
from nearcast.server import local_cluster
from nearcast.server.cluster.nats_admin import look
from nearcast.server.cluster.nats_members import open_bucket
from nearcast.server.cluster.nats_settings import PLAN, SharedSettings
from nearcast.server.local_cluster import LocalCluster, free_port

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """Three nodes for all tests; what a test breaks it mends."""
    with RealCluster(tmp_path_factory.mktemp("three")) as cluster:
        cluster.start("a", "b", "c")
        cluster.join("a", "b", "c")
        yield cluster


# --- one broker, wherever its clients are ------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_is_published_on_one_node_reaches_the_subscribers_of_all_in_order(
    three: RealCluster, qos: int
):
    topic = f"order/{qos}"
    listeners = [three.client(node) for node in "abc"]
    for one in listeners:
        one.subscribe(topic, qos)
    publisher = three.client("a")

    sent = [b"%d" % number for number in range(50)]
    for payload in sent:
        publisher.publish(topic, payload, qos)

    for one in listeners:
        assert one.take(50) == [(topic, payload, qos) for payload in sent]
    assert [one.rest() for one in listeners] == [[], [], []]


def test_wildcards_and_several_clients_of_a_node_cost_one_crossing(three: RealCluster):
    everything, shops, plus = (three.client("b") for _ in range(3))
    everything.subscribe("city/#")
    shops.subscribe("city/shops/#")
    plus.subscribe("city/+/1")
    stranger = three.client("c")
    stranger.subscribe("village/#")

    publisher = three.client("a")
    for topic in ("city/shops/1", "city/shops/2", "city/parks/1", "village"):
        publisher.publish(topic, b"x", 1)

    assert [t for t, _, _ in everything.take(3)] == ["city/shops/1", "city/shops/2", "city/parks/1"]
    assert [t for t, _, _ in shops.take(2)] == ["city/shops/1", "city/shops/2"]
    assert [t for t, _, _ in plus.take(2)] == ["city/shops/1", "city/parks/1"]
    assert [t for t, _, _ in stranger.take(1)] == ["village"]
    for one in (everything, shops, plus, stranger):
        assert one.rest() == []


def test_the_lower_quality_of_publisher_and_subscriber_holds_across_nodes(three: RealCluster):
    low, high = three.client("b"), three.client("c")
    low.subscribe("quality", 0)
    high.subscribe("quality", 2)

    three.client("a").publish("quality", b"1", 1)

    assert low.take(1) == [("quality", b"1", 0)]
    assert high.take(1) == [("quality", b"1", 1)]


def test_a_message_longer_than_nats_takes_arrives_whole(three: RealCluster):
    listener = three.client("b")
    listener.subscribe("long", 1)
    payload = os.urandom((1 << 20) - 100)

    publisher = three.client("a")
    publisher.publish("long", payload, 1)
    publisher.publish("long", b"short", 1)

    assert listener.take(2) == [("long", payload, 1), ("long", b"short", 1)]


def test_a_group_that_shares_a_subscription_gets_each_message_once_in_the_whole_network(
    three: RealCluster,
):
    group = [three.client(node) for node in "abc"]
    for one in group:
        one.subscribe("$share/g/jobs", 1)

    publisher = three.client("b")
    for number in range(60):
        publisher.publish("jobs", b"%d" % number, 1)

    wait_for(lambda: sum(one.got.qsize() for one in group) >= 60)
    got = [payload for one in group for _, payload, _ in one.rest()]
    assert Counter(got) == Counter(b"%d" % number for number in range(60))


def test_a_newcomer_on_another_node_gets_the_retained_message(three: RealCluster):
    three.client("a").publish("news/today", b"sun", 1, retain=True)
    listener = three.client("c")

    def arrived() -> bool:
        listener.subscribe("news/#", 1)
        return bool(listener.rest(0.2))

    wait_for(arrived)


def test_a_client_finds_its_session_and_its_queue_from_any_node(three: RealCluster):
    first = three.client("a", "roamer", lasting=True)
    first.subscribe("roam/#", 2)
    writer = three.client("b", "writer")
    writer.publish("roam/1", b"here", 2)
    assert first.take(1) == [("roam/1", b"here", 2)]
    second = three.client("c", "roamer", lasting=True)  # while the first is still there
    wait_for(lambda: not first.is_connected)
    first.close()  # it would come back, and so on
    writer.publish("roam/2", b"there", 2)
    assert second.take(1) == [("roam/2", b"there", 2)]
    second.close()
    for number in range(50):
        writer.publish("roam/3", b"%d" % number, 2)
    third = three.client("b", "roamer", lasting=True)
    assert [payload for _, payload, _ in third.take(50)] == [b"%d" % n for n in range(50)]
    third.publish("roam/4", b"x" * 300_000, 2)
    assert third.take(1) == [("roam/4", b"x" * 300_000, 2)]
    assert (first.rest(), second.rest(), third.rest()) == ([], [], [])


def test_each_node_has_its_own_figures(three: RealCluster):
    listener = three.client("a")
    listener.subscribe("$SYS/broker/uptime")

    def uptime_s(told: tuple[str, bytes, int]) -> int:
        return int(told[1].split()[0])

    own_s = uptime_s(*listener.take(1))
    while not own_s:  # the first figures are told as the node begins
        own_s = uptime_s(*listener.take(1))
    three.kill("b")
    three.start("b")  # it begins with an uptime of 0
    three.join("a", "b", "c")

    assert all(uptime_s(told) > own_s for told in listener.rest())
    newcomer = three.client("a")
    newcomer.subscribe("$SYS/broker/uptime")
    assert uptime_s(*newcomer.take(1)) >= own_s


# --- faults ------------------------------------------------------------------------------------


def test_a_killed_node_misses_nothing_of_qos_1_and_gets_nothing_of_qos_2_twice(three: RealCluster):
    listener = three.client("b", "lasting", lasting=True)
    listener.subscribe("sure", 1)
    listener.subscribe("once", 2)
    publisher = three.client("a")
    sent: list[bytes] = []

    def publish(count: int) -> None:
        for _ in range(count):
            payload = b"%d" % len(sent)
            publisher.publish("sure", payload, 1)
            publisher.publish("once", payload, 2)
            sent.append(payload)

    publish(30)
    three.kill("b")
    publish(30)  # while it is away
    three.start("b")
    publish(30)  # while it comes back

    got = listener.take_all((topic, one) for topic in ("sure", "once") for one in sent)
    assert {payload for topic, payload, _ in got if topic == "sure"} == set(sent)
    once = [payload for topic, payload, _ in got if topic == "once"]
    assert sorted(once) == sorted(sent)
    three.join("a", "b", "c")


def test_a_killed_publisher_node_hands_over_what_it_acknowledged(three: RealCluster):
    listener = three.client("b")
    listener.subscribe("handed", 2)
    b = three.node("b")
    os.kill(b.pid, signal.SIGSTOP)  # so that nothing crosses yet
    publisher = three.client("a")
    for number in range(40):
        publisher.publish("handed", b"%d" % number, 1 + number % 2)

    three.kill("a")
    os.kill(b.pid, signal.SIGCONT)
    three.start("a")

    got = listener.take_all(("handed", b"%d" % number) for number in range(40))
    assert {payload for _, payload, _ in got} == {b"%d" % number for number in range(40)}
    once = Counter(payload for _, payload, qos in got if qos == 2)
    assert set(once.values()) == {1}
    three.join("a", "b", "c")


def test_nats_restarts_and_clients_are_served_on(three: RealCluster):
    near, far = three.client("a"), three.client("b")
    near.subscribe("served", 1)
    far.subscribe("served", 1)
    publisher = three.client("a")

    three.nats.ask_to_end()
    three.nats.end(5)
    for number in range(20):
        publisher.publish("served", b"%d" % number, 1)
    assert len(near.take(20)) == 20
    three.local.start_nats(three.nats_port)

    got = far.take_all(("served", b"%d" % number) for number in range(20))
    assert {payload for _, payload, _ in got} == {b"%d" % number for number in range(20)}
    assert "the connection to NATS is lost" in three.log("a")
    three.join("a", "b", "c")


def test_a_nats_that_takes_nothing_for_a_while_costs_nothing_of_qos_1(three: RealCluster):
    listener, publisher = three.client("b"), three.client("a")
    listener.subscribe("bulk", 1)
    pid = three.nats.pid

    os.kill(pid, signal.SIGSTOP)
    try:
        sent = [b"%04d" % number + bytes(100_000) for number in range(120)]
        for payload in sent:
            publisher.publish("bulk", payload, 1)
    finally:
        os.kill(pid, signal.SIGCONT)

    got = [payload for _, payload, _ in listener.take_all(("bulk", one) for one in sent)]
    assert {one[:4] for one in got} == {one[:4] for one in sent}
    assert {len(one) for one in got} == {100_004}
    three.join("a", "b", "c")


def test_a_node_that_hangs_holds_nobody_up_and_goes_on_where_it_was(three: RealCluster):
    stuck, free = three.client("b"), three.client("c")
    for one in (stuck, free):
        one.subscribe("hang", 2)
    publisher = three.client("a")
    b = three.node("b")

    os.kill(b.pid, signal.SIGSTOP)
    for number in range(20):
        publisher.publish("hang", b"%d" % number, 2)
    assert len(free.take(20)) == 20
    three.client("c").subscribe("late", 1)  # a subscription is not held up for long
    os.kill(b.pid, signal.SIGCONT)

    got = stuck.take_all(("hang", b"%d" % number) for number in range(20))
    assert [payload for _, payload, _ in got] == [b"%d" % number for number in range(20)]
    three.join("a", "b", "c")


def test_nodes_that_do_not_fit_are_refused_by_name_and_the_rest_goes_on(
    three: RealCluster, tmp_path: Path
):
    config = tmp_path / "spaces.toml"
    config.write_text(
        '[[space]]\nname = "shops"\ntopics = "shops/#"\n'
        "[space.attributes]\nprice = { low = 0, high = 10 }\n"
    )
    with LocalCluster(tmp_path) as strangers:
        impostor = strangers.start_node("a", free_port(), three.address)
        port = free_port()
        odd = strangers.start_node("odd", port, three.address, config)
        wait_for(lambda: not impostor.is_alive)
        assert "exit code 2" in impostor.how
        assert "the name 'a' is taken by a node at mqtt://127.0.0.1:" in impostor.last_words()
        for name in "abc":
            wait_for(lambda name=name: "odd has other spaces" in three.log(name))  # type: ignore[misc]
        wait_for(lambda: odd.has_said("other spaces in its configuration"))
        wait_for(lambda: odd.has_said("Ready."))

        listener, strange = three.client("b"), PahoClient(port)
        for one in (listener, strange):
            one.subscribe("fit", 1)
        three.client("a").publish("fit", b"1", 1)
        assert listener.take(1) == [("fit", b"1", 1)]
        assert strange.rest(0.5) == []
        strange.close()


def test_a_node_without_nats_serves_its_clients_and_joins_when_it_comes(
    three: RealCluster, tmp_path: Path
):
    port = free_port()
    with LocalCluster(tmp_path) as alone:
        node = alone.start_node("late", port, f"nats://127.0.0.1:{(nats_port := free_port())}")
        alone.wait_until_ready()
        listener = PahoClient(port)
        listener.subscribe("alone", 1)
        listener.publish("alone", b"1", 1)
        assert listener.take(1) == [("alone", b"1", 1)]
        wait_for(lambda: node.has_said("no connection"))

        alone.start_nats(nats_port)
        wait_for(lambda: node.has_said("joined network nearcast"))
        listener.close()


def nodes_command(cluster: RealCluster, *options: str) -> tuple[int, str]:
    done = nearcast("nodes", "--join", cluster.address, *options, COLUMNS="200")
    return done.returncode, done.stdout + done.stderr


def test_the_table_of_nodes_shows_links_clients_and_addresses(three: RealCluster):
    three.join("a", "b", "c")

    code, said = nodes_command(three)

    assert code == 0
    for name in "abc":
        assert f"mqtt://127.0.0.1:{three.ports[name]}" in said
        row = next(line for line in said.splitlines() if f" {name} " in line)
        assert " of " in row


def test_a_node_leaves_on_purpose_hands_over_and_may_come_again(three: RealCluster):
    listener = three.client("b")
    listener.subscribe("leave", 1)
    publisher = three.client("a")
    for number in range(20):
        publisher.publish("leave", b"%d" % number, 1)

    code, said = nodes_command(three, "--leave", "a")

    assert (code, said.strip()) == (0, "a is leaving.")
    wait_for(lambda: not three.node("a").is_alive)
    assert "exit code 0" in three.node("a").how
    wait_for(lambda: "node a has left for good" in three.log("b"))
    assert len(listener.take(20)) == 20
    wait_for(lambda: "b" in (found := three.members()) and "a" not in found["b"].links)
    assert "a" not in three.members()

    three.start("a")
    three.join("a", "b", "c")
    three.client("a").publish("leave", b"again", 1)
    assert listener.take(1) == [("leave", b"again", 1)]
    assert asyncio.run(_marks(three.address)) == []


async def _marks(address: str) -> list[str]:
    """Return the keys of the marks that are set."""
    section = NetworkSection(join=[address])
    client = await connect(section, "test", timeout_s=30)
    kept = await open_bucket(client, section, expires=False)
    watcher = await kept.watch("left.*", ignore_deletes=True)
    found = []
    async for entry in watcher:
        if entry is None:
            break
        found.append(entry.key)
    await close(client)
    return found


PLACED = '[durability]\nmode = "power"\n' + placed_section("shops")


def test_places_cross_nodes_and_a_shared_plan_is_followed_and_a_bad_one_refused(tmp_path: Path):
    with RealCluster(tmp_path / "cluster", PLACED) as cluster:
        cluster.start("a", "b")
        cluster.join("a", "b")
        walker, shop = cluster.client("a"), cluster.client("b")
        walker.subscribe("$near/500m/shops/#", 1)

        def walk(lon: float) -> None:
            walker.publish("$position", json.dumps({"lon": lon, "lat": 0.0}).encode(), 1)

        def offer(name: str, lon: float) -> None:
            payload = json.dumps({"lon": lon, "lat": 0.0}).encode()
            shop.publish(f"shops/{name}", payload, 1)

        def arrive(lon: float) -> None:
            """Walk, and go on as soon as the other node has heard of it."""
            walk(lon)
            deadline = time.monotonic() + WAIT_S
            for number in numbers:
                offer(probe := f"probe{number}", lon + 0.001)
                got = walker.rest(0.1)
                seen.extend(topic for topic, _, _ in got)
                if f"shops/{probe}" in seen:
                    return
                assert time.monotonic() < deadline, "waited too long"

        def heard(number: int) -> list[str]:
            """Return what came of other things than probes, so many at least."""
            while True:
                found = [topic for topic in seen if "probe" not in topic]
                if len(found) >= number:
                    return found
                seen.append(walker.take(1)[0][0])

        seen: list[str] = []
        numbers = count()
        arrive(0.1)
        offer("far", 0.2)
        offer("near", 0.101)
        assert heard(1) == ["shops/near"]

        area = (-0.9, -0.9, 0.9, 0.9)
        places = (
            [(n % 17) / 10 - 0.8 for n in range(200)],
            [(n % 13) / 10 - 0.6 for n in range(200)],
        )
        counts = CellCounts.from_positions(area, [], *places, depth=4)
        (tmp_path / "plan.json").write_text(plan_to_json(Plan.build(area, [], counts, capacity=40)))
        code, said = nodes_command(cluster, "--plan", str(tmp_path / "plan.json"))
        assert (code, said.strip()) == (0, "Plan 1 is shared with a, b.")
        for name in "ab":
            wait_for(lambda name=name: "plan 1 is taken up" in cluster.log(name))  # type: ignore[misc]
        asyncio.run(_share(cluster.address, b"no plan"))
        for name in "ab":
            wait_for(lambda name=name: "a plan was refused" in cluster.log(name))  # type: ignore[misc]
        near = ["shops/near"]
        for number in range(5):
            arrive(-0.6 + 0.3 * number)
            offer(f"far{number}", 0.85)
            offer(f"near{number}", -0.599 + 0.3 * number)
            near.append(f"shops/near{number}")
            # The walker moves on only now: an event on its way is judged where it arrives.
            assert heard(len(near)) == near
        assert [topic for topic, _, _ in walker.rest() if "probe" not in topic] == []


async def _share(address: str, data: bytes) -> None:
    section = NetworkSection(join=[address])
    client = await connect(section, "test", timeout_s=30)
    kept = await open_bucket(client, section, expires=False)
    await SharedSettings(client, kept).put(PLAN, data, at_ms=0)
    await close(client)


def two_free_ports() -> int:
    """Return a port that is free, as is the next."""
    return next(first for first in iter(free_port, 0) if local_cluster._take(first + 1))


def test_up_starts_a_network_says_where_it_is_and_leaves_nothing_running(tmp_path: Path):
    first = two_free_ports()
    command = [*NEARCAST, "up", "--nodes", "2", "--port", str(first)]
    with (tmp_path / "up.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--data", str(tmp_path / "d")], stdout=log, stderr=log
        )
    said = (tmp_path / "up.log").read_text
    wait_for(lambda: "Ready." in said() or process.poll() is not None, START_S)
    pids = [int(one) for one in re.findall(r"│ (\d+) ", said())]
    address = re.findall(r"nearcast nodes --join (\S+)", said())[0]

    listener, publisher = PahoClient(first + 1), PahoClient(first)
    wait_for(lambda: _linked_pair(address))
    listener.subscribe("up")
    publisher.publish("up", b"1", 1)
    assert listener.take(1) == [("up", b"1", 0)]
    for one in (listener, publisher):
        one.close()
    process.send_signal(signal.SIGTERM)

    assert process.wait(WAIT_S) == 0
    assert len(pids) == 2
    for pid in pids:  # nothing is left
        assert not Path(f"/proc/{pid}").exists()
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", int(address.rpartition(":")[2])))


def _linked_pair(address: str) -> bool:
    members = asyncio.run(look(NetworkSection(join=[address])))
    return len(members) == 2 and all(
        one.links and all(link.is_up for link in one.links.values()) for one in members
    )
