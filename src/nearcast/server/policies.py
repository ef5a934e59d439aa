"""The policy file of a running broker: `policies.json` in the data directory.

Without it the policy that comes with Nearcast decides. A file that cannot be read, or is not right,
is refused as a whole and told of once; what was loaded before stays.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from nearcast.model.errors import NearcastError

if TYPE_CHECKING:
    from nearcast.retained import Policies

log = logging.getLogger("nearcast.server")

FILE_NAME = "policies.json"

_Stamp = tuple[int, int, int]


class PolicyFile:
    """Reads a policy file when it is another one than before."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: _Stamp | None = None

    def take_changed(self) -> Policies | None:
        """Return the policies to decide by from now on; None if nothing has changed."""
        stamp = self._look()
        if stamp == self._stamp:
            return None
        before, self._stamp = self._stamp, stamp
        try:
            return self._read(gone=stamp is None and before is not None)
        except (NearcastError, OSError) as problem:
            log.error("the policy file was refused, what was loaded before stays: %s", problem)
            return None

    def _look(self) -> _Stamp | None:
        """Return what tells one version of the file from another; None where there is none."""
        try:
            found = self._path.stat()
        except OSError:
            return None
        return (found.st_mtime_ns, found.st_size, found.st_ino)

    def _read(self, *, gone: bool) -> Policies:
        from nearcast.retained import Policies, read_policies, shipped_policy

        if gone:
            log.info("the policy file is gone; the policy that comes with Nearcast decides")
            return Policies(general=shipped_policy())
        policies = read_policies(self._path)
        general = "none" if policies.general is None else "one"
        log.info(
            "policies read from %s: %d topics, general: %s",
            self._path,
            len(policies.topics),
            general,
        )
        return policies
