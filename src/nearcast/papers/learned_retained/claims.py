"""Paper 4, retained messages by a learned policy: points, verdicts, figures and tables."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
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
from nearcast.papers.learned_retained import experiment

_COLUMNS = ("share_learned", "share_general", "share_experience", "share_wait")
_READINGS = {"discounted, θ = 0.95": "{}", "mean per step": "mean_{}"}
"""How the paper's "expected reward" may be read: the variant of a claim, and its columns."""
_FIXED = ("omega", "publish", "subscribe", "leave", "message_cost", "hold_max", "shape")


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
    changes = experiment.sensitivity_points()
    return found + [
        Point(4, "sensitivity", seed, change, 8.0 if change["varied"] != "kind" else 1.0)
        for change in changes
        if not quick or change["varied"] in {"shape", "kind"}
        for seed in seeds[: 1 if quick else 3]
    ]


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
    """Judge C4.1 and C4.2, each under both readings of "expected reward"."""
    by_omega, by_publish = of_kind(rows, "omega"), of_kind(rows, "publish")
    return [
        *(_over_omega(by_omega, *reading) for reading in _READINGS.items()),
        *(_over_publish(by_publish, *reading) for reading in _READINGS.items()),
    ]


def _series(rows: Sequence[Row], over: str, column: str, seed: int) -> dict[float, float]:
    """Return a policy's reward by the value of a parameter, ascending."""
    return dict(sorted((row[over], row[column]) for row in select(rows, seed=seed)))


def _over_omega(rows: list[Row], variant: str, column: str) -> Claim:
    advantages, holds, fall = [], True, 0.0
    for seed in seeds_of(rows):
        plain, ours = (
            list(_series(rows, "omega", column.format(policy), seed).values())
            for policy in ("plain", "learned")
        )
        rising = all(a < b for series in (plain, ours) for a, b in pairwise(series))
        never_worse = all(o >= p - 1e-9 for o, p in zip(ours, plain, strict=True))
        fall = plain[-1] - plain[0]
        advantages.append(fall - (ours[-1] - ours[0]))
        holds = holds and rising and never_worse and advantages[-1] > 0.0
    return judged(
        "C4.1",
        "As ω falls both fall, plain MQTT more than the learned policy (and never worse than it).",
        f"From the largest to the smallest ω plain MQTT falls by {fall:.3f}, the "
        f"learned policy by {fmean(advantages):.3f} less; worse than plain: "
        f"{'never' if holds else 'see the rows'}.",
        holds,
        rows,
        advantages,
        "fall of plain MQTT less fall of the learned policy",
        variant=variant,
        over=_FIXED,
    )


def _over_publish(rows: list[Row], variant: str, column: str) -> Claim:
    """Judge C4.2: small is below 0.5, large the largest λP."""
    gains, holds, last, worse = [], True, 0.0, set()
    learned, plain_mqtt = column.format("learned"), column.format("plain")
    for seed in seeds_of(rows):
        plain, ours = (_series(rows, "publish", name, seed) for name in (plain_mqtt, learned))
        small = [publish for publish in plain if publish < 0.5]
        large = max(plain)
        gains.append(fmean(ours[p] - plain[p] for p in small))
        last = ours[large] - plain[large]
        low = all(series[large] < min(series[p] for p in small) for series in (plain, ours))
        worse |= {p for p in small if ours[p] <= plain[p]}
        holds = holds and low and not worse
    best = max(rows, key=lambda row: float(row[learned] - row[plain_mqtt]))
    where = ", ".join(f"{p:g}" for p in sorted(worse))
    return judged(
        "C4.2",
        "At small λP the learned policy is better; at large λP both are low.",
        f"Below λP = 0.5 the learned policy is better by {fmean(gains):.4f} in the mean; "
        f"at the largest λP both are at their lowest and {last:.4f} apart. The gap is widest at "
        f"λP = {best['publish']:g}, not at the smallest."
        + (f" Not better at λP = {where}." if where else ""),
        holds,
        rows,
        gains,
        "learned less plain, mean over λP below 0.5",
        variant=variant,
        over=_FIXED,
    )


def figures(rows: Sequence[Row]) -> list[Figure]:
    """Draw the paper's figures 2 and 3, with always waiting, the general policy and the optimum."""
    captions = {
        "omega": "The paper's figure 2: expected reward per step as ω grows (traffic weighs less).",
        "publish": "The paper's figure 3: expected reward per step as publishes come more often.",
    }
    return [
        drawn(f"paper-4-{over}", caption, _curves(rows, over), size=(6.4, 4.2), wide=False)
        for over, caption in captions.items()
    ]


def _curves(rows: Sequence[Row], over: str) -> Any:
    """Return a function that draws the expected reward of the six policies over a parameter."""
    some = of_kind(rows, over)
    places = sorted({row[over] for row in some})
    styles = {"plain": "o-", "wait": "s--", "learned": "^-", "general": "x"}
    styles |= {"experience": "+", "best": "k:"}

    def draw(axes: Any) -> None:
        for name, style in styles.items():
            means = [mean_of(select(some, **{over: x}), name) for x in places]
            axes.plot(places, means, style, label=name, markersize=5)
        axes.set(xlabel={"omega": "ω", "publish": "λP"}[over], ylabel="expected reward per step")
        axes.legend(frameon=False)
        axes.grid(alpha=0.3)

    return draw


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
    headings = ("varied", "learned", "general", "what a node follows", "always wait")
    return ReportTable(caption, headings, lines)


def _least(rows: Sequence[Row], column: str) -> str:
    shares = [row[column] for row in rows if row[column] is not None]
    return f"{fmean(shares):.1%} ({min(shares):.1%})" if shares else "–"


def _topics(rows: Sequence[Row]) -> ReportTable:
    lines = []
    for gap_s in sorted({row["interval_s"] for row in rows}):
        at = select(rows, interval_s=gap_s)
        columns = ("traffic_saved", "age_s_learned", "bound_s")
        saved, age, bound = (mean_of(at, column) for column in columns)
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
