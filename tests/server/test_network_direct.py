"""Real nodes that talk directly: NATS may stand still, nodes may die, and one may have no door."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.waiting import WAIT_S, wait_for

from nearcast.client.blocking import BlockingClient, BrokerAddress
from nearcast.config import NetworkSection
from nearcast.mqtt import FilterRequest, Publish
from nearcast.server.cluster.nats_admin import look
from nearcast.server.local_cluster import ChildProcess, LocalCluster, free_port

pytestmark = pytest.mark.server

COUNT = 200


class Trio:
    """Nodes a and b with doors, node c without."""

    def __init__(self, directory: Path, fleet: LocalCluster) -> None:
        self.fleet = fleet
        self._config = directory / "door.toml"
        self._config.write_text('[network]\ndirect = "127.0.0.1:0"\n')
        self.address = fleet.start_nats(free_port())
        self._ports = {name: free_port() for name in "abc"}
        self.nodes = {name: self.start(name) for name in "abc"}
        fleet.wait_until_ready()
        self.wait_for_links()

    def start(self, name: str) -> ChildProcess:
        config = None if name == "c" else self._config
        return self.fleet.start_node(name, self._ports[name], self.address, config)

    def wait_for_links(self) -> None:
        wait_for(self._are_linked)

    def _are_linked(self) -> bool:
        members = asyncio.run(look(NetworkSection(join=[self.address])))
        links = [link for one in members for link in one.links.values()]
        return len(links) == 6 and all(one.is_up and one.is_direct for one in links)

    def reader(self, name: str, *, fresh: bool = True) -> BlockingClient:
        target = BrokerAddress(
            port=self._ports[name],
            client_id=f"r{name}",
            session_expiry_s=900,
            clean_start=fresh,
            timeout_s=WAIT_S,
        )
        return BlockingClient(target)

    def publish(self, name: str, numbers: range) -> None:
        with BlockingClient(BrokerAddress(port=self._ports[name], timeout_s=WAIT_S)) as client:
            client.publish(Publish("t", str(one).encode(), 1) for one in numbers)


def take(client: BlockingClient, count: int) -> list[int]:
    """Return the next messages, without what comes again; fewer if no more come."""
    got: dict[int, None] = {}
    for one in client.messages(WAIT_S):
        got[int(one.payload)] = None
        if len(got) == count:
            break
    return list(got)


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trio]:
    directory = tmp_path_factory.mktemp("trio")
    with LocalCluster(directory) as fleet:
        yield Trio(directory, fleet)


def test_messages_cross_while_nats_stands_still(trio: Trio):
    nats = trio.fleet._nats
    assert nats is not None
    with trio.reader("b") as at_b, trio.reader("c") as at_c:
        for one in (at_b, at_c):
            one.subscribe(FilterRequest("t", 1))
        os.kill(nats.pid, signal.SIGSTOP)
        try:
            trio.publish("a", range(COUNT))
            assert take(at_b, COUNT) == list(range(COUNT))
            assert take(at_c, COUNT) == list(range(COUNT))
        finally:
            os.kill(nats.pid, signal.SIGCONT)
    trio.wait_for_links()


def test_a_node_that_was_killed_gets_what_it_missed_and_is_linked_directly_again(trio: Trio):
    with trio.reader("b") as client:
        client.subscribe(FilterRequest("t", 1))
    b = trio.nodes["b"]
    os.kill(b.pid, signal.SIGKILL)
    b.end(10)
    trio.fleet.nodes.remove(b)
    trio.publish("a", range(COUNT))
    trio.publish("c", range(COUNT, 2 * COUNT))
    trio.nodes["b"] = trio.start("b")
    trio.fleet.wait_until_ready()
    trio.wait_for_links()
    with trio.reader("b", fresh=False) as client:
        assert sorted(take(client, 2 * COUNT)) == list(range(2 * COUNT))


def test_a_node_that_hangs_misses_nothing(trio: Trio):
    with trio.reader("a") as client:
        client.subscribe(FilterRequest("t", 1))
        a = trio.nodes["a"]
        os.kill(a.pid, signal.SIGSTOP)
        try:
            trio.publish("b", range(COUNT))
            wait_for(lambda: trio.nodes["b"].has_said("the link to node a is down"))
            trio.publish("b", range(COUNT, 2 * COUNT))
        finally:
            os.kill(a.pid, signal.SIGCONT)
        assert take(client, 2 * COUNT) == list(range(2 * COUNT))
    trio.wait_for_links()
