"""Nearcast as a library of Spark: DataFrames in, DataFrames out.

The functions use the session of the DataFrame that they are given. They start none, write nothing
and need no folder. They work in a classic session and on Spark Connect. The jobs of `nearcast
pipeline` are the same functions, with reading and writing around them.

`docs/spark.md` has examples. Read next: `tracks.py`, `matching.py`, `plans.py`, `logs.py`,
`sql_functions.py`.
"""

from nearcast.locality.layout.slow_regions import RegionRules
from nearcast.model import Attribute, Space
from nearcast.pipeline.jobs.plan import PlanFound, PlanRules, last_plan
from nearcast.pipeline.session import send_package
from nearcast.spark.logs import audit, rates
from nearcast.spark.matching import match, match_counts, top_k, unmatched
from nearcast.spark.plans import lay_out, leaves, plan
from nearcast.spark.sql_functions import register
from nearcast.spark.tracks import clean_tracks, dropped_fixes, slow_regions, time_per_cell

__all__ = [
    "Attribute",
    "PlanFound",
    "PlanRules",
    "RegionRules",
    "Space",
    "audit",
    "clean_tracks",
    "dropped_fixes",
    "last_plan",
    "lay_out",
    "leaves",
    "match",
    "match_counts",
    "plan",
    "rates",
    "register",
    "send_package",
    "slow_regions",
    "time_per_cell",
    "top_k",
    "unmatched",
]
