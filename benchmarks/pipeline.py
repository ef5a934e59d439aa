"""The Spark jobs, beside the bare kernel, Spark SQL, and Apache Sedona where it is to hand.

    python -m benchmarks.pipeline [--quick] [--part match,peers,skew,growth,regions,stream,kafka]

Boxes and events are uniform in two attributes. `match` keeps the five narrowest of about 100
matches an event; `all pairs` returns all of 2.5. Times include building the index and writing
Parquet. The bare kernel is two processes of plain Python without Spark, each reading its half of
the event files, asking the same index and writing the same rows.

Sedona needs its package: NEARCAST_SEDONA_JAR names the file (sedona-spark-shaded-4.0_2.13).
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from benchmarks.pipeline_formats import format_rows
from benchmarks.pipeline_measuring import Taken, task_seconds, timed, worker_mb
from benchmarks.pipeline_polygons import LEAST as SHAPES
from benchmarks.pipeline_polygons import area_rows

from nearcast.matching import open_matcher, save_matcher
from nearcast.model import Attribute, Space
from nearcast.pipeline.jobs.match import MatchQuery, deliveries
from nearcast.pipeline.jobs.match_job import match_tables
from nearcast.pipeline.session import spark_session
from nearcast.pipeline.sources.subscription_tables import matcher_of

Row = dict[str, Any]
SPACE = Space(
    name="plane",
    topic_filter="plane/#",
    attributes=(Attribute.number("x", 0, 1), Attribute.number("y", 0, 1)),
)
ALL = MatchQuery("plane", "plane/x", None)
CORES = 2


def _session() -> Any:
    return spark_session(f"local[{CORES}]", name="nearcast-bench", memory_gb=6)


def write_boxes(path: Path, count: int, matches: float, *, clustered: bool = False) -> None:
    rng = np.random.default_rng(1)
    side = (matches / count) ** 0.5
    if clustered:  # nine of ten around twenty places
        places = rng.random((20, 2))[rng.integers(0, 20, count)]
        near = np.clip(places + rng.normal(0, 0.01, (count, 2)), 0, 1)
        centres = np.where(rng.random((count, 1)) < 0.9, near, rng.random((count, 2)))
    else:
        centres = rng.random((count, 2))
    half = side * rng.uniform(0.5, 1.5, (count, 2)) / 2
    columns: dict[str, Any] = {"subscription_id": np.arange(count)}
    for place, name in enumerate("xy"):
        columns[f"{name}_low"] = centres[:, place] - half[:, place]
        columns[f"{name}_high"] = centres[:, place] + half[:, place]
    pq.write_table(pa.table(columns), path)


def write_events(spark: Any, path: Path, count: int, files: int) -> None:
    frame = spark.range(0, count, 1, files).selectExpr(
        "id AS event_id", "rand(1) AS x", "rand(2) AS y"
    )
    frame.write.parquet(str(path))


def ours(spark: Any, events: Path, boxes: Path, output: Path, k: int | None, **more: Any) -> Any:
    return match_tables(
        spark.read.parquet(str(events)), spark.read.parquet(str(boxes)), SPACE,
        MatchQuery("plane", "plane/x", k), str(output), **more,
    )  # fmt: skip


def _bare_half(index: str, files: list[str], output: str, k: int | None) -> int:
    view, query, rows = open_matcher(index), MatchQuery("plane", "plane/x", k), 0
    for number, file in enumerate(files):
        table = pq.read_table(file)
        parts = [deliveries(b, view, query) for b in table.to_batches(max_chunksize=100_000)]
        found = pa.Table.from_batches(parts)
        rows += found.num_rows
        pq.write_table(found, f"{output}/{os.getpid()}-{number}.parquet")
    return rows


def bare(pool: Any, events: Path, boxes: Path, output: Path, k: int | None) -> int:
    """The same without Spark, on the same cores."""
    output.mkdir()
    index = output / "index"
    save_matcher(matcher_of(pq.read_table(boxes), SPACE), index)
    files = sorted(map(str, events.glob("part-*.parquet")))
    halves = [(str(index), files[i::CORES], str(output), k) for i in range(CORES)]
    return sum(pool.starmap(_bare_half, halves))


def _ratio(mine: list[Taken], others: list[Taken]) -> Row:
    ours_s, peer_s = (statistics.median(t.wall_s for t in each) for each in (mine, others))
    ours_cpu_s, peer_cpu_s = (statistics.median(t.cpu_s for t in each) for each in (mine, others))
    return {
        "ours": ours_s, "peer": peer_s, "ratio": ours_s / peer_s,
        "ours_cpu_s": ours_cpu_s, "peer_cpu_s": peer_cpu_s, "ratio_cpu": ours_cpu_s / peer_cpu_s,
    }  # fmt: skip


def match_rows(count: int, boxes: int, repeats: int) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        with multiprocessing.get_context("spawn").Pool(CORES) as pool:
            spark = _session()
            write_events(spark, root / "events", count, 2 * CORES)
            for matches, k, told in ((100.0, 5, "5 narrowest of 100"), (2.5, None, "all pairs")):
                table = root / f"boxes-{k}.parquet"
                write_boxes(table, boxes, matches)
                write_events(spark, root / f"warm-{k}", 20_000, CORES)
                ours(spark, root / f"warm-{k}", table, root / f"warm-out-{k}", k)
                bare(pool, root / f"warm-{k}", table, root / f"warm-bare-{k}", k)
                times: dict[str, list[Taken]] = {"ours": [], "bare": []}
                for turn in range(repeats):
                    taken, done = timed(
                        lambda k=k, t=table: ours(spark, root / "events", t, root / f"out-{k}", k)
                    )
                    times["ours"].append(taken)
                    folder = root / f"bare-{k}-{turn}"
                    taken, rows_bare = timed(
                        lambda k=k, t=table, f=folder: bare(pool, root / "events", t, f, k)
                    )
                    times["bare"].append(taken)
                    assert done.deliveries == rows_bare, (done.deliveries, rows_bare)
                    shutil.rmtree(folder)
                row = {
                    "name": f"match {count:,} x {boxes:,}, {told}: seconds / bare kernel",
                    "target": "<= 2" if k else "reported",
                    "deliveries": done.deliveries,
                    **_ratio(times["ours"], times["bare"]),
                }
                yield {**row, "holds": row["ratio"] <= 2 if k else None}
            spark.stop()


GRID_SQL = """
    WITH placed AS (
        SELECT *, explode(sequence(greatest(0, floor(x_low * {n})), least({n} - 1,
                                   floor(x_high * {n})))) AS cx
        FROM boxes
    ), cells AS (
        SELECT *, explode(sequence(greatest(0, floor(y_low * {n})), least({n} - 1,
                                   floor(y_high * {n})))) AS cy
        FROM placed
    ), pairs AS (
        SELECT event_id, subscription_id, log2(x_high - x_low) + log2(y_high - y_low) AS accuracy
        FROM (SELECT *, floor(x * {n}) AS cx, floor(y * {n}) AS cy FROM events) e
        JOIN cells USING (cx, cy)
        WHERE x BETWEEN x_low AND x_high AND y BETWEEN y_low AND y_high
    )
"""
SEDONA_SQL = """
    WITH pairs AS (
        SELECT event_id, subscription_id, log2(x_high - x_low) + log2(y_high - y_low) AS accuracy
        FROM (SELECT *, ST_Point(x, y) AS p FROM events) e
        JOIN (SELECT *, ST_PolygonFromEnvelope(x_low, y_low, x_high, y_high) AS b FROM boxes) s
        ON ST_Covers(b, p)
    )
"""
TOP_SQL = """
    SELECT event_id, subscription_id, CAST(rank AS int) AS rank FROM (
        SELECT *, row_number() OVER (PARTITION BY event_id ORDER BY accuracy, subscription_id)
            AS rank FROM pairs
    ) WHERE rank <= 5
"""


def by_sql(spark: Any, events: Path, boxes: Path, output: Path, pairs: str) -> int:
    spark.read.parquet(str(events)).createOrReplaceTempView("events")
    spark.read.parquet(str(boxes)).createOrReplaceTempView("boxes")
    spark.sql(pairs + TOP_SQL).write.parquet(str(output))
    return int(spark.read.parquet(str(output)).count())


def peer_rows(count: int, boxes: int) -> list[Row]:
    """Ours beside SQL with a grid, at a size that SQL gets through, and beside Sedona."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        write_boxes(root / "boxes.parquet", boxes, 100.0)
        spark = _session()
        write_events(spark, root / "events", count, 2 * CORES)
        write_events(spark, root / "warm", 2_000, CORES)
        grid = GRID_SQL.format(n=32)  # cells about as wide as a box
        ours(spark, root / "warm", root / "boxes.parquet", root / "warm-out", 5)
        by_sql(spark, root / "warm", root / "boxes.parquet", root / "warm-sql", grid)
        mine, done = timed(
            lambda: ours(spark, root / "events", root / "boxes.parquet", root / "out", 5)
        )
        theirs, found = timed(
            lambda: by_sql(spark, root / "events", root / "boxes.parquet", root / "sql", grid)
        )
        assert found == done.deliveries, (found, done.deliveries)
        spark.stop()
        ratio = _ratio([theirs], [mine])
        row = {
            "name": f"match {count:,} x {boxes:,}, 5 narrowest of 100: Spark SQL with a grid",
            "ours": mine.wall_s,
            "peer": theirs.wall_s,
            "ratio": ratio["ratio"],
            "ratio_cpu": ratio["ratio_cpu"],
            "target": ">= 3",
            "holds": ratio["ratio"] >= 3,
        }
        return [row, *_sedona_rows(root, count, boxes, mine.wall_s, done.deliveries)]


def _sedona_rows(root: Path, count: int, boxes: int, ours_s: float, wanted: int) -> list[Row]:
    name = f"match {count:,} x {boxes:,}, 5 narrowest of 100: Apache Sedona"
    jar = os.environ.get("NEARCAST_SEDONA_JAR", "")
    if not jar:
        why = "not measured: NEARCAST_SEDONA_JAR is not set; 1.8.0 does not load in Spark 4.3"
        return [{"name": f"{name} ({why})", "holds": None}]
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.pipeline", "--sedona", str(root), jar],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[1],
    )  # fmt: skip
    if run.returncode:
        lines = [line for line in run.stderr.splitlines() if line.startswith((":", "error"))]
        why = (lines or ["no reason given"])[0].lstrip(": ")[:120]
        return [{"name": f"{name} (did not run: {why})", "holds": None}]
    seconds, found = run.stdout.split()[-2:]
    assert int(found) == wanted, (found, wanted)
    ratio = float(seconds) / ours_s
    return [
        {
            "name": name, "ours": ours_s, "peer": float(seconds), "ratio": ratio,
            "target": ">= 2", "holds": ratio >= 2,
        }
    ]  # fmt: skip


def sedona(root: Path, jar: str) -> None:
    """Run the peer in a process of its own: its jar has to be there when Java starts."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master(f"local[{CORES}]")
        .config("spark.jars", jar)
        .config("spark.driver.memory", "6g")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", str(2 * CORES))
        .config("spark.sql.extensions", "org.apache.sedona.sql.SedonaSqlExtensions")
        .config("spark.serializer", "org.apache.spark.serializer.KryoSerializer")
        .config("spark.kryo.registrator", "org.apache.sedona.core.serde.SedonaKryoRegistrator")
        .getOrCreate()
    )
    boxes = root / "boxes.parquet"
    by_sql(spark, root / "warm", boxes, root / "warm-sedona", SEDONA_SQL)
    taken, found = timed(lambda: by_sql(spark, root / "events", boxes, root / "sedona", SEDONA_SQL))
    print(taken.wall_s, found)


def skew_rows(count: int, boxes: int, tasks: int) -> Iterator[Row]:
    """A million subscriptions in clusters: is some task much longer than the others?"""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        write_boxes(root / "boxes.parquet", boxes, 9.0, clustered=True)
        spark = _session()
        near = "least(1, greatest(0, 0.5 + randn({}) * 0.02))"  # nine of ten at one place
        hot = f"CASE WHEN rand(3) < 0.9 THEN {near} ELSE rand({{}}) END"
        spark.range(0, count, 1, tasks).selectExpr(
            "id AS event_id", f"{hot.format(4, 1)} AS x", f"{hot.format(5, 2)} AS y"
        ).write.parquet(str(root / "events"))
        for limit in ("maxPartitionBytes", "openCostInBytes"):  # alike: a task for each file
            spark.conf.set(f"spark.sql.files.{limit}", 64 << 20)
        write_events(spark, root / "warm", 20_000, CORES)
        for way, fits in (("index", boxes * 100), ("place", boxes * 4)):
            more = {"most_bytes": fits, "tasks": tasks if way == "place" else None}
            ours(spark, root / "warm", root / "boxes.parquet", root / f"warm-{way}", 5, **more)
            before = set(task_seconds(spark))
            taken, done = timed(
                lambda m=more, w=way: ours(
                    spark, root / "events", root / "boxes.parquet", root / w, 5, **m
                )
            )
            stages = {k: v for k, v in task_seconds(spark).items() if k not in before}
            longest = max(stages.values(), key=sum)  # the stage that does the matching
            ratio = max(longest) / max(statistics.median(longest), 1e-3)
            yield {
                "name": f"{boxes:,} clustered boxes by {way}: longest task / median",
                "ours": max(longest),
                "peer": statistics.median(longest),
                "ratio": ratio,
                "target": "<= 3",
                "holds": ratio <= 3 and len(longest) >= tasks,
                "tasks": len(longest),
                "seconds": taken.wall_s,
                "deliveries": done.deliveries,
            }
        spark.stop()


def growth_rows(sizes: tuple[int, ...], boxes: int) -> Iterator[Row]:
    """Seconds per million events and memory of a worker as the number of events grows.

    Events are made by Spark as they are asked for, a million to a task, and one in four matches:
    the files of 100 M events and 250 M deliveries would measure the disk.
    """
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        write_boxes(root / "boxes.parquet", boxes, 0.25)
        first: tuple[float, float] | None = None
        for count in sizes:
            spark = _session()  # new workers each time: a peak of memory is for ever
            made = "id AS event_id", "rand(1) AS x", "rand(2) AS y"
            table = spark.read.parquet(str(root / "boxes.parquet"))
            warm = spark.range(0, 1_000_000, 1, CORES).selectExpr(*made)
            match_tables(warm, table, SPACE, ALL, str(root / "out"))
            events = spark.range(0, count, 1, max(CORES, count // 1_000_000)).selectExpr(*made)
            taken, done = timed(
                lambda e=events, t=table: match_tables(e, t, SPACE, ALL, str(root / "out"))
            )
            each, memory = taken.wall_s / count * 1e6, worker_mb()
            spark.stop()
            first = first or (each, memory)
            yield {
                "name": f"match {count:,} events: seconds a million; worker {memory:,.0f} MB",
                "ours": each,
                "peer": first[0],
                "ratio": each / first[0],
                "target": "<= 1.2, memory flat",
                "holds": each <= 1.2 * first[0] and memory <= 1.2 * first[1],
                "seconds": taken.wall_s,
                "cpu_s_a_million": taken.cpu_s / count * 1e6,
                "worker_mb": memory,
                "deliveries": done.deliveries,
            }


PARTS = ("match", "peers", "polygons", "skew", "growth", "regions", "stream", "kafka", "formats")


def part_rows(part: str, quick: bool, positions: str | None) -> Iterable[Row]:
    """Measure one part; a part takes from half a minute (quick) to ten minutes."""
    if part == "match":
        return match_rows(200_000, 10_000, 1) if quick else match_rows(10_000_000, 100_000, 1)
    if part == "peers":
        return peer_rows(20_000, 10_000) if quick else peer_rows(100_000, 100_000)
    if part == "formats":
        return format_rows(100_000 if quick else 1_000_000)
    if part == "polygons":
        events, areas = (200_000, 2_000) if quick else (2_000_000, 20_000)
        return chain.from_iterable(area_rows(shape, events, areas) for shape in SHAPES)
    if part == "skew":
        return skew_rows(100_000, 100_000, 8) if quick else skew_rows(2_000_000, 1_000_000, 20)
    if part == "growth":
        sizes = (100_000, 1_000_000) if quick else (1_000_000, 10_000_000, 100_000_000)
        return growth_rows(sizes, 10_000 if quick else 100_000)
    return _job_rows(part, quick, positions)


def _job_rows(part: str, quick: bool, positions: str | None) -> list[Row]:
    if part == "kafka":
        from benchmarks.pipeline_kafka import kafka_rows

        with tempfile.TemporaryDirectory() as name:
            boxes = Path(name) / "boxes.parquet"
            write_boxes(boxes, 100_000, 100.0)
            return kafka_rows(boxes, 10_000 if quick else 50_000, 10 if quick else 40)
    from benchmarks.pipeline_streams import cab_rows, regions_rows, stream_rows

    if part == "regions":
        real = cab_rows(positions) if positions else []  # before our own session takes memory
    spark = _session()
    try:
        if part == "regions":
            return regions_rows(spark, 500_000 if quick else 10_000_000) + real
        with tempfile.TemporaryDirectory() as name:
            boxes = Path(name) / "boxes.parquet"
            write_boxes(boxes, 100_000, 100.0)
            return stream_rows(spark, SPACE, boxes, 50_000, 5 if quick else 40)
    finally:
        spark.stop()


def run(
    quick: bool, parts: tuple[str, ...] = PARTS, positions: str | None = None
) -> dict[str, Any]:
    """Run all parts; a few minutes if quick, a quarter of an hour if not, on two free cores."""
    rows = [row for part in parts for row in _told(part, quick, positions)]
    return {"name": "pipeline", "quick": quick, "rows": rows}


def _told(part: str, quick: bool, positions: str | None) -> Iterator[Row]:
    """Measure a part and tell its rows as they come; one that fails does not end the others."""
    try:
        for row in part_rows(part, quick, positions):
            print(row, file=sys.stderr, flush=True)
            yield row
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told as a miss
        traceback.print_exc()
        yield {"name": f"{part}: failed ({type(error).__name__})", "holds": False}


def _main() -> None:
    arguments = sys.argv[1:]
    if arguments[:1] == ["--sedona"]:
        sedona(Path(arguments[1]), arguments[2])
        return
    parts: tuple[str, ...] = PARTS
    if "--part" in arguments:
        parts = tuple(arguments[arguments.index("--part") + 1].split(","))
    positions = os.environ.get("NEARCAST_POSITIONS")
    for part in parts:
        for _ in _told(part, "--quick" in arguments, positions):
            pass


if __name__ == "__main__":
    _main()
