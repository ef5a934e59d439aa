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

Read next: the function `claims`, then `layouts.py`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from nearcast.locality.layout.grid import CellCounts
from nearcast.locality.layout.plan import Plan
from nearcast.locality.layout.rect import Rect
from nearcast.model.errors import UnknownNameError
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


@dataclass(frozen=True, slots=True)
class NetworkRow:
    """The costs of a run after some rounds."""

    layout: str
    subscribers: int
    rounds: int
    seed: int
    brokers: int
    all_blocks: int
    handovers: int
    multicast_messages: int
    retransmissions: int
    retransmission_ratio: float
    ratio_with_deliveries: float
    deliveries: int


@dataclass(frozen=True, slots=True)
class RoutingRow:
    """The routing cost in visited blocks, starting in the Q part and in the R part (C0.5)."""

    seed: int
    subscribers: int
    places: str
    height_q: int
    height_r: int
    from_q_mean: float
    from_q_depth: int
    from_r_mean: float
    from_r_depth: int
    comparisons_q: float
    comparisons_r: float


@dataclass(frozen=True, slots=True)
class NetworkClaim:
    """What the paper says, what was measured (with a 95 % interval), and whether it holds."""

    claim: str
    says: str
    measured: str
    low: float
    high: float
    holds: bool
    seeds: int
    parameters: str


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


def run_point(point: NetworkPoint, checkpoints: int = 4) -> list[NetworkRow]:
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


def _row(point: NetworkPoint, done: int, run: LayoutRun) -> NetworkRow:
    tally, (leaves, blocks) = run.tally, run.layout.brokers()
    return NetworkRow(
        point.layout, point.subscribers, done, point.seed, leaves, blocks, tally.handovers,
        tally.multicast_messages, tally.retransmissions, tally.retransmission_ratio,
        tally.ratio_with_deliveries, tally.deliveries,
    )  # fmt: skip


def run_routing(point: NetworkPoint, places: int = 400) -> list[RoutingRow]:
    """Route events at random places, and at places of people, from both roots (C0.5)."""
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
        rows.append(
            RoutingRow(
                point.seed,
                point.subscribers,
                name,
                plan.height,
                plan.rtree.height,
                statistics.fmean(route.nodes for route in q),
                max(route.depth for route in q),
                statistics.fmean(route.nodes for route in r),
                max(route.depth for route in r),
                statistics.fmean(route.comparisons for route in q),
                statistics.fmean(route.comparisons for route in r),
            )
        )
    return rows


def sweep(*, quick: bool = False, base: NetworkPoint | None = None) -> list[NetworkPoint]:
    """Return the points of the paper's four figures; they are independent tasks."""
    base = base if base is not None else NetworkPoint(rounds=40 if quick else 100)
    seeds = range(1, 4 if quick else 9)
    sizes = (500, 1000) if quick else (500, 1000, 2000, 3000, 4000)
    return [
        replace(base, layout=layout, subscribers=size, seed=seed)
        for layout in LAYOUTS
        for size in sizes
        for seed in seeds
    ]


VARIATIONS: Final[dict[str, tuple[dict[str, float | int | None], ...]]] = {
    "capacity": ({"capacity": 10}, {"capacity": 100}),
    "density": ({"regions": 10}, {"regions": 100}, {"slow_share": 0.2}, {"slow_share": 0.8}),
    "speed": (
        {"slow_speed": 0.2},
        {"slow_speed": 5.0},
        {"fast_factor": 1.0},
        {"fast_factor": 10.0},
    ),
    "region capacity": ({"region_capacity": 25},),
    "event size": ({"largest_event": 10.0}, {"largest_event": 300.0}),
}


def sensitivity(*, quick: bool = False) -> list[tuple[str, list[NetworkPoint]]]:
    """Return sweeps with one parameter changed, each with a name; `claims` judges each of them."""
    seeds = range(1, 3 if quick else 6)
    sizes = (500, 1000) if quick else (500, 2000)
    found = []
    for changes in VARIATIONS.values():
        for change in changes:
            name = ", ".join(f"{key} = {value}" for key, value in change.items())
            base = replace(NetworkPoint(rounds=20 if quick else 50), **change)  # type: ignore[arg-type]
            points = [
                replace(base, layout=layout, subscribers=size, seed=seed)
                for layout in LAYOUTS
                for size in sizes
                for seed in seeds
            ]
            found.append((name, points))
    return found


# --- judging ------------------------------------------------------------------------------------


def claims(
    rows: Sequence[NetworkRow],
    routing: Sequence[RoutingRow] = (),
    *,
    r_only: str = "r",
    parameters: str = "",
) -> list[NetworkClaim]:
    """Judge C0.1 to C0.4 by rows of the layouts Q, Q+R and one form of R-only, C0.5 by routing."""
    table = _Table(rows, r_only)
    judged = [_brokers(table), _retransmission(table), _handovers(table), _messages(table)]
    judged += [_routing(routing)] if routing else []
    noted = f"R only: {NAMES[r_only]}" + (f"; {parameters}" if parameters else "")
    return [replace(claim, parameters=noted) for claim in judged]


class _Table:
    """Rows by layout, size and seed, at the last checkpoint."""

    def __init__(self, rows: Sequence[NetworkRow], r_only: str) -> None:
        last = max(row.rounds for row in rows)
        self.r = r_only
        self.cells = {(x.layout, x.subscribers, x.seed): x for x in rows if x.rounds == last}
        self.sizes = sorted({size for _, size, _ in self.cells})
        self.seeds = sorted({seed for _, _, seed in self.cells})

    def values(self, layout: str, column: str, size: int | None = None) -> list[float]:
        """Return a column's values, one per seed, at the largest size unless given."""
        size = self.sizes[-1] if size is None else size
        return [float(getattr(self.cells[layout, size, seed], column)) for seed in self.seeds]

    def ratio(self, above: str, below: str, column: str) -> list[float]:
        """Return the ratio of two layouts' values, seed by seed, at the largest size."""
        pairs = zip(self.values(above, column), self.values(below, column), strict=True)
        return [a / b if b else math.inf if a else 1.0 for a, b in pairs]


def _brokers(table: _Table) -> NetworkClaim:
    saving = [1 - ratio for ratio in table.ratio("qr", "q", "brokers")]
    low, high = interval(saving)
    all_blocks = statistics.fmean(table.ratio("qr", "q", "all_blocks"))
    means = {x: statistics.fmean(table.values(x, "brokers")) for x in ("q", "qr", table.r)}
    ordered = means["q"] > means["qr"] > means[table.r]
    text = (
        f"brokers {_shown(means)}; Q+R needs {statistics.fmean(saving):.0%} fewer than Q"
        f" ({1 - all_blocks:.0%} with inner blocks)"
    )
    says = "Q needs the most, R the fewest; Q+R about 35 % fewer than Q (we ask for 25 to 45 %)"
    holds = ordered and low > 0 and 0.25 <= statistics.fmean(saving) <= 0.45
    return NetworkClaim("C0.1", says, text, low, high, holds, len(table.seeds), "")


def _retransmission(table: _Table) -> NetworkClaim:
    ratios = table.ratio(table.r, "qr", "retransmission_ratio")
    low, high = interval(ratios)
    small = statistics.fmean(table.values(table.r, "retransmission_ratio", table.sizes[0]))
    means = {
        x: statistics.fmean(table.values(x, "retransmission_ratio")) for x in ("q", "qr", table.r)
    }
    growth = means[table.r] / small if small else math.inf
    text = (
        f"ratio {_shown(means)}; R is {statistics.fmean(ratios):.2f} × Q+R; R grows {growth:.1f} ×"
    )
    holds = low > 1 and means[table.r] > means["q"] and growth > 1.5
    says = "R is the worst and grows steeply with subscribers; Q+R is clearly lower"
    return NetworkClaim("C0.2", says, text, low, high, holds, len(table.seeds), "")


def _handovers(table: _Table) -> NetworkClaim:
    ratios = table.ratio(table.r, "qr", "handovers")
    low, high = interval(ratios)
    means = {x: statistics.fmean(table.values(x, "handovers")) for x in ("q", "qr", table.r)}
    text = f"handovers {_shown(means)}; R has {statistics.fmean(ratios):.2f} × those of Q+R"
    most = means["q"] > max(means["qr"], means[table.r])
    holds = most and 0.8 <= statistics.fmean(ratios) <= 1.2
    says = "Q has the most; R and Q+R about the same (we ask for within 20 %)"
    return NetworkClaim("C0.3", says, text, low, high, holds, len(table.seeds), "")


def _messages(table: _Table) -> NetworkClaim:
    ratios = table.ratio(table.r, "q", "multicast_messages")
    low, high = interval(ratios)
    means = {
        x: statistics.fmean(table.values(x, "multicast_messages")) for x in ("q", "qr", table.r)
    }
    text = f"messages {_shown(means)}; R sends {statistics.fmean(ratios):.2f} × as many as Q"
    holds = low > 1 and means[table.r] > means["qr"] > means["q"]
    says = "R sends the most, Q the fewest, Q+R lies between"
    return NetworkClaim("C0.4", says, text, low, high, holds, len(table.seeds), "")


def _routing(rows: Sequence[RoutingRow]) -> NetworkClaim:
    dearer = [row.from_r_mean / row.from_q_mean for row in rows if row.places == "uniform"]
    people = [row.from_r_mean / row.from_q_mean for row in rows if row.places == "people"]
    low, high = interval(dearer)
    # The root counts as a block, and so does the R leaf that an event is passed to.
    bounded = all(row.from_q_depth <= row.height_q + 2 for row in rows)
    text = (
        f"from the R root {statistics.fmean(dearer):.2f} × the blocks at uniform places,"
        f" {statistics.fmean(people):.2f} × where people are; deepest way from the Q root"
        f" {max(row.from_q_depth for row in rows)} blocks at heights"
        f" {sorted({row.height_q for row in rows})}"
    )
    says = (
        "from the Q root O(height of Q); from the R root O(height of R) more, and dearer on average"
    )
    holds = bounded and low > 1 and statistics.fmean(people) > 1
    return NetworkClaim("C0.5", says, text, low, high, holds, len({row.seed for row in rows}), "")


_T_95 = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % confidence interval of the mean (Student's t).

    >>> low, high = interval([1.0, 2.0, 3.0])
    >>> round(low, 2), round(high, 2)
    (-0.48, 4.48)
    """
    mean = statistics.fmean(values)
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return mean, mean
    half = _T_95.get(len(values) - 1, 2.0) * statistics.stdev(values) / math.sqrt(len(values))
    return mean - half, mean + half


def _shown(means: dict[str, float]) -> str:
    return ", ".join(
        f"{NAMES[k]} {v:.3g}" if v < 1 else f"{NAMES[k]} {v:.0f}" for k, v in means.items()
    )


def as_records(rows: Iterable[NetworkRow | RoutingRow | NetworkClaim]) -> list[dict[str, object]]:
    """Return rows as dicts, for a table or a file."""
    return [asdict(row) for row in rows]


FIGURES: Final = (
    ("brokers", "subscribers", "required brokers"),
    ("retransmission_ratio", "subscribers", "retransmission ratio"),
    ("handovers", "rounds", "handovers"),
    ("multicast_messages", "rounds", "multicast messages"),
)


def figure_series(
    rows: Sequence[NetworkRow], column: str, against: str
) -> dict[str, list[tuple[float, float, float, float]]]:
    """Return a figure's curves: (x, mean, low, high) per layout, the other axis at its largest."""
    other = "rounds" if against == "subscribers" else "subscribers"
    largest = max(getattr(row, other) for row in rows)
    series: dict[str, list[tuple[float, float, float, float]]] = {}
    chosen = [row for row in rows if getattr(row, other) == largest]
    for layout in dict.fromkeys(row.layout for row in chosen):
        for x in sorted({getattr(row, against) for row in chosen}):
            values = [
                float(getattr(row, column))
                for row in chosen
                if row.layout == layout and getattr(row, against) == x
            ]
            series.setdefault(layout, []).append((x, statistics.fmean(values), *interval(values)))
    return series


def draw_figures(rows: Sequence[NetworkRow], path: Path) -> None:
    """Draw the paper's four figures into one .svg or .png file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 7.4), layout="constrained")
    FigureCanvasAgg(figure)
    colours = {"r": "#c2410c", "q": "#1d4ed8", "qr": "#15803d", "r-packed": "#f59e0b"}
    for axes, (column, against, title) in zip(figure.subplots(2, 2).flat, FIGURES, strict=True):
        for layout, curve in figure_series(rows, column, against).items():
            x, mean, low, high = zip(*curve, strict=True)
            axes.plot(x, mean, marker="o", color=colours[layout], label=NAMES[layout])
            axes.fill_between(x, low, high, color=colours[layout], alpha=0.2)
        axes.set_xlabel(against)
        axes.set_ylabel(title)
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=8)
    figure.savefig(path, dpi=120, metadata={"Date": None} if path.suffix == ".svg" else {})
