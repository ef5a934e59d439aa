"""Who is logged in at the management address: sessions of browsers, tokens of programs.

A session is a random cookie, of which only the hash is kept, here and in a file: a restart of the
broker ends no session. A browser must repeat a text that follows from the cookie with every change
(`X-CSRF-Token`): another site can have our cookie sent, but read neither.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Protocol
from weakref import WeakSet

from nearcast.server.auth.password_checks import source_of
from nearcast.server.http.endpoint import Role
from nearcast.server.http.login_file import KeptLogin, LoginFile, hashed
from nearcast.server.http.operators import Operator, with_password, with_token
from nearcast.server.http.problem import ProblemError
from nearcast.server.log_format import RateLimited

log = logging.getLogger("nearcast.operators")

LASTS_S = 12 * 3_600.0
"""A login ends after this time, in use or not."""
_MOST_LOGINS = 1_000
_MOST_FAILURES, _WINDOW_S = 5, 60.0
_MOST_SOURCES = 10_000
_MOST_CHECKS = 8  # passwords that are checked or wait to be checked


class LoginSocket(Protocol):
    """A connection that lives no longer than the login."""

    def login_ended(self) -> None:
        """Close it."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class PageLogin:
    """Somebody who may see or change something; `key` is the cookie, "" where there is none."""

    name: str | None
    role: Role
    key: str = ""
    until_s: float = float("inf")
    stored: str = ""  # the line of the operator's file: a changed one ends the login
    sockets: WeakSet[LoginSocket] = field(default_factory=WeakSet)

    @property
    def csrf(self) -> str:
        """What a browser repeats with every change; only who has the cookie can know it."""
        return hashed(f"X-CSRF-Token of {self.key}")[:32] if self.key else ""

    def end(self) -> None:
        """Close what was opened with it."""
        self.role = Role.NOBODY
        for one in list(self.sockets):
            one.login_ended()


class LoginThrottle:
    """Counts failed logins of an address; above five a minute it has to wait."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._failures: OrderedDict[str, list[float]] = OrderedDict()

    def check(self, source: str) -> None:
        """Raise a ProblemError if the address has to wait."""
        recent = self._recent(source)
        if len(recent) >= _MOST_FAILURES:
            wait_s = max(1, round(recent[0] + _WINDOW_S - self._now_s()))
            raise ProblemError(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"{len(recent)} failed logins from this address; try again in {wait_s} s",
                (("Retry-After", str(wait_s)),),
            )

    def failed(self, source: str) -> None:
        """Count a failed login."""
        self._failures[source] = [*self._recent(source), self._now_s()]
        self._failures.move_to_end(source)
        if len(self._failures) > _MOST_SOURCES:
            self._failures.popitem(last=False)

    def _recent(self, source: str) -> list[float]:
        since_s = self._now_s() - _WINDOW_S
        return [one for one in self._failures.get(source, ()) if one > since_s]


class Logins:
    """All logins, and the operators that they are checked against."""

    def __init__(
        self,
        operators: dict[str, Operator] | None,
        now_s: Callable[[], float],
        *,
        is_open: bool = True,
        file: LoginFile | None = None,
    ) -> None:
        self._operators = operators
        self._is_open = is_open  # without operators, whether everybody who is answered is a viewer
        self._now_s = now_s
        self._by_key: OrderedDict[str, PageLogin] = OrderedDict()
        self._throttle = LoginThrottle(now_s)
        self._checks = asyncio.Semaphore(2)
        self._checking = 0
        self._limited = RateLimited(log)
        self.anyone = self._everybody()
        self._file = LoginFile(None) if file is None else file
        self._resume()

    def _resume(self) -> None:
        """Take up the logins of before a restart, without those whose operator has changed."""
        for one in self._file.read():
            found = (self._operators or {}).get(one.operator)
            left_s = min(LASTS_S, one.until - self._file.now_s())
            if found is not None and left_s > 0 and one.line == hashed(_line_of(found)):
                login = _login_of(found)
                login.until_s = self._now_s() + left_s
                self._by_key[one.cookie] = login

    def _keep(self) -> None:
        """Write who is logged in, for after a restart."""
        ahead_s = self._file.now_s() - self._now_s()
        self._file.write(
            KeptLogin(key, one.name or "", hashed(one.stored), one.until_s + ahead_s)
            for key, one in self._by_key.items()
        )

    def _everybody(self) -> PageLogin:
        return PageLogin(None, Role.VIEWER if self._is_open and not self.is_needed else Role.NOBODY)

    @property
    def is_needed(self) -> bool:
        """Whether operators are configured."""
        return self._operators is not None

    def use(self, operators: dict[str, Operator] | None, *, is_open: bool = True) -> None:
        """Replace the operators; logins of changed and removed ones end."""
        self._operators, self._is_open = operators, is_open
        everybody = self._everybody()
        if everybody.role is not self.anyone.role:
            self.anyone.end()
            self.anyone = everybody
        for key, login in list(self._by_key.items()):
            known = (operators or {}).get(login.name or "")
            if known is None or _line_of(known) != login.stored:
                self._drop(key)
        self._keep()

    # --- logging in and out -----------------------------------------------------------------

    async def log_in(self, name: str, password: str, address: str) -> PageLogin:
        """Return the login of an operator with a password; a ProblemError refuses it."""
        source = source_of(address)
        self._throttle.check(source)
        if self._checking >= _MOST_CHECKS:
            raise ProblemError(
                HTTPStatus.TOO_MANY_REQUESTS, "too many logins at once", (("Retry-After", "1"),)
            )
        self._checking += 1
        try:
            async with self._checks:
                self._throttle.check(source)
                operators, raw = self._operators or {}, password.encode("utf-8", "replace")
                found = await asyncio.to_thread(with_password, operators, name, raw)
        finally:
            self._checking -= 1
        if found is None:
            self._throttle.failed(source)
        return self._begin(found, name, address)

    def trade_token(self, token: str, address: str) -> PageLogin:
        """Return the login of an operator with a token; a ProblemError refuses it."""
        return self._begin(self._of_token(token, address), "", address)

    def _begin(self, found: Operator | None, name: str, address: str) -> PageLogin:
        if found is None:
            raise self._refused(name, address)
        cookie = secrets.token_urlsafe(32)
        login = _login_of(found)
        login.key, login.until_s = cookie, self._now_s() + LASTS_S
        self._by_key[hashed(cookie)] = login
        if len(self._by_key) > _MOST_LOGINS:
            self._drop(next(iter(self._by_key)))
        self._keep()
        log.info(
            "operator %r logged in from %s as %s",
            found.name,
            address,
            found.role,
            extra={
                "fields": {
                    "event": "operator_login",
                    "operator": found.name,
                    "role": found.role,
                    "address": address,
                }
            },
        )
        return login

    def _refused(self, name: str, address: str) -> ProblemError:
        self._limited.warning(
            "login refused: operator %r from %s",
            name[:100],
            address,
            fields={"event": "operator_refused", "operator": name[:100], "address": address},
        )
        return ProblemError(HTTPStatus.UNAUTHORIZED, "wrong name, password or token")

    def log_out(self, login: PageLogin) -> None:
        """End a login, and what was opened with it."""
        self._drop(hashed(login.key))
        self._keep()

    def _drop(self, key: str) -> None:
        login = self._by_key.pop(key, None)
        if login is not None:
            login.end()

    # --- who sends a request ----------------------------------------------------------------

    def of_cookie(self, cookie: str) -> PageLogin:
        """Return the login with this cookie, or that of everybody."""
        key = hashed(cookie)
        login = self._by_key.get(key)
        if login is None:
            return self.anyone
        if login.until_s <= self._now_s():
            self._drop(key)
            return self.anyone
        login.key = cookie  # after a restart only its hash is known
        return login

    def of_token(self, token: str, address: str) -> PageLogin:
        """Return the login of a program that sends its token with each request."""
        return _login_of(self._of_token(token, address))

    def _of_token(self, token: str, address: str) -> Operator:
        """Return whose token it is; failures are not throttled, since no token can be guessed."""
        found = with_token(self._operators or {}, token)
        if found is None:
            raise self._refused("", address)
        return found

    def end_expired(self) -> None:
        """End the logins whose time is over."""
        now_s = self._now_s()
        for key in [key for key, one in self._by_key.items() if one.until_s <= now_s]:
            self._drop(key)


def is_same(given: str, wanted: str) -> bool:
    """Return whether two secrets are equal, in a time that does not depend on where they differ."""
    return bool(wanted) and hmac.compare_digest(given.encode(), wanted.encode())


def _login_of(one: Operator) -> PageLogin:
    return PageLogin(one.name, Role[one.role.upper()], stored=_line_of(one))


def _line_of(one: Operator) -> str:
    return f"{one.role}:{one.stored}"
