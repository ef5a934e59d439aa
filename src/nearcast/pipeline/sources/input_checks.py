"""Checks of a job's input that need no Spark, which takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from glob import glob
from pathlib import Path, PurePosixPath

import pyarrow as pa
import pyarrow.parquet as pq

from nearcast.eventlog import VersionedTable
from nearcast.eventlog.log_files import is_event_log
from nearcast.eventlog.stores import is_url, open_store
from nearcast.model.errors import FileFormatError, MisuseError, NearcastError
from nearcast.pipeline.tables.open_formats import format_at

FILE_SUFFIXES = {
    ".csv", ".tsv", ".txt", ".json", ".jsonl", ".ndjson", ".parquet", ".geoparquet", ".gz", ".toml",
}  # fmt: skip
_OF_TEXT = {".csv", ".tsv", ".txt"}
_SEPARATORS = ",;\t|"
_MOST_LOOKED_AT = 500  # of the parts of a folder: their headers are read before Spark starts


def check_source(path: str, columns: Mapping[str, str]) -> None:
    """Raise MisuseError if nothing is at `path`, or a file lacks a requested column.

    Checks the columns of a single CSV or Parquet file only; for all other input Spark reports them.
    """
    check_there(path)
    check_parts(path)
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
    is_name = len(parts) > 1 and all(part.isidentifier() for part in parts)
    return is_name and not is_file and not Path(head).exists()


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


def check_parts(path: str) -> None:
    """Raise an error for parts of a local folder or pattern that are damaged or do not fit.

    Spark would find that after minutes, or not at all: it reads CSV by the first file's header.
    """
    parts = _parts_of(path)
    step = max(1, len(parts) // _MOST_LOOKED_AT)
    first: tuple[Path, dict[str, str]] | None = None
    for part in parts[::step]:
        found = _columns_of(part)
        if found is None:
            continue
        if first is None:
            first = part, found
        elif list(found.items()) != list(first[1].items()):
            raise _drift(first[0], first[1], part, found)


def _parts_of(path: str) -> list[Path]:
    """Return the files of a folder of Parquet, or of a pattern; empty files are left out."""
    if is_url(path) or format_at(path) is not None:
        return []
    if "*" in path:
        found = sorted(Path(name) for name in glob(path))  # noqa: PTH207 - a whole pattern
    elif Path(path).is_dir():
        found = sorted(Path(path).glob("*.parquet"))
    else:
        return []
    return [part for part in found if part.is_file() and part.stat().st_size]


def _columns_of(part: Path) -> dict[str, str] | None:
    """Return the columns of a part with their types; raise FileFormatError if it is damaged."""
    kind = part.suffix.lower()
    if kind in _OF_TEXT:
        return dict.fromkeys(_header(part), "text")
    if kind not in {".parquet", ".geoparquet"}:
        return None
    try:
        return {field.name: str(field.type) for field in pq.read_schema(part)}
    except (pa.ArrowInvalid, OSError) as problem:
        raise FileFormatError(
            f"it cannot be read ({str(problem).splitlines()[0]})",
            where=str(part),
            expected="a whole Parquet file",
            todo="Write it again, or move it away",
        ) from None


def _drift(one: Path, has: dict[str, str], other: Path, found: dict[str, str]) -> MisuseError:
    differ = sorted(name for name in {*has, *found} if has.get(name) != found.get(name))
    told = (
        ", ".join(
            f"{name} ({found.get(name, 'not there')}, elsewhere {has.get(name, 'not there')})"
            for name in differ[:3]
        )
        or "the order of columns"
    )
    return MisuseError(
        f"columns that differ from part to part: {told}",
        where=str(other),
        expected=f"the columns of {one.name}",
        todo="Read the parts in runs of their own, or make their columns the same",
    )


def separator_of(path: str) -> str:
    """Return what separates the columns of a CSV file: the most frequent sign of its first line."""
    if path.lower().endswith(".tsv"):
        return "\t"
    try:
        return _separator_in(_first_line(path))
    except (OSError, NearcastError, pa.ArrowException):
        return ","


def _separator_in(line: str) -> str:
    """Return the separator of a header.

    >>> _separator_in("user;t;lon;lat")
    ';'
    """
    return max(_SEPARATORS, key=line.count) if any(map(line.count, _SEPARATORS)) else ","


def _first_line(path: str) -> str:
    if "*" in path:
        path = min(glob(path), default=path)  # noqa: PTH207 - a whole pattern
    store, base = open_store(path)
    with store.open_input_stream(base, compression=None) as stream:
        return bytes(stream.read(65_536)).decode("utf-8", "replace").split("\n", 1)[0]


def _header(path: Path) -> list[str]:
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        line = file.readline()
    separator = "\t" if path.suffix.lower() == ".tsv" else _separator_in(line)
    return [name.strip().strip('"') for name in line.split(separator)]


def _has_rows(path: Path) -> bool:
    return format_at(str(path)) is not None or any(path.glob("*.parquet"))


def _column_names(path: Path) -> list[str] | None:
    """Return the columns of a CSV or Parquet file; None where Spark has to check them."""
    kind = PurePosixPath(path).suffix.lower()
    if not path.is_file():
        return None
    if kind in _OF_TEXT:
        return _header(path)
    if kind in {".parquet", ".geoparquet"}:
        try:
            return list(pq.read_schema(path).names)
        except (pa.ArrowInvalid, OSError):
            return None
    return None
