"""The settings of an overlay; all its peers use the same.

Read next: `seat.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from nearcast.model.errors import OutOfRangeError
from nearcast.overlay.bounds import Extent
from nearcast.overlay.density import Density, UniformDensity
from nearcast.overlay.election import EVEN, Costs, Method
from nearcast.overlay.splitting import Split


class Climb(Enum):
    """How a published event gets to the root (trap T3.6)."""

    STEPWISE = "stepwise"
    """From parent to parent; each passes it down to its other members on the way."""
    DIRECT = "direct"
    """Directly to the root, whose address comes with the heartbeats."""


class Placement(Enum):
    """How the last group is chosen when several need the least enlargement."""

    ESTIMATE = "estimate"
    """Ask each for its cost (paper 3, "Joining")."""
    VOLUME = "volume"
    """Take the smallest, without asking."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings that all peers of one overlay share.

    `least` and `most` bound the members of a group (the root may have two). A peer that was silent
    for `patience_ms` is considered dead.
    """

    extent: Extent
    least: int = 3
    most: int = 6
    method: Method = Method.EXACT
    density: Density | None = None
    costs: Costs = EVEN
    split: Split = Split.RSTAR
    placement: Placement = Placement.ESTIMATE
    climb: Climb = Climb.DIRECT
    beat_ms: int = 1_000
    patience_ms: int = 3_500
    retry_ms: int = 800
    probe_ms: int = 10_000
    coalesce_ms: int = 0
    """How long events may wait for others that go the same way; 0 sends those of a call at once."""
    memory_ms: int = 60_000
    """The least time for which an event id is remembered; later copies would count as new."""
    cache_size: int = 0
    """How many different events a branching peer remembers (claim C3.5); 0 is no cache."""
    hysteresis: float = 0.1
    """By how much a measured rate must exceed the host's before another member replaces it."""
    spread: float = 0.0
    """A host hands its highest group over to a member that has borne less than the host's overhead
    divided by this; 0: never, groups stay with the cheapest host."""
    spread_beats: int = 300
    """The least number of beats that a host keeps a group then; overhead counts for ten times as
    long."""
    hop_limit: int = 64
    e: Density = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.least < 2 or self.most + 1 < 2 * self.least:
            raise OutOfRangeError(
                f"fan-out {self.least} to {self.most}",
                where="Settings",
                expected="least ≥ 2, and most + 1 members enough for two groups of `least`",
            )
        if not 0 < self.beat_ms < self.patience_ms or self.retry_ms <= 0 or self.coalesce_ms < 0:
            raise OutOfRangeError(
                f"beat {self.beat_ms} ms, patience {self.patience_ms} ms, retry {self.retry_ms} ms",
                where="Settings",
                expected="0 < beat_ms < patience_ms and retry_ms > 0",
            )
        if self.spread and not self.spread > 1:
            raise OutOfRangeError(
                f"spread {self.spread}", where="Settings", expected="0, or more than 1"
            )
        object.__setattr__(self, "e", self.density or UniformDensity(self.extent))
