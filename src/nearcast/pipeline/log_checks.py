"""A log is looked at before a job reads it: of this version, and with anything in it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from nearcast.eventlog import LOG_TABLES
from nearcast.eventlog.segments import MAGIC, open_segments
from nearcast.model.errors import FileFormatError, MisuseError
from nearcast.pipeline.event_logs import is_event_log

_TODO = "Read it with the version of Nearcast that wrote it, or begin a new log"


def check_log(path: str) -> None:
    """Raise unless `path` is an event log of this version, with a record in it.

    Looks at the first bytes of open segments and at the footers of finished ones: O(files).
    """
    if not is_event_log(path):
        raise MisuseError(
            "no event log",
            where=path,
            expected="the directory that a broker with [log] events writes to (DATA/eventlog)",
        )
    root = Path(path)
    is_empty = True
    for segment in open_segments(root):
        is_empty &= _checked_segment(segment) <= len(MAGIC)
    for table, schema in LOG_TABLES.items():
        for part in sorted((root / table).glob("part-*.parquet")):
            is_empty &= _checked_part(part, schema) == 0
    if is_empty:
        raise MisuseError(
            "an empty log: no event, no subscription, no position", where=path,
            todo="Let the broker run for a while first. Nothing was changed",
        )  # fmt: skip


def _checked_segment(path: Path) -> int:
    """Return the size of an open segment that has our mark."""
    try:
        with path.open("rb") as file:
            mark = file.read(len(MAGIC))
        size = path.stat().st_size
    except FileNotFoundError:
        return 0  # finished meanwhile
    if not MAGIC.startswith(mark):
        raise FileFormatError(
            f"a log of another version ({mark[:24]!r})",
            where=str(path), expected=repr(MAGIC), todo=_TODO,
        )  # fmt: skip
    return size


def _checked_part(path: Path, schema: pa.Schema) -> int:
    """Return the rows of a finished part that has all our columns."""
    try:
        footer = pq.read_metadata(path)
    except (pa.ArrowInvalid, OSError) as problem:
        raise FileFormatError(
            f"it cannot be read ({problem})", where=str(path), expected="a whole Parquet file"
        ) from None
    missing = [name for name in schema.names if name not in footer.schema.to_arrow_schema().names]
    if missing:
        raise FileFormatError(
            f"a log of another version (no column '{missing[0]}')", where=str(path),
            expected=f"columns {', '.join(schema.names)}", todo=_TODO,
        )  # fmt: skip
    return int(footer.num_rows)
