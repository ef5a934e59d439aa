"""Tables as Delta and Iceberg and on S3, written by real Spark and read by others.

Formats of others need a process of their own: Spark must know its packages when it starts. They
come from Maven; where they cannot be had, the tests are skipped.
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
from pyspark.sql import SparkSession
from tests.support.s3_server import hadoop_settings, s3_server, store_at
from tests.support.table_work import use_tables

from nearcast.eventlog import VersionedTable
from nearcast.eventlog.stores import open_store, use_settings
from nearcast.pipeline.packages import package_settings
from nearcast.pipeline.tables.output_files import local_file, write_text

pytestmark = [pytest.mark.spark, pytest.mark.java, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
WORK = ROOT / "tests" / "support" / "table_work.py"
NOON = 1_714_564_800


def write_source(path: Path) -> None:
    rows = [
        f"u{user},{NOON + 86_400 * day + 60 * i},{8.5 + i * 1e-4:.5f},47.3"
        for day in range(2)
        for user in range(3)
        for i in range(10)
    ]
    path.write_text("user_id,t,lon,lat\n" + "\n".join(rows))


def work(folder: Path, settings: dict[str, str], *tasks: tuple[str, str, str]) -> list[Any]:
    """Return what each task found, in a session of their own with the packages of these formats."""
    paths = [path for _, *both in tasks for path in both]
    for kind, *_ in tasks:
        for name, value in package_settings(kind, paths).items():
            values = [*settings.get(name, "").split(","), *value.split(",")]
            settings = settings | {name: ",".join(dict.fromkeys(filter(None, values)))}
    run = subprocess.run(
        [sys.executable, "-P", str(WORK), json.dumps(settings), json.dumps(tasks)],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-4000:]
    found = json.loads(run.stdout.splitlines()[-1])
    if "skipped" in found:
        pytest.skip(f"Maven's packages cannot be had here: {found['skipped']}")
    return list(found)


def check(found: dict[str, Any]) -> None:
    assert found["ingest"] == {"kept": 60, "rejected": {}}
    assert found["rows"] == 60
    assert found["same"]
    assert found["intact"]
    assert found["first"] != found.get("second")
    assert found["regions"] > 0


def check_workers(found: dict[str, Any]) -> None:
    assert found["planned"] == [True, False]  # a column more: Spark writes
    assert found["renewed"]
    assert found["makers"] == ["parquet-cpp"]
    assert found["first day"] == 30
    assert found["one row"] == [1, 1]
    assert found["left"] == []


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


def test_tables_of_iceberg_and_delta_and_then_input_and_output_on_s3(tmp_path: Path, s3: str):
    """In one session, which has the packages of all; Iceberg at a path and in a catalog."""
    store = store_at(s3)
    write_source(tmp_path / "cabs.csv")
    with store.open_output_stream("lake/in/cabs.csv") as stream:
        stream.write((tmp_path / "cabs.csv").read_bytes())
    assert "AWS_ACCESS_KEY_ID" not in os.environ  # workers have Spark's credentials, or none
    of_iceberg, of_delta = (
        (kind, str(tmp_path / "cabs.csv"), str(tmp_path / kind)) for kind in ("iceberg", "delta")
    )
    on_s3 = ("parquet", "s3a://lake/in/cabs.csv", "s3a://lake/city")
    found = work(tmp_path, hadoop_settings(s3), of_iceberg, of_delta, on_s3)
    for one in found:
        check(one)
    iceberg, delta, _ = found
    assert iceberg["old"] == iceberg["named"] == delta["old"] == 60
    check_workers(iceberg["workers"])
    check_workers(delta["workers"])
    assert delta["workers"]["history"] == ["WRITE", "60"]
    assert (tmp_path / "iceberg/lake/city/positions/metadata").is_dir()
    assert (tmp_path / "delta/regions/_delta_log").is_dir()
    names = [info.path for info in store.get_file_info(fs.FileSelector("lake/city"))]
    assert {"lake/city/quality.html", "lake/city/regions.png", "lake/city/regions.geojson"} <= {
        *names
    }
    assert not list(tmp_path.glob("s3a*"))  # nothing lies on the local disk under a false name


def test_tables_lie_where_only_hadoop_opens_paths(tmp_path: Path):
    """With `viewfs`, which names other file systems; workers cannot open it."""
    disk = tmp_path / "disk"
    disk.mkdir()
    write_source(disk / "cabs.csv")
    mount = {"spark.hadoop.fs.viewfs.mounttable.all.link./data": f"file://{disk}"}
    on_hadoop = ("parquet", "viewfs://all/data/cabs.csv", "viewfs://all/data/city")
    (found,) = work(tmp_path, mount, on_hadoop)
    check(found)
    pointer = json.loads((disk / "city/positions/CURRENT").read_text())
    left = {path.name for path in (disk / "city/positions").iterdir()}
    assert {name for name in left if not name.endswith(".crc")} == {
        "CURRENT", pointer["version"], *pointer["before"]
    }  # fmt: skip
    assert {"quality.html", "regions.geojson", "regions.png"} <= {
        path.name for path in (disk / "city").iterdir()
    }


def test_a_table_is_read_by_duckdb_pandas_polars_and_plain_spark(
    spark: SparkSession, tmp_path: Path
):
    write_source(tmp_path / "cabs.csv")
    found = use_tables(spark, "parquet", str(tmp_path / "cabs.csv"), str(tmp_path / "city"))
    check(found)
    pointer = json.loads((tmp_path / "city/positions/CURRENT").read_text())
    left = {path.name for path in (tmp_path / "city/positions").iterdir()}
    assert left == {"CURRENT", pointer["version"], *pointer["before"]}
    folder = tmp_path / "city/positions" / pointer["version"]
    assert found["rows"] == pointer["rows"] == 60
    query = f"SELECT count(*) FROM '{folder}/*.parquet'"
    assert duckdb.connect().execute(query).fetchall() == [(60,)]
    assert len(pl.read_parquet(f"{folder}/*.parquet")) == 60
    assert len(pq.read_table(folder).to_pandas()) == 60
    import pandas as pd

    assert set(pd.read_parquet(folder)["user_id"]) == {"u0", "u1", "u2"}
    assert spark.read.parquet(str(folder)).count() == 60
