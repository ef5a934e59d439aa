"""What topic groups learned from new subscribers, kept in the data directory across restarts.

Written every ten minutes while there is something new, and at the end. A file that cannot be read
is set aside with a line in the log; learning then begins anew.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from nearcast.model.errors import FileFormatError

if TYPE_CHECKING:
    from nearcast.broker.retained.deferred import DeferredRetained

log = logging.getLogger("nearcast.server")

FILE_NAME = "retained-experience.json"
SAVE_MS = 600_000


class ExperienceFile:
    """Reads the experience at the start, and writes it from time to time."""

    def __init__(self, path: Path, holding: DeferredRetained) -> None:
        self._path = path
        self._holding = holding
        self._saved = 0  # experiences that the file has
        self._saved_ms: int | None = None

    def load(self) -> None:
        """Read the file, if there is one."""
        try:
            count = self._holding.restore_experience(
                self._path.read_text(encoding="utf-8"), str(self._path)
            )
        except FileNotFoundError:
            return
        except (FileFormatError, UnicodeDecodeError, OSError) as problem:
            aside = self._path.with_name(self._path.name + ".refused")
            log.warning("experience is learned anew, the file is now %s: %s", aside.name, problem)
            try:
                self._path.replace(aside)
            except OSError as trouble:
                log.warning("%s could not be set aside: %s", self._path, trouble)
            return
        log.info("experience of %d topic groups read from %s", count, self._path)

    def save_if_due(self, now_ms: int) -> None:
        """Write the file if there is new experience and it is ten minutes old."""
        if self._saved_ms is None or now_ms < self._saved_ms:
            self._saved_ms = now_ms  # the first call, or the clock was set back
        if now_ms >= self._saved_ms + SAVE_MS:
            self._saved_ms = now_ms
            self.save()

    def save(self) -> None:
        """Write the file if there is new experience; a reader never sees half a file."""
        taken = self._holding.groups.taken
        if taken == self._saved:
            return
        unfinished = self._path.with_name(self._path.name + ".unfinished")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            unfinished.write_text(self._holding.experience_text(), encoding="utf-8")
            unfinished.replace(self._path)
        except OSError as problem:
            log.warning("experience could not be written to %s: %s", self._path, problem)
            return
        self._saved = taken
