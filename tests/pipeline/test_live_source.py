"""Offsets, parts and events of live sources, without a Spark session."""

import json
import pickle
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nearcast.config.schema import AttributeSection, NetworkSection, SpaceSection
from nearcast.model import FileFormatError, MisuseError
from nearcast.model.event_decoder import EventDecoder, Pairs
from nearcast.pipeline.streaming import spool as live_spool
from nearcast.pipeline.streaming.addresses import NATS, parse_address
from nearcast.pipeline.streaming.data_sources import FeedSource, Numbers, SpoolReader, SpoolSource
from nearcast.pipeline.streaming.delivery import messages_of
from nearcast.pipeline.streaming.jetstream import FeedAddress
from nearcast.pipeline.streaming.live_events import LiveMessage, LiveReader
from nearcast.pipeline.streaming.live_stream import LiveStream
from nearcast.pipeline.streaming.read_limits import ReadAllAvailable, ReadMaxRows
from nearcast.pipeline.streaming.spool import Spooled, SpoolWriter, spool_start
from nearcast.pipeline.streaming.stream import QueryControl

SECTION = SpaceSection(
    name="plane",
    topics="plane/+",
    required=["x"],
    attributes={
        "x": AttributeSection(low=0, high=100),
        "y": AttributeSection(low=0, high=100, path="at.y"),
        "kind": AttributeSection(categories=["food", "tools"]),
    },
)


def read(
    payload: bytes, pairs: Pairs = (), topic: str = "plane/1", section: SpaceSection = SECTION
) -> dict[str, object]:
    message = LiveMessage(7, 1_000, topic, payload, pairs)
    batch = LiveReader(section, with_payload=True).batch(iter([message]))
    rows: list[dict[str, object]] = batch.to_pylist()
    return rows[0] if rows else {}


def test_values_come_out_of_the_payload_as_the_space_says():
    found = read(b'{"x": 1, "at": {"y": 2.5}, "kind": "tools", "more": []}')
    assert found.pop("t").timestamp() == 1.0  # type: ignore[attr-defined]
    assert found == {
        "event_id": 7, "topic": "plane/1", "_problem": None, "x": 1.0, "y": 2.5, "kind": "tools",
        "payload": b'{"x": 1, "at": {"y": 2.5}, "kind": "tools", "more": []}',
    }  # fmt: skip
    missing = read(b'{"x": 1}')
    assert (missing["_problem"], missing["y"], missing["kind"]) == (None, None, None)


@pytest.mark.parametrize(
    ("payload", "pairs", "words"),
    [
        (b"no json", (), "payload: found b'no json'; expected JSON"),
        (b"[]", (), "payload: found []; expected a JSON object"),
        (b'{"at": {"y": 1}}', (), "payload: found no x among at; expected a value (0 to 100)"),
        (b'{"x": 101}', (), "x: found 101; expected a number from 0 to 100"),
        (b'{"x": 1, "kind": "food "}', (), "expected one of food, tools"),
        (b'{"x": 1}', (("$area", "bbox(1,1,2,2)"),), "an event with an extent ($area)"),
    ],
)
def test_what_is_no_event_says_why_and_has_no_values(payload: bytes, pairs: Pairs, words: str):
    found = read(payload, pairs)
    assert words in str(found["_problem"])
    assert (found["x"], found["y"], found["kind"]) == (None, None, None)


FLAT = SECTION.model_copy(
    update={
        "attributes": {
            **SECTION.attributes,
            "y": AttributeSection(low=0, high=100, path="Y"),
        }
    }
)
VALUES: st.SearchStrategy[object] = st.one_of(
    st.integers(-1, 101),
    st.floats(-1, 101),
    st.sampled_from([None, True, "food", "5", [], {}, 10**400]),
)
OBJECTS = st.dictionaries(
    st.sampled_from(["x", "Y", "kind", "y", "more"]),
    VALUES | st.sampled_from(["food", "tools"]),
)
PAYLOADS = st.one_of(
    OBJECTS.map(lambda found: json.dumps(found).encode()),
    st.builds(
        lambda text, at, sign: text[: at % len(text)] + sign + text[at % len(text) :],
        OBJECTS.map(lambda found: json.dumps({"x": 1, **found}).encode()),
        st.integers(0, 99),
        st.binary(min_size=1, max_size=2) | st.sampled_from([b"\\u12", b"NaN", b"1e999", b"\n"]),
    ),
    st.sampled_from([b"", b" ", b"[]", b"{", b'{"x": 1, "more": %s}' % (b"9" * 5000)]),
)


@given(st.lists(PAYLOADS, max_size=8))
@example([b'{"x": 1}', b'{"x": 1, "more": "\xff"}'])
def test_many_payloads_together_are_what_each_is_by_itself(payloads: list[bytes]):
    reader = LiveReader(FLAT, with_payload=False)
    assert reader._points is not None
    messages = [LiveMessage(n, 0, "plane/1", payload, ()) for n, payload in enumerate(payloads)]
    rows = reader.batch(iter(messages)).to_pylist()
    decoder = EventDecoder(FLAT.to_space(), "json", FLAT.paths())
    for payload, row in zip(payloads, rows, strict=True):
        try:
            x, y, kind = decoder.read("plane/1", payload, ()).values
            told = None if kind is None else ("food", "tools")[int(kind)]  # type: ignore[arg-type]
            expected: tuple[object, ...] = (None, x, y, told)
        except MisuseError as problem:
            expected = str(problem), None, None, None
        assert (row["_problem"], row["x"], row["y"], row["kind"]) == expected


def test_values_may_be_in_user_properties():
    section = SECTION.model_copy(update={"values": "properties"})
    assert read(b"", (("x", "20"), ("kind", "food")), section=section)["x"] == 20.0
    assert "no x" in str(read(b'{"x": 1}', section=section)["_problem"])


def test_messages_of_other_topics_are_passed_over():
    assert read(b'{"x": 1}', topic="plane/1/2") == {}
    assert read(b'{"x": 1}', topic="other") == {}


def test_without_the_payload_the_column_is_not_there():
    schema = LiveReader(SECTION, with_payload=False).schema
    assert schema.names == ["event_id", "t", "topic", "_problem", "x", "y", "kind"]


# --- offsets and parts -------------------------------------------------------------------------


@pytest.fixture
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SpoolWriter]:
    monkeypatch.setattr(live_spool, "SEGMENT_BYTES", 1)
    writer = SpoolWriter(tmp_path)
    for n in range(5):
        writer.append([Spooled("plane/1", b'{"x": %d}' % (2 * n + one)) for one in (0, 1)])
    yield writer
    writer.close()


def reader_of(folder: Path, most: int | None = None) -> SpoolReader:
    if most is not None:
        return SpoolReader(folder, LiveReader(SECTION, with_payload=False), 2, most)
    source = SpoolSource({"spool": str(folder), "space": SECTION.model_dump_json()})
    assert isinstance(source.schema().fieldNames(), list)
    reader = source.streamReader(source.schema())
    assert isinstance(reader, SpoolReader)
    return reader


def test_offsets_follow_the_spool_and_a_range_can_be_read_again(spool: SpoolWriter, tmp_path: Path):
    reader = reader_of(tmp_path)
    assert reader.initialOffset() == {"next": 0}
    assert reader.latestOffset({"next": 0}, ReadAllAvailable()) == {"next": 10}
    assert reader.latestOffset({"next": 3}, ReadMaxRows(4)) == {"next": 7}
    assert reader.latestOffset({"next": 10}, ReadMaxRows(4)) == {"next": 10}
    (part,) = reader.partitions({"next": 3}, {"next": 7})
    assert reader.partitions({"next": 3}, {"next": 3}) == []
    for _ in range(2):
        rows = [row for batch in reader.read(part) for row in batch.to_pylist()]
        assert [(row["event_id"], row["x"]) for row in rows] == [(n, n) for n in range(3, 7)]
    spool.settle(10)
    reader.commit({"next": 7})
    assert spool_start(tmp_path) == 6
    with pytest.raises(FileFormatError, match="messages from number 6 on, and 3 is the next"):
        reader.latestOffset({"next": 3}, ReadAllAvailable())
    with pytest.raises(FileFormatError, match="10 messages, fewer than the 11"):
        reader.latestOffset({"next": 11}, ReadAllAvailable())


def test_available_now_takes_what_was_there_when_it_began(spool: SpoolWriter, tmp_path: Path):
    reader = reader_of(tmp_path)
    reader.prepareForTriggerAvailableNow()
    spool.append([Spooled("plane/1", b"")])
    assert reader.latestOffset({"next": 0}, ReadMaxRows(100)) == {"next": 10}
    assert reader.latestOffset({"next": 10}, ReadMaxRows(100)) == {"next": 10}


def test_a_spark_that_gives_no_start_gets_batches_of_a_bounded_size(
    spool: SpoolWriter, tmp_path: Path
):
    reader = reader_of(tmp_path, most=4)
    assert reader.initialOffset() == {"next": 0}
    assert reader.latestOffset() == {"next": 4}
    assert [(one.start, one.end) for one in reader.partitions({"next": 0}, {"next": 4})] == [(0, 4)]
    assert reader.latestOffset() == {"next": 8}


def test_a_query_that_continues_there_has_one_larger_batch_and_misses_nothing(
    spool: SpoolWriter, tmp_path: Path
):
    reader = reader_of(tmp_path, most=4)
    assert reader.latestOffset() == {"next": 10}  # its start is not known yet
    assert [(one.start, one.end) for one in reader.partitions({"next": 3}, {"next": 10})] == [
        (3, 10)
    ]
    spool.append([Spooled("plane/1", b"")] * 6)
    assert reader.latestOffset() == {"next": 14}
    with pytest.raises(FileFormatError, match="10 messages, fewer than the 11"):
        reader.partitions({"next": 11}, {"next": 10})
    spool.settle(10)
    reader.commit({"next": 7})
    late = reader_of(tmp_path)
    late.latestOffset()
    with pytest.raises(FileFormatError, match="messages from number 6 on, and 3 is the next"):
        late.partitions({"next": 3}, {"next": 10})


@given(st.integers(0, 10**7), st.integers(0, 10**6), st.integers(1, 64))
@example(5, 120_001, 1)
@example(5, 3_999, 64)
def test_parts_cover_a_range_without_gap_or_overlap(first: int, count: int, parts: int):
    reader = SpoolReader(Path("x"), LiveReader(SECTION, with_payload=False), parts)
    found = reader.partitions({"next": first}, {"next": first + count})
    assert [one.start for one in found] + [first + count] * bool(count) == (
        [first] * bool(count) + [one.end for one in found]
    )
    assert all(0 < one.end - one.start <= 50_000 for one in found)
    if count <= 50_000 * parts:
        assert len(found) <= parts
    assert count < 2_000 or len(found) >= min(parts, count // 2_000)


def test_readers_and_parts_travel_to_workers(tmp_path: Path):
    reader = pickle.loads(pickle.dumps(reader_of(tmp_path)))
    assert reader.marks() == (0, 0)
    assert pickle.loads(pickle.dumps(Numbers(1, 2))) == Numbers(1, 2)
    feed = FeedAddress(NetworkSection(join=["nats://127.0.0.1:1"]))
    source = FeedSource({"secret_feed": feed.text, "space": SECTION.model_dump_json()})
    again = pickle.loads(pickle.dumps(source)).streamReader(source.schema())
    assert again.place == "nats://127.0.0.1:1, network nearcast"


# --- addresses and deliveries ------------------------------------------------------------------


def test_a_feed_takes_what_its_address_leaves_open_from_the_configuration():
    base = NetworkSection(join=["nats://elsewhere:1"], name="town", token="t", insecure=True)
    plain = FeedAddress.of(parse_address("nats://h", "--source", NATS), base)
    assert (plain.section.join, plain.section.name, plain.section.token) == (
        ["nats://h:4222"], "town", "t",
    )  # fmt: skip
    own = FeedAddress.of(parse_address("tls://me:pw@h:5/city", "--source", NATS), base)
    assert (own.section.user, own.section.password, own.section.token) == ("me", "pw", None)
    assert (own.section.name, own.section.is_encrypted) == ("city", True)
    assert "pw" not in own.place
    with pytest.raises(MisuseError, match="/NETWORK, a name of letters"):
        FeedAddress.of(parse_address("nats://h/no/name", "--source", NATS), base)


def test_a_delivery_tells_which_event_it_is_of_and_as_which_place():
    import pyarrow as pa

    rows = pa.RecordBatch.from_pylist(
        [
            {"event_id": 5, "subscription_id": 3, "rank": 0, "topic": "a", "payload": b"p"},
            {"event_id": 6, "subscription_id": 4, "rank": 2, "topic": "b", "payload": b"q"},
        ]
    )
    one, two = messages_of(rows, "found/here")
    assert (one.topic, one.payload, one.qos) == ("found/here/3", b"p", 1)
    assert one.properties.user_properties == (("event", "5"), ("topic", "a"))
    assert two.properties.user_properties == (("event", "6"), ("topic", "b"), ("rank", "2"))


# --- looking after a query ---------------------------------------------------------------------


class Query:
    """A query that has ended, with or without an error."""

    def __init__(self, error: str | None, *, active: bool = False) -> None:
        self.isActive = active
        self._error = error
        self.was_stopped = False

    def exception(self) -> Exception | None:
        return None if self._error is None else RuntimeError(self._error)

    def stop(self) -> None:
        self.was_stopped = True


def running(*queries: Query) -> LiveStream:
    return LiveStream(partial(next, iter(queries)), None, Path("x"), QueryControl())


def test_a_query_that_spark_gave_up_too_soon_is_begun_again_but_not_for_ever():
    slow = "SparkException: Python worker failed to connect back."
    begun = running(Query(slow), Query(slow), Query(None))
    begun.wait()
    assert begun.query.exception() is None
    with pytest.raises(RuntimeError, match="connect back"):
        running(*(Query(slow) for _ in range(5))).wait()
    with pytest.raises(RuntimeError, match="the disk"):
        running(Query("the disk"), Query(None)).wait()


def test_what_the_collector_met_ends_the_query():
    query = Query(None, active=True)
    with running(query) as stream:
        assert not stream.has_ended()
        stream.collector = Broken()  # type: ignore[assignment]
        with pytest.raises(OSError, match="full"):
            stream.wait()
    assert query.was_stopped


class Broken:
    """A collector whose disk is full."""

    problem = OSError("full")

    def stop(self) -> None:
        pass
