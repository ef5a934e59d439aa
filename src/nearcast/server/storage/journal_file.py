"""The journal on disk: one append-only file, replaced by a snapshot when it has grown.

A batch is written in one call before its acknowledgements leave, so that a killed process loses no
batch that a client knows of. A truncated batch at the end of the file is left by such a kill: it is
dropped. Anything else that cannot be read is damage: it is reported, the rest is used, and the
damaged file is kept. `journal_format.py` has the byte format, `restore.py` the restore.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from base64 import b64encode
from collections.abc import Iterable, Iterator
from pathlib import Path

from nearcast.broker.persistence.unapplied_records import SetAside
from nearcast.model.errors import EnvironmentProblem
from nearcast.server.storage.journal_format import (
    Damage,
    JournalBatch,
    batch_header,
    file_header,
    new_mark,
    read_journal,
)

_SMALLEST_COMPACTION_BYTES = 64 << 20
_SPARES = 2  # a compaction opens two files beside the one it replaces


class JournalFile:
    """The journal of one data directory, which it locks.

    After `batches` is exhausted, `damages` lists what could not be read. A `compact` that raises
    has changed nothing: the previous file is still in use, and no draft is left.

    Complexity: `append` one write; `compact` O(snapshot), and it blocks the event loop.
    """

    def __init__(self, directory: Path, *, syncs: bool = False) -> None:
        self.directory = directory
        self.syncs = syncs  # durability `power`: fsync
        self.size = 0  # bytes of the current file
        self.damages: list[Damage] = []
        self.path: Path | None = None  # the file that was read, or is written
        self._places: list[JournalBatch] = []  # of the batches read, without their records
        self._snapshot_size = 0
        self._number = 1  # of the next batch
        self._mark = b""  # of the current file
        self._descriptor = -1
        self._spares: list[int] = []  # descriptors reserved for compaction
        with _full_disk_told(directory):
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
        self._take_spares()

    # --- reading ----------------------------------------------------------------------------

    def batches(self) -> Iterator[bytes]:
        """Yield the batches of the newest file that are intact, oldest first."""
        self.path = newest_journal(self.directory)
        if self.path is None:
            return
        for one in read_journal(self.path.read_bytes(), str(self.path)):
            if isinstance(one, Damage):
                self.damages.append(one)
            else:
                self._places.append(JournalBatch(one.number, one.position, b""))
                yield one.records

    def place_of(self, one: SetAside) -> str:
        """Return the file, batch and offset of a record that was set aside."""
        if not one.batch:
            return str(self.path)
        batch = self._places[one.batch - 1]
        return f"{self.path}, batch {batch.number}, byte {batch.position + one.offset:,}"

    def keep_damaged(self) -> Path | None:
        """Keep a copy of the file if it is damaged; return the copy's path, else None.

        A last batch truncated by a crash is no damage.
        """
        if self.path is None or all(one.is_tail for one in self.damages):
            return None
        kept = _free_name(self.path.with_suffix(".damaged"))
        with _full_disk_told(self.directory):
            os.link(self.path, kept)
        return kept

    def write_aside(self, aside: Iterable[SetAside]) -> Path:
        """Write records that could not be applied to a file beside the journal; return its path."""
        assert self.path is not None
        path = _free_name(self.path.with_suffix(".set-aside"))
        lines = [json.dumps(self._as_fields(one), ensure_ascii=False) + "\n" for one in aside]
        with _full_disk_told(self.directory):
            try:
                _write_new(path, "".join(lines).encode(errors="replace"), syncs=self.syncs)
            except OSError:
                path.unlink(missing_ok=True)
                raise
        return path

    def _as_fields(self, one: SetAside) -> dict[str, str]:
        return {
            "place": self.place_of(one),
            "kind": one.kind,
            "about": one.about,
            "reason": one.reason,
            "record": b64encode(one.record).decode(),
        }

    # --- writing ----------------------------------------------------------------------------

    def begin(self, snapshot: Iterable[bytes]) -> None:
        """Start to write, with a snapshot; a full disk is an `EnvironmentProblem`."""
        with _full_disk_told(self.directory):
            self.compact(snapshot)

    def compact(self, snapshot: Iterable[bytes]) -> None:
        """Start a new file with a snapshot, and remove the older files."""
        self._give_spares()
        try:
            older = journal_files(self.directory)
            number = int(older[-1].stem.split("-")[1]) + 1 if older else 1
            path = self.directory / f"journal-{number:08d}.log"
            draft = path.with_suffix(".new")
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                mark = new_mark()
                last, size = _write_snapshot(descriptor, mark, snapshot)
                if self.syncs:
                    os.fsync(descriptor)
                draft.rename(path)
            except BaseException:
                os.close(descriptor)
                draft.unlink(missing_ok=True)
                raise
            before, self._descriptor, self.path = self._descriptor, descriptor, path
            self._mark, self._number = mark, last + 1
            self.size = self._snapshot_size = size
            if self.syncs:
                _sync_directory(self.directory)
            if before >= 0:
                os.close(before)
            for one in older:
                one.unlink()
        finally:
            self._take_spares()

    def append(self, records: bytes) -> None:
        """Write one batch; from here on it survives the process."""
        header = batch_header(self._mark, self._number, records)
        self.size += _write_all(self._descriptor, header + records)
        self._number += 1

    def sync(self) -> None:
        """Block until everything appended survives a power failure."""
        os.fdatasync(self._descriptor)

    @property
    def wants_compaction(self) -> bool:
        """Whether most of the file is likely to be obsolete."""
        return self.size > max(_SMALLEST_COMPACTION_BYTES, 4 * self._snapshot_size)

    def close(self) -> None:
        """Close the file and unlock the directory."""
        if self._descriptor >= 0:
            if self.syncs:
                self.sync()
            os.close(self._descriptor)
            self._descriptor = -1
        self._give_spares()
        os.close(self._lock)

    def _take_spares(self) -> None:
        """Reserve descriptors for the next compaction: clients may use up all others."""
        with contextlib.suppress(OSError):
            while len(self._spares) < _SPARES:
                self._spares.append(os.open(os.devnull, os.O_RDONLY))

    def _give_spares(self) -> None:
        while self._spares:
            os.close(self._spares.pop())


def journal_files(directory: Path) -> list[Path]:
    """Return the journal files of a directory, oldest first."""
    return sorted(directory.glob("journal-????????.log"))


def newest_journal(directory: Path) -> Path | None:
    """Return the current file; older ones remain if a crash prevented their removal."""
    return max(journal_files(directory), default=None)


def _write_snapshot(descriptor: int, mark: bytes, snapshot: Iterable[bytes]) -> tuple[int, int]:
    """Write a whole file; return the number of its last batch and its size."""
    size = _write_all(descriptor, file_header(mark, 0))
    number = 0
    for records in snapshot:
        if records:
            number += 1
            size += _write_all(descriptor, batch_header(mark, number, records) + records)
    header = file_header(mark, size)
    if os.pwrite(descriptor, header, 0) != len(header):
        raise OSError(5, "the header was not written whole")
    return number, size


def _write_new(path: Path, data: bytes, *, syncs: bool) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        _write_all(descriptor, data)
        if syncs:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _free_name(path: Path) -> Path:
    """Return the path, with a number appended if it exists."""
    candidate, number = path, 1
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate


@contextlib.contextmanager
def _full_disk_told(directory: Path) -> Iterator[None]:
    """Translate disk errors into an EnvironmentProblem."""
    try:
        yield
    except OSError as problem:
        raise EnvironmentProblem(
            f"the journal cannot be written ({problem.strerror or problem})",
            where=str(directory),
            todo="Free some space, or allow the broker to write there; the journal is as it was.",
        ) from None


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
