"""Paper 0, the Q+R network: points, verdicts on C0.1 to C0.5, figures and tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from statistics import fmean
from typing import Any, Final

from nearcast.papers.form import (
    Claim,
    Figure,
    Point,
    ReportTable,
    Row,
    drawn,
    is_above,
    judged,
    mean_of,
    of_kind,
    plot_band,
    seeds_of,
    select,
)
from nearcast.papers.qr_network import experiment
from nearcast.papers.qr_network.experiment import LAYOUTS, NAMES, NetworkPoint

BOUNDED: Final = {"region_capacity": 40, "fanout": 4}
"""A region is split like any broker with too many subscribers (paper 0, registering, step 3)."""
READINGS: Final = {"r": "R-only follows the subscribers", "r-packed": "R-only laid out once"}
FIGURES: Final = (
    ("brokers", "subscribers", "required brokers"),
    ("retransmission_ratio", "subscribers", "retransmission ratio"),
    ("handovers", "rounds", "handovers"),
    ("multicast_messages", "rounds", "multicast messages"),
)
_COLOURS = {"r": "#c2410c", "q": "#1d4ed8", "qr": "#15803d", "r-packed": "#f59e0b"}


def points(*, quick: bool) -> list[Point]:
    """Return the points of the four figures, of routing, and of one changed parameter at a time.

    A quick run has few rounds and seeds, but the paper's range of sizes: the saving depends on it.
    """
    seeds = range(1, 4 if quick else 9)
    sizes = (500, 1000, 2000, 4000) if quick else (500, 1000, 2000, 3000, 4000)
    base = NetworkPoint(rounds=40 if quick else 100)
    found = [
        _point("layout", replace(base, layout=layout, subscribers=size, seed=seed))
        for layout in LAYOUTS
        for size in sizes
        for seed in seeds
    ]
    bounded = NetworkPoint(subscribers=sizes[-1], rounds=1, **BOUNDED)  # type: ignore[arg-type]
    found += [
        _point("bounded", replace(bounded, layout=layout, seed=seed))
        for layout in ("q", "qr", "r-packed")
        for seed in seeds
    ]
    routed = NetworkPoint(subscribers=sizes[-1])
    found += [_point("routing", replace(routed, seed=seed)) for seed in seeds]
    other = NetworkPoint(subscribers=2000, rounds=20 if quick else 50)
    return (
        found
        + [
            _point("sensitivity", replace(other, layout=layout, seed=seed, **change))  # type: ignore[arg-type]
            for change in ({}, *experiment.VARIATIONS)
            for layout in ("q", "qr")
            for seed in (seeds[:2] if quick else seeds[:5])
        ]
    )


def _point(kind: str, run: NetworkPoint) -> Point:
    parameters = {name: value for name, value in asdict(run).items() if name != "seed"}
    follows = run.layout == "r" and kind == "layout"
    cost_s = 1e-8 * run.rounds * run.subscribers**2 if follows else 0.4
    return Point(0, kind, run.seed, parameters, cost_s)


def run(point: Point) -> list[Row]:
    """Run one layout of one crowd, or route through one plan."""
    network = NetworkPoint(**point.parameters, seed=point.seed)
    if point.kind == "routing":
        return experiment.run_routing(network)
    if point.kind == "sensitivity":
        changed = {"changed": _changed(network)}
        return [row | changed for row in experiment.run_point(network, checkpoints=1)]
    if point.kind == "bounded":
        return experiment.run_point(network, checkpoints=1)
    return experiment.run_point(network)


def _changed(network: NetworkPoint) -> str:
    plain = asdict(NetworkPoint())
    free = {"layout", "subscribers", "rounds", "seed"}
    changes = {k: v for k, v in asdict(network).items() if k not in free and v != plain[k]}
    told = ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in changes.items())
    return told or "nothing: as in the figures"


# --- verdicts -----------------------------------------------------------------------------------


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Judge C0.1 to C0.4 for both readings of R-only, two of them under further ones, and C0.5."""
    layouts, routing = of_kind(rows, "layout"), of_kind(rows, "routing")
    bounded = of_kind(rows, "bounded")
    found: list[Claim] = []
    for r_only in READINGS:
        table = _Table(layouts, r_only)
        found += [_brokers(table), _retransmission(table), _handovers(table)]
        found += [_messages(table), _messages(table, "with_upkeep", ", upkeep counted")]
    if bounded:
        found.append(_brokers(_Table(bounded, "r-packed"), "regions hold at most 40, fan-out 4"))
    found += [_routing(routing)] if routing else []
    return sorted(found, key=lambda claim: claim.id)


class _Table:
    """The rows of Q, Q+R and one form of R-only, at the last checkpoint."""

    def __init__(self, rows: Sequence[Row], r_only: str) -> None:
        self.r = r_only
        self.rows = [row for row in rows if row["layout"] in {"q", "qr", r_only}]
        self._last = select(self.rows, rounds=max(row["rounds"] for row in self.rows))
        self._sizes = sorted({row["subscribers"] for row in self._last})

    def values(self, layout: str, column: str, size: int = -1) -> list[float]:
        """Return a column's values, one per seed, at a size by its place: the largest, or 0."""
        some = select(self._last, layout=layout, subscribers=self._sizes[size])
        return [float(row[column]) for row in sorted(some, key=lambda row: int(row["seed"]))]

    def ratio(self, above: str, below: str, column: str) -> list[float]:
        """Return the ratio of two layouts' values, seed by seed, at the largest size."""
        pairs = zip(self.values(above, column), self.values(below, column), strict=True)
        return [a / b if b else math.inf if a else 1.0 for a, b in pairs]

    def means(self, column: str) -> dict[str, float]:
        """Return the mean of each layout at the largest size."""
        return {layout: fmean(self.values(layout, column)) for layout in ("q", "qr", self.r)}

    def claim(
        self, name: str, says: str, measured: str, holds: bool, values: list[float], of: str,
        reading: str = "",
    ) -> Claim:  # fmt: skip
        """Return a verdict on this reading of R-only, or on another one."""
        return judged(
            name, says, measured, holds, self.rows, values, of,
            variant=reading or READINGS[self.r], over=("subscribers", "rounds"),
        )  # fmt: skip


def _brokers(table: _Table, reading: str = "") -> Claim:
    saving = [1 - ratio for ratio in table.ratio("qr", "q", "brokers")]
    all_blocks = fmean(table.ratio("qr", "q", "all_blocks"))
    means = table.means("brokers")
    ordered = means["q"] > means["qr"] > means[table.r]
    return table.claim(
        "C0.1",
        "Q needs the most, R the fewest; Q+R about 35 % fewer than Q (we ask for 25 to 45 %)",
        f"brokers {_shown(means)}; Q+R needs {fmean(saving):.0%} fewer than Q"
        f" ({1 - all_blocks:.0%} with inner blocks)",
        ordered and is_above(saving, 0) and 0.25 <= fmean(saving) <= 0.45,
        saving,
        "share of brokers saved, Q+R against Q",
        reading,
    )


def _retransmission(table: _Table) -> Claim:
    ratios = table.ratio(table.r, "qr", "retransmission_ratio")
    means = table.means("retransmission_ratio")
    small = fmean(table.values(table.r, "retransmission_ratio", 0))
    growth = means[table.r] / small if small else math.inf
    return table.claim(
        "C0.2",
        "R is the worst and grows steeply with subscribers; Q+R is clearly lower",
        f"ratio {_shown(means)}; R is {fmean(ratios):.2f} × Q+R; R grows {growth:.1f} ×",
        is_above(ratios, 1) and means[table.r] > means["q"] and growth > 1.5,
        ratios,
        "retransmission ratio, R : Q+R",
    )


def _handovers(table: _Table) -> Claim:
    ratios = table.ratio(table.r, "qr", "handovers")
    means = table.means("handovers")
    most = means["q"] > max(means["qr"], means[table.r])
    return table.claim(
        "C0.3",
        "Q has the most; R and Q+R about the same (we ask for within 20 %)",
        f"handovers {_shown(means)}; R has {fmean(ratios):.2f} × those of Q+R",
        most and 0.8 <= fmean(ratios) <= 1.2,
        ratios,
        "handovers, R : Q+R",
    )


def _messages(table: _Table, column: str = "multicast_messages", counted: str = "") -> Claim:
    ratios = table.ratio(table.r, "q", column)
    means = table.means(column)
    return table.claim(
        "C0.4",
        "R sends the most, Q the fewest, Q+R lies between",
        f"messages {_shown(means)}; R sends {fmean(ratios):.2f} × as many as Q",
        is_above(ratios, 1) and means[table.r] > means["qr"] > means["q"],
        ratios,
        "messages, R : Q",
        READINGS[table.r] + counted,
    )


def _routing(rows: Sequence[Row]) -> Claim:
    at = {
        places: [r["from_r_mean"] / r["from_q_mean"] for r in select(rows, places=places)]
        for places in ("uniform", "people")
    }
    # The root counts as a block, and so does the R leaf that an event is passed to.
    bounded = all(row["from_q_depth"] <= row["height_q"] + 2 for row in rows)
    return judged(
        "C0.5",
        "from the Q root O(height of Q); from the R root O(height of R) more, and dearer on "
        "average",
        f"from the R root {fmean(at['uniform']):.2f} × the blocks at uniform places,"
        f" {fmean(at['people']):.2f} × where people are; deepest way from the Q root"
        f" {max(row['from_q_depth'] for row in rows)} blocks at heights"
        f" {sorted({row['height_q'] for row in rows})}",
        bounded and is_above(at["uniform"], 1) and fmean(at["people"]) > 1,
        rows,
        at["uniform"],
        "blocks visited from the R root : from the Q root",
        over=("places",),
    )


def _shown(means: dict[str, float]) -> str:
    return ", ".join(
        f"{NAMES[k]} {v:.3g}" if v < 1 else f"{NAMES[k]} {v:.0f}" for k, v in means.items()
    )


# --- figures and tables ---------------------------------------------------------------------------


def figure_series(
    rows: Sequence[Row], column: str, against: str
) -> dict[str, dict[float, list[float]]]:
    """Return a figure's values by layout and place; the other axis is at its largest."""
    other = "rounds" if against == "subscribers" else "subscribers"
    series: dict[str, dict[float, list[float]]] = {}
    for row in select(rows, **{other: max(row[other] for row in rows)}):
        curve = series.setdefault(row["layout"], {})
        curve.setdefault(row[against], []).append(float(row[column]))
    return series


def figures(rows: Sequence[Row]) -> list[Figure]:
    """Draw the paper's four figures."""
    layouts = of_kind(rows, "layout")
    caption = (
        "The paper's four figures: brokers and retransmission ratio against subscribers, handovers "
        "and messages against rounds, at the largest crowd. Bands are 95 % intervals over seeds."
    )

    def draw(*all_axes: Any) -> None:
        for axes, (column, against, label) in zip(all_axes, FIGURES, strict=True):
            for layout, curve in figure_series(layouts, column, against).items():
                plot_band(axes, curve, marker="o", color=_COLOURS[layout], label=NAMES[layout])
            axes.set(xlabel=against, ylabel=label)
            axes.set_ylim(bottom=0)
            axes.legend(fontsize=8)

    return [drawn("paper-0", caption, draw, axes=(2, 2))]


def tables(rows: Sequence[Row]) -> list[ReportTable]:
    """Return how the saving of Q+R depends on the parameters that the paper leaves open."""
    some = of_kind(rows, "sensitivity")
    columns = ("brokers", "handovers", "multicast_messages")
    lines = [
        (changed, *(_ratio(select(some, changed=changed), column) for column in columns))
        for changed in dict.fromkeys(row["changed"] for row in some)
    ]
    headings = ("changed", "brokers, Q+R : Q", "handovers, Q+R : Q", "messages, Q+R : Q")
    caption = "One parameter changed at a time, 2,000 subscribers: what Q+R takes of what Q takes."
    return [ReportTable(caption, headings, tuple(lines))] if lines else []


def _ratio(rows: list[Row], column: str) -> str:
    ratios = [
        mean_of(select(rows, layout="qr", seed=seed), column)
        / max(mean_of(select(rows, layout="q", seed=seed), column), 1)
        for seed in seeds_of(rows)
    ]
    return f"{fmean(ratios):.2f}"
