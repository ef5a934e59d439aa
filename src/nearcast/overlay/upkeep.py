"""The parent-child relations: adopting, reporting, handing over; repeated with every heartbeat.

Every statement about the tree is soft state: it is repeated each heartbeat and expires otherwise. A
*term* orders statements about the same group: a new host uses a higher one, so that a late message
of the old host changes nothing.

Read next: `repair.py`.
"""

from __future__ import annotations

from dataclasses import replace

from nearcast.overlay.bounds import covers
from nearcast.overlay.joining import begin_join, leave_groups, stand_alone
from nearcast.overlay.messages import (
    Address,
    Adopt,
    Envelope,
    Grant,
    GroupHandover,
    Instant,
    MemberLeft,
    MemberReport,
    Relocate,
    Replace,
    Returned,
    Unknown,
)
from nearcast.overlay.seat import Gap, Seat
from nearcast.overlay.structure import adopt, note_gap, report, set_parent, settle, take_over

MOST_DETOURS = 4
"""How often a message is forwarded to the new host of a group."""


def on_adopt(seat: Seat, sender: Address, message: Adopt, now: Instant) -> None:
    """Set the sender as parent, if it answers a request or its term is newer."""
    circular = sender == seat.parent and seat.address in message.path
    if circular and _is_cycle(seat, sender, message, now):
        return
    seat.learn_term(message.term)
    joining = seat.joining
    if joining is not None and message.nonce == joining.nonce:
        if _fits(seat, message.level):
            _move_to(seat, sender, message, now)
            return
    elif message.level > seat.top + 1 and _may_be_handed_over(seat, message, now):
        return
    elif message.level == seat.top + 1 and (
        _is_parent(seat, sender, message.term) or _answers_late(seat, message)
    ):
        if sender != seat.parent:
            note_gap(seat)
            _note_if_misknown(seat, message)
            if seat.parent is None and seat.joining is not None and not seat.joining.fresh:
                seat.joining = None  # it asked because it had no parent
            set_parent(seat, sender, message.term, now)
        _heed(seat, message, now)
        return
    if sender != seat.parent or message.level != seat.top + 1:
        seat.send(sender, MemberLeft(message.level))


def _may_be_handed_over(seat: Seat, message: Adopt, now: Instant) -> bool:
    """Return whether a handover to this seat may still be in flight; else the sender is wrong."""
    return message.nonce is None and now - seat.parent_since < seat.settings.beat_ms


def _note_if_misknown(seat: Seat, message: Adopt) -> None:
    """Record a gap if the host that takes the parent's place does not know all that is below here.

    It may have taken the place of a parent that died, and know the last heartbeat only.
    """
    entry = seat.entry(seat.top)
    told = next((one for one in message.siblings if one.address == seat.address), entry)
    if seat.parent is not None and not covers(told.box, entry.box):
        seat.gaps.append(Gap(entry.box, seat.parent_heard))


def _is_cycle(seat: Seat, sender: Address, message: Adopt, now: Instant) -> bool:
    """Return whether the sender repeatedly claims to be below this seat; then leave it.

    Its first claims may be out of date: news of the path takes a heartbeat per level. A cycle
    cannot arise otherwise, since a parent hosts a higher level than its members.
    """
    seat.tally.refused += 1
    seat.circles += 1
    if seat.circles <= 3 + len(message.path):
        return False
    seat.circles = 0
    seat.send(sender, MemberLeft(message.level))
    become_root_of_fragment(seat, now)
    return True


def _is_parent(seat: Seat, sender: Address, term: int) -> bool:
    if sender == seat.parent:
        return True
    if seat.parent is None:
        return sender == seat.former or (term > seat.parent_term and seat.awaiting is not None)
    return term > seat.parent_term


def _answers_late(seat: Seat, message: Adopt) -> bool:
    """Return whether this answers a request that was given up, while no other was answered."""
    return seat.parent is None and seat.joining is not None and message.nonce is not None


def _fits(seat: Seat, level: int) -> bool:
    """Return whether the seat asked for a group of this level."""
    joining = seat.joining
    assert joining is not None
    if level == 0:
        return joining.height == 0
    if joining.moving:
        return level == joining.height + 1 and (joining.fresh or joining.height <= seat.top)
    return level == joining.height + 1 == seat.top + 1


def _move_to(seat: Seat, sender: Address, message: Adopt, now: Instant) -> None:
    """Leave the old place for the new one."""
    joining, same = seat.joining, seat.parent == sender
    assert joining is not None
    note_gap(seat)
    start = 0 if joining.fresh or message.level == 0 else joining.height + 1
    if same and not joining.fresh and message.level == seat.top + 1:
        seat.joining = None  # already there
        _heed(seat, message, now)
        return
    if start <= seat.top and not _alone(seat, start):
        leave_groups(seat, start, now, known=(sender,))
    elif seat.parent is not None and not (same and message.level == seat.top + 1):
        seat.send(seat.parent, MemberLeft(seat.top + 1))
    if joining.fresh:
        seat.box = joining.box
        stand_alone(seat, now)
    if message.level == 0:
        seat.groups = []
        seat.branches = None
    seat.joining = None
    seat.choices.clear()
    set_parent(seat, sender, message.term, now)
    _heed(seat, message, now)


def _alone(seat: Seat, start: int) -> bool:
    """Return whether the seat is alone in the groups from `start` up."""
    return start == 0 == seat.top and len(seat.groups[0].members) == 1


def _heed(seat: Seat, message: Adopt, now: Instant) -> None:
    seat.parent_term = max(seat.parent_term, message.term)
    seat.parent_heard = now
    seat.former = None
    seat.awaiting = None
    seat.sponsor = None
    seat.siblings = message.siblings
    seat.path = tuple(address for address in message.path if address != seat.address)
    seat.kin = message.kin
    seat.tries = 0
    if seat.address not in message.path:
        seat.circles = 0
    own = next((e for e in message.siblings if e.address == seat.address), None)
    if own is not None and own != seat.entry(seat.top):
        report(seat, always=True)


def on_report(seat: Seat, sender: Address, message: MemberReport, now: Instant) -> None:
    """Record a member's report; answer a sender that is no member with `Unknown`."""
    level, entry = message.level, message.entry
    if entry.address != sender or not seat.settings.extent.is_sound(entry.box):
        seat.tally.refused += 1
        return
    seat.learn_term(message.term)
    known = 0 <= level <= seat.top and sender in seat.groups[level].members
    if not known and send_after(seat, sender, message, message.sponsor):
        return
    if not 0 <= level <= seat.top:
        seat.send(sender, Unknown(level))
        return
    group = seat.groups[level]
    before = group.members.get(sender)
    if before is None:
        if message.sponsor not in group.members:
            seat.send(sender, Unknown(level))
            return
        group.members[sender] = entry
        group.heard[sender] = now
        adopt(seat, sender, level)
        settle(seat, level, now, newcomer=sender)
        return
    group.heard[sender] = now
    group.members[sender] = entry
    group.loads[sender] = message.load
    if entry != before:
        if level == 0 and entry.box != seat.box:
            group.drop(sender)  # its box differs now: no follower any more
        settle(seat, level, now, elects=False)


def send_after(
    seat: Seat,
    sender: Address,
    message: MemberReport | Replace | MemberLeft,
    sponsor: Address | None = None,
) -> bool:
    """Forward a message to the new host of a group handed over lately; return whether it was."""
    if 0 <= message.level <= seat.top and sponsor in seat.groups[message.level].members:
        return False
    heir = seat.heir_of(message.level, sender, sponsor)
    if heir == sender:
        return True  # the sender hosts the group itself now
    if heir is None or message.hops >= MOST_DETOURS:
        return False
    seat.out.append(Envelope(heir, sender, replace(message, hops=message.hops + 1)))
    return True


def on_replace(seat: Seat, sender: Address, message: Replace, now: Instant) -> None:
    """Replace a member that handed its group over by the new host."""
    level, entry = message.level, message.entry
    seat.learn_term(message.term)
    known = 0 <= level <= seat.top and sender in seat.groups[level].members
    if not known and send_after(seat, sender, message):
        return
    if not known or not seat.settings.extent.is_sound(entry.box):
        seat.tally.refused += 1
        return
    if entry.address == seat.address:
        seat.tally.refused += 1
        return
    group = seat.groups[level]
    group.drop(sender)
    group.members[entry.address] = entry
    group.heard[entry.address] = now
    settle(seat, level, now)


def on_left(seat: Seat, sender: Address, message: MemberLeft, now: Instant) -> None:
    """Remove a member."""
    level = message.level
    if not 0 <= level <= seat.top or sender not in seat.groups[level].members:
        send_after(seat, sender, message)
        return
    if sender == seat.address:
        seat.tally.refused += 1
        return
    seat.groups[level].drop(sender)
    settle(seat, level, now)


def on_unknown(seat: Seat, sender: Address, message: Unknown, now: Instant) -> None:  # noqa: ARG001 - as above
    """Look for another parent, unless a change is in progress: this one does not know the seat.

    A parent that has handed its group over forwards reports, so the answer may come from another.
    """
    if seat.parent is None or message.level != seat.top + 1:
        return
    if now < (patience := seat.parent_since + seat.settings.beat_ms):
        seat.next_beat = min(seat.next_beat, patience)
        return
    become_root_of_fragment(seat, now)


def become_root_of_fragment(seat: Seat, now: Instant) -> None:
    """Drop the parent, and list the peers to ask for a new one."""
    gone = seat.parent
    above = [address for address in reversed(seat.path) if address != gone]
    others = [*above, *seat.kin, *seat.contacts]
    own = {seat.address, gone}
    seat.refuges = list(dict.fromkeys(a for a in others if a not in own))
    seat.former = gone
    seat.tries = 0
    seat.settled = False
    seat.joining = None
    if gone is not None:
        seat.cut_since = seat.parent_heard
    set_parent(seat, None, seat.parent_term, now)
    if seat.top < 0:
        stand_alone(seat, now)


def on_handover(seat: Seat, sender: Address, message: GroupHandover, now: Instant) -> None:
    """Host the groups that the parent hands over, and take its place."""
    if not _is_entitled(seat, sender, message):
        _pass_handover_on(seat, sender, message)
        return
    seat.learn_term(message.term)
    note_gap(seat)
    joined = seat.joining is not None and not seat.joining.fresh
    if joined:
        seat.joining = None
    path = _path_to(seat.path[:-1], message.uplink)
    set_parent(seat, message.uplink, message.uplink_term, now)
    seat.path = path
    seat.siblings = ()
    seat.sponsor = message.sponsor
    seat.settled = message.settled
    if message.uplink is None and not message.settled:
        seat.refuges = [a for a in message.known if a != seat.address]
        seat.tries = 0
        seat.next_beat = now + 1  # the whole tree waits for this seat to find the rest
    for address in message.known:
        seat.remember_lost(address, now)
    take_over(seat, message.grants, message.term, now)
    report(seat, always=True)


def _path_to(path: tuple[Address, ...], parent: Address | None) -> tuple[Address, ...]:
    """Return the path to the root through a new parent, as far as known before its heartbeat."""
    if parent is None:
        return ()
    return path[: path.index(parent) + 1] if parent in path else (*path, parent)


def _pass_handover_on(seat: Seat, sender: Address, message: GroupHandover) -> None:
    """Forward a handover to the new host of this seat's former group, or return it."""
    seat.tally.refused += 1
    if not message.grants:
        return
    first = message.grants[0]
    heir = seat.heir_of(first.level - 1)
    if heir is not None and first.level > seat.top + 1 and message.hops < MOST_DETOURS:
        grants = tuple(_renamed(grant, seat.address, heir) for grant in message.grants)
        seat.out.append(
            Envelope(heir, sender, replace(message, grants=grants, hops=message.hops + 1))
        )
    else:
        seat.send(sender, Returned(message))


def _renamed(grant: Grant, old: Address, new: Address) -> Grant:
    entries = [e._replace(address=new) if e.address == old else e for e in grant.entries]
    return Grant(grant.level, tuple(entries))


def on_returned(seat: Seat, sender: Address, message: Returned, now: Instant) -> None:
    """Take back groups that could not be handed over, without the member that refused."""
    handover = message.handover
    grants = [
        Grant(grant.level, tuple(e for e in grant.entries if e.address != sender))
        for grant in handover.grants
    ]
    mine = all(any(e.address == seat.address for e in grant.entries) for grant in grants)
    levels = [grant.level for grant in grants]
    wanted = list(range(seat.top + 1, seat.top + 1 + len(grants)))
    lately = bool(grants) and seat.heir_of(levels[0]) is not None
    if not lately or levels != wanted or not mine:
        seat.tally.refused += 1
        return
    set_parent(seat, handover.uplink, handover.uplink_term, now)
    seat.sponsor = sender
    seat.clock = max(seat.clock, handover.term) + 1
    take_over(seat, grants, seat.clock, now)
    settle(seat, levels[0], now, until=levels[-1])
    report(seat, always=True)


def _is_entitled(seat: Seat, sender: Address, message: GroupHandover) -> bool:
    """Return whether the sender may hand these groups over, and whether they fit."""
    joining = seat.joining
    asked = joining is not None and message.nonce == joining.nonce
    if asked and joining is not None and joining.fresh and seat.top != 0:
        return False
    parent = sender == seat.parent or (seat.parent is None and sender == seat.former)
    sent_after = message.hops > 0  # forwarded by the old host of this seat's group, to the new one
    newer = asked or message.term > seat.parent_term
    if not (parent or asked or sent_after) or not newer or message.uplink == seat.address:
        return False
    levels = [grant.level for grant in message.grants]
    fits = levels == list(range(seat.top + 1, seat.top + 1 + len(levels)))
    return fits and all(_is_member(seat, grant) for grant in message.grants)


def _is_member(seat: Seat, grant: Grant) -> bool:
    """Return whether a group is valid and the seat one of its members."""
    sound = all(seat.settings.extent.is_sound(entry.box) for entry in grant.entries)
    return sound and any(entry.address == seat.address for entry in grant.entries)


def on_relocate(seat: Seat, sender: Address, message: Relocate, now: Instant) -> None:
    """Ask for another parent, as this one's group is too small; stay until one answers."""
    if sender != seat.parent or message.level != seat.top + 1:
        seat.tally.refused += 1
        return
    if not seat.is_asking(now):
        box = seat.entry(seat.top).box
        begin_join(seat, now, height=seat.top, box=box, fresh=False, avoid=sender)
