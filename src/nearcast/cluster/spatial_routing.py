"""Events and subscriptions with a position, over several nodes (paper 0).

A publication reaches the clients of its own node at once. For clients of other nodes every node
plays three roles (`nearcast.locality`). The gateway knows where its clients are and registers their
subscriptions with the holders. The outbox offers events published here to the holders. The holder
matches events with registrations and reports matches to the gateway, which checks each one exactly,
against the client's position when the event was published. State that must survive a crash is a
note in the node's journal.

Read next: `plan_assignment.py`, then `gateway.py` and `holder.py` in
`nearcast/locality/registration`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from heapq import heappop, heappush
from struct import Struct
from typing import Any

import msgspec

from nearcast.broker import Broker
from nearcast.broker.persistence.journal import decode_message, encode_message
from nearcast.broker.publish.message import Message
from nearcast.broker.session.session import Session, SessionSubscription
from nearcast.cluster.plan_assignment import NamedPlan, PlanAssignment
from nearcast.locality.layout.rect import Rect
from nearcast.locality.registration.gateway import FOREVER, Gateway
from nearcast.locality.registration.holder import Holder
from nearcast.locality.registration.messages import (
    DeliverToClient,
    EventId,
    HolderMatch,
    Known,
    NodeId,
    Outgoing,
    PlacedEvent,
    Register,
    Timing,
)
from nearcast.locality.registration.outbox import EventOutbox
from nearcast.locality.registration.retry import RetryUntilAcked
from nearcast.model import Event as Occurrence
from nearcast.model import NearcastError
from nearcast.model import Subscription as Selection
from nearcast.model.shapes import Circle

_SPOOLED, _SEEN, _SINCE, _PLACE = b"e", b"d", b"s", b"p"
_CURRENT, _UPCOMING, _STARTS = b"c", b"u", b"i"
PATIENCE = Timing(retry_ms=1_000, most_retry_ms=4_000, probe_ms=20_000, lease_ms=60_000, slack=0.15)
"""Links lose nothing while they are up, so retries can be rare; a peer that has restarted, and so
forgotten its registrations, is asked as soon as its link is up."""
_AWAY_MS = 1_000  # how long a link is down before another node stands in for the peer
_SERIAL_BITS = 20  # low bits of an event's number; the high bits are the node's start in ms
_TIME, _STEP = Struct("<Q"), Struct("<Qdd")
_WORLD = Rect(-180.0, -90.0, 180.0, 90.0)
_encode = msgspec.msgpack.Encoder().encode
_decode_event = msgspec.msgpack.Decoder(PlacedEvent).decode
Place = tuple[float, float]


class SpatialRouting:
    """One node's gateway, outbox and holder.

    `take` returns the messages to send as (node, message). Messages to this node never leave it.
    """

    def __init__(self, name: str, node: Broker, timing: Timing) -> None:
        self.layout = PlanAssignment(name)  # which node holds which leaves
        self._name = name
        self._node = node
        self._timing = timing
        # messages to holders until they acknowledge them
        self._pursuit = RetryUntilAcked(name, timing, probes=True)
        self._gateway = Gateway(name, self.layout, self._pursuit, timing)
        self._spool = EventOutbox(name, self.layout, self._pursuit, timing)
        self._holder = Holder(name, 0, timing, tells_publishers=False)
        self._has_begun = False  # the incarnation is chosen (`_begin`)
        self._subscriptions: dict[str, SessionSubscription] = {}  # by their number as a string
        # (ms, position) steps, oldest first, back to the timing's horizon
        self._places: dict[Session, list[tuple[int, Place]]] = {}
        self._waiting: dict[str, SessionSubscription] = {}  # `$near`, client's position unknown
        self._notes: list[tuple[int, bytes]] = []  # heap of (expiry, key) of journal notes
        self._steps: dict[int, list[tuple[int, Place]]] | None = None  # during the replay
        self._noted_at: dict[Session, int] = {}  # when a position was journalled last
        self._sweep_at = 0  # when `_forget_sessions` is due
        self._out: list[Outgoing] = []  # to send, also to this node itself
        self._versions: dict[str, tuple[int, int]] = {}  # plan versions that each peer uses
        self._lost_at: dict[str, int] = {}  # peers whose link has just gone down

    # --- clients ----------------------------------------------------------------------------

    @staticmethod
    def concerns(subscription: SessionSubscription) -> bool:
        """Return whether a subscription has a place, so that holders must know of it."""
        return subscription.has_place and not subscription.group

    def came(self, subscription: SessionSubscription, now: int) -> None:
        """Register a new subscription with the holders."""
        key, session = str(subscription.number), subscription.session
        self._subscriptions[key] = subscription
        if session.position is not None and session not in self._places:
            self._places[session] = [(now, session.position)]
        if session.is_durable:
            self._keep(_SINCE + subscription.number.to_bytes(8, "little"), _TIME.pack(now))
            if session.position is not None:
                self._note_place(session, now)
        area = _area(subscription, session.position)
        if area is None:
            self._waiting[key] = subscription
        else:
            self._do(self._gateway.subscribe(key, area, now))

    def came_back(self, subscription: SessionSubscription, now: int) -> None:
        """Register a subscription from before a crash, with its client's positions since then."""
        key, session = str(subscription.number), subscription.session
        self._subscriptions[key] = subscription
        since = self._noted_since(subscription)
        if session not in self._places:
            self._places[session] = self._noted_places(session, since)
        places = self._places[session]
        if _area(subscription, None) is not None:  # a fixed `$area`
            self._do(self._gateway.subscribe(key, _sure_area(subscription, None), now, since=since))
            return
        if not places:
            self._waiting[key] = subscription
            return
        before = [one for one in places if one[0] <= since] or places[:1]
        start, place = before[-1]
        area = _sure_area(subscription, place)
        self._do(self._gateway.subscribe(key, area, now, since=max(since, start)))
        for at, place in places:
            if at > max(since, start):
                self._do(self._gateway.move(key, _sure_area(subscription, place), at))

    def _noted_since(self, subscription: SessionSubscription) -> int:
        key = _SINCE + subscription.number.to_bytes(8, "little")
        _, value = self._node.state.notes.get(key, (0, _TIME.pack(0)))
        return int(_TIME.unpack(value)[0])

    def _noted_places(self, session: Session, since: int) -> list[tuple[int, Place]]:
        if self._steps is None:
            self._steps = self._noted_steps()
        places = sorted(self._steps.get(session.number, []))
        if not places and session.position is not None:
            places = [(since, session.position)]
        return places

    def _noted_steps(self) -> dict[int, list[tuple[int, Place]]]:
        """Return the positions in the journal, by session number."""
        steps: dict[int, list[tuple[int, Place]]] = defaultdict(list)
        for key, (_, value) in self._node.state.notes.items():
            if key[:1] == _PLACE and len(value) == _STEP.size:
                at, lon, lat = _STEP.unpack(value)
                steps[int.from_bytes(key[1:5], "little")].append((int(at), (lon, lat)))
        return steps

    def went(self, subscription: SessionSubscription, now: int) -> None:
        """Withdraw a registration."""
        key = str(subscription.number)
        self._subscriptions.pop(key, None)
        noted = _SINCE + subscription.number.to_bytes(8, "little")
        if noted in self._node.state.notes:
            self._node.state.set_note(noted, b"", 0)
        if self._waiting.pop(key, None) is None:
            self._do(self._gateway.unsubscribe(key, now))

    def moved(self, session: Session, now: int, *, is_sure: bool = False) -> None:
        """Move a client's registrations; an acknowledged step (`is_sure`) must survive a crash."""
        assert session.position is not None
        places = self._places.setdefault(session, [])
        places.append((now, session.position))
        while len(places) > 1 and places[1][0] <= now - self._timing.horizon_ms:
            del places[0]
        if session.is_durable and session.moving:
            self._note_place(session, now, is_sure=is_sure)
        for number, subscription in session.moving.items():
            if not self.concerns(subscription):
                continue
            key = str(number)
            area = _area(subscription, session.position)
            assert area is not None
            if self._waiting.pop(key, None) is not None:
                self._do(self._gateway.subscribe(key, area, now))
            else:
                self._do(self._gateway.move(key, area, now))

    @property
    def handovers(self) -> int:
        """How often a registration moved to another holder."""
        return self._gateway.handovers

    def published(self, message: Message, occurrence: Occurrence, now: int) -> None:
        """Offer an event published by a client of this node to the holders."""
        area = _extent(occurrence)
        if area is None:
            return
        lifetime_ms = message.expires_at_ms - now if message.expires_at_ms else None
        if lifetime_ms is not None and lifetime_ms <= 0:
            return
        event, out = self._spool.publish(
            area,
            now,
            qos=message.head.qos,
            lifetime_ms=lifetime_ms,
            payload=encode_message(message),
        )
        if event.qos:
            self._note(_SPOOLED + _key(event.event_id), _encode(event), event.deadline)
        self._do(out)

    # --- peers ------------------------------------------------------------------------------

    def receive(self, message: Any, now: int) -> None:
        """Handle a message from a peer, or from this node to itself."""
        if type(message) is Known:
            self._do(self._pursuit.heard(message.holder, message.table, now))
            if message.key is not None and self._pursuit.is_known_table(
                message.holder, message.table
            ):
                self._pursuit.acknowledged(message.holder, message.key, message.revision)
        elif type(message) is HolderMatch:
            self._matched(message, now)
        else:
            self._do(self._holder.receive(message, now))

    def advance(self, now: int) -> None:
        """Run everything that is due at `now`."""
        for part in (self._gateway, self._spool, self._holder, self._pursuit):
            self._do(part.advance(now))
        for name in [one for one, at in self._lost_at.items() if at + _AWAY_MS <= now]:
            del self._lost_at[name]
            self._set_away(name, now, is_away=True)
        while self._notes and self._notes[0][0] <= now:
            self._node.state.notes.pop(heappop(self._notes)[1], None)
        if now >= self._sweep_at:
            self._sweep_at = now + self._timing.horizon_ms
            self._forget_sessions()

    def _forget_sessions(self) -> None:
        """Drop the positions of clients whose sessions have ended."""
        sessions = self._node.state.sessions
        for session in [one for one in self._places if sessions.get(one.client_id) is not one]:
            del self._places[session]
            self._noted_at.pop(session, None)

    @property
    def is_pursuing(self) -> bool:
        """Whether peers have yet to acknowledge something of this node. O(pending).

        That is: registrations and events of this node, and matches of its own events that it found
        as their holder.
        """
        return self._pursuit.pending() > 0 or self._holder.is_pursuing(self._name)

    def wake_at(self) -> int | None:
        """Return when `advance` is due next; None if nothing is scheduled."""
        parts = (self._gateway, self._spool, self._holder, self._pursuit)
        times = [at for part in parts if (at := part.wake_at()) is not None]
        times += [at + _AWAY_MS for at in self._lost_at.values()]
        return min(times, default=None)

    def take(self, now: int) -> list[Outgoing]:
        """Return the messages to send; handle those to this node itself."""
        away: list[Outgoing] = []
        while self._out:
            out, self._out = self._out, []
            for one in out:
                if one.to == self._name:
                    self.receive(one.message, now)
                else:
                    away.append(one)
        return away

    # --- plans ------------------------------------------------------------------------------

    def _begin(self, now: int) -> None:
        """Start with an empty holder and event numbers above all that this node has used."""
        if self._has_begun:
            return
        self._has_begun = True
        _, before = self._node.state.notes.get(_STARTS, (0, _TIME.pack(0)))
        incarnation = max(now, _TIME.unpack(before)[0] + 1)
        self._keep(_STARTS, _TIME.pack(incarnation))
        self._holder = Holder(self._name, incarnation, self._timing, tells_publishers=False)
        self._spool.begin(incarnation << _SERIAL_BITS)
        self._pursuit.life = incarnation

    def know(self, others: Iterable[str], now: int) -> None:
        """Set the names of the peers."""
        self._begin(now)
        names = list(others)
        for name in self._versions.keys() - names:
            for part in (self._gateway, self._holder, self._pursuit):
                part.forget(name)
        self._versions = {name: self._versions.get(name, (0, 0)) for name in names}
        if self.layout.know(names):
            self._lost_at = {name: at for name, at in self._lost_at.items() if name in names}
            self._do(self._gateway.plans_changed(now))
            self._do(self._spool.plans_changed(now))
        self._go_on(now)

    def lost(self, name: str, now: int) -> None:
        """Record that a peer is disconnected; after `_AWAY_MS` another node stands in for it."""
        self._lost_at[name] = now

    def back(self, name: str, now: int) -> None:
        """Record that a peer is connected again, and resend what it has not acknowledged."""
        self._lost_at.pop(name, None)
        self._set_away(name, now, is_away=False)
        self._do(self._pursuit.again(name, now))

    def leave(self, now: int) -> None:
        """Offer events that only this node holds to other holders; done when nothing is pending."""
        self.layout.leave()
        self._do(self._spool.plans_changed(now))

    def _set_away(self, name: str, now: int, *, is_away: bool) -> None:
        if self.layout.set_away(name, is_away=is_away):
            self._do(self._gateway.plans_changed(now))
            self._do(self._spool.plans_changed(now))

    def use(self, plan: NamedPlan, now: int) -> bool:
        """Start to use a plan; return whether it was newer than those in use."""
        self._begin(now)
        if not self.layout.prepare(plan):
            return False
        self._plans_changed(now)
        self._go_on(now)
        return True

    def _plans_changed(self, now: int) -> None:
        for key, plan in ((_CURRENT, self.layout.current), (_UPCOMING, self.layout.upcoming)):
            if plan is not None:
                self._keep(key, plan.to_bytes())
            elif key in self._node.state.notes:
                self._node.state.set_note(key, b"", 0)
        self._do(self._gateway.plans_changed(now))
        self._do(self._spool.plans_changed(now))

    def uses(self, name: str, versions: tuple[int, int], now: int) -> None:
        """Record which plans a peer uses."""
        self._versions[name] = versions
        self._go_on(now)

    def _go_on(self, now: int) -> None:
        """Drop the old plan once every node uses the new one."""
        upcoming = self.layout.upcoming
        if upcoming is None:
            return
        if all(max(versions) >= upcoming.version for versions in self._versions.values()):
            self.layout.commit()
            self._plans_changed(now)

    # --- restart ----------------------------------------------------------------------------

    def restored(self, now: int) -> None:
        """Restore plans and events from the journal; `came_back` has restored the subscriptions."""
        self._steps = None
        self._begin(now)
        notes = self._node.state.notes
        for key in (_CURRENT, _UPCOMING):
            if key in notes:
                try:
                    plan = NamedPlan.from_bytes(notes[key][1], "journal")
                except (NearcastError, ValueError) as problem:
                    self._node.state.set_note_aside(key, problem)
                    continue
                if key == _CURRENT:
                    self.layout.current = plan
                else:
                    self.layout.upcoming = plan
        for key, (until_ms, value) in list(self._node.state.notes.items()):
            if key[:1] == _SPOOLED:
                try:
                    self._spool.restore(_decode_event(value))
                except msgspec.MsgspecError as problem:
                    self._node.state.set_note_aside(key, problem)
                    continue
            if until_ms < FOREVER:
                heappush(self._notes, (until_ms, key))
        self._do(self._gateway.plans_changed(now))
        self._do(self._spool.restarted(self._pursuit, now))

    def _note_place(self, session: Session, now: int, *, is_sure: bool = False) -> None:
        """Journal a client's position, at most once per `position_journal_ms` unless `is_sure`."""
        assert session.position is not None
        pause_ms = self._node.state.settings.position_journal_ms
        if is_sure or now - self._noted_at.get(session, -pause_ms) >= pause_ms:
            self._noted_at[session] = now
            key = _PLACE + session.number.to_bytes(4, "little") + now.to_bytes(8, "little")
            until_ms = now + self._timing.horizon_ms
            self._note(key, _STEP.pack(now, *session.position), until_ms)

    def _keep(self, key: bytes, value: bytes) -> None:
        self._node.state.set_note(key, value, FOREVER)

    def _note(self, key: bytes, value: bytes, until_ms: int) -> None:
        self._node.state.set_note(key, value, until_ms)
        heappush(self._notes, (until_ms, key))

    # --- deliveries -------------------------------------------------------------------------

    def _do(self, out: Iterable[Outgoing]) -> None:
        self._out.extend(out)

    def _matched(self, match: HolderMatch, now: int) -> None:
        due: dict[Session, list[SessionSubscription]] = defaultdict(list)
        for one in self._gateway.matched(match, now):
            if type(one) is DeliverToClient:
                subscription = self._subscriptions.get(one.subscription)
                if subscription is not None:
                    due[subscription.session].append(subscription)
            else:
                assert type(one) is Outgoing
                self._out.append(one)
        event = match.event
        if not due or event.event_id[0] == self._name:
            return  # clients of this node got it when it was published here
        message = decode_message(event.payload)
        message.number = 0
        for session, subscriptions in due.items():
            place = self._place(session, event.published_at)
            wanted = self._node.peering.wanted(message, subscriptions, place)
            key = _SEEN + session.number.to_bytes(4, "little") + _key(event.event_id)
            if wanted and key not in self._node.state.notes:
                self._node.peering.deliver(session, wanted, message, now)
                self._note(key, b"", event.deadline)

    def _place(self, session: Session, at: int) -> Place | None:
        places = self._places.get(session, [])
        return next((place for since, place in reversed(places) if since <= at), None)


def _area(subscription: SessionSubscription, position: Place | None) -> Rect | None:
    """Return the bounding rectangle of a subscription; None for `$near` without a position."""
    selection: Selection = subscription.selection  # type: ignore[assignment]
    if selection.near_m is not None:
        if position is None:
            return None
        return _around(Circle(*position, selection.near_m).bounds())
    assert selection.area is not None
    return _around(selection.area.bounds())


def _sure_area(subscription: SessionSubscription, position: Place | None) -> Rect:
    area = _area(subscription, position)
    assert area is not None
    return area


def _extent(occurrence: Occurrence) -> Rect | None:
    if occurrence.area is not None:
        return _around(occurrence.area.bounds())
    position = occurrence.position
    if occurrence.space.coordinates is None:
        return None
    return _WORLD if position is None else Rect.at(*position)


def _around(bounds: Iterable[tuple[float, float, float, float]]) -> Rect:
    wests, souths, easts, norths = zip(*bounds, strict=True)
    return Rect(min(wests), min(souths), max(easts), max(norths))


def _key(event_id: EventId) -> bytes:
    node, serial = event_id
    return f"{node}/{serial}".encode()


__all__ = ["NodeId", "Register", "SpatialRouting"]
