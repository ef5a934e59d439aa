"""One node's part in locality: its gateway, outbox and holder, and its share in a change of plan.

      client moves ─► gateway ─Register─► holder (of the place, at any node)
      client publishes ─► outbox ─EventOffer─►  │
      client receives ◄─ gateway ◄─HolderMatch──┘

Change of plan. Every node uses the new plan beside the old one as soon as it learns of it, and
drops the old one when all nodes use the new one. So any two nodes have a plan in common at any
time, and an event and a subscription that match are both sent to the holder of some leaf of it.

The cluster (`cluster/spatial_routing.py`) and the simulated runs of handovers use this class.

Read next: `gateway.py`, `outbox.py`, `holder.py`, `plan_assignment.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from nearcast.locality.layout.rect import Area
from nearcast.locality.registration.gateway import Gateway
from nearcast.locality.registration.holder import Holder
from nearcast.locality.registration.messages import (
    HolderMatch,
    Instant,
    Known,
    NodeId,
    Outgoing,
    PlacedEvent,
    SubscriptionId,
    Timing,
)
from nearcast.locality.registration.outbox import EventOutbox
from nearcast.locality.registration.plan_assignment import NamedPlan, PlanAssignment
from nearcast.locality.registration.retry import RetryUntilAcked

AWAY_MS = 1_000
"""How long a peer is disconnected before another node stands in for it."""
_SERIAL_BITS = 20  # low bits of an event's number; the high bits are the node's life


class LocalityHost(Protocol):
    """The node around a `LocalityNode`."""

    def deliver(
        self, event: PlacedEvent, subscriptions: list[SubscriptionId], now: Instant
    ) -> None:
        """Deliver an event of another node to clients of this node."""

    def plans_changed(self) -> None:
        """Store the plans in use: they must survive a crash."""


class LocalityNode:
    """One node's subscriptions, events and registrations with a place.

    Contract: a node serves its own clients' events to its own clients itself; an event of another
    node is delivered once to each subscription whose area it met when it was published. After a
    crash the host calls `begin` with a higher life, subscribes again, and restores events and plans
    (`restored`).

    `take` returns the messages to send. Messages to this node never leave it.
    """

    def __init__(self, name: str, timing: Timing, host: LocalityHost) -> None:
        self.plans = PlanAssignment(name)  # which node holds which leaves
        self.retry = RetryUntilAcked(name, timing, probes=True)  # messages to holders
        self.gateway = Gateway(name, self.plans, self.retry, timing)
        self.outbox = EventOutbox(name, self.plans, self.retry, timing)
        self.holder = Holder(name, 0, timing)
        self._name = name
        self._timing = timing
        self._host = host
        self._out: list[Outgoing] = []  # to send, also to this node itself
        self._versions: dict[str, tuple[int, int]] = {}  # plan versions that each peer uses
        self._lost_at: dict[str, Instant] = {}  # peers that have just been disconnected
        # is called with each message to a holder, and each match from one, this node included
        self.observe: Callable[[NodeId, Any], None] | None = None

    def begin(self, life: int) -> None:
        """Start a life with an empty holder; event numbers are above those of earlier lives."""
        self.holder = Holder(self._name, life, self._timing)
        self.outbox.begin(life << _SERIAL_BITS)
        self.retry.life = life

    def restored(
        self,
        current: NamedPlan | None,
        upcoming: NamedPlan | None,
        events: Iterable[PlacedEvent],
        now: Instant,
    ) -> None:
        """Restore plans and events from before a crash, after all subscriptions."""
        self.plans.current = current or self.plans.current
        self.plans.upcoming = upcoming or self.plans.upcoming
        for event in events:
            self.outbox.restore(event)
        self._assign_again(now)

    # --- clients ----------------------------------------------------------------------------

    def subscribe(
        self,
        subscription: SubscriptionId,
        area: Area,
        now: Instant,
        *,
        since: Instant | None = None,
    ) -> None:
        """Register a subscription; `since` is before `now` for one that is restored."""
        self._out += self.gateway.subscribe(subscription, area, now, since=since)

    def move(self, subscription: SubscriptionId, area: Area, now: Instant) -> None:
        """Set a subscription's area; hand its registration over if it has left its cover."""
        self._out += self.gateway.move(subscription, area, now)

    def unsubscribe(self, subscription: SubscriptionId, now: Instant) -> None:
        """End a subscription; events published before `now` are still delivered."""
        self._out += self.gateway.unsubscribe(subscription, now)

    def publish(
        self, area: Area, now: Instant, *, qos: int, lifetime_ms: int | None, payload: bytes = b""
    ) -> PlacedEvent:
        """Offer an event of a client of this node to the holders; return it."""
        event, out = self.outbox.publish(
            area, now, qos=qos, lifetime_ms=lifetime_ms, payload=payload
        )
        self._out += out
        return event

    def catch_up(self, subscriptions: Iterable[SubscriptionId], now: Instant) -> None:
        """Deliver this node's own events to subscriptions that another gateway had until now.

        Holders send no match to the node where an event was published: its clients had it then.
        """
        names = tuple(subscriptions)
        for event in self.outbox.events():
            due, _ = self.gateway.matched(HolderMatch(self._name, event, 0, names), now)
            if due:
                self._host.deliver(event, due, now)

    # --- peers ------------------------------------------------------------------------------

    def receive(self, message: Any, now: Instant) -> None:
        """Handle a message from a peer, or from this node to itself."""
        if type(message) is Known:
            self._out += self.retry.known(message, now)
        elif type(message) is HolderMatch:
            if self.observe is not None:
                self.observe(message.holder, message)
            subscriptions, answers = self.gateway.matched(message, now)
            self._out += answers
            if subscriptions and message.event.event_id[0] != self._name:
                self._host.deliver(message.event, subscriptions, now)
        else:
            self._out += self.holder.receive(message, now)

    def advance(self, now: Instant) -> None:
        """Do everything that is due at `now`."""
        self.gateway.advance(now)
        self.outbox.advance(now)
        self._out += self.holder.advance(now)
        self._out += self.retry.advance(now)
        for name in [name for name, at in self._lost_at.items() if at + AWAY_MS <= now]:
            del self._lost_at[name]
            self._set_away(name, now, is_away=True)

    def wake_at(self) -> Instant | None:
        """Return when `advance` is due next; None if nothing is scheduled."""
        parts = (self.gateway, self.outbox, self.holder, self.retry)
        times = [at for part in parts if (at := part.wake_at()) is not None]
        times += [at + AWAY_MS for at in self._lost_at.values()]
        return min(times, default=None)

    def take(self, now: Instant) -> list[Outgoing]:
        """Return the messages to send; handle those to this node itself."""
        to_peers: list[Outgoing] = []
        while self._out:
            out, self._out = self._out, []
            for outgoing in out:
                if self.observe is not None:
                    self.observe(*outgoing)
                if outgoing.to == self._name:
                    self.receive(outgoing.message, now)
                else:
                    to_peers.append(outgoing)
        return to_peers

    @property
    def awaits_acks(self) -> bool:
        """Whether peers have yet to acknowledge something of this node. O(pending).

        That is: registrations and events of this node, and matches of its own events that it found
        as their holder.
        """
        return self.retry.pending() > 0 or self.holder.awaits_ack_of(self._name)

    # --- peers come and go --------------------------------------------------------------------

    def know(self, others: Iterable[str], now: Instant) -> None:
        """Set the names of the peers."""
        names = list(others)
        for name in self._versions.keys() - names:
            for part in (self.gateway, self.holder, self.retry):
                part.forget(name)
        self._versions = {name: self._versions.get(name, (0, 0)) for name in names}
        if self.plans.know(names):
            self._lost_at = {name: at for name, at in self._lost_at.items() if name in names}
            self._assign_again(now)
        self._commit_if_all_use_it(now)

    def lost(self, name: str, now: Instant) -> None:
        """Record that a peer is disconnected; after `AWAY_MS` another node stands in for it."""
        self._lost_at[name] = now

    def back(self, name: str, now: Instant) -> None:
        """Record that a peer is connected again, and resend what it has not acknowledged."""
        self._lost_at.pop(name, None)
        self._set_away(name, now, is_away=False)
        self._out += self.retry.again(name, now)

    def leave(self, now: Instant) -> None:
        """Offer events that only this node holds to other holders; done when nothing is pending."""
        self.plans.leave()
        self._out += self.outbox.plans_changed(now)

    def _set_away(self, name: NodeId, now: Instant, *, is_away: bool) -> None:
        if self.plans.set_away(str(name), is_away=is_away):
            self._assign_again(now)

    # --- change of plan -----------------------------------------------------------------------

    def use(self, plan: NamedPlan, now: Instant) -> bool:
        """Start to use a plan; return whether it was newer than those in use."""
        if not self.plans.prepare(plan):
            return False
        self._plans_changed(now)
        self._commit_if_all_use_it(now)
        return True

    @property
    def is_changing(self) -> bool:
        """Whether this node or a peer uses two plans, or another one than this node."""
        version = self.plans.versions[0]
        used = [self.plans.versions, *self._versions.values()]
        return any(versions != (version, 0) for versions in used)

    def uses(self, name: str, versions: tuple[int, int], now: Instant) -> None:
        """Record which plans a peer uses."""
        self._versions[name] = versions
        self._commit_if_all_use_it(now)

    def _commit_if_all_use_it(self, now: Instant) -> None:
        """Drop the old plan once every node uses the new one."""
        upcoming = self.plans.upcoming
        if upcoming is None:
            return
        if all(max(versions) >= upcoming.version for versions in self._versions.values()):
            self.plans.commit()
            self._plans_changed(now)

    def _plans_changed(self, now: Instant) -> None:
        self._host.plans_changed()
        self._assign_again(now)

    def _assign_again(self, now: Instant) -> None:
        """Send registrations and events to the holders that the plans in use name now."""
        self._out += self.gateway.plans_changed(now)
        self._out += self.outbox.plans_changed(now)
