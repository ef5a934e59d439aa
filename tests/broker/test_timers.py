"""Timers: what is cancelled is gone, from the heap too."""

from __future__ import annotations

import gc
import weakref
from random import Random
from typing import Any

import pytest

from nearcast.broker import BrokerSettings
from nearcast.broker.session.session import Session
from nearcast.broker.timers import Timer, Timers
from nearcast.mqtt import Properties, Will

WEEK_S = 7 * 86_400


class Subject:
    """Something that a timer is about."""


def test_a_cancelled_timer_is_not_called_and_lets_go_of_its_subject() -> None:
    timers = Timers()
    called: list[Any] = []
    subject = Subject()
    seen = weakref.ref(subject)
    timer = timers.at(10, called.append, subject)
    timers.at(10, called.append, "other")
    timers.cancel(timer)
    timers.cancel(timer)
    del subject
    gc.collect()
    assert seen() is None
    timers.run_due(20)
    assert called == ["other"]


def test_the_heap_holds_at_most_twice_what_is_awaited() -> None:
    timers = Timers()
    called: list[Any] = []
    awaited = [timers.at(1_000 + one, called.append, one) for one in range(100)]
    for one in range(10_000):
        timers.cancel(timers.at(5_000 + one, called.append, one))
    assert len(timers) <= 2 * len(awaited) + 1
    timers.run_due(10_000)
    assert called == list(range(100))


def test_a_cancelled_timer_wakes_nobody() -> None:
    timers = Timers()
    timers.cancel(timers.at(5, print, None))
    timers.at(7, print, None)
    assert timers.wake_at() == 7


def test_actions_that_set_and_cancel_timers_keep_the_count_right() -> None:
    timers = Timers()
    called: list[Any] = []
    later = timers.at(3, called.append, "later")
    timers.at(1, lambda _: timers.cancel(later), None)

    def set_another(_: object) -> None:
        timers.at(2, called.append, "at once")

    timers.at(2, set_another, None)
    timers.run_due(2)
    timers.run_due(3)
    assert called == ["at once"]
    assert timers.wake_at() is None
    assert len(timers) == 0


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_set_cancelled_and_run_the_heap_is_in_order_and_counted(seed: int) -> None:
    rng, timers = Random(seed), Timers()
    called: list[int] = []
    known: dict[int, Timer] = {}
    now_ms = 0
    for number in range(1_000):
        known[number] = timers.at(now_ms + rng.randrange(500), called.append, number)
        for _ in range(rng.randrange(3)):
            timers.cancel(known[rng.randrange(number + 1)])  # or it was called, or cancelled
        if rng.random() < 0.05:
            timers.wake_at()
        if rng.random() < 0.02:
            now_ms += rng.randrange(100)
            timers.run_due(now_ms)
        entries = timers._heap
        assert timers._cancelled == sum(timer.action is None for _, _, timer in entries)
        assert all(entries[(n - 1) // 2][:2] <= entries[n][:2] for n in range(1, len(entries)))
    assert all(known[number].subject is None for number in called)


def active(world: Any) -> int:
    """Return how many timers are awaited."""
    return sum(timer.action is not None for _, _, timer in world.node.state.timers._heap)


def test_a_connected_client_without_keep_alive_has_no_timer(make_world: Any) -> None:
    world = make_world(BrokerSettings(keep_alive_s=0))
    options = {"clean_start": False, "props": {"session_expiry_interval": 10}}
    world.welcome("c", keep_alive_s=0, **options).lose()
    assert active(world) == 1
    client = world.welcome("c", keep_alive_s=0, **options)
    assert active(world) == 0
    assert client.link.timer is None


def test_a_connection_and_a_session_have_one_timer_of_a_kind(world: Any) -> None:
    will = Will("gone", b"x", properties=Properties(will_delay_interval=5))
    client = world.welcome("c", keep_alive_s=9, will=will, props={"session_expiry_interval": 10})
    assert active(world) == 1
    lifecycle, session = world.node._lifecycle, world.node.state.sessions["c"]
    lifecycle.watch(client.link)
    assert active(world) == 1
    client.lose()
    assert active(world) == 2
    lifecycle._expect_end(session)
    lifecycle._expect_will(session)
    assert active(world) == 2


def test_what_is_due_stops_when_the_slice_is_spent_and_stays_due() -> None:
    timers = Timers()
    called: list[Any] = []
    for one in range(5):
        timers.at(1, called.append, one)
    timers.run_due(1, lambda: len(called) >= 2)
    assert called == [0, 1]
    assert timers.wake_at() == 1
    timers.run_due(1)
    assert called == [0, 1, 2, 3, 4]


def test_reconnects_of_a_durable_client_leave_no_timers(make_world: Any) -> None:
    world = make_world()
    for _ in range(300):
        world.welcome(
            "durable", clean_start=False, props={"session_expiry_interval": WEEK_S}, keep_alive_s=9
        ).lose()
    assert len(world.node.state.timers) < 150


def test_clean_starts_with_an_expiry_leave_no_sessions_behind(make_world: Any) -> None:
    world = make_world()
    for _ in range(300):
        world.welcome("clean", clean_start=True, props={"session_expiry_interval": WEEK_S}).lose()
        world.clients.clear()
    gc.collect()
    sessions = [one for one in gc.get_objects() if type(one) is Session]
    mine = [one for one in sessions if one.client_id == "clean"]
    assert len(mine) <= 2
    assert len(world.node.state.timers) < 150


def test_connections_with_a_long_keep_alive_leave_no_timers(make_world: Any) -> None:
    world = make_world()
    for number in range(300):
        world.welcome(f"c{number}", keep_alive_s=65_535).lose()
    assert len(world.node.state.timers) < 150


def test_a_client_that_is_back_is_not_ended_by_the_timer_of_its_absence(make_world: Any) -> None:
    world = make_world()
    options = {"clean_start": False, "props": {"session_expiry_interval": 10}}
    world.welcome("c", **options).lose()
    client = world.welcome("c", **options)
    world.wait(60_000)
    assert not client.is_closed
    client.lose()
    world.wait(9_000)
    assert "c" in world.node.state.sessions
    world.wait(2_000)
    assert "c" not in world.node.state.sessions


def test_reconnects_of_a_client_with_a_delayed_will_leave_no_timers(make_world: Any) -> None:
    world = make_world()
    will = Will("gone", b"x", properties=Properties(will_delay_interval=WEEK_S // 2))
    for _ in range(300):
        world.welcome(
            "c", clean_start=False, will=will, props={"session_expiry_interval": WEEK_S}
        ).lose()
    assert len(world.node.state.timers) < 150
