"""Heartbeats, and repair when they stop (trap T3.1): crashes, silent leaves, partitions.

A silent member is dropped. A silent parent is replaced by the member that its group elects: all
members know their siblings, so all elect the same one; it adopts the others and joins the rest of
the tree through a grandparent or an aunt. A member that is not adopted in time joins alone. Two
trees that find each other become one: the lower joins the higher.

Read next: `routing.py`.
"""

from __future__ import annotations

from nearcast.overlay.election import Method
from nearcast.overlay.joining import PATIENT, begin_join, change_box, decide
from nearcast.overlay.messages import (
    Address,
    Grant,
    Greet,
    Instant,
    Meet,
    MemberEntry,
    PeerId,
    Relocate,
)
from nearcast.overlay.routing import flush, forget_heirs
from nearcast.overlay.seat import MOST_MET, Seat
from nearcast.overlay.structure import (
    LEAST_SAMPLE,
    adopt,
    choose_host,
    report,
    settle,
    take_over,
)
from nearcast.overlay.upkeep import become_root_of_fragment

_TOLD = 2
"""How many neighbours a greeting names."""


def attend(seat: Seat, now: Instant) -> None:
    """Process everything that is due by now."""
    if seat.flush_at is not None and seat.flush_at <= now:
        flush(seat)
    for nonce in [n for n, choice in seat.choices.items() if choice.deadline <= now]:
        decide(seat, nonce, now)
    if seat.next_beat <= now:
        beat(seat, now)
    elif (seat.joining is not None and seat.joining.deadline <= now) or (
        seat.awaiting is not None and seat.awaiting <= now
    ):
        _retry(seat, now)


def _retry(seat: Seat, now: Instant) -> None:
    """Retry a request that was not answered."""
    if seat.parent is None:
        _seek_parent(seat, now)
    _ask_again(seat, now)


def beat(seat: Seat, now: Instant) -> None:
    """Send heartbeats, drop silent members, replace a lost parent, shrink or re-elect groups."""
    settings = seat.settings
    seat.beats += 1
    _forget_silent(seat, now)
    if seat.parent is not None and now - seat.parent_heard > settings.patience_ms:
        _parent_lost(seat, now, wait_ms=2 * settings.beat_ms)
    _retry(seat, now)
    _shrink(seat, now)
    _count_burden(seat)
    _reconsider(seat, now)
    report(seat, always=True)
    for group in seat.groups:
        for member in group.members:
            if member != seat.address:
                adopt(seat, member, group.level)
    _greet_lost(seat, now)
    if seat.heirs:
        forget_heirs(seat, now)
    seat.next_beat = now + settings.beat_ms


def peer_ended(seat: Seat, peer: PeerId, now: Instant) -> None:
    """Drop a peer whose process has ended, at once: nobody need wait until it has been silent.

    It is greeted from time to time as a silent one is: a firewall may have refused for it.
    """
    seat.refuges = [one for one in seat.refuges if one.peer != peer]
    seat.kin = tuple(one for one in seat.kin if one.peer != peer)
    touched = []
    for group in seat.groups:
        for member in [one for one in group.members if one.peer == peer]:
            group.drop(member)
            seat.remember_lost(member, now)
            touched.append(group.level)
    if touched:
        settle(seat, touched[0], now, until=touched[-1])
    if seat.parent is not None and seat.parent.peer == peer:
        _parent_lost(seat, now, wait_ms=seat.settings.beat_ms // 2)
        _retry(seat, now)
    elif seat.joining is not None and seat.joining.contact.peer == peer:
        seat.joining.deadline = now
        _retry(seat, now)


def _forget_silent(seat: Seat, now: Instant) -> None:
    limit = now - seat.settings.patience_ms
    touched = []
    for group in seat.groups:
        silent = [a for a, at in group.heard.items() if at < limit and a != seat.address]
        for member in silent:
            group.drop(member)
            seat.remember_lost(member, now)
        if silent:
            touched.append(group.level)
    if touched:
        settle(seat, touched[0], now, until=touched[-1])


def _parent_lost(seat: Seat, now: Instant, wait_ms: int) -> None:
    """Elect another parent among the siblings; become it, or wait for its adoption.

    They all see at once that a process has ended, and within a heartbeat that it is silent.
    """
    gone = seat.parent
    assert gone is not None
    level, siblings = seat.top + 1, seat.siblings
    seat.remember_lost(gone, now)
    left = {e.address: e for e in siblings if e.address not in (gone, seat.address)}
    follower = seat.top < 0
    own = seat.entry(seat.top)
    become_root_of_fragment(seat, now)
    if not left:
        return
    left[seat.address] = own
    ordered = {a: left[a] for a in _in_order(siblings, left)}
    chosen = next(iter(ordered)) if follower else _chosen(seat, level, ordered)
    if chosen != seat.address:
        seat.awaiting = now + wait_ms
        if follower:
            seat.groups = []
            seat.branches = None
        return
    if follower:
        seat.groups = []
    seat.clock = max(seat.clock, seat.parent_term) + 1
    take_over(seat, [Grant(level, tuple(ordered.values()))], seat.clock, now)


def _in_order(siblings: tuple[MemberEntry, ...], left: dict[Address, MemberEntry]) -> list[Address]:
    """Return the siblings that are left, in the order in which all siblings know them."""
    known = [e.address for e in siblings if e.address in left]
    return known + sorted(a for a in left if a not in known)


def _chosen(seat: Seat, level: int, left: dict[Address, MemberEntry]) -> Address:
    """Return the winner that every sibling computes: no incumbent, no random choice."""
    if seat.settings.method is Method.RANDOM:
        return min(left)
    listed = {address: left[address] for address in sorted(left)}
    return choose_host(seat, level, listed, impartial=True)


def _seek_parent(seat: Seat, now: Instant) -> None:
    """Ask one refuge after the other; a root asks a contact now and then, for other trees."""
    if seat.awaiting is not None:
        if now < seat.awaiting:
            return
        seat.awaiting = None
        if seat.top < 0:
            become_root_of_fragment(seat, now)
    if seat.is_asking(now):
        return
    if seat.settled:
        rounds = max(1, seat.settings.probe_ms // seat.settings.beat_ms)
        others = [a for a in (*seat.contacts, *seat.lost) if a.peer != seat.address.peer]
        if seat.beats % rounds or seat.next_beat > now or not others:
            return
        contact = others[seat.beats // rounds % len(others)]
    else:
        if seat.tries >= len(seat.refuges):
            seat.refuges = list(dict.fromkeys((*seat.refuges, *seat.contacts, *seat.lost)))
        if not seat.refuges:
            seat.settled = True
            return
        known = (seat.tries <= PATIENT and _promising(seat, now)) or seat.refuges
        contact = known[seat.tries % len(known)]
        seat.tries += 1
    ask_to_join(seat, now, contact)


def _promising(seat: Seat, now: Instant) -> list[Address]:
    """Return the refuges that may know another tree: neither dead nor members of this seat."""
    mine = {member for group in seat.groups for member in group.members}
    return [one for one in seat.refuges if one not in mine and seat.is_reached(one, now)]


def ask_to_join(seat: Seat, now: Instant, contact: Address) -> None:
    """Ask that the whole tree below this root be accepted."""
    box = seat.entry(seat.top).box
    begin_join(seat, now, height=seat.top, box=box, fresh=False, contact=contact)


def _ask_again(seat: Seat, now: Instant) -> None:
    """Give up a request that was not answered; a change of box is requested again."""
    if seat.is_asking(now):
        return
    seat.joining = None
    is_placed = seat.parent is not None or seat.settled
    if seat.wanted != seat.box and is_placed:
        change_box(seat, now)


def _shrink(seat: Seat, now: Instant) -> None:
    """Give up the highest group that has too few members, one at a time (trap T3.2)."""
    for level in range(seat.top, 0, -1):
        group = seat.groups[level]
        is_root = level == seat.top and seat.parent is None
        if is_root or len(group.members) >= seat.settings.least:
            continue
        if not _is_smallest(seat, level, len(group.members)):
            continue
        for member in group.members:
            if member != seat.address:
                seat.send(member, Relocate(level))
        if not seat.is_asking(now):
            begin_join(
                seat,
                now,
                height=level - 1,
                box=seat.entry(level - 1).box,
                fresh=False,
                avoid=seat.address,
            )
        return


def _is_smallest(seat: Seat, level: int, size: int) -> bool:
    """Return whether this group dissolves: of several small siblings only the smallest one does."""
    if level < seat.top:
        siblings = list(seat.groups[level + 1].members.values())
    else:
        siblings = list(seat.siblings)
    least = seat.settings.least
    small = [(e.size, e.address) for e in siblings if e.size < least and e.address != seat.address]
    return all((size, seat.address) < other for other in small)


def _reconsider(seat: Seat, now: Instant) -> None:
    """Elect hosts again; if the settings say so, by measured rates or by what hosts have borne."""
    heir = _relief(seat, now) if seat.settings.spread else None
    if heir is not None:
        seat.hosting_since = now
        settle(seat, seat.top, now, heir=heir)
        return
    if seat.settings.method is not Method.MEASURED:
        if seat.top > 0:
            settle(seat, 1, now, until=seat.top)
        return
    for level in range(1, seat.top + 1):
        heir = _busiest(seat, level)
        if heir is not None:
            settle(seat, level, now, heir=heir)
            return
    if seat.top > 0:
        settle(seat, 1, now, until=seat.top)


def _count_burden(seat: Seat) -> None:
    """Add the overhead of the last beat to what the seat has borne; the past fades."""
    overhead = seat.overhead()
    fading = 1.0 - 0.1 / seat.settings.spread_beats
    seat.burden = seat.burden * fading + max(0.0, overhead - seat.counted)
    seat.counted = overhead


def _relief(seat: Seat, now: Instant) -> Address | None:
    """Return the member to hand the highest group to: the cheapest host of those that bear little.

    None if there is no such member, or if the seat's place or its groups are new: two handovers at
    the same time leave a branch without a parent, and acknowledgements are in doubt after each.
    """
    settings, held_ms = seat.settings, now - seat.hosting_since
    is_new = seat.parent is not None and now - seat.parent_since < 3 * settings.beat_ms
    rests = seat.heirs or is_new or held_ms < settings.spread_beats * settings.beat_ms
    if seat.top < 1 or rests or seat.burden < LEAST_SAMPLE:
        return None
    group = seat.groups[seat.top]
    idle = [
        address
        for address, load in group.loads.items()
        if load * settings.spread < seat.burden and address in group.members
    ]
    return max(
        idle, key=lambda one: (settings.e.expected(group.members[one].box), one), default=None
    )


def _busiest(seat: Seat, level: int) -> Address | None:
    """Return the member with clearly more events of its own than the host, if there is one."""
    passed = seat.groups[level].passed
    if sum(passed.values()) < LEAST_SAMPLE:
        return None
    best = max(passed, key=lambda address: (passed[address], address == seat.address))
    own = passed.get(seat.address, 0)
    clear = passed[best] > own * (1.0 + seat.settings.hysteresis) + LEAST_SAMPLE**0.5
    for address in passed:
        passed[address] //= 2
    return best if clear and best in seat.groups[level].members else None


# --- partitions --------------------------------------------------------------------------------


def _greet_lost(seat: Seat, now: Instant) -> None:
    """Compare roots with silent peers, and now and then with a contact from the start."""
    due = [address for address, at in seat.lost.items() if at <= now]
    if due:
        seat.lost[due[0]] = now + seat.settings.probe_ms
        seat.send(due[0], Greet(seat.root, answer=True, known=_neighbours_to_tell(seat)))
    rounds = max(1, seat.settings.probe_ms // seat.settings.beat_ms)
    if seat.contacts and seat.beats % rounds == rounds - 1:
        contact = seat.contacts[int(seat.random.random() * len(seat.contacts))]
        seat.send(contact, Greet(seat.root, answer=True, known=_neighbours_to_tell(seat)))


def _neighbours_to_tell(seat: Seat) -> tuple[Address, ...]:
    """Return some neighbours, for a peer elsewhere in the tree.

    So peers come to know others that are far from them, and many deaths at once leave none alone.
    """
    known = {*seat.path, *(one.address for one in seat.siblings)}
    known.update(*(group.members for group in seat.groups))
    found = sorted(one for one in known if one.peer != seat.address.peer)
    return tuple(seat.random.sample(found, min(_TOLD, len(found))))


def on_greet(seat: Seat, sender: Address, message: Greet, now: Instant) -> None:
    """Compare roots; if they differ, two trees have found each other."""
    seat.lost.pop(sender, None)
    seat.met += [one for one in message.known if one.peer != seat.address.peer]
    del seat.met[:-MOST_MET]
    if message.answer:
        seat.send(sender, Greet(seat.root, answer=False, known=_neighbours_to_tell(seat)))
    if message.root != seat.root:
        on_meet(seat, sender, Meet(sender), now)


def on_meet(seat: Seat, sender: Address, message: Meet, now: Instant) -> None:  # noqa: ARG001 - all handlers have one shape
    """Forward the news up to the root, which asks to be accepted (or to accept the other)."""
    if message.hops >= seat.settings.hop_limit or message.contact == seat.address:
        return
    if seat.parent is not None:
        seat.send(seat.parent, Meet(message.contact, message.hops + 1))
    elif not seat.is_moving(now) and seat.awaiting is None and seat.top >= 0:
        ask_to_join(seat, now, message.contact)
