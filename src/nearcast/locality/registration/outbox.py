"""The outbox: the authority on the events that were published at a node.

An event is acknowledged to its publisher once it is here. From then on it is sent to the holders of
its leaves until its deadline, and again to a holder that has forgotten it, so that it finds every
subscription that was in force when it was published.

Read next: `holder.py`.
"""

from __future__ import annotations

from heapq import heappop, heappush

from nearcast.locality.layout.rect import Area, checked_rect
from nearcast.locality.registration.messages import (
    EventId,
    EventOffer,
    Instant,
    NodeId,
    Outgoing,
    PlacedEvent,
    Timing,
)
from nearcast.locality.registration.plan_assignment import PlanAssignment
from nearcast.locality.registration.retry import RetryUntilAcked
from nearcast.model.errors import OutOfRangeError


class EventOutbox:
    """The events published at one node that have not expired; kept across a crash.

    An event of QoS 0 is offered once and not kept: a fault may lose it.

    Complexity: O(holders of its leaves) per event, and again per change of plan.
    """

    def __init__(
        self, node: NodeId, plans: PlanAssignment, retry: RetryUntilAcked, timing: Timing
    ) -> None:
        self._node = node
        self._plans = plans
        self._retry = retry
        self._timing = timing
        self._serial = 0
        self._events: dict[EventId, tuple[PlacedEvent, dict[NodeId, tuple[str, ...]]]] = {}
        self._revision = 0
        self._expiries: list[tuple[Instant, EventId]] = []

    def publish(
        self,
        area: Area,
        now: Instant,
        *,
        qos: int = 1,
        lifetime_ms: int | None = None,
        payload: bytes = b"",
    ) -> tuple[PlacedEvent, list[Outgoing]]:
        """Store an event and return it with the offers to its holders.

        From then on the cluster is responsible for its delivery. A lifetime longer than the horizon
        is cut to it.
        """
        if qos not in (0, 1, 2):
            raise OutOfRangeError(repr(qos), where="qos", expected="0, 1 or 2")
        if lifetime_ms is not None and lifetime_ms <= 0:
            raise OutOfRangeError(repr(lifetime_ms), where="lifetime_ms", expected="above 0")
        rect = checked_rect(area, "place of an event")
        self._serial += 1
        horizon = self._timing.horizon_ms
        lifetime_ms = horizon if lifetime_ms is None else min(lifetime_ms, horizon)
        event_id = (self._node, self._serial)
        event = PlacedEvent(event_id, rect, now, now + lifetime_ms, qos, payload)
        return event, self._offer_first(event, now)

    def begin(self, number: int) -> None:
        """Start a new life: numbers of events published from now on are above `number`.

        Not every event survives a crash (one of QoS 0 does not), but holders remember all events
        that they received: a number used twice would be taken for an event that they already have.
        """
        self._serial = max(self._serial, number)
        self._revision = max(self._revision, number)

    def restore(self, event: PlacedEvent) -> None:
        """Restore an event that was kept elsewhere across a crash; `plans_changed` offers it."""
        self._serial = max(self._serial, event.event_id[1])
        self._events[event.event_id] = (event, {})
        heappush(self._expiries, (event.deadline, event.event_id))

    def plans_changed(self, now: Instant) -> list[Outgoing]:
        """Offer all events that have not expired to the holders that the plans in use name now."""
        out = []
        for event_id, (event, offered) in list(self._events.items()):
            wanted = self._plans.holders_of_event(event.area)
            for holder in offered:
                if holder not in wanted:
                    self._retry.drop(holder, ("e", event_id))
            for holder, leaves in wanted.items():
                if offered.get(holder) != leaves:
                    out += self._offer(event, holder, leaves, now)
            self._events[event_id] = (event, wanted)
        return out

    def advance(self, now: Instant) -> None:
        """Drop expired events."""
        while self._expiries and self._expiries[0][0] <= now:
            event_id = heappop(self._expiries)[1]
            _, offered = self._events.pop(event_id)
            for holder in offered:
                self._retry.drop(holder, ("e", event_id))

    def wake_at(self) -> Instant | None:
        """Return when the next event expires; None: there is none."""
        return self._expiries[0][0] if self._expiries else None

    def __len__(self) -> int:
        return len(self._events)

    @property
    def last_serial(self) -> int:
        """The number of the last event of this node."""
        return self._serial

    def events(self) -> list[PlacedEvent]:
        """Return the events of QoS 1 and 2 that have not expired."""
        return [event for event, _ in self._events.values()]

    def _offer_first(self, event: PlacedEvent, now: Instant) -> list[Outgoing]:
        holders = self._plans.holders_of_event(event.area)
        if event.qos == 0:
            return [
                Outgoing(holder, EventOffer(self._node, event, 1, leaves))
                for holder, leaves in holders.items()
            ]
        self._events[event.event_id] = (event, holders)
        heappush(self._expiries, (event.deadline, event.event_id))
        out = []
        for holder, leaves in holders.items():
            out += self._offer(event, holder, leaves, now)
        return out

    def _offer(
        self, event: PlacedEvent, holder: NodeId, leaves: tuple[str, ...], now: Instant
    ) -> list[Outgoing]:
        self._revision += 1
        message = EventOffer(self._node, event, self._revision, leaves)
        key = ("e", event.event_id)
        return self._retry.send(holder, key, self._revision, message, now, event.deadline)
