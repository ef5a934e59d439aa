"""DataFrames as versions of a table."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from nearcast.eventlog import VersionedTable
from nearcast.pipeline.part_files import WRITTEN, Batches, writing_parts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Make = Callable[[Batches], Batches]


def spark_schema(schema: pa.Schema) -> StructType:
    """Return the Spark form of a table's schema."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)


def conform(frame: DataFrame, schema: pa.Schema) -> DataFrame:
    """Select a schema's columns, in its order and with its types."""
    from pyspark.sql import functions as F  # noqa: N812 - the name all of Spark's users know

    fields = spark_schema(schema).fields
    return frame.select(
        [F.col(field.name).cast(field.dataType).alias(field.name) for field in fields]
    )


def read_table(spark: SparkSession, root: str) -> DataFrame:
    """Return the current version of the table at `root`."""
    return spark.read.parquet(VersionedTable(root).current_path())


@dataclass(frozen=True, slots=True)
class Draft:
    """A version that is written and not yet current."""

    table: VersionedTable
    version: str
    rows: int

    @property
    def path(self) -> str:
        """Where its files are."""
        return self.table.path_of(self.version)


class Drafts:
    """The tables of one job: all of them become current when all are written, or none does."""

    def __init__(self) -> None:
        self._begun: list[tuple[VersionedTable, str]] = []
        self._done: list[Draft] = []

    def write(self, frame: DataFrame, root: str, schema: pa.Schema) -> Draft:
        """Write `frame` as the next version of the table at `root`."""
        table = VersionedTable(root)
        version = table.next_version(secrets.token_hex(4))
        self._begun.append((table, version))
        path = table.path_of(version)
        conform(frame, schema).write.parquet(path)
        rows = frame.sparkSession.read.parquet(path).count()  # from the files' footers: no scan
        self._done.append(Draft(table, version, rows))
        return self._done[-1]

    def write_by_workers(self, frame: DataFrame, make: Make, root: str, schema: pa.Schema) -> Draft:
        """Write what `make` makes of a frame's batches; workers write the files themselves."""
        table = VersionedTable(root if "://" in root else os.path.abspath(root))  # noqa: PTH100 - keeps links
        version = table.next_version(secrets.token_hex(4))
        self._begun.append((table, version))
        write = writing_parts(table.path_of(version), schema, make)
        done = frame.mapInArrow(write, WRITTEN).collect()  # a row per task
        table.keep_only(version, {row["file"] for row in done}, schema)
        self._done.append(Draft(table, version, sum(row["rows"] for row in done)))
        return self._done[-1]

    def publish(self) -> None:
        """Make all versions current."""
        for draft in self._done:
            draft.table.publish(draft.version, draft.rows)
        for draft in self._done:
            draft.table.drop_old()

    def discard(self) -> None:
        """Remove what was written, whole or not, unless it is current already."""
        for table, version in self._begun:
            current = table.current()
            if current is None or current.name != version:
                table.discard(version)


@contextmanager
def drafts() -> Iterator[Drafts]:
    """Write tables in the body; at its end they become current together.

    If anything fails before the end, every table stays as it was and the space is freed.
    """
    written = Drafts()
    try:
        yield written
        written.publish()
    except BaseException:
        with suppress(OSError):
            written.discard()
        raise
