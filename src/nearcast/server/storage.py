"""The journal on disk: one append-only file, replaced by a snapshot when it has grown.

A file is a magic line and batches: length, CRC-32, records. A batch is written in one call before
the answers of its turn leave, so that a killed process loses no batch that anybody has heard of.
A batch cut short at the end of the file is what such a kill leaves: it is dropped. Damage
anywhere else is an error, because then something that was acknowledged is lost.
"""

from __future__ import annotations

import fcntl
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from struct import Struct

from nearcast.model.errors import EnvironmentProblem, FileFormatError

MAGIC = b"nearcast journal 1\n"
_BATCH = Struct("<II")
_SMALLEST_COMPACTION_BYTES = 64 << 20


class JournalFile:
    """The journal of one data directory, which it locks.

    Complexity: `append` one write; `compact` O(what survives), and the loop waits for it.
    """

    def __init__(self, directory: Path, *, syncs: bool = False) -> None:
        self.directory = directory
        self.syncs = syncs
        self.size = 0
        self._snapshot_size = 0
        self._descriptor = -1
        self._path: Path | None = None
        directory.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise EnvironmentProblem(
                "the data directory is in use by another broker",
                where=str(directory),
                todo="Stop that one, or name another directory with --data.",
            ) from None

    def batches(self) -> Iterator[bytes]:
        """Yield the batches of the newest file, the oldest first."""
        newest = max(self._files(), default=None)
        if newest is None:
            return
        data = newest.read_bytes()
        if not data.startswith(MAGIC):
            raise FileFormatError(
                repr(data[:20]), where=str(newest), expected=repr(MAGIC), todo="Move it away."
            )
        yield from read_batches(data, len(MAGIC), str(newest))

    def compact(self, snapshot: Iterable[bytes]) -> None:
        """Begin a new file with what survives, and remove the older ones."""
        older = sorted(self._files())
        number = int(older[-1].stem.split("-")[1]) + 1 if older else 1
        path = self.directory / f"journal-{number:08d}.log"
        draft = path.with_suffix(".new")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        size = _write_all(descriptor, MAGIC)
        for records in snapshot:
            if records:
                size += _write_all(descriptor, _framed(records))
        if self.syncs:
            os.fsync(descriptor)
        draft.rename(path)
        if self.syncs:
            _sync_directory(self.directory)
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self._path = descriptor, path
        self.size = self._snapshot_size = size
        for one in older:
            one.unlink()

    def append(self, records: bytes) -> None:
        """Write one batch; it survives the process from here on."""
        self.size += _write_all(self._descriptor, _framed(records))

    def sync(self) -> None:
        """Wait until everything appended survives a loss of power."""
        os.fdatasync(self._descriptor)

    @property
    def wants_compaction(self) -> bool:
        """Whether most of the file is likely to be history."""
        return self.size > max(_SMALLEST_COMPACTION_BYTES, 4 * self._snapshot_size)

    def close(self) -> None:
        """Give the directory free."""
        if self._descriptor >= 0:
            if self.syncs:
                self.sync()
            os.close(self._descriptor)
            self._descriptor = -1
        os.close(self._lock)

    def _files(self) -> list[Path]:
        return list(self.directory.glob("journal-????????.log"))


def read_batches(data: bytes, position: int, where: str) -> Iterator[bytes]:
    """Yield the whole batches of a journal's bytes; stop at a last one that was cut short."""
    end = len(data)
    while position + _BATCH.size <= end:
        size, checksum = _BATCH.unpack_from(data, position)
        start = position + _BATCH.size
        if start + size > end:
            return
        records = data[start : start + size]
        if zlib.crc32(records) != checksum:
            if start + size == end:
                return
            raise FileFormatError(
                "a damaged batch",
                where=f"{where}, byte {position}",
                todo="Restore the file from a copy, or move it away and lose what it held.",
            )
        yield records
        position = start + size


def _framed(records: bytes) -> bytes:
    return _BATCH.pack(len(records), zlib.crc32(records)) + records


def _write_all(descriptor: int, data: bytes) -> int:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    return len(data)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
