"""Workers that write Parquet files themselves.

Rows that a worker makes in great number need not go back to Java one by one to be written there:
that costs more than matching does. A worker writes a file of its own and returns its name. Files
count once the job has their names; those of tasks that failed or ran twice are strays, which the
job removes before it moves the table's pointer.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq

from nearcast.eventlog.tables import open_store

Batches = Iterator[pa.RecordBatch]
Labelled = Iterator[tuple[int, str, pa.RecordBatch]]
"""Rows with the number of the table that they belong to, and what they are counted under."""
WRITTEN = "file string, rows bigint"
WRITTEN_APART = "place int, label string, file string, rows bigint"
_GROUP_ROWS = 1_000_000


def writing_parts(
    path: str, schema: pa.Schema, make: Callable[[Batches], Batches]
) -> Callable[[Batches], Batches]:
    """Return a function for `mapInArrow` that writes what `make` makes, one file a task."""

    def write(batches: Batches) -> Batches:
        with PartFile(path, schema) as part:
            for batch in make(batches):
                part.add(batch)
        if part.rows:
            yield pa.RecordBatch.from_pydict({"file": [part.name], "rows": [part.rows]})

    return write


def writing_apart(
    places: Sequence[tuple[str, pa.Schema]], make: Callable[[Batches], Labelled]
) -> Callable[[Batches], Batches]:
    """Return a function for `mapInArrow` that writes rows of several tables, a file each a task.

    A job that sorts its rows into tables reads its input once, and has no job for each table.
    """

    def write(batches: Batches) -> Batches:
        counts: Counter[tuple[int, str]] = Counter()
        with ExitStack() as opened:
            parts = [opened.enter_context(PartFile(path, schema)) for path, schema in places]
            for place, label, batch in make(batches):
                parts[place].add(batch)
                counts[place, label] += len(batch)
        told = [(place, label, parts[place].name, n) for (place, label), n in counts.items() if n]
        names = [column.split()[0] for column in WRITTEN_APART.split(", ")]
        if told:
            columns = dict(zip(names, map(list, zip(*told, strict=True)), strict=True))
            columns["place"] = pa.array(columns["place"], pa.int32())
            yield pa.RecordBatch.from_pydict(columns)

    return write


def gathered(batches: Batches, rows: int) -> Batches:
    """Join batches until they have so many rows; kernels like many events at once."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(map(len, waiting)) >= rows:
            yield _joined(waiting)
            waiting = []
    if waiting:
        yield _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.concat_batches(batches)


class PartFile:
    """A Parquet file that comes into being with its first row; rows are written in large groups.

    The directory must be there: a worker that is late must not make one anew that was given up.
    """

    def __init__(self, path: str, schema: pa.Schema) -> None:
        self.name = f"part-{uuid.uuid4().hex}.parquet"
        self.rows = 0
        self._path, self._schema = path, schema
        self._waiting: list[pa.RecordBatch] = []
        self._writer: pq.ParquetWriter | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows."""
        if len(batch):
            self._waiting.append(batch)
        if sum(map(len, self._waiting)) >= _GROUP_ROWS:
            self._flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Write what waits; the file is whole after this, or gone if anything failed."""
        if kind is not None:
            self._drop()
            return
        try:
            if self._waiting:
                self._flush()
            if self._writer is not None:
                self._writer.close()
        except BaseException:
            self._drop()
            raise

    def _drop(self) -> None:
        """Remove the file: nobody will ask for it, and the disk may be full."""
        if self._writer is not None:
            with suppress(OSError, ValueError):
                self._writer.close()
            store, base = open_store(self._path)
            with suppress(OSError):
                store.delete_file(f"{base}/{self.name}")

    def _flush(self) -> None:
        if self._writer is None:
            store, base = open_store(self._path)
            self._writer = pq.ParquetWriter(
                f"{base}/{self.name}", self._schema, filesystem=store, compression="snappy"
            )
        table = pa.Table.from_batches(self._waiting)
        self._writer.write_table(table)
        self._waiting.clear()
        self.rows += table.num_rows
