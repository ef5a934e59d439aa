"""Turns of the loop, without sockets: when answers leave."""

from __future__ import annotations

import asyncio

from nearcast.mqtt import Connect, encode_packet
from nearcast.node import Connection, Node
from nearcast.node.settings import NodeSettings
from nearcast.server.clock import Clock
from nearcast.server.turns import _MOST_READS, Turns


class Wire:
    """Keeps what is written to one connection."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []

    def write(self, chunks: list[bytes]) -> None:
        self.chunks += chunks

    def finish(self) -> None:
        raise AssertionError


class SlowClock(Clock):
    """Goes on when it is told to."""

    __slots__ = ("ms",)

    def __init__(self) -> None:
        super().__init__()
        self.ms = 1_000

    def now_ms(self) -> int:
        return self.ms


def _storm(count: int) -> tuple[list[bool], list[bool]]:
    """Let a crowd speak at once; return who was answered before the loop went on, and after."""

    async def run() -> tuple[list[bool], list[bool]]:
        turns = Turns(Node(NodeSettings()), Clock())
        wires = [Wire() for _ in range(count)]
        turns.schedule()
        for number, wire in enumerate(wires):
            connection = Connection(peer=str(number))
            connection.transport = wire
            turns.node.open(connection, turns.now_ms)
            turns.read(connection, encode_packet(Connect(f"c{number}")))
        early = [bool(one.chunks) for one in wires]
        for _ in range(20):
            await asyncio.sleep(0)
        turns.stop()
        return early, [bool(one.chunks) for one in wires]

    return asyncio.run(run())


def test_in_a_storm_the_first_are_answered_before_the_last_are_read() -> None:
    early, late = _storm(2 * _MOST_READS + 40)
    assert early == [True] * (2 * _MOST_READS) + [False] * 40
    assert all(late)


def test_a_small_crowd_is_answered_in_one_go() -> None:
    early, late = _storm(40)
    assert not any(early)
    assert all(late)


def test_what_is_read_after_a_turn_was_held_up_has_the_instant_of_then() -> None:
    async def run() -> list[int]:
        clock, instants = SlowClock(), []
        turns = Turns(Node(NodeSettings()), clock)
        turns.schedule()
        for number in range(2):
            connection = Connection(peer=str(number))
            connection.transport = Wire()
            turns.node.open(connection, turns.now_ms)
            turns.read(connection, encode_packet(Connect(f"c{number}")))
            instants.append(turns.node.state.now_ms)
            clock.ms += 5_000
        turns.stop()
        return instants

    assert asyncio.run(run()) == [1_000, 6_000]
