"""Paper 4: expected reward over ω and over λP, its two claims, and their sensitivity.

Every function takes parameters and a seed and returns plain rows, so that a Spark task can run one
point. All rewards are exact (policy evaluation); only learning and the simulated topics are random.

- `reward_point`: one point of a figure, with all five policies;
- `figure_2`, `figure_3`: the paper's sweeps; `sensitivity`: g's shape, Dmax, bursty publishing;
- `topic_point`: the core of the broker on a simulated topic, beside plain MQTT;
- `claims`: verdicts on C4.1 and C4.2.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

from nearcast.model.errors import UnknownNameError
from nearcast.retained import (
    Caps,
    DecisionProcess,
    Evidence,
    Fit,
    GeneralPolicy,
    Mode,
    Policies,
    Publishing,
    Rates,
    RetainedCopy,
    RetainedDelivery,
    SendNow,
    Shape,
    Timeliness,
    TopicSetting,
    Weights,
    best_reward,
    expected_reward,
    fit,
    learn,
    mean_reward,
    shipped_policy,
    solve,
    spent_on_newcomers,
)

Row = dict[str, Any]

OMEGAS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
PUBLISHES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.5, 2.0)
POLICIES = ("plain", "wait", "learned", "general", "best")


@cache
def _general_for(caps: Caps, timeliness: Timeliness) -> GeneralPolicy:
    shipped = shipped_policy()
    if (caps, timeliness) == (shipped.caps, shipped.timeliness):
        return shipped
    quick = Fit(topics=120, rounds=6000)
    return fit(seed=1, how=quick, caps=caps, timeliness=timeliness)


def _publishing(publish: float, kind: str) -> Publishing | None:
    """Return a process with the same mean and another spread.

    At most one publish per step in a burst.
    """
    chance = -math.expm1(-publish)
    match kind:
        case "poisson":
            return None
        case "bursty":
            return Publishing.bursty(publish, on_share=max(0.5, chance * 1.01), burst_steps=8.0)
        case "very bursty":
            return Publishing.bursty(publish, on_share=max(0.2, chance * 1.01), burst_steps=8.0)
        case "steady":
            return Publishing.steady(max(1, round(1.0 / chance)))
        case _:
            raise UnknownNameError(
                kind, where="kind", expected="poisson, bursty, very bursty or steady"
            )


def reward_point(
    *,
    seed: int,
    omega: float = 0.7,
    publish: float = 0.6,
    subscribe: float = 0.2,
    leave: float = 0.1,
    message_cost: float = 5.0,
    hold_max: int = 10,
    shape: str = "exponential",
    scale_steps: float = 5.0,
    floor: float = 0.25,
    kind: str = "poisson",
) -> Row:
    """Return J of all five policies at one point, and their shares of the attainable gain.

    `kind` is how the topic really publishes: poisson, bursty, very bursty, steady. The learned and
    the general policy know only the mean rate; `best` also sees hidden bursts, and so is a bound.
    """
    caps = Caps(hold_max, max(20, 2 * hold_max))
    timeliness = Timeliness(Shape(shape), scale_steps, floor)
    rates, weights = Rates(publish, subscribe, leave), Weights(omega, message_cost)
    assumed = DecisionProcess(rates, weights, caps, timeliness)
    true = assumed.varied(publishing=_publishing(publish, kind))
    tables = {
        "plain": assumed.plain(),
        "wait": assumed.always_wait(),
        "learned": learn(assumed, seed=seed).actions,
        "general": _general_for(caps, timeliness).table(rates, weights),
    }
    row: Row = {
        "seed": seed, "omega": omega, "publish": publish, "subscribe": subscribe, "leave": leave,
        "message_cost": message_cost, "hold_max": hold_max, "shape": shape, "floor": floor,
        "kind": kind,
    }  # fmt: skip
    row |= {name: expected_reward(true, table) for name, table in tables.items()}
    row["best"] = best_reward(true)
    row |= {f"mean_{name}": mean_reward(true, table) for name, table in tables.items()}
    row["mean_best"] = mean_reward(true, solve(true).actions)
    return _with_shares(row, spent_on_newcomers(true))


def _with_shares(row: Row, spent: float) -> Row:
    """Add the shares of the gain.

    None where less than 1 % of the cost of new subscribers is gainable.
    """
    attainable = row["best"] - row["plain"]
    row["attainable"], row["spent"] = attainable, spent
    for name in ("wait", "learned", "general"):
        gained = row[name] - row["plain"]
        row[f"share_{name}"] = gained / attainable if attainable > 0.01 * spent else None
    return row


def figure_2(*, seeds: Sequence[int], omegas: Sequence[float] = OMEGAS) -> list[Row]:
    """Return the rows of the paper's figure 2: expected reward over ω."""
    return [reward_point(seed=seed, omega=omega) for omega in omegas for seed in seeds]


def figure_3(*, seeds: Sequence[int], publishes: Sequence[float] = PUBLISHES) -> list[Row]:
    """Return the rows of the paper's figure 3: expected reward over λP."""
    return [reward_point(seed=seed, publish=publish) for publish in publishes for seed in seeds]


def sensitivity_points() -> list[Row]:
    """Return variations as keyword arguments for `reward_point`: shape, floor, Dmax, bursts."""
    points: list[Row] = [{"varied": "shape", "shape": shape.value} for shape in Shape]
    points += [{"varied": "floor", "floor": floor} for floor in (0.0, 0.5)]
    points += [{"varied": "scale", "scale_steps": scale} for scale in (2.0, 10.0)]
    points += [{"varied": "Dmax", "hold_max": hold} for hold in (3, 5, 20)]
    points += [{"varied": "kind", "kind": kind} for kind in ("bursty", "very bursty", "steady")]
    return points


def sensitivity(
    *, seed: int, omegas: Sequence[float] = (0.3, 0.7), publishes: Sequence[float] = (0.1, 0.6)
) -> list[Row]:
    """Return `reward_point` rows with one parameter varied at a time (`varied` names it)."""
    rows = []
    for point in sensitivity_points():
        settings = {key: value for key, value in point.items() if key != "varied"}
        for omega in omegas:
            for publish in publishes:
                row = reward_point(seed=seed, omega=omega, publish=publish, **settings)
                rows.append({"varied": point["varied"]} | row)
    return rows


# -- the broker's core on a simulated topic --------------------------------------------------------


def _instants(random: Random, mean_s: float, jitter: float | None, until_s: float) -> list[float]:
    """Return event times: Poisson, or at a steady interval with some jitter."""
    instants: list[float] = []
    now = 0.0
    while True:
        if jitter is None:
            now += random.expovariate(1.0 / mean_s)
        else:
            now += mean_s * random.uniform(1.0 - jitter, 1.0 + jitter)
        if now > until_s:
            return instants
        instants.append(now)


class _Newcomers:
    """The waits of new subscribers.

    When each subscribed, what it received, and how old that was.
    """

    def __init__(self) -> None:
        self.came: dict[int, float] = {}
        self.waits_s: list[float] = []
        self.ages_s: list[float] = []
        self.copies = 0

    def served(self, subscriber: int, now: float, age_s: float, *, copy: bool) -> None:
        self.waits_s.append(now - self.came.pop(subscriber))
        self.ages_s.append(age_s)
        self.copies += copy


def _run_topic(core: RetainedDelivery, publishes: list[float], comings: list[float]) -> _Newcomers:
    newcomers = _Newcomers()
    events = sorted(
        [(at, 0, -1) for at in publishes] + [(at, 1, i) for i, at in enumerate(comings)]
    )
    made_at = 0.0
    for at, is_newcomer, number in events:
        while (wake := core.wake_at()) is not None and wake <= at:
            _send(core.advance(wake), newcomers, wake, made_at)
        if not is_newcomer:
            _send(core.on_publish("t", at, retain=True), newcomers, at, made_at)
            made_at = at
            for waiting in list(newcomers.came):
                newcomers.served(waiting, at, 0.0, copy=False)
        else:
            newcomers.came[number] = at
            copy = RetainedCopy(age_s=at - made_at)
            if isinstance(core.on_subscribe("t", number, at, copy=copy), SendNow):
                newcomers.served(number, at, at - made_at, copy=True)
    return newcomers


def _send(releases: Iterable[Any], newcomers: _Newcomers, now: float, made_at: float) -> None:
    for release in releases:
        for subscriber in release.subscribers:
            newcomers.served(subscriber, now, now - made_at, copy=True)


def topic_point(
    *,
    seed: int,
    interval_s: float,
    jitter: float | None = 0.2,
    newcomer_every_s: float = 0.5,
    hold_max_s: float = 10.0,
    omega: float = 0.7,
    message_cost: float = 5.0,
    newcomers: int = 2000,
) -> Row:
    """Return the waits of new subscribers of one topic, under `learned` and under `immediate`.

    `age_s` is the wait plus the age of the message then received: how far behind a new subscriber
    is when it first has a value. ω allows at most `bound_s`: that of plain MQTT, plus the steps
    that a message is worth.
    """
    random = Random(seed)
    until_s = newcomers * newcomer_every_s
    publishes = [0.0, *_instants(random, interval_s, jitter, until_s)]
    comings = _instants(random, newcomer_every_s, None, until_s)
    weights = Weights(omega, message_cost)
    found = {}
    for mode in (Mode.IMMEDIATE, Mode.LEARNED):
        setting = TopicSetting(mode, weights, hold_max_s)
        core = RetainedDelivery(
            lambda _, setting=setting: setting,  # type: ignore[misc]
            policies=Policies(general=shipped_policy()),
            evidence=Evidence(),
        )
        found[mode] = _run_topic(core, publishes, comings)
    return _topic_row(seed, interval_s, jitter, weights, hold_max_s, found)


def _topic_row(
    seed: int,
    interval_s: float,
    jitter: float | None,
    weights: Weights,
    hold_max_s: float,
    found: dict[Mode, _Newcomers],
) -> Row:
    row: Row = {"seed": seed, "interval_s": interval_s, "jitter": jitter, "omega": weights.omega}
    for mode, newcomers in found.items():
        behind = [w + a for w, a in zip(newcomers.waits_s, newcomers.ages_s, strict=True)]
        row[f"copies_{mode.value}"] = newcomers.copies
        row[f"wait_s_{mode.value}"] = statistics.mean(newcomers.waits_s)
        row[f"wait_max_s_{mode.value}"] = max(newcomers.waits_s)
        row[f"age_s_{mode.value}"] = statistics.mean(behind)
    row["traffic_saved"] = 1.0 - row["copies_learned"] / row["copies_immediate"]
    step_s = hold_max_s / shipped_policy().caps.hold_max
    row["bound_s"] = row["age_s_immediate"] + weights.price * step_s
    return row


# -- claims ---------------------------------------------------------------------------------------


def _interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % confidence interval of the mean (normal approximation)."""
    mean = statistics.mean(values)
    if len(values) < 2:
        return (mean, mean)
    half = 1.96 * statistics.stdev(values) / math.sqrt(len(values))
    return (mean - half, mean + half)


def _series(rows: list[Row], over: str, policy: str, seed: int) -> list[tuple[float, float]]:
    return sorted((row[over], row[policy]) for row in rows if row["seed"] == seed)


def _claim_row(
    claim: str, says: str, measured: str, values: Sequence[float], holds: bool, rows: list[Row]
) -> Row:
    fixed = ("omega", "publish", "subscribe", "leave", "message_cost", "hold_max", "shape")
    return {
        "id": claim,
        "paper_says": says,
        "measured": measured,
        "confidence_interval": _interval(values),
        "holds": holds,
        "seeds": sorted({row["seed"] for row in rows}),
        "parameters": {name: sorted({row[name] for row in rows}) for name in fixed},
    }


def claim_1(rows: list[Row]) -> Row:
    """Judge C4.1 on the rows of `figure_2`."""
    advantages, holds = [], True
    for seed in sorted({row["seed"] for row in rows}):
        plain = [reward for _, reward in _series(rows, "omega", "plain", seed)]
        ours = [reward for _, reward in _series(rows, "omega", "learned", seed)]
        rising = all(a < b for s in (plain, ours) for a, b in pairwise(s))
        never_worse = all(o >= p - 1e-9 for o, p in zip(ours, plain, strict=True))
        advantages.append((plain[-1] - plain[0]) - (ours[-1] - ours[0]))
        holds = holds and rising and never_worse and advantages[-1] > 0.0
    return _claim_row(
        "C4.1",
        "As ω falls both fall, plain MQTT more than the learned policy (and never worse than it).",
        f"From the largest to the smallest ω plain MQTT falls by {plain[-1] - plain[0]:.3f}, the "
        f"learned policy by {statistics.mean(advantages):.3f} less; worse than plain: "
        f"{'never' if holds else 'see the rows'}.",
        advantages,
        holds,
        rows,
    )


def claim_2(rows: list[Row]) -> Row:
    """Judge C4.2 on the rows of `figure_3`: small is below 0.5, large the largest λP."""
    gains, holds, last = [], True, 0.0
    for seed in sorted({row["seed"] for row in rows}):
        plain, ours = (dict(_series(rows, "publish", p, seed)) for p in ("plain", "learned"))
        small = [publish for publish in plain if publish < 0.5]
        large = max(plain)
        gains.append(statistics.mean(ours[p] - plain[p] for p in small))
        last = ours[large] - plain[large]
        low = all(series[large] < min(series[p] for p in small) for series in (plain, ours))
        holds = holds and low and all(ours[p] > plain[p] for p in small)
    best = max(rows, key=lambda row: float(row["learned"] - row["plain"]))
    return _claim_row(
        "C4.2",
        "At small λP the learned policy is better; at large λP both are low.",
        f"Below λP = 0.5 the learned policy is better by {statistics.mean(gains):.4f} in the mean; "
        f"at the largest λP both are at their lowest and {last:.4f} apart. The gap is widest at "
        f"λP = {best['publish']:g}, not at the smallest.",
        gains,
        holds,
        rows,
    )


def claims(*, seeds: Sequence[int] = (1, 2, 3)) -> list[Row]:
    """Return the verdicts on C4.1 and C4.2."""
    return [claim_1(figure_2(seeds=seeds)), claim_2(figure_3(seeds=seeds))]


def draw(rows: list[Row], over: str, path: Path) -> None:
    """Draw a figure: expected reward of the five policies over `omega` or `publish`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    points = sorted({row[over] for row in rows})
    styles = {"plain": "o-", "wait": "s--", "learned": "^-", "general": "x", "best": "k:"}
    for name, style in styles.items():
        means = [statistics.mean(r[name] for r in rows if r[over] == x) for x in points]
        axes.plot(points, means, style, label=name, markersize=5)
    axes.set_xlabel({"omega": "ω", "publish": "λP"}.get(over, over))
    axes.set_ylabel("expected reward per step")
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
