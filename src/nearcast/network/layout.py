"""Which node holds which place: a plan, with the names of the nodes behind its brokers.

Without a plan every node knows all subscriptions with a place, and an event goes straight to the
nodes it concerns: right for a few nodes, and where every network begins. As with any change of
plan, both ways are used side by side until all nodes have the new one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from nearcast.locality.messages import NodeId
from nearcast.locality.plan import Plan
from nearcast.locality.planfile import plan_from_json, plan_to_json
from nearcast.locality.rect import Rect
from nearcast.model.errors import FileFormatError, MisuseError

_EVERYWHERE = "*"
_OUTSIDE = "outside"
_World = dict[NodeId, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class NamedPlan:
    """A plan whose broker n is the node `nodes[n]`."""

    plan: Plan
    nodes: tuple[str, ...]

    def __post_init__(self) -> None:
        brokers = self.plan.brokers
        most = len(self.plan.leaves) if brokers is None else max(brokers) + 1
        if most > len(self.nodes) or not self.nodes:
            raise MisuseError(
                f"{len(self.nodes)} nodes",
                where=f"plan {self.plan.version}",
                expected=f"{most}, one for each broker of the plan",
            )

    @property
    def version(self) -> int:
        """The plan's version."""
        return self.plan.version

    def to_bytes(self) -> bytes:
        """Return the plan as a file of JSON."""
        document = {"nodes": list(self.nodes), "plan": json.loads(plan_to_json(self.plan))}
        return json.dumps(document).encode()

    @classmethod
    def from_bytes(cls, data: bytes, where: str = "plan") -> NamedPlan:
        """Return what `to_bytes` wrote; anything else is a FileFormatError."""
        try:
            document = json.loads(data)
            nodes = tuple(str(name) for name in document["nodes"])
            plan = json.dumps(document["plan"])
        except (ValueError, KeyError, TypeError) as problem:
            raise FileFormatError(
                f"no plan with the names of its nodes ({problem!r})", where=where
            ) from None
        return cls(plan_from_json(plan, where), nodes)

    def holders(self, area: Rect) -> _World:
        """Return the leaves of an area by the node that holds them.

        What lies outside the plan is the first node's.
        """
        found: dict[NodeId, dict[str, None]] = {}
        for number in self.plan.leaves_meeting(area):
            name = self.nodes[self.plan.broker_of(number)]
            found.setdefault(name, {})[f"{self.version}:{self.plan.leaves[number].key}"] = None
        if not self.plan.space.covers(area):
            found.setdefault(self.nodes[0], {})[f"{self.version}:{_OUTSIDE}"] = None
        return {name: tuple(leaves) for name, leaves in found.items()}


class Layout:
    """The plans that a node uses; a `View` for gateways and spools."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._others: tuple[str, ...] = ()
        self._away: frozenset[str] = frozenset()
        self._is_leaving = False
        self.current: NamedPlan | None = None
        self.upcoming: NamedPlan | None = None
        self._later: NamedPlan | None = None

    @property
    def versions(self) -> tuple[int, int]:
        """The versions in use: current and upcoming, 0 for none."""
        current, upcoming = self.current, self.upcoming
        return (current.version if current else 0, upcoming.version if upcoming else 0)

    def know(self, others: Iterable[str]) -> bool:
        """Learn who the other nodes are; tell whether that changes who must know what."""
        names = tuple(sorted(others))
        changed = names != self._others
        self._others = names
        return changed

    def set_away(self, name: str, *, is_away: bool) -> bool:
        """Learn that a node has been lost, or is back; tell whether that is news.

        For the leaves of a node that is away the next one of the plan's list stands in: beside it,
        not in its place, since others may see it still. Who leaves for good must wait until it,
        too, has what they look for there.
        """
        before = self._away
        self._away = before | {name} if is_away else before - {name}
        return self._away != before

    def leave(self) -> None:
        """Let others hold what only this node held: it is about to leave for good."""
        self._is_leaving = True

    def _is_there(self, name: NodeId) -> bool:
        if name == self._name:
            return not self._is_leaving
        return name in self._others and name not in self._away

    def _holders(self, plan: NamedPlan, name: NodeId) -> Iterator[NodeId]:
        """Yield a node and, while it is away or gone, those after it up to one that is there.

        Of a node that has left for good nobody expects an answer.
        """
        at = plan.nodes.index(str(name))
        for one in plan.nodes[at:] + plan.nodes[:at]:
            if one == self._name or one in self._others:
                yield one
            if self._is_there(one):
                return

    def prepare(self, plan: NamedPlan) -> bool:
        """Use a plan beside the current one; tell whether that changed anything.

        While the change to another is under way, the newest plan heard of waits for its turn.
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
        """Leave the plan before the upcoming one; begin with the one that waits, if any."""
        assert self.upcoming is not None
        self.current, self.upcoming, self._later = self.upcoming, self._later, None

    def holders_of_event(self, area: Rect) -> _World:
        """Return who must hear of an event there."""
        return self._joined(area, [self._name, *(self._others if self._is_leaving else ())])

    def holders_of_subscription(self, area: Rect) -> _World:
        """Return who must know of a subscription there."""
        return self._joined(area, self._others)

    def check_place(self, area: Rect) -> None:
        """Any place will do."""

    def _joined(self, area: Rect, everywhere: Sequence[str]) -> _World:
        found: _World = {}
        if self.current is None:
            found = dict.fromkeys(everywhere, (_EVERYWHERE,))
        for plan in (self.current, self.upcoming):
            if plan is not None:
                for name, leaves in plan.holders(area).items():
                    for holder in self._holders(plan, name):
                        found[holder] = (*found.get(holder, ()), *leaves)
        return found
