"""A table of subscriptions becomes a matcher that answers as the definition, also when packed."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.polygons import CITY, polygons, small, star

from nearcast.matching import Matcher, MatcherView, open_matcher, save_matcher
from nearcast.model import (
    Attribute,
    Circle,
    Event,
    KeyInUseError,
    MisuseError,
    NearcastError,
    Space,
    Subscription,
    parse_shape,
    parse_where,
)
from nearcast.pipeline.jobs.shipped_subscriptions import ShippedSubscriptions
from nearcast.pipeline.sources.subscription_tables import hulls_of_table, matcher_of

Row = tuple[str | None, str | None, float | None]
WHERES = [None, "price < 4", "price = 2 or price > 7", "lon < 1", "price < 1 and price > 8"]
SCHEMA = pa.schema(
    {
        "subscription_id": pa.int64(),
        "where": pa.string(),
        "area": pa.string(),
        "weight": pa.float64(),
    }
)
areas = st.one_of(
    polygons.map(str),
    st.builds(Circle, small, small, st.just(2e5)).map(str),
    st.sampled_from([None, "bbox(-1,-1,2,2)", "bbox(170,-1,-170,2)", str(star(0, 0, 3, 40))]),
)
rows = st.tuples(st.sampled_from(WHERES), areas, st.sampled_from([None, 1.0, 2.0]))


def table_of(wanted: list[Row]) -> pa.Table:
    columns = [
        {"subscription_id": 10 * n, "where": where, "area": area, "weight": weight}
        for n, (where, area, weight) in enumerate(wanted)
    ]
    return pa.Table.from_pylist(columns, SCHEMA)


def one_by_one(table: pa.Table) -> Matcher:
    matcher = Matcher([CITY])
    for row in table.to_pylist():
        matcher.add(
            row["subscription_id"],
            Subscription(
                topic_filter="city/#",
                where=parse_where(row["where"]) if row["where"] else None,
                area=parse_shape(row["area"]) if row["area"] else None,
            ),
            weight=1.0 if row["weight"] is None else row["weight"],
        )
    return matcher


def answers(view: MatcherView, points: np.ndarray, rank: str) -> tuple[list[set[int]], object]:
    offsets, keys = view.match_points("city", "city/x", points)
    found = [set(keys[a:b].tolist()) for a, b in pairwise(offsets.tolist())]
    assert [len(each) for each in found] == np.diff(offsets).tolist()  # each once
    best = view.top_points("city", "city/x", points, 3, rank)
    return found, best.tolist()


@settings(deadline=None)
@given(
    st.lists(rows, max_size=40) | st.lists(rows, min_size=10, max_size=20),
    st.lists(st.tuples(st.integers(0, 9), small, small), min_size=10, max_size=20),
    st.sampled_from(["narrowest", "weight", "nearest", "centre"]),
)
def test_a_table_answers_as_its_subscriptions_one_by_one(wanted, points, rank):
    table, at = table_of(wanted), np.array(points, np.float64)
    expected = answers(one_by_one(table), at, rank)
    for price, lon, lat in points[:2]:
        event = Event.of(CITY, "city/x", {"price": price, "lon": lon, "lat": lat})
        view = matcher_of(table, CITY)
        assert set(view.match(event)) == set(one_by_one(table).match(event))
    assert answers(matcher_of(table, CITY), at, rank) == expected
    assert answers(ShippedSubscriptions.of(table, CITY).matcher(), at, rank) == expected


def test_a_space_without_coordinates_has_conditions_alone():
    plane = Space(name="city", topic_filter="city/#", attributes=[Attribute.number("price", 0, 9)])
    table = table_of([("price < 4", None, None), (None, None, None), ("price > 7", None, 2.0)])
    for view in (matcher_of(table, plane), ShippedSubscriptions.of(table, plane).matcher()):
        found, _ = answers(view, np.array([[3.0], [8.0]]), "weight")
        assert found == [{0, 10}, {10, 20}]
    lows, highs = hulls_of_table(table, plane)
    assert lows[2, 0] > 7
    assert highs[2, 0] >= 9
    with pytest.raises(NearcastError, match="longitude and latitude"):
        matcher_of(table_of([(None, str(star(1, 1, 1, 8)), None)]), plane)


def test_a_packed_or_saved_matcher_can_be_packed_and_saved_again(tmp_path: Path):
    wanted: list[Row] = [("price < 7", str(star(n % 8, n % 5, 1.5, 8, n)), None) for n in range(60)]
    wanted += [(None, "circle(3,3,100km)", None), (None, None, 3.0)]
    table = table_of(wanted)
    points = np.random.default_rng(2).uniform(-1, 9, (300, 3))
    points[0] = (1, *star(1, 1, 1.5, 8, 1).parts[0][0][0])  # a corner: the text is parsed for it
    expected = answers(one_by_one(table), points, "narrowest")
    shipped = ShippedSubscriptions.of(table, CITY)
    assert shipped == ShippedSubscriptions.of(table, CITY)
    save_matcher(shipped.matcher(), tmp_path / "first")
    assert answers(open_matcher(tmp_path / "first"), points, "narrowest") == expected
    save_matcher(open_matcher(tmp_path / "first"), tmp_path / "second")
    assert answers(open_matcher(tmp_path / "second"), points, "narrowest") == expected


def test_bounds_travel_as_rows():
    bounds = pa.table(
        {"subscription_id": [1, 2], "price_low": [0.0, 4.0], "price_high": [5.0, 9.0]}
    )
    shipped = ShippedSubscriptions.of(bounds, CITY)
    assert not shipped.is_built
    view = shipped.matcher()
    offsets, keys = view.match_points("city", "city/x", [(4.5, 0, 0), (8.0, 0, 0)])
    assert (offsets.tolist(), sorted(keys[:2].tolist())) == ([0, 2, 3], [1, 2])


@given(st.lists(rows, max_size=12))
def test_hulls_are_around_the_boxes_of_each_row(wanted):
    lows, highs = hulls_of_table(table_of(wanted), CITY)
    for n, (where, area, _) in enumerate(wanted):
        boxes = Subscription(
            topic_filter="city/#",
            where=parse_where(where) if where else None,
            area=parse_shape(area) if area else None,
        ).boxes(CITY)
        bounds = np.array([(box.lows, box.highs) for box in boxes]).reshape(-1, 2, 3)
        assert lows[n].tolist() == bounds[:, 0].min(axis=0, initial=np.inf).tolist()
        assert highs[n].tolist() == bounds[:, 1].max(axis=0, initial=-np.inf).tolist()


@pytest.mark.parametrize(
    ("changed", "kind", "told"),
    [
        ({"where": "price <"}, NearcastError, "subscription_id 20"),
        ({"where": "colour = 3"}, NearcastError, "colour"),
        ({"area": "circle(8,47)"}, NearcastError, "subscription_id 20"),
        ({"area": '{"type":"Polygon","coordinates":[[[0,0],[1,1],[0,0]]]}'}, NearcastError, "20"),
        ({"weight": float("nan")}, NearcastError, "weight"),
        ({"subscription_id": 30}, KeyInUseError, "the key 30"),
        ({"subscription_id": None}, MisuseError, "subscription_id"),
    ],
)
def test_a_wrong_row_is_named(changed, kind, told):
    listed = table_of([("price < 5", str(star(1, 1, 1, 8)), None)] * 5).to_pylist()
    listed[2] |= changed
    table = pa.Table.from_pylist(listed, SCHEMA).sort_by("subscription_id")
    with pytest.raises(kind, match=told):
        matcher_of(table, CITY)
