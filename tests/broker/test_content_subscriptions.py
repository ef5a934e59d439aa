"""Content subscriptions: conditions, refusals and warnings, each rule on its own."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.support.shop_space import BREAD, HERE_TOO, V5, V311, OnlyShops, Shops

from nearcast.broker import SpaceSettings
from nearcast.model import Attribute, Space
from nearcast.mqtt import (
    ProtocolVersion,
)


@pytest.mark.parametrize(
    "wish",
    [
        {"where": "price < 5"},
        {"where": "kind in (food) and price = 3"},
        {"area": "bbox(8,47,9,48)"},
        {"area": "circle(8.5,47.5,10m)"},
        {"where": "price < 5", "area": "bbox(8,47,9,48)"},
    ],
)
def test_what_is_wanted_comes_and_the_rest_does_not(shops: Shops, wish: dict[str, Any]) -> None:
    ann = shops.client("ann")
    shops.subscribe(ann, "shops/#", **wish)

    shops.publish(BREAD)
    shops.publish({"price": 50, "kind": "tools", "lon": -8.0, "lat": 47.5})

    assert [json.loads(one) for one in ann.payloads()] == [BREAD]


def test_a_prefix_and_a_property_name_the_same_subscription(shops: Shops) -> None:
    ann = shops.client("ann")
    shops.subscribe(ann, "$where/price<5;kind=food/shops/#", qos=1)
    shops.subscribe(ann, "shops/#", where="price < 5  and kind == 'food'")

    assert list(shops.world.node.state.sessions["ann"].subscriptions) == [
        "$where/price<5;kind=food/shops/#"
    ]
    assert shops.unsubscribe(ann, "$where/price<5;kind%3Dfood/shops/#") == 0
    shops.publish()
    assert ann.payloads() == []


def test_two_selections_on_one_filter_stand_side_by_side_and_the_bare_filter_ends_all(
    shops: Shops,
) -> None:
    ann = shops.client("ann")
    shops.subscribe(ann, "shops/#", where="price < 5")
    shops.subscribe(ann, "shops/#", where="price > 90")
    shops.subscribe(ann, "shops/#")
    shops.subscribe(ann, "shops/+", where="price < 5")

    assert shops.unsubscribe(ann, "shops/#", where="price > 90") == 0
    assert shops.unsubscribe(ann, "shops/#", where="price > 90") == 0x11
    assert shops.unsubscribe(ann, "shops/#") == 0
    assert list(shops.world.node.state.sessions["ann"].subscriptions) == ["$where/price<5/shops/+"]


def test_overlapping_subscriptions_deliver_once_with_all_identifiers(shops: Shops) -> None:
    ann = shops.client("ann")
    for identifier, text in (
        (1, "$where/price<5/shops/#"),
        (2, "$area/8,47,9,48/shops/+"),
        (3, "#"),
    ):
        ann.subscribe(text, identifier=identifier)
    ann.take()

    shops.publish()

    (packet,) = ann.publications()
    assert sorted(packet.properties.subscription_identifiers) == [1, 2, 3]


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("texts", [("$where/price<5/shops/#", "$where/price<6/shops/+"),
                                   ("$where/price<5/shops/#", "shops/#")])  # fmt: skip
def test_a_plain_packet_comes_once_however_many_subscriptions_want_it(
    shops: Shops, version: ProtocolVersion, texts: tuple[str, str]
) -> None:
    ann = shops.client("ann", version)
    for text in texts:
        shops.subscribe(ann, text)
    shops.publish(qos=0)
    assert len(ann.payloads()) == 1


def test_outside_of_spaces_the_properties_are_ordinary(shops: Shops) -> None:
    ann = shops.client("ann")
    assert shops.subscribe(ann, "other/#", where="nonsense ((").reasons == (0,)

    shops.publish(b"x", topic="other/1", _top="0", colour="red")

    (packet,) = ann.publications()
    assert packet.properties.user_properties == (("$top", "0"), ("colour", "red"))


def test_in_a_space_instructions_are_taken_off_and_other_properties_stay(shops: Shops) -> None:
    ann = shops.client("ann")
    shops.subscribe(ann, "shops/#")

    shops.publish(_top="1", _rank="nearest", colour="red", _area="bbox(8,47,9,48)")

    (packet,) = ann.publications()
    assert packet.properties.user_properties == (("colour", "red"), ("$area", "bbox(8,47,9,48)"))


BAD_WISHES = [
    ({"where": "price <"}, "$where: position 7", "a number"),
    ({"where": "prize < 5"}, "$where: position 0", "price"),
    ({"where": "price < 5000"}, "$where", "0 to 100"),
    ({"where": "kind = fod"}, "$where", "food"),
    ({"area": "cirle(8,47,5m)"}, "$area", "circle"),
    ({"area": "circle(8,47,-5m)"}, "$area", "above 0"),
    ({"area": "bbox(1,2,3)"}, "$area", "4"),
    ({"near": "-3m"}, "$near", "above 0"),
    ({"near": "500"}, "$near", "500m"),
    ({"near": "90000km"}, "$near", "half-way"),
    ({"near": "5m", "explain": "yes"}, "$explain", "true or false"),
    ({"near": "5m", "label": ""}, "$label", "1 to 256"),
    ({"near": "5m", "weight": "heavy"}, "$weight", "a number"),
    ({"retained": "later"}, "$retained", "now"),
]


@pytest.mark.parametrize(("wish", "place", "expected"), BAD_WISHES)
def test_a_bad_wish_is_refused_with_the_place_and_what_was_expected(
    shops: Shops, wish: dict[str, Any], place: str, expected: str
) -> None:
    ann = shops.client("ann")
    answer = shops.subscribe(ann, "shops/#", **wish)

    assert answer.reasons == (0x8F,)
    text = answer.properties.reason_string or ""
    assert place in text
    assert expected in text
    assert not ann.is_closed
    assert not shops.world.node.state.sessions["ann"].subscriptions
    shops.publish()
    assert ann.payloads() == []


@pytest.mark.parametrize(
    "text",
    [
        "$where/price<5",
        "$where/price<5/",
        "$where/price%ZZ5/shops/#",
        "$near/5m/$near/6m/shops/#",
        "$near/5m/other/#",
        "$where//shops/#",
    ],
)
def test_a_bad_prefix_is_refused_in_both_versions(shops: Shops, text: str) -> None:
    for version, code in ((V5, 0x8F), (V311, 0x80)):
        client = shops.client(f"c{version}", version)
        assert shops.subscribe(client, text).reasons == (code,)
        assert not client.is_closed


def test_without_any_space_a_prefix_is_answered_too(world: Any) -> None:
    client = world.welcome("ann")
    (answer,) = client.subscribe("$near/5m/shops/#")
    assert answer.reasons == (0x8F,)
    assert "declared space" in answer.properties.reason_string


def test_a_refusal_tells_why(make_world: Any) -> None:
    shops = Shops(make_world, access=OnlyShops())
    answer = shops.subscribe(shops.client("ann"), "secret/#")
    assert answer.reasons == (0x87,)
    assert answer.properties.reason_string == "'secret/#' is refused: no rule for subscribing"
    for topic in ("secret", "$nearcast/explain"):
        denied = shops.publish(topic=topic)
        assert denied is not None
        assert denied.reason == 0x87
        assert denied.properties.reason_string == f"{topic!r} is refused: no rule for publishing"
    own = shops.publish(topic="$SYS/broker/x")
    assert own is not None
    assert "such topics are the broker's own" in (own.properties.reason_string or "")


def test_selections_on_topics_of_no_space_are_said_to_be_ignored(shops: Shops) -> None:
    ann = shops.client("ann")
    answer = shops.subscribe(ann, "taxis/#", near="500m", where="price < 5")
    assert answer.reasons == (0,)
    assert answer.properties.reason_string == (
        "$near, $where: ignored, so every message comes, because 'taxis/#' meets the topics of no "
        "[[space]]; declared: shops (shops/#)"
    )
    assert shops.subscribe(ann, "taxis/#", colour="red").properties.reason_string is None
    assert shops.subscribe(ann, "taxis/#", retained="now").properties.reason_string is None
    assert shops.subscribe(ann, "shops/#", where="price < 5").properties.reason_string is None


@pytest.mark.parametrize("qos", [1, 2])
def test_instructions_on_a_topic_of_no_space_are_said_to_be_ignored(shops: Shops, qos: int) -> None:
    ann = shops.client("ann")
    shops.subscribe(ann, "taxis/#")
    answer = shops.publish(topic="taxis/7", qos=qos, _top="3", _lifetime="250ms", colour="red")
    assert answer is not None
    assert answer.reason == 0
    assert answer.properties.reason_string == (
        "$top, $lifetime: ignored, because 'taxis/7' is a topic of no [[space]]; "
        "declared: shops (shops/#)"
    )
    (got,) = ann.publications()
    assert ("colour", "red") in got.properties.user_properties
    unheard = shops.publish(topic="boats/7", qos=qos, _top="3")
    assert unheard is not None
    assert unheard.reason == 0x10
    assert (unheard.properties.reason_string or "").startswith("$top: ignored")
    for plain in (shops.publish(topic="taxis/7", qos=qos, colour="red"), shops.publish(_top="3")):
        assert plain is not None
        assert plain.properties.reason_string is None


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"prize": 3, **HERE_TOO}, "payload: found no price, kind, but prize, lon, lat; expected"),
        ({"prize": 3, **HERE_TOO}, "fields of space shops: price, kind, lon, lat. Did you mean p"),
        ({"price": 3, "shop": "Bakery", **HERE_TOO}, None),
        ({"kind": "food", **HERE_TOO}, None),
        ({"price": 3, "long": 8.5, "lat": 47.5}, "payload: found no lon among price, long, lat; "),
        ({"price": 3, "long": 8.5, "lat": 47.5}, "requires it. Is long meant?"),
        ({"lon": 37.8, "lat": -122.4}, "payload: lat: found -122.4; expected a number from -90 "),
        ({"lon": 37.8, "lat": -122.4}, "Are lon (longitude) and lat (latitude) swapped?"),
        ({"price": 300, **HERE_TOO}, "payload: price: found 300; expected a number"),
    ],
)
def test_a_payload_with_a_likely_mistake_is_answered(
    shops: Shops, values: dict[str, Any], told: str | None
) -> None:
    answer = shops.publish(values)
    assert answer is not None
    found = answer.properties.reason_string
    assert found is None if told is None else told in (found or "")


def test_a_value_that_is_no_coordinate_is_not_said_to_be_swapped(shops: Shops) -> None:
    answer = shops.publish({"price": 300, **HERE_TOO})
    assert answer is not None
    assert "swapped" not in (answer.properties.reason_string or "swapped")


def test_bounds_of_a_space_tell_swapped_coordinates(make_world: Any) -> None:
    zurich = Space(
        name="zurich",
        topic_filter="z/#",
        attributes=(Attribute.number("x", 8, 9), Attribute.number("y", 47, 48)),
        longitude="x",
        latitude="y",
    )
    world = make_world(spaces=[SpaceSettings(space=zurich)])
    client = world.welcome("ann")
    client.publish("z/1", b'{"x": 47.4, "y": 8.5}', 1)
    (answer,) = client.take()
    assert "Are x (longitude) and y (latitude) swapped?" in answer.properties.reason_string


def test_the_rules_are_asked_about_the_bare_topic_before_anything_is_read(make_world: Any) -> None:
    shops = Shops(make_world, access=OnlyShops())
    ann = shops.client("ann")

    assert shops.subscribe(ann, "$where/price<5/shops/#").reasons == (0,)
    assert shops.subscribe(ann, "$where/((/#").reasons == (0x87,)
    answer = shops.publish(topic="$top/0/secret")
    assert answer is not None
    assert answer.reason == 0x87
    shops.publish(topic="$top/1/shops/1")
    assert len(ann.payloads()) == 1


def test_members_of_a_share_group_select_differently_and_take_turns(shops: Shops) -> None:
    ann, bob, cyd = (shops.client(name) for name in ("ann", "bob", "cyd"))
    shops.subscribe(ann, "$share/g/$where/price<5/shops/#")
    shops.subscribe(bob, "$share/g/$where/price<50/shops/#")
    shops.subscribe(cyd, "$share/g/$where/price>50/shops/#")

    for _ in range(4):
        shops.publish()

    assert [len(one.payloads()) for one in (ann, bob, cyd)] == [2, 2, 0]
