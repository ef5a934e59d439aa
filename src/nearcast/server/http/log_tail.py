"""The last lines of the log, for the page."""

from __future__ import annotations

import logging
from collections import deque
from itertools import islice

import msgspec

KEPT_LINES = 1_000
_LONGEST = 2_000


class LogLine(msgspec.Struct, frozen=True):
    """One line of the log."""

    number: int
    t: int
    level: str
    logger: str
    text: str
    event: str | None = None


class LogTail(logging.Handler):
    """Keeps the last lines of what the broker logs."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[LogLine] = deque(maxlen=KEPT_LINES)
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one line."""
        try:
            self._keep(record)
        except Exception:  # noqa: BLE001 - a line that cannot be written ends nothing
            self.handleError(record)

    def _keep(self, record: logging.LogRecord) -> None:
        text = record.getMessage()[:_LONGEST]
        if record.exc_info and record.exc_info[1] is not None:
            text += f" ({type(record.exc_info[1]).__name__}: {record.exc_info[1]})"[:_LONGEST]
        event = getattr(record, "fields", {}).get("event")
        self.count += 1
        level, at_ms = record.levelname.lower(), int(record.created * 1000)
        self._lines.append(LogLine(self.count, at_ms, level, record.name, text, event))

    def since(self, number: int) -> list[LogLine]:
        """Return the lines after a number, the oldest first. O(lines since)."""
        new = min(self.count - number, len(self._lines))
        return list(islice(reversed(self._lines), new))[::-1] if new > 0 else []

    def last(self, count: int) -> list[LogLine]:
        """Return the last lines, the oldest first."""
        return self.since(self.count - count)
