"""Measurements: histograms of latencies, and the delay of the event loop."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator

BOUNDS_S = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
"""Upper bounds of the histogram buckets."""
LOOP_INTERVAL_S = 0.25


class LatencyHistogram:
    """A cumulative histogram in Prometheus' sense. `add` is O(log bounds)."""

    __slots__ = ("_counts", "sum")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self.sum = 0.0

    @property
    def count(self) -> int:
        """How many values were added."""
        return sum(self._counts)

    @property
    def counts(self) -> list[int]:
        """How many values each bucket has."""
        return self._counts

    def copy(self) -> LatencyHistogram:
        """Return a histogram with the same values."""
        found = LatencyHistogram()
        found.include(self._counts, self.sum)
        return found

    def include(self, counts: Iterable[int], seconds: float) -> None:
        """Add the values of another histogram: its counts and its sum."""
        self._counts = [one + more for one, more in zip(self._counts, counts, strict=True)]
        self.sum += seconds

    def add(self, seconds: float, count: int = 1) -> None:
        """Add a value, `count` times."""
        self._counts[bisect_left(BOUNDS_S, seconds)] += count
        self.sum += seconds * count

    def quantile_ms(self, share: float) -> float | None:
        """Return an upper bound in ms of this share of the values, None without values."""
        wanted, total = share * self.count, 0
        for bound, count in zip((*BOUNDS_S, BOUNDS_S[-1]), self._counts, strict=True):
            total += count
            if total and total >= wanted:
                return bound * 1000
        return None

    def lines(self, name: str) -> Iterator[str]:
        """Yield the series in Prometheus' text format."""
        total = 0
        for bound, count in zip((*BOUNDS_S, "+Inf"), self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{le="{bound}"}} {total}'
        yield f"{name}_sum {self.sum:.6f}"
        yield f"{name}_count {total}"


class LoopDelay:
    """Measures how late the event loop runs a timer."""

    def __init__(self) -> None:
        self.histogram = LatencyHistogram()
        self._alarm: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start to measure, four times a second; once."""
        if self._alarm is None:
            self._set_alarm()

    def _set_alarm(self) -> None:
        loop = asyncio.get_running_loop()
        due_s = time.perf_counter() + LOOP_INTERVAL_S
        self._alarm = loop.call_later(LOOP_INTERVAL_S, self._measure, due_s)

    def _measure(self, due_s: float) -> None:
        self.histogram.add(max(0.0, time.perf_counter() - due_s))
        self._set_alarm()

    def stop(self) -> None:
        """Stop measuring."""
        if self._alarm is not None:
            self._alarm.cancel()
