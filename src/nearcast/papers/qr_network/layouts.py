"""Paper 0: runs the experiment for one layout and counts its costs.

Time passes in rounds. In each round all subscribers move; then events about random rectangles are
published; then each subscriber receives the events about its position. Counted per round:

- *handovers*: subscribers whose broker (leaf) differs from that of the round before;
- *multicast messages*: hops between blocks from the root to every leaf that must see an event;
- *retransmissions*: for each subscriber handed over in this round and each event of the round about
  its new position: one message from the old broker if that has seen the event, else again the hops
  from the root to its new broker;
- *upkeep messages*: leaves of the R part whose bounding rectangle of subscribers has changed, one
  message each. The paper says that an index which changes dynamically costs messages, not how many.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nearcast.locality.layout.plan import Plan
from nearcast.locality.layout.rect import Rect
from nearcast.papers.qr_network.routing import LeafRouter
from nearcast.papers.qr_network.subscriber_tree import SubscriberTree

Floats = NDArray[np.float64]
Longs = NDArray[np.int64]


Multicast = tuple[tuple[int, ...], int]
"""The leaves that one event was sent to, and the number of messages."""


class PlannedLayout:
    """A plan that does not change while subscribers move: Q, Q+R, or R over regions and crowds."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        router = LeafRouter(plan)
        self._route = router.from_r if plan.layout == "r" else router.from_q
        self._hops: dict[int, int] = {}
        self._boxes = np.zeros((plan.r_count, 4))
        self.upkeep = 0

    def brokers(self) -> tuple[int, int]:
        """Return the number of brokers: leaves only, and with all inner blocks of both parts."""
        inner = len(self.plan.quadtree.paths) - (len(self.plan.leaves) - self.plan.r_count)
        inner += len(self.plan.rtree.inner_rects()) + (self.plan.r_count > 0)
        return len(self.plan.leaves), len(self.plan.leaves) + inner

    def follow(self, xs: Floats, ys: Floats) -> Longs:
        """Return the leaf of each subscriber; `upkeep`: R leaves whose subscribers' box changed."""
        leaves = self.plan.leaf_numbers_at(xs, ys).astype(np.int64)
        boxes = np.tile([np.inf, np.inf, -np.inf, -np.inf], (self.plan.r_count, 1))
        inside = (leaves >= 0) & (leaves < self.plan.r_count)
        for column, (values, join) in enumerate(
            ((xs, np.minimum), (ys, np.minimum), (xs, np.maximum), (ys, np.maximum))
        ):
            join.at(boxes[:, column], leaves[inside], values[inside])
        self.upkeep = int((boxes != self._boxes).any(axis=1).sum())
        self._boxes = boxes
        return leaves

    def multicast(self, area: Rect) -> Multicast:
        """Route from the Q root; with layout "r" from the R root, its only one."""
        route = self._route(area)
        return route.leaves, route.messages

    def hops_to(self, leaf: int) -> int:
        """Return the number of messages from the root to a leaf, by the path to its centre."""
        if leaf not in self._hops:
            rect = self.plan.leaves[leaf].rect
            centre = Rect.at((rect.west + rect.east) / 2, (rect.south + rect.north) / 2)
            self._hops[leaf] = self._route(centre).depth - 1
        return self._hops[leaf]


class FollowingLayout:
    """R-only as an R-tree of subscribers that follows them (see `subscriber_tree.py`)."""

    def __init__(self, tree: SubscriberTree) -> None:
        self.subscribers = tree
        self._index, self._groups = tree.tree()
        self.upkeep = 0

    def brokers(self) -> tuple[int, int]:
        """Return the number of groups, and of groups with inner nodes and the root."""
        inner = len(self._index.inner_rects()) + 1
        return len(self._groups), len(self._groups) + inner

    def follow(self, xs: Floats, ys: Floats) -> Longs:
        """Move all subscribers, and adapt the rectangles; `upkeep`: how many have changed."""
        before = self.subscribers.rects()
        self.subscribers.move(xs, ys)
        after = self.subscribers.rects()
        self.upkeep = sum(before.get(group) != rect for group, rect in after.items())
        self.upkeep += len(before.keys() - after.keys())
        self._index, self._groups = self.subscribers.tree()
        return self.subscribers.group_of.copy()

    def multicast(self, area: Rect) -> Multicast:
        """Search from the root: one message to each block whose rectangle meets the event."""
        search = self._index.search(area)
        return tuple(self._groups[n] for n in search.leaves), search.nodes_visited - 1

    def hops_to(self, leaf: int) -> int:  # noqa: ARG002 - all leaves of an R-tree are equally deep
        """Return the height of the tree."""
        return self._index.height


NetworkLayout = PlannedLayout | FollowingLayout


@dataclass(slots=True)
class LayoutCosts:
    """The costs of a run so far."""

    handovers: int = 0
    multicast_messages: int = 0
    retransmissions: int = 0
    upkeep_messages: int = 0
    deliveries: int = 0
    events: int = 0

    @property
    def retransmission_ratio(self) -> float:
        """Retransmissions divided by all event traffic between brokers."""
        total = self.multicast_messages + self.retransmissions
        return self.retransmissions / total if total else 0.0

    @property
    def ratio_with_deliveries(self) -> float:
        """Retransmissions divided by all event traffic, including that to subscribers."""
        total = self.multicast_messages + self.retransmissions + self.deliveries
        return self.retransmissions / total if total else 0.0


class LayoutRun:
    """A run of one layout, round by round."""

    def __init__(self, layout: NetworkLayout, xs: Floats, ys: Floats) -> None:
        self.layout = layout
        self.costs = LayoutCosts()
        self._broker = layout.follow(xs, ys)

    def round(self, xs: Floats, ys: Floats, events: list[Rect]) -> None:
        """Move all subscribers, publish the events of the round, and count deliveries."""
        before = self._broker
        after = self.layout.follow(xs, ys)
        changed = np.flatnonzero((before != after) & (before >= 0) & (after >= 0))
        self._broker = after
        self.costs.handovers += len(changed)
        self.costs.upkeep_messages += self.layout.upkeep
        for event in events:
            leaves, messages = self.layout.multicast(event)
            self.costs.events += 1
            self.costs.multicast_messages += messages
            here = _inside(event, xs, ys)
            self.costs.deliveries += int(here.sum())
            self._send_again(changed[here[changed]], before, after, leaves)

    def _send_again(
        self, users: NDArray[np.intp], before: Longs, after: Longs, leaves: tuple[int, ...]
    ) -> None:
        seen = np.isin(before[users], leaves)
        self.costs.retransmissions += int(seen.sum())
        for leaf, count in zip(*np.unique(after[users][~seen], return_counts=True), strict=True):
            self.costs.retransmissions += int(count) * self.layout.hops_to(int(leaf))


def _inside(event: Rect, xs: Floats, ys: Floats) -> NDArray[np.bool_]:
    inside: NDArray[np.bool_] = (
        (xs >= event.west) & (xs <= event.east) & (ys >= event.south) & (ys <= event.north)
    )
    return inside
