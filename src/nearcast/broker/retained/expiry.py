"""Expired retained messages are deleted, also where no new subscription reads them."""

from __future__ import annotations

from typing import Final

from nearcast.broker.retained.updates import forget_retained
from nearcast.broker.slices import Work
from nearcast.broker.state import BrokerState
from nearcast.broker.timers import Timer

SWEEP_PAUSE_MS: Final = 60_000
"""Between two walks through the retained messages."""


class RetainedExpiry:
    """Deletes expired retained messages: by a walk through all, at most once a minute.

    So an expired message stays for at most a minute and a walk. No message has a timer of its own.
    Complexity: O(1) for each message with an expiry; O(places) for a walk, in slices.
    """

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._timer: Timer | None = None
        self._due_ms = 0
        state.retained.on_expiry = self.expect

    def expect(self, expires_at_ms: int) -> None:
        """Plan a walk for the time when a message has expired, unless one comes earlier."""
        state = self._state
        due_ms = max(expires_at_ms, state.now_ms + SWEEP_PAUSE_MS)
        if self._timer is None or due_ms < self._due_ms:
            state.timers.cancel(self._timer)
            self._due_ms = due_ms
            self._timer = state.timers.at(due_ms, self._begin, None)

    def _begin(self, _subject: None) -> None:
        self._timer = None
        self._state.slices.begin(self._walk())

    def _walk(self) -> Work:
        state, next_ms = self._state, 0
        for message in state.retained.all():
            at_ms = message.expires_at_ms
            if 0 < at_ms <= state.now_ms:
                forget_retained(state, message.topic_text())
            elif at_ms and (not next_ms or at_ms < next_ms):
                next_ms = at_ms
            yield
        if next_ms:
            self.expect(next_ms)
