"""Retained messages of a network, over crashes: in the end all nodes keep what was said last."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import settings
from tests.support.simulated_city import SimulatedCity

from nearcast.broker import Broker
from nearcast.broker.publish.message import Message, MessageHead
from nearcast.cluster import Cluster
from nearcast.simulator.mqtt_node import SimulatedClient

assert settings.default is not None
RUNS = max(4, settings.default.max_examples // 5)
TOPICS = ("a", "b", "c", "long/" + "x" * 300)
DAY_MS = 24 * 3_600_000


class Archive(SimulatedCity):
    """Nodes that die and come back, each with a writer, and what was written last."""

    def __init__(self, seed: int) -> None:
        super().__init__(3, seed)
        self.random = Random(seed)
        self.down: set[str] = set()
        self.last: dict[str, bytes] = {}
        self.writers = {name: self.client(f"w{name}", name) for name in self.names}
        self.run(100)

    def write(self, name: str, topic: str, payload: bytes) -> None:
        """Let somebody publish, and wait for the answer."""
        self.publish(self.writers[name], topic, payload, 1, retain=True)
        self.run(1)
        assert self.writers[name].unsettled == 0
        self.last[topic] = payload

    def fail(self, name: str) -> None:
        """Kill a node; its writer is gone with it."""
        self.crash(name)
        self.down.add(name)

    def mend(self, name: str) -> None:
        """Let a node come back; somebody else writes there."""
        self.restart(name)
        self.down.discard(name)
        self.run(50)
        self.writers[name] = SimulatedClient(f"w{name}{self.world.now}", 0)
        self.homes[self.writers[name].name] = name
        self.admit(self.writers[name])
        self.run(8_000)

    def kept(self, name: str) -> dict[str, bytes]:
        """Return what a node keeps."""
        stored = self.nodes[name].node.state.retained.all()
        return {one.topic_text(): bytes(one.payload) for one in stored}

    def expected(self) -> dict[str, bytes]:
        return {topic: payload for topic, payload in self.last.items() if payload}


def test_what_was_deleted_while_a_node_was_away_does_not_come_back_with_it() -> None:
    archive = Archive(1)
    for topic in ("a", "b"):
        archive.write("n1", topic, b"first")
    archive.run(100)
    archive.fail("n0")
    archive.write("n1", "a", b"")
    archive.write("n1", "b", b"second")
    archive.run(1_000)
    for name in ("n1", "n2"):
        archive.fail(name)
    for name in ("n1", "n2", "n0"):
        archive.mend(name)

    assert [archive.kept(name) for name in archive.names] == [{"b": b"second"}] * 3


@pytest.mark.parametrize("seed", range(RUNS))
def test_in_the_end_all_nodes_keep_what_was_written_last(seed: int) -> None:
    archive = Archive(seed)
    for number in range(40):
        name = archive.random.choice(archive.names)
        if name in archive.down:
            archive.mend(name)
        elif archive.random.random() < 0.25:
            archive.fail(name)
        else:
            payload = b"" if archive.random.random() < 0.3 else b"%d" % number
            archive.write(name, archive.random.choice(TOPICS), payload)
        archive.run(archive.random.choice([0, 5, 4_000]))
    for name in sorted(archive.down):
        archive.mend(name)
    archive.run(10_000)

    assert [archive.kept(name) for name in archive.names] == [archive.expected()] * 3


def test_what_was_forgotten_a_day_ago_is_forgotten_altogether() -> None:
    node = Broker(with_journal=True)
    copies = Cluster("n", node, random=Random(1))._retained
    for at_ms, topic in ((1_000, "a"), (DAY_MS + 2_000, "b")):
        node.state.now_ms = at_ms
        copies.put(Message(MessageHead(b"\0\1" + topic.encode(), 0, 0), b""), at_ms)

    assert [one.topic for part in copies.since(-1) for one in part.kept] == ["b"]
    assert len(node.state.notes) == 1


def test_what_is_kept_for_long_is_as_old_after_a_restart() -> None:
    before = Broker(with_journal=True)
    message = Message(MessageHead(b"\0\1a", 1, 0), b"x")
    before.keep(message, 1_000)
    Cluster("n", before, random=Random(1))._retained.put(message, 1_000)
    after = Broker(with_journal=True)
    copies = Cluster("n", after, random=Random(1))._retained
    after.restore([before.take_journal()], 3 * DAY_MS)

    ((one,),) = [part.kept for part in copies.since(-1)]
    assert (one.topic, one.at_ms, one.node) == ("a", 1_000, "n")
