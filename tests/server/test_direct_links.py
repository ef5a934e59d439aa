"""Nodes that talk without NATS in between: real sockets, and a NATS that can be switched off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest
from tests.support.waiting import WAIT_S, until

from nearcast.broker import Broker, Connection
from nearcast.cluster.cluster import Cluster
from nearcast.cluster.links import LinkTiming
from nearcast.config import load
from nearcast.model import NearcastError
from nearcast.model.errors import EnvironmentProblem
from nearcast.mqtt import Connect, FilterRequest, ProtocolVersion, Publish, Subscribe, encode_packet
from nearcast.server.clock import Clock
from nearcast.server.cluster import direct_links
from nearcast.server.cluster.direct_links import DirectConnection, DirectLinks
from nearcast.server.loop_batches import LoopBatches

DOOR = "127.0.0.1:0"
PATIENT = LinkTiming(silence_ms=1_000_000)
"""What these tests are about must not wait for silence."""


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody go over NATS because this machine stood still for a second."""
    monkeypatch.setattr(direct_links, "DIAL_S", WAIT_S)


class Box:
    """The end of a client's connection: keeps what is written to it."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, chunks: list[bytes]) -> None:
        self.data += b"".join(chunks)

    def finish(self) -> None:
        """Nobody waits for it."""


class Nats:
    """Carries frames in order, and answers who asks for a key."""

    def __init__(self) -> None:
        self.sides: dict[str, Side] = {}
        self.carried = 0
        self.is_there = True
        self.key: str | None = None

    def send(self, sender: str, frames: list[tuple[str, bytes]]) -> None:
        for name, data in frames:
            if self.is_there:
                self.carried += 1
                take = self.sides[name].brought
                asyncio.get_running_loop().call_soon(take, sender, data)

    async def ask(self, name: str) -> str:
        if not self.is_there:
            raise EnvironmentProblem("no NATS")
        return self.key or self.sides[name].doors.key


class Side:
    """A node, its mesh, its turns and its door."""

    def __init__(self, name: str, nats: Nats, door: str | None) -> None:
        self.node = Broker()
        self.mesh = Cluster(name, self.node, random=Random(name), timing=PATIENT)
        self.clock = Clock()
        self.turns = LoopBatches(self.node, self.clock)
        self.doors = DirectLinks("net", door, self.mesh, self.turns, nats.ask, self.received)
        self._nats = nats
        nats.sides[name] = self
        self.turns.on_taken, self.turns.on_written = self.mesh.settle, self._send
        self._ticking = asyncio.create_task(self._tick())
        self.address = ""

    async def open(self) -> None:
        await self.doors.open()
        self.address = self.doors.address

    def brought(self, sender: str, data: bytes) -> None:
        self.received(sender, data)
        self.doors.catch_up(sender)

    def received(self, sender: str, data: bytes) -> None:
        self.turns.schedule()
        self.mesh.receive(sender, data, self.clock.now_ms())

    def _send(self) -> None:
        self._nats.send(self.mesh.name, self.doors.send(self.mesh.take_frames()))

    async def _tick(self) -> None:
        while True:
            self.mesh.advance(self.clock.now_ms())
            self.turns.schedule()
            await asyncio.sleep(0.01)

    def meet(self, other: Side) -> None:
        self.doors.know(other.mesh.name, other.address)
        self.mesh.meet(other.mesh.name, self.clock.now_ms())

    def client(self, *packets: Any) -> tuple[Connection, Box]:
        box = Box()
        connection = Connection("127.0.0.1:1", "tcp")
        connection.transport = box
        self.node.open(connection, self.clock.now_ms())
        self.say(connection, Connect("", version=ProtocolVersion.V5), *packets)
        return connection, box

    def say(self, connection: Connection, *packets: Any) -> None:
        self.turns.schedule()
        data = b"".join(encode_packet(one, ProtocolVersion.V5) for one in packets)
        self.node.receive(connection, data, self.clock.now_ms())

    def is_linked(self, name: str) -> bool:
        return self.mesh.peers[name].connection is not None

    async def stop(self) -> None:
        self._ticking.cancel()
        await self.doors.close()


@asynccontextmanager
async def two(doors: str = "ab") -> AsyncIterator[tuple[Side, Side, Nats]]:
    """Two nodes that have not met; those named have a door."""
    nats = Nats()
    a, b = (Side(name, nats, DOOR if name in doors else None) for name in "ab")
    for side in (a, b):
        await side.open()
    try:
        yield a, b, nats
    finally:
        await a.stop()
        await b.stop()


async def linked(a: Side, b: Side) -> None:
    a.meet(b)
    b.meet(a)
    await until(lambda: a.is_linked("b") and b.is_linked("a"))


async def told(a: Side, b: Side, count: int = 100) -> tuple[Connection, Box]:
    """Let a client of `b` hear all that one of `a` says from now on; return the former's end."""
    _, box = b.client(Subscribe(1, (FilterRequest("t", 1),)))
    await until(lambda: b"\x90" in box.data)
    speaker, _ = a.client()
    say(a, speaker, range(count))
    await until(lambda: all(b"<%d>" % number in box.data for number in range(count)))
    return speaker, box


def say(side: Side, speaker: Connection, numbers: range) -> None:
    side.say(speaker, *(Publish("t", b"<%d>" % one, 1, packet_id=one + 1) for one in numbers))


@pytest.mark.parametrize("doors", ["ab", "a", "b"])
async def test_nodes_talk_directly_where_one_has_a_door(doors: str):
    async with two(doors) as (a, b, nats):
        await linked(a, b)
        assert a.doors.is_direct("b")
        assert b.doors.is_direct("a")
        before = nats.carried
        await told(a, b)
        await told(b, a)
        assert nats.carried == before
        assert a.doors._ways["b"].early is None, "nothing waits for NATS any more"
        assert (a.mesh.peers["b"].link.restarts, b.mesh.peers["a"].link.restarts) == (0, 0)


async def test_without_doors_everything_goes_over_nats():
    async with two("") as (a, b, nats):
        await linked(a, b)
        await told(a, b)
        assert not a.doors.is_direct("b")
        assert nats.carried > 3


async def test_who_is_linked_directly_does_without_nats():
    async with two() as (a, b, nats):
        await linked(a, b)
        nats.is_there = False
        await told(a, b)
        await told(b, a)


async def test_a_connection_that_breaks_loses_nothing_and_is_made_again():
    async with two() as (a, b, _):
        await linked(a, b)
        speaker, box = await told(a, b)
        for first in range(100, 1_000, 100):
            await until(lambda: a.doors.is_direct("b") and b.doors.is_direct("a"))
            say(a, speaker, range(first, first + 100))
            if first % 200:
                await asyncio.sleep(0)
            (a if first % 300 else b).doors._ways["b" if first % 300 else "a"].end()
            await asyncio.sleep(0.01)
        await until(lambda: all(b"<%d>" % number in box.data for number in range(1_000)))
        await until(lambda: a.doors.is_direct("b") and b.doors.is_direct("a"))
        assert a.mesh.peers["b"].link.restarts > 0


async def test_the_end_of_a_connection_is_noticed_at_once():
    async with two() as (a, b, nats):
        await linked(a, b)
        nats.is_there = False
        a.doors.know("b", "")
        await b.stop()
        await until(lambda: not a.doors.is_direct("b"))
        assert a.mesh.peers["b"].link.restarts == 1
        assert not a.is_linked("b")


async def test_a_second_connection_takes_the_place_of_the_first():
    async with two("b") as (a, b, _):
        await linked(a, b)
        first = a.doors._ways["b"]
        a.doors._ways.clear()
        await until(lambda: a.doors.is_direct("b"))
        await until(first._is_gone.is_set)
        await until(lambda: a.is_linked("b") and b.is_linked("a"))
        await told(a, b)


async def test_a_link_that_begins_anew_has_a_connection_of_its_own():
    async with two() as (a, b, _):
        await linked(a, b)
        for side, other in ((a, "b"), (b, "a")):
            before = side.doors._ways[other]
            side.mesh.neighbours.begin_anew(other, "for a reason")
            await until(lambda: not (a.is_linked("b") and b.is_linked("a")))
            await until(lambda: a.is_linked("b") and b.is_linked("a"))
            assert side.doors._ways[other] is not before
            assert a.doors.is_direct("b")
        await told(a, b)


async def test_a_node_that_comes_back_with_another_door_is_reached_there(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(direct_links, "AGAIN_S", 1e9)
    async with two("b") as (a, b, _):
        address, b.address = b.address, ""
        await linked(a, b)
        assert not a.doors.is_direct("b")
        a.doors.know("b", "127.0.0.1:1")  # nobody there
        await until(lambda: "b" in a.doors._tried and a.is_linked("b") and b.is_linked("a"))
        a.doors.know("b", address)
        await until(lambda: a.doors.is_direct("b") and a.is_linked("b") and b.is_linked("a"))
        await told(a, b)


async def test_a_link_over_nats_works_on_while_a_door_is_found_or_not():
    async with two("b") as (a, b, nats):
        address, b.address = b.address, ""
        await linked(a, b)
        speaker, box = await told(a, b)
        found, ask = asyncio.Event(), nats.ask

        async def ask_slowly(name: str) -> str:
            await found.wait()
            return await ask(name)

        a.doors._ask = ask_slowly
        a.doors.know("b", address)
        await until(lambda: "b" in a.doors._dialing)
        say(a, speaker, range(100, 200))
        await until(lambda: b"<199>" in box.data)
        connection = a.mesh.peers["b"].connection
        assert connection is not None
        connection.is_paused = True  # NATS has no room
        found.set()
        await until(lambda: a.doors.is_direct("b"))
        assert not connection.is_paused
        assert a.mesh.peers["b"].link.restarts == 0


@pytest.mark.parametrize("late", [1, 5, 50])
async def test_a_link_over_nats_goes_on_directly_and_nothing_overtakes(late: int):
    """NATS is slow: frames that were with it arrive behind those that go directly."""
    async with two("b") as (a, b, nats):
        address, b.address = b.address, ""
        await linked(a, b)
        speaker, box = await told(a, b)
        waiting: list[tuple[str, list[tuple[str, bytes]]]] = []
        carry, nats.send = nats.send, lambda *one: waiting.append(one)  # type: ignore[method-assign]
        for first in range(100, 100 + late):
            say(a, speaker, range(first, first + 1))
            await asyncio.sleep(0.002)
        a.doors.know("b", address)
        await until(lambda: a.doors.is_direct("b") and b.doors.is_direct("a"))
        say(a, speaker, range(100 + late, 200 + late))
        await until(lambda: bool(b.doors._ways["a"].early))
        assert b"<100>" not in box.data
        for one in waiting:
            carry(*one)
        await until(lambda: b"<%d>" % (199 + late) in box.data)
        places = [box.data.index(b"<%d>" % number) for number in range(200 + late)]
        assert places == sorted(places)
        assert (a.mesh.peers["b"].link.restarts, b.mesh.peers["a"].link.restarts) == (0, 0)


async def test_what_waits_for_frames_that_nats_has_lost_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(direct_links, "EARLY_S", 0.1)
    async with two("b") as (a, b, nats):
        address, b.address = b.address, ""
        await linked(a, b)
        speaker, box = await told(a, b)
        carry, nats.send = nats.send, lambda *_: None  # type: ignore[method-assign]
        say(a, speaker, range(100, 101))
        await asyncio.sleep(0.01)
        a.doors.know("b", address)
        await until(lambda: a.doors.is_direct("b") and b.doors.is_direct("a"))
        nats.send = carry  # type: ignore[method-assign]
        say(a, speaker, range(101, 200))
        await until(lambda: all(b"<%d>" % number in box.data for number in range(200)))
        assert b.mesh.peers["a"].link.restarts > 0


async def test_who_leaves_while_it_is_called_is_not_connected():
    async with two("b") as (a, b, nats):
        found, ask = asyncio.Event(), nats.ask

        async def ask_slowly(name: str) -> str:
            await found.wait()
            return await ask(name)

        a.doors._ask = ask_slowly
        a.meet(b)
        b.meet(a)
        await until(lambda: "b" in a.doors._dialing)
        a.mesh.part("b", a.clock.now_ms())
        a.doors.forget("b")
        found.set()
        await until(lambda: not a.doors._dialing)
        assert not a.doors.is_direct("b")
        way = DirectConnection(a.doors, "b")
        a.doors.use(way)  # it was let in at the very last moment
        assert not a.doors.is_direct("b")


async def test_nobody_is_called_after_the_end():
    async with two("b") as (a, b, _):
        await linked(a, b)
        await a.stop()
        await until(lambda: not a.doors._ways)
        assert a.doors.send([("b", b"frame")]) == [("b", b"frame")]
        assert not a.doors._dialing
        assert not a.doors.awaits(DirectConnection(a.doors))


async def test_the_last_words_are_heard():
    async with two() as (a, b, _):
        await linked(a, b)
        _, box = b.client(Subscribe(1, (FilterRequest("t", 0),)))
        await until(lambda: b"\x90" in box.data)
        speaker, _ = a.client()
        a.say(speaker, *(Publish("t", b"<%d>" % one + bytes(50_000), 0) for one in range(100)))
        a.turns.end()
        await a.stop()
        await until(lambda: b"<99>" in box.data)
        assert all(b"<%d>" % number in box.data for number in range(100))


async def test_a_door_on_all_addresses_is_told_as_one():
    nats = Nats()
    for name, door in (("a", "0.0.0.0:0"), ("b", "localhost:0")):
        side = Side(name, nats, door)
        side.doors.local_host = "192.0.2.7"
        await side.open()
        host, _, port = side.address.rpartition(":")
        assert host == ("192.0.2.7" if name == "a" else "127.0.0.1")
        assert int(port) > 0
        await side.stop()


# --- doors that do not open -----------------------------------------------------------------


async def test_with_a_wrong_key_they_talk_over_nats(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(direct_links, "DIAL_S", 0.2)
    async with two() as (a, b, nats):
        nats.key = "guess"
        await linked(a, b)
        assert not a.doors.is_direct("b")
        assert not b.doors.is_direct("a")
        await told(a, b)


async def test_who_is_not_known_yet_knocks_again():
    async with two("b") as (a, b, _):
        a.meet(b)
        await until(lambda: "b" in a.doors._dialing)
        await asyncio.sleep(0.1)
        b.meet(a)
        await until(lambda: a.is_linked("b") and b.is_linked("a"))
        assert a.doors.is_direct("b")


async def test_where_nobody_listens_they_talk_over_nats():
    async with two("b") as (a, b, _):
        assert b.doors._server is not None
        b.doors._server.close()
        await linked(a, b)
        assert not a.doors.is_direct("b")
        await told(a, b)


@pytest.mark.parametrize(
    "address",
    ["far.example:7400", "x" * 70 + ":1", "127.0.0.1:99999", "127.0.0.1:x", ":", "127.0.0.1"],
)
async def test_an_address_that_is_none_is_left_for_nats(address: str):
    async with two("b") as (a, b, _):
        b.address = address
        await linked(a, b)
        assert not a.doors.is_direct("b")
        await told(a, b)


async def test_a_door_that_says_nothing_is_left_after_a_while(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(direct_links, "DIAL_S", 0.2)
    loop = asyncio.get_running_loop()
    silent = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
    async with two("b") as (a, b, _):
        b.address = f"127.0.0.1:{silent.sockets[0].getsockname()[1]}"
        await linked(a, b)
        assert not a.doors.is_direct("b")
        await told(a, b)
    silent.close()


async def test_a_door_that_was_shut_is_tried_again_while_the_link_is_down(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(direct_links, "AGAIN_S", 0.3)
    async with two("b") as (a, b, nats):
        nats.is_there = False  # nobody to ask for the key, and no other way
        a.meet(b)
        b.meet(a)
        await until(lambda: "b" in a.doors._tried)
        nats.is_there = True
        nats.send = lambda *_: None  # type: ignore[method-assign]
        await until(lambda: a.doors.is_direct("b") and a.is_linked("b"))


@pytest.mark.parametrize(
    "said",
    [
        b"\x10\x10garbage of a client\n",
        b"x" * 2_000,
        b"NEARCAST 1 net b a %s\n" % (b"0" * 32),
        b"NEARCAST 2 net b a KEY\n",
        b"NEARCAST 1 other b a KEY\n",
        b"NEARCAST 1 net stranger a KEY\n",
        b"NEARCAST 1 net b c KEY\n",
        b"NEARCAST 1 net b a\n",
        b"\xff\xfe\n",
    ],
)
async def test_strangers_are_sent_away_and_nobody_notices(
    said: bytes, caplog: pytest.LogCaptureFixture
):
    async with two() as (a, b, _):
        await linked(a, b)
        host, _, port = a.doors.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(said.replace(b"KEY", a.doors.key.encode()))
        assert await reader.read() == b""
        writer.close()
        await told(a, b)
        assert a.mesh.peers["b"].link.restarts == 0
    assert not [one for one in caplog.records if one.levelname != "INFO"]


async def test_a_crowd_of_strangers_is_not_let_in(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(direct_links, "MOST_STRANGERS", 2)
    monkeypatch.setattr(direct_links, "DIAL_S", 2 * WAIT_S)
    async with two() as (a, b, _):
        host, _, port = b.address.rpartition(":")
        first = [await asyncio.open_connection(host, int(port)) for _ in range(2)]
        await until(lambda: len(b.doors._strangers) == 2)
        reader, writer = await asyncio.open_connection(host, int(port))
        async with asyncio.timeout(WAIT_S):
            assert await reader.read() == b""
        for _, one in [*first, (reader, writer)]:
            one.close()
        await until(lambda: not b.doors._strangers)
        await linked(a, b)
        assert a.doors.is_direct("b")
        assert not b.doors._strangers, "it is none any more"


async def test_who_says_nothing_is_sent_away(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(direct_links, "DIAL_S", 0.1)
    async with two("a") as (a, _, _):
        host, _, port = a.doors.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"NEARCAST 1 net")
        assert await reader.read() == b""
        writer.close()


async def test_a_port_in_use_is_said():
    async with two("a") as (a, _, nats):
        taken = Side("c", nats, a.doors.address)
        with pytest.raises(EnvironmentProblem, match=r"network\.direct: cannot listen on 127"):
            await taken.doors.open()
        await taken.stop()


async def test_what_a_node_does_not_read_waits_as_for_a_slow_client():
    async with two() as (a, b, _):
        await linked(a, b)
        peer, way = a.mesh.peers["b"], a.doors._ways["b"]

        def is_paused() -> bool:
            assert peer.connection is not None
            return peer.connection.is_paused

        transport = b.doors._ways["a"]._transport
        assert transport is not None
        transport.pause_reading()
        speaker, _ = a.client()
        _, box = b.client(Subscribe(1, (FilterRequest("t", 0),)))
        await asyncio.sleep(0)
        transport.resume_reading()
        await until(lambda: b"\x90" in box.data)
        transport.pause_reading()
        number = 0
        while not is_paused():
            a.say(speaker, Publish("t", b"<%d>" % number + bytes(500_000), 0))
            number += 1
            await asyncio.sleep(0.001)
        a.say(speaker, Publish("t", b"<%d>" % number, 0))
        transport.resume_reading()
        await until(lambda: b"<%d>" % number in box.data)
        assert not is_paused()
        assert a.doors._ways["b"] is way, "it was slow, not lost"


# --- configuration ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ('direct = "7400"', "no HOST:PORT such as"),
        ('direct = ":7400"', "no HOST:PORT such as"),
        ('direct = "::1:7400"', "no HOST:PORT such as"),
        ('direct = "here:door"', "no HOST:PORT such as"),
        ('direct = "here:70000"', "no HOST:PORT such as"),
        ('direct = "here:7400"\nauthority = "ca.pem"', "not encrypted"),
        ('direct = "here:7400"\njoin = "tls://n:1"', "not encrypted"),
    ],
)
def test_a_door_that_cannot_be_is_refused(tmp_path: Any, lines: str, expected: str):
    path = tmp_path / "nearcast.toml"
    path.write_text(f"[network]\n{lines}\n")
    with pytest.raises(NearcastError, match=expected):
        load(path, {})


@pytest.mark.parametrize("door", ["0.0.0.0:7400", "[::1]:0", "node-1.example:65535"])
def test_a_door_is_a_host_and_a_port(tmp_path: Any, door: str):
    path = tmp_path / "nearcast.toml"
    path.write_text(f'[network]\ndirect = "{door}"\n')
    assert load(path, {}).network.direct == door
