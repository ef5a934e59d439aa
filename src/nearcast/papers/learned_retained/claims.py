"""Paper 4, retained messages by a learned policy.

Adapter of `experiment.py` to `papers/form.py`.
"""

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
    interval,
    of_kind,
    seeds_of,
)
from nearcast.papers.learned_retained import experiment

_INTERVALS = {
    "C4.1": "fall of plain MQTT less fall of the learned policy",
    "C4.2": "learned less plain, mean over λP below 0.5",
}
_COLUMNS = ("share_learned", "share_general", "share_wait")


def points(*, quick: bool) -> list[Point]:
    """Return points of both figures, of one varied parameter at a time, and of simulated topics."""
    seeds = (1, 2, 3) if quick else tuple(range(1, 9))
    found = [
        Point(4, "omega", seed, {"omega": omega}, 0.2)
        for seed in seeds
        for omega in experiment.OMEGAS
    ]
    found += [
        Point(4, "publish", seed, {"publish": publish}, 0.2)
        for seed in seeds
        for publish in experiment.PUBLISHES
    ]
    found += [
        Point(4, "topic", seed, {"interval_s": gap_s}, 0.2)
        for seed in seeds
        for gap_s in (0.1, 1.0, 2.0, 60.0)
    ]
    varied = [p for p in experiment.sensitivity_points() if not quick or p["varied"] in _QUICKLY]
    return found + [
        Point(4, "sensitivity", seed, dict(one), 8.0 if one["varied"] != "kind" else 1.0)
        for one in varied
        for seed in seeds[: 1 if quick else 3]
    ]


_QUICKLY = {"shape", "kind"}


def run(point: Point) -> list[Row]:
    """Compute one point of a figure, one variation of it, or one topic."""
    given: dict[str, Any] = dict(point.parameters)
    if point.kind == "topic":
        return [experiment.topic_point(seed=point.seed, **given)]
    if point.kind != "sensitivity":
        return [_reward(seed=point.seed, **given)]
    varied = given.pop("varied")
    named = f"{varied}: {next(iter(given.values()))}"
    return [
        {"varied": named} | _reward(seed=point.seed, omega=omega, publish=publish, **given)
        for omega in (0.3, 0.7)
        for publish in (0.1, 0.6)
    ]


def _reward(**given: Any) -> Row:
    """Return a point's row.

    Its `kind` (how the topic publishes) is renamed, since tasks have one too.
    """
    row = experiment.reward_point(**given)
    row["publishing"] = row.pop("kind")
    return row


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Judge C4.1 and C4.2 as the experiment does."""
    judged = [
        (experiment.claim_1(of_kind(rows, "omega")), of_kind(rows, "omega")),
        (experiment.claim_2(of_kind(rows, "publish")), of_kind(rows, "publish")),
    ]
    return [_claim(one, some) for one, some in judged]


def _claim(one: Row, rows: list[Row]) -> Claim:
    several = len(seeds_of(rows)) > 1
    low, high = one["confidence_interval"] if several else interval([])
    return Claim(
        one["id"], "", one["paper_says"], one["measured"], _INTERVALS[one["id"]],
        low, high, bool(one["holds"]), seeds_of(rows), one["parameters"],
    )  # fmt: skip


def figures(rows: Sequence[Row]) -> list[Figure]:
    """Draw the paper's figures 2 and 3, with always waiting, the general policy and the optimum."""
    captions = {
        "omega": "The paper's figure 2: expected reward per step as ω grows (traffic weighs less).",
        "publish": "The paper's figure 3: expected reward per step as publishes come more often.",
    }
    return [
        drawn(
            f"paper-4-{over}",
            caption,
            lambda path, over=over: experiment.draw(of_kind(rows, over), over, path),  # type: ignore[misc]
            wide=False,
        )
        for over, caption in captions.items()
    ]


def tables(rows: Sequence[Row]) -> list[ReportTable]:
    """Return the shares of the attainable gain, their sensitivity, and the savings per topic."""
    found = [_shares(rows), _topics(of_kind(rows, "topic"))]
    return [table for table in found if table.lines]


def _shares(rows: Sequence[Row]) -> ReportTable:
    groups = {"figure 2 and 3": of_kind(rows, "omega") + of_kind(rows, "publish")}
    for row in of_kind(rows, "sensitivity"):
        groups.setdefault(row["varied"], []).append(row)
    lines = tuple((name, *(_least(some, c) for c in _COLUMNS)) for name, some in groups.items())
    caption = (
        "Share of the attainable gain, (J − J of plain MQTT) / (J of the optimum − J of plain "
        "MQTT): mean, and the worst point in brackets; points where next to nothing can be gained "
        "are left out. Below 0 a policy is worse than plain MQTT."
    )
    return ReportTable(caption, ("varied", "learned", "general", "always wait"), lines)


def _least(rows: Sequence[Row], column: str) -> str:
    shares = [row[column] for row in rows if row[column] is not None]
    return f"{fmean(shares):.1%} ({min(shares):.1%})" if shares else "–"


def _topics(rows: Sequence[Row]) -> ReportTable:
    lines = []
    for gap_s in sorted({row["interval_s"] for row in rows}):
        at = [row for row in rows if row["interval_s"] == gap_s]
        saved, age, bound = (
            fmean(row[name] for row in at) for name in ("traffic_saved", "age_s_learned", "bound_s")
        )
        longest = max(row["wait_max_s_learned"] for row in at)
        lines.append(
            (f"{gap_s:g} s", f"{saved:.0%}", f"{age:.2f} s", f"{bound:.2f} s", f"{longest:.1f} s")
        )
    headings = (
        "a publish every", "copies saved", "mean age of first knowledge", "allowed by ω",
        "longest wait",
    )  # fmt: skip
    caption = (
        "The broker's own core on simulated topics, beside plain MQTT; nobody waits over 10 s."
    )
    return ReportTable(caption, headings, tuple(lines))
