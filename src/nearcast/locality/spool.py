"""The spool: the authority on the events that were published at a node.

An event is acknowledged to its publisher once it is here. From then on the holders of its leaves
are told until its deadline, and told again when one has forgotten, so that it finds every
subscription that was in force when it was published.
"""

from __future__ import annotations

from heapq import heappop, heappush

from nearcast.locality.messages import (
    Event,
    EventId,
    Instant,
    NodeId,
    Offer,
    Outgoing,
    Timing,
)
from nearcast.locality.pursuit import Pursuit
from nearcast.locality.rect import Area, checked_rect
from nearcast.locality.view import View
from nearcast.model.errors import OutOfRangeError


class Spool:
    """The events published at one node that have not expired; kept over a crash.

    An event of QoS 0 is offered once and not kept: it may be lost where a fault explains it.

    Complexity: O(holders of its leaves) per event, and again per change of plan.
    """

    def __init__(self, node: NodeId, view: View, pursuit: Pursuit, timing: Timing) -> None:
        self._node = node
        self._view = view
        self._pursuit = pursuit
        self._timing = timing
        self._serial = 0
        self._events: dict[EventId, tuple[Event, dict[NodeId, tuple[str, ...]]]] = {}
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
    ) -> tuple[Event, list[Outgoing]]:
        """Take an event in; from now on it is the network's to deliver.

        A lifetime longer than the horizon is cut to it. An area outside the space is an error.
        """
        if qos not in (0, 1, 2):
            raise OutOfRangeError(repr(qos), where="qos", expected="0, 1 or 2")
        if lifetime_ms is not None and lifetime_ms <= 0:
            raise OutOfRangeError(repr(lifetime_ms), where="lifetime_ms", expected="above 0")
        rect = checked_rect(area, "place of an event")
        self._view.check_place(rect)
        self._serial += 1
        horizon = self._timing.horizon_ms
        lifetime_ms = horizon if lifetime_ms is None else min(lifetime_ms, horizon)
        event_id = (self._node, self._serial)
        event = Event(event_id, rect, now, now + lifetime_ms, qos, payload)
        return event, self._offer_first(event, now)

    def begin(self, number: int) -> None:
        """Begin a life: what is published from now on has higher numbers than this.

        Not every event outlives a crash (one of QoS 0 does not), but others remember all that they
        had: a number used twice would be taken for an event that they know.
        """
        self._serial = max(self._serial, number)
        self._revision = max(self._revision, number)

    def restore(self, event: Event) -> None:
        """Bring an event back that was kept elsewhere over a crash; `restarted` offers it."""
        self._serial = max(self._serial, event.event_id[1])
        self._events[event.event_id] = (event, {})
        heappush(self._expiries, (event.deadline, event.event_id))

    def restarted(self, pursuit: Pursuit, now: Instant) -> list[Outgoing]:
        """Come back after a crash: offer everything that is still alive once more."""
        self._pursuit = pursuit
        self._events = {event_id: (event, {}) for event_id, (event, _) in self._events.items()}
        return self.plans_changed(now)

    def plans_changed(self, now: Instant) -> list[Outgoing]:
        """Offer everything that is still alive where the view's plans want it now."""
        out = []
        for event_id, (event, told) in list(self._events.items()):
            wanted = self._view.holders_of_event(event.area)
            for holder in told:
                if holder not in wanted:
                    self._pursuit.drop(holder, ("e", event_id))
            for holder, leaves in wanted.items():
                if told.get(holder) != leaves:
                    out += self._offer(event, holder, leaves, now)
            self._events[event_id] = (event, wanted)
        return out

    def advance(self, now: Instant) -> list[Outgoing]:
        """Forget what has expired."""
        while self._expiries and self._expiries[0][0] <= now:
            event_id = heappop(self._expiries)[1]
            _, told = self._events.pop(event_id)
            for holder in told:
                self._pursuit.drop(holder, ("e", event_id))
        return []

    def wake_at(self) -> Instant | None:
        """Say when the next event expires."""
        return self._expiries[0][0] if self._expiries else None

    def __len__(self) -> int:
        return len(self._events)

    def _offer_first(self, event: Event, now: Instant) -> list[Outgoing]:
        holders = self._view.holders_of_event(event.area)
        if event.qos == 0:
            return [
                Outgoing(holder, Offer(self._node, event, 1, leaves))
                for holder, leaves in holders.items()
            ]
        self._events[event.event_id] = (event, holders)
        heappush(self._expiries, (event.deadline, event.event_id))
        out = []
        for holder, leaves in holders.items():
            out += self._offer(event, holder, leaves, now)
        return out

    def _offer(
        self, event: Event, holder: NodeId, leaves: tuple[str, ...], now: Instant
    ) -> list[Outgoing]:
        self._revision += 1
        message = Offer(self._node, event, self._revision, leaves)
        key = ("e", event.event_id)
        return self._pursuit.tell(holder, key, self._revision, message, now, event.deadline)
