"""Tables as Delta or Iceberg: versions, schema changes and concurrent writers are the format's.

A table is named by a path (`city/positions`) or in a catalog (`lake.city/positions` is the table
`lake.city.positions`). At a path the format is that of the table that is there; a new table is
written as `spark.nearcast.table.format` says (`delta`, `iceberg` or `parquet`), else as Delta if
the session has Delta, else as plain Parquet with a pointer (`nearcast/eventlog/tables.py`).
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from nearcast.eventlog.stores import is_url, open_store
from nearcast.model.errors import EnvironmentProblem, MisuseError
from nearcast.pipeline.session import is_connect
from nearcast.pipeline.tables.file_systems import has_files, is_folder, use_session
from nearcast.pipeline.tables.format_commits import (
    FilePlan,
    commit_to_delta,
    commit_to_iceberg,
    delta_plan,
    delta_version,
    iceberg_plan,
)

Format = Literal["parquet", "delta", "iceberg"]
FORMAT_SETTING = "spark.nearcast.table.format"
FORMATS: tuple[Format, ...] = ("parquet", "delta", "iceberg")
_CATALOG = "spark.sql.catalog."


@dataclass(frozen=True, slots=True)
class OpenVersion:
    """A version of a table as its format names it, with the number of rows written."""

    name: str
    rows: int


class OpenTable(Protocol):
    """A table of an open format."""

    def version(self) -> str | None:
        """Return the name of the current version; None if there is no table."""

    def write(self, frame: DataFrame, replaces: str | None) -> OpenVersion:
        """Replace all rows, or those for which the condition `replaces` holds; atomic."""

    def read(self) -> DataFrame:
        """Return the current rows."""

    def plan_files(self, schema: pa.Schema) -> FilePlan | None:
        """Return where workers may write the files of all its rows; None where Spark must."""

    def commit_files(self, plan: FilePlan) -> str:
        """Replace all rows by the files of a plan; return the version."""

    def roll_back(self, version: str | None) -> None:
        """Return to a version; None removes the table."""


@dataclass(frozen=True, slots=True)
class DeltaTable:
    """A Delta table at a path."""

    spark: SparkSession
    path: str

    def version(self) -> str | None:
        """Return the number of the newest commit."""
        if not has_files(f"{self.path}/_delta_log", ".json"):  # a writer was killed at its first
            return None
        if is_connect(self.spark):
            return str(self._history()["version"])
        return delta_version(self.spark, self.path)

    def write(self, frame: DataFrame, replaces: str | None) -> OpenVersion:
        """Commit the rows; columns that are new are added to the table's schema."""
        writer = frame.write.format("delta").mode("overwrite").option("mergeSchema", "true")
        if replaces and self.version() is not None:
            writer = writer.option("replaceWhere", replaces)
        writer.save(self.path)
        last = self._history()
        rows = last["operationMetrics"].get("numOutputRows", "0")
        return OpenVersion(str(last["version"]), int(rows))

    def read(self) -> DataFrame:
        """Return the current rows."""
        return self.spark.read.format("delta").load(self.path)

    def plan_files(self, schema: pa.Schema) -> FilePlan | None:
        """Return where workers may write, if the table is there and has these columns alone."""
        is_there = self.version() is not None
        return delta_plan(self.spark, self.path, schema) if is_there else None

    def commit_files(self, plan: FilePlan) -> str:
        """Commit the files of a plan in place of all others."""
        return commit_to_delta(self.spark, plan)

    def roll_back(self, version: str | None) -> None:
        """Restore a version by a commit of its own."""
        if version is not None:
            self.spark.sql(f"RESTORE TABLE delta.`{self.path}` TO VERSION AS OF {version}")
            return
        store, base = open_store(self.path)
        store.delete_dir(base)

    def _history(self) -> dict[str, Any]:
        (row,) = self.spark.sql(f"DESCRIBE HISTORY delta.`{self.path}` LIMIT 1").collect()
        return dict(row.asDict())


@dataclass(frozen=True, slots=True)
class CatalogTable:
    """A table in a catalog of the session, in the catalog's format."""

    spark: SparkSession
    catalog: str
    inside: str  # its name in the catalog
    is_iceberg: bool

    @property
    def name(self) -> str:
        """The whole name."""
        return f"{self.catalog}.{self.inside}"

    def version(self) -> str | None:
        """Return the snapshot of Iceberg, the commit of Delta."""
        if not self.spark.catalog.tableExists(self.name):
            return None
        if not self.is_iceberg:
            return str(self.spark.sql(f"DESCRIBE HISTORY {self.name} LIMIT 1").collect()[0][0])
        query = f"SELECT snapshot_id FROM {self.name}.refs WHERE name = 'main'"  # noqa: S608 - a table's name
        found = self.spark.sql(query).collect()
        return str(found[0][0]) if found else ""

    def write(self, frame: DataFrame, replaces: str | None) -> OpenVersion:
        """Write the rows as one snapshot; columns that are new are added to the table's schema."""
        if self.version() is None:
            namespace, dot, _ = self.inside.rpartition(".")
            if dot:
                self.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {self.catalog}.{namespace}")
            kind = "iceberg" if self.is_iceberg else "delta"
            made = frame.writeTo(self.name).using(kind)
            if self.is_iceberg:
                made = made.tableProperty("write.spark.accept-any-schema", "true")
            made.create()
        else:
            condition = F.expr(replaces) if replaces else F.lit(True)
            if replaces and self.is_iceberg:  # it replaces whole files only: the others go along
                kept = self.read().where(~F.coalesce(condition, F.lit(False)))
                frame, condition = kept.unionByName(frame, allowMissingColumns=True), F.lit(True)
            frame.writeTo(self.name).option("mergeSchema", "true").overwrite(condition)
        version = self.version() or ""
        return OpenVersion(version, self._rows(version))

    def _rows(self, version: str) -> int:
        if not self.is_iceberg:
            (row,) = self.spark.sql(f"DESCRIBE HISTORY {self.name} LIMIT 1").collect()
            return int(row["operationMetrics"].get("numOutputRows", "0"))
        query = f"SELECT summary['added-records'] FROM {self.name}.snapshots"  # noqa: S608 - a table's name
        found = self.spark.sql(f"{query} WHERE snapshot_id = {version or 0}").collect()
        return int(found[0][0] or 0) if found else 0

    def read(self) -> DataFrame:
        """Return the current rows."""
        return self.spark.table(self.name)

    def plan_files(self, schema: pa.Schema) -> FilePlan | None:
        """Return where workers may write, if it is an Iceberg table with these columns alone."""
        is_there = self.is_iceberg and self.version() is not None
        return iceberg_plan(self.spark, self.name, schema) if is_there else None

    def commit_files(self, plan: FilePlan) -> str:
        """Commit the files of a plan in place of all others."""
        return commit_to_iceberg(self.spark, self.name, plan)

    def roll_back(self, version: str | None) -> None:
        """Return to a version; a table that did not exist is dropped."""
        if version is None:
            self.spark.sql(f"DROP TABLE IF EXISTS {self.name}{' PURGE' * self.is_iceberg}")
        elif self.is_iceberg:
            inside = self.inside.replace("`", "")
            self.spark.sql(
                f"CALL {self.catalog}.system.rollback_to_snapshot('{inside}', {version})"
            )
        else:
            self.spark.sql(f"RESTORE TABLE {self.name} TO VERSION AS OF {version}")


def open_table(spark: SparkSession, root: str, *, to_write: bool = False) -> OpenTable | None:
    """Return the table of an open format at `root`; None if it is plain Parquet with a pointer.

    With `to_write`, a table that is not there yet gets the session's format.
    """
    named = in_catalog(spark, root)
    if named is not None:
        return named
    use_session(spark, root)
    there = format_at(root)
    chosen = _chosen(spark)
    if to_write:
        if there and chosen and there != chosen:
            raise MisuseError(
                f"a table in the format {there}",
                where=root,
                expected=f"one in the format {chosen}, or none",
                todo="Give another --output, or the format of the table",
            )
        chosen = there or chosen or ("delta" if has_delta(spark) else "parquet")
    else:
        chosen = there or "parquet"
    if chosen == "delta":
        _need(has_delta(spark), "Delta", root)
        return DeltaTable(spark, root.rstrip("/"))
    if chosen == "iceberg":
        _need(has_iceberg(spark), "Iceberg", root)
        return _iceberg_at(spark, root.rstrip("/"))
    return None


def is_table(spark: SparkSession, root: str) -> bool:
    """Return whether a table is at a path or has a name of a catalog, in any format."""
    if in_catalog(spark, root) is not None:
        return True
    use_session(spark, root)
    return format_at(root) is not None


def _chosen(spark: SparkSession) -> Format | None:
    text = spark.conf.get(FORMAT_SETTING, "") or ""
    for known in FORMATS:
        if text == known:
            return known
    if text in {"", "auto"}:
        return None
    raise MisuseError(repr(text), where=FORMAT_SETTING, expected=f"auto, {', '.join(FORMATS)}")


def in_catalog(spark: SparkSession, root: str) -> CatalogTable | None:
    """Return the table that a name of a catalog means; None for a path."""
    if is_url(root):
        return None
    head, _, rest = root.replace("/", ".").partition(".")
    kind = (spark.conf.get(_CATALOG + head, "") or "") if head.isidentifier() and rest else ""
    return CatalogTable(spark, head, rest.strip("."), "iceberg" in kind) if kind else None


def format_at(root: str) -> Format | None:
    """Return the format of the table at a path, judged by its files; None if there is none."""
    if is_folder(f"{root}/_delta_log"):
        return "delta"
    if has_files(f"{root}/metadata", ".metadata.json"):
        return "iceberg"
    store, base = open_store(root)
    return "parquet" if store.get_file_info(f"{base.rstrip('/')}/CURRENT").is_file else None


def has_delta(spark: SparkSession) -> bool:
    """Return whether the session reads and writes Delta."""
    return "DeltaSparkSessionExtension" in (spark.conf.get("spark.sql.extensions", "") or "")


def has_iceberg(spark: SparkSession) -> bool:
    """Return whether the session reads and writes Iceberg."""
    return "IcebergSparkSessionExtensions" in (spark.conf.get("spark.sql.extensions", "") or "")


def _need(there: bool, name: str, root: str) -> None:
    if not there:
        raise EnvironmentProblem(
            f"a table of {name}, which this Spark session has not",
            where=root,
            todo=f"--format {name.lower()}, or a session with {name}'s packages and extensions",
        )


def _iceberg_at(spark: SparkSession, root: str) -> CatalogTable:
    """Return the Iceberg table at a path: one of a catalog that is its parent directory."""
    parent, _, leaf = root.rpartition("/")
    catalog = f"nearcast_{zlib.crc32(parent.encode()):08x}"
    if not spark.conf.get(_CATALOG + catalog, ""):
        spark.conf.set(_CATALOG + catalog, "org.apache.iceberg.spark.SparkCatalog")
        spark.conf.set(f"{_CATALOG}{catalog}.type", "hadoop")
        spark.conf.set(f"{_CATALOG}{catalog}.warehouse", parent)
        spark.conf.set(f"{_CATALOG}{catalog}.cache-enabled", "false")
    return CatalogTable(spark, catalog, f"`{leaf}`", is_iceberg=True)
