"""One peer in the overlay of one space: its boxes, its events, and the acknowledgements of both.

It surrounds `OverlayPeer`, which knows neither. A peer without boxes takes a seat at a single point
on the edge of the space: so it is part of the tree, others can join through it, and (nearly) no
event comes to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from random import Random
from typing import Any, NamedTuple

from nearcast.overlay.bounds import Bounds, intersects
from nearcast.overlay.events import EventBatch, OverlayEvent
from nearcast.overlay.live.acknowledged import (
    TOKEN_BYTES,
    Acknowledgements,
    AckTiming,
    EventAck,
    identity_of,
    is_sure,
)
from nearcast.overlay.live.gap_news import GapNews, GapReport
from nearcast.overlay.live.outgoing import (
    MOST_BYTES,
    Content,
    GapReports,
    PeerAnswers,
    TurnMessages,
    size_of,
)
from nearcast.overlay.messages import (
    Address,
    Envelope,
    EventDelivery,
    Events,
    Instant,
    Output,
    PeerId,
)
from nearcast.overlay.peer import OverlayPeer
from nearcast.overlay.seat import Gap, Seat
from nearcast.overlay.settings import Settings

MOST_CONTACTS = 16
"""How many peers a member remembers to join through."""
_RENEWED = 3
_HANDOVER_BEATS = 4
"""How long what lies in a group that was handed over is in doubt."""


class NewEvent(NamedTuple):
    """An event to be published; `sure` for QoS 1."""

    box: Bounds
    payload: bytes
    sure: bool = False


class PeerArrival(NamedTuple):
    """An event of another peer for the subscribers of this one."""

    event_id: bytes
    payload: bytes


class OverlayMember:
    """One peer in the overlay of one space.

    Contract: as `OverlayPeer`. After every call the runtime sends what `take_out` returns, and
    delivers what `take_arrivals` returns. Each event arrives once, whatever its way.
    """

    def __init__(
        self,
        peer_id: PeerId,
        settings: Settings,
        random: Random,
        timing: AckTiming | None = None,
    ) -> None:
        self.core = OverlayPeer(peer_id, settings, random)
        self._settings = settings
        self._repair_ms = 2 * settings.patience_ms + 4 * settings.beat_ms
        self.acks = Acknowledgements(random.randbytes(TOKEN_BYTES), timing, self._repair_ms)
        self._boxes: dict[int, Bounds] = {}
        self._next_key = 0
        extent = settings.extent
        self._everything: Bounds = (-inf,) * extent.dimensions, (inf,) * extent.dimensions
        edge = extent.lows[0] + random.random() * (extent.highs[0] - extent.lows[0])
        point = (edge, *extent.lows[1:])
        self._anchor: Bounds = (point, point)
        self._unreachable: set[PeerId] = set()
        self._lost: list[tuple[Instant, Bounds]] = []
        """Where peers may be without a parent, and until when."""
        self._tops: dict[int, int] = {}
        self._renew_at: Instant = 0
        self._out = TurnMessages()
        self._arrivals: list[PeerArrival] = []
        self._taken: set[bytes] = set()
        self._taken_before: set[bytes] = set()
        self._taken_since: Instant = 0
        self.gaps = GapNews(random, self.acks.timing.hold_ms, settings.beat_ms // 4)
        self.repairs = 0
        """How many members and parents were lost without a word."""

    # --- called by the owner -------------------------------------------------------------------

    def meet(self, contacts: Iterable[PeerId]) -> None:
        """Remember other peers to join through; the oldest are forgotten beyond a limit."""
        core = self.core
        core.meet(contacts)
        if len(core.contacts) > MOST_CONTACTS:
            core.contacts = core.contacts[-MOST_CONTACTS:]
            core.meet(())

    def set_boxes(self, boxes: Iterable[Bounds], now: Instant) -> None:
        """Subscribe to these boxes, instead of those before; seats that change keep their place."""
        wanted = dict.fromkeys(boxes) or {self._anchor: None}
        held = set(self._boxes.values())
        gone = [key for key, box in self._boxes.items() if box not in wanted]
        for box in [one for one in wanted if one not in held]:
            if gone:
                key = gone.pop()
                outputs = self.core.change(key, *box, now)
            else:
                key, self._next_key = self._next_key, self._next_key + 1
                outputs = self.core.subscribe(key, *box, now)
            self._boxes[key] = box
            self._emit(outputs, now)
        for key in gone:
            del self._boxes[key]
            self._emit(self.core.unsubscribe(key, now), now)

    def leave(self, now: Instant) -> None:
        """Leave the tree, handing over the groups hosted here."""
        self._boxes.clear()
        self._emit(self.core.leave(now), now)

    def publish(self, events: Iterable[NewEvent], now: Instant) -> list[bytes]:
        """Send events to all other peers that they concern.

        Returns the identities of those that are accepted. One that is `sure` is kept and repeated
        until all branches have answered; it is not accepted if too many are kept already.
        """
        accepted = []
        for box, payload, sure in events:
            event = OverlayEvent(self.acks.new_id(sure=sure), *box, payload)
            if not sure or self.acks.keep(event, now):
                accepted.append(event)
        self._publish(accepted, now)
        return [identity_of(event.event_id) for event in accepted]  # type: ignore[arg-type]

    def ask_outside(self, now: Instant) -> None:
        """Ask what other peers want, for `boxes_outside`."""
        self._emit(self.core.ask_outside(now), now)

    @property
    def is_placed(self) -> bool:
        """Whether all boxes are in the tree."""
        seats = self.core.seats.values()
        return not self._is_unsure() and all(seat.box == seat.wanted for seat in seats)

    @property
    def is_alone(self) -> bool:
        """Whether the peer knows no other one in the tree."""
        seats, me = self.core.seats.values(), self.core.peer_id
        return not any(
            (seat.parent is not None and seat.parent.peer != me)
            or any(one.peer != me for group in seat.groups for one in group.members)
            for seat in seats
        )

    def tree_neighbours(self) -> list[PeerId]:
        """Return the peers of parents and members."""
        known: dict[PeerId, None] = {}
        for seat in self.core.seats.values():
            if seat.parent is not None:
                known[seat.parent.peer] = None
            for group in seat.groups:
                known.update((one.peer, None) for one in group.members)
        known.pop(self.core.peer_id, None)
        return list(known)

    # --- called by the runtime -----------------------------------------------------------------

    def receive(self, envelope: Envelope, now: Instant, link: PeerId) -> None:
        """Process a message that came over the link to `link`."""
        body = envelope.body
        self._unreachable.discard(link)
        self.core.unreached.pop(link, None)
        if not isinstance(body, Events):
            outputs = self.core.receive(envelope, now)
            self._note_stepping_down(now)
            self._emit(outputs, now)
            self._note_gaps(now)
            return
        outputs = self.core.receive(envelope, now)
        upstream = Address(link, envelope.to.seat)
        self._track(body.batch, outputs, upstream, now)
        self._emit(outputs, now)

    def answered(self, peer: PeerId, acks: Iterable[EventAck], now: Instant) -> None:
        """Take another peer's answers."""
        self.acks.answered(peer, acks)
        self._emit([], now)

    def heard_of_gaps(self, peer: PeerId, reports: Iterable[GapReport], now: Instant) -> None:
        """Send again what fell into gaps that a neighbour tells of, and tell others."""
        for gap in self.gaps.heard(peer, reports, now):
            self._send_again(gap, now)
        self._tell_of_gaps(now)

    def lost(self, peer: PeerId, now: Instant) -> None:
        """Handle that the connection to a peer is lost, or cannot be made."""
        self.acks.lost(peer)
        self.gaps.lost(peer)
        self.core.lose(peer, now)
        self._unreachable.add(peer)
        self._emit([], now)

    def ended(self, peer: PeerId, now: Instant) -> None:
        """Handle that a peer's process has ended: another one, or none, listens at its address."""
        for address, box in self._neighbours().items():
            if address.peer == peer:
                self._note_end(box, now)
        outputs = self.core.drop_peer(peer, now)
        self._note_stepping_down(now)
        self._emit(outputs, now)
        self._note_gaps(now)

    def advance(self, now: Instant) -> None:
        """Process everything that is due by now."""
        if any(seat.next_beat <= now for seat in self.core.seats.values()):
            before = self._neighbours()
            outputs = self.core.advance(now)
            self._note_lost(before, now)
            self._renew_contacts(now)
            is_beat = True
        else:
            outputs = self.core.advance(now)
            is_beat = False
        self._note_stepping_down(now)
        self._emit(outputs, now)
        self._note_gaps(now)
        self._tell_of_gaps(now, is_beat=is_beat)
        self._publish(self.acks.advance(now), now)

    def wake_at(self) -> Instant | None:
        """Return when `advance` is to be called next."""
        wakes = (self.core.wake_at(), self.acks.wake_at(), self.gaps.wake_at())
        return min((at for at in wakes if at is not None), default=None)

    def take_out(self) -> list[tuple[PeerId, Content]]:
        """Return the messages to send, each with its receiver, in order."""
        return self._out.take()

    def take_arrivals(self) -> list[PeerArrival]:
        """Return the events for the subscribers of this peer."""
        arrivals, self._arrivals = self._arrivals, []
        return arrivals

    def state(self) -> dict[str, Any]:
        """Return the peer's part of the tree, for people."""
        totals = self.acks.totals
        return {
            "seats": [_seat_state(seat) for seat in self.core.seats.values()],
            "is_placed": self.is_placed,
            "contacts": [one.peer for one in self.core.contacts],
            "repairs": self.repairs,
            "kept": len(self.acks),
            "confirmed": totals.confirmed,
            "repeated": totals.repeated,
            "unconfirmed": totals.unconfirmed,
        }

    # --- inside --------------------------------------------------------------------------------

    def _publish(self, events: list[OverlayEvent], now: Instant) -> None:
        """Send events, as many at a time as one message may hold."""
        start, size = 0, 0
        for place, event in enumerate(events):
            size += size_of((event.payload,))
            if place > start and size > MOST_BYTES:
                self._publish_together(events[start:place], now)
                start, size = place, size_of((event.payload,))
        if events:
            self._publish_together(events[start:], now)

    def _publish_together(self, events: list[OverlayEvent], now: Instant) -> None:
        outputs = self.core.publish(events, now)
        sure = [event for event in events if is_sure(event.event_id)]  # type: ignore[arg-type]
        if sure:
            batch = EventBatch.of(sure, self._settings.extent.dimensions)
            self._track(batch, outputs, None, now)
        self._emit(outputs, now)

    def _track(
        self, batch: EventBatch, outputs: list[Output], upstream: Address | None, now: Instant
    ) -> None:
        """Record where the events that are to be acknowledged were sent."""
        targets: dict[Any, list[Address]] = {
            event_id: []
            for event_id in batch.ids
            if is_sure(event_id)  # type: ignore[arg-type]
        }
        if not targets:
            return
        for output in outputs:
            if isinstance(output, Envelope) and isinstance(output.body, Events):
                for event_id in output.body.batch.ids:
                    if event_id in targets:
                        targets[event_id].append(output.to)
        if self._is_unsure():
            return  # no answer: it would be about another tree, perhaps
        for place, event_id in enumerate(batch.ids):
            if event_id in targets:
                is_clean = not self._is_doubtful(batch, place, now)
                self.acks.passed(event_id, upstream, targets[event_id], now, is_clean=is_clean)  # type: ignore[arg-type]

    def _is_unsure(self) -> bool:
        """Return whether a seat here may be outside the tree that others are in."""
        seats = self.core.seats.values()
        return not seats or any(seat.parent is None and self._is_astray(seat) for seat in seats)

    def _is_astray(self, seat: Seat) -> bool:
        """Return whether a seat without a parent is probably not the root of all."""
        if not seat.settled:
            return True
        known = {one.peer for one in self.core.contacts} - self._unreachable
        is_single = seat.top == 0 and len(seat.groups[0].members) == 1
        return is_single and len(self.core.seats) == 1 and bool(known)

    def _is_doubtful(self, batch: EventBatch, place: int, now: Instant) -> bool:
        """Return whether subscribers of an event may be without a parent, as far as known here."""
        heirs = [
            heir.box for seat in self.core.seats.values() for heir in seat.heirs if heir.until > now
        ]
        self._lost = [one for one in self._lost if one[0] > now]
        if self._is_new_root(now):
            return True
        if not (heirs or self._lost):
            return False
        box = tuple(batch.lows[place].tolist()), tuple(batch.highs[place].tolist())
        return any(intersects(box, other) for other in (*heirs, *(one for _, one in self._lost)))

    def _is_new_root(self, now: Instant) -> bool:
        """Return whether a seat here lost its parent lately: another one may believe to be root."""
        return any(
            seat.parent is None
            and seat.cut_since is not None
            and now < seat.cut_since + self._repair_ms
            for seat in self.core.seats.values()
        )

    def _neighbours(self) -> dict[Address, Bounds | None]:
        """Return the boxes of members and parents: what lies below each; None if nobody does."""
        found: dict[Address, Bounds | None] = {}
        for seat in self.core.seats.values():
            if seat.parent is not None:
                found[seat.parent] = self._everything
            for entry in seat.siblings:
                if entry.address == seat.parent:
                    found[seat.parent] = entry.box
            for group in seat.groups:
                for entry in group.members.values():
                    is_host = group.level > 1 or entry.size > 1
                    found[entry.address] = entry.box if is_host else None
        return found

    def _note_lost(self, before: dict[Address, Bounds | None], now: Instant) -> None:
        """Remember the boxes of neighbours that were lost: peers below them look for a new parent.

        A lost parent was a member of its own group: what was below it there is without a parent,
        too, and the member that takes its place does not know of it.
        """
        probe_at = now + self._settings.probe_ms
        self._lost = [one for one in self._lost if one[0] > now]
        for seat in self.core.seats.values():
            for address, at in seat.lost.items():
                if at == probe_at and address in before:
                    self._note_end(before[address], now)

    def _note_end(self, box: Bounds | None, now: Instant) -> None:
        """Count a neighbour that was lost, and doubt what lies below it for a while."""
        self.repairs += 1
        if box is not None:
            self._lost.append((now + self._repair_ms, box))

    def _renew_contacts(self, now: Instant) -> None:
        """Remember some peers to join through: the first contacts may be gone by then.

        Neighbours, and peers far away in the tree that others have named.
        """
        if now < self._renew_at:
            return
        self._renew_at = now + self._settings.probe_ms
        near, far = set[PeerId](), set[PeerId]()
        for seat in self.core.seats.values():
            near.update(one.peer for one in (*seat.path, *seat.kin))
            near.update(entry.address.peer for entry in seat.siblings)
            near.update(one.peer for group in seat.groups for one in group.members)
            far.update(one.peer for one in seat.met)
        for known in (near, far - near):
            found = sorted(known - self._unreachable - {self.core.peer_id})
            self.meet(self.core.random.sample(found, min(_RENEWED, len(found))))

    def _note_stepping_down(self, now: Instant) -> None:
        """Doubt what lies in a group for a while after a seat has given it up.

        Two hosts that step down at the same time name successors that the other one does not know;
        what is below them is found again by the next heartbeats.
        """
        until = now + _HANDOVER_BEATS * self._settings.beat_ms
        for number, seat in self.core.seats.items():
            if seat.top < self._tops.get(number, -1):
                boxes = [heir.box for heir in seat.heirs] or [self._everything]
                self._lost += [(until, box) for box in boxes]
            self._tops[number] = seat.top

    def _emit(self, outputs: list[Output], now: Instant) -> None:
        for output in outputs:
            if isinstance(output, EventDelivery):
                self._arrive(output.batch, now)
            else:
                self._out.add(output.to.peer, output)
        answers: dict[PeerId, list[EventAck]] = {}
        for peer, ack in self.acks.take():
            answers.setdefault(peer, []).append(ack)
        for peer, acks in answers.items():
            self._out.add(peer, PeerAnswers(acks))

    def _note_gaps(self, now: Instant) -> None:
        """Report gaps that have ended in this peer's part of the tree.

        What this peer published meanwhile may have passed by everybody outside that part.
        """
        for seat in self.core.seats.values():
            if seat.gaps:
                for box, since in seat.gaps:
                    margin = 2 * self._settings.beat_ms
                    gap = Gap(box, None if since is None else since - margin)
                    self.gaps.begin(gap, now)
                    self._send_again(gap._replace(box=self._everything), now)
                seat.gaps.clear()
                self._tell_of_gaps(now)

    def _send_again(self, gap: Gap, now: Instant) -> None:
        """Send again what fell into a gap, once the hosts above it know of its box again."""
        self.acks.missed(gap, self._settings.beat_ms // 4, now)

    def _tell_of_gaps(self, now: Instant, *, is_beat: bool = False) -> None:
        due = self.gaps.wake_at()
        if len(self.gaps) and (is_beat or (due is not None and due <= now)):
            for peer, reports in self.gaps.take(self.tree_neighbours(), now):
                self._out.add(peer, GapReports(reports))

    def _arrive(self, batch: EventBatch, now: Instant) -> None:
        """Deliver events of other peers, each identity once."""
        for event_id, payload in zip(batch.ids, batch.payloads, strict=True):
            assert isinstance(event_id, bytes)
            if self.acks.is_own(event_id):
                continue
            if is_sure(event_id) and not self._is_first(identity_of(event_id), now):
                continue
            self._arrivals.append(PeerArrival(event_id, payload))

    def _is_first(self, identity: bytes, now: Instant) -> bool:
        if now - self._taken_since > self._settings.memory_ms:
            self._taken_before, self._taken, self._taken_since = self._taken, set(), now
        if identity in self._taken or identity in self._taken_before:
            return False
        self._taken.add(identity)
        return True


def _seat_state(seat: Seat) -> dict[str, Any]:
    tally = seat.tally
    return {
        "seat": seat.address.seat,
        "box": [list(seat.box[0]), list(seat.box[1])],
        "parent": None if seat.parent is None else list(seat.parent),
        "is_settled": seat.settled,
        "top": seat.top,
        "groups": [[list(one) for one in group.members] for group in seat.groups],
        "received": tally.received,
        "unwanted": tally.unwanted,
        "forwarded": tally.forwarded,
        "delivered": tally.delivered,
        "overhead": seat.overhead(),
    }
