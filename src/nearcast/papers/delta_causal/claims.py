"""Paper 2, Δ-causal order: adapter of `experiment.py` and `oracle.py` to `papers/form.py`.

A point runs all four algorithms on the same traffic, alternating in one process, so that their
processor times are measured under the same conditions; the seed rotates their order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from nearcast.papers.delta_causal import experiment
from nearcast.papers.delta_causal.oracle import watched_row
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

READINGS = {"subsets": "random subsets", "groups": "fixed groups"}
LINEAR = 1.2
"""Growth counts as linear while bytes grow with at most this power of n."""

ROUNDS = 3
_TIMES = ("send_us", "encode_us", "decode_us", "receive_us")


def points(*, quick: bool) -> list[Point]:
    """Return comparisons, larger groups of ours, runs under the oracle, and unordered traffic."""
    seeds = (1, 2, 3)
    sizes = (5, 10, 20, 30, 50) if quick else (5, 10, 20, 30, 40, 50)
    length = {"warm_up": 200, "sends": 600} if quick else {"warm_up": 10_000, "sends": 50_000}
    watched = {"warm_up": 0, "sends": 1500 if quick else 20_000}
    found: list[Point] = []
    for seed in seeds:
        for pattern in experiment.PATTERNS:
            found += [_point("compared", seed, pattern, n, length) for n in sizes]
            found += [
                _point("larger", seed, pattern, n, length)
                for n in ((100,) if quick else (100, 200))
            ]
            found += [
                _point("watched", seed, pattern, n, watched | {"loss": loss})
                for n in ((8, 20) if quick else (8, 20, 50))
                for loss in (0.01, 0.2)
            ]
            found += [_point("unordered", seed, pattern, n, watched) for n in (5, 20, 50)]
    return found


def _point(kind: str, seed: int, pattern: str, n: int, more: dict[str, Any]) -> Point:
    sends = more["warm_up"] + more["sends"]
    cost_s = {"compared": 2e-6, "larger": 5e-7}.get(kind, 3e-7) * sends * n**2
    return Point(2, kind, seed, {"pattern": pattern, "processes": n, **more}, cost_s)


def run(point: Point) -> list[Row]:
    """Run all four algorithms on one traffic, or ours in a larger group, or under the oracle."""
    one = experiment.CausalPoint(**point.parameters, seed=point.seed)
    match point.kind:
        case "watched":
            return [watched_row(one)]
        case "unordered":
            counts = experiment.run_without_order(one)
            return [{f.name: getattr(counts, f.name) for f in fields(counts)}]
        case "larger":
            return [experiment.as_record(experiment.run_point(one))]
        case _:
            return _compared(one, _turned(point.seed))


def _turned(seed: int) -> list[str]:
    names = list(experiment.ALGORITHMS)
    return names[seed % len(names) :] + names[: seed % len(names)]


def _compared(one: experiment.CausalPoint, names: Sequence[str]) -> list[Row]:
    """Run the algorithms alternately and keep the least times of each: all else is the same."""
    found = {name: experiment.run_point(replace(one, algorithm=name)) for name in names}
    short = replace(one, warm_up=min(one.warm_up, 500), sends=min(one.sends, 2000))
    for name in list(names) * (ROUNDS - 1):
        again = experiment.run_point(replace(short, algorithm=name))
        least = {time: min(getattr(found[name], time), getattr(again, time)) for time in _TIMES}
        found[name] = replace(found[name], **least)
    return [experiment.as_record(row) for row in found.values()]


# --- judging ------------------------------------------------------------------------------------


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Judge C2.1 and C2.2 for both patterns, growth within and beyond the sizes, and C2.3."""
    found: list[Claim] = []
    for pattern, reading in READINGS.items():
        compared = [row for row in of_kind(rows, "compared") if row["pattern"] == pattern]
        larger = [row for row in of_kind(rows, "larger") if row["pattern"] == pattern]
        sizes, times = experiment.claims(_means(compared), pattern)
        found += [_sized(sizes, compared, reading), _timed(times, compared, reading)]
        found += _growth(compared, larger, reading)
    return sorted([*found, *_watched(of_kind(rows, "watched"))], key=lambda claim: claim.id)


def _means(rows: Sequence[Row]) -> list[experiment.CausalRow]:
    """Return one row per algorithm and size: the means over seeds."""
    names = [field.name for field in fields(experiment.CausalRow)]
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["algorithm"], row["processes"]), []).append(row)
    return [
        experiment.CausalRow(**{name: _mean([row[name] for row in each]) for name in names})
        for each in groups.values()
    ]


def _mean(values: list[Any]) -> Any:
    return fmean(values) if isinstance(values[0], float) else values[0]


def _at_largest(rows: Sequence[Row], column: str) -> list[dict[str, float]]:
    """Return one dict per seed: the column of each algorithm at the largest size."""
    largest = max(row["processes"] for row in rows)
    some = [row for row in rows if row["processes"] == largest]
    return [
        {row["algorithm"]: row[column] for row in some if row["seed"] == seed}
        for seed in seeds_of(some)
    ]


def _sized(one: experiment.CausalClaim, rows: Sequence[Row], reading: str) -> Claim:
    shares = [at["ours"] / at["KS"] for at in _at_largest(rows, "control_bytes")]
    largest = max(row["processes"] for row in rows)
    of = {(row.algorithm, row.processes): row.control_bytes for row in _means(rows)}
    gaps = [of["RST", n] - of["ours", n] for n in (min(n for _, n in of), largest)]
    listed = ", ".join(f"{name} {of[name, largest]:.0f}" for name in experiment.ALGORITHMS)
    return Claim(
        one.claim, reading, one.says,
        f"bytes per copy at n = {largest}: {listed}; distance to RST from {gaps[0]:.0f} to "
        f"{gaps[1]:.0f} bytes",
        f"control bytes, ours : KS, at n = {largest}",
        *interval(shares), one.holds, seeds_of(rows), _parameters(rows),
    )  # fmt: skip


def _timed(one: experiment.CausalClaim, rows: Sequence[Row], reading: str) -> Claim:
    computing = _at_largest(rows, "computation_us")
    largest = max(row["processes"] for row in rows)
    delivery = _at_largest(rows, "transit_ms")
    apart_ms = max(max(at.values()) - min(at.values()) for at in delivery)
    listed = ", ".join(
        f"{name} {fmean(at[name] for at in computing):.0f}" for name in experiment.ALGORITHMS
    )
    return Claim(
        one.claim, reading, one.says,
        f"processor time per message at n = {largest} in µs: {listed}; network and waiting "
        f"{fmean(at['ours'] for at in delivery):.1f} ms, at most {apart_ms:.4f} ms apart",
        f"processor time, KS : ours, at n = {largest}",
        *interval([at["KS"] / at["ours"] for at in computing]),
        one.holds, seeds_of(rows), _parameters(rows),
    )  # fmt: skip


def _growth(compared: Sequence[Row], larger: Sequence[Row], reading: str) -> list[Claim]:
    """Judge linear growth of ours: from 10 to the largest compared size, and beyond."""
    ours = [row for row in compared if row["algorithm"] == "ours"]
    start = min((n for n in {row["processes"] for row in ours} if n >= 10), default=5)
    middle = max(row["processes"] for row in ours)
    found = [_power(ours, start, middle, f"growth, {reading}")]
    if larger:
        last = max(row["processes"] for row in larger)
        found.append(_power([*ours, *larger], middle, last, f"growth beyond, {reading}"))
    return found


def _power(rows: Sequence[Row], start: int, end: int, variant: str) -> Claim:
    at = {(row["processes"], row["seed"]): row["control_bytes"] for row in rows}
    some = [row for row in rows if row["processes"] in (start, end)]
    powers = [
        math.log(at[end, seed] / at[start, seed]) / math.log(end / start) if end > start else 0.0
        for seed in seeds_of(some)
    ]
    means = [
        fmean(row["control_bytes"] for row in some if row["processes"] == n) for n in (start, end)
    ]
    return Claim(
        "C2.1", variant,
        "control information grows linearly with the number of nodes",
        f"{means[0]:.0f} bytes at n = {start}, {means[1]:.0f} at n = {end}: as n to the power "
        f"{fmean(powers):.2f} (we ask for at most {LINEAR})",
        "power of n", *interval(powers), fmean(powers) <= LINEAR, seeds_of(some), _parameters(some),
    )  # fmt: skip


def _parameters(rows: Sequence[Row]) -> dict[str, Any]:
    return varied(rows, ("processes", "pattern", "lifetime_s", "sends"))


def _watched(rows: Sequence[Row]) -> list[Claim]:
    total = {name: sum(row[name] for row in rows) for name in ("delivered", "in_time")}
    wrong = {
        n: sum(row[n] for row in rows) for n in ("misordered", "missed", "too_late", "doubled")
    }
    parameters = varied(rows, ("processes", "pattern", "loss"))
    safe = Claim(
        "C2.3", "safety", "no delivered pair violates causal order",
        f"{wrong['misordered']} of {total['delivered']:,} deliveries after an effect of theirs",
        "violations per seed", *_per_seed(rows, ("misordered",)),
        total["delivered"] > 0 and not wrong["misordered"], seeds_of(rows), parameters,
    )  # fmt: skip
    low, high = _per_seed(rows, ("missed", "too_late", "doubled"))
    live = replace(
        safe, variant="liveness", low=low, high=high,
        says="whatever arrives in time is delivered in time, whatever is late is discarded",
        measured=f"of {total['in_time']:,} copies that arrived in time {wrong['missed']} were not "
        f"delivered, {wrong['doubled']} twice; {wrong['too_late']} deliveries were late",
        holds=total["in_time"] > 0
        and not (wrong["missed"] or wrong["too_late"] or wrong["doubled"]),
    )  # fmt: skip
    return [safe, live]


def _per_seed(rows: Sequence[Row], names: tuple[str, ...]) -> tuple[float, float]:
    return interval(
        [
            float(sum(row[name] for row in rows if row["seed"] == seed for name in names))
            for seed in seeds_of(rows)
        ]
    )


# --- pictures -----------------------------------------------------------------------------------


def figures(rows: Sequence[Row]) -> list[Figure]:
    """Draw the paper's figures 4 and 5 for both patterns."""
    caption = (
        "Top: control bytes of one copy, everything but the payload, against the number of "
        "processes. Bottom: processor time on a message's way to one destination. Ours goes on "
        "beyond the sizes at which all four are compared. Bands are 95 % intervals."
    )
    return [drawn("paper-2", caption, lambda path: _draw(rows, path))]


def _draw(rows: Sequence[Row], path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Picture

    picture = Picture(figsize=(10, 7.4), layout="constrained")
    FigureCanvasAgg(picture)
    axes = picture.subplots(2, 2)
    columns = {"control_bytes": "control bytes per copy", "computation_us": "µs of processor time"}
    for column, (pattern, reading) in enumerate(READINGS.items()):
        some = [
            row
            for kind in ("compared", "larger")
            for row in of_kind(rows, kind)
            if row["pattern"] == pattern
        ]
        for line, (name, label) in enumerate(columns.items()):
            _draw_curves(axes[line][column], some, name)
            axes[line][column].set(xlabel="processes", ylabel=label, title=reading)
    picture.savefig(path)


def _draw_curves(axes: Any, rows: Sequence[Row], column: str) -> None:
    for algorithm, mark in zip(experiment.ALGORITHMS, "o^sD", strict=True):
        some = [row for row in rows if row["algorithm"] == algorithm]
        sizes = sorted({row["processes"] for row in some})
        at = [[float(row[column]) for row in some if row["processes"] == n] for n in sizes]
        axes.plot(sizes, [fmean(each) for each in at], marker=mark, label=algorithm)
        low, high = zip(*(interval(each) for each in at), strict=True)
        axes.fill_between(sizes, low, high, alpha=0.2)
    axes.set_ylim(bottom=0)
    axes.legend()
    axes.grid(alpha=0.3)


def tables(rows: Sequence[Row]) -> list[ReportTable]:
    """Return how often the same traffic without ordering is delivered in the wrong order."""
    some = of_kind(rows, "unordered")
    lines = []
    for pattern, reading in READINGS.items():
        for n in sorted({row["processes"] for row in some}):
            at = [r for r in some if r["pattern"] == pattern and r["processes"] == n]
            share = sum(r["wrong"] for r in at) / max(1, sum(r["delivered"] for r in at))
            lines.append((reading, str(n), f"{share:.1%}"))
    headings = ("traffic", "processes", "deliveries after an effect of theirs")
    return [ReportTable("The same traffic delivered as it arrives.", headings, tuple(lines))]
