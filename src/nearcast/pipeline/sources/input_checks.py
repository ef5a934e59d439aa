"""Checks of a job's input that need no Spark, which takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

import pyarrow as pa
import pyarrow.parquet as pq

from nearcast.eventlog import VersionedTable
from nearcast.eventlog.log_files import is_event_log
from nearcast.eventlog.stores import is_url
from nearcast.model.errors import MisuseError
from nearcast.pipeline.tables.open_formats import format_at

FILE_SUFFIXES = {
    ".csv", ".tsv", ".txt", ".json", ".jsonl", ".ndjson", ".parquet", ".geoparquet", ".gz", ".toml",
}  # fmt: skip
_SEPARATORS = {".csv": ",", ".tsv": "\t"}


def check_source(path: str, columns: Mapping[str, str]) -> None:
    """Raise MisuseError if nothing is at `path`, or a file lacks a requested column.

    Checks the columns of a single CSV or Parquet file only; for all other input Spark reports them.
    """
    check_there(path)
    names = _column_names(Path(path))
    if names is not None and "geometry" not in names:
        check_columns(path, names, columns)


def check_there(path: str) -> None:
    """Raise MisuseError unless something exists at `path`; URLs and globs are not checked."""
    if is_url(path) or "*" in path or Path(path).exists() or may_be_named(path):
        return
    raise MisuseError("there is no such file", where=path)


def check_table(root: str) -> None:
    """Raise MisuseError unless a job has written a table at `root`.

    URLs and names of a catalog are not checked.
    """
    if not is_url(root) and format_at(root) is None and not may_be_named(root):
        VersionedTable(root).current_path()


def may_be_named(root: str) -> bool:
    """Return whether `root` may be a table in a catalog, which only Spark knows: `lake.city`."""
    head = root.split("/", maxsplit=1)[0]
    parts = head.split(".")
    is_file = PurePosixPath(root).suffix.lower() in FILE_SUFFIXES
    return len(parts) > 1 and not is_file and all(part.isidentifier() for part in parts) and not Path(head).exists()


def check_positions(paths: Iterable[str]) -> None:
    """Raise MisuseError unless each path is an event log, or a file or table of positions."""
    for path in paths:
        check_there(path)
        if Path(path).is_dir() and not (is_event_log(path) or _has_rows(Path(path))):
            raise MisuseError(
                "no event log and no table",
                where=path,
                expected="the directory that a broker with [log] events writes (DATA/eventlog), "
                "or a table of positions",
            )


def check_columns(path: str, names: Iterable[str], columns: Mapping[str, str]) -> None:
    """Raise MisuseError if a requested column is not in `names`; case is ignored."""
    known = list(names)
    there = {name.lower() for name in known}
    missing = [source for source in columns.values() if source.lower() not in there]
    if missing:
        raise MisuseError(
            f"no column '{missing[0]}'",
            where=path,
            expected=f"one of its columns: {', '.join(known)}",
            todo=f"Name its columns: --columns {','.join(f'{c}=NAME' for c in columns)}",
        )


def _has_rows(path: Path) -> bool:
    return format_at(str(path)) is not None or any(path.glob("*.parquet"))


def _column_names(path: Path) -> list[str] | None:
    """Return the columns of a CSV or Parquet file; None where Spark has to check them."""
    kind = PurePosixPath(path).suffix.lower()
    if not path.is_file():
        return None
    if kind in _SEPARATORS:
        with path.open(encoding="utf-8", errors="replace") as file:
            return [name.strip().strip('"') for name in file.readline().split(_SEPARATORS[kind])]
    if kind in {".parquet", ".geoparquet"}:
        try:
            return list(pq.read_schema(path).names)
        except (pa.ArrowInvalid, OSError):
            return None
    return None
