"""Tables matched on Spark agree with brute force, by index and by place, in any partitioning."""

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from nearcast.matching import Matcher
from nearcast.model import (
    Attribute,
    Event,
    MisuseError,
    NearcastError,
    Space,
    Subscription,
    parse_shape,
    parse_where,
)
from nearcast.pipeline.jobs.match import MatchQuery
from nearcast.pipeline.jobs.match_frames import prepare_match
from nearcast.pipeline.jobs.match_job import match_tables
from nearcast.pipeline.tables.transaction import read_table

pytestmark = pytest.mark.spark


def city(missing: str = "none") -> Space:
    return Space(
        name="city",
        topic_filter="city/#",
        attributes=(
            Attribute.number("price", 0, 20),
            Attribute.category("kind", ["a", "b"]),
            Attribute.number("lon", 0, 1),
            Attribute.number("lat", 0, 1),
        ),
        longitude="lon",
        latitude="lat",
        missing=missing,  # type: ignore[arg-type]
    )


CHANCE = random.Random(7)
EVENTS: list[dict[str, Any]] = [
    {
        "event_id": i,
        "price": CHANCE.choice([None, 0.0, 5.0, 9.0, 20.0]),
        "kind": CHANCE.choice([None, "a", "b"]),
        "lon": CHANCE.randrange(11) / 10,
        "lat": CHANCE.randrange(11) / 10,
    }
    for i in range(60)
]
WHERES = [
    None,
    "price < 9",
    "kind = a",
    "price = 5 or price > 10",
    "price >= 5 and kind = b",
]
TEXTS: list[dict[str, Any]] = [
    {
        "subscription_id": 100 + i,
        "where": CHANCE.choice(WHERES),
        "area": CHANCE.choice([None, "bbox(0.1,0.1,0.6,0.7)", "circle(0.5,0.5,40km)"]),
    }
    for i in range(40)
]


def expected(space: Space, k: int | None) -> set[tuple[int, int, int]]:
    """Match one by one with the definition of a subscription."""
    wishes = {
        row["subscription_id"]: Subscription(
            topic_filter="city/#",
            where=parse_where(row["where"]) if row["where"] else None,
            area=parse_shape(row["area"]) if row["area"] else None,
        )
        for row in TEXTS
    }
    found = set()
    for row in EVENTS:
        event = Event.of(space, "city/x", {n: v for n, v in row.items() if n != "event_id"})
        ranked = sorted(
            (round((space.accuracy(wish.boxes(space), event.boxes()) or 0.0) * 2**24), key)
            for key, wish in wishes.items()
            if wish.covers(event)
        )
        for rank, (_, key) in enumerate(ranked[:k] if k else ranked, start=1):
            found.add((row["event_id"], key, rank if k else 0))
    return found


def tables(spark: SparkSession) -> tuple[DataFrame, DataFrame]:
    schema = pa.schema(
        [
            ("event_id", pa.int64()),
            ("price", pa.float64()),
            ("kind", pa.string()),
            ("lon", pa.float64()),
            ("lat", pa.float64()),
        ]
    )
    events = spark.createDataFrame(pa.Table.from_pylist(EVENTS, schema))
    texts = pa.schema(
        [("subscription_id", pa.int64()), ("where", pa.string()), ("area", pa.string())]
    )
    return events, spark.createDataFrame(pa.Table.from_pylist(TEXTS, texts))


def rows(spark: SparkSession, folder: Path) -> set[tuple[int, int, int]]:
    found = [tuple(row) for row in read_table(spark, str(folder / "deliveries")).collect()]
    assert len(found) == len(set(found))
    return set(found)


@pytest.mark.parametrize(("missing", "k"), [("none", 3), ("all", None)])
def test_events_in_files_that_workers_read_are_matched_as_others(
    spark: SparkSession, tmp_path: Path, missing: str, k: int | None
):
    """Also those that cannot be matched: the check is Spark's in one case, ours in the other."""
    space = city(missing)
    bad = [
        {"event_id": 1_000, "kind": "c", "lon": 0.5, "lat": 0.5},
        {"event_id": 1_001, "lon": None, "lat": 0.5},
        {"event_id": 1_002, "price": 21.0, "lon": 0.5, "lat": 0.5},
        {"event_id": 1_003, "price": float("nan"), "lon": 0.5, "lat": 0.5},
        {"event_id": 1_004, "price": -0.1, "lon": 1.0, "lat": 1.0},
    ]
    events, texts = (frame.toArrow() for frame in tables(spark))
    events = pa.concat_tables([events, pa.Table.from_pylist(bad, events.schema)])
    (tmp_path / "events").mkdir()
    pq.write_table(events, tmp_path / "events" / "0.parquet", row_group_size=20)
    pq.write_table(texts, tmp_path / "texts.parquet")
    query = MatchQuery("city", "city/x", k)
    given = spark.read.parquet(str(tmp_path / "events"))
    wishes = spark.read.parquet(str(tmp_path / "texts.parquet"))
    prepared = prepare_match(given, wishes, space, query)
    assert prepared.pieces is not None
    found = {tuple(row) for row in prepared.deliveries().collect()}
    assert found == expected(space, k)
    through_spark = prepare_match(given.where("true"), wishes, space, query)
    assert through_spark.pieces is None
    assert {tuple(row) for row in through_spark.deliveries().collect()} == found
    done = match_tables(given, wishes, space, query, str(tmp_path / "out"))
    assert (done.deliveries, done.rejected) == (len(found), len(bad))
    assert rows(spark, tmp_path / "out") == found


@pytest.mark.parametrize(
    ("missing", "k", "most_bytes", "partitions"),
    [
        ("none", None, 100_000, 1),
        ("none", 3, 300, 7),
        ("all", None, 300, 2),
        ("all", 2, 100_000, 2),
    ],
)
def test_deliveries_are_those_of_the_definition(
    spark: SparkSession, tmp_path: Path, missing, k, most_bytes, partitions
):
    space = city(missing)
    events, wishes = tables(spark)
    query = MatchQuery("city", "city/x", k)
    done = match_tables(
        events.repartition(partitions), wishes.repartition(partitions), space, query,
        str(tmp_path), most_bytes=most_bytes,
    )  # fmt: skip
    assert done.way == ("index" if most_bytes == 100_000 else "place")
    assert rows(spark, tmp_path) == expected(space, k)
    assert done.deliveries == len(expected(space, k))


def test_bounds_say_the_same_as_conditions(spark: SparkSession, tmp_path: Path):
    events, _ = tables(spark)
    bounds = spark.sql("""
        SELECT 1L AS subscription_id, 0D AS price_low, 5D AS price_high,
               NULL AS lon_low, 0.5D AS lon_high
        UNION ALL SELECT 2L, NULL, NULL, 0.3D, NULL
    """)
    match_tables(events, bounds, city(), MatchQuery("city", "city/x"), str(tmp_path))
    matcher = Matcher([city()])
    for key, where in ((1, "price <= 5 and lon <= 0.5"), (2, "lon >= 0.3")):
        matcher.add(key, Subscription(topic_filter="city/#", where=parse_where(where)))
    wanted = set()
    for row in EVENTS:
        event = Event.of(city(), "city/x", {n: v for n, v in row.items() if n != "event_id"})
        wanted |= {(row["event_id"], key, 0) for key in matcher.match(event)}
    assert rows(spark, tmp_path) == wanted


def test_events_that_cannot_be_matched_are_kept_aside(spark: SparkSession, tmp_path: Path):
    bad = spark.sql("""
        SELECT 1L AS event_id, 99D AS price, 'a' AS kind, 0.5D AS lon, 0.5D AS lat
        UNION ALL SELECT 2L, 1D, 'z', 0.5D, 0.5D UNION ALL SELECT 3L, 1D, 'a', NULL, 0.5D
        UNION ALL SELECT 4L, 1D, 'a', 0.5D, 0.5D UNION ALL SELECT 5L, double('NaN'), 'a', 0.5D, 0.5D
    """)
    _, wishes = tables(spark)
    done = match_tables(bad, wishes, city(), MatchQuery("city", "city/x"), str(tmp_path))
    aside = read_table(spark, str(tmp_path / "rejected_events")).orderBy("event_id").collect()
    assert done.rejected == 4
    assert [row["reason"] for row in aside] == [
        "price: outside 0 to 20",
        "kind: none of a, b",
        "lon: missing",
        "price: outside 0 to 20",
    ]


@pytest.mark.parametrize(
    ("events", "wishes", "told"),
    [
        ("SELECT 1L AS x", "SELECT 1L AS subscription_id, 'price<5' AS where", "event_id"),
        ("SELECT 1L AS event_id, 1D AS lon, 1D AS lat", "SELECT 1L AS x", "subscription_id"),
        ("SELECT 1L AS event_id, 1D AS lon, 1D AS lat", "SELECT 1L AS subscription_id", "neither"),
        ("SELECT 1L AS event_id, 1D AS lon", "SELECT 1L AS subscription_id, '' AS where", "lat"),
        (
            "SELECT 1L AS event_id, 1D AS lon, 1D AS lat",
            "SELECT 7L AS subscription_id, 'prise < 5' AS where",
            "subscription_id 7: .*prise",
        ),
        (
            "SELECT 'one' AS event_id, 1D AS lon, 1D AS lat",
            "SELECT 1L AS subscription_id, 'price < 5' AS where",
            "column 'event_id' of type string; expected whole numbers",
        ),
        (
            "SELECT 1L AS event_id, 'west' AS lon, 1D AS lat",
            "SELECT 1L AS subscription_id, 'price < 5' AS where",
            "column 'lon' of type string; expected numbers",
        ),
        (
            "SELECT 1L AS event_id, 1D AS lon, 1D AS lat, 3 AS kind",
            "SELECT 1L AS subscription_id, 'price < 5' AS where",
            "column 'kind' of type int; expected texts",
        ),
        (
            "SELECT 1L AS event_id, 1D AS lon, 1D AS lat",
            "SELECT 1L AS subscription_id, true AS price_low",
            "column 'price_low' of type boolean; expected numbers",
        ),
    ],
)
def test_a_table_that_says_nothing_useful_is_answered(
    spark: SparkSession, tmp_path: Path, events, wishes, told
):
    with pytest.raises(NearcastError, match=told) as error:
        match_tables(
            spark.sql(events), spark.sql(wishes), city(), MatchQuery("city", "x"), str(tmp_path)
        )
    assert isinstance(error.value, MisuseError)
    assert not (tmp_path / "deliveries").exists()


def test_empty_tables_one_row_and_only_bad_rows_are_matched_for_what_they_are(
    spark: SparkSession, tmp_path: Path
):
    one = spark.sql("SELECT 1L AS event_id, 0.5D AS lon, 0.5D AS lat")
    wish = spark.sql("SELECT 7L AS subscription_id, 'lon < 0.6' AS where")
    query = MatchQuery("city", "city/x")
    for events, wishes, found, rejected in (
        (one, wish, 1, 0),
        (one.limit(0), wish, 0, 0),
        (one, wish.limit(0), 0, 0),
        (one.selectExpr("event_id", "9D AS lon", "lat"), wish, 0, 1),
    ):
        done = match_tables(events, wishes, city(), query, str(tmp_path))
        assert (done.deliveries, done.rejected) == (found, rejected)
        assert len(rows(spark, tmp_path)) == found
