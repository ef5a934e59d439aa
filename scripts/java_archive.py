"""Writes `.venv/spark.jsa`, the classes that Spark's Java loads, prepared for the next start.

The tests start Java some fifty times, and half of the CPU time of a start goes into loading and
checking the same classes. Java maps them from this file (class data sharing). `tests/conftest.py`
passes it to Java if it is there; a Java that does not fit it goes on without it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import SparkSession

ARCHIVE = Path(sys.prefix) / "spark.jsa"
FLAGS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def main() -> None:
    """Run a little of what the jobs do, in a Java that writes the classes when it ends."""
    ARCHIVE.unlink(missing_ok=True)
    os.environ["SPARK_SUBMIT_OPTS"] = f"{FLAGS} -XX:ArchiveClassesAtExit={ARCHIVE} -Xlog:disable"
    from nearcast.pipeline.session import spark_session

    spark = spark_session("local[2]", name="classes", memory_gb=2)
    java = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
    with tempfile.TemporaryDirectory() as folder:
        _use(spark, folder)
        spark.stop()
    java.stdin.close()
    java.wait()


def _use(spark: SparkSession, folder: str) -> None:
    numbers = spark.range(1_000).selectExpr("id", "id % 7 as part", "cast(id as double) as x")
    numbers.write.parquet(f"{folder}/numbers")
    numbers.write.option("header", True).csv(f"{folder}/lines")
    table = spark.read.parquet(f"{folder}/numbers")
    table.createOrReplaceTempView("numbers")
    spark.sql(
        "select part, sum(x), max(gap) from (select *, x - lag(x) over (partition by part"
        " order by id) as gap from numbers) group by part order by part"
    ).collect()
    table.join(table.groupBy("part").count(), "part").orderBy("id").limit(9).toPandas()
    table.groupBy("part").applyInPandas(lambda rows: rows, table.schema).count()
    table.mapInPandas(_same, table.schema).write.parquet(f"{folder}/same")
    spark.read.option("header", True).csv(f"{folder}/lines").count()
    stream = spark.readStream.schema(table.schema).parquet(f"{folder}/numbers")
    query = (
        stream.writeStream.format("parquet")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start(f"{folder}/streamed")
    )
    query.awaitTermination()


def _same(parts: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    yield from parts


if __name__ == "__main__":
    main()
