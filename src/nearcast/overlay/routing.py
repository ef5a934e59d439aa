"""Events: up to the root, and down to every seat whose box they meet (paper 3, "Events").

Going up only "until the MBR contains the event" misses subscriptions in sibling groups that overlap
there (trap T3.6), so every event is offered at the root: step by step, each host on the way serving
its other members, or directly to the root, whose address comes with the heartbeats.

In a tree at rest every seat gets an event at most once, as it has one parent. While the tree
changes, two parents may both forward an event; each seat remembers ids and drops the second copy
(trap T3.4). The same memory ends any cycle.

Read next: `peer.py`.
"""

from __future__ import annotations

import numpy as np

from nearcast.overlay.bounds import Bounds
from nearcast.overlay.cache import note_barren, without_barren
from nearcast.overlay.election import Method
from nearcast.overlay.events import EventBatch, hits, stacked, together
from nearcast.overlay.messages import Address, Events, Instant
from nearcast.overlay.seat import Branches, Seat
from nearcast.overlay.settings import Climb


def publish(seat: Seat, batch: EventBatch, now: Instant) -> None:
    """Send a peer's own events; forwarding its own events is no overhead."""
    before = seat.tally.forwarded
    if seat.parent is None and seat.joining is not None and seat.refuges and seat.top == 0:
        # Not in the tree yet: send them to the seat that was asked to accept this one.
        pass_on(seat, seat.refuges[0], batch, rising=True, now=now)
    elif seat.settings.climb is Climb.DIRECT and (entrance := seat.entrance(now)) != seat.address:
        pass_on(seat, entrance, batch, rising=False, now=now, cached=False)
        seat.tally.forwarded = before
        return
    fresh = _new_ones(seat, batch, now)
    if fresh is not None:
        _route(seat, None, fresh, rising=True, now=now)
        if seat.parent is not None:
            seat.tally.lifted -= len(fresh)
            seat.tally.forwarded -= len(fresh)


def on_events(seat: Seat, sender: Address, message: Events, now: Instant) -> None:
    """Count the events received, then forward them."""
    batch = _new_ones(seat, message.batch, now)
    if batch is None:
        return
    # From a seat that is no longer the parent: this seat's groups have changed hosts, and the new
    # host has to see the events too.
    rising = message.rising or (seat.parent is not None and sender != seat.parent)
    served = sender if message.rising else None
    wanted, barren = _route(seat, served, batch, rising=rising, now=now)
    if sender.peer != seat.address.peer:
        tally = seat.tally
        tally.received += len(batch)
        tally.unwanted += len(batch) - wanted
        if rising:
            tally.climbing += len(batch) - wanted
        else:
            tally.barren += barren
    if message.asks is not None:
        note_barren(seat, sender, batch, message.asks)


def _route(
    seat: Seat, served: Address | None, batch: EventBatch, *, rising: bool, now: Instant
) -> tuple[int, int]:
    """Forward events; return how many this seat wanted itself, and how many met no branch here.

    `served` already has them: they came up from there.
    """
    if seat.heirs and seat.heirs[0].until <= now:
        forget_heirs(seat, now)
    branches = seat.branches or _branches(seat)
    starts, places, barren = hits(
        batch.lows, batch.highs, branches.lows, branches.highs, branches.others
    )
    ends = starts.tolist()
    size, wanted, start = len(batch), 0, 0
    measures = seat.settings.method is Method.MEASURED
    for (address, level), end in zip(branches.rows, ends[1:], strict=True):
        if start == end:
            continue
        if measures and level >= 0:
            passed = seat.groups[level].passed
            passed[address] = passed.get(address, 0) + end - start
        if address == seat.address:
            if level == -1:
                wanted = end - start
                seat.tally.delivered += wanted
                seat.delivered.append(batch if wanted == size else batch.take(places[start:end]))
        elif address != served:
            part = batch if end - start == size else batch.take(places[start:end])
            pass_on(seat, address, part, rising=False, now=now)
        start = end
    if rising and seat.parent is not None and seat.parent != served:
        seat.tally.lifted += size
        pass_on(seat, seat.parent, batch, rising=True, now=now)
    return wanted, barren


def forget_heirs(seat: Seat, now: Instant) -> None:
    """Stop forwarding to heirs of groups that were handed over long enough ago."""
    seat.heirs = [heir for heir in seat.heirs if heir.until > now]
    seat.branches = None


def _branches(seat: Seat) -> Branches:
    """Return all targets of events; the seat itself as level -1, and in its own groups."""
    rows = [(seat.address, -1)]
    boxes: list[Bounds] = [seat.wanted]
    for group in seat.groups:
        for address, entry in group.members.items():
            if address != seat.address:
                rows.append((address, group.level))
                boxes.append(entry.box)
    # The host of a group handed over lately may not be known above yet.
    known = {address for address, _ in rows}
    for heir in seat.heirs:
        if heir.host not in known and heir.host != seat.parent:
            rows.append((heir.host, -2))
            boxes.append(heir.box)
    others = len(rows)
    if seat.settings.method is Method.MEASURED:
        rows += [(seat.address, group.level) for group in seat.groups]
        boxes += [group.members[seat.address].box for group in seat.groups]
    lows, highs = stacked(boxes)
    seat.branches = Branches(rows, others, lows, highs)
    return seat.branches


def _new_ones(seat: Seat, batch: EventBatch, now: Instant) -> EventBatch | None:
    """Return the events not seen before, and remember them."""
    if now - seat.seen_since > seat.settings.memory_ms:
        seat.seen_before, seat.seen, seat.seen_since = seat.seen, set(), now
    seen, before, ids = seat.seen, seat.seen_before, batch.ids
    if seen.isdisjoint(ids) and before.isdisjoint(ids):
        seen.update(ids)
        if len(ids) == 1 or len(set(ids)) == len(ids):
            return batch
        seen.difference_update(ids)
    new = []
    for place, event_id in enumerate(ids):
        if event_id not in seen and event_id not in before:
            seen.add(event_id)
            new.append(place)
    seat.tally.duplicates += len(ids) - len(new)
    return batch.take(np.array(new, dtype=np.int64)) if new else None


def pass_on(
    seat: Seat, to: Address, batch: EventBatch, *, rising: bool, now: Instant, cached: bool = True
) -> None:
    """Send events to another seat, now or together with others that go the same way.

    Only events that go down may be spared by the cache: a join that changes it passes here.
    """
    asks = None
    if cached and seat.settings.cache_size and not rising:
        remaining, asks = without_barren(seat, to, batch)
        if remaining is None:
            return
        batch = remaining
    if to.peer != seat.address.peer:
        seat.tally.forwarded += len(batch)
    if not seat.settings.coalesce_ms:
        seat.send(to, Events(batch.sent(), rising, asks))
        return
    seat.pending.setdefault((to, rising, cached), []).append(batch)
    if seat.flush_at is None:
        seat.flush_at = now + seat.settings.coalesce_ms


def flush(seat: Seat) -> None:
    """Send the events that were held back."""
    seat.flush_at = None
    pending, seat.pending = seat.pending, {}
    for (to, rising, cached), batches in pending.items():
        asks = seat.asks.get(to) if seat.settings.cache_size and cached and not rising else None
        seat.send(to, Events(together(batches).sent(), rising, asks))
