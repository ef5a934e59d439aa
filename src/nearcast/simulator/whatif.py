"""`whatif`: replays a log on real brokers in the simulator, as it was and with a candidate.

A candidate is a plan or a file of policies; the job counts what it would change and applies
nothing. Both runs have the same actions, times and network, and differ only in the candidate. Data
that is not in the log (MQTT 5 properties, `$top`) is not replayed. `replay_log.py` reads the log.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from nearcast.broker import Broker, RetainedSettings, SpaceSettings
from nearcast.cluster import Cluster, LinkTiming, NamedPlan
from nearcast.cluster.peer import PeerNode
from nearcast.cluster.peer_registry import PACKETS, PLACES, PeerRegistry
from nearcast.locality import Rect, plan_for_nodes
from nearcast.locality.layout.planfile import plan_from_json
from nearcast.model import FileFormatError
from nearcast.mqtt import Publish
from nearcast.retained import Policies
from nearcast.simulator.mqtt_node import SimulatedClient, SimulatedNode
from nearcast.simulator.network import SimulatedLink, constant
from nearcast.simulator.replay_log import ClientAction, ReplayLog
from nearcast.simulator.world import World

_WARM_UP_MS = 20_000
_AFTERWARDS_MS = 15_000
_TIMING = LinkTiming(hello_ms=200, beat_ms=5_000, silence_ms=20_000)


@dataclass(frozen=True, slots=True)
class WhatIfCase:
    """The plan of the cluster and the policies for retained messages of one run; both optional."""

    plan: NamedPlan | None = None
    policies: Policies | None = None


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The counts of one run.

    `handovers`: how often a client with `$near` subscriptions moved to a place of another holder
    (without a plan every node holds all places); `messages_between`: publications and messages
    about places sent between nodes; `retained_copies`: retained messages delivered to clients;
    `retained_held`: those deferred; `retained_replaced`: deferred ones that a live message made
    unnecessary.
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
    """The results of both runs, side by side."""

    nodes: tuple[str, ...]
    acts: int
    left_out: int
    old: ReplayResult
    candidate: ReplayResult

    def rows(self) -> list[tuple[str, int, int]]:
        """Return each count as (name, old, candidate)."""
        old, new = asdict(self.old), asdict(self.candidate)
        return [(name, old[name], new[name]) for name in old]

    def as_dict(self) -> dict[str, Any]:
        """Return all fields as a dict for JSON."""
        return asdict(self)


def compare(
    log: ReplayLog,
    old: WhatIfCase,
    candidate: WhatIfCase,
    *,
    spaces: Sequence[SpaceSettings] = (),
    retained: Sequence[RetainedSettings] = (),
) -> Compared:
    """Replay a log twice. Deterministic. Complexity: O(actions and the messages they cause)."""
    results = (_Replay(log, case, spaces, retained).run() for case in (old, candidate))
    return Compared(log.nodes, len(log.acts), log.left_out, *results)


def read_plan(path: Path, nodes: Sequence[str]) -> NamedPlan:
    """Read a plan file; if it names no nodes, assign its leaves to these nodes.

    Raises FileFormatError for a file of another version or kind. A plan of other nodes is replayed
    with those of the log.
    """
    data = path.read_bytes()
    if _is_shared(data):
        return NamedPlan.from_bytes(data, str(path))
    try:
        plan = plan_from_json(data.decode(), str(path))
    except UnicodeDecodeError:
        raise FileFormatError("bytes that are no UTF-8", where=str(path)) from None
    return plan_for_nodes(plan, nodes, reassigns=True)


def _is_shared(data: bytes) -> bool:
    """Return whether this is a plan as nodes share it, not a plan file."""
    try:
        return "plan" in json.loads(data)
    except (ValueError, TypeError):
        return False


class _CountingRegistry(PeerRegistry):
    """A peer registry that counts what it sends, except handshakes and heartbeats."""

    messages_between = 0
    bytes_between = 0

    def send(self, peer: PeerNode, kind: bytes, content: bytes, *, with_last: bool = False) -> None:
        if peer.link.is_up and kind in (PACKETS, PLACES):
            self.bytes_between += len(content)
            self.messages_between += _publications(content) if kind == PACKETS else 1
        super().send(peer, kind, content, with_last=with_last)


class _CountingCluster(Cluster):
    neighbours_kind = _CountingRegistry
    neighbours: _CountingRegistry


def _publications(content: bytes) -> int:
    """Return the number of PUBLISH packets in a sequence of whole packets."""
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


class _ReplayNode(SimulatedNode):
    """A simulated node that defers retained messages by its policies and counts what it sends."""

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
        self.node = Broker(rng=random, spaces=self._spaces, retained=self._retained_settings,
                         with_journal=True)  # fmt: skip
        self.mesh: _CountingCluster = _CountingCluster(
            self.name, self.node, random=random, timing=_TIMING
        )
        self.node.restore([], now)
        self.node.take_journal()
        if self._policies is not None:
            self.node.load_policies(self._policies, now)


class _Replay:
    """One run of a replay."""

    def __init__(
        self,
        log: ReplayLog,
        case: WhatIfCase,
        spaces: Sequence[SpaceSettings],
        retained: Sequence[RetainedSettings],
    ) -> None:
        self._log = log
        self._world = World(1, link=SimulatedLink(delay=constant(1)), keep_digest=False)
        self._nodes = {
            name: self._world.add(name, _ReplayNode(name, spaces, retained, case.policies))
            for name in log.nodes
        }
        self._clients: dict[tuple[str, str], SimulatedClient] = {}
        self._plan = case.plan
        self._with_near: set[tuple[str, str]] = set()  # (node, client) with $near subscriptions
        self._holders: dict[tuple[str, str], frozenset[str]] = {}
        self._handovers = 0
        for name, node in self._nodes.items():
            self._world.perform(name, node.meet(list(log.nodes), 0))
        if case.plan is not None:
            for name, node in self._nodes.items():
                self._world.perform(name, node.use_plan(case.plan, 0))
        self._world.run(_WARM_UP_MS)

    def run(self) -> ReplayResult:
        """Replay all actions and return the counts."""
        acts = self._log.acts
        for act in acts:
            due = _WARM_UP_MS + 1 + act.ms - acts[0].ms
            self._world.run(max(due, self._world.now))
            self._do(act)
        self._world.run(self._world.now + _AFTERWARDS_MS)
        received = [one for client in self._clients.values() for one in client.received]
        nodes = self._nodes.values()
        return ReplayResult(
            len(received),
            self._handovers,
            sum(node.mesh.neighbours.messages_between for node in nodes),
            sum(node.mesh.neighbours.bytes_between for node in nodes),
            sum(one.retain for one in received),
            sum(node.node.counters.retained_held for node in nodes),
            sum(node.node.counters.retained_replaced for node in nodes),
        )

    def _do(self, act: ClientAction) -> None:
        node, client = self._nodes[act.node], self._client(act)
        if act.kind == "disconnect":
            self._world.perform(act.node, node.drop(client, self._world.now))
            return
        self._count_handover(act)
        if act.kind == "subscribe":
            client.subscribe(act.topic, act.qos)
        elif act.kind == "unsubscribe":
            client.unsubscribe(act.topic)
        elif act.kind in ("move", "publish"):
            client.publish(Publish(act.topic, act.payload, act.qos, retain=act.retain))
        self._world.perform(act.node, node.turn(self._world.now))

    def _count_handover(self, act: ClientAction) -> None:
        """Record which nodes hold the place of a client, and count a handover if they changed."""
        key = (act.node, act.client)
        if act.kind == "subscribe" and "$near/" in act.topic:
            self._with_near.add(key)
        if act.kind != "move" or self._plan is None:
            return
        place = json.loads(act.payload)
        found = self._plan.holders(Rect.at(place["lon"], place["lat"]))
        holders = frozenset(str(name) for name in found)
        if key in self._with_near and self._holders.get(key, holders) != holders:
            self._handovers += 1
        self._holders[key] = holders

    def _client(self, act: ClientAction) -> SimulatedClient:
        """Return the client of an action, connected; the log may begin after it connected."""
        key = (act.node, act.client)
        client = self._clients.setdefault(key, SimulatedClient(act.client))
        if not client.is_connected and act.kind != "disconnect":
            node = self._nodes[act.node]
            self._world.perform(act.node, node.admit(client, self._world.now))
        return client
