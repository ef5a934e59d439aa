"""What the runtime of a network does by itself: when it wakes, and what a mistake of ours costs."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from nearcast.broker import Broker, Connection
from nearcast.broker.session.session import FEED
from nearcast.config import NetworkSection
from nearcast.server.cluster.runtime import ClusterRuntime

NOW_MS = 5_000


class Still:
    """A clock that stands, and turns that only count how often they were asked for."""

    def __init__(self) -> None:
        self.now_ms = NOW_MS
        self.scheduled = 0
        self.ended = False
        self.clock = self._Clock()

    class _Clock:
        def now_ms(self) -> int:
            return NOW_MS

    def schedule(self) -> None:
        self.scheduled += 1

    def end(self) -> None:
        self.ended = True


class Mesh:
    """A mesh that says when it wants waking and keeps what it is told."""

    name = "a"

    def __init__(self) -> None:
        self.due_ms: int | None = None
        self.advanced: list[int] = []
        self.begun_anew: list[str] = []
        self.neighbours = self
        self.node = Broker()
        self.left_ms: list[int] = []

    def leave(self, now_ms: int) -> None:
        self.left_ms.append(now_ms)

    def has_unsettled(self) -> bool:
        assert self.left_ms, "it waits for what it has not handed over yet"
        return False

    def wake_at(self) -> int | None:
        return self.due_ms

    def ordered_at(self) -> int | None:
        return self.due_ms

    def advance(self, now_ms: int) -> None:
        self.advanced.append(now_ms)
        self.due_ms = None

    def take_frames(self) -> list[tuple[str, bytes]]:
        return []

    def receive(self, sender: str, data: bytes, now_ms: int) -> None:
        raise ZeroDivisionError

    def begin_anew(self, name: str, reason: str) -> None:
        self.begun_anew.append(name)


def network(mesh: Any, turns: Any) -> ClusterRuntime:
    nothing: Any = None
    return ClusterRuntime(
        NetworkSection(), mesh, turns, describe=nothing, on_leave=lambda: None, learned=nothing
    )


@pytest.mark.parametrize(
    ("due_ms", "expected"),
    [(None, 100), (NOW_MS + 500, 100), (NOW_MS + 30, 30), (NOW_MS - 3, -3)],
)
async def test_it_wakes_at_the_next_tick_or_when_a_message_must_be_let_go(
    due_ms: int | None, expected: int
):
    mesh = Mesh()
    one = network(mesh, Still())
    now_s = asyncio.get_running_loop().time
    instants_s = [now_s()]
    one._tick()
    instants_s.append(now_s())
    assert one._alarm_ms == NOW_MS + 100
    mesh.due_ms = due_ms

    one.turn_ended()
    instants_s.append(now_s())

    assert one._alarm_ms == NOW_MS + expected
    assert one._alarm is not None
    called_s = one._alarm.when() - max(0, expected) / 1000
    first, last = (0, 1) if expected == 100 else (1, 2)  # by the tick, or by the turn
    assert instants_s[first] - 1e-6 <= called_s <= instants_s[last] + 1e-6
    alarm = one._alarm
    one.turn_ended()  # a busy node must not put it off for ever
    assert one._alarm is alarm
    alarm.cancel()


async def test_what_is_due_is_done_at_the_alarm_and_not_before():
    mesh, turns = Mesh(), Still()
    one = network(mesh, turns)
    one._tick()
    mesh.due_ms = NOW_MS + 20
    one.turn_ended()
    assert mesh.advanced == []
    mesh.due_ms = NOW_MS  # the clock stands: what was due later is due now

    async with asyncio.timeout(60):
        while not mesh.advanced:  # noqa: ASYNC110 - it must not go on for another tick
            await asyncio.sleep(0)

    assert mesh.advanced == [NOW_MS]
    assert turns.scheduled == 1
    assert one._alarm is not None
    one._alarm.cancel()


async def test_a_frame_that_fails_is_told_of_once_and_its_link_begins_anew():
    mesh = Mesh()
    one = network(mesh, Still())
    told: list[str] = []
    mesh.node.state.failures.listener = lambda _fingerprint, doing, _problem: told.append(doing)

    one._received("b", b"")
    one._received("b", b"")

    assert mesh.begun_anew == ["b", "b"]
    assert told == ["taking a frame of node b"]
    assert mesh.node.state.failures.count == 2


@pytest.mark.parametrize("leaves", [False, True])
async def test_who_leaves_for_good_hands_over_first_what_only_it_has(leaves: bool):
    mesh, turns = Mesh(), Still()
    await network(mesh, turns).stop(leave=leaves)
    assert mesh.left_ms == [NOW_MS] * leaves
    assert turns.scheduled == int(leaves)
    assert turns.ended


async def test_the_file_of_the_feed_is_closed_with_the_network():
    one: Any = network(Mesh(), Still())
    closed: list[str] = []
    one.feed = SimpleNamespace(close=lambda: closed.append("feed"))
    await one.stop(leave=False)
    assert closed == ["feed"]


async def test_a_feed_is_not_awaited_like_a_node_of_before():
    mesh: Any = Mesh()
    mesh.peers = {}
    for name in ("b", FEED):
        mesh.node.peering.session(name)
    one = network(mesh, Still())
    one._await_nodes_of_before()
    assert list(one.link_states()) == ["b"]


async def test_nats_without_room_lets_those_wait_whom_it_carries_for_and_no_others():
    mesh: Any = Mesh()
    mesh.peers = {name: SimpleNamespace(connection=Connection()) for name in ("far", "near")}
    turns: Any = Still()
    turns.resumed = lambda connection: setattr(connection, "is_paused", False)
    one = network(mesh, turns)
    way: Any = object()
    one.doors._ways["near"] = way

    def paused() -> list[str]:
        return [name for name, peer in mesh.peers.items() if peer.connection.is_paused]

    one._let_wait()
    assert paused() == ["far"]
    mesh.peers["near"].connection.is_paused = True  # by its own connection
    one._let_go_on()
    assert paused() == ["near"]


@pytest.mark.parametrize("skew_ms", [0.0, 1_000.0, 1_001.0, -5_000.0])
async def test_only_a_clock_that_is_off_by_more_than_a_second_is_warned_of(
    skew_ms: float, caplog: pytest.LogCaptureFixture
):
    mesh: Any = Mesh()
    link = SimpleNamespace(is_up=True, skew_ms=skew_ms)
    mesh.peers = {"b": SimpleNamespace(link=link, problem="")}
    mesh.most_skew_ms = 0
    with caplog.at_level("INFO", "nearcast.network"):
        network(mesh, Still())._tell_of_links()

    warned = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    expected = f"the clock of node b is {skew_ms / 1000:.3f} s off ours: set both"
    assert warned == ([expected] if abs(skew_ms) > 1_000 else [])
