"""Three nodes of locality with a plan of two halves, and what they send."""

from __future__ import annotations

from typing import Any

from nearcast.locality import CellCounts, Plan, Rect, adapted
from nearcast.locality.registration.messages import (
    EventId,
    EventOffer,
    Outgoing,
    PlacedEvent,
    Timing,
)
from nearcast.locality.registration.node import LocalityNode
from nearcast.locality.registration.plan_assignment import NamedPlan, PlanAssignment

SPACE = Rect(0.0, 0.0, 8.0, 8.0)
TIMING = Timing(retry_ms=100, most_retry_ms=400, probe_ms=500, lease_ms=2_000, horizon_ms=10_000)
WEST, EAST = Rect(1, 1, 2, 2), Rect(6, 1, 7, 2)


NAMES = ("n0", "n1", "n2")


def halves(version: int = 1, *, swapped: bool = False) -> NamedPlan:
    """Four blocks: n0 has the west, n1 the east; the other way round if swapped."""
    root = Plan.build(SPACE, [], CellCounts.empty(2))
    four = adapted(root, [9], capacity=3)
    west, east = (1, 0) if swapped else (0, 1)
    return NamedPlan(four.with_brokers([west, east, west, east], version=version), NAMES)


def plans_of(name: str) -> PlanAssignment:
    plans = PlanAssignment(name)
    plans.know(other for other in NAMES if other != name)
    plans.current = halves()
    return plans


class Host:
    """Remembers what a `LocalityNode` delivered, and how often its plans changed."""

    def __init__(self) -> None:
        self.got: list[tuple[str, EventId]] = []
        self.changes = 0

    def deliver(self, event: PlacedEvent, subscriptions: list[str], _now: int) -> None:
        self.got += [(name, event.event_id) for name in subscriptions]

    def plans_changed(self) -> None:
        self.changes += 1


def node_at(name: str) -> LocalityNode:
    node = LocalityNode(name, TIMING, Host())
    node.begin(1)
    node.restored(halves(), None, [], 0)
    node.know([other for other in NAMES if other != name], 0)
    return node


def one(messages: list[Any], kind: type) -> Any:
    found = [m.message for m in messages if isinstance(m, Outgoing) and isinstance(m.message, kind)]
    assert len(found) == 1, messages
    return found[0]


def published(place: Any, now: int, **more: Any) -> tuple[EventId, EventOffer]:
    """Return an event of n2, and what n2 offers the holder of its place."""
    event, offers = node_at("n2").outbox.publish(place, now, **more)
    return event.event_id, one(offers, EventOffer)
