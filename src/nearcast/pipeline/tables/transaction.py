"""Writes DataFrames as versions of tables; the tables of one job become current together.

`nearcast/eventlog/tables.py` has the versions and their pointer; `worker_writes.py` the files that
workers write themselves.
"""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from nearcast.eventlog import VersionedTable
from nearcast.eventlog.tables import open_store
from nearcast.pipeline.tables.worker_reads import note_files
from nearcast.pipeline.tables.worker_writes import (
    WRITTEN,
    WRITTEN_APART,
    Batches,
    Labelled,
    writing_apart,
    writing_parts,
)

Make = Callable[[Batches], Batches]


def spark_schema(schema: pa.Schema) -> StructType:
    """Return an Arrow schema as a Spark schema."""
    return from_arrow_schema(schema)


def conform(frame: DataFrame, schema: pa.Schema) -> DataFrame:
    """Return `frame` with the columns of `schema`, in its order and cast to its types."""
    fields = spark_schema(schema).fields
    return frame.select(
        [F.col(field.name).cast(field.dataType).alias(field.name) for field in fields]
    )


def read_table(spark: SparkSession, root: str) -> DataFrame:
    """Return the rows of the current version of the table at `root`."""
    return read_version(spark, VersionedTable(root).current_path())


def read_version(spark: SparkSession, path: str) -> DataFrame:
    """Return the rows of one version of a table.

    Jobs may let workers read its files (`worker_reads.py`). The schema is read here from a file's
    footer, because Spark would start a job for that.
    """
    parts = _parts(path)
    if not parts:
        return spark.read.parquet(path)  # Spark raises the error
    store, _ = open_store(path)
    with store.open_input_file(parts[0]) as file:
        try:
            schema = pq.read_schema(file)
        except pa.ArrowInvalid:
            return spark.read.parquet(path)
    frame = spark.read.schema(spark_schema(schema)).parquet(path)
    return note_files(frame, [f"{path}/{PurePosixPath(part).name}" for part in parts])


def _parts(path: str) -> list[str]:
    """Return the paths of a version's Parquet files."""
    store, base = open_store(path)
    found = store.get_file_info(fs.FileSelector(base, allow_not_found=True))
    return sorted(one.path for one in found if one.base_name.endswith(".parquet"))


def _rows_in(path: str) -> int:
    """Return the number of rows of a version, read from the footers of its files."""
    store, _ = open_store(path)
    return sum(pq.read_metadata(part, filesystem=store).num_rows for part in _parts(path))


@dataclass(frozen=True, slots=True)
class TableDraft:
    """A version that is written and not yet current."""

    table: VersionedTable
    version: str
    rows: int

    @property
    def path(self) -> str:
        """The directory of its files."""
        return self.table.path_of(self.version)


class TableTransaction:
    """The tables of one job: all become current once all are written, or none does."""

    def __init__(self) -> None:
        self._begun: list[tuple[VersionedTable, str]] = []  # all versions, for `discard`
        self._done: list[TableDraft] = []  # written versions, for `publish`
        self._new_folders: set[Path] = set()  # parents of tables that this transaction creates

    def write(self, frame: DataFrame, root: str, schema: pa.Schema) -> TableDraft:
        """Write `frame` as the next version of the table at `root`."""
        table, version = self._begin(root)
        path = table.path_of(version)
        conform(frame, schema).write.parquet(path)
        self._done.append(TableDraft(table, version, _rows_in(path)))
        return self._done[-1]

    def write_small(self, rows: pa.Table, root: str) -> TableDraft:
        """Write a table that is in the driver's memory, without a Spark job."""
        table, version = self._begin(root)
        store, base = open_store(table.path_of(version))
        store.create_dir(base, recursive=True)
        pq.write_table(rows, f"{base}/part-0.parquet", filesystem=store)
        self._done.append(TableDraft(table, version, rows.num_rows))
        return self._done[-1]

    def write_by_workers(
        self, frame: DataFrame, make: Make, root: str, schema: pa.Schema
    ) -> TableDraft:
        """Write `make` applied to the batches of `frame`; workers write the files themselves."""
        table, version = self._begin_for_workers(root)
        write = writing_parts(table.path_of(version), schema, make)
        done = frame.mapInArrow(write, WRITTEN).collect()  # one row per task
        table.keep_only(version, {row["file"] for row in done}, schema)
        self._done.append(TableDraft(table, version, sum(row["rows"] for row in done)))
        return self._done[-1]

    def write_apart(
        self,
        frame: DataFrame,
        make: Callable[[Batches], Labelled],
        tables: Sequence[tuple[str, pa.Schema]],
    ) -> list[dict[str, int]]:
        """Write several tables in one pass over a frame; workers write the files themselves.

        Returns, for each table, the number of rows per label.
        """
        begun = [(*self._begin_for_workers(root), schema) for root, schema in tables]
        places = [(table.path_of(version), schema) for table, version, schema in begun]
        done = frame.mapInArrow(writing_apart(places, make), WRITTEN_APART).collect()
        found: list[dict[str, int]] = []
        for place, (table, version, schema) in enumerate(begun):
            mine = [row for row in done if row["place"] == place]
            table.keep_only(version, {row["file"] for row in mine}, schema)
            labels: Counter[str] = Counter()
            for row in mine:
                labels[row["label"]] += row["rows"]
            self._done.append(TableDraft(table, version, labels.total()))
            found.append(dict(labels))
        return found

    def _begin(self, root: str) -> tuple[VersionedTable, str]:
        """Begin a version at an absolute path, since workers have other working directories."""
        if "://" not in root:
            root = os.path.abspath(root)  # noqa: PTH100 - keeps links
            self._new_folders |= {one for one in Path(root).parents if not one.exists()}
        table = VersionedTable(root)
        version = table.next_version(secrets.token_hex(4))
        self._begun.append((table, version))
        return table, version

    def _begin_for_workers(self, root: str) -> tuple[VersionedTable, str]:
        """Begin a version and create its directory, so that workers find it."""
        table, version = self._begin(root)
        store, base = open_store(table.path_of(version))
        store.create_dir(base, recursive=True)
        return table, version

    def publish(self) -> None:
        """Make all written versions current, then remove old ones."""
        for draft in self._done:
            draft.table.publish(draft.version, draft.rows)
        for draft in self._done:
            draft.table.drop_old()

    def discard(self) -> None:
        """Remove all versions that were begun and are not current."""
        for table, version in self._begun:
            current = table.current()
            if current is None or current.name != version:
                table.discard(version)
        for folder in sorted(self._new_folders, reverse=True):  # the innermost first
            with suppress(OSError):  # not empty: another process uses it
                folder.rmdir()


@contextmanager
def transaction() -> Iterator[TableTransaction]:
    """Yield a transaction; the tables written in the body become current together at its end.

    If the body raises, every table stays as it was and the written files are removed.
    """
    written = TableTransaction()
    try:
        yield written
        written.publish()
    except BaseException:
        with suppress(OSError):
            written.discard()
        raise
