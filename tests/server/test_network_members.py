"""The list of nodes in NATS: who is a member, who has left, who was forgotten."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.nats_members import members_of, names
from tests.support.waiting import WAIT_S

from nearcast.config import NetworkSection
from nearcast.model.errors import (
    EnvironmentProblem,
    KeyInUseError,
    KeyMissingError,
)
from nearcast.nats.connection import NatsConnection
from nearcast.server.cluster import nats_members
from nearcast.server.cluster.nats_admin import ask_to_leave, forget_node, look
from nearcast.server.cluster.nats_members import (
    TAKEN_BACK,
    DepartedMember,
    LinkState,
    MemberRecord,
    key_of,
    list_members,
    name_of,
    open_bucket,
)
from nearcast.server.cluster.runtime import ClusterRuntime

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("_lasting_entries")]


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
