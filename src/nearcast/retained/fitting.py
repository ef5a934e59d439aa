"""Fit the general policy on exact solutions at sampled rates.

For each sampled pair of rates, the process is solved over a ladder of prices; a state's critical
price is where the advantage of waiting changes its sign. A small network learns its logarithm by
gradient descent (Adam). The seed determines everything. About 15 s on one core.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.random import Generator

from nearcast.retained.exact import advantage_at_prices
from nearcast.retained.general import INPUTS, GeneralPolicy, RateRange
from nearcast.retained.process import (
    Caps,
    DecisionProcess,
    Floats,
    Rates,
    Timeliness,
    require_number,
)

_PRICES = np.geomspace(0.1, 200.0, 150)


@dataclass(frozen=True, slots=True)
class Fit:
    """Parameters of a fit: how many topics to solve, how large a network, how long to train."""

    topics: int = 400
    states_per_topic: int = 100
    hidden: int = 20
    rounds: int = 20_000
    batch: int = 1024
    learning_rate: float = 0.01
    caution: float = 0.02
    trained: RateRange = field(default_factory=RateRange)

    def __post_init__(self) -> None:
        for name in ("topics", "states_per_topic", "hidden", "rounds", "batch"):
            require_number(name, getattr(self, name), 1)


def sample_rates(random: Generator, trained: RateRange, *, edges: float = 0.0) -> Rates:
    """Draw rates: publishing uniform in its logarithm, leaving uniform in its square root.

    A share `edges` of the width is drawn beyond either end and moved to that end: a fit is worst at
    its edges, where it has neighbours on one side only.
    """
    scaled = []
    for low, high in (np.log(trained.publish), np.sqrt(trained.leave)):
        beyond = edges * (high - low)
        scaled.append(float(np.clip(random.uniform(low - beyond, high + beyond), low, high)))
    return Rates(float(np.exp(scaled[0])), Rates().subscribe, scaled[1] ** 2)


def critical_log_prices(process: DecisionProcess) -> Floats:
    """Return log critical prices in the shape of the table: NaN where there is no choice.

    Outside the ladder of prices the nearest rung counts.
    """
    advantage = advantage_at_prices(process, _PRICES)
    waits = advantage > 0.0
    first = np.where(waits.any(axis=0), waits.argmax(axis=0), len(_PRICES) - 1)
    above = np.maximum(first, 1)
    high = np.take_along_axis(advantage, above[None], axis=0)[0]
    low = np.take_along_axis(advantage, above[None] - 1, axis=0)[0]
    share = np.clip(np.divide(-low, high - low, out=np.ones_like(low), where=high > low), 0.0, 1.0)
    price = _PRICES[above - 1] + share * (_PRICES[above] - _PRICES[above - 1])
    free = process.always_wait() == 1
    return np.where(free, np.log(price), np.nan)


def _rows_of_topic(
    process: DecisionProcess, count: int, random: Generator
) -> tuple[Floats, Floats]:
    target = critical_log_prices(process)
    states = np.argwhere(~np.isnan(target))
    chosen = states[random.integers(len(states), size=count)]
    d, t = chosen.T
    inputs = np.column_stack(
        [
            np.full(count, np.log(process.rates.publish)),
            np.full(count, np.sqrt(process.rates.leave)),
            d / process.caps.hold_max,
            t / process.caps.age_max,
        ]
    )
    return inputs, target[d, t]


@dataclass(slots=True)
class _Network:
    """Two layers with the soft sign; explicit gradients, steps by Adam."""

    into: Floats  # (inputs, hidden)
    into_bias: Floats
    out: Floats
    out_bias: Floats

    @staticmethod
    def drawn(hidden: int, random: Generator) -> _Network:
        return _Network(
            random.normal(0.0, 1.0, (INPUTS, hidden)),
            random.normal(0.0, 1.0, hidden),
            random.normal(0.0, hidden**-0.5, hidden),
            np.zeros(1),
        )

    def parameters(self) -> list[Floats]:
        return [self.into, self.into_bias, self.out, self.out_bias]

    def gradients(self, x: Floats, y: Floats) -> list[Floats]:
        z = x @ self.into + self.into_bias
        size = 1.0 + np.abs(z)
        units = z / size
        error = (units @ self.out + self.out_bias - y) / len(y)
        back = error[:, None] * self.out / size**2
        return [x.T @ back, back.sum(axis=0), units.T @ error, error.sum(keepdims=True)]

    def flatten(self, centre: Floats, spread: Floats) -> Floats:
        """Return the layout that `general.py` reads, with the scaling of the inputs folded in."""
        into = self.into / spread[:, None]
        bias = self.into_bias - centre @ into
        units = np.column_stack([bias, into.T, self.out])
        return np.concatenate([self.out_bias, units.ravel()])


def _train(x: Floats, y: Floats, how: Fit, random: Generator) -> _Network:
    network = _Network.drawn(how.hidden, random)
    network.out_bias[0] = y.mean()
    first = [np.zeros_like(p) for p in network.parameters()]
    second = [np.zeros_like(p) for p in network.parameters()]
    for step in range(1, how.rounds + 1):
        pick = random.integers(len(x), size=how.batch)
        rate = how.learning_rate * 0.5 * (1.0 + np.cos(np.pi * step / how.rounds))
        grads = network.gradients(x[pick], y[pick])
        for at, weights in enumerate(network.parameters()):
            first[at] += 0.1 * (grads[at] - first[at])
            second[at] += 0.001 * (grads[at] ** 2 - second[at])
            scale = np.sqrt(second[at] / (1.0 - 0.999**step)) + 1e-8
            weights -= rate * (first[at] / (1.0 - 0.9**step)) / scale  # noqa: PLW2901 - in place
    return network


def fit(
    *,
    seed: int,
    how: Fit | None = None,
    caps: Caps | None = None,
    timeliness: Timeliness | None = None,
    discount: float = 0.95,
) -> GeneralPolicy:
    """Fit a general policy; the same seed gives the same policy on the same machine."""
    settings = how or Fit()
    base = DecisionProcess(
        caps=caps or Caps(), timeliness=timeliness or Timeliness(), discount=discount
    )
    random = np.random.default_rng(seed)
    rows = [
        _rows_of_topic(
            base.varied(rates=sample_rates(random, settings.trained, edges=0.08)),
            settings.states_per_topic,
            random,
        )
        for _ in range(settings.topics)
    ]
    x = np.concatenate([inputs for inputs, _ in rows])
    y = np.concatenate([targets for _, targets in rows])
    centre, spread = x.mean(axis=0), x.std(axis=0) + 1e-9
    network = _train((x - centre) / spread, y, settings, random)
    return GeneralPolicy(
        network.flatten(centre, spread),
        base.caps,
        base.timeliness,
        discount,
        settings.caution,
        settings.trained,
    )
