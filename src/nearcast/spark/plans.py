"""Plans of a cluster: leaves of about equal load, each with the broker that holds it."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from nearcast.locality import Plan
from nearcast.pipeline.jobs.plan import PlanFound, PlanRules, regions_of
from nearcast.pipeline.jobs.plan import lay_out as lay_out_rects

LEAVES = pa.schema(
    [
        pa.field("leaf", pa.int32(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("west", pa.float64(), nullable=False),
        pa.field("south", pa.float64(), nullable=False),
        pa.field("east", pa.float64(), nullable=False),
        pa.field("north", pa.float64(), nullable=False),
        pa.field("users", pa.float64()),
        pa.field("broker", pa.int32()),
    ]
)
"""A row per leaf of a plan; `users` at once that it was planned for."""


def plan(
    positions: DataFrame, regions: DataFrame | None = None, *, rules: PlanRules | None = None
) -> DataFrame:
    """Return the leaves of a plan for the users of `clean_tracks`; the columns are LEAVES.

    `regions` is what `slow_regions` found (None: quadrants alone). Runs at once: three or four
    passes over the positions. What is collected has the size of the grid and of the paths that
    people take. `lay_out` has the plan itself, for brokers.
    """
    return leaves(positions.sparkSession, lay_out(positions, regions, rules=rules).plan)


def lay_out(
    positions: DataFrame,
    regions: DataFrame | None = None,
    *,
    rules: PlanRules | None = None,
    last: Plan | None = None,
) -> PlanFound:
    """Return a plan with its costs and how it compares with the `last` one."""
    rects = [] if regions is None else regions_of(regions)
    return lay_out_rects(positions, rects, rules or PlanRules(), last)


def leaves(spark: SparkSession, plan: Plan) -> DataFrame:
    """Return the leaves of a plan as rows; the columns are LEAVES."""
    rows = [
        {
            "leaf": leaf.number,
            "key": leaf.key,
            "kind": leaf.kind,
            "west": leaf.rect.west,
            "south": leaf.rect.south,
            "east": leaf.rect.east,
            "north": leaf.rect.north,
            "users": leaf.load,
            "broker": None if plan.brokers is None else plan.brokers[leaf.number],
        }
        for leaf in plan.leaves
    ]
    return spark.createDataFrame(pa.Table.from_pylist(rows, LEAVES))
