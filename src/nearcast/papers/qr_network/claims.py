"""Paper 0, the Q+R network: adapter of `experiment.py` to `papers/form.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from statistics import fmean
from typing import Any

from nearcast.papers.form import (
    Claim,
    Figure,
    Point,
    ReportTable,
    Row,
    drawn,
    interval,
    of_kind,
    seeds_of,
    varied,
)
from nearcast.papers.qr_network import experiment

READINGS = {"r": "R-only follows the subscribers", "r-packed": "R-only laid out once"}
_INTERVALS = {
    "C0.1": "share of brokers saved, Q+R against Q",
    "C0.2": "retransmission ratio, R : Q+R",
    "C0.3": "handovers, R : Q+R",
    "C0.4": "messages, R : Q",
    "C0.5": "blocks visited from the R root : from the Q root",
}


def points(*, quick: bool) -> list[Point]:
    """Return the points of the four figures, of routing, and of one changed parameter at a time."""
    runs = _quick_sweep() if quick else experiment.sweep()
    largest = max(run.subscribers for run in runs)
    seeds = sorted({run.seed for run in runs})
    found = [_point("layout", run) for run in runs]
    routed = experiment.NetworkPoint(subscribers=largest)
    found += [_point("routing", replace(routed, seed=seed)) for seed in seeds]
    return found + _sensitivity(seeds[:2] if quick else seeds[:5], rounds=20 if quick else 50)


def _quick_sweep() -> list[experiment.NetworkPoint]:
    """Return few rounds and seeds, but the paper's range of sizes, on which the saving depends."""
    base = experiment.NetworkPoint(rounds=40)
    return [
        replace(base, layout=layout, subscribers=size, seed=seed)
        for layout in experiment.LAYOUTS
        for size in (500, 1000, 2000, 4000)
        for seed in (1, 2, 3)
    ]


def _sensitivity(seeds: Sequence[int], rounds: int) -> list[Point]:
    changes = [change for each in experiment.VARIATIONS.values() for change in each]
    base = experiment.NetworkPoint(subscribers=2000, rounds=rounds)
    return [
        _point("sensitivity", replace(base, layout=layout, seed=seed, **change))  # type: ignore[arg-type]
        for change in ({}, *changes)
        for layout in ("q", "qr")
        for seed in seeds
    ]


def _point(kind: str, run: experiment.NetworkPoint) -> Point:
    parameters = {name: value for name, value in asdict(run).items() if name != "seed"}
    follows = run.layout == "r" and kind == "layout"
    cost_s = 1e-8 * run.rounds * run.subscribers**2 if follows else 0.4
    return Point(0, kind, run.seed, parameters, cost_s)


def run(point: Point) -> list[Row]:
    """Run one layout of one crowd, or route through one plan."""
    one = experiment.NetworkPoint(**point.parameters, seed=point.seed)
    if point.kind == "routing":
        return _records(experiment.run_routing(one))
    if point.kind == "sensitivity":
        last = experiment.run_point(one, checkpoints=1)
        return [row | {"changed": _changed(one)} for row in _records(last)]
    return _records(experiment.run_point(one))


def _records(rows: Sequence[experiment.NetworkRow | experiment.RoutingRow]) -> list[Row]:
    return [dict(record) for record in experiment.as_records(rows)]


def _changed(one: experiment.NetworkPoint) -> str:
    plain = asdict(experiment.NetworkPoint())
    free = {"layout", "subscribers", "rounds", "seed"}
    changes = {k: v for k, v in asdict(one).items() if k not in free and v != plain[k]}
    return (
        ", ".join(f"{k.replace('_', ' ')} {v:g}" for k, v in changes.items())
        or "nothing: as in the figures"
    )


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Judge C0.1 to C0.4 for both readings of R-only, and C0.5."""
    layouts = [experiment.NetworkRow(**_fields(row)) for row in of_kind(rows, "layout")]
    routing = [experiment.RoutingRow(**_fields(row)) for row in of_kind(rows, "routing")]
    judged: list[Claim] = []
    for r_only, reading in READINGS.items():
        some = [row for row in layouts if row.layout in {"q", "qr", r_only}]
        judged += [_claim(one, reading, rows) for one in experiment.claims(some, r_only=r_only)]
    last = experiment.claims(layouts, routing)[-1]
    return sorted([*judged, _claim(last, "", rows)], key=lambda claim: claim.id)


def _fields(row: Row) -> Row:
    return {name: value for name, value in row.items() if name != "kind"}


def _claim(one: experiment.NetworkClaim, variant: str, rows: Sequence[Row]) -> Claim:
    some = of_kind(rows, "layout" if variant else "routing")
    several = len(seeds_of(some)) > 1
    low, high = (one.low, one.high) if several else interval([])
    parameters: dict[str, Any] = varied(some, ("subscribers", "rounds") if variant else ("places",))
    return Claim(
        one.claim, variant, one.says, one.measured, _INTERVALS[one.claim], low, high,
        one.holds, seeds_of(some), parameters,
    )  # fmt: skip


def figures(rows: Sequence[Row]) -> list[Figure]:
    """Draw the paper's four figures."""
    layouts = [experiment.NetworkRow(**_fields(row)) for row in of_kind(rows, "layout")]
    caption = (
        "The paper's four figures: brokers and retransmission ratio against subscribers, handovers "
        "and messages against rounds, at the largest crowd. Bands are 95 % intervals over seeds."
    )
    return [drawn("paper-0", caption, lambda path: experiment.draw_figures(layouts, path))]


def tables(rows: Sequence[Row]) -> list[ReportTable]:
    """Return how the saving of Q+R depends on the parameters that the paper leaves open."""
    some = of_kind(rows, "sensitivity")
    lines = []
    for changed in dict.fromkeys(row["changed"] for row in some):
        of = {(r["layout"], r["seed"]): r for r in some if r["changed"] == changed}
        cells = [_ratio(of, column) for column in ("brokers", "handovers", "multicast_messages")]
        lines.append((changed, *cells))
    headings = ("changed", "brokers, Q+R : Q", "handovers, Q+R : Q", "messages, Q+R : Q")
    caption = "One parameter changed at a time, 2,000 subscribers: what Q+R takes of what Q takes."
    return [ReportTable(caption, headings, tuple(lines))] if lines else []


def _ratio(of: dict[tuple[str, int], Row], column: str) -> str:
    seeds = sorted({seed for _, seed in of})
    return f"{fmean(of['qr', s][column] / max(of['q', s][column], 1) for s in seeds):.2f}"
