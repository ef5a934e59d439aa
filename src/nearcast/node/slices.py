"""Work in slices: what takes long stops when its time is spent, and goes on in a later turn.

The node has no clock for this. Its server says when a slice is spent (`Slices.is_spent`) and calls
`Node.serve_backlog` until nothing waits; without a server every piece of work is done at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nearcast.node.connection import Connection

Work = Iterator[None]
"""Work that yields wherever it may be interrupted."""


def never() -> bool:
    """Return False: there is always time."""
    return False


class Slices:
    """Who waits for another slice, the longest first: connections with unread bytes, and work."""

    def __init__(self) -> None:
        self.is_spent: Callable[[], bool] = never
        self.backlog: deque[Connection | Work] = deque()

    def run(self, work: Work) -> bool:
        """Go on with some work until the slice is spent; tell whether the work is done."""
        return all(not self.is_spent() for _ in work)

    def begin(self, work: Work) -> None:
        """Do some work now, as far as the slice goes, and the rest in later turns."""
        if not self.run(work):
            self.backlog.append(work)
