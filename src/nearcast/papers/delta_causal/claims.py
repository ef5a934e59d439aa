"""Paper 2, Δ-causal order: points, verdicts on C2.1 to C2.3, figures and tables.

A point runs all five algorithms on the same traffic, alternating in one process, so that their
processor times are measured under the same conditions; the seed rotates their order. Claims are
judged by ours. As other readings they are judged by the paper's own form, and by the listings in
plain Python: the paper does not say how its algorithms were implemented.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from nearcast.papers.delta_causal import experiment
from nearcast.papers.delta_causal.experiment import ALGORITHMS, CausalPoint
from nearcast.papers.delta_causal.oracle import unordered_row, watched_row
from nearcast.papers.delta_causal.transcriptions import TRANSCRIPTIONS, run_transcribed
from nearcast.papers.form import (
    Claim,
    Figure,
    Point,
    ReportTable,
    Row,
    drawn,
    judged,
    mean_of,
    of_kind,
    plot_band,
    seeds_of,
    select,
)

READINGS = {"subsets": "random subsets", "groups": "fixed groups"}
OWN_FORM = "the paper's own form, which repeats what a destination was told"
UNCOMPILED = "the paper's own form and its rivals as their listings say, in plain Python"
LINEAR = 1.2
"""Growth counts as linear while bytes grow with at most this power of n."""

ROUNDS = 3
_TIMES = ("send_us", "encode_us", "receive_us")
_PARAMETERS = ("processes", "pattern", "lifetime_s", "sends")


def points(*, quick: bool) -> list[Point]:
    """Return comparisons, larger groups, plain Python, runs under the oracle, unordered traffic."""
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
            plain = {"warm_up": 100, "sends": 200} if quick else {"warm_up": 500, "sends": 2_000}
            found += [_point("transcribed", seed, pattern, n, plain) for n in (10, 20, 50)]
            found += [_point("unordered", seed, pattern, n, watched) for n in (5, 20, 50)]
    return found


def _point(kind: str, seed: int, pattern: str, n: int, more: dict[str, Any]) -> Point:
    sends = more["warm_up"] + more["sends"]
    cost_s = {"compared": 2e-6, "larger": 1e-6, "transcribed": 2e-5}.get(kind, 3e-7) * sends * n**2
    return Point(2, kind, seed, {"pattern": pattern, "processes": n, **more}, cost_s)


def run(point: Point) -> list[Row]:
    """Run all algorithms on one traffic, or two in a larger group, or ours under the oracle."""
    causal = CausalPoint(**point.parameters, seed=point.seed)
    match point.kind:
        case "watched":
            return [watched_row(causal)]
        case "unordered":
            return [unordered_row(causal)]
        case "larger":
            both = [replace(causal, algorithm=name) for name in ("ours", "paper")]
            return [experiment.run_point(one) for one in both]
        case "transcribed":
            names = _turned(point.seed, TRANSCRIPTIONS)
            return [run_transcribed(replace(causal, algorithm=name)) for name in names]
        case _:
            return _compared(causal, _turned(point.seed))


def _turned(seed: int, algorithms: Iterable[str] = ALGORITHMS) -> list[str]:
    names = list(algorithms)
    return names[seed % len(names) :] + names[: seed % len(names)]


def _compared(point: CausalPoint, names: Sequence[str]) -> list[Row]:
    """Run the algorithms alternately and keep the least times of each: all else is the same."""
    found = {name: experiment.run_point(replace(point, algorithm=name)) for name in names}
    short = replace(point, warm_up=min(point.warm_up, 500), sends=min(point.sends, 2000))
    for name in list(names) * (ROUNDS - 1):
        again = experiment.run_point(replace(short, algorithm=name))
        least = {time: min(found[name][time], again[time]) for time in _TIMES}
        found[name] |= least | {"computation_us": sum(least.values())}
        found[name]["delivery_ms"] = found[name]["transit_ms"] + sum(least.values()) / 1000
    return list(found.values())


# --- judging ------------------------------------------------------------------------------------


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Judge C2.1 and C2.2 for both patterns, growth within and beyond the sizes, and C2.3."""
    found: list[Claim] = []
    for pattern, reading in READINGS.items():
        compared = select(of_kind(rows, "compared"), pattern=pattern)
        larger = select(of_kind(rows, "larger"), pattern=pattern)
        plain = select(of_kind(rows, "transcribed"), pattern=pattern)
        found += [_sized(compared, reading), _timed(compared, reading)]
        found += _growth(compared, larger, reading)
        if select(compared, algorithm="paper"):
            found += [_sized(compared, reading, "paper", OWN_FORM)]
            found += _growth(compared, larger, reading, "paper", OWN_FORM)
            found += [_timed(compared, reading, "paper", OWN_FORM)]
        if plain:
            found.append(_timed(plain, reading, "paper", UNCOMPILED))
    return sorted([*found, *_watched(of_kind(rows, "watched"))], key=lambda claim: claim.id)


def _means(rows: Sequence[Row], column: str, processes: int) -> dict[str, float]:
    """Return the mean of a column over the seeds, by algorithm, at one size."""
    return {
        name: mean_of(select(rows, algorithm=name, processes=processes), column)
        for name in ALGORITHMS
        if select(rows, algorithm=name)
    }


def _ratios(rows: Sequence[Row], column: str, above: str, below: str, n: int) -> list[float]:
    """Return the ratio of two algorithms, seed by seed, at one size."""
    at = {(row["algorithm"], row["seed"]): row[column] for row in select(rows, processes=n)}
    return [at[above, seed] / at[below, seed] for seed in seeds_of(rows)]


def _sized(rows: Sequence[Row], variant: str, form: str = "ours", reading: str = "") -> Claim:
    small, large = (pick(row["processes"] for row in rows) for pick in (min, max))
    first, last = (_means(rows, "control_bytes", n) for n in (small, large))
    gaps = [of["RST"] - of[form] for of in (first, last)]
    listed = ", ".join(f"{name} {size:.0f}" for name, size in last.items())
    return judged(
        "C2.1",
        "far smaller than RST and PRS, close to KS; the distance widens with n",
        f"bytes per copy at n = {large}: {listed}; distance to RST from {gaps[0]:.0f} to "
        f"{gaps[1]:.0f} bytes",
        2 * last[form] <= min(last["RST"], last["PRS"])
        and last[form] <= 1.1 * last["KS"]
        and gaps[1] > gaps[0],
        rows,
        _ratios(rows, "control_bytes", form, "KS", large),
        f"control bytes, {form} : KS, at n = {large}",
        variant=variant,
        over=_PARAMETERS,
        reading=reading,
    )


def _timed(rows: Sequence[Row], variant: str, form: str = "ours", reading: str = "") -> Claim:
    large = max(row["processes"] for row in rows)
    at = _means(rows, "computation_us", large)
    some = select(rows, processes=large)
    transits = [[row["transit_ms"] for row in select(some, seed=seed)] for seed in seeds_of(some)]
    apart_ms = max(max(each) - min(each) for each in transits)
    listed = ", ".join(f"{name} {us:.0f}" for name, us in at.items())
    return judged(
        "C2.2",
        "delivery slightly quicker than RST and PRS, far quicker than KS",
        f"processor time per message at n = {large} in µs: {listed}; network and waiting "
        f"{mean_of(select(some, algorithm=form), 'transit_ms'):.1f} ms, at most "
        f"{apart_ms:.4f} ms apart",
        at[form] <= min(at["RST"], at["PRS"]) and 3 * at[form] <= at["KS"],
        rows,
        _ratios(rows, "computation_us", "KS", form, large),
        f"processor time, KS : {form}, at n = {large}",
        variant=variant,
        over=_PARAMETERS,
        reading=reading,
    )


def _growth(
    compared: Sequence[Row],
    larger: Sequence[Row],
    variant: str,
    form: str = "ours",
    reading: str = "",
) -> list[Claim]:
    """Judge linear growth: from 10 to the largest compared size, and beyond."""
    ours, beyond = (select(rows, algorithm=form) for rows in (compared, larger))
    start = min((n for n in {row["processes"] for row in ours} if n >= 10), default=5)
    middle = max(row["processes"] for row in ours)
    found = [_power(ours, start, middle, f"growth, {variant}", reading)]
    if beyond:
        last = max(row["processes"] for row in beyond)
        both = [*ours, *beyond]
        found.append(_power(both, middle, last, f"growth beyond, {variant}", reading))
    return found


def _power(rows: Sequence[Row], start: int, end: int, variant: str, reading: str) -> Claim:
    at = {(row["processes"], row["seed"]): row["control_bytes"] for row in rows}
    some = [row for row in rows if row["processes"] in (start, end)]
    powers = [
        math.log(at[end, seed] / at[start, seed]) / math.log(end / start) if end > start else 0.0
        for seed in seeds_of(some)
    ]
    first, last = (mean_of(select(some, processes=n), "control_bytes") for n in (start, end))
    return judged(
        "C2.1",
        "control information grows linearly with the number of nodes",
        f"{first:.0f} bytes at n = {start}, {last:.0f} at n = {end}: as n to the power "
        f"{fmean(powers):.2f} (we ask for at most {LINEAR})",
        fmean(powers) <= LINEAR,
        some,
        powers,
        "power of n",
        variant=variant,
        over=_PARAMETERS,
        reading=reading,
    )


def _watched(rows: Sequence[Row]) -> list[Claim]:
    def total(*names: str, **wanted: Any) -> int:
        return sum(row[name] for row in select(rows, **wanted) for name in names)

    def claim(variant: str, says: str, measured: str, of: str, faults: tuple[str, ...]) -> Claim:
        values = [float(total(*faults, seed=seed)) for seed in seeds_of(rows)]
        holds = total(of) > 0 and not total(*faults)
        return judged(
            "C2.3", says, measured, holds, rows, values, "violations per seed",
            variant=variant, over=("processes", "pattern", "loss"),
        )  # fmt: skip

    safe = claim(
        "safety",
        "no delivered pair violates causal order",
        f"{total('misordered')} of {total('delivered'):,} deliveries after an effect of theirs",
        "delivered",
        ("misordered",),
    )
    live = claim(
        "liveness",
        "whatever arrives in time is delivered in time, whatever is late is discarded",
        f"of {total('in_time'):,} copies that arrived in time {total('missed')} were not "
        f"delivered, {total('doubled')} twice; {total('too_late')} deliveries were late",
        "in_time",
        ("missed", "too_late", "doubled"),
    )
    return [safe, live]


# --- pictures -----------------------------------------------------------------------------------


def figures(rows: Sequence[Row]) -> list[Figure]:
    """Draw the paper's figures 4 and 5 for both patterns."""
    caption = (
        "Top: control bytes of one copy, everything but the payload, against the number of "
        "processes. Bottom: processor time on a message's way to one destination. Ours and the "
        "paper's own form go on beyond the sizes at which all five are compared. Bands are 95 % "
        "intervals."
    )

    columns = {"control_bytes": "control bytes per copy", "computation_us": "µs of processor time"}
    some = [*of_kind(rows, "compared"), *of_kind(rows, "larger")]

    def draw(*all_axes: Any) -> None:
        plots = ((column, pattern) for column in columns for pattern in READINGS)
        for axes, (column, pattern) in zip(all_axes, plots, strict=True):
            _draw_curves(axes, select(some, pattern=pattern), column)
            axes.set(xlabel="processes", ylabel=columns[column], title=READINGS[pattern])

    return [drawn("paper-2", caption, draw, axes=(2, 2))]


def _draw_curves(axes: Any, rows: Sequence[Row], column: str) -> None:
    for algorithm, mark in zip(ALGORITHMS, "ov^sD", strict=True):
        curve: dict[float, list[float]] = {}
        for row in select(rows, algorithm=algorithm):
            curve.setdefault(row["processes"], []).append(float(row[column]))
        plot_band(axes, curve, marker=mark, label=algorithm)
    axes.set_ylim(bottom=0)
    axes.legend()
    axes.grid(alpha=0.3)


def tables(rows: Sequence[Row]) -> list[ReportTable]:
    """Return how often the same traffic without ordering is delivered in the wrong order."""
    some = of_kind(rows, "unordered")
    lines = []
    for pattern, reading in READINGS.items():
        for n in sorted({row["processes"] for row in some}):
            at = select(some, pattern=pattern, processes=n)
            share = sum(r["wrong"] for r in at) / max(1, sum(r["delivered"] for r in at))
            lines.append((reading, str(n), f"{share:.1%}"))
    headings = ("traffic", "processes", "deliveries after an effect of theirs")
    return [ReportTable("The same traffic delivered as it arrives.", headings, tuple(lines))]
