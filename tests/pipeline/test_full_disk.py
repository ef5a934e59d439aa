"""A disk that fills up: a clear answer, and what was there before stays."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from nearcast.eventlog import POSITIONS, VersionedTable
from nearcast.model.errors import EnvironmentProblem
from nearcast.pipeline.jobs.ingest import Cleaning, ingest
from nearcast.pipeline.spark_errors import spark_errors_translated
from nearcast.pipeline.tables.transaction import read_table, transaction

pytestmark = pytest.mark.spark


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no right to mount a small disk here")
    yield folder
    # Lazily: Spark keeps files open that it failed to close on a full disk.
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fixes(spark: SparkSession, rows: int) -> DataFrame:
    return spark.sql(f"""
        SELECT concat('u', id % 100) AS user_id, timestamp_seconds(1714557600 + id) AS t,
               rand(1) * 1e-4 AS lon, rand(2) * 1e-4 AS lat FROM range({rows})
    """)


def test_a_full_disk_is_said_and_the_old_table_stays(spark: SparkSession, small_disk: Path):
    ingest(fixes(spark, 500), str(small_disk), Cleaning())
    before = read_table(spark, str(small_disk / "positions")).collect()
    used = sum(file.stat().st_size for file in small_disk.rglob("*") if file.is_file())
    with (
        pytest.raises(EnvironmentProblem, match="the disk is full"),
        spark_errors_translated("out"),
    ):
        ingest(fixes(spark, 200_000), str(small_disk), Cleaning())
    assert read_table(spark, str(small_disk / "positions")).collect() == before
    left = sum(file.stat().st_size for file in small_disk.rglob("*") if file.is_file())
    assert left == used  # what was half written is gone


def test_of_two_tables_neither_changes_when_the_second_fails(spark: SparkSession, tmp_path: Path):
    good = spark.sql("SELECT 'a' user_id, now() t, 1D lon, 2D lat, 0 trip, 0D step_s, 0D step_m")

    def write_two() -> None:
        with transaction() as written:
            written.write(good, str(tmp_path / "one"), POSITIONS)
            written.write(good.drop("trip"), str(tmp_path / "two"), POSITIONS)

    with pytest.raises(AnalysisException, match="trip"):
        write_two()
    assert VersionedTable(str(tmp_path / "one")).current() is None
    assert list(tmp_path.iterdir()) == []
