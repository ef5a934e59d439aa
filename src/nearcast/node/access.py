"""Who may connect, publish and subscribe: the questions that a node asks.

The node holds no passwords. `authenticate` answers at once where it can; where checking takes
long (a password hash), it answers `LATER`, and the server brings the answer to
`Node.authenticated`.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from nearcast.model.wording import shown
from nearcast.mqtt import Connect
from nearcast.node.connection import Connection


class Verdict(Enum):
    """An answer about a newcomer."""

    WELCOME = "welcome"
    WRONG_PASSWORD = "wrong password"  # noqa: S105 - a verdict, no password
    FORBIDDEN = "forbidden"
    LATER = "later"
    BUSY = "busy"  # too many passwords of this address wait to be checked


class Access(Protocol):
    """What the node wants to know. All answers must be quick and without side effects."""

    def authenticate(self, connect: Connect, connection: Connection) -> Verdict:
        """Say whether this client may connect."""

    def identity(self, connect: Connect, connection: Connection) -> str | None:
        """Return the name that a welcome client has proven, for the rules."""

    def has_rules(self) -> bool:
        """Say whether publishing and subscribing are restricted at all."""

    def may_publish(self, user_name: str | None, client_id: str, topic: str) -> bool:
        """Say whether this client may publish to a topic."""

    def may_subscribe(self, user_name: str | None, client_id: str, topic_filter: str) -> bool:
        """Say whether this client may subscribe to a filter (share prefix and group removed)."""

    def refusal(
        self, user_name: str | None, client_id: str, topic_filter: str, *, subscribes: bool
    ) -> str:
        """Return in words what decided against a topic or filter that was refused."""


class OpenAccess:
    """Everybody may do everything."""

    def authenticate(self, _connect: Connect, _connection: Connection) -> Verdict:
        """Welcome everybody."""
        return Verdict.WELCOME

    def identity(self, connect: Connect, _connection: Connection) -> str | None:
        """Take everybody at their word."""
        return connect.user_name

    def has_rules(self) -> bool:
        """Nothing is restricted."""
        return False

    def may_publish(self, _user_name: str | None, _client_id: str, _topic: str) -> bool:
        """Everybody may."""
        return True

    def may_subscribe(self, _user_name: str | None, _client_id: str, _topic_filter: str) -> bool:
        """Everybody may."""
        return True

    def refusal(
        self, _user_name: str | None, _client_id: str, _topic_filter: str, *, subscribes: bool
    ) -> str:
        """Nothing is refused."""
        del subscribes
        return ""


class _Named(Protocol):
    """A session, as far as the rules know it."""

    user_name: str | None
    client_id: str


def refusal_text(access: Access, session: _Named, topic_filter: str, *, subscribes: bool) -> str:
    """Return what a client is told about a topic or filter that the rules refuse."""
    why = access.refusal(session.user_name, session.client_id, topic_filter, subscribes=subscribes)
    return f"{shown(topic_filter)} is refused: {why}"
