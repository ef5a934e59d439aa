"""Joining: up to the root, down by least enlargement, into a group (paper 3; trap T3.7).

The joining part is a subtree of some height: one box (height 0), or a fragment of the tree with all
its members. On the way down, each host picks the child that grows least; the paper's rule, "a child
that contains the box", has no answer when none does. Where several level-1 groups need the same
enlargement, the host above asks each for its cost with the newcomer, and picks the cheapest.

The newcomer keeps its old parent, if it has one, until a new one has adopted it.

Read next: `upkeep.py`.
"""

from __future__ import annotations

import math
from dataclasses import replace

from nearcast.overlay.bounds import Bounds
from nearcast.overlay.election import elect, paper_cost
from nearcast.overlay.messages import (
    Address,
    Answer,
    Ask,
    Instant,
    Join,
    MemberEntry,
    MemberLeft,
    Refused,
)
from nearcast.overlay.seat import Group, Joining, PendingJoin, Seat
from nearcast.overlay.settings import Placement
from nearcast.overlay.structure import adopt, set_parent, settle

_MOST_DETOURS = 8
"""How often a request is forwarded by seats that are not in the tree themselves."""
PATIENT = 8
"""After more requests in vain, a part without a parent takes itself for the tree."""
_QUICK = 2
"""So many requests of a part without a parent are soon repeated: others may have none either."""
_SAME = 1e-12
"""Enlargements that differ by less are equal."""


def begin_join(
    seat: Seat,
    now: Instant,
    *,
    height: int,
    box: Bounds,
    fresh: bool,
    contact: Address | None = None,
    avoid: Address | None = None,
) -> None:
    """Send a join request through `contact`, or else through the parent."""
    is_orphan = seat.parent is None and not fresh and 0 < seat.tries <= _QUICK
    pause = seat.settings.retry_ms // 4 if is_orphan else seat.settings.retry_ms
    wait = int(pause * (1.0 + seat.random.random()) * 2 ** min(seat.tries // 4, 4))
    moving = fresh or height < seat.top
    to = contact or seat.parent or seat.address
    nonce = seat.random.getrandbits(48)
    seat.joining = Joining(nonce, height, box, fresh, moving, to, now + wait)
    entry = MemberEntry(seat.address, box) if fresh else seat.entry(height)
    join = Join(seat.address, entry, height, seat.joining.nonce, seat.clock, avoid)
    join = replace(join, moving=moving, settled=seat.settled)
    if to != seat.address:
        seat.send(to, join)
    else:
        on_join(seat, seat.address, join, now)


def on_join(seat: Seat, sender: Address, join: Join, now: Instant) -> None:
    """Forward a join request, or accept it here."""
    if not _is_sound(seat, join):
        seat.tally.refused += 1
        seat.send(join.origin, Refused("no box of this space", join.nonce))
        return
    if join.hops >= seat.settings.hop_limit:
        seat.tally.refused += 1
        return
    join = replace(join, hops=join.hops + 1)
    if seat.top < 0 and seat.parent is None:
        return  # a follower that has just lost its relay; the origin asks again
    if join.twin:
        _join_twin(seat, join, now)
    elif join.descend is not None and join.descend <= seat.top:
        _descend(seat, join, join.descend, now)
    elif seat.parent is not None:
        seat.send(seat.parent, replace(join, descend=None))
    elif join.descend is not None and join.origin == seat.address:
        # The sender believes that this seat has a group that it has given up, and is a member.
        seat.send(sender, MemberLeft(join.descend + 1))
    else:
        _at_root(seat, sender, join, now)


def _is_sound(seat: Seat, join: Join) -> bool:
    sound = isinstance(join.height, int) and 0 <= join.height <= seat.settings.hop_limit
    return sound and seat.settings.extent.is_sound(join.entry.box)


def _at_root(seat: Seat, sender: Address, join: Join, now: Instant) -> None:
    if join.origin == seat.address and join.height >= seat.top:
        if seat.tries > PATIENT or any(sender in group.members for group in seat.groups):
            _own_request_arrived(seat, now)
            seat.settled = True  # it has climbed to here: the contact is in this very tree
    elif join.height < seat.top:
        _descend(seat, join, seat.top, now)
    elif join.origin in seat.groups[seat.top].members:
        seat.tally.refused += 1  # requested before the seat handed its groups over
    elif others := _elsewhere(seat, join, now):
        seat.send(others[seat.tries % len(others)], join)
    elif _rank(seat.top, seat.settled, seat.address) > _rank(
        join.height, join.settled, join.origin
    ):
        _accept_as_equal(seat, join, now)
    elif not seat.is_moving(now):
        # The other tree is the higher one: it accepts this one, not the other way round.
        begin_join(
            seat,
            now,
            height=seat.top,
            box=seat.entry(seat.top).box,
            fresh=False,
            contact=join.origin,
        )


def _rank(height: int, settled: bool, address: Address) -> tuple[int, bool, Address]:
    """Return the sort key that decides which of two trees joins the other."""
    return height, settled, address


def _elsewhere(seat: Seat, join: Join, now: Instant) -> list[Address]:
    """Return other peers to ask, if the seat is as lost as the origin and they may live."""
    lost = not seat.settled and not join.settled and seat.is_asking(now)
    if not lost or join.hops >= _MOST_DETOURS or seat.tries > PATIENT:
        return []
    return [one for one in seat.refuges if one.peer != join.origin.peer]


def _accept_as_equal(seat: Seat, join: Join, now: Instant) -> None:
    """Put a new root above two trees of the same height."""
    if seat.top == 0 and seat.groups[0].members[seat.address].box == join.entry.box:
        _adopt_follower(seat, join, now)
        return
    level = seat.top + 1
    entries = [seat.entry(seat.top), join.entry]
    seat.learn_term(join.term)
    seat.clock += 1
    seat.groups.append(Group.of(level, seat.clock, entries, now))
    adopt(seat, join.origin, level, join.nonce)
    settle(seat, level, now, newcomer=join.origin, nonce=join.nonce)


def _descend(seat: Seat, join: Join, level: int, now: Instant) -> None:
    forget_barren(seat)
    while level > join.height + 1:
        avoid = join.avoid if level == join.height + 2 else None
        best = _least_enlarged(seat, seat.groups[level], join.entry.box, avoid)
        if not best:
            seat.tally.refused += 1
            return  # no way except back to the origin, which asks again later
        if len(best) > 1 and level == 2 and seat.settings.placement is Placement.ESTIMATE:
            _gather(seat, join, best, now)
            return
        if best[0] != seat.address:
            seat.send(best[0], replace(join, descend=level - 1))
            return
        level -= 1
    if level == join.height + 1:
        _accept(seat, join, level, now)


def forget_barren(seat: Seat) -> None:
    """Drop the cached barren events: a new box passes by, and may want them."""
    if seat.barren:
        seat.barren.clear()
        for member in seat.asks:
            seat.asks[member] += 1


def _least_enlarged(seat: Seat, group: Group, box: Bounds, avoid: Address | None) -> list[Address]:
    """Return the members that need the least enlargement, the smallest first."""
    extent = seat.settings.extent
    found = [
        (extent.enlargement(entry.box, box), extent.volume(entry.box), address)
        for address, entry in group.members.items()
        if address != avoid
    ]
    if not found:
        return []
    found.sort()
    growth, margin = found[0][0]
    return [
        address
        for (other, other_margin), _, address in found
        if other <= growth + _SAME and other_margin <= margin + _SAME
    ]


# --- the choice among level-1 groups -----------------------------------------------------------


def _gather(seat: Seat, join: Join, best: list[Address], now: Instant) -> None:
    choice = PendingJoin(join, set(), {}, now + seat.settings.retry_ms)
    seat.choices[join.nonce] = choice
    for place, address in enumerate(best):
        if address == seat.address:
            choice.costs[address] = _estimate(seat, join.entry)
        else:
            choice.waiting.add(address)
            seat.send(address, Ask(join.entry, join.nonce))
        if place >= seat.settings.most:
            break
    if not choice.waiting:
        decide(seat, join.nonce, now)


def _estimate(seat: Seat, newcomer: MemberEntry) -> tuple[float, float]:
    """Return (0, cost) if exactly this box is in the level-1 group, else (1, cost)."""
    members = seat.groups[1].members
    others = [entry.box for address, entry in members.items() if address != newcomer.address]
    boxes = [*others, newcomer.box]
    settings = seat.settings
    winner = elect(
        settings.method,
        boxes,
        expected=settings.e.expected,
        volume=settings.extent.volume,
        costs=settings.costs,
    )
    cost = paper_cost(winner, boxes, settings.e.expected, settings.costs)
    return (0.0 if newcomer.box in others else 1.0), cost


def on_ask(seat: Seat, sender: Address, ask: Ask, now: Instant) -> None:  # noqa: ARG001 - as above
    """Answer with the cost of the level-1 group with the newcomer."""
    if seat.top < 1 or not seat.settings.extent.is_sound(ask.entry.box):
        seat.send(sender, Answer(ask.nonce, math.inf, twin=False))
        return
    fresh, cost = _estimate(seat, ask.entry)
    seat.send(sender, Answer(ask.nonce, cost, fresh == 0.0))


def on_answer(seat: Seat, sender: Address, answer: Answer, now: Instant) -> None:
    """Record an estimate; decide when it was the last one."""
    choice = seat.choices.get(answer.nonce)
    if choice is None or sender not in choice.waiting:
        seat.tally.refused += 1
        return
    choice.waiting.discard(sender)
    choice.costs[sender] = (0.0 if answer.twin else 1.0, answer.cost)
    if not choice.waiting or answer.twin:
        decide(seat, answer.nonce, now)


def decide(seat: Seat, nonce: int, now: Instant) -> None:
    """Send a pending join to the cheapest group among those that have answered."""
    choice = seat.choices.pop(nonce)
    costs = {a: c for a, c in choice.costs.items() if seat.top >= 2 and a in seat.groups[2].members}
    if not costs:
        on_join(seat, seat.address, replace(choice.join, descend=None), now)
        return
    best = min(costs, key=lambda address: (costs[address], address))
    if best == seat.address:
        _accept(seat, choice.join, 1, now)
    else:
        seat.send(best, replace(choice.join, descend=1))


# --- accepting -----------------------------------------------------------------------------------


def _accept(seat: Seat, join: Join, level: int, now: Instant) -> None:
    origin, group = join.origin, seat.groups[level]
    if origin == seat.address:
        _own_request_arrived(seat, now)
        return
    if level == 1:
        relay = _twin_of(group, join)
        if relay is not None:
            _to_twin(seat, relay, join, now)
            return
    seat.learn_term(join.term)
    group.members[origin] = join.entry
    group.heard[origin] = now
    adopt(seat, origin, level, join.nonce)
    settle(seat, level, now, newcomer=origin, nonce=join.nonce)


def _own_request_arrived(seat: Seat, now: Instant) -> None:
    """Handle the seat's own request, which ended in a group that it hosts itself."""
    joining = seat.joining
    seat.joining = None
    if joining is None or not joining.fresh:
        return
    seat.box = joining.box
    if seat.top >= 0 and len(seat.groups[0].members) == 1:
        settle(seat, 0, now)
    else:
        leave_groups(seat, 0, now)
        stand_alone(seat, now)
        begin_join(seat, now, height=0, box=seat.box, fresh=False, contact=seat.former)


def change_box(seat: Seat, now: Instant) -> None:
    """Move to where the wanted box belongs; at once where no other seat depends on this one."""
    if seat.parent is None and seat.top == 0 and len(seat.groups[0].members) == 1:
        seat.box = seat.wanted
        settle(seat, 0, now)
    else:
        begin_join(seat, now, height=0, box=seat.wanted, fresh=True)


def stand_alone(seat: Seat, now: Instant) -> None:
    """Make the seat a tree by itself, of height 0."""
    seat.groups = [Group.of(0, seat.clock + 1, [MemberEntry(seat.address, seat.box)], now)]
    seat.branches = None


def leave_groups(seat: Seat, start: int, now: Instant, known: tuple[Address, ...] = ()) -> None:
    """Hand the groups from `start` up to their other members, and drop the parent.

    `known` gives a new root other addresses that may belong to another tree.
    """
    heads = [a for g in seat.groups[start:] for a in g.members if a != seat.address]
    seat.former = seat.parent or (heads[-1] if heads else None)
    settle(seat, start, now, leaving=True, known=known)
    set_parent(seat, None, seat.parent_term, now)


def _twin_of(group: Group, join: Join) -> Address | None:
    for address, entry in group.members.items():
        if entry.box == join.entry.box and address != join.origin:
            return address
    return None


def _to_twin(seat: Seat, relay: Address, join: Join, now: Instant) -> None:
    if relay == seat.address:
        _adopt_follower(seat, join, now)
    else:
        seat.send(relay, replace(join, twin=True, descend=None))


def _join_twin(seat: Seat, join: Join, now: Instant) -> None:
    if seat.top >= 0 and seat.groups[0].members[seat.address].box == join.entry.box:
        _adopt_follower(seat, join, now)
    else:
        on_join(seat, seat.address, replace(join, twin=False, descend=None), now)


def _adopt_follower(seat: Seat, join: Join, now: Instant) -> None:
    """Relay for another seat with exactly the same box (trap T3.3)."""
    if join.origin == seat.address:
        return
    seat.learn_term(join.term)
    group = seat.groups[0]
    group.members[join.origin] = join.entry
    group.heard[join.origin] = now
    seat.branches = None
    adopt(seat, join.origin, 0, join.nonce)
    settle(seat, 0, now)
