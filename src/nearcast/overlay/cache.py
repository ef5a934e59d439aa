"""A cache at branching peers for identical events (claim C3.5).

A branching peer that passes an event to a member whose box contains it may do so in vain: nobody
below wants it. With a cache, the member says so (`Barren`), and the next event with the very same
values is spared the way. The saving costs a message for every first event in vain, so it pays only
if events repeat.

What nobody wanted, somebody may want after the next join: every join comes down from the root, so
each host on its way forgets (`joining.forget_barren`), and the number in `asks` makes answers to
earlier questions void. A group that changes in any other way starts with an empty cache.

Read next: `routing.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nearcast.overlay.bounds import Bounds
from nearcast.overlay.events import Batch, hits
from nearcast.overlay.messages import Address, Barren, Instant

if TYPE_CHECKING:
    from nearcast.overlay.seat import Seat


def values_of(batch: Batch, place: int) -> Bounds:
    """Return what makes two events identical: their values."""
    return tuple(batch.lows[place].tolist()), tuple(batch.highs[place].tolist())


def without_barren(seat: Seat, to: Address, batch: Batch) -> tuple[Batch | None, int]:
    """Return the events that somebody behind `to` may want, and the number to ask under."""
    asks = seat.asks.setdefault(to, 0)
    known = seat.barren.get(to)
    if not known:
        return batch, asks
    kept = [place for place in range(len(batch)) if values_of(batch, place) not in known]
    seat.tally.spared += len(batch) - len(kept)
    if len(kept) == len(batch):
        return batch, asks
    return (batch.take(np.array(kept, dtype=np.int64)) if kept else None), asks


def note_barren(seat: Seat, sender: Address, batch: Batch, asks: int) -> None:
    """Tell the sender which of its events nobody wanted here or, as far as known, below."""
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
    """Remember what nobody behind a member wanted; the oldest is forgotten first."""
    if seat.asks.get(sender) != message.asks:
        return
    known = seat.barren.setdefault(sender, {})
    for values in message.boxes:
        known[values] = None
    while len(known) > seat.settings.cache_size:
        del known[next(iter(known))]
