"""Networks over a NATS that asks who is there: members join, a stranger does not."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import time
from pathlib import Path
from typing import Any

import nkeys
import pytest
from tests.support.real_cluster import PahoClient, nats_with
from tests.support.waiting import wait_for

from nearcast.config import NetworkSection
from nearcast.model.errors import EnvironmentProblem
from nearcast.nats.connection import connect
from nearcast.server.local_cluster import LocalCluster, free_port

pytestmark = pytest.mark.server


def closed_nats(certificates: Path) -> str:
    """Return the configuration of a NATS that encrypts and asks for user and password."""
    return (
        'jetstream {store_dir: "STORE"}\n'
        f'tls {{cert_file: "{certificates}/server.pem", key_file: "{certificates}/server.key"}}\n'
        'authorization {user: "node", password: "secret"}\n'
    )


def configuration(directory: Path, certificates: Path, name: str, password: str) -> Path:
    path = directory / f"{name}.toml"
    path.write_text(
        f'[network]\nuser = "node"\npassword = "{password}"\n'
        f'authority = "{certificates / "ca.pem"}"\n'
    )
    return path


class Three:
    """Two members and a stranger, which has what NATS does not accept."""

    def __init__(self, local: LocalCluster, address: str, member: Path, guess: Path) -> None:
        self.a = local.start_node("a", free_port(), address, member)
        self.b = local.start_node("b", free_port(), address, member)
        self.stranger = local.start_node("stranger", free_port(), address, guess)
        local.wait_until_ready()
        wait_for(lambda: self.a.has_said("the link to node b is up"))
        wait_for(lambda: self.b.has_said("the link to node a is up"))
        wait_for(lambda: self.stranger.has_said("NATS does not accept the user, password"))


def test_members_join_through_a_closed_door_and_a_stranger_is_told_why_not(
    tmp_path: Path, certificates: Path
):
    member = configuration(tmp_path, certificates, "member", "secret")
    guess = configuration(tmp_path, certificates, "guess", "guess")
    with (
        nats_with(tmp_path, closed_nats(certificates)) as nats,
        LocalCluster(tmp_path) as local,
    ):
        nodes = Three(local, f"tls://127.0.0.1:{nats.port}", member, guess)
        listener, publisher = PahoClient(nodes.b.port), PahoClient(nodes.a.port)
        listener.subscribe("closed", 1)
        publisher.publish("closed", b"1", 1)
        assert listener.take(1) == [("closed", b"1", 1)]

        alone = PahoClient(nodes.stranger.port)  # it serves its own clients
        alone.subscribe("closed", 1)
        alone.publish("closed", b"2", 1)
        assert alone.take(1) == [("closed", b"2", 1)]
        assert not nodes.a.has_said("stranger")
        assert listener.got.empty()
        for one in (listener, publisher, alone):
            one.close()
        assert "secret" not in nodes.a.log.read_text() + nodes.stranger.log.read_text()


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
    accounts = Accounts()
    configs = {}
    for name, account in (("member", accounts.members), ("guess", Key(nkeys.PREFIX_BYTE_ACCOUNT))):
        path = write_credentials(tmp_path / f"{name}.creds", account)
        configs[name] = tmp_path / f"{name}.toml"
        configs[name].write_text(f'[network]\ncredentials = "{path}"\n')
    text = 'jetstream {store_dir: "STORE"}\n' + accounts.configuration()
    with nats_with(tmp_path, text) as nats, LocalCluster(tmp_path) as local:
        nodes = Three(local, f"nats://127.0.0.1:{nats.port}", *configs.values())
        assert not nodes.a.has_said("stranger")


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
