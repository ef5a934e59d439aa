"""`regions`: sums time and speed per cell and hour from positions, and finds the slow regions.

Spark sums; `nearcast/locality/layout/slow_regions.py` joins cells into regions (paper 0).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from nearcast.eventlog import CELLS, POSITIONS, REGIONS
from nearcast.locality.layout.slow_regions import (
    Cell,
    CellGrid,
    CellUse,
    RegionRules,
    SlowRegion,
    slow_regions,
)
from nearcast.model.errors import LimitError, MisuseError, OutOfRangeError
from nearcast.pipeline.job import JobResult
from nearcast.pipeline.jobs.region_picture import draw_regions
from nearcast.pipeline.sources.column_types import check_present
from nearcast.pipeline.sources.input_checks import check_table
from nearcast.pipeline.tables.output_files import output_folder
from nearcast.pipeline.tables.places import write_boxes
from nearcast.pipeline.tables.transaction import conform, read_table, transaction

MOST_CELLS = 1_000_000
_PLACE_BITS, _HOUR_BITS = 29, 5
_MIDDLE = 1 << (_PLACE_BITS - 1)  # offset that makes columns and rows non-negative


@dataclass(frozen=True, slots=True)
class RegionsFound:
    """The result of the job."""

    grid: CellGrid
    regions: list[SlowRegion]
    slow_cells: dict[Cell, CellUse]


@dataclass(frozen=True, slots=True)
class RegionsJob:
    """Finds the slow regions of a table of positions; draws them as a map and a picture."""

    name: ClassVar[str] = "regions"
    positions: str
    output: str
    cell_m: float = 150.0
    rules: RegionRules = field(default_factory=RegionRules)

    def check(self) -> None:
        """Check that the table exists."""
        check_table(self.positions)

    def run(self, spark: SparkSession) -> JobResult:
        """Write the tables `cells` and `regions`, `regions.geojson` and `regions.png`."""
        positions, output = read_table(spark, self.positions), self.output
        found = find_regions(positions, output, self.cell_m, self.rules)
        cells = read_table(spark, f"{output}/cells")
        with output_folder(output) as folder:
            write_geojson(found, folder / "regions.geojson")
            write_boxes(regions_table(found.regions), folder / "regions.parquet")
            draw_regions(cells, found.grid, found.regions, folder / "regions.png")
        counts = {"regions": len(found.regions), "slow_cells": len(found.slow_cells)}
        return JobResult(
            counts,
            [
                f"{counts['regions']} slow regions of {counts['slow_cells']} slow cells",
                *(f"  {number}: {_told(one)}" for number, one in enumerate(found.regions[:10])),
                f"Map: {output}/regions.geojson; picture: {output}/regions.png",
            ],
        )


def _told(region: SlowRegion) -> str:
    west, south, east, north = region.bounds
    use = region.use
    return (
        f"{use.dwell_s / 3600:,.0f} h at {use.distance_m / use.dwell_s:.1f} m/s in "
        f"[{west:.4f}, {east:.4f}] x [{south:.4f}, {north:.4f}]"
    )


def find_regions(
    positions: DataFrame, output: str, cell_m: float, rules: RegionRules
) -> RegionsFound:
    """Write the tables `cells` and `regions` under `output`; return the regions."""
    spark = positions.sparkSession
    grid = grid_of(positions, cell_m)
    with transaction() as written:
        with _many_groups(spark):
            cells = written.write(cells_by_hour(positions, grid, rules), f"{output}/cells", CELLS)
        chosen = slow_and_dense(cells.read(spark), rules)
        found = slow_regions(chosen, rules, grid)
        written.write_small(regions_table(found), f"{output}/regions", spark)
    return RegionsFound(grid, found, chosen)


def grid_of(positions: DataFrame, cell_m: float) -> CellGrid:
    """Return the grid of cells for these positions; raise MisuseError if there is none."""
    todo = "Give a table that 'nearcast pipeline ingest' wrote"
    check_present(positions, POSITIONS.names, "positions", todo)
    return _checked(CellGrid(cell_m, _middle_latitude(positions)))


def regions_table(found: Sequence[SlowRegion]) -> pa.Table:
    """Return regions as a table; the schema is REGIONS."""
    return pa.Table.from_pylist([_row(i, region) for i, region in enumerate(found)], REGIONS)


def _checked(grid: CellGrid) -> CellGrid:
    """Return the grid; raise OutOfRangeError if its cell numbers do not fit the key."""
    if 180.0 / min(grid.lon_step, grid.lat_step) >= _MIDDLE:
        raise OutOfRangeError(f"{grid.cell_m:g}", where="--cell", expected="cells of 0.1 m or more")
    return grid


def cells_by_hour(positions: DataFrame, grid: CellGrid, rules: RegionRules) -> DataFrame:
    """Return one row per cell and hour of day (UTC); the schema is CELLS.

    A step counts in the cell and hour where it ends. Sums are of whole milliseconds and
    millimetres, so that they are the same under any partitioning of `positions`. One shuffle, of
    partial sums.
    """
    is_slow = F.col("step_m") <= F.col("step_s") * F.lit(float(rules.slow_mps))
    step_ms, step_mm = _thousandths("step_s"), _thousandths("step_m")
    steps = positions.select(
        _key(grid).alias("key"),
        step_ms.alias("step_ms"),
        F.when(is_slow, step_ms).otherwise(F.lit(0)).alias("slow_ms"),
        step_mm.alias("step_mm"),
    )
    sums = steps.groupBy("key").agg(
        F.count(F.lit(1)).alias("fixes"),
        F.sum("step_ms").alias("dwell_ms"),
        F.sum("slow_ms").alias("slow_ms"),
        F.sum("step_mm").alias("distance_mm"),
    )
    columns = {
        "column": F.shiftright("key", _PLACE_BITS + _HOUR_BITS) - F.lit(_MIDDLE),
        "row": F.shiftright("key", _HOUR_BITS).bitwiseAND(F.lit(2 * _MIDDLE - 1)) - F.lit(_MIDDLE),
        "hour": F.col("key").bitwiseAND(F.lit((1 << _HOUR_BITS) - 1)),
    }
    return conform(sums.withColumns(columns), CELLS)


def _key(grid: CellGrid) -> Column:
    """Return column, row and hour packed into one number.

    Spark groups faster by one key than by three.
    """
    column = F.floor(F.col("lon") / F.lit(grid.lon_step)) + F.lit(_MIDDLE)
    row = F.floor(F.col("lat") / F.lit(grid.lat_step)) + F.lit(_MIDDLE)
    hour = F.expr("pmod(unix_micros(t), 86400000000) div 3600000000")
    place = F.shiftleft(column, _PLACE_BITS).bitwiseOR(row)
    return F.shiftleft(place, _HOUR_BITS).bitwiseOR(hour)


@contextmanager
def _many_groups(spark: SparkSession) -> Iterator[None]:
    """Disable the small first-level aggregation map in the body; it costs time with many groups."""
    name = "spark.sql.codegen.aggregate.map.twolevel.enabled"
    before = spark.conf.get(name, "true") or "true"
    spark.conf.set(name, "false")
    try:
        yield
    finally:
        spark.conf.set(name, before)


def _thousandths(name: str) -> Column:
    """Return a non-negative column in thousandths, rounded to whole numbers.

    Spark's own `round` creates a decimal object per value and took four fifths of the job's time.
    """
    return F.floor(F.col(name) * F.lit(1e3) + F.lit(0.5))


def slow_and_dense(cells: DataFrame, rules: RegionRules) -> dict[Cell, CellUse]:
    """Collect the slow and dense cells; their number depends on the area, not on the data."""
    total = cells.groupBy("column", "row").agg(
        F.sum("dwell_ms").alias("dwell_ms"),
        F.sum("slow_ms").alias("slow_ms"),
        F.sum("distance_mm").alias("distance_mm"),
    )
    # One query, so that Spark computes the sums once.
    mean = F.broadcast(total.agg(F.avg("dwell_ms").alias("mean_ms")))
    chosen = total.crossJoin(mean).where(
        (F.col("mean_ms") > 0)
        & (F.col("dwell_ms") >= F.lit(rules.density) * F.col("mean_ms"))
        & (F.col("slow_ms") >= F.col("dwell_ms") * F.lit(rules.slow_share))
    )
    rows = chosen.limit(MOST_CELLS + 1).collect()
    if len(rows) > MOST_CELLS:
        raise LimitError(
            f"more than {MOST_CELLS:,} slow cells",
            todo="Take larger cells (--cell) or more density",
        )
    return {
        (row["column"], row["row"]): CellUse(
            row["dwell_ms"] / 1e3, row["slow_ms"] / 1e3, row["distance_mm"] / 1e3
        )
        for row in rows
    }


def _middle_latitude(positions: DataFrame) -> float:
    row = positions.agg(F.min("lat"), F.max("lat")).first()
    if row is None or row[0] is None:
        raise MisuseError("no positions: the table is empty", todo="Give another --input")
    return float(
        round((row[0] + row[1]) / 2, 1)
    )  # coarse, so that one more day of data keeps the cells


def _row(region_id: int, region: SlowRegion) -> dict[str, Any]:
    west, south, east, north = region.bounds
    use = region.use
    return {
        "region_id": region_id,
        "west": west,
        "south": south,
        "east": east,
        "north": north,
        "cells": region.cells,
        "dwell_s": use.dwell_s,
        "slow_share": use.slow_s / use.dwell_s,
        "mean_speed_mps": use.distance_m / use.dwell_s,
    }


def write_geojson(found: RegionsFound, path: Path) -> None:
    """Write the regions as GeoJSON."""
    features = []
    for i, region in enumerate(found.regions):
        west, south, east, north = region.bounds
        ring = [[west, south], [east, south], [east, north], [west, north], [west, south]]
        properties = _row(i, region)
        features.append(
            {
                "type": "Feature",
                "properties": properties,
                "geometry": {"type": "Polygon", "coordinates": [ring]},
            }
        )
    collection = {"type": "FeatureCollection", "features": features}
    path.write_text(json.dumps(collection), encoding="utf-8")
