"""Logins of real clients at a real broker: tokens, hook, certificates, SCRAM, guesses, audit."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from tests.security.authority import Authority
from tests.security.hooks import serving
from tests.security.scram_client import final
from tests.security.talkers import Raw, leave, paho_login, wait_until_closed, with_certificate
from tests.security.token_keys import EC, jwk, key_file
from tests.support.broker_process import BrokerProcess
from tests.support.waiting import wait_for

from nearcast.mqtt import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Properties,
    Publish,
    ReasonCode,
)
from nearcast.server import set_password

pytestmark = pytest.mark.server
SCRAM = "SCRAM-SHA-256"
Start = Callable[..., BrokerProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    brokers: list[BrokerProcess] = []

    def start(**sections: Any) -> BrokerProcess:
        directory = tmp_path / f"broker{len(brokers)}"
        directory.mkdir()
        brokers.append(BrokerProcess(directory, **sections))
        return brokers[-1].start()

    yield start
    for one in brokers:
        one.end()


def reload(broker: BrokerProcess, **sections: Any) -> None:
    """Make a broker read another configuration."""
    Path(broker.reload_path).write_text(json.dumps({**broker.sections, **sections}, default=str))
    os.kill(broker.pid, signal.SIGHUP)


def token(**claims: Any) -> str:
    claims = {"sub": "ann", "exp": time.time() + 600, **claims}
    return jwt.encode(claims, EC, "ES256", headers={"kid": "k"})


def test_a_token_is_the_password_of_a_real_client(start: Start, tmp_path: Path):
    keys = key_file(tmp_path / "keys.json", jwk(EC, "k"))
    broker = start(auth={"anonymous": "never", "jwt": {"keys": keys, "rules": "acl"}})
    acl = [{"topic": "own/%u/#"}]

    reason, client = paho_login(broker.port, user="ann", password=token(acl=acl), v5=False)
    assert reason == 0
    assert client.subscribe("own/ann/#")[0] == 0
    leave(client)
    assert paho_login(broker.port, user="bob", password=token(acl=acl))[0] == 0x86
    assert paho_login(broker.port, user="ann", password=token())[0] == 0x86  # no rules
    assert paho_login(broker.port, user="ann", password="no token")[0] == 0x86
    assert paho_login(broker.port)[0] == 0x87
    raw = Raw(broker.port)
    assert raw.login(user_name="", password=token(acl=acl).encode()) == 0
    raw.send(Publish("own/ann/x", b"", 1, packet_id=1), Publish("other", b"", 1, packet_id=2))
    assert [raw.next().reason, raw.next().reason] == [0x10, 0x87]  # type: ignore[union-attr]
    raw.close()
    assert "a token of another user" in broker.said()


def test_a_client_is_disconnected_when_its_token_expires(start: Start, tmp_path: Path):
    keys = key_file(tmp_path / "keys.json", jwk(EC, "k"))
    broker = start(auth={"jwt": {"keys": keys, "leeway": 0.001}})
    raw = Raw(broker.port)
    assert raw.login(user_name="ann", password=token(exp=time.time() + 1.5).encode()) == 0
    last = wait_until_closed(raw)
    assert isinstance(last, Disconnect)
    assert last.reason == ReasonCode.MAXIMUM_CONNECT_TIME


def test_a_reload_with_a_key_file_that_cannot_be_read_changes_nothing(start: Start, tmp_path: Path):
    keys = key_file(tmp_path / "keys.json", jwk(EC, "k"))
    auth = {"anonymous": "never", "jwt": {"keys": keys}}
    broker = start(auth=auth)
    reload(broker, auth={**auth, "jwt": {"keys": str(tmp_path / "none")}})
    broker.wait_until_said("the old one stays")
    reason, client = paho_login(broker.port, user="ann", password=token())
    assert reason == 0
    leave(client)


def test_a_hook_decides_for_real_clients_and_one_that_is_down_lets_nobody_in(start: Start):
    def answer(body: bytes) -> tuple[int, str]:
        asked = json.loads(body)
        is_right = asked["password"] == "secret"
        return (
            (200, json.dumps({"user": asked["user"], "rules": [{"topic": "a/#"}]}))
            if (is_right)
            else (403, "")
        )

    with serving(answer) as (url, _):
        broker = start(auth={"anonymous": "never", "http": {"url": url, "cache": 0.0}})
        reason, client = paho_login(broker.port, user="ann", password="secret")
        assert reason == 0
        leave(client)
        assert paho_login(broker.port, user="ann", password="wrong")[0] == 0x86
    assert paho_login(broker.port, user="ann", password="secret")[0] == 0x86
    assert "the hook gives no answer" in broker.said()


def test_a_certificate_is_a_user_until_it_is_revoked(start: Start, tmp_path: Path):
    authority = Authority(tmp_path)
    server = authority.issue("127.0.0.1", "localhost")
    ann, eve = authority.issue("ann", "ann.dev.org"), authority.issue("eve", "eve.dev.org")
    section = {
        "kind": "tls",
        "port": 0,
        "certificate": str(server[0]),
        "key": str(server[1]),
        "client_ca": str(authority.path),
        "crl": str(authority.revoke()),
        "tls_minimum": "1.3",
    }
    auth = {
        "anonymous": "never",
        "certificates": [{"field": "dns", "name": "*.dev.org", "user": "dev-%1"}],
        "rules": [{"user": "dev-ann", "topic": "a/#"}],
    }
    broker = start(listener=[section], auth=auth)
    port = broker.ports["tls"]

    def login(pair: tuple[Any, ...] | None) -> int:
        reason, client = paho_login(port, tls=with_certificate(authority.path, pair))
        leave(client)
        return reason

    assert [login(ann), login(eve), login(None)] == [0, 0, -1]
    authority.revoke(eve[2])
    broker.sections["listener"][0]["port"] = port
    reload(broker)
    wait_for(lambda: login(eve) == -1)
    assert login(ann) == 0
    renewed = authority.issue("127.0.0.1", "renewed", file="127.0.0.1")
    assert renewed[0] == server[0]
    reload(broker)
    wait_for(lambda: _serial_at(port, authority.path, ann) == renewed[2].serial_number)


def _serial_at(port: int, authority: Path, pair: tuple[Any, ...]) -> int:
    import socket
    import ssl

    context = ssl.create_default_context(cafile=authority)
    context.load_cert_chain(*pair[:2])
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
    ):
        found = secure.getpeercert()
    assert found is not None
    return int(str(found["serialNumber"]), 16)


# --- SCRAM ----------------------------------------------------------------------------------------


@pytest.fixture
def scram(start: Start, tmp_path: Path) -> BrokerProcess:
    set_password(tmp_path / "users", "ann", b"pw", with_scram=True)
    set_password(tmp_path / "users", "bob", b"other", with_scram=True)
    return start(auth={"anonymous": "never", "users": str(tmp_path / "users")})


def scram_connect(first: bytes | None, method: str = SCRAM) -> Connect:
    told = Properties(authentication_method=method, authentication_data=first)
    return Connect("c1", properties=told)


def proven(raw: Raw, first: bytes, answer: bytes, password: str) -> None:
    data = final(first, answer, password)
    told = Properties(authentication_method=SCRAM, authentication_data=data)
    raw.send(Auth(ReasonCode.CONTINUE_AUTHENTICATION, told))


def test_a_login_by_scram_sends_no_password_and_proves_the_broker(scram: BrokerProcess):
    raw, first = Raw(scram.port), b"n,,n=ann,r=abc"
    raw.send(scram_connect(first))
    answer = raw.next()
    assert isinstance(answer, Auth)
    assert answer.reason == ReasonCode.CONTINUE_AUTHENTICATION
    proven(raw, first, answer.properties.authentication_data or b"", "pw")
    connack = raw.next()
    assert isinstance(connack, Connack)
    assert connack.reason == 0
    assert connack.properties.authentication_method == SCRAM
    assert (connack.properties.authentication_data or b"").startswith(b"v=")

    def again(user: str, password: str) -> Any:
        begin = f"n,,n={user},r=xyz".encode()
        told = Properties(authentication_method=SCRAM, authentication_data=begin)
        raw.send(Auth(ReasonCode.RE_AUTHENTICATE, told))
        step = raw.next()
        assert isinstance(step, Auth)
        proven(raw, begin, step.properties.authentication_data or b"", password)
        return raw.next()

    assert again("ann", "pw").reason == 0
    assert again("bob", "other").reason == ReasonCode.NOT_AUTHORIZED  # not as somebody else


@pytest.mark.parametrize(
    ("first", "password", "reason"),
    [
        (b"n,,n=ann,r=abc", "wrong", 0x86),
        (b"n,,n=eve,r=abc", "pw", 0x86),
        (b"nonsense", "", 0x86),
    ],
)
def test_a_wrong_scram_login_is_refused(
    scram: BrokerProcess, first: bytes, password: str, reason: int
):
    raw = Raw(scram.port)
    raw.send(scram_connect(first))
    answer = raw.next()
    if isinstance(answer, Auth):
        proven(raw, first, answer.properties.authentication_data or b"", password)
        answer = raw.next()
    assert isinstance(answer, Connack)
    assert answer.reason == reason


def test_what_is_no_part_of_an_exchange_ends_it(scram: BrokerProcess):
    raw = Raw(scram.port)
    raw.send(scram_connect(b"n,,n=a,r=b", "GS2-KRB5"))
    assert raw.next().reason == ReasonCode.BAD_AUTHENTICATION_METHOD  # type: ignore[union-attr]
    for wrong in (
        Publish("a", b""),
        Auth(ReasonCode.RE_AUTHENTICATE, Properties(authentication_method=SCRAM)),
        Auth(ReasonCode.CONTINUE_AUTHENTICATION, Properties(authentication_method="OTHER")),
        scram_connect(b"n,,n=ann,r=abc"),
    ):
        raw = Raw(scram.port)
        raw.send(scram_connect(b"n,,n=ann,r=abc"), wrong)
        assert isinstance(raw.next(), Auth)
        last = raw.next()
        assert last is None or (isinstance(last, Connack) and last.reason >= 0x80)
        raw.close()
    client = Raw(scram.port)
    assert client.login(user_name="ann", password=b"pw") == 0
    client.send(Auth(ReasonCode.RE_AUTHENTICATE, Properties(authentication_method=SCRAM)))
    assert client.next().reason == ReasonCode.PROTOCOL_ERROR  # type: ignore[union-attr]


# --- guesses, bans, audit -------------------------------------------------------------------------


def test_guesses_have_to_wait_and_all_is_in_the_audit_log(start: Start, tmp_path: Path):
    set_password(tmp_path / "users", "ann", b"pw")
    audit = tmp_path / "audit" / "audit.log"
    broker = start(
        auth={
            "users": str(tmp_path / "users"),
            "rules": [{"user": "ann", "topic": "a/#"}],
        },
        audit={"file": str(audit), "decisions": "all"},
        log={"level": "error"},
    )
    reasons = []
    for _ in range(8):
        raw = Raw(broker.port)
        reasons.append(raw.login(user_name="bob", password=b"guess"))
        raw.close()
    assert reasons[:5] == [0x86] * 5
    assert 0x9F in reasons[5:]
    raw = Raw(broker.port)
    assert raw.login(user_name="ann", password=b"pw") == 0  # another user of the same address
    raw.send(Publish("a/1", b"", 1, packet_id=1), Publish("b", b"", 1, packet_id=2))
    assert [raw.next().reason, raw.next().reason] == [0x10, 0x87]  # type: ignore[union-attr]
    raw.close()
    broker.end()
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    events = [one["event"] for one in lines]
    assert events.count("login_refused") == 8
    for event in ("started", "client_connected", "allowed", "publish_denied", "stopped"):
        assert event in events, event
    denied = next(one for one in lines if one["event"] == "publish_denied")
    assert (denied["user"], denied["topic"]) == ("ann", "b")
    assert audit.stat().st_mode & 0o777 == 0o600
    assert audit.parent.stat().st_mode & 0o777 == 0o700
    assert "guess" not in audit.read_text()


def test_a_ban_sends_a_client_away_and_keeps_it_out(start: Start):
    from tests.support.commands import nearcast

    broker = start()
    raw = Raw(broker.port)
    assert raw.login("c9") == 0
    data = str(broker.directory)
    ran = nearcast("ban", "add", "client", "c9", "--for", "1h", "--data", data)
    assert ran.returncode == 0, ran.stderr
    last = wait_until_closed(raw)
    assert isinstance(last, Disconnect)
    assert last.reason == ReasonCode.ADMINISTRATIVE_ACTION
    assert Raw(broker.port).login("c9") == ReasonCode.BANNED
    assert Raw(broker.port).login("c8") == 0
    assert "client c9 until" in nearcast("ban", "list", "--data", data).stdout
    assert nearcast("ban", "remove", "client", "c9", "--data", data).returncode == 0
    wait_for(lambda: Raw(broker.port).login("c9") == 0)
    assert nearcast("ban", "remove", "client", "c9", "--data", data).returncode == 2
    nearcast("ban", "add", "address", "127.0.0.0/8", "--data", data)
    wait_for(lambda: not _answers(broker.port))


def _answers(port: int) -> bool:
    try:
        return Raw(port).login("any") == 0
    except OSError:
        return False
