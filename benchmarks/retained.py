"""Retained policies: what a decision costs, what estimators weigh, how much of the gain is reached.

Timings are CPU time, median of several runs. Beside a SUBSCRIBE held back stands one answered at
once, as plain MQTT would. The storm (`retained_storm.py`) runs real brokers side by side.

    python -m benchmarks.retained [--quick]
"""

from __future__ import annotations

import gc
import itertools
import json
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
from benchmarks import retained_storm

from nearcast.papers.learned_retained.experiment import (
    BURSTS,
    experience_point,
    reward_point,
    topic_point,
)
from nearcast.retained import (
    Caps,
    DecisionProcess,
    Experience,
    Mode,
    Policies,
    RateEstimators,
    Rates,
    RetainedCopy,
    RetainedDelivery,
    Timeliness,
    TopicPolicy,
    TopicSetting,
    Weights,
    attainable_gain,
    expected_reward,
    learn,
    shipped_policy,
    solve,
    spent_on_newcomers,
)
from nearcast.retained.fitting import sample_rates

Row = dict[str, Any]


def _row(name: str, ours: float, target: str, holds: bool, **more: Any) -> Row:
    return {"name": name, "ours": ours, "target": target, "holds": bool(holds), **more}


def _seconds(call: Callable[[], object], repeats: int) -> list[float]:
    seconds = []
    for _ in range(repeats):
        begun = time.process_time()  # our own CPU time: others on the machine do not count
        call()
        seconds.append(time.process_time() - begun)
    return seconds


def _timed(name: str, call: Callable[[], object], repeats: int, per: int, limit_s: float) -> Row:
    call()  # compiled and warm
    each = [s / per for s in _seconds(call, repeats)]
    median = statistics.median(each)
    target = f"<= {limit_s:g} s"
    return _row(name, median, target, median <= limit_s, low=min(each), high=max(each))


def _core(mode: Mode, policies: Policies) -> RetainedDelivery:
    setting = TopicSetting(mode, Weights(0.5, 5.0))
    core = RetainedDelivery(lambda _: setting, policies=policies)
    for second in range(61):
        core.on_publish("t", float(second), retain=True)
    return core


def decisions(quick: bool) -> list[Row]:
    count = 2_000 if quick else 20_000
    repeats = 5 if quick else 15
    policy = shipped_policy()
    table = TopicPolicy(solve(DecisionProcess()).actions, Rates(), Weights())
    copy = RetainedCopy()

    def general() -> None:
        waits = policy.waits
        for _ in range(count):
            waits(0.6, 0.1, 2.1, 0, 3)

    def lookup() -> None:
        flat = table.flat
        for _ in range(count):
            _ = flat[2 * 21 + 3] == 1

    def verdict(core: RetainedDelivery) -> Callable[[], None]:
        setting = core._setting_of("t")

        def run() -> None:
            ask = core._decisions.verdict
            for _ in range(count):
                ask("t", 60.2, 60.0, 60.2, setting)

        return run

    def subscribing(mode: Mode, policies: Policies) -> Callable[[], None]:
        def run() -> None:
            core = _core(mode, policies)
            for number in range(count):
                core.on_subscribe("t", number, 60.2, copy=copy)

        return run

    tables = Policies(topics={"t": table})
    everything = Policies(general=policy)
    group = Experience(Weights(), Caps(), Timeliness(), 0.95)

    def learning() -> None:
        for number in range(count):
            group.take(1 + number % 5, 0.3 * (1 + number % 20), model_wait=3)

    return [
        _timed("learning from one newcomer, s", learning, repeats, count, 1e-5),
        _timed("decision, general policy, s", general, repeats, count, 2e-6),
        _timed("decision, table, s", lookup, repeats, count, 2e-6),
        _timed(
            "decision with estimates and guards, general policy, s",
            verdict(_core(Mode.LEARNED, everything)),
            repeats,
            count,
            2e-6,
        ),
        _timed(
            "decision with estimates and guards, table, s",
            verdict(_core(Mode.LEARNED, tables)),
            repeats,
            count,
            2e-6,
        ),
        _timed(
            "whole SUBSCRIBE, held back, s (no target)",
            subscribing(Mode.LEARNED, everything),
            repeats,
            count,
            1e-3,
        ),
        _timed(
            "whole SUBSCRIBE, immediate, s (no target)",
            subscribing(Mode.IMMEDIATE, everything),
            repeats,
            count,
            1e-3,
        ),
    ]


def memory(quick: bool) -> list[Row]:
    topics = 100_000 if quick else 1_000_000
    names = [f"plant/{number}/heat" for number in range(topics)]
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    estimators = RateEstimators(600.0)
    for _ in range(topics):
        estimators.allot(0.0)
    arrays_mb = (tracemalloc.get_traced_memory()[0] - before) * (1_000_000 / topics) / 1e6
    slots = dict(zip(names, range(topics), strict=True))
    both_mb = (tracemalloc.get_traced_memory()[0] - before) * (1_000_000 / topics) / 1e6
    tracemalloc.stop()
    del slots, estimators
    return [
        _row("estimators of 1 M topics, MB", arrays_mb, "< 100", arrays_mb < 100),
        _row(
            "the same with a dictionary from names (names themselves apart), MB (no target)",
            both_mb,
            "none",
            True,
        ),
    ]


def solvers(quick: bool) -> list[Row]:
    repeats = 3 if quick else 7
    fresh = itertools.count()

    def process() -> DecisionProcess:
        return DecisionProcess(Rates(0.3 + 1e-9 * next(fresh)))

    return [
        _timed("exact solution, s", lambda: solve(process()), repeats, 1, 1.0),
        _timed("learning a topic's table, s", lambda: learn(process(), seed=1), repeats, 1, 1.0),
    ]


def shares(quick: bool) -> list[Row]:
    seeds = (1,) if quick else (1, 2, 3)
    found: list[tuple[float, float, float]] = []
    for omega in np.arange(1, 10) / 10:
        for publish in (0.1, 0.3, 0.6, 1.0) if quick else np.arange(1, 11) / 10:
            process = DecisionProcess(Rates(float(publish)), Weights(float(omega)))
            found += [_gain(process, learn(process, seed=seed).actions) for seed in seeds]
    rows = _share_rows("learned table, the paper's ranges", found, 0.95)
    policy, random = shipped_policy(), np.random.default_rng(77)
    found = []
    for _ in range(60 if quick else 600):
        rates = sample_rates(random, policy.trained)
        weights = Weights(random.uniform(0.05, 0.95), float(np.exp(random.uniform(-0.7, 3.0))))
        process = policy.process(rates, weights)
        found.append(_gain(process, policy.table(rates, weights)))
    return [*rows, *_share_rows("general policy, rates not trained on", found, 0.9)]


def _gain(process: DecisionProcess, actions: Any) -> tuple[float, float, float]:
    plain = expected_reward(process, process.plain())
    gained = expected_reward(process, actions) - plain
    return gained, attainable_gain(process), spent_on_newcomers(process)


def _share_rows(name: str, found: list[tuple[float, float, float]], target: float) -> list[Row]:
    """Judge a policy: over all points, at each with something to gain, and where there is nothing.

    "Something" is 1 % of what plain MQTT spends on newcomers.
    """
    total = sum(g for g, _, _ in found) / sum(most for _, most, _ in found)
    each = sorted(g / most for g, most, spent in found if most > 0.01 * spent)
    losses = [g / spent for g, most, spent in found if most <= 0.01 * spent and spent > 0]
    worst = min(losses, default=0.0)
    tenth = each[len(each) // 10]
    return [
        _row(f"share of the gain, all points: {name}", total, f">= {target}", total >= target),
        _row(
            f"share of the gain, 10th percentile of points: {name}",
            tenth,
            f">= {target}",
            tenth >= target,
            low=each[0],
            points=len(each),
            below=sum(share < target for share in each),
        ),
        _row(
            f"worst loss where nothing can be gained, share of newcomers' cost: {name}",
            worst,
            ">= -0.0001",
            worst >= -1e-4,
            points=len(losses),
        ),
    ]


def topics(quick: bool) -> list[Row]:
    newcomers = 500 if quick else 5000
    rows = []
    for interval_s in (0.1, 1.0, 2.0):
        point = topic_point(seed=1, interval_s=interval_s, newcomers=newcomers)
        saved, age_s, bound_s = point["traffic_saved"], point["age_s_learned"], point["bound_s"]
        rows.append(
            _row(f"copies saved, every {interval_s:g} s, Dmax 10 s", saved, ">= 0.8", saved >= 0.8)
        )
        rows.append(
            _row(f"age, every {interval_s:g} s", age_s, f"<= {bound_s:.3f} s", age_s <= bound_s)
        )
    quiet = topic_point(seed=1, interval_s=60.0, newcomers=newcomers)
    waited = quiet["wait_max_s_learned"]
    rows.append(_row("longest wait, every 60 s, s", waited, "<= 0", waited <= 0.0))
    return rows


def experience(quick: bool) -> list[Row]:
    """Compare what a node follows with the model alone, where the model's assumption is wrong.

    First exactly, after 4,000 newcomers; then the core of the broker on topics in real time, its
    learning included.
    """
    rows = []
    omegas, publishes = ((0.3, 0.7), (0.1, 0.2, 0.3, 0.6, 1.0))
    for kind in ("poisson", "bursty", "very bursty", "steady"):
        points = [
            reward_point(seed=seed, omega=omega, publish=publish, kind=kind)
            for omega in omegas
            for publish in publishes
            for seed in ((1,) if quick else (1, 2, 3))
        ]
        points = [point for point in points if point["share_experience"] is not None]
        worst = min(point["share_experience"] for point in points)
        mean = statistics.fmean(point["share_experience"] for point in points)
        model = min(point["share_general"] for point in points)
        least = 0.9 if kind == "poisson" else -0.02
        rows.append(
            _row(
                f"share of the gain, {kind}, exact: worst point of what is followed",
                worst,
                f">= {least:g}",
                worst >= least,
                mean=mean,
                model_alone=model,
            )
        )
    seeds = range(1, 6 if quick else 11)
    for kind in BURSTS:
        for publish in (0.1, 0.2, 0.4, 1.0):
            found = [experience_point(seed=s, kind=kind, publish=publish) for s in seeds]
            shares = [one["share"] for one in found]
            least = 0.9 if kind == "poisson" else -0.02
            mean = statistics.fmean(shares)
            error = statistics.stdev(shares) / len(shares) ** 0.5
            rows.append(
                _row(
                    f"share of the gain, {kind}, λP {publish:g}, the core with its learning",
                    mean,
                    f">= {least:g} within two standard errors",
                    mean + 2.0 * error >= least,
                    error=error,
                    attainable_of_cost=found[0]["attainable"] / found[0]["plain"],
                )
            )
    return rows


def run(quick: bool) -> dict[str, Any]:
    rows: list[Row] = []
    for part in (decisions, memory, solvers, shares, topics, experience, retained_storm.rows):
        rows += part(quick)
    return {"name": "retained", "quick": quick, "python": sys.version.split()[0], "rows": rows}


if __name__ == "__main__":
    print(json.dumps(run("--quick" in sys.argv), indent=1, ensure_ascii=False))
