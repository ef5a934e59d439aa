"""The file of operators, and the command that writes it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.commands import nearcast

from nearcast.model.errors import EnvironmentProblem, FileFormatError, MisuseError
from nearcast.server.http.logins import LoginThrottle
from nearcast.server.http.operators import (
    read_operators,
    remove_operator,
    set_operator,
    with_password,
    with_token,
)
from nearcast.server.http.problem import ProblemError


def test_an_operator_is_who_has_the_password_or_the_token(tmp_path: Path):
    path = tmp_path / "operators.txt"
    assert set_operator(path, "ann", "operator", b"secret") is None
    token = set_operator(path, "bot", "viewer", None)
    assert token is not None
    found = read_operators(path)
    assert {one.name: one.role for one in found.values()} == {"ann": "operator", "bot": "viewer"}
    assert with_password(found, "ann", b"secret") == found["ann"]
    assert with_password(found, "ann", b"Secret") is None
    assert with_password(found, "bot", token.encode()) is None
    assert with_password(found, "eve", b"secret") is None
    assert with_token(found, token) == found["bot"]
    assert with_token(found, found["bot"].stored) is None
    assert with_token(found, "") is None
    text = path.read_text()
    assert token not in text
    assert "secret" not in text
    assert path.stat().st_mode & 0o077 == 0
    remove_operator(path, "ann")
    assert set(read_operators(path)) == {"bot"}


@pytest.mark.parametrize(
    "line",
    ["ann", "ann:admin:scrypt$1$1$1$a$b", "ann:viewer:plain", "ann:viewer:token$12", ":viewer:"],
)
def test_a_damaged_line_is_named(tmp_path: Path, line: str):
    path = tmp_path / "operators.txt"
    path.write_text(f"# comment\n\n{line}\n")
    with pytest.raises(FileFormatError, match="line 3"):
        read_operators(path)


def test_what_cannot_be_a_line_is_refused(tmp_path: Path):
    path = tmp_path / "operators.txt"
    for name in ("", "a:b", "a\nb", "#a", "x" * 101):
        with pytest.raises(MisuseError):
            set_operator(path, name, "viewer", b"x")
    with pytest.raises(MisuseError, match="viewer or operator"):
        set_operator(path, "ann", "admin", b"x")
    with pytest.raises(EnvironmentProblem, match="nearcast passwd"):
        read_operators(path)


def test_the_command_adds_changes_and_removes_operators(tmp_path: Path):
    path = str(tmp_path / "operators.txt")
    done = nearcast("passwd", path, "ann", "--role", "operator", text="secret\n")
    assert done.returncode == 0, done.stderr
    made = nearcast("passwd", path, "bot", "--role", "viewer", "--token", "--json")
    token = json.loads(made.stdout)["token"]
    assert with_token(read_operators(Path(path)), token) is not None
    assert nearcast("passwd", path, "ann", "--delete").returncode == 0
    assert set(read_operators(Path(path))) == {"bot"}
    assert nearcast("passwd", path, "eve", "--token").returncode != 0


def test_the_throttle_forgets_after_a_minute():
    now_s = [0.0]
    throttle = LoginThrottle(lambda: now_s[0])
    for _ in range(5):
        throttle.check("a")
        throttle.failed("a")
    with pytest.raises(ProblemError):
        throttle.check("a")
    throttle.check("b")
    now_s[0] = 59.0
    with pytest.raises(ProblemError):
        throttle.check("a")
    now_s[0] = 60.5
    throttle.check("a")
