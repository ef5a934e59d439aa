"""A slow line between nodes: an answer overtakes its question, except where there is an order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nearcast.demo.nodes import Brokers
from nearcast.demo.opening import SLOW_S, OrderOfArrival, try_causal
from nearcast.demo.slow_line import SlowLine
from nearcast.demo.telling import order_table

FRAME = b"MSG nearcast.net.frames.west.%s 1 %d\r\n%s\r\n"
Ends = tuple[SlowLine, asyncio.StreamWriter, asyncio.StreamReader]


def message(sender: bytes, content: bytes) -> bytes:
    return FRAME % (sender, len(content), content)


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    """Yield a line, the end at which NATS writes, and the end at which the node reads."""
    found: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
    nats = await asyncio.start_server(lambda _, writer: found.put_nowait(writer), "127.0.0.1", 0)
    line = SlowLine(nats.sockets[0].getsockname()[1], "north.1")
    reader, writer = await asyncio.open_connection("127.0.0.1", await line.start())
    far = await found.get()
    yield line, far, reader
    for one in (writer, far):
        one.close()
    await line.stop()
    nats.close()


async def test_one_sender_is_slow_and_in_order_and_nobody_else_waits(ends: Ends):
    line, nats, node = ends
    slow = [message(b"north=2E1", b"%d\r\nMSG x" % number) for number in range(50)]
    quick = message(b"east", b"east")
    async with line.slow(0.3):
        begun_s = asyncio.get_running_loop().time()
        nats.write(b"INFO {}\r\n" + b"".join(slow[:40]) + quick + b"PING\r\n")
        first = b"INFO {}\r\n" + quick + b"PING\r\n"
        assert await node.readexactly(len(first)) == first
        assert asyncio.get_running_loop().time() - begun_s < 0.25
        await asyncio.sleep(0.05)
    nats.write(b"".join(slow[40:]))  # it is quick again, and overtakes nothing
    assert await node.readexactly(len(b"".join(slow))) == b"".join(slow)
    assert asyncio.get_running_loop().time() - begun_s >= 0.3
    nats.write(slow[0])
    assert await node.readexactly(len(slow[0])) == slow[0]


async def test_the_end_of_one_side_is_that_of_the_other(ends: Ends):
    _, nats, node = ends
    nats.close()
    assert await asyncio.wait_for(node.read(), 10) == b""


@pytest.mark.server
async def test_in_the_demonstration_the_answer_waits_in_causal_order_only(tmp_path: Path):
    async with Brokers(tmp_path) as brokers:
        if brokers.line is None:
            pytest.skip("nats-server is not installed (make setup)")
        found = await try_causal(brokers.ports, brokers.line)
    assert [word for word, _ in found.plain] == ["answer", "question"]
    assert [word for word, _ in found.causal] == ["question", "answer"]
    assert found.is_right
    assert found.plain[0][1] < SLOW_S <= found.plain[1][1]
    assert found.causal[0][1] >= SLOW_S


def test_what_came_in_the_wrong_order_is_not_right():
    early, late = ("answer", 0.1), ("question", 1.2)
    assert not OrderOfArrival([early, late], [early, late]).is_right
    assert not OrderOfArrival([early, late], [late]).is_right
    found = OrderOfArrival([early, late], [late, ("answer", 1.2)])
    assert found.is_right
    assert order_table(found).rows == (
        ("plain topic", "answer, 0.10 s", "question, 1.20 s"),
        ("causal order", "question, 1.20 s", "answer, 1.20 s"),
    )
