"""Expired retained messages give their room back, although nobody subscribes to their topics."""

from __future__ import annotations

from itertools import count
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nearcast.broker import BrokerSettings
from nearcast.broker.retained.expiry import SWEEP_PAUSE_MS
from nearcast.mqtt import Properties

MINUTE_MS = 60_000


def retain(client: Any, topic: str, expiry_s: int | None) -> None:
    properties = Properties(message_expiry_interval=expiry_s)
    client.publish(topic, b"x", retain=True, properties=properties)


def kept(world: Any) -> set[str]:
    return {message.topic_text() for message in world.node.state.retained.all()}


def test_a_message_that_nobody_reads_is_deleted_within_a_minute_of_its_expiry(
    make_world: Any,
) -> None:
    world = make_world()
    client = world.welcome("p")
    retain(client, "a/b", 10)
    retain(client, "a/c", None)
    world.wait(SWEEP_PAUSE_MS)
    assert kept(world) == {"a/c"}
    retain(client, "late", 3_600)
    world.wait(3_600_000 - 1)
    assert "late" in kept(world)
    world.wait(1)
    assert kept(world) == {"a/c"}
    assert world.node.state.retained.places == 2


def test_messages_that_expire_earlier_and_earlier_have_one_timer(make_world: Any) -> None:
    world = make_world()
    client = world.welcome("p", keep_alive_s=0)
    for number in range(500):
        retain(client, f"t/{number}", 10_000 - number)
    assert len(world.node.state.timers) < 150  # cancelled ones stay in the heap up to a number
    world.wait(10_000_000 + SWEEP_PAUSE_MS)
    assert kept(world) == set()


def test_the_limit_counts_no_message_that_has_expired(make_world: Any) -> None:
    world = make_world(BrokerSettings(max_retained=5))
    client = world.welcome("p")
    for number in range(5):
        retain(client, f"old/{number}", 1)
    world.wait(SWEEP_PAUSE_MS)
    for number in range(5):
        retain(client, f"new/{number}", None)
    assert kept(world) == {f"new/{number}" for number in range(5)}


def test_messages_that_expired_before_a_restart_are_deleted_after_it(make_world: Any) -> None:
    world = make_world(with_journal=True)
    client = world.welcome("p")
    retain(client, "a", 5)
    retain(client, "b", 7_200)
    world.crash_and_restart(after_ms=10_000)
    world.wait(SWEEP_PAUSE_MS)
    assert kept(world) == {"b"}
    world.wait(7_200_000)
    assert kept(world) == set()


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "a/b", "b/c/d", "$x"]), st.sampled_from([None, 1, 59, 61, 200])
        ),
        max_size=12,
    ),
    st.lists(st.integers(0, 150_000), min_size=12, max_size=12),
)
def test_what_is_kept_is_what_has_not_expired_a_minute_ago(
    make_world: Any, puts: list[tuple[str, int | None]], pauses: list[int]
) -> None:
    """The oracle: the last message of each topic, with the time at which it expires."""
    world = make_world()
    client = world.welcome("p", keep_alive_s=0)
    last: dict[str, float] = {}
    for (topic, expiry_s), pause in zip(puts, pauses, strict=False):
        retain(client, topic, expiry_s)
        last[topic] = float("inf") if expiry_s is None else world.now_ms + 1_000 * expiry_s
        world.wait(pause)
        alive = {topic for topic, at in last.items() if at > world.now_ms}
        lately = {topic for topic, at in last.items() if at > world.now_ms - MINUTE_MS}
        assert alive <= kept(world) <= lately


def test_a_walk_through_many_is_done_in_slices_and_survives_changes(make_world: Any) -> None:
    world = make_world()
    client = world.welcome("p", keep_alive_s=0)
    for number in range(100):
        retain(client, f"t/{number}", 1 if number % 2 else None)
    node, calls = world.node, count()
    node.slices.is_spent = lambda: next(calls) % 7 == 6
    world.now_ms += SWEEP_PAUSE_MS
    node.wake(world.now_ms)
    slices = 0
    while node.slices.backlog:
        slices += 1
        retain(client, f"u/{slices}", None)
        node.serve_backlog(world.now_ms)
    assert slices > 10
    assert {topic for topic in kept(world) if topic.startswith("t/")} == {
        f"t/{number}" for number in range(0, 100, 2)
    }
