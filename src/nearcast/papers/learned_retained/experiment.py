"""Paper 4: expected reward over ω and over λP, its two claims, and their sensitivity.

Every function takes parameters and a seed and returns plain rows, so that a Spark task can run one
point. All rewards are exact (policy evaluation); only learning and the simulated topics are random.

- `reward_point`: one point of a figure, with all six policies;
- `sensitivity_points`: g's shape, Dmax, bursty publishing;
- `topic_point`: the core of the broker on a simulated topic, beside plain MQTT.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator
from functools import cache
from random import Random
from typing import Any

import numpy as np

from nearcast.model.errors import UnknownNameError
from nearcast.papers.form import Row
from nearcast.retained import (
    Caps,
    DecisionProcess,
    Evidence,
    Experience,
    Fit,
    Follows,
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
    newcomer_worth,
    shipped_policy,
    solve,
    spent_on_newcomers,
)
from nearcast.retained.process import WAIT, Actions

OMEGAS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
PUBLISHES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.5, 2.0)
POLICIES = ("plain", "wait", "learned", "general", "experience", "best")
NEWCOMERS = 4_000  # from whom the policy `experience` has learned


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
    """Return J of all six policies at one point, and their shares of the attainable gain.

    `kind` is how the topic really publishes: poisson, bursty, very bursty, steady. The learned and
    the general policy know only the mean rate; `experience` is what a node follows that begins with
    the general policy and has learned from newcomers; `best` also sees hidden bursts, and so is a
    bound.
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
    tables["experience"] = experienced_table(true, tables["general"], seed=seed)
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


def experienced_table(
    true: DecisionProcess, model: Actions, *, seed: int, newcomers: int = NEWCOMERS
) -> Actions:
    """Return the table that a node follows after so many newcomers: the model's, its own, or plain.

    Newcomers come at random moments of the true process, each with the next publish.
    """
    caps, random = true.caps, np.random.default_rng(seed)
    group = Experience(true.weights, caps, true.timeliness, true.discount)
    for phase, age in _arrivals(true, random, newcomers):
        model_wait = 0
        while model[model_wait, min(age + model_wait, caps.age_max)] == WAIT:
            model_wait += 1
        after = _next_publish(true, random, phase)
        group.take(age, after, stay=true.stay, model_wait=model_wait)
    followed = {
        Follows.PLAIN: true.plain(), Follows.MODEL: model, Follows.EXPERIENCE: group.table(),
    }  # fmt: skip
    return followed[group.follows]


def _arrivals(
    true: DecisionProcess, random: np.random.Generator, count: int
) -> Iterator[tuple[int, int]]:
    """Yield the phase and the age that newcomers find; the oldest ages are no decision."""
    begin = true.start.copy()
    begin[:, 0] = begin[:, -1] = 0.0
    if begin.sum() <= 0.0:
        return
    drawn = random.choice(begin.size, size=count, p=(begin / begin.sum()).ravel())
    for one in drawn:
        phase, age = divmod(int(one), begin.shape[1])
        yield phase, age


def _next_publish(true: DecisionProcess, random: np.random.Generator, phase: int) -> float:
    """Return after how many steps the next publish comes; infinite if not within Dmax."""
    chance, moves = true.phases.chance, true.phases.moves
    for step in range(1, true.caps.hold_max + 1):
        if random.random() < chance[phase]:
            return float(step)
        phase = int(np.searchsorted(np.cumsum(moves[phase]), random.random(), side="right"))
        phase = min(phase, len(chance) - 1)
    return math.inf


def _with_shares(row: Row, spent: float) -> Row:
    """Add the shares of the gain.

    None where less than 1 % of the cost of new subscribers is gainable.
    """
    attainable = row["best"] - row["plain"]
    row["attainable"], row["spent"] = attainable, spent
    for name in ("wait", "learned", "general", "experience"):
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
        self.came: dict[int, tuple[float, float]] = {}  # when, and how old the message was
        self.waits_s: list[float] = []
        self.ages_s: list[float] = []
        self.found_s: list[float] = []  # the age of the retained message at the SUBSCRIBE
        self.got: list[bool] = []  # whether the retained copy was sent

    @property
    def copies(self) -> int:
        return sum(self.got)

    def served(self, subscriber: int, now: float, age_s: float, *, copy: bool) -> None:
        came, found_s = self.came.pop(subscriber)
        self.waits_s.append(now - came)
        self.ages_s.append(age_s)
        self.found_s.append(found_s)
        self.got.append(copy)


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
            newcomers.came[number] = (at, at - made_at)
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


# -- what experience gains on a simulated topic, in continuous time --------------------------------

BURSTS = {  # share of the time in a burst, and its mean length in steps
    "poisson": None,
    "bursty": (0.5, 8.0),
    "very bursty": (0.2, 8.0),
    "long bursts": (0.2, 40.0),
    "short bursts": (0.1, 3.0),
}
_FINE = 12  # parts of a step, in the exact solution that gains are compared with


def _burst_instants(random: Random, per_s: float, kind: str, until_s: float) -> list[float]:
    """Return the instants of publishes with this mean rate, all of them in bursts."""
    bursts = BURSTS[kind]
    if bursts is None:
        return _instants(random, 1.0 / per_s, None, until_s)
    share, length_s = bursts
    instants: list[float] = []
    now = 0.0
    while now < until_s:
        end = now + random.expovariate(1.0 / length_s)
        while (now := now + random.expovariate(per_s / share)) < end:
            instants.append(now)
        now = end + random.expovariate(share / (length_s * (1.0 - share)))
    return [at for at in instants if at <= until_s]


def attainable_per_newcomer(publish: float, kind: str, omega: float, message_cost: float) -> float:
    """Return the most that waiting can gain a newcomer, by a policy that sees bursts begin and end.

    Exact but for its steps, which are a twelfth of those of the node; a wait is charged for the
    part of a step that it lasted.
    """
    bursts = BURSTS[kind]
    publishing = None
    if bursts is not None:
        share, length = bursts
        publishing = Publishing.bursty(publish / _FINE, on_share=share, burst_steps=length * _FINE)
    standard = DecisionProcess()
    caps, g = standard.caps, standard.timeliness
    process = DecisionProcess(
        Rates(publish / _FINE, 0.2, 0.0),
        Weights(omega, message_cost * _FINE),
        Caps(caps.hold_max * _FINE, caps.age_max * _FINE),
        Timeliness(g.shape, g.scale_steps * _FINE, g.floor),
        standard.discount ** (1.0 / _FINE),
        publishing,
        whole_steps=False,
    )
    # A message of age t is t to t + 1 steps old: the mean of both ends. At age 0 nobody decides.
    worth = newcomer_worth(process)
    worth[:, 0] = worth[:, 1]
    older = np.concatenate([worth[:, 1:], worth[:, -1:]], axis=1)
    expected = float((process.start * (worth + older)).sum()) / 2
    return expected / _FINE + (1.0 - omega) * message_cost


def experience_point(
    *,
    seed: int,
    kind: str,
    publish: float = 0.4,
    omega: float = 0.7,
    message_cost: float = 5.0,
    newcomers: int = 1500,
    observed_most: int = 10_000,
) -> Row:
    """Return what the core of the broker gains on a topic, its learning included.

    A step is a second, newcomers come every three on average and stay. `gained` is the mean over
    newcomers of what plain MQTT costs less what the core cost, `attainable` the most that a policy
    could gain, and `share` their ratio. With `observed_most` = 0 nothing is learned.
    """
    random = Random(seed)
    until_s = 3.0 * newcomers
    publishes = [0.0, *_burst_instants(random, publish, kind, until_s)]
    comings = sorted(random.uniform(100.0, until_s) for _ in range(newcomers))
    weights = Weights(omega, message_cost)
    setting = TopicSetting(Mode.LEARNED, weights, 10.0)
    core = RetainedDelivery(
        lambda _: setting,
        policies=Policies(general=shipped_policy()),
        evidence=Evidence(observed_most=observed_most),
    )
    found = _run_topic(core, publishes, comings)
    plain = (1.0 - omega) * message_cost
    gained = plain - statistics.fmean(
        _paid(weights, *each) for each in zip(found.waits_s, found.found_s, found.got, strict=True)
    )
    attainable = attainable_per_newcomer(publish, kind, omega, message_cost)
    return {
        "seed": seed, "publishing": kind, "publish": publish, "omega": omega,
        "newcomers": newcomers, "gained": gained, "attainable": attainable, "plain": plain,
        "share": gained / attainable,
    }  # fmt: skip


def _paid(weights: Weights, wait: float, found_s: float, copy: bool) -> float:
    """Return the discounted cost of one newcomer: knowledge missed, and a message if sent."""
    process = DecisionProcess()
    value, keep, age_max = process.timeliness.value, process.discount, process.caps.age_max
    parts = math.ceil(wait * _FINE)
    part = wait / parts if parts else 0.0
    missed = (
        keep**at * value(min(found_s + at, age_max))
        for at in (part * (number + 0.5) for number in range(parts))
    )
    paid = weights.omega * part * sum(missed)
    return float(
        paid + (keep**wait * (1.0 - weights.omega) * weights.message_cost if copy else 0.0)
    )


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
