"""Events and subscriptions with a place, over several nodes (paper 0; design, "handover").

Whoever publishes at a node reaches that node's own clients at once. For the others there are three
roles that every node plays (`nearcast.locality`): the gateway knows where its clients are and tells
the holders; the spool offers what was published here to the holders; the holder finds who matches
whom and tells the gateway, which looks again, exactly, at where its client was when the event was
published. What must survive a crash is noted in the node's journal.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from heapq import heappop, heappush
from struct import Struct
from typing import Any

import msgspec

from nearcast.locality.gateway import FOREVER, Gateway
from nearcast.locality.holder import Holder
from nearcast.locality.messages import (
    Deliver,
    Event,
    EventId,
    Known,
    Match,
    NodeId,
    Outgoing,
    Register,
    Timing,
)
from nearcast.locality.pursuit import Pursuit
from nearcast.locality.rect import Rect
from nearcast.locality.spool import Spool
from nearcast.model import Event as Occurrence
from nearcast.model import NearcastError
from nearcast.model import Subscription as Selection
from nearcast.model.shapes import Circle
from nearcast.network.layout import Layout, NamedPlan
from nearcast.node import Node
from nearcast.node.journal import decode_message, encode_message
from nearcast.node.message import Message
from nearcast.node.session import Session, Subscription

_SPOOLED, _SEEN, _SINCE, _PLACE = b"e", b"d", b"s", b"p"
_CURRENT, _UPCOMING, _STARTS = b"c", b"u", b"i"
PATIENCE = Timing(retry_ms=1_000, most_retry_ms=4_000, probe_ms=20_000, lease_ms=60_000, slack=0.15)
"""Links lose nothing while they are up, so that nothing needs to be said twice in a hurry; and who
has begun anew, and forgotten, is asked as soon as its link is up."""
_AWAY_MS = 1_000  # a link that is down for so long: others stand in for the node
_SERIAL_BITS = 20  # of an event's number; the others are the start of its node's life in ms
_TIME, _STEP = Struct("<Q"), Struct("<Qdd")
_WORLD = Rect(-180.0, -90.0, 180.0, 90.0)
_encode = msgspec.msgpack.Encoder().encode
_decode_event = msgspec.msgpack.Decoder(Event).decode
Place = tuple[float, float]


class Geography:
    """One node's gateway, spool and holder.

    `take` returns what is to travel: (node, message). Messages to the node itself never leave it.
    """

    def __init__(self, name: str, node: Node, timing: Timing) -> None:
        self.layout = Layout(name)
        self._name = name
        self._node = node
        self._timing = timing
        self._pursuit = Pursuit(name, timing, probes=True)
        self._gateway = Gateway(name, self.layout, self._pursuit, timing)
        self._spool = Spool(name, self.layout, self._pursuit, timing)
        self._holder = Holder(name, 0, timing, tells_publishers=False)
        self._has_begun = False
        self._subscriptions: dict[str, Subscription] = {}
        self._places: dict[Session, list[tuple[int, Place]]] = {}
        self._waiting: dict[str, Subscription] = {}  # near an unknown place
        self._notes: list[tuple[int, bytes]] = []
        self._steps: dict[int, list[tuple[int, Place]]] | None = None  # while it is restored
        self._noted_at: dict[Session, int] = {}
        self._sweep_at = 0
        self._out: list[Outgoing] = []
        self._versions: dict[str, tuple[int, int]] = {}
        self._lost_at: dict[str, int] = {}

    # --- clients ----------------------------------------------------------------------------

    @staticmethod
    def concerns(subscription: Subscription) -> bool:
        """Tell whether a subscription has a place, so that holders must know of it."""
        selection = subscription.selection
        has_place = selection is not None and not (
            selection.area is None and selection.near_m is None
        )
        return has_place and not subscription.group

    def came(self, subscription: Subscription, now: int) -> None:
        """Register a subscription."""
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

    def came_back(self, subscription: Subscription, now: int) -> None:
        """Register a subscription from before a crash, with where its client has been since."""
        key, session = str(subscription.number), subscription.session
        self._subscriptions[key] = subscription
        since = self._noted_since(subscription)
        if session not in self._places:
            self._places[session] = self._noted_places(session, since)
        places = self._places[session]
        if _area(subscription, None) is not None:  # it does not follow its client
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

    def _noted_since(self, subscription: Subscription) -> int:
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
        """Return the steps that the journal knows, by the number of the session."""
        steps: dict[int, list[tuple[int, Place]]] = defaultdict(list)
        for key, (_, value) in self._node.state.notes.items():
            if key[:1] == _PLACE and len(value) == _STEP.size:
                at, lon, lat = _STEP.unpack(value)
                steps[int.from_bytes(key[1:5], "little")].append((int(at), (lon, lat)))
        return steps

    def went(self, subscription: Subscription, now: int) -> None:
        """End a registration."""
        key = str(subscription.number)
        self._subscriptions.pop(key, None)
        noted = _SINCE + subscription.number.to_bytes(8, "little")
        if noted in self._node.state.notes:
            self._node.state.set_note(noted, b"", 0)
        if self._waiting.pop(key, None) is None:
            self._do(self._gateway.unsubscribe(key, now))

    def moved(self, session: Session, now: int, *, is_sure: bool = False) -> None:
        """Follow a client; a step that is acknowledged (`is_sure`) must survive a crash."""
        assert session.position is not None
        places = self._places.setdefault(session, [])
        places.append((now, session.position))
        while len(places) > 1 and places[1][0] <= now - self._timing.horizon_ms:
            del places[0]
        if session.is_durable and session.followers:
            self._note_place(session, now, is_sure=is_sure)
        for number, subscription in session.followers.items():
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
        """How often a registration went to another holder."""
        return self._gateway.handovers

    def published(self, message: Message, occurrence: Occurrence, now: int) -> None:
        """Take an event that a client of this node published."""
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

    # --- other nodes ------------------------------------------------------------------------

    def receive(self, message: Any, now: int) -> None:
        """Take in what another node says."""
        if type(message) is Known:
            self._do(self._pursuit.heard(message.holder, message.table, now))
            if message.key is not None and self._pursuit.is_known_table(
                message.holder, message.table
            ):
                self._pursuit.acknowledged(message.holder, message.key, message.revision)
        elif type(message) is Match:
            self._matched(message, now)
        else:
            self._do(self._holder.receive(message, now))

    def advance(self, now: int) -> None:
        """Do what is due."""
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
        """Forget where clients have been whose sessions are over."""
        sessions = self._node.state.sessions
        for session in [one for one in self._places if sessions.get(one.client_id) is not one]:
            del self._places[session]
            self._noted_at.pop(session, None)

    @property
    def is_pursuing(self) -> bool:
        """Whether others have yet to answer what they must have of this node. O(pending).

        That is what this node told them, and who hears of what was published here and is held here.
        """
        return self._pursuit.pending() > 0 or self._holder.is_pursuing(self._name)

    def wake_at(self) -> int | None:
        """Say when something is due."""
        parts = (self._gateway, self._spool, self._holder, self._pursuit)
        times = [at for part in parts if (at := part.wake_at()) is not None]
        times += [at + _AWAY_MS for at in self._lost_at.values()]
        return min(times, default=None)

    def take(self, now: int) -> list[Outgoing]:
        """Return what is to travel; what is for this node itself is done here and now."""
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
        """Begin with an empty table and events of higher numbers than this node has ever had."""
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
        """Learn who the other nodes are."""
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
        """Take note that a node cannot be heard; if it stays so, another one stands in for it."""
        self._lost_at[name] = now

    def back(self, name: str, now: int) -> None:
        """Take note that a node can be heard."""
        self._lost_at.pop(name, None)
        self._set_away(name, now, is_away=False)
        self._do(self._pursuit.again(name, now))

    def leave(self, now: int) -> None:
        """Let others hold the events that only this node has; it leaves when nothing is pending."""
        self.layout.leave()
        self._do(self._spool.plans_changed(now))

    def _set_away(self, name: str, now: int, *, is_away: bool) -> None:
        if self.layout.set_away(name, is_away=is_away):
            self._do(self._gateway.plans_changed(now))
            self._do(self._spool.plans_changed(now))

    def use(self, plan: NamedPlan, now: int) -> bool:
        """Begin to use a plan; tell whether it was newer than what is in use."""
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
        """Learn which plans another node uses."""
        self._versions[name] = versions
        self._go_on(now)

    def _go_on(self, now: int) -> None:
        """Leave the old plan once every node there is uses the new one."""
        upcoming = self.layout.upcoming
        if upcoming is None:
            return
        if all(max(versions) >= upcoming.version for versions in self._versions.values()):
            self.layout.commit()
            self._plans_changed(now)

    # --- survival ---------------------------------------------------------------------------

    def restored(self, now: int) -> None:
        """Go on with what was noted before a crash; subscriptions have come back."""
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
        """Note where a client is, as often as the journal wants to know."""
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

    def _matched(self, match: Match, now: int) -> None:
        due: dict[Session, list[Subscription]] = defaultdict(list)
        for one in self._gateway.matched(match, now):
            if type(one) is Deliver:
                subscription = self._subscriptions.get(one.subscription)
                if subscription is not None:
                    due[subscription.session].append(subscription)
            else:
                assert type(one) is Outgoing
                self._out.append(one)
        event = match.event
        if not due or event.event_id[0] == self._name:
            return  # what was published here has reached everyone here
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


def _area(subscription: Subscription, position: Place | None) -> Rect | None:
    """Return a rectangle around all that is wanted; None if it is near an unknown place."""
    selection: Selection = subscription.selection  # type: ignore[assignment]
    if selection.near_m is not None:
        if position is None:
            return None
        return _around(Circle(*position, selection.near_m).bounds())
    assert selection.area is not None
    return _around(selection.area.bounds())


def _sure_area(subscription: Subscription, position: Place | None) -> Rect:
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


__all__ = ["Geography", "NodeId", "Register"]
