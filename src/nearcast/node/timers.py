"""When the node wants waking, and what it then does."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import Any


class Timers:
    """A heap of instants; nothing is ever cancelled, the action looks whether it still applies.

    Complexity: `at` and each due action O(log n).
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Callable[[Any], None], Any]] = []
        self._order = count()

    def at(self, instant_ms: int, action: Callable[[Any], None], subject: object) -> None:
        """Call `action(subject)` once `instant_ms` has come."""
        heapq.heappush(self._heap, (instant_ms, next(self._order), action, subject))

    def wake_at(self) -> int | None:
        """Return the earliest instant, or None."""
        return self._heap[0][0] if self._heap else None

    def run_due(self, now_ms: int) -> None:
        """Call every action whose instant has come; those may set further ones."""
        while self._heap and self._heap[0][0] <= now_ms:
            _, _, action, subject = heapq.heappop(self._heap)
            action(subject)
