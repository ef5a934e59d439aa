"""A cache at branching peers for identical events (claim C3.5).

A branching peer may forward an event in vain to a member whose box contains it: no subscription
below wants it. With a cache, the member answers `Barren`, and the next event with exactly the same
values is not forwarded. Each first event in vain costs one more message, so the cache pays only if
events repeat.

A later join may bring a subscription that wants such an event. Every join comes down from the root,
so each host on its way drops its cache (`joining.forget_barren`), and the number in `asks`
invalidates answers to earlier questions. A group that changes in any other way starts with an empty
cache.

Read next: `routing.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nearcast.overlay.bounds import Bounds
from nearcast.overlay.events import EventBatch, hits
from nearcast.overlay.messages import Address, Barren, Instant

if TYPE_CHECKING:
    from nearcast.overlay.seat import Seat


def values_of(batch: EventBatch, place: int) -> Bounds:
    """Return the values of an event; events with equal values are identical to the cache."""
    return tuple(batch.lows[place].tolist()), tuple(batch.highs[place].tolist())


def without_barren(seat: Seat, to: Address, batch: EventBatch) -> tuple[EventBatch | None, int]:
    """Return the events that may be wanted behind `to`, and the number to ask under."""
    asks = seat.asks.setdefault(to, 0)
    known = seat.barren.get(to)
    if not known:
        return batch, asks
    kept = [place for place in range(len(batch)) if values_of(batch, place) not in known]
    seat.tally.spared += len(batch) - len(kept)
    if len(kept) == len(batch):
        return batch, asks
    return (batch.take(np.array(kept, dtype=np.int64)) if kept else None), asks


def note_barren(seat: Seat, sender: Address, batch: EventBatch, asks: int) -> None:
    """Report to the sender which of its events nobody wanted here or, as far as known, below."""
    branches = seat.branches
    if branches is None:
        return
    starts, places, _ = hits(
        batch.lows, batch.highs, branches.lows, branches.highs, branches.others
    )
    wanted: set[int] = set()
    for row, (address, _) in enumerate(branches.rows[: branches.others]):
        known = seat.barren.get(address, {})
        for place in places[starts[row] : starts[row + 1]].tolist():
            if not known or values_of(batch, place) not in known:
                wanted.add(place)
    lost = tuple(values_of(batch, p) for p in range(len(batch)) if p not in wanted)
    if lost:
        seat.tally.acknowledged += len(lost)
        seat.send(sender, Barren(lost, asks))


def on_barren(seat: Seat, sender: Address, message: Barren, now: Instant) -> None:  # noqa: ARG001 - all handlers have one shape
    """Remember events that nobody behind a member wanted; the oldest are dropped first."""
    if seat.asks.get(sender) != message.asks:
        return
    known = seat.barren.setdefault(sender, {})
    for values in message.boxes:
        known[values] = None
    while len(known) > seat.settings.cache_size:
        del known[next(iter(known))]
