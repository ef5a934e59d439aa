"""Lets Python workers write Parquet files themselves.

Sending millions of rows from a worker back to Java to be written there costs more than matching
them. A worker writes one file and returns its name. A file counts once the driver has its name;
files of tasks that failed or ran twice are strays, which the driver removes before it moves the
table's pointer.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq

from nearcast.eventlog.tables import open_store

Batches = Iterable[pa.RecordBatch]
Labelled = Iterator[tuple[int, str, pa.RecordBatch]]
"""Batches, each with the number of its table and the label that its rows are counted under."""
WRITTEN = "file string, rows bigint"
WRITTEN_APART = "place int, label string, file string, rows bigint"
_GROUP_ROWS = 1_000_000


def writing_parts(
    path: str, schema: pa.Schema, make: Callable[[Batches], Batches]
) -> Callable[[Batches], Batches]:
    """Return a function for `mapInArrow` that writes the batches of `make` to one file per task."""

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
    """Return a function for `mapInArrow` that writes one file per table and task.

    A job that sorts its rows into several tables so reads its input once, in one Spark job.
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
    """Yield batches joined until each has `rows` rows or more.

    Kernels are faster on large batches.
    """
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
    """A Parquet file that is created with its first row and written in large row groups.

    The directory must exist: a late task must not recreate the directory of a discarded version.
    """

    def __init__(self, path: str, schema: pa.Schema) -> None:
        self.name = f"part-{uuid.uuid4().hex}.parquet"
        self.rows = 0
        self._path, self._schema = path, schema
        self._waiting: list[pa.RecordBatch] = []
        self._writer: pq.ParquetWriter | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        """Append the rows of a batch."""
        if len(batch):
            self._waiting.append(batch)
        if sum(map(len, self._waiting)) >= _GROUP_ROWS:
            self._flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Write buffered rows and close the file; if anything failed, remove it."""
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
        """Remove the file: its name is not returned, and the disk may be full."""
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
