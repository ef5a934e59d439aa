"""Events and subscriptions with a position, over several nodes (paper 0).

A publication reaches the clients of its own node at once; for clients of other nodes every node
has a part in locality (`LocalityNode`). This module connects it with the broker: it turns sessions,
positions and messages into areas and events, delivers what matches, and keeps what must survive a
crash as notes in the node's journal.

Read next: `nearcast/locality/registration/node.py`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from struct import Struct
from typing import Any

import msgspec

from nearcast.broker import Broker
from nearcast.broker.persistence.journal import decode_message, encode_message
from nearcast.broker.publish.message import Message
from nearcast.broker.session.session import Session, SessionSubscription
from nearcast.cluster.messages import MovedPlaces
from nearcast.locality.layout.rect import Rect
from nearcast.locality.registration.gateway import FOREVER
from nearcast.locality.registration.messages import (
    EventId,
    EventOffer,
    HolderMatch,
    NodeId,
    Outgoing,
    PlacedEvent,
    Register,
    SubscriptionId,
    Timing,
)
from nearcast.locality.registration.node import LocalityNode
from nearcast.locality.registration.plan_assignment import NamedPlan
from nearcast.model import Event as Occurrence
from nearcast.model import NearcastError
from nearcast.model import Subscription as Selection
from nearcast.model.shapes import Circle

_EVENT, _SEEN, _SINCE, _PLACE, _SEEN_TO = b"e", b"d", b"s", b"p", b"D"
_CURRENT, _UPCOMING, _STARTS = b"c", b"u", b"i"
PATIENCE = Timing(retry_ms=1_000, most_retry_ms=4_000, probe_ms=20_000, lease_ms=60_000, slack=0.15)
"""Links lose nothing while they are up, so retries can be rare; a peer that has restarted, and so
forgotten its registrations, is asked as soon as its link is up."""
_TIME, _STEP = Struct("<Q"), Struct("<Qdd")
_WORLD = Rect(-180.0, -90.0, 180.0, 90.0)
_encode = msgspec.msgpack.Encoder().encode
_decode_event = msgspec.msgpack.Decoder(PlacedEvent).decode
_decode_seen_to = msgspec.msgpack.Decoder(dict[str, int]).decode
Place = tuple[float, float]


class SpatialRouting:
    """One node's part in locality, between the broker's sessions and the other nodes.

    What concerns the other nodes alone (`receive`, `take`, `lost` …) is `LocalityNode`'s.
    """

    def __init__(self, name: str, node: Broker, timing: Timing) -> None:
        locality = self.locality = LocalityNode(name, timing, self)
        self.receive, self.wake_at = locality.receive, locality.wake_at
        self.lost, self.back, self.leave = locality.lost, locality.back, locality.leave
        self.uses, self.layout = locality.uses, locality.plans
        self._name = name
        self._node = node
        self._timing = timing
        self._has_begun = False  # the life is chosen (`_begin`)
        self._subscriptions: dict[str, SessionSubscription] = {}  # by their number as a string
        # (ms, position) steps, oldest first, back to the timing's horizon
        self._places: dict[Session, list[tuple[int, Place]]] = {}
        self._waiting: dict[str, SessionSubscription] = {}  # `$near`, client's position unknown
        self._notes: list[tuple[int, bytes]] = []  # heap of (expiry, key) of journal notes
        self._steps: dict[int, list[tuple[int, Place]]] | None = None  # during the replay
        self._noted_at: dict[Session, int] = {}  # when a position was journalled last
        self._sweep_at = 0  # when `_forget_sessions` is due
        self._adopted: dict[str, int] | None = None  # a moved session's subscriptions, since when
        # Of a moved session, by number: its old homes, with the last event that it had there.
        self._seen_to: dict[int, dict[str, int]] = {}
        self._publishers: dict[EventId, str] = {}  # of the events of this batch, while counting
        self._crossed: Callable[[str, NodeId], None] | None = None

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
            self.locality.subscribe(key, area, now)

    def came_back(self, subscription: SessionSubscription, now: int) -> None:
        """Register a subscription from before a crash, with its client's positions since then."""
        key, session = str(subscription.number), subscription.session
        self._subscriptions[key] = subscription
        if self._adopted is not None:
            since = self._adopted[subscription.text]
            self._keep(_SINCE + subscription.number.to_bytes(8, "little"), _TIME.pack(since))
        since = self._noted_since(subscription)
        if session not in self._places:
            self._places[session] = self._noted_places(session, since)
        places = self._places[session]
        if _area(subscription, None) is not None:  # a fixed `$area`
            self.locality.subscribe(key, _sure_area(subscription, None), now, since=since)
            return
        if not places:
            self._waiting[key] = subscription
            return
        before = [step for step in places if step[0] <= since] or places[:1]
        start, place = before[-1]
        area = _sure_area(subscription, place)
        self.locality.subscribe(key, area, now, since=max(since, start))
        for at, place in places:
            if at > max(since, start):
                self.locality.move(key, _sure_area(subscription, place), at)

    def _noted_since(self, subscription: SessionSubscription) -> int:
        key = _SINCE + subscription.number.to_bytes(8, "little")
        return int(_TIME.unpack(self._node.notes.get(key, _TIME.pack(0)))[0])

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
        for key, value in self._node.notes.starting_with(_PLACE):
            if len(value) == _STEP.size:
                at, lon, lat = _STEP.unpack(value)
                steps[int.from_bytes(key[1:5], "little")].append((int(at), (lon, lat)))
        return steps

    def went(self, subscription: SessionSubscription, now: int) -> None:
        """Withdraw a registration."""
        key = str(subscription.number)
        self._subscriptions.pop(key, None)
        noted = _SINCE + subscription.number.to_bytes(8, "little")
        if noted in self._node.notes:
            self._node.notes.delete(noted)
        if self._waiting.pop(key, None) is None:
            self.locality.unsubscribe(key, now)

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
                self.locality.subscribe(key, area, now)
            else:
                self.locality.move(key, area, now)

    # --- sessions that move -----------------------------------------------------------------

    @property
    def is_adopting(self) -> bool:
        """Whether the subscriptions of a moved session are being added."""
        return self._adopted is not None

    def pack(self, session: Session) -> MovedPlaces:
        """Return what the next gateway of a client needs, to deliver what is due and not yet seen.

        That is the same as after a crash of this node, and the events published here: this node
        has served them itself. O(notes).
        """
        prefix = _SEEN + session.number.to_bytes(4, "little")
        until = {key: until_ms for until_ms, key in self._node.notes.expiries()}
        return MovedPlaces(
            {text: self._noted_since(one) for text, one in session.subscriptions.items()},
            [(at, lon, lat) for at, (lon, lat) in self._places.get(session, [])],
            [(key[len(prefix) :], until[key]) for key, _ in self._node.notes.starting_with(prefix)],
            self._seen_to.get(session.number, {}) | {self._name: self.locality.outbox.last_serial},
        )

    def adopt(
        self,
        session: Session,
        moved: MovedPlaces,
        put_into_effect: Callable[[], object],
        now: int,
    ) -> None:
        """Register the subscriptions of a session that comes from a peer, as after a crash."""
        number = session.number.to_bytes(4, "little")
        horizon_ms = self._timing.horizon_ms
        self._places[session] = [(at, (lon, lat)) for at, lon, lat in moved.places]
        for at, lon, lat in moved.places:
            step = _STEP.pack(at, lon, lat)
            self._note(_PLACE + number + at.to_bytes(8, "little"), step, now + horizon_ms)
        for event_key, until_ms in moved.seen:
            if until_ms > now:
                self._note(_SEEN + number + event_key, b"", until_ms)
        self._seen_to[session.number] = moved.seen_to
        self._note(_seen_to_key(session.number), _encode(moved.seen_to), now + horizon_ms)
        self._adopted = moved.since
        try:
            put_into_effect()
        finally:
            self._adopted = None
        self.locality.catch_up([str(one.number) for one in session.subscriptions.values()], now)

    def count_with(self, crossed: Callable[[str, NodeId], None]) -> None:
        """Call `crossed` with client and holder for each message between them and this gateway."""
        self._crossed = crossed
        self.locality.observe = self._observe

    def _observe(self, node: NodeId, message: Any) -> None:
        assert self._crossed is not None
        names: tuple[str, ...] = ()
        if type(message) is Register:
            names = (message.subscription,)
        elif type(message) is HolderMatch:
            names = message.subscriptions
        elif type(message) is EventOffer:
            client = self._publishers.get(message.event.event_id)
            if client is not None:
                self._crossed(client, node)
        known = (self._subscriptions.get(name) for name in names)
        for session in {one.session for one in known if one is not None}:
            self._crossed(session.client_id, node)

    def holder_of(self, place: Place) -> NodeId | None:
        """Return the node that holds a place; None while there is no plan, or two are in use."""
        plan = self.layout.current
        if plan is None or self.layout.upcoming is not None:
            return None
        return next(iter(plan.holders(Rect.at(*place))))

    def client_places(self, most: int) -> list[Place]:
        """Return the last positions of clients, at most so many, evenly chosen. O(clients)."""
        places = [steps[-1][1] for steps in self._places.values() if steps]
        return places[:: -(-len(places) // most) or 1]

    @property
    def handovers(self) -> int:
        """How often a registration moved to another holder."""
        return self.locality.gateway.handovers

    def published(
        self, message: Message, occurrence: Occurrence, publisher: Session | None, now: int
    ) -> None:
        """Offer an event published by a client of this node to the holders."""
        area = _extent(occurrence)
        if area is None:
            return
        lifetime_ms = message.expires_at_ms - now if message.expires_at_ms else None
        if lifetime_ms is not None and lifetime_ms <= 0:
            return
        payload = encode_message(message)
        event = self.locality.publish(
            area, now, qos=message.head.qos, lifetime_ms=lifetime_ms, payload=payload
        )
        if self._crossed is not None and publisher is not None:
            self._publishers[event.event_id] = publisher.client_id
        if event.qos:
            self._note(_EVENT + _key(event.event_id), _encode(event), event.deadline)

    # --- peers ------------------------------------------------------------------------------

    def take(self, now: int) -> list[Outgoing]:
        """Return the messages to send to other nodes."""
        out = self.locality.take(now)
        self._publishers.clear()
        return out

    def advance(self, now: int) -> None:
        """Run everything that is due at `now`."""
        self.locality.advance(now)
        while self._notes and self._notes[0][0] <= now:
            self._node.notes.expire(heappop(self._notes)[1])
        if now >= self._sweep_at:
            self._sweep_at = now + self._timing.horizon_ms
            self._forget_sessions()

    def _forget_sessions(self) -> None:
        """Drop the positions of clients whose sessions have ended."""
        session_of = self._node.session_of
        for session in [one for one in self._places if session_of(one.client_id) is not one]:
            del self._places[session]
            self._noted_at.pop(session, None)
        for number in [one for one in self._seen_to if _seen_to_key(one) not in self._node.notes]:
            del self._seen_to[number]

    @property
    def awaits_acks(self) -> bool:
        """Whether peers have yet to acknowledge something of this node. O(pending)."""
        return self.locality.awaits_acks

    # --- plans ------------------------------------------------------------------------------

    def _begin(self, now: int) -> None:
        """Start a life above all that this node has lived."""
        if self._has_begun:
            return
        self._has_begun = True
        before = self._node.notes.get(_STARTS, _TIME.pack(0))
        life = max(now, _TIME.unpack(before)[0] + 1)
        self._keep(_STARTS, _TIME.pack(life))
        self.locality.begin(life)

    def know(self, others: Iterable[str], now: int) -> None:
        """Set the names of the peers."""
        self._begin(now)
        self.locality.know(others, now)

    def use(self, plan: NamedPlan, now: int) -> bool:
        """Start to use a plan; return whether it was newer than those in use."""
        self._begin(now)
        return self.locality.use(plan, now)

    def plans_changed(self) -> None:
        """Journal the plans in use."""
        plans = self.locality.plans
        for key, plan in ((_CURRENT, plans.current), (_UPCOMING, plans.upcoming)):
            if plan is not None:
                self._keep(key, plan.to_bytes())
            elif key in self._node.notes:
                self._node.notes.delete(key)

    # --- restart ----------------------------------------------------------------------------

    def restored(self, now: int) -> None:
        """Restore plans and events from the journal; `came_back` has restored the subscriptions."""
        self._steps = None
        self._begin(now)
        for key, value in self._node.notes.starting_with(_SEEN_TO):
            self._seen_to[int.from_bytes(key[1:], "little")] = _decode_seen_to(value)
        current, upcoming = self._noted_plan(_CURRENT), self._noted_plan(_UPCOMING)
        self.locality.restored(current, upcoming, self._noted_events(), now)

    def _noted_plan(self, key: bytes) -> NamedPlan | None:
        """Return a plan in the journal; None if there is none, or none that can be read."""
        notes = self._node.notes
        try:
            return NamedPlan.from_bytes(notes.get(key, b""), "journal") if key in notes else None
        except (NearcastError, ValueError) as problem:
            notes.set_aside(key, problem)
            return None

    def _noted_events(self) -> list[PlacedEvent]:
        """Return the events in the journal; schedule the expiry of all notes."""
        events, notes = [], self._node.notes
        for key, value in notes.starting_with(_EVENT):
            try:
                events.append(_decode_event(value))
            except msgspec.MsgspecError as problem:
                notes.set_aside(key, problem)
        for until_ms, key in notes.expiries():
            if until_ms < FOREVER:
                heappush(self._notes, (until_ms, key))
        return events

    def _note_place(self, session: Session, now: int, *, is_sure: bool = False) -> None:
        """Journal a client's position, at most once per `position_journal_ms` unless `is_sure`."""
        assert session.position is not None
        pause_ms = self._node.settings.position_journal_ms
        if is_sure or now - self._noted_at.get(session, -pause_ms) >= pause_ms:
            self._noted_at[session] = now
            key = _PLACE + session.number.to_bytes(4, "little") + now.to_bytes(8, "little")
            until_ms = now + self._timing.horizon_ms
            self._note(key, _STEP.pack(now, *session.position), until_ms)

    def _keep(self, key: bytes, value: bytes) -> None:
        self._node.notes.set(key, value, FOREVER)

    def _note(self, key: bytes, value: bytes, until_ms: int) -> None:
        self._node.notes.set(key, value, until_ms)
        heappush(self._notes, (until_ms, key))

    # --- deliveries -------------------------------------------------------------------------

    def deliver(self, event: PlacedEvent, subscriptions: list[SubscriptionId], now: int) -> None:
        """Deliver an event of another node to clients of this node, each client once."""
        due: dict[Session, list[SessionSubscription]] = defaultdict(list)
        for name in subscriptions:
            if (subscription := self._subscriptions.get(name)) is not None:
                due[subscription.session].append(subscription)
        if not due:
            return
        message = decode_message(event.payload)
        message.number = 0
        for session, matched in due.items():
            place = self._place(session, event.published_at)
            wanted = self._node.peering.wanted(message, matched, place)
            key = _SEEN + session.number.to_bytes(4, "little") + _key(event.event_id)
            if wanted and key not in self._node.notes and not self._had(session, event.event_id):
                self._node.peering.deliver(session, wanted, message, now)
                self._note(key, b"", event.deadline)

    def _had(self, session: Session, event_id: EventId) -> bool:
        """Return whether a moved client had an event at its old home, where it was published."""
        seen_to = self._seen_to.get(session.number)
        return seen_to is not None and event_id[1] <= seen_to.get(str(event_id[0]), 0)

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


def _seen_to_key(number: int) -> bytes:
    return _SEEN_TO + number.to_bytes(4, "little")


def _key(event_id: EventId) -> bytes:
    node, serial = event_id
    return f"{node}/{serial}".encode()
