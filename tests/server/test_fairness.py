"""Turns of the loop with a client that floods: others are served, memory is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from nearcast.broker import Broker, Connection
from nearcast.broker.settings import BrokerSettings
from nearcast.mqtt import Connect, FilterRequest, Publish, Subscribe, encode_packet
from nearcast.server import loop_batches as turns_module
from nearcast.server.clock import Clock
from nearcast.server.listeners.websocket import WebSocketProtocol
from nearcast.server.loop_batches import LoopBatches

PINGREQ, PINGRESP = b"\xc0\0", b"\xd0\0"


class Wire:
    """Keeps what is written to one connection, and whether it is read from."""

    def __init__(self, journal: list[tuple[str, bytes]], name: str) -> None:
        self.journal, self.name = journal, name
        self.is_read = True
        self.is_finished = False

    @property
    def data(self) -> bytes:
        return b"".join(data for name, data in self.journal if name == self.name)

    def write(self, chunks: list[bytes]) -> None:
        self.journal.append((self.name, b"".join(chunks)))

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def finish(self) -> None:
        self.is_finished = True


class LoopWithWires:
    """A node on a loop, with wires instead of sockets."""

    def __init__(self, settings: BrokerSettings | None = None) -> None:
        self.node = Broker(settings or BrokerSettings())
        self.turns = LoopBatches(self.node, Clock())
        self.journal: list[tuple[str, bytes]] = []

    async def connect(self, name: str) -> tuple[Connection, Wire]:
        connection = Connection(name)
        wire = Wire(self.journal, name)
        connection.transport = wire
        self.node.open(connection, self.turns.now_ms)
        self.turns.read(connection, encode_packet(Connect(name)))
        while not wire.data:  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(0)
        self.journal.clear()
        return connection, wire

    async def quiet(self) -> None:
        """Let the loop go round until nothing waits."""
        for _ in range(30):
            await asyncio.sleep(0)
        while self.node.slices.backlog:  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(0)
        for _ in range(30):
            await asyncio.sleep(0)


def run(story: Callable[[LoopWithWires], Coroutine[Any, Any, None]], **settings: int) -> None:
    async def tell() -> None:
        world = LoopWithWires(BrokerSettings(**settings))  # type: ignore[arg-type]
        try:
            await story(world)
        finally:
            world.turns.stop()

    asyncio.run(tell())


def test_a_bystander_is_answered_in_the_middle_of_a_flood() -> None:
    async def story(world: LoopWithWires) -> None:
        flood, wire = await world.connect("flood")
        other, _ = await world.connect("other")
        world.turns.read(flood, PINGREQ * 200_000)
        assert not wire.is_read
        world.turns.read(other, PINGREQ)
        await world.quiet()
        names = [name for name, _ in world.journal]
        assert "other" in names
        answered = sum(len(data) for name, data in world.journal[: names.index("other")])
        assert answered < 200_000  # of 400,000 bytes
        assert wire.data == PINGRESP * 200_000
        assert wire.is_read

    run(story)


def test_large_reads_of_many_share_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "_BULK_S", 1e-9)
    monkeypatch.setattr(turns_module, "_SLICE_S", 60.0)  # each by itself is no flood

    async def story(world: LoopWithWires) -> None:
        crowd = [await world.connect(str(one)) for one in range(5)]
        for connection, _ in crowd:
            world.turns.read(connection, PINGREQ * 20_000)
        assert sum(connection.is_waiting for connection, _ in crowd) >= 4
        assert all(wire.is_read != connection.is_waiting for connection, wire in crowd)
        await world.quiet()
        assert all(wire.data == PINGRESP * 20_000 and wire.is_read for _, wire in crowd)

    run(story)


def test_reads_of_a_kilobyte_share_a_turn_and_small_ones_are_handled_in_any_case(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A condition of 9,000 bytes takes 10 ms: thirty clients with one each were half a second."""
    monkeypatch.setattr(turns_module, "_BULK_S", 1e-9)
    monkeypatch.setattr(turns_module, "_SLICE_S", 60.0)

    async def story(world: LoopWithWires) -> None:
        other, _ = await world.connect("other")
        crowd = [await world.connect(str(one)) for one in range(30)]
        for connection, _ in crowd:
            world.turns.read(connection, PINGREQ * 500)
        assert sum(not connection.is_waiting for connection, _ in crowd) == 3  # 2 KiB, and one
        world.turns.read(other, PINGREQ)
        assert not other.is_waiting
        await world.quiet()
        assert all(wire.data == PINGRESP * 500 and wire.is_read for _, wire in crowd)

    run(story)


def test_what_a_client_has_sent_counts_though_its_connection_is_lost() -> None:
    async def story(world: LoopWithWires) -> None:
        flood, _ = await world.connect("flood")
        listener, wire = await world.connect("listener")
        world.turns.read(listener, encode_packet(Subscribe(1, (FilterRequest("last"),))))
        await world.quiet()
        world.journal.clear()
        world.turns.read(flood, PINGREQ * 200_000 + encode_packet(Publish("last", b"word")))
        assert flood.is_waiting
        world.turns.lost(flood)
        await world.quiet()
        assert wire.data == encode_packet(Publish("last", b"word"))
        assert "flood" not in world.node.state.sessions
        assert flood not in world.node.state.connections
        assert not world.turns._gone

    run(story)


def test_a_client_that_does_not_read_its_answers_is_not_read_from() -> None:
    async def story(world: LoopWithWires) -> None:
        deaf, wire = await world.connect("deaf")
        deaf.is_paused = True
        sent = 0
        while wire.is_read and sent < 1_000:
            world.turns.read(deaf, PINGREQ * 1_000)
            await world.quiet()
            sent += 1
        assert sent == 6  # 2,000 bytes each
        assert not wire.data
        world.turns.look_after(deaf)
        assert world.node.counters.unread == 1
        world.turns.resumed(deaf)
        assert wire.is_read
        await world.quiet()
        assert wire.data == PINGRESP * 6_000

    run(story, max_answer_bytes=10_000)


def test_a_client_with_unread_answers_is_not_read_from_once_its_flood_is_taken() -> None:
    async def story(world: LoopWithWires) -> None:
        deaf, wire = await world.connect("deaf")
        deaf.is_paused = True
        world.turns.read(deaf, PINGREQ * 200_000)
        assert deaf.is_waiting
        await world.quiet()
        assert not wire.is_read

    run(story, max_answer_bytes=10_000)


def test_a_client_that_reads_again_is_not_read_from_before_its_flood_is_taken() -> None:
    async def story(world: LoopWithWires) -> None:
        flood, wire = await world.connect("flood")
        world.turns.read(flood, PINGREQ * 200_000)
        world.turns.resumed(flood)
        assert flood.is_waiting
        assert not wire.is_read
        await world.quiet()
        assert wire.is_read

    run(story)


def test_those_who_wait_share_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "_BULK_S", 1e-9)

    async def story(world: LoopWithWires) -> None:
        crowd = [await world.connect(str(one)) for one in range(6)]
        for connection, _ in crowd:
            world.turns._put_off(connection, PINGREQ)
        world.turns._serve()
        assert sum(connection.is_waiting for connection, _ in crowd) >= 4
        await world.quiet()
        assert all(wire.data == PINGRESP for _, wire in crowd)

    run(story)


def test_messages_that_wait_for_a_slow_subscriber_are_no_answers() -> None:
    async def story(world: LoopWithWires) -> None:
        slow, wire = await world.connect("slow")
        world.turns.read(slow, encode_packet(Subscribe(1, (FilterRequest("a"),))))
        await world.quiet()
        slow.is_paused = True
        world.turns.read(slow, encode_packet(Publish("a", b"x" * 50_000)))
        world.turns.read(slow, PINGREQ)
        await world.quiet()
        assert slow.outbox_bytes > 50_000
        assert wire.is_read

    run(story, max_answer_bytes=10_000)


def test_a_client_that_reads_its_many_answers_is_read_from() -> None:
    async def story(world: LoopWithWires) -> None:
        flood, wire = await world.connect("flood")
        world.turns.read(flood, PINGREQ * 100_000)
        assert flood.is_waiting
        await world.quiet()
        assert wire.data == PINGRESP * 100_000
        assert wire.is_read

    run(story, max_answer_bytes=100)


def test_who_waited_without_being_held_is_held_if_its_answers_are_unread() -> None:
    async def story(world: LoopWithWires) -> None:
        deaf, wire = await world.connect("deaf")
        deaf.is_paused = True
        world.node.put_off(deaf, PINGREQ * 100, world.turns.now_ms)
        assert wire.is_read
        world.turns.schedule()
        await world.quiet()
        assert not wire.is_read

    run(story, max_answer_bytes=100)


def test_a_connection_that_closes_is_read_to_its_end() -> None:
    async def story(world: LoopWithWires) -> None:
        closing, wire = await world.connect("closing")
        closing.is_waiting = closing.is_closing = True
        world.turns.look_after(closing)
        assert wire.is_read
        closing.is_waiting = False

    run(story)


class Ticks:
    """A clock that goes on by about a millisecond whenever it is asked."""

    def __init__(self) -> None:
        self.now_s = 1.0

    def __call__(self) -> float:
        self.now_s += 1 / 1_024
        return self.now_s


def test_each_that_waits_has_a_slice_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "perf_counter", Ticks())
    monkeypatch.setattr(turns_module, "_BULK_S", 1.0)
    monkeypatch.setattr(turns_module, "_SLICE_S", 4 / 1_024)

    async def story(world: LoopWithWires) -> None:
        crowd = [await world.connect(str(one)) for one in range(3)]
        for connection, _ in crowd:
            world.node.put_off(connection, PINGREQ * 100, world.turns.now_ms)
        world.turns._serve()
        world.turns.end()
        assert [len(wire.data) // 2 for _, wire in crowd] == [5, 5, 5]
        await world.quiet()
        assert all(wire.data == PINGRESP * 100 for _, wire in crowd)

    run(story)


def test_a_slice_begins_with_whatever_comes_though_the_last_one_is_spent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns_module, "_SLICE_S", 60.0)

    async def story(world: LoopWithWires) -> None:
        done: list[int] = []
        client, _ = await world.connect("c")
        world.turns._slice_until_s = 1e-9
        world.turns.read(client, PINGREQ * 3)
        assert not client.is_waiting

        def work() -> Iterator[None]:
            for one in range(3):
                done.append(one)
                yield

        world.turns._slice_until_s = 1e-9
        world.turns.work(work())
        assert done == [0, 1, 2]
        world.node.state.timers.at(1, done.append, 3)
        world.turns._slice_until_s = 1e-9
        world.turns._wake()
        assert done == [0, 1, 2, 3]

    run(story)


def test_an_alarm_that_is_not_needed_any_more_is_cancelled() -> None:
    async def story(world: LoopWithWires) -> None:
        await world.connect("c")
        await world.quiet()
        now_ms = world.turns.now_ms
        alarms = [world.turns._alarm]
        for delay_ms in (5_000, 3_000):
            world.node.state.timers.at(now_ms + delay_ms, print, None)
            world.turns.end()
            alarms.append(world.turns._alarm)
        assert len(set(alarms)) == 3
        assert [one is None or one.cancelled() for one in alarms] == [True, True, False]
        world.turns.stop()
        assert alarms[-1] is not None
        assert alarms[-1].cancelled()

    run(story)


class Transport:
    """The transport of a WebSocket, as far as the protocol asks for it."""

    def __init__(self) -> None:
        self.data = b""
        self.is_read = True
        self.reads_until = 0

    def write(self, data: bytes) -> None:
        self.data += data

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True


def _websocket(world: LoopWithWires) -> tuple[WebSocketProtocol, Transport]:
    protocol = WebSocketProtocol(world.turns, "0", "/mqtt")
    transport = Transport()
    protocol._transport = transport
    protocol._connection.transport = protocol
    world.node.open(protocol._connection, world.turns.now_ms)
    protocol.data_received(
        b"GET /mqtt HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
    )
    assert b"101" in transport.data
    transport.data = b""
    return protocol, transport


def test_pings_of_a_websocket_leave_room_for_others() -> None:
    async def story(world: LoopWithWires) -> None:
        other, wire = await world.connect("other")
        protocol, transport = _websocket(world)
        protocol.data_received(b"\x89\x80\1\2\3\4" * 40_000)
        assert not transport.is_read
        world.turns.read(other, PINGREQ)
        for _ in range(4):
            await asyncio.sleep(0)
        assert wire.data == PINGRESP
        assert protocol._unread
        await world.quiet()
        assert not protocol._unread
        assert transport.is_read

    run(story)
