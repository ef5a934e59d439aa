"""Reads the event log of a broker: finished segments, and those that are still being written.

    eventlog/
    ├── open-<node>-00000007.log               a worker finishes and reads a private copy
    └── positions/part-<node>-00000006.parquet

A segment that is being finished exists in both forms for a moment; then the Parquet file counts.
`nearcast/eventlog/segments.py` defines the formats.
"""

from __future__ import annotations

import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from nearcast.eventlog import LOG_TABLES
from nearcast.eventlog.segments import finish, open_segments, read_segment, table_of
from nearcast.model import FileFormatError, MisuseError
from nearcast.pipeline.tables.transaction import spark_schema
from nearcast.pipeline.tables.worker_reads import RowGroups, pieces_of, scan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Batches = Iterator[pa.RecordBatch]
SEQUENCE_BITS = 41  # 2 · 10¹² events per node; the upper 22 bits are the node's number


def is_event_log(path: str) -> bool:
    """Return whether a directory is an event log."""
    root = Path(path)
    if "://" in path or not root.is_dir():
        return False
    return bool(open_segments(root)) or any(_parts(root, table) for table in LOG_TABLES)


def read_log(spark: SparkSession, path: str, table: str) -> DataFrame:
    """Return all rows of one table of the log; the schema is that in LOG_TABLES."""
    schema = spark_schema(LOG_TABLES[table])
    parts, waiting = _found(path, table)
    frames = [spark.read.schema(schema).parquet(*parts)] if parts else []
    if waiting:
        frames.append(_map_segments(spark, waiting, table, _as_they_are, schema))
    return reduce(_one_after_other, frames) if frames else spark.createDataFrame([], schema)


def map_log(
    spark: SparkSession,
    path: str,
    table: str,
    columns: Sequence[str],
    make: Callable[[Batches], Batches],
    schema: str,
    *,
    coded: Sequence[str] = (),
) -> DataFrame:
    """Return `make` applied to one table of the log; workers read the files themselves.

    `make` sees the rows of one task at a time. Columns in `coded` may come as Arrow dictionaries.
    """
    parts, waiting = _found(path, table)
    pieces = _pieces(parts)
    frames = [scan(spark, pieces, columns, make, schema, coded=coded)] if pieces else []
    if waiting:
        frames.append(_map_segments(spark, waiting, table, make, schema))
    return reduce(_one_after_other, frames) if frames else spark.createDataFrame([], schema)


def _found(path: str, table: str) -> tuple[list[str], list[str]]:
    """Return a table's finished files, and the open segments that have no finished file yet."""
    root = Path(path).absolute()
    opened = open_segments(root)  # before the parts, so that a segment finished now is a part
    parts = _parts(root, table)
    waiting = [str(one) for one in opened if _part_of(one, table) not in parts]
    return [str(part) for part in parts], waiting


def has_rows(paths: Sequence[str], table: str) -> bool:
    """Return whether any of these logs has a row in this table; starts no Spark job.

    Open segments are read until a row is found, finished files are known by their footers.
    """
    found = [_found(path, table) for path in paths]
    if any(_has_row(Path(one), table) for _, waiting in found for one in waiting):
        return True
    return any(_pieces(parts) for parts, _ in found)


def _has_row(segment: Path, table: str) -> bool:
    try:
        return any(table_of(kind) == table for kind, _ in read_segment(segment))
    except FileNotFoundError:  # finished meanwhile
        part = _part_of(segment, table)
        return part.exists() and bool(_pieces([str(part)]))


def _map_segments(
    spark: SparkSession,
    waiting: list[str],
    table: str,
    make: Callable[[Batches], Batches],
    schema: StructType | str,
) -> DataFrame:
    """Return what `make` makes of the rows of open segments: a task for each, no shuffle."""

    def work(numbers: Batches) -> Batches:
        for batch in numbers:
            for number in batch.column("id").to_pylist():
                yield from make(_segment_rows(Path(waiting[number]), table))

    return spark.range(0, len(waiting), 1, len(waiting)).mapInArrow(work, schema)


def _as_they_are(rows: Batches) -> Batches:
    return rows


def _pieces(parts: list[str]) -> list[RowGroups]:
    try:
        return pieces_of(parts)
    except (pa.ArrowException, OSError) as problem:
        raise FileFormatError(
            f"it cannot be read ({problem})", where=", ".join(parts[:3]),
            expected="whole Parquet files",
        ) from None  # fmt: skip


def _one_after_other(one: DataFrame, other: DataFrame) -> DataFrame:
    return one.unionAll(other)


def node_numbers(path: str) -> dict[str, int]:
    """Return a number for each node that wrote to a log; it is the same in every run.

    Raises MisuseError where two names get the same number (one in millions).
    """
    numbers: dict[int, str] = {}
    for node in log_nodes(path):
        number = zlib.crc32(node.encode()) >> 10
        if number in numbers:
            raise MisuseError(
                f"nodes {numbers[number]!r} and {node!r}, whose events would get the same ids",
                where=path,
                todo="Read the logs of the two nodes one by one",
            )
        numbers[number] = node
    return {node: number for number, node in numbers.items()}


def log_nodes(path: str) -> list[str]:
    """Return the names of the nodes that wrote to a log."""
    return sorted({_node_of(file) for file in [*open_segments(Path(path)), *log_parts(path)]})


def log_parts(path: str) -> list[Path]:
    """Return the finished files of all tables of a log."""
    return [part for table in LOG_TABLES for part in _parts(Path(path), table)]


def _parts(root: Path, table: str) -> list[Path]:
    return sorted((root / table).glob("part-*.parquet"))


def _part_of(segment: Path, table: str) -> Path:
    return segment.parent / table / f"part-{segment.stem.removeprefix('open-')}.parquet"


def _node_of(file: Path) -> str:
    return file.stem.partition("-")[2].rpartition("-")[0]


def _segment_rows(segment: Path, table: str) -> Batches:
    """Finish a copy of an open segment and yield its rows.

    If the node finished it first, read that.
    """
    with tempfile.TemporaryDirectory(prefix="nearcast-segment-") as folder:
        copy = Path(folder) / segment.name
        try:
            shutil.copyfile(segment, copy)
        except FileNotFoundError:
            part = _part_of(segment, table)
        else:
            _finish(copy, segment)
            part = _part_of(copy, table)
        if part.exists():
            yield from _in_microseconds(pq.read_table(part)).to_batches()


def _finish(copy: Path, segment: Path) -> None:
    try:
        finish(copy)
    except FileFormatError as error:
        error.where = str(segment)  # the user knows the segment, not the copy
        raise


def _in_microseconds(table: pa.Table) -> pa.Table:
    """Return the table with timestamps in microseconds, the only unit that Spark accepts."""
    fields = [
        field.with_type(pa.timestamp("us", tz="UTC"))
        if pa.types.is_timestamp(field.type)
        else field
        for field in table.schema
    ]
    return table.cast(pa.schema(fields))
