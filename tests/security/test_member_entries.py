"""Strangers on NATS enter, replace or end no node, repeat nothing, and read no answer."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.security.node_keys import keys, section, two_nodes, write_keys
from tests.support.real_cluster import RealCluster
from tests.support.waiting import wait_for

from nearcast.config import NetworkSection
from nearcast.nats.connection import close, connect
from nearcast.server.cluster.nats_members import (
    MemberRecord,
    list_members,
    open_bucket,
    read_member,
)
from nearcast.server.cluster.nats_settings import POLICIES, Shared, SharedSettings, SignedVersion
from nearcast.server.cluster.node_proofs import PLACES_ASKED, request_subject
from nearcast.server.cluster.sealed_answers import SealedQuestion, sealed_answer
from nearcast.server.cluster.signed_entries import SignedEntries, split_entry

NOW_MS = 1_000_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keys of two nodes and an operator, and of a stranger whom nobody knows."""
    made = tmp_path_factory.mktemp("keys")
    write_keys(made)
    return made


def entries(folder: Path, name: str, now_ms: int = NOW_MS) -> SignedEntries:
    return SignedEntries(keys(folder, name), lambda: now_ms)


def entry(name: str) -> bytes:
    return msgspec.json.encode(MemberRecord(name, "id", addresses=["mqtt://10.0.0.7:1883"]))


def test_an_entry_counts_if_its_node_has_signed_it(folder: Path, caplog: Any):
    written = entries(folder, "node b").seal(entry("b"))
    found = read_member(written, entries(folder, "node a"))
    assert found is not None
    assert (found.name, found.addresses) == ("b", ["mqtt://10.0.0.7:1883"])
    assert read_member(written) == found  # a command without keys reads it, too
    assert json.loads(written)["signed_ms"] == NOW_MS
    for bad, why in (
        (entry("b"), "its key has not signed its entry"),
        (entries(folder, "node a").seal(entry("b")), "its key has not signed its entry"),
        (entries(folder, "operator alice").seal(entry("b")), "its key has not signed its entry"),
        (entries(folder, "node eve").seal(entry("eve")), "its key is not known here"),
        (written.replace(b"10.0.0.7", b"10.6.6.6"), "its key has not signed its entry"),
        (written.replace(b'_ms":1000000', b'_ms":1000001'), "its key has not signed its entry"),
    ):
        caplog.clear()
        assert read_member(bad, entries(folder, "node a")) is None
        assert why in caplog.text
    for bad in (b"", b"{}", b"\xff", written[:-1], written + b"}"):
        assert read_member(bad, entries(folder, "node a")) is None


def test_an_entry_is_not_repeated_later(folder: Path):
    old = entries(folder, "node b").seal(entry("b"))
    new = entries(folder, "node b", NOW_MS + 1).seal(entry("b"))
    judge = entries(folder, "node a")
    assert read_member(old, judge) is not None
    assert read_member(new, judge) is not None
    assert read_member(old, judge) is None
    assert read_member(new, judge) is not None  # a new connection to NATS shows it again
    for clock_ms, is_fresh in ((60_000, True), (60_001, False), (-60_001, False)):
        found = read_member(old, entries(folder, "node a", NOW_MS + clock_ms))
        assert (found is not None) is is_fresh


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_an_entry_that_was_changed_does_not_count(folder: Path, place: int, change: int):
    written = bytearray(entries(folder, "node b").seal(entry("b")))
    written[place % len(written)] ^= change
    assert read_member(bytes(written), entries(folder, "node a")) is None


def test_names_of_strangers_are_logged_in_one_line_and_not_for_ever(folder: Path, caplog: Any):
    judge = entries(folder, "node a")
    for number in range(1_500):
        assert not judge.believes(f"x\n\x1b[2J{number}", split_entry(b"{}"))
    assert len(caplog.records) == 1_000
    assert all(one.getMessage().isprintable() for one in caplog.records)


def test_an_answer_is_read_by_its_asker_alone(folder: Path):
    a, b, alice = (keys(folder, name) for name in ("node a", "node b", "operator alice"))
    question = SealedQuestion(alice, "places", "b", NOW_MS)
    assert b.may_ask(question.data, "b", NOW_MS, only_operators=True)
    answer = sealed_answer(b, question.data, b"[[8.5,47.5]]")
    assert answer is not None
    assert b"8.5" not in base64.b64decode(json.loads(answer)["data"])
    assert question.read(answer) == b"[[8.5,47.5]]"
    again = SealedQuestion(alice, "places", "b", NOW_MS)
    assert again.read(answer) is None
    forged = sealed_answer(a, question.data, b"[]")  # of another node
    assert forged is not None
    assert question.read(forged) is None
    changed = json.loads(question.data.partition(b" ")[2]) | {"half": again._half}
    data = b"places " + json.dumps(changed).encode()
    assert not b.may_ask(data, "b", NOW_MS, only_operators=True)  # another's half, the signature
    for bad in (b"", b"{}", b"[[8.5,47.5]]", answer[:-9] + b'AAAAAA"}'):
        assert question.read(bad) is None
    assert sealed_answer(b, b.request("places", "b", NOW_MS), b"[]") is None  # without a half


def test_a_request_of_the_run_before_is_for_the_run_before(folder: Path):
    alice, b = keys(folder, "operator alice"), keys(folder, "node b")
    data = alice.request("leave", "b", NOW_MS)
    for since_ms, may in ((NOW_MS, True), (NOW_MS + 1, False)):
        assert b.may_ask(data, "b", NOW_MS, only_operators=True, since_ms=since_ms) is may


def test_a_value_that_was_replaced_does_not_come_back(tmp_path: Path):
    from nearcast.broker import Broker
    from nearcast.model.errors import FileFormatError
    from nearcast.server.learned.artefacts import LearnedArtefacts

    taken: list[int] = []
    learned = LearnedArtefacts(Broker(), lambda: 0, tmp_path)
    take = learned._current(lambda shared: taken.append(shared.head.version))

    def value(version: int, at_ms: int) -> Shared:
        return Shared(SignedVersion("policies", version, 0, "", 0, at_ms, signer="operator x"), b"")

    for version, at_ms in ((1, 10), (2, 20), (2, 20)):
        take(value(version, at_ms))
    with pytest.raises(FileFormatError, match="before the last one"):
        take(value(1, 10))
    assert taken == [1, 2, 2]


# --- real nodes -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    with two_nodes(tmp_path_factory.mktemp("cluster"), folder) as made:
        yield made


@pytest.mark.server
def test_a_stranger_enters_replaces_and_ends_no_node(cluster: RealCluster, folder: Path):
    """It writes entries under the names of others, copies theirs, and deletes them."""
    plain = NetworkSection(join=[cluster.address])
    known = section(folder, "operator alice", join=[cluster.address])

    async def attack() -> None:
        client = await connect(plain, "stranger")
        nodes = await open_bucket(client, plain, expires=True)
        for number in range(30):
            copied = (await nodes.get("a")).value or b""
            await nodes.put(
                "b", msgspec.json.encode(MemberRecord("b", "eve", direct="127.0.0.1:1"))
            )
            await nodes.put("c", msgspec.json.encode(MemberRecord("c", f"eve{number}")))
            await nodes.put("d", copied)
            await nodes.put("b", copied)
            await nodes.put("b", b"\xff no entry")
            if number % 3 == 0:
                await nodes.delete("b")
            await asyncio.sleep(0.1)
            names = [one.name for one in await list_members(client, known)]
            assert set(names) <= {"a", "b"}
            assert len(names) == len(set(names))
        await close(client)

    asyncio.run(attack())
    wait_for(lambda: cluster.are_linked("a", "b"))
    log = cluster.log("a")
    assert "node c is refused: its key is not known here" in log
    assert "node b is refused: its key has not signed its entry" in log
    assert "node c is at" not in log
    assert "127.0.0.1:1 " not in log
    assert "is taken by a node" not in cluster.log("b")
    assert log.count("the link to node b is down") == 0


@pytest.mark.server
def test_a_node_starts_while_a_stranger_has_its_name(cluster: RealCluster):
    plain = NetworkSection(join=[cluster.address])
    cluster.kill("b")

    stop = threading.Event()

    async def occupy() -> None:
        client = await connect(plain, "stranger")
        nodes = await open_bucket(client, plain, expires=True)
        number = 0
        while not stop.is_set():
            number += 1
            await nodes.put("b", msgspec.json.encode(MemberRecord("b", "eve", clients=number)))
            await asyncio.sleep(0.02)
        await close(client)

    stranger = threading.Thread(target=lambda: asyncio.run(occupy()))
    stranger.start()
    try:
        cluster.start("b", config=cluster.directory / "b.toml")
    finally:
        stop.set()
        stranger.join()
    assert cluster.node("b").is_alive
    cluster.join("a", "b")


@pytest.mark.server
def test_places_are_answered_to_who_may_ask_and_cannot_be_read_by_others(
    cluster: RealCluster, folder: Path
):
    plain = NetworkSection(join=[cluster.address])

    async def ask() -> tuple[bytes, bytes | None]:
        client = await connect(plain, "stranger")
        alice, subject = keys(folder, "operator alice"), request_subject(plain.name, "a")
        question = SealedQuestion(alice, PLACES_ASKED.decode(), "a", int(time.time() * 1000))
        answer = await client.request(subject, question.data, timeout=5)
        again = await client.request(subject, question.data, timeout=5)  # a stranger repeats it
        await close(client)
        assert not again.data.startswith(b"[")
        return answer.data, question.read(answer.data)

    raw, read = asyncio.run(ask())
    assert read == b"[]"
    assert not raw.startswith(b"[")


@pytest.mark.server
def test_policies_of_an_operator_count_and_old_ones_do_not_come_back(
    cluster: RealCluster, folder: Path
):
    plain = NetworkSection(join=[cluster.address])
    alice = section(folder, "operator alice", join=[cluster.address])
    texts = [json.dumps({"format": 1, "policies": [], "made": number}) for number in (1, 2)]

    async def share_and_roll_back() -> None:
        client = await connect(plain, "stranger")
        kept = await open_bucket(client, plain, expires=False)
        await SharedSettings(client, kept, alice).put(POLICIES, texts[0].encode(), at_ms=1)
        recorded = await kept.get("shared.policies")
        head = json.loads(recorded.value or b"")
        piece = f"piece.policies.{head['digest'][:32]}.0"
        content = (await kept.get(piece)).value or b""
        await asyncio.sleep(0.5)
        await SharedSettings(client, kept, alice).put(POLICIES, texts[1].encode(), at_ms=0)
        await asyncio.sleep(0.5)
        await kept.put(piece, content)
        await kept.put("shared.policies", recorded.value or b"")
        await close(client)

    asyncio.run(share_and_roll_back())
    wait_for(lambda: "before the last one" in cluster.log("a"))
