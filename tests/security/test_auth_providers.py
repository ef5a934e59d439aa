"""The HTTP hook, plugins, certificates, SCRAM, guesses, bans, grants: each fails closed."""

from __future__ import annotations

import base64
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.security.hooks import serving
from tests.security.scram_client import final

from nearcast.broker import Connection, LoginVerdict
from nearcast.config import AuthSection, CertificateSection, HttpHookSection, RatesSection
from nearcast.model.errors import EnvironmentProblem, FileFormatError, MisuseError
from nearcast.mqtt import Connect
from nearcast.server import hash_password, read_users, set_password
from nearcast.server.auth.bans import Ban, BanList, checked_ban, read_bans, write_bans
from nearcast.server.auth.certificates import CertificateUsers
from nearcast.server.auth.gate import LoginGate
from nearcast.server.auth.guesses import GuessThrottle
from nearcast.server.auth.http_hook import HttpHook
from nearcast.server.auth.login_checks import LoginChecks
from nearcast.server.auth.logins import (
    Login,
    LoginAnswer,
    LoginPlugin,
    LoginRefusedError,
    LoginRequest,
    find_plugin,
)
from nearcast.server.auth.passwords import keys_of, scram_keys
from nearcast.server.auth.rates import Buckets
from nearcast.server.auth.rules import ConfiguredAccess
from nearcast.server.auth.scram import ScramExchange

ASKED = LoginRequest("c1", "ann", b"secret", "10.0.0.7", "0", (("cn", "dev1"),))


# --- the HTTP hook --------------------------------------------------------------------------------


def test_the_hook_is_asked_once_and_its_answer_kept():
    with serving(lambda _: (200, '{"user": "ann", "rules": [{"topic": "a/#"}]}')) as (url, asked):
        hook = HttpHook(HttpHookSection(url=url))
        for _ in range(3):
            assert hook.check(ASKED) == LoginAnswer("ann", [{"topic": "a/#"}])
        assert json.loads(asked[0]) == {
            "client": "c1",
            "user": "ann",
            "password": "secret",
            "address": "10.0.0.7",
            "listener": "0",
            "certificate": [["cn", "dev1"]],
        }
        assert len(asked) == 1
        hook.check(LoginRequest("c1", "ann", b"other", "10.0.0.7", "0"))
        assert len(asked) == 2  # another password is another question


@pytest.mark.parametrize(
    "answer",
    [
        (401, '{"user": "ann"}'),
        (204, ""),
        (302, '{"user": "ann"}'),
        (500, '{"user": "ann"}'),
        (200, ""),
        (200, "[]"),
        (200, '{"user": ""}'),
        (200, '{"user": 7}'),
        (200, '{"user": "ann", "rules": "all"}'),
        (200, '{"user": "ann", "rules": [{"topc": "a"}]}'),
        (200, '{"user": "ann", "expires": "soon"}'),
        (200, '{"user": "ann", "expires": -1}'),
        (200, '{"user": "' + "x" * 2_000_000 + '"}'),
    ],
    ids=range(13),
)
def test_whatever_is_no_yes_of_the_hook_is_a_no(answer: tuple[int, str]):
    with serving(lambda _: answer) as (url, _):
        login = LoginChecks({}, [HttpHook(HttpHookSection(url=url))]).check(ASKED)
    assert login is not None
    assert login.verdict is LoginVerdict.WRONG_PASSWORD


@pytest.mark.parametrize("password", [b"\xff", b"caf\xe9", b"\xed\xa0\x80"])
def test_a_password_that_is_no_text_is_refused_and_not_sent(password: bytes):
    """As text with replacements, one guess would stand for many passwords."""
    with serving(lambda _: (200, '{"user": "ann"}')) as (url, asked):
        with pytest.raises(LoginRefusedError, match="UTF-8"):
            HttpHook(HttpHookSection(url=url)).check(replace(ASKED, password=password))
        assert not asked


def test_a_hook_that_is_down_or_slow_refuses_and_a_kept_answer_ends():
    now_s = 0.0
    with serving(lambda _: (200, '{"user": "ann"}')) as (url, _):
        hook = HttpHook(HttpHookSection(url=url, cache=60.0), lambda: now_s)
        assert hook.check(ASKED) is not None
    assert hook.check(ASKED) is not None
    now_s = 61.0
    with pytest.raises(LoginRefusedError, match="no answer"):
        hook.check(ASKED)

    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        with pytest.raises(LoginRefusedError, match="no answer"):
            HttpHook(HttpHookSection(url=url, timeout=0.2)).check(ASKED)


def test_a_kept_answer_lasts_no_longer_than_the_login_that_it_allows():
    now_s = 0.0
    with serving(lambda _: (200, '{"user": "ann", "expires": 10}')) as (url, asked):
        hook = HttpHook(HttpHookSection(url=url, cache=60.0), lambda: now_s)
        for at_s, left_s, count in ((0.0, 10, 1), (4.0, 6, 1), (9.5, 0.5, 1), (10.0, 10, 2)):
            now_s = at_s
            answer = hook.check(ASKED)
            assert answer is not None
            assert (answer.lasts_s, len(asked)) == (left_s, count)


@pytest.mark.parametrize("lasts_s", [-1, float("nan"), float("inf"), 1e300])
def test_a_login_lasts_for_a_time_that_is_one(lasts_s: float):
    from nearcast.server.auth.logins import login_of

    with pytest.raises(LoginRefusedError, match="lasts"):
        login_of(LoginAnswer("ann", lasts_s=lasts_s))


# --- plugins --------------------------------------------------------------------------------------


class Broken:
    """A plugin with a bug."""

    def check(self, request: LoginRequest) -> LoginAnswer | None:
        raise ZeroDivisionError


class Knows:
    """A plugin that knows one user."""

    def __init__(self, user: str) -> None:
        self.user = user

    def check(self, request: LoginRequest) -> LoginAnswer | None:
        return LoginAnswer(self.user) if request.user_name == self.user else None


class Nobody:
    """A plugin that knows nobody."""

    def check(self, request: LoginRequest) -> LoginAnswer | None:
        return None


class Rude:
    """A plugin that answers nonsense."""

    def check(self, request: LoginRequest) -> Any:
        return LoginAnswer(None, [])  # type: ignore[arg-type]


@pytest.mark.parametrize("plugin", [Broken(), Nobody(), Rude()], ids=["broken", "nobody", "rude"])
def test_a_plugin_that_fails_or_knows_nobody_lets_nobody_in(plugin: LoginPlugin):
    login = LoginChecks({}, [plugin]).check(ASKED)
    assert login is not None
    assert login.verdict is LoginVerdict.WRONG_PASSWORD


def test_a_plugin_is_an_installed_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "ldap-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: ldap\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(
        "[nearcast.auth]\nldap = ldap_of_test:Ldap\nbad = ldap_of_test:missing\n"
    )
    (tmp_path / "ldap_of_test.py").write_text(
        "from nearcast.server.auth.logins import LoginAnswer\n"
        "class Ldap:\n"
        "    def check(self, request):\n"
        "        return LoginAnswer('ann') if request.password == b'secret' else None\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    plugin = find_plugin("ldap")
    assert plugin.check(ASKED) == LoginAnswer("ann")
    with pytest.raises(EnvironmentProblem, match="cannot be loaded"):
        find_plugin("bad")
    with pytest.raises(EnvironmentProblem, match=r"not installed.*Installed: bad, ldap"):
        find_plugin("kerberos")
    sys.modules.pop("ldap_of_test")


# --- certificates ---------------------------------------------------------------------------------

NAMES = (("cn", "dev1"), ("dns", "a.b.example.org"), ("uri", "urn:x"), ("email", "a@b.org"))


@pytest.mark.parametrize(
    ("field", "name", "user", "found"),
    [
        ("cn", "*", "%n", "dev1"),
        ("dns", "*.example.org", "%1", "a.b"),
        ("dns", "*.*.org", "%2-%1", "b.example-a"),
        ("email", "*@b.org", "m%1", "ma"),
        ("uri", "urn:x", "fixed", "fixed"),
        ("dns", "example.org", "%n", None),
        ("cn", "dev", "%n", None),
        ("cn", "*", "%3", None),
    ],
)
def test_a_certificate_is_the_user_that_a_section_says(
    field: str, name: str, user: str, found: str | None
):
    section = CertificateSection.model_validate({"field": field, "name": name, "user": user})
    assert CertificateUsers([section]).find(NAMES) == found
    assert CertificateUsers([]).find(NAMES) == "dev1"


def test_names_are_filled_in_once():
    section = CertificateSection(name="*", user="%n")
    assert CertificateUsers([section]).find((("cn", "%1"),)) == "%1"


def test_a_certificate_of_nobody_is_refused_even_where_nameless_clients_are_welcome():
    auth = AuthSection(anonymous="always", certificates=[CertificateSection(name="x*")])
    access = ConfiguredAccess(auth, {}, [])
    connection = Connection("10.0.0.7:1")
    connection.certificate = NAMES
    assert access.authenticate(Connect("c"), connection) is LoginVerdict.FORBIDDEN


# --- SCRAM ----------------------------------------------------------------------------------------


def exchange(keys: Any, nonce: str = "srv") -> tuple[ScramExchange, Connection]:
    connection = Connection("10.0.0.7:1")
    gate = LoginGate(RatesSection())
    made = ScramExchange(
        keys,
        lambda user, verdict, one: gate.settle(one, Login(verdict, user)),
        connection,
        secret=b"s",
        nonce=nonce,
    )
    return made, connection


def test_the_example_of_the_rfc():
    """RFC 7677, section 3."""
    keys = scram_keys("pencil", base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="), 4096)
    made, connection = exchange({"user": keys}.get, "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    first = made.step(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert first.data == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    last = made.step(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert last.verdict is LoginVerdict.WELCOME
    assert last.data == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert connection.proof is not None
    assert connection.proof.user == "user"


@pytest.mark.parametrize(
    ("user", "password", "nonce"),
    [("ann", "wrong", ""), ("eve", "pw", ""), ("ann", "pw", "csrvx"), ("ann", "pw", "cold")],
)
def test_a_wrong_password_user_or_nonce_is_refused_at_the_end(user: str, password: str, nonce: str):
    keys = {"ann": scram_keys("pw", b"salt", 4096)}
    first = f"n,,n={user},r=c".encode()
    made, connection = exchange(keys.get)
    answer = made.step(first)
    assert answer.verdict is None
    assert (
        made.step(final(first, answer.data, password, nonce)).verdict is LoginVerdict.WRONG_PASSWORD
    )
    assert connection.proof is None


def test_an_unknown_user_gets_a_salt_as_everybody_does():
    salts = {exchange({}.get)[0].step(b"n,,n=eve,r=c").data for _ in range(3)}
    assert len(salts) == 1


@pytest.mark.parametrize(
    "data",
    [b"", b"n", b"p=tls-exporter,,n=a,r=c", b"n,a=b,n=a,r=c", b"n,,m=x,n=a,r=c", b"n,,n=,r=c",
     b"n,,n=a=2,r=c", b"n,,n=a,r=", b"\xff\xfe", b"n,,n=a,r=c" + b"x" * 2000],
    ids=range(10),
)  # fmt: skip
def test_a_first_message_that_is_none_is_refused(data: bytes):
    made, _ = exchange({}.get)
    if not data:
        assert made.step(data).verdict is None  # the client begins with AUTH
    assert made.step(data).verdict is LoginVerdict.WRONG_PASSWORD


@given(st.lists(st.binary(max_size=60), max_size=4))
def test_no_message_breaks_an_exchange(messages: list[bytes]):
    made, connection = exchange({"a": scram_keys("b", b"s", 4096)}.get)
    for one in messages:
        if made.step(one).verdict is not None:
            break
    assert connection.proof is None


def test_keys_for_scram_stand_in_the_password_file(tmp_path: Path):
    path = tmp_path / "users"
    set_password(path, "ann", b"pw", with_scram=True)
    set_password(path, "bob", b"pw")
    users = read_users(path)
    assert keys_of(users["ann"]) is not None
    assert keys_of(users["bob"]) is None
    path.write_text("eve:scram-sha-256$1$AAAA$AAAA$AAAA\n")
    with pytest.raises(FileFormatError, match="line 1"):
        read_users(path)


def test_scram_keys_serve_for_a_sent_password_too(tmp_path: Path):
    path = tmp_path / "users"
    set_password(path, "ann", b"pw", with_scram=True)
    path.write_text("ann:" + path.read_text().split()[1] + "\n")
    checks = LoginChecks(read_users(path), [])
    assert checks.check_password("ann", b"pw").verdict is LoginVerdict.WELCOME
    assert checks.check_password("ann", b"\xff").verdict is LoginVerdict.WRONG_PASSWORD


# --- guesses, rates, bans -------------------------------------------------------------------------


def test_whoever_guesses_waits_ever_longer_and_the_user_elsewhere_does_not():
    guesses = GuessThrottle(3, 60_000)
    for _ in range(3):
        assert not guesses.waits("bad", "ann", 0)
        guesses.failed("bad", "ann", 0)
    assert guesses.waits("bad", "ann", 999)
    assert not guesses.waits("bad", "ann", 1_000)
    guesses.failed("bad", "ann", 1_000)
    assert guesses.waits("bad", "ann", 2_999)
    assert not guesses.waits("home", "ann", 999)
    guesses.succeeded("bad", "ann")
    assert not guesses.waits("bad", "ann", 2_999)


def test_an_address_that_tries_many_users_waits_as_well():
    guesses = GuessThrottle(3, 60_000)
    for number in range(12):
        assert not guesses.waits("bad", f"u{number}", 0)
        guesses.failed("bad", f"u{number}", 0)
    assert guesses.waits("bad", "another", 0)
    assert not guesses.waits("good", "another", 0)


@given(st.lists(st.integers(0, 400), max_size=60))
def test_a_bucket_lets_through_its_rate_and_one_burst_at_most(pauses_ms: list[int]):
    buckets, now_ms, taken = Buckets((10.0, 5.0)), 0, 0
    for pause_ms in pauses_ms:
        now_ms += pause_ms
        taken += buckets.take("a", now_ms)
        assert taken <= 5 + now_ms / 100 + 1e-6
    if all(pause_ms >= 100 for pause_ms in pauses_ms):
        assert taken == len(pauses_ms)


def test_a_ban_is_of_an_address_a_network_a_user_or_a_client(tmp_path: Path):
    bans = [
        checked_ban("address", "10.1.2.3/8"),
        checked_ban("address", "2001:db8::1"),
        checked_ban("user", "eve", until=100.0),
        checked_ban("client", "c9", reason="noise"),
    ]
    write_bans(tmp_path / "bans.json", bans)
    assert (tmp_path / "bans.json").stat().st_mode & 0o777 == 0o600
    assert sorted(read_bans(tmp_path / "bans.json"), key=str) == sorted(bans, key=str)
    found = BanList(bans)
    assert found.find("10.9.9.9", None, "c", 0) is not None
    assert found.find("::ffff:10.9.9.9", None, "c", 0) is not None
    assert found.find("11.9.9.9", None, "c", 0) is None
    assert found.find("", "eve", "c", 99) is not None
    assert found.find("", "eve", "c", 100) is None
    assert found.find("", None, "c9", 0) == Ban("client", "c9", None, "noise")
    for bad in ("", "10.0.0.0/40", "example.org"):
        with pytest.raises(MisuseError):
            checked_ban("address", bad)


@pytest.mark.parametrize(
    "text", ["", "[]", '{"bans": [{"kind": "x", "name": "y"}]}', '{"bans": 1}']
)
def test_a_file_that_is_no_list_of_bans_is_refused(tmp_path: Path, text: str):
    (tmp_path / "bans.json").write_text(text)
    with pytest.raises(FileFormatError):
        read_bans(tmp_path / "bans.json")


def test_an_empty_password_file_lets_no_name_in():
    access = ConfiguredAccess(AuthSection(users=Path("empty")), {}, ["0"])
    named = Connection("127.0.0.1:1", "0")
    assert access.authenticate(Connect("c", user_name="root"), named) is LoginVerdict.WRONG_PASSWORD
    assert (
        access.check_password(Connect("c", user_name="root", password=b"x"))
        is LoginVerdict.WRONG_PASSWORD
    )


def test_rules_of_a_login_come_first_and_others_have_none_of_them():
    rules: list[dict[str, object]] = [{"topic": "own/%u/#"}, {"topic": "news/#", "allow": False}]
    auth = AuthSection.model_validate({"rules": [{"topic": "news/#"}]})
    access = ConfiguredAccess(auth, {}, [], plugins=[Nobody()])
    connection = Connection("10.0.0.7:1")
    connection.connect = Connect("c1", user_name="ann", password=b"x")
    from nearcast.server.auth.logins import login_of

    access.gate.settle(connection, login_of(LoginAnswer("ann", rules)))
    assert access.bind(connection, "c1")
    assert access.may_publish("ann", "c1", "own/ann/x")
    assert not access.may_publish("ann", "c1", "news/x")
    assert not access.may_publish("ann", "c1", "own/bob/x")
    assert access.may_publish("ann", "c2", "news/x")
    assert not access.may_publish("ann", "c2", "own/ann/x")
    assert access.refusal("ann", "c1", "news/x", subscribes=False) == (
        "the rules of its login forbid it"
    )


@pytest.mark.parametrize("source", ["file", "SCRAM", "plugin"])
def test_a_user_who_was_removed_from_the_file_stays_only_if_a_plugin_knows_it(source: str):
    """Any plugin kept everybody: what had proven a name was not recorded."""
    users = {"ann": hash_password(b"pw", b"0" * 16)}
    access = ConfiguredAccess(AuthSection(users=Path("users")), users, [], plugins=[Knows("bob")])
    user, password = ("bob", b"x") if source == "plugin" else ("ann", b"pw")
    connection = Connection("10.0.0.7:1")
    connection.connect = Connect("c1", user_name=user, password=password)
    if source == "SCRAM":
        verdict = access._settled_exchange(user, LoginVerdict.WELCOME, connection)
    else:
        verdict = access.gate.settle(connection, access.check(connection))
    assert verdict is LoginVerdict.WELCOME
    assert access.keeps(user, connection)
    later = ConfiguredAccess(AuthSection(users=Path("users")), {}, [], plugins=[Knows("bob")])
    assert later.keeps(user, connection) is (source == "plugin")
    assert not ConfiguredAccess(AuthSection(users=Path("users")), {}, []).keeps(user, connection)
