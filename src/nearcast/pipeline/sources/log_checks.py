"""Checks the event logs of all nodes before a job reads them, and reads them as one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from nearcast.eventlog import LOG_TABLES
from nearcast.eventlog.segments import MAGIC, VERSION, VERSION_KEY, open_segments
from nearcast.model.errors import FileFormatError, MisuseError
from nearcast.pipeline.sources.event_logs import is_event_log, read_log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TODO = "Read it with the version of Nearcast that wrote it; what was learned before stays"


def read_logs(spark: SparkSession, paths: Sequence[str], table: str) -> DataFrame:
    """Return the union of one table over several logs, each of other nodes."""
    return reduce(lambda a, b: a.unionAll(b), [read_log(spark, path, table) for path in paths])


def check_logs(paths: Sequence[str]) -> None:
    """Raise unless all paths are event logs of this format version.

    Reads the first bytes of open segments and the footers of finished ones: O(files).
    """
    for path in paths:
        if not is_event_log(path):
            raise MisuseError(
                "no event log",
                where=path,
                expected="the directory that a broker with [log] events writes: DATA/eventlog",
            )
        for segment in open_segments(Path(path)):
            _check_segment(segment)
        for table in LOG_TABLES:
            for part in sorted((Path(path) / table).glob("part-*.parquet")):
                _check_part(part)


def nothing_in(paths: Sequence[str], what: str) -> MisuseError:
    """Return the error for a log that lacks what a job needs."""
    todo = "Let the broker run for a while first; what was learned before stays"
    return MisuseError(f"an empty log: {what}", where=", ".join(paths), todo=todo)


def _check_segment(path: Path) -> None:
    try:
        with path.open("rb") as file:
            mark = file.read(len(MAGIC))
    except FileNotFoundError:
        return  # the node has finished it since it was listed
    if not MAGIC.startswith(mark):
        raise FileFormatError(
            f"a log of another version ({mark!r})", where=str(path),
            expected=repr(MAGIC), todo=_TODO,
        )  # fmt: skip


def _check_part(path: Path) -> None:
    try:
        metadata = pq.read_schema(path).metadata or {}
    except (pa.ArrowInvalid, OSError) as problem:
        raise FileFormatError(
            f"it cannot be read ({problem})", where=str(path), expected="a whole Parquet file"
        ) from None
    found = metadata.get(VERSION_KEY)
    if found != VERSION:
        told = f"version {found.decode()}" if found else "a version that does not say which"
        raise FileFormatError(
            f"a log of {told}", where=str(path),
            expected=f"version {VERSION.decode()}", todo=_TODO,
        )  # fmt: skip
