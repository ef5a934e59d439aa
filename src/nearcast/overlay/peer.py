"""A peer of the overlay: one seat per subscription, and the messages between seats.

`receive` and `advance` return outputs: an `Envelope` to send, or an `EventDelivery` for this peer's
own subscribers. Messages between two seats of one peer never leave it.

Read next: `invariants.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from random import Random
from typing import Any

import numpy as np

from nearcast.model.errors import KeyInUseError, KeyMissingError, MisuseError
from nearcast.overlay import cache, joining, outside, repair, routing, upkeep
from nearcast.overlay.bounds import Bounds
from nearcast.overlay.events import EventBatch, OverlayEvent
from nearcast.overlay.messages import (
    Address,
    Adopt,
    Answer,
    Ask,
    AskBoxes,
    Barren,
    Envelope,
    EventDelivery,
    Events,
    Greet,
    GroupBoxes,
    GroupHandover,
    Instant,
    Join,
    Meet,
    MemberLeft,
    MemberReport,
    Output,
    PeerId,
    Refused,
    Relocate,
    Replace,
    Returned,
    Unknown,
)
from nearcast.overlay.seat import Seat
from nearcast.overlay.settings import Settings


def _on_refused(seat: Seat, sender: Address, message: Refused, now: Instant) -> None:  # noqa: ARG001 - as all
    if seat.joining is not None and seat.joining.nonce == message.nonce:
        seat.tally.refused += 1


_HANDLERS: dict[type, Callable[[Seat, Address, Any, Instant], None]] = {
    Join: joining.on_join,
    Ask: joining.on_ask,
    Answer: joining.on_answer,
    Adopt: upkeep.on_adopt,
    MemberReport: upkeep.on_report,
    GroupHandover: upkeep.on_handover,
    Returned: upkeep.on_returned,
    Replace: upkeep.on_replace,
    MemberLeft: upkeep.on_left,
    Unknown: upkeep.on_unknown,
    Relocate: upkeep.on_relocate,
    Greet: repair.on_greet,
    Meet: repair.on_meet,
    Events: routing.on_events,
    Barren: cache.on_barren,
    Refused: _on_refused,
    AskBoxes: outside.on_ask_boxes,
    GroupBoxes: outside.on_group_boxes,
}


class OverlayPeer:
    """One peer. It knows only its neighbours, never the whole tree.

    Contract:
        - `now` (milliseconds) never decreases from one call to the next;
        - a runtime calls `advance` at every `wake_at()` and carries `Envelope`s to `to.peer`;
        - messages may be lost, duplicated, delayed and reordered: the tree repairs itself;
        - in a tree at rest, every event reaches each peer with a matching subscription once.
    Invalid messages are dropped and counted (`refused`), never raised.

    >>> from nearcast.overlay.bounds import Extent
    >>> peer = OverlayPeer("a", Settings(Extent((0.0,), (100.0,))), Random(1))
    >>> peer.subscribe("cheap", (0.0,), (20.0,), now=0)
    []
    >>> outputs = peer.publish([OverlayEvent.point("e1", [7.0])], now=1)
    >>> [list(output.batch.ids) for output in outputs]
    [['e1']]
    """

    def __init__(
        self,
        peer_id: PeerId,
        settings: Settings,
        random: Random,
        contacts: Iterable[PeerId] = (),
    ) -> None:
        self.peer_id = peer_id
        self.settings = settings
        self.random = random
        self.contacts: tuple[Address, ...] = ()
        self.seats: dict[int, Seat] = {}
        self.strangers = 0
        """How many messages arrived for seats that are not here."""
        self.unreached: dict[PeerId, Instant] = {}
        """Peers to which connections broke lately, and until when events take another way."""
        self._keys: dict[Hashable, int] = {}
        self._next_seat = 0
        self._stray: list[Envelope] = []
        self._delivered: set[Hashable] = set()
        self._delivered_before: set[Hashable] = set()
        self._delivered_since = 0
        self.meet(contacts)

    # --- called by the peer's owner --------------------------------------------------------------

    def meet(self, contacts: Iterable[PeerId]) -> None:
        """Add other peers through which the overlay can be reached."""
        for contact in contacts:
            address = Address(contact, 0)
            if contact != self.peer_id and address not in self.contacts:
                self.contacts = (*self.contacts, address)
        for seat in self.seats.values():
            seat.contacts = self.contacts

    def subscribe(
        self, key: Hashable, lows: Sequence[float], highs: Sequence[float], now: Instant
    ) -> list[Output]:
        """Join the overlay with one more box."""
        if key in self._keys:
            raise KeyInUseError(repr(key), where="OverlayPeer.subscribe", expected="a new key")
        box = self.settings.extent.checked(lows, highs, where=f"subscription {key!r}")
        address = Address(self.peer_id, self._next_seat)
        seat = Seat(address, box, self.settings, self.random, self.contacts, now)
        seat.unreached = self.unreached
        own = next((other.address for other in self.seats.values()), None)
        seat.refuges = [own] if own is not None else list(self.contacts)
        self._keys[key] = self._next_seat
        self.seats[self._next_seat] = seat
        self._next_seat += 1
        if seat.refuges:
            contact = seat.refuges[int(self.random.random() * len(seat.refuges))]
            joining.begin_join(seat, now, height=0, box=box, fresh=False, contact=contact)
        return self._turn(now)

    def change(
        self, key: Hashable, lows: Sequence[float], highs: Sequence[float], now: Instant
    ) -> list[Output]:
        """Change a subscription's box; the old place is kept until a new one is found."""
        seat = self._seat(key, "OverlayPeer.change")
        box = self.settings.extent.checked(lows, highs, where=f"subscription {key!r}")
        seat.wanted = box
        seat.branches = None
        if box != seat.box or seat.is_asking(now):
            joining.change_box(seat, now)
        return self._turn(now)

    def unsubscribe(self, key: Hashable, now: Instant) -> list[Output]:
        """Remove one box from the overlay."""
        seat = self._seat(key, "OverlayPeer.unsubscribe")
        joining.leave_groups(seat, 0, now)
        outputs = self._turn(now)
        del self.seats[self._keys.pop(key)]
        return outputs

    def leave(self, now: Instant) -> list[Output]:
        """Remove all boxes from the overlay, handing over the groups hosted here."""
        outputs: list[Output] = []
        for key in list(self._keys):
            outputs += self.unsubscribe(key, now)
        return outputs

    def publish(self, events: Sequence[OverlayEvent], now: Instant) -> list[Output]:
        """Send events to all peers they concern, this peer's own subscriptions included."""
        batch = EventBatch.of(events, self.settings.extent.dimensions)
        if not events:
            return []
        seat = self._speaker()
        if seat is not None:
            routing.publish(seat, batch, now)
        elif self.contacts:
            contact = self.contacts[int(self.random.random() * len(self.contacts))]
            sender = Address(self.peer_id, -1)
            return [Envelope(contact, sender, Events(batch.sent(), rising=True))]
        return self._turn(now)

    def ask_outside(self, now: Instant) -> list[Output]:
        """Ask what other peers want; `boxes_outside` returns it once they have answered."""
        seat = self._speaker()
        if seat is not None:
            outside.ask_for_boxes(seat)
        return self._turn(now)

    def boxes_outside(self) -> list[Bounds] | None:
        """Return boxes around what all other peers want; None while that is not known."""
        seat = self._speaker()
        return None if seat is None else outside.boxes_outside(seat)

    # --- called by the runtime -----------------------------------------------------------------

    def receive(self, envelope: Envelope, now: Instant) -> list[Output]:
        """Process a message from another peer."""
        to, sender, body = envelope
        if sender.peer == self.peer_id:
            self.strangers += 1  # another peer uses this peer's id
            return []
        self._hand(to, sender, body, now)
        return self._turn(now)

    def advance(self, now: Instant) -> list[Output]:
        """Process everything that is due by now."""
        for seat in list(self.seats.values()):
            if seat.due_at() <= now:
                repair.attend(seat, now)
        return self._turn(now)

    def lose(self, peer: PeerId, now: Instant) -> None:
        """Send events into the tree elsewhere for a while: the connection to a peer is lost."""
        for known in [one for one, until in self.unreached.items() if until <= now]:
            del self.unreached[known]
        self.unreached[peer] = now + self.settings.probe_ms

    def drop_peer(self, peer: PeerId, now: Instant) -> list[Output]:
        """Repair the tree around a peer that has ended."""
        for seat in list(self.seats.values()):
            repair.peer_ended(seat, peer, now)
        return self._turn(now)

    def wake_at(self) -> Instant | None:
        """Return when `advance` is to be called next."""
        soonest: Instant | None = None
        for seat in self.seats.values():
            at = seat.due_at()
            if soonest is None or at < soonest:
                soonest = at
        return soonest

    # --- inside --------------------------------------------------------------------------------

    def _seat(self, key: Hashable, where: str) -> Seat:
        if key not in self._keys:
            raise KeyMissingError(repr(key), where=where, expected="a subscription of this peer")
        return self.seats[self._keys[key]]

    def _speaker(self) -> Seat | None:
        """Return a seat that is in the tree, or None."""
        seats = self.seats.values()
        return next((s for s in seats if s.parent is not None), next(iter(seats), None))

    def _hand(self, to: Address, sender: Address, body: object, now: Instant) -> None:
        handler = _HANDLERS.get(type(body))
        seat = self.seats.get(to.seat)
        if seat is None and isinstance(body, Join | Events | Meet | Greet):
            seat = self._speaker()  # these are for the peer, whichever seat it has
        if handler is None:
            raise MisuseError(
                type(body).__name__, where="OverlayPeer.receive", expected="an envelope"
            )
        if seat is not None:
            handler(seat, sender, body, now)
        else:
            self._answer_for_nobody(to, sender, body)

    def _answer_for_nobody(self, to: Address, sender: Address, body: object) -> None:
        self.strangers += 1
        if isinstance(body, Adopt):
            self._stray.append(Envelope(sender, to, MemberLeft(body.level)))
        elif isinstance(body, MemberReport):
            self._stray.append(Envelope(sender, to, Unknown(body.level)))

    def _turn(self, now: Instant) -> list[Output]:
        """Empty the seats' outboxes; messages for a seat of this peer are processed at once."""
        outputs: list[Output] = []
        budget = _MOST_INNER
        moved = bool(self.seats)
        while moved:
            moved = False
            for seat in list(self.seats.values()):
                if not seat.out:
                    continue
                sent, seat.out = seat.out, []
                for envelope in sent:
                    if envelope.to.peer != self.peer_id:
                        outputs.append(envelope)
                    elif budget:
                        budget -= 1
                        moved = True
                        self._hand(*envelope, now)
        if self._stray:
            outputs += self._stray
            self._stray.clear()
        self._collect(outputs, now)
        return outputs

    def _collect(self, outputs: list[Output], now: Instant) -> None:
        """Merge the deliveries of the seats into one delivery per event (trap T3.4)."""
        several = len(self.seats) > 1
        for seat in self.seats.values():
            if not seat.delivered:
                continue
            for batch in seat.delivered:
                fresh = self._not_yet(batch, now) if several or self._delivered else batch
                if fresh is not None:
                    outputs.append(EventDelivery(fresh))
            seat.delivered.clear()

    def _not_yet(self, batch: EventBatch, now: Instant) -> EventBatch | None:
        if now - self._delivered_since > self.settings.memory_ms:
            self._delivered_before, self._delivered = self._delivered, set()
            self._delivered_since = now
        new = []
        for place, event_id in enumerate(batch.ids):
            if event_id not in self._delivered and event_id not in self._delivered_before:
                self._delivered.add(event_id)
                new.append(place)
        return batch.take(np.array(new, dtype=np.int64)) if new else None


_MOST_INNER = 100_000
"""The most messages between seats of one peer in one call; more would be a loop."""
