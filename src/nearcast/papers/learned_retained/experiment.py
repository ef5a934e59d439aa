"""Paper 4: expected reward over ω and over λP, its two claims, and their sensitivity.

Every function takes parameters and a seed and returns plain rows, so that a Spark task can run one
point. All rewards are exact (policy evaluation); only learning and the simulated topics are random.

- `reward_point`: one point of a figure, with all five policies;
- `sensitivity_points`: g's shape, Dmax, bursty publishing;
- `topic_point`: the core of the broker on a simulated topic, beside plain MQTT.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from functools import cache
from random import Random
from typing import Any

from nearcast.model.errors import UnknownNameError
from nearcast.papers.form import Row
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


def sensitivity_points() -> list[Row]:
    """Return variations as keyword arguments for `reward_point`: shape, floor, Dmax, bursts."""
    points: list[Row] = [{"varied": "shape", "shape": shape.value} for shape in Shape]
    points += [{"varied": "floor", "floor": floor} for floor in (0.0, 0.5)]
    points += [{"varied": "scale", "scale_steps": scale} for scale in (2.0, 10.0)]
    points += [{"varied": "Dmax", "hold_max": hold} for hold in (3, 5, 20)]
    points += [{"varied": "kind", "kind": kind} for kind in ("bursty", "very bursty", "steady")]
    return points


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
