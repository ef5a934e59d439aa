"""The stream gives what the batch gives, whatever is killed on the way."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import settings
from pyspark.sql import SparkSession
from tests.support.space_sections import space_section

from nearcast.matching import Matcher, open_matcher
from nearcast.model import (
    Attribute,
    Event,
    FileFormatError,
    MisuseError,
    Space,
    Subscription,
    parse_where,
)
from nearcast.pipeline.jobs.match import MatchQuery
from nearcast.pipeline.streaming.changes import newest_change, subscriptions_at
from nearcast.pipeline.streaming.stream import (
    Stream,
    clear,
    complete,
    index_at,
    match_batch,
    pinned,
    read_deliveries,
    start,
    unfinished_batch,
)

pytestmark = pytest.mark.spark

SPACE = Space(
    name="plane",
    topic_filter="plane/#",
    attributes=(Attribute.number("x", 0, 100), Attribute.number("y", 0, 100)),
)
CONFIG = space_section("plane", 'missing = "all"', x=(0, 100), y=(0, 100))


def write_events(folder: Path, files: int, rows: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(5)
    for number in range(files):
        table = pa.table(
            {
                "event_id": np.arange(rows) + number * rows,
                "x": rng.integers(0, 101, rows).astype(float),
                "y": rng.integers(0, 101, rows).astype(float),
            }
        )
        pq.write_table(table, folder / f"{number:06d}.parquet")


def write_changes(folder: Path, name: str, rows: list[tuple[int, str, str]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    ids, operations, wheres = zip(*rows, strict=True)
    table = pa.table({"subscription_id": ids, "op": operations, "where": wheres})
    pq.write_table(table, folder / name)


def stream_of(root: Path, k: int | None = None, files_a_batch: int = 2) -> Stream:
    return Stream(
        root / "events", root / "changes", root / "out", root / "checkpoint", SPACE,
        MatchQuery("plane", "plane/x", k), files_a_batch,
    )  # fmt: skip


WISHES = [(i, "put", f"x >= {i} and y < {2 * i + 5}") for i in range(40)]


def expected(root: Path, wishes: dict[int, str]) -> set[tuple[int, int, int]]:
    matcher = Matcher([SPACE])
    for key, where in wishes.items():
        matcher.add(key, Subscription(topic_filter="plane/#", where=parse_where(where)))
    found = set()
    for file in sorted((root / "events").glob("*.parquet")):
        for row in pq.read_table(file).to_pylist():
            event = Event.of(SPACE, "plane/x", {"x": row["x"], "y": row["y"]})
            found |= {(row["event_id"], key, 0) for key in matcher.match(event)}
    return found


def rows(spark: SparkSession, root: Path) -> set[tuple[int, int, int]]:
    found = [tuple(row) for row in read_deliveries(spark, root / "out").collect()]
    assert len(found) == len(set(found)), "nothing twice"
    return set(found)


def test_the_stream_delivers_what_the_matcher_says_and_goes_on_where_it_stopped(
    spark: SparkSession, tmp_path: Path
):
    write_events(tmp_path / "events", files=3, rows=50)
    write_changes(tmp_path / "changes", "000.parquet", WISHES)
    start(spark, stream_of(tmp_path), once=True).awaitTermination()
    wishes = {key: where for key, _, where in WISHES}
    assert rows(spark, tmp_path) == expected(tmp_path, wishes)

    # Later events see later subscriptions; the earlier deliveries stay.
    before = rows(spark, tmp_path)
    write_changes(
        tmp_path / "changes",
        "001.parquet",
        [(0, "remove", ""), (1, "put", "x < 1"), (99, "put", "y = 7")],
    )
    late = pa.table({"event_id": [9001, 9002], "x": [50.0, 0.0], "y": [7.0, 50.0]})
    pq.write_table(late, tmp_path / "events" / "999999.parquet")
    start(spark, stream_of(tmp_path), once=True).awaitTermination()
    new = {(event, key) for event, key, _ in rows(spark, tmp_path) - before}
    assert {key for event, key in new if event == 9001} == {*range(2, 40), 99}
    assert (9002, 1) in new
    assert not any(key == 0 for event, key in new)


def test_a_batch_done_again_replaces_what_an_attempt_left(spark: SparkSession, tmp_path: Path):
    write_events(tmp_path / "events", files=1, rows=30)
    write_changes(tmp_path / "changes", "000.parquet", WISHES)
    left = pa.table({"event_id": [1], "subscription_id": [1], "rank": pa.array([0], pa.int32())})
    for table in ("deliveries", "rejected"):
        folder = tmp_path / "out" / table / "000000000000"
        folder.mkdir(parents=True)
        pq.write_table(left, folder / "part-stray.parquet")
        (folder / "_SUCCESS").touch()
    events = spark.read.parquet(str(tmp_path / "events"))
    write_changes(tmp_path / "changes", "001.parquet", [(0, "remove", "")])
    bad = spark.sql("SELECT 777L AS event_id, 500D AS x, 1D AS y")
    for _ in range(2):
        match_batch(stream_of(tmp_path), events.unionAll(bad).repartition(3), 0)
        write_changes(tmp_path / "changes", "002.parquet", [(1, "remove", "")])  # comes too late
    wishes = {key: where for key, _, where in WISHES if key != 0}
    assert rows(spark, tmp_path) == expected(tmp_path, wishes)
    (rejected,) = (tmp_path / "out" / "rejected" / "000000000000").glob("*.parquet")
    assert pq.read_table(rejected).to_pylist() == [
        {"event_id": 777, "reason": "x: outside 0 to 100"}
    ]


def test_a_file_that_no_task_names_is_removed_before_the_mark(tmp_path: Path):
    folder = tmp_path / "deliveries"
    clear(folder)
    for name in ("part-1.parquet", "part-2.parquet"):
        (folder / name).touch()
    complete(folder, {"part-2.parquet"})
    assert sorted(path.name for path in folder.iterdir()) == ["_SUCCESS", "part-2.parquet"]
    clear(folder)
    assert list(folder.iterdir()) == []


def test_only_the_last_indexes_are_kept_and_one_half_built_is_built_anew(tmp_path: Path):
    for number in range(6):
        write_changes(tmp_path / "changes", f"{number}.parquet", [(number, "put", "x < 1")])
    paths = [index_at(stream_of(tmp_path), f"{number}.parquet") for number in range(6)]
    assert [path.exists() for path in paths] == [False] * 3 + [True] * 3
    (paths[5] / "manifest.json").unlink()
    assert index_at(stream_of(tmp_path), "5.parquet") == paths[5]
    assert len(open_matcher(paths[5]).match_point("plane", "plane/x", (0.0, 0.0))) == 6


def test_a_pin_is_chosen_once(tmp_path: Path):
    assert pinned(tmp_path, 3, lambda: "a.parquet") == "a.parquet"
    assert pinned(tmp_path, 3, lambda: "b.parquet") == "a.parquet"
    (tmp_path / "4.json").write_text("{")
    with pytest.raises(FileFormatError, match=r"4\.json"):
        pinned(tmp_path, 4, lambda: "b.parquet")


def test_the_last_word_on_a_subscription_counts(tmp_path: Path):
    write_changes(
        tmp_path, "0.parquet", [(1, "put", "x < 1"), (2, "put", "x < 2"), (1, "put", "x < 3")]
    )
    write_changes(tmp_path, "1.parquet", [(2, "remove", ""), (3, "put", "x < 4")])
    write_changes(tmp_path, "2.parquet", [(3, "remove", "")])
    assert subscriptions_at(tmp_path, "0.parquet", SPACE)["where"].to_pylist() == ["x < 3", "x < 2"]
    assert subscriptions_at(tmp_path, "1.parquet", SPACE)["where"].to_pylist() == ["x < 3", "x < 4"]
    (tmp_path / "3.parquet").write_bytes(b"half")
    with pytest.raises(FileFormatError, match="cannot be read"):
        subscriptions_at(tmp_path, "3.parquet", SPACE)


def test_changes_are_folded_once_and_folded_files_may_be_removed(tmp_path: Path):
    changes, folded = tmp_path / "changes", tmp_path / "folded.parquet"
    for name, rows in (
        ("0.parquet", [(1, "put", "x < 1"), (2, "put", "x < 2")]),
        ("1.parquet", [(1, "put", "x < 5"), (3, "put", "x < 3")]),
        ("2.parquet", [(2, "remove", "x < 2")]),
    ):
        write_changes(changes, name, rows)
        version = newest_change(changes)
        kept = subscriptions_at(changes, version, SPACE, folded)
        assert kept.equals(subscriptions_at(changes, version, SPACE))
    (changes / "0.parquet").unlink()
    (changes / "1.parquet").unlink()
    write_changes(changes, "3.parquet", [(4, "put", "x < 4")])
    kept = subscriptions_at(changes, newest_change(changes), SPACE, folded)
    assert kept["where"].to_pylist() == ["x < 5", "x < 3", "x < 4"]
    write_changes(changes, "2.parquet", [(3, "remove", "x < 2")])
    with pytest.raises(FileFormatError, match=r"2\.parquet was added or changed after 0"):
        subscriptions_at(changes, newest_change(changes), SPACE, folded)


def test_a_change_file_that_is_replaced_or_comes_between_is_noticed(tmp_path: Path):
    changes, folded = tmp_path / "changes", tmp_path / "folded.parquet"

    def where() -> list[str]:
        version = newest_change(changes)
        assert version not in versions
        versions.append(version)
        found: list[str] = subscriptions_at(changes, version, SPACE, folded)["where"].to_pylist()
        return found

    versions: list[str] = []
    write_changes(changes, "0.parquet", [(1, "put", "x < 1"), (2, "put", "x < 2")])
    write_changes(changes, "5.parquet", [(2, "put", "x < 3")])
    assert where() == ["x < 1", "x < 3"]
    write_changes(changes, "4.parquet", [(1, "put", "x < 4"), (2, "put", "x < 4")])
    assert where() == ["x < 4", "x < 3"]
    write_changes(changes, "0.parquet", [(7, "put", "x < 7")])
    assert where() == ["x < 4", "x < 3", "x < 7"]
    folded.write_bytes(b"damaged")
    assert subscriptions_at(changes, versions[-1], SPACE, folded).num_rows == 3


def test_a_batch_that_was_begun_and_not_completed_is_known(tmp_path: Path):
    assert unfinished_batch(tmp_path) is None
    for folder, names in (("offsets", "9 10"), ("commits", "9")):
        (tmp_path / "spark" / folder).mkdir(parents=True)
        for name in names.split():
            (tmp_path / "spark" / folder / name).touch()
        (tmp_path / "spark" / folder / f".{names}.crc").touch()
    assert unfinished_batch(tmp_path) == 10
    (tmp_path / "spark" / "commits" / "10").touch()
    assert unfinished_batch(tmp_path) is None


def test_no_files_are_said(spark: SparkSession, tmp_path: Path):
    (tmp_path / "events").mkdir()
    with pytest.raises(MisuseError, match="no event files"):
        start(spark, stream_of(tmp_path), once=True)


@pytest.mark.java
@pytest.mark.timeout(1800)
def test_killed_at_random_moments_the_output_is_that_of_an_undisturbed_run(
    spark: SparkSession, tmp_path: Path
):
    is_soak = settings.get_current_profile_name() == "soak"
    write_events(tmp_path / "events", files=24 if is_soak else 8, rows=40)
    write_changes(tmp_path / "changes", "000.parquet", WISHES)
    (tmp_path / "nearcast.toml").write_text(CONFIG)
    chance = random.Random(11)
    for _ in range(10 if is_soak else 1):
        run = subprocess.Popen(
            command(tmp_path),
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_for_batches(tmp_path / "out", run, more=1)
        time.sleep(chance.uniform(0, 1.5))
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()
    subprocess.run([*command(tmp_path), "--once"], check=True, timeout=600)
    assert rows(spark, tmp_path) == expected(tmp_path, {key: where for key, _, where in WISHES})


def command(root: Path) -> list[str]:
    return [
        sys.executable, "-c", "from nearcast.cli import main; main()",
        "pipeline", "stream", "--space", "plane", "--config", str(root / "nearcast.toml"),
        "--input", str(root / "events"), "--subscriptions", str(root / "changes"),
        "--output", str(root / "out"), "--checkpoint", str(root / "checkpoint"),
        "--files-a-batch", "1",
    ]  # fmt: skip


def wait_for_batches(output: Path, run: subprocess.Popen[bytes], more: int) -> None:
    def done() -> int:
        return len(list((output / "deliveries").glob("*/_SUCCESS")))

    wanted = done() + more
    deadline = time.monotonic() + 600
    while done() < wanted and run.poll() is None:
        assert time.monotonic() < deadline, "no batch in ten minutes"
        time.sleep(0.1)
