"""Paper 3: the points of the sweep, the verdicts on its claims, and figures 7 and 8.

`points(quick)` lists (kind, function, arguments), each an independent task. `claims` turns all
their rows into one verdict per claim; `crossover` returns the size from which on the overlay sends
fewer messages than peers that all know each other; `figures` draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

from nearcast.overlay import Climb, Method, Split
from nearcast.papers.content_overlay.experiment import (
    EVENT_SIGMAS,
    Parameters,
    Row,
    cache_rows,
    churn_rows,
    growth_rows,
    onehop_rows,
    overhead_rows,
)

PAPERS_METHODS = (Method.RANDOM, Method.LARGEST, Method.CHEAPEST)
_STUDENT = {
    1: 12.706,
    2: 4.303,
    3: 3.182,
    4: 2.776,
    5: 2.571,
    6: 2.447,
    7: 2.365,
    8: 2.306,
    9: 2.262,
}


class OverlayPoint(NamedTuple):
    """One task: `function(*arguments)` returns rows of this kind."""

    kind: str
    function: Callable[..., list[Row]]
    arguments: tuple[Any, ...]

    def rows(self) -> list[Row]:
        """Run the point and return its rows."""
        return [{"kind": self.kind} | row for row in self.function(*self.arguments)]


def points(*, quick: bool) -> list[OverlayPoint]:
    """Return every point; quick ones take seconds each, all of the full ones together hours."""
    seeds = (1, 2, 3) if quick else (1, 2, 3, 4, 5)
    size = 300 if quick else 3000
    sigmas = (10.0, 120.0, 500.0) if quick else tuple(map(float, EVENT_SIGMAS))
    paper = Parameters(peers=size, events=min(size, 3000))
    wide = replace(paper, subscription_sigma=300.0, event_sigmas=(300.0,), method=Method.EXACT)
    found: list[OverlayPoint] = []
    for seed in seeds:
        for sigma in (100.0, 300.0):
            found += _paper_points(replace(paper, subscription_sigma=sigma), sigmas, seed)
            found += _beyond_points(replace(paper, subscription_sigma=sigma), sigma, seed)
        for repeats in (1, 2, 10, 50):
            dense = replace(paper, peers=min(size, 600), method=Method.EXACT)
            found.append(OverlayPoint("cache", cache_rows, (dense, seed, repeats)))
        for split in Split:
            found.append(OverlayPoint("split", overhead_rows, (replace(wide, split=split), seed)))
        for climb in Climb:
            found.append(OverlayPoint("climb", overhead_rows, (replace(wide, climb=climb), seed)))
        for dimensions in (4, 8):
            many = replace(paper, dimensions=dimensions, method=Method.EXACT)
            found.append(OverlayPoint("dimensions", overhead_rows, (many, seed)))
        for rate in (0.1, 1.0):
            few = replace(wide, peers=min(size, 300), events=600, beat_ms=1000, coalesce_ms=0)
            found.append(OverlayPoint("churn", churn_rows, (few, seed, rate, 0.5)))
    for count in (100, 300) if quick else (100, 300, 1000, 3000, 10_000, 30_000):
        grow = replace(wide, peers=count, events=1000)
        found += [OverlayPoint("growth", growth_rows, (grow, seed)) for seed in seeds[:2]]
        if count <= 1000:
            found += [OverlayPoint("one hop", onehop_rows, (grow, seed)) for seed in seeds[:2]]
    return found


def _paper_points(paper: Parameters, sigmas: tuple[float, ...], seed: int) -> list[OverlayPoint]:
    return [
        OverlayPoint(
            "paper", overhead_rows, (replace(paper, method=method, event_sigmas=sigmas), seed)
        )
        for method in PAPERS_METHODS
    ]


def _beyond_points(paper: Parameters, sigma: float, seed: int) -> list[OverlayPoint]:
    one = replace(paper, event_sigmas=(sigma,), beat_ms=10_000)
    variants = [replace(one, method=method) for method in (*PAPERS_METHODS, Method.EXACT)]
    variants += [
        replace(one, method=m, density="histogram") for m in (Method.CHEAPEST, Method.EXACT)
    ]
    variants.append(replace(one, method=Method.MEASURED))
    return [OverlayPoint("beyond", overhead_rows, (variant, seed)) for variant in variants]


# --- verdicts ------------------------------------------------------------------------------------


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % confidence interval of the mean (Student's t).

    >>> interval([1.0, 1.0, 1.0])
    (1.0, 1.0)
    """
    if len(values) < 2:
        return (-math.inf, math.inf)
    reach = _STUDENT.get(len(values) - 1, 1.96) * stdev(values) / math.sqrt(len(values))
    return mean(values) - reach, mean(values) + reach


def _select(rows: Iterable[Row], **wanted: Any) -> list[Row]:
    return [row for row in rows if all(row.get(name) == value for name, value in wanted.items())]


def _per_seed(rows: list[Row], measure: str) -> dict[int, float]:
    return {row["seed"]: float(row[measure]) for row in rows}


def _ratios(above: list[Row], below: list[Row], measure: str) -> list[float]:
    top, bottom = _per_seed(above, measure), _per_seed(below, measure)
    return [top[seed] / bottom[seed] for seed in sorted(top.keys() & bottom.keys()) if bottom[seed]]


def _curve(rows: list[Row], measure: str) -> dict[float, float]:
    sigmas = sorted({row["event_sigma"] for row in rows})
    return {s: mean(float(r[measure]) for r in _select(rows, event_sigma=s)) for s in sigmas}


def _verdict(
    claim: str, says: str, measured: Any, values: Sequence[float], holds: bool, rows: list[Row]
) -> Row:
    return {
        "id": claim,
        "paper": says,
        "measured": measured,
        "interval": interval(values),
        "holds": holds,
        "seeds": sorted({row["seed"] for row in rows}),
        "parameters": {
            name: sorted({row[name] for row in rows})
            for name in ("peers", "events", "subscription_sigma", "event_sigma", "method")
        },
    }


def claims(rows: Iterable[Row]) -> list[Row]:
    """Return one verdict per claim; needs the rows of the kinds "paper" and "cache"."""
    all_rows = list(rows)
    paper = _select(all_rows, kind="paper")
    return [
        *_turning_point(_select(paper, subscription_sigma=100.0)),
        _order_of_methods(_select(paper, subscription_sigma=100.0)),
        _flatness(_select(paper, subscription_sigma=300.0)),
        *_load_spread(paper),
        _cache(_select(all_rows, kind="cache")),
        _density(paper),
    ]


def _turning_point(rows: list[Row]) -> list[Row]:
    """Judge C3.1 by total overhead, as the paper words it, and per delivery."""
    verdicts = []
    for claim, measure in (
        ("C3.1", "mean_overhead"),
        ("C3.1 per delivery", "overhead_per_delivery"),
    ):
        ces = _select(rows, method="CES")
        curve = _curve(ces, measure)
        lowest = min(curve, key=lambda sigma: curve[sigma])
        turns = 60.0 <= lowest <= 200.0 and curve[max(curve)] > 1.1 * curve[lowest]
        last = _select(ces, event_sigma=max(curve))
        values = _ratios(last, _select(ces, event_sigma=lowest), measure)
        verdicts.append(
            _verdict(
                claim,
                "σ = 100: overhead falls to about event σ = 120, then rises",
                {"lowest_at": lowest, "curve": curve, "ratio": "widest σ / lowest"},
                values,
                turns,
                ces,
            )
        )
    return verdicts


def _order_of_methods(rows: list[Row]) -> Row:
    near = _select(rows, event_sigma=120.0) or rows
    by = {m: _select(near, method=m) for m in ("RS", "LVS", "CES")}
    values = _ratios(by["RS"], by["CES"], "mean_overhead")
    between = _ratios(by["LVS"], by["CES"], "mean_overhead")
    low, high = interval(values)
    holds = 1.6 <= mean(values) <= 2.4 and 1.0 < mean(between) < mean(values)
    measured = {
        "RS / CES": mean(values),
        "LVS / CES": mean(between),
        "LVS / CES interval": interval(between),
    }
    return _verdict(
        "C3.2",
        "CES least, RS about twice as much, LVS between",
        measured,
        values,
        holds and low <= high,
        near,
    )


def _flatness(rows: list[Row]) -> Row:
    ces = _select(rows, method="CES")
    curve = _curve(ces, "mean_overhead")
    values = _ratios(
        _select(ces, event_sigma=max(curve, key=lambda s: curve[s])),
        _select(ces, event_sigma=min(curve, key=lambda s: curve[s])),
        "mean_overhead",
    )
    least = all(
        curve[s]
        <= 1.02 * min(_curve(_select(rows, method=m), "mean_overhead")[s] for m in ("RS", "LVS"))
        for s in curve
    )
    return _verdict(
        "C3.3",
        "σ = 300: overhead flat in event σ; CES still least",
        {"curve": curve, "most / least": mean(values), "CES least everywhere": least},
        values,
        mean(values) <= 1.25 and least,
        ces,
    )


def _load_spread(paper: list[Row]) -> list[Row]:
    def at(sigma: float, method: str) -> list[Row]:
        near = _select(paper, subscription_sigma=sigma, method=method)
        sigmas = sorted({row["event_sigma"] for row in near}, key=lambda s: abs(s - sigma))
        return _select(near, event_sigma=sigmas[0]) if sigmas else []

    dense, wide, random = at(100.0, "CES"), at(300.0, "CES"), at(100.0, "RS")
    bearing = [float(row["bearing_share"]) for row in dense]
    most = [float(row["share_bearing_95_percent"]) for row in dense]
    spread = [float(a["gini"]) - float(b["gini"]) for a, b in zip(dense, random, strict=False)]
    wider = [
        float(b["bearing_share"]) - float(a["bearing_share"])
        for a, b in zip(dense, wide, strict=False)
    ]
    return [
        _verdict(
            "C3.4 share",
            "under CES about 15 % of the nodes bear overhead, concentrated in 10 %",
            {"bear any": mean(bearing), "bear 95 % of it": mean(most)},
            bearing,
            0.10 <= mean(bearing) <= 0.20 and mean(most) <= 0.12,
            dense,
        ),
        _verdict(
            "C3.4 RS",
            "RS spreads overhead more evenly, at higher cost",
            {
                "Gini CES - RS": mean(spread),
                "cost RS / CES": mean(_ratios(random, dense, "mean_overhead")),
            },
            spread,
            mean(spread) > 0.0 and mean(_ratios(random, dense, "mean_overhead")) > 1.0,
            dense + random,
        ),
        _verdict(
            "C3.4 wider",
            "with σ = 300 CES spreads wider than with σ = 100",
            {"bearing σ = 300 less σ = 100": mean(wider)},
            wider,
            mean(wider) > 0.0,
            dense + wide,
        ),
    ]


def _cache(rows: list[Row]) -> Row:
    saved = {}
    for repeats in sorted({row["repeats"] for row in rows}):
        some = _select(rows, repeats=repeats)
        with_cache = [row for row in some if row["cache_size"]]
        without = [row for row in some if not row["cache_size"]]
        saved[repeats] = 1.0 - mean(_ratios(with_cache, without, "with_answers"))
    most = _select(rows, repeats=max(saved))
    values = _ratios(
        [row for row in most if row["cache_size"]],
        [row for row in most if not row["cache_size"]],
        "with_answers",
    )
    return _verdict(
        "C3.5",
        "a cache for identical events was analysed; no result is given",
        {"overhead saved, by repetitions of an event": saved},
        values,
        saved[max(saved)] > 0.0,
        rows,
    )


def _density(paper: list[Row]) -> Row:
    ces = _select(paper, method="CES")
    sigma = 120.0 if _select(ces, event_sigma=120.0) else max(r["event_sigma"] for r in ces)
    near = _select(ces, event_sigma=sigma)
    dense, wide = (_select(near, subscription_sigma=s) for s in (100.0, 300.0))
    values = _ratios(dense, wide, "overhead_per_delivery")
    total = _ratios(dense, wide, "mean_overhead")
    return _verdict(
        "C3.6",
        "overhead is lowest where subscriptions are dense and overlap much",
        {"σ=100 / σ=300 per delivery": mean(values), "in total": mean(total)},
        values,
        mean(values) < 1.0,
        near,
    )


def crossover(rows: Iterable[Row], events_per_change: float) -> int | None:
    """Return the least measured number of peers at which the overlay sends fewer messages.

    Cost per change of a subscription: the messages to announce it plus those of `events_per_change`
    events.
    """
    all_rows = list(rows)

    def cost(kind: str, peers: int) -> float:
        some = _select(all_rows, kind=kind, peers=peers)
        told = [float(r["messages_per_join"]) for r in some]
        sent = [float(r["copies_per_event"]) for r in some]
        return mean(told) + events_per_change * mean(sent)

    sizes = {r["peers"] for r in _select(all_rows, kind="growth")}
    both = sorted(sizes & {r["peers"] for r in _select(all_rows, kind="one hop")})
    return next((n for n in both if cost("growth", n) < cost("one hop", n)), None)


def figures(rows: Iterable[Row], folder: Path) -> list[Path]:
    """Draw figure 7 (overhead by event σ) and figure 8 (load by rank); needs matplotlib."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    paper = _select(rows, kind="paper")
    written = []
    for name, draw in (("figure-7", _draw_overhead), ("figure-8", _draw_load)):
        figure, axes = plt.subplots(1, 2, figsize=(10, 4))
        for axis, sigma in zip(axes, (100.0, 300.0), strict=True):
            draw(axis, _select(paper, subscription_sigma=sigma), sigma)
            axis.set_title(f"subscriptions σ = {sigma:.0f}")
            axis.legend()
        figure.tight_layout()
        written.append(folder / f"content-overlay-{name}.svg")
        figure.savefig(written[-1])
        plt.close(figure)
    return written


def _draw_overhead(axis: Any, rows: list[Row], _sigma: float) -> None:
    for method in ("RS", "LVS", "CES"):
        curve = _curve(_select(rows, method=method), "mean_overhead")
        axis.plot(list(curve), list(curve.values()), marker="o", label=method)
    axis.set_xlabel("event σ")
    axis.set_ylabel("mean overhead per peer")


def _draw_load(axis: Any, rows: list[Row], sigma: float) -> None:
    for method in ("RS", "LVS", "CES"):
        some = _select(rows, method=method)
        if not some:
            continue
        near = min({row["event_sigma"] for row in some}, key=lambda s: abs(s - sigma))
        groups = [row["groups_of_5_percent"] for row in _select(some, event_sigma=near)]
        axis.plot(range(5, 105, 5), [mean(g) for g in zip(*groups, strict=True)], label=method)
    axis.set_xlabel("peers by rank of overhead, %")
    axis.set_ylabel("mean overhead")
