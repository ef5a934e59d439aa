"""A connection that is lost is freed at once: nothing of it waits for the garbage collector.

Thousands of connections in circles were freed by one collection, for which all clients waited.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop
from tests.support.waiting import until

from nearcast.broker import Connection
from nearcast.config import (
    Configuration,
    DurabilitySection,
    ListenerSection,
    NodeSection,
    RatesSection,
)
from nearcast.mqtt import Connect, encode_packet
from nearcast.server import Server
from nearcast.server.listeners.websocket_frames import BINARY

pytestmark = pytest.mark.server

COUNT = 20
LOGIN = encode_packet(Connect("c", keep_alive_s=0))
UPGRADE = (
    b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
)


def framed(data: bytes) -> bytes:
    """Return a frame of a client, with a mask of zeros."""
    return bytes((0x80 | BINARY, 0x80 | len(data))) + bytes(4) + data


@pytest.fixture
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def connections_in_memory() -> int:
    return sum(isinstance(one, Connection) for one in gc.get_objects())


async def come_and_go(port: int, sent: bytes, number: int) -> None:
    """Connect, send, read what is answered if anything is, and close."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent.replace(b"\0\1c", b"\0\1%c" % (ord("a") + number)))
    if sent:
        assert await reader.read(1)
    writer.close()
    await writer.wait_closed()


@pytest.mark.usefixtures("_no_collector")
@pytest.mark.parametrize("rate", [None, "1000/s"])
@pytest.mark.parametrize("sent", [b"", LOGIN[:9], LOGIN], ids=["nothing", "half", "login"])
@pytest.mark.parametrize("kind", ["tcp", "ws"])
def test_it_is_freed_at_once(kind: str, sent: bytes, rate: str | None, tmp_path: Path) -> None:
    configuration = Configuration(
        node=NodeSection(data=tmp_path),
        listener=[ListenerSection(port=0, kind=kind)],  # type: ignore[arg-type]
        durability=DurabilitySection(mode="off"),
        rates=RatesSection(messages_client=rate),
    )
    is_half = 0 < len(sent) < len(LOGIN)

    async def run() -> None:
        server = Server(configuration)
        await server.start()
        before = connections_in_memory()
        for number in range(COUNT):
            data = UPGRADE + framed(sent) if kind == "ws" and sent else sent
            if is_half and kind == "tcp":
                _, writer = await asyncio.open_connection("127.0.0.1", server.ports[0][2])
                writer.write(data)
                await writer.drain()
                writer.close()
            else:
                await come_and_go(server.ports[0][2], data, number)
        await until(lambda: server.node.connection_count == 0)
        await asyncio.sleep(0)
        await until(lambda: connections_in_memory() <= before, 10)
        await server.stop()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
