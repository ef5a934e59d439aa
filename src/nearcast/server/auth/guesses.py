"""Wrong passwords: whoever guesses has to wait, and nobody else.

A user and an address count together, so that a stranger's guesses do not lock the user out
elsewhere. An address that guesses at many users counts as well, four times as generously.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

_MOST_KEPT = 20_000
_FORGOTTEN_MS = 3_600_000  # without a further guess
_OF_ADDRESS = 4
Key = tuple[str, str | None]  # address and user; None counts an address whatever the user


@dataclass(slots=True)
class _Row:
    count: int = 0
    until_ms: int = 0  # nothing is checked before
    last_ms: int = 0


class GuessThrottle:
    """Counts wrong passwords. The first `free` cost nothing; then the wait is 1 s and doubles.

    Complexity: O(1) per call; at most `_MOST_KEPT` rows, the oldest are forgotten first.
    """

    def __init__(self, free: int, longest_ms: int) -> None:
        self.free, self.longest_ms = free, longest_ms
        self._rows: OrderedDict[Key, _Row] = OrderedDict()

    def waits(self, address: str, user: str, now_ms: int) -> bool:
        """Return whether a login is refused without a look at its password."""
        rows = (self._rows.get((address, user)), self._rows.get((address, None)))
        return any(row is not None and row.until_ms > now_ms for row in rows)

    def failed(self, address: str, user: str, now_ms: int) -> None:
        """Count a wrong password."""
        if not self.free:
            return
        self._count((address, user), self.free, now_ms)
        self._count((address, None), self.free * _OF_ADDRESS, now_ms)

    def succeeded(self, address: str, user: str) -> None:
        """Forget the guesses at a user from an address: it was the user."""
        self._rows.pop((address, user), None)

    def _count(self, key: Key, free: int, now_ms: int) -> None:
        row = self._rows.get(key)
        if row is None or now_ms - row.last_ms > _FORGOTTEN_MS:
            row = self._rows[key] = _Row()
        self._rows.move_to_end(key)
        row.count += 1
        row.last_ms = now_ms
        beyond = row.count - free
        if beyond >= 0:
            row.until_ms = now_ms + min(self.longest_ms, 1_000 << min(beyond, 30))
        while len(self._rows) > _MOST_KEPT:
            self._rows.popitem(last=False)
