"""Reads the event logs of nodes: finds their segments, checks their version, opens their tables.

    eventlog/
    ├── open-<node>-00000007.log               readers finish and read a private copy
    └── positions/part-<node>-00000006.parquet

A segment that is being finished exists in both forms for a moment; then the Parquet file counts.
`segments.py` defines the formats.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from nearcast.eventlog.schemas import LOG_TABLES
from nearcast.eventlog.segments import MAGIC, VERSION, VERSION_KEY, finish, open_segments
from nearcast.model.errors import FileFormatError, MisuseError

PEER = "$node/"
"""The identifiers of other nodes, as clients and receivers, begin with this."""
_TODO = "Read it with the version of Nearcast that wrote it"


@dataclass(frozen=True, slots=True)
class Segment:
    """A section of one node's log: one Parquet file for each table that has rows."""

    node: str
    number: str
    directory: str
    is_open: bool

    @classmethod
    def of(cls, file: Path) -> Segment:
        """Return the segment of an `open-…` file, or of a table's `part-…` file."""
        kind, _, name = file.stem.partition("-")
        node, _, number = name.rpartition("-")
        is_open = kind == "open"
        return cls(node, number, str(file.parent if is_open else file.parent.parent), is_open)

    @property
    def open_path(self) -> Path:
        """The file that the segment is appended to while it is open."""
        return Path(self.directory) / f"open-{self.node}-{self.number}.log"

    def path(self, table: str) -> Path:
        """Return the path of a table's file; it exists only if the table has rows."""
        return Path(self.directory) / table / f"part-{self.node}-{self.number}.parquet"


def is_event_log(path: str) -> bool:
    """Return whether a directory is an event log."""
    root = Path(path)
    if "://" in path or not root.is_dir():
        return False
    return bool(open_segments(root)) or any(table_parts(root, table) for table in LOG_TABLES)


def table_parts(root: Path, table: str) -> list[Path]:
    """Return the finished files of one table of a log."""
    return sorted((root / table).glob("part-*.parquet"))


def table_segments(root: Path, table: str) -> tuple[list[Path], list[Segment]]:
    """Return a table's finished files, and the open segments that have no finished file yet."""
    opened = [Segment.of(file) for file in open_segments(root)]
    parts = table_parts(root, table)  # listed later, so that a segment finished now is a part
    return parts, [one for one in opened if one.path(table) not in parts]


def segments_of(path: str) -> list[Segment]:
    """Return all segments of one log, by node and number."""
    root = Path(path).absolute()
    opened = open_segments(root)
    parts = [part for table in LOG_TABLES for part in table_parts(root, table)]
    found = {(one.node, one.number): one for one in map(Segment.of, [*opened, *parts])}
    return [found[key] for key in sorted(found)]


def find_segments(paths: Sequence[str]) -> list[Segment]:
    """Return the segments of the logs of all nodes, which `check_logs` accepts."""
    if not paths:
        raise MisuseError("no event log", where="--input", expected="the directory of one, or more")
    check_logs(paths)
    seen: dict[str, str] = {}
    found: list[Segment] = []
    for path in paths:
        segments = segments_of(path)
        for node in sorted({one.node for one in segments}):
            if node in seen:
                raise MisuseError(
                    f"two logs of the node {node!r}",
                    where=f"{seen[node]} and {path}",
                    expected="each node once",
                )
            seen[node] = path
        found += segments
    return sorted(found, key=lambda one: (one.node, one.number))


def check_logs(paths: Sequence[str]) -> None:
    """Raise unless all paths are event logs of this format version.

    Reads the first bytes of open segments and the footers of finished ones: O(files).
    """
    for path in paths:
        if not is_event_log(path):
            raise MisuseError(
                "there is no event log here, or it is empty",
                where=path,
                expected="the directory that a broker with [log] events writes: DATA/eventlog",
            )
        for segment in open_segments(Path(path)):
            _check_open(segment)
        for table in LOG_TABLES:
            for part in table_parts(Path(path), table):
                _check_part(part)


def _check_open(path: Path) -> None:
    try:
        with path.open("rb") as file:
            mark = file.read(len(MAGIC))
    except FileNotFoundError:
        return  # the node has finished it since it was listed
    if not MAGIC.startswith(mark):
        found = f"a log of another version ({mark!r})"
        raise FileFormatError(found, where=str(path), expected=repr(MAGIC), todo=_TODO)


def _check_part(path: Path) -> None:
    try:
        found = (pq.read_schema(path).metadata or {}).get(VERSION_KEY)
    except (pa.ArrowInvalid, OSError) as problem:
        raise FileFormatError(
            f"it cannot be read ({problem})", where=str(path), expected="a complete Parquet file"
        ) from None
    if found != VERSION:
        raise FileFormatError(
            f"a log of version {found.decode()}" if found else "a log of an older version",
            where=str(path),
            expected=f"version {VERSION.decode()}",
            todo=_TODO,
        )


@contextmanager
def finished(segment: Segment) -> Iterator[Segment]:
    """Yield a segment with finished files; an open one is copied and the copy finished."""
    if not segment.is_open:
        yield segment
        return
    with tempfile.TemporaryDirectory(prefix="nearcast-segment-") as folder:
        try:
            copy = Path(shutil.copy(segment.open_path, folder))
        except FileNotFoundError:  # the node has finished it since it was listed
            yield segment
            return
        try:
            finish(copy)
        except FileFormatError as error:
            error.where = str(segment.open_path)  # the user knows the segment, not the copy
            raise
        yield Segment(segment.node, segment.number, folder, is_open=False)


def read_part(segment: Segment, table: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the rows of a table in a segment; texts come as dictionaries, which compare faster."""
    path, schema = segment.path(table), LOG_TABLES[table]
    texts = [one.name for one in schema if pa.types.is_string(one.type)]
    names = list(columns or schema.names)
    if not path.exists():
        return pa.schema([schema.field(name) for name in names]).empty_table()
    return pq.read_table(path, columns=names, read_dictionary=[n for n in texts if n in names])
