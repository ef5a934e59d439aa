"""The audit of real nodes: a simulated town with crashes, partitions and changes of plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support import simulated_city, town
from tests.support.log_segments import write_segment

from nearcast.broker import SpaceSettings
from nearcast.broker.event_log_hooks import note_start
from nearcast.config.schema import SpaceSection
from nearcast.eventlog.log_files import find_segments, read_part
from nearcast.eventlog.records import Recorder
from nearcast.model import Attribute, Space
from nearcast.mqtt import Publish
from nearcast.pipeline.audit.cross_node_join import audit_here
from nearcast.pipeline.audit.logs import survey
from nearcast.simulator.mqtt_node import SimulatedClient, SimulatedNode
from nearcast.simulator.network import SimulatedLink, uniform
from nearcast.simulator.world import World

FAULTS = ("lost", "doubled", "late", "misordered", "unasked")
CITY = SpaceSection.model_validate(
    {
        "name": "city",
        "topics": "city/#",
        "longitude": "lon",
        "latitude": "lat",
        "attributes": {"lon": {"low": -1, "high": 1}, "lat": {"low": -1, "high": 1}},
    }
)


class LoggedNode(SimulatedNode):
    """A node that keeps an event log, over crashes too."""

    made: dict[str, LoggedNode]

    def _start(self, now: int) -> None:
        super()._start(now)
        known = getattr(self, "recorder", None)
        self.recorder = known or Recorder()
        if known is not None:
            self.recorder.gap(self.recorder.next, 0, "crash: nobody knows how many")
        self.node.state.log = self.recorder
        self.node.state.now_ms = now
        note_start(self.node.state)
        LoggedNode.made[self.name] = self


def written(root: Path) -> Path:
    for name, node in LoggedNode.made.items():
        write_segment(root, name, node.recorder)
    return root


def look(root: Path, spaces: tuple[SpaceSection, ...]) -> list[dict[str, Any]]:
    """Audit a log as the job does, without Spark."""
    return audit_here([str(root)], spaces=spaces)[1]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    LoggedNode.made = {}


@pytest.mark.parametrize("seed", [1, 2])
def test_a_town_under_faults_has_no_fault_in_its_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(simulated_city, "SimulatedNode", LoggedNode)
    report = town.run_town(seed, least_nodes=3, most_nodes=4)
    assert report.problems == ()
    found = look(written(tmp_path), (CITY,))

    assert [one for one in found if one["kind"] in FAULTS] == []
    handed = sum(survey([s]).rows["deliveries"] for s in find_segments([str(tmp_path)]))
    assert handed >= report.due


TALK = Space(name="talk", topic_filter="talk/#", attributes=(Attribute.number("price", 0, 9),))


class Forum:
    """Three nodes with a client each, in a causal group, over uneven ways."""

    def __init__(self, seed: int) -> None:
        link = SimulatedLink(delay=uniform(1, 120))
        self.world = World(seed, link=link, keep_digest=False)
        spaces = [SpaceSettings(space=TALK, order="causal", lifetime_ms=800)]
        self.nodes = {name: LoggedNode(name, seed, spaces=spaces) for name in ("x", "y", "z")}
        self.clients = {name: SimulatedClient(f"c{name}") for name in self.nodes}
        for name, node in self.nodes.items():
            self.world.add(name, node)
        for name, node in self.nodes.items():
            self.world.perform(name, node.meet(list(self.nodes), 0))
        self.world.run(8_000)
        for name, client in self.clients.items():
            self.world.perform(name, self.nodes[name].admit(client, self.world.now))
            client.subscribe("talk/#", 1)
            self.turn(name)
        self.world.run(16_000)

    def turn(self, name: str) -> None:
        self.world.perform(name, self.nodes[name].turn(self.world.now))

    def talk(self, count: int) -> None:
        names = list(self.nodes)
        for number in range(count):
            name = names[number % 3]
            self.clients[name].publish(Publish("talk/x", b'{"price": 1, "n": %d}' % number, 1))
            self.turn(name)
            self.world.run(self.world.now + 37)
        self.world.run(self.world.now + 10_000)


def test_messages_of_a_causal_group_are_logged_and_in_order(tmp_path: Path) -> None:
    forum = Forum(3)
    forum.talk(60)
    assert sum(node.mesh.causal.held for node in forum.nodes.values()) > 0
    found = look(written(tmp_path), ())
    segments = find_segments([str(tmp_path)])

    assert [one for one in found if one["kind"] in FAULTS] == []
    assert sum(survey([one]).rows["causal"] for one in segments) >= 60 * 3


def early_talk(forum: Forum, then_ms: int) -> None:
    """Publish in the group at a node that has only just started, and a plain message after it."""
    forum.nodes["x"].mesh._causal._began_ms = forum.world.now
    forum.world.run(forum.world.now + 850)  # of 900 ms in which nothing is sent
    for topic in ("talk/x", "plain"):
        forum.clients["x"].publish(Publish(topic, b'{"price": 1}', 1))
        forum.turn("x")
    forum.world.run(forum.world.now + then_ms)


@pytest.mark.parametrize("then_ms", [20, 10_000])
def test_what_a_node_kept_back_after_its_start_is_not_lost_here(
    tmp_path: Path, then_ms: int
) -> None:
    forum = Forum(6)
    early_talk(forum, then_ms)  # after 20 ms it has not been sent, nor will be
    found = look(written(tmp_path), ())
    steps = [
        row
        for one in find_segments([str(tmp_path)])
        if one.node == "x"
        for row in read_part(one, "causal", ("sequence", "step")).to_pylist()
    ]

    assert [one for one in found if one["kind"] in FAULTS] == []
    assert len({row["sequence"] for row in steps}) == 1  # of its event, whatever came between
    assert [row["step"] for row in steps] == ["kept", "sent"][: 1 + (then_ms > 50)]


def test_a_delivery_that_a_node_forgets_is_found(tmp_path: Path) -> None:
    forum = Forum(4)
    node = forum.nodes["x"].node
    spread = node._delivery.spread_plain
    calls = 0

    def forgetful(route: Any, messages: Any, *, retain: bool) -> None:
        nonlocal calls
        calls += 1
        if calls != 5:
            spread(route, messages, retain=retain)

    node._delivery.spread_plain = forgetful  # type: ignore[method-assign]
    forum.talk(20)
    found = [one for one in look(written(tmp_path), ()) if one["kind"] in FAULTS]

    assert [(one["kind"], one["node"], one["receiver"]) for one in found] == [("lost", "x", "cx")]


def members_at_three_nodes() -> Forum:
    """Return a forum whose clients share the jobs among them, and which has got thirty of them."""
    forum = Forum(5)
    for name, client in forum.clients.items():
        client.subscribe("$share/g/jobs", 2)
        forum.turn(name)
    forum.world.run(forum.world.now + 5_000)
    for number in range(30):
        forum.clients["x"].publish(Publish("jobs", b"%d" % number, 1 + number % 2))
        forum.turn("x")
        forum.world.run(forum.world.now + 400)
    forum.world.run(forum.world.now + 10_000)
    return forum


def test_what_a_share_group_of_another_node_gets_is_neither_lost_nor_doubled(
    tmp_path: Path,
) -> None:
    forum = members_at_three_nodes()
    got = [one.payload for client in forum.clients.values() for one in client.received]
    assert sorted(got, key=int) == [b"%d" % number for number in range(30)]
    assert all(client.received for client in forum.clients.values())

    assert [one for one in look(written(tmp_path), ()) if one["kind"] in FAULTS] == []


def test_a_job_that_never_reached_the_node_it_was_given_to_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Recorder.events

    def deaf(self: Recorder, count: int, ms: int, flags: int, publisher: str, *more: Any) -> None:
        if not (publisher.startswith("$node/x") and more[1] == b"7"):
            kept(self, count, ms, flags, publisher, *more)

    monkeypatch.setattr(Recorder, "events", deaf)
    members_at_three_nodes()
    found = [one for one in look(written(tmp_path), ()) if one["kind"] in FAULTS]

    assert ("lost", "x") in {(one["kind"], one["node"]) for one in found}
