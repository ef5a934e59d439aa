"""A driver that is killed over an existing table: the table is whole, the next run tidies up."""

import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import settings
from pyspark.sql import SparkSession
from tests.support.waiting import wait_for

from nearcast.eventlog import VersionedTable
from nearcast.pipeline.jobs.ingest import IngestJob

pytestmark = [pytest.mark.spark, pytest.mark.java, pytest.mark.timeout(1800)]

WRITES_AGAIN_AND_AGAIN = """
import sys
from nearcast.pipeline.jobs.ingest import IngestJob
from nearcast.pipeline.session import spark_session

spark = spark_session("local[2]", memory_gb=1)
while True:
    IngestJob([sys.argv[1]], sys.argv[2]).run(spark)
"""
ROWS = 40_000
KILLS = 10 if settings().max_examples > 50 else 1


def marks(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*/.draft-*")}


def _is_writing(city: Path, before: set[str]) -> bool:
    return bool(marks(city) - before)


def test_a_killed_driver_leaves_the_table_whole_and_the_next_run_tidies_up(
    spark: SparkSession, tmp_path: Path
):
    source, city = tmp_path / "cabs.csv", tmp_path / "city"
    lines = (f"u{i % 50},{1_714_564_800 + i},{8.5 + i * 1e-7:.7f},47.3" for i in range(ROWS))
    source.write_text("user_id,t,lon,lat\n" + "\n".join(lines))
    IngestJob([str(source)], str(city)).run(spark)
    chance = random.Random(5)
    for _ in range(KILLS):
        before = marks(city)
        with (tmp_path / "writer.log").open("wb") as log:
            writer = subprocess.Popen(
                [sys.executable, "-c", WRITES_AGAIN_AND_AGAIN, str(source), str(city)],
                start_new_session=True, stdout=log, stderr=log,
            )  # fmt: skip
        try:
            wait_for(partial(_is_writing, city, before), 300)
            time.sleep(chance.uniform(0, 1.5))  # somewhere in the middle of a job
        finally:
            os.killpg(writer.pid, signal.SIGKILL)
            writer.wait(timeout=60)
        table = VersionedTable(str(city / "positions"))
        assert pq.read_table(table.current_path()).num_rows == ROWS
    IngestJob([str(source)], str(city)).run(spark)
    for name in ("positions", "rejected", "quality"):
        current = VersionedTable(str(city / name)).current()
        assert current is not None
        left = {path.name for path in (city / name).iterdir()}
        assert left == {"CURRENT", *current.kept}
