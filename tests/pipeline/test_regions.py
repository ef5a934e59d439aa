"""Regions are found where things stand, whatever the partitioning."""

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from nearcast.eventlog import CELLS, POSITIONS
from nearcast.locality.slow_regions import CellGrid, RegionRules
from nearcast.model.errors import MisuseError
from nearcast.pipeline.pictures import draw_regions
from nearcast.pipeline.regions import cells_by_hour, find_regions, write_geojson
from nearcast.pipeline.tables import conform, read_table, spark_schema

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
    draw_regions(read_table(spark, f"{tmp_path}/cells"), found, tmp_path / "regions.png")
    assert (tmp_path / "regions.png").stat().st_size > 5_000


@pytest.mark.parametrize("partitions", [1, 2, 7])
def test_the_cells_do_not_depend_on_partitions(spark: SparkSession, partitions: int):
    grid = CellGrid(50.0, 47.3)
    positions = city(spark)
    expected = sorted(cells_by_hour(positions, grid, RegionRules()).collect())
    found = cells_by_hour(positions.repartition(partitions), grid, RegionRules())
    assert found.schema.fieldNames() == CELLS.names
    assert sorted(found.collect()) == expected


def test_no_positions_are_said(spark: SparkSession, tmp_path: Path):
    empty = spark.createDataFrame([], spark_schema(POSITIONS))
    with pytest.raises(MisuseError, match="no positions"):
        find_regions(empty, str(tmp_path), 50.0, RegionRules())


def test_a_table_of_something_else_is_refused(spark: SparkSession, tmp_path: Path):
    with pytest.raises(MisuseError, match="no column 'user_id'; expected it; its columns are x"):
        find_regions(spark.sql("SELECT 1 AS x"), str(tmp_path), 50.0, RegionRules())
    assert list(tmp_path.iterdir()) == []
