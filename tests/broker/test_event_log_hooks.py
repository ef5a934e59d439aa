"""What a node tells its event log: deliveries under the right event, drops with a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.support.log_segments import write_segment

from nearcast.broker import BrokerSettings, event_log_hooks
from nearcast.cluster import causal_groups
from nearcast.eventlog import records
from nearcast.eventlog.records import Arrival, CausalStep, Dropped, Recorder
from nearcast.mqtt import FilterRequest, Properties, Publish, Subscribe

Row = dict[str, Any]
World = Any  # of conftest.py
Client = Any


@pytest.fixture
def world(make_world: Any) -> World:
    return logged(make_world())


def logged(world: World) -> World:
    world.node.state.log = Recorder()
    world.node.state.now_ms = world.now_ms
    event_log_hooks.note_start(world.node.state)
    return world


class Told:
    """The tables that a node's log becomes."""

    def __init__(self, world: World, directory: Path) -> None:
        recorder = world.node.state.log
        assert recorder is not None
        write_segment(directory, "n", recorder)
        self._directory = directory

    def rows(self, table: str) -> list[Row]:
        return [
            row
            for path in sorted((self._directory / table).glob("*.parquet"))
            for row in pq.read_table(path).to_pylist()
        ]

    def of(self, table: str, value: str) -> set[tuple[bytes, str, Any]]:
        """Return (payload, receiver, value) for each row about an event."""
        payloads = {row["sequence"]: row["payload"] for row in self.rows("events")}
        return {(payloads[r["sequence"]], r["receiver"], r[value]) for r in self.rows(table)}


def test_the_numbers_of_the_log_are_those_of_the_node() -> None:
    reasons = (
        event_log_hooks.SLOW,
        event_log_hooks.QUOTA,
        event_log_hooks.EXPIRED,
        event_log_hooks.TOO_LARGE,
        event_log_hooks.ENDED,
        event_log_hooks.REVOKED,
    )
    assert reasons == tuple(Dropped)
    ways = (
        event_log_hooks.FROM_CLIENT,
        event_log_hooks.FROM_NODE,
        event_log_hooks.CAUSAL,
        event_log_hooks.CHOSEN,
    )
    assert ways == tuple(way << records.WAY for way in Arrival)
    assert event_log_hooks.LIMITED == records.LIMITED
    steps = (
        causal_groups._SENT,
        causal_groups._DELIVERED,
        causal_groups._HELD,
        causal_groups._DISCARDED,
        causal_groups._KEPT,
    )
    assert steps == tuple(CausalStep)


def test_who_comes_and_goes_is_noted_with_the_node_itself(world: World, tmp_path: Path) -> None:
    ann = world.client("ann")
    ann.lose()
    told = Told(world, tmp_path)

    found = [(row["client"], row["there"]) for row in told.rows("presence")]
    assert found == [("", True), ("ann", True), ("ann", False)]


def test_subscriptions_from_before_the_start_are_noted_as_such(
    make_world: Any, tmp_path: Path
) -> None:
    world = make_world()
    ann = world.client("ann", props={"session_expiry_interval": 100})
    ann.send(Subscribe(1, (FilterRequest("a/#", 1, no_local=True),)))
    logged(world)
    ann.subscribe("b", 2)
    told = Told(world, tmp_path)

    found = [(r["filter"], r["no_local"], r["restored"]) for r in told.rows("subscriptions")]
    assert found == [("a/#", True, True), ("b", False, False)]


def test_retained_copies_are_no_deliveries_of_the_event_before(
    world: World, tmp_path: Path
) -> None:
    ann = world.client("ann")
    for topic in ("r/1", "r/2"):
        ann.publish(topic, b"kept", retain=True)
    ann.publish("other", b"last")
    bob = world.client("bob")
    bob.subscribe("r/#")
    assert len(bob.publications()) == 2

    assert Told(world, tmp_path).rows("deliveries") == []


@pytest.mark.parametrize("topic", ["$SYS/broker/uptime", "$nearcast/live/positions/n"])
def test_a_message_of_the_broker_itself_is_no_delivery_of_the_event_before(
    world: World, tmp_path: Path, topic: str
) -> None:
    bob = world.client("bob")
    bob.subscribe("$SYS/#")
    world.node.state.sessions["bob"].is_onlooker = True  # a page
    bob.subscribe("$nearcast/live/positions/+")
    world.client("ann").publish("other", b"last")
    world.node.publish(topic, b"7", now_ms=world.now_ms)
    world.settle()

    assert Told(world, tmp_path).rows("deliveries") == []
    assert [one.payload for one in bob.publications()] == [b"7"]


def test_a_message_for_a_client_that_does_not_read_is_dropped_with_a_reason(
    make_world: Any, tmp_path: Path
) -> None:
    world = logged(make_world(BrokerSettings(session_queue_bytes=2_000)))
    ann, bob = world.client("ann"), world.client("bob")
    bob.subscribe("a", 0)
    bob.link.is_paused = True
    world.settle = lambda: None
    for payload in (b"1" * 1_500, b"2" * 1_500):
        ann.publish("a", payload)
    told = Told(world, tmp_path)

    assert told.of("deliveries", "qos") == {(b"1" * 1_500, "bob", 0)}
    assert told.of("drops", "reason") == {(b"2" * 1_500, "bob", "slow")}


def absent(world: World, expiry_s: int = 100) -> Client:
    bob = world.client("bob", props={"session_expiry_interval": expiry_s})
    bob.subscribe("a", 1)
    bob.lose()
    return bob


def test_what_is_over_the_quota_is_dropped_with_a_reason(make_world: Any, tmp_path: Path) -> None:
    world = logged(make_world(BrokerSettings(session_queue_bytes=2_000)))
    ann = world.client("ann")
    absent(world)
    for payload in (b"1" * 1_500, b"2" * 1_500):
        ann.publish("a", payload, 1)
    told = Told(world, tmp_path)

    assert told.of("deliveries", "qos") == {(b"1" * 1_500, "bob", 1)}
    assert told.of("drops", "reason") == {(b"2" * 1_500, "bob", "quota")}


def test_what_waits_longer_than_its_lifetime_is_dropped_and_the_rest_sent_with_its_time(
    world: World, tmp_path: Path
) -> None:
    ann = world.client("ann")
    absent(world)
    for payload, expiry_s in ((b"short", 1), (b"long", 60)):
        ann.publish("a", payload, 1, properties=Properties(message_expiry_interval=expiry_s))
    ann.publish("a", b"endless", 1)
    world.now_ms += 5_000
    bob = world.client("bob", clean_start=False, props={"session_expiry_interval": 100})
    assert bob.payloads() == [b"long", b"endless"]
    told = Told(world, tmp_path)

    assert told.of("drops", "reason") == {(b"short", "bob", "expired")}
    ((payload, receiver, at),) = told.of("sent", "t")
    assert (payload, receiver, at.timestamp()) == (b"long", "bob", world.now_ms / 1000)
    lifetimes = {row["payload"]: row["lifetime_ms"] for row in told.rows("events")}
    assert lifetimes == {b"short": 1_000, b"long": 60_000, b"endless": None}


def test_what_waits_for_a_session_that_ends_is_dropped_with_a_reason(
    world: World, tmp_path: Path
) -> None:
    ann = world.client("ann")
    absent(world, expiry_s=10)
    ann.publish("a", b"x", 1)
    world.now_ms += 11_000
    world.node.wake(world.now_ms)

    assert Told(world, tmp_path).of("drops", "reason") == {(b"x", "bob", "ended")}


def test_what_is_too_large_for_its_receiver_is_dropped_and_the_rest_keeps_its_number(
    world: World, tmp_path: Path
) -> None:
    ann = world.client("ann")
    bob = world.client("bob", props={"maximum_packet_size": 40})
    bob.subscribe("a", 0)
    ann.send(*(Publish("a", text, 0) for text in (b"1", b"2", b"3")))
    ann.publish("a", b"4" * 100)
    told = Told(world, tmp_path)

    assert told.of("deliveries", "qos") == {(one, "bob", 0) for one in (b"1", b"2", b"3")}
    assert told.of("drops", "reason") == {(b"4" * 100, "bob", "too_large")}


def test_a_repeated_message_of_qos_2_is_one_event(world: World, tmp_path: Path) -> None:
    ann = world.client("ann", answers=False)
    packet = Publish("a", b"x", 2, packet_id=7)
    ann.send(packet)
    ann.send(packet, Publish("a", b"y", 2, packet_id=8))

    assert [row["payload"] for row in Told(world, tmp_path).rows("events")] == [b"x", b"y"]
