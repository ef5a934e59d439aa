"""What a login is checked with, in threads: tokens, password file, HTTP hook, plugin."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from nearcast.broker import LoginVerdict
from nearcast.config import AuthSection
from nearcast.model.errors import EnvironmentProblem
from nearcast.server.auth.http_hook import HttpHook
from nearcast.server.auth.logins import (
    Login,
    LoginPlugin,
    LoginRefusedError,
    LoginRequest,
    find_plugin,
    login_of,
)
from nearcast.server.auth.passwords import ScramKeys, hash_password, is_password, keys_of
from nearcast.server.auth.tokens import TokenLogins
from nearcast.server.log_format import RateLimited

log = logging.getLogger("nearcast.server")


class LoginChecks:
    """Checks a login with each source in turn; the first that knows it decides.

    Tokens go first, by their form, then the users of the password file, then hook and plugin. A
    source that fails refuses: it cannot know whether the login is one of its own.
    """

    def __init__(self, users: dict[str, str], plugins: Sequence[LoginPlugin]) -> None:
        self._users = users
        self.plugins = tuple(plugins)
        self.has_scram = any(keys_of(stored) is not None for stored in users.values())
        self._limited = RateLimited(log)

    def scram_keys(self, user: str) -> ScramKeys | None:
        """Return the keys of a user for SCRAM."""
        stored = self._users.get(user)
        return None if stored is None else keys_of(stored)

    def check(self, request: LoginRequest) -> Login | None:
        """Return the outcome; None if no source knows a login without a password."""
        tokens = [one for one in self.plugins if isinstance(one, TokenLogins)]
        others = [one for one in self.plugins if not isinstance(one, TokenLogins)]
        found = self._ask(tokens, request)
        if found is not None:
            return found
        is_known = request.user_name in self._users
        if request.password is not None and (is_known or not others):
            return self.check_password(request.user_name or "", request.password)
        found = self._ask(others, request)
        if found is not None or (request.password is None and request.user_name is None):
            return found
        return Login(LoginVerdict.WRONG_PASSWORD, request.user_name)

    def check_password(self, user: str, password: bytes) -> Login:
        """Return the outcome of a password; an unknown name takes as long as a known one."""
        stored = self._users.get(user)
        if stored is None:
            hash_password(password, b"0" * 16)
        elif is_password(password, stored):
            return Login(LoginVerdict.WELCOME, user)
        return Login(LoginVerdict.WRONG_PASSWORD, user)

    def _ask(self, plugins: Sequence[LoginPlugin], request: LoginRequest) -> Login | None:
        for plugin in plugins:
            try:
                answer = plugin.check(request)
                if answer is not None:
                    return login_of(answer)
            except LoginRefusedError as problem:
                return Login(LoginVerdict.WRONG_PASSWORD, request.user_name, reason=str(problem))
            except Exception as problem:  # noqa: BLE001 - whatever a plugin raises refuses
                name = type(plugin).__name__
                self._limited.warning("login plugin %s failed: %r", name, problem)
                return Login(LoginVerdict.WRONG_PASSWORD, request.user_name, reason=repr(problem))
        return None


def make_plugins(auth: AuthSection, before: Sequence[LoginPlugin] = ()) -> list[LoginPlugin]:
    """Return what logins are checked with besides the password file.

    Tokens keep the keys that the plugins before knew: a reload while their URL is down changes
    nothing. All of it fails here rather than at a login, where it can.
    """
    plugins: list[LoginPlugin] = []
    if auth.jwt.keys is not None:
        known = (one for one in before if isinstance(one, TokenLogins))
        old = next((one.keys for one in known if one.section == auth.jwt), None)
        is_kept = old is not None and old.is_remote
        plugins.append(TokenLogins(auth.jwt, old if is_kept else None))
    if auth.http.url is not None:
        try:
            plugins.append(HttpHook(auth.http))
        except (OSError, UnicodeDecodeError) as problem:
            raise EnvironmentProblem(
                f"the token of the hook cannot be read ({problem})", where=str(auth.http.token_file)
            ) from None
    if auth.plugin is not None:
        plugins.append(find_plugin(auth.plugin))
    return plugins
