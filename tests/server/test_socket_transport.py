"""Plain connections on a transport of ours: what asyncio's own would tell, ours tells too."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from nearcast.broker import Broker
from nearcast.client.blocking import BlockingClient, BrokerAddress
from nearcast.config import (
    Configuration,
    DurabilitySection,
    HttpSection,
    ListenerSection,
    NodeSection,
)
from nearcast.mqtt import (
    Connect,
    Disconnect,
    FilterRequest,
    Packet,
    PacketReader,
    ProtocolVersion,
    Publish,
    Subscribe,
    encode_packet,
)
from nearcast.server import Server
from nearcast.server.clock import Clock
from nearcast.server.listeners.listener import Listener, take_port
from nearcast.server.loop_batches import LoopBatches
from nearcast.server.sockets import calls
from nearcast.server.sockets.transport import SocketLoop

HERE = "127.0.0.1"
LARGE = 8 << 20
loops = pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
ways = pytest.mark.parametrize("is_ours", [True, False], ids=["ours", "asyncio's"])
MakeLoop = Callable[[], asyncio.AbstractEventLoop]


class Recorder(asyncio.Protocol):
    """Records what its transport tells it."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.got = b""
        self.transport: Any = None
        self.lost = asyncio.get_running_loop().create_future()
        self.connected = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.set_write_buffer_limits(high=1 << 20)
        self.told.append(("made", transport.get_extra_info("peername")[0]))
        self.connected.set_result(self)

    def data_received(self, data: bytes) -> None:
        self.got += data

    def eof_received(self) -> None:
        self.told.append("eof")

    def pause_writing(self) -> None:
        self.told.append("pause")

    def resume_writing(self) -> None:
        self.told.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.told.append(("lost", None if exc is None else type(exc).__name__))
        self.lost.set_result(None)

    def set_direct(self, *, is_direct: bool) -> None:
        pass


class SocketWorld:
    """A listener whose connections are recorders, and clients of it."""

    def __init__(self, sockets: SocketLoop | None, door: Listener) -> None:
        self.sockets, self.door = sockets, door
        self.accepted: asyncio.Queue[Recorder] = asyncio.Queue()

    def make(self) -> Recorder:
        one = Recorder()
        self.accepted.put_nowait(one)
        return one

    async def connect(self) -> tuple[socket.socket, Recorder]:
        client = socket.socket()
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, (HERE, self.door.port))
        recorder = await self.accepted.get()
        await recorder.connected
        return client, recorder


def run(
    make_loop: MakeLoop, story: Callable[[SocketWorld], Awaitable[None]], *, is_ours: bool
) -> None:
    async def tell() -> None:
        async with asyncio.timeout(60):
            sockets = SocketLoop(LoopBatches(Broker(), Clock())) if is_ours else None
            door = await take_port("tcp", HERE, 0)
            world = SocketWorld(sockets, door)
            await door.open(world.make, plain=sockets)
            try:
                await story(world)
            finally:
                door.close()
                if sockets is not None:
                    sockets.close()

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(tell())


async def read_all(client: socket.socket) -> bytes:
    """Return all bytes until the other side has closed."""
    found = []
    with contextlib.suppress(ConnectionResetError):
        while data := await asyncio.get_running_loop().sock_recv(client, 1 << 20):
            found.append(data)
    return b"".join(found)


def fail(_data: bytes) -> None:
    raise ZeroDivisionError


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - no event tells of it
        await asyncio.sleep(0.001)


@loops
@ways
def test_bytes_go_both_ways_and_the_end_is_told(make_loop: MakeLoop, is_ours: bool) -> None:
    async def story(world: SocketWorld) -> None:
        client, recorder = await world.connect()
        client.send(b"question")
        await until(lambda: recorder.got == b"question")
        recorder.transport.write(b"answer")
        assert await asyncio.get_running_loop().sock_recv(client, 100) == b"answer"
        client.close()
        await recorder.lost
        assert recorder.told == [("made", HERE), "eof", ("lost", None)]
        assert recorder.transport.is_closing()

    run(make_loop, story, is_ours=is_ours)


@loops
@ways
def test_what_the_client_does_not_read_waits_and_pauses_the_writer(
    make_loop: MakeLoop, is_ours: bool
) -> None:
    async def story(world: SocketWorld) -> None:
        client, recorder = await world.connect()
        pattern = os.urandom(1 << 20)
        for _ in range(LARGE >> 20):
            recorder.transport.write(pattern)
        assert recorder.told[1:] == ["pause"]
        assert recorder.transport.get_write_buffer_size() > 1 << 20
        got = b""
        while len(got) < LARGE:
            got += await asyncio.get_running_loop().sock_recv(client, 1 << 20)
        assert got == pattern * (LARGE >> 20)
        await until(lambda: recorder.told[1:] == ["pause", "resume"])
        assert recorder.transport.get_write_buffer_size() == 0
        recorder.transport.write(b"more")
        assert await asyncio.get_running_loop().sock_recv(client, 100) == b"more"
        client.close()
        await recorder.lost

    run(make_loop, story, is_ours=is_ours)


@loops
@ways
@pytest.mark.parametrize("how", ["close", "write_eof"])
def test_an_end_waits_until_all_is_sent(make_loop: MakeLoop, is_ours: bool, how: str) -> None:
    async def story(world: SocketWorld) -> None:
        client, recorder = await world.connect()
        recorder.transport.write(b"x" * LARGE)
        getattr(recorder.transport, how)()
        if how == "write_eof":
            client.send(b"heard")
        assert len(await read_all(client)) == LARGE
        if how == "write_eof":
            await until(lambda: recorder.got == b"heard")
            assert not recorder.lost.done()
        client.close()
        await recorder.lost
        assert recorder.told[-1] == ("lost", None)

    run(make_loop, story, is_ours=is_ours)


@loops
@ways
def test_nothing_is_read_while_reading_is_paused(make_loop: MakeLoop, is_ours: bool) -> None:
    async def story(world: SocketWorld) -> None:
        client, recorder = await world.connect()
        recorder.transport.pause_reading()
        client.send(b"early")
        await asyncio.sleep(0.05)
        assert recorder.got == b""
        recorder.transport.resume_reading()
        await until(lambda: recorder.got == b"early")
        recorder.transport.pause_reading()
        client.send(b", late")
        client.close()
        await asyncio.sleep(0.05)
        assert not recorder.lost.done()
        recorder.transport.resume_reading()
        await recorder.lost
        assert recorder.got == b"early, late"

    run(make_loop, story, is_ours=is_ours)


@loops
@ways
def test_an_abort_ends_it_at_once(make_loop: MakeLoop, is_ours: bool) -> None:
    async def story(world: SocketWorld) -> None:
        client, recorder = await world.connect()
        recorder.transport.write(b"x" * LARGE)
        recorder.transport.abort()
        recorder.transport.abort()
        recorder.transport.write(b"nothing")
        await recorder.lost
        assert recorder.told[-1] == ("lost", None)
        assert len(await read_all(client)) < LARGE
        client.close()

    run(make_loop, story, is_ours=is_ours)


@loops
@ways
def test_a_reset_is_told_with_its_reason(make_loop: MakeLoop, is_ours: bool) -> None:
    async def story(world: SocketWorld) -> None:
        client, recorder = await world.connect()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        client.close()
        await recorder.lost
        assert recorder.told[-1] == ("lost", "ConnectionResetError")

    run(make_loop, story, is_ours=is_ours)


@loops
def test_a_protocol_that_raises_loses_its_own_connection_only(make_loop: MakeLoop) -> None:
    async def story(world: SocketWorld) -> None:
        assert world.sockets is not None
        failures = world.sockets.turns.node.failures
        failures.listener = lambda *_: None
        client, recorder = await world.connect()
        other, its_recorder = await world.connect()
        recorder.data_received = fail  # type: ignore[method-assign, assignment]
        client.send(b"x")
        other.send(b"y")
        await recorder.lost
        await until(lambda: its_recorder.got == b"y")
        assert failures.count == 1
        assert not its_recorder.lost.done()
        client.close()
        other.close()
        await its_recorder.lost

    run(make_loop, story, is_ours=True)


@loops
def test_what_was_read_in_the_batch_that_stopped_it_is_kept(make_loop: MakeLoop) -> None:
    async def story(world: SocketWorld) -> None:
        client, recorder = await world.connect()
        other, its_recorder = await world.connect()
        pair = [recorder, its_recorder]

        def stop_the_other(data: bytes) -> None:
            for one in pair:
                one.transport.pause_reading()
            recorder.got += data

        for one in pair:
            one.data_received = stop_the_other  # type: ignore[method-assign]
        for end in (client, other):
            end.send(b"x")
        await asyncio.sleep(0.05)
        before = recorder.got
        for one in pair:
            one.transport.resume_reading()
        await until(lambda: recorder.got == b"xx")
        assert before in (b"x", b"xx")
        client.close()
        other.close()
        for one in pair:
            one.transport.resume_reading()
            await one.lost

    run(make_loop, story, is_ours=True)


@loops
def test_the_end_of_the_server_closes_everything(make_loop: MakeLoop) -> None:
    async def story(world: SocketWorld) -> None:
        assert world.sockets is not None
        client, _ = await world.connect()
        aborted, recorder = await world.connect()
        recorder.transport.abort()  # its end is still to be reported
        late, late_recorder = await world.connect()
        late_recorder.transport.write_eof()
        world.sockets.close()
        late_recorder.transport.abort()  # as the timer of a connection that is closing does
        assert await read_all(late) == b""
        late.close()
        assert await read_all(client) == b""
        assert await read_all(aborted) == b""
        client.close()
        aborted.close()
        await asyncio.sleep(0)

    run(make_loop, story, is_ours=True)


# --- a server that reads its sockets together --------------------------------------------------


@pytest.mark.server
@pytest.mark.parametrize("version", [ProtocolVersion.V311, ProtocolVersion.V5])
@pytest.mark.parametrize("durability", ["off", "process", "power"])
def test_a_server_that_reads_its_sockets_together_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: ProtocolVersion, durability: Any
) -> None:
    monkeypatch.setattr(calls, "IS_IN_C", True)  # in Python, too, where nothing is compiled
    server = Server(
        Configuration(
            node=NodeSection(data=tmp_path),
            listener=[ListenerSection(port=0)],
            durability=DurabilitySection(mode=durability),
            http=HttpSection(address="off"),
        )
    )
    texts = [b"small", b"x" * 1_000_000, b"", b"y" * 20_000, *map(b"%d".__mod__, range(200))]

    def talk(port: int) -> None:
        address = BrokerAddress(port=port, version=version)
        with BlockingClient(address) as reader, BlockingClient(address) as writer:
            reader.subscribe(FilterRequest("t/#", 2))
            for qos in (0, 1, 2):
                for text in texts:
                    writer.publish([Publish("t/lone", text, qos)])
                writer.publish([Publish("t/run", text, qos) for text in texts])
            got = [reader_message.payload for reader_message in take(reader, 6 * len(texts))]
            assert sorted(got) == sorted(texts * 6)
            writer.publish([Publish("t/end", b"end", 1)])
            assert [one.payload for one in take(reader, 1)] == [b"end"]

    async def serve() -> None:
        await server.start()
        try:
            assert server._sockets is not None
            await asyncio.to_thread(talk, server.ports[0][2])
        finally:
            await server.stop()
        assert server.node.failures.count == 0

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())


def take(client: BlockingClient, count: int) -> list[Publish]:
    return list(itertools.islice(client.messages(60.0), count))


@pytest.mark.server
def test_a_client_that_leaves_gets_what_was_sent_before_and_then_the_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(calls, "IS_IN_C", True)
    server = Server(
        Configuration(
            node=NodeSection(data=tmp_path),
            listener=[ListenerSection(port=0)],
            durability=DurabilitySection(mode="off"),
            http=HttpSection(address="off"),
        )
    )
    packets: list[Packet] = [Connect("leaver"), Subscribe(1, (FilterRequest("t", 0),))]
    packets += [Publish("t", b"x" * 900_000, 1, packet_id=number) for number in range(1, 7)]
    packets += [Disconnect()]

    def talk(port: int) -> list[Any]:
        with socket.create_connection((HERE, port)) as client:
            client.sendall(b"".join(encode_packet(one) for one in packets))
            reader = PacketReader()
            found: list[Any] = []
            while data := client.recv(1 << 20):
                found += reader.feed(data)
            return found

    async def serve() -> list[Any]:
        await server.start()
        try:
            return await asyncio.to_thread(talk, server.ports[0][2])
        finally:
            await server.stop()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        got = Counter(type(one).__name__ for one in runner.run(serve()))
    assert got == {"Connack": 1, "Suback": 1, "PublishAnswer": 6, "Publish": 6}
