"""A node that joins has all retained messages of the network before it says that it is ready."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from tests.support.real_cluster import RealCluster
from tests.support.waiting import WAIT_S, wait_for

from nearcast.server.cluster.runtime import JOIN_S

pytestmark = pytest.mark.server

TOPICS = 300
WRITTEN = {f"state/{number}": b"%d" % number for number in range(TOPICS)}


class Network(RealCluster):
    """Nodes that are ended, wiped and started again."""

    def wipe(self, name: str) -> None:
        shutil.rmtree(self.directory / name)

    def retained(self, name: str) -> dict[str, bytes]:
        """Return what one node has for a newcomer, up to a mark that is published there.

        Retained copies leave in slices, so a live message may overtake the last of them: they have
        one more second.
        """
        got: dict[str, bytes] = {}
        is_over = threading.Event()

        def took(_c: object, _u: object, message: paho.MQTTMessage) -> None:
            if message.topic == "mark":
                is_over.set()
            else:
                got[message.topic] = bytes(message.payload)

        def publish_mark(*_: object) -> None:
            client.publish("mark", b"", 1)

        client = paho.Client(CallbackAPIVersion.VERSION2)
        client.on_message = took
        client.on_subscribe = publish_mark
        client.connect("127.0.0.1", self.ports[name])
        client.subscribe([("state/#", 1), ("mark", 1)])
        client.loop_start()
        assert is_over.wait(WAIT_S)
        last = time.monotonic() + 1.0
        while len(got) < TOPICS and time.monotonic() < last:
            time.sleep(0.02)
        client.disconnect()
        client.loop_stop()
        return got

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


def settled(network: Network) -> None:
    """Wait until the node that wrote knows that the others had everything: some beats."""
    time.sleep(5)


def test_a_node_whose_data_was_wiped_has_all_retained_messages_once_it_is_ready(network: Network):
    network.start("a", "b", "c")
    network.write("a")
    wait_for(lambda: len(network.retained("c")) == TOPICS)
    settled(network)
    network.end("b", "c")
    for name in ("b", "c"):
        network.wipe(name)
    network.start("b", "c")  # both at once: the one has nothing to tell the other

    assert [network.retained(name) for name in "bc"] == [WRITTEN] * 2


def test_a_node_that_keeps_nothing_on_disk_has_them_after_an_orderly_restart(network: Network):
    network.config = network.directory / "off.toml"
    network.config.write_text('[durability]\nmode = "off"\n')
    network.start("a", "b")
    network.write("a")
    wait_for(lambda: len(network.retained("b")) == TOPICS)
    settled(network)
    network.end("b")
    network.start("b")

    assert network.retained("b") == WRITTEN


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

    assert network.retained("b") == WRITTEN


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
