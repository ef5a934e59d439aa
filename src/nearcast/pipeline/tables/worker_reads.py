"""Lets Python workers read Parquet files themselves.

Where a job only hands rows from Java to Python, Java need not read them: decoding, converting rows
back to columns and sending them through a pipe cost ten times as much as counting them. A task gets
the name of a file and some of its row groups, and reads the columns that it needs.

A DataFrame that is a stored table unchanged (`note_files`), or whose plan is a scan of Parquet
files and nothing else, is read in this way; any other goes through Spark. Both give the same rows,
but batches may be cut at other places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession

from nearcast.eventlog.stores import known_settings, open_store, scheme_of, use_settings
from nearcast.model.errors import NearcastError
from nearcast.pipeline.session import is_connect

Batches = Iterable[pa.RecordBatch]
_PIECE_ROWS = 500_000  # at least, per task, if a file has as many
_LEAST_TASKS = 64  # for many small files
_BATCH_ROWS = 65_536
_MOST_FILES = 1_000  # whose footers the driver reads

_SPARK_NAMES = {
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
}
_SCAN = "org.apache.spark.sql.execution.datasources.LogicalRelation"
_FILES = "org.apache.spark.sql.execution.datasources.HadoopFsRelation"
_PARQUET = "org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat"

_files_of: WeakKeyDictionary[DataFrame, tuple[str, ...]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class RowGroups:
    """Some row groups of a file: at most the work of one task."""

    file: str
    groups: tuple[int, ...]
    rows: int


def note_files(frame: DataFrame, files: Sequence[str]) -> DataFrame:
    """Record that `frame` has exactly the rows of these files; return `frame`.

    DataFrames derived from it (`where`, `select`, …) are other objects, without that record.
    """
    _files_of[frame] = tuple(files)
    return frame


def map_rows(
    frame: DataFrame,
    columns: Sequence[str],
    make: Callable[[Batches], Batches],
    schema: str,
) -> DataFrame:
    """Return `make` applied to some columns of a frame, task by task; its rows have `schema`."""
    files = _files_of.get(frame)
    pieces = None if files is None else _pieces(files)
    if not pieces:
        return frame.select(*columns).mapInArrow(make, schema)
    return scan(frame.sparkSession, pieces, columns, make, schema)


def scan(
    spark: SparkSession,
    pieces: Sequence[RowGroups],
    columns: Sequence[str],
    make: Callable[[Batches], Batches],
    schema: str,
    *,
    coded: Sequence[str] = (),
) -> DataFrame:
    """Return `make` applied to the given columns of the pieces that each task has.

    Columns in `coded` are read as Arrow dictionaries, so that a repeated text is decoded once.
    """
    read = reading(pieces, columns, coded=coded)
    return numbers_of(spark, pieces).mapInArrow(lambda numbers: make(read(numbers)), schema)


def numbers_of(spark: SparkSession, pieces: Sequence[RowGroups]) -> DataFrame:
    """Return the numbers of pieces, shared out among tasks; `reading` makes rows of them.

    Small pieces share a task: a task costs Spark more than reading a small file.
    """
    rows = sum(piece.rows for piece in pieces)
    tasks = min(len(pieces), max(_LEAST_TASKS, rows // _PIECE_ROWS))
    return spark.range(0, len(pieces), 1, max(1, tasks))


def reading(
    pieces: Sequence[RowGroups], columns: Sequence[str], *, coded: Sequence[str] = ()
) -> Callable[[Batches], Batches]:
    """Return a worker function from numbers of pieces to the rows of all of them together."""
    names, codes, settings = list(columns), list(coded), known_settings()

    def read(numbers: Batches) -> Batches:
        use_settings(settings)
        for number in _numbers_in(numbers):
            yield from _rows(pieces[number], names, codes)

    return read


def _numbers_in(batches: Batches) -> Iterator[int]:
    for batch in batches:
        yield from batch.column("id").to_pylist()


def plain_pieces(frame: DataFrame, columns: Sequence[str]) -> list[RowGroups] | None:
    """Return the pieces of Parquet files that have exactly the rows of a frame, if there are any.

    None where Spark must read: it does more than read (a plan with other steps, a cached frame),
    or a file lacks one of the columns or has it with another type than the frame. O(files).
    """
    files = _files_of.get(frame) or _scanned(frame)
    if not files or len(files) > _MOST_FILES:
        return None
    wanted = {name: kind for name, kind in frame.dtypes if name in columns}
    pieces: list[RowGroups] = []
    try:
        for file in files:
            footer = _footer(file)
            schema = footer.schema.to_arrow_schema()
            found = {field.name: _SPARK_NAMES.get(field.type) for field in schema}
            if any(found.get(name) != kind for name, kind in wanted.items()):
                return None
            pieces += _cut(file, footer)
    except (pa.ArrowException, NearcastError, OSError):
        return None  # Spark reads it, or raises the error
    return pieces


def small_table(frame: DataFrame, columns: Sequence[str], most_bytes: int) -> pa.Table | None:
    """Return some columns of a frame that is plain files with few bytes, read here; else None."""
    pieces = plain_pieces(frame, columns)
    if pieces is None:
        return None
    files = {piece.file for piece in pieces}
    size = sum(store.get_file_info(path).size for store, path in map(open_store, files))
    if size > most_bytes:
        return None
    batches = [batch for piece in pieces for batch in _rows(piece, list(columns), [])]
    schema = batches[0].schema if batches else None
    return None if schema is None else pa.Table.from_batches(batches, schema)


def _scanned(frame: DataFrame) -> tuple[str, ...] | None:
    """Return the files of a frame whose whole plan is a scan of Parquet files on a local path.

    Other formats on top of Parquet (Delta) have classes of their own. On Spark Connect the plan is
    at the server: there Spark reads.
    """
    if is_connect(frame.sparkSession) or frame.isStreaming or frame.is_cached:
        return None
    try:
        plan = frame._jdf.queryExecution().analyzed()
        if plan.getClass().getName() != _SCAN:
            return None
        relation = plan.relation()
        if relation.getClass().getName() != _FILES or relation.partitionSchema().nonEmpty():
            return None
        if relation.fileFormat().getClass().getName() != _PARQUET:
            return None
    except (AttributeError, Py4JError):  # another Spark, with other names
        return None
    files = tuple(sorted(frame.inputFiles()))
    return files if all(scheme_of(file) == "file" for file in files) else None


def pieces_of(files: Sequence[str]) -> list[RowGroups]:
    """Cut files into pieces by their footers: O(files). A damaged file raises ArrowException."""
    return [piece for file in files for piece in _cut(file, _footer(file))]


def _pieces(files: Sequence[str]) -> list[RowGroups] | None:
    try:
        return pieces_of(files)
    except (pa.ArrowException, OSError):
        return None  # Spark reads it and raises the error


def _footer(file: str) -> pq.FileMetaData:
    store, path = open_store(file)
    return pq.read_metadata(path, filesystem=store)


def _cut(file: str, footer: pq.FileMetaData) -> Iterator[RowGroups]:
    groups: list[int] = []
    rows = 0
    for group in range(footer.num_row_groups):
        groups.append(group)
        rows += footer.row_group(group).num_rows
        if rows >= _PIECE_ROWS:
            yield RowGroups(file, tuple(groups), rows)
            groups, rows = [], 0
    if rows:
        yield RowGroups(file, tuple(groups), rows)


def _rows(piece: RowGroups, columns: list[str], coded: list[str]) -> Batches:
    store, path = open_store(piece.file)
    with pq.ParquetFile(path, filesystem=store, read_dictionary=coded) as file:
        yield from file.iter_batches(
            _BATCH_ROWS, row_groups=list(piece.groups), columns=columns, use_threads=False
        )
