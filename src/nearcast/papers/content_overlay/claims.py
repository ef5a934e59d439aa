"""Paper 3, the content overlay: adapter of `experiment.py` and `sweep.py` to `papers/form.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from nearcast.papers.content_overlay import experiment as runs
from nearcast.papers.content_overlay import sweep as experiment
from nearcast.papers.form import Claim, Figure, Point, ReportTable, Row, interval, of_kind

_FUNCTIONS = {
    "cache": runs.cache_rows,
    "churn": runs.churn_rows,
    "growth": runs.growth_rows,
    "one hop": runs.onehop_rows,
}
_QUICK_SIGMAS = (10.0, 60.0, 120.0, 300.0, 500.0)
_VARIANTS = {
    "C3.1": "total",
    "C3.1 per delivery": "per delivery",
    "C3.4 share": "who bears it",
    "C3.4 RS": "RS against CES",
    "C3.4 wider": "σ = 300 against σ = 100",
}
_INTERVALS = {
    "C3.1": "overhead, widest event σ : where it is least",
    "C3.2": "overhead, RS : CES",
    "C3.3": "overhead, most : least",
    "C3.4 share": "share of peers that bear overhead",
    "C3.4 RS": "Gini coefficient, CES less RS",
    "C3.4 wider": "share that bears overhead, σ = 300 less σ = 100",
    "C3.5": "overhead with a cache : without, most repetitions",
    "C3.6": "overhead per delivery, σ = 100 : σ = 300",
}


_WORDS = {
    "lowest_at": "least at event σ",
    "curve": "overhead by event σ",
    "bear any": "share of peers that bear any",
    "bear 95 % of it": "share that bears 95 % of it",
    "bearing σ = 300 less σ = 100": "share of peers that bear any, σ = 300 less σ = 100",
}


def points(*, quick: bool) -> list[Point]:
    """Return the experiment's points; quick points of the paper's figures get twice the peers."""
    return [_point(one, quick=quick) for one in experiment.points(quick=quick)]


def _point(one: experiment.OverlayPoint, *, quick: bool) -> Point:
    parameters, seed, *rest = one.arguments
    if quick and one.kind == "paper":
        parameters = replace(parameters, peers=600, events=600, event_sigmas=_QUICK_SIGMAS)
    work = parameters.peers * (2 if one.kind == "cache" else 1)
    cost_s = 1e-3 * work + 2e-4 * parameters.events * len(parameters.event_sigmas)
    given = {"parameters": parameters, "more": tuple(rest)}
    return Point(3, one.kind, seed, given, 8 * cost_s if one.kind == "churn" else cost_s)


def run(point: Point) -> list[Row]:
    """Build one overlay and publish events through it."""
    function = _FUNCTIONS.get(point.kind, runs.overhead_rows)
    given = point.parameters
    rows: list[Row] = function(given["parameters"], point.seed, *given["more"])  # type: ignore[operator]
    return rows


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Judge C3.1 to C3.6 as `sweep.py` does."""
    return [_claim(one) for one in experiment.claims(rows)]


def _claim(one: Mapping[str, Any]) -> Claim:
    name = str(one["id"])
    claim, several = name.split(maxsplit=1)[0], len(one["seeds"]) > 1
    low, high = one["interval"] if several else interval([])
    what = _INTERVALS.get(name) or _INTERVALS[claim]
    return Claim(
        claim, _VARIANTS.get(name, ""), one["paper"], _told(one["measured"]), what,
        low, high, bool(one["holds"]), tuple(one["seeds"]), one["parameters"],
    )  # fmt: skip


def _told(value: Any) -> str:
    """Return measured values as text: curves as pairs, shares with three digits."""
    if isinstance(value, Mapping):
        if not any(isinstance(key, str) for key in value):  # a curve
            return ", ".join(f"{_told(each)} at {key:g}" for key, each in value.items())
        told = {key: each for key, each in value.items() if not isinstance(each, str)}
        parts = [f"{_name(key)}: {_told(each)}" for key, each in told.items()]
        return ("; " if any(isinstance(v, Mapping) for v in value.values()) else ", ").join(parts)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return f"{_told(value[0])} to {_told(value[1])}"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _name(key: object) -> str:
    return _WORDS.get(str(key), str(key))


def figures(rows: Sequence[Row]) -> list[Figure]:
    """Draw the paper's figures 7 and 8."""
    import tempfile

    captions = (
        "The paper's figure 7: mean overhead per peer against the spread of events.",
        "The paper's figure 8: overhead of peers in groups of 5 %, by rank.",
    )
    with tempfile.TemporaryDirectory() as folder:
        written = experiment.figures(rows, Path(folder))
        return [
            Figure(f"paper-3-{number}", caption, path.read_bytes())
            for number, (path, caption) in enumerate(zip(written, captions, strict=True), start=7)
        ]


# --- beyond the claims ----------------------------------------------------------------------------


def tables(rows: Sequence[Row]) -> list[ReportTable]:
    """Return tables of other elections, of leaving peers, and of the alternative without a tree."""
    found = [_elections(of_kind(rows, "beyond")), _churn(of_kind(rows, "churn")), _sizes(rows)]
    return [table for table in found if table.lines]


def _elections(rows: Sequence[Row]) -> ReportTable:
    lines = []
    for method, density in dict.fromkeys((row["method"], row["density"]) for row in rows):
        mine = [row for row in rows if (row["method"], row["density"]) == (method, density)]
        cells = [f"{method}, events by {density}"]
        for sigma in (100.0, 300.0):
            at = [row for row in mine if row["subscription_sigma"] == sigma]
            cells += [_mean(at, "mean_overhead", ".1f"), _mean(at, "gini", ".3f")]
        lines.append(tuple(cells))
    headings = ("election", "σ = 100: overhead", "Gini", "σ = 300: overhead", "Gini")
    caption = "Who is elected, and by which estimate of events."
    return ReportTable(caption, headings, tuple(lines))


def _churn(rows: Sequence[Row]) -> ReportTable:
    lines = []
    for rate in sorted({row["leaves_per_s"] for row in rows}):
        at = [row for row in rows if row["leaves_per_s"] == rate]
        sound = sum(bool(row["sound_after"]) for row in at)
        share = _mean(at, "delivered_share", ".1%")
        lines.append((f"{rate:g}", share, f"{sound} of {len(at)}"))
    headings = ("peers that go per second", "deliveries made", "runs with a sound tree afterwards")
    return ReportTable("Peers that leave or crash while events travel.", headings, tuple(lines))


def _sizes(rows: Sequence[Row]) -> ReportTable:
    lines = []
    for peers in sorted({row["peers"] for row in of_kind(rows, "growth")}):
        tree, flat = (
            [row for row in of_kind(rows, kind) if row["peers"] == peers]
            for kind in ("growth", "one hop")
        )
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
    return format(fmean(float(row[column]) for row in rows), form) if rows else "–"
