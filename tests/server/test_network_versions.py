"""Nodes of another version and with other clocks: upgraded one by one, or refused by name.

A node of the next version is the same program that says so, and that puts a field more into what it
tells others.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterator

import pytest
from benchmarks.mended_paho import Paho
from paho.mqtt.enums import CallbackAPIVersion
from tests.support.real_cluster import RealCluster
from tests.support.waiting import wait_for

from nearcast.cluster.messages import SPEAKS

pytestmark = pytest.mark.server

NAMES = ("a", "b", "c")


def speaking(oldest: int, newest: int) -> str:
    """Return what makes a node one of another version, whose interests have a further field."""
    return f"""
import nearcast.cluster.messages as messages
import nearcast.cluster.peer_handshake as terms
import nearcast.server.cluster.member_entry as network_entry
for module in (messages, terms, network_entry):
    module.SPEAKS = ({oldest}, {newest})
before = messages._encode
def encode(message):
    import msgspec
    data = before(message)
    if isinstance(message, messages.Interest) and data[0] >> 4 == 9 and data[0] < 0x9f:
        data = bytes([data[0] + 1]) + data[1:] + msgspec.msgpack.encode("of the next version")
    return data
messages._encode = encode
"""


AHEAD = """
import time
real = time.time
time.time = lambda: real() + 60
"""


class Upgraded(RealCluster):
    """Three nodes that can be replaced by others."""

    def replace(self, name: str, prelude: str) -> None:
        """Stop a node in order and start another version of it on the same data."""
        self.end(name)
        self.begin(name, prelude)
        self.local.wait_until_ready()
        self.join(*NAMES)

    def drop(self, name: str) -> None:
        """Stop a node that does not come again."""
        self.end(name)
        self.local.nodes.remove(self.node(name))

    def problem(self, name: str, other: str) -> str:
        """Return what a node says of its link to another."""
        member = self.members().get(name)
        link = None if member is None else member.links.get(other)
        return "" if link is None else link.problem

    def speaks(self, name: str) -> tuple[int, int]:
        member = self.members().get(name)
        return (0, 0) if member is None else member.speaks


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upgraded]:
    """Three nodes for all tests; the last test leaves them upgraded."""
    with Upgraded(tmp_path_factory.mktemp("cluster")) as cluster:
        cluster.start(*NAMES)
        cluster.join(*NAMES)
        yield cluster


class Citizen:
    """A client with a lasting session that publishes and listens."""

    def __init__(self, name: str, port: int) -> None:
        self.got: Counter[bytes] = Counter()
        self.sent: list[bytes] = []
        self.acknowledged = 0
        self.is_subscribed = False
        self._name = name
        self._client = Paho(CallbackAPIVersion.VERSION2, name, clean_session=False)
        self._client.on_message = lambda _c, _u, m: self.got.update([bytes(m.payload)])
        self._client.on_publish = self._note_published
        self._client.on_subscribe = lambda *_: setattr(self, "is_subscribed", True)
        self._client.max_inflight_messages_set(100)
        self._client.reconnect_delay_set(1, 1)
        self._client.connect("127.0.0.1", port, keepalive=5)
        self._client.loop_start()
        self._client.subscribe("all/#", 2)

    def _note_published(self, *_: object) -> None:
        self.acknowledged += 1

    def publish(self) -> bytes:
        """Publish something new; return it."""
        qos = 1 + len(self.sent) % 2
        self.sent.append(b"%s/%d/%d" % (self._name.encode(), qos, len(self.sent)))
        self._client.publish(f"all/{self._name}", self.sent[-1], qos)
        return self.sent[-1]

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


def test_a_node_too_far_ahead_is_refused_by_name_and_the_rest_goes_on(cluster: Upgraded):
    oldest, newest = SPEAKS
    odd = cluster.begin("odd", speaking(newest + 1, newest + 2))

    its = f"odd speaks versions {newest + 1} to {newest + 2}"
    refused = f"{its} of the messages between nodes, this node {oldest} to {newest}"
    for name in NAMES:
        wait_for(lambda name=name: refused in cluster.log(name))  # type: ignore[misc]
    wait_for(lambda: odd.has_said(f"a speaks versions {oldest} to {newest}"))
    wait_for(lambda: cluster.problem("a", "odd").startswith(its))
    wait_for(lambda: cluster.are_linked(*NAMES))
    cluster.drop("odd")


def test_a_node_whose_clock_is_a_minute_off_is_refused_by_name_and_the_rest_goes_on(
    cluster: Upgraded,
):
    cluster.begin("fast", AHEAD)
    about = r"[56]\d\.\d s"  # a way that is slow in one direction only counts as half of a skew
    ahead = re.compile(rf"the clock of fast is {about} ahead of ours")
    behind = re.compile(rf"the clock of a is {about} behind ours: set both clocks")

    for name in NAMES:
        wait_for(lambda name=name: ahead.search(cluster.log(name)))  # type: ignore[misc]
    wait_for(lambda: behind.search(cluster.log("fast")))
    wait_for(lambda: cluster.are_linked(*NAMES))
    cluster.local.wait_until_ready()
    here, there = Citizen("here", cluster.ports["b"]), Citizen("there", cluster.ports["fast"])
    wait_for(lambda: here.is_subscribed and there.is_subscribed)
    there.publish()
    here.publish()
    wait_for(lambda: len(here.got) == len(there.got) == 1)  # each serves its own clients
    for one in (here, there):
        one.close()
    cluster.drop("fast")


@pytest.mark.timeout(900)
def test_nodes_are_upgraded_one_by_one_under_clients_and_nothing_is_lost(cluster: Upgraded):
    citizens = [Citizen(f"{name}{n}", cluster.ports[name]) for name in NAMES for n in range(2)]
    wait_for(lambda: all(one.is_subscribed for one in citizens))
    is_over = threading.Event()

    def publish() -> None:
        while not is_over.wait(0.05):
            for one in citizens:
                one.publish()

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        after = SPEAKS[1] + 1
        for step in ((SPEAKS[0], after), (after, after)):  # first all that know both versions
            for name in NAMES:
                cluster.replace(name, speaking(*step))
                wait_for(lambda name=name, step=step: cluster.speaks(name) == step)  # type: ignore[misc]
    finally:
        is_over.set()
        thread.join()

    sent = [payload for one in citizens for payload in one.sent]
    wait_for(lambda: all(one.acknowledged >= len(one.sent) for one in citizens))
    wait_for(lambda: all(len(one.got) >= len(sent) for one in citizens))
    marks = [one.publish() for one in citizens]  # a second copy would come before these
    wait_for(lambda: all(one.got.keys() >= set(marks) for one in citizens))
    for one in citizens:
        one.close()
        assert set(one.got) == {*sent, *marks}
        assert [text for text, count in one.got.items() if b"/2/" in text and count > 1] == []
