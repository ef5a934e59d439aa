"""Inputs and outputs of `RetainedDelivery`: settings, evidence, answers, releases.

Read next: `delivery.py`.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from nearcast.retained.process import Weights, require_number

Subscriber = Hashable  # the node's identifier of one subscription of one client


class Mode(Enum):
    """How a topic's retained message reaches new subscribers."""

    IMMEDIATE = "immediate"  # plain MQTT
    LEARNED = "learned"
    WAIT = "wait"  # defer wherever that is allowed


class Handling(Enum):
    """MQTT 5 retain handling, as the subscriber requested it [MQTT-3.3.1-9, -10, -11]."""

    SEND = 0
    SEND_IF_NEW = 1
    NEVER = 2


class BlockKey(NamedTuple):
    """What topics have in common that may share experience: their block, and its numbers."""

    filter: str
    hold_max_s: float
    omega: float
    message_cost: float


@dataclass(frozen=True, slots=True)
class TopicSetting:
    """One topic's configuration; the default is plain MQTT (trap T4.4)."""

    mode: Mode = Mode.IMMEDIATE
    weights: Weights = field(default_factory=Weights)
    hold_max_s: float = 10.0  # Dmax: no subscriber is without state for longer
    learns: bool = True  # whether a table may be learned here, within the bounds
    filter: str = ""  # the topic filter of its block
    created: str = "$created"  # the user property with a message's creation time; the node reads it
    price: float = field(init=False, repr=False)  # weights.price, computed once
    block: BlockKey = field(init=False, repr=False)  # topics of one block may share experience

    def __post_init__(self) -> None:
        require_number("hold_max_s", self.hold_max_s, 1e-3)
        object.__setattr__(self, "price", self.weights.price)
        costs = self.weights.omega, self.weights.message_cost
        object.__setattr__(self, "block", BlockKey(self.filter, self.hold_max_s, *costs))


@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence about a topic that is needed before its policy is trusted (trap T4.5)."""

    memory_s: float = 600.0
    publishes_min: float = 8.0  # in memory; below, plain MQTT
    publishes_per_hold_min: float = 1.0  # a slower topic is quiet: no publish would come in time
    quiet_intervals: float = 4.0  # silent for this many mean intervals: it has gone quiet
    irregular_quiet_intervals: float = 7.0  # where intervals vary as memoryless ones do
    observed_most: int = 10_000  # new subscribers observed at once; 0: nothing is learned from them

    def __post_init__(self) -> None:
        require_number("memory_s", self.memory_s, 1e-3)
        require_number("publishes_min", self.publishes_min, 1.0)
        require_number("publishes_per_hold_min", self.publishes_per_hold_min, 0.0)
        require_number("quiet_intervals", self.quiet_intervals, 0.1)
        require_number("irregular_quiet_intervals", self.irregular_quiet_intervals, 0.1)

    @property
    def quiet_by_manner(self) -> tuple[float, float, float]:
        """Return the mean intervals of silence after which a topic is quiet, by manner.

        One in eleven newcomers to a memoryless topic comes in an interval longer than four mean
        ones, but one in a hundred in one longer than seven.
        """
        usual = self.quiet_intervals
        return (usual, max(usual, self.irregular_quiet_intervals), usual)


@dataclass(frozen=True, slots=True)
class LearningBounds:
    """How far a broker may learn its own tables; by default not at all."""

    tables_max: int = 0
    publishes_min: float = 50.0
    pause_s: float = 600.0  # between two tables for the same topic


@dataclass(frozen=True, slots=True)
class RetainedCopy:
    """The retained message of a topic, as far as the decision needs it."""

    qos: int = 0
    age_s: float = 0.0  # since the publisher made it; 0 where its clock is ahead
    expires_in_s: float = math.inf


@dataclass(frozen=True, slots=True)
class SendNow:
    """Send the retained copy at once."""


@dataclass(frozen=True, slots=True)
class SendNothing:
    """Send no copy for this SUBSCRIBE: there is none, or the subscriber asked for none."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Defer the copy; `advance` releases it, at the latest at this instant."""

    until: float


Answer = SendNow | SendNothing | Wait
SEND_NOW, SEND_NOTHING = SendNow(), SendNothing()


class ReleaseReason(Enum):
    """Why deferred copies are sent."""

    DEADLINE = "deadline"
    QUIET = "quiet"
    POLICY = "policy"
    BEFORE_LIVE = "before live"  # the live message does not replace the copy
    OFFLINE = "offline"  # into the queue of a session that outlives its connection


@dataclass(frozen=True, slots=True)
class Release:
    """Send the topic's retained copy to these subscribers now."""

    topic: str
    subscribers: tuple[Subscriber, ...]
    reason: ReleaseReason
