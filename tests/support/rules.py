"""Users and rules as the server has them, for brokers in memory: every known name is proven."""

from __future__ import annotations

from collections.abc import Iterable

from nearcast.broker import Connection, LoginVerdict
from nearcast.config import AuthSection, RuleSection
from nearcast.mqtt import Connect
from nearcast.server.auth.rules import ConfiguredAccess

Rule = tuple[str, str, str, bool]  # user, action, topic, whether it allows


class KnownUsers(ConfiguredAccess):
    """The access of a server, whose users need no password."""

    def __init__(
        self, users: Iterable[str], rules: Iterable[Rule] = (), *, anonymous: bool = True
    ) -> None:
        sections = [
            RuleSection.model_validate(
                {"user": user, "action": action, "topic": topic, "allow": allows}
            )
            for user, action, topic, allows in rules
        ]
        section = AuthSection(anonymous="always" if anonymous else "never", rules=sections)
        super().__init__(section, dict.fromkeys(users, "scrypt$"), [])

    def authenticate(self, connect: Connect, connection: Connection) -> LoginVerdict:
        """Return WELCOME for a known name, and for no name where that is allowed."""
        if connect.user_name is None:
            return super().authenticate(connect, connection)
        is_known = connect.user_name in self._users
        return LoginVerdict.WELCOME if is_known else LoginVerdict.WRONG_PASSWORD


def allow(topic: str, user: str = "*", action: str = "both") -> Rule:
    """Return a rule that allows something."""
    return user, action, topic, True


def forbid(topic: str, user: str = "*", action: str = "both") -> Rule:
    """Return a rule that forbids something."""
    return user, action, topic, False
