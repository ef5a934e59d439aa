"""DataFrames in, DataFrames out: the same rows as the jobs, in the session of the caller."""

import re
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.support.spark_tables import EVENTS, SPACE, WISHES, expected_pairs, fixes

import nearcast.spark as ns
from nearcast.eventlog import POSITIONS, REGIONS
from nearcast.locality.layout.slow_regions import RegionRules
from nearcast.model.errors import MisuseError
from nearcast.pipeline.jobs import match_frames
from nearcast.pipeline.jobs.ingest import Cleaning, ingest
from nearcast.pipeline.jobs.regions import find_regions
from nearcast.pipeline.tables.transaction import read_table, spark_schema

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def tracks(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(fixes()).cache()


def rows(frame: DataFrame) -> list[tuple[object, ...]]:
    return sorted(map(tuple, frame.collect()), key=repr)


def test_clean_tracks_are_those_of_ingest(spark: SparkSession, tracks: DataFrame, tmp_path: Path):
    ingest(tracks, str(tmp_path), Cleaning())
    clean = ns.clean_tracks(tracks.repartition(3))
    assert clean.schema.simpleString() == spark_schema(POSITIONS).simpleString()
    assert rows(clean) == rows(read_table(spark, str(tmp_path / "positions")))
    dropped = ns.dropped_fixes(tracks)
    assert rows(dropped) == rows(read_table(spark, str(tmp_path / "rejected")))
    assert {row.reason for row in dropped.collect()} >= {"no time", "impossible speed"}


def test_slow_regions_are_those_of_the_job(spark: SparkSession, tracks: DataFrame, tmp_path: Path):
    clean = ns.clean_tracks(tracks).cache()
    found = ns.slow_regions(clean, cell_m=30.0)
    find_regions(clean, str(tmp_path), 30.0, RegionRules())
    assert found.columns == REGIONS.names
    assert rows(found) == rows(read_table(spark, str(tmp_path / "regions")))
    assert found.count() > 0


def test_a_plan_has_a_row_for_each_leaf_and_says_who_holds_it(tracks: DataFrame):
    clean = ns.clean_tracks(tracks).cache()
    regions = ns.slow_regions(clean, cell_m=30.0)
    rules = ns.PlanRules(leaves=8, brokers=2, depth=5)
    found = ns.lay_out(clean, regions, rules=rules)
    leaves = ns.plan(clean, regions, rules=rules).orderBy("leaf").collect()
    assert [row.key for row in leaves] == [leaf.key for leaf in found.plan.leaves]
    assert {row.broker for row in leaves} == {0, 1}


@pytest.mark.parametrize("most_bytes", [None, 300])
def test_match_and_top_k_are_those_of_the_definition(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, most_bytes: int | None
):
    if most_bytes is not None:  # too large to send: matched by place
        monkeypatch.setattr(match_frames, "MOST_BYTES", most_bytes)
    events, wishes = (spark.createDataFrame(pa.Table.from_pylist(one)) for one in (EVENTS, WISHES))
    pairs = ns.match(events.repartition(3), wishes, SPACE)
    assert pairs.columns == ["event_id", "subscription_id"]
    assert {tuple(row) for row in pairs.collect()} == expected_pairs()
    counts = {tuple(row) for row in ns.match_counts(events.repartition(3), wishes, SPACE).collect()}
    assert counts == set(Counter(key for _, key in expected_pairs()).items())
    best = ns.top_k(events, wishes, SPACE, 2).collect()
    assert {(row[0], row[1]) for row in best} <= expected_pairs()
    assert {row.rank for row in best} == {1, 2}
    bad = events.selectExpr("event_id", "lon + 1000D AS lon", "lat")
    assert {row.reason for row in ns.unmatched(bad, wishes, SPACE).collect()} == {
        "lon: outside 0 to 100"
    }


def test_what_is_missing_is_said_with_what_to_do(spark: SparkSession):
    with pytest.raises(MisuseError, match=r"no column 'user_id'.*withColumnsRenamed"):
        ns.clean_tracks(spark.sql("SELECT 1 AS cab"))


def test_functions_in_sql(spark: SparkSession, tracks: DataFrame):
    plan = ns.lay_out(ns.clean_tracks(tracks), rules=ns.PlanRules(leaves=8, depth=5)).plan
    assert "nearcast_leaf" in ns.register(spark, plan=plan)
    middle = (plan.space.west + plan.space.east) / 2, (plan.space.south + plan.space.north) / 2
    row = spark.sql(f"""
        SELECT nearcast_topic_matches('a/+', 'a/b') AS yes, nearcast_topic_matches('a', 'b') AS no,
               nearcast_in_area('circle(8.5, 47.3, 500m)', 8.5, 47.301) AS near,
               nearcast_in_area('bbox(1, 2, 3, 4)', CAST(NULL AS double), 3) AS nothing,
               nearcast_distance_m(8.5, 47.3, 8.5, 47.301) AS metres,
               nearcast_cell(0.0015, -0.0015, 111.3D, 0D) AS cell,
               nearcast_leaf({middle[0]}D, {middle[1]}D) AS leaf,
               nearcast_leaf(179D, -89D) AS outside
    """).first()
    assert row is not None
    assert (row.yes, row.no, row.near, row.nothing) == (True, False, True, None)
    assert row.metres == pytest.approx(111.2, abs=0.2)
    assert (row.cell, row.leaf, row.outside) == ("1:-2", plan.leaf_at(*middle).number, None)


ALONE = """
import sys
class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"nats", "uvloop", "grpc", "paho", "matplotlib"}:
            raise ImportError(name + " is not installed")
sys.meta_path.insert(0, Refused())
import nearcast.spark
print(sorted(name for name in sys.modules if name.startswith("nearcast.server")))
"""


def test_the_library_is_imported_without_nats_and_uvloop():
    run = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout.strip()) == (0, "[]"), run.stderr


def test_rates_are_those_of_the_tables_of_a_log(spark: SparkSession):
    begun = datetime(2026, 3, 2, 8, tzinfo=UTC)
    published = [
        ("n", f"t/{n % 2}", begun + timedelta(seconds=n), True, "client") for n in range(101)
    ]
    events = spark.createDataFrame(
        published, "node string, topic string, t timestamp, retain boolean, way string"
    )
    changes = spark.createDataFrame(
        [("n", 1, begun, "ann", "t/+", True, False),
         ("n", 2, begun + timedelta(seconds=50), "ann", "t/+", False, False)],
        "node string, sequence bigint, t timestamp, client string, filter string, added boolean, "
        "restored boolean",
    )  # fmt: skip
    found = {row.topic: row for row in ns.rates(events.repartition(3), changes).collect()}
    assert {topic: row.publishes for topic, row in found.items()} == {"t/0": 51, "t/1": 50}
    assert found["t/0"].publish_per_s == pytest.approx(0.5, rel=0.05)
    assert found["t/1"].subscribe_per_s == pytest.approx(1 / 100)
    assert found["t/1"].leave_per_s == pytest.approx(1 / 50)


def test_the_examples_of_the_page_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    pq.write_table(fixes(), tmp_path / "cabs.parquet")
    page = (Path(__file__).parents[2] / "docs" / "spark.md").read_text(encoding="utf-8")
    monkeypatch.setattr(SparkSession.builder, "getOrCreate", lambda: spark, raising=False)
    row = {"event_id": 1, "lon": 8.54, "lat": 47.371, "price": 3.0, "kind": "food"}
    names: dict[str, Any] = {"events": spark.createDataFrame([row])}
    for block in re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
        exec(block.replace("cabs.parquet", str(tmp_path / "cabs.parquet")), names)
    assert names["leaves"].count() > 1
    assert {row.subscription_id for row in names["best"].collect()} == {1, 2}
