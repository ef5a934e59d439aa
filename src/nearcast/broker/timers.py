"""Timers: what the broker has to do at a later instant."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import Any

from nearcast.broker.slices import never

_FEWEST_CANCELLED = 64  # with fewer, rebuilding the heap does not pay


class Timer:
    """One future action; `Timers.cancel` cancels it."""

    __slots__ = ("action", "subject")

    def __init__(self, action: Callable[[Any], None], subject: object) -> None:
        self.action: Callable[[Any], None] | None = action
        self.subject = subject


class Timers:
    """A heap of instants. A cancelled timer releases its subject at once.

    Complexity: `at` and each due action O(log n); `cancel` O(1) amortised: once half of the heap is
    cancelled, the heap is rebuilt from the rest, so it holds at most twice the pending timers.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timer]] = []
        self._order = count()
        self._cancelled = 0

    def __len__(self) -> int:
        """Return the number of heap entries, cancelled ones included."""
        return len(self._heap)

    def at(self, instant_ms: int, action: Callable[[Any], None], subject: object) -> Timer:
        """Call `action(subject)` at `instant_ms`; return the timer, for `cancel`."""
        timer = Timer(action, subject)
        heapq.heappush(self._heap, (instant_ms, next(self._order), timer))
        return timer

    def cancel(self, timer: Timer | None) -> None:
        """Cancel a timer; no effect if it has run or was cancelled before."""
        if timer is None or timer.action is None:
            return
        timer.action = timer.subject = None
        self._cancelled += 1
        if self._cancelled >= _FEWEST_CANCELLED and self._cancelled * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].action is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0

    def wake_at(self) -> int | None:
        """Return the earliest pending instant, or None."""
        heap = self._heap
        while heap and heap[0][2].action is None:
            heapq.heappop(heap)
            self._cancelled -= 1
        return heap[0][0] if heap else None

    def run_due(self, now_ms: int, is_spent: Callable[[], bool] = never) -> None:
        """Run every action that is due; actions may set and cancel timers.

        Once the slice is spent, the rest stays due.
        """
        while self._heap and self._heap[0][0] <= now_ms and not is_spent():
            _, _, timer = heapq.heappop(self._heap)
            action, subject = timer.action, timer.subject
            if action is None:
                self._cancelled -= 1
                continue
            timer.action = timer.subject = None
            action(subject)
