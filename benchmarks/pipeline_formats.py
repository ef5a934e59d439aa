"""What Delta and Iceberg cost beside plain Parquet: `ingest` and `match`, each format by turns.

A process for each format, since Spark must know its packages when it starts; the first run in each
warms Java up and makes the table, the others replace it.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from benchmarks.pipeline_measuring import timed

Row = dict[str, Any]
FORMATS = ("parquet", "delta", "iceberg")
_RUNS = 3


def write_inputs(folder: Path, rows: int) -> None:
    """Write `rows` fixes of a thousand users, as many events, and 2,000 boxes."""
    rng = np.random.default_rng(1)
    at = np.arange(rows)
    fixes = {
        "user_id": pa.array((at % 1000).astype(str)),
        "t": pa.array(1_700_000_000_000_000 + at // 1000 * 15_000_000, pa.timestamp("us", "UTC")),
        "lon": 8.5 + (at % 1000) * 1e-4 + at // 1000 * 1e-6,
        "lat": 47.3 + (at % 7) * 1e-6,
    }
    pq.write_table(pa.table(fixes), folder / "fixes.parquet", row_group_size=250_000)
    points, boxes = rng.random((rows, 2)), rng.random((2_000, 2)) * 0.97
    events = {"event_id": at, "x": points[:, 0], "y": points[:, 1]}
    pq.write_table(pa.table(events), folder / "events.parquet", row_group_size=250_000)
    bounds = {f"{name}_{side}": boxes[:, i] + width for i, name in enumerate("xy")
              for side, width in (("low", 0.0), ("high", 0.03))}  # fmt: skip
    table = pa.table({"subscription_id": np.arange(len(boxes)), **bounds})
    pq.write_table(table, folder / "wishes.parquet")


def run_format(kind: str, folder: Path) -> None:
    """Print the seconds of each run of both jobs, for the process of one format."""
    from nearcast.model import Attribute, Space
    from nearcast.pipeline.jobs.ingest import IngestJob
    from nearcast.pipeline.jobs.match import MatchQuery
    from nearcast.pipeline.jobs.match_job import match_tables
    from nearcast.pipeline.packages import package_settings
    from nearcast.pipeline.session import spark_session

    out = f"{folder}/{kind}"
    more = package_settings(kind, [out])
    spark = spark_session("local[2]", memory_gb=2, more=more)
    spark.conf.set("spark.nearcast.table.format", kind)
    sides = (Attribute.number("x", 0, 1), Attribute.number("y", 0, 1))
    space = Space(name="plane", topic_filter="plane/#", attributes=sides)
    events, wishes = (
        spark.read.parquet(f"{folder}/{name}.parquet") for name in ("events", "wishes")
    )
    query = MatchQuery("plane", "plane/x")
    jobs = {
        "ingest": lambda: IngestJob([f"{folder}/fixes.parquet"], out).run(spark),
        "match": lambda: match_tables(events, wishes, space, query, out),
    }
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in jobs}
    for _ in range(1 + _RUNS):
        for name, work in jobs.items():
            seconds, _result = timed(work)
            taken[name].append((seconds.wall_s, seconds.cpu_s))
    spark.stop()
    print(json.dumps({name: each[1:] for name, each in taken.items()}))


def format_rows(rows: int) -> Iterator[Row]:
    """Yield a row for each job and open format: time beside that of plain Parquet."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_inputs(folder, rows)
        taken: dict[str, Any] = {}
        for kind in FORMATS:
            run = subprocess.run(
                [sys.executable, __file__, kind, str(folder)],
                capture_output=True, text=True, check=False, timeout=1800,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )  # fmt: skip
            last = (run.stderr.strip().splitlines() or ["?"])[-1]
            taken[kind] = json.loads(run.stdout.splitlines()[-1]) if not run.returncode else last
        for job in ("ingest", "match"):
            for kind in FORMATS[1:]:
                yield _compared(f"{job} of {rows:,} rows, {kind} / parquet", job, kind, taken)


def _compared(what: str, job: str, kind: str, taken: dict[str, Any]) -> Row:
    for each in ("parquet", kind):
        if isinstance(taken[each], str):
            return {"name": what, "told": f"not measured ({taken[each]})", "holds": None}
    plain, other = (
        [statistics.median(column) for column in zip(*taken[each][job], strict=True)]
        for each in ("parquet", kind)
    )
    ratio = other[0] / plain[0]
    return {
        "name": what, "ours": other[0], "peer": plain[0], "ratio": ratio,
        "ratio_cpu": other[1] / plain[1], "target": "<= 1.3", "holds": ratio <= 1.3,
    }  # fmt: skip


if __name__ == "__main__":
    if len(sys.argv) == 3:
        run_format(sys.argv[1], Path(sys.argv[2]))
    else:
        for row in format_rows(1_000_000):
            print(row, flush=True)
