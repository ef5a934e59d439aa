"""A simulated broker node around `LocalityNode`: no MQTT, no sessions, no attributes.

Requests of clients come as values. What survives a crash is what a real node has in its journal:
the steps of its subscriptions, its events of QoS 1 and 2, the deliveries, the plans in use, and the
number of starts. The tables of the holder are lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from nearcast.locality.layout.rect import Rect
from nearcast.locality.registration.messages import EventId, Instant, PlacedEvent, Timing
from nearcast.locality.registration.node import LocalityNode
from nearcast.locality.registration.plan_assignment import NamedPlan
from nearcast.simulator.world import Send


@dataclass(frozen=True, slots=True)
class SimSubscribe:
    """A client subscribes."""

    subscription: str
    area: Rect


@dataclass(frozen=True, slots=True)
class Move:
    """A client is elsewhere now."""

    subscription: str
    area: Rect


@dataclass(frozen=True, slots=True)
class SimUnsubscribe:
    """A client unsubscribes."""

    subscription: str


@dataclass(frozen=True, slots=True)
class SimPublish:
    """A client publishes an event."""

    area: Rect
    qos: int
    lifetime_ms: int


@dataclass(frozen=True, slots=True)
class UsePlan:
    """The store of plans has a new one."""

    plan: NamedPlan


@dataclass(frozen=True, slots=True)
class VersionsInUse:
    """Node to node: the versions of the plans that the sender uses."""

    node: str
    versions: tuple[int, int]
    is_reply: bool = False


@dataclass(frozen=True, slots=True)
class DeliverToClient:
    """Output: a client receives an event."""

    subscription: str
    event: PlacedEvent


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Output: the publisher's event is the cluster's to deliver from now on."""

    event: PlacedEvent


@dataclass(frozen=True, slots=True)
class Followed:
    """Output: from now on a subscription's area is this (None: it has ended)."""

    subscription: str
    area: Rect | None


class LocalityActor:
    """One simulated node: an `Actor` of the world, and the host of its `LocalityNode`."""

    def __init__(self, name: str, names: Iterable[str], plan: NamedPlan, timing: Timing) -> None:
        self.name = name
        self.timing = timing
        self.others = [other for other in names if other != name]
        self.starts = 1
        self.steps: dict[str, list[tuple[Instant, Rect | None]]] = {}
        self.events: dict[EventId, PlacedEvent] = {}
        self.delivered: set[tuple[str, EventId]] = set()
        self.stored: tuple[NamedPlan | None, NamedPlan | None] = (plan, None)
        self._out: list[Any] = []
        self._ask_at: Instant | None = None  # while a change of plan is under way
        self.locality = self._started(0)

    def _started(self, now: Instant) -> LocalityNode:
        locality = LocalityNode(self.name, self.timing, self)
        locality.begin(self.starts)
        for name, steps in self.steps.items():
            before = None
            for at, area in steps:
                if area is None:
                    locality.unsubscribe(name, at)
                elif before is None:
                    locality.subscribe(name, area, now, since=at)
                else:
                    locality.move(name, area, at)
                before = area
        alive = [event for event in self.events.values() if event.deadline > now]
        locality.restored(*self.stored, alive, now)
        locality.know(self.others, now)
        return locality

    # --- the host ----------------------------------------------------------------------------

    def deliver(self, event: PlacedEvent, subscriptions: Iterable[str], _now: Instant) -> None:
        """Deliver an event to subscriptions that have not had it."""
        for name in subscriptions:
            if (name, event.event_id) not in self.delivered:
                self.delivered.add((name, event.event_id))
                self._out.append(DeliverToClient(name, event))

    def plans_changed(self) -> None:
        """Store the plans in use."""
        self.stored = (self.locality.plans.current, self.locality.plans.upcoming)

    # --- the actor ---------------------------------------------------------------------------

    def receive(self, message: Any, now: Instant) -> list[Any]:
        """Process a message of another node, or a request of a client."""
        handle = _HANDLERS.get(type(message))
        if handle is None:
            self.locality.receive(message, now)
        else:
            handle(self, message, now)
        return self._outputs(now)

    def advance(self, now: Instant) -> list[Any]:
        """Do what is due."""
        self.locality.advance(now)
        if self._ask_at is not None and self._ask_at <= now:
            self._send_versions(now)
        return self._outputs(now)

    def wake_at(self) -> Instant | None:
        """Return when something is due."""
        times = (self.locality.wake_at(), self._ask_at)
        return min((at for at in times if at is not None), default=None)

    def restart(self, now: Instant) -> list[Any]:
        """Come back after a crash with what was stored."""
        self.starts += 1
        self.locality = self._started(now)
        self._send_versions(now)
        return self._outputs(now)

    def part(self, name: str, now: Instant) -> list[Any]:
        """Forget a node that is gone for good."""
        self.others = [other for other in self.others if other != name]
        self.locality.know(self.others, now)
        return self._outputs(now)

    def _outputs(self, now: Instant) -> list[Any]:
        sends = [Send(*outgoing) for outgoing in self.locality.take(now)]
        out, self._out = self._out, []
        return [*out, *sends]

    # --- plans ---------------------------------------------------------------------------------

    def _use(self, message: UsePlan, now: Instant) -> None:
        if self.locality.use(message.plan, now):
            self._send_versions(now)

    def _versions(self, message: VersionsInUse, now: Instant) -> None:
        self.locality.uses(message.node, message.versions, now)
        if not message.is_reply:
            reply = VersionsInUse(self.name, self.locality.plans.versions, is_reply=True)
            self._out.append(Send(message.node, reply))

    def _send_versions(self, now: Instant) -> None:
        message = VersionsInUse(self.name, self.locality.plans.versions)
        self._out += [Send(other, message) for other in self.others]
        is_under_way = self.locality.plans.upcoming is not None
        self._ask_at = now + self.timing.retry_ms if is_under_way else None

    # --- clients -------------------------------------------------------------------------------

    def _follow(self, name: str, area: Rect | None, now: Instant) -> None:
        self.steps.setdefault(name, []).append((now, area))
        self._out.append(Followed(name, area))

    def _subscribe(self, message: SimSubscribe, now: Instant) -> None:
        self.locality.subscribe(message.subscription, message.area, now)
        self._follow(message.subscription, message.area, now)

    def _move(self, message: Move, now: Instant) -> None:
        self.locality.move(message.subscription, message.area, now)
        self._follow(message.subscription, message.area, now)

    def _unsubscribe(self, message: SimUnsubscribe, now: Instant) -> None:
        self.locality.unsubscribe(message.subscription, now)
        self._follow(message.subscription, None, now)

    def _publish(self, message: SimPublish, now: Instant) -> None:
        event = self.locality.publish(
            message.area, now, qos=message.qos, lifetime_ms=message.lifetime_ms
        )
        if event.qos:
            self.events[event.event_id] = event
        self._out.append(Acknowledged(event))
        areas = {name: steps[-1][1] for name, steps in self.steps.items()}
        near = [name for name, area in areas.items() if area and area.intersects(event.area)]
        self.deliver(event, near, now)


_HANDLERS: dict[type, Any] = {
    UsePlan: LocalityActor._use,
    VersionsInUse: LocalityActor._versions,
    SimSubscribe: LocalityActor._subscribe,
    Move: LocalityActor._move,
    SimUnsubscribe: LocalityActor._unsubscribe,
    SimPublish: LocalityActor._publish,
}
