"""Tables come back as they were written, in whatever way that was."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from nearcast.eventlog import POSITIONS, REGIONS, VersionedTable
from nearcast.model.errors import FileFormatError, MisuseError
from nearcast.pipeline.spark_errors import spark_errors_translated
from nearcast.pipeline.tables.transaction import read_table, transaction

NUMBERS = pa.schema([pa.field("n", pa.int64(), nullable=False)])


def numbers(*values: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(values, pa.int64())], schema=NUMBERS)


@pytest.mark.spark
def test_a_table_has_the_columns_and_rows_that_spark_would_find(
    spark: SparkSession, tmp_path: Path
):
    frame = spark.range(0, 1_000, 1, 3).selectExpr(
        "concat('u', id) AS user_id", "timestamp_seconds(id) AS t", "id / 1e4 AS lon",
        "0D AS lat", "0 AS trip", "0D AS step_s", "0D AS step_m",
    )  # fmt: skip
    with transaction() as written:
        draft = written.write(frame, str(tmp_path / "positions"), POSITIONS)
    assert draft.rows == 1_000
    found = read_table(spark, str(tmp_path / "positions"))
    own = spark.read.parquet(VersionedTable(str(tmp_path / "positions")).current_path())
    assert found.dtypes == own.dtypes
    assert sorted(found.collect()) == sorted(own.collect())


@pytest.mark.spark
def test_a_small_table_is_read_like_any_other(spark: SparkSession, tmp_path: Path):
    row = dict.fromkeys(REGIONS.names, 1)
    with transaction() as written:
        assert written.write_small(pa.Table.from_pylist([row], REGIONS), str(tmp_path)).rows == 1
    (found,) = read_table(spark, str(tmp_path)).collect()
    assert found.asDict() == row


@pytest.mark.spark
def test_a_damaged_part_of_a_table_is_said(spark: SparkSession, tmp_path: Path):
    with transaction() as written:
        written.write_small(pa.Table.from_batches([numbers(1)]), str(tmp_path))
    (part,) = Path(VersionedTable(str(tmp_path)).current_path()).glob("*.parquet")
    part.write_bytes(part.read_bytes()[:20])
    with pytest.raises((FileFormatError, MisuseError)), spark_errors_translated(str(tmp_path)):
        read_table(spark, str(tmp_path)).collect()
