"""The fast path of content subscriptions delivers and logs what the plain path does.

The oracle is the same broker whose fast path suits no topic: with an event log, and in a cluster.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.simulated_city import SimulatedCity

from nearcast.broker import Broker, BrokerSettings, SpaceSettings
from nearcast.broker.content.fast_path import ContentFastPath
from nearcast.broker.publish.routes import Route
from nearcast.eventlog.records import (
    DELIVERIES,
    DROPS,
    EVENTS,
    HEADER,
    Record,
    Recorder,
    sampled,
)
from nearcast.model import Attribute, Space
from nearcast.mqtt import ProtocolVersion, Publish, encode_packet

V311, V5 = ProtocolVersion.V311, ProtocolVersion.V5
PRICE = Attribute.number("price", 0, 9)
CITY = Space(
    name="city",
    topic_filter="city/#",
    attributes=(Attribute.number("lon", -2, 2), Attribute.number("lat", -2, 2), PRICE),
    longitude="lon",
    latitude="lat",
    missing="none",
)
SHOP = Space(name="shop", topic_filter="shop/#", attributes=(PRICE,), required=("price",))
SPACES = (SpaceSettings(space=CITY), SpaceSettings(space=SHOP))

TOPICS = ("city/a", "city/b", "shop/a")
NUMBERS = st.sampled_from([0, 1, 1.5, -2.0, 5, 9])
PAYLOADS = st.one_of(
    st.fixed_dictionaries({}, optional=dict.fromkeys(("lon", "lat", "price"), NUMBERS)).map(
        json.dumps
    ),
    st.just(json.dumps({"lon": 1, "lat": 1.0, "price": 5})),
    st.sampled_from(["", "no JSON", '{"price": 99}', '{"price": "5"}']),
)
FILTERS = (
    "city/#",
    "#",
    "$where/price>4/city/#",
    "$where/price<=5/#",
    "$where/price>4/shop/+",
    "$near/200km/city/#",
    "$area/circle(1,1,150km)/city/+",
    "$share/g/city/#",
    "$share/g/$where/price>4/city/#",
    "$share/g/$where/price<9/shop/#",
)
OPTIONS = st.sampled_from(
    [{}, {}, {}, {"identifier": 3}, {"no_local": True}, {"retain_as_published": True}]
)
CLIENTS = st.integers(0, 3)
SUBSCRIBE = st.tuples(st.just("subscribe"), CLIENTS, st.sampled_from(FILTERS), OPTIONS)
STEPS = st.one_of(
    st.tuples(
        st.just("publish"),
        CLIENTS,
        st.lists(st.tuples(st.sampled_from(TOPICS), PAYLOADS), min_size=1, max_size=6),
        st.integers(1, 5),  # how often all of it: many events are matched in one call
    ),
    SUBSCRIBE,
    st.tuples(st.just("unsubscribe"), CLIENTS, st.sampled_from(FILTERS), st.none()),
    st.tuples(st.just("move"), CLIENTS, NUMBERS, NUMBERS),
    st.tuples(st.just("pause"), CLIENTS, st.booleans(), st.none()),
)


def without_fast_path(node: Broker) -> None:
    for handler in (node._intake, node._peer_intake):
        handler._fast_path.suits = _suits_nothing  # type: ignore[method-assign]


def _suits_nothing(route: Route) -> bool:
    del route
    return False


def numbered(payload: str, number: int) -> bytes:
    """Return a payload that differs from others; an object stays one, with a field more."""
    if payload[:1] != "{":
        return payload.encode()
    return f'{{"n":{number}{"" if payload == "{}" else ","}{payload[1:]}'.encode()


def log_of(recorder: Recorder) -> tuple[list[Any], Counter[Any]]:
    """Return the events in order, and the deliveries and drops, each under its event."""
    raw, at = b"".join(recorder.take()), 0
    events: list[Any] = []
    rows: Counter[Any] = Counter()
    while at < len(raw):
        kind, size = HEADER.unpack_from(raw, at)
        body, at = raw[at + HEADER.size : at + HEADER.size + size], at + HEADER.size + size
        if kind == Record.EVENTS:
            first, count, ms, flags, head, whole, names, topics, life = EVENTS.unpack_from(body)
            name = body[EVENTS.size : EVENTS.size + names]
            packets = body[EVENTS.size + names + topics :]
            topic = body[EVENTS.size + names :][:topics]
            events += [
                (first + n, ms, flags, name, topic, packets[n * whole :][head:whole], life)
                for n in range(count)
            ]
        elif kind == Record.DELIVERIES:
            first, count, qos = DELIVERIES.unpack_from(body)
            for name in body[DELIVERIES.size :].split(b"\0"):
                rows.update((first + n, name, "qos", qos) for n in range(count))
        elif kind == Record.DROPS:
            first, count, _, reason = DROPS.unpack_from(body)
            for name in body[DROPS.size :].split(b"\0"):
                rows.update((first + n, name, "drop", reason) for n in range(count))
        else:
            events.append((Record(kind), body))
    return events, rows


class Twin:
    """One broker with four clients."""

    def __init__(self, make_world: Any, *, is_fast: bool, log: Recorder | None) -> None:
        limits = BrokerSettings(session_queue_bytes=600)
        self.world = make_world(limits, spaces=SPACES)
        self.world.node.state.log = log
        if not is_fast:
            without_fast_path(self.world.node)
        self.clients = [self.world.welcome(f"c{n}", V5 if n % 2 else V311) for n in range(4)]
        self.count = 0

    def do(self, kind: str, who: int, what: Any, more: Any) -> None:
        client = self.clients[who]
        if kind == "publish":
            packets = [
                Publish(topic, numbered(payload, self.count + n))
                for n, (topic, payload) in enumerate(what * more)
            ]
            self.count += len(packets)
            client.send(*packets)
        elif kind == "subscribe":
            client.subscribe(what, **(more if client.version is V5 else {}))
        elif kind == "unsubscribe":
            client.unsubscribe(what)
        elif kind == "move":
            client.publish("$position", json.dumps({"lon": what, "lat": more}).encode())
        elif kind == "pause":
            client.link.is_paused = what
            if not what:
                self.world.resume(client)

    def outcome(self) -> Any:
        for client in self.clients:
            self.do("pause", self.clients.index(client), False, None)
        log = self.world.node.state.log
        return (
            [client.all_bytes for client in self.clients],
            asdict(self.world.node.counters),
            None if log is None else log_of(log),
        )


HERE = [(topic, '{"lon":1,"lat":1,"price":5}') for topic in TOPICS]
EVERYTHING = [("publish", 1, HERE, 5), ("publish", 0, HERE, 1)]
MEMBER_AND_READER: list[Any] = [
    ("subscribe", 3, "$share/g/city/#", {"identifier": 3}),
    ("subscribe", 3, "$where/price>4/city/#", {}),
]
IDENTIFIED: list[Any] = [("subscribe", 3, "$where/price>4/city/#", {"identifier": 3})]
PLAIN_AND_MATCHING: list[Any] = [
    ("subscribe", 0, "city/#", {}),
    ("subscribe", 0, "$where/price>4/city/#", {}),
    ("subscribe", 2, "$where/price>4/city/#", {}),
]


def histories(size: int) -> st.SearchStrategy[list[Any]]:
    """Return histories that begin with subscriptions and end with events that match most."""
    first, then = st.lists(SUBSCRIBE, max_size=5), st.lists(STEPS, max_size=size)
    return st.tuples(first, then).map(lambda both: [*both[0], *both[1]])


@pytest.mark.parametrize("log", ["none", "whole", "sampled"])
@pytest.mark.plain
def test_the_fast_path_delivers_and_logs_what_the_plain_path_does(
    make_world: Any, log: str
) -> None:
    kinds: dict[str, Callable[[], Recorder | None]] = {
        "none": lambda: None,
        "whole": Recorder,
        "sampled": lambda: Recorder(keeps=sampled(0.5)),
    }

    @given(histories(20))
    @example(MEMBER_AND_READER)
    @example(IDENTIFIED)
    @example(PLAIN_AND_MATCHING)
    def check(history: list[Any]) -> None:
        twins = [Twin(make_world, is_fast=is_fast, log=kinds[log]()) for is_fast in (True, False)]
        for step in [*history, *EVERYTHING]:
            for twin in twins:
                twin.do(*step)
        fast, plain = (twin.outcome() for twin in twins)
        assert fast == plain

    check()


@pytest.mark.plain
def test_with_a_log_packets_do_take_the_fast_path(
    make_world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert runs_of(make_world, monkeypatch, Recorder()) == [20]
    assert runs_of(make_world, monkeypatch, None) == [20]


def runs_of(make_world: Any, monkeypatch: pytest.MonkeyPatch, log: Recorder | None) -> list[int]:
    """Return how many packets each run of the fast path had, none of them left to the plain one."""
    world = make_world(spaces=SPACES)
    world.node.state.log = log
    reader, writer = world.welcome("r"), world.welcome("w")
    reader.subscribe("$where/price>4/city/#")
    lengths = []
    match = ContentFastPath._match

    def counted(path: ContentFastPath, *rest: Any) -> Any:
        lengths.append(len(rest[2]))
        return match(path, *rest)

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a packet was left to the plain path")

    with monkeypatch.context() as patch:
        patch.setattr(ContentFastPath, "_match", counted)
        patch.setattr(type(world.node._intake), "_accept", refuse)
        writer.send(*[Publish("city/a", b'{"lon":1,"lat":1,"price":5}')] * 20)
    assert len(reader.payloads()) == 20
    return lengths


# --- in a cluster


class CityTwin:
    """Three nodes with a client each for reading, and one more that writes."""

    def __init__(self, *, is_fast: bool) -> None:
        self.city = SimulatedCity(3, 5, spaces=SPACES)
        for node in self.city.nodes.values():
            node.node.state.log = Recorder()
            if not is_fast:
                without_fast_path(node.node)
        versions = (V5, V311, V5, V311)
        homes = ("n0", "n1", "n2", "n0")
        self.clients = [
            self.city.client(f"c{n}", home, version=version)
            for n, (home, version) in enumerate(zip(homes, versions, strict=True))
        ]
        self.city.run(500)
        self.count = 0

    def do(self, kind: str, who: int, what: Any, more: Any) -> None:
        client = self.clients[who]
        if kind == "publish":
            for topic, payload in what * more:
                self.count += 1
                client.publish(Publish(topic, numbered(payload, self.count)))
        elif kind == "subscribe":
            client.subscribe(what)
        elif kind == "unsubscribe":
            client.unsubscribe(what)
        elif kind == "move":
            client.publish(Publish("$position", json.dumps({"lon": what, "lat": more}).encode(), 1))
        self.city.turn(client)
        self.city.run(300)

    def outcome(self) -> Any:
        self.city.run(2_000)
        logs = []
        for node in self.city.nodes.values():
            log = node.node.state.log
            assert log is not None
            logs.append(log_of(log))
        counters = [asdict(node.node.counters) for node in self.city.nodes.values()]
        for one in counters:  # packets of 3.1.1 travel as they are, or as packets of 5
            for name in ("publish_bytes_received", "publish_bytes_sent", "bytes_received"):
                del one[name]
        received = [[encode_packet(one, V5) for one in c.received] for c in self.clients]
        return received, logs, counters


FAR_AWAY: list[Any] = [
    ("subscribe", 1, "$where/price>4/city/#", {}),
    ("subscribe", 2, "#", {}),
    ("subscribe", 0, "$area/circle(1,1,150km)/city/+", {}),
    ("publish", 3, HERE, 5),
    ("publish", 2, HERE, 5),
]
# One gets an event through the link of its node, the other through a holder.
NEIGHBOURS: list[Any] = [
    ("subscribe", 0, "$where/price>4/city/#", {}),
    ("subscribe", 3, "$area/circle(1,1,150km)/city/+", {}),
]


@settings(max_examples=15, deadline=None)
@given(histories(8))
@example(FAR_AWAY)
@example(NEIGHBOURS)
@pytest.mark.plain
def test_in_a_cluster_the_fast_path_delivers_and_logs_what_the_plain_path_does(
    history: list[Any],
) -> None:
    twins = [CityTwin(is_fast=is_fast) for is_fast in (True, False)]
    for step in [*history, *EVERYTHING]:
        for twin in twins:
            twin.do(*step)
    fast, plain = (twin.outcome() for twin in twins)
    assert fast == plain


@pytest.mark.plain
def test_in_a_cluster_packets_do_take_the_fast_path_at_both_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    twin = CityTwin(is_fast=True)
    twin.do("subscribe", 1, "$where/price>4/city/#", {})
    twin.do("subscribe", 2, "$where/price>4/city/#", {})
    twin.city.run(1_000)

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a packet was left to the plain path")

    for node in twin.city.nodes.values():
        for handler in (node.node._intake, node.node._peer_intake):
            monkeypatch.setattr(handler, "_accept", refuse)
    twin.do("publish", 3, [("city/a", '{"lon":1,"lat":1,"price":5}')], 5)
    twin.do("publish", 0, [("city/a", '{"lon":1,"lat":1,"price":5}')], 5)
    assert [len(client.received) for client in twin.clients] == [0, 10, 10, 0]
