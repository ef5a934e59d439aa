"""The report of `ingest`, and mistakes in an input that are told before Spark has worked long."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from nearcast.model.errors import EnvironmentProblem, FileFormatError, MisuseError
from nearcast.pipeline.jobs.ingest import Cleaning, IngestJob
from nearcast.pipeline.sources.habits import habits_of
from nearcast.pipeline.sources.input_checks import check_source, separator_of
from nearcast.pipeline.sources.period import Period
from nearcast.pipeline.spark_errors import spark_errors_translated
from nearcast.pipeline.tables.transaction import read_table

COLUMNS = {name: name for name in ("user_id", "t", "lon", "lat")}
NOON = 1_714_564_800  # 2024-05-01 12:00 UTC


def sample(*times: object) -> pa.Table:
    places = pa.array([8.54] * len(times)), pa.array([47.38] * len(times))
    return pa.table({"t": pa.array(times), "lon": places[0], "lat": places[1]})


@pytest.mark.parametrize(
    ("unit", "factor"),
    [("days since 1970", 86_400), ("hours since 1970", 3_600), ("minutes since 1970", 60)],
)
def test_times_in_a_unit_that_cannot_be_meant_are_named(unit: str, factor: int):
    with pytest.raises(MisuseError, match=f"look like {unit}"):
        habits_of(sample(*((NOON + 864_000 * i) / factor for i in range(5))))


def test_the_habits_of_times_are_counted():
    texts = [
        "2024-05-01T12:00:00Z",
        "2024-05-01 12:00",
        str(NOON),
        f"{NOON}000",
        f"{NOON}000000000",
    ]
    assert habits_of(sample(*texts)).times == {
        "with a zone": 1, "without a zone": 1, "seconds since 1970": 1,
        "milliseconds since 1970": 1, "nanoseconds since 1970": 1,
    }  # fmt: skip


def test_an_area_in_which_exchanged_coordinates_also_lie_says_nothing():
    near_the_diagonal = pa.table({"t": [1, 2, 3], "lon": [10.0] * 3, "lat": [10.1] * 3})
    assert habits_of(near_the_diagonal).area is None
    area = habits_of(sample(1, 2, 3)).area
    assert area is not None
    assert area.has(8.60, 47.30)
    assert not area.has(47.38, 8.54)


@pytest.mark.parametrize("sign", [",", ";", "\t", "|"])
def test_the_separator_is_that_of_the_header(tmp_path: Path, sign: str):
    (tmp_path / "a.csv").write_text(sign.join(COLUMNS) + "\n")
    assert separator_of(str(tmp_path / "a.csv")) == sign
    check_source(str(tmp_path / "a.csv"), COLUMNS)


def test_parts_with_other_columns_or_damage_are_named_before_spark_starts(tmp_path: Path):
    rows = {"user_id": ["a"], "t": [NOON], "lon": [8.5], "lat": [47.3]}
    pq.write_table(pa.table(rows), tmp_path / "0.parquet")
    pq.write_table(pa.table(rows | {"t": ["noon"]}), tmp_path / "1.parquet")
    with pytest.raises(MisuseError, match=r"1\.parquet.*t \(string, elsewhere int64\)"):
        check_source(str(tmp_path), COLUMNS)
    (tmp_path / "1.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(FileFormatError, match=r"1\.parquet"):
        check_source(str(tmp_path), COLUMNS)
    for number, header in enumerate(["user_id,t,lon,lat", "user_id,t,lat,lon"]):
        (tmp_path / f"{number}.csv").write_text(f"{header}\na,{NOON},1,2\n")
    with pytest.raises(MisuseError, match="differ from part to part"):
        check_source(f"{tmp_path}/*.csv", COLUMNS)


def test_an_output_that_cannot_be_created_is_an_answer(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentProblem, match="file"), spark_errors_translated("out"):
        (tmp_path / "file" / "out").mkdir()


def write_days(path: Path, days: int, moved: float = 0.0) -> None:
    lines = [
        f"u{user};{NOON + 86_400 * day + 60 * i};{8.5 + moved + i * 1e-4:.5f};47.3"
        for day in range(days)
        for user in range(3)
        for i in range(10)
    ]
    bad = [f"u0;{NOON};47.3;8.5", "u1;never;8.5;47.3"]
    path.write_text("user_id;t;lon;lat\n" + "\n".join([*lines, *bad]))


@pytest.mark.spark
def test_a_report_tells_what_came_and_a_day_can_be_read_again(spark: SparkSession, tmp_path: Path):
    source, output = tmp_path / "cabs.csv", str(tmp_path / "city")
    write_days(source, 2)
    done = IngestJob([str(source)], output).run(spark)
    assert done.fields == {
        "kept": 60,
        "rejected": {"coordinates look swapped": 1, "time not understood": 1},
    }
    rows = [tuple(row) for row in read_table(spark, f"{output}/quality").collect()]
    assert ("rows", "in", "", 62) in rows
    assert ("times", "seconds since 1970", "", 61) in rows
    assert ("sample", "coordinates look swapped", f"u0, {NOON}, 47.3, 8.5", None) in rows
    page = (tmp_path / "city" / "quality.html").read_text()
    assert "coordinates look swapped" in page
    assert page.count("<rect") >= 10

    write_days(source, 2, moved=0.01)
    day = Cleaning(period=Period.of("", "2024-05-02", "UTC"))
    for _ in range(2):  # the second time changes nothing
        assert IngestJob([str(source)], output, cleaning=day).run(spark).fields["kept"] == 60 - 30
        found = read_table(spark, f"{output}/positions").selectExpr("t < '2024-05-02' old", "lon")
        least = found.groupBy("old").agg(F.count("lon"), F.min("lon")).orderBy("old")
        assert [tuple(row) for row in least.collect()] == [(False, 30, 8.51), (True, 30, 8.5)]
