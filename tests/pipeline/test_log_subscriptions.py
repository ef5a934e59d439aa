"""The subscriptions of an event log are those that a reader of its records would count."""

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from tests.support.log_segments import write_segment

from nearcast.eventlog.records import Recorder
from nearcast.eventlog.segments import finish
from nearcast.matching import Matcher
from nearcast.model import Attribute, Event, FileFormatError, Space, Subscription, parse_where
from nearcast.model.requests import parse_identity
from nearcast.pipeline.jobs.match import MatchQuery
from nearcast.pipeline.sources.event_logs import SEQUENCE_BITS, node_numbers
from nearcast.pipeline.sources.log_subscriptions import alive, log_version, matcher_of_log
from nearcast.pipeline.streaming.changes import newest_change
from nearcast.pipeline.streaming.stream import Stream, read_deliveries, start

SPACE = Space(
    name="shops",
    topic_filter="shops/+/offers",
    attributes=(Attribute.number("price", 0, 100), Attribute.category("kind", ["food", "tools"])),
)
START_MS = 1_714_557_600_000
FILTERS = ("shops/+/offers", "shops/5/offers", "$where/price<50/shops/#", "other/#")


def subscribe(recorder: Recorder, client: str, text: str) -> int:
    number = recorder.next
    recorder.subscription(START_MS + number, client, text, 1, is_added=True)
    return number


def unsubscribe(recorder: Recorder, client: str, text: str) -> None:
    recorder.subscription(START_MS + recorder.next, client, text, 0, is_added=False)


def publish(recorder: Recorder, topic: str, values: Mapping[str, object]) -> int:
    number = recorder.next
    recorder.events(
        1, START_MS, 0, "ann", topic.encode(), b"hd" + json.dumps(values).encode(), head_size=2
    )
    return number


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "remove", "start", "come", "cut"]),
        st.sampled_from(["n1", "b-2"]),
        st.sampled_from(["ann", "bob"]),
        st.sampled_from(FILTERS[:2]),
    ),
    max_size=14,
)


@given(STEPS)
def test_what_is_there_is_what_a_reader_of_the_finished_segments_counts(steps):
    recorders = {"n1": Recorder(), "b-2": Recorder(first=50)}
    segments = dict.fromkeys(recorders, 1)
    now: dict[str, dict[tuple[str, str], int]] = {node: {} for node in recorders}
    done: dict[str, dict[tuple[str, str], int]] = {node: {} for node in recorders}
    with tempfile.TemporaryDirectory() as name:
        log = Path(name)
        for what, node, client, text in steps:
            recorder = recorders[node]
            if what == "add":
                now[node][client, text] = subscribe(recorder, client, text)
            elif what == "remove":
                unsubscribe(recorder, client, text)
                now[node].pop((client, text), None)
            elif what == "come":
                recorder.present(client, START_MS, is_there=True)
            elif what == "start":  # nothing survives: the node tells nothing anew
                recorder.present("", START_MS, is_there=True)
                now[node].clear()
            else:
                write_segment(log, node, recorder, segments[node])
                segments[node] += 1
                done[node] = dict(now[node])
        for node, recorder in recorders.items():
            # Open: it does not count yet.
            write_segment(log, node, recorder, segments[node], is_finished=False)
        found = {
            (node, client, text): row["sequence"]
            for (node, client, text), row in alive(log, log_version(log)).items()
        }
    assert found == {
        (node, *key): number for node, each in done.items() for key, number in each.items()
    }


def test_a_version_stays_what_it_was_while_the_log_grows(tmp_path: Path):
    recorder, other = Recorder(), Recorder()
    first = subscribe(recorder, "ann", FILTERS[0])
    write_segment(tmp_path, "n1", recorder)
    version = log_version(tmp_path)
    assert newest_change(tmp_path) == version
    subscribe(recorder, "bob", FILTERS[0])
    write_segment(tmp_path, "n1", recorder, 2)
    subscribe(other, "cid", FILTERS[0])  # of a node whose name comes before the other's
    write_segment(tmp_path, "a", other)
    assert [row["sequence"] for row in alive(tmp_path, version).values()] == [first]
    assert len(alive(tmp_path, log_version(tmp_path))) == 3


def test_a_segment_that_is_being_finished_does_not_count_yet(tmp_path: Path):
    recorder = Recorder()
    subscribe(recorder, "ann", FILTERS[0])
    path = write_segment(tmp_path, "n1", recorder, is_finished=False)
    copy = tmp_path / "copy"
    shutil.copyfile(path, copy)
    finish(path)
    shutil.copyfile(copy, path)
    assert log_version(tmp_path) == ""
    path.unlink()
    assert log_version(tmp_path) == "n1-00000001"


def test_only_what_concerns_the_space_and_stays_in_place_is_matched(tmp_path: Path):
    recorder = Recorder(first=3)
    plain = subscribe(recorder, "ann", FILTERS[0])
    shared = subscribe(recorder, "ann", f"$share/g/{FILTERS[2]}")
    subscribe(recorder, "ann", FILTERS[3])
    subscribe(recorder, "ann", "$near/500m/shops/#")
    subscribe(recorder, "$node/n2", FILTERS[0])
    write_segment(tmp_path, "n1", recorder)
    matcher = matcher_of_log(tmp_path, log_version(tmp_path), SPACE)
    node = node_numbers(str(tmp_path))["n1"]
    cheap = Event.of(SPACE, "shops/1/offers", {"price": 5})
    assert set(matcher.match(cheap)) == {node << SEQUENCE_BITS | n for n in (plain, shared)}
    dear = Event.of(SPACE, "shops/1/offers", {"price": 60})
    assert matcher.match(dear) == [node << SEQUENCE_BITS | plain]


def test_a_condition_is_read_out_of_its_level():
    wish = parse_identity("$where/price%20<%205/shops/+/offers")
    assert wish == Subscription(topic_filter="shops/+/offers", where=parse_where("price < 5"))


def test_a_damaged_part_is_named(tmp_path: Path):
    (tmp_path / "subscriptions").mkdir()
    (tmp_path / "subscriptions" / "part-n1-00000001.parquet").write_bytes(b"half")
    with pytest.raises(FileFormatError, match=r"part-n1-00000001\.parquet"):
        alive(tmp_path, log_version(tmp_path))


def stream_of(log: Path, root: Path, k: int | None) -> Stream:
    query = MatchQuery("shops", "shops/x/offers", k)
    return Stream(log, log, root / "out", root / "state", SPACE, query, 1)


@pytest.mark.spark
@pytest.mark.parametrize("k", [None, 1])
def test_a_stream_on_a_log_delivers_what_the_matcher_says_of_every_topic(
    spark: SparkSession, tmp_path: Path, k: int | None
):
    log, recorder = tmp_path / "log", Recorder()
    expected: set[tuple[int, int]] = set()
    matcher, oldest = Matcher([SPACE]), {}
    for number, changes in ((1, FILTERS[:3]), (2, ("$where/kind=food/shops/5/offers",)), (3, ())):
        for text in changes:
            key = subscribe(recorder, "ann", text)
            matcher.add(key, parse_identity(text))
            oldest[text] = key
        if number == 3:
            unsubscribe(recorder, "ann", FILTERS[0])
            matcher.remove(oldest[FILTERS[0]])
        write_segment(log, "n1", recorder, 10 * number)
        for topic in ("shops/5/offers", "shops/6/offers", "other/5"):
            for price in (10, 60, "cheap"):
                values = {"price": price, "kind": "food" if price == 10 else "tools"}
                event_id = publish(recorder, topic, values)
                if topic.startswith("shops") and price != "cheap":
                    event = Event.of(SPACE, topic, values)
                    best = [match.key for match in matcher.top(event, k or 100)]
                    expected |= {(event_id, key) for key in best}
        write_segment(log, "n1", recorder, 10 * number + 1)
        start(spark, stream_of(log, tmp_path, k), once=True).awaitTermination()
    mask = (1 << SEQUENCE_BITS) - 1
    rows = read_deliveries(spark, tmp_path / "out").collect()
    found = {(row["event_id"] & mask, row["subscription_id"] & mask) for row in rows}
    assert found == expected
    assert len(rows) == len(found) > 5
    rejected = spark.read.parquet(str(tmp_path / "out" / "rejected" / "*" / "*.parquet"))
    assert rejected.count() == 6
