"""Reading a broker's event log: finished segments, and those that are still being written.

    eventlog/
    ├── open-<node>-00000007.log               read by a worker from a copy of its own
    └── positions/part-<node>-00000006.parquet

A segment that is finished while we look is in both forms for a moment; the finished one counts.
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
from nearcast.eventlog.segments import finish, open_segments
from nearcast.model import FileFormatError, MisuseError
from nearcast.pipeline.part_scans import Piece, pieces_of, scan
from nearcast.pipeline.tables import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Batches = Iterator[pa.RecordBatch]
SEQUENCE_BITS = 41  # two million million events a node; 22 bits tell nodes apart


def is_event_log(path: str) -> bool:
    """Tell whether a directory is an event log."""
    root = Path(path)
    if "://" in path or not root.is_dir():
        return False
    return bool(open_segments(root)) or any(_parts(root, table) for table in LOG_TABLES)


def read_log(spark: SparkSession, path: str, table: str) -> DataFrame:
    """Return all rows of one of the log's tables; the schema is that of LOG_TABLES."""
    schema = spark_schema(LOG_TABLES[table])
    parts, waiting = _found(path, table)
    frames = [spark.read.schema(schema).parquet(*parts)] if parts else []
    if waiting:
        frames.append(_segments(spark, waiting).mapInArrow(_rows_of(table), schema))
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
    """Return what `make` makes of one of the log's tables; workers read the files themselves.

    `make` sees the rows of one task at a time. Columns that are `coded` may come as dictionaries.
    """
    parts, waiting = _found(path, table)
    pieces = _pieces(parts)
    frames = [scan(spark, pieces, columns, make, schema, coded=coded)] if pieces else []
    if waiting:
        rows = _rows_of(table)
        frames.append(_segments(spark, waiting).mapInArrow(lambda paths: make(rows(paths)), schema))
    return reduce(_one_after_other, frames) if frames else spark.createDataFrame([], schema)


def _found(path: str, table: str) -> tuple[list[str], list[str]]:
    """Return a table's finished files, and the segments that are still to be finished."""
    root = Path(path).absolute()
    opened = open_segments(root)  # first: what is finished after this is found as a part
    parts = _parts(root, table)
    waiting = [str(one) for one in opened if _part_of(one, table) not in parts]
    return [str(part) for part in parts], waiting


def _segments(spark: SparkSession, waiting: list[str]) -> DataFrame:
    paths = spark.createDataFrame([(path,) for path in waiting], "path string")
    return paths.repartition(len(waiting))


def _pieces(parts: list[str]) -> list[Piece]:
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
    """Return a number for each node that wrote to a log: the same one in every run.

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
    """Return the nodes that wrote to a log."""
    return sorted({_node_of(file) for file in [*open_segments(Path(path)), *log_parts(path)]})


def log_parts(path: str) -> list[Path]:
    """Return the finished files of a log, of all tables."""
    return [part for table in LOG_TABLES for part in _parts(Path(path), table)]


def _parts(root: Path, table: str) -> list[Path]:
    return sorted((root / table).glob("part-*.parquet"))


def _part_of(segment: Path, table: str) -> Path:
    return segment.parent / table / f"part-{segment.stem.removeprefix('open-')}.parquet"


def _node_of(file: Path) -> str:
    return file.stem.partition("-")[2].rpartition("-")[0]


def _rows_of(table: str) -> Callable[[Batches], Batches]:
    def rows(batches: Batches) -> Batches:
        for batch in batches:
            for path in batch.column("path").to_pylist():
                yield from _segment_rows(Path(path), table)

    return rows


def _segment_rows(segment: Path, table: str) -> Batches:
    """Finish a copy of an open segment; if it was finished meanwhile, read what became of it."""
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
        error.where = str(segment)  # not the copy, which nobody knows
        raise


def _in_microseconds(table: pa.Table) -> pa.Table:
    """Give instants the only unit that Spark takes back."""
    fields = [
        field.with_type(pa.timestamp("us", tz="UTC"))
        if pa.types.is_timestamp(field.type)
        else field
        for field in table.schema
    ]
    return table.cast(pa.schema(fields))
