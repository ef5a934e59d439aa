"""A table is a directory of versions and a pointer to the current one.

    positions/
    ├── CURRENT                   {"format": 1, "version": "000002-9f3a", "rows": 1934692,
    │                              "before": ["000001-77c0"]}
    ├── 000001-77c0/part-….parquet
    └── 000002-9f3a/part-….parquet

A writer fills the directory of a new version and then replaces the pointer. Readers follow the
pointer, so an interrupted write leaves the old table as it was. Only the pointer is ever replaced.
This also works on object stores, where putting a small object is atomic and renaming a directory is
not.

A directory is a version only if the pointer names it, as current or as one before; everything else
is a draft, whatever its name. A draft has a file `.draft-VERSION` beside it that says who writes it
(`draft_owners.py`). `drop_old` removes drafts whose writers have ended.

Writers of one table replace the pointer one after the other (`pointer_lock.py`): each sees the
pointer that it replaces, and keeps it as the version before. `publish(…, after=…)` is refused if
another writer was faster. `nearcast/pipeline/tables/transaction.py` writes several tables together.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from nearcast.eventlog.draft_owners import DRAFT, is_abandoned, mark_draft
from nearcast.eventlog.pointer_lock import locked
from nearcast.eventlog.stores import open_store
from nearcast.model.errors import FileFormatError, KeyInUseError, MisuseError

FORMAT = 1
POINTER = "CURRENT"
KEPT = 2  # versions: the current one and the one before
_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Version:
    """One complete state of a table, and the names of those before it that are kept."""

    name: str
    rows: int | None = None
    before: tuple[str, ...] = ()

    @property
    def kept(self) -> tuple[str, ...]:
        """The names of all directories that are versions, the newest first."""
        return (self.name, *self.before)


class VersionedTable:
    """The table at `root`: a local path or the URL of an object store."""

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/")
        self._store, self._base = open_store(self.root)

    def current(self) -> Version | None:
        """Return the version that the pointer names; None before the first."""
        path = f"{self._base}/{POINTER}"
        if self._store.get_file_info(path).type != fs.FileType.File:
            return None
        with self._store.open_input_stream(path) as stream:
            return _parse_pointer(stream.read(), where=f"{self.root}/{POINTER}")

    def current_path(self) -> str:
        """Return the directory of the current version; raise MisuseError if there is none."""
        version = self.current()
        if version is None:
            raise MisuseError(
                "there is no finished table here",
                where=self.root,
                expected=f"a directory with a {POINTER} file",
                todo="Run the job that writes it, or give another --input",
            )
        return self.path_of(version.name)

    def path_of(self, version: str) -> str:
        """Return the directory of a version, which need not exist yet."""
        return f"{self.root}/{version}"

    def begin(self, suffix: str) -> str:
        """Begin a draft of the version after the current one; return its name.

        `suffix` distinguishes racing writers. The mark is written first: a directory without one
        that is no version belongs to nobody.
        """
        version = self.current()
        number = int(version.name.split("-")[0]) + 1 if version else 1
        name = f"{number:06d}-{suffix}"
        self._mark(name)
        return name

    def _mark(self, name: str) -> None:
        for attempt in range(_ATTEMPTS):
            self._store.create_dir(self._base, recursive=True)
            try:
                return mark_draft(self._store, f"{self._base}/{DRAFT}{name}")
            except FileNotFoundError:  # another writer has discarded the first version of the table
                if attempt == _ATTEMPTS - 1:
                    raise
        return None

    def publish(
        self, version: str, rows: int | None = None, *, after: str | None = None
    ) -> Version | None:
        """Make a completely written version the current one; return the one that it replaces.

        With `after`, raise KeyInUseError and change nothing unless that version is still current
        (an empty text: unless there is none).
        """
        with locked(self._store, self._base):
            last = self.current()
            found = "" if last is None else last.name
            if after is not None and found != after:
                raise KeyInUseError(
                    f"version {found or 'none'}",
                    where=self.root,
                    expected=f"version {after or 'none'}, which this one was made from",
                    todo="Another job has written the table in the meantime: run this one again",
                )
            before = () if last is None else tuple(n for n in last.kept if n != version)
            self._replace_pointer(Version(version, rows, before[: KEPT - 1]))
        self._delete_file(f"{self._base}/{DRAFT}{version}")
        return last

    def _replace_pointer(self, version: Version) -> None:
        pointer = {"format": FORMAT, "version": version.name, "rows": version.rows}
        pointer["before"] = list(version.before)
        beside = f"{self._base}/.{POINTER}-{version.name}"
        with self._store.open_output_stream(beside) as stream:
            stream.write(json.dumps(pointer).encode())
        self._store.move(beside, f"{self._base}/{POINTER}")

    def discard(self, version: str) -> None:
        """Remove the files of a version that will not be published."""
        with suppress(FileNotFoundError):
            self._store.delete_dir(f"{self._base}/{version}")
        for name in (f".{POINTER}-{version}", f"{DRAFT}{version}"):
            self._delete_file(f"{self._base}/{name}")
        self._drop_empty_root()

    def keep_only(self, version: str, names: set[str], schema: pa.Schema) -> None:
        """Remove all files of a version except these; if there are none, write an empty one."""
        base = f"{self._base}/{version}"
        for info in self._store.get_file_info(fs.FileSelector(base, allow_not_found=True)):
            if info.type == fs.FileType.File and info.base_name not in names:
                self._store.delete_file(info.path)
        if not names:
            self._store.create_dir(base, recursive=True)
            path = f"{base}/part-empty.parquet"
            pq.write_table(schema.empty_table(), path, filesystem=self._store)

    def _drop_empty_root(self) -> None:
        if isinstance(self._store, fs.LocalFileSystem):
            with suppress(OSError):  # not empty, or another writer has removed it
                Path(self._base).rmdir()
        elif not self._store.get_file_info(fs.FileSelector(self._base, allow_not_found=True)):
            with suppress(OSError):
                self._store.delete_dir(self._base)

    def drop_old(self, now: datetime | None = None) -> list[str]:
        """Remove versions that are no longer kept, and drafts whose writers have ended.

        The time is needed only to judge drafts of other machines.

        Returns what was removed. The directory is listed before the pointer is read: whatever
        becomes a version in between was a marked draft in the listing.
        """
        found = self._store.get_file_info(fs.FileSelector(self._base, allow_not_found=True))
        version = self.current()
        kept = set() if version is None else set(version.kept)
        marks = {one.base_name: one for one in found if one.base_name.startswith(DRAFT)}
        dead = {
            name.removeprefix(DRAFT)
            for name, info in marks.items()
            if is_abandoned(self._store, info, now)
        }
        alive = {name.removeprefix(DRAFT) for name in marks} - dead
        strays = {
            one.base_name
            for one in found
            if one.type == fs.FileType.Directory and _is_version_name(one.base_name)
        }
        gone = sorted(((strays | dead) - kept) - alive)
        for name in gone:
            with suppress(FileNotFoundError):
                self._store.delete_dir(f"{self._base}/{name}")
        for name in dead:
            self._delete_file(f"{self._base}/.{POINTER}-{name}")
            self._delete_file(f"{self._base}/{DRAFT}{name}")
        return gone

    def _delete_file(self, path: str) -> None:
        with suppress(FileNotFoundError):
            if self._store.get_file_info(path).type == fs.FileType.File:
                self._store.delete_file(path)


def _is_version_name(name: str) -> bool:
    """Return whether a directory may be a version; others in a table's folder are not ours."""
    number, dash, _ = name.partition("-")
    return bool(dash) and number.isdecimal() and len(number) >= 6


def _parse_pointer(content: bytes, where: str) -> Version:
    try:
        pointer = json.loads(content)
        found = pointer["format"]
        before = tuple(pointer.get("before", ()))
        version = Version(pointer["version"], pointer.get("rows"), before)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise FileFormatError(
            "the pointer is damaged", where=where, todo="Run the job again"
        ) from None
    if found != FORMAT:
        raise FileFormatError(
            f"format {found}",
            where=where,
            expected=f"format {FORMAT}",
            todo="Read it with the Nearcast version that wrote it",
        )
    return version
