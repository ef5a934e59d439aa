"""What waiting cost and saved the new subscribers of one topic group, and Q-learning from that.

The next publish does not depend on the decision. So each new subscriber tells, once the next
publish has come or Dmax is over, what *every* policy would have cost it, whether it waited or got
its copy at once. From each such experience

- the group's table learns: Q(d, t) of waiting moves towards what this step cost and what followed
  (paper 4, "Learning"). Q of sending is known: it is the cost of a message. The chance of a publish
  does not depend on d, so one step teaches all d at once;
- three policies are compared: plain MQTT, the model's (a table from rates, or the general policy),
  and this table as it was *before* it learned from the subscriber.

`follows` is the one that recent evidence favours. It begins with the model, and changes only where
another is better by more than noise. Time is cut as in `process.py`, but a wait that a publish
ends is charged for the part of the step that it lasted.

Read next: `groups.py`.
"""

from __future__ import annotations

import math
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from nearcast.kernels import entry_point, kernel
from nearcast.retained.process import (
    SEND,
    Actions,
    Caps,
    Floats,
    Timeliness,
    Weights,
    require_number,
)

Counts = NDArray[np.int64]

ALPHA_LEAST = 0.005  # α is 1 / visits, but never below: old experience fades
VISITS_LEAST = 10  # of an age, before its table entries are used
MARGIN = 0.03  # wait only where that is better by this share of a message's cost
FADING = 1.0 - 1.0 / 400.0  # the weight of evidence when the next one comes
DOUBT_LEAST = 8.0  # experiences, before what is followed is doubted
DOUBT = 2.0  # standard errors by which another policy must be better to be followed instead
PROOF_LEAST, PROOF = 32.0, 3.0  # the same before plain MQTT is left: waiting has to prove itself


class Follows(IntEnum):
    """The policy that decides for the new subscribers of a group."""

    PLAIN = 0
    MODEL = 1
    EXPERIENCE = 2


# Places in the array of evidence: a faded count, then faded sums of the gain over plain MQTT.
_COUNT, _MODEL, _OWN, _MODEL_SQUARED, _OWN_SQUARED, _BETWEEN_SQUARED = range(6)


@entry_point("float64[:, ::1], int64[::1], int64, float64")
def _steps(  # pragma: no cover - compiled
    quality: Floats, visits: Counts, age: int, bar: float
) -> int:
    """Return for how many steps the table waits with a message of this age."""
    holds, ages = quality.shape
    k = 0
    while k < holds - 1 and age + k < ages - 1:
        if visits[age + k] < VISITS_LEAST or quality[k, age + k] <= bar:
            break
        k += 1
    return k


@kernel
def _cost(  # pragma: no cover - compiled
    wait: float,
    after: float,
    served: bool,
    value_of_age: Floats,
    omega: float,
    cost: float,
    keep: float,
    age: int,
) -> float:
    """Return what it costs to wait for so many steps, if a publish comes `after` so many."""
    total, weight, k = 0.0, 1.0, 0
    end = min(wait, after)
    while k < end:
        total += (
            weight * omega * value_of_age[min(age + k, len(value_of_age) - 1)] * min(1.0, end - k)
        )
        weight *= keep
        k += 1
    if wait < after or not served:
        total += keep**end * (1.0 - omega) * cost
    return total


@kernel
def _favoured(evidence: Floats, follows: int) -> int:  # pragma: no cover - compiled
    """Return the policy that the evidence favours; that of before unless another is clearly better.

    Clearly: by more than some standard errors of the difference.
    """
    count = evidence[_COUNT]
    if count < (PROOF_LEAST if follows == 0 else DOUBT_LEAST):
        return follows
    model, own = evidence[_MODEL] / count, evidence[_OWN] / count
    between = model - own
    model_error = math.sqrt(max(0.0, evidence[_MODEL_SQUARED] / count - model**2) / count)
    own_error = math.sqrt(max(0.0, evidence[_OWN_SQUARED] / count - own**2) / count)
    error = math.sqrt(max(0.0, evidence[_BETWEEN_SQUARED] / count - between**2) / count)
    if follows == 0:
        ahead_model, ahead_own = model - PROOF * model_error, own - PROOF * own_error
        if max(ahead_model, ahead_own) <= 0.0:
            return 0
        return 1 if model >= own else 2
    mine, other = (model, own) if follows == 1 else (own, model)
    my_error = model_error if follows == 1 else own_error
    beaten_by_plain = -mine > DOUBT * my_error
    beaten_by_other = other - mine > DOUBT * error
    if beaten_by_other and (other > 0.0 or not beaten_by_plain):
        return 3 - follows
    return 0 if beaten_by_plain else follows


@entry_point(
    "float64[:, ::1], int64[::1], float64[::1], float64[::1], float64, float64, float64, "
    "int64, float64, boolean, float64, float64, int64"
)
def _take(  # pragma: no cover - compiled
    quality: Floats,
    visits: Counts,
    evidence: Floats,
    value_of_age: Floats,
    omega: float,
    cost: float,
    keep: float,
    age: int,
    after: float,
    served: bool,
    limit: float,
    model_wait: float,
    follows: int,
) -> int:
    """Compare the policies on one experience, then learn from it; return the policy to follow."""
    holds, ages = quality.shape
    send = (1.0 - omega) * cost
    own_wait = float(_steps(quality, visits, age, MARGIN * send - send))
    gains = (
        send - _cost(min(model_wait, limit), after, served, value_of_age, omega, cost, keep, age),
        send - _cost(min(own_wait, limit), after, served, value_of_age, omega, cost, keep, age),
    )
    for place in range(len(evidence)):
        evidence[place] *= FADING
    evidence[_COUNT] += 1.0
    evidence[_MODEL] += gains[0]
    evidence[_OWN] += gains[1]
    evidence[_MODEL_SQUARED] += gains[0] ** 2
    evidence[_OWN_SQUARED] += gains[1] ** 2
    evidence[_BETWEEN_SQUARED] += (gains[0] - gains[1]) ** 2
    end = min(after, limit, float(holds - 1))
    is_served = served and after <= min(limit, float(holds - 1))
    last = min(math.ceil(end), ages - 1 - age)
    for k in range(last - 1, -1, -1):
        t = age + k
        part = min(1.0, end - k)
        is_end = end <= k + 1
        visits[t] += 1
        alpha = max(ALPHA_LEAST, 1.0 / visits[t])
        for d in range(holds - 1):
            later = 0.0 if is_end and is_served else -send
            may_go_on = not is_end and d + 1 < holds - 1 and t + 1 < ages - 1
            if may_go_on and visits[t + 1] >= VISITS_LEAST:
                later = max(later, quality[d + 1, t + 1])
            target = keep * later - omega * value_of_age[t] * part
            quality[d, t] += alpha * (target - quality[d, t])
    return _favoured(evidence, follows)


class Experience:
    """The experience of one topic group: a learned table, the evidence, and what it favours.

    Complexity: `take` O(Dmax² in steps) at most; `waits` O(1). Memory: about 2 kB.
    """

    def __init__(
        self, weights: Weights, caps: Caps, timeliness: Timeliness, discount: float
    ) -> None:
        self.weights, self.caps, self.discount = weights, caps, discount
        self.follows = Follows.MODEL
        self.quality = np.zeros(caps.table_shape)
        self.visits = np.zeros(caps.age_max + 1, dtype=np.int64)
        self.evidence = np.zeros(6)
        self._value_of_age = np.array([timeliness.value(t) for t in range(caps.age_max + 1)])
        self._send = (1.0 - weights.omega) * weights.message_cost
        self._bar = MARGIN * self._send - self._send

    def waits(self, held: int, age: int) -> bool:
        """Return whether the learned table waits: so many steps deferred, a message so old."""
        caps = self.caps
        if not (held < caps.hold_max and 0 < age < caps.age_max):
            return False
        enough = self.visits[age] >= VISITS_LEAST
        return bool(enough and self.quality[held, age] > self._bar)

    def table(self) -> Actions:
        """Return the decisions of the learned table, to be evaluated or drawn."""
        bar = (self.quality > self._bar) & (self.visits >= VISITS_LEAST)
        table = bar.astype(np.uint8)
        table[-1, :] = table[:, -1] = table[:, 0] = SEND
        return table

    def take(
        self,
        age: int,
        after: float,
        *,
        served: bool = True,
        stay: float = 1.0,
        limit: float = math.inf,
        model_wait: float,
    ) -> None:
        """Learn from a new subscriber that came when the message was `age` steps old.

        A publish came `after` so many steps (infinite: not within Dmax), and `served`: it would
        have replaced the copy. At `limit` the copy is sent whatever the policy says. `stay` is the
        chance that a subscriber is still there a step later, `model_wait` the steps for which the
        model would have waited.
        """
        require_number("age", age, 1, self.caps.age_max - 1)
        self.follows = Follows(
            _take(
                self.quality,
                self.visits,
                self.evidence,
                self._value_of_age,
                self.weights.omega,
                self.weights.message_cost,
                self.discount * stay,
                age,
                after,
                served,
                limit,
                model_wait,
                int(self.follows),
            )
        )

    @property
    def count(self) -> float:
        """The number of experiences that the evidence weighs, older ones faded."""
        return float(self.evidence[_COUNT])

    @property
    def gains(self) -> tuple[float, float]:
        """The mean gain of model and experience over plain MQTT, as a share of a message's cost."""
        scale = float(self.evidence[_COUNT]) * self._send
        if not scale:
            return (0.0, 0.0)
        return (float(self.evidence[_MODEL]) / scale, float(self.evidence[_OWN]) / scale)
