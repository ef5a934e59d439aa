"""What a broker logged becomes tables, from finished segments and from open ones."""

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from tests.support.log_segments import write_segment

from nearcast.eventlog.log_files import is_event_log
from nearcast.eventlog.records import Recorder
from nearcast.eventlog.segments import finish
from nearcast.index.topic_filters import topic_matches
from nearcast.model import Attribute, FileFormatError, MisuseError, Space
from nearcast.pipeline.jobs.ingest import COLUMNS, Cleaning, ingest
from nearcast.pipeline.jobs.ingest_events import ingest_events, judge_events
from nearcast.pipeline.sources.event_logs import (
    SEQUENCE_BITS,
    has_rows,
    node_numbers,
    read_log,
    topic_pattern,
)
from nearcast.pipeline.sources.files import read_events, read_source
from nearcast.pipeline.spark_errors import spark_errors_translated
from nearcast.pipeline.tables.transaction import read_table

SPACE = Space(
    name="shops",
    topic_filter="shops/+/offers",
    attributes=(Attribute.number("price", 0, 100), Attribute.category("kind", ["food", "tools"])),
)
START_MS = 1_714_557_600_000


def publish(recorder: Recorder, topic: str, payload: bytes) -> None:
    recorder.events(1, START_MS, 0, "ann", topic.encode(), b"hd" + payload, 2)


def walk(recorder: Recorder, client: str, steps: int) -> None:
    for i in range(steps):
        recorder.position(client, 8.5 + i * 1e-4, 47.3, START_MS + i * 10_000)


@pytest.mark.spark
def test_positions_come_from_finished_and_from_open_segments(spark: SparkSession, tmp_path: Path):
    log = tmp_path / "log"
    for node, number, client in (("n1", 1, "ann"), ("n1", 2, "bob"), ("a-b", 1, "cid")):
        recorder = Recorder(first=number * 100)
        walk(recorder, client, 3)
        path = write_segment(log, node, recorder, number, is_finished=False)
        if client == "ann":
            finish(path)
    assert is_event_log(str(log))
    source = read_source(spark, str(log), {name: name for name in COLUMNS})
    done = ingest(source, str(tmp_path / "out"), Cleaning())
    assert (done.kept, done.rejected) == (9, {})
    kept = read_table(spark, str(tmp_path / "out/positions")).orderBy("user_id", "t").collect()
    assert [row["user_id"] for row in kept] == ["ann"] * 3 + ["bob"] * 3 + ["cid"] * 3
    assert [row["step_s"] for row in kept] == [0.0, 10.0, 10.0] * 3


@pytest.mark.parametrize("is_finished", [False, True])
def test_without_spark_it_is_known_which_tables_have_rows(tmp_path: Path, *, is_finished: bool):
    for node, acts in (("n1", publish), ("n2", None)):
        recorder = Recorder()
        recorder.present("ann", START_MS, is_there=True)
        if acts is not None:
            acts(recorder, "shops/1/offers", b"{}")
        path = write_segment(tmp_path / node, node, recorder, is_finished=False)
        if is_finished:
            finish(path)
    logs = [str(tmp_path / node) for node in ("n2", "n1")]
    assert [has_rows(logs, table) for table in ("events", "presence")] == [True, True]
    assert [has_rows(logs[:1], table) for table in ("events", "presence")] == [False, True]
    assert not has_rows(logs, "positions")


@pytest.mark.spark
def test_open_segments_are_read_without_a_shuffle_each_by_a_task(
    spark: SparkSession, tmp_path: Path
):
    for number in (1, 2, 3):
        recorder = Recorder(first=number * 100)
        walk(recorder, "ann", 2)
        write_segment(tmp_path, "n1", recorder, number, is_finished=False)
    frame = read_log(spark, str(tmp_path), "positions")
    assert frame.rdd.getNumPartitions() == 3
    assert "Exchange" not in frame._jdf.queryExecution().executedPlan().toString()
    assert frame.count() == 6


@pytest.mark.spark
def test_a_segment_that_is_finished_meanwhile_is_read_once(spark: SparkSession, tmp_path: Path):
    recorder = Recorder()
    walk(recorder, "ann", 4)
    path = write_segment(tmp_path, "n1", recorder, is_finished=False)
    copy = tmp_path / "kept"
    shutil.copyfile(path, copy)
    lazy = read_log(spark, str(tmp_path), "positions")  # lists the open one …
    finish(path)  # … which is gone when it is read
    assert lazy.count() == 4
    shutil.copyfile(copy, path)  # both forms are there
    assert read_log(spark, str(tmp_path), "positions").count() == 4
    assert read_log(spark, str(tmp_path), "gaps").count() == 0


@pytest.mark.spark
def test_a_cut_segment_gives_its_whole_batches_and_a_strange_one_is_named(
    spark: SparkSession, tmp_path: Path
):
    recorder = Recorder()
    walk(recorder, "ann", 2)
    path = write_segment(tmp_path, "n1", recorder, is_finished=False)
    with path.open("ab") as file:
        file.write(b"\x10\x00")  # half of the next batch's header
    assert read_log(spark, str(tmp_path), "positions").count() == 2
    (tmp_path / "open-n2-00000001.log").write_bytes(b"something else")
    with (
        pytest.raises(FileFormatError, match=r"open-n2-00000001\.log"),
        spark_errors_translated("log"),
    ):
        read_log(spark, str(tmp_path), "positions").count()


@pytest.mark.spark
def test_events_of_a_space_come_out_of_a_log_with_ids_that_last(
    spark: SparkSession, tmp_path: Path
):
    log = tmp_path / "log"
    recorder = Recorder(first=7)
    publish(recorder, "shops/5/offers", json.dumps({"price": 5, "kind": "food"}).encode())
    publish(recorder, "shops/5/others", b"{}")
    publish(recorder, "shops/5/offers", json.dumps({"price": 500}).encode())
    publish(recorder, "shops/5/offers", b"no json")
    publish(recorder, "shops/5/offers", json.dumps({"price": "cheap"}).encode())
    publish(recorder, "shops/6/offers", json.dumps({"kind": "tools", "more": [1]}).encode())
    write_segment(log, "n1", recorder, is_finished=False)
    done = ingest_events(read_events(spark, str(log), SPACE, {}), str(tmp_path / "out"), SPACE)
    wrong = "the payload is no JSON object with values of the right kinds"
    assert (done.kept, done.rejected) == (2, {"price: outside 0 to 100": 1, wrong: 2})
    kept = read_table(spark, str(tmp_path / "out/events")).orderBy("event_id").collect()
    node = node_numbers(str(log))["n1"]
    assert [row["event_id"] for row in kept] == [
        node << SEQUENCE_BITS | 7,
        node << SEQUENCE_BITS | 12,
    ]
    assert [(row["price"], row["kind"]) for row in kept] == [(5.0, "food"), (None, "tools")]
    aside = read_table(spark, str(tmp_path / "out/rejected")).collect()
    assert any("no json" in row["raw"] for row in aside)


EVENT_FILE = """\
id,price,kind,t
1,5,food,2024-05-01T10:00:00Z
1,6,food,2024-05-01T10:00:01Z
2,cheap,food,2024-05-01T10:00:00Z
x,5,food,2024-05-01T10:00:00Z
,5,food,2024-05-01T10:00:00Z
3,101,food,2024-05-01T10:00:00Z
4,5,toys,2024-05-01T10:00:00Z
5,5,,soon
6,,tools,1714557600
"""


@pytest.mark.spark
@pytest.mark.parametrize("partitions", [1, 7])
def test_event_files_are_cleaned_with_reasons(spark: SparkSession, tmp_path: Path, partitions: int):
    (tmp_path / "events.csv").write_text(EVENT_FILE)
    source = read_events(spark, str(tmp_path / "events.csv"), SPACE, {"event_id": "id"})
    judged = judge_events(source.repartition(partitions), SPACE).collect()
    reasons = sorted((row["reason"] or "", row["event_id"] or 0, row["price"]) for row in judged)
    assert [(reason, key) for reason, key, _ in reasons] == [
        ("", 1),
        ("", 6),
        ("duplicate", 1),
        ("event_id is no whole number", 0),
        ("kind: none of food, tools", 4),
        ("no event_id", 0),
        ("price: no number", 2),
        ("price: outside 0 to 100", 3),
        ("time not understood", 5),
    ]
    assert reasons[0][2] == 5.0  # of two, the earlier one stays


@pytest.mark.spark
def test_events_of_which_none_is_good_write_nothing(spark: SparkSession, tmp_path: Path):
    (tmp_path / "events.csv").write_text("event_id,price\n1,many\n")
    source = read_events(spark, str(tmp_path / "events.csv"), SPACE, {})
    with pytest.raises(MisuseError, match=r"no row is good \(1 rows: price: no number\)"):
        ingest_events(source, str(tmp_path / "out"), SPACE)
    assert not (tmp_path / "out").exists()
    (tmp_path / "other.csv").write_text("id,price\n1,many\n")
    with pytest.raises(MisuseError, match="no column 'event_id'"):
        judge_events(read_events(spark, str(tmp_path / "other.csv"), SPACE, {}), SPACE)


def test_an_attribute_may_not_be_called_like_a_column_of_the_table():
    space = Space(name="s", topic_filter="s", attributes=(Attribute.number("topic", 0, 1),))
    with pytest.raises(MisuseError, match="an attribute named 'topic'"):
        judge_events(None, space)  # type: ignore[arg-type]


LEVELS = st.sampled_from(["a", "b", "", "$x", "a.b"])


@given(
    st.lists(st.one_of(LEVELS, st.just("+")), min_size=1, max_size=4),
    st.booleans(),
    st.lists(LEVELS, min_size=1, max_size=5),
)
def test_the_pattern_of_a_filter_fits_the_topics_that_the_filter_fits(wanted, is_open, levels):
    import re

    topic_filter, topic = "/".join([*wanted, "#"] if is_open else wanted), "/".join(levels)
    # Python knows no \Q…\E; the levels here hold no other special characters.
    pattern = re.sub(r"\\Q(.*?)\\E", lambda text: re.escape(text[1]), topic_pattern(topic_filter))
    assert bool(re.search(pattern, topic)) == topic_matches(topic_filter, topic)


def test_two_nodes_with_one_number_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for node in ("n1", "n2"):
        write_segment(tmp_path, node, Recorder(), is_finished=False)
    assert len(node_numbers(str(tmp_path))) == 2
    monkeypatch.setattr("nearcast.pipeline.sources.event_logs.zlib.crc32", lambda _: 5)
    with pytest.raises(MisuseError, match="nodes 'n1' and 'n2'"):
        node_numbers(str(tmp_path))
