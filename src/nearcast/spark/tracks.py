"""Positions: clean tracks, and the slow regions of an area."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from nearcast.eventlog import POSITIONS
from nearcast.locality.layout.slow_regions import RegionRules
from nearcast.locality.layout.slow_regions import slow_regions as join_cells
from nearcast.pipeline.jobs.ingest import COLUMNS, Cleaning, dropped_tracks, judged_tracks
from nearcast.pipeline.jobs.regions import cells_by_hour, grid_of, regions_table, slow_and_dense
from nearcast.pipeline.sources.column_types import check_present
from nearcast.pipeline.tables.transaction import conform

_TODO = "Rename your columns: df.withColumnsRenamed({'cab': 'user_id', 'time': 't'})"


def clean_tracks(
    fixes: DataFrame, *, max_speed_mps: float = 70.0, gap_s: float = 600.0, timezone: str = "UTC"
) -> DataFrame:
    """Return the good fixes with their trips and steps; `dropped_fixes` has the others.

    `fixes` has `user_id`, `t` (a timestamp, ISO text, or seconds, milli- or microseconds since
    1970), `lon` and `lat`. The result has `user_id`, `t`, `lon`, `lat`, `trip`, `step_s` and
    `step_m`. Lazy; one shuffle, by user; the same under any partitioning.
    """
    judged = judged_tracks(_checked(fixes), Cleaning(max_speed_mps, gap_s, timezone))
    return conform(judged.where(F.col("reason").isNull()), POSITIONS)


def dropped_fixes(
    fixes: DataFrame, *, max_speed_mps: float = 70.0, gap_s: float = 600.0, timezone: str = "UTC"
) -> DataFrame:
    """Return the fixes that `clean_tracks` drops, as text, each with its `reason`; lazy."""
    cleaning = Cleaning(max_speed_mps, gap_s, timezone)
    return dropped_tracks(_checked(fixes), cleaning)


def _checked(fixes: DataFrame) -> DataFrame:
    check_present(fixes, list(COLUMNS), "fixes", _TODO)
    return fixes.select(*COLUMNS)


def time_per_cell(
    positions: DataFrame, *, cell_m: float = 150.0, rules: RegionRules | None = None
) -> DataFrame:
    """Return time, slow time and distance per cell and hour of day (UTC), of `clean_tracks`.

    One job finds the latitude that the cells are measured at; the rest is lazy.
    """
    return cells_by_hour(positions, grid_of(positions, cell_m), rules or RegionRules())


def slow_regions(
    positions: DataFrame, *, cell_m: float = 150.0, rules: RegionRules | None = None
) -> DataFrame:
    """Return the regions where users of `clean_tracks` are slow and many, longest stay first.

    Columns: `region_id`, `west`, `south`, `east`, `north`, `cells`, `dwell_s`, `slow_share`,
    `mean_speed_mps`. Two jobs at once; only slow cells are collected, whose number depends on the
    area and not on the rows (LimitError above a million).
    """
    rules = rules or RegionRules()
    grid = grid_of(positions, cell_m)
    chosen = slow_and_dense(cells_by_hour(positions, grid, rules), rules)
    return positions.sparkSession.createDataFrame(regions_table(join_cells(chosen, rules, grid)))
