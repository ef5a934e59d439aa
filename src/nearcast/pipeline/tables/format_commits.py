"""Commits Parquet files that workers wrote to tables of Delta and Iceberg, through their own Java.

Rows that go back from Python to Java, to be written there, cost more than all that workers did with
them. So workers write files beside those of the table, and the format adds them to its log: its
transactions, its conflicts, its history. A table that these files do not fit (partitions, another
schema, settings of its own) is written by Spark, and so is a new one, and any on Spark Connect.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JError
from pyarrow import fs
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from nearcast.eventlog.stores import open_store
from nearcast.pipeline.session import is_connect
from nearcast.pipeline.tables.file_systems import needs_spark

_FIELD_ID = b"PARQUET:field_id"
_PLAIN = {
    pa.bool_(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(),
    pa.timestamp("us", "UTC"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class FilePlan:
    """Where workers write the files of a table's next version, and with which schema."""

    table: str  # the directory of the table
    folder: str  # a new directory in it
    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class _File:
    """A file as its footer describes it."""

    path: str
    size: int
    rows: int
    stats: dict[str, Any]

    @classmethod
    def of(cls, path: str, size: int, footer: pq.FileMetaData) -> _File:
        lows: dict[str, Any] = {}
        highs: dict[str, Any] = {}
        for at, name in enumerate(footer.schema.names):
            chunks = [footer.row_group(group).column(at) for group in range(footer.num_row_groups)]
            found = [chunk.statistics for chunk in chunks]
            if found and all(one is not None and one.has_min_max for one in found):
                low, high = _told(min(o.min for o in found)), _told(max(o.max for o in found))
                if low is not None and high is not None:
                    lows[name], highs[name] = low, high
        stats = {"numRecords": footer.num_rows, "minValues": lows, "maxValues": highs}
        return cls(path, size, footer.num_rows, stats)


def delta_plan(spark: SparkSession, path: str, schema: pa.Schema) -> FilePlan | None:
    """Return where to write files for a Delta table; None where Spark must write."""
    if not _is_plain(spark, path, schema):
        return None
    try:
        metadata = _delta_snapshot(spark, path).metadata()
        is_simple = metadata.partitionColumns().isEmpty() and metadata.configuration().isEmpty()
        names = _names(metadata.schema().json())
    except (Py4JError, TypeError, AttributeError):  # another Delta, with other names
        return None
    if not is_simple or names != _names(_spark_json(schema)):
        return None
    return FilePlan(path, f"{path}/{secrets.token_hex(8)}", schema)


def commit_to_delta(spark: SparkSession, plan: FilePlan) -> str:
    """Replace all rows of a Delta table by the files of its plan; return the version."""
    jvm: Any = spark._jvm
    delta = jvm.org.apache.spark.sql.delta
    transaction = _delta_log(spark, plan.table).startTransaction()
    gone = transaction.filterFiles().iterator()  # they count as read: a writer in between conflicts
    actions = jvm.java.util.ArrayList()
    while gone.hasNext():
        actions.add(gone.next().remove())
    files = _files_in(plan)
    for file in files:
        added = {
            "path": file.path.removeprefix(f"{plan.table}/"),
            "partitionValues": {}, "size": file.size, "modificationTime": _now_ms(),
            "dataChange": True, "stats": json.dumps(file.stats),
        }  # fmt: skip
        actions.add(delta.actions.Action.fromJson(json.dumps({"add": added})))
    counts = {
        "numFiles": len(files),
        "numOutputRows": sum(file.rows for file in files),
        "numOutputBytes": sum(file.size for file in files),
    }
    transaction.registerSQLMetrics(spark._jsparkSession, _metrics(spark, counts))
    nothing = jvm.scala.Option.empty()
    write = getattr(delta, "DeltaOperations$Write")(
        jvm.org.apache.spark.sql.SaveMode.Overwrite, *([nothing] * 8)
    )
    found = jvm.scala.jdk.javaapi.CollectionConverters.asScala(actions).toSeq()
    return str(transaction.commit(found, write))


def delta_version(spark: SparkSession, path: str) -> str:
    """Return the newest version of a Delta table, without a Spark job."""
    return str(_delta_snapshot(spark, path).version())


def _delta_log(spark: SparkSession, path: str) -> Any:
    jvm: Any = spark._jvm
    return jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, path)


def _delta_snapshot(spark: SparkSession, path: str) -> Any:
    jvm: Any = spark._jvm
    nothing = jvm.scala.Option.empty()
    return _delta_log(spark, path).update(False, nothing, nothing)


def _metrics(spark: SparkSession, counts: Mapping[str, int]) -> Any:
    """Return numbers in the form in which Delta takes them into its history."""
    jvm: Any = spark._jvm
    made = jvm.java.util.HashMap()
    for name, count in counts.items():
        metric = jvm.org.apache.spark.sql.execution.metric.SQLMetrics.createMetric(
            spark.sparkContext._jsc.sc(), name
        )
        metric.set(count)
        made.put(name, metric)
    return jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(made)


def iceberg_plan(spark: SparkSession, name: str, schema: pa.Schema) -> FilePlan | None:
    """Return where to write files for an Iceberg table; None where Spark must write."""
    if is_connect(spark):
        return None
    try:
        table = _iceberg(spark, name)
        place = str(table.location())
        is_simple = table.spec().isUnpartitioned() and table.sortOrder().isUnsorted()
        jvm: Any = spark._jvm
        kinds = jvm.org.apache.iceberg.spark.SparkSchemaUtil.convert(table.schema()).json()
        ids = {field.name: table.schema().findField(field.name).fieldId() for field in schema}
    except (Py4JError, TypeError, AttributeError):
        return None
    if not (is_simple and _is_plain(spark, place, schema)):
        return None
    if _names(kinds) != _names(_spark_json(schema)):
        return None
    named = [field.with_metadata({_FIELD_ID: str(ids[field.name])}) for field in schema]
    folder = f"{place}/data/{secrets.token_hex(8)}"
    return FilePlan(place, folder, pa.schema(named, metadata=schema.metadata))


def commit_to_iceberg(spark: SparkSession, name: str, plan: FilePlan) -> str:
    """Replace all rows of an Iceberg table by the files of its plan; return the snapshot."""
    jvm: Any = spark._jvm
    iceberg = jvm.org.apache.iceberg
    table = _iceberg(spark, name)
    overwrite = table.newOverwrite().overwriteByRowFilter(
        iceberg.expressions.Expressions.alwaysTrue()
    )
    wanted = iceberg.MetricsConfig.forTable(table)
    for file in _files_in(plan):
        opened = table.io().newInputFile(file.path)
        metrics = iceberg.parquet.ParquetUtil.fileMetrics(opened, wanted)
        made = iceberg.DataFiles.builder(table.spec()).withInputFile(opened)
        overwrite.addFile(made.withFormat("PARQUET").withMetrics(metrics).build())
    overwrite.commit()
    return str(table.currentSnapshot().snapshotId())


def _iceberg(spark: SparkSession, name: str) -> Any:
    jvm: Any = spark._jvm
    return jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, name)


def _is_plain(spark: SparkSession, path: str, schema: pa.Schema) -> bool:
    is_here = not is_connect(spark) and not needs_spark(path)
    return is_here and set(schema.types) <= _PLAIN


def _spark_json(schema: pa.Schema) -> str:
    from nearcast.pipeline.tables.transaction import spark_schema

    return str(spark_schema(schema).json())


def _names(schema: str) -> list[tuple[str, str]]:
    """Return names and types of columns; Spark's tables forget what may not be null."""
    return [(field.name, field.dataType.simpleString()) for field in StructType.fromJson(
        json.loads(schema)).fields]  # fmt: skip


def _files_in(plan: FilePlan) -> list[_File]:
    store, base = open_store(plan.folder)
    found: Sequence[fs.FileInfo] = store.get_file_info(fs.FileSelector(base))
    return [
        _File.of(
            f"{plan.folder}/{info.base_name}",
            info.size,
            pq.read_metadata(info.path, filesystem=store),
        )
        for info in sorted(found, key=lambda info: str(info.path))
    ]


def _told(value: object) -> int | str | None:
    """Return a bound of whole numbers or instants as Delta writes it; instants in milliseconds.

    Delta counts NaN as the largest number, which a Parquet footer leaves out: no fractions.
    """
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _now_ms() -> int:
    return int(datetime.now().timestamp() * 1000)  # noqa: DTZ005 - an instant
