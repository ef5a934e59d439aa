"""The event log: what a node notes comes back as rows, and what is missing is accounted for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.eventlog.records import (
    LIMITED,
    LONGEST_LIFETIME_MS,
    RETAIN,
    WAY,
    Arrival,
    CausalNote,
    CausalStep,
    Dropped,
    LoggedRates,
    Recorder,
    RetainedChoice,
    sampled,
)
from nearcast.eventlog.segments import (
    MAGIC,
    batch_header,
    finish,
    last_sequence,
    open_segments,
    read_segment,
)
from nearcast.model.errors import FileFormatError


class OpenSegment:
    """A segment as the broker's writing process leaves it."""

    def __init__(self, directory: Path, node: str, number: int) -> None:
        self.path = directory / f"open-{node}-{number:08d}.log"
        self.path.write_bytes(MAGIC)

    def append(self, recorder: Recorder) -> None:
        raw = b"".join(recorder.take())
        with self.path.open("ab") as file:
            file.write(batch_header(len(raw), recorder.next) + raw)


def rows(directory: Path, table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for path in sorted((directory / table).glob("*.parquet")):
        found += pq.read_table(path).to_pylist()
    return found


def finished(directory: Path, recorder: Recorder) -> dict[str, int]:
    segment = OpenSegment(directory, "my-node", 3)
    segment.append(recorder)
    return finish(segment.path)


def test_a_run_becomes_a_row_for_each_message(tmp_path: Path) -> None:
    recorder = Recorder(first=10)
    recorder.events(3, 1234, 1, "ann", b"a/b", b"..1..2..3", 2)
    recorder.delivered(["bob", "cyd"], 3, 1)
    recorder.delivered(["dan"], 1, 0, offset=2)
    recorder.subscription(1300, "bob", "a/#", 2, is_added=True)
    counts = finished(tmp_path, recorder)

    found = {name: count for name, count in counts.items() if count}
    assert found == {"events": 3, "deliveries": 7, "subscriptions": 1}
    events = rows(tmp_path, "events")
    assert [(one["sequence"], one["payload"]) for one in events] == [
        (10, b"1"),
        (11, b"2"),
        (12, b"3"),
    ]
    assert {(one["node"], one["topic"], one["publisher"], one["qos"]) for one in events} == {
        ("my-node", "a/b", "ann", 1)
    }
    deliveries = rows(tmp_path, "deliveries")
    assert sorted((one["sequence"], one["receiver"], one["qos"]) for one in deliveries) == sorted(
        [(number, name, 1) for number in (10, 11, 12) for name in ("bob", "cyd")] + [(12, "dan", 0)]
    )
    assert rows(tmp_path, "subscriptions")[0]["sequence"] == 13
    assert open_segments(tmp_path) == []


def test_positions_and_retained_decisions_come_back_as_rows(tmp_path: Path) -> None:
    recorder = Recorder(first=5)
    recorder.position("ann", 9.25, -48.5, 1_000)
    recorder.retained_decision(
        "böb",
        "a/ü",
        RetainedChoice.HELD_BACK,
        2_000,
        rates=LoggedRates(0.5, 0.25, 0.125),
        policy="general 3",
        reason="policy",
    )
    recorder.retained_decision("cyd", "b", RetainedChoice.SENT_NOW, 3_000)
    finished(tmp_path, recorder)

    (position,) = rows(tmp_path, "positions")
    assert (position["sequence"], position["client"]) == (5, "ann")
    assert (position["lon"], position["lat"]) == (9.25, -48.5)
    assert position["t"].timestamp() == 1
    held, sent = rows(tmp_path, "retained")
    del held["t"], held["node"]
    assert held == {
        "sequence": 6,
        "client": "böb",
        "topic": "a/ü",
        "choice": "held_back",
        "publish_per_s": 0.5,
        "subscribe_per_s": 0.25,
        "leave_per_s": 0.125,
        "policy": "general 3",
        "reason": "policy",
    }
    assert (sent["sequence"], sent["choice"], sent["publish_per_s"]) == (7, "sent_now", None)


def test_what_an_audit_needs_comes_back_as_rows(tmp_path: Path) -> None:
    recorder = Recorder(first=5)
    flags = 2 | RETAIN | LIMITED | Arrival.CAUSAL << WAY
    recorder.events(2, 1_000, flags, "ann", b"t", b"xy", 0, 1 << 40)
    recorder.causal(CausalStep.DELIVERED, CausalNote("g", "n2", 77, 400, "d"), 1_001, 5)
    recorder.dropped(["bob", "cyd"], 2, Dropped.QUOTA, 1_002, recorder.number(0))
    recorder.sent(recorder.number(1), "dan", 1_003, 1_010)
    recorder.causal(CausalStep.HELD, CausalNote("g", "n3", 78, 400), 1_004, recorder.next)
    recorder.present("ann", 1_005, is_there=False)
    recorder.subscription(1_006, "b", "t", 1, is_added=True, no_local=True, is_restored=True)
    finished(tmp_path, recorder)

    event = rows(tmp_path, "events")[1]
    assert (event["qos"], event["retain"], event["limited"], event["way"]) == (
        2, True, True, "causal"
    )  # fmt: skip
    assert event["lifetime_ms"] == LONGEST_LIFETIME_MS
    drops = [(r["sequence"], r["receiver"], r["reason"]) for r in rows(tmp_path, "drops")]
    assert sorted(drops) == [(n, who, "quota") for n in (5, 6) for who in ("bob", "cyd")]
    assert [(r["sequence"], r["receiver"]) for r in rows(tmp_path, "sent")] == [(6, "dan")]
    done, held = rows(tmp_path, "causal")
    assert (done["sequence"], done["step"], done["sender"], done["stamp_us"], done["detail"]) == (
        5, "delivered", "n2", 77, "d"
    )  # fmt: skip
    assert (held["sequence"], held["step"], held["lifetime_us"]) == (7, "held", 400)
    assert [(r["sequence"], r["there"]) for r in rows(tmp_path, "presence")] == [(7, False)]
    (wish,) = rows(tmp_path, "subscriptions")
    assert (wish["sequence"], wish["no_local"], wish["restored"]) == (8, True, True)


def test_what_became_of_an_event_that_was_left_out_is_left_out(tmp_path: Path) -> None:
    recorder = Recorder(1, lambda _: False)
    recorder.events(1, 0, 0, "p", b"t", b"x", 0)
    recorder.causal(CausalStep.SENT, CausalNote("g", "n", 1, 1), 0, recorder.number(0))
    recorder.dropped(["r"], 1, Dropped.SLOW, 0, recorder.number(0))
    counts = finished(tmp_path, recorder)

    assert {name: count for name, count in counts.items() if count} == {"gaps": 1}


def test_the_longest_topic_that_mqtt_allows_is_logged(tmp_path: Path) -> None:
    recorder = Recorder()
    topic = b"t" * 65_535
    packet = b"\x30\x83\x80\x04\xff\xff" + topic + b"xy"
    recorder.events(1, 0, 0, "p" * 65_535, topic, packet, len(packet) - 2)
    finished(tmp_path, recorder)

    (event,) = rows(tmp_path, "events")
    assert event["topic"] == topic.decode()
    assert event["payload"] == b"xy"


def test_a_selection_longer_than_any_filter_is_logged(tmp_path: Path) -> None:
    """A subscription's text has its conditions written out: more than a filter's 65,535 bytes."""
    recorder, text = Recorder(), "$where=" + "x" * 200_000 + "/t"
    recorder.subscription(1, "c" * 65_535, text, 1, is_added=True)
    finished(tmp_path, recorder)

    (row,) = rows(tmp_path, "subscriptions")
    assert row["filter"] == text


def note(recorder: Recorder, kind: str, count: int) -> int:
    """Note something of a kind; return how many numbers it takes."""
    if kind == "events":
        recorder.events(count, 0, 0, "p", b"t", b"x" * count, 0)
        return count
    if kind == "subscriptions":
        recorder.subscription(0, "c", "t", 0, is_added=True)
    elif kind == "presence":
        recorder.present("c", 0, is_there=True)
    elif kind == "positions":
        recorder.position("c", 1.0, 2.0, 0)
    else:
        recorder.retained_decision("c", "t", RetainedChoice.NOT_SENT, 0)
    return 1


KINDS = ("events", "subscriptions", "presence", "positions", "retained")


@given(
    st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 4), st.booleans()), max_size=20),
    st.sampled_from([0.0, 0.3, 1.0]),
)
def test_every_number_is_noted_once_or_in_a_gap(
    tmp_path_factory: pytest.TempPathFactory, notes: list[tuple[str, int, bool]], share: float
) -> None:
    directory = tmp_path_factory.mktemp("log")
    recorder = Recorder(1, sampled(share))
    segment = OpenSegment(directory, "n", 1)
    total = 0
    for kind, count, is_flushed in notes:
        total += note(recorder, kind, count)
        if is_flushed:
            segment.append(recorder)
    segment.append(recorder)
    assert last_sequence(segment.path) == total
    finish(segment.path)

    seen = [one["sequence"] for kind in KINDS for one in rows(directory, kind)]
    for gap in rows(directory, "gaps"):
        seen += range(gap["sequence"], gap["sequence"] + gap["count"])
    assert sorted(seen) == list(range(1, total + 1))


@pytest.mark.parametrize("kind", KINDS[1:])
def test_what_a_run_was_is_not_forgotten_for_what_comes_between(tmp_path: Path, kind: str) -> None:
    recorder = Recorder()
    recorder.events(2, 0, 0, "p", b"t", b"xy", 0)
    note(recorder, kind, 1)
    recorder.delivered(["r"], 2, 0)
    finished(tmp_path, recorder)

    assert [one["sequence"] for one in rows(tmp_path, "deliveries")] == [1, 2]


def test_what_is_dropped_for_want_of_room_leaves_a_gap(tmp_path: Path) -> None:
    recorder = Recorder()
    recorder.events(2, 0, 0, "p", b"t", b"xy", 0)
    recorder.take()
    recorder.events(5, 0, 0, "p", b"t", b"x" * 5, 0)
    recorder.delivered(["r"], 5, 0)
    recorder.position("c", 1.0, 2.0, 0)
    recorder.retained_decision("c", "t", RetainedChoice.RELEASED, 0)
    recorder.drop()
    counts = finished(tmp_path, recorder)

    gaps = [(one["sequence"], one["count"], one["reason"]) for one in rows(tmp_path, "gaps")]
    assert gaps == [(3, 7, "backlog")]
    assert sum(counts.values()) == 1


def test_deliveries_of_a_run_left_out_are_left_out(tmp_path: Path) -> None:
    recorder = Recorder(1, lambda _: False)
    recorder.events(2, 0, 0, "p", b"t", b"xy", 0)
    recorder.delivered(["r"], 2, 0)

    assert finished(tmp_path, recorder)["deliveries"] == 0


def test_a_segment_cut_short_keeps_its_whole_batches(tmp_path: Path) -> None:
    recorder, segment = Recorder(), OpenSegment(tmp_path, "n", 1)
    for number in range(3):
        recorder.events(1, 0, 0, "p", b"t", b"%d" % number, 0)
        segment.append(recorder)
    raw = segment.path.read_bytes()
    counts = set()
    for cut in range(20, len(raw) + 1):
        segment.path.write_bytes(raw[:cut])
        counts.add(len(list(read_segment(segment.path))))

    assert counts == {0, 1, 2, 3}


def test_finishing_twice_gives_the_same(tmp_path: Path) -> None:
    recorder, segment = Recorder(), OpenSegment(tmp_path, "n", 1)
    recorder.events(2, 0, 4, "p", b"t", b"xy", 0)
    segment.append(recorder)
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
