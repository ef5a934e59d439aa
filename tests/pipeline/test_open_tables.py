"""Tables as Delta and Iceberg and on S3, written by real Spark and read by others.

A process of its own for each: Spark must know its packages when it starts. They come from Maven;
where they cannot be had, the tests are skipped.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs
from tests.support.s3_server import hadoop_settings, s3_server, store_at

from nearcast.eventlog import VersionedTable
from nearcast.eventlog.stores import open_store, use_settings
from nearcast.pipeline.tables.output_files import local_file, write_text

pytestmark = [pytest.mark.spark, pytest.mark.java, pytest.mark.timeout(900)]

WORK = """
import json, sys
import pyarrow as pa
from pyspark.sql import SparkSession

from nearcast.model.errors import EnvironmentProblem, NearcastError
from nearcast.pipeline.jobs.ingest import Cleaning, IngestJob
from nearcast.pipeline.jobs.regions import RegionsJob
from nearcast.pipeline.packages import package_settings
from nearcast.pipeline.session import spark_session
from nearcast.pipeline.sources.period import Period
from nearcast.pipeline.tables.transaction import read_table, table_there, transaction

kind, source, output, more = sys.argv[1:5]
settings = {**package_settings(kind, [source, output]), **json.loads(more)}
try:
    spark = spark_session("local[2]", memory_gb=1, more=settings)
except EnvironmentProblem as problem:
    print(json.dumps({"skipped": str(problem)}))
    sys.exit()
spark.conf.set("spark.nearcast.table.format", kind)
root = f"{output}/positions"


def told():
    frame = read_table(spark, root)
    return sorted([row["user_id"], str(row["t"]), row["lon"]] for row in frame.collect())


said = {}
job = IngestJob([source], output)
said["ingest"] = job.run(spark).fields
said["first"], first = table_there(spark, root), told()
day = Cleaning(period=Period.of("", "2024-05-02", "UTC"))
IngestJob([source], output, cleaning=day).run(spark)
said["second"] = table_there(spark, root)
said["same"] = told() == first
try:
    with transaction() as written:
        frame = read_table(spark, root)
        written.write(frame.limit(1), root, pa.schema([("user_id", pa.string())]))
        raise RuntimeError("after the first of two tables")
except RuntimeError:
    pass
said["intact"] = told() == first
RegionsJob(root, output).run(spark)
said["regions"] = read_table(spark, f"{output}/cells").count()
if kind == "delta":
    old = spark.read.format("delta").option("versionAsOf", said["first"]).load(root)
    said["old"] = old.count()
if kind == "iceberg":
    old = spark.read.option("versionAsOf", said["first"]).format("iceberg").load(root)
    said["old"] = old.count()
    spark.conf.set("spark.sql.catalog.lake", "org.apache.iceberg.spark.SparkCatalog")
    spark.conf.set("spark.sql.catalog.lake.type", "hadoop")
    spark.conf.set("spark.sql.catalog.lake.warehouse", f"{output}/lake")
    IngestJob([source], "lake.city").run(spark)
    said["named"] = spark.table("lake.city.positions").count()
said["rows"] = len(first)
print(json.dumps(said))
spark.stop()
"""
NOON = 1_714_564_800


def write_source(path: Path) -> None:
    rows = [
        f"u{user},{NOON + 86_400 * day + 60 * i},{8.5 + i * 1e-4:.5f},47.3"
        for day in range(2)
        for user in range(3)
        for i in range(10)
    ]
    path.write_text("user_id,t,lon,lat\n" + "\n".join(rows))


def work(kind: str, source: str, output: str, cwd: Path, **settings: str) -> dict[str, Any]:
    command = [sys.executable, "-c", WORK, kind, source, output, json.dumps(settings)]
    run = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-4000:]
    said: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    if "skipped" in said:
        pytest.skip(f"Maven's packages cannot be had here: {said['skipped']}")
    return said


def check(said: dict[str, Any]) -> None:
    assert said["ingest"] == {"kept": 60, "rejected": {}}
    assert said["rows"] == 60
    assert said["same"]
    assert said["intact"]
    assert said["first"] != said["second"]
    assert said["regions"] > 0


def test_tables_of_delta(tmp_path: Path):
    write_source(tmp_path / "cabs.csv")
    said = work("delta", str(tmp_path / "cabs.csv"), str(tmp_path / "city"), tmp_path)
    check(said)
    assert said["old"] == 60
    assert (tmp_path / "city/regions/_delta_log").is_dir()


def test_tables_of_iceberg_at_a_path_and_in_a_catalog(tmp_path: Path):
    write_source(tmp_path / "cabs.csv")
    said = work("iceberg", str(tmp_path / "cabs.csv"), str(tmp_path / "city"), tmp_path)
    check(said)
    assert said["old"] == said["named"] == 60
    assert (tmp_path / "city/lake/city/positions/metadata").is_dir()


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[str]:
    """Start an S3 server; return its address."""
    with s3_server(tmp_path) as address:
        yield address


def test_a_table_and_files_lie_on_s3_with_the_keys_of_spark(s3: str):
    store = store_at(s3)
    use_settings(
        {
            "fs.s3a.access.key": "somebody", "fs.s3a.secret.key": "a secret",
            "fs.s3a.endpoint": s3, "fs.s3a.endpoint.region": "us-east-1",
        }
    )  # fmt: skip
    try:
        table = VersionedTable("s3a://lake/city/positions")
        for number in range(3):
            version = table.begin(f"{number}")
            own, base = open_store(table.path_of(version))
            pq.write_table(pa.table({"x": [number]}), f"{base}/part.parquet", filesystem=own)
            table.publish(version, 1)
            table.drop_old()
        left = [
            one.base_name for one in store.get_file_info(fs.FileSelector("lake/city/positions"))
        ]
        assert left == ["000002-1", "000003-2", "CURRENT"]
        write_text("s3a://lake/city", "a.txt", "hello")
        with local_file("s3a://lake/city/a.txt") as file:
            assert file.read_text() == "hello"
    finally:
        use_settings({})


def test_input_and_output_on_s3(tmp_path: Path, s3: str):
    store = store_at(s3)
    write_source(tmp_path / "cabs.csv")
    with store.open_output_stream("lake/in/cabs.csv") as stream:
        stream.write((tmp_path / "cabs.csv").read_bytes())
    assert "AWS_ACCESS_KEY_ID" not in os.environ  # workers have Spark's credentials, or none
    check(
        work(
            "parquet", "s3a://lake/in/cabs.csv", "s3a://lake/city", tmp_path, **hadoop_settings(s3)
        )
    )
    names = [info.path for info in store.get_file_info(fs.FileSelector("lake/city"))]
    assert {"lake/city/quality.html", "lake/city/regions.png", "lake/city/regions.geojson"} <= {
        *names
    }
    assert not list(tmp_path.glob("s3a*"))  # nothing lies on the local disk under a false name


def test_a_table_is_read_by_duckdb_pandas_polars_and_plain_spark(tmp_path: Path):
    said = work_with_plain_parquet(tmp_path)
    pointer = json.loads((tmp_path / "city/positions/CURRENT").read_text())
    folder = tmp_path / "city/positions" / pointer["version"]
    assert said["rows"] == pointer["rows"] == 60
    query = f"SELECT count(*) FROM '{folder}/*.parquet'"
    assert duckdb.connect().execute(query).fetchall() == [(60,)]
    assert len(pl.read_parquet(f"{folder}/*.parquet")) == 60
    assert len(pq.read_table(folder).to_pandas()) == 60
    import pandas as pd

    assert set(pd.read_parquet(folder)["user_id"]) == {"u0", "u1", "u2"}


def work_with_plain_parquet(tmp_path: Path) -> dict[str, Any]:
    write_source(tmp_path / "cabs.csv")
    said = work("parquet", str(tmp_path / "cabs.csv"), str(tmp_path / "city"), tmp_path)
    check(said)
    left = {path.name for path in (tmp_path / "city/positions").iterdir()}
    pointer = json.loads((tmp_path / "city/positions/CURRENT").read_text())
    assert left == {"CURRENT", pointer["version"], *pointer["before"]}
    return said
