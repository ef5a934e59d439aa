"""Invariants of the tree: what must hold between all peers once no message is in flight.

No peer can check this, as none knows the whole tree: `violations` inspects all of them at once, in
tests and in the simulator.

Read next: `cover.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nearcast.overlay.bounds import covers
from nearcast.overlay.messages import Address
from nearcast.overlay.peer import OverlayPeer
from nearcast.overlay.seat import Group, Seat


def violations(peers: Iterable[OverlayPeer]) -> list[str]:
    """Return what is wrong with the tree of these peers; an empty list when nothing is.

    - there is one root, and every seat is reached from it exactly once;
    - a member's parent is the host, and its highest level is one below the group's;
    - a group's host is one of its members, and its entry of each equals the member's state;
    - groups have `least` to `most` members, the root's two or more;
    - followers have exactly the box of their relay; every box lies within those above it.
    Complexity: O(seats).
    """
    seats = {seat.address: seat for peer in peers for seat in peer.seats.values()}
    found = []
    roots = [seat for seat in seats.values() if seat.parent is None]
    if seats and len(roots) != 1:
        found.append(f"{len(roots)} roots: {sorted(root.address for root in roots)[:5]}")
    reached: dict[Address, int] = {}
    for root in roots:
        _reach(root, seats, reached)
    lost = [address for address in seats if reached.get(address, 0) != 1]
    if lost:
        found.append(f"reached not exactly once: {sorted(lost)[:5]} ({len(lost)} in all)")
    for seat in seats.values():
        found += _of_seat(seat, seats)
    return found


def _reach(root: Seat, seats: dict[Address, Seat], reached: dict[Address, int]) -> None:
    pending = [root.address]
    while pending:
        address = pending.pop()
        reached[address] = reached.get(address, 0) + 1
        seat = seats.get(address)
        if seat is None or reached[address] > 1:
            continue
        pending += [a for group in seat.groups for a in group.members if a != address]


def _of_seat(seat: Seat, seats: dict[Address, Seat]) -> Iterator[str]:
    for level, group in enumerate(seat.groups):
        name = f"group {level} of {seat.address.peer}/{seat.address.seat}"
        if group.level != level:
            yield f"{name}: says it is of level {group.level}"
        if seat.address not in group.members:
            yield f"{name}: its host is no member"
        yield from _size_of(seat, group, name)
        for address in group.members:
            yield from _of_member(seat, group, address, seats, name)
    if seat.groups and seat.box != seat.wanted:
        yield f"{seat.address}: a change of box is not done"


def _size_of(seat: Seat, group: Group, name: str) -> Iterator[str]:
    settings, size = seat.settings, len(group.members)
    is_root = seat.parent is None and group.level == seat.top
    least = 1 if group.level == 0 else 2 if is_root else settings.least
    if size < least or (group.level > 0 and size > settings.most):
        yield f"{name}: {size} members"


def _of_member(
    seat: Seat, group: Group, address: Address, seats: dict[Address, Seat], name: str
) -> Iterator[str]:
    member = seats.get(address)
    if member is None:
        yield f"{name}: member {address} does not exist"
        return
    if address == seat.address:
        if group.members[address].box != seat.entry(group.level - 1).box:
            yield f"{name}: its own box is wrong"
        return
    if member.parent != seat.address:
        yield f"{name}: member {address} has the parent {member.parent}"
    if member.top != group.level - 1:
        yield f"{name}: member {address} hosts up to level {member.top}"
        return
    box = member.entry(member.top).box
    if group.members[address].box != box:
        yield f"{name}: thinks that {address} has another box than it has"
    if group.level == 0 and box != seat.box:
        yield f"{name}: follower {address} has another box"
    if not covers(group.box(), box):
        yield f"{name}: does not contain {address}"
