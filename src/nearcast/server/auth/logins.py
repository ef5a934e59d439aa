"""What a login is checked against: the interface of plugins, hooks and tokens.

A plugin is an entry point of the group `nearcast.auth`: a callable without arguments that returns
a `LoginPlugin`. Its methods run in threads, never in the event loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Protocol

from pydantic import ValidationError

from nearcast.broker import Connection, LoginVerdict
from nearcast.config import RuleSection
from nearcast.model.errors import EnvironmentProblem
from nearcast.server.auth.certificates import Names

GROUP = "nearcast.auth"
_LONGEST_S = 1e12


class LoginRefusedError(Exception):
    """A login that is refused; the text is for the log, never for the client."""


@dataclass(frozen=True, slots=True)
class LoginRequest:
    """A login as a plugin sees it."""

    client_id: str
    user_name: str | None
    password: bytes | None = field(repr=False)
    address: str  # without the port
    listener: str
    certificate: Names = ()  # names in a verified client certificate: (kind, name)


@dataclass(frozen=True, slots=True)
class LoginAnswer:
    """A login that is accepted: as which user, under which rules, until when.

    A rule is a mapping with the keys of `[[auth.rules]]`. `rules` come before the configured ones;
    None gives none. After `lasts_s` seconds the client has to log in again; 0: never.
    """

    user: str
    rules: Sequence[Mapping[str, object]] | None = None
    lasts_s: float = 0.0


class LoginPlugin(Protocol):
    """Checks logins. Whatever it raises refuses the login."""

    def check(self, request: LoginRequest) -> LoginAnswer | None:
        """Return the answer; None if others should be asked; raise LoginRefusedError otherwise."""


@dataclass(frozen=True, slots=True)
class Login:
    """The outcome of a check in a thread; `reason` is for the log.

    `is_vouched`: a token, hook or plugin knows the user, who need not stand in the password file.
    """

    verdict: LoginVerdict
    user: str | None = None
    rules: tuple[RuleSection, ...] | None = None
    lasts_s: float = 0.0
    reason: str = ""
    is_vouched: bool = False


def login_of(answer: LoginAnswer) -> Login:
    """Return an accepted login; LoginRefusedError if its rules are none."""
    if not isinstance(answer.user, str) or not answer.user:
        raise LoginRefusedError("an answer without a user")
    if not 0 <= answer.lasts_s <= _LONGEST_S:  # nor NaN
        raise LoginRefusedError(f"an answer that lasts {answer.lasts_s!r} s")
    rules = None
    if answer.rules is not None:
        try:
            rules = tuple(RuleSection.model_validate(dict(one)) for one in answer.rules)
        except (ValidationError, TypeError, ValueError) as problem:
            raise LoginRefusedError(f"rules that are none ({problem})") from None
    return Login(LoginVerdict.WELCOME, answer.user, rules, answer.lasts_s, is_vouched=True)


def request_of(connection: Connection) -> LoginRequest:
    """Return what a connection's CONNECT asks for."""
    connect = connection.connect
    assert connect is not None
    return LoginRequest(
        connect.client_id,
        connect.user_name,
        connect.password,
        connection.address.rpartition(":")[0],
        connection.listener,
        connection.certificate,
    )


def find_plugin(name: str) -> LoginPlugin:
    """Return a new plugin of an installed package."""
    for one in entry_points(group=GROUP, name=name):
        try:
            plugin: LoginPlugin = one.load()()
        except Exception as problem:
            raise EnvironmentProblem(
                f"it cannot be loaded ({type(problem).__name__}: {problem})",
                where=f"login plugin {name}",
            ) from problem
        return plugin
    known = sorted(one.name for one in entry_points(group=GROUP))
    raise EnvironmentProblem(
        "it is not installed",
        where=f"login plugin {name}",
        todo=f"Installed: {', '.join(known)}." if known else "No login plugin is installed.",
    )
