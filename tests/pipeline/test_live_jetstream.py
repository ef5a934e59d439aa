"""Any range of a feed is read, again and again; what is wrong with a NATS is said."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from nats.aio.client import Client as Nats
from tests.support.waiting import wait_for

from nearcast.config.schema import AttributeSection, NetworkSection, SpaceSection
from nearcast.model import FileFormatError, MisuseError
from nearcast.model.errors import EnvironmentProblem
from nearcast.nats.feed_messages import VERSION, Publication, encode_publication, feed_subject
from nearcast.pipeline.jobs.match import MatchQuery
from nearcast.pipeline.streaming import jetstream as live_jetstream
from nearcast.pipeline.streaming.jetstream import FeedAddress, FeedWatch, read_feed
from nearcast.pipeline.streaming.live_stream import _feed, live_of
from nearcast.pipeline.streaming.stream import Stream
from nearcast.server.feed.sender import stream_config
from nearcast.server.local_cluster import find_nats_server, free_port

pytestmark = pytest.mark.server


class Server:
    """A nats-server that can be killed and started again."""

    def __init__(self, program: str, folder: Path, *options: str) -> None:
        self.port = free_port()
        self.address = f"nats://127.0.0.1:{self.port}"
        self._command = [program, "-a", "127.0.0.1", "-p", str(self.port), *options]
        self._log = folder / f"nats-{self.port}.log"
        self.start()

    def start(self) -> None:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        wait_for(lambda: b"Server is ready" in self._log.read_bytes(), said=self._log.read_text)

    def kill(self) -> None:
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Server]]:
    try:
        program = find_nats_server()
    except EnvironmentProblem:
        pytest.skip("nats-server is not installed (make setup)")
    servers: list[Server] = []

    def begin(*options: str) -> Server:
        servers.append(Server(program, tmp_path_factory.mktemp("nats"), *options))
        return servers[-1]

    yield begin
    for one in servers:
        one.kill()


@pytest.fixture(scope="module")
def server(start: Callable[..., Server], tmp_path_factory: pytest.TempPathFactory) -> Server:
    return start("-js", "-sd", str(tmp_path_factory.mktemp("store")))


def feed_of(server: Server, network: str) -> FeedAddress:
    return FeedAddress(NetworkSection(join=[server.address], name=network))


def fill(server: Server, network: str, count: int, **limits: object) -> None:
    """Put messages into a feed, as a node does."""

    async def put() -> None:
        nats = Nats()
        await nats.connect(server.address, connect_timeout=60)
        stream = nats.jetstream(timeout=60)
        section = NetworkSection.model_validate({"name": network, **limits})
        await stream.add_stream(stream_config(section))
        for number in range(1, count + 1):
            one = Publication(VERSION, number, "e", number, "a/b", b"x%d" % number, (("k", "v"),))
            await stream.publish(feed_subject(network, "n"), encode_publication(one))
        await nats.close()

    asyncio.run(put())


def test_any_range_is_read_and_can_be_read_again(server: Server, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(live_jetstream, "_AT_ONCE", 4)
    fill(server, "ranges", 20)
    feed = feed_of(server, "ranges")
    watch = FeedWatch(feed)
    assert watch.marks() == (1, 21)
    watch.close()
    for start, end in ((1, 21), (7, 12), (20, 21), (5, 5), (7, 12)):
        found = [one for portion in read_feed(feed, start, end) for one in portion]
        assert [(one.number, one.payload) for one in found] == [
            (number, b"x%d" % number) for number in range(start, end)
        ]
        assert all(one.pairs == (("k", "v"),) and one.topic == "a/b" for one in found)


def test_what_jetstream_has_dropped_is_said(server: Server):
    fill(server, "small", 60, feed_size=4_000)
    feed = feed_of(server, "small")
    watch = FeedWatch(feed)
    oldest, end = watch.marks()
    watch.close()
    assert 1 < oldest < end == 61
    with pytest.raises(FileFormatError, match="JetStream has dropped some"):
        list(read_feed(feed, 1, 61))
    assert sum(map(len, read_feed(feed, oldest, end))) == end - oldest


def test_a_nats_that_is_away_means_nothing_new_and_reading_waits_for_it(
    server: Server, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(live_jetstream, "_AT_ONCE", 2)
    fill(server, "patient", 6)
    feed = feed_of(server, "patient")
    watch = FeedWatch(feed)
    reading = read_feed(feed, 1, 7)
    assert watch.marks() == (1, 7)
    first = next(reading)
    server.kill()
    assert watch.marks() == (1, 7)
    server.start()
    found = first + [one for portion in reading for one in portion]
    assert [one.number for one in found] == list(range(1, 7))
    assert watch.marks() == (1, 7)
    watch.close()

    monkeypatch.setattr(live_jetstream, "_PATIENCE_S", -1.0)
    server.kill()
    with pytest.raises(EnvironmentProblem, match="no connection"):
        list(read_feed(feed, 1, 7))
    server.start()


def test_what_is_wrong_is_said(start: Callable[..., Server], server: Server):
    def told(address: str, network: str = "nearcast") -> str:
        section = NetworkSection(join=[address], name=network)
        watch = FeedWatch(FeedAddress(section))
        with pytest.raises((EnvironmentProblem, MisuseError)) as problem:
            watch.identity()
        watch.close()
        return str(problem.value)

    assert "no connection" in told(f"nats://127.0.0.1:{free_port()}")
    assert "there is no feed" in told(server.address, "nobody")
    assert "no JetStream" in told(start().address)
    guarded = start("-js", "--user", "me", "--pass", "secret")
    assert "does not accept the user" in told(guarded.address)


def test_a_checkpoint_belongs_to_one_stream(server: Server, tmp_path: Path):
    fill(server, "first", 1)
    fill(server, "second", 1)
    section = SpaceSection(
        name="s", topics="s/#", attributes={"x": AttributeSection(low=0, high=1)}
    )
    stream = Stream(Path(), Path(), Path(), tmp_path, section.to_space(), MatchQuery("s", "s/x"))
    for network in ("first", "first"):
        live = live_of(f"{server.address}/{network}", section, NetworkSection())
        assert _feed(stream, live).section.name == "first"
    other = live_of(f"{server.address}/second", section, NetworkSection())
    with pytest.raises(MisuseError, match="with which this checkpoint was begun"):
        _feed(stream, other)
    (tmp_path / "feed.json").write_text("{}")
    with pytest.raises(FileFormatError, match="damaged"):
        _feed(stream, other)
