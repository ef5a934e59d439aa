"""The holder: keeps replicas of subscriptions and events for its leaves, and matches them.

Nothing here is the only copy. Subscriptions belong to their gateways, events to the nodes where
they were published (the authorities). Both send their items until the holder acknowledges them with
`Known`, and again when it has forgotten them. So a crash of the holder costs time and loses
nothing, and an event and a subscription match whichever arrives first.

Read next: `registration_index.py`, which finds the registrations near an event.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from operator import itemgetter
from typing import Any

from nearcast.locality.registration.messages import (
    CoverSpan,
    EventId,
    EventOffer,
    HolderMatch,
    Instant,
    Known,
    MatchTaken,
    NodeId,
    Outgoing,
    PlacedEvent,
    Probe,
    Register,
    SubscriptionId,
    TableId,
    Timing,
)
from nearcast.locality.registration.registration_index import RegistrationIndex
from nearcast.locality.registration.retry import RetryUntilAcked

_Place = tuple[NodeId, SubscriptionId]


@dataclass(slots=True)
class _Table:
    """The table kept for one authority; its id changes when the holder has forgotten it."""

    table: TableId
    heard_at: Instant
    life: int = 0


@dataclass(slots=True)
class _Held:
    """One registration, as last received from its gateway."""

    revision: int
    spans: tuple[CoverSpan, ...]


@dataclass(slots=True)
class _Known:
    """One event that has not expired; `matched` are the subscriptions sent to each gateway."""

    event: PlacedEvent
    revision: int
    leaves: tuple[str, ...]
    matched: dict[NodeId, dict[SubscriptionId, None]]


class Holder:
    """The tables of the leaves that one node serves.

    Contract: while a subscription is registered here for a leaf and an event is offered here for
    the same leaf, in whatever order they arrive, the match is sent to the subscription's gateway,
    until the gateway acknowledges it (QoS 1 and 2) or once (QoS 0). Memory is released at the
    event's deadline, one horizon after a span has ended, one lease after the last message of an
    authority, and at once for registrations from an authority's earlier life.

    A gateway at the node where an event was published gets no match: that node serves its own
    clients itself.

    Complexity: per event that of `RegistrationIndex` plus O(registrations near it); per
    registration O(events at its leaves from times that it did not cover before), few if it follows
    a client.
    """

    def __init__(self, node: NodeId, incarnation: int, timing: Timing) -> None:
        self._node = node
        self._incarnation = incarnation
        self._timing = timing
        self._serial = 0
        self._tables: dict[NodeId, _Table] = {}
        self._held: dict[_Place, _Held] = {}
        self._leaves: dict[str, dict[_Place, None]] = {}
        self._index: RegistrationIndex[_Place] = RegistrationIndex()
        self._events: dict[EventId, _Known] = {}
        self._events_at: dict[str, list[tuple[Instant, EventId]]] = {}  # by instant of publication
        self._retry = RetryUntilAcked(node, timing, probes=False)
        self._expiries: list[tuple[Instant, EventId]] = []
        self._sweep_at: Instant | None = None
        self._traffic: Counter[str] | None = None  # events and matches by leaf; None: not counted

    def receive(self, message: Any, now: Instant) -> list[Outgoing]:
        """Process a Register, an EventOffer, a Probe or a MatchTaken; return the answers."""
        out: list[Outgoing] = _HANDLERS[type(message)](self, message, now)
        return out

    def advance(self, now: Instant) -> list[Outgoing]:
        """Drop what has expired; return the messages to retry."""
        while self._expiries and self._expiries[0][0] <= now:
            self._forget_event(heappop(self._expiries)[1])
        if self._sweep_at is not None and self._sweep_at <= now:
            self._sweep(now)
        return self._retry.advance(now)

    def wake_at(self) -> Instant | None:
        """Return when `advance` has something to do; None: never."""
        times = (
            self._expiries[0][0] if self._expiries else None,
            self._sweep_at,
            self._retry.wake_at(),
        )
        return min((at for at in times if at is not None), default=None)

    def loads(self) -> dict[str, int]:
        """Return how many subscriptions each leaf holds here, for splitting and merging."""
        return {leaf: len(table) for leaf, table in self._leaves.items()}

    def take_traffic(self) -> Counter[str]:
        """Return how many events and matches each leaf had since the last call.

        They are counted from the first call on.
        """
        counted, self._traffic = self._traffic, Counter()
        return counted or Counter()

    def forget(self, gateway: NodeId) -> None:
        """Drop all state about a gateway that is gone for good. O(registrations + events)."""
        self._tables.pop(gateway, None)
        self._drop_registrations({gateway})
        self._retry.forget(gateway)
        for entry in self._events.values():
            entry.matched.pop(gateway, None)

    def awaits_ack_of(self, publisher: NodeId) -> bool:
        """Return whether a match of that publisher's events waits for its ack. O(pending)."""
        return any(event_id[0] == publisher for event_id in self._retry.pending_keys())

    def _register(self, message: Register, now: Instant) -> list[Outgoing]:
        place = (message.gateway, message.subscription)
        if self._is_past(message.gateway, message.life, now):
            return []
        known = self._known(message.gateway, ("s", message.subscription), message.revision, now)
        held = self._held.get(place)
        if held is not None and held.revision >= message.revision:
            return [known]
        self._unlist(place)
        self._held[place] = _Held(message.revision, message.spans)
        for leaf in _leaves(message.spans):
            self._leaves.setdefault(leaf, {})[place] = None
        if message.spans:
            self._index.put(place, [span.cover for span in message.spans])
        else:
            self._index.drop(place)
        if self._sweep_at is None:
            self._sweep_at = now + self._timing.lease_ms
        before = held.spans if held is not None else ()
        return [known, *self._match_registration(place, before, now)]

    def _offer(self, message: EventOffer, now: Instant) -> list[Outgoing]:
        event = message.event
        known = self._known(message.publisher, ("e", event.event_id), message.revision, now)
        before = self._events.get(event.event_id)
        if now >= event.deadline or (before is not None and before.revision >= message.revision):
            return [known]
        leaves = message.leaves
        if before is not None:
            leaves = tuple(dict.fromkeys((*before.leaves, *leaves)))
        matched = before.matched if before is not None else {}
        entry = _Known(event, message.revision, leaves, matched)
        self._events[event.event_id] = entry
        for leaf in leaves if before is None else set(leaves).difference(before.leaves):
            insort(self._events_at.setdefault(leaf, []), (event.published_at, event.event_id))
        if before is None:
            heappush(self._expiries, (event.deadline, event.event_id))
            if self._traffic is not None:
                self._traffic.update(leaves)
        return [known, *self._send_matches(entry, self._near(event, leaves), now)]

    def _near(self, event: PlacedEvent, leaves: tuple[str, ...]) -> list[_Place]:
        """Return the registrations at these leaves that may cover an event."""
        tables = [table for leaf in leaves if (table := self._leaves.get(leaf)) is not None]
        if not tables:
            return []
        near = self._index.meeting(event.area)
        return [place for place in near if any(place in table for table in tables)]

    def _probe(self, message: Probe, now: Instant) -> list[Outgoing]:
        if self._is_past(message.authority, message.life, now):
            return []
        return [self._known(message.authority, None, 0, now)]

    def _matched(self, message: MatchTaken, _now: Instant) -> list[Outgoing]:
        self._retry.acknowledged(message.gateway, message.event_id, message.revision)
        return []

    def _known(self, authority: NodeId, key: Any, revision: int, now: Instant) -> Outgoing:
        table = self._table(authority, now)
        table.heard_at = now
        return Outgoing(authority, Known(self._node, table.table, key, revision))

    def _table(self, authority: NodeId, now: Instant) -> _Table:
        table = self._tables.get(authority)
        if table is None:
            self._serial += 1
            table = self._tables[authority] = _Table((self._incarnation, self._serial), now)
            if self._sweep_at is None:
                self._sweep_at = now + self._timing.lease_ms
        return table

    def _is_past(self, authority: NodeId, life: int, now: Instant) -> bool:
        """Return whether an earlier life of the authority sent a message.

        A message of a new life drops the registrations of the life before. Registrations that the
        new life sends again are matched with all events known here.
        """
        table = self._table(authority, now)
        if life > table.life:
            table.life = life
            self._drop_registrations({authority})
        return 0 < life < table.life

    def _match_registration(
        self, place: _Place, before: tuple[CoverSpan, ...], now: Instant
    ) -> list[Outgoing]:
        out: list[Outgoing] = []
        spans = self._held[place].spans
        for leaf in _leaves(spans):
            events = self._events_at.get(leaf, [])
            if events:
                for since, until in _new_times(spans, before, leaf):
                    first = bisect_left(events, since, key=itemgetter(0))
                    for at, event_id in events[first:]:
                        if until is not None and at >= until:
                            break
                        out += self._send_matches(self._events[event_id], [place], now)
        return out

    def _send_matches(
        self, entry: _Known, places: Iterable[_Place], now: Instant
    ) -> list[Outgoing]:
        if now >= entry.event.deadline:
            return []
        publisher = entry.event.event_id[0]
        fresh: dict[NodeId, None] = {}
        for gateway, subscription in places:
            if gateway == publisher:
                continue
            sent = entry.matched.setdefault(gateway, {})
            spans = self._held[gateway, subscription].spans
            if subscription not in sent and _meets(spans, entry.event):
                sent[subscription] = None
                fresh[gateway] = None
                if self._traffic is not None:
                    self._traffic.update(entry.leaves)
        return [out for gateway in fresh for out in self._send_match(entry, gateway, now)]

    def _send_match(self, entry: _Known, gateway: NodeId, now: Instant) -> list[Outgoing]:
        sent = tuple(entry.matched[gateway])
        message = HolderMatch(self._node, entry.event, len(sent), sent)
        if entry.event.qos == 0:
            return [Outgoing(gateway, message)]
        event_id, deadline = entry.event.event_id, entry.event.deadline
        return self._retry.send(gateway, event_id, len(sent), message, now, deadline)

    def _forget_event(self, event_id: EventId) -> None:
        entry = self._events.pop(event_id, None)
        if entry is None:
            return
        for gateway in entry.matched:
            self._retry.drop(gateway, event_id)
        for leaf in entry.leaves:
            events = self._events_at[leaf]
            del events[bisect_left(events, (entry.event.published_at, event_id))]
            if not events:
                del self._events_at[leaf]

    def _sweep(self, now: Instant) -> None:
        """Drop authorities that were silent for a lease, and spans that ended one horizon ago."""
        lease, horizon = self._timing.lease_ms, self._timing.horizon_ms
        silent = {node for node, table in self._tables.items() if table.heard_at + lease <= now}
        for node in silent:
            del self._tables[node]
        self._drop_registrations(silent)
        for place, held in list(self._held.items()):
            if all(s.until is not None and s.until + horizon <= now for s in held.spans):
                self._drop_registration(place)
        self._sweep_at = now + lease if self._tables else None

    def _drop_registrations(self, gateways: Collection[NodeId]) -> None:
        """Drop all registrations of some gateways. O(registrations)."""
        for place in [place for place in self._held if place[0] in gateways]:
            self._drop_registration(place)

    def _drop_registration(self, place: _Place) -> None:
        self._unlist(place)
        self._index.drop(place)
        del self._held[place]

    def _unlist(self, place: _Place) -> None:
        held = self._held.get(place)
        for leaf in _leaves(held.spans) if held else ():
            table = self._leaves[leaf]
            table.pop(place, None)
            if not table:
                del self._leaves[leaf]


_HANDLERS: dict[type, Any] = {
    Register: Holder._register,
    EventOffer: Holder._offer,
    Probe: Holder._probe,
    MatchTaken: Holder._matched,
}


def _leaves(spans: tuple[CoverSpan, ...]) -> dict[str, None]:
    return {leaf: None for span in spans for leaf in span.leaves}


def _new_times(
    spans: tuple[CoverSpan, ...], before: tuple[CoverSpan, ...], leaf: str
) -> list[tuple[Instant, Instant | None]]:
    """Return the times at a leaf that a registration covers and its previous revision did not.

    An authority always registers enough: where the previous revision had a span for a time, its
    cover contained everything wanted then. A span without an end covered the time until the end
    that the new revision gives it; if it gives none, no time at all. The end counts only for the
    very same cover: after a restart, or joined with its successor, a span with the same start may
    be another one.
    """
    ends = {(span.since, span.cover): span.until for span in spans}
    known = []
    for span in before:
        if leaf in span.leaves:
            until = span.until
            if until is None:
                until = ends.get((span.since, span.cover), span.since)
            known.append((span.since, until))
    rest = [(span.since, span.until) for span in spans if leaf in span.leaves]
    for since, until in known:
        rest = [part for time in rest for part in _without(time, since, until)]
    return rest


def _without(
    time: tuple[Instant, Instant | None], since: Instant, until: Instant | None
) -> list[tuple[Instant, Instant | None]]:
    """Return the parts of a time interval that lie outside another one."""
    first, last = time
    parts: list[tuple[Instant, Instant | None]] = []
    if first < since:
        parts.append((first, since if last is None else min(last, since)))
    if until is not None and (last is None or last > until):
        parts.append((max(first, until), last))
    return parts


def _meets(spans: tuple[CoverSpan, ...], event: PlacedEvent) -> bool:
    at = event.published_at
    return any(
        span.since <= at and (span.until is None or at < span.until)
        and span.cover.intersects(event.area)
        for span in spans
    )  # fmt: skip
