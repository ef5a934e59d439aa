"""The audit against a brute-force oracle, planted faults, and real nodes: mostly without Spark."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from benchmarks.audit_samples import SampleSize, write_sample
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from tests.support.log_segments import write_segment
from typer.testing import CliRunner

from nearcast.cli.pipeline import app
from nearcast.config.schema import SpaceSection
from nearcast.eventlog.log_files import find_segments
from nearcast.eventlog.records import (
    LIMITED,
    WAY,
    Arrival,
    CausalNote,
    CausalStep,
    Dropped,
    Recorder,
)
from nearcast.index.topic_filters import topic_matches
from nearcast.model import FileFormatError, MisuseError
from nearcast.model.errors import OutOfRangeError
from nearcast.pipeline.audit.causal import CausalEvent, misordered_steps
from nearcast.pipeline.audit.cross_node_join import cross_node_joins
from nearcast.pipeline.audit.hops import Allowance
from nearcast.pipeline.audit.job import KINDS, audit
from nearcast.pipeline.audit.logs import survey
from nearcast.pipeline.audit.segments import FOUND, Case, as_faults, audit_segment
from nearcast.pipeline.audit.subscription_timeline import key_in_shape, parts_of, shape_and_key
from nearcast.pipeline.tables.transaction import read_table

Fault = tuple[str, str, int, str]
_names = iter(range(1_000_000))


_ARROW = {"string": pa.string(), "bigint": pa.int64(), "boolean": pa.bool_()}
_SHAPE = pa.schema([pa.field(name, _ARROW[kind]) for name, kind in FOUND.items()])


def shipped(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a task's rows as they come out of Spark again."""
    table = pa.Table.from_pandas(frame, schema=_SHAPE, preserve_index=False)
    rows: pd.DataFrame = table.to_pandas()
    return rows


def look(root: Path, spaces: tuple[SpaceSection, ...] | None = None) -> list[dict[str, Any]]:
    """Audit a log as the job does, without Spark."""
    segments = find_segments([str(root)])
    nodes = {
        name: survey([one for one in segments if one.node == name])
        for name in {one.node for one in segments}
    }
    case = Case(tuple(segments), nodes, Allowance(), spaces, f"test {next(_names)}")
    every = [shipped(audit_segment(case, one)) for one in segments]
    some = [one for one in every if len(one)]
    if not some:
        return []
    told = pd.concat(some, ignore_index=True)
    found: list[dict[str, Any]] = told[told["what"] == "fault"].to_dict("records")  # type: ignore[assignment]
    for what, keys, find in cross_node_joins(case):
        for _, rows in told[told["what"] == what].groupby(keys):
            rows = rows.astype({"own": "bool"}) if what == "causal" else rows  # noqa: PLW2901
            found += shipped(as_faults(find(rows))).to_dict("records")  # type: ignore[arg-type]
    return found


def faults(found: list[dict[str, Any]], *kinds: str) -> Counter[Fault]:
    return Counter(
        (one["kind"], one["node"], int(one["sequence"]), one["receiver"])
        for one in found
        if one["kind"] in (kinds or KINDS)
    )


def started(first: int = 1, ms: int = 0) -> Recorder:
    recorder = Recorder(first)
    recorder.present("", ms, is_there=True)
    return recorder


# --- one node, against the definition -----------------------------------------------------------

CLIENTS, TOPICS = ("a", "b", "c"), ("t", "t/x", "u")
FILTERS = ("t", "t/#", "+", "#", "$share/g/t", "$share/g/#", "$share/h/+/x")
ACTIONS = st.one_of(
    st.tuples(st.just("there"), st.sampled_from(CLIENTS), st.booleans()),
    st.tuples(
        st.just("wish"), st.sampled_from(CLIENTS), st.sampled_from(FILTERS), st.integers(0, 2),
        st.booleans(), st.booleans(),
    ),
    st.tuples(
        st.just("event"), st.sampled_from(CLIENTS), st.sampled_from(TOPICS), st.integers(0, 2),
        st.lists(st.sampled_from(CLIENTS), max_size=4),
        st.lists(st.sampled_from(CLIENTS), max_size=1),
        st.sampled_from(list(Arrival)), st.booleans(),
    ),
    st.tuples(st.just("start")),
    st.tuples(st.just("gap")),
)  # fmt: skip


class Oracle:
    """Who is due what, step by step, from the definition alone."""

    def __init__(self) -> None:
        self.there: set[str] = set()
        self.wishes: dict[tuple[str, str], tuple[int, bool]] = {}
        self.is_sure = True
        self.found: Counter[Fault] = Counter()

    def start(self) -> None:
        self.there, self.wishes, self.is_sure = set(), {}, True

    def event(
        self, number: int, who: str, topic: str, qos: int, got: list[str], dropped: list[str],
        way: Arrival, limited: bool,
    ) -> None:  # fmt: skip
        own: dict[str, bool] = {}
        groups: dict[tuple[str, str], dict[str, bool]] = {}
        for (client, text), (most, no_local) in self.wishes.items():
            group, bare, _ = parts_of(text)
            if not topic_matches(bare, topic) or (no_local and client == who):
                continue
            due = min(qos, most) > 0 or client in self.there
            if group:
                groups.setdefault((group, bare), {})[client] = due
            else:
                own[client] = own.get(client, False) or due
        handed = Counter(got)
        is_judged = way is not Arrival.CHOSEN and not limited
        for client in set(CLIENTS):
            copies = (client in own) + sum(client in members for members in groups.values())
            if handed[client] > max(copies, 1):
                self._tell("doubled", number, client)
            if own.get(client) and is_judged and not handed[client] and client not in dropped:
                self._tell("lost" if self.is_sure else "unknown", number, client)
            if handed[client] and not copies and way is not Arrival.CHOSEN:
                self._tell("unasked" if self.is_sure else "unknown", number, client)
        for (group, _), members in groups.items():
            served = any(handed[one] or one in dropped for one in members)
            is_origin = way is Arrival.CLIENT and not limited
            if any(members.values()) and not served and is_origin:
                self._tell("lost" if self.is_sure else "unknown", number, f"$share/{group}")

    def _tell(self, kind: str, number: int, receiver: str) -> None:
        self.found[kind, "n", number, receiver] += 1


def play(actions: list[Any]) -> tuple[Recorder, Counter[Fault]]:
    """Write a log of these actions, and what the oracle finds in it."""
    recorder, oracle = started(), Oracle()
    for kind, *rest in actions:
        number = recorder.next
        if kind == "there":
            recorder.present(rest[0], 0, is_there=rest[1])
            (oracle.there.add if rest[1] else oracle.there.discard)(rest[0])
        elif kind == "wish":
            client, text, qos, no_local, added = rest
            recorder.subscription(0, client, text, qos, is_added=added, no_local=no_local)
            oracle.wishes.pop((client, text), None)
            if added:
                oracle.wishes[client, text] = (qos, no_local)
        elif kind == "start":
            recorder.present("", 0, is_there=True)
            oracle.start()
        elif kind == "gap":
            recorder.next += 2
            recorder.gap(number, 2, "backlog")
            oracle.is_sure = False
        else:
            who, topic, qos, got, dropped, way, limited = rest
            flags = qos | limited << 3 | way << WAY
            recorder.events(1, 0, flags, who, topic.encode(), b"x", 0)
            for one in got:
                recorder.delivered([one], 1, qos)
            recorder.dropped(dropped, 1, Dropped.SLOW, 0, recorder.number(0)) if dropped else None
            oracle.event(number, who, topic, qos, got, dropped, way, limited)
    return recorder, oracle.found


@settings(deadline=None)
@given(st.lists(ACTIONS, min_size=6, max_size=30))
def test_a_node_is_judged_as_the_definition_says(
    tmp_path_factory: pytest.TempPathFactory, actions: list[Any]
) -> None:
    recorder, expected = play(actions)
    root = tmp_path_factory.mktemp("log")
    write_segment(root, "n", recorder)

    assert faults(look(root), *KINDS, "unknown") == expected


@given(
    st.lists(st.sampled_from(["a", "b", "+", "$x", ""]), min_size=1, max_size=4),
    st.booleans(),
    st.lists(st.sampled_from(["a", "b", "$x", ""]), min_size=1, max_size=5),
)
def test_a_topic_has_the_key_of_every_filter_that_it_fits(
    wanted: list[str], is_open: bool, levels: list[str]
) -> None:
    text, topic = "/".join([*wanted, "#"] if is_open else wanted), "/".join(levels)
    shape, key = shape_and_key(text)

    assert (key_in_shape(topic, shape) == key) == topic_matches(text, topic)


# --- what was dropped, was late, or cannot be known -----------------------------------------------


def one_client(qos: int = 1) -> Recorder:
    recorder = started()
    recorder.present("bob", 0, is_there=True)
    recorder.subscription(0, "bob", "t", qos, is_added=True)
    return recorder


def test_what_was_dropped_with_a_reason_is_not_lost(tmp_path: Path) -> None:
    recorder = one_client(0)
    recorder.events(2, 0, 0, "ann", b"t", b"xy", 0)
    recorder.dropped(["bob"], 2, Dropped.SLOW, 0, recorder.number(0))
    write_segment(tmp_path, "n", recorder)

    assert look(tmp_path) == []


def test_who_is_meant_by_a_limit_or_chosen_elsewhere_is_not_judged(tmp_path: Path) -> None:
    recorder = one_client()
    for flags in (LIMITED, Arrival.CHOSEN << WAY):
        recorder.events(1, 0, 1 | flags, "ann", b"t", b"x", 0)
    write_segment(tmp_path, "n", recorder)

    assert look(tmp_path) == []


def test_what_leaves_a_queue_after_its_deadline_is_late(tmp_path: Path) -> None:
    recorder = one_client()
    recorder.events(2, 0, 1, "ann", b"t", b"xy", 0, 1_000)
    recorder.delivered(["bob"], 2, 1)
    recorder.sent(recorder.number(0), "bob", 1_000, 1_000)
    recorder.sent(recorder.number(1), "bob", 1_001, 1_000)
    write_segment(tmp_path, "n", recorder)

    assert faults(look(tmp_path)) == {("late", "n", recorder.number(1), "bob"): 1}


def test_a_log_that_begins_in_the_middle_tells_nothing_for_certain(tmp_path: Path) -> None:
    recorder = Recorder(100)
    recorder.subscription(0, "bob", "t", 1, is_added=True)
    recorder.events(1, 0, 1, "ann", b"t", b"x", 0)
    recorder.delivered(["cyd"], 1, 1)
    write_segment(tmp_path, "n", recorder)

    assert set(faults(look(tmp_path), *KINDS, "unknown")) == {
        ("unknown", "n", 101, "bob"),
        ("unknown", "n", 101, "cyd"),
    }


def test_a_segment_that_is_missing_makes_what_follows_doubtful(tmp_path: Path) -> None:
    recorder = one_client()
    write_segment(tmp_path, "n", recorder, 1)
    recorder.subscription(0, "bob", "t", 0, is_added=False)
    recorder.take()  # the second segment is gone
    recorder.events(1, 0, 1, "ann", b"t", b"x", 0)
    write_segment(tmp_path, "n", recorder, 3)

    assert {one["kind"] for one in look(tmp_path)} == {"unknown"}


def test_events_left_out_by_sampling_leave_the_rest_certain(tmp_path: Path) -> None:
    recorder = one_client()
    recorder.keep(lambda number: number % 2 == 0)
    for _ in range(6):
        recorder.events(1, 0, 1, "ann", b"t", b"x", 0)
    write_segment(tmp_path, "n", recorder)

    assert {one["kind"] for one in look(tmp_path)} == {"lost"}


# --- conditions -----------------------------------------------------------------------------------

CITY = SpaceSection.model_validate(
    {
        "name": "city", "topics": "city/#", "longitude": "lon", "latitude": "lat",
        "attributes": {
            "lon": {"low": -180, "high": 180}, "lat": {"low": -90, "high": 90},
            "price": {"low": 0, "high": 9},
        },
    }
)  # fmt: skip


def selective_log(root: Path, got: list[str]) -> None:
    recorder = started()
    for client, text in (("bob", "$where/price<5/city/#"), ("cyd", "$near/500m/city/#")):
        recorder.present(client, 0, is_there=True)
        recorder.subscription(0, client, text, 0, is_added=True)
    recorder.position("cyd", 8.5, 47.3, 0)
    body = json.dumps({"lon": 8.5, "lat": 47.3001, "price": 7}).encode()
    recorder.events(1, 0, 0, "ann", b"city/x", body, 0)
    recorder.delivered(got, 1, 0)
    write_segment(root, "n", recorder)


def test_conditions_are_checked_as_the_broker_checks_them(tmp_path: Path) -> None:
    selective_log(tmp_path / "good", ["cyd"])
    selective_log(tmp_path / "bad", ["bob"])

    assert look(tmp_path / "good", (CITY,)) == []
    assert {fault[0::3] for fault in faults(look(tmp_path / "bad", (CITY,)))} == {("lost", "cyd")}


def test_without_the_spaces_conditions_are_unknown(tmp_path: Path) -> None:
    selective_log(tmp_path, [])

    assert Counter(one["kind"] for one in look(tmp_path)) == {"unknown": 2}


# --- several nodes --------------------------------------------------------------------------------


def pair_of_nodes(
    root: Path, order: list[int], qos: int = 2, *, untold: tuple[int, ...] = (), late_ms: int = 0
) -> None:
    """Let ten messages go from a to b, where they come in this order; both logs go on for long."""
    a, b = started(), started()
    a.subscription(0, "$node/b", "t", 2, is_added=True)
    a.present("$node/b", 0, is_there=True)
    b.present("cyd", 0, is_there=True)
    b.subscription(0, "cyd", "t", 2, is_added=True)
    b.present("$node/a", 0, is_there=True)
    for number in range(10):
        a.events(1, 20_000 + number, qos, "ann", b"t", b"%d" % number, 0, 30_000)
        if number not in untold:
            a.delivered(["$node/b"], 1, qos)
    for place, number in enumerate(order):
        b.events(
            1,
            20_100 + place + late_ms,
            qos | Arrival.NODE << WAY,
            "$node/a",
            b"t",
            b"%d" % number,
            0,
        )
        b.delivered(["cyd"], 1, qos)
    for name, recorder in (("a", a), ("b", b)):
        recorder.present("late", 90_000, is_there=True)
        write_segment(root, name, recorder)


IN_ORDER = list(range(10))


@pytest.mark.parametrize(
    ("order", "qos", "kinds"),
    [
        (IN_ORDER, 2, {}),
        (IN_ORDER[1:], 2, {"lost": 1}),
        (IN_ORDER[1:], 0, {"allowed": 1}),
        ([*IN_ORDER, 3], 2, {"doubled": 1}),
        ([*IN_ORDER, 3], 1, {"allowed": 1}),
        ([1, 0, *IN_ORDER[2:]], 1, {"misordered": 1}),
    ],
)
def test_what_goes_from_node_to_node_is_followed(
    tmp_path: Path, order: list[int], qos: int, kinds: dict[str, int]
) -> None:
    pair_of_nodes(tmp_path, order, qos)

    assert Counter(one["kind"] for one in look(tmp_path)) == kinds


def test_a_node_that_was_not_sent_what_a_client_there_wants_is_found(tmp_path: Path) -> None:
    pair_of_nodes(tmp_path, [n for n in IN_ORDER if n != 4], untold=(4,))
    found = [one for one in look(tmp_path) if "was not sent" in one["why"]]

    assert [(one["kind"], one["node"], one["receiver"]) for one in found] == [
        ("lost", "a", "$node/b")
    ]


def test_what_arrives_after_its_lifetime_is_late(tmp_path: Path) -> None:
    pair_of_nodes(tmp_path / "in-time", IN_ORDER, late_ms=31_900)
    pair_of_nodes(tmp_path / "late", IN_ORDER, late_ms=32_000)

    assert look(tmp_path / "in-time") == []
    assert Counter(one["kind"] for one in look(tmp_path / "late")) == {"late": 10}


@pytest.mark.parametrize("seed", range(3))
def test_planted_faults_are_found_and_nothing_else(tmp_path: Path, seed: int) -> None:
    planted = write_sample(tmp_path / "bad", SampleSize(1_000, 7, 3, 20), seed)
    write_sample(tmp_path / "good", SampleSize(700, 7, 3, 0), seed)

    assert Counter(one[0] for one in planted) == dict.fromkeys(
        ("lost", "doubled", "late", "misordered"), 20
    )
    assert faults(look(tmp_path / "bad")) == Counter(planted)
    assert look(tmp_path / "good") == []


# --- causal order ---------------------------------------------------------------------------------


def happened_before(steps: list[CausalEvent]) -> set[tuple[Any, Any]]:
    """Return all pairs of messages of which the first is in the past of the second."""
    pairs: set[tuple[Any, Any]] = set()
    for node in {one.node for one in steps}:
        seen: list[Any] = []
        for one in sorted((s for s in steps if s.node == node), key=lambda s: s.sequence):
            if one.is_sent:
                pairs |= {(before, one.message) for before in seen}
            seen.append(one.message)
    while True:
        more = {(a, d) for a, b in pairs for c, d in pairs if b == c} - pairs
        if not more:
            return pairs
        pairs |= more


def talk(random: Random, *, is_wild: bool) -> list[CausalEvent]:
    """Let three nodes send to all; deliveries in any order that is possible, or only in causal."""
    steps: list[CausalEvent] = []
    waiting: dict[str, list[Any]] = {name: [] for name in "xyz"}
    numbers, stamp = Counter[str](), 0
    while stamp < 9 or any(waiting.values()):
        name = random.choice("xyz")
        numbers[name] += 1
        if stamp < 9 and random.random() < 0.5:
            stamp += 1
            steps.append(CausalEvent(name, 0, numbers[name], True, (name, stamp)))
            for other, messages in waiting.items():
                if other != name:
                    messages.append((name, stamp))
        elif waiting[name]:
            place = random.randrange(len(waiting[name])) if is_wild else 0
            steps.append(CausalEvent(name, 0, numbers[name], False, waiting[name].pop(place)))
    return steps


@pytest.mark.parametrize("seed", range(60))
def test_deliveries_out_of_causal_order_are_those_of_the_definition(seed: int) -> None:
    random = Random(seed)
    steps = talk(random, is_wild=bool(seed % 3))
    pairs = happened_before(steps)
    expected = {
        late
        for late in steps
        for early in steps
        if not (late.is_sent or early.is_sent)
        and early.node == late.node
        and early.sequence < late.sequence
        and (late.message, early.message) in pairs
    }
    random.shuffle(steps)

    assert set(misordered_steps(steps)) == expected


def test_a_delivery_after_its_lifetime_is_late_beyond_the_skew_of_clocks(tmp_path: Path) -> None:
    recorder = started()
    for ms in (1_500, 1_501):
        recorder.events(1, ms, Arrival.CAUSAL << WAY, "", b"talk/x", b"%d" % ms, 0)
        note = CausalNote("talk", "n2", 100_000 + ms - 1_500, 400_000)
        recorder.causal(CausalStep.DELIVERED, note, ms, recorder.number(0))
    write_segment(tmp_path, "n", recorder)
    (late,) = look(tmp_path)

    assert (late["kind"], late["sequence"]) == ("late", 3)


# --- the job on Spark -----------------------------------------------------------------------------


@pytest.mark.spark
def test_the_job_writes_what_it_finds_and_sums_it_up(spark: SparkSession, tmp_path: Path) -> None:
    planted = write_sample(tmp_path / "log", SampleSize(600, 5, 2, 5), 1)
    done = audit(spark, str(tmp_path / "log"), str(tmp_path / "out"))
    rows = read_table(spark, str(tmp_path / "out/faults")).collect()

    assert {(r["kind"], r["node"], r["sequence"], r["receiver"]) for r in rows} == planted
    assert done.faults == {"lost": 5, "doubled": 5, "late": 5, "misordered": 5, "unasked": 0}
    assert not done.is_clean
    assert done.as_dict()["nodes"] == ("n1", "n2")


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    write_segment(tmp_path / "log", "n", started())
    return tmp_path / "log"


@pytest.mark.spark
def test_an_empty_log_is_refused_and_nothing_is_written(
    spark: SparkSession, empty: Path, tmp_path: Path
) -> None:
    with pytest.raises(MisuseError, match="no event in the log"):
        audit(spark, str(empty), str(tmp_path / "out"), spaces=(CITY,))
    assert not (tmp_path / "out").exists()


def test_what_is_no_log_of_this_version_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(MisuseError, match="no event log"):
        find_segments([])
    with pytest.raises(MisuseError, match="there is no event log here"):
        find_segments([str(tmp_path)])
    table = pd.DataFrame({"node": ["n"], "sequence": [1]})
    (tmp_path / "old" / "events").mkdir(parents=True)
    table.to_parquet(tmp_path / "old" / "events" / "part-n-00000001.parquet")
    with pytest.raises(FileFormatError, match="a log of an older version"):
        find_segments([str(tmp_path / "old")])
    (tmp_path / "cut" / "events").mkdir(parents=True)
    (tmp_path / "cut" / "events" / "part-n-00000001.parquet").write_bytes(b"PAR1")
    with pytest.raises(FileFormatError, match="cannot be read"):
        find_segments([str(tmp_path / "cut")])
    for name in ("one", "two"):
        write_segment(tmp_path / name, "n", started())
    with pytest.raises(MisuseError, match="two logs of the node 'n'"):
        find_segments([str(tmp_path / "one"), str(tmp_path / "two")])


def test_the_command_says_what_is_wrong_before_spark_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nearcast.pipeline.session.spark_session", None)
    words = ["audit", "--input", str(tmp_path), "--output", str(tmp_path / "out")]
    for more, problem in (([], MisuseError), (["--skew", "-1"], OutOfRangeError)):
        done = CliRunner().invoke(app, [*words, *more])
        assert isinstance(done.exception, problem)
    assert not (tmp_path / "out").exists()
