"""The clock of a running node: instants of the calendar that never run backwards."""

from __future__ import annotations

import time


class Clock:
    """Milliseconds since 1970, taken once and then counted on by the monotonic clock."""

    __slots__ = ("_offset_s",)

    def __init__(self) -> None:
        self._offset_s = time.time() - time.monotonic()

    def now_ms(self) -> int:
        """Return the present instant."""
        return int((time.monotonic() + self._offset_s) * 1000)
