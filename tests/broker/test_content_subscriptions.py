"""Selective subscriptions, positions, ranked publishing: each rule on its own."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from nearcast.broker import BrokerSettings, OpenAccess, SpaceSettings
from nearcast.model import Attribute, Space
from nearcast.mqtt import (
    FilterRequest,
    Properties,
    ProtocolVersion,
    Publish,
    PublishAnswer,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    encode_packet,
)

V311, V5 = ProtocolVersion.V311, ProtocolVersion.V5
SHOPS = Space(
    name="shops",
    topic_filter="shops/#",
    attributes=(
        Attribute.number("price", 0, 100),
        Attribute.category("kind", ["food", "tools"]),
        Attribute.number("lon", -180, 180),
        Attribute.number("lat", -90, 90),
    ),
    longitude="lon",
    latitude="lat",
    missing="none",
)
BREAD = {"price": 3, "kind": "food", "lon": 8.5, "lat": 47.5}
HERE_TOO = {"lon": 8.5, "lat": 47.5}
HERE, NEARBY, FAR = (8.5, 47.5), (8.501, 47.501), (9.5, 48.5)


class Shops:
    """A world with the space `shops`, and short ways to say things."""

    def __init__(self, make_world: Any, **settings: Any) -> None:
        options = {
            name: settings.pop(name) for name in ("access", "with_journal") if name in settings
        }
        node = settings.pop("node", None)
        self.world = make_world(node, spaces=[SpaceSettings(space=SHOPS, **settings)], **options)
        self.publisher = self.world.welcome("publisher")

    def client(self, name: str, version: ProtocolVersion = V5, **rest: Any) -> Any:
        return self.world.welcome(name, version, **rest)

    def subscribe(self, client: Any, text: str, qos: int = 0, **wish: Any) -> Suback:
        options = wish.pop("options", {})
        pairs = tuple((f"${name}", value) for name, value in wish.items())
        request = FilterRequest(text, qos, **options)
        properties = Properties(user_properties=pairs)
        client.send(Subscribe(client.next_id(), (request,), properties))
        found = [one for one in client.packets if isinstance(one, Suback)]
        client.packets = [one for one in client.packets if not isinstance(one, Suback)]
        return found[-1]

    def unsubscribe(self, client: Any, text: str, **wish: Any) -> int:
        pairs = tuple((f"${name}", value) for name, value in wish.items())
        client.send(Unsubscribe(client.next_id(), (text,), Properties(user_properties=pairs)))
        return next(one for one in client.take() if isinstance(one, Unsuback)).reasons[0]

    def publish(
        self, values: object = None, topic: str = "shops/1", qos: int = 1, **wish: Any
    ) -> PublishAnswer | None:
        """Publish, and return the answer."""
        properties = wish.pop("properties", {})
        retain = wish.pop("retain", False)
        pairs = tuple((name if name[0] != "_" else "$" + name[1:], v) for name, v in wish.items())
        payload = values if isinstance(values, bytes) else json.dumps(values or BREAD).encode()
        self.publisher.publish(
            topic,
            payload,
            qos,
            retain=retain,
            properties=Properties(user_properties=pairs, **properties),
        )
        answers = [one for one in self.publisher.take() if isinstance(one, PublishAnswer)]
        return answers[0] if answers else None

    def move(self, client: Any, place: tuple[float, float]) -> None:
        client.publish("$position", json.dumps({"lon": place[0], "lat": place[1]}).encode())


@pytest.fixture
def shops(make_world: Any) -> Shops:
    return Shops(make_world)


# --- subscribing -------------------------------------------------------------------------------


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


class OnlyShops(OpenAccess):
    """Rules: shops and replies for everybody, nothing else."""

    def has_rules(self) -> bool:
        return True

    def may_publish(self, _user_name: str | None, client_id: str, topic: str) -> bool:
        return topic.startswith(("shops", "$position", f"to/{client_id}"))

    def may_subscribe(self, _user_name: str | None, _client_id: str, topic_filter: str) -> bool:
        return topic_filter.startswith(("shops", "to"))

    def refusal(self, _user: str | None, _client: str, _filter: str, *, subscribes: bool) -> str:
        return f"no rule for {'subscribing' if subscribes else 'publishing'}"


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


# --- positions ----------------------------------------------------------------------------------


def test_near_follows_the_client_and_tells_when_nobody_knows_where_it_is(shops: Shops) -> None:
    ann = shops.client("ann")
    answer = shops.subscribe(ann, "shops/#", near="500m")
    assert answer.reasons == (0,)
    assert "$position" in (answer.properties.reason_string or "")

    shops.publish()
    shops.move(ann, NEARBY)
    shops.publish()
    shops.move(ann, FAR)
    shops.publish()

    assert len(ann.payloads()) == 1


@pytest.mark.parametrize("pairs", [(("lon", "8.5"), ("lat", "47.5")), (("$position", "8.5,47.5"),)])
def test_a_position_may_come_with_connect(shops: Shops, pairs: Any) -> None:
    ann = shops.client("ann", properties=Properties(user_properties=pairs))
    assert shops.subscribe(ann, "shops/#", near="500m").properties.reason_string is None
    shops.publish()
    assert len(ann.payloads()) == 1


def test_a_bad_position_on_connect_is_told_and_the_client_is_welcome(shops: Shops) -> None:
    pairs = (("lon", "8"), ("lat", "95"))
    client = shops.world.client("ann", properties=Properties(user_properties=pairs))
    connack = client.packets[0]
    assert connack.reason == 0
    assert "latitude 95" in connack.properties.reason_string


@pytest.mark.parametrize("takes", [False, True])
def test_a_position_may_come_with_any_publish_where_that_is_set(
    make_world: Any, takes: bool
) -> None:
    shops = Shops(make_world, node=BrokerSettings(position_on_publish=takes))
    ann = shops.client("ann")
    shops.subscribe(ann, "shops/#", near="500m")
    ann.publish("hello", properties=Properties(user_properties=(("lon", "8.5"), ("lat", "47.5"))))
    shops.publish()
    assert len(ann.payloads()) == takes


@pytest.mark.parametrize(
    "payload",
    [b"", b"x", b"[]", b"{}", b'{"lon": 8}', b'{"lon": 8, "lat": 95}', b'{"lon": "a", "lat": 1}',
     b'{"lon": NaN, "lat": 1}', b"\xff", b'{"lon": null, "lat": 1}', b'{"lon": true, "lat": 1}'],
)  # fmt: skip
def test_a_bad_position_is_answered_and_changes_nothing(shops: Shops, payload: bytes) -> None:
    ann = shops.client("ann")
    shops.move(ann, HERE)
    packet_id = ann.publish("$position", payload, 1)

    (answer,) = ann.take()
    assert (answer.packet_id, answer.reason) == (packet_id, 0x83)
    assert answer.properties.reason_string
    assert shops.world.node.state.sessions["ann"].position == HERE
    assert shops.world.node.counters.positions_refused == 1


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_position_that_was_acknowledged_survives_a_crash(make_world: Any, qos: int) -> None:
    shops = Shops(make_world, with_journal=True)
    ann = shops.client("ann", props={"session_expiry_interval": 60})
    for place in (FAR, NEARBY, HERE):
        ann.publish("$position", json.dumps({"lon": place[0], "lat": place[1]}).encode(), qos)

    shops.world.crash_and_restart()

    expected = HERE if qos else FAR  # what nobody waits for is stored now and then
    assert shops.world.node.state.sessions["ann"].position == expected


def test_positions_are_private_unless_a_space_says_otherwise(make_world: Any) -> None:
    for public in (False, True):
        shops = Shops(make_world, shows_positions=public)
        ann, spy = shops.client("a/nn"), shops.client("spy")
        code = shops.subscribe(spy, "$position/+").reasons[0]
        shops.subscribe(spy, "#")
        shops.move(ann, HERE)
        spy.publish("$position/a%2Fnn", b"forged")
        assert code == (0 if public else 0x87)
        seen = [(one.topic, one.payload) for one in spy.publications()]
        assert seen == ([("$position/a%2Fnn", b'{"lon":8.5,"lat":47.5}')] if public else [])


def test_a_position_is_shown_on_the_longest_topic_there_may_be(make_world: Any) -> None:
    shops = Shops(make_world, shows_positions=True)
    room = 65_535 - len("$position/")
    spy = shops.client("spy")
    shops.subscribe(spy, "$position/+")
    for name in ("a" * room, "a" * (room - 3) + "/", "a" * (room - 2) + "/"):
        shops.move(shops.client(name), HERE)

    shown = [len(one.topic) for one in spy.publications()]
    assert shown == [65_535, 65_535]  # the third one would be longer


def test_coming_near_a_retained_message_delivers_it_once_until_it_is_left_behind(
    make_world: Any,
) -> None:
    shops = Shops(make_world, hysteresis=0.5)  # 500 m to come in, 750 m to leave
    ann = shops.client("ann")
    shops.subscribe(ann, "shops/#", near="500m")
    shops.publish(BREAD, retain=True)
    steps = [(8.51, 47.5, 0), (8.505, 47.5, 1), (8.509, 47.5, 1), (8.505, 47.5, 1)]
    steps += [(8.511, 47.5, 1), (8.505, 47.5, 2)]  # 825 m away, and back

    total = 0
    for lon, lat, expected in steps:
        shops.move(ann, (lon, lat))
        packets = ann.publications()
        assert all(one.retain for one in packets)
        total += len(packets)
        assert total == expected


def test_retained_messages_are_sent_only_where_they_match(shops: Shops) -> None:
    shops.publish(BREAD, topic="shops/1", retain=True)
    shops.publish({**BREAD, "price": 50}, topic="shops/2", retain=True)
    shops.publish(b"no JSON", topic="shops/3", retain=True)
    ann, bob = shops.client("ann"), shops.client("bob")
    shops.subscribe(ann, "shops/#", where="price < 5")
    shops.subscribe(bob, "shops/#")

    assert [one.topic for one in ann.publications()] == ["shops/1"]
    assert len(bob.publications()) == 3


# --- publishing -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("_top", "0", "a whole number from 1"),
        ("_top", "-1", "a whole number from 1"),
        ("_top", "many", "a whole number from 1"),
        ("_rank", "foo", "narrowest"),
        ("_lifetime", "0ms", "above 0"),
        ("_lifetime", "soon", "250ms"),
        ("_order", "total", "causal"),
        ("_area", "circle(1,2)", "longitude, latitude, radius"),
        ("_reply", "everything", "matches"),
        ("_deliver", "maybe", "true or false"),
    ],
)
def test_a_senseless_instruction_stops_the_message_and_says_why(
    shops: Shops, name: str, value: str, expected: str
) -> None:
    ann = shops.client("ann")
    shops.subscribe(ann, "shops/#")
    wish: dict[str, Any] = {name: value}
    answer = shops.publish(**wish)

    assert answer is not None
    assert answer.reason == 0x83
    assert expected in (answer.properties.reason_string or "")
    assert ann.payloads() == []
    assert shops.world.node.counters.dropped_invalid == 1
    assert not shops.publisher.is_closed


@pytest.mark.parametrize(
    ("payload", "place"),
    [
        (b"no JSON", "payload"),
        (b"[1]", "payload"),
        (b'{"price": 3, "lon": 8, "lat": 47} x', "payload"),
        (b'{"price": 3}', "no lon"),
        (b'{"price": 300, "lon": 8, "lat": 47}', "price"),
        (b'{"kind": "fod", "lon": 8, "lat": 47}', "kind"),
        (b'{"kind": ["food"], "lon": 8, "lat": 47}', "kind"),
        (b'{"lon": 8, "lat": 97}', "lat"),
        (b'{"lon": 1e999, "lat": 47}', "lon"),
        (b"[" * 100_000, "payload"),
        (b"\xff\xfe", "payload"),
    ],
)
@pytest.mark.parametrize("qos", [0, 1])
def test_what_has_no_place_in_its_space_reaches_plain_subscribers_only(
    shops: Shops, payload: bytes, place: str, qos: int
) -> None:
    ann, bob = shops.client("ann"), shops.client("bob")
    shops.subscribe(ann, "shops/#", where="price >= 0")
    shops.subscribe(bob, "shops/#")
    answer = shops.publish(payload, qos=qos)

    assert ann.payloads() == []
    assert bob.payloads() == [payload]
    assert shops.world.node.counters.unplaced == 1
    if answer is not None:
        assert answer.reason == 0
        assert place in (answer.properties.reason_string or "")


def test_values_may_come_from_properties_or_from_nested_fields(make_world: Any) -> None:
    nested = {"price": ("offer", "price"), "lon": ("at", "lon"), "lat": ("at", "lat")}
    for settings in ({"values": "properties"}, {"paths": nested}):
        shops = Shops(make_world, **settings)
        ann = shops.client("ann")
        shops.subscribe(ann, "shops/#", where="price < 5 and kind = food")
        document = {"kind": "food", "offer": {"price": 3.5}, "at": {"lon": 8, "lat": 47.0}}
        if "paths" in settings:
            for qos in (0, 1):
                shops.publish(document, qos=qos)
            shops.publish({**document, "offer": 7})
        else:
            shops.publish(b"", kind="food", price="3", lon="8", lat="47")
            shops.publish(b"", kind="food", price="3", lon="8", lat="47")
            shops.publish(b"", kind="food", price="30", lon="8", lat="47")
        assert len(ann.payloads()) == 2


def test_only_the_best_get_a_ranked_message_and_those_who_asked_are_told(shops: Shops) -> None:
    clients = [shops.client(f"c{number}") for number in range(4)]
    for number, client in enumerate(clients):
        shops.move(client, (8.5 + number / 1000, 47.5))
        shops.subscribe(client, "shops/#", near="5km", explain="true")

    shops.publish(_top="2", _rank="nearest")

    told = [dict(p.properties.user_properties) for c in clients for p in c.publications()]
    assert told == [{"$rank": "1", "$distance": "0.0"}, {"$rank": "2", "$distance": "75.1"}]


@pytest.mark.parametrize(("offline", "receivers"), [("counts", ["ann"]), ("skipped", ["bob"])])
def test_a_best_subscriber_who_is_away_counts_or_is_skipped(
    make_world: Any, offline: str, receivers: list[str]
) -> None:
    shops = Shops(make_world, offline=offline)
    ann = shops.client("ann", props={"session_expiry_interval": 60})
    bob = shops.client("bob")
    shops.subscribe(ann, "shops/#", qos=1, where="price = 3")
    shops.subscribe(bob, "shops/#", qos=1, where="price < 50")
    ann.lose()

    shops.publish(_top="1")

    ann = shops.client("ann", clean_start=False, props={"session_expiry_interval": 60})
    got = {"ann": ann.payloads(), "bob": bob.payloads()}
    assert [name for name, payloads in got.items() if payloads] == receivers


def test_weights_and_the_defaults_of_a_space_count(make_world: Any) -> None:
    shops = Shops(make_world, top=1, rank="weight")
    ann, bob = shops.client("ann"), shops.client("bob")
    shops.subscribe(ann, "shops/#", where="price < 5", weight="1")
    shops.subscribe(bob, "shops/#", where="price < 50", weight="2")
    for qos in (0, 1):
        shops.publish(qos=qos)
    shops.publish(_rank="narrowest")
    assert (len(ann.payloads()), len(bob.payloads())) == (1, 2)


def test_an_event_with_an_extent_reaches_every_area_and_position_that_it_touches(
    shops: Shops,
) -> None:
    ann, bob, cyd = (shops.client(name) for name in ("ann", "bob", "cyd"))
    shops.subscribe(ann, "shops/#", area="bbox(8,47,9,48)")
    shops.move(bob, (9.2, 47.5))
    shops.subscribe(bob, "shops/#", near="5km")
    shops.subscribe(cyd, "shops/#", area="bbox(0,0,1,1)")

    shops.publish({"price": 1}, _area="bbox(8.9,47,9.19,48)")
    shops.publish({"price": 1}, topic="$area/8.9,47,9.19,48/shops/1")

    assert [len(one.payloads()) for one in (ann, bob, cyd)] == [2, 2, 0]


def test_asking_gives_public_labels_best_first_and_sends_nothing(shops: Shops) -> None:
    asker, ann, bob, cyd = (shops.client(name) for name in ("asker", "ann", "bob", "cyd"))
    shops.publisher = asker
    shops.subscribe(asker, "to/asker")
    shops.subscribe(ann, "shops/#", where="price < 50", label="wide")
    shops.subscribe(bob, "shops/#", where="price < 5", label="narrow")
    shops.subscribe(cyd, "shops/#", where="price = 3")

    reply = {"response_topic": "to/asker", "correlation_data": b"7"}
    for wish, labels, delivered in (
        ({}, ["narrow", "wide"], 0),
        ({"_top": "1"}, ["narrow"], 0),
        ({"_deliver": "true"}, ["narrow", "wide"], 1),
    ):
        payload = json.dumps(BREAD).encode()
        pairs = (("$reply", "matches"), *((f"${n[1:]}", v) for n, v in wish.items()))
        asker.publish("shops/1", payload, properties=Properties(user_properties=pairs, **reply))  # type: ignore[arg-type]
        (answer,) = asker.publications()
        rows = json.loads(answer.payload)["matches"]
        assert answer.properties.correlation_data == b"7"
        assert [(row["label"], row["rank"]) for row in rows] == [
            (label, rank) for rank, label in enumerate(labels, 1)
        ]
        assert rows[0]["accuracy"] < -4
        assert len(ann.payloads()) == len(cyd.payloads()) == delivered


def test_an_answer_says_why_nobody_with_conditions_was_looked_at(shops: Shops) -> None:
    asker = shops.client("asker")
    shops.subscribe(asker, "to/asker")
    asked = Properties(user_properties=(("$reply", "matches"),), response_topic="to/asker")
    problems = []
    for payload in (b"no JSON", json.dumps(BREAD).encode()):
        asker.publish("shops/1", payload, properties=asked)
        (answer,) = asker.publications()
        problems.append(json.loads(answer.payload).get("problem", ""))

    assert "payload" in problems[0]
    assert problems[1] == ""


def test_an_answer_goes_only_where_the_asker_may_publish(make_world: Any) -> None:
    shops = Shops(make_world, access=OnlyShops())
    for topic, reason in (("to/publisher", 0), ("to/others", 0x83), ("$SYS/x", 0x83)):
        answer = shops.publish(_reply="matches", properties={"response_topic": topic})
        assert answer is not None
        assert answer.reason == reason
    without = shops.publish(_reply="matches")
    assert without is not None
    assert "response topic" in (without.properties.reason_string or "")


def test_an_answer_goes_to_no_topic_of_the_brokers_own(shops: Shops) -> None:
    answer = shops.publish(_reply="matches", properties={"response_topic": "$SYS/x"})
    assert answer is not None
    assert answer.reason == 0x83


def test_a_lifetime_ends_in_milliseconds_for_clients_away_and_for_slow_ones(shops: Shops) -> None:
    ann = shops.client("ann", props={"session_expiry_interval": 60})
    bob = shops.client("bob")
    for client in (ann, bob):
        shops.subscribe(client, "shops/#", qos=1, where="price < 5")
    ann.lose()
    bob.link.is_paused = True

    for qos in (0, 1):
        shops.publish(qos=qos, _lifetime="250ms")
        shops.publish(qos=qos, _lifetime="900ms")
    shops.world.wait(300)
    shops.world.resume(bob)
    ann = shops.client("ann", clean_start=False, props={"session_expiry_interval": 60})

    assert len(ann.payloads()) == 1  # at QoS 0 nothing waits for those away
    assert len(bob.payloads()) == 2
    assert shops.world.node.counters.dropped_expired == 3


def test_the_lifetime_of_a_space_counts_for_plain_packets_too(make_world: Any) -> None:
    shops = Shops(make_world, lifetime_ms=250)
    slow = shops.client("slow")
    shops.subscribe(slow, "shops/#", where="price < 5")
    slow.link.is_paused = True
    shops.publish(qos=0)
    shops.world.wait(300)
    shops.publish(qos=0)
    shops.world.resume(slow)
    assert len(slow.payloads()) == 1
    assert shops.world.node.counters.dropped_expired == 1


def test_who_asks_is_told_the_distance_of_plain_packets_too(shops: Shops) -> None:
    curious, other = shops.client("curious"), shops.client("other")
    for client in (curious, other):
        shops.move(client, (8.5, 47.5))
    shops.subscribe(curious, "shops/#", near="5km", explain="true")
    shops.subscribe(other, "shops/#", near="5km")
    shops.publish(qos=0)
    told = [one.properties.user_properties for c in (curious, other) for one in c.publications()]
    assert told == [(("$rank", "1"), ("$distance", "0.0")), ()]


def test_who_asks_on_the_bare_filter_is_told_of_plain_packets_too(shops: Shops) -> None:
    curious = shops.client("curious")
    shops.subscribe(curious, "shops/#", explain="true")
    shops.publish(qos=0)
    (told,) = curious.publications()
    assert told.properties.user_properties == (("$rank", "1"),)


def test_what_is_past_its_lifetime_makes_room_for_the_next(make_world: Any) -> None:
    shops = Shops(make_world, node=BrokerSettings(session_queue_bytes=1_000))
    props = {"session_expiry_interval": 60}
    ann = shops.client("ann", props=props)
    shops.subscribe(ann, "shops/#", qos=1, where="price < 5")
    ann.lose()
    for _ in range(9):
        shops.publish(_lifetime="250ms")
    refused = shops.world.node.counters.dropped_quota
    shops.world.wait(300)
    answer = shops.publish()

    assert refused
    assert answer is not None
    assert answer.reason == 0
    assert shops.world.node.counters.dropped_expired == 9 - refused
    assert len(shops.client("ann", clean_start=False, props=props).payloads()) == 1


def test_a_run_of_packets_in_one_read_is_matched_as_each_would_be(shops: Shops) -> None:
    ann, bob = shops.client("ann"), shops.client("bob", V311)
    shops.subscribe(ann, "shops/#", where="price < 50")
    shops.subscribe(bob, "$where/kind=food/shops/#")
    for number in range(40):
        extra = shops.client(f"c{number}")
        shops.subscribe(extra, "shops/#", where=f"price = {number + 50}")
    prices = [1, 60, 2, 70, 3, 99, 4, 5, 51, 49, 50, 7, 8, 9, 10, 11]
    packets = [
        Publish(
            "shops/1", json.dumps({"price": price, "kind": "food", "lon": 1, "lat": 1}).encode()
        )
        for price in prices
    ]
    packets.insert(5, Publish("shops/1", b"no JSON"))

    shops.publisher.send_bytes(b"".join(encode_packet(one, V5) for one in packets))

    assert [json.loads(one)["price"] for one in ann.payloads()] == [p for p in prices if p < 50]
    assert [json.loads(one)["price"] for one in bob.payloads()] == prices
    assert shops.world.node.counters.publish_received == len(packets)


def test_selections_labels_and_positions_survive_a_crash(make_world: Any) -> None:
    shops = Shops(make_world, with_journal=True)
    props = {"session_expiry_interval": 600}
    ann = shops.client("ann", props=props)
    shops.move(ann, HERE)
    shops.subscribe(ann, "$share/g/$where/price<5/shops/#", qos=1, label="Ann & Co", weight="2.5")
    shops.subscribe(ann, "shops/#", qos=1, near="500m", explain="true")
    shops.publish(retain=True, topic="shops/kept")
    for _ in range(2):
        shops.world.crash_and_restart()
    shops.publisher = shops.client("publisher")

    shops.publish(qos=1)
    ann = shops.client("ann", clean_start=False, props=props)

    session = shops.world.node.state.sessions["ann"]
    first, second = session.subscriptions.values()
    assert session.position == HERE
    assert (first.label, first.weight, first.group) == ("Ann & Co", 2.5, "g")
    assert second.explain
    topics = sorted(one.topic for one in ann.publications())
    assert topics.count("shops/1") == 2  # through the group, and as a neighbour


def test_a_space_that_is_gone_takes_its_selections_along(make_world: Any) -> None:
    shops = Shops(make_world, with_journal=True)
    ann = shops.client("ann", props={"session_expiry_interval": 600})
    shops.subscribe(ann, "shops/#", near="500m")
    shops.world.options["spaces"] = []
    shops.world.crash_and_restart()

    assert shops.world.node.state.sessions["ann"].subscriptions == {}
    assert shops.world.node.counters.subscriptions_lost == 1


def test_a_node_without_spaces_loads_no_compiler() -> None:
    code = "import sys, nearcast.broker as n; n.Broker(); print('numba' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
