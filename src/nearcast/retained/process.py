"""The decision process: the state of one topic as the broker sees it, and the rewards.

Paper 4, "Decision process", with its gaps closed
(docs/decisions/0006-one-newcomer-one-episode.md).

A deferred delivery is an episode: it begins with a new subscriber (the newcomer of the paper) and
ends when a message reaches it or it leaves. State `(u, d, t, n, w)`, one step apart:

- `u`: a new message has just arrived (then `t = 0`, and it went to everyone);
- `d`: for how many steps the newcomer's copy has been deferred, 0 … `hold_max`;
- `t`: the age of the retained message in steps, capped at `age_max`, where the topic is quiet;
- `n`: subscribers, the newcomer included, capped at `subscribers_max`;
- `w`: 1 while the newcomer waits, 0 once it has been served.

One step: decide; then each subscriber leaves with probability `1 - exp(-leave)`,
`Poisson(subscribe)` others come (each with its own episode), and with probability
`1 - exp(-publish)` a message arrives. At `d = hold_max` and at `t = age_max` the copy is sent,
whatever is decided.

Reward, with `value` falling from 1 (fresh) to a floor above 0 (old), and 0 for knowing nothing:

    r = ω · value(t) · (n - blind) - (1 - ω) · f
    blind = 1 where the newcomer waits and the broker continues to wait, else 0
    f     = n · Cp where a message arrived, Cp where the copy is sent, else 0

No decision changes `n`, `u` or `t`, and newcomers do not affect each other. So a topic's reward is
a part that every policy shares, and for each newcomer a part over `(d, t)` alone that decides:
`-ω · value(t)` for each step of waiting, `-(1 - ω) · Cp` for sending.

Time is cut into steps, as the paper cuts it: a publish ends a step as a whole. In a broker a
publish ends a wait at any moment, so that waiting costs less than the paper's process says, by a
third where a publish comes every step. `whole_steps` False charges only the part that was waited.

Read next: `exact.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from nearcast.model.errors import OutOfRangeError

Floats = NDArray[np.float64]
Actions = NDArray[np.uint8]

SEND, WAIT = 0, 1


class Shape(Enum):
    """How the value of knowing a message falls with its age (the paper's lost g)."""

    EXPONENTIAL = "exponential"
    LINEAR = "linear"
    HYPERBOLIC = "hyperbolic"
    STEP = "step"
    CONSTANT = "constant"


def require_number(name: str, found: float, low: float, high: float = math.inf) -> None:
    """Raise `OutOfRangeError` unless `low <= found <= high` and `found` is finite."""
    if not (math.isfinite(found) and low <= found <= high):
        upper = "" if high == math.inf else f" to {high:g}"
        raise OutOfRangeError(repr(found), where=name, expected=f"a number from {low:g}{upper}")


@dataclass(frozen=True, slots=True)
class Timeliness:
    """The value of knowing a message of a given age: 1 when fresh, never below `floor`.

    The floor stands above 0, the value of knowing nothing: the last message of a quiet topic is
    old and still the state.
    """

    shape: Shape = Shape.EXPONENTIAL
    scale_steps: float = 5.0
    floor: float = 0.25

    def __post_init__(self) -> None:
        require_number("scale_steps", self.scale_steps, 1e-9)
        require_number("floor", self.floor, 0.0, 1.0)

    def value(self, age_steps: float) -> float:
        """Return the value of a message that is `age_steps` old."""
        x = age_steps / self.scale_steps
        match self.shape:
            case Shape.EXPONENTIAL:
                share = math.exp(-x)
            case Shape.LINEAR:
                share = max(0.0, 1.0 - x / 2.0)
            case Shape.HYPERBOLIC:
                share = 1.0 / (1.0 + x)
            case Shape.STEP:
                share = 1.0 if x < 1.0 else 0.0
            case Shape.CONSTANT:
                share = 1.0
        return self.floor + (1.0 - self.floor) * share


@dataclass(frozen=True, slots=True)
class Rates:
    """Means per step: publishes, new subscribers, departures per subscriber (λP, λS, λU)."""

    publish: float = 0.6
    subscribe: float = 0.2
    leave: float = 0.1

    def __post_init__(self) -> None:
        for name in ("publish", "subscribe", "leave"):
            require_number(name, getattr(self, name), 0.0)


@dataclass(frozen=True, slots=True)
class Weights:
    """The weight of timeliness against traffic (ω), and the cost of one message (Cp)."""

    omega: float = 0.7
    message_cost: float = 5.0

    def __post_init__(self) -> None:
        require_number("omega", self.omega, 0.0, 1.0)
        require_number("message_cost", self.message_cost, 0.0)

    @property
    def price(self) -> float:
        """Return the steps of fresh knowledge that one message is worth: Cp (1 - ω) / ω.

        The best policy depends on ω and Cp through this number alone, and it is the bound that ω
        sets: no subscriber's expected loss of knowledge may cost more than the message saved.
        """
        if self.omega == 0.0:
            return math.inf if self.message_cost > 0.0 else 0.0
        return self.message_cost * (1.0 - self.omega) / self.omega


@dataclass(frozen=True, slots=True)
class Caps:
    """Where the state space ends; the paper leaves age and subscribers unbounded."""

    hold_max: int = 10  # the paper's Dmax
    age_max: int = 20
    subscribers_max: int = 20

    def __post_init__(self) -> None:
        for name in ("hold_max", "age_max", "subscribers_max"):
            require_number(name, getattr(self, name), 1, 250)

    @property
    def table_shape(self) -> tuple[int, int]:
        """Return the shape of a policy table: steps deferred, age of the message."""
        return (self.hold_max + 1, self.age_max + 1)


@dataclass(frozen=True, slots=True)
class Publishing:
    """The publishing process: hidden phases, each with its chance of a publish per step.

    `moves[i][j]` is the chance that phase j follows phase i. Policies do not see the phase.
    """

    chance: tuple[float, ...]
    moves: tuple[tuple[float, ...], ...] = ((1.0,),)

    def __post_init__(self) -> None:
        for chance in self.chance:
            require_number("chance", chance, 0.0, 1.0)
        rows = [math.isclose(sum(row), 1.0, abs_tol=1e-9) for row in self.moves]
        widths = {len(row) for row in self.moves}
        if not all(rows) or widths != {len(self.chance)} or len(rows) != len(self.chance):
            raise OutOfRangeError(
                repr(self.moves), where="moves", expected="one row of chances for each phase"
            )

    @staticmethod
    def poisson(publish: float) -> Publishing:
        """Return memoryless publishing, with mean `publish` per step."""
        return Publishing((-math.expm1(-publish),))

    @staticmethod
    def bursty(publish: float, *, on_share: float, burst_steps: float) -> Publishing:
        """Return bursts: the mean of `poisson(publish)`, all of it in `on_share` of the time."""
        require_number("on_share", on_share, 1e-9, 1.0 - 1e-9)
        require_number("burst_steps", burst_steps, 1.0)
        chance = -math.expm1(-publish) / on_share
        stop = 1.0 / burst_steps
        start = stop * on_share / (1.0 - on_share)
        if start > 1.0 or chance > 1.0:
            raise OutOfRangeError(
                f"{on_share!r} with publish {publish!r}",
                where="on_share",
                expected="bursts with room for all publishes, and for pauses between them",
            )
        return Publishing((0.0, chance), ((1.0 - start, start), (stop, 1.0 - stop)))

    @staticmethod
    def steady(interval_steps: int) -> Publishing:
        """Return one publish every `interval_steps` steps exactly."""
        k = interval_steps
        moves = tuple(tuple(1.0 if j == (i + 1) % k else 0.0 for j in range(k)) for i in range(k))
        return Publishing((*([0.0] * (k - 1)), 1.0), moves)


def mean_part(publish: float) -> float:
    """Return how much of a step is waited on average, if a publish ends it; `publish` per step.

    >>> mean_part(1e-9), round(mean_part(1.0), 3)
    (1.0, 0.632)
    """
    return -math.expm1(-publish) / publish if publish > 1e-6 else 1.0


def _stationary(moves: Floats) -> Floats:
    """Return the long-run shares of a chain with one closed class."""
    size = len(moves)
    system = np.vstack([moves.T - np.eye(size), np.ones(size)])
    shares = np.linalg.lstsq(system, np.append(np.zeros(size), 1.0), rcond=None)[0]
    kept: Floats = np.clip(shares, 0.0, None)
    return kept


def _binomial(count: int, stay: float) -> Floats:
    return np.array(
        [math.comb(count, k) * stay**k * (1.0 - stay) ** (count - k) for k in range(count + 1)]
    )


def _poisson(mean: float, cap: int) -> Floats:
    """Return the chances of 0 … cap arrivals, all beyond counted at the cap."""
    chances = [math.exp(-mean)]
    for k in range(1, cap):
        chances.append(chances[-1] * mean / k)
    return np.array([*chances, max(0.0, 1.0 - sum(chances))])


def _after_a_step(count: int, stay: float, arrivals: Floats, cap: int) -> Floats:
    """Return the chances of 0 … cap subscribers after departures and arrivals."""
    row = np.zeros(cap + 1)
    for stayed, chance in enumerate(_binomial(count, stay)):
        for came, share in enumerate(arrivals):
            row[min(cap, stayed + came)] += chance * share
    return row


@dataclass(frozen=True)
class DecisionProcess:
    """One topic's decision process; everything below follows from these settings.

    The policy tables of this package have the shape `caps.table_shape`, entries `SEND` or `WAIT`.
    """

    rates: Rates = field(default_factory=Rates)
    weights: Weights = field(default_factory=Weights)
    caps: Caps = field(default_factory=Caps)
    timeliness: Timeliness = field(default_factory=Timeliness)
    discount: float = 0.95
    publishing: Publishing | None = None  # None: Poisson with rates.publish
    whole_steps: bool = True  # as in the paper: waiting costs a step even if a publish ends it

    def __post_init__(self) -> None:
        require_number("discount", self.discount, 0.0, 0.9999)

    def varied(self, **changes: object) -> DecisionProcess:
        """Return the same process with some settings changed."""
        return replace(self, **changes)  # type: ignore[arg-type]

    @cached_property
    def phases(self) -> Publishing:
        """Return the publishing process."""
        return self.publishing or Publishing.poisson(self.rates.publish)

    @property
    def stay(self) -> float:
        """Return the chance that a subscriber is still there after a step."""
        return math.exp(-self.rates.leave)

    @cached_property
    def parts(self) -> Floats:
        """Return the part of a step that a wait is charged for, by phase."""
        chances = self.phases.chance
        whole = [
            1.0 if self.whole_steps else mean_part(-math.log1p(-min(c, 1 - 1e-12))) for c in chances
        ]
        return np.array(whole)

    @cached_property
    def value_of_age(self) -> Floats:
        """Return `timeliness` for the ages 0 … age_max."""
        return np.array([self.timeliness.value(t) for t in range(self.caps.age_max + 1)])

    @cached_property
    def subscribers(self) -> Floats:
        """Return the long-run chances of n = 0 … subscribers_max."""
        cap = self.caps.subscribers_max
        arrivals = _poisson(self.rates.subscribe, cap)
        if self.rates.subscribe == 0.0:
            return np.append(1.0, np.zeros(cap))
        rows = [_after_a_step(n, self.stay, arrivals, cap) for n in range(cap + 1)]
        return _stationary(np.array(rows))

    @cached_property
    def start(self) -> Floats:
        """Return the long-run chances of (phase, age), where every J starts; nobody waits."""
        phases, ages = len(self.phases.chance), self.caps.age_max + 1
        if max(self.phases.chance) == 0.0:  # nothing is ever published: the topic is quiet
            shares = np.zeros((phases, ages))
            shares[:, -1] = _stationary(np.array(self.phases.moves))
            return shares
        moves = np.zeros((phases, ages, phases, ages))
        for phase, chance in enumerate(self.phases.chance):
            after = np.array(self.phases.moves[phase])
            for age in range(ages):
                moves[phase, age, :, 0] += chance * after
                moves[phase, age, :, min(age + 1, ages - 1)] += (1.0 - chance) * after
        size = phases * ages
        return _stationary(moves.reshape(size, size)).reshape(phases, ages)

    @cached_property
    def shared_reward(self) -> float:
        """Return the mean reward per step that all policies share."""
        by_age = self.start.sum(axis=0)
        known = self.weights.omega * float(by_age @ self.value_of_age)
        spent = (1.0 - self.weights.omega) * self.weights.message_cost * float(by_age[0])
        return float(self.subscribers @ np.arange(len(self.subscribers))) * (known - spent)

    def plain(self) -> Actions:
        """Return the table of plain MQTT: always send at once."""
        return np.zeros(self.caps.table_shape, dtype=np.uint8)

    def always_wait(self) -> Actions:
        """Return the table that waits wherever it is allowed."""
        return self.clamped(np.ones(self.caps.table_shape, dtype=np.uint8))

    def clamped(self, actions: Actions) -> Actions:
        """Return a copy that sends wherever waiting is not allowed: at Dmax, on a quiet topic.

        At `t = 0` a message has just gone to all subscribers, so nobody waits.
        """
        table = actions.copy()
        table[-1, :] = table[:, -1] = table[:, 0] = SEND
        return table
