"""Tabular Q-learning (paper 4, "Learning"): α = 0.2, θ = 0.95, one table per topic.

The paper does not say how it explores or for how long. Here: new subscribers are simulated with the
topic's rates, each starting in a random state, and in a share of the steps the decision is random
too. With a constant α the table does not converge, so the policy is read from the mean of the
second half of the run.

Read next: `general.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nearcast.kernels import entry_point, kernel
from nearcast.retained.exact import expected_reward
from nearcast.retained.process import SEND, WAIT, Actions, DecisionProcess, Floats, require_number

Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Learning:
    """Parameters of learning: the paper's α, and those that the paper leaves open."""

    learning_rate: float = 0.2
    steps: int = 1_000_000
    explore: float = 0.5
    margin: float = 0.002  # wait only where it is better by this share of a message's cost
    raw_reward: bool = False  # learn from the whole reward, n · Cp included (trap T4.9)

    def __post_init__(self) -> None:
        require_number("learning_rate", self.learning_rate, 1e-6, 1.0)
        require_number("steps", self.steps, 1, 10**10)
        require_number("explore", self.explore, 0.0, 1.0)
        require_number("margin", self.margin, 0.0)


@dataclass(frozen=True, slots=True)
class Learned:
    """A learned table and the statistics of its learning."""

    actions: Actions
    quality: Floats  # the averaged Q of a waiting subscriber: (d, t, action)
    visits: Counts
    kept_plain: bool  # the table lost to plain MQTT under the same rates, and was dropped


@kernel(nogil=True)
def _remain(count: int, stay: float) -> int:  # pragma: no cover - compiled
    left = 0
    for _ in range(count):
        if np.random.random() < stay:
            left += 1
    return left


@entry_point(
    "int64, int64, float64, float64, boolean, float64, float64, float64, float64, "
    "float64[::1], float64, float64, float64, int64, "
    "float64[:, :, :, ::1], float64[:, :, :, ::1], int64[:, :, :, ::1]",
    nogil=True,
)
def _learn(  # pragma: no cover - compiled
    seed: int,
    steps: int,
    alpha: float,
    explore: float,
    raw: bool,
    publish: float,
    subscribe: float,
    stay: float,
    part: float,
    value_of_age: Floats,
    omega: float,
    cost: float,
    discount: float,
    subscribers_max: int,
    q: Floats,
    mean_q: Floats,
    visits: Counts,
) -> None:
    """Learn `q[w, d, t, a]` in place; `mean_q` gathers the second half of the run.

    A step of waiting is charged for `part` of it. Without `raw`, the reward is the new subscriber's
    part alone, and its episode ends with the send.
    """
    np.random.seed(seed)
    _, holds, ages, _ = q.shape
    over = True
    w, d, t, n = 1, 0, 1, 1
    for step in range(steps):
        if over:
            w, d = 1, np.random.randint(0, holds)
            t, n = np.random.randint(1, ages), max(n, 1)
        action = 0
        if w == 1 and d < holds - 1 and t < ages - 1:
            if np.random.random() < explore:
                action = np.random.randint(0, 2)
            elif q[w, d, t, 1] > q[w, d, t, 0]:
                action = 1
        blind = w if action == 1 else 0
        reward = -omega * value_of_age[t] * part * blind
        if w == 1 and action == 0:
            reward -= (1.0 - omega) * cost
        published = np.random.random() < publish
        left = np.random.random() >= stay
        over = published or left or (not raw and blind == 0)
        if raw:
            reward += omega * value_of_age[t] * n
            others = _remain(n - 1, stay) + np.random.poisson(subscribe)
            n = min(subscribers_max, others + (0 if left else 1))
            if published:
                reward += discount * (omega * value_of_age[0] - (1.0 - omega) * cost) * n
        older = min(t + 1, ages - 1)
        later = 0.0
        if not over:
            later = q[blind, d + blind, older, 0]
            if blind == 1 and d + 1 < holds - 1 and older < ages - 1:
                later = max(later, q[blind, d + 1, older, 1])
        q[w, d, t, action] += alpha * (reward + discount * later - q[w, d, t, action])
        if 2 * step >= steps:
            visits[w, d, t, action] += 1
            change = q[w, d, t, action] - mean_q[w, d, t, action]
            mean_q[w, d, t, action] += change / visits[w, d, t, action]
        w, d, t = blind, d + blind, older


def learn(process: DecisionProcess, *, seed: int, learning: Learning | None = None) -> Learned:
    """Learn a topic's table by Q-learning; the same seed gives the same table.

    States seen too seldom (fewer than ten times per action) keep to plain MQTT, and a table that is
    worse than plain MQTT under the very rates it was learned from is dropped. O(learning.steps).
    """
    how = learning or Learning()
    require_number("seed", seed, 0, 2**32 - 1)
    shape = (2, *process.caps.table_shape, 2)
    q, mean_q, visits = np.zeros(shape), np.zeros(shape), np.zeros(shape, dtype=np.int64)
    _learn(
        seed,
        how.steps,
        how.learning_rate,
        how.explore,
        how.raw_reward,
        float(process.start.sum(axis=1) @ np.array(process.phases.chance)),
        process.rates.subscribe,
        process.stay,
        float(process.start.sum(axis=1) @ process.parts),
        process.value_of_age,
        process.weights.omega,
        process.weights.message_cost,
        process.discount,
        process.caps.subscribers_max,
        q,
        mean_q,
        visits,
    )
    return _read_off(process, how, mean_q[1], visits[1])


def _read_off(process: DecisionProcess, how: Learning, quality: Floats, visits: Counts) -> Learned:
    margin = how.margin * (1.0 - process.weights.omega) * process.weights.message_cost
    better = quality[..., WAIT] > quality[..., SEND] + margin
    actions = process.clamped((better & (visits.min(axis=-1) >= 10)).astype(np.uint8))
    worse = expected_reward(process, actions) < expected_reward(process, process.plain())
    return Learned(process.plain() if worse else actions, quality, visits, kept_plain=worse)
