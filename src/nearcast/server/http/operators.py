"""The file of operators: one line for each who may log in at the management address.

    ann:operator:scrypt$16384$8$1$…$…
    grafana:viewer:token$…

A viewer sees, an operator changes as well. The last field is a hashed password, or the hash of a
token: a random text of 160 bits, which a program sends with each request and a page trades in once.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nearcast.model.errors import EnvironmentProblem, FileFormatError, MisuseError
from nearcast.server.auth.passwords import hash_password, is_password

RoleName = Literal["viewer", "operator"]
ROLES: tuple[RoleName, ...] = ("viewer", "operator")
_TOKEN = "token$"  # noqa: S105 - a mark in the file


@dataclass(frozen=True, slots=True)
class Operator:
    """One line of the file."""

    name: str
    role: RoleName
    stored: str

    @property
    def has_token(self) -> bool:
        """Whether it logs in with a token, not with a password."""
        return self.stored.startswith(_TOKEN)


def read_operators(path: Path) -> dict[str, Operator]:
    """Return the operators of a file by name; lines that begin with # are comments."""
    found: dict[str, Operator] = {}
    try:
        text = path.read_text("utf-8")
    except OSError as problem:
        raise EnvironmentProblem(
            str(problem.strerror),
            where=str(path),
            todo="Create it with `nearcast passwd FILE NAME --role operator`.",
        ) from None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, rest = line.partition(":")
        role, _, stored = rest.partition(":")
        if not name or role not in ROLES or not _is_stored(stored):
            raise FileFormatError(
                f"line {number}",
                where=str(path),
                expected="name:viewer:… or name:operator:…",
                todo="Write the file with `nearcast passwd FILE NAME --role operator`.",
            )
        found[name] = Operator(name, role, stored)
    return found


def _is_stored(stored: str) -> bool:
    if stored.startswith(_TOKEN):
        return len(stored) == len(_TOKEN) + 64
    return stored.startswith("scrypt$") and stored.count("$") == 5


def set_operator(path: Path, name: str, role: str, password: bytes | None) -> str | None:
    """Add or change an operator; without a password, return the new token. The change is atomic."""
    _check_name(name)
    if role not in ROLES:
        raise MisuseError(repr(role), where="role", expected="viewer or operator")
    operators = read_operators(path) if path.exists() else {}
    token = secrets.token_hex(20) if password is None else None
    stored = hash_password(password) if password is not None else _hash_token(token or "")
    operators[name] = Operator(name, role, stored)
    _write(path, operators)
    return token


def remove_operator(path: Path, name: str) -> None:
    """Remove an operator; the change is atomic."""
    operators = read_operators(path)
    operators.pop(name, None)
    _write(path, operators)


def is_operators_file(path: Path) -> bool:
    """Return whether a file has operators, not users of MQTT."""
    try:
        return bool(read_operators(path))
    except (EnvironmentProblem, FileFormatError, UnicodeDecodeError):
        return False


def with_token(operators: dict[str, Operator], token: str) -> Operator | None:
    """Return whose token it is. O(operators), in a time that does not depend on the token."""
    stored, found = _hash_token(token), None
    for one in operators.values():
        if one.has_token and hmac.compare_digest(one.stored, stored):
            found = one
    return found


def with_password(operators: dict[str, Operator], name: str, password: bytes) -> Operator | None:
    """Return the operator of a name and a password; slow, and as slow for an unknown name."""
    one = operators.get(name)
    if one is None or one.has_token:
        hash_password(password, b"0" * 16)
        return None
    return one if is_password(password, one.stored) else None


def _check_name(name: str) -> None:
    if not name or not name.isprintable() or any(sign in name for sign in ":#") or len(name) > 100:
        raise MisuseError(
            repr(name), where="operator", expected="1 to 100 printable characters without : and #"
        )


def _hash_token(token: str) -> str:
    return _TOKEN + hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


def _write(path: Path, operators: dict[str, Operator]) -> None:
    draft = path.with_name(path.name + ".new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        for one in sorted(operators.values(), key=lambda one: one.name):
            file.write(f"{one.name}:{one.role}:{one.stored}\n")
    draft.replace(path)
