"""Who may connect, publish and subscribe: the interface that the broker asks.

The broker has no passwords. `authenticate` answers at once where it can; where the check takes long
(a password hash), it returns `LATER`, and the server passes the verdict to `Broker.authenticated`.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from nearcast.broker.session.connection import Connection
from nearcast.model.wording import shown
from nearcast.mqtt import Connect


class LoginVerdict(Enum):
    """The verdict on a CONNECT."""

    WELCOME = "welcome"
    WRONG_PASSWORD = "wrong password"  # noqa: S105 - a verdict, no password
    FORBIDDEN = "forbidden"
    LATER = "later"
    BUSY = "busy"  # too many logins from this address wait to be checked


class Access(Protocol):
    """The questions of a broker. All answers must be quick and without side effects."""

    def authenticate(self, connect: Connect, connection: Connection) -> LoginVerdict:
        """Return whether this client may connect."""

    def identity(self, connect: Connect, connection: Connection) -> str | None:
        """Return the name that an accepted client has proven, for the ACL rules."""

    def is_restricted(self, connection: Connection) -> bool:
        """Return whether there are ACL rules for what this client publishes and subscribes to."""

    def may_publish(self, user_name: str | None, client_id: str, topic: str) -> bool:
        """Return whether this client may publish to a topic."""

    def may_subscribe(self, user_name: str | None, client_id: str, topic_filter: str) -> bool:
        """Return whether this client may subscribe to a filter (share prefix removed)."""

    def refusal(
        self, user_name: str | None, client_id: str, topic_filter: str, *, subscribes: bool
    ) -> str:
        """Return the reason for a refused topic or filter, as text for people."""


class OpenAccess:
    """Allows everything to every client."""

    def authenticate(self, _connect: Connect, _connection: Connection) -> LoginVerdict:
        """Return WELCOME."""
        return LoginVerdict.WELCOME

    def identity(self, connect: Connect, _connection: Connection) -> str | None:
        """Return the user name of the CONNECT, unproven."""
        return connect.user_name

    def is_restricted(self, _connection: Connection) -> bool:
        """Return False."""
        return False

    def may_publish(self, _user_name: str | None, _client_id: str, _topic: str) -> bool:
        """Return True."""
        return True

    def may_subscribe(self, _user_name: str | None, _client_id: str, _topic_filter: str) -> bool:
        """Return True."""
        return True

    def refusal(
        self, _user_name: str | None, _client_id: str, _topic_filter: str, *, subscribes: bool
    ) -> str:
        """Return "": nothing is refused."""
        del subscribes
        return ""


class _Named(Protocol):
    """A session, as far as the ACL rules need it."""

    user_name: str | None
    client_id: str


def refusal_text(access: Access, session: _Named, topic_filter: str, *, subscribes: bool) -> str:
    """Return the reason string for a topic or filter that the ACL rules refuse."""
    why = access.refusal(session.user_name, session.client_id, topic_filter, subscribes=subscribes)
    return f"{shown(topic_filter)} is refused: {why}"
