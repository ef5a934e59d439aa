"""Shared memory in which each worker of a broker writes its figures, and reads those of all.

A slot is written by one process and read by all, without locks: a number is odd while the slot is
written, and a reader that finds another number behind the content than before it reads again.
"""

from __future__ import annotations

import mmap
from struct import Struct
from zlib import crc32

_SLOT = 1 << 18
_HEAD = Struct("<QII")  # number, size, check
_ATTEMPTS = 100


class Board:
    """One slot of at most 256 kB for each worker; made before the workers are forked."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._memory = mmap.mmap(-1, count * _SLOT)

    def write(self, place: int, data: bytes) -> None:
        """Replace the content of a slot; what is too long is not written."""
        if len(data) > _SLOT - _HEAD.size:
            return
        start = place * _SLOT
        number, size, check = _HEAD.unpack_from(self._memory, start)
        number |= 1  # of a process that was killed while it wrote, too
        _HEAD.pack_into(self._memory, start, number, size, check)
        begin = start + _HEAD.size
        self._memory[begin : begin + len(data)] = data
        _HEAD.pack_into(self._memory, start, number + 1, len(data), crc32(data))

    def read(self, place: int) -> bytes:
        """Return the content of a slot; b"" while it is being written, or never was."""
        start = place * _SLOT
        begin = start + _HEAD.size
        for _ in range(_ATTEMPTS):
            before = _HEAD.unpack_from(self._memory, start)
            data = self._memory[begin : begin + min(before[1], _SLOT - _HEAD.size)]
            is_whole = not before[0] & 1 and crc32(data) == before[2]
            if is_whole and _HEAD.unpack_from(self._memory, start) == before:
                return data
        return b""
