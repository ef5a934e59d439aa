"""The clock of a running node: wall-clock time that never runs backwards."""

from __future__ import annotations

from time import monotonic, time


class Clock:
    """Milliseconds since 1970: wall-clock time read once, then advanced by the monotonic clock."""

    __slots__ = ("_offset_s",)

    def __init__(self) -> None:
        self._offset_s = time() - monotonic()

    def now_ms(self) -> int:
        """Return the current time."""
        return int((monotonic() + self._offset_s) * 1000)
