"""Writes DataFrames as versions of tables; the tables of one job become current together.

`nearcast/eventlog/tables.py` has the versions and their pointer; `worker_writes.py` the files that
workers write themselves.
"""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePosixPath

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from nearcast.eventlog import VersionedTable
from nearcast.eventlog.stores import is_url, open_store
from nearcast.pipeline.tables.file_systems import needs_spark, use_session
from nearcast.pipeline.tables.format_commits import FilePlan
from nearcast.pipeline.tables.open_formats import OpenTable, in_catalog, open_table
from nearcast.pipeline.tables.worker_reads import note_files
from nearcast.pipeline.tables.worker_writes import (
    WRITTEN,
    WRITTEN_APART,
    Batches,
    Labelled,
    labelled_rows,
    mixed_schema,
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
    """Return the rows of the current version of the table at `root`, whatever its format."""
    opened = open_table(spark, root)
    if opened is not None:
        return opened.read()
    return read_version(spark, VersionedTable(root).current_path())


def read_version(spark: SparkSession, path: str) -> DataFrame:
    """Return the rows of one version of a table of plain Parquet.

    Jobs may let workers read its files (`worker_reads.py`). The schema is read here from a file's
    footer, because Spark would start a job for that.
    """
    use_session(spark, path)
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
    if needs_spark(path):
        return frame
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
    """A version that is written. One of plain Parquet is current only when it is published."""

    root: str
    version: str
    rows: int
    opened: OpenTable | None = None  # of an open format
    after: str | None = None  # the version that it was made from, if it has rows of that

    def read(self, spark: SparkSession) -> DataFrame:
        """Return its rows."""
        if self.opened is not None:
            return self.opened.read()
        return read_version(spark, VersionedTable(self.root).path_of(self.version))


@dataclass(frozen=True, slots=True)
class _Target:
    """A directory for the files of workers; `finish` takes the names that count, and all rows."""

    folder: str
    schema: pa.Schema
    finish: Callable[[set[str], int], TableDraft]


class TableTransaction:
    """The tables of one job: all become current once all are written, or none does.

    A table of an open format is current as soon as it is written, since only one table can be
    committed at once; if the job fails, it is rolled back.
    """

    def __init__(self) -> None:
        self._begun: list[tuple[VersionedTable, str]] = []  # all versions, for `discard`
        self._committed: list[tuple[OpenTable, str | None, str]] = []  # before, and ours
        self._done: list[TableDraft] = []  # written versions, for `publish`
        self._folders: set[str] = set()  # of files that no format has committed
        self._new_folders: set[Path] = set()  # parents of tables that this transaction creates

    @property
    def written(self) -> tuple[TableDraft, ...]:
        """The versions that were written."""
        return tuple(self._done)

    def write(
        self, frame: DataFrame, root: str, schema: pa.Schema, *, replaces: str | None = None
    ) -> TableDraft:
        """Write `frame` as the next version of the table at `root`.

        With a condition in `replaces`, the rows for which it does not hold are kept.
        """
        root = place_of(frame.sparkSession, root)
        rows = conform(frame, schema)
        opened = open_table(frame.sparkSession, root, to_write=True)
        if opened is not None:
            return self._commit(opened, rows, root, replaces)
        table, version, after = *self._begin(root), None
        if replaces:
            last = table.current()
            after = "" if last is None else last.name
            if last is not None:
                old = read_version(frame.sparkSession, table.path_of(after))
                rows = rows.unionByName(conform(old.where(f"NOT ({replaces})"), schema))
        path = table.path_of(version)
        rows.write.parquet(path)
        return self._wrote(TableDraft(root, version, _rows_in(path), after=after))

    def write_small(
        self, rows: pa.Table, root: str, spark: SparkSession | None = None
    ) -> TableDraft:
        """Write a table that is in the driver's memory, in the session's format if one is given.

        Plain Parquet takes no Spark job.
        """
        root = place_of(spark, root)
        opened = None if spark is None else open_table(spark, root, to_write=True)
        plan = None if opened is None else opened.plan_files(rows.schema)
        if spark is not None and opened is not None and plan is None:
            frame = spark.createDataFrame(rows.to_pylist(), spark_schema(rows.schema))
            return self._commit(opened, frame, root, None)
        if opened is not None and plan is not None:
            target = self._begin_files(opened, plan, root)
        else:
            target = self._begin_version(root, rows.schema)
        store, base = open_store(target.folder)
        pq.write_table(rows.cast(target.schema), f"{base}/part-0.parquet", filesystem=store)
        return target.finish({"part-0.parquet"}, rows.num_rows)

    def write_by_workers(
        self, frame: DataFrame, make: Make, root: str, schema: pa.Schema
    ) -> TableDraft:
        """Write `make` applied to the batches of `frame`; workers write the files themselves.

        Where they cannot (a file system that only Spark opens; see `format_commits.py` for open
        formats), Spark writes.
        """
        root = place_of(frame.sparkSession, root)
        begin = self._by_workers(frame.sparkSession, root, schema)
        if begin is None:
            return self.write(frame.mapInArrow(make, spark_schema(schema)), root, schema)
        target = begin()
        write = writing_parts(target.folder, target.schema, make)
        done = frame.mapInArrow(write, WRITTEN).collect()  # one row per task
        return target.finish({row["file"] for row in done}, sum(row["rows"] for row in done))

    def write_apart(
        self,
        frame: DataFrame,
        make: Callable[[Batches], Labelled],
        tables: Sequence[tuple[str, pa.Schema]],
        *,
        replaces: Mapping[str, str] | None = None,
    ) -> list[dict[str, int]]:
        """Write several tables in one pass over a frame; workers write the files themselves.

        Returns, for each table, the number of rows per label. `replaces` has a condition for tables
        of which other rows are kept.
        """
        spark, kept = frame.sparkSession, replaces or {}
        tables = [(place_of(spark, root), schema) for root, schema in tables]
        kept = {place_of(spark, root): condition for root, condition in kept.items()}
        begins = [self._by_workers(spark, root, schema) for root, schema in tables]
        ready = [begin for begin in begins if begin is not None]
        if kept or len(ready) < len(tables):
            return self._apart_by_spark(frame, make, tables, kept)
        targets = [begin() for begin in ready]
        places = [(target.folder, target.schema) for target in targets]
        done = frame.mapInArrow(writing_apart(places, make), WRITTEN_APART).collect()
        found: list[dict[str, int]] = []
        for place, target in enumerate(targets):
            mine = [row for row in done if row["place"] == place]
            labels: Counter[str] = Counter()
            for row in mine:
                labels[row["label"]] += row["rows"]
            target.finish({row["file"] for row in mine}, labels.total())
            found.append(dict(labels))
        return found

    def _apart_by_spark(
        self,
        frame: DataFrame,
        make: Callable[[Batches], Labelled],
        tables: Sequence[tuple[str, pa.Schema]],
        kept: Mapping[str, str],
    ) -> list[dict[str, int]]:
        """Sort the rows once, keep them on the workers' disks, and let Spark write each table."""
        schemas = [schema for _, schema in tables]
        mixed = frame.mapInArrow(labelled_rows(schemas, make), spark_schema(mixed_schema(schemas)))
        mixed = mixed.persist(StorageLevel.DISK_ONLY)
        try:
            counted = mixed.groupBy("place", "label").count().collect()
            for place, (root, schema) in enumerate(tables):
                mine = mixed.where(F.col("place") == place).select(f"row{place}.*")
                self.write(mine, root, schema, replaces=kept.get(root))
        finally:
            mixed.unpersist()
        return [
            {row["label"]: row["count"] for row in counted if row["place"] == place}
            for place in range(len(tables))
        ]

    def _commit(
        self, opened: OpenTable, frame: DataFrame, root: str, replaces: str | None
    ) -> TableDraft:
        before = opened.version()
        done = opened.write(frame, replaces)
        self._committed.append((opened, before, done.name))
        return self._wrote(TableDraft(root, done.name, done.rows, opened))

    def _wrote(self, draft: TableDraft) -> TableDraft:
        self._done.append(draft)
        return draft

    def _begin(self, root: str) -> tuple[VersionedTable, str]:
        """Begin a version at an absolute path, since workers have other working directories."""
        if not is_url(root):
            self._new_folders |= {one for one in Path(root).parents if not one.exists()}
        table = VersionedTable(root)
        version = table.begin(secrets.token_hex(4))
        self._begun.append((table, version))
        return table, version

    def _by_workers(
        self, spark: SparkSession, root: str, schema: pa.Schema
    ) -> Callable[[], _Target] | None:
        """Return what begins a version that workers write; None where Spark must write it."""
        if needs_spark(root):
            return None
        opened = open_table(spark, root, to_write=True)
        if opened is None:
            return partial(self._begin_version, root, schema)
        plan = opened.plan_files(schema)
        return None if plan is None else partial(self._begin_files, opened, plan, root)

    def _begin_version(self, root: str, schema: pa.Schema) -> _Target:
        """Begin a version of plain Parquet and create its directory, so that workers find it."""
        table, version = self._begin(root)
        folder = table.path_of(version)
        store, base = open_store(folder)
        store.create_dir(base, recursive=True)

        def finish(files: set[str], rows: int) -> TableDraft:
            table.keep_only(version, files, schema)
            return self._wrote(TableDraft(root, version, rows))

        return _Target(folder, schema, finish)

    def _begin_files(self, opened: OpenTable, plan: FilePlan, root: str) -> _Target:
        """Create the directory for files that an open format will commit."""
        store, base = open_store(plan.folder)
        store.create_dir(base, recursive=True)
        self._folders.add(plan.folder)

        def finish(files: set[str], rows: int) -> TableDraft:
            for info in store.get_file_info(fs.FileSelector(base)):
                if info.base_name not in files:  # of a task that failed or ran twice
                    store.delete_file(info.path)
            before = opened.version()
            version = opened.commit_files(plan)
            self._folders.discard(plan.folder)
            self._committed.append((opened, before, version))
            return self._wrote(TableDraft(root, version, rows, opened))

        return _Target(plan.folder, plan.schema, finish)

    def publish(self) -> None:
        """Make all written versions current, then remove old ones and what killed jobs left."""
        drafts = [draft for draft in self._done if draft.opened is None]
        for draft in drafts:
            VersionedTable(draft.root).publish(draft.version, draft.rows, after=draft.after)
        for draft in drafts:
            VersionedTable(draft.root).drop_old(datetime.now(UTC))

    def discard(self) -> None:
        """Remove all versions that were begun and are not current; roll back what is committed."""
        for opened, before, ours in reversed(self._committed):
            with suppress(Exception):  # the first error is the one to tell
                if opened.version() == ours:  # nobody has written since
                    opened.roll_back(before)
        for files in self._folders:
            store, base = open_store(files)
            with suppress(OSError):
                store.delete_dir(base)
        for table, version in self._begun:
            current = table.current()
            if current is None or version not in current.kept:
                table.discard(version)
        for folder in sorted(self._new_folders, reverse=True):  # the innermost first
            with suppress(OSError):  # not empty: another process uses it
                folder.rmdir()


def table_there(spark: SparkSession, root: str) -> str | None:
    """Return the current version of the table at `root`, in the words of its format, or None."""
    root = place_of(spark, root)
    opened = open_table(spark, root)
    if opened is not None:
        return opened.version()
    current = VersionedTable(root).current()
    return None if current is None else current.name


def place_of(spark: SparkSession | None, root: str) -> str:
    """Return a path that means the same in every process; URLs and names stay as they are."""
    if is_url(root) or (spark is not None and in_catalog(spark, root) is not None):
        return root
    return os.path.abspath(root)  # noqa: PTH100 - keeps links


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
