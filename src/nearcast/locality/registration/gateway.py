"""The gateway: the authority on its clients' subscriptions (paper 0, trap T0.6).

A client stays connected to its gateway; its registration moves as it travels. The states of one
stretch of a registration at one holder:

      opened ──Register──► sent ──Known──► held ──client moves on──► ended ──horizon──► gone
         ▲                  │ ▲                │                       │
         └── new plan       └─┘ no answer      └── holder forgot: sent again (so is an ended one)

The gateway registers at the holders of the new place at once. It also sends the old holders the
instant at which the stretch ended: an event published before that instant still finds the
subscription there, however late it arrives. So nothing is lost between the old table and the new
one (trap T0.6). The gateway checks each match against the client's area at the instant of
publication, and remembers deliveries until the event's deadline: so nothing is delivered in error,
or twice.

Read next: `holder.py`, and `retry.py`, which repeats messages until they are acknowledged.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field, replace

from nearcast.locality.layout.rect import Area, Rect, checked_rect
from nearcast.locality.registration.messages import (
    CoverSpan,
    EventId,
    HolderMatch,
    Instant,
    MatchTaken,
    NodeId,
    Outgoing,
    PlacedEvent,
    Register,
    SubscriptionId,
    Timing,
)
from nearcast.locality.registration.plan_assignment import PlanAssignment
from nearcast.locality.registration.retry import RetryUntilAcked
from nearcast.locality.registration.slack import STEPS, widened
from nearcast.model.errors import KeyInUseError, KeyMissingError

FOREVER: Instant = 1 << 62
_MOST_SPANS = 8


@dataclass(slots=True)
class _Stretch:
    """A time in which the subscription's area lay inside `cover`; `until` None: it still does.

    `holders` are the holders of the cover by the plans in use; None: not looked up yet.
    """

    cover: Rect
    since: Instant
    until: Instant | None
    holders: dict[NodeId, tuple[str, ...]] | None = None


@dataclass(slots=True)
class _Subscription:
    stretches: list[_Stretch]
    history: list[tuple[Instant, Rect | None]]  # area from each instant on; None: unsubscribed
    revision: int = 0
    legacy: list[tuple[NodeId, CoverSpan]] = field(
        default_factory=list
    )  # ended by a change of plan
    sent: dict[NodeId, tuple[CoverSpan, ...]] = field(default_factory=dict)
    delivered: dict[EventId, Instant] = field(default_factory=dict)

    @property
    def area(self) -> Rect | None:
        return self.history[-1][1]

    def last_areas(self) -> list[Rect]:
        """Return the areas of the last few steps since the client subscribed, oldest first."""
        areas = [area for _, area in self.history[-1 - STEPS :]]
        while None in areas:
            del areas[0]
        return areas  # type: ignore[return-value]

    def area_at(self, at: Instant) -> Rect | None:
        for since, area in reversed(self.history):
            if since <= at:
                return area
        return None


class Gateway:
    """The subscriptions of one node's clients, and where they are registered.

    Contract: an event is delivered to a subscription exactly when the subscription's area at the
    instant of publication meets the event's area, once, and before the event's deadline. A node
    must keep this object across a crash.

    Complexity: `move` costs two comparisons per side while the client stays in its cover, else one
    lookup in the plan and one message to each holder concerned. `handovers` counts the moves that
    changed the set of holders.
    """

    def __init__(
        self, node: NodeId, plans: PlanAssignment, retry: RetryUntilAcked, timing: Timing
    ) -> None:
        self._node = node
        self._plans = plans
        self._retry = retry
        self._timing = timing
        self.handovers = 0
        self._subscriptions: dict[SubscriptionId, _Subscription] = {}
        self._sweep_at: Instant | None = None

    def subscribe(
        self,
        subscription: SubscriptionId,
        area: Area,
        now: Instant,
        *,
        since: Instant | None = None,
    ) -> list[Outgoing]:
        """Add a subscription and register it; `since` is before `now` for one that is restored."""
        known = self._subscriptions.get(subscription)
        if known is not None and known.area is not None:
            raise KeyInUseError(subscription, where="Gateway.subscribe")
        rect = checked_rect(area, "area of a subscription")
        if known is None:
            known = self._subscriptions[subscription] = _Subscription([], [])
            known.revision = now << 8  # higher than in an earlier life of the same subscription id
        since = now if since is None else since
        known.history.append((since, rect))
        known.stretches.append(_Stretch(self._cover(known), since, None))
        if self._sweep_at is None:
            self._sweep_at = now + self._timing.horizon_ms
        return self._update_holders(subscription, known, now)

    def move(self, subscription: SubscriptionId, area: Area, now: Instant) -> list[Outgoing]:
        """Set a client's area; hand its registration over if it has left its cover."""
        known = self._known(subscription)
        rect = checked_rect(area, "area of a subscription")
        known.history.append((now, rect))
        while known.history[1][0] <= now - self._timing.horizon_ms:
            del known.history[0]
        if known.stretches[-1].cover.covers(rect):
            return []
        before = known.stretches[-1]
        before.until = now
        known.stretches.append(_Stretch(self._cover(known), now, None))
        out = self._update_holders(subscription, known, now)
        self.handovers += _names(before) != _names(known.stretches[-1])
        return out

    def unsubscribe(self, subscription: SubscriptionId, now: Instant) -> list[Outgoing]:
        """End a subscription; events published before `now` are still delivered."""
        known = self._known(subscription)
        known.history.append((now, None))
        known.stretches[-1].until = now
        return self._update_holders(subscription, known, now)

    def plans_changed(self, now: Instant) -> list[Outgoing]:
        """Register all subscriptions at the holders that the plans in use name now."""
        out = []
        for name, known in self._subscriptions.items():
            for stretch in known.stretches:
                stretch.holders = None
            self._keep_legacy(known, now)
            out += self._update_holders(name, known, now)
        return out

    def forget(self, holder: NodeId) -> None:
        """Drop all state about a holder that is gone for good; call `plans_changed` afterwards."""
        for known in self._subscriptions.values():
            known.sent.pop(holder, None)
            known.legacy = [(name, span) for name, span in known.legacy if name != holder]

    def matched(
        self, message: HolderMatch, now: Instant
    ) -> tuple[list[SubscriptionId], list[Outgoing]]:
        """Return the subscriptions that a match is due to, and its acknowledgement."""
        event = message.event
        due = [
            name
            for name in message.subscriptions
            if now < event.deadline and self._is_due(name, event)
        ]
        if not event.qos:
            return due, []
        answer = MatchTaken(self._node, event.event_id, message.revision)
        return due, [Outgoing(message.holder, answer)]

    def advance(self, now: Instant) -> None:
        """Drop the state of subscriptions and deliveries that the horizon has passed."""
        if self._sweep_at is not None and self._sweep_at <= now:
            self._sweep(now)

    def wake_at(self) -> Instant | None:
        """Return when `advance` has something to drop; None: never."""
        return self._sweep_at

    def leaves_of(self, subscription: SubscriptionId) -> dict[NodeId, tuple[str, ...]]:
        """Return the leaves where a subscription is registered now, by holder."""
        sent = self._known(subscription).sent
        return {
            holder: tuple(leaf for span in spans if span.until is None for leaf in span.leaves)
            for holder, spans in sent.items()
            if any(span.until is None for span in spans)
        }

    def _known(self, subscription: SubscriptionId) -> _Subscription:
        known = self._subscriptions.get(subscription)
        if known is None or known.area is None:
            raise KeyMissingError(subscription, where="Gateway")
        return known

    def _is_due(self, name: SubscriptionId, event: PlacedEvent) -> bool:
        """Return whether to deliver the event to a subscription; if so, remember the delivery."""
        known = self._subscriptions.get(name)
        if known is None or event.event_id in known.delivered:
            return False
        area = known.area_at(event.published_at)
        if area is None or not area.intersects(event.area):
            return False
        known.delivered[event.event_id] = event.deadline
        return True

    def _cover(self, known: _Subscription) -> Rect:
        return widened(known.last_areas(), self._timing.slack)

    def _update_holders(
        self, name: SubscriptionId, known: _Subscription, now: Instant
    ) -> list[Outgoing]:
        known.stretches = _fewer([s for s in known.stretches if self._matters(s, now)])
        wanted = self._wanted(known)
        for holder, span in known.legacy:
            wanted[holder] = (*wanted.get(holder, ()), span)
        out = []
        for holder, spans in wanted.items():
            if known.sent.get(holder) != spans:
                out += self._register_at(name, known, holder, spans, now)
        return out

    def _wanted(self, known: _Subscription) -> dict[NodeId, tuple[CoverSpan, ...]]:
        """Return the spans that each holder should have, by the plans in use."""
        wanted: dict[NodeId, tuple[CoverSpan, ...]] = {}
        for stretch in known.stretches:
            if stretch.holders is None:
                stretch.holders = self._plans.holders_of_subscription(stretch.cover)
            for holder, leaves in stretch.holders.items():
                span = CoverSpan(leaves, stretch.cover, stretch.since, stretch.until)
                wanted[holder] = (*wanted.get(holder, ()), span)
        return wanted

    def _keep_legacy(self, known: _Subscription, now: Instant) -> None:
        """Keep spans that no plan in use asks for any more: late events may still arrive there."""
        horizon = self._timing.horizon_ms
        known.legacy = [(h, s) for h, s in known.legacy if (s.until or now) + horizon > now]
        wanted = self._wanted(known)
        kept = {(holder, span.leaves, span.since) for holder, span in known.legacy}
        for holder, spans in known.sent.items():
            for span in spans:
                if (holder, span.leaves, span.since) in kept or _asked_for(
                    span, wanted.get(holder)
                ):
                    continue
                ended = span if span.until is not None else replace(span, until=now)
                known.legacy.append((holder, ended))

    def _register_at(
        self,
        name: SubscriptionId,
        known: _Subscription,
        holder: NodeId,
        spans: tuple[CoverSpan, ...],
        now: Instant,
    ) -> list[Outgoing]:
        known.revision += 1
        known.sent[holder] = spans
        message = Register(self._node, name, known.revision, spans, self._retry.life)
        ends = [FOREVER if s.until is None else s.until + self._timing.horizon_ms for s in spans]
        give_up_at = max(ends, default=now)
        return self._retry.send(holder, ("s", name), known.revision, message, now, give_up_at)

    def _matters(self, stretch: _Stretch, now: Instant) -> bool:
        return stretch.until is None or stretch.until + self._timing.horizon_ms > now

    def _sweep(self, now: Instant) -> None:
        horizon = self._timing.horizon_ms
        for name, known in list(self._subscriptions.items()):
            known.delivered = {e: end for e, end in known.delivered.items() if end > now}
            known.stretches = [s for s in known.stretches if self._matters(s, now)]
            known.legacy = [(h, s) for h, s in known.legacy if (s.until or now) + horizon > now]
            known.history = _recent(known.history, now - horizon)
            for holder, spans in list(known.sent.items()):
                if all(s.until is not None and s.until + horizon <= now for s in spans):
                    del known.sent[holder]
                    self._retry.drop(holder, ("s", name))
            if known.area is None and not known.stretches and not known.sent:
                del self._subscriptions[name]
        self._sweep_at = now + horizon if self._subscriptions else None


def _names(stretch: _Stretch) -> Set[NodeId]:
    return (stretch.holders or {}).keys()


def _asked_for(span: CoverSpan, wanted: tuple[CoverSpan, ...] | None) -> bool:
    return any(
        set(span.leaves) <= set(other.leaves)
        and other.cover.covers(span.cover)
        and other.since <= span.since
        for other in wanted or ()
    )


def _fewer(stretches: list[_Stretch]) -> list[_Stretch]:
    """Join the oldest stretches when there are many: a cover may be too large, never too small."""
    while len(stretches) > _MOST_SPANS:
        first, second, *rest = stretches
        joined = _Stretch(first.cover.joined(second.cover), first.since, second.until)
        stretches = [joined, *rest]
    return stretches


def _recent(
    history: list[tuple[Instant, Rect | None]], before: Instant
) -> list[tuple[Instant, Rect | None]]:
    """Return the history without areas that were replaced at or before an instant."""
    first = 0
    while first + 1 < len(history) and history[first + 1][0] <= before:
        first += 1
    return history[first:]
