"""Paper 0: what a plan of brokers by the movement of people saves, and what it costs.

One point is one run of one layout: subscribers move round by round, events are published, and
brokers, handovers, retransmissions and messages are counted (`layouts.py` says how).
All layouts of a seed see the same people and the same events. Where the paper is open, we set:

    space        1000 × 1000 units, 25 slow regions of 30 to 90 units a side, which may overlap
    subscribers  half live in a slow region and walk between random places in it, 1 unit a round;
                 half cross the space between random places at 3 units a round
    events       10 a round, about rectangles of 0 to 80 units a side, uniformly placed
    capacity     a Q block splits above 25 users, counted at the start; a slow region is one leaf,
                 however many users it has (the paper's Model); `region_capacity` bounds it
    brokers      leaves only; `all_blocks` counts inner blocks too
    R only       `r`: an R-tree of the subscribers that follows them, because the paper says its
                 index changes dynamically. `r-packed`: slow regions and packed crowds as leaves,
                 built once, the rest of the space at the root
    retransmission ratio   over messages between brokers; the last hop is not counted

Read next: `claims.py`, then `layouts.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import Final

import numpy as np

from nearcast.locality.layout.grid import CellCounts
from nearcast.locality.layout.plan import Plan
from nearcast.locality.layout.rect import Rect
from nearcast.model.errors import UnknownNameError
from nearcast.papers.form import Row
from nearcast.papers.qr_network.layouts import (
    FollowingLayout,
    LayoutRun,
    NetworkLayout,
    PlannedLayout,
)
from nearcast.papers.qr_network.routing import LeafRouter
from nearcast.papers.qr_network.subscriber_tree import SubscriberTree
from nearcast.simulator.movers import RandomWaypoints, mixed_crowd

LAYOUTS: Final = ("r", "q", "qr", "r-packed")
NAMES: Final = {"r": "R (follows)", "q": "Q", "qr": "Q+R", "r-packed": "R (packed)"}


@dataclass(frozen=True, slots=True)
class NetworkPoint:
    """The parameters of one run."""

    layout: str = "qr"
    subscribers: int = 1000
    rounds: int = 100
    seed: int = 1
    capacity: int = 25
    region_capacity: int | None = None
    fanout: int = 8
    regions: int = 25
    slow_speed: float = 1.0
    fast_factor: float = 3.0
    slow_share: float = 0.5
    events_per_round: int = 10
    largest_event: float = 80.0
    side: float = 1000.0


class _Scene:
    """The people, regions and events of a seed: the same for every layout."""

    def __init__(self, point: NetworkPoint) -> None:
        self.point = point
        self.space = Rect(0.0, 0.0, point.side, point.side)
        self._random = np.random.default_rng([point.seed, 1])
        self.regions = [self._region() for _ in range(point.regions)]
        self.people: RandomWaypoints = mixed_crowd(
            self.space,
            self.regions,
            point.subscribers,
            np.random.default_rng([point.seed, 2]),
            slow_speed=point.slow_speed,
            fast_factor=point.fast_factor,
            slow_share=point.slow_share,
        )

    def _region(self) -> Rect:
        wide, high = self._random.uniform(0.03, 0.09, 2) * self.point.side
        x, y = self._random.random(2) * (self.point.side - wide, self.point.side - high)
        return Rect(float(x), float(y), float(x + wide), float(y + high))

    def events(self) -> list[Rect]:
        """Return the events of the next round."""
        found = []
        for _ in range(self.point.events_per_round):
            x, y = self._random.random(2) * self.point.side
            wide, high = self._random.random(2) * self.point.largest_event / 2
            area = Rect(float(x - wide), float(y - high), float(x + wide), float(y + high))
            found.append(area.clamped(self.space))
        return found

    def plan(self, layout: str) -> Plan:
        """Build a plan from the positions at the start."""
        regions = [] if layout == "q" else self.regions
        counts = CellCounts.from_positions(
            self.space, regions, self.people.xs, self.people.ys, depth=8
        )
        return Plan.build(
            self.space, regions, counts,
            layout={"r-packed": "r"}.get(layout, layout),  # type: ignore[arg-type]
            capacity=self.point.capacity, fanout=self.point.fanout,
            region_capacity=self.point.region_capacity,
        )  # fmt: skip

    def layout(self) -> NetworkLayout:
        """Return the network under test."""
        point = self.point
        if point.layout == "r":
            tree = SubscriberTree(
                self.space, self.people.xs, self.people.ys,
                capacity=point.capacity, fanout=point.fanout,
            )  # fmt: skip
            return FollowingLayout(tree)
        return PlannedLayout(self.plan(point.layout))


def run_point(point: NetworkPoint, checkpoints: int = 4) -> list[Row]:
    """Run one point; one row at each of `checkpoints` equally spaced numbers of rounds.

    Deterministic: the rows depend on the point alone.
    """
    if point.layout not in LAYOUTS:
        raise UnknownNameError(repr(point.layout), where="layout", expected=", ".join(LAYOUTS))
    scene = _Scene(point)
    run = LayoutRun(scene.layout(), scene.people.xs, scene.people.ys)
    at = {max(1, point.rounds * (i + 1) // checkpoints) for i in range(checkpoints)}
    rows = []
    for done in range(1, point.rounds + 1):
        scene.people.step(1.0)
        run.round(scene.people.xs, scene.people.ys, scene.events())
        if done in at:
            rows.append(_row(point, done, run))
    return rows


def _row(point: NetworkPoint, rounds: int, run: LayoutRun) -> Row:
    brokers, all_blocks = run.layout.brokers()
    costs = run.costs
    return {
        "layout": point.layout,
        "subscribers": point.subscribers,
        "rounds": rounds,
        "seed": point.seed,
        "brokers": brokers,
        "all_blocks": all_blocks,
        "handovers": costs.handovers,
        "multicast_messages": costs.multicast_messages,
        "with_upkeep": costs.multicast_messages + costs.upkeep_messages,
        "retransmissions": costs.retransmissions,
        "retransmission_ratio": costs.retransmission_ratio,
        "ratio_with_deliveries": costs.ratio_with_deliveries,
        "deliveries": costs.deliveries,
    }


def run_routing(point: NetworkPoint, places: int = 400) -> list[Row]:
    """Route events at random places, and at places of people, from both roots (C0.5).

    Costs are visited blocks, the most blocks on one way, and compared rectangles.
    """
    scene = _Scene(point)
    plan = scene.plan("qr")
    router = LeafRouter(plan)
    random = np.random.default_rng([point.seed, 3])
    uniform = random.random((places, 2)) * point.side
    chosen = random.integers(0, point.subscribers, places)
    people = np.stack([scene.people.xs[chosen], scene.people.ys[chosen]], axis=1)
    rows = []
    for name, where in (("uniform", uniform), ("people", people)):
        q = [router.from_q((float(x), float(y))) for x, y in where]
        r = [router.from_r((float(x), float(y))) for x, y in where]
        row: Row = {"seed": point.seed, "subscribers": point.subscribers, "places": name}
        row |= {"height_q": plan.height, "height_r": plan.rtree.height}
        for root, routes in (("q", q), ("r", r)):
            row[f"from_{root}_mean"] = fmean(route.nodes for route in routes)
            row[f"from_{root}_depth"] = max(route.depth for route in routes)
            row[f"comparisons_{root}"] = fmean(route.comparisons for route in routes)
        rows.append(row)
    return rows


VARIATIONS: Final[tuple[dict[str, float], ...]] = (
    {"capacity": 10}, {"capacity": 100}, {"regions": 10}, {"regions": 100}, {"slow_share": 0.2},
    {"slow_share": 0.8}, {"slow_speed": 0.2}, {"slow_speed": 5.0}, {"fast_factor": 1.0},
    {"fast_factor": 10.0}, {"region_capacity": 25}, {"largest_event": 10.0},
    {"largest_event": 300.0},
)  # fmt: skip
"""Parameters that the paper leaves open, changed one at a time."""
