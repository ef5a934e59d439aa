"""The policies of a running broker: `policies.json` in its data directory, or the network's.

A node's own file has precedence, then the policies shared in its network, then the policy shipped
with Nearcast. An unreadable or invalid file is refused as a whole and logged once; the policies
loaded before stay in force.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from nearcast.model.errors import NearcastError
from nearcast.server.learned.file_stamp import FileStamp, file_stamp

if TYPE_CHECKING:
    from nearcast.retained import Policies

log = logging.getLogger("nearcast.server")

FILE_NAME = "policies.json"


class PolicyFile:
    """Reads a policy file when it has changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: FileStamp | None = None
        self._shared: Policies | None = None

    def take_changed(self) -> Policies | None:
        """Return the policies in force from now on; None if nothing has changed."""
        stamp = file_stamp(self._path)
        if stamp == self._stamp:
            return None
        before, self._stamp = self._stamp, stamp
        try:
            return self._read(gone=stamp is None and before is not None)
        except (NearcastError, OSError) as problem:
            log.error("the policy file was refused, what was loaded before stays: %s", problem)
            return None

    def take_shared(self, data: bytes) -> Policies | None:
        """Keep the network's policies; return them if they are in force from now on, else None."""
        from nearcast.retained import policies_from_text

        try:
            self._shared = policies_from_text(data.decode(), "the network")
        except (NearcastError, UnicodeDecodeError) as problem:
            log.error("the network's policies were refused, the old ones stay: %s", problem)
            return None
        if self._stamp is not None:
            log.info("the network shares policies; this node's own file decides (%s)", self._path)
            return None
        log.info("policies of the network are used: %s", _summary(self._shared))
        return self._shared

    def _read(self, *, gone: bool) -> Policies:
        from nearcast.retained import Policies, read_policies, shipped_policy

        if gone and self._shared is not None:
            log.info("the policy file is gone; the network's policies decide")
            return self._shared
        if gone:
            log.info("the policy file is gone; the policy that comes with Nearcast decides")
            return Policies(general=shipped_policy())
        policies = read_policies(self._path)
        log.info("policies read from %s: %s", self._path, _summary(policies))
        return policies


def _summary(policies: Policies) -> str:
    general = "none" if policies.general is None else "one"
    return f"{len(policies.topics)} topics, general: {general}"
