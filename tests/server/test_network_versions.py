"""Nodes of another version and with other clocks: upgraded one by one, or refused by name.

A node of the next version is the same program that says so, and that puts a field more into what it
tells others.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from benchmarks.mended_paho import Paho
from paho.mqtt.enums import CallbackAPIVersion

from nearcast.cluster.messages import SPEAKS
from nearcast.config import NetworkSection
from nearcast.server.cluster.nats_admin import look
from nearcast.server.cluster.nats_members import MemberRecord
from nearcast.server.local_cluster import ChildProcess, LocalCluster, free_port

pytestmark = pytest.mark.server

NAMES = ("a", "b", "c")
Wait = Callable[[Callable[[], object]], None]


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


class Town:
    """Three nodes, each with a port of its own, that can be replaced by others."""

    def __init__(self, directory: Path, wait_for: Wait) -> None:
        self.directory = directory
        self.wait_for = wait_for
        self.fleet = LocalCluster(directory)
        self.address = self.fleet.start_nats(free_port())
        self.ports = {name: free_port() for name in (*NAMES, "odd", "fast")}

    def start(self, name: str, prelude: str = "") -> ChildProcess:
        self.fleet.nodes = [one for one in self.fleet.nodes if one.name != name]
        return self.fleet.start_node(name, self.ports[name], self.address, prelude=prelude)

    def end(self, child: ChildProcess) -> None:
        child.ask_to_end()
        child.end(20)
        self.fleet.nodes.remove(child)

    def upgrade(self, name: str, prelude: str) -> None:
        """Stop a node in order and start another version of it on the same data."""
        old = next(one for one in self.fleet.nodes if one.name == name)
        self.end(old)
        self.start(name, prelude)
        self.fleet.wait_until_ready()
        self.wait_for(lambda: self.is_linked(*NAMES))

    def members(self) -> dict[str, MemberRecord]:
        found = asyncio.run(look(NetworkSection(join=[self.address])))
        return {one.name: one for one in found}

    def is_linked(self, *names: str) -> bool:
        members = self.members()
        return set(names) <= members.keys() and all(
            (link := members[one].links.get(other)) is not None and link.is_up and not link.problem
            for one in names
            for other in names
            if one != other
        )

    def problem(self, name: str, other: str) -> str:
        """Return what a node says of its link to another."""
        member = self.members().get(name)
        link = None if member is None else member.links.get(other)
        return "" if link is None else link.problem

    def speaks(self, name: str) -> tuple[int, int]:
        member = self.members().get(name)
        return (0, 0) if member is None else member.speaks

    def log(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text()


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory, wait_for: Wait) -> Iterator[Town]:
    """Three nodes for all tests; the last test leaves them upgraded."""
    one = Town(tmp_path_factory.mktemp("town"), wait_for)
    try:
        for name in NAMES:
            one.start(name)
        one.fleet.wait_until_ready()
        one.wait_for(lambda: one.is_linked(*NAMES))
        yield one
    finally:
        one.fleet.__exit__(None, None, None)


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


def test_a_node_too_far_ahead_is_refused_by_name_and_the_rest_goes_on(town: Town):
    oldest, newest = SPEAKS
    odd = town.start("odd", speaking(newest + 1, newest + 2))

    its = f"odd speaks versions {newest + 1} to {newest + 2}"
    refused = f"{its} of the messages between nodes, this node {oldest} to {newest}"
    for name in NAMES:
        town.wait_for(lambda name=name: refused in town.log(name))  # type: ignore[misc]
    town.wait_for(lambda: odd.has_said(f"a speaks versions {oldest} to {newest}"))
    town.wait_for(lambda: town.problem("a", "odd").startswith(its))
    town.wait_for(lambda: town.is_linked(*NAMES))
    town.end(odd)


def test_a_node_whose_clock_is_a_minute_off_is_refused_by_name_and_the_rest_goes_on(town: Town):
    fast = town.start("fast", AHEAD)
    about = r"[56]\d\.\d s"  # a way that is slow in one direction only counts as half of a skew
    ahead = re.compile(rf"the clock of fast is {about} ahead of ours")
    behind = re.compile(rf"the clock of a is {about} behind ours: set both clocks")

    for name in NAMES:
        town.wait_for(lambda name=name: ahead.search(town.log(name)))  # type: ignore[misc]
    town.wait_for(lambda: behind.search(town.log("fast")))
    town.wait_for(lambda: town.is_linked(*NAMES))
    town.fleet.wait_until_ready()
    here, there = Citizen("here", town.ports["b"]), Citizen("there", town.ports["fast"])
    town.wait_for(lambda: here.is_subscribed and there.is_subscribed)
    there.publish()
    here.publish()
    town.wait_for(lambda: len(here.got) == len(there.got) == 1)  # each serves its own clients
    for one in (here, there):
        one.close()
    town.end(fast)


@pytest.mark.timeout(900)
def test_nodes_are_upgraded_one_by_one_under_clients_and_nothing_is_lost(town: Town):
    citizens = [Citizen(f"{name}{n}", town.ports[name]) for name in NAMES for n in range(2)]
    town.wait_for(lambda: all(one.is_subscribed for one in citizens))
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
                town.upgrade(name, speaking(*step))
                town.wait_for(lambda name=name, step=step: town.speaks(name) == step)  # type: ignore[misc]
    finally:
        is_over.set()
        thread.join()

    sent = [payload for one in citizens for payload in one.sent]
    town.wait_for(lambda: all(one.acknowledged >= len(one.sent) for one in citizens))
    town.wait_for(lambda: all(len(one.got) >= len(sent) for one in citizens))
    marks = [one.publish() for one in citizens]  # a second copy would come before these
    town.wait_for(lambda: all(one.got.keys() >= set(marks) for one in citizens))
    for one in citizens:
        one.close()
        assert set(one.got) == {*sent, *marks}
        assert [text for text, count in one.got.items() if b"/2/" in text and count > 1] == []
