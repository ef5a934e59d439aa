"""Online estimates of each topic's rates: cheap, decaying, in flat arrays.

For every topic three decaying counts (publishes, new subscribers, departures) and the decaying time
over which they were gathered; a rate is a count over that time. An event `memory_s` ago weighs 1/e.
The estimate is unbiased from the first second, and the count of publishes tells how reliable it is.
The squared intervals between publishes tell whether they come evenly or in bursts.

44 bytes a topic. Time is an argument and must not decrease (`delivery.py` ensures that).
"""

from __future__ import annotations

import math
from array import array
from typing import NamedTuple

from nearcast.retained.process import require_number

_LONGEST = 10.0  # mean intervals: a longer one counts as this, so that one outage is no burst
_LARGEST = 1e37  # a float of 32 bits has no larger square


class Estimate(NamedTuple):
    """Rates per second, and the publishes (decayed) that they are based on."""

    publish_per_s: float
    subscribe_per_s: float
    leave_per_s: float  # of each single subscriber
    publishes_seen: float


class RateEstimators:
    """Decaying estimates for any number of topics, each identified by its slot.

    Every call is O(1); memory 44 bytes a slot and an eighth more for growth.
    """

    def __init__(self, memory_s: float) -> None:
        require_number("memory_s", memory_s, 1e-6)
        self.memory_s = memory_s
        self._updated_at = array("d")
        self._published_at = array("d")  # -inf: never
        self._observed_s = array("f")
        self._publishes = array("f")
        self._arrivals = array("f")
        self._departures = array("f")
        self._squares = array("f")  # of the intervals between publishes
        self._subscribers = array("I")
        self._free = array("I")

    def __len__(self) -> int:
        """Return the number of slots in use."""
        return len(self._updated_at) - len(self._free)

    def _columns(self) -> tuple[array[float], ...]:
        return (
            self._observed_s,
            self._publishes,
            self._arrivals,
            self._departures,
            self._squares,
        )

    def allot(self, now: float) -> int:
        """Return a slot for a topic first seen now."""
        if self._free:
            slot = self._free.pop()
            self._updated_at[slot], self._published_at[slot] = now, -math.inf
            self._subscribers[slot] = 0
            for column in self._columns():
                column[slot] = 0.0
            return slot
        self._updated_at.append(now)
        self._published_at.append(-math.inf)
        self._subscribers.append(0)
        for column in self._columns():
            column.append(0.0)
        return len(self._updated_at) - 1

    def release(self, slot: int) -> None:
        """Release a slot; a later `allot` may reuse it."""
        self._free.append(slot)

    def _decay(self, slot: int, now: float) -> None:
        gone_s = now - self._updated_at[slot]
        if gone_s <= 0.0:
            return
        keep = math.exp(-gone_s / self.memory_s)
        self._updated_at[slot] = now
        self._observed_s[slot] = self._observed_s[slot] * keep + self.memory_s * (1.0 - keep)
        self._publishes[slot] *= keep
        self._arrivals[slot] *= keep
        self._departures[slot] *= keep
        self._squares[slot] *= keep

    def on_publish(self, slot: int, now: float) -> None:
        """Count a publish."""
        self._decay(slot, now)
        last = self._published_at[slot]
        if last > -math.inf and self._publishes[slot] > 0.0:
            longest_s = _LONGEST * self._observed_s[slot] / self._publishes[slot]
            self._squares[slot] += min((min(now - last, longest_s)) ** 2, _LARGEST)
        self._publishes[slot] += 1.0
        self._published_at[slot] = now

    def on_subscribe(self, slot: int, now: float) -> None:
        """Count a new subscriber."""
        self._decay(slot, now)
        self._arrivals[slot] += 1.0
        self._subscribers[slot] = min(self._subscribers[slot] + 1, 2**32 - 1)

    def on_leave(self, slot: int, now: float) -> None:
        """Count a departure; ignored without a known subscriber (a restart came between)."""
        if self._subscribers[slot] == 0:
            return
        self._decay(slot, now)
        # A rate per subscriber: each departure weighs as one among those that could have left.
        self._departures[slot] += 1.0 / self._subscribers[slot]
        self._subscribers[slot] -= 1

    def published_at(self, slot: int) -> float:
        """Return the instant of the last publish; -inf if there was none."""
        return self._published_at[slot]

    def spread(self, slot: int) -> float:
        """Return the squared coefficient of variation of the intervals between publishes.

        0 for steady intervals, 1 for Poisson, more for bursts; as of the last event.
        """
        return self.what_matters(slot, self._updated_at[slot])[4]

    def estimate(self, slot: int, now: float) -> Estimate:
        """Return the current rates, silence since the last event included."""
        keep = math.exp(-max(0.0, now - self._updated_at[slot]) / self.memory_s)
        observed_s = self._observed_s[slot] * keep + self.memory_s * (1.0 - keep)
        publishes = self._publishes[slot] * keep
        if observed_s <= 0.0:
            return Estimate(0.0, 0.0, 0.0, publishes)
        share = keep / observed_s
        return Estimate(
            self._publishes[slot] * share,
            self._arrivals[slot] * share,
            self._departures[slot] * share,
            publishes,
        )

    def what_matters(self, slot: int, now: float) -> tuple[float, float, float, float, float]:
        """Return publishes and departures per second, publishes seen, the last one, the spread.

        A faster `estimate` and `spread` for the hot path.
        """
        gone_s = now - self._updated_at[slot]
        observed_s, publishes = self._observed_s[slot], self._publishes[slot]
        spread = self._squares[slot] * publishes / (observed_s * observed_s or math.inf) - 1.0
        keep = 1.0
        if gone_s > 0.0:
            keep = math.exp(-gone_s / self.memory_s)
            observed_s = observed_s * keep + self.memory_s * (1.0 - keep)
            publishes *= keep
        if observed_s <= 0.0:
            return (0.0, 0.0, publishes, self._published_at[slot], spread)
        return (
            publishes / observed_s,
            self._departures[slot] * keep / observed_s,
            publishes,
            self._published_at[slot],
            spread,
        )
