"""Peers over real sockets, behind proxies that can cut the network in two; clocks that disagree."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from types import SimpleNamespace

from tests.support.waiting import until

from nearcast.model import Attribute, Space
from nearcast.server.local_cluster import free_port
from nearcast.server.overlay import Peer
from nearcast.server.overlay.spaces import TreeSettings

SHOPS = Space(
    name="shops",
    topic_filter="shops/#",
    attributes=(Attribute.number("price", 0, 100), Attribute.number("size", 0, 10)),
)
QUICK = TreeSettings(beat_ms=200)


class CuttingProxy:
    """Stands before one peer; cuts off those callers whose addresses are in `cut`."""

    def __init__(self) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.target = f"127.0.0.1:{free_port()}"
        self.cut: set[str] = set()
        self._flows: dict[asyncio.StreamWriter, str] = {}
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, *self.address.split(":"))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await reader.read(1 << 16)  # the introduction: it begins with the caller's name
        caller = first.partition(b"127.0.0.1:")[2].partition(b"/")[0].decode(errors="replace")
        caller = f"127.0.0.1:{caller}"
        if caller in self.cut:
            writer.transport.abort()
            return
        with contextlib.suppress(OSError):
            back, onward = await asyncio.open_connection(*self.target.split(":"))
            onward.write(first)
            self._flows[writer] = self._flows[onward] = caller
            await asyncio.gather(self._copy(reader, onward), self._copy(back, writer))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
        writer.transport.abort()

    def apart(self, callers: set[str]) -> None:
        """Cut these callers off from now on; others are let through."""
        self.cut = callers
        for writer, caller in self._flows.items():
            if caller in callers:
                writer.transport.abort()

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self.apart(set(self._flows.values()))


async def _reaches(publisher: Peer, listener: Peer, price: float, *, within_s: float) -> bool:
    """Return whether an event arrives in time."""
    await publisher.publish("shops/1", {"price": price, "size": 1}, qos=1)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            async for event in listener.events:
                if event.values["price"] == price:
                    return True
    return False


def _roots(peers: list[Peer]) -> int:
    seats = [seat for one in peers for seat in one.runtime.members[0].core.seats.values()]
    return sum(seat.parent is None for seat in seats)


async def test_a_network_that_is_cut_in_two_goes_on_on_both_sides_and_heals():
    proxies = [CuttingProxy() for _ in range(6)]
    addresses = [one.address for one in proxies]
    peers: list[Peer] = []
    async with contextlib.AsyncExitStack() as stack:
        for place, proxy in enumerate(proxies):
            await proxy.open()
            stack.push_async_callback(proxy.close)
            peer = Peer(SHOPS, contact=addresses[:place][-2:], tree=QUICK)
            host, port = proxy.target.split(":")
            peer._settings = replace(
                peer._settings, host=host, port=int(port), advertised=proxy.address
            )
            peers.append(await stack.enter_async_context(peer))
            await peer.subscribe(where=f"price = {10 * place}..{10 * place + 9}")
        await until(lambda: _roots(peers) == 1)
        assert await _reaches(peers[0], peers[5], 55, within_s=60)
        west, east = set(addresses[:3]), set(addresses[3:])
        for proxy in proxies:
            proxy.apart(east if proxy.address in west else west)
        await until(lambda: _roots(peers[:3]) == 1 and _roots(peers[3:]) == 1)
        assert await _reaches(peers[0], peers[2], 21, within_s=60)
        assert await _reaches(peers[3], peers[5], 51, within_s=60)
        assert not await _reaches(peers[0], peers[4], 41, within_s=1)
        for proxy in proxies:
            proxy.apart(set())
        await until(lambda: _roots(peers) == 1)
        assert await _reaches(peers[5], peers[0], 3, within_s=60)
        assert await _reaches(peers[1], peers[4], 43, within_s=60)


async def test_a_peer_whose_clock_is_off_by_a_minute_works_as_the_others(monkeypatch):
    """Nothing between peers depends on what day it is: lifetimes travel as the time left."""
    async with Peer(SHOPS, tree=QUICK) as founder:
        await founder.subscribe(where="price < 50")
        late = Peer(SHOPS, contact=founder.address, tree=QUICK)
        now_ms = late._clock.now_ms
        monkeypatch.setattr(late, "_clock", SimpleNamespace(now_ms=lambda: now_ms() - 60_000))
        async with late:
            now = late.runtime.now
            monkeypatch.setattr(late.runtime, "now", lambda: now() + 60_000)
            await late.subscribe(where="price >= 50")
            assert await _reaches(founder, late, 60, within_s=60)
            assert await _reaches(late, founder, 10, within_s=60)
        await until(lambda: _roots([founder]) == 1)
