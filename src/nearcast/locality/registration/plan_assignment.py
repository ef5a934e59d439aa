"""Which node holds which place: a Q+R plan, with the names of the nodes behind its brokers.

Without a plan every node knows all subscriptions with a place, and an event goes straight to the
nodes with a match: right for a few nodes, and where every cluster starts. As with any change of
plan, both assignments are used side by side until all nodes have the new plan.

Read next: `nearcast/locality/layout/plan.py`, `node.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from nearcast.locality.layout.plan import Plan
from nearcast.locality.layout.planfile import plan_from_json, plan_to_json
from nearcast.locality.layout.rect import Rect
from nearcast.locality.registration.messages import NodeId
from nearcast.model.errors import FileFormatError, MisuseError

_EVERYWHERE = "*"
_OUTSIDE = "outside"
_Holders = dict[NodeId, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class NamedPlan:
    """A plan as nodes follow it: broker n is the node `nodes[n]`; movements are left out."""

    plan: Plan
    nodes: tuple[str, ...]

    def __post_init__(self) -> None:
        try:
            named = self.plan.with_nodes(self.nodes).with_flows({})
        except MisuseError as problem:
            problem.where = f"plan {self.plan.version}"
            raise
        object.__setattr__(self, "plan", named)

    @property
    def version(self) -> int:
        """The plan's version."""
        return self.plan.version

    def to_bytes(self) -> bytes:
        """Return the plan as JSON, with the names outside the plan: so every release reads it."""
        plan = plan_to_json(self.plan.with_nodes(None))
        document = {"nodes": list(self.nodes), "plan": json.loads(plan)}
        return json.dumps(document).encode()

    @classmethod
    def from_bytes(cls, data: bytes, where: str = "plan") -> NamedPlan:
        """Return the plan that `to_bytes` wrote; anything else is a FileFormatError."""
        try:
            document = json.loads(data)
            nodes = tuple(str(name) for name in document["nodes"])
            plan = json.dumps(document["plan"])
        except (ValueError, KeyError, TypeError) as problem:
            raise FileFormatError(
                f"no plan with the names of its nodes ({problem!r})", where=where
            ) from None
        return cls(plan_from_json(plan, where), nodes)

    def holders(self, area: Rect) -> _Holders:
        """Return the leaves that meet an area, by the node that holds them.

        Places outside the plan belong to the first node.
        """
        found: dict[NodeId, dict[str, None]] = {}
        for number in self.plan.leaves_meeting(area):
            name = self.nodes[self.plan.broker_of(number)]
            found.setdefault(name, {})[f"{self.version}:{self.plan.leaves[number].key}"] = None
        if not self.plan.space.covers(area):
            found.setdefault(self.nodes[0], {})[f"{self.version}:{_OUTSIDE}"] = None
        return {name: tuple(leaves) for name, leaves in found.items()}


class PlanAssignment:
    """The plans that a node uses, and from them the holders of a place."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._others: tuple[str, ...] = ()  # names of the peers, sorted
        self._away: frozenset[str] = frozenset()  # peers that another node stands in for
        self._is_leaving = False
        self.current: NamedPlan | None = None
        """None: no plan is in use yet."""
        self.upcoming: NamedPlan | None = None
        """Used beside the current plan until all nodes use it; None: no change is under way."""
        self._later: NamedPlan | None = None  # waits until the upcoming plan is committed

    @property
    def versions(self) -> tuple[int, int]:
        """The versions in use: current and upcoming, 0 for none."""
        current, upcoming = self.current, self.upcoming
        return (current.version if current else 0, upcoming.version if upcoming else 0)

    def know(self, others: Iterable[str]) -> bool:
        """Set the names of the peers; return whether they changed, and with them the holders."""
        names = tuple(sorted(others))
        changed = names != self._others
        self._others = names
        return changed

    def set_away(self, name: str, *, is_away: bool) -> bool:
        """Set whether a peer is away; return whether that is a change.

        For the leaves of a node that is away the next node of the plan's list stands in: beside it,
        not in its place, since other nodes may still be connected to it. A node that leaves the
        cluster must wait until that node, too, has its events.
        """
        before = self._away
        self._away = before | {name} if is_away else before - {name}
        return self._away != before

    def leave(self) -> None:
        """Make other nodes hold the events that only this node held: it is about to leave."""
        self._is_leaving = True

    def _is_there(self, name: NodeId) -> bool:
        if name == self._name:
            return not self._is_leaving
        return name in self._others and name not in self._away

    def _holders(self, plan: NamedPlan, name: NodeId) -> Iterator[NodeId]:
        """Yield a node and, while it is away or gone, its successors up to one that is there.

        A node that has left the cluster is not yielded: it would never acknowledge.
        """
        at = plan.nodes.index(str(name))
        for node in plan.nodes[at:] + plan.nodes[:at]:
            if node == self._name or node in self._others:
                yield node
            if self._is_there(node):
                return

    def prepare(self, plan: NamedPlan) -> bool:
        """Use a plan beside the current one; return whether that changed anything.

        While another change is under way, the newest plan waits for it.
        """
        if plan.version <= max(self.versions):
            return False
        if self.upcoming is not None:
            if self._later is None or plan.version > self._later.version:
                self._later = plan
            return False
        self.upcoming = plan
        return True

    def commit(self) -> None:
        """Drop the current plan for the upcoming one; the plan that waits becomes upcoming."""
        assert self.upcoming is not None
        self.current, self.upcoming, self._later = self.upcoming, self._later, None

    def holders_of_event(self, area: Rect) -> _Holders:
        """Return the holders, with their leaves, that must get an event in an area."""
        return self._joined(area, [self._name, *(self._others if self._is_leaving else ())])

    def holders_of_subscription(self, area: Rect) -> _Holders:
        """Return the holders, with their leaves, that must know of a subscription in an area."""
        return self._joined(area, self._others)

    def _joined(self, area: Rect, everywhere: Sequence[str]) -> _Holders:
        found: _Holders = {}
        if self.current is None:
            found = dict.fromkeys(everywhere, (_EVERYWHERE,))
        for plan in (self.current, self.upcoming):
            if plan is not None:
                for name, leaves in plan.holders(area).items():
                    for holder in self._holders(plan, name):
                        found[holder] = (*found.get(holder, ()), *leaves)
        return found
