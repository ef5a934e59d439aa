"""Two nodes that share the leaves of a plan; messages arrive at once."""

from __future__ import annotations

from typing import Any

from tests.support.locality_node import (
    DeliverToClient,
    LocalityActor,
    Move,
    SimPublish,
    SimSubscribe,
    SimUnsubscribe,
    UsePlan,
)

from nearcast.locality.layout.plan import Plan
from nearcast.locality.layout.rect import Area, checked_rect
from nearcast.locality.registration.messages import Timing
from nearcast.locality.registration.plan_assignment import NamedPlan
from nearcast.simulator.world import Send

READER, WRITER = "reader", "writer"


class TwoNodes:
    """Clients subscribe at one node and publish at the other."""

    def __init__(self, plan: Plan) -> None:
        names, named = (READER, WRITER), _shared(plan, 1)
        self.nodes = {name: LocalityActor(name, names, named, Timing()) for name in names}
        self._now = 0
        self._received: list[str] = []

    def subscribe(self, name: str, area: Area) -> None:
        """Make a client subscribe to an area."""
        self._act(READER, SimSubscribe(name, checked_rect(area, "area")))

    def move(self, name: str, area: Area) -> None:
        """Make a client's area another one."""
        self._act(READER, Move(name, checked_rect(area, "area")))

    def unsubscribe(self, name: str) -> None:
        """Make a client unsubscribe."""
        self._act(READER, SimUnsubscribe(name))

    def leaves_of(self, name: str) -> set[str]:
        """Return the keys of the leaves where a subscription is registered."""
        held = self.nodes[READER].locality.gateway.leaves_of(name).values()
        return {leaf.split(":")[1] for leaves in held for leaf in leaves}

    def publish(self, area: Area) -> list[str]:
        """Publish an event about an area; return the clients that received it, sorted."""
        self._received = []
        self._act(WRITER, SimPublish(checked_rect(area, "area"), qos=1, lifetime_ms=1_000))
        return sorted(self._received)

    def use_plan(self, plan: Plan) -> None:
        """Make both nodes use another plan."""
        version = self.nodes[READER].locality.plans.versions[0] + 1
        for name in self.nodes:
            self._act(name, UsePlan(_shared(plan, version)))

    def _act(self, node: str, request: Any) -> None:
        self._now += 1
        waiting: list[Send] = [Send(node, request)]
        while waiting:
            to, message = waiting.pop(0)
            for output in self.nodes[str(to)].receive(message, self._now):
                if isinstance(output, Send):
                    waiting.append(output)
                elif isinstance(output, DeliverToClient):
                    self._received.append(output.subscription)


def _shared(plan: Plan, version: int) -> NamedPlan:
    brokers = [leaf.number % 2 for leaf in plan.leaves]
    return NamedPlan(plan.with_brokers(brokers, version=version), (READER, WRITER))
