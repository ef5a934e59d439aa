"""Entries of the member list, signed where nodes have keys: no stranger enters or replaces a node.

A signed entry is the entry's JSON object with two more fields at its end, `signed_ms` and
`signature`. The signature is of the object without them and of the instant, so that an old entry
cannot be written again.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import NamedTuple

from nearcast.model.wording import shown
from nearcast.server.cluster.cluster_keys import FRESH_MS, ClusterKeys, Signer

log = logging.getLogger("nearcast.network")

_TAIL = re.compile(rb',"signed_ms":([0-9]{1,16}),"signature":"([A-Za-z0-9+/=]{88})"}\Z')
_MOST_TOLD = 1_000  # refusals that are logged once each; a stranger may write any names


class WrittenEntry(NamedTuple):
    """A value of the list: the entry's JSON object, when it was signed, and the signature."""

    body: bytes
    signed_ms: int = 0
    signature: str = ""


def split_entry(data: bytes) -> WrittenEntry:
    """Return the parts of a value, which need not be signed."""
    found = _TAIL.search(data)
    if found is None:
        return WrittenEntry(data)
    return WrittenEntry(data[: found.start()] + b"}", int(found[1]), found[2].decode())


class SignedEntries:
    """Signs this node's entries, and judges those of others. Without keys all are believed.

    An entry counts if the node that it names has signed it, at most a minute ago, and not before
    the last one of that node.
    """

    def __init__(self, keys: ClusterKeys | None, now_ms: Callable[[], int]) -> None:
        self.keys = keys
        self._now_ms = now_ms
        self._last_ms: dict[str, int] = {}  # when the last entry of each node was signed
        self._told: set[tuple[str, str]] = set()

    def seal(self, body: bytes) -> bytes:
        """Return an entry as it is written."""
        keys, now_ms = self.keys, self._now_ms()
        if keys is None:
            return body
        signature = keys.sign("entry", str(now_ms), body.decode())
        return body[:-1] + b',"signed_ms":%d,"signature":"%s"}' % (now_ms, signature.encode())

    def believes(self, name: str, entry: WrittenEntry) -> bool:
        """Return whether the node of this name has written an entry; log one that it has not."""
        why = self._objection(name, entry)
        if why:
            if (name, why) not in self._told and len(self._told) < _MOST_TOLD:
                self._told.add((name, why))
                log.warning("node %s is refused: %s", shown(name)[1:-1], why)
        elif self.keys is not None:
            self._last_ms[name] = entry.signed_ms
        return not why

    def _objection(self, name: str, entry: WrittenEntry) -> str:
        keys, signer = self.keys, Signer("node", name)
        if keys is None:
            return ""
        if signer not in keys.public:
            return "its key is not known here"
        parts = ("entry", str(entry.signed_ms), entry.body.decode(errors="replace"))
        if not keys.is_signed(signer, entry.signature, *parts):
            return "its key has not signed its entry"
        if abs(self._now_ms() - entry.signed_ms) > FRESH_MS:
            return f"its entry was signed more than {FRESH_MS // 1000} s ago, or its clock is wrong"
        if entry.signed_ms < self._last_ms.get(name, 0):
            return "its entry is older than its last one"
        return ""
