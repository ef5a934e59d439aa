"""Spaces, events and subscriptions: what they hold, what they refuse, and who wants what."""

import math
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.model import (
    ACCURACY_FLOOR,
    EVERYTHING,
    MISSING,
    Attribute,
    BoundingBox,
    Box,
    Circle,
    Event,
    Interval,
    LimitError,
    MisuseError,
    OutOfRangeError,
    Shape,
    Space,
    Subscription,
    UnknownNameError,
    decode_level,
    distance_m,
    parse_shape,
    parse_where,
)
from nearcast.model.space import Missing

PRICE = Attribute.number("price", 0, 1024)
KIND = Attribute.category("kind", ["food", "tools", "toys", "books"])
LON, LAT = Attribute.number("lon", -180, 180), Attribute.number("lat", -90, 90)


def city(missing: Missing = "all", **settings: Any) -> Space:
    return Space(
        name="city",
        topic_filter="city/#",
        attributes=[LON, PRICE, LAT, KIND],
        longitude="lon",
        latitude="lat",
        missing=missing,
        **settings,
    )


HERE = {"lon": 2.35, "lat": 48.85}


def test_a_space_knows_its_attributes() -> None:
    space = city()
    assert space.dimensions == 4
    assert space.coordinates == (0, 2)
    assert space.place_of("kind") == 3
    assert space.required == {"lon", "lat"}
    assert list(space.extent.lows) == [-180, 0, -90, -0.5]
    assert list(space.extent.highs) == [180, 1024, 90, 3.5]
    with pytest.raises(UnknownNameError, match=r"space city.*Did you mean price"):
        space.place_of("prise")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"name": "two words"}, "the name of a space"),
        ({"attributes": []}, "one Attribute or more"),
        ({"attributes": ["price"]}, "one Attribute or more"),
        ({"attributes": [PRICE, PRICE]}, "two attributes of one name"),
        ({"missing": "some"}, "all or none"),
        ({"longitude": "price"}, "two attributes, or neither"),
        ({"longitude": "price", "latitude": "price"}, "two attributes, or neither"),
        ({"longitude": "price", "latitude": "kind"}, "longitude: found price with 0 to 1024"),
        ({"longitude": "lon", "latitude": "price"}, "latitude"),
        ({"longitude": "kind", "latitude": "lat"}, "longitude"),
        ({"longitude": "lom", "latitude": "lat"}, "Did you mean lon"),
        ({"required": ["prize"]}, "Did you mean price"),
        ({"required": "price"}, "a list of names"),
    ],
)
def test_a_space_that_makes_no_sense_is_refused(changes: dict[str, Any], says: str) -> None:
    whole = {"name": "s", "topic_filter": "#", "attributes": [PRICE, KIND, LON, LAT]}
    with pytest.raises(MisuseError, match=says):
        Space(**{**whole, **changes})


def test_spaces_compare_hash_and_pickle() -> None:
    assert city() == city()
    assert hash(city()) == hash(city())
    assert pickle.loads(pickle.dumps(city())) == city()
    assert pickle.loads(pickle.dumps(city())).place_of("lat") == 2


def test_accuracy_is_the_bits_of_the_narrowest_box_that_meets_the_event() -> None:
    space = city()
    whole, half = space.boxes(None), space.boxes("price <= 512")
    union = space.boxes("price <= 256 or kind = food")
    toy = Event.of(space, "t", {**HERE, "price": 5, "kind": "toys"})
    dear = Event.of(space, "t", {**HERE, "price": 900, "kind": "food"})
    books = Event.of(space, "t", {**HERE, "price": 900, "kind": "books"})

    assert space.accuracy(whole) == 0
    assert space.accuracy(half) == -1
    assert space.accuracy(union) == -2
    assert space.accuracy(union, toy.boxes()) == pytest.approx(-2)
    assert space.accuracy(union, dear.boxes()) == -2
    assert space.accuracy(union, books.boxes()) is None
    assert space.accuracy(space.boxes("kind in (food, tools)")) == -1
    assert space.accuracy(space.boxes("price = 5 and kind = food")) == math.log2(ACCURACY_FLOOR) - 2


def test_splitting_a_range_does_not_make_it_more_accurate() -> None:
    space = city()
    assert space.boxes("price = 0..5 or price = 5..9") == space.boxes("price = 0..9")
    assert space.boxes("price < 9 or price = 3") == space.boxes("price < 9")


def test_an_event_with_all_values_is_a_point() -> None:
    event = Event.of(city(), "city/x", {**HERE, "price": "12.5", "kind": "toys"})
    assert event.point == (2.35, 12.5, 48.85, 2.0)
    assert event.boxes() == (Box.of(event.point, event.point),)
    assert event.position == (2.35, 48.85)


def test_a_missing_value_is_all_values_or_lies_where_no_condition_reaches() -> None:
    everything = Event.of(city("all"), "t", {**HERE, "kind": None})
    nothing = Event.of(city("none"), "t", HERE)

    assert everything.point is None
    assert everything.boxes()[0].sides[1] == EVERYTHING
    assert nothing.point == (2.35, MISSING, 48.85, MISSING)


@pytest.mark.parametrize(
    ("values", "error", "says"),
    [
        ({"lon": 2}, MisuseError, "no lat; expected a value .* required"),
        ({"lat": 2}, MisuseError, "no lon"),
        ({**HERE, "prize": 5}, UnknownNameError, "Did you mean price"),
        ({**HERE, "price": -1}, OutOfRangeError, "price: found -1; expected a number from 0"),
        ({**HERE, "price": math.nan}, OutOfRangeError, "finite"),
        ({**HERE, "price": math.inf}, OutOfRangeError, "finite"),
        ({**HERE, "price": 10**400}, OutOfRangeError, "finite"),
        ({**HERE, "price": True}, MisuseError, "a number"),
        ({**HERE, "price": "cheap"}, MisuseError, "a number"),
        ({**HERE, "price": 10**5000}, OutOfRangeError, "finite"),
        ({**HERE, "kind": "fod"}, UnknownNameError, "Did you mean food"),
        ({**HERE, "kind": 1}, MisuseError, "one of food"),
        ({**HERE, "price": Interval(5, 2000)}, OutOfRangeError, "2000"),
        ({**HERE, "kind": Interval(0, 1)}, MisuseError, "one category"),
        ({"lon": Interval(0, 1), "lat": 3}, MisuseError, "an area as a shape"),
        ({"lon": 200, "lat": 3}, OutOfRangeError, "lon"),
    ],
)
def test_an_event_that_does_not_fit_is_refused(
    values: dict[str, Any], error: type[MisuseError], says: str
) -> None:
    with pytest.raises(error, match=says):
        Event.of(city(), "t", values)


def test_coordinates_need_not_be_required() -> None:
    somewhere = Event.of(city("all", required=()), "t", {})
    nowhere = Event.of(city("none", required=()), "t", {})
    wanted = Subscription(topic_filter="#", area=Circle(0, 0, 500))

    assert somewhere.position is None
    assert wanted.covers(somewhere)
    assert not wanted.covers(nowhere)
    assert Subscription(topic_filter="#").covers(nowhere)


def test_another_attribute_can_be_required() -> None:
    with pytest.raises(MisuseError, match="no price"):
        Event.of(city(required=["price"]), "t", HERE)


def test_an_event_may_have_an_extent() -> None:
    space = city()
    event = Event.of(space, "t", {"price": Interval(5, 9)}, area=BoundingBox(179, 0, -179, 1))
    assert [(b.lows[0], b.highs[0]) for b in event.boxes()] == [(179, 180), (-180, -179)]
    assert event.point is None
    assert event.position is None
    assert Subscription(topic_filter="#", area=Circle(-178.99, 0.5, 5_000)).covers(event)
    assert not Subscription(topic_filter="#", area=Circle(-178.9, 0.5, 5_000)).covers(event)
    assert Subscription(topic_filter="#", where=parse_where("price >= 9")).covers(event)
    assert not Subscription(topic_filter="#", where=parse_where("price > 9")).covers(event)


def test_a_place_in_the_corner_of_a_circles_box_is_not_in_the_circle() -> None:
    event = Event.of(city(), "t", {"lon": 0.9, "lat": 0.9})
    degree_m = distance_m(0, 0, 1, 0)
    assert event.point is None
    for radius_m, wanted in ((degree_m, False), (1.3 * degree_m, True)):
        fixed = Subscription(topic_filter="#", area=Circle(0, 0, radius_m))
        around = Subscription(topic_filter="#", near_m=radius_m)
        assert fixed.covers(event) is wanted
        assert around.covers(event, position=(0, 0)) is wanted


def test_an_extent_counts_where_it_touches_not_where_its_box_does() -> None:
    space = city()
    corner = BoundingBox(0.95, 0.95, 0.99, 0.99)
    event = Event.of(space, "t", {"lon": 50, "lat": 50}, area=corner)
    degree_m = distance_m(0, 0, 1, 0)

    assert event.position == (50.0, 50.0), "the place of the publisher"
    assert not Subscription(topic_filter="#", area=Circle(0, 0, degree_m)).covers(event)
    assert Subscription(topic_filter="#", area=Circle(0, 0, 1.35 * degree_m)).covers(event)
    assert not Subscription(topic_filter="#", area=BoundingBox(49, 49, 51, 51)).covers(event)
    assert Subscription(topic_filter="#", where=parse_where("lon < 1")).covers(event)
    assert not Subscription(topic_filter="#", where=parse_where("lon > 1")).covers(event)


def test_an_extent_outside_the_space_is_refused() -> None:
    paris = Space(
        name="paris",
        topic_filter="#",
        attributes=[Attribute.number("lon", 2, 3), Attribute.number("lat", 48, 49)],
        longitude="lon",
        latitude="lat",
    )
    with pytest.raises(OutOfRangeError, match="meets the space's longitudes"):
        Event.of(paris, "t", {}, area=Circle(0, 0, 500))
    plain = Space(name="plain", topic_filter="#", attributes=[PRICE])
    with pytest.raises(MisuseError, match="a space with coordinates"):
        Event.of(plain, "t", {}, area=Circle(0, 0, 500))
    with pytest.raises(MisuseError, match="a space with coordinates"):
        Subscription(topic_filter="#", area=Circle(0, 0, 500)).boxes(plain)
    assert Subscription(topic_filter="#", area=Circle(0, 0, 500)).boxes(paris) == ()
    wide = Subscription(topic_filter="#", area=BoundingBox(0, 0, 2.5, 90)).boxes(paris)
    assert [str(box) for box in wide] == ["[2, 2.5] × [48, 49]"]


def test_near_needs_a_position() -> None:
    near = Subscription(topic_filter="#", near_m=500)
    event = Event.of(city(), "t", HERE)

    assert not near.covers(event)
    assert near.boxes(city()) == ()
    assert near.covers(event, position=(2.351, 48.85))
    assert not near.covers(event, position=(2.36, 48.85))


@pytest.mark.parametrize("bad", [0, -5, math.nan, math.inf, 3e7])
def test_near_needs_a_radius(bad: Any) -> None:
    with pytest.raises(OutOfRangeError):
        Subscription(topic_filter="#", near_m=bad)


def test_conditions_and_areas_together_keep_the_limit() -> None:
    many = parse_where(f"price in ({','.join(map(str, range(0, 100, 2)))})")
    crossing = Subscription(topic_filter="#", where=many, area=BoundingBox(170, 0, -170, 1))
    with pytest.raises(LimitError, match="100 boxes"):
        crossing.boxes(city())
    assert len(crossing.boxes(city(), limit=100)) == 100


@pytest.mark.parametrize(
    ("where", "area", "near_m", "identity"),
    [
        (None, None, None, "shops/#"),
        ("price<100 AND kind='food'", None, None, "$where/price<100;kind=food/shops/#"),
        (None, "circle(1,2,3km)", None, "$area/1,2,3000m/shops/#"),
        (
            "kind = 'a/b #1'",
            "bbox(1,2,3,4)",
            2.5,
            '$where/kind="a%2Fb%20%231"/$area/1,2,3,4/$near/2.5m/shops/#',
        ),
    ],
)
def test_the_identity_is_the_prefixed_filter(
    where: str | None, area: str | None, near_m: float | None, identity: str
) -> None:
    subscription = Subscription(
        topic_filter="shops/#",
        where=parse_where(where) if where else None,
        area=parse_shape(area) if area else None,
        near_m=near_m,
    )
    assert subscription.identity == identity
    levels = identity.split("/")
    if where:
        assert parse_where(decode_level(levels[1])) == subscription.where


lons, lats = st.integers(-180, 180), st.integers(-90, 90)
wheres = st.sampled_from(
    [
        None,
        "price < 500",
        "kind = food",
        "kind != food or price > 5",
        "lon > 0",
        "lat <= 0 or lon = 3",
    ]
)
areas = st.one_of(
    st.none(),
    st.builds(Circle, lons, lats, st.sampled_from([1.0, 5e5, 5e6])),
    st.builds(
        lambda w, s, e, h: BoundingBox(w, s, e, min(90, s + h)), lons, lats, lons, lats.map(abs)
    ),
)


@given(wheres, areas, st.one_of(st.none(), st.floats(1, 9e6)), lons, lats, lons, lats)
def test_a_subscription_wants_what_meets_all_it_says(
    where: str | None,
    area: Shape | None,
    near_m: float | None,
    lon: int,
    lat: int,
    my_lon: int,
    my_lat: int,
) -> None:
    space = city("none")
    values = {"lon": lon, "lat": lat, "price": 300, "kind": "food"}
    truths = {
        None: True,
        "price < 500": True,
        "kind = food": True,
        "kind != food or price > 5": True,
        "lon > 0": lon > 0,
        "lat <= 0 or lon = 3": lat <= 0 or lon == 3,
    }
    wanted = (
        truths[where]
        and (area is None or area.contains(lon, lat))
        and (near_m is None or distance_m(my_lon, my_lat, lon, lat) <= near_m)
    )
    subscription = Subscription(
        topic_filter="#", where=parse_where(where) if where else None, area=area, near_m=near_m
    )
    event = Event.of(space, "t", values)
    assert subscription.covers(event, (my_lon, my_lat)) == wanted
    if wanted:
        assert event.point is not None
        assert any(box.contains(event.point) for box in subscription.boxes(space, (my_lon, my_lat)))
