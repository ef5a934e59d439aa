"""Logins outlive the broker: a restart logs out nobody, and lets nobody in who was logged out."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.http.conftest import PASSWORD, ManagedBroker
from tests.support.http_caller import Caller

from nearcast.server.http.endpoint import Role
from nearcast.server.http.login_file import LoginFile
from nearcast.server.http.logins import LASTS_S, Logins
from nearcast.server.http.operators import Operator

ANN, VIC = Operator("ann", "operator", "token$" + "a" * 64), Operator("vic", "viewer", "token$b")
ADDRESS = "127.0.0.1:9"


class Clocks:
    """A clock of the day, and one of a process, which begins anew with it."""

    def __init__(self) -> None:
        self.day_s, self.process_s = 1_000_000.0, 50.0

    def wait(self, seconds: float) -> None:
        self.day_s += seconds
        self.process_s += seconds

    def restart(self) -> None:
        self.process_s = 3.0


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


@pytest.fixture
def begin(tmp_path: Path, clocks: Clocks) -> Callable[..., Logins]:
    def begin_(*operators: Operator) -> Logins:
        file = LoginFile(tmp_path / "logins.json", lambda: clocks.day_s)
        known = {one.name: one for one in operators}
        return Logins(known, lambda: clocks.process_s, file=file)

    return begin_


def log_in(logins: Logins, one: Operator = ANN) -> str:
    return logins._begin(one, one.name, ADDRESS).key


def test_a_login_goes_on_with_the_same_rights_and_the_same_token(
    begin: Callable[..., Logins], clocks: Clocks
):
    first = begin(ANN, VIC)
    ann, vic = log_in(first), log_in(first, VIC)
    csrf = first.of_cookie(ann).csrf
    clocks.restart()
    again = begin(ANN, VIC)
    assert (again.of_cookie(ann).name, again.of_cookie(ann).role) == ("ann", Role.OPERATOR)
    assert (again.of_cookie(vic).name, again.of_cookie(vic).role) == ("vic", Role.VIEWER)
    assert again.of_cookie(ann).csrf == csrf != again.of_cookie(vic).csrf
    assert again.of_cookie("another").role is Role.NOBODY


def test_a_restart_makes_no_login_longer(begin: Callable[..., Logins], clocks: Clocks):
    cookie = log_in(begin(ANN))
    clocks.wait(LASTS_S / 2)
    clocks.restart()
    assert begin(ANN).of_cookie(cookie).name == "ann"
    clocks.wait(LASTS_S / 2 - 1)
    clocks.restart()
    again = begin(ANN)
    assert again.of_cookie(cookie).name == "ann"
    clocks.wait(2)
    assert again.of_cookie(cookie).name is None
    clocks.restart()
    assert begin(ANN).of_cookie(cookie).name is None


def test_a_clock_that_was_set_back_makes_no_login_longer_than_all(
    begin: Callable[..., Logins], clocks: Clocks
):
    cookie = log_in(begin(ANN))
    clocks.day_s -= 1e6
    clocks.restart()
    again = begin(ANN)
    clocks.wait(LASTS_S + 1)
    assert again.of_cookie(cookie).name is None


@pytest.mark.parametrize(
    "changed",
    [
        [],
        [Operator("ann", "viewer", ANN.stored)],
        [Operator("ann", "operator", "token$" + "c" * 64)],
        [Operator("bea", "operator", ANN.stored)],
    ],
)
def test_a_login_of_an_operator_who_was_changed_meanwhile_has_ended(
    begin: Callable[..., Logins], changed: list[Operator]
):
    cookie = log_in(begin(ANN))
    assert begin(*changed).of_cookie(cookie).role is Role.NOBODY


def test_who_logged_out_stays_out(begin: Callable[..., Logins]):
    first = begin(ANN)
    cookie, other = log_in(first), log_in(first)
    first.log_out(first.of_cookie(cookie))
    again = begin(ANN)
    assert again.of_cookie(cookie).role is Role.NOBODY
    assert again.of_cookie(other).role is Role.OPERATOR


def test_who_logged_out_after_a_restart_stays_out(begin: Callable[..., Logins]):
    cookie = log_in(begin(ANN))
    again = begin(ANN)
    again.log_out(again.of_cookie(cookie))
    assert begin(ANN).of_cookie(cookie).role is Role.NOBODY


def test_a_changed_file_of_operators_ends_kept_logins_too(begin: Callable[..., Logins]):
    first = begin(ANN)
    cookie = log_in(first)
    first.use({})
    assert begin(ANN).of_cookie(cookie).role is Role.NOBODY


@pytest.mark.parametrize("found", [b"", b"[{", b'{"a": 1}', b"[1]", b"\xff", b"[" * 2_000_000])
def test_a_damaged_file_keeps_nobody_and_is_no_fault_of_the_broker(
    begin: Callable[..., Logins], tmp_path: Path, found: bytes
):
    cookie = log_in(begin(ANN))
    (tmp_path / "logins.json").write_bytes(found)
    again = begin(ANN)
    assert again.of_cookie(cookie).role is Role.NOBODY
    assert log_in(again)
    assert json.loads((tmp_path / "logins.json").read_bytes())


def test_where_nothing_can_be_written_no_old_login_comes_back(
    begin: Callable[..., Logins], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    first = begin(ANN)
    cookie = log_in(first)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr("nearcast.server.http.login_file.write_private", full)
        first.log_out(first.of_cookie(cookie))
    assert not (tmp_path / "logins.json").exists()
    assert begin(ANN).of_cookie(cookie).role is Role.NOBODY


def test_the_file_has_no_secret_and_is_for_its_owner_only(
    begin: Callable[..., Logins], tmp_path: Path
):
    first = begin(ANN)
    cookie = log_in(first)
    path = tmp_path / "logins.json"
    text = path.read_text()
    assert path.stat().st_mode & 0o077 == 0
    assert cookie not in text
    assert first.of_cookie(cookie).csrf not in text
    assert ANN.stored not in text


@pytest.mark.server
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_browser_is_logged_in_after_the_broker_was_restarted(
    start_site: Callable[..., ManagedBroker], how: signal.Signals
):
    site = start_site()
    ann, gone = site.operator(), site.operator()
    assert gone.ask("DELETE", "/api/session").status == 204
    csrf, port = ann.csrf, site.port
    site.broker.end(how)
    site.broker.sections["http"] = {
        **site.broker.sections["http"],
        "address": f"127.0.0.1:{port}",  # cookies are named after the port
    }
    site.broker.start()
    found = ann.get("/api/session").json
    assert (found["user"], found["role"], found["csrf"]) == ("ann", "operator", csrf)
    assert ann.post("/api/publish", {"topic": "a"}).status == 200
    assert gone.get("/api/session").json["role"] is None
    forged = Caller(port, ann.cookie, csrf="x")
    assert forged.post("/api/publish", {"topic": "a"}).status == 403
    assert Caller(port).log_in("ann", PASSWORD).get("/api/log").status == 200
