"""The Spark jobs `regions` and `stream` against their targets; part of benchmarks/pipeline.py."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from benchmarks.pipeline_measuring import Taken, cpu_seconds, timed

from nearcast.eventlog import POSITIONS
from nearcast.locality.layout.slow_regions import RegionRules
from nearcast.pipeline.jobs.match import MatchQuery
from nearcast.pipeline.jobs.regions import find_regions
from nearcast.pipeline.streaming.stream import Stream, start, unfinished_batch
from nearcast.pipeline.tables.transaction import conform

Row = dict[str, Any]
_WARM_S = 10


def regions_rows(spark: Any, count: int) -> list[Row]:
    """Positions a second, from a table on disk to regions in a table."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        frame = spark.range(0, count, 1, 4).selectExpr(
            "concat('u', id % 1000) AS user_id", "timestamp_seconds(1.7e9 + id / 10) AS t",
            "8.5D + rand(1) * rand(2) * 0.3 AS lon", "47.3D + rand(3) * rand(4) * 0.2 AS lat",
            "0 AS trip", "60D AS step_s", "rand(5) * 600 AS step_m",
        )  # fmt: skip
        conform(frame, POSITIONS).write.parquet(str(root / "positions"))
        runs: list[Taken] = []
        for turn in range(4):  # the first two warm up
            positions = spark.read.parquet(str(root / "positions"))
            out = str(root / f"out{turn}")
            taken, _ = timed(lambda p=positions, o=out: find_regions(p, o, 150.0, RegionRules()))
            runs.append(taken)
    rate = count / min(run.wall_s for run in runs[2:])
    per_cpu_s = count / min(run.cpu_s for run in runs[2:])
    return [
        {
            "name": f"regions of {count:,} positions: positions/s", "ours": rate,
            "target": ">= 1,000,000", "holds": rate >= 1e6, "per_cpu_s": per_cpu_s,
        }
    ]  # fmt: skip


def cab_rows(positions: str) -> list[Row]:
    """Both commands on a file of real positions, each in a process of its own."""
    with tempfile.TemporaryDirectory() as name:
        taken = []
        for job, source in (("ingest", positions), ("regions", f"{name}/positions")):
            command = [
                sys.executable, "-c", "from nearcast.cli import main; main()", "pipeline", job,
                "--input", source, "--output", name,
            ]  # fmt: skip
            begun = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            taken.append(time.perf_counter() - begun)
    rows = pq.read_metadata(positions).num_rows
    told = f"{Path(positions).name}, {rows:,} positions"
    return [
        {
            "name": f"regions of {told}: seconds with Spark's start", "ours": taken[1],
            "target": "< 30", "holds": taken[1] < 30,
        },
        {"name": f"ingest of {told}: seconds with Spark's start", "ours": taken[0],
         "target": "reported", "holds": None},
    ]  # fmt: skip


def write_event_file(folder: Path, number: int, rows: int, rng: np.random.Generator) -> None:
    """Put a file where the stream looks, whole from the first moment."""
    table = pa.table(
        {
            "event_id": np.arange(rows) + number * rows,
            "x": rng.random(rows),
            "y": rng.random(rows),
        }
    )
    draft = folder.parent / f"{number:06d}.new"
    pq.write_table(table, draft)
    draft.rename(folder / f"{number:06d}.parquet")


def stream_rows(spark: Any, space: Any, boxes: Path, per_s: int, seconds: int) -> list[Row]:
    """Events a second when there is always more, and latency at a steady rate."""
    rng = np.random.default_rng(2)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        (root / "changes").mkdir()
        (root / "changes" / "000.parquet").write_bytes(boxes.read_bytes())
        full = _sustained(spark, space, root, per_s * seconds, rng)
        delays, busy = _delays(spark, space, root, per_s, seconds, rng)
    p50 = statistics.median(delays)
    p95 = statistics.quantiles(delays, n=20)[-1]
    told = "stream, 100,000 subscriptions"
    return [
        {"name": f"{told}: events/s from a backlog", "ours": full, "target": ">= 50,000",
         "holds": full >= 50_000},
        {"name": f"{told}: p50 seconds from file to delivery at {per_s:,} events/s",
         "ours": p50, "target": "< 2", "holds": p50 < 2, "p95": p95, "cores_busy": busy},
    ]  # fmt: skip


def _stream(space: Any, root: Path, name: str) -> Stream:
    events = root / name / "events"
    events.mkdir(parents=True)
    return Stream(
        events, root / "changes", root / name / "out", root / name / "state", space,
        MatchQuery(space.name, "plane/x", 5),
    )  # fmt: skip


def _sustained(spark: Any, space: Any, root: Path, events: int, rng: np.random.Generator) -> float:
    stream = _stream(space, root, "backlog")
    rows = 20_000
    for number in range(2):
        write_event_file(stream.events, number, rows, rng)
    start(spark, stream, once=True).awaitTermination()  # builds the index, warms up
    for number in range(2, 2 + events // rows):
        write_event_file(stream.events, number, rows, rng)
    begun = time.perf_counter()
    query = start(spark, stream, once=True)
    query.awaitTermination()
    taken = time.perf_counter() - begun
    # A rate counts only if all was done: a query's thread may die without a word.
    assert query.exception() is None, query.exception()
    assert unfinished_batch(stream.checkpoint) is None, "the backlog was not finished"
    done = _completed(stream.output, rows)
    assert len(done) == 2 + events // rows, (len(done), events // rows)
    return events // rows * rows / taken


def _delays(
    spark: Any, space: Any, root: Path, per_s: int, seconds: int, rng: np.random.Generator
) -> tuple[list[float], float]:
    """Drop five files a second; return each file's delay until its batch was complete.

    The first ten seconds warm Java up and do not count. Returned too: how many cores it had until
    all was delivered.
    """
    stream, rows = _stream(space, root, "steady"), per_s // 5
    write_event_file(stream.events, 0, rows, rng)
    query = start(spark, stream)
    _wait_until_done(stream.output, 1)
    written: dict[int, float] = {}
    used, begun = 0.0, time.perf_counter()
    counted = begun
    for number in range(1, 1 + 5 * (_WARM_S + seconds)):
        time.sleep(max(0.0, begun + number / 5 - time.perf_counter()))
        write_event_file(stream.events, number, rows, rng)
        if number > 5 * _WARM_S:
            if not written:
                used, counted = cpu_seconds(), time.perf_counter()
            written[number] = time.time()
    deadline = time.monotonic() + 120
    done: dict[int, float] = {}
    while not written.keys() <= done.keys() and time.monotonic() < deadline:
        time.sleep(1)
        done = _completed(stream.output, rows)
    busy = (cpu_seconds() - used) / (time.perf_counter() - counted)
    assert query.isActive, "the stream died while it was measured"
    query.stop()
    return [done[number] - at for number, at in written.items()], busy


def _wait_until_done(output: Path, batches: int) -> None:
    deadline = time.monotonic() + 120
    while len(list((output / "deliveries").glob("*/_SUCCESS"))) < batches:
        assert time.monotonic() < deadline, "no batch in two minutes"
        time.sleep(0.1)


def _completed(output: Path, rows: int) -> dict[int, float]:
    """Return for each event file when the batch that holds it was complete."""
    done: dict[int, float] = {}
    for mark in (output / "deliveries").glob("*/_SUCCESS"):
        files = [f for f in mark.parent.glob("*.parquet") if pq.read_metadata(f).num_rows]
        for file in files:
            ids = pq.read_table(file, columns=["event_id"])["event_id"].to_numpy()
            for number in np.unique(ids // rows).tolist():
                done[number] = mark.stat().st_mtime
    return done
