"""A stream as operators run it: late events, an orderly end, metrics, checkpoints of before."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.support.space_sections import space_section
from tests.support.waiting import START_S, wait_for

from nearcast.model import Attribute, FileFormatError, MisuseError, Space
from nearcast.pipeline.jobs.match import MatchQuery
from nearcast.pipeline.streaming.checkpoints import check_checkpoint
from nearcast.pipeline.streaming.lateness import LateRule, newest_before, record_newest
from nearcast.pipeline.streaming.query_metrics import QueryMetrics, metrics_served
from nearcast.pipeline.streaming.stream import Stream, read_deliveries, start, unfinished_batch
from nearcast.server.local_cluster import free_port

SPACE = Space(name="plane", topic_filter="plane/#", attributes=(Attribute.number("x", 0, 100),))
CONFIG = space_section("plane", 'missing = "all"', x=(0, 100))


def write_events(folder: Path, number: int, times_s: list[int]) -> None:
    folder.mkdir(exist_ok=True)
    first = number * 100
    table = pa.table(
        {
            "event_id": range(first, first + len(times_s)),
            "x": [1.0] * len(times_s),
            "at": pa.array([1_000_000 * t for t in times_s], pa.timestamp("us", tz="UTC")),
        }
    )
    draft = folder / f"{number}.new"
    pq.write_table(table, draft)
    os.utime(draft, (number, number))  # Spark takes files in the order of their times
    draft.rename(folder / f"{number:03d}.parquet")


def write_wishes(root: Path) -> None:
    (root / "changes").mkdir()
    wishes = pa.table({"subscription_id": [1], "where": ["x < 50"]})
    pq.write_table(wishes, root / "changes" / "000.parquet")


def stream_of(root: Path, late: LateRule | None) -> Stream:
    places = (root / "events", root / "changes", root / "out", root / "state")
    return Stream(*places, SPACE, MatchQuery("plane", "plane/x"), files_a_batch=1, late=late)


@pytest.mark.spark
def test_late_events_are_in_their_table_and_all_others_are_matched(
    spark: SparkSession, tmp_path: Path
):
    write_wishes(tmp_path)
    stream = stream_of(tmp_path, LateRule("at", 10))
    write_events(stream.events, 0, [100, 50])  # nothing is late in the first batch
    write_events(stream.events, 1, [89, 90, 200])
    query = start(spark, stream, once=True)
    query.awaitTermination()
    write_events(stream.events, 2, [189, 190, 195])
    start(spark, stream, once=True).awaitTermination()
    matched = {row.event_id for row in read_deliveries(spark, stream.output).collect()}
    assert matched == {0, 1, 101, 102, 201, 202}
    late = spark.read.parquet(str(stream.output / "late" / "*")).orderBy("event_id").collect()
    assert [(row.event_id, row.t.timestamp(), row.watermark.timestamp()) for row in late] == [
        (100, 89.0, 90.0), (200, 189.0, 190.0)
    ]  # fmt: skip


def test_a_repeated_batch_has_the_watermark_that_it_had(tmp_path: Path):
    assert newest_before(tmp_path, 0) is None
    record_newest(tmp_path, 0, 500)
    for newest in (700, 900, None):  # batch 1 is interrupted, and repeated
        assert newest_before(tmp_path, 1) == 500
        record_newest(tmp_path, 1, newest)
    assert newest_before(tmp_path, 2) == 500, "the last attempt counts"
    record_newest(tmp_path, 2, 400)
    assert newest_before(tmp_path, 3) == 500, "it never goes back"
    assert LateRule("at", 1.5).watermark_us(2_000_000) == 500_000


def test_a_column_of_times_that_is_not_there_is_said():
    with pytest.raises(MisuseError, match="--event-time: found no column 'when'"):
        LateRule("when", 1).time({})


# --- an orderly end ---------------------------------------------------------------------------


def stream_command(root: Path, *more: str) -> subprocess.Popen[str]:
    with (root / "said").open("w") as said:
        return subprocess.Popen(
            [
                *(
                    sys.executable,
                    "-c",
                    "from nearcast.cli import main; main()",
                    "pipeline",
                    "stream",
                ),
                *("--config", str(root / "nearcast.toml"), "--space", "plane", "--json"),
                *("--input", str(root / "events"), "--subscriptions", str(root / "changes")),
                *("--output", str(root / "out"), "--checkpoint", str(root / "state")),
                *("--master", "local[2]", "--files-a-batch", "1", *more),
            ],
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        )


@pytest.mark.spark
@pytest.mark.java
@pytest.mark.server
def test_sigterm_ends_a_stream_between_two_batches_and_metrics_say_what_it_did(
    spark: SparkSession, tmp_path: Path
):
    (tmp_path / "nearcast.toml").write_text(CONFIG)
    write_wishes(tmp_path)
    for number in range(60):
        write_events(tmp_path / "events", number, [number])
    port = free_port()
    running = stream_command(tmp_path, "--metrics", f"127.0.0.1:{port}")
    wait_for(lambda: batches(port) >= 2, START_S, pause_s=0.2)
    os.kill(running.pid, signal.SIGTERM)
    said, _ = running.communicate(timeout=START_S)
    assert (running.returncode, json.loads(said)) == (0, {"stopped": str(tmp_path / "state")})
    assert unfinished_or_unbegun(tmp_path), "no batch is half done"
    told = (tmp_path / "said").read_text()
    assert "Traceback" not in told
    assert 2 <= read_deliveries(spark, tmp_path / "out").count() < 60, "it stopped on the way"
    rest = replace(stream_of(tmp_path, None), files_a_batch=64)
    start(spark, rest, once=True).awaitTermination()
    rows = read_deliveries(spark, tmp_path / "out").collect()
    assert sorted(row.event_id for row in rows) == [100 * number for number in range(60)]


def batches(port: int) -> float:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            page = answer.read().decode()
    except OSError:
        return 0
    line = next(
        one for one in page.splitlines() if one.startswith("nearcast_stream_batches_total ")
    )
    return float(line.split()[1])


def unfinished_or_unbegun(root: Path) -> bool:
    batch = unfinished_batch(root / "state")
    return batch is None or not (root / "out" / "deliveries" / f"{batch:012d}").exists()


# --- checkpoints ------------------------------------------------------------------------------


def test_a_checkpoint_is_continued_by_what_it_was_begun_with(tmp_path: Path):
    check_checkpoint(tmp_path, SPACE)  # as one of an older release: without the file
    check_checkpoint(tmp_path, SPACE)
    other = replace(SPACE, attributes=(Attribute.number("x", 0, 200),))
    with pytest.raises(MisuseError, match="the space plane as it is declared now"):
        check_checkpoint(tmp_path, other)
    file = tmp_path / "stream.json"
    assert json.loads(file.read_text()) == {
        "format": 1, "space": "plane", "attributes": "4b64a1f888556d2f"
    }  # fmt: skip
    file.write_text('{"format": 2}')
    with pytest.raises(FileFormatError, match="written by a newer release"):
        check_checkpoint(tmp_path, SPACE)
    file.write_text("{")
    with pytest.raises(FileFormatError, match="damaged"):
        check_checkpoint(tmp_path, SPACE)


# --- metrics ----------------------------------------------------------------------------------


def progress(**changes: Any) -> dict[str, Any]:
    return {
        "numInputRows": 500,
        "durationMs": {"addBatch": 200, "triggerExecution": 250},
        "sources": [
            {"metrics": {"avgOffsetsBehindLatest": "30.5"}, "latestOffset": {"a": {"0": 9, "1": 8}}}
        ],
        **changes,
    }  # fmt: skip


def test_metrics_add_up_and_prometheus_can_read_them():
    metrics = QueryMetrics()
    for _ in range(2):
        metrics.wrote({"deliveries": 7, "rejected": 1, "late": 2})
        metrics.progressed(progress())
    metrics.progressed({"numInputRows": 0, "durationMs": {"triggerExecution": 3}})  # idle
    found = metrics.fields()
    assert found["events_total"] == 1_000
    assert found["events_per_second"] == 2_000
    assert found["behind_events"] == 61
    assert metrics.line() == (
        "stream: 2 batches, 1,000 events, 14 deliveries; last batch 500 events in 0.2 s, "
        "2 rejected, 4 late, 61 waiting"
    )
    with metrics_served(metrics, "127.0.0.1", 0) as port:
        assert batches(port) == 2
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5)
    for line in metrics.page().splitlines():
        assert line.startswith(
            ("# HELP nearcast_stream_", "# TYPE nearcast_stream_", "nearcast_stream_")
        )


def test_times_are_those_of_the_clock():
    rule = LateRule("t", 0)
    at = datetime(2026, 1, 2, tzinfo=UTC)
    batch = pa.RecordBatch.from_pydict({"t": pa.array([at, None], pa.timestamp("us", tz="UTC"))})
    assert rule.micros(batch).to_pylist() == [round(at.timestamp() * 1e6), None]
    batch = pa.RecordBatch.from_pydict({"t": pa.array([1.5, None])})
    assert rule.micros(batch).to_pylist() == [1_500_000, None]
