"""A real Spark Connect server: the library and the commands, without Java in the client."""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.connect_server import connect_server
from tests.support.spark_tables import EVENTS, SPACE, WISHES, expected_pairs, fixes

from nearcast.eventlog import VersionedTable
from nearcast.model.errors import EnvironmentProblem
from nearcast.pipeline.session import check_master, check_spark

pytestmark = [pytest.mark.spark, pytest.mark.java]

CLIENT = """
import json, pickle, sys
import pyarrow as pa
from pyspark.sql import SparkSession
import nearcast.spark as ns
EVENTS, SPACE, WISHES, fixes = pickle.load(open(sys.argv[2], "rb"))

spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
assert "connect" in type(spark).__module__
clean = ns.clean_tracks(spark.createDataFrame(fixes))
regions = ns.slow_regions(clean, cell_m=30.0)
found = ns.lay_out(clean, regions, rules=ns.PlanRules(leaves=8, depth=5))
names = ns.register(spark, plan=found.plan)
events, wishes = (spark.createDataFrame(pa.Table.from_pylist(one)) for one in (EVENTS, WISHES))
from nearcast.pipeline.jobs import match_frames
pairs = sorted(map(tuple, ns.match(events, wishes, SPACE).collect()))
match_frames.MOST_BYTES = 300
by_place = sorted(map(tuple, ns.match(events, wishes, SPACE).collect()))
print(json.dumps({
    "clean": clean.count(), "dropped": ns.dropped_fixes(spark.createDataFrame(fixes)).count(),
    "regions": regions.count(), "leaves": ns.leaves(spark, found.plan).count(),
    "pairs": pairs, "by_place": by_place, "top": ns.top_k(events, wishes, SPACE, 1).count(),
    "in_area": spark.sql("SELECT nearcast_in_area('bbox(1, 2, 3, 4)', 2, 3) AS x").first().x,
    "gateway": __import__("pyspark").SparkContext._gateway is not None,
}))
spark.stop()
"""
CONFIG = """
[[space]]
name = "town"
topics = "town/#"
longitude = "lon"
latitude = "lat"
[space.attributes]
lon = { low = 0, high = 100 }
lat = { low = 0, high = 90 }
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with connect_server(tmp_path_factory.mktemp("connect")) as address:
        yield address


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "JAVA_HOME": "/nowhere"}
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip


def test_the_library_works_and_no_java_is_asked_for(server: str, tmp_path: Path):
    program = tmp_path / "client.py"
    program.write_text(CLIENT)
    (tmp_path / "tables").write_bytes(pickle.dumps((EVENTS, SPACE, WISHES, fixes())))
    done = run(str(program), server, str(tmp_path / "tables"))
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    wanted = [list(pair) for pair in sorted(expected_pairs())]  # type: ignore[type-var]
    assert (told["pairs"], told["by_place"]) == (wanted, wanted)
    assert told["clean"] + told["dropped"] == fixes().num_rows
    assert told["dropped"] == 2
    assert told["regions"] > 0
    assert told["leaves"] >= 4
    assert told["in_area"] is True
    assert told["gateway"] is False


def test_the_commands_take_its_address(server: str, tmp_path: Path):
    (tmp_path / "nearcast.toml").write_text(CONFIG)
    for name, rows in (("events", EVENTS), ("wishes", WISHES)):
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / f"{name}.parquet")
    done = run(
        *("-c", "from nearcast.cli import main; main()", "pipeline", "match", "--master", server, "--space", "town", "--json"),
        *("--config", str(tmp_path / "nearcast.toml"), "--output", str(tmp_path / "found")),
        *("--input", str(tmp_path / "events.parquet")),
        *("--subscriptions", str(tmp_path / "wishes.parquet"), "--topic", "town/x"),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout)["deliveries"] == len(expected_pairs())
    table = pq.read_table(VersionedTable(str(tmp_path / "found" / "deliveries")).current_path())
    pairs = zip(*(table[name].to_pylist() for name in ("event_id", "subscription_id")), strict=True)
    assert set(pairs) == expected_pairs()


def test_a_server_that_does_not_answer_and_a_missing_protocol_are_said(
    monkeypatch: pytest.MonkeyPatch,
):
    with pytest.raises(EnvironmentProblem, match="no Spark Connect server answers"):
        check_master("sc://127.0.0.1:1")
    monkeypatch.setattr("nearcast.pipeline.session._is_installed", lambda _: False)
    with pytest.raises(EnvironmentProblem, match=r"grpc, .*nearcast\[spark,connect\]"):
        check_spark("sc://127.0.0.1:1")
