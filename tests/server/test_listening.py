"""Ports are taken first and served later."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop

from nearcast.broker import Broker
from nearcast.model.errors import EnvironmentProblem
from nearcast.server.client_log import BrokerAcceptPolicy
from nearcast.server.listeners import listener
from nearcast.server.listeners.listener import take_port

HERE = "127.0.0.1"
loops = pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
MakeLoop = Callable[[], asyncio.AbstractEventLoop]


class Greeter(asyncio.Protocol):
    def connection_made(self, transport: Any) -> None:
        transport.write(b"hello")
        transport.close()


def run(make_loop: MakeLoop, work: Callable[[], Awaitable[None]]) -> None:
    async def all_of_it() -> None:
        async with asyncio.timeout(60):
            await work()

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(all_of_it())


async def heard(host: str, port: int) -> bytes:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        return await reader.read()
    finally:
        writer.close()


@loops
def test_nobody_is_let_in_before_a_door_opens(make_loop: MakeLoop):
    async def work() -> None:
        door = await take_port("tcp", HERE, 0)
        with pytest.raises(ConnectionRefusedError):
            await heard(HERE, door.port)
        await door.open(Greeter)
        assert await heard(HERE, door.port) == b"hello"
        door.close()

    run(make_loop, work)


@loops
def test_a_port_on_which_somebody_listens_is_not_given_until_it_is_let_go(make_loop: MakeLoop):
    async def work() -> None:
        door = await take_port("tcp", HERE, 0)
        rival = await take_port("tcp", HERE, door.port)  # both start at once: the first has it
        await door.open(Greeter)
        with pytest.raises(EnvironmentProblem, match=rf"port {door.port} on 127.0.0.1.*in use"):
            await rival.open(Greeter)
        with pytest.raises(EnvironmentProblem, match=rf"port {door.port} on 127.0.0.1.*in use"):
            await take_port("tcp", HERE, door.port)
        rival.close()
        door.close()
        await asyncio.sleep(0)  # uvloop closes in the next turn
        (await take_port("tcp", HERE, door.port)).close()

    run(make_loop, work)


def test_a_name_with_several_addresses_is_served_on_all_or_on_none(
    monkeypatch: pytest.MonkeyPatch,
):
    def look_up(_host: str, port: int, *_: object, **__: object) -> list[Any]:
        kind = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        return [(*kind, (host, port)) for host in (HERE, "127.0.0.2", HERE)]

    async def work() -> None:
        with socket.create_server((HERE, 0)) as probe:
            port: int = probe.getsockname()[1]
        monkeypatch.setattr(socket, "getaddrinfo", look_up)
        with socket.create_server(("127.0.0.2", port)):
            with pytest.raises(EnvironmentProblem, match="cannot be opened"):
                await take_port("tcp", "both", port)
            socket.create_server((HERE, port)).close()  # it was let go
        door = await take_port("tcp", "both", port)
        await door.open(Greeter)
        monkeypatch.undo()
        assert [await heard(host, port) for host in (HERE, "127.0.0.2")] == [b"hello", b"hello"]
        door.close()

    run(asyncio.new_event_loop, work)


@loops
def test_an_address_of_another_machine_is_told_of(make_loop: MakeLoop):
    async def work() -> None:
        with pytest.raises(EnvironmentProblem, match=r"on 203\.0\.113\.1 cannot be opened"):
            await take_port("tcp", "203.0.113.1", 0)

    run(make_loop, work)


async def test_a_port_on_which_nothing_could_be_accepted_is_served_again_after_a_moment(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(listener, "_PAUSE_S", 0.05)
    door = await take_port("tcp", HERE, 0)
    await door.open(Greeter)
    for taken in door._sockets:
        door._pause(taken, OSError(24, "Too many open files"))
    async with asyncio.timeout(30):
        reader, writer = await asyncio.open_connection(HERE, door.port)
        assert await reader.read() == b"hello"
    writer.close()
    door.close()


def test_a_connection_that_is_closed_at_once_is_counted():
    node = Broker()
    BrokerAcceptPolicy(node).refused()

    assert node.counters.connects_refused == 1
