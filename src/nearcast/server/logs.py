"""The log for people, or for machines as one JSON object a line, on the error output."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TextIO


class JsonLines(logging.Formatter):
    """One object a line: time, level, logger, message; a traceback under `error`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        entry = {
            "time": _instant(record).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


class TextLines(logging.Formatter):
    """Time, level and message, for people."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        instant = _instant(record).astimezone().strftime("%Y-%m-%d %H:%M:%S")
        line = f"{instant} {record.levelname.lower():<8} {record.getMessage()}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def set_up_logging(form: str, level: str, stream: TextIO | None = None) -> None:
    """Log everything under `nearcast` in this form (`text`, `json`) from this level on."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    logger = logging.getLogger("nearcast")
    logger.handlers[:] = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False


def _instant(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)
