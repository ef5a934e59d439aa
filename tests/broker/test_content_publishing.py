"""Publishing to a space: values, ranks, areas, lifetimes, answers to the publisher."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from tests.support.shop_space import BREAD, HERE, V5, V311, OnlyShops, Shops

from nearcast.broker import BrokerSettings
from nearcast.mqtt import (
    Properties,
    Publish,
    encode_packet,
)


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


def test_only_the_best_get_a_ranked_message_and_those_who_asked_are_told(make_world: Any) -> None:
    shops = Shops(make_world, positions="publishers")
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
