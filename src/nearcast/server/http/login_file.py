"""The file `logins.json` in the data directory: a restart of the broker logs out nobody.

It has a row per login, and no secret: of the cookie its hash, and one of the operator's line. A
login is taken up again while its time lasts and that line is as it was.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from nearcast.server.auth.passwords import write_private

log = logging.getLogger("nearcast.operators")

NAME = "logins.json"
_MOST_BYTES = 1_000_000


class KeptLogin(msgspec.Struct, frozen=True):
    """A login as it is kept; `until` is a Unix time in seconds."""

    cookie: str
    operator: str
    line: str
    until: float


class LoginFile:
    """Reads and replaces the file; without a path, nothing is kept."""

    def __init__(self, path: Path | None, now_s: Callable[[], float] = time.time) -> None:
        self._path, self.now_s = path, now_s

    def read(self) -> list[KeptLogin]:
        """Return the logins that were kept, the oldest first; none of a file that is damaged."""
        path = self._path
        if path is None or not path.exists():
            return []
        try:
            if path.stat().st_size > _MOST_BYTES:
                raise ValueError("it is too large")
            return msgspec.json.decode(path.read_bytes(), type=list[KeptLogin])
        except (OSError, ValueError) as problem:
            log.warning("%s cannot be read (%s): operators have to log in again", path, problem)
            return []

    def write(self, logins: Iterable[KeptLogin]) -> None:
        """Replace the file; where that fails there is none, so that no login comes back."""
        if self._path is None:
            return
        try:
            write_private(self._path, msgspec.json.encode(list(logins)), is_synced=False)
        except OSError as problem:
            log.warning("%s cannot be written (%s): a restart logs out", self._path, problem)
            self._remove(self._path)

    def _remove(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as problem:
            log.warning("%s cannot be removed either (%s): remove it", path, problem)


def hashed(text: str) -> str:
    """Return what is kept of a cookie or of an operator's line."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
