"""Peers over real sockets in one process: who is let in, who is cut off, the Python interface."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.waiting import until

from nearcast.broker import SpaceSettings
from nearcast.broker.publish.message import Message, MessageHead
from nearcast.config import PeerSection
from nearcast.model import Attribute, MisuseError, Space
from nearcast.model.errors import EnvironmentProblem, FileFormatError
from nearcast.overlay.live import introduction
from nearcast.overlay.live.codec import encode_frame
from nearcast.server.overlay import Peer, links, runtime
from nearcast.server.overlay.links import LinkSettings
from nearcast.server.overlay.peer_server import link_settings
from nearcast.server.overlay.spaces import TreeSettings, pack_message, unpack_message

SHOPS = Space(
    name="shops",
    topic_filter="shops/#",
    attributes=(Attribute.number("price", 0, 100), Attribute.number("size", 0, 10)),
)
QUICK = TreeSettings(beat_ms=200)
KEY = "a key that is long enough"


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up contacts that refuse at once."""
    monkeypatch.setattr(runtime, "JOIN_S", 0.0)


async def _joins(peer: Peer) -> str:
    """Return why a peer cannot join; "" if it can."""
    try:
        async with peer:
            return ""
    except EnvironmentProblem as problem:
        return str(problem)


async def _next(peer: Peer) -> tuple[str, bytes]:
    async with asyncio.timeout(60):
        async for event in peer.events:
            return event.topic, event.payload
    raise AssertionError


@pytest.fixture
async def founder() -> AsyncIterator[Peer]:
    async with Peer(SHOPS, key=KEY, tree=QUICK) as peer:
        yield peer


def _other(founder: Peer, space: Space = SHOPS, key: str = KEY, tree: TreeSettings = QUICK) -> Peer:
    return Peer(space, contact=founder.address, key=key, tree=tree)


async def test_python_programs_subscribe_and_publish(founder):
    async with _other(founder) as ann, _other(founder) as bob:
        await ann.subscribe(where="price < 50 and size > 1")
        key = await bob.subscribe(where="price >= 50")
        await bob.publish("shops/1", {"price": 10, "size": 5}, qos=1)
        await founder.publish("shops/2", {"price": 60, "size": 5}, qos=1)
        assert await _next(ann) == ("shops/1", b'{"price": 10, "size": 5}')
        assert await _next(bob) == ("shops/2", b'{"price": 60, "size": 5}')
        await bob.unsubscribe(key)
        await bob.subscribe(where="size = 9")
        await ann.publish("shops/3", {"price": 60, "size": 5}, qos=1)
        await ann.publish("shops/4", {"price": 60, "size": 9}, qos=1)
        assert (await _next(bob))[0] == "shops/4"
        with pytest.raises(MisuseError, match="shops/#"):
            await ann.publish("other/1", {"price": 1})
        with pytest.raises(MisuseError):
            await ann.publish("shops/1", {"price": 1_000})
    assert [event async for event in bob.events] == []


async def test_a_publisher_gets_its_own_event_once(founder):
    async with _other(founder) as ann:
        await ann.subscribe(where="price < 50")
        await ann.subscribe(where="size < 5")
        for qos in (0, 1):
            await ann.publish("shops/1", {"price": 1, "size": 1, "qos": qos}, qos=qos)
        assert [(await _next(ann))[0] for _ in range(2)] == ["shops/1"] * 2
        await until(lambda: not len(ann.runtime.members[0].acks))
        assert ann.events._waiting.empty()


async def test_a_peer_without_the_key_or_with_another_one_is_refused(founder):
    assert "this overlay has a key and you have none" in await _joins(_other(founder, key=""))
    assert "your proof of the key is wrong" in await _joins(_other(founder, key="another key"))
    assert founder.runtime.links.counts.refused == 2
    assert await _joins(_other(founder)) == ""


async def test_a_peer_with_another_space_is_refused(founder):
    wider = replace(SHOPS, attributes=(Attribute.number("price", 0, 200), SHOPS.attributes[1]))
    assert "space shops is declared differently here" in await _joins(_other(founder, wider))
    cars = replace(SHOPS, name="cars")
    assert "this overlay has the spaces shops, you have cars" in await _joins(_other(founder, cars))
    slower = replace(QUICK, beat_ms=5_000)
    assert "declared differently" in await _joins(_other(founder, tree=slower))


async def test_a_peer_of_another_version_is_refused(founder, monkeypatch):
    hello = links.PeerLinks.hello

    def later(self: links.PeerLinks) -> introduction.Hello:
        found = hello(self)
        if self.name != founder.runtime.name:
            fields = {name: getattr(found, name) for name in found.__struct_fields__}
            return introduction.Hello(**fields | {"least_version": 7, "version": 9})
        return found

    monkeypatch.setattr(links.PeerLinks, "hello", later)
    assert "speaks versions 3 to 3, you speak 7 to 9" in await _joins(_other(founder))


async def test_a_contact_that_is_not_there_or_is_the_peer_itself_is_an_error(founder):
    assert "no contact lets this peer join" in await _joins(Peer(SHOPS, contact="127.0.0.1:1"))
    await founder.publish("shops/1", {"price": 1, "size": 1})


async def _said(peer: Peer, data: bytes) -> bytes:
    """Return what a peer answers to some bytes before it closes."""
    host, _, port = peer.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    answer = b""
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(60):
            answer = await reader.read()
    writer.close()
    return answer


async def test_garbage_is_cut_off_and_the_rest_goes_on(founder):
    async with _other(founder) as ann:
        await ann.subscribe()
        for data in (
            b"GET / HTTP/1.1\r\n\r\n",
            b"\xff" * 100,
            encode_frame(introduction.HELLO, b"\xc1 no introduction"),
            encode_frame(introduction.PROOF, bytes(32)),
            encode_frame(99, b""),
        ):
            assert await _said(founder, data)
        assert founder.runtime.links.counts.refused >= 5
        await founder.publish("shops/1", {"price": 1, "size": 1}, qos=1)
        assert (await _next(ann))[0] == "shops/1"


async def test_a_peer_that_breaks_the_protocol_later_is_cut_off(founder):
    async with _other(founder) as ann:
        link = ann.runtime.links._links[founder.runtime.name]
        link.send(encode_frame(200, b"nonsense"))
        link.flush()
        await until(lambda: founder.runtime.links.counts.refused)
        await ann.subscribe()
        await founder.publish("shops/1", {"price": 1, "size": 1}, qos=1)
        assert (await _next(ann))[0] == "shops/1"  # over a new connection


async def test_an_observer_may_ask_and_nothing_else(founder):
    observer = links.PeerLinks(founder.runtime, LinkSettings(key=KEY.encode()), ())
    assert founder.runtime.name.encode() in await observer.ask_state(founder.address)
    stranger = links.PeerLinks(founder.runtime, LinkSettings(), ())
    with pytest.raises(ConnectionError, match="has a key"):
        await stranger.ask_state(founder.address)


async def test_with_certificates_strangers_are_refused(certificates: Path, tmp_path: Path):
    def settings(name: str) -> LinkSettings:
        return link_settings(
            PeerSection(
                certificate=certificates / f"{name}.pem",
                certificate_key=certificates / f"{name}.key",
                authority=certificates / "ca.pem",
            )
        )

    async with Peer(SHOPS, links=settings("server"), tree=QUICK) as one:
        good = Peer(SHOPS, contact=one.address, links=settings("ann"), tree=QUICK)
        async with good:
            await good.subscribe()
            await one.publish("shops/1", {"price": 1, "size": 1}, qos=1)
            assert (await _next(good))[0] == "shops/1"
        plain = Peer(SHOPS, contact=one.address, tree=QUICK)
        assert "TLS" in await _joins(plain)
        bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        bare.check_hostname = False
        bare.load_verify_locations(certificates / "ca.pem")
        stranger = Peer(SHOPS, contact=one.address, links=LinkSettings(dial_tls=bare), tree=QUICK)
        assert "no contact lets this peer join" in await _joins(stranger)


async def test_a_full_peer_refuses_with_a_reason():
    few = LinkSettings(most_links=2)
    async with Peer(SHOPS, links=few, tree=QUICK) as one:
        first = Peer(SHOPS, contact=one.address, tree=QUICK)
        second = Peer(SHOPS, contact=one.address, tree=QUICK)
        third = Peer(SHOPS, contact=one.address, tree=QUICK)
        async with first, second:
            assert "this peer has 2 links already" in await _joins(third)


async def test_events_for_a_peer_that_reads_too_slowly_are_dropped_and_counted(founder):
    async with _other(founder) as ann:
        await ann.subscribe()
        await until(lambda: ann.runtime.name in founder.runtime.links.peers)
        founder.runtime.links._links[ann.runtime.name].pause_writing()
        await founder.publish("shops/1", {"price": 1, "size": 1})
        assert founder.runtime.links.counts.dropped == 1
        await founder.publish("shops/2", {"price": 1, "size": 1}, qos=1)
        founder.runtime.links._links[ann.runtime.name].resume_writing()
        assert (await _next(ann))[0] == "shops/2"  # sent again


async def test_clocks_that_differ_by_a_minute_do_no_harm(founder):
    async with _other(founder) as ann:
        ann._clock._offset_s += 60
        await ann.subscribe(where="price < 50")
        await founder.publish("shops/1", {"price": 1, "size": 1}, qos=1)
        assert (await _next(ann))[0] == "shops/1"
    head = MessageHead(b"\0\x07shops/1", 2, 1)
    packed = pack_message(Message(head, b"{}", expires_at_ms=1_000_500), now_ms=1_000_000)
    late = unpack_message(packed, SHOPS, now_ms=1_060_000)
    assert late.expires_at_ms == 1_060_500  # half a second is left, whatever the clock says


@pytest.mark.parametrize("data", [b"", b"\0\0\0", bytes(30), b"\0" * 4 + b"\xff" * 40])
def test_a_damaged_message_is_refused(data):
    with pytest.raises(FileFormatError):
        unpack_message(data, SHOPS, 0)


def test_a_message_of_another_topic_is_refused():
    packed = pack_message(Message(MessageHead(b"\0\x05other", 2, 1), b"{}"), 0)
    with pytest.raises(FileFormatError, match="other"):
        unpack_message(packed, SpaceSettings(space=SHOPS).space, 0)
