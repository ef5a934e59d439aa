"""File systems as the session knows them: Spark's credentials for Arrow, Hadoop for the rest.

Arrow opens local disks and object stores, on the driver and in workers. What only Hadoop knows
(`hdfs`, `viewfs`, a vendor's scheme) the driver opens through Spark's Java; workers cannot, so
Spark itself writes and reads the rows there.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs
from pyspark.sql import SparkSession

from nearcast.eventlog.stores import (
    S3,
    S3_SETTINGS,
    is_url,
    open_store,
    opened_by,
    resolves,
    scheme_of,
    use_settings,
)

_PREFIX = "spark.hadoop."
_CHUNK = 1 << 20


def use_session(spark: SparkSession, *roots: str) -> None:
    """Make this process open `roots` as the session does."""
    urls = [root for root in roots if is_url(root)]
    if any(scheme_of(url) in S3 for url in urls):
        use_settings(store_settings(spark))
    for url in urls:
        if not resolves(url) and hasattr(spark, "_jvm"):
            opened_by(scheme_of(url), partial(_by_hadoop, spark))


def store_settings(spark: SparkSession) -> dict[str, str]:
    """Return the session's settings of S3, those of single buckets included."""
    told = {name.removeprefix(_PREFIX): value for name, value in _session_settings(spark).items()}
    found = {name: value for name, value in told.items() if name.startswith("fs.s3a.")}
    if hasattr(spark, "_jsc"):  # core-site.xml
        hadoop = spark._jsc.hadoopConfiguration()
        for name in (f"fs.s3a.{name}" for name in S3_SETTINGS):
            value = hadoop.get(name)
            if value and name not in found and not _is_default(name, value):
                found[name] = str(value)
    return found


def _is_default(name: str, value: str) -> bool:
    """Return whether this is what Hadoop's own defaults say; they are no choice of the user."""
    return name.endswith((".provider", ".enabled", ".access")) and "Anonymous" not in value


def _session_settings(spark: SparkSession) -> dict[str, str]:
    return dict(spark.conf.getAll)


def _by_hadoop(spark: SparkSession, root: str) -> tuple[fs.FileSystem, str]:
    parts = urlsplit(root)
    base = f"{parts.scheme}://{parts.netloc}"
    return fs.PyFileSystem(HadoopFiles(spark, base)), parts.path.rstrip("/") or "/"


def needs_spark(root: str) -> bool:
    """Return whether workers cannot open a path themselves."""
    return is_url(root) and not resolves(root)


def is_folder(root: str) -> bool:
    """Return whether a directory is at a path or URL."""
    store, base = open_store(root)
    return bool(store.get_file_info(base).type == fs.FileType.Directory)


def has_files(root: str, suffix: str) -> bool:
    """Return whether a directory has a file whose name ends in `suffix`."""
    store, base = open_store(root)
    found = store.get_file_info(fs.FileSelector(base, allow_not_found=True))
    return any(one.is_file and one.base_name.endswith(suffix) for one in found)


class HadoopFiles(fs.FileSystemHandler):  # type: ignore[misc]
    """Small files of a Hadoop file system for Arrow: pointers, footers, plans. Driver only."""

    def __init__(self, spark: SparkSession, base: str) -> None:
        self._jvm: Any = spark._jvm
        self._base = base
        self._of = self._path("/").getFileSystem(spark._jsc.hadoopConfiguration())

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self._base}/{path.lstrip('/')}")

    def __eq__(self, other: object) -> bool:
        """Return whether both are the same file system."""
        return isinstance(other, HadoopFiles) and other._base == self._base

    def __ne__(self, other: object) -> bool:
        """Return whether they differ."""
        return not self == other

    __hash__ = None  # type: ignore[assignment]

    def get_type_name(self) -> str:
        """Return a name for messages."""
        return "hadoop"

    def normalize_path(self, path: str) -> str:
        """Return the path as it is."""
        return path

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        """Return what is at each path."""
        return [self._info(path) for path in paths]

    def _info(self, path: str) -> fs.FileInfo:
        where = self._path(path)
        if not self._of.exists(where):
            return fs.FileInfo(path, fs.FileType.NotFound)
        return _info_of(path, self._of.getFileStatus(where))

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        """Return what is in a directory."""
        where = self._path(selector.base_dir)
        if not self._of.exists(where):
            if selector.allow_not_found:
                return []
            raise FileNotFoundError(selector.base_dir)
        base = selector.base_dir.rstrip("/")
        found = []
        for status in self._of.listStatus(where):
            info = _info_of(f"{base}/{status.getPath().getName()}", status)
            found.append(info)
            if selector.recursive and status.isDirectory():
                found += self.get_file_info_selector(fs.FileSelector(info.path, recursive=True))
        return found

    def create_dir(self, path: str, recursive: bool) -> None:  # noqa: ARG002 - Arrow's
        """Create a directory and those above it."""
        self._of.mkdirs(self._path(path))

    def delete_dir(self, path: str) -> None:
        """Remove a directory with all in it."""
        if not self._of.delete(self._path(path), True):
            raise FileNotFoundError(path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        """Remove all in a directory."""
        for info in self.get_file_info_selector(
            fs.FileSelector(path, allow_not_found=missing_dir_ok)
        ):
            self._of.delete(self._path(info.path), True)

    def delete_root_dir_contents(self) -> None:
        """Refuse: no job removes everything."""
        raise NotImplementedError

    def delete_file(self, path: str) -> None:
        """Remove a file."""
        if not self._of.delete(self._path(path), False):
            raise FileNotFoundError(path)

    def move(self, src: str, dest: str) -> None:
        """Rename a file, replacing what is there: atomic where the file system is."""
        files = self._jvm.org.apache.hadoop.fs
        context = files.FileContext.getFileContext(self._of.getUri(), self._of.getConf())
        kind = self._jvm.java.lang.Class.forName("org.apache.hadoop.fs.Options$Rename")
        how = self._jvm.java.lang.reflect.Array.newInstance(kind, 1)
        how[0] = files.Options.Rename.OVERWRITE
        context.rename(self._path(src), self._path(dest), how)

    def copy_file(self, src: str, dest: str) -> None:
        """Copy a small file."""
        self._write(dest, self._read(src))

    def open_input_stream(self, path: str) -> pa.NativeFile:
        """Return the bytes of a file."""
        return pa.BufferReader(self._read(path))

    def open_input_file(self, path: str) -> pa.NativeFile:
        """Return the bytes of a file."""
        return pa.BufferReader(self._read(path))

    def open_output_stream(self, path: str, metadata: object) -> pa.NativeFile:  # noqa: ARG002
        """Return a file that is written when it is closed."""
        return pa.PythonFile(_Collected(partial(self._write, path)), mode="w")

    def open_append_stream(self, path: str, metadata: object) -> pa.NativeFile:
        """Refuse: no job appends."""
        raise NotImplementedError

    def _read(self, path: str) -> bytes:
        where = self._path(path)
        if not self._of.exists(where):
            raise FileNotFoundError(path)
        stream = self._of.open(where)
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def _write(self, path: str, content: bytes) -> None:
        stream = self._of.create(self._path(path), True)
        try:
            for begin in range(0, len(content), _CHUNK):
                stream.write(bytearray(content[begin : begin + _CHUNK]))
        finally:
            stream.close()


def _info_of(path: str, status: Any) -> fs.FileInfo:
    kind = fs.FileType.Directory if status.isDirectory() else fs.FileType.File
    changed = datetime.fromtimestamp(status.getModificationTime() / 1000, UTC)
    return fs.FileInfo(
        path, kind, mtime=changed, size=None if status.isDirectory() else status.getLen()
    )


class _Collected:
    """Keeps what is written, and passes it on when it is closed."""

    closed = False

    def __init__(self, done: Any) -> None:
        self._done = done
        self._content = bytearray()

    def write(self, data: bytes) -> int:
        self._content += data
        return len(data)

    def flush(self) -> None: ...

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._done(bytes(self._content))
