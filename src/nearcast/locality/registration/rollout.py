"""Move a running network from plan n to plan n + 1, without losing a subscription or an event.

      idle ──propose──► preparing ──all use n and n + 1──► committing ──all have left n──► idle

Every step is repeated until all nodes have answered, so a node that is down or partitioned delays
the change; it does not break it. `forget` removes a node that is gone for good.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from nearcast.locality.layout.plan import Plan
from nearcast.locality.registration.messages import (
    Commit,
    Instant,
    NodeId,
    Outgoing,
    PlanStatus,
    Prepare,
    Timing,
)
from nearcast.model.errors import MisuseError


class Phase(Enum):
    """The phase of a change of plan."""

    IDLE = "idle"
    PREPARING = "preparing"
    COMMITTING = "committing"


class Rollout:
    """The coordinator of changes of plan; kept across a crash.

    Contract: no node is told to leave plan n before all have confirmed that they use plan n + 1.
    Work: one message to and from each node per phase, plus one per `retry_ms` for each silent node.
    """

    def __init__(self, coordinator: NodeId, nodes: Iterable[NodeId], timing: Timing) -> None:
        self._coordinator = coordinator
        self._nodes = list(nodes)
        self._timing = timing
        self._plan: Plan | None = None
        self._waiting: dict[NodeId, None] = {}
        self._next_try: Instant | None = None
        self.phase = Phase.IDLE

    def propose(self, plan: Plan, now: Instant) -> list[Outgoing]:
        """Start the change to a plan; only one change at a time."""
        if self.phase is not Phase.IDLE:
            raise MisuseError(
                f"plan {plan.version} while the change to another is {self.phase.value}",
                where="Rollout.propose",
                expected="one change at a time",
            )
        self._plan = plan
        return self._begin(Phase.PREPARING, now)

    def receive(self, status: PlanStatus, now: Instant) -> list[Outgoing]:
        """Record the versions that a node uses; start the next phase once all have answered."""
        if self._plan is None or not self._has_answered(status):
            return []
        self._waiting.pop(status.node, None)
        return self._go_on(now)

    def forget(self, node: NodeId, now: Instant) -> list[Outgoing]:
        """Remove a node that is gone for good; it must not return with an old plan."""
        self._nodes = [one for one in self._nodes if one != node]
        self._waiting.pop(node, None)
        return self._go_on(now)

    def advance(self, now: Instant) -> list[Outgoing]:
        """Ask the nodes that have not answered again."""
        if self._next_try is None or now < self._next_try:
            return []
        self._next_try = now + self._timing.retry_ms
        return self._ask()

    def wake_at(self) -> Instant | None:
        """Return when to ask again; None: no change is in progress."""
        return self._next_try

    def _has_answered(self, status: PlanStatus) -> bool:
        assert self._plan is not None
        version = self._plan.version
        if self.phase is Phase.PREPARING:
            return version in (status.current, status.upcoming)
        return status.current >= version

    def _go_on(self, now: Instant) -> list[Outgoing]:
        if self._waiting or self.phase is Phase.IDLE:
            return []
        if self.phase is Phase.PREPARING:
            return self._begin(Phase.COMMITTING, now)
        self.phase, self._plan, self._next_try = Phase.IDLE, None, None
        return []

    def _begin(self, phase: Phase, now: Instant) -> list[Outgoing]:
        self.phase = phase
        self._waiting = dict.fromkeys(self._nodes)
        self._next_try = now + self._timing.retry_ms
        return self._ask()

    def _ask(self) -> list[Outgoing]:
        assert self._plan is not None
        message: Prepare | Commit = Prepare(self._coordinator, self._plan)
        if self.phase is Phase.COMMITTING:
            message = Commit(self._coordinator, self._plan.version)
        return [Outgoing(node, message) for node in self._waiting]
