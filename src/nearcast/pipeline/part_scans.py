"""Workers that read Parquet files themselves.

Where a job does nothing in Java but hand rows to Python, Java need not read them: decoding,
turning rows into columns again and sending them through a pipe cost ten times what counting does.
A task gets the names of a file and of some of its row groups, and reads the columns it needs.

A DataFrame that is a table as it was stored (`note_files`) is read in this way; any other goes
through Spark. Both give the same rows, cut into batches in other places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import pyarrow as pa
import pyarrow.parquet as pq

from nearcast.eventlog.tables import open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Batches = Iterator[pa.RecordBatch]
_PIECE_ROWS = 500_000  # of a task at least, where a file has so many
_BATCH_ROWS = 65_536

_files_of: WeakKeyDictionary[DataFrame, tuple[str, ...]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Piece:
    """Some row groups of a file, the work of one task."""

    file: str
    groups: tuple[int, ...]


def note_files(frame: DataFrame, files: Sequence[str]) -> DataFrame:
    """Note that a frame has all rows of these files and no others; return it.

    Frames that are made of it (`where`, `select`, …) are others, of which nothing is noted.
    """
    _files_of[frame] = tuple(files)
    return frame


def map_rows(
    frame: DataFrame,
    columns: Sequence[str],
    make: Callable[[Batches], Batches],
    schema: str,
) -> DataFrame:
    """Return what `make` makes of some columns of a frame, task by task."""
    files = _files_of.get(frame)
    pieces = None if files is None else _pieces(files)
    if not pieces:
        return frame.select(*columns).mapInArrow(make, schema)
    return scan(frame.sparkSession, pieces, columns, make, schema)


def scan(
    spark: SparkSession,
    pieces: Sequence[Piece],
    columns: Sequence[str],
    make: Callable[[Batches], Batches],
    schema: str,
    *,
    coded: Sequence[str] = (),
) -> DataFrame:
    """Return what `make` makes of the columns of some pieces, a task for each.

    Columns that are `coded` come as dictionaries: texts that repeat are not made again and again.
    """
    names, codes = list(columns), list(coded)

    def work(numbers: Batches) -> Batches:
        for batch in numbers:
            for number in batch.column("id").to_pylist():
                yield from make(_rows(pieces[number], names, codes))

    return spark.range(0, len(pieces), 1, max(1, len(pieces))).mapInArrow(work, schema)


def pieces_of(files: Sequence[str]) -> list[Piece]:
    """Cut files into pieces by their footers: O(files). A file that is damaged is an ArrowError."""
    return [piece for file in files for piece in _cut(file)]


def _pieces(files: Sequence[str]) -> list[Piece] | None:
    try:
        return pieces_of(files)
    except (pa.ArrowException, OSError):
        return None  # Spark will say what is wrong


def _cut(file: str) -> Iterator[Piece]:
    store, path = open_store(file)
    footer = pq.read_metadata(path, filesystem=store)
    groups: list[int] = []
    rows = 0
    for group in range(footer.num_row_groups):
        groups.append(group)
        rows += footer.row_group(group).num_rows
        if rows >= _PIECE_ROWS:
            yield Piece(file, tuple(groups))
            groups, rows = [], 0
    if rows:
        yield Piece(file, tuple(groups))


def _rows(piece: Piece, columns: list[str], coded: list[str]) -> Batches:
    store, path = open_store(piece.file)
    with pq.ParquetFile(path, filesystem=store, read_dictionary=coded) as file:
        yield from file.iter_batches(
            _BATCH_ROWS, row_groups=list(piece.groups), columns=columns, use_threads=False
        )
