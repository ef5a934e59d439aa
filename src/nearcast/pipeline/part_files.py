"""Workers that write Parquet files themselves.

Rows that a worker makes in great number need not go back to Java one by one to be written there:
that costs more than matching does. A worker writes a file of its own and returns its name. Files
count once the job has their names; those of tasks that failed or ran twice are strays, which the
job removes before it moves the table's pointer.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from nearcast.eventlog.tables import open_store

Batches = Iterator[pa.RecordBatch]
WRITTEN = "file string, rows bigint"
_GROUP_ROWS = 1_000_000


def writing_parts(
    path: str, schema: pa.Schema, make: Callable[[Batches], Batches]
) -> Callable[[Batches], Batches]:
    """Return a function for `mapInArrow` that writes what `make` makes, one file a task."""

    def write(batches: Batches) -> Batches:
        name = f"part-{uuid.uuid4().hex}.parquet"
        rows = _write_file(path, name, schema, make(batches))
        if rows:
            yield pa.RecordBatch.from_pydict({"file": [name], "rows": [rows]})

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


def _write_file(path: str, name: str, schema: pa.Schema, batches: Batches) -> int:
    rows, waiting = 0, []
    store, base = open_store(path)
    writer: pq.ParquetWriter | None = None
    try:
        for batch in batches:
            waiting.append(batch)
            if sum(map(len, waiting)) >= _GROUP_ROWS:
                writer = writer or _opened(store, base, name, schema)
                rows += _flush(writer, waiting)
        if any(map(len, waiting)):
            writer = writer or _opened(store, base, name, schema)
            rows += _flush(writer, waiting)
    finally:
        if writer is not None:
            writer.close()
    return rows


def _opened(store: pa.fs.FileSystem, base: str, name: str, schema: pa.Schema) -> pq.ParquetWriter:
    store.create_dir(base, recursive=True)
    return pq.ParquetWriter(f"{base}/{name}", schema, filesystem=store, compression="snappy")


def _flush(writer: pq.ParquetWriter, waiting: list[pa.RecordBatch]) -> int:
    table = pa.Table.from_batches(waiting)
    writer.write_table(table)
    waiting.clear()
    return int(table.num_rows)
