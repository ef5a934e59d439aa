"""Paper 3, the content overlay: points, verdicts on C3.1 to C3.6, figures 7 and 8, and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

from nearcast.overlay import Climb, Method, Split
from nearcast.papers.content_overlay import experiment
from nearcast.papers.content_overlay.experiment import EVENT_SIGMAS, Parameters
from nearcast.papers.form import (
    Claim,
    Figure,
    Point,
    ReportTable,
    Row,
    drawn,
    interval,
    judged,
    mean_of,
    of_kind,
    select,
)

PAPERS_METHODS = (Method.RANDOM, Method.LARGEST, Method.CHEAPEST)
_NAMES = ("RS", "LVS", "CES")
_SIGMAS = (100.0, 300.0)  # of subscriptions
READINGS = {
    "F = 0": "only receiving costs: R = 1, F = 0",
    "climb": "events climb until a group contains them, as the listing says (trap T3.6)",
}
BARS = "as the paper could see it, in bars of 5 % of the nodes"
VISIBLE = 0.05
"""A bar below this share of the highest one is not seen in a figure."""
_FUNCTIONS = {
    "read: climb": experiment.literal_rows,
    "cache": experiment.cache_rows,
    "churn": experiment.churn_rows,
    "growth": experiment.growth_rows,
    "one hop": experiment.onehop_rows,
}


# --- points ---------------------------------------------------------------------------------------


def points(*, quick: bool) -> list[Point]:
    """Return every point; quick ones take seconds each, all of the full ones together hours."""
    seeds = (1, 2, 3) if quick else (1, 2, 3, 4, 5)
    size = 300 if quick else 3000
    base = Parameters(peers=size, events=size)
    wide = replace(base, subscription_sigma=300.0, event_sigmas=(300.0,), method=Method.EXACT)
    dense = replace(base, peers=min(size, 600), method=Method.EXACT)
    few = replace(wide, peers=300, events=600, beat_ms=1000, coalesce_ms=0)
    found: list[Point] = []
    for seed in seeds:
        for sigma in _SIGMAS:
            found += _paper_points(replace(base, subscription_sigma=sigma), seed, quick=quick)
            found += _beyond_points(replace(base, subscription_sigma=sigma), sigma, seed)
            found += _reading_points(replace(base, subscription_sigma=sigma), seed, quick=quick)
        found += [_point("cache", dense, seed, repeats) for repeats in (1, 2, 10, 50)]
        found += [_point("split", replace(wide, split=split), seed) for split in Split]
        found += [_point("climb", replace(wide, climb=climb), seed) for climb in Climb]
        many = replace(base, method=Method.EXACT)
        found += [_point("dimensions", replace(many, dimensions=n), seed) for n in (4, 8)]
        found += [_point("churn", few, seed, rate, 0.5) for rate in (0.1, 1.0)]
    for count in (100, 300) if quick else (100, 300, 1000, 3000, 10_000, 30_000):
        grow = replace(wide, peers=count, events=1000)
        kinds = ("growth", "one hop") if count <= 1000 else ("growth",)
        found += [_point(kind, grow, seed) for kind in kinds for seed in seeds[:2]]
    return found


def _paper_points(base: Parameters, seed: int, *, quick: bool) -> list[Point]:
    """Return the points of the paper's figures; quick ones have fewer peers and event σ."""
    figure = replace(base, event_sigmas=tuple(map(float, EVENT_SIGMAS)))
    if quick:
        sigmas = (10.0, 60.0, 120.0, 300.0, 500.0)
        figure = replace(base, peers=600, events=600, event_sigmas=sigmas)
    return [_point("paper", replace(figure, method=method), seed) for method in PAPERS_METHODS]


def _reading_points(base: Parameters, seed: int, *, quick: bool) -> list[Point]:
    """Return the points of the paper's figures with what it leaves open read in other ways."""
    read = {
        "F = 0": replace(base, forward_cost=0.0),
        "climb": base,
    }
    return [
        replace(one, kind=f"read: {name}")
        for name, parameters in read.items()
        for one in _paper_points(parameters, seed, quick=quick)
    ]


def _beyond_points(base: Parameters, sigma: float, seed: int) -> list[Point]:
    plain = replace(base, event_sigmas=(sigma,), beat_ms=10_000)
    variants = [replace(plain, method=method) for method in (*PAPERS_METHODS, Method.EXACT)]
    variants += [
        replace(plain, method=method, density="histogram")
        for method in (Method.CHEAPEST, Method.EXACT)
    ]
    variants.append(replace(plain, method=Method.MEASURED))
    return [_point("beyond", variant, seed) for variant in variants]


def _point(kind: str, parameters: Parameters, seed: int, *more: float) -> Point:
    work = parameters.peers * (2 if kind == "cache" else 1)
    cost_s = 1e-3 * work + 2e-4 * parameters.events * len(parameters.event_sigmas)
    given = {"parameters": parameters, "more": more}
    return Point(3, kind, seed, given, 8 * cost_s if kind == "churn" else cost_s)


def run(point: Point) -> list[Row]:
    """Build one overlay and publish events through it."""
    function = _FUNCTIONS.get(point.kind, experiment.overhead_rows)
    given = point.parameters
    rows: list[Row] = function(given["parameters"], point.seed, *given["more"])  # type: ignore[operator]
    return rows


# --- verdicts -------------------------------------------------------------------------------------


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Judge C3.1 to C3.6 by the rows of the kinds "paper" and "cache", then by other readings."""
    paper = of_kind(rows, "paper")
    dense, wide = (select(paper, subscription_sigma=sigma) for sigma in _SIGMAS)
    return [
        _turning_point(dense, "mean_overhead", "total"),
        _turning_point(dense, "overhead_per_delivery", "per delivery"),
        _order_of_methods(dense),
        _flatness(wide),
        *_load_spread(dense, wide),
        _cache(of_kind(rows, "cache")),
        _density(select(paper, method="CES")),
        *_readings(rows, dense),
    ]


def _readings(rows: Sequence[Row], dense: list[Row]) -> list[Claim]:
    """Judge what fails by other readings: only receiving costs; events climb; the paper's bars."""
    found = []
    for kind, text in READINGS.items():
        some = of_kind(rows, f"read: {kind}")
        if not some:
            continue
        near, far = (select(some, subscription_sigma=sigma) for sigma in _SIGMAS)
        read = [
            _turning_point(near, "mean_overhead", "total"),
            _order_of_methods(near),
            _flatness(far),
            *_load_spread(near, far),
        ]
        found += [replace(claim, reading=text) for claim in read]
    return [*found, replace(_bars(_at_own_sigma(dense, "CES")), reading=BARS)]


def _bars(rows: list[Row]) -> Claim:
    """Judge C3.4 as the paper could see it: in bars of 5 % of the nodes each."""
    shown, ten = [], []
    for row in rows:
        bars = [float(bar) for bar in row["groups_of_5_percent"]]
        total = sum(bars) or 1.0
        shown.append(0.05 * sum(bar > VISIBLE * max(bars) for bar in bars))
        ten.append(sum(bars[:2]) / total)
    return _claim(
        "C3.4",
        "under CES about 15 % of the nodes bear overhead, concentrated in 10 %",
        f"share of peers in bars that can be seen: {fmean(shown):.3g}; share of all overhead in "
        f"the first two bars: {fmean(ten):.3g}",
        0.10 <= fmean(shown) <= 0.20 and fmean(ten) > 0.5,
        rows,
        shown,
        "share of peers in bars that can be seen",
        "who bears it",
    )


def _claim(
    name: str,
    says: str,
    measured: str,
    holds: bool,
    rows: Sequence[Row],
    values: Sequence[float],
    interval_of: str,
    variant: str = "",
) -> Claim:
    over = ("peers", "events", "subscription_sigma", "event_sigma", "method")
    return judged(
        name, says, measured, holds, rows, values, interval_of, variant=variant, over=over
    )


def _ratios(above: list[Row], below: list[Row], column: str) -> list[float]:
    """Return the ratio of a column, seed by seed, where the divisor is not 0."""
    top, bottom = ({row["seed"]: float(row[column]) for row in some} for some in (above, below))
    return [top[seed] / bottom[seed] for seed in sorted(top.keys() & bottom.keys()) if bottom[seed]]


def _curve(rows: list[Row], column: str) -> dict[float, float]:
    sigmas = sorted({row["event_sigma"] for row in rows})
    return {sigma: mean_of(select(rows, event_sigma=sigma), column) for sigma in sigmas}


def _listed(curve: Mapping[float, float]) -> str:
    return ", ".join(f"{value:.3g} at {place:g}" for place, value in curve.items())


def _turning_point(rows: list[Row], column: str, variant: str) -> Claim:
    """Judge C3.1 by total overhead, as the paper words it, or per delivery."""
    ces = select(rows, method="CES")
    curve = _curve(ces, column)
    lowest, widest = min(curve, key=lambda sigma: curve[sigma]), max(curve)
    return _claim(
        "C3.1",
        "σ = 100: overhead falls to about event σ = 120, then rises",
        f"least at event σ: {lowest:.3g}; overhead by event σ: {_listed(curve)}",
        60.0 <= lowest <= 200.0 and curve[widest] > 1.1 * curve[lowest],
        ces,
        _ratios(select(ces, event_sigma=widest), select(ces, event_sigma=lowest), column),
        "overhead, widest event σ : where it is least",
        variant,
    )


def _order_of_methods(rows: list[Row]) -> Claim:
    near = select(rows, event_sigma=120.0) or rows
    rs, lvs, ces = (select(near, method=name) for name in _NAMES)
    values, between = _ratios(rs, ces, "mean_overhead"), _ratios(lvs, ces, "mean_overhead")
    low, high = interval(between)
    return _claim(
        "C3.2",
        "CES least, RS about twice as much, LVS between",
        f"RS / CES: {fmean(values):.3g}, LVS / CES: {fmean(between):.3g}, "
        f"LVS / CES interval: {low:.3g} to {high:.3g}",
        1.6 <= fmean(values) <= 2.4 and 1.0 < fmean(between) < fmean(values),
        near,
        values,
        "overhead, RS : CES",
    )


def _flatness(rows: list[Row]) -> Claim:
    rs, lvs, ces = (_curve(select(rows, method=name), "mean_overhead") for name in _NAMES)
    most, least = (pick(ces, key=lambda sigma: ces[sigma]) for pick in (max, min))
    some = select(rows, method="CES")
    values = _ratios(
        select(some, event_sigma=most), select(some, event_sigma=least), "mean_overhead"
    )
    is_least = all(ces[sigma] <= 1.02 * min(rs[sigma], lvs[sigma]) for sigma in ces)
    return _claim(
        "C3.3",
        "σ = 300: overhead flat in event σ; CES still least",
        f"overhead by event σ: {_listed(ces)}; most / least: {fmean(values):.3g}; "
        f"CES least everywhere: {'yes' if is_least else 'no'}",
        fmean(values) <= 1.25 and is_least,
        some,
        values,
        "overhead, most : least",
    )


def _at_own_sigma(rows: list[Row], method: str) -> list[Row]:
    """Return the rows of a method where events spread as subscriptions do, or nearly so."""
    some = select(rows, method=method)
    near = min(
        {row["event_sigma"] for row in some},
        key=lambda sigma: abs(sigma - some[0]["subscription_sigma"]),
    )
    return select(some, event_sigma=near)


def _differences(above: list[Row], below: list[Row], column: str) -> list[float]:
    pairs = zip(above, below, strict=False)
    return [float(a[column]) - float(b[column]) for a, b in pairs]


def _load_spread(rows: list[Row], rows_of_wide: list[Row]) -> list[Claim]:
    dense, random = _at_own_sigma(rows, "CES"), _at_own_sigma(rows, "RS")
    wide = _at_own_sigma(rows_of_wide, "CES")
    bearing = [float(row["bearing_share"]) for row in dense]
    most = mean_of(dense, "share_bearing_95_percent")
    spread = _differences(dense, random, "gini")
    cost = fmean(_ratios(random, dense, "mean_overhead"))
    wider = _differences(wide, dense, "bearing_share")
    return [
        _claim(
            "C3.4",
            "under CES about 15 % of the nodes bear overhead, concentrated in 10 %",
            f"share of peers that bear any: {fmean(bearing):.3g}, "
            f"share that bears 95 % of it: {most:.3g}",
            0.10 <= fmean(bearing) <= 0.20 and most <= 0.12,
            dense,
            bearing,
            "share of peers that bear overhead",
            "who bears it",
        ),
        _claim(
            "C3.4",
            "RS spreads overhead more evenly, at higher cost",
            f"Gini CES - RS: {fmean(spread):.3g}, cost RS / CES: {cost:.3g}",
            fmean(spread) > 0.0 and cost > 1.0,
            dense + random,
            spread,
            "Gini coefficient, CES less RS",
            "RS against CES",
        ),
        _claim(
            "C3.4",
            "with σ = 300 CES spreads wider than with σ = 100",
            f"share of peers that bear any, σ = 300 less σ = 100: {fmean(wider):.3g}",
            fmean(wider) > 0.0,
            dense + wide,
            wider,
            "share that bears overhead, σ = 300 less σ = 100",
            "σ = 300 against σ = 100",
        ),
    ]


def _cache(rows: list[Row]) -> Claim:
    ratios: dict[float, list[float]] = {}
    for repeats in sorted({row["repeats"] for row in rows}):
        some = select(rows, repeats=repeats)
        with_cache = [row for row in some if row["cache_size"]]
        ratios[repeats] = _ratios(with_cache, select(some, cache_size=0), "with_answers")
    saved = {repeats: 1.0 - fmean(each) for repeats, each in ratios.items()}
    return _claim(
        "C3.5",
        "a cache for identical events was analysed; no result is given",
        f"overhead saved, by repetitions of an event: {_listed(saved)}",
        saved[max(saved)] > 0.0,
        rows,
        ratios[max(ratios)],
        "overhead with a cache : without, most repetitions",
    )


def _density(ces: list[Row]) -> Claim:
    sigmas = {row["event_sigma"] for row in ces}
    near = select(ces, event_sigma=120.0 if 120.0 in sigmas else max(sigmas))
    dense, wide = (select(near, subscription_sigma=sigma) for sigma in _SIGMAS)
    values = _ratios(dense, wide, "overhead_per_delivery")
    total = fmean(_ratios(dense, wide, "mean_overhead"))
    return _claim(
        "C3.6",
        "overhead is lowest where subscriptions are dense and overlap much",
        f"σ=100 / σ=300 per delivery: {fmean(values):.3g}, in total: {total:.3g}",
        fmean(values) < 1.0,
        near,
        values,
        "overhead per delivery, σ = 100 : σ = 300",
    )


# --- figures and tables ---------------------------------------------------------------------------


def figures(rows: Sequence[Row]) -> list[Figure]:
    """Draw the paper's figures 7 and 8."""
    paper = of_kind(rows, "paper")
    captions = {
        7: "The paper's figure 7: mean overhead per peer against the spread of events.",
        8: "The paper's figure 8: overhead of peers in groups of 5 %, by rank.",
    }

    def draw(draw_method: Any, *all_axes: Any) -> None:
        for axes, sigma in zip(all_axes, _SIGMAS, strict=True):
            for method in _NAMES:
                some = select(paper, subscription_sigma=sigma, method=method)
                if some:
                    draw_method(axes, some, method)
            axes.set_title(f"subscriptions σ = {sigma:.0f}")
            axes.legend()

    return [
        drawn(f"paper-3-{number}", captions[number], partial(draw, way), axes=(1, 2), size=(10, 4))
        for number, way in ((7, _draw_overhead), (8, _draw_load))
    ]


def _draw_overhead(axes: Any, rows: list[Row], method: str) -> None:
    curve = _curve(rows, "mean_overhead")
    axes.plot(list(curve), list(curve.values()), marker="o", label=method)
    axes.set(xlabel="event σ", ylabel="mean overhead per peer")


def _draw_load(axes: Any, rows: list[Row], method: str) -> None:
    groups = [row["groups_of_5_percent"] for row in _at_own_sigma(rows, method)]
    axes.plot(range(5, 105, 5), [fmean(g) for g in zip(*groups, strict=True)], label=method)
    axes.set(xlabel="peers by rank of overhead, %", ylabel="mean overhead")


def tables(rows: Sequence[Row]) -> list[ReportTable]:
    """Return tables of other elections, of leaving peers, and of the alternative without a tree."""
    found = [_elections(of_kind(rows, "beyond")), _churn(of_kind(rows, "churn")), _sizes(rows)]
    return [table for table in found if table.lines]


def _elections(rows: Sequence[Row]) -> ReportTable:
    lines = []
    for method, density in dict.fromkeys((row["method"], row["density"]) for row in rows):
        mine = select(rows, method=method, density=density)
        cells = [f"{method}, events by {density}"]
        for sigma in _SIGMAS:
            at = select(mine, subscription_sigma=sigma)
            cells += [_mean(at, "mean_overhead", ".1f"), _mean(at, "gini", ".3f")]
        lines.append(tuple(cells))
    headings = ("election", "σ = 100: overhead", "Gini", "σ = 300: overhead", "Gini")
    caption = "Who is elected, and by which estimate of events."
    return ReportTable(caption, headings, tuple(lines))


def _churn(rows: Sequence[Row]) -> ReportTable:
    lines = []
    for rate in sorted({row["leaves_per_s"] for row in rows}):
        at = select(rows, leaves_per_s=rate)
        sound = sum(bool(row["sound_after"]) for row in at)
        share = _mean(at, "delivered_share", ".1%")
        lines.append((f"{rate:g}", share, f"{sound} of {len(at)}"))
    headings = ("peers that go per second", "deliveries made", "runs with a sound tree afterwards")
    return ReportTable("Peers that leave or crash while events travel.", headings, tuple(lines))


def _sizes(rows: Sequence[Row]) -> ReportTable:
    lines = []
    for peers in sorted({row["peers"] for row in of_kind(rows, "growth")}):
        tree, flat = (select(rows, kind=kind, peers=peers) for kind in ("growth", "one hop"))
        cells = [_mean(tree, "hops_mean", ".2f"), _mean(tree, "table_entries_mean", ".1f")]
        for some in (tree, flat):
            cells += [
                _mean(some, "messages_per_join", ".1f"),
                _mean(some, "copies_per_event", ".1f"),
            ]
        lines.append((f"{peers:,}", *cells))
    headings = (
        "peers", "hops", "table entries", "tree: messages per join", "tree: copies per event",
        "one hop: messages per join", "one hop: copies per event",
    )  # fmt: skip
    caption = "The tree beside the alternative in which everybody knows everybody."
    return ReportTable(caption, headings, tuple(lines))


def _mean(rows: Sequence[Row], column: str, form: str) -> str:
    return format(mean_of(rows, column), form) if rows else "–"
