"""Regions are found where things stand, whatever the partitioning."""

import math
import random
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from nearcast.eventlog import CELLS, POSITIONS
from nearcast.locality.layout.slow_regions import CellGrid, CellUse, RegionRules
from nearcast.model.errors import MisuseError, OutOfRangeError
from nearcast.pipeline.jobs.region_picture import draw_regions
from nearcast.pipeline.jobs.regions import (
    cells_by_hour,
    find_regions,
    slow_and_dense,
    write_geojson,
)
from nearcast.pipeline.tables.transaction import conform, read_table, spark_schema

pytestmark = pytest.mark.spark


def city(spark: SparkSession) -> DataFrame:
    """Ten cabs that wait at a rank for an hour and then cross the city quickly."""
    return spark.sql("""
        SELECT concat('cab', u) AS user_id, timestamp_seconds(1714557600 + 60 * i) AS t,
               CASE WHEN i < 60 THEN 8.5 + 0.00001 * (i % 3) ELSE 8.5 + 0.01 * (i - 59) END AS lon,
               47.3 + 0.0001 * u AS lat, 0 AS trip,
               CASE WHEN i = 0 THEN 0.0 ELSE 60.0 END AS step_s,
               CASE WHEN i = 0 THEN 0.0 WHEN i < 60 THEN 1.1 ELSE 750.0 END AS step_m
        FROM (SELECT explode(sequence(0, 9)) AS u), (SELECT explode(sequence(0, 99)) AS i)
    """)


def test_the_rank_is_the_region(spark: SparkSession, tmp_path: Path):
    positions = conform(city(spark), POSITIONS)
    found = find_regions(positions, str(tmp_path), 50.0, RegionRules())
    (region,) = found.regions
    west, south, east, north = region.bounds
    assert west <= 8.5 <= east
    assert south <= 47.3
    assert north >= 47.3009
    assert region.use.dwell_s == pytest.approx(10 * 59 * 60)
    row = read_table(spark, f"{tmp_path}/regions").first()
    assert row is not None
    assert row["mean_speed_mps"] < 0.1
    write_geojson(found, tmp_path / "regions.geojson")
    assert '"Polygon"' in (tmp_path / "regions.geojson").read_text()
    cells = read_table(spark, f"{tmp_path}/cells")
    draw_regions(cells, found.grid, found.regions, tmp_path / "regions.png")
    assert (tmp_path / "regions.png").stat().st_size > 5_000


@pytest.mark.parametrize("partitions", [1, 7])
def test_the_cells_do_not_depend_on_partitions(spark: SparkSession, partitions: int):
    grid = CellGrid(50.0, 47.3)
    positions = city(spark)
    expected = sorted(cells_by_hour(positions, grid, RegionRules()).collect())
    found = cells_by_hour(positions.repartition(partitions), grid, RegionRules())
    assert found.schema.fieldNames() == CELLS.names
    assert sorted(found.collect()) == expected


def random_positions(chance: random.Random, count: int) -> list[dict[str, Any]]:
    """Steps of halves of thousandths, instants around 1970, cells on both sides of 0."""
    return [
        {
            "user_id": f"u{i % 7}",
            "t": datetime(1970, 1, 1, tzinfo=UTC)
            + timedelta(microseconds=chance.randrange(-(10**11), 10**11)),
            "lon": chance.choice([-1, 1]) * chance.random() * 0.004,
            "lat": chance.choice([-1, 1]) * chance.random() * 0.004,
            "trip": 0,
            "step_s": chance.choice([0.0, 0.0005, 0.25, 10.0, 60.0]),
            "step_m": chance.choice([0.0, 0.0015, 0.5, 15.0, chance.random() * 600]),
        }
        for i in range(count)
    ]


def half_up(value: float) -> int:
    return int(Decimal(value).quantize(Decimal(1), ROUND_HALF_UP))


def test_cells_and_slow_ones_are_those_of_the_definition(spark: SparkSession):
    rules, grid = RegionRules(slow_share=0.3, density=1.1), CellGrid(150.0, 0.0)
    positions = random_positions(random.Random(3), 400)
    cells: dict[tuple[int, int, int], list[int]] = {}
    for row in positions:
        place = math.floor(row["lon"] / grid.lon_step), math.floor(row["lat"] / grid.lat_step)
        sums = cells.setdefault((*place, row["t"].hour), [0, 0, 0, 0])
        step_ms = half_up(row["step_s"] * 1e3)
        is_slow = row["step_m"] <= row["step_s"] * rules.slow_mps
        more = (1, step_ms, step_ms if is_slow else 0, half_up(row["step_m"] * 1e3))
        sums[:] = [before + each for before, each in zip(sums, more, strict=True)]
    frame = spark.createDataFrame(pa.Table.from_pylist(positions, POSITIONS))
    found = cells_by_hour(frame, grid, rules)
    assert {tuple(row)[:3]: list(row)[3:] for row in found.collect()} == cells

    totals: dict[tuple[int, int], list[int]] = {}
    for (column, line, _), (_, *sums) in cells.items():
        before = totals.get((column, line), [0, 0, 0])
        totals[column, line] = [a + b for a, b in zip(before, sums, strict=True)]
    mean = sum(dwell for dwell, *_ in totals.values()) / len(totals)
    slow = {
        cell: CellUse(*(each / 1e3 for each in sums))
        for cell, sums in totals.items()
        if sums[0] >= rules.density * mean and sums[1] >= sums[0] * rules.slow_share
    }
    assert slow_and_dense(found, rules) == slow
    assert 5 < len(slow) < len(totals) / 2


def test_where_no_time_was_spent_nothing_is_slow(spark: SparkSession):
    still = city(spark).selectExpr("* EXCEPT (step_s)", "0D AS step_s")
    cells = cells_by_hour(still, CellGrid(50.0, 47.3), RegionRules())
    assert slow_and_dense(cells, RegionRules()) == {}


@pytest.mark.parametrize("cell_m", [0.01, 0.0, -3.0])
def test_cells_that_are_none_are_refused(spark: SparkSession, tmp_path: Path, cell_m: float):
    with pytest.raises(OutOfRangeError):
        find_regions(conform(city(spark), POSITIONS), str(tmp_path), cell_m, RegionRules())
    assert list(tmp_path.iterdir()) == []


def test_the_ends_of_the_earth_have_cells(spark: SparkSession):
    rows = [(-180.0, -89.9), (179.999, 89.9), (0.0, 0.0), (-1e-9, -1e-9)]
    frame = spark.createDataFrame(rows, "lon double, lat double").selectExpr(
        "*", "timestamp_seconds(0) AS t", "1D AS step_s", "0D AS step_m"
    )
    grid = CellGrid(1.0, 60.0)
    found = cells_by_hour(frame, grid, RegionRules()).collect()
    assert {(row["column"], row["row"]) for row in found} == {
        (math.floor(lon / grid.lon_step), math.floor(lat / grid.lat_step)) for lon, lat in rows
    }


def test_no_positions_are_said(spark: SparkSession, tmp_path: Path):
    empty = spark.createDataFrame([], spark_schema(POSITIONS))
    with pytest.raises(MisuseError, match="no positions"):
        find_regions(empty, str(tmp_path), 50.0, RegionRules())


def test_a_table_of_something_else_is_refused(spark: SparkSession, tmp_path: Path):
    with pytest.raises(MisuseError, match="no column 'user_id'; expected it; its columns are x"):
        find_regions(spark.sql("SELECT 1 AS x"), str(tmp_path), 50.0, RegionRules())
    assert list(tmp_path.iterdir()) == []
