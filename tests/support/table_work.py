"""What the tests of table formats do in Spark: tables are written, replaced and left as they are.

    python tests/support/table_work.py SETTINGS TASKS

does so in a session of its own, whose packages must be known when Java starts. SETTINGS and TASKS,
a list of formats with their source and output, are JSON; so is what is printed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PySparkException

from nearcast.eventlog import POSITIONS
from nearcast.model.errors import EnvironmentProblem
from nearcast.pipeline.jobs.ingest import Cleaning, IngestJob
from nearcast.pipeline.jobs.regions import RegionsJob
from nearcast.pipeline.session import spark_session
from nearcast.pipeline.sources.period import Period
from nearcast.pipeline.tables.open_formats import CatalogTable, DeltaTable, open_table
from nearcast.pipeline.tables.transaction import read_table, table_there, transaction

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FORMAT = "spark.nearcast.table.format"


def use_tables(spark: SparkSession, kind: str, source: str, output: str) -> dict[str, Any]:
    """Write tables of a format, and return what was found on the way.

    On S3 a day is not read again: how tables are replaced is the same as on a disk.
    """
    spark.conf.set(_FORMAT, kind)
    root = f"{output}/positions"

    def rows() -> list[list[Any]]:
        return sorted(
            [row["user_id"], str(row["t"]), row["lon"]] for row in read_table(spark, root).collect()
        )

    found: dict[str, Any] = {"ingest": IngestJob([source], output).run(spark).fields}
    found["first"], first = table_there(spark, root), rows()
    if not output.startswith("s3a:"):
        day = Cleaning(period=Period.of("", "2024-05-02", "UTC"))
        IngestJob([source], output, cleaning=day).run(spark)
        found["second"] = table_there(spark, root)
    found["same"] = rows() == first
    try:
        with transaction() as written:
            frame = read_table(spark, root)
            written.write(frame.limit(1), root, pa.schema([("user_id", pa.string())]))
            raise _BetweenTablesError
    except _BetweenTablesError:
        pass
    found["intact"] = rows() == first
    if kind in ("delta", "iceberg"):
        found["workers"] = written_by_workers(spark, kind, source, output)
        found["same"] &= rows() == first
    RegionsJob(root, output).run(spark)
    found["regions"] = read_table(spark, f"{output}/cells").count()
    if kind in ("delta", "iceberg"):
        option = spark.read.option("versionAsOf", found["first"])
        found["old"] = option.format(kind).load(root).count()
    if kind == "iceberg":
        spark.conf.set("spark.sql.catalog.lake", "org.apache.iceberg.spark.SparkCatalog")
        spark.conf.set("spark.sql.catalog.lake.type", "hadoop")
        spark.conf.set("spark.sql.catalog.lake.warehouse", f"{output}/lake")
        IngestJob([source], "lake.city").run(spark)
        found["named"] = spark.table("lake.city.positions").count()
    found["rows"] = len(first)
    spark.conf.unset(_FORMAT)
    return found


def written_by_workers(spark: SparkSession, kind: str, source: str, output: str) -> dict[str, Any]:
    """Replace a table of an open format by files of workers; return what became of it."""
    root = f"{output}/positions"
    opened = open_table(spark, root, to_write=True)
    assert isinstance(opened, DeltaTable | CatalogTable)
    other = POSITIONS.append(pa.field("more", pa.int64()))
    found: dict[str, Any] = {
        "planned": [opened.plan_files(one) is not None for one in (POSITIONS, other)]
    }
    before = opened.version()
    IngestJob([source], output).run(spark)
    found["renewed"] = opened.version() != before
    day = "t < TIMESTAMP '2024-05-02 00:00:00'"
    found["first day"] = opened.read().where(day).count()
    if isinstance(opened, DeltaTable):
        files = [file.removeprefix("file://") for file in opened.read().inputFiles()]
    else:
        files = [
            row[0] for row in spark.sql(f"SELECT file_path FROM {opened.name}.files").collect()
        ]
    found["makers"] = sorted({pq.read_metadata(file).created_by[:11] for file in files})
    if kind == "delta":
        last = spark.sql(f"DESCRIBE HISTORY delta.`{root}` LIMIT 1").collect()[0]
        found["history"] = last["operation"], last["operationMetrics"]["numOutputRows"]
    folders = set(Path(root).rglob("*"))

    def one_row(batches: Any) -> Any:
        yield next(iter(batches)).slice(0, 1).cast(POSITIONS)

    def failing(batches: Any) -> Any:
        yield from one_row(batches)
        raise ZeroDivisionError

    for make, ends in ((one_row, _BetweenTablesError), (failing, PySparkException)):
        try:
            with transaction() as written:
                frame = opened.read().coalesce(1)
                done = written.write_by_workers(frame, make, root, POSITIONS)
                found["one row"] = done.rows, opened.read().count()
                raise _BetweenTablesError
        except ends:
            pass
    left = {path for path in set(Path(root).rglob("*")) - folders if path.is_dir()}
    found["left"] = [path.name for path in left if not any(path.iterdir())]
    return found


class _BetweenTablesError(Exception):
    """A transaction ends after the first of its tables."""


def main(settings: str, tasks: str) -> None:
    """Do each task in one session; print what was found, or why Spark did not start."""
    try:
        spark = spark_session("local[2]", memory_gb=1, more=json.loads(settings))
    except EnvironmentProblem as problem:
        sys.stdout.write(json.dumps({"skipped": str(problem)}))
        return
    sys.stdout.write(json.dumps([use_tables(spark, *task) for task in json.loads(tasks)]))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
