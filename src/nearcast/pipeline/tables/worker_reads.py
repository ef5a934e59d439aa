"""Lets Python workers read Parquet files themselves.

Where a job only hands rows from Java to Python, Java need not read them: decoding, converting rows
back to columns and sending them through a pipe cost ten times as much as counting them. A task gets
the name of a file and some of its row groups, and reads the columns that it needs.

A DataFrame that is a stored table unchanged (`note_files`) is read in this way; any other goes
through Spark. Both give the same rows, but batches may be cut at other places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from nearcast.eventlog.tables import open_store

Batches = Iterable[pa.RecordBatch]
_PIECE_ROWS = 500_000  # at least, per task, if a file has as many
_BATCH_ROWS = 65_536

_files_of: WeakKeyDictionary[DataFrame, tuple[str, ...]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class RowGroups:
    """Some row groups of a file: the work of one task."""

    file: str
    groups: tuple[int, ...]


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
    """Return `make` applied to the given columns of each piece, one task per piece.

    Columns in `coded` are read as Arrow dictionaries, so that a repeated text is decoded once.
    """
    names, codes = list(columns), list(coded)

    def work(numbers: Batches) -> Batches:
        for batch in numbers:
            for number in batch.column("id").to_pylist():
                yield from make(_rows(pieces[number], names, codes))

    return spark.range(0, len(pieces), 1, max(1, len(pieces))).mapInArrow(work, schema)


def pieces_of(files: Sequence[str]) -> list[RowGroups]:
    """Cut files into pieces by their footers: O(files). A damaged file raises ArrowException."""
    return [piece for file in files for piece in _cut(file)]


def _pieces(files: Sequence[str]) -> list[RowGroups] | None:
    try:
        return pieces_of(files)
    except (pa.ArrowException, OSError):
        return None  # Spark reads it and raises the error


def _cut(file: str) -> Iterator[RowGroups]:
    store, path = open_store(file)
    footer = pq.read_metadata(path, filesystem=store)
    groups: list[int] = []
    rows = 0
    for group in range(footer.num_row_groups):
        groups.append(group)
        rows += footer.row_group(group).num_rows
        if rows >= _PIECE_ROWS:
            yield RowGroups(file, tuple(groups))
            groups, rows = [], 0
    if rows:
        yield RowGroups(file, tuple(groups))


def _rows(piece: RowGroups, columns: list[str], coded: list[str]) -> Batches:
    store, path = open_store(piece.file)
    with pq.ParquetFile(path, filesystem=store, read_dictionary=coded) as file:
        yield from file.iter_batches(
            _BATCH_ROWS, row_groups=list(piece.groups), columns=columns, use_threads=False
        )
