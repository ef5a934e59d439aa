"""The way of an event through a tree at rest, and whom it burdens, without a message being sent.

The paper's listing lets an event climb only until a group contains it, which misses subscriptions
in groups that overlap there (trap T3.6). So no peer does it; but it is one reading of what the
paper measured.
"""

from __future__ import annotations

from collections.abc import Sequence

from nearcast.overlay.bounds import Bounds, covers
from nearcast.overlay.messages import Address
from nearcast.papers.content_overlay.world import SimulatedOverlay


class EventWalk:
    """The groups of all peers; receiving what one does not want costs 1, forwarding F.

    Complexity: O(groups visited) per event.
    """

    def __init__(self, net: SimulatedOverlay, forward_cost: float) -> None:
        self.seats = {seat.address: seat for p in net.peers.values() for seat in p.seats.values()}
        self._first = {name: next(iter(p.seats.values())).address for name, p in net.peers.items()}
        self._forward_cost = forward_cost
        self._boxes: dict[tuple[Address, int], Bounds] = {
            (address, level): group.box()
            for address, seat in self.seats.items()
            for level, group in enumerate(seat.groups)
        }

    def publish(
        self,
        publisher: str,
        values: Sequence[float],
        burden: dict[Address, float],
        *,
        to_root: bool = False,
    ) -> None:
        """Add what one event costs each peer; `to_root`: it begins at the root, free of charge."""
        event: Bounds = (tuple(values), tuple(values))
        at, level = self._first[publisher], 0
        while not to_root and (parent := self.seats[at].parent) is not None:
            hosted = range(level, len(self.seats[at].groups))
            level = next((i for i in hosted if covers(self._boxes[at, i], event)), -1)
            if level >= 0:
                break
            burden[at] += self._forward_cost if at != self._first[publisher] else 0.0
            level, at = len(self.seats[at].groups), parent
            self._receive(at, event, burden)
        if to_root:
            at = next(one for one, seat in self.seats.items() if seat.parent is None)
            if at != self._first[publisher]:
                self._receive(at, event, burden)
        if self.seats[at].parent is None:
            level = len(self.seats[at].groups) - 1
        self._descend(at, level, event, burden)

    def _receive(self, at: Address, event: Bounds, burden: dict[Address, float]) -> None:
        burden[at] += 0.0 if covers(self.seats[at].box, event) else 1.0

    def _descend(
        self, at: Address, level: int, event: Bounds, burden: dict[Address, float]
    ) -> None:
        for address, entry in self.seats[at].groups[level].members.items():
            if not covers(entry.box, event):
                continue
            if address != at:
                burden[at] += self._forward_cost
                self._receive(address, event, burden)
            if level > 0:
                self._descend(address, level - 1, event, burden)
