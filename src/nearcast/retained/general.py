"""One policy for all topics: a function of the rates instead of a table per topic.

The paper's future work. The best policy depends on ω and Cp only through the steps of fresh
knowledge that one message is worth (`Weights.price`), and not on λS: new subscribers do not affect
each other. In each state there is a *critical price*; the best policy waits where the topic's price
is above it. Its logarithm is a smooth function of the rates and the state, so one small network
(one hidden layer, fitted by `fitting.py` on exact solutions) gives it for every topic:

    wait  ⇔  price > critical_price(λP, λU; d, t) · (1 + caution)

`caution` makes errors of the fit fall on the side of plain MQTT. Rates beyond
`GeneralPolicy.trained` are treated as the nearest rate inside. It never waits at Dmax or on a quiet
topic.

Read next: `policyfile.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from nearcast.kernels import entry_point
from nearcast.model.errors import OutOfRangeError
from nearcast.retained.process import (
    Actions,
    Caps,
    DecisionProcess,
    Floats,
    Rates,
    Timeliness,
    Weights,
    mean_part,
    require_number,
)

INPUTS = 4


@dataclass(frozen=True, slots=True)
class RateRange:
    """The rates that a general policy was fitted on, as means per step."""

    publish: tuple[float, float] = (0.02, 3.0)
    leave: tuple[float, float] = (0.0, 1.0)

    def __post_init__(self) -> None:
        require_number("publish", self.publish[0], 1e-9)  # its logarithm is taken
        require_number("publish", self.publish[1], self.publish[0])
        require_number("leave", self.leave[0], 0.0)
        require_number("leave", self.leave[1], self.leave[0])


@entry_point("float64[::1], float64[::1], float64, float64, int64, int64")
def _critical(  # pragma: no cover - compiled
    network: Floats, layout: Floats, publish: float, leave: float, d: int, t: int
) -> float:
    """Return the logarithm of the critical price; for the arrays see `GeneralPolicy`."""
    x0 = math.log(min(max(publish, layout[1]), layout[2]))
    x1 = math.sqrt(min(max(leave, layout[3]), layout[4]))
    x2, x3 = d / layout[5], t / layout[6]
    total: float = network[0]
    at = 1
    for _ in range(int(layout[0])):
        z = (
            network[at]
            + network[at + 1] * x0
            + network[at + 2] * x1
            + network[at + 3] * x2
            + network[at + 4] * x3
        )
        total += network[at + 5] * z / (1.0 + abs(z))
        at += 6
    return total


@entry_point("float64[::1], float64[::1], float64, float64, float64, int64, int64")
def _waits(  # pragma: no cover - compiled
    network: Floats, layout: Floats, publish: float, leave: float, price: float, d: int, t: int
) -> bool:
    if t <= 0 or d >= layout[5] or t >= layout[6] or price <= 0.0:
        return False
    bar: float = _critical(network, layout, publish, leave, d, t) + layout[7]
    return math.log(price) > bar


@entry_point("float64[::1], float64[::1], float64, float64, float64, int64")
def _steps_waited(  # pragma: no cover - compiled
    network: Floats, layout: Floats, publish: float, leave: float, price: float, t: int
) -> int:
    d = 0
    while _waits(network, layout, publish, leave, price, d, t + d):
        d += 1
    return d


@entry_point("float64[::1], float64[::1], float64, float64, float64, uint8[:, ::1]")
def _fill(  # pragma: no cover - compiled
    network: Floats, layout: Floats, publish: float, leave: float, price: float, table: Actions
) -> None:
    holds, ages = table.shape
    for d in range(holds):
        for t in range(ages):
            if _waits(network, layout, publish, leave, price, d, t):
                table[d, t] = 1


@dataclass(frozen=True, eq=False)
class GeneralPolicy:
    """A fitted policy over (λP, λS, λU, ω, Cp) and the state; O(hidden units) per decision."""

    network: Floats  # the output's bias, then per hidden unit: bias, four weights, output weight
    caps: Caps = field(default_factory=Caps)
    timeliness: Timeliness = field(default_factory=Timeliness)
    discount: float = 0.95
    caution: float = 0.02
    trained: RateRange = field(default_factory=RateRange)
    layout: Floats = field(init=False, repr=False)  # what the kernels need beside the network

    def __post_init__(self) -> None:
        if len(self.network) % (INPUTS + 2) != 1 or not np.isfinite(self.network).all():
            raise OutOfRangeError(
                f"{len(self.network)} numbers",
                where="network",
                expected=f"finite numbers, one and {INPUTS + 2} for each hidden unit",
            )
        require_number("caution", self.caution, 0.0)
        object.__setattr__(self, "layout", self._layout())

    def _layout(self) -> Floats:
        ranges = (*self.trained.publish, *self.trained.leave)
        caps = (self.caps.hold_max, self.caps.age_max)
        return np.array([self.hidden, *ranges, *caps, math.log1p(self.caution)])

    @property
    def hidden(self) -> int:
        """Return the number of hidden units."""
        return (len(self.network) - 1) // (INPUTS + 2)

    def waits(self, publish: float, leave: float, price: float, d: int, t: int) -> bool:
        """Return whether to defer the copy in state (d, t), at these rates and this price."""
        return _waits(self.network, self.layout, publish, leave, price, d, t)

    def steps_waited(self, publish: float, leave: float, price: float, t: int) -> int:
        """Return for how many steps it waits without a publish, from a message that is `t` old."""
        return _steps_waited(self.network, self.layout, publish, leave, price, t)

    def critical_price(self, rates: Rates, d: int, t: int) -> float:
        """Return the price above which the best policy waits, without caution."""
        return math.exp(_critical(self.network, self.layout, rates.publish, rates.leave, d, t))

    def table(self, rates: Rates, weights: Weights, *, whole_steps: bool = True) -> Actions:
        """Return the decisions at fixed rates as a table, to be evaluated or drawn.

        If a wait is charged for parts of steps, waiting costs the same share less in every state:
        that is a higher price, and the function of the price stays what it is.
        """
        table = np.zeros(self.caps.table_shape, dtype=np.uint8)
        price = weights.price if whole_steps else weights.price / mean_part(rates.publish)
        _fill(self.network, self.layout, rates.publish, rates.leave, price, table)
        return table

    def process(self, rates: Rates, weights: Weights) -> DecisionProcess:
        """Return the decision process that this policy was fitted on, at these rates."""
        return DecisionProcess(rates, weights, self.caps, self.timeliness, self.discount)


GENERAL_POLICY_FILE = Path(__file__).with_name("general-policy.json")


@cache
def shipped_policy() -> GeneralPolicy:
    """Return the policy that ships with the package; `fitting.fit(seed=1)` reproduces it."""
    from nearcast.retained.policyfile import read_policies

    policy = read_policies(GENERAL_POLICY_FILE).general
    assert policy is not None
    return policy
