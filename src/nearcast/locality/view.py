"""The plans that a node uses: one, or two while the network moves from one to the next.

How no pair is missed. All nodes learn plan n + 1 (`Prepare`) before any node leaves plan n
(`Commit`). So at any time any two nodes have a plan in common, and an event and a subscription that
match are both told to the holder of some leaf of that plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from nearcast.locality.messages import Commit, NodeId, Outgoing, PlanStatus, Prepare
from nearcast.locality.plan import Plan
from nearcast.locality.rect import Rect
from nearcast.model.errors import MisuseError


class View(Protocol):
    """Whom gateways and publishing nodes tell; `PlanView` is one."""

    def holders_of_event(self, area: Rect, /) -> dict[NodeId, tuple[str, ...]]:
        """Return who must hear of an event there, with the leaves it is for."""

    def holders_of_subscription(self, area: Rect, /) -> dict[NodeId, tuple[str, ...]]:
        """Return who must know of a subscription there, with the leaves it is for."""

    def check_place(self, area: Rect, /) -> None:
        """Raise if no event can be there."""


@dataclass(slots=True)
class PlanView:
    """One node's plans; kept over a crash.

    `prepare` and `commit` return whether the view changed; what is out of turn changes nothing.
    """

    current: Plan
    upcoming: Plan | None = None

    def holders(self, area: Rect) -> dict[NodeId, tuple[str, ...]]:
        """Return the leaves of an area by the node that holds them, over the plans in use."""
        found: dict[NodeId, dict[str, None]] = {}
        for plan in (self.current, self.upcoming):
            if plan is not None:
                for number in plan.leaves_meeting(area):
                    leaf = plan.leaves[number].key
                    found.setdefault(plan.broker_of(number), {})[leaf] = None
        return {holder: tuple(leaves) for holder, leaves in found.items()}

    def check_place(self, area: Rect) -> None:
        """Raise if an event's place lies outside the space."""
        self.current.leaves_for_event(area)

    def holders_of_event(self, area: Rect) -> dict[NodeId, tuple[str, ...]]:
        """Return who must hear of an event there."""
        return self.holders(area)

    def holders_of_subscription(self, area: Rect) -> dict[NodeId, tuple[str, ...]]:
        """Return who must know of a subscription there."""
        return self.holders(area)

    def prepare(self, plan: Plan) -> bool:
        """Use a plan beside the current one."""
        if plan.space != self.current.space:
            raise MisuseError(
                f"{tuple(plan.space)}",
                where=f"plan {plan.version}",
                expected=f"the space {tuple(self.current.space)}",
            )
        if plan.version != self.current.version + 1 or self.upcoming is not None:
            return False
        self.upcoming = plan
        return True

    def commit(self, version: int) -> bool:
        """Leave the plan before this version."""
        if self.upcoming is None or self.upcoming.version != version:
            return False
        self.current, self.upcoming = self.upcoming, None
        return True

    def status(self, node: NodeId) -> PlanStatus:
        """Return the versions in use."""
        return PlanStatus(
            node, self.current.version, None if self.upcoming is None else self.upcoming.version
        )

    def receive(self, message: Prepare | Commit, node: NodeId) -> tuple[bool, Outgoing]:
        """Take in what the coordinator says; return whether the view changed, and the answer."""
        if isinstance(message, Prepare):
            changed = self.prepare(message.plan)
        else:
            changed = self.commit(message.version)
        return changed, Outgoing(message.coordinator, self.status(node))
