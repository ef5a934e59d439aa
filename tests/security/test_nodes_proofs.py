"""Nodes prove who they are; strangers can read, write and repeat no frame between them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.security.node_keys import keys, section, two_nodes, write_keys
from tests.security.talkers import Raw
from tests.support.commands import nearcast
from tests.support.real_cluster import RealCluster
from tests.support.waiting import until, wait_for

from nearcast.config import NetworkSection
from nearcast.model.errors import EnvironmentProblem, FileFormatError, MisuseError
from nearcast.mqtt import FilterRequest, Publish, Subscribe
from nearcast.nats.connection import close, connect
from nearcast.server.cluster.cluster_keys import (
    ClusterKeys,
    Signer,
    keys_of,
    new_key,
    read_private,
    read_public,
)
from nearcast.server.cluster.nats_admin import ask_to_leave, forget_node
from nearcast.server.cluster.nats_members import DepartedMember, is_signed_mark, open_bucket
from nearcast.server.cluster.nats_settings import POLICIES, SharedSettings
from nearcast.server.cluster.node_proofs import request_subject
from nearcast.server.cluster.sealed_frames import DIRECT, NATS, SealedFrames


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keys of two nodes and an operator, and of a stranger whom nobody knows."""
    made = tmp_path_factory.mktemp("keys")
    write_keys(made)
    return made


def test_a_key_is_its_owners_alone_and_tied_to_a_name(folder: Path, tmp_path: Path):
    assert (folder / "node a.key").stat().st_mode & 0o777 == 0o600
    assert read_private(folder / "node a.key")[0] == Signer("node", "a")
    with pytest.raises(EnvironmentProblem, match="exists"):
        new_key(folder / "node a.key", Signer("node", "a"))
    with pytest.raises(MisuseError, match="no key of node eve"):
        keys_of(section(folder, "node eve", node_keys=folder / "keys.txt"))
    (tmp_path / "bad").write_text("node a AAAA\n")
    with pytest.raises(FileFormatError, match="line 1"):
        read_public(tmp_path / "bad")
    with pytest.raises(EnvironmentProblem):
        keys_of(section(tmp_path))


def test_a_request_is_signed_fresh_for_one_node_and_of_an_operator(folder: Path):
    alice, node, eve = (keys(folder, name) for name in ("operator alice", "node a", "node eve"))
    data = alice.request("leave", "b", 1_000_000)

    def may(keys_: ClusterKeys, data: bytes, to: str = "b", now_ms: int = 1_000_500) -> bool:
        return keys_.may_ask(data, to, now_ms, only_operators=True)

    assert may(node, data)
    assert not may(node, data, to="a")
    assert not may(node, data, now_ms=1_061_000)
    assert not may(node, data, now_ms=900_000)
    assert not may(node, data.replace(b"leave", b"other"))
    assert not may(node, node.request("leave", "b", 1_000_000))
    assert node.may_ask(
        node.request("places", "b", 1_000_000), "b", 1_000_000, only_operators=False
    )
    assert not may(node, eve.request("leave", "b", 1_000_000))
    for nonsense in (b"leave", b"leave {}", b"leave \xff", b"", b'leave {"signer":"x","at_ms":1}'):
        assert not may(node, nonsense)


def agreed(folder: Path) -> tuple[SealedFrames, SealedFrames]:
    a, b = (SealedFrames(keys(folder, name)) for name in ("node a", "node b"))
    answer = b.answer(a.begin("b", "1"))
    assert answer is not None
    last = a.confirm("b", answer)
    assert last is not None
    assert b.accept(last) == "a"
    return a, b


def test_two_nodes_agree_on_keys_and_frames_are_read_by_them_alone(folder: Path):
    a, b = agreed(folder)
    assert a.direct_key("b") == b.direct_key("a") != ""
    for way in (NATS, DIRECT):
        sealed = a.seal("b", b"frame", way)
        assert sealed is not None
        assert b"frame" not in sealed
        assert b.open("a", sealed, 1 - way) is None
        assert a.open("b", sealed, way) is None  # back to its sender
        assert b.open("a", sealed, way) == b"frame"
        assert b.open("a", sealed, way) is None  # once more
    back = b.seal("a", b"back", NATS)
    assert back is not None
    assert a.open("b", back, NATS) == b"back"
    first, second = (a.seal("b", one, NATS) or b"" for one in (b"1", b"2"))
    assert b.open("a", second, NATS) == b"2"
    assert b.open("a", first, NATS) is None  # an old one, after a newer one
    b.forget("a")
    assert b.open("a", a.seal("b", b"x", NATS) or b"", NATS) is None
    assert b.seal("a", b"x", NATS) is None


@given(st.binary(max_size=80), st.integers(0, 79), st.integers(1, 255))
def test_a_frame_that_was_changed_is_none(folder: Path, frame: bytes, place: int, change: int):
    a, b = agreed(folder)
    sealed = bytearray(a.seal("b", frame, NATS) or b"")
    sealed[place % len(sealed)] ^= change
    assert b.open("a", bytes(sealed), NATS) is None
    assert b.open("a", bytes(sealed[: place % len(sealed)]), NATS) is None


def test_a_stranger_and_a_node_under_another_name_agree_on_nothing(folder: Path):
    a, b, eve = (SealedFrames(keys(folder, one)) for one in ("node a", "node b", "node eve"))
    assert b.answer(eve.begin("b", "1")) is None  # a name without a key
    eve.name = "a"  # says so
    answer = b.answer(eve.begin("b", "2"))
    assert answer is not None
    last = eve.confirm("b", answer)
    assert last is not None
    assert b.accept(last) == ""
    assert not b.has("a")

    first = a.begin("b", "3")
    eve.name = "b"
    forged = eve.answer(first)
    assert forged is not None
    assert a.confirm("b", forged) is None
    answer = b.answer(first)
    assert answer is not None
    assert a.confirm("b", answer) is not None  # the forgery did no harm
    assert a.answer(b.begin("a", "4")) is None  # the greater name does not begin


def test_a_wrong_proof_of_a_stranger_ends_no_exchange(folder: Path):
    a, b, eve = (SealedFrames(keys(folder, one)) for one in ("node a", "node b", "node eve"))
    answer = b.answer(a.begin("b", "1"))
    assert answer is not None
    wrong = b'prove2 {"sender":"a","number":"1","signature":"AAAA"}'
    assert b.accept(wrong) == ""
    eve.name = "a"
    eve.begin("b", "1")
    forged = eve.confirm("b", answer)  # the answer is not for its half
    assert forged is None
    last = a.confirm("b", answer)
    assert last is not None
    assert b.accept(last) == "a"
    assert b.accept(last) == ""  # once


@given(st.binary(max_size=100))
def test_no_bytes_break_an_exchange(folder: Path, data: bytes):
    b = SealedFrames(keys(folder, "node b"))
    for one in (data, b"prove1 " + data, b'prove1 {"sender":"a","number":"1","half":"AA=="}'):
        answer = b.answer(one)
        assert answer is None or not b.has("a")
        assert b.accept(one) == ""
        assert b.confirm("a", one) is None


def test_only_the_node_itself_or_an_operator_marks_it_as_left(folder: Path):
    a = keys(folder, "node a")
    assert not is_signed_mark(a, DepartedMember("b", 5))

    from nearcast.server.cluster.nats_members import SignedDeparture

    for name, is_good in (("node b", True), ("operator alice", True), ("node a", False)):
        signer = keys(folder, name)
        signature = signer.sign("left", "b", "5")
        mark = SignedDeparture("b", 5, signer=str(signer.me), signature=signature)
        assert is_signed_mark(a, mark) is is_good
        assert not is_signed_mark(a, SignedDeparture("b", 6, signer=name, signature=signature))


# --- real nodes -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    with two_nodes(tmp_path_factory.mktemp("cluster"), folder, 'direct = "127.0.0.1:0"') as made:
        yield made


@pytest.mark.server
def test_nodes_with_keys_serve_clients_over_encrypted_direct_links(cluster: RealCluster):
    reader, writer = Raw(cluster.ports["a"]), Raw(cluster.ports["b"])
    assert (reader.login("r"), writer.login("w")) == (0, 0)
    reader.send(Subscribe(1, (FilterRequest("a/#"),)))
    assert reader.next() is not None
    writer.send(Publish("a/1", b"hello"))
    message = reader.next()
    assert isinstance(message, Publish)
    assert message.payload == b"hello"
    wait_for(lambda: cluster.members()["a"].links["b"].is_direct)
    assert "node b has proven who it is" in cluster.log("a")


@pytest.mark.server
def test_a_stranger_on_nats_is_no_node_and_asks_in_vain(cluster: RealCluster, folder: Path):
    cluster.begin("eve")
    wait_for(lambda: "node eve is refused: its key is not known here" in cluster.log("a"))
    cluster.kill("eve")
    plain = NetworkSection(join=[cluster.address])

    async def ask() -> None:
        client = await connect(plain, "stranger")
        subject = request_subject("nearcast", "a")
        for data in (b"leave", b"key", b"places", b"\x00\x1b[2J\r\nleave", b"leave \xff{}"):
            with pytest.raises(Exception, match="timeout"):
                await client.request(subject, data, timeout=0.2)
        frames = f"nearcast.{plain.name}.frames.a.b"
        await client.publish(frames, b"\x00" * 50)
        await client.publish(frames, b"")
        kept = await open_bucket(client, plain, expires=False)
        await SharedSettings(client, kept, plain).put(POLICIES, b"{}", at_ms=0)
        await close(client)

    asyncio.run(ask())
    wait_for(lambda: "policies were refused" in cluster.log("a"))
    assert cluster.are_linked("a", "b")
    asyncio.run(forget_and_see(plain, cluster))
    assert cluster.are_linked("a", "b")


async def forget_and_see(plain: NetworkSection, cluster: RealCluster) -> None:
    """Mark a node as left without a signature: nobody minds."""
    from nearcast.server.cluster.nats_members import Members

    client = await connect(plain, "stranger")
    nodes = await open_bucket(client, plain, expires=True)
    kept = await open_bucket(client, plain, expires=False)
    members = Members(client, nodes, kept)
    await members.mark_left("b", 1 << 60)
    refused = "a mark that node b has left is refused"
    await until(lambda: refused in cluster.log("a"))
    await members.unmark_left("b")
    await close(client)
    assert "node b has left" not in cluster.log("a").replace(refused, "")


@pytest.mark.server
def test_a_restarted_node_proves_itself_again_and_an_operator_makes_it_leave(
    cluster: RealCluster, folder: Path
):
    cluster.kill("b")
    config = cluster.directory / "b.toml"
    cluster.start("b", config=config)
    cluster.join("a", "b")
    assert cluster.log("a").count("node b has proven who it is") >= 2

    with pytest.raises(EnvironmentProblem, match="does not answer"):
        asyncio.run(ask_to_leave(section(folder, "node a", join=[cluster.address]), "b"))
    with pytest.raises(Exception, match="is there"):
        asyncio.run(forget_node(section(folder, "node a", join=[cluster.address]), "b"))
    alice = section(folder, "operator alice", join=[cluster.address])
    asyncio.run(ask_to_leave(alice, "b"))
    wait_for(lambda: "node b has left for good" in cluster.log("a"))


@pytest.mark.server
def test_a_node_with_the_key_of_another_does_not_start(folder: Path, tmp_path: Path):
    config = tmp_path / "nearcast.toml"
    config.write_text(
        f'[network]\njoin = "nats://127.0.0.1:1"\nnode_key = "{folder}/node a.key"\n'
        f'node_keys = "{folder}/keys.txt"\n[[listener]]\nport = 0\n'
    )
    ran = nearcast("serve", "--name", "b", "--port", "0", cwd=tmp_path)
    assert ran.returncode == 2
    assert "the key of node a" in ran.stderr


def test_the_command_makes_a_key_and_shows_it(tmp_path: Path):
    made = nearcast("keys", "new", "x.key", "--node", "x", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert made.stdout.startswith("node x ")
    assert nearcast("keys", "show", "x.key", cwd=tmp_path).stdout == made.stdout
    assert nearcast("keys", "new", "y.key", cwd=tmp_path).returncode == 2
