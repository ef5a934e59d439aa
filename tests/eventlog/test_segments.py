"""The event log: what a node notes comes back as rows, and what is missing is accounted for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.eventlog.records import Recorder, sampled
from nearcast.eventlog.segments import (
    OpenSegment,
    finish,
    last_sequence,
    open_segments,
    read_segment,
)
from nearcast.model.errors import FileFormatError


def rows(directory: Path, table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for path in sorted((directory / table).glob("*.parquet")):
        found += pq.read_table(path).to_pylist()
    return found


def finished(directory: Path, recorder: Recorder) -> dict[str, int]:
    segment = OpenSegment(directory, "my-node", 3)
    segment.append(recorder.take())
    segment.close()
    return finish(segment.path)


def test_a_run_becomes_a_row_for_each_message(tmp_path: Path) -> None:
    recorder = Recorder(first=10)
    recorder.events(3, 1234, 1, "ann", b"a/b", b"..1..2..3", 2)
    recorder.delivered(["bob", "cyd"], 3, 1)
    recorder.delivered(["dan"], 1, 0, offset=2)
    recorder.subscription(1300, "bob", "a/#", 2, is_added=True)
    counts = finished(tmp_path, recorder)

    assert counts == {"events": 3, "deliveries": 7, "subscriptions": 1, "gaps": 0}
    events = rows(tmp_path, "events")
    assert [(one["sequence"], one["payload"]) for one in events] == [
        (10, b"1"),
        (11, b"2"),
        (12, b"3"),
    ]
    assert {(one["node"], one["topic"], one["publisher"], one["qos"]) for one in events} == {
        ("my-node", "a/b", "ann", 1)
    }
    assert {(12, "dan"), (10, "bob"), (12, "cyd")} <= {
        (one["sequence"], one["receiver"]) for one in rows(tmp_path, "deliveries")
    }
    assert rows(tmp_path, "subscriptions")[0]["sequence"] == 13
    assert open_segments(tmp_path) == []


@given(
    st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=20),
    st.sampled_from([0.0, 0.3, 1.0]),
)
def test_every_number_is_an_event_or_in_a_gap(
    tmp_path_factory: pytest.TempPathFactory, runs: list[tuple[int, bool]], share: float
) -> None:
    directory = tmp_path_factory.mktemp("log")
    recorder = Recorder(1, sampled(share))
    segment = OpenSegment(directory, "n", 1)
    for count, is_flushed in runs:
        recorder.events(count, 0, 0, "p", b"t", b"x" * count, 0)
        if is_flushed:
            segment.append(recorder.take())
    segment.append(recorder.take())
    segment.close()
    total = sum(count for count, _ in runs)
    assert last_sequence(segment.path) == total
    finish(segment.path)

    seen = [one["sequence"] for one in rows(directory, "events")]
    for gap in rows(directory, "gaps"):
        seen += range(gap["sequence"], gap["sequence"] + gap["count"])
    assert sorted(seen) == list(range(1, total + 1))


def test_what_is_dropped_for_want_of_room_leaves_a_gap(tmp_path: Path) -> None:
    recorder = Recorder()
    recorder.events(2, 0, 0, "p", b"t", b"xy", 0)
    recorder.take()
    recorder.events(5, 0, 0, "p", b"t", b"x" * 5, 0)
    recorder.delivered(["r"], 5, 0)
    recorder.drop()
    finished(tmp_path, recorder)

    gaps = [(one["sequence"], one["count"], one["reason"]) for one in rows(tmp_path, "gaps")]
    assert gaps == [(3, 5, "backlog")]


def test_deliveries_of_a_run_left_out_are_left_out(tmp_path: Path) -> None:
    recorder = Recorder(1, lambda _: False)
    recorder.events(2, 0, 0, "p", b"t", b"xy", 0)
    recorder.delivered(["r"], 2, 0)

    assert finished(tmp_path, recorder)["deliveries"] == 0


def test_a_segment_cut_short_keeps_its_whole_batches(tmp_path: Path) -> None:
    recorder, segment = Recorder(), OpenSegment(tmp_path, "n", 1)
    for number in range(3):
        recorder.events(1, 0, 0, "p", b"t", b"%d" % number, 0)
        segment.append(recorder.take())
    segment.close()
    raw = segment.path.read_bytes()
    counts = set()
    for cut in range(20, len(raw) + 1):
        segment.path.write_bytes(raw[:cut])
        counts.add(len(list(read_segment(segment.path))))

    assert counts == {0, 1, 2, 3}


def test_finishing_twice_gives_the_same(tmp_path: Path) -> None:
    recorder, segment = Recorder(), OpenSegment(tmp_path, "n", 1)
    recorder.events(2, 0, 4, "p", b"t", b"xy", 0)
    segment.append(recorder.take())
    segment.close()
    raw = segment.path.read_bytes()
    finish(segment.path)
    before = rows(tmp_path, "events")
    segment.path.write_bytes(raw)
    finish(segment.path)

    assert rows(tmp_path, "events") == before
    assert before[0]["retain"] is True


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "open-n-00000001.log"
    path.write_bytes(b"something else entirely")

    with pytest.raises(FileFormatError):
        list(read_segment(path))
