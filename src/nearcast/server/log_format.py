"""The log on standard error: text for people, or one JSON object per line."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TextIO

_MOST, _WINDOW_S = 10, 10.0
_worker: list[int] = []  # the number of this process among the workers of a broker


def mark_lines(worker: int) -> None:
    """Name the worker in each line that this process logs."""
    _worker[:] = [worker]


class JsonLines(logging.Formatter):
    """One object per line: time, level, logger, message, fields; a traceback under `error`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        entry: dict[str, object] = {
            "time": _instant(record).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry |= {"worker": _worker[0]} if _worker else {}
        entry |= getattr(record, "fields", {})
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


class TextLines(logging.Formatter):
    """Time, level and message, for people."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        instant = _instant(record).astimezone().strftime("%Y-%m-%d %H:%M:%S")
        mark = f"[{_worker[0]}] " if _worker else ""
        line = f"{instant} {record.levelname.lower():<8} {mark}{record.getMessage()}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class RateLimited:
    """A logger that limits lines of the same kind, and reports how many it left out.

    At most `_MOST` lines of one kind (the text before its values are filled in) in `_WINDOW_S`
    seconds. Complexity: O(1) per call; kinds are string literals of the code, so there are few.
    """

    def __init__(self, logger: logging.Logger, now_s: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._now_s = now_s
        self._windows: dict[str, _Window] = {}

    def warning(self, text: str, *values: object, fields: dict[str, object] | None = None) -> None:
        """Log a warning, unless there were too many of its kind in this window."""
        if not self._logger.isEnabledFor(logging.WARNING):
            return
        now_s = self._now_s()
        window = self._windows.get(text)
        if window is None or now_s - window.began_s >= _WINDOW_S:
            left_out = 0 if window is None else window.left_out
            window = self._windows[text] = _Window(now_s)
            if left_out:
                what = text.partition("%")[0].strip(" :'(")
                self._logger.warning("%d more lines like '%s …' were left out", left_out, what)
        if window.lines < _MOST:
            window.lines += 1
            self._logger.warning(text, *values, extra={"fields": fields or {}})
        else:
            window.left_out += 1


@dataclass(slots=True)
class _Window:
    began_s: float
    lines: int = 0
    left_out: int = 0


def set_up_logging(form: str, level: str, stream: TextIO | None = None) -> None:
    """Log everything under `nearcast` in this form (`text`, `json`) from this level up."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    logger = logging.getLogger("nearcast")
    logger.handlers[:] = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False


def _instant(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)
