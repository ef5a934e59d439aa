"""Dirty input becomes a clean table; what is dropped is kept with the reason."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import shapely
from pyspark.sql import DataFrame, Row, SparkSession

from nearcast.model.errors import FileFormatError, MisuseError
from nearcast.pipeline.jobs.ingest import COLUMNS, Cleaning, ingest
from nearcast.pipeline.sources.files import read_source
from nearcast.pipeline.tables.transaction import read_table

pytestmark = pytest.mark.spark
SAME = {name: name for name in COLUMNS}

DIRTY = """\
user_id,t,lon,lat
a,2024-05-01T10:00:00Z,8.5,47.3
a,2024-05-01T12:00:10+02:00,8.5001,47.3
a,2024-05-01T10:00:10Z,8.5002,47.3
a,2024-05-01T10:00:20Z,9.9,47.3
a,2024-05-01T10:00:30Z,8.5003,47.3
a,2024-05-01T11:00:30Z,9.9,47.3
,2024-05-01T10:00:00Z,8.5,47.3
b,yesterday,8.5,47.3
b,,8.5,47.3
b,2024-05-01T10:00:00Z,x,47.3
b,2024-05-01T10:00:00Z,,47.3
b,2024-05-01T10:00:00Z,NaN,47.3
b,2024-05-01T10:00:00Z,8.5,97.3
b,1714557600,8.5,47.3
b,1714557601000,8.5,47.3
b,2024-05-01 10:00:02,8.5,47.3
"""


def test_every_kind_of_dirt_is_dropped_with_its_reason(spark: SparkSession, tmp_path: Path):
    (tmp_path / "dirty.csv").write_text(DIRTY)
    source = read_source(spark, str(tmp_path / "dirty.csv"), SAME)
    done = ingest(source, str(tmp_path / "out"), Cleaning())
    assert done.rejected == {
        "duplicate": 1,
        "impossible speed": 1,
        "no user": 1,
        "time not understood": 1,
        "no time": 1,
        "coordinates are no numbers": 2,
        "no coordinates": 1,
        "coordinates outside the globe": 1,
    }
    kept = read_table(spark, str(tmp_path / "out/positions")).orderBy("user_id", "t").collect()
    assert [(row["user_id"], row["trip"], row["step_s"]) for row in kept] == [
        ("a", 0, 0.0),
        ("a", 0, 10.0),
        ("a", 0, 20.0),
        ("a", 1, 0.0),
        ("b", 0, 0.0),
        ("b", 0, 1.0),
        ("b", 0, 1.0),
    ]
    aside = read_table(spark, str(tmp_path / "out/rejected")).collect()
    told = {row["reason"]: tuple(row[name] for name in COLUMNS) for row in aside}
    assert told["time not understood"] == ("b", "yesterday", "8.5", "47.3")
    assert told["no time"] == ("b", None, "8.5", "47.3")
    assert told["impossible speed"] == ("a", "2024-05-01 10:00:20", "9.9", "47.3")
    assert told["duplicate"] == ("a", "2024-05-01 10:00:10", "8.5002", "47.3")
    assert len(aside) == sum(done.rejected.values())


@pytest.mark.parametrize("partitions", [1, 7])
def test_the_verdicts_do_not_depend_on_partitions(spark: SparkSession, tmp_path: Path, partitions):
    (tmp_path / "dirty.csv").write_text(DIRTY)
    source = read_source(spark, str(tmp_path / "dirty.csv"), SAME).repartition(partitions)
    done = ingest(source, str(tmp_path / "out"), Cleaning())
    assert done.kept == 7
    assert done.rejected["duplicate"] == 1


def ingested(source: DataFrame, directory: Path, cleaning: Cleaning | None = None) -> Row:
    """Return the only position that ingesting the source writes."""
    output = str(directory / "out")
    ingest(source, output, cleaning or Cleaning())
    [row] = read_table(source.sparkSession, f"{output}/positions").collect()
    return row


def test_instants_without_a_zone_are_in_the_zone_of_the_call(spark: SparkSession, tmp_path: Path):
    (tmp_path / "local.csv").write_text("user_id,t,lon,lat\na,2024-05-01 12:00:00,8.5,47.3\n")
    source = read_source(spark, str(tmp_path / "local.csv"), SAME)
    row = ingested(source, tmp_path, Cleaning(timezone="Europe/Zurich"))
    assert row["t"].astimezone(UTC) == datetime(2024, 5, 1, 10, tzinfo=UTC)


def test_other_formats_and_column_names(spark: SparkSession, tmp_path: Path):
    rows = [{"cab": "a", "when": 1714557600, "x": 8.5, "y": 47.3}]
    (tmp_path / "cabs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    names = {"user_id": "cab", "t": "when", "lon": "x", "lat": "y"}
    assert ingested(read_source(spark, str(tmp_path / "cabs.jsonl"), names), tmp_path)

    wkb = shapely.to_wkb(shapely.Point(8.5, 47.3))
    table = pa.table({"user_id": ["a"], "t": [1714557600], "geometry": pa.array([wkb])})
    pq.write_table(table, tmp_path / "cabs.geoparquet")
    row = ingested(read_source(spark, str(tmp_path / "cabs.geoparquet"), SAME), tmp_path)
    assert (row["lon"], row["lat"]) == (8.5, 47.3)


def test_a_missing_column_is_named_with_those_that_are_there(spark: SparkSession, tmp_path: Path):
    (tmp_path / "x.csv").write_text("cab,t,lon,lat\na,1,2,3\n")
    with pytest.raises(MisuseError, match=r"no column 'user_id'; expected .* cab, t, lon, lat"):
        read_source(spark, str(tmp_path / "x.csv"), SAME)


def test_swapped_coordinates_are_recognised_and_nothing_is_written(
    spark: SparkSession, tmp_path: Path
):
    (tmp_path / "x.csv").write_text("user_id,t,lon,lat\na,1714557600,37.7,-122.4\n")
    source = read_source(spark, str(tmp_path / "x.csv"), SAME)
    with pytest.raises(MisuseError, match="look swapped"):
        ingest(source, str(tmp_path / "out"), Cleaning())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", ["", "user_id,t,lon,lat\n"])
def test_an_empty_input_is_said(spark: SparkSession, tmp_path: Path, content: str):
    (tmp_path / "x.csv").write_text(content)
    with pytest.raises(MisuseError, match=r"empty|no column"):
        ingest(read_source(spark, str(tmp_path / "x.csv"), SAME), str(tmp_path / "out"), Cleaning())


def test_a_half_written_file_and_a_missing_one_are_told_apart(spark: SparkSession, tmp_path: Path):
    table = pa.table(
        {"user_id": ["a"] * 999, "t": [1] * 999, "lon": [0.0] * 999, "lat": [0.0] * 999}
    )
    pq.write_table(table, tmp_path / "whole.parquet")
    content = (tmp_path / "whole.parquet").read_bytes()
    (tmp_path / "half.parquet").write_bytes(content[: len(content) // 2])
    with pytest.raises(FileFormatError, match=r"half\.parquet: it cannot be read"):
        read_source(spark, str(tmp_path / "half.parquet"), SAME)
    with pytest.raises(MisuseError, match="no such file"):
        read_source(spark, str(tmp_path / "none.parquet"), SAME)


def test_an_interrupted_run_leaves_the_old_table(spark: SparkSession, tmp_path: Path):
    (tmp_path / "good.csv").write_text("user_id,t,lon,lat\na,1714557600,8.5,47.3\n")
    (tmp_path / "bad.csv").write_text("user_id,t,lon,lat\na,x,8.5,47.3\n")
    for name in ("good", "bad"):
        source = read_source(spark, str(tmp_path / f"{name}.csv"), SAME)
        if name == "good":
            ingest(source, str(tmp_path / "out"), Cleaning())
            continue
        with pytest.raises(MisuseError, match="no row is good"):
            ingest(source, str(tmp_path / "out"), Cleaning())
    assert read_table(spark, str(tmp_path / "out/positions")).count() == 1


def test_parts_of_a_second_stay_in_what_is_dropped(spark: SparkSession, tmp_path: Path):
    (tmp_path / "x.csv").write_text(
        "user_id,t,lon,lat\na,1714557600.25,8.5,47.3\na,1714557600.25,8.6,47.3\n"
        "a,1714557610,8.5,47.3\na,1714557610,8.6,47.3\n"
    )
    ingest(read_source(spark, str(tmp_path / "x.csv"), SAME), str(tmp_path / "out"), Cleaning())
    aside = read_table(spark, str(tmp_path / "out/rejected")).orderBy("t").collect()
    assert [row["t"] for row in aside] == ["2024-05-01 10:00:00.25", "2024-05-01 10:00:10"]


@pytest.mark.parametrize("partitions", [1, 3])
def test_rows_that_cannot_be_read_do_not_part_a_track(
    spark: SparkSession, tmp_path: Path, partitions: int
):
    lines = ["user_id,t,lon,lat"]
    for second in range(40):
        lines.append(f"a,{1714557600 + second},8.5,47.3")
        lines.append(f"a,{1714557600 + second},{'x' if second % 2 else ''},47.3")
    (tmp_path / "x.csv").write_text("\n".join(lines))
    source = read_source(spark, str(tmp_path / "x.csv"), SAME).repartition(partitions)
    done = ingest(source, str(tmp_path / "out"), Cleaning())
    assert done.rejected == {"no coordinates": 20, "coordinates are no numbers": 20}
    kept = read_table(spark, str(tmp_path / "out/positions")).orderBy("t").collect()
    assert [row["step_s"] for row in kept] == [0.0] + [1.0] * 39
