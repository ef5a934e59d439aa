"""The report of `ingest`: what came in, what was kept, what was dropped and why, and where it lies.

Counted by Spark from the tables that the job wrote; as the table `quality` and as a page,
`quality.html`: one file, no script, nothing from elsewhere. What is collected does not grow with
the data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from nearcast.eventlog import QUALITY
from nearcast.pipeline.sources.habits import Habits

COVERAGE_SIDE = 48  # cells of the map along each side
_SAMPLES = 3
_NAMES = 10
_DOUBLED_SHARE = 0.2
_DOUBLED_ROWS = 20
_HUGE_SHARE = 0.5
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; color: #1c2733 }
table { border-collapse: collapse; width: 100%; margin-bottom: 1.5rem }
td { padding: .2rem .8rem .2rem 0; border-bottom: 1px solid #dde3ea; vertical-align: top }
td.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums }
h2 { font-size: 1.05rem; margin: 0 0 .3rem } .warning td { color: #a3320b }
"""
_TITLES = {
    "rows": "Rows", "dropped": "Dropped", "sample": "Dropped rows, some of each kind",
    "times": "Times, as a sample of the input has them", "span": "From and to", "users": "Users",
    "gaps": "Gaps", "speed": "Speeds", "warning": "To look at",
}  # fmt: skip
_PIXELS = 10


@dataclass(frozen=True, slots=True)
class Quality:
    """The report: rows of the table, and the cells of the map."""

    rows: tuple[tuple[str, str, str, int | None], ...]  # section, name, value, rows
    bounds: tuple[float, float, float, float] | None
    coverage: Mapping[tuple[int, int], int]

    def table(self) -> pa.Table:
        """Return the rows as a table with the schema QUALITY."""
        names = QUALITY.names
        rows = [dict(zip(names, row, strict=True)) for row in self.rows]
        return pa.Table.from_pylist(rows, QUALITY)

    def warnings(self) -> list[str]:
        """Return what people should look at, one line each."""
        return [f"{name}: {value}" for part, name, value, _ in self.rows if part == "warning"]


def quality_of(
    positions: DataFrame, rejected: DataFrame, dropped: Mapping[str, int], habits: Habits, zone: str
) -> Quality:
    """Return the report of the tables that a run wrote; four small queries."""
    sums = _sums(positions)
    kept, lost = int(sums["kept"]), sum(dropped.values())
    rows: list[tuple[str, str, str, int | None]] = [
        ("rows", "in", "", kept + lost),
        ("rows", "kept", "", kept),
        *(("dropped", reason, "", count) for reason, count in sorted(dropped.items())),
        *(("sample", reason, text, None) for reason, text in _samples(rejected)),
        *(("times", name, _read_as(name, zone), count) for name, count in habits.times.items()),
        ("span", "from", str(sums["first"]), None),
        ("span", "to", str(sums["last"]), None),
        ("users", "all", "", int(sums["users"])),
        ("gaps", "trips begun after a gap", "", int(sums["trips"])),
    ]
    shares = ("median", "of 9 in 10", "largest")
    rows += [
        ("speed", f"{name}, m/s", f"{value:.1f}", None)
        for name, value in zip(shares, sums["speeds"] or (), strict=False)
    ]
    rows += _odd_users(positions, rejected, kept, dropped)
    bounds: tuple[float, float, float, float]
    bounds = (sums["west"], sums["south"], sums["east"], sums["north"])
    if None in bounds:
        return Quality(tuple(rows), None, {})
    return Quality(tuple(rows), bounds, _coverage(positions, bounds))


def _sums(positions: DataFrame) -> Mapping[str, Any]:
    speed = F.when(F.col("step_s") > 0, F.col("step_m") / F.col("step_s"))
    row = positions.agg(
        F.count(F.lit(1)).alias("kept"),
        F.approx_count_distinct("user_id").alias("users"),
        F.count_if(F.col("step_s") == 0).alias("trips"),
        F.min("t").cast("string").alias("first"),
        F.max("t").cast("string").alias("last"),
        F.min("lon").alias("west"),
        F.min("lat").alias("south"),
        F.max("lon").alias("east"),
        F.max("lat").alias("north"),
        F.percentile_approx(speed, [0.5, 0.9, 1.0], 200).alias("speeds"),
    ).first()
    return row.asDict() if row is not None else {}


def _samples(rejected: DataFrame) -> list[tuple[str, str]]:
    """Return up to three rejected rows per reason, as text."""
    text = F.concat_ws(", ", *(F.coalesce(F.col(c), F.lit("-")) for c in rejected.columns[:-1]))
    found = rejected.groupBy("reason").agg(
        F.min(text).alias("one"), F.max(text).alias("two"), F.first(text).alias("three")
    )
    return [
        (row["reason"], text)
        for row in found.collect()
        for text in sorted({row["one"], row["two"], row["three"]})[:_SAMPLES]
    ]


def _read_as(name: str, zone: str) -> str:
    return f"read as {zone} (--timezone)" if name == "without a zone" else ""


def _odd_users(
    positions: DataFrame, rejected: DataFrame, kept: int, dropped: Mapping[str, int]
) -> list[tuple[str, str, str, int | None]]:
    """Return warnings: one user with most rows, and names that two devices seem to share."""
    rows: list[tuple[str, str, str, int | None]] = []
    per_user = positions.groupBy("user_id").agg(F.count(F.lit(1)).alias("kept"))
    top = per_user.orderBy(F.desc("kept"), "user_id").first()
    if top is not None and top["kept"] > _HUGE_SHARE * kept and kept > 1000:
        told = f"{top['kept'] / kept:.0%} of all rows: one task has them all"
        rows.append(("warning", f"user {top['user_id']}", told, top["kept"]))
    if not dropped.get("impossible speed"):
        return rows
    fast = (
        rejected.where("reason = 'impossible speed'")
        .groupBy("user_id")
        .agg(F.count(F.lit(1)).alias("fast"))
    )
    shared = fast.join(per_user, "user_id", "left").where(
        (F.col("fast") >= _DOUBLED_ROWS)
        & (F.col("fast") > _DOUBLED_SHARE * F.coalesce("kept", F.lit(0)))
    )
    told = "jumps to and fro: do two devices have this name?"
    return rows + [
        ("warning", f"user {row['user_id']}", told, row["fast"])
        for row in shared.orderBy(F.desc("fast"), "user_id").limit(_NAMES).collect()
    ]


def _coverage(
    positions: DataFrame, bounds: tuple[float, float, float, float]
) -> dict[tuple[int, int], int]:
    west, south, east, north = bounds

    def cell(name: str, low: float, high: float) -> Column:
        size = max(high - low, 1e-9) / COVERAGE_SIDE
        place = F.floor((F.col(name) - F.lit(low)) / F.lit(size))
        return F.least(place, F.lit(COVERAGE_SIDE - 1)).cast("int")

    across, up = cell("lon", west, east), cell("lat", south, north)
    counted = positions.groupBy(across.alias("x"), up.alias("y")).count()
    return {(row["x"], row["y"]): row["count"] for row in counted.collect()}


def page_of(quality: Quality, title: str) -> str:
    """Return the page as HTML."""
    parts = [_section(name, list(rows)) for name, rows in groupby(quality.rows, lambda r: r[0])]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(title)}</h1>{''.join(parts)}{_map(quality)}</body></html>"
    )


def _section(name: str, rows: list[tuple[str, str, str, int | None]]) -> str:
    cells = "".join(
        f"<tr><td>{escape(what)}</td><td>{escape(value)}</td>"
        f'<td class="n">{"" if count is None else f"{count:,}"}</td></tr>'
        for _, what, value, count in rows
    )
    return f'<h2>{escape(_TITLES.get(name, name))}</h2><table class="{name}">{cells}</table>'


def _map(quality: Quality) -> str:
    """Return the coverage as a picture: the darker, the more positions; north is up."""
    if quality.bounds is None or not quality.coverage:
        return ""
    most = math.log1p(max(quality.coverage.values()))
    side = COVERAGE_SIDE * _PIXELS
    squares = "".join(
        f'<rect x="{x * _PIXELS}" y="{side - (y + 1) * _PIXELS}" width="{_PIXELS}" '
        f'height="{_PIXELS}" fill="#0b5394" fill-opacity="{math.log1p(count) / most:.2f}"/>'
        for (x, y), count in sorted(quality.coverage.items())
    )
    west, south, east, north = quality.bounds
    where = f"{west:.4f} to {east:.4f} east, {south:.4f} to {north:.4f} north"
    return (
        f'<h2>Where the positions lie</h2><p>{where}</p><svg viewBox="0 0 {side} {side}" '
        f'width="{side}" role="img" aria-label="{where}">{squares}</svg>'
    )
