"""The subscribers that wait for one topic's retained message."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from nearcast.retained.answers import Subscriber


@dataclass(slots=True)
class WaitingCohort:
    """New subscribers of one step, which wait together: a storm is one cohort, one timer."""

    since: float
    until: float  # the promised deadline; it may move closer, never away
    waiters: dict[Subscriber, int] = field(default_factory=dict)  # and the QoS of its copy


@dataclass(slots=True)
class TopicHold:
    """All waiting subscribers of one topic, the oldest cohort first."""

    made_at: float  # when the publisher made the retained message, on our clock
    cohorts: list[WaitingCohort] = field(default_factory=list)
    due: float = math.inf  # when to query the policy again

    def cohort_of(self, subscriber: Subscriber) -> WaitingCohort | None:
        """Return the cohort in which a subscriber waits."""
        for cohort in self.cohorts:
            if subscriber in cohort.waiters:
                return cohort
        return None
