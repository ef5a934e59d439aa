"""Networks over a NATS that asks who is there: members join, a stranger does not."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import queue
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nkeys
import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from nearcast.config import NetworkSection
from nearcast.model.errors import EnvironmentProblem
from nearcast.nats.connection import connect
from nearcast.server.local_cluster import ChildProcess, LocalCluster, find_nats_server, free_port

pytestmark = pytest.mark.server

WAIT_S = 60.0


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


def start_closed_nats(directory: Path, certificates: Path) -> ChildProcess:
    """Start a NATS that encrypts, shows a certificate and asks for user and password."""
    port = free_port()
    (directory / "nats.conf").write_text(
        f'listen: "127.0.0.1:{port}"\n'
        f'jetstream {{store_dir: "{directory / "store"}"}}\n'
        f'tls {{cert_file: "{certificates}/server.pem", key_file: "{certificates}/server.key"}}\n'
        'authorization {user: "node", password: "secret"}\n'
    )
    command = [find_nats_server(), "-c", str(directory / "nats.conf")]
    return ChildProcess("nats", port, command, directory / "nats.log")


def configuration(directory: Path, certificates: Path, name: str, password: str) -> Path:
    path = directory / f"{name}.toml"
    path.write_text(
        f'[network]\nuser = "node"\npassword = "{password}"\n'
        f'authority = "{certificates / "ca.pem"}"\n'
    )
    return path


def client(port: int) -> tuple[paho.Client, queue.Queue[bytes], queue.Queue[int]]:
    got: queue.Queue[bytes] = queue.Queue()
    answers: queue.Queue[int] = queue.Queue()
    one = paho.Client(CallbackAPIVersion.VERSION2)
    one.on_message = lambda _c, _u, message: got.put(bytes(message.payload))
    one.on_subscribe = lambda *_: answers.put(1)
    one.connect("127.0.0.1", port)
    one.loop_start()
    return one, got, answers


def test_members_join_through_a_closed_door_and_a_stranger_is_told_why_not(
    tmp_path: Path, certificates: Path
):
    nats = start_closed_nats(tmp_path, certificates)
    try:
        wait_for(lambda: nats.has_said("Server is ready"))
        address = f"tls://127.0.0.1:{nats.port}"
        member = configuration(tmp_path, certificates, "member", "secret")
        guess = configuration(tmp_path, certificates, "guess", "guess")
        with LocalCluster(tmp_path) as fleet:
            a = fleet.start_node("a", free_port(), address, member)
            b = fleet.start_node("b", free_port(), address, member)
            stranger = fleet.start_node("stranger", free_port(), address, guess)
            fleet.wait_until_ready()
            wait_for(lambda: a.has_said("the link to node b is up"))
            wait_for(lambda: b.has_said("the link to node a is up"))
            wait_for(lambda: stranger.has_said("NATS does not accept the user, password"))

            listener, got, answers = client(b.port)
            listener.subscribe("closed", 1)
            answers.get(timeout=WAIT_S)
            publisher, _, _ = client(a.port)
            publisher.publish("closed", b"1", 1)
            assert got.get(timeout=WAIT_S) == b"1"

            alone, mine, answers = client(stranger.port)  # it serves its own clients
            alone.subscribe("closed", 1)
            answers.get(timeout=WAIT_S)
            alone.publish("closed", b"2", 1)
            assert mine.get(timeout=WAIT_S) == b"2"
            assert not a.has_said("stranger")
            assert got.empty()
            for one in (listener, publisher, alone):
                one.disconnect()
                one.loop_stop()
            assert "secret" not in a.log.read_text() + stranger.log.read_text()
    finally:
        nats.ask_to_end()
        nats.end(5)


# --- credentials files ---------------------------------------------------------------------


class Key:
    """A key of NATS, and what its holder says of others with it."""

    def __init__(self, prefix: int) -> None:
        self.seed: bytes = nkeys.encode_seed(os.urandom(32), prefix)
        self._pair = nkeys.from_seed(self.seed)
        self.public: str = self._pair.public_key.decode()

    def token(self, name: str, subject: str, nats: dict[str, Any]) -> str:
        """Return a JWT as NATS wants it."""
        claims = {"jti": name, "iat": int(time.time()), "iss": self.public, "name": name}
        parts = ({"typ": "JWT", "alg": "ed25519-nkey"}, {**claims, "sub": subject, "nats": nats})
        text = ".".join(_base64(json.dumps(one).encode()) for one in parts)
        return f"{text}.{_base64(self._pair.sign(text.encode()))}"


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


class Accounts:
    """An operator with an account for nodes, and one that NATS itself needs."""

    def __init__(self) -> None:
        self._operator = Key(nkeys.PREFIX_BYTE_OPERATOR)
        self.members, self._system = Key(nkeys.PREFIX_BYTE_ACCOUNT), Key(nkeys.PREFIX_BYTE_ACCOUNT)

    def _account(self, name: str, key: Key, storage: int) -> str:
        anything = dict.fromkeys(
            ("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1
        )
        kept = dict.fromkeys(("mem_storage", "disk_storage", "streams", "consumer"), storage)
        limits = {**anything, **kept, "wildcards": True}
        nats = {"limits": limits, "type": "account", "version": 2}
        return f"{key.public}: {self._operator.token(name, key.public, nats)}"

    def configuration(self) -> str:
        me = {"type": "operator", "version": 2}
        operator = self._operator.token("operator", self._operator.public, me)
        accounts = self._account("members", self.members, -1), self._account("sys", self._system, 0)
        return (
            f"operator: {operator}\nsystem_account: {self._system.public}\n"
            f"resolver: MEMORY\nresolver_preload: {{\n{accounts[0]}\n{accounts[1]}\n}}\n"
        )


def write_credentials(path: Path, account: Key) -> Path:
    """Write what a node shows: a token that an account has signed, and the key it is for."""
    user = Key(nkeys.PREFIX_BYTE_USER)
    limits = dict.fromkeys(("subs", "data", "payload"), -1)
    token = account.token("node", user.public, {**limits, "type": "user", "version": 2})
    path.write_text(
        f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user.seed.decode()}\n------END USER NKEY SEED------\n"
    )
    return path


def test_members_show_a_credentials_file_and_one_that_nobody_signed_opens_nothing(tmp_path: Path):
    accounts, port = Accounts(), free_port()
    (tmp_path / "nats.conf").write_text(
        f'listen: "127.0.0.1:{port}"\njetstream {{store_dir: "{tmp_path / "store"}"}}\n'
        + accounts.configuration()
    )
    command = [find_nats_server(), "-c", str(tmp_path / "nats.conf")]
    nats = ChildProcess("nats", port, command, tmp_path / "nats.log")
    configs = {}
    for name, account in (("member", accounts.members), ("guess", Key(nkeys.PREFIX_BYTE_ACCOUNT))):
        path = write_credentials(tmp_path / f"{name}.creds", account)
        configs[name] = tmp_path / f"{name}.toml"
        configs[name].write_text(f'[network]\ncredentials = "{path}"\n')
    try:
        wait_for(lambda: nats.has_said("Server is ready"))
        address = f"nats://127.0.0.1:{nats.port}"
        with LocalCluster(tmp_path) as fleet:
            a = fleet.start_node("a", free_port(), address, configs["member"])
            b = fleet.start_node("b", free_port(), address, configs["member"])
            stranger = fleet.start_node("stranger", free_port(), address, configs["guess"])
            fleet.wait_until_ready()
            wait_for(lambda: a.has_said("the link to node b is up"))
            wait_for(lambda: b.has_said("the link to node a is up"))
            wait_for(lambda: stranger.has_said("NATS does not accept the user, password"))
            assert not a.has_said("stranger")
    finally:
        nats.ask_to_end()
        nats.end(5)


@pytest.mark.parametrize(
    ("text", "found"), [(None, "No such file"), ("hello", "no JWT or no seed")]
)
def test_a_credentials_file_that_is_none_is_told_of(tmp_path: Path, text: str | None, found: str):
    path = tmp_path / "node.creds"
    if text is not None:
        path.write_text(text)
    section = NetworkSection(join=["nats://127.0.0.1:1"], credentials=path)
    with pytest.raises(EnvironmentProblem, match=found) as told:
        asyncio.run(connect(section, "test"))
    assert "node.creds" in str(told.value)
