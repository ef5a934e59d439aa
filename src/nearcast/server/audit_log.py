"""The audit log: who logged in, who was refused, what rules decided, what operators did.

One JSON object a line. A thread writes it, so that a slow disk delays nobody. The file is rotated
by size and by age; closed files carry the time at which they were closed.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from nearcast.config import AuditSection
from nearcast.model.errors import EnvironmentProblem

log = logging.getLogger("nearcast.server")

_MOST_WAITING = 100_000  # lines; a disk that hangs for longer costs lines, not the broker
_CLIENTS = "nearcast.clients"  # its events come unfiltered, from the observer


class AuditLog:
    """Writes events to a file. `record` never blocks and never raises.

    Lines that could not be written are counted in `lost`, and logged once until writing works
    again.
    """

    def __init__(
        self,
        path: Path,
        *,
        most_bytes: int,
        most_age_s: float,
        keep: int,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._most_bytes, self._most_age_s, self._keep = most_bytes, most_age_s, keep
        self._now_s = now_s
        self._lines: queue.Queue[str | None] = queue.Queue(_MOST_WAITING)
        self._is_told = False
        self.lost = 0
        self._began_s = 0.0
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._file = self._open()
        except OSError as problem:
            raise EnvironmentProblem(
                f"it cannot be written ({problem.strerror})", where=f"[audit] file {path}"
            ) from None
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
        self._thread.start()

    def record(self, event: str, fields: dict[str, object]) -> None:
        """Write an event with its fields."""
        instant = datetime.fromtimestamp(self._now_s(), UTC).isoformat(timespec="milliseconds")
        entry = {"time": instant.replace("+00:00", "Z"), "event": event, **fields}
        try:
            self._lines.put_nowait(json.dumps(entry, ensure_ascii=True, default=str) + "\n")
        except queue.Full:
            self._fail("the disk is too slow")

    def close(self) -> None:
        """Write what is left, and close the file."""
        self._lines.put(None)
        self._thread.join(10)

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self._write(line)
                self._is_told = False
            except OSError as problem:
                self._fail(str(problem))
        os.close(self._file)

    def _open(self) -> int:
        """Open the file to append to; one that is old enough is rotated at the next line."""
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        found = os.fstat(descriptor)
        self._size = found.st_size
        self._began_s = found.st_mtime if self._size else self._now_s()
        return descriptor

    def _write(self, line: str) -> None:
        data = line.encode()
        is_old = self._now_s() - self._began_s >= self._most_age_s
        if self._size and (is_old or self._size + len(data) > self._most_bytes):
            self._rotate()
        os.write(self._file, data)
        self._size += len(data)

    def _rotate(self) -> None:
        """Close the file under the name of this instant, and remove the oldest ones."""
        instant = datetime.fromtimestamp(self._now_s(), UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        self._path.rename(self._path.with_name(f"{self._path.name}.{instant}"))
        os.close(self._file)
        self._file = self._open()
        closed = sorted(self._path.parent.glob(f"{self._path.name}.*Z"))
        for one in closed[: max(0, len(closed) - self._keep)]:
            one.unlink(missing_ok=True)

    def _fail(self, why: str) -> None:
        self.lost += 1
        if not self._is_told:
            self._is_told = True
            log.error("lines of the audit log are lost: %s", why)


class AuditHandler(logging.Handler):
    """Copies lines of the broker's log that have an `event` to the audit log.

    Those about clients are left out: they come from `ClientLog`, without its limits of lines.
    """

    def __init__(self, audit: AuditLog) -> None:
        super().__init__(logging.INFO)
        self._audit = audit

    def is_of(self, audit: AuditLog) -> bool:
        """Return whether it copies to this audit log."""
        return audit is self._audit

    def emit(self, record: logging.LogRecord) -> None:
        """Copy a line."""
        fields = dict(getattr(record, "fields", {}))
        event = fields.pop("event", None)
        if event is not None and record.name != _CLIENTS:
            self._audit.record(str(event), {**fields, "message": record.getMessage()})


def open_audit(section: AuditSection) -> AuditLog | None:
    """Return the audit log of a configuration, which the broker's log is copied to, or None."""
    if section.file is None:
        return None
    audit = AuditLog(
        section.file, most_bytes=section.size, most_age_s=section.age, keep=section.keep
    )
    logger = logging.getLogger("nearcast")
    level = logging.getLevelName(logger.getEffectiveLevel())
    logger.addHandler(AuditHandler(audit))
    set_log_level(level)
    audit.record("started", {})
    return audit


def close_audit(audit: AuditLog | None) -> None:
    """Close an audit log: its last lines are written."""
    if audit is None:
        return
    logger = logging.getLogger("nearcast")
    logger.handlers = [
        one for one in logger.handlers if not (isinstance(one, AuditHandler) and one.is_of(audit))
    ]
    audit.close()


def set_log_level(level: str) -> None:
    """Apply a level to the log on standard error; the audit log gets `info` in any case."""
    logger = logging.getLogger("nearcast")
    number = logging.getLevelNamesMapping()[level.upper()]
    is_audited = any(isinstance(one, AuditHandler) for one in logger.handlers)
    logger.setLevel(min(number, logging.INFO) if is_audited else number)
    for one in logger.handlers:
        if not isinstance(one, AuditHandler):
            one.setLevel(number)
