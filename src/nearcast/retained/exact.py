"""The exact solution: the best policy, and the value of any policy.

An episode lasts at most `hold_max` steps, so value iteration backwards over d ends after `hold_max
+ 1` sweeps, with no error left; `n` drops out (see `process.py`). Policies are thus compared
without sampling.

Read next: `qlearning.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nearcast.kernels import entry_point
from nearcast.model.errors import OutOfRangeError
from nearcast.retained.process import SEND, WAIT, Actions, DecisionProcess, Floats, Weights

OPEN = 2  # in a table for the kernel: take the better action
_NEGLIGIBLE = 1e-9  # a smaller advantage is rounding: the tie goes to plain MQTT


@entry_point(
    "uint8[:, ::1], float64[::1], float64[:, ::1], float64[::1], float64[::1], "
    "float64, float64, float64, float64, float64[:, :, :, ::1]"
)
def _backwards(  # pragma: no cover - compiled
    table: Actions,
    chance: Floats,
    moves: Floats,
    parts: Floats,
    value_of_age: Floats,
    omega: float,
    cost: float,
    stay: float,
    discount: float,
    q: Floats,
) -> None:
    """Fill `q[phase, d, t, action]`, the new subscriber's share of the reward from (d, t) on."""
    phases, holds, ages, _ = q.shape
    send = -(1.0 - omega) * cost
    for d in range(holds - 1, -1, -1):
        for t in range(ages):
            for k in range(phases):
                q[k, d, t, SEND] = send if t > 0 else 0.0
                q[k, d, t, WAIT] = q[k, d, t, SEND]
                if t == 0 or d == holds - 1 or t == ages - 1:
                    continue
                ahead = 0.0
                for j in range(phases):
                    if moves[k, j] != 0.0:
                        action = table[d + 1, t + 1]
                        if action == OPEN:
                            later = max(q[j, d + 1, t + 1, 0], q[j, d + 1, t + 1, 1])
                        else:
                            later = q[j, d + 1, t + 1, action]
                        ahead += moves[k, j] * later
                going_on = discount * stay * (1.0 - chance[k]) * ahead
                q[k, d, t, WAIT] = going_on - omega * value_of_age[t] * parts[k]


@dataclass(frozen=True, slots=True)
class Solution:
    """The best policy, and the advantage of waiting over sending in each state."""

    actions: Actions
    advantage: Floats  # Q(wait) - Q(send) of one new subscriber, in the shape of the table
    expected_reward: float


def _quality(process: DecisionProcess, table: Actions, discount: float) -> Floats:
    q = np.zeros((len(process.phases.chance), *process.caps.table_shape, 2))
    _backwards(
        table,
        np.array(process.phases.chance),
        np.array(process.phases.moves),
        process.parts,
        process.value_of_age,
        process.weights.omega,
        process.weights.message_cost,
        process.stay,
        discount,
        q,
    )
    return q


def _checked(process: DecisionProcess, actions: Actions) -> Actions:
    if actions.shape != process.caps.table_shape or not np.isin(actions, (SEND, WAIT)).all():
        raise OutOfRangeError(
            f"a table of shape {actions.shape}",
            where="actions",
            expected=f"shape {process.caps.table_shape}, entries 0 (send) or 1 (wait)",
        )
    return process.clamped(actions)


def _reward_of_topic(process: DecisionProcess, newcomer: Floats) -> float:
    """Return the reward shared by all policies plus that of λS new subscribers per step."""
    worth = float((process.start * newcomer).sum())
    return process.shared_reward + process.rates.subscribe * worth


def solve(process: DecisionProcess) -> Solution:
    """Return the best policy by value iteration; ties go to plain MQTT.

    With hidden phases `expected_reward` is that of a policy that sees them, which bounds every
    other, and `actions` weighs the phases by how often they occur. O(phases² · hold_max · age_max).
    """
    q, advantage = _solved(process)
    actions = _decided(process, advantage)
    return Solution(actions, advantage, _reward_of_topic(process, q[:, 0].max(axis=-1)))


def best_actions(process: DecisionProcess) -> Actions:
    """Return the actions of `solve` alone; their value takes five times as long."""
    return _decided(process, _solved(process)[1])


def _solved(process: DecisionProcess) -> tuple[Floats, Floats]:
    """Return the value of each action in each phase and state, and the advantage of waiting."""
    q = _quality(process, np.full(process.caps.table_shape, OPEN, dtype=np.uint8), process.discount)
    weight = process.start + 1e-300  # an age that never occurs still needs a decision
    weight = weight / weight.sum(axis=0)
    return q, ((q[..., WAIT] - q[..., SEND]) * weight[:, None, :]).sum(axis=0)


def _decided(process: DecisionProcess, advantage: Floats) -> Actions:
    return process.clamped((advantage > _NEGLIGIBLE).astype(np.uint8))


def advantage_at_prices(process: DecisionProcess, prices: Floats) -> Floats:
    """Return `Solution.advantage` at each price (with ω = ½, doubled), as one array."""
    table = np.full(process.caps.table_shape, OPEN, dtype=np.uint8)
    ladder = []
    for price in prices:
        priced = process.varied(weights=Weights(0.5, float(price)))
        q = _quality(priced, table, process.discount)[0]
        ladder.append(2.0 * (q[..., WAIT] - q[..., SEND]))
    return np.array(ladder)


def newcomer_worth(process: DecisionProcess) -> Floats:
    """Return the worth of a new subscriber under the best policy, by hidden phase and age."""
    worth: Floats = _solved(process)[0][:, 0].max(axis=-1)
    return worth


def best_reward(process: DecisionProcess) -> float:
    """Return J of the best policy that sees hidden phases: no policy earns more."""
    return solve(process).expected_reward


def _reward(process: DecisionProcess, actions: Actions, discount: float) -> float:
    table = _checked(process, actions)
    q = _quality(process, table, discount)
    chosen = np.where(table[0] == WAIT, q[:, 0, :, WAIT], q[:, 0, :, SEND])
    return _reward_of_topic(process, chosen)


def expected_reward(process: DecisionProcess, actions: Actions) -> float:
    """Return J: a topic's discounted reward under a policy, from its long-run state.

    Exact (policy evaluation), normalised by `1 - discount` so that it reads as reward per step.
    """
    return _reward(process, actions, process.discount)


def mean_reward(process: DecisionProcess, actions: Actions) -> float:
    """Return the long-run mean reward per step, undiscounted, as in the paper's figures."""
    return _reward(process, actions, 1.0)


def attainable_gain(process: DecisionProcess) -> float:
    """Return J_optimal - J_plain."""
    return best_reward(process) - expected_reward(process, process.plain())


def spent_on_newcomers(process: DecisionProcess) -> float:
    """Return the cost of plain MQTT's retained copies per step, as it counts in the reward.

    The yardstick for "nothing can be gained": an attainable gain far below this sum.
    """
    weights = process.weights
    served = process.rates.subscribe * float(1.0 - process.start[:, 0].sum())
    return (1.0 - weights.omega) * weights.message_cost * served


def share_of_gain(process: DecisionProcess, actions: Actions) -> float:
    """Return (J - J_plain) / (J_optimal - J_plain); NaN where nothing can be gained."""
    most = attainable_gain(process)
    if most <= 1e-12:
        return float("nan")
    ours = expected_reward(process, actions) - expected_reward(process, process.plain())
    return ours / most
