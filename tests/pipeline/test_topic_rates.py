"""Rates per topic are those that the log's definition gives, whatever the order of its rows."""

from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from nearcast.eventlog import LOG_TABLES
from nearcast.eventlog.log_files import check_logs
from nearcast.index.topic_filters import topic_matches
from nearcast.model.errors import FileFormatError, MisuseError
from nearcast.pipeline.jobs.topic_aggregation import (
    COLUMNS,
    TALLY,
    Codes,
    tally_nodes,
    tally_topics,
)
from nearcast.pipeline.jobs.topic_rates import (
    ALIVE_MS,
    added_up,
    possible_filters,
    publish_rates,
    subscriber_rates,
    with_subscribers,
)
from nearcast.pipeline.tables.worker_reads import map_rows

NODES = "node string, share double"
START_MS = ALIVE_MS * 3_000_000

levels = st.sampled_from(["a", "b", "", "$x"])
topics = st.lists(levels, min_size=1, max_size=4).map("/".join).filter(bool)
filters = st.builds(
    lambda parts, end: "/".join([*parts, *end]),
    st.lists(st.sampled_from(["a", "b", "", "+", "$x"]), max_size=4),
    st.sampled_from([(), ("#",)]),
).filter(bool)


@given(topics, filters)
def test_the_filters_that_a_topic_could_fit_are_those_it_fits(topic: str, one: str):
    assert (one in possible_filters(topic)) == topic_matches(one, topic)


@given(topics)
def test_no_filter_comes_twice(topic: str):
    found = possible_filters(topic)
    assert len(found) == len(set(found))


def test_a_topic_of_many_levels_does_not_explode():
    found = possible_filters("/".join("x" * 60))
    assert len(found) == 62
    assert "#" in found


def events(spark: SparkSession, rows: list[tuple[str, str, int]], *, retain: bool = True):
    frame = spark.createDataFrame(rows, "node string, topic string, ms bigint")
    return frame.selectExpr(
        "node", "topic", "timestamp_millis(ms) AS t", f"{str(retain).lower()} AS retain",
        "'client' AS way",
    )  # fmt: skip


def tally(frame: DataFrame) -> DataFrame:
    found = map_rows(frame, COLUMNS, partial(tally_topics, ALIVE_MS), TALLY)
    return added_up(found).where("topic IS NOT NULL")


def shares(spark: SparkSession, **kept: float) -> DataFrame:
    return spark.createDataFrame(list(kept.items()), NODES)


def rates(frame: DataFrame) -> dict[str, float]:
    return {row["topic"]: row["publish_per_s"] for row in frame.collect()}


@pytest.mark.spark
@pytest.mark.parametrize("partitions", [1, 7])
def test_publishes_count_while_a_topic_is_alive(spark: SparkSession, partitions: int):
    steady = [("n", "steady", START_MS + 500 * i) for i in range(201)]
    # Two bursts of a hundred seconds, a day apart: only the two stretches count.
    day = 86_400_000
    bursts = [
        ("n", "bursts", START_MS + shift + 1000 * i) for shift in (0, day) for i in range(101)
    ]
    once = [("n", "once", START_MS), ("n", "twice", START_MS), ("n", "twice", START_MS)]
    frame = events(spark, [*steady, *bursts, *once]).repartition(partitions)
    found = rates(publish_rates(tally(frame), shares(spark, n=1.0)))
    alive_s = (2 * ALIVE_MS - (ALIVE_MS - 100_000)) / 1000
    assert found == {
        "steady": pytest.approx(2.0),
        "bursts": pytest.approx(201 / alive_s),
    }


@pytest.mark.spark
def test_what_was_left_out_is_made_up_for(spark: SparkSession):
    rows = [(node, "x", START_MS + 1000 * i) for node in ("a", "b") for i in range(101)]
    found = rates(publish_rates(tally(events(spark, rows)), shares(spark, a=0.1, b=1.0)))
    assert found["x"] == pytest.approx((1010 + 101) * (201 / 202) / 100)


@pytest.mark.spark
def test_publishes_that_are_not_retained_are_no_evidence(spark: SparkSession):
    rows = [("n", "x", START_MS + 1000 * i) for i in range(10)]
    found = publish_rates(tally(events(spark, rows, retain=False)), shares(spark, n=1.0))
    assert found.isEmpty()


Change = tuple[str, str, str, int, int, bool, bool]


def by_definition(changes: list[Change], begin: int, end: int) -> dict[str, tuple[int, int, int]]:
    """Play the changes of each client's subscription: newcomers, departures, time there."""
    found: dict[str, tuple[int, int, int]] = {}
    for key in {(node, client, one) for node, client, one, *_ in changes}:
        mine = sorted((row for row in changes if row[:3] == key), key=lambda row: row[4])
        is_there, since = not mine[0][5], begin
        new = gone = time_ms = 0
        for _, _, _, ms, _, added, restored in mine:
            if added and not is_there:
                new += not restored
                since = ms
            elif not added and is_there:
                gone += 1
                time_ms += ms - since
            is_there = added
        time_ms += end - since if is_there else 0
        total = found.get(key[2], (0, 0, 0))
        found[key[2]] = (total[0] + new, total[1] + gone, total[2] + time_ms)
    return found


@pytest.mark.spark
def test_subscribers_come_stay_and_leave_as_the_log_says(spark: SparkSession):
    rows: list[Change] = []
    number = 0
    for client in range(30):
        ms = 1000
        for turn in range(client % 5 + 1):
            number += 1
            ms += 700 * (client + 1) * (turn + 1)
            added = (client + turn) % 3 != 1
            one = "plant/+" if client % 2 else "plant/7"
            rows.append(("n", f"c{client}", one, ms, number, added, client == 8))
    rows += [("n", "s", "$share/g/plant/7", 5000, 10_000, True, False)]
    end = max(row[3] for row in rows) + 4000
    frame = spark.createDataFrame(
        rows,
        "node string, client string, filter string, ms bigint, sequence bigint, added boolean, "
        "restored boolean",
    ).selectExpr("*", "timestamp_millis(ms) AS t")
    ends = spark.createDataFrame([(0, end)], "begin bigint, end bigint")
    found = subscriber_rates(frame.drop("ms").repartition(5), ends)
    expected = by_definition(rows[:-1], 0, end)
    assert {
        row["filter"]: (row["newcomers"], row["departures"], row["subscriber_ms"])
        for row in found.collect()
    } == expected
    published = spark.createDataFrame(
        [("plant/7", 9, 1.0), ("plant/8", 9, 1.0), ("other", 9, 1.0)],
        "topic string, publishes bigint, publish_per_s double",
    )
    joined = {row["topic"]: row for row in with_subscribers(published, found).collect()}
    seven = [sum(pair) for pair in zip(*expected.values(), strict=True)]
    assert joined["plant/7"]["subscribe_per_s"] == pytest.approx(seven[0] * 1e3 / end)
    assert joined["plant/7"]["leave_per_s"] == pytest.approx(seven[1] * 1e3 / seven[2])
    wild = expected["plant/+"]
    assert joined["plant/8"]["leave_per_s"] == pytest.approx(wild[1] * 1e3 / wild[2])
    assert (joined["other"]["subscribe_per_s"], joined["other"]["leave_per_s"]) == (0.0, 0.0)


def test_a_log_of_another_version_is_refused_by_name(tmp_path: Path):
    with pytest.raises(MisuseError, match="no event log"):
        check_logs([str(tmp_path)])
    segment = tmp_path / "open-n-00000001.log"
    segment.write_bytes(b"nearcast events 1\n")
    with pytest.raises(FileFormatError, match=r"another version.*open-n|open-n.*another version"):
        check_logs([str(tmp_path)])
    segment.unlink()
    import pyarrow.parquet as pq

    (tmp_path / "events").mkdir()
    part = tmp_path / "events" / "part-n-00000001.parquet"
    pq.write_table(LOG_TABLES["events"].empty_table(), part)
    with pytest.raises(FileFormatError, match="a log of an older version"):
        check_logs([str(tmp_path)])
    part.write_bytes(b"PAR1 and no more")
    with pytest.raises(FileFormatError, match="cannot be read"):
        check_logs([str(tmp_path)])


# --- what a worker counts -------------------------------------------------------------------------

Row = tuple[str, str, int, bool, str]
rows_of_a_log = st.lists(
    st.tuples(
        st.sampled_from("ab"), st.sampled_from(["", "x", "y/z"]), st.integers(0, 50),
        st.booleans(), st.sampled_from(["client", "node"]),
    ), max_size=30,
)  # fmt: skip


def batch_of(rows: list[Row], *, coded: bool) -> pa.RecordBatch:
    kinds = [pa.string(), pa.string(), pa.timestamp("us", tz="UTC"), pa.bool_(), pa.string()]
    columns = list(zip(*rows, strict=True)) or [()] * len(kinds)
    micros = [ms * 1000 + 999 for ms in columns[2]]
    given = [*columns[:2], micros, *columns[3:]]
    arrays = [pa.array(column, kind) for column, kind in zip(given, kinds, strict=True)]
    if coded:
        arrays = [a.dictionary_encode() if pa.types.is_string(a.type) else a for a in arrays]
    return pa.RecordBatch.from_arrays(arrays, names=list(COLUMNS))


def tally_by_definition(rows: list[Row]) -> dict[tuple[str, str | None, int | None], list[object]]:
    found: dict[tuple[str, str | None, int | None], list[object]] = {}
    for key in {(node, None, None) for node, *_ in rows} | {
        (node, topic, ms // 10)
        for node, topic, ms, retain, way in rows
        if topic and retain and way == "client"
    }:
        mine = [row for row in rows if row[0] == key[0]]
        ms = [row[2] for row in mine if row[4] == "client"]
        if key[1] is not None:
            mine = [r for r in mine if r[3] and r[4] == "client" and (r[1], r[2] // 10) == key[1:]]
            ms = [row[2] for row in mine]
        found[key] = [len(mine), min(ms, default=None), max(ms, default=None)]
    return found


@given(rows_of_a_log, st.integers(1, 8), st.booleans())
def test_a_tally_is_what_its_definition_says(rows: list[Row], size: int, coded: bool):
    cuts = [rows[at : at + size] for at in range(0, len(rows), size)]
    batches = (batch_of(cut, coded=coded) for cut in cuts)
    (found,) = tally_topics(10, batches)
    assert {
        (r["node"], r["topic"], r["stretch"]): [r["n"], r["first"], r["last"]]
        for r in found.to_pylist()
    } == tally_by_definition(rows)


def test_a_task_that_has_counted_much_passes_it_on(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("nearcast.pipeline.jobs.topic_aggregation._ROWS_AT_ONCE", 1)
    monkeypatch.setattr("nearcast.pipeline.jobs.topic_aggregation._MOST_HELD", 2)
    rows: list[Row] = [("a", f"t{n % 4}", n, True, "client") for n in range(12)]
    found = list(tally_topics(1000, iter([batch_of([row], coded=True) for row in rows])))
    assert len(found) > 2
    counts = [(r["topic"], r["n"]) for batch in found for r in batch.to_pylist() if r["topic"]]
    assert sorted({topic for topic, _ in counts}) == ["t0", "t1", "t2", "t3"]
    assert sum(n for _, n in counts) == 12


def test_rows_of_nodes_are_counted():
    rows: list[Row] = [("a", "x", 1, True, "client"), ("b", "x", 1, True, "node")] * 3
    (found,) = tally_nodes(iter([batch_of(rows, coded=True)]))
    assert {r["node"]: (r["topic"], r["n"], r["first"]) for r in found.to_pylist()} == {
        "a": (None, 3, None),
        "b": (None, 3, None),
    }


def test_codes_stay_the_same_from_batch_to_batch():
    codes = Codes()
    first, again = pa.array(["x", "y", "x"]), pa.array(["y", "z"])
    assert codes.of(first).tolist() == [0, 1, 0]
    assert codes.of(again).tolist() == [1, 2]
    assert codes.texts(codes.of(first.dictionary_encode())).to_pylist() == ["x", "y", "x"]
