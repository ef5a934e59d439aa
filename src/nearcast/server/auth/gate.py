"""What decides on a login besides its password: bans, wrong guesses, rates.

The state outlives a reload of the configuration.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

from nearcast.broker import Connection, LoginVerdict
from nearcast.broker.session.connection import Proof
from nearcast.config import RatesSection, parse_rate
from nearcast.mqtt import Connect
from nearcast.server.auth.bans import BanList
from nearcast.server.auth.grants import Grants, rules_text
from nearcast.server.auth.guesses import GuessThrottle
from nearcast.server.auth.logins import Login
from nearcast.server.auth.password_checks import source_of
from nearcast.server.auth.rates import Buckets

RESERVED = "page:"
"""No login may prove a name that begins so: sessions of operators' pages have such names."""


class LoginGate:
    """Counts logins and guesses, knows who is banned, and settles each login. For one thread."""

    def __init__(
        self,
        rates: RatesSection | None = None,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._now_s = now_s
        self.secret = secrets.token_bytes(32)
        self.grants = Grants()
        self.bans = BanList()
        self.guesses = GuessThrottle(0, 0)
        self.connections: dict[str, Buckets] = {}  # by what is counted
        self.take(rates or RatesSection())

    def take(self, rates: RatesSection) -> None:
        """Use other rates from now on; a rate that stays the same keeps its counts."""
        self.guesses.free, self.guesses.longest_ms = rates.guesses, round(rates.guess_wait * 1000)
        old, self.connections = self.connections, {}
        for what in ("address", "user", "client"):
            text = getattr(rates, f"connections_{what}")
            if text is not None:
                rate = parse_rate(text)
                kept = old.get(what)
                is_same = kept is not None and kept.rate == rate
                self.connections[what] = kept if kept is not None and is_same else Buckets(rate)

    def now_ms(self) -> int:
        """Return the time, in milliseconds since 1970."""
        return int(self._now_s() * 1000)

    def nonce(self) -> str:
        """Return a text that was never used before."""
        return secrets.token_urlsafe(24)

    def admits(self, address: str) -> bool:
        """Return whether a new connection of an address is let in at all."""
        if not self.bans and "address" not in self.connections:
            return True
        if self.bans.find_address(address.rpartition(":")[0], self._now_s()) is not None:
            return False
        buckets = self.connections.get("address")
        return buckets is None or buckets.take(source_of(address), self.now_ms())

    def before(self, connection: Connection, connect: Connect) -> LoginVerdict:
        """Return the verdict on a login whose password has not been looked at yet."""
        user = connect.user_name
        if self._is_banned(connection, connect.client_id, user):
            return LoginVerdict.BANNED
        source = source_of(connection.address)
        if self.guesses.waits(source, user or "", self.now_ms()):
            return LoginVerdict.BUSY
        return LoginVerdict.LATER

    def settle(self, connection: Connection, login: Login) -> LoginVerdict:
        """Return the final verdict on a login, and keep what it has proven."""
        client_id = _client_of(connection)
        if self._is_banned(connection, client_id, login.user):
            return LoginVerdict.BANNED
        source, now_ms = source_of(connection.address), self.now_ms()
        name = login.user or ""
        if login.verdict is LoginVerdict.WRONG_PASSWORD:
            waits = self.guesses.waits(source, name, now_ms)
            self.guesses.failed(source, name, now_ms)
            return LoginVerdict.BUSY if waits else login.verdict
        if login.verdict is not LoginVerdict.WELCOME or name.startswith(RESERVED):
            is_reserved = login.verdict is LoginVerdict.WELCOME
            return LoginVerdict.FORBIDDEN if is_reserved else login.verdict
        if self.guesses.waits(source, name, now_ms):
            return LoginVerdict.BUSY  # a right guess among wrong ones tells nothing either
        if not self._is_in_rate(login.user, client_id, now_ms):
            return LoginVerdict.BUSY
        self.guesses.succeeded(source, name)
        until_ms = now_ms + round(login.lasts_s * 1000) if login.lasts_s else 0
        rules = None if login.rules is None else rules_text(login.rules)
        connection.proof = Proof(login.user, until_ms, rules, login.is_vouched)
        return LoginVerdict.WELCOME

    def _is_banned(self, connection: Connection, client_id: str, user: str | None) -> bool:
        if not self.bans:
            return False
        host = connection.address.rpartition(":")[0]
        return self.bans.find(host, user, client_id, self._now_s()) is not None

    def _is_in_rate(self, user: str | None, client_id: str, now_ms: int) -> bool:
        """Count a login of a user and of a client; return whether both are within their rates."""
        of_user, of_client = self.connections.get("user"), self.connections.get("client")
        if of_user is not None and user is not None and not of_user.take(user, now_ms):
            return False
        return of_client is None or of_client.take(f"{user or ''}\0{client_id}", now_ms)


def _client_of(connection: Connection) -> str:
    if connection.connect is not None:
        return connection.connect.client_id
    enhanced = connection.enhanced
    if enhanced is not None and enhanced.connect is not None:
        return enhanced.connect.client_id
    return "" if connection.session is None else connection.session.client_id
