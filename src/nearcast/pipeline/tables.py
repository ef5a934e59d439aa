"""DataFrames as versions of a table."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import pyarrow as pa

from nearcast.eventlog import VersionedTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


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


def write_table(frame: DataFrame, root: str, schema: pa.Schema) -> int:
    """Write `frame` as the table's next version, make it current, and return its number of rows.

    If anything fails before the end, the table stays as it was.
    """
    table = VersionedTable(root)
    version = table.next_version(secrets.token_hex(4))
    path = table.path_of(version)
    conform(frame, schema).write.parquet(path)
    rows = frame.sparkSession.read.parquet(path).count()  # from the files' footers: no scan
    table.publish(version, rows)
    table.drop_old()
    return rows
