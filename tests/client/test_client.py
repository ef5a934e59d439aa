"""What the client helpers say is what the vocabulary means."""

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.client import (
    POSITION_TOPIC,
    Delivered,
    Offer,
    RankedMatch,
    Selection,
    delivered,
    position,
    position_properties,
    ranked_matches,
)
from nearcast.model import (
    RANKS,
    Circle,
    MisuseError,
    NearcastError,
    OutOfRangeError,
    PeerProtocolError,
    Subscription,
    UnknownNameError,
    decode_level,
    parse_duration,
    parse_length,
    parse_shape,
    parse_where,
    read_publication,
    read_subscription,
)

WHERES = st.sampled_from(
    [None, "price < 10", "price<10 and kind in (food, 'a/b')", "20 <= age <= 25 or kind = 'x y'"]
)
AREAS = st.sampled_from(
    [
        None,
        "bbox(2.2, 48.8, 2.5, 48.9)",
        "circle(2.35, 48.85, 0.5km)",
        Circle(2.35, 48.85, 500.0),
        'geojson({"type":"Polygon","coordinates":[[[0,0],[4,0],[4,4],[0,0]]]})',
    ]
)
NEARS = st.sampled_from([None, "500m", "0.5 km", "1mi"])
SELECTIONS = st.builds(
    Selection,
    where=WHERES,
    area=AREAS,
    near=NEARS,
    retained=st.sampled_from([None, "now"]),
)


def in_paho(properties: Any) -> dict[str, Any]:
    """Return what paho will send."""
    return {name: getattr(properties, name) for name in properties.json()}


def read_prefixes(text: str, names: dict[str, object]) -> tuple[dict[str, str], str]:
    """Oracle: take `$name/value/` off the front, letter by letter (docs/selective.md)."""
    found: dict[str, str] = {}
    while text.split("/", maxsplit=1)[0] in names:
        name, value, text = text.split("/", 2)
        found[name] = decode_level(value)
    return found, text


@given(SELECTIONS)
def test_the_prefixes_say_what_the_properties_say(wish: Selection):
    said = dict(wish.pairs)
    prefixes, rest = read_prefixes(
        wish.filter("shops/+/#"), dict.fromkeys(["$where", "$area", "$near", "$retained"])
    )
    assert rest == "shops/+/#"
    assert prefixes.keys() == said.keys()
    readers: dict[str, Callable[[str], object]] = {
        "$where": parse_where,
        "$area": parse_shape,
        "$near": parse_length,
        "$retained": str,
    }
    for name, text in said.items():
        assert readers[name](text) == readers[name](prefixes[name])


@given(SELECTIONS)
def test_the_prefixed_filter_is_the_identity_and_a_filter_that_paho_takes(wish: Selection):
    subscription = Subscription(
        topic_filter="a/#",
        where=None if wish.where is None else parse_where(wish.where),
        area=parse_shape(wish.area) if isinstance(wish.area, str) else wish.area,
        near_m=None if wish.near is None else parse_length(wish.near),
        retained=wish.retained,
    )
    text = wish.filter("a/#")
    assert text == subscription.identity
    assert read_subscription("a/#", wish.pairs).subscription == subscription
    levels = text.split("/")
    assert "#" not in "".join(levels[:-1])
    assert all("+" not in level for level in levels)
    assert not any(letter.isspace() for letter in text)


def test_a_group_stands_before_the_selection():
    assert Selection(near="2km").filter("a/#", group="g") == "$share/g/$near/2000m/a/#"


def test_label_and_explain_are_properties_and_no_part_of_the_identity():
    wish = Selection(where="age = 3", explain=True, label="Bakery on 5th", weight=2)
    assert wish.pairs == (
        ("$where", "age = 3"),
        ("$explain", "true"),
        ("$label", "Bakery on 5th"),
        ("$weight", "2"),
    )
    assert in_paho(wish.for_unsubscribe()) == {"UserProperty": [("$where", "age = 3")]}
    for each in (Selection(explain=True), Selection(label="x"), Selection(weight=0.5)):
        with pytest.raises(MisuseError, match=r"MQTT 5"):
            each.filter("a")


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"where": "price <"}, "position 7"),
        ({"area": "circle(1,2)"}, "circle: found 2 values"),
        ({"area": "bbox(0,5,1,2)"}, "south 5 above north 2"),
        ({"near": "500"}, r"\$near: found no unit"),
        ({"near": "0m"}, r"\$near: found '0m'"),
        ({"near": "30000km"}, "radius"),
        ({"weight": float("nan")}, r"\$weight"),
        ({"retained": "later"}, r"\$retained: found 'later'; expected now"),
    ],
)
def test_a_selection_that_is_none_is_told_before_anything_is_sent(wrong, told):
    with pytest.raises(MisuseError, match=told):
        Selection(**wrong)


OFFERS = st.builds(
    Offer,
    top=st.sampled_from([None, 1, 250]),
    rank=st.sampled_from([None, *RANKS]),
    lifetime=st.sampled_from([None, "250ms", "2 min"]),
    area=AREAS,
    order=st.sampled_from([None, "causal"]),
)


def test_the_broker_reads_an_offer_as_it_was_meant():
    offer = Offer(
        top=3, rank="centre", lifetime="1.5s", area="bbox(1,2,3,4)", order="causal", deliver=True
    )
    asked = read_publication(offer.pairs)
    assert (asked.top, asked.rank, asked.lifetime_ms, asked.order) == (3, "centre", 1500, "causal")
    assert (asked.area, asked.deliver, asked.reply) == (parse_shape("1,2,3,4"), True, None)


@given(OFFERS)
def test_the_prefixes_of_a_topic_say_what_the_properties_say(offer: Offer):
    said = dict(offer.pairs)
    names = dict.fromkeys(["$top", "$rank", "$lifetime", "$order", "$area"])
    prefixes, rest = read_prefixes(offer.topic("orders/new"), names)
    assert rest == "orders/new"
    assert prefixes.keys() == said.keys()
    readers: dict[str, Callable[[str], object]] = {
        "$area": parse_shape,
        "$lifetime": parse_duration,
    }
    for name, text in said.items():
        read = readers.get(name, str)
        assert read(text) == read(prefixes[name])


def test_values_and_reply_are_properties_only():
    offer = Offer(top=2, values={"age": 24, "kind": "it"}, reply="matches", deliver=False)
    assert offer.pairs == (
        ("age", "24"),
        ("kind", "it"),
        ("$top", "2"),
        ("$reply", "matches"),
        ("$deliver", "false"),
    )
    properties = offer.properties(response_topic="me/answers", correlation=b"7")
    assert in_paho(properties) == {
        "UserProperty": list(offer.pairs),
        "ResponseTopic": "me/answers",
        "CorrelationData": b"7",
    }
    for each in (Offer(values={"age": 1}), Offer(reply="matches"), Offer(deliver=True)):
        with pytest.raises(MisuseError, match=r"MQTT 5"):
            each.topic("a")


def test_a_reply_needs_a_response_topic():
    ask = Offer(reply="matches")
    for base in (None, Offer(top=1).properties()):
        with pytest.raises(MisuseError, match=r"\$reply: .*response_topic"):
            ask.properties(base)
    base = Offer(top=1).properties(response_topic="me/answers")
    assert in_paho(ask.properties(base)) == {
        "UserProperty": [("$top", "1"), ("$reply", "matches")],
        "ResponseTopic": "me/answers",
    }


@pytest.mark.parametrize(
    ("wrong", "kind", "told"),
    [
        ({"top": 0}, OutOfRangeError, r"\$top: found 0"),
        ({"top": -1}, OutOfRangeError, r"\$top: found -1"),
        ({"top": True}, OutOfRangeError, r"\$top: found True"),
        ({"top": 1.5}, OutOfRangeError, r"\$top: found 1.5"),
        ({"rank": "foo"}, UnknownNameError, r"\$rank: found 'foo'"),
        ({"rank": "nearst"}, UnknownNameError, "Did you mean nearest"),
        ({"order": "fifo"}, UnknownNameError, r"\$order"),
        ({"reply": "all"}, UnknownNameError, r"\$reply"),
        ({"lifetime": "5"}, NearcastError, r"\$lifetime: found no unit"),
        ({"lifetime": "0s"}, OutOfRangeError, r"\$lifetime: found '0s'"),
        ({"area": "nowhere"}, MisuseError, "bbox"),
    ],
)
def test_an_offer_that_is_none_is_told_before_anything_is_sent(wrong, kind, told):
    with pytest.raises(kind, match=told):
        Offer(**wrong)


def test_properties_that_are_there_stay():
    base = Selection(near="1km").properties()
    more = Selection(label="x").properties(base)
    assert in_paho(more)["UserProperty"] == [("$near", "1km"), ("$label", "x")]


@given(st.floats(-180, 180), st.floats(-90, 90))
def test_a_position_arrives_to_a_tenth_of_a_metre(lon: float, lat: float):
    said = json.loads(position(lon, lat))
    assert abs(said["lon"] - lon) <= 5.1e-7
    assert abs(said["lat"] - lat) <= 5.1e-7
    pairs = dict(in_paho(position_properties(lon, lat))["UserProperty"])
    assert {name: float(text) for name, text in pairs.items()} == said


@pytest.mark.parametrize("place", [(181, 0), (0, 90.5), (float("nan"), 0), (0, float("inf"))])
def test_a_place_that_is_not_on_earth_is_told(place):
    with pytest.raises(OutOfRangeError, match="position"):
        position(*place)


def test_swapped_coordinates_are_guessed():
    with pytest.raises(OutOfRangeError, match="swapped"):
        position(37.8, -122.4)


@pytest.mark.parametrize("place", [(200.0, 10.0), (2.0, 200.0), (100.0, 100.0)])
def test_coordinates_that_fit_in_neither_order_are_not_said_to_be_swapped(
    place: tuple[float, float],
):
    with pytest.raises(OutOfRangeError) as told:
        position(*place)
    assert "swapped" not in str(told.value)


def test_the_position_topic_is_the_one_of_the_design():
    assert POSITION_TOPIC == "$position"


def test_what_the_broker_adds_is_read():
    assert delivered([("$rank", "1"), ("$distance", "12.5")]) == Delivered(1, 12.5)
    assert delivered(Offer(values={"$rank": 3}).properties()) == Delivered(3, None)
    assert delivered(Selection().properties()) == Delivered()
    assert delivered([("$rank", "nearest"), ("$distance", "far")]) == Delivered()


def test_an_answer_with_matches_is_read():
    rows = [
        {"rank": 1, "label": "Baker", "accuracy": -8.5, "distance_m": None},
        {"rank": 2, "label": "Cook", "accuracy": -3.0, "distance_m": 40.0},
    ]
    payload = json.dumps({"matches": rows}).encode()
    assert ranked_matches(payload) == [
        RankedMatch(1, "Baker", -8.5, None),
        RankedMatch(2, "Cook", -3.0, 40.0),
    ]


@pytest.mark.parametrize("payload", [b"", b"[]", b"{}", b'{"matches": 3}', b'{"matches": [1]}'])
def test_an_answer_that_is_none_is_told(payload: bytes):
    with pytest.raises(PeerProtocolError, match="ranked reply"):
        ranked_matches(payload)


def test_importing_it_imports_no_mqtt_library():
    code = "import sys, nearcast.client; print([m for m in sys.modules if 'mqtt' in m])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
