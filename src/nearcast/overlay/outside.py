"""What the other peers of a tree want: for a bridge, which has to tell a network outside.

The hosts on the way from the root to a seat know, together, all of the tree but the seat itself:
each has the boxes of its groups, and the members that lie on the way are known in detail one host
further down.

        root  r ── a ── me        r says: r's own box, b, c    (a is on the way)
               ├─ b               a says: a's own box, d       (me is left out)
               └─ c     d

So a bridge asks O(log n) hosts, and gets O(log n) boxes.

Read next: `peer.py`.
"""

from __future__ import annotations

from nearcast.overlay.bounds import Bounds
from nearcast.overlay.messages import Address, AskBoxes, GroupBoxes, Instant, MemberEntry
from nearcast.overlay.seat import Seat


def ask_for_boxes(seat: Seat) -> None:
    """Ask all hosts on the way from the root for the boxes of their groups."""
    seat.outside = {host: boxes for host, boxes in seat.outside.items() if host in seat.path}
    for host in seat.path:
        seat.send(host, AskBoxes())


def on_ask_boxes(seat: Seat, sender: Address, message: AskBoxes, now: Instant) -> None:  # noqa: ARG001 - all handlers have one shape
    """Answer with the boxes of the groups hosted here, and the seat's own."""
    seat.send(sender, GroupBoxes(_entries(seat)))


def on_group_boxes(seat: Seat, sender: Address, message: GroupBoxes, now: Instant) -> None:  # noqa: ARG001 - all handlers have one shape
    """Remember what a host on the way said."""
    if sender in seat.path and message.entries:
        seat.outside[sender] = message.entries
    else:
        seat.tally.refused += 1


def boxes_outside(seat: Seat) -> list[Bounds] | None:
    """Return boxes around what all other peers want; None until all hosts have answered.

    Other boxes of the seat's own peer are left out where they are known one by one.
    """
    if any(host not in seat.outside for host in seat.path):
        return None
    way = {seat.address, *seat.path}
    boxes = [entry.box for entry in _entries(seat)[1:] if not _is_own(entry, seat)]
    for host in seat.path:
        own, *members = seat.outside[host]
        if host.peer != seat.address.peer:
            boxes.append(own.box)
        boxes += [e.box for e in members if e.address not in way and not _is_own(e, seat)]
    return list(dict.fromkeys(boxes))


def _entries(seat: Seat) -> tuple[MemberEntry, ...]:
    """Return the seat's own box first, then the members of its groups, itself left out."""
    own = MemberEntry(seat.address, seat.box)
    others = [
        entry
        for group in seat.groups
        for address, entry in group.members.items()
        if address != seat.address
    ]
    return (own, *others)


def _is_own(entry: MemberEntry, seat: Seat) -> bool:
    return entry.address.peer == seat.address.peer and entry.size == 1
