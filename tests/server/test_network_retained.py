"""A node that joins has all retained messages of the network before it says that it is ready."""

from __future__ import annotations

import os
import re
import shutil
import signal
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from tests.support.real_cluster import RealCluster
from tests.support.waiting import WAIT_S, wait_for

from nearcast.cluster.links import LinkTiming
from nearcast.server.cluster.runtime import JOIN_S
from nearcast.server.local_cluster import ChildProcess, free_port

pytestmark = pytest.mark.server

TOPICS = 300
WRITTEN = {f"state/{number}": b"%d" % number for number in range(TOPICS)}


class Network(RealCluster):
    """Nodes with metrics that are ended, wiped and started again."""

    def __init__(self, directory: Path, sections: str = "") -> None:
        super().__init__(directory)
        self.sections = sections
        self.metrics_ports: dict[str, int] = {}

    def begin(
        self, name: str, prelude: str = "", config: Path | None = None, address: str = ""
    ) -> ChildProcess:
        port = self.metrics_ports.setdefault(name, free_port())
        config = self.directory / f"{name}.toml"
        config.write_text(f"{self.sections}[log]\nmetrics_port = {port}\n")
        return super().begin(name, prelude, config, address)

    def wipe(self, name: str) -> None:
        shutil.rmtree(self.directory / name)

    def count(self, name: str) -> int:
        """Return how many retained messages a node has at this instant, `$SYS` included."""
        url = f"http://127.0.0.1:{self.metrics_ports[name]}/metrics"
        with urllib.request.urlopen(url, timeout=WAIT_S) as page:
            text = page.read().decode()
        (count,) = re.findall(r"^nearcast_retained_messages (\d+)", text, re.MULTILINE)
        return int(count)

    def has_all(self, name: str) -> None:
        """Assert that a node has all retained messages at this instant, and serves them."""
        assert self.count(name) == self.count("a")
        got: dict[str, bytes] = {}
        client = paho.Client(CallbackAPIVersion.VERSION2)
        client.on_message = lambda _c, _u, message: got.update(
            {message.topic: bytes(message.payload)}
        )
        client.connect("127.0.0.1", self.ports[name])
        client.subscribe("state/#", 1)
        client.loop_start()
        wait_for(lambda: len(got) >= TOPICS, said=lambda: f"{len(got)} of {TOPICS} came")
        client.disconnect()
        client.loop_stop()
        assert got == WRITTEN

    def write(self, name: str) -> None:
        client = paho.Client(CallbackAPIVersion.VERSION2)
        client.connect("127.0.0.1", self.ports[name])
        client.loop_start()
        for topic, payload in WRITTEN.items():
            info = client.publish(topic, payload, 1, retain=True)
        info.wait_for_publish(WAIT_S)
        client.disconnect()
        client.loop_stop()


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    with Network(tmp_path) as one:
        yield one


def settled(network: Network, *names: str) -> None:
    """Wait until nodes have everything, and the node that wrote takes them to have it.

    That is so once it has heard beats of theirs later than `silence_ms` after its last message.
    """
    wait_for(lambda: all(network.count(name) == network.count("a") for name in names))
    timing = LinkTiming()
    time.sleep((timing.silence_ms + 3 * timing.beat_ms) / 1000)


def test_a_node_whose_data_was_wiped_has_all_retained_messages_once_it_is_ready(network: Network):
    network.start("a", "b", "c")
    network.write("a")
    settled(network, "b", "c")
    network.end("b", "c")
    for name in ("b", "c"):
        network.wipe(name)
    network.start("b", "c")  # both at once: the one has nothing to tell the other

    for name in "bc":
        network.has_all(name)


def test_a_node_that_keeps_nothing_on_disk_has_them_after_an_orderly_restart(network: Network):
    network.sections = '[durability]\nmode = "off"\n'
    network.start("a", "b")
    network.write("a")
    settled(network, "b")
    network.end("b")
    network.start("b")

    network.has_all("b")


def test_a_node_waits_for_the_only_one_that_has_them_if_that_is_slow(network: Network):
    network.start("a")
    network.write("a")
    holder = network.node("a").pid
    stops_it_as_it_joins = f"""
import os, signal
import nearcast.server.cluster.runtime as network
joined = network.ClusterRuntime._joined
def stop_and_join(self):
    os.kill({holder}, signal.SIGSTOP)
    joined(self)
network.ClusterRuntime._joined = stop_and_join
"""
    child = network.begin("b", stops_it_as_it_joins)
    wait_for(lambda: child.has_said("joined network"))
    threading.Timer(2, os.kill, (holder, signal.SIGCONT)).start()
    network.local.wait_until_ready()

    network.has_all("b")


def test_a_node_does_not_wait_for_ever_and_says_whom_it_did_not_wait_for(network: Network):
    network.start("a")
    deaf = """
import nearcast.server.cluster.runtime as network
network.JOIN_S = 1.0
network.ClusterRuntime._received = lambda *_: None
"""
    child = network.begin("b", deaf)
    network.local.wait_until_ready()

    assert child.has_said("without all retained messages: a did not send all of them")


def test_a_dead_node_is_waited_for_until_its_entry_has_expired(network: Network):
    network.start("a")
    os.kill(network.node("a").pid, signal.SIGKILL)
    network.node("a").end(5)
    began_s = time.monotonic()
    child = network.begin("b")
    wait_for(lambda: child.has_said("Ready."))

    assert time.monotonic() - began_s < JOIN_S  # not as long as for one that lives
