"""Work in slices: long work is interrupted when its time is spent, and continues later.

The broker has no clock for this. Its server says when a slice is spent (`Slices.is_spent`) and
calls `Broker.serve_backlog` until the backlog is empty; without a server all work is done at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nearcast.broker.session.connection import Connection

Work = Iterator[None]
"""Work as a generator that yields wherever it may be interrupted."""


def never() -> bool:
    """Return False: the slice is never spent."""
    return False


class Slices:
    """The backlog, oldest first: connections with unprocessed bytes, and unfinished work."""

    def __init__(self) -> None:
        self.is_spent: Callable[[], bool] = never
        self.backlog: deque[Connection | Work] = deque()

    def run(self, work: Work) -> bool:
        """Continue some work until the slice is spent; return whether the work is done."""
        is_spent = self.is_spent
        for _ in work:  # noqa: SIM110 - `all` costs more, and messages come through here
            if is_spent():
                return False
        return True

    def begin(self, work: Work) -> None:
        """Do some work until the slice is spent, and queue the rest in the backlog."""
        if not self.run(work):
            self.backlog.append(work)
