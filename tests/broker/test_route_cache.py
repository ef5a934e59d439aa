"""Compiled routes: a change forgets those of the topics that it fits, and no others."""

from __future__ import annotations

from random import Random
from typing import Any

from nearcast.broker.publish import route_cache
from nearcast.broker.publish.route_cache import RouteCache
from nearcast.broker.publish.routes import Route
from nearcast.index.topic_filters import topic_matches


def key_of(topic: str) -> bytes:
    raw = topic.encode()
    return len(raw).to_bytes(2, "big") + raw


def test_a_filter_forgets_exactly_the_topics_that_fit() -> None:
    random = Random(7)
    levels = ["a", "b", "c", "", "$x"]

    def some(names: list[str]) -> str:
        return "/".join(random.choice(names) for _ in range(random.randint(1, 4)))

    for _ in range(2_000):
        cache = RouteCache(1_000)
        topics = {some(levels) for _ in range(12)}
        routes = {topic: Route() for topic in topics}
        for topic, route in routes.items():
            cache.put(key_of(topic), topic, route)
        for topic_filter in (some([*levels, "+"]), f"{some([*levels, '+'])}/#", "#", "+"):
            fitting = {one for one in topics if topic_matches(topic_filter, one)}
            forgotten = cache.forget(topic_filter)
            assert forgotten is not None
            assert {id(one) for one in forgotten} == {id(routes[one]) for one in fitting}
            topics -= fitting
            assert set(cache.routes) == {key_of(one) for one in topics}


def test_a_filter_that_reaches_too_much_forgets_everything(monkeypatch: Any) -> None:
    monkeypatch.setattr(route_cache, "_MOST_VISITS", 10)
    cache = RouteCache(1_000)
    for one in range(20):
        cache.put(key_of(f"a/{one}/x"), f"a/{one}/x", Route())
    assert cache.forget("a/+/y") is None
    assert not cache.routes


def test_a_full_cache_begins_again_and_leaves_nothing_in_its_tree() -> None:
    cache = RouteCache(10)
    for one in range(1_000):
        topic = f"t/{one}"
        cache.put(key_of(topic), topic, Route())
        if one % 3:
            cache.forget(topic)
    assert len(cache.routes) <= 10
    assert cache._entries <= 20


def test_a_wildcard_subscription_elsewhere_leaves_routes_alone(make_world: Any) -> None:
    world = make_world()
    listener, publisher = world.welcome("listener"), world.welcome("p")
    listener.subscribe("here/#")
    for one in range(50):
        publisher.publish(f"here/{one}")
    routes = world.node.state.router.routes
    before = dict(routes)
    other = world.welcome("other")
    other.subscribe("elsewhere/+")
    other.unsubscribe("elsewhere/+")
    other.subscribe("+/elsewhere")
    other.lose()
    assert {name: id(one) for name, one in routes.items()} == {
        name: id(one) for name, one in before.items()
    }


def test_a_wildcard_subscription_that_fits_takes_effect_at_once(make_world: Any) -> None:
    world = make_world()
    publisher, late = world.welcome("p"), world.welcome("late")
    publisher.publish("here/1", b"before")
    late.subscribe("+/1")
    late.take()
    publisher.publish("here/1", b"during")
    assert late.payloads() == [b"during"]
    late.unsubscribe("+/1")
    late.take()
    publisher.publish("here/1", b"after")
    assert late.payloads() == []


def test_a_reconnect_in_the_same_manner_leaves_routes_alone(make_world: Any) -> None:
    world = make_world()
    durable = {"clean_start": False, "props": {"session_expiry_interval": 60}}
    listener, publisher = world.welcome("listener", **durable), world.welcome("p")
    listener.subscribe("here/#", 1)
    publisher.publish("here/1")
    routes = world.node.state.router.routes
    before = routes[key_of("here/1")]
    listener.lose()
    world.welcome("listener", **durable)
    assert routes[key_of("here/1")] is before
    limited = world.welcome(
        "listener",
        clean_start=False,
        props={"session_expiry_interval": 60, "maximum_packet_size": 40},
    )
    publisher.publish("here/1", b"x" * 100)
    publisher.publish("here/1", b"short")
    assert limited.payloads() == [b"short"]
    limited.lose()
    back = world.welcome("listener", **durable)
    publisher.publish("here/1", b"x" * 100)
    assert back.payloads() == [b"x" * 100]
