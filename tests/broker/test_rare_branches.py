"""Branches that are seldom taken and were once left out unnoticed: who gets what, and limits."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from tests.support.shop_space import PLACED_OFFER, OnlyShops

from nearcast.broker import BrokerSettings, Connection, SpaceSettings
from nearcast.broker.inspection import Draft
from nearcast.broker.observer import ClientObserver
from nearcast.broker.publish.message import Message, MessageHead
from nearcast.broker.publish.routes import Route
from nearcast.broker.session.session import Session
from nearcast.config import ListenerSection
from nearcast.matching import Matcher
from nearcast.model import Event, Space, parse_shape
from nearcast.model import Subscription as Wish
from nearcast.mqtt import Connect, FilterRequest, Properties, Publish, Subscribe, encode_packet

SHOPS = Space(
    name="shops",
    topic_filter="shops/#",
    attributes=PLACED_OFFER,
    longitude="lon",
    latitude="lat",
)
TRIANGLE = 'geojson({"type":"Polygon","coordinates":[[[8,47],[9,47],[9,48],[8,47]]]})'
LASTING = {"session_expiry_interval": 60}


@pytest.fixture
def shops(make_world: Any) -> Any:
    return make_world(spaces=[SpaceSettings(space=SHOPS)])


def event(price: float, lon: float, lat: float) -> bytes:
    return json.dumps({"price": price, "lon": lon, "lat": lat}).encode()


# --- who gets what -------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [3, 23, 24, 60])
def test_a_point_in_the_box_of_a_polygon_but_outside_of_it_does_not_match(count: int) -> None:
    matcher = Matcher([SHOPS])
    for key in range(count):
        shape = parse_shape(TRIANGLE)
        matcher.add(key, Wish(topic_filter="shops/#", area=shape))

    for lon, lat in ((8.1, 47.9), (8.9, 47.1), (8.5, 47.6)):
        point = (1.0, lon, lat)
        expected = matcher.match(Event("shops/1", SHOPS, point))
        assert matcher.match_point("shops", "shops/1", point) == expected
        assert len(expected) == (count if lat - 47 < lon - 8 else 0)


def test_an_absent_member_at_most_once_does_not_take_a_turn_of_its_share_group(shops: Any) -> None:
    for name, qos in (("sure", 1), ("lossy", 0)):
        member = shops.welcome(name, props=LASTING)
        member.subscribe("$share/g/$where/price<5/shops/#", qos)
        member.lose()
    sender = shops.welcome("sender")
    for _ in range(4):
        sender.publish("shops/1", event(1, 8.5, 47.5), 1)

    again = shops.client("sure", clean_start=False, props=LASTING)
    assert len(again.payloads()) == 4


def test_who_subscribes_near_a_place_again_gets_no_second_copy_with_the_next_step(
    shops: Any,
) -> None:
    shops.welcome("sender").publish("shops/1", event(1, 8.5, 47.5), 1, retain=True)
    ann = shops.welcome("ann")
    ann.publish("$position", b'{"lon": 8.5, "lat": 47.5}')
    request = FilterRequest("$near/500m/shops/#", 1, retain_handling=1)
    ann.send(Subscribe(1, (request,)))
    assert len(ann.payloads()) == 1
    ann.send(Subscribe(2, (request,)))
    assert ann.payloads() == []
    ann.publish("$position", b'{"lon": 8.501, "lat": 47.501}')

    assert ann.payloads() == []


def test_a_retained_message_that_was_deleted_is_not_sent_to_a_newcomer_who_waits(
    world: Any,
) -> None:
    sender = world.welcome("sender")
    sender.publish("t", b"old", 1, retain=True)
    ann = world.welcome("ann")
    ann.link.is_paused = True
    ann.subscribe("t", 1)
    sender.publish("t", b"", 1, retain=True)
    world.resume(ann)

    assert ann.payloads() == [b""]  # the deletion itself, live


def test_an_identifier_is_free_only_when_neither_in_flight_nor_released() -> None:
    session = Session("ann", 1)
    message = Message(MessageHead(b"\0\1t", 1, 2), b"x")
    session.in_flight = {1: message, 65_535: message}
    session.released = {2: None, 4: None}

    assert [session.next_packet_id() for _ in range(2)] == [3, 5]
    session.last_packet_id = 65_534
    assert session.next_packet_id() == 3


# --- limits --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["tcp", "ws"])
def test_a_plain_listener_takes_no_authority_for_certificates(kind: Any) -> None:
    with pytest.raises(ValueError, match="not encrypted"):
        ListenerSection(kind=kind, client_ca="ca.pem")  # type: ignore[arg-type]


@pytest.mark.parametrize("topic", ["t", "shops/1"])
def test_a_message_above_the_limit_of_a_queue_passes_an_empty_outbox(
    make_world: Any, topic: str
) -> None:
    world = make_world(
        BrokerSettings(session_queue_bytes=1_000), spaces=[SpaceSettings(space=SHOPS)]
    )
    ann = world.welcome("ann")
    ann.subscribe("t")
    ann.subscribe("$where/price<5/shops/#")
    ann.take()
    large = event(1, 8.5, 47.5) + b" " * 5_000
    sender = world.welcome("sender")
    sender.publish(topic, large)
    assert ann.payloads() == [large]
    sender.publish(topic, large)
    assert ann.payloads() == [large]

    packets = encode_packet(_publication(topic, large)) * 2
    world.node.receive(sender.link, packets[: len(packets) // 2], world.now_ms)
    world.node.receive(sender.link, packets[len(packets) // 2 :], world.now_ms)
    assert ann.link.outbox_bytes < 2 * len(large)  # the second one found it full
    assert world.node.counters.dropped_slow == 1


def _publication(topic: str, payload: bytes) -> Any:
    from nearcast.mqtt import Publish

    return Publish(topic, payload)


def test_what_was_queued_comes_in_portions_that_the_client_has_to_read_first(
    make_world: Any,
) -> None:
    world = make_world(BrokerSettings(outbox_window_bytes=2_000))
    ann = world.welcome("ann", props=LASTING)
    ann.subscribe("t", 1)
    ann.lose()
    sender = world.welcome("sender")
    for _ in range(20):
        sender.publish("t", b"x" * 500, 1)
    link = Connection()
    world.node.open(link, world.now_ms)
    connect = Connect("ann", clean_start=False, properties=Properties(session_expiry_interval=60))
    world.node.receive(link, encode_packet(connect), world.now_ms)

    assert 2_000 <= link.outbox_bytes < 2_000 + 600
    assert len(world.node.state.sessions["ann"].queue) == 16


def test_a_retained_message_that_another_node_has_no_room_for_is_told_to_its_publisher(
    make_world: Any,
) -> None:
    world = make_world(BrokerSettings(session_queue_bytes=10))
    peer = Session("$node/b", 1)
    peer.is_peer = True
    route = Route()
    route.plain = [(peer, 1)]
    message = Message(MessageHead(b"\0\1t", 4, 1), b"full")
    world.node._delivery._spread_flagged(route, [message])

    assert message.was_refused


def test_members_of_a_share_group_that_are_away_take_turns(make_world: Any) -> None:
    world = make_world(with_journal=True)
    away = []
    for name in ("a", "b", "c"):
        client = world.welcome(name, clean_start=False, props=LASTING)
        client.subscribe("$share/g/x", 1)
        client.lose()
        away.append(world.node.state.sessions[name])
    sender = world.welcome("s")
    for _ in range(6):
        sender.publish("x", b"", 1)
    assert [len(session.queue) for session in away] == [2, 2, 2]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_the_bytes_of_publications_are_counted_at_every_quality(world: Any, qos: int) -> None:
    receiver = world.welcome("r")
    receiver.subscribe("a", qos)
    receiver.take()
    world.welcome("s").publish("a", bytes(100), qos)
    (message,) = receiver.publications()
    counters = world.node.state.counters
    size = len(encode_packet(message, receiver.version))
    assert (counters.publish_sent, counters.publish_bytes_sent) == (1, size)


@pytest.mark.parametrize(("handling", "comes"), [(0, 1), (2, 0)])
def test_who_wants_no_retained_messages_gets_none_that_come_into_range(
    shops: Any, handling: int, comes: int
) -> None:
    shops.welcome("s").publish("shops/a", event(5, 8.5, 47.5), 1, retain=True)
    client = shops.welcome("c")
    client.publish("$position", b'{"lon": 0, "lat": 0}', 1)
    near = Properties(user_properties=(("$near", "500m"),))
    client.send(Subscribe(9, (FilterRequest("shops/#", 1, retain_handling=handling),), near))
    client.publish("$position", b'{"lon": 8.5, "lat": 47.5}', 1)
    assert len(client.payloads()) == comes


def test_a_complaint_that_does_not_fit_is_left_out_of_the_connack(shops: Any) -> None:
    pairs = (("lon", "8"), ("lat", "95"))
    told = shops.client("a", properties=Properties(user_properties=pairs)).packets[0]
    small = len(
        encode_packet(replace(told, properties=replace(told.properties, reason_string=None)))
    )
    props = Properties(user_properties=pairs, maximum_packet_size=small)
    client = shops.client("b", properties=props)
    (connack,) = client.take()
    assert (connack.reason, connack.properties.reason_string) == (0, None)
    assert not client.is_closed


def test_a_retained_message_that_came_into_range_and_was_deleted_is_not_sent(shops: Any) -> None:
    sender, client = shops.welcome("s"), shops.welcome("c")
    for topic in ("shops/a", "shops/b"):
        sender.publish(topic, event(5, 8.5, 47.5), 1, retain=True)
    client.publish("$position", b'{"lon": 0, "lat": 0}', 1)
    near = Properties(user_properties=(("$near", "500m"),))
    client.send(Subscribe(9, (FilterRequest("shops/#", 1),), near))
    client.take()
    client.link.is_paused = True
    client.publish("$position", b'{"lon": 8.5, "lat": 47.5}', 1)
    assert len(shops.node.state.sessions["c"].queue) == 2
    sender.publish("shops/a", b"", 1, retain=True)
    client.link.is_paused = False
    shops.node.drained(client.link, shops.now_ms)
    shops.settle()
    assert [one.topic for one in client.publications()] == ["shops/b"]


@pytest.mark.parametrize("takes", [True, False])
def test_a_position_comes_with_connect_where_that_is_set(make_world: Any, takes: bool) -> None:
    settings = BrokerSettings(position_on_connect=takes)
    world = make_world(settings, spaces=[SpaceSettings(space=SHOPS)])
    world.client("c", properties=Properties(user_properties=(("lon", "8.5"), ("lat", "47.5"))))
    assert world.node.state.sessions["c"].position == ((8.5, 47.5) if takes else None)


def test_properties_within_a_run_of_events_are_not_taken_for_payload(shops: Any) -> None:
    listener, sender = shops.welcome("l"), shops.welcome("s")
    listener.send(
        Subscribe(
            9,
            (FilterRequest("shops/#", 0),),
            Properties(user_properties=(("$where", "price < 50"),)),
        )
    )
    events = [event(price, 8.5, 47.5) for price in (1, 2, 3)]
    expires = Properties(message_expiry_interval=60)
    sender.send(*[Publish("shops/a", one, properties=expires if one is events[1] else Properties())
                  for one in events])  # fmt: skip
    assert listener.payloads() == events


def test_a_plain_topic_goes_to_every_kind_of_subscriber(shops: Any) -> None:
    shops.welcome("plain").subscribe("news")
    options = shops.welcome("options")
    options.send(Subscribe(1, (FilterRequest("news", 1, retain_as_published=True),)))
    shops.welcome("member").subscribe("$share/g/news")
    found = shops.node.inspection.match(Draft("news", b""), None, None, 9)
    names = sorted(one.subscription.session.client_id for one in found.first)
    assert names == ["member", "options", "plain"]


def test_what_a_page_publishes_is_reported_and_what_clients_publish_is_not(make_world: Any) -> None:
    told: list[tuple[str, str]] = []

    class Observer(ClientObserver):
        def page_published(self, session: Session, topic: str) -> None:
            told.append((session.client_id, topic))

    world = make_world(access=OnlyShops(), spaces=[SpaceSettings(space=SHOPS)])
    world.node.state.observer = Observer()
    for name in ("page", "client"):
        client = world.welcome(name)
        world.node.state.sessions[name].is_onlooker = name == "page"
        for topic in ("shops/1", "shops/1", "$position"):
            client.publish(topic, event(1, 8.5, 47.5), 1)
    assert told == [("page", "shops/1")]
