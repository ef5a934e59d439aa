"""Reads input files of users.

CSV, JSON lines, Parquet, GeoParquet, one of our tables, event logs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from nearcast.eventlog import VersionedTable
from nearcast.eventlog.log_files import is_event_log
from nearcast.model import Space
from nearcast.pipeline.sources.event_logs import events_of_log, node_numbers, read_log
from nearcast.pipeline.sources.input_checks import check_columns
from nearcast.pipeline.spark_errors import spark_errors_translated
from nearcast.pipeline.tables.transaction import read_table, spark_schema

_PLAIN = {
    pa.string(),
    pa.binary(),
    pa.bool_(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.timestamp("us"),
    pa.timestamp("us", tz="UTC"),
}
_FORMATS = {
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".geoparquet": "parquet",
}


def read_source(spark: SparkSession, path: str, columns: Mapping[str, str]) -> DataFrame:
    """Return the rows at `path` with the columns that `columns` asks for, renamed.

    `columns` maps the name we want to the name in the file. The suffix decides the format; a
    directory is one of our tables, a broker's event log (the positions of its clients are read), or
    a folder of Parquet files. A GeoParquet point column `geometry` gives `lon` and `lat` where the
    file has none.
    """
    with spark_errors_translated(path):
        if is_event_log(path):
            return read_log(spark, path, "positions").withColumnRenamed("client", "user_id")
        return _renamed(_with_coordinates(_open(spark, path), columns), path, columns)


def read_events(
    spark: SparkSession, path: str, space: Space, columns: Mapping[str, str]
) -> DataFrame:
    """Return the events of a space at `path`, with the columns that `columns` asks for renamed."""
    with spark_errors_translated(path):
        if is_event_log(path):
            return events_of_log(read_log(spark, path, "events"), space, node_numbers(path))
        frame = _open(spark, path)
        renamed = {want: source for want, source in columns.items() if want != source}
        _renamed(frame, path, renamed)
        kept = frame.drop(*(want for want in renamed if want not in renamed.values()))
        for want, source in renamed.items():
            kept = kept.withColumn(want, frame[source])
        return kept


def read_all(spark: SparkSession, path: str) -> DataFrame:
    """Return the rows at `path` unchanged."""
    with spark_errors_translated(path):
        return _open(spark, path)


def _open(spark: SparkSession, path: str) -> DataFrame:
    kind = _FORMATS.get(PurePosixPath(path).suffix.lower())
    if kind == "csv":
        separator = "\t" if path.lower().endswith(".tsv") else ","
        return spark.read.csv(path, header=True, sep=separator)
    if kind == "json":
        return spark.read.json(path)
    if kind is None and VersionedTable(path).current() is not None:
        return read_table(spark, path)
    schema = _plain_schema(path)
    return spark.read.parquet(path) if schema is None else spark.read.schema(schema).parquet(path)


def _plain_schema(path: str) -> StructType | None:
    """Return the schema of a single Parquet file if all its types are plain, else None.

    Spark would start a job to read the footer, which takes seconds in a new session. Other types
    and unreadable files are left to Spark.
    """
    if not Path(path).is_file():
        return None
    try:
        schema = pq.read_schema(path).remove_metadata()
    except (pa.ArrowInvalid, OSError):
        return None
    return spark_schema(schema) if set(schema.types) <= _PLAIN else None


def _renamed(frame: DataFrame, path: str, columns: Mapping[str, str]) -> DataFrame:
    check_columns(path, frame.columns, columns)
    there = {name.lower(): name for name in frame.columns}
    return frame.select([F.col(f"`{there[s.lower()]}`").alias(want) for want, s in columns.items()])


def _with_coordinates(frame: DataFrame, columns: Mapping[str, str]) -> DataFrame:
    """Add `lon` and `lat` from a GeoParquet geometry where they are requested and missing."""
    asked = {columns.get("lon"), columns.get("lat")}
    has_geometry = dict(frame.dtypes).get("geometry") == "binary"
    if not has_geometry or asked <= set(frame.columns) or asked != {"lon", "lat"}:
        return frame
    kept = frame.drop("lon", "lat")
    schema = f"{kept.schema.simpleString()[7:-1]},lon:double,lat:double"
    return kept.mapInArrow(_decode_points, schema.replace(":", " "))


def _decode_points(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import shapely

    for batch in batches:
        points = shapely.from_wkb(batch.column("geometry").to_numpy(zero_copy_only=False))
        lon, lat = pa.array(shapely.get_x(points)), pa.array(shapely.get_y(points))
        names = [*batch.schema.names, "lon", "lat"]
        yield pa.RecordBatch.from_arrays([*batch.columns, lon, lat], names=names)
