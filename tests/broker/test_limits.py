"""Limits: what is beyond them is refused with a reason, counted, and costs nothing."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from tests.support.limited_city import city

from nearcast.broker import BrokerSettings
from nearcast.broker.publish.message import Message, MessageHead
from nearcast.broker.retained.store import RetainedStore
from nearcast.model import parse_where
from nearcast.model.where.expression import Expression
from nearcast.mqtt import (
    Connack,
    FilterRequest,
    Properties,
    ProtocolVersion,
    PublishAnswer,
    Suback,
    Subscribe,
    Unsubscribe,
)
from nearcast.mqtt.wire import encode_string

V311 = ProtocolVersion.V311
QUOTA = 0x97


def codes(client: Any) -> tuple[int, ...]:
    return next(one.reasons for one in client.take() if isinstance(one, Suback))


# --- sessions and subscriptions -----------------------------------------------------------


def test_a_client_without_a_session_is_refused_when_there_are_too_many(make_world: Any) -> None:
    world = make_world(BrokerSettings(max_sessions=2))
    durable = {"clean_start": False, "props": {"session_expiry_interval": 60}}
    world.welcome("a", **durable).lose()
    world.welcome("b", **durable)
    refused = world.client("c", **durable).packets[0]
    assert isinstance(refused, Connack)
    assert refused.reason == QUOTA
    assert world.client("d", V311).packets[0].reason == 3
    assert world.node.counters.refused_sessions == 2
    world.welcome("a", **durable)
    world.wait(61_000)


def test_a_client_has_no_more_subscriptions_than_allowed(make_world: Any) -> None:
    world = make_world(BrokerSettings(max_client_subscriptions=3))
    client = world.welcome("c")
    client.send(Subscribe(1, tuple(FilterRequest(f"a/{one}") for one in range(5))))
    assert codes(client) == (0, 0, 0, QUOTA, QUOTA)
    client.subscribe("a/0", 1)
    assert codes(client) == (1,)
    client.unsubscribe("a/1")
    client.subscribe("a/9")
    assert codes(client) == (0,)
    assert world.node.counters.refused_subscriptions == 2
    older = world.welcome("old", V311)
    older.send(Subscribe(1, tuple(FilterRequest(f"b/{one}") for one in range(4))))
    assert codes(older) == (0, 0, 0, 0x80)


def test_all_clients_together_have_no_more_subscriptions_than_allowed(make_world: Any) -> None:
    world = make_world(BrokerSettings(max_subscriptions=3))
    first, second = world.welcome("a"), world.welcome("b")
    first.send(Subscribe(1, (FilterRequest("a"), FilterRequest("$share/g/a"))))
    assert codes(first) == (0, 0)
    second.send(Subscribe(1, (FilterRequest("a"), FilterRequest("b"))))
    assert codes(second) == (0, QUOTA)
    first.lose()
    second.subscribe("b")
    assert codes(second) == (0,)


def test_subscriptions_that_came_back_from_the_journal_count(make_world: Any) -> None:
    world = make_world(BrokerSettings(max_subscriptions=2), with_journal=True)
    durable = {"clean_start": False, "props": {"session_expiry_interval": 60}}
    client = world.welcome("c", **durable)
    client.subscribe("a")
    client.subscribe("b")
    world.crash_and_restart()
    assert world.node.state.subscriptions == 2
    client = world.welcome("c", **durable)
    client.subscribe("d")
    assert codes(client) == (QUOTA,)


def test_filters_behind_as_many_as_a_packet_may_have_are_refused(make_world: Any) -> None:
    world = make_world(BrokerSettings(max_filters=2))
    client = world.welcome("c")
    client.send(Subscribe(1, tuple(FilterRequest(f"a/{one}") for one in range(3))))
    assert codes(client) == (0, 0, QUOTA)
    assert world.node.state.subscriptions == 2


def test_a_client_has_no_more_near_subscriptions_than_allowed(make_world: Any) -> None:
    world = make_world(BrokerSettings(max_client_near=2), spaces=[city()])
    client = world.welcome("c")
    filters = tuple(FilterRequest(f"$near/{one}m/city/#") for one in (10, 20, 30))
    client.send(Subscribe(1, (*filters, FilterRequest("$where/price<3/city/#"))))
    assert codes(client) == (0, 0, QUOTA, 0)


def test_a_selection_that_is_too_long_is_refused_unread(make_world: Any) -> None:
    world = make_world(BrokerSettings(max_where_bytes=100), spaces=[city()])
    client = world.welcome("c")
    wish = Properties(user_properties=(("$where", "price < 3 or " * 20),))
    client.send(Subscribe(1, (FilterRequest("city/a"), FilterRequest("elsewhere")), wish))
    assert codes(client) == (QUOTA, 0)


@pytest.mark.parametrize(("more", "code"), [(0, 0), (1, QUOTA)])
@pytest.mark.parametrize("written", ["properties", "prefixes"])
def test_a_selection_may_be_as_long_as_allowed(
    make_world: Any, written: str, more: int, code: int
) -> None:
    where = "price<3" + " " * more
    world = make_world(BrokerSettings(max_where_bytes=len("price<3")), spaces=[city()])
    client = world.welcome("c")
    if written == "prefixes":
        client.subscribe(f"$where/{where}/city/#")
    else:
        wish = Properties(user_properties=(("$where", where),))
        client.send(Subscribe(1, (FilterRequest("city/#"),), wish))
    assert codes(client) == (code,)


def test_subscriptions_that_are_replaced_or_of_other_nodes_are_not_counted_twice(
    make_world: Any,
) -> None:
    world = make_world()
    client = world.welcome("c")
    for qos in (0, 1):
        client.subscribe("a", qos)
    world.node.peering.wants("other", [("a", 0)], [])
    assert world.node.state.subscriptions == 1
    world.node.peering.wants("other", [], ["a"])
    client.unsubscribe("a")
    assert world.node.state.subscriptions == 0


@pytest.mark.parametrize("written", ["properties", "prefixes"])
def test_a_selection_is_read_once_for_a_packet(
    make_world: Any, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    from nearcast.model import requests

    calls: list[str] = []

    def parse(text: str) -> Expression:
        calls.append(text)
        return parse_where(text)

    monkeypatch.setattr(requests, "parse_where", parse)
    world = make_world(spaces=[city()])
    client = world.welcome("c")
    wish, prefix = Properties(user_properties=(("$where", "price<3"),)), ""
    if written == "prefixes":
        wish, prefix = Properties(), "$where/price<3/"
    names = [f"{prefix}city/{one}" for one in range(20)]
    client.send(Subscribe(1, tuple(FilterRequest(one) for one in names), wish))
    assert codes(client) == (0,) * 20
    assert len(calls) == 1
    client.publish("city/7", json.dumps({"lon": 1, "lat": 1, "price": 2}).encode())
    client.publish("city/8", json.dumps({"lon": 1, "lat": 1, "price": 4}).encode())
    assert [one.topic for one in client.publications()] == ["city/7"]
    client.send(Unsubscribe(2, tuple(names), wish))
    assert len(calls) == 2
    assert world.node.state.subscriptions == 0


# --- retained messages --------------------------------------------------------------------


def retain(client: Any, topic: str, payload: bytes = b"x") -> int:
    client.publish(topic, payload, 1, retain=True)
    answer = next(one for one in client.take() if isinstance(one, PublishAnswer))
    return answer.reason


def test_above_the_limit_of_topics_a_message_is_delivered_but_not_retained(make_world: Any) -> None:
    world = make_world(BrokerSettings(max_retained=2))
    client, listener = world.welcome("c"), world.welcome("listener")
    listener.subscribe("#")
    listener.take()
    assert [retain(client, topic) for topic in ("a", "b", "c")] == [0, 0, QUOTA]
    assert retain(client, "a", b"another") == 0
    assert listener.payloads() == [b"x", b"x", b"x", b"another"]
    assert world.node.counters.refused_retained == 1
    assert retain(client, "a", b"") == 0
    assert retain(client, "c") == 0
    assert {one.topic_text() for one in world.node.state.retained.all()} == {"b", "c"}
    listener.lose()
    assert retain(client, "d") == QUOTA
    world.node.publish("$SYS/broker/x", b"1", now_ms=world.now_ms, retain=True)
    assert world.node.state.retained.get("$SYS/broker/x") is not None


def test_bytes_of_retained_messages_are_limited_with_the_tree_of_their_topics(
    make_world: Any,
) -> None:
    world = make_world(BrokerSettings(max_retained_bytes=10_000, max_topic_levels=200))
    client = world.welcome("c")
    assert retain(client, "a", b"x" * 5_000) != QUOTA
    assert retain(client, "b", b"x" * 5_000) == QUOTA
    assert retain(client, "/".join("d" * 100), b"x") == QUOTA
    assert retain(client, "a", b"x" * 20_000) == QUOTA
    kept = world.node.state.retained.get("a")
    assert kept is not None
    assert len(kept.payload) == 5_000
    assert retain(client, "a", b"") != QUOTA
    assert world.node.state.retained.weight == 0


@pytest.mark.parametrize(("less", "is_kept"), [(0, True), (1, False)])
def test_a_retained_message_may_fill_the_store_to_the_last_byte(
    make_world: Any, less: int, is_kept: bool
) -> None:
    scratch = RetainedStore()
    scratch.put("a/b", Message(MessageHead(encode_string("a/b"), 100, 1), b"x" * 100))
    world = make_world(BrokerSettings(max_retained_bytes=scratch.weight - less))
    assert (retain(world.welcome("c"), "a/b", b"x" * 100) != QUOTA) is is_kept
    assert world.node.state.retained.count == is_kept


def test_in_a_full_store_a_message_is_replaced_and_nothing_is_forgotten_for_free(
    make_world: Any,
) -> None:
    world = make_world(BrokerSettings(max_retained_bytes=10_000))
    client = world.welcome("c")
    assert retain(client, "a", b"x" * 5_000) != QUOTA
    assert retain(client, "a", b"y" * 6_000) != QUOTA
    assert retain(client, "a", b"x" * 9_000) != QUOTA
    assert retain(client, "unknown", b"") != QUOTA
    assert world.node.counters.refused_retained == 0


def test_the_store_counts_what_it_holds() -> None:
    rng, store = Random(5), RetainedStore()
    for _ in range(2_000):
        topic = "/".join(rng.choices("ab", k=rng.randint(1, 4)))
        payload = b"x" * rng.choice((0, 0, 1, 20))
        store.put(topic, Message(MessageHead(encode_string(topic), len(payload), 0), payload))
        found = list(store.all())
        assert (store.count, store.bytes) == (len(found), sum(one.size for one in found))
        levels = [one.topic_text().split("/") for one in found]
        places = {tuple(one[:depth]) for one in levels for depth in range(1, len(one) + 1)}
        assert store.places == len(places)


def test_a_filter_that_stands_200_times_in_a_packet_brings_retained_messages_once(
    make_world: Any,
) -> None:
    world = make_world()
    publisher, client = world.welcome("p"), world.welcome("c")
    for one in range(10):
        publisher.publish(f"r/{one}", b"x", 1, retain=True)
    client.send(Subscribe(1, (FilterRequest("#", 1),) * 200))
    assert len(client.publications()) == 10
    client.send(Subscribe(2, (FilterRequest("r/#", 1, retain_handling=1),) * 3))
    assert len(client.publications()) == 10


def test_retained_messages_for_a_client_that_does_not_read_cost_nothing(make_world: Any) -> None:
    world = make_world()
    publisher, client = world.welcome("p"), world.welcome("c", answers=False)
    count = 1_000
    for one in range(count):
        publisher.publish(f"r/{one}", b"x" * 100, retain=True)
    client.link.is_paused = True
    client.send(Subscribe(1, tuple(FilterRequest(one, 1) for one in ("#", "+/#", "r/#", "r/+"))))
    session = world.node.state.sessions["c"]
    assert session.held_bytes == 0
    assert not session.queue
    assert len(session.copies) == 4
    publisher.publish("r/3", b"newer", retain=True)
    publisher.publish("r/4", b"", retain=True)
    client.answers = True
    world.resume(client)
    found = client.publications()
    topics = [one.topic for one in found if one.retain]
    assert sorted(set(topics)) == sorted(f"r/{one}" for one in range(count) if one not in (3, 4))
    assert len(topics) == 4 * (count - 2)
    assert not session.copies


def test_retained_messages_that_are_owed_end_with_the_subscription(make_world: Any) -> None:
    world = make_world()
    publisher, client = world.welcome("p"), world.welcome("c")
    publisher.publish("r/1", b"x", retain=True)
    client.link.is_paused = True
    client.subscribe("r/+", 1)
    client.unsubscribe("r/+")
    world.resume(client)
    assert client.publications() == []


def test_messages_come_near_on_the_way_stay_within_the_quota(make_world: Any) -> None:
    world = make_world(BrokerSettings(session_queue_bytes=2_000), spaces=[city()])
    publisher, client = world.welcome("p"), world.welcome("c")
    client.subscribe("$near/500m/city/#", 1)
    client.link.is_paused = True
    for one in range(50):
        event = json.dumps({"lon": one / 10, "lat": 1, "price": 2}).encode()
        publisher.publish(f"city/{one}", event, retain=True)
    for one in range(50):
        client.publish("$position", json.dumps({"lon": one / 10, "lat": 1}).encode())
    assert world.node.state.sessions["c"].held_bytes <= 2_000
    assert world.node.counters.dropped_quota > 0
