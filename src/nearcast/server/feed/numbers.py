"""Numbers of the messages that a node puts into the feed; a retransmission keeps its number.

The file has an epoch, and for every message of QoS 1 and 2 its packet identifier, its number and a
digest. It is written before the message is sent, and not synced: it survives the process, not a
power failure. A message that the node's session sends again keeps its number, and so its identity.
"""

from __future__ import annotations

import hashlib
import secrets
from pathlib import Path
from struct import Struct

from nearcast.mqtt import Publish

_ENTRY = Struct("<HQ16s")
_EPOCH_BYTES = 16
_MOST_BYTES = 4 << 20

Assigned = tuple[int, bytes]


class FeedNumbers:
    """Assigns a number to each message; without a path only for the life of the process.

    A retransmission is recognised by its DUP flag, packet identifier and content. Packet
    identifiers repeat after 65,535, so two messages of equal content and identifier are far apart.

    Complexity: O(payload) per message; memory O(65,535).
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[int, Assigned] = {}  # (number, digest) by packet identifier
        # random; identifies the file, or this process without one
        self.epoch = secrets.token_hex(_EPOCH_BYTES // 2)
        self._size = 0
        if path is not None:
            self._load(path)
        self.next = 1 + max((number for number, _ in self._known.values()), default=0)
        self._file = None if path is None else path.open("ab", buffering=0)
        if self._file is not None and not self._size:
            self._write(self.epoch.encode())

    def assign(self, message: Publish) -> int:
        """Return the number of a message; 0 at QoS 0."""
        if not message.qos:
            return 0
        digest = _digest(message)
        known = self._known.get(message.packet_id)
        if message.duplicate and known is not None and known[1] == digest:
            return known[0]
        number, self.next = self.next, self.next + 1
        self._known[message.packet_id] = (number, digest)
        self._write(_ENTRY.pack(message.packet_id, number, digest))
        if self._size > _MOST_BYTES:
            self._rewrite()
        return number

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _write(self, data: bytes) -> None:
        if self._file is not None:
            self._file.write(data)
            self._size += len(data)

    def _load(self, path: Path) -> None:
        """Read the file; a partial entry at its end was never used."""
        data = path.read_bytes() if path.exists() else b""
        whole = (len(data) - _EPOCH_BYTES) // _ENTRY.size * _ENTRY.size
        if len(data) < _EPOCH_BYTES or not data[:_EPOCH_BYTES].isalnum():
            path.unlink(missing_ok=True)
            return
        self.epoch = data[:_EPOCH_BYTES].decode()
        body = data[_EPOCH_BYTES : _EPOCH_BYTES + whole]
        for packet_id, number, digest in _ENTRY.iter_unpack(body):
            self._known[packet_id] = (number, digest)
        self._size = _EPOCH_BYTES + whole
        with path.open("r+b") as file:
            file.truncate(self._size)

    def _rewrite(self) -> None:
        """Rewrite the file without entries whose packet identifiers were used again."""
        assert self._path is not None
        assert self._file is not None
        draft = self._path.with_suffix(".new")
        entries = [_ENTRY.pack(key, *one) for key, one in self._known.items()]
        draft.write_bytes(self.epoch.encode() + b"".join(entries))
        self._file.close()
        draft.replace(self._path)
        self._file = self._path.open("ab", buffering=0)
        self._size = _EPOCH_BYTES + _ENTRY.size * len(entries)


def _digest(message: Publish) -> bytes:
    text = repr((message.topic, message.properties.user_properties)).encode()
    return hashlib.blake2b(text + b"\0" + message.payload, digest_size=16).digest()
