"""The plans that a node uses: one, or two while the network moves from one to the next.

Why no match is missed: all nodes learn plan n + 1 (`Prepare`) before any node leaves plan n
(`Commit`). So at any time any two nodes have a plan in common, and an event and a subscription that
match are both sent to the holder of some leaf of that plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from nearcast.locality.layout.plan import Plan
from nearcast.locality.layout.rect import Rect
from nearcast.locality.registration.messages import Commit, NodeId, Outgoing, PlanStatus, Prepare
from nearcast.model.errors import MisuseError


class View(Protocol):
    """Which holders a gateway or a publishing node sends to; `PlanView` implements it."""

    def holders_of_event(self, area: Rect, /) -> dict[NodeId, tuple[str, ...]]:
        """Return the holders that must receive an event there, with the leaves it is for."""

    def holders_of_subscription(self, area: Rect, /) -> dict[NodeId, tuple[str, ...]]:
        """Return the holders that must have a subscription there, with its leaves."""

    def check_place(self, area: Rect, /) -> None:
        """Raise if no event can be there."""


@dataclass(slots=True)
class PlanView:
    """One node's plans; kept across a crash.

    `prepare` and `commit` return whether the view changed; a version out of sequence changes
    nothing.
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
        """Return the holders that must receive an event there, with the leaves it is for."""
        return self.holders(area)

    def holders_of_subscription(self, area: Rect) -> dict[NodeId, tuple[str, ...]]:
        """Return the holders that must have a subscription there, with its leaves."""
        return self.holders(area)

    def prepare(self, plan: Plan) -> bool:
        """Add a plan beside the current one; return whether the view changed."""
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
        """Stop using the plan before this version; return whether the view changed."""
        if self.upcoming is None or self.upcoming.version != version:
            return False
        self.current, self.upcoming = self.upcoming, None
        return True

    def status(self, node: NodeId) -> PlanStatus:
        """Return the versions in use, as a message to the coordinator."""
        return PlanStatus(
            node, self.current.version, None if self.upcoming is None else self.upcoming.version
        )

    def receive(self, message: Prepare | Commit, node: NodeId) -> tuple[bool, Outgoing]:
        """Process a message of the coordinator; return whether the view changed, and the answer."""
        if isinstance(message, Prepare):
            changed = self.prepare(message.plan)
        else:
            changed = self.commit(message.version)
        return changed, Outgoing(message.coordinator, self.status(node))
