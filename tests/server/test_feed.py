"""What clients of a network publish is in its feed, each publication once."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client as Nats
from nats.aio.msg import Msg
from nats.js.errors import NotFoundError
from tests.support.waiting import WAIT_S, wait_for

from nearcast.client.blocking import BlockingClient, BrokerAddress
from nearcast.config import Configuration
from nearcast.model.errors import EnvironmentProblem, PeerProtocolError
from nearcast.mqtt import FilterRequest, Properties, Publish
from nearcast.nats.feed_messages import (
    VERSION,
    Publication,
    decode_publication,
    encode_publication,
    stream_name,
)
from nearcast.server.feed.numbers import FeedNumbers
from nearcast.server.local_cluster import ChildProcess, LocalCluster, find_nats_server, free_port

pytestmark = pytest.mark.server

CONFIG = """
[limits]
inflight = 60
[network]
name = "{network}"
feed = ["city/#", "near/#"]
feed_size = "{size}"
[[space]]
name = "near"
topics = "near/#"
[space.attributes]
x = {{ low = 0, high = 100 }}
"""
MARK = "city/mark"
SIZES = {"nearcast": "64MiB", "tight": "20KiB", "absurd": "900000GiB"}


@dataclass
class FedTown:
    """Two nodes of one network, and networks with little and with too much room in JetStream."""

    fleet: LocalCluster
    address: str
    nats_port: int
    folder: Path
    nodes: dict[str, ChildProcess]

    def begin(self, name: str, port: int, network: str = "nearcast") -> None:
        config = self.folder / f"{network}.toml"
        config.write_text(CONFIG.format(network=network, size=SIZES[network]))
        self.nodes[name] = self.fleet.start_node(name, port, self.address, config)

    def start(self, name: str, port: int) -> None:
        self.begin(name, port)
        self.fleet.wait_until_ready()

    def kill(self, name: str) -> int:
        child = self.nodes.pop(name)
        os.kill(child.pid, signal.SIGKILL)
        child.end(10)
        self.fleet.nodes.remove(child)
        return child.port

    def kill_nats(self) -> None:
        assert self.fleet._nats is not None
        os.kill(self.fleet._nats.pid, signal.SIGKILL)
        self.fleet._nats.end(10)

    def start_nats(self) -> None:
        self.fleet.start_nats(self.nats_port)

    def publish(self, name: str, *messages: Publish) -> None:
        with self.client(name) as client:
            client.publish(messages)

    def client(self, name: str) -> BlockingClient:
        return BlockingClient(BrokerAddress(port=self.nodes[name].port, timeout_s=WAIT_S))

    def end(self) -> int:
        """Return how many messages the feed has had."""
        return asyncio.run(marks(self.address, "nearcast"))[1]

    def wait_until_fed(self, name: str) -> None:
        """Return once even what nobody acknowledges is fed, and nothing is under way."""
        before, last = self.end(), Publish("city/begin", name.encode(), 1)

        def is_fed() -> bool:
            self.publish(name, Publish("city/begin", b"", 0))
            return self.end() > before

        wait_for(is_fed)
        self.publish(name, last)
        wait_for(lambda: last.payload in (one.payload for one in self.read(before)))

    def read(self, since: int) -> list[Publication]:
        return asyncio.run(read_since(self.address, since))

    def fed(self, since: int, count: int) -> list[Publication]:
        """Return what came after a number, up to a mark of each node behind so many messages."""
        wait_for(lambda: self.end() >= since + count)
        marks = {f"{name} {time.monotonic_ns()}".encode() for name in ("a", "b")}
        for one in marks:
            self.publish(one.decode()[0], Publish(MARK, one, 1))
        wait_for(lambda: marks <= {one.payload for one in self.read(since)})
        return [one for one in self.read(since) if one.topic != MARK]


async def marks(address: str, network: str) -> tuple[int, int]:
    """Return the number before the first message, and that of the last."""
    nats = Nats()
    await nats.connect(address, connect_timeout=WAIT_S)
    try:
        info = await nats.jetstream(timeout=WAIT_S).stream_info(stream_name(network))
        return info.state.first_seq - 1, info.state.last_seq
    except NotFoundError:
        return 0, 0
    finally:
        await nats.close()


async def until_tried(address: str, network: str, count: int) -> None:
    """Wait until a node has asked JetStream for its stream so many times from now on."""
    nats, seen, is_tried = Nats(), Counter[str](), asyncio.Event()
    await nats.connect(address, connect_timeout=WAIT_S)

    async def take(request: Msg) -> None:
        seen[request.subject] += 1
        if max(seen.values()) >= count:
            is_tried.set()

    try:
        await nats.subscribe(f"$JS.API.STREAM.*.{stream_name(network)}", cb=take)
        async with asyncio.timeout(WAIT_S):
            await is_tried.wait()
    finally:
        await nats.close()


async def read_since(address: str, since: int) -> list[Publication]:
    _, last = await marks(address, "nearcast")
    nats = Nats()
    await nats.connect(address, connect_timeout=WAIT_S)
    try:
        stream, name = nats.jetstream(timeout=WAIT_S), stream_name("nearcast")
        return [
            decode_publication((await stream.get_msg(name, number)).data or b"")
            for number in range(since + 1, last + 1)
        ]
    finally:
        await nats.close()


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FedTown]:
    try:
        find_nats_server()
    except EnvironmentProblem:
        pytest.skip("nats-server is not installed (make setup)")
    folder = tmp_path_factory.mktemp("town")
    with LocalCluster(folder) as fleet:
        nats_port = free_port()
        town = FedTown(fleet, fleet.start_nats(nats_port), nats_port, folder, {})
        for name, network in (("a", "nearcast"), ("b", "nearcast")):
            town.begin(name, free_port(), network)
        for network in ("tight", "absurd"):
            town.begin(network, free_port(), network)
        fleet.wait_until_ready()
        for name, other in (("a", "b"), ("b", "a")):
            wait_for(lambda: town.nodes[name].has_said(f"the link to node {other} is up"))  # noqa: B023 - now
            town.wait_until_fed(name)
        yield town


def plain(count: int, qos: int = 1, topic: str = "city/x", first: int = 0) -> list[Publish]:
    return [Publish(topic, f"{qos}-{n}".encode(), qos) for n in range(first, first + count)]


def test_each_publication_is_there_once_by_the_node_of_publication(town: FedTown):
    asked = Properties(user_properties=(("$top", "2"), ("colour", "red")))
    sent = [
        *(one for qos in range(3) for one in plain(40, qos)),
        Publish("city/kept", b"kept", 1, retain=True),
        Publish("near/x", b'{"x": 5}', 1),
        Publish("near/x", b'{"x": 6}', 0),
        Publish("near/x", b'{"x": 7}', 2, properties=asked),
        Publish("near/x", b"no json", 1),  # no event of its space, and yet a publication
        Publish("city/props", b"", 1, properties=Properties(user_properties=(("k", "v"),) * 2)),
    ]
    since = town.end()
    with town.client("b") as there:  # so that they cross as well
        there.subscribe(FilterRequest("#", 2), FilterRequest("$where/x<50/near/#", 1))
        town.publish("a", *sent, Publish("elsewhere", b"", 1))
        town.publish("b", Publish("city/b", b"from b", 1))
        fed = town.fed(since, len(sent) + 1)
        crossed = islice(there.messages(WAIT_S), len(sent))
        assert len(list(crossed)) == len(sent)
    assert Counter((one.topic, one.payload) for one in fed) == Counter(
        (one.topic, one.payload) for one in [*sent, Publish("city/b", b"from b")]
    )
    pairs = {one.payload: one.pairs for one in fed}
    assert pairs[b'{"x": 7}'] == (("colour", "red"),)
    assert pairs[b""] == (("k", "v"), ("k", "v"))
    for qos in range(3):  # those of one publisher and QoS are in order
        mine = [one.payload for one in fed if one.payload.startswith(f"{qos}-".encode())]
        assert mine == [one.payload for one in plain(40, qos)]


def test_exactly_once_publications_give_their_identifiers_back(town: FedTown):
    since = town.end()
    for first in (0, 40, 80, 120):  # more in all than may be unanswered at a time
        town.publish("a", *plain(40, 2, first=first))
    fed = town.fed(since, 160)
    assert [one.payload for one in fed] == [one.payload for one in plain(160, 2)]


def test_a_nats_that_is_away_holds_nobody_up_and_all_follows_once(town: FedTown):
    since = town.end()
    town.publish("a", *plain(10))
    assert len(town.fed(since, 10)) == 10
    town.kill_nats()
    began = time.monotonic()
    town.publish("a", *plain(200, first=10))
    town.publish("a", *plain(20, 2))
    assert time.monotonic() - began < 120  # it takes a moment, and NATS would never answer
    port = town.kill("a")  # with all of it in its journal
    town.start_nats()
    town.start("a", port)
    town.publish("a", Publish("city/last", b"last", 1))
    fed = town.fed(since, 231)
    assert Counter(one.payload for one in fed) == Counter(
        one.payload for one in [*plain(210), *plain(20, 2), Publish("", b"last")]
    )


def test_a_node_killed_while_it_feeds_loses_and_doubles_nothing(town: FedTown):
    since = town.end()
    for round_ in range(2):
        town.publish("a", *plain(300, first=300 * round_))
        town.start("a", town.kill("a"))
    fed = town.fed(since, 600)
    assert [one.payload for one in fed] == [one.payload for one in plain(600)]


def test_the_stream_keeps_no_more_than_it_is_allowed(town: FedTown):
    town.publish("tight", *(Publish("city/x", b"x" * 1_000, 1) for _ in range(50)))
    wait_for(lambda: asyncio.run(marks(town.address, "tight"))[1] >= 50)
    assert 30 < asyncio.run(marks(town.address, "tight"))[0] < 45


def test_a_jetstream_without_room_is_said_once_and_clients_are_served(town: FedTown):
    town.publish("absurd", *plain(20))
    node = town.nodes["absurd"]
    wait_for(lambda: any("storage" in one for one in _problems(node)))
    asyncio.run(until_tried(town.address, "absurd", 3))
    told = _problems(node)
    assert all(one != another for one, another in pairwise(told)), told
    town.publish("absurd", *plain(20))


def _problems(node: ChildProcess) -> list[str]:
    """Return why the feed stood still, each time that it was said."""
    lines = node.log.read_text().splitlines()
    return [one.partition("waits: ")[2] for one in lines if "the feed stands still" in one]


# --- numbers and messages ----------------------------------------------------------------------


def test_a_message_that_comes_again_keeps_its_number_over_restarts(tmp_path: Path):
    path = tmp_path / "numbers"
    numbers = FeedNumbers(path)
    one = Publish("a", b"1", 1, packet_id=7)
    assert [numbers.assign(one), numbers.assign(one)] == [1, 2]  # two, as neither is a repeat
    assert numbers.assign(Publish("a", b"1", 0)) == 0
    numbers.close()
    again = Publish("a", b"1", 1, duplicate=True, packet_id=7)
    with path.open("ab") as file:
        file.write(b"half an entry")
    later = FeedNumbers(path)
    assert later.epoch == numbers.epoch
    assert later.assign(again) == 2
    assert later.assign(Publish("a", b"2", 1, duplicate=True, packet_id=7)) == 3
    assert later.assign(again) == 4
    assert later.assign(Publish("a", b"2", 2, duplicate=True, packet_id=8)) == 5
    later.close()
    third = FeedNumbers(path)
    assert third.assign(Publish("a", b"2", 2, duplicate=True, packet_id=8)) == 5
    assert third.next == 6
    third.close()
    path.write_bytes(b"\0" * 40)
    fresh = FeedNumbers(path)
    assert fresh.epoch != numbers.epoch
    assert fresh.assign(again) == 1
    fresh.close()


def test_the_file_of_numbers_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("nearcast.server.feed.numbers._MOST_BYTES", 1_000)
    path = tmp_path / "numbers"
    numbers = FeedNumbers(path)
    for number in range(500):
        sent = Publish("a", str(number).encode(), 1, packet_id=number % 20 + 1)
        assert numbers.assign(sent) == number + 1
    numbers.close()
    assert path.stat().st_size < 1_100
    later = FeedNumbers(path)
    for number in range(480, 500):
        sent = Publish("a", str(number).encode(), 1, duplicate=True, packet_id=number % 20 + 1)
        assert later.assign(sent) == number + 1
    assert later.next == 501
    later.close()


texts = st.text(max_size=9)


@given(st.integers(0, 2**40), texts, st.binary(max_size=20), st.lists(st.tuples(texts, texts)))
def test_publications_are_read_as_they_were_written(
    number: int, topic: str, payload: bytes, pairs: list[tuple[str, str]]
):
    one = Publication(VERSION, number, "e", number, topic, payload, tuple(pairs))
    data = encode_publication(one)
    assert decode_publication(data) == one
    for cut in range(len(data)):
        with pytest.raises(PeerProtocolError):
            decode_publication(data[:cut])


def test_another_version_is_said():
    data = encode_publication(Publication(VERSION + 1, 0, "", 0, "", b""))
    with pytest.raises(PeerProtocolError, match="same version of Nearcast"):
        decode_publication(data)


@pytest.mark.parametrize("bad", ["", "a/#/b", "a#", "a+/b", "$SYS/#"])
def test_a_feed_of_what_is_no_filter_is_refused(bad: str):
    with pytest.raises(ValueError, match="is no topic filter"):
        Configuration.model_validate_json(json.dumps({"network": {"feed": [bad]}}))
