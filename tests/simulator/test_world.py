"""The world's promises: order, time, faults, and the same run for the same seed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.model.errors import KeyInUseError, KeyMissingError, MisuseError, OutOfRangeError
from nearcast.simulator import (
    Send,
    SimulatedLink,
    SimulatedNetwork,
    World,
    constant,
    exponential,
    uniform,
)


class Recorder:
    """Notes what it gets and when."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, Any]] = []

    def receive(self, message: Any, now: int) -> Iterable[Any]:
        self.seen.append((now, message))
        return []

    def advance(self, now: int) -> Iterable[Any]:
        return []

    def wake_at(self) -> int | None:
        return None


class Burst(Recorder):
    """On any message sends the numbers below `count` to one receiver."""

    def __init__(self, to: str, count: int) -> None:
        super().__init__()
        self.to, self.count = to, count

    def receive(self, message: Any, now: int) -> Iterable[Any]:
        return [Send(self.to, number) for number in range(self.count)]


class Ticker(Recorder):
    """Wakes every `period` until `end` and reports each waking."""

    def __init__(self, period: int, end: int) -> None:
        super().__init__()
        self.period, self.end, self.due = period, end, period

    def advance(self, now: int) -> Iterable[Any]:
        self.seen.append((now, "tick"))
        self.due = now + self.period
        return [f"tick at {now}"]

    def wake_at(self) -> int | None:
        return self.due if self.due <= self.end else None


class Gossip(Recorder):
    """Forwards a falling counter to a random peer, and wakes now and then."""

    def __init__(self, name: int, peers: int, world: World) -> None:
        super().__init__()
        self.name, self.peers, self.random, self.due = name, peers, world.random_for(name), 5

    def receive(self, message: Any, now: int) -> Iterable[Any]:
        super().receive(message, now)
        return [Send(self.random.randrange(self.peers), message - 1)] * 2 if message else []

    def advance(self, now: int) -> Iterable[Any]:
        self.due = now + self.random.randrange(1, 9)
        return []

    def wake_at(self) -> int | None:
        return self.due if self.due < 100 else None


def gossip_digest(seed: int) -> str:
    link = SimulatedLink(uniform(1, 9), loss=0.1, duplication=0.1, reordering=0.3)
    world = World(seed, link=link)
    for name in range(8):
        world.add(name, Gossip(name, 8, world))
    world.post(0, 9)
    world.call_at(8, lambda: world.crash(3))
    world.call_at(30, lambda: world.restart(3))
    world.call_at(10, lambda: world.network.partition([[0, 1, 2, 3]]))
    world.call_at(20, world.network.heal)
    world.run()
    return world.digest()


def burst_world(link: SimulatedLink, count: int = 200, seed: int = 1) -> tuple[World, Recorder]:
    world = World(seed, link=link)
    world.add("from", Burst("to", count))
    receiver = world.add("to", Recorder())
    world.post("from", "go")
    return world, receiver


def test_the_same_seed_gives_the_same_run_in_another_process_too() -> None:
    script = (
        "import importlib.util,sys;"
        f"spec=importlib.util.spec_from_file_location('t',{__file__!r});"
        "m=importlib.util.module_from_spec(spec);spec.loader.exec_module(m);"
        "print(m.gossip_digest(11))"
    )
    other = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert gossip_digest(11) == gossip_digest(11) == other.stdout.strip()
    assert gossip_digest(12) != gossip_digest(11)


def test_without_reordering_messages_arrive_in_the_order_sent_whatever_the_delays() -> None:
    world, receiver = burst_world(SimulatedLink(uniform(1, 50)))
    world.run()

    assert [message for _, message in receiver.seen] == list(range(200))


def test_with_reordering_some_messages_overtake_others() -> None:
    world, receiver = burst_world(SimulatedLink(uniform(1, 50), reordering=0.5))
    world.run()
    got = [message for _, message in receiver.seen]

    assert sorted(got) == list(range(200))
    assert got != list(range(200))


@pytest.mark.parametrize(("loss", "duplication"), [(0.3, 0.0), (0.0, 0.3), (0.2, 0.2)])
def test_loss_and_duplication_happen_about_as_often_as_asked(
    loss: float, duplication: float
) -> None:
    world, receiver = burst_world(SimulatedLink(loss=loss, duplication=duplication), count=4000)
    world.run()
    kept = len({message for _, message in receiver.seen})
    again = len(receiver.seen) - kept

    assert abs(kept - 4000 * (1 - loss)) < 150
    assert abs(again - kept * duplication) < 150
    assert world.network.counts["lost"] == 4000 - kept


def test_a_message_takes_as_long_as_its_delay_and_one_to_oneself_no_time() -> None:
    world, receiver = burst_world(SimulatedLink(constant(7)), count=1)
    myself = world.add("self", Burst("self", 0))
    world.perform("self", [Send("self", "hello")])
    world.run()

    assert receiver.seen == [(7, 0)]
    assert myself.count == 0
    assert world.now == 7


def test_a_partition_drops_what_is_sent_and_what_is_under_way_until_it_heals() -> None:
    world, receiver = burst_world(SimulatedLink(constant(10)), count=3)
    world.call_at(5, lambda: world.network.partition([["to"]]))
    world.post("from", "go", at=6)
    world.call_at(30, world.network.heal)
    world.post("from", "go", at=31)
    world.run()

    assert [at for at, _ in receiver.seen] == [41, 41, 41]


def test_a_cut_works_in_one_direction_only() -> None:
    network = SimulatedNetwork()
    network.cut("a", "b")

    assert not network.connected("a", "b")
    assert network.connected("b", "a")
    network.mend("a", "b")
    assert network.connected("a", "b")


def test_actors_that_no_side_names_stay_together() -> None:
    network = SimulatedNetwork()
    network.partition([["a", "b"], ["c"]])

    assert network.connected("a", "b")
    assert network.connected("x", "y")
    assert not network.connected("a", "c")
    assert not network.connected("a", "x")


def test_a_crashed_actor_hears_nothing_and_wakes_never_until_it_is_restarted() -> None:
    world = World(1)
    ticker = world.add("t", Ticker(period=10, end=100))
    world.call_at(15, lambda: world.crash("t"))
    world.post("t", "lost", at=20)
    world.post("t", "heard", at=60)
    world.call_at(55, lambda: world.restart("t"))
    world.run(until=65)

    assert ticker.seen[0] == (10, "tick")
    assert (60, "heard") in ticker.seen
    assert all(message != "lost" for _, message in ticker.seen)
    assert [at for at, _ in ticker.seen if 15 <= at < 55] == []


def test_a_restart_may_bring_a_new_actor_that_knows_nothing() -> None:
    world = World(1)
    before = world.add("a", Recorder())
    world.post("a", 1)
    world.run()
    world.crash("a")
    after = Recorder()
    world.restart("a", after)
    world.post("a", 2)
    world.run()

    assert (len(before.seen), len(after.seen)) == (1, 1)


def test_an_output_that_is_no_message_goes_to_the_observer_with_instant_and_actor() -> None:
    noticed: list[tuple[int, object, object]] = []
    world = World(1, observer=lambda now, who, what: noticed.append((now, who, what)))
    world.add("t", Ticker(period=10, end=30))
    world.run()

    assert noticed == [(at, "t", f"tick at {at}") for at in (10, 20, 30)]


def test_run_until_ends_the_clock_there_and_keeps_what_is_later() -> None:
    world = World(1)
    ticker = world.add("t", Ticker(period=10, end=30))

    world.run(until=20)
    assert (world.now, len(ticker.seen)) == (20, 2)
    world.run(until=25)
    assert (world.now, len(ticker.seen)) == (25, 2)
    world.run()
    assert (world.now, len(ticker.seen)) == (30, 3)


def test_run_stops_after_the_steps_allowed() -> None:
    world, receiver = burst_world(SimulatedLink(), count=9)

    assert world.run(most_steps=4) == 4
    assert len(receiver.seen) == 3
    assert world.run() == 6  # the rest is still there


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 5)), max_size=30))
def test_what_is_posted_arrives_by_instant_and_then_by_order_of_posting(
    posts: list[tuple[int, int]],
) -> None:
    world = World(1)
    recorder = world.add("a", Recorder())
    for at, message in posts:
        world.post("a", message, at=at)
    world.run()

    assert recorder.seen == sorted(posts, key=lambda post: post[0])


class Changeable(Recorder):
    """Wakes when its last message said."""

    due: int | None = None

    def receive(self, message: Any, now: int) -> Iterable[Any]:
        self.due = message
        return []

    def advance(self, now: int) -> Iterable[Any]:
        self.seen.append((now, "woke"))
        self.due = None
        return []

    def wake_at(self) -> int | None:
        return self.due


@given(st.lists(st.tuples(st.integers(0, 20), st.none() | st.integers(0, 25)), max_size=12))
def test_an_actor_is_woken_at_the_last_instant_it_asked_for_and_at_no_other(
    wishes: list[tuple[int, int | None]],
) -> None:
    world = World(1)
    actor = world.add("a", Changeable())
    wishes.sort(key=lambda wish: wish[0])
    for at, due in wishes:
        world.post("a", due, at=at)
    world.run()

    # Posts were scheduled before any wake, so at one instant they all come first.
    expected, wanted = [], None
    for at in range(30):
        for when, due in wishes:
            if when == at:
                wanted = due
        if wanted is not None and wanted <= at:
            expected.append((at, "woke"))
            wanted = None
    assert actor.seen == expected


def test_an_actor_whose_wish_never_moves_on_is_an_error_not_an_endless_loop() -> None:
    class Stuck(Recorder):
        def wake_at(self) -> int | None:
            return 3

    world = World(1)
    world.add("a", Stuck())
    with pytest.raises(MisuseError, match="wants waking at 3"):
        world.run()


def test_misuse_is_refused_with_a_reason() -> None:
    world = World(1, keep_digest=False)
    world.add("a", Recorder())
    world.run(until=5)

    with pytest.raises(KeyInUseError):
        world.add("a", Recorder())
    with pytest.raises(KeyMissingError):
        world.crash("b")
    with pytest.raises(KeyMissingError):
        world.restart("a")
    with pytest.raises(KeyMissingError):
        world.actor("b")
    with pytest.raises(KeyMissingError):
        world.remove("b")
    with pytest.raises(KeyMissingError):
        world.perform("b", [])
    with pytest.raises(OutOfRangeError):
        world.post("a", 1, at=4)
    with pytest.raises(OutOfRangeError):
        world.call_at(4, lambda: None)
    with pytest.raises(MisuseError):
        world.digest()
    with pytest.raises(MisuseError):
        world.network.partition([["a"], ["a"]])


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_probability_is_between_0_and_1(share: float) -> None:
    with pytest.raises(OutOfRangeError):
        SimulatedLink(loss=share)


def test_delays_are_checked_when_they_are_made() -> None:
    with pytest.raises(OutOfRangeError):
        constant(-1)
    with pytest.raises(OutOfRangeError):
        uniform(3, 2)
    with pytest.raises(OutOfRangeError):
        uniform(-1, 2)
    for mean in (0.0, float("inf"), float("nan")):
        with pytest.raises(OutOfRangeError):
            exponential(mean)


def test_delays_stay_within_their_bounds_and_near_their_means() -> None:
    random = World(3).random
    even = [uniform(2, 4)(random) for _ in range(900)]
    tail = [exponential(20, least=5, most=60)(random) for _ in range(3000)]

    assert set(even) == {2, 3, 4}
    assert (min(tail), max(tail)) == (5, 60)
    assert 20 < sum(tail) / len(tail) < 27


def test_removing_an_actor_frees_its_name() -> None:
    world = World(1)
    world.add("a", Recorder())
    world.remove("a")
    assert not world.alive("a")
    world.add("a", Recorder())
    assert world.alive("a")


def test_a_link_of_its_own_counts_for_one_direction_and_can_be_taken_back() -> None:
    world, receiver = burst_world(SimulatedLink(constant(1)), count=1)
    world.network.set_link("from", "to", SimulatedLink(constant(9)))
    world.run()
    world.network.set_link("from", "to", None)
    world.post("from", "go")
    world.run()

    assert [at for at, _ in receiver.seen] == [9, 10]
