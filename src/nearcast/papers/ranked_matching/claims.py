"""Paper 1, ranked search: points, verdicts on C1.1 and C1.2, figures and tables."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

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
    seeds_of,
    select,
)
from nearcast.papers.ranked_matching import experiment

ABOUT = 1.1
"""The claim's "about" k markers plus the path: at most a tenth more."""

HOWEVER_MANY = 2.0
"""The claim's "however many match": with the most matches at most twice as many are touched."""


def points(*, quick: bool) -> list[Point]:
    """Return searches over numbers of matches, and queries over workloads."""
    seeds = (1, 2, 3) if quick else tuple(range(1, 9))
    count = 50_000 if quick else 100_000
    matches = (20, 100, 1000, 10_000) if quick else (20, 100, 1000, 10_000, 30_000)
    found = [
        Point(1, "touching", seed, {"intervals": count, "matches": m, "k": 10, "queries": 100}, 2.0)
        for seed in seeds
        for m in matches
    ]
    sizes = (30, 300, 3000)
    queries = 1500 if quick else 3000
    return found + [
        Point(1, "errors", seed, {"workload": w, "intervals": n, "k": 5, "queries": queries})
        for seed in seeds
        for w in experiment.WORKLOADS
        for n in sizes
    ]


def run(point: Point) -> list[Row]:
    """Search one list, or compare its results with a scan."""
    if point.kind == "touching":
        return experiment.touching_rows(seed=point.seed, **point.parameters)
    return experiment.error_rows(seed=point.seed, **point.parameters)


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Judge both claims, in each reading of the paper's walk and for the exact merge."""
    touching, errors = of_kind(rows, "touching"), of_kind(rows, "errors")
    return [
        *(_touching(touching, method) for method in experiment.METHODS),
        *(_order(errors, method) for method in experiment.READINGS),
        _set_alone(errors),
    ]


def _touching(rows: list[Row], method: str) -> Claim:
    few, many = (pick(row["matches"] for row in rows) for pick in (min, max))
    of = {(row["matches"], row["seed"]): row for row in rows}
    growth = [
        of[many, seed][f"touched_{method}"] / of[few, seed][f"touched_{method}"]
        for seed in seeds_of(rows)
    ]
    bound = [row[f"touched_{method}"] / (row["k"] + row[f"path_{method}"]) for row in rows]
    low, high = (mean_of(select(rows, matches=m), f"touched_{method}") for m in (few, many))
    path = mean_of(select(rows, matches=many), f"path_{method}")
    return judged(
        "C1.1",
        "the ranked search touches about k markers plus the search path, however many match",
        f"k = {rows[0]['k']}: {low:.1f} markers touched where {few:,} match, {high:.1f} where "
        f"{many:,} match ({path:.1f} marked edges on the path)",
        max(bound) <= ABOUT and fmean(growth) <= HOWEVER_MANY,
        rows,
        growth,
        f"markers touched, {many:,} matches : {few:,} matches",
        variant=experiment.METHODS[method],
        over=("intervals", "matches", "k"),
        ours=method == "exact",
    )


def _order(rows: list[Row], method: str) -> Claim:
    asked = sum(row["asked"] for row in rows)
    shares = {what: _share(rows, f"wrong_{what}_{method}") for what in ("order", "set")}
    per_seed = [_share(select(rows, seed=s), f"wrong_order_{method}") for s in seeds_of(rows)]
    return judged(
        "C1.2",
        "results come back in order of accuracy",
        f"of {asked:,} queries {shares['order']:.1%} came back in a wrong order; the set of the "
        f"best {rows[0]['k']} was wrong in {shares['set']:.1%}",
        asked > 0 and not any(row[f"wrong_order_{method}"] for row in rows),
        rows,
        per_seed,
        "share of queries in a wrong order",
        variant=experiment.READINGS[method],
        over=("workload", "intervals", "k"),
        ours=method == "exact",
    )


def _set_alone(rows: list[Row]) -> Claim:
    """Judge the weakest reading of C1.2: the k best in any order."""
    per_seed = [_share(select(rows, seed=s), "wrong_set_paper") for s in seeds_of(rows)]
    return judged(
        "C1.2",
        "results come back in order of accuracy",
        f"the set of the best {rows[0]['k']} was wrong in {_share(rows, 'wrong_set_paper'):.1%} "
        f"of {sum(row['asked'] for row in rows):,} queries",
        any(row["asked"] for row in rows) and not any(row["wrong_set_paper"] for row in rows),
        rows,
        per_seed,
        "share of queries with a wrong set",
        variant="the paper's walk, in any order",
        over=("workload", "intervals", "k"),
    )


def _share(rows: Sequence[Row], column: str) -> float:
    """Return the share over all queries of these rows."""
    asked = sum(int(row["asked"]) for row in rows)
    wrong = sum(float(row[column]) * int(row["asked"]) for row in rows)
    return wrong / max(1, asked)


def figures(rows: Sequence[Row]) -> list[Figure]:
    """Draw the touched markers, the processor time, and how often the paper's walk is wrong."""
    caption = (
        "Left: markers touched. Middle: processor time of a query, beside collecting all matches "
        "and sorting them at the end (the paper's first way). Right: how often the set of the best "
        "five is not the true one, by a scan of all intervals."
    )
    some, errors, ways = of_kind(rows, "touching"), of_kind(rows, "errors"), experiment.METHODS
    counts = {f"touched_{m}": name for m, name in ways.items()}
    times = {f"{m}_us": name for m, name in ways.items()} | {"sorting_us": "sort at the end"}

    def draw(touched: Any, taken: Any, wrong: Any) -> None:
        _draw_touching(touched, some, counts, "markers touched")
        touched.set(yscale="linear", ylim=(0, None))
        _draw_touching(taken, some, times, "µs of processor time per query")
        _draw_errors(wrong, errors)

    return [drawn("paper-1", caption, draw, axes=(1, 3), size=(11, 4.4))]


def _draw_touching(axes: Any, rows: Sequence[Row], names: dict[str, str], unit: str) -> None:
    """Draw columns (by the names of their curves) against the number of matches, both log."""
    places = sorted({row["matches"] for row in rows})
    for (column, name), mark in zip(names.items(), "o^s", strict=False):
        means = [mean_of(select(rows, matches=m), column) for m in places]
        axes.plot(places, means, marker=mark, label=name)
    axes.set(xscale="log", yscale="log", xlabel="intervals that match", ylabel=unit)
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)


def _draw_errors(axes: Any, rows: Sequence[Row]) -> None:
    for workload in experiment.WORKLOADS:
        mine = select(rows, workload=workload)
        sizes = sorted({row["intervals"] for row in mine if row["asked"]})
        shares = [100 * _share(select(mine, intervals=n), "wrong_set_paper") for n in sizes]
        axes.plot(sizes, shares, marker="o", label=workload)
    exact = [100 * _share(rows, "wrong_set_exact")] * 2
    axes.plot((30, 3000), exact, "k--", label="exact merge, all three")
    label = "% of queries with a wrong best five"
    axes.set(xscale="log", xlabel="intervals", ylabel=label, title="the paper's walk")
    axes.set_ylim(-3, 103)
    axes.legend(fontsize=8, loc=(0.32, 0.1))
    axes.grid(alpha=0.3)


def tables(rows: Sequence[Row]) -> list[ReportTable]:
    """Return the cost of exactness beside the paper's walk and beside sorting all matches."""
    some = of_kind(rows, "touching")
    lines = []
    for matches in sorted({row["matches"] for row in some}):
        at = select(some, matches=matches)
        columns = ("touched_paper", "touched_exact", "paper_us", "exact_us", "sorting_us")
        cells = [f"{mean_of(at, column):.1f}" for column in columns]
        lines.append((f"{matches:,}", *cells))
    headings = (
        "match", "markers, the paper's walk", "markers, exact merge", "µs, the paper's walk",
        "µs, exact merge", "µs, sort at the end",
    )  # fmt: skip
    caption = "What a query for the best ten touches and takes (processor time, mean of seeds)."
    return [ReportTable(caption, headings, tuple(lines))]
