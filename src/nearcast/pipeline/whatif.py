"""`whatif`: a log played again to real nodes in the simulator, as it was and with a candidate.

A candidate is a plan or a file of policies; what it changes is counted. Nothing is applied. Both
runs are the same but for what is compared: same acts, same instants, same network. What the log
does not hold (properties of MQTT 5, `$top`) is not played.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from nearcast.locality import Rect, assign_leaves
from nearcast.locality.planfile import plan_from_json
from nearcast.model import FileFormatError
from nearcast.mqtt import Publish
from nearcast.network import LinkTiming, Mesh, NamedPlan
from nearcast.network.neighbours import PACKETS, PLACES, Neighbours
from nearcast.network.peer import Peer
from nearcast.node import Node, RetainedSettings, SpaceSettings
from nearcast.pipeline.whatif_log import Act, Story
from nearcast.retained import Policies
from nearcast.simulator.mqtt_node import MqttNode, SimulatedClient
from nearcast.simulator.network import Link, constant
from nearcast.simulator.world import World

_WARM_UP_MS = 20_000
_AFTERWARDS_MS = 15_000
_TIMING = LinkTiming(hello_ms=200, beat_ms=5_000, silence_ms=20_000)


@dataclass(frozen=True, slots=True)
class Way:
    """What is compared: a plan of the network and policies for retained messages, or neither."""

    plan: NamedPlan | None = None
    policies: Policies | None = None


@dataclass(frozen=True, slots=True)
class Tally:
    """What a run came to.

    `handovers`: how often a client with `$near` subscriptions came to a place that another node
    holds (without a plan all nodes hold all places); `messages_between`: publications and messages
    about places that went from node to node; `retained_copies`: retained messages that clients were
    sent; `retained_held`: those held back; `retained_replaced`: those of them that a live message
    made needless.
    """

    deliveries: int = 0
    handovers: int = 0
    messages_between: int = 0
    bytes_between: int = 0
    retained_copies: int = 0
    retained_held: int = 0
    retained_replaced: int = 0


@dataclass(frozen=True, slots=True)
class Compared:
    """Old and candidate, side by side."""

    nodes: tuple[str, ...]
    acts: int
    left_out: int
    old: Tally
    candidate: Tally

    def rows(self) -> list[tuple[str, int, int]]:
        """Return each figure: its name, old, candidate."""
        old, new = asdict(self.old), asdict(self.candidate)
        return [(name, old[name], new[name]) for name in old]

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


def compare(
    story: Story,
    old: Way,
    candidate: Way,
    *,
    spaces: Sequence[SpaceSettings] = (),
    retained: Sequence[RetainedSettings] = (),
    tell: Callable[[str], None] = lambda _: None,
) -> Compared:
    """Play a story twice. Deterministic. Complexity: O(acts and what follows from them)."""
    tallies = []
    for name, way in (("old", old), ("candidate", candidate)):
        tell(name)
        tallies.append(_Replay(story, way, spaces, retained).run())
    return Compared(story.nodes, len(story.acts), story.left_out, *tallies)


def read_plan(path: Path, nodes: Sequence[str]) -> NamedPlan:
    """Read a plan file and share its leaves out over these nodes, if it does not name its own.

    A file of another version, or of something else, is a FileFormatError.
    """
    data = path.read_bytes()
    if b'"nodes"' in data[:200]:
        return NamedPlan.from_bytes(data, str(path))
    try:
        plan = plan_from_json(data.decode(), str(path))
    except UnicodeDecodeError:
        raise FileFormatError("bytes that are no UTF-8", where=str(path)) from None
    count = min(len(nodes), len(plan.leaves))
    loads = [leaf.load for leaf in plan.leaves]
    if plan.brokers is None or max(plan.brokers) >= len(nodes):
        plan = plan.with_brokers(assign_leaves(plan, {}, count, loads).brokers)
    return NamedPlan(plan, tuple(nodes))


class _CountingNeighbours(Neighbours):
    """Counts what goes to other nodes, but for greetings and heartbeats."""

    messages_between = 0
    bytes_between = 0

    def send(self, peer: Peer, kind: bytes, content: bytes, *, with_last: bool = False) -> None:
        if peer.link.is_up and kind in (PACKETS, PLACES):
            self.bytes_between += len(content)
            self.messages_between += _publications(content) if kind == PACKETS else 1
        super().send(peer, kind, content, with_last=with_last)


class _CountingMesh(Mesh):
    neighbours_kind = _CountingNeighbours
    neighbours: _CountingNeighbours


def _publications(content: bytes) -> int:
    """Count the PUBLISH packets among whole packets."""
    count = at = 0
    while at < len(content):
        count += content[at] >> 4 == 3
        size = shift = 0
        place = at + 1
        while True:
            size |= (content[place] & 0x7F) << shift
            shift += 7
            place += 1
            if content[place - 1] < 0x80:
                break
        at = place + size
    return count


class _ReplayNode(MqttNode):
    """A node that holds retained messages back as its policies say, and counts what it sends."""

    def __init__(
        self,
        name: str,
        spaces: Sequence[SpaceSettings],
        retained: Sequence[RetainedSettings],
        policies: Policies | None,
    ) -> None:
        self._retained_settings = retained
        self._policies = policies
        super().__init__(name, 1, spaces=spaces, link_timing=_TIMING)

    def _start(self, now: int) -> None:
        random = Random(f"whatif/{self.name}")
        self.node = Node(rng=random, spaces=self._spaces, retained=self._retained_settings,
                         with_journal=True)  # fmt: skip
        self.mesh: _CountingMesh = _CountingMesh(
            self.name, self.node, random=random, timing=_TIMING
        )
        self.node.restore([], now)
        self.node.take_journal()
        if self._policies is not None:
            self.node.load_policies(self._policies, now)


class _Replay:
    """One run of a story."""

    def __init__(
        self,
        story: Story,
        way: Way,
        spaces: Sequence[SpaceSettings],
        retained: Sequence[RetainedSettings],
    ) -> None:
        self._story = story
        self._world = World(1, link=Link(delay=constant(1)), keep_digest=False)
        self._nodes = {
            name: self._world.add(name, _ReplayNode(name, spaces, retained, way.policies))
            for name in story.nodes
        }
        self._clients: dict[tuple[str, str], SimulatedClient] = {}
        self._plan = way.plan
        self._followed: set[tuple[str, str]] = set()  # clients with $near subscriptions
        self._holders: dict[tuple[str, str], frozenset[str]] = {}
        self._handovers = 0
        for name, node in self._nodes.items():
            self._world.perform(name, node.meet(list(story.nodes), 0))
        if way.plan is not None:
            for name, node in self._nodes.items():
                self._world.perform(name, node.use_plan(way.plan, 0))
        self._world.run(_WARM_UP_MS)

    def run(self) -> Tally:
        """Do everything again, and count."""
        acts = self._story.acts
        for act in acts:
            due = _WARM_UP_MS + 1 + act.ms - acts[0].ms
            self._world.run(max(due, self._world.now))
            self._do(act)
        self._world.run(self._world.now + _AFTERWARDS_MS)
        received = [one for client in self._clients.values() for one in client.received]
        nodes = self._nodes.values()
        return Tally(
            len(received),
            self._handovers,
            sum(node.mesh.neighbours.messages_between for node in nodes),
            sum(node.mesh.neighbours.bytes_between for node in nodes),
            sum(one.retain for one in received),
            sum(node.node.counters.retained_held for node in nodes),
            sum(node.node.counters.retained_replaced for node in nodes),
        )

    def _do(self, act: Act) -> None:
        node, client = self._nodes[act.node], self._client(act)
        if act.kind == "go":
            self._world.perform(act.node, node.drop(client, self._world.now))
            return
        self._follow(act)
        if act.kind == "subscribe":
            client.subscribe(act.topic, act.qos)
        elif act.kind == "unsubscribe":
            client.unsubscribe(act.topic)
        elif act.kind in ("move", "publish"):
            client.publish(Publish(act.topic, act.payload, act.qos, retain=act.retain))
        self._world.perform(act.node, node.turn(self._world.now))

    def _follow(self, act: Act) -> None:
        """Note which node holds the place where a client is."""
        key = (act.node, act.client)
        if act.kind == "subscribe" and "$near/" in act.topic:
            self._followed.add(key)
        if act.kind != "move" or self._plan is None:
            return
        place = json.loads(act.payload)
        found = self._plan.holders(Rect.at(place["lon"], place["lat"]))
        holders = frozenset(str(name) for name in found)
        if key in self._followed and self._holders.get(key, holders) != holders:
            self._handovers += 1
        self._holders[key] = holders

    def _client(self, act: Act) -> SimulatedClient:
        """Return the client of an act, connected; the log may begin after it came."""
        key = (act.node, act.client)
        client = self._clients.setdefault(key, SimulatedClient(act.client))
        if not client.is_connected and act.kind != "go":
            node = self._nodes[act.node]
            self._world.perform(act.node, node.admit(client, self._world.now))
        return client
