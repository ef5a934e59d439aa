"""A table is a directory of versions and a pointer to the current one.

    positions/
    ├── CURRENT                   {"format": 1, "version": "000002-9f3a", "rows": 1934692}
    ├── 000001-77c0/part-….parquet
    └── 000002-9f3a/part-….parquet

A writer fills the directory of a new version and then replaces the pointer. Readers follow the
pointer, so an interrupted write leaves the old table as it was. Only the pointer is ever replaced.
This also works on object stores, where putting a small object is atomic and renaming a directory is
not. `nearcast/pipeline/tables/transaction.py` writes several tables together.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from nearcast.model.errors import FileFormatError, MisuseError

FORMAT = 1
POINTER = "CURRENT"


@dataclass(frozen=True, slots=True)
class Version:
    """One complete state of a table."""

    name: str
    rows: int | None = None


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

    def next_version(self, suffix: str) -> str:
        """Return a name for the version after the current one.

        `suffix` distinguishes racing writers.
        """
        version = self.current()
        number = int(version.name.split("-")[0]) + 1 if version else 1
        return f"{number:06d}-{suffix}"

    def publish(self, version: str, rows: int | None = None) -> None:
        """Make a completely written version the current one."""
        pointer = {"format": FORMAT, "version": version, "rows": rows}
        beside = f"{self._base}/.{POINTER}-{version}"
        with self._store.open_output_stream(beside) as stream:
            stream.write(json.dumps(pointer).encode())
        self._store.move(beside, f"{self._base}/{POINTER}")

    def discard(self, version: str) -> None:
        """Remove the files of a version that will not be published."""
        for path in (f"{self._base}/{version}", f"{self._base}/.{POINTER}-{version}"):
            kind = self._store.get_file_info(path).type
            if kind == fs.FileType.Directory:
                self._store.delete_dir(path)
            elif kind == fs.FileType.File:
                self._store.delete_file(path)
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
        if not self._store.get_file_info(fs.FileSelector(self._base, allow_not_found=True)):
            self._store.delete_dir(self._base)

    def drop_old(self, keep: int = 2) -> None:
        """Remove all versions except the current one and those before it, `keep` in all.

        Versions of interrupted writers are removed in the same way once they are old enough.
        """
        version = self.current()
        if version is None:
            return
        older = sorted(name for name in self._versions() if name <= version.name)
        for name in older[:-keep]:
            self._store.delete_dir(f"{self._base}/{name}")

    def _versions(self) -> list[str]:
        selector = fs.FileSelector(self._base, allow_not_found=True)
        return [
            info.base_name
            for info in self._store.get_file_info(selector)
            if info.type == fs.FileType.Directory
        ]


def open_store(root: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a path or URL, and the path in it."""
    if "://" not in root:
        return fs.LocalFileSystem(), root
    # Spark's scheme is s3a, Arrow's is s3.
    store, base = fs.FileSystem.from_uri(root.replace("s3a://", "s3://", 1))
    return store, base.rstrip("/")


def _parse_pointer(content: bytes, where: str) -> Version:
    try:
        pointer = json.loads(content)
        found = pointer["format"]
        version = Version(pointer["version"], pointer.get("rows"))
    except (ValueError, KeyError, TypeError):
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
