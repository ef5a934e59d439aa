"""Who may connect, publish and subscribe: the interface that the broker asks.

The broker has no passwords. `authenticate` answers at once where it can; where the check takes long
(a password hash), it returns `LATER`, and the server passes the verdict to `Broker.authenticated`.
With enhanced authentication the broker passes packets on to an `Exchange` until it ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from mypy_extensions import mypyc_attr

from nearcast.broker.session.connection import Connection
from nearcast.model.wording import shown
from nearcast.mqtt import Connect


class LoginVerdict(Enum):
    """The verdict on a CONNECT."""

    WELCOME = "welcome"
    WRONG_PASSWORD = "wrong password"  # noqa: S105 - a verdict, no password
    FORBIDDEN = "forbidden"
    BANNED = "banned"
    LATER = "later"
    BUSY = "busy"  # too many logins from this address wait to be checked, or came in short time


@dataclass(frozen=True, slots=True)
class ExchangeStep:
    """The answer to one message of an enhanced authentication (MQTT 5, 4.12).

    `verdict` is None while the exchange goes on. `data` goes to the client.
    """

    data: bytes = b""
    verdict: LoginVerdict | None = None


class Exchange(Protocol):
    """An enhanced authentication in progress; a step is quick."""

    def step(self, data: bytes) -> ExchangeStep:
        """Return the answer to the client's next message."""


class Access(Protocol):
    """The questions of a broker. All answers must be quick and without side effects."""

    def authenticate(self, connect: Connect, connection: Connection) -> LoginVerdict:
        """Return whether this client may connect."""

    def begin_exchange(self, method: str, connection: Connection) -> Exchange | None:
        """Return a new enhanced authentication; None if the method is unknown."""

    def identity(self, connect: Connect, connection: Connection) -> str | None:
        """Return the name that an accepted client has proven, for the ACL rules."""

    def rules_of(self, connection: Connection) -> bytes | None:
        """Return the rules of an accepted login for the node that has its session; None: none."""

    def bind(self, connection: Connection, client_id: str) -> bool:
        """Keep the rules of an accepted login with its session, here or forwarded by a node.

        Returns whether other rules were kept before: then what was granted has to be checked.
        """

    def keeps(self, user_name: str | None, connection: Connection | None) -> bool:
        """Return whether a client that has logged in under this name may stay.

        `connection` is None for a session without one. False where the client certainly could not
        log in again: its user is gone, or clients without a name are not welcome any more.
        """

    def has_rules(self) -> bool:
        """Return whether there are ACL rules for publishing and subscribing."""

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


@mypyc_attr(allow_interpreted_subclasses=True)
class OpenAccess:
    """Allows everything to every client."""

    def authenticate(self, _connect: Connect, _connection: Connection) -> LoginVerdict:
        """Return WELCOME."""
        return LoginVerdict.WELCOME

    def begin_exchange(self, _method: str, _connection: Connection) -> Exchange | None:
        """Return None: no method is known."""
        return None

    def identity(self, connect: Connect, _connection: Connection) -> str | None:
        """Return the user name of the CONNECT, unproven."""
        return connect.user_name

    def rules_of(self, _connection: Connection) -> bytes | None:
        """Return None."""
        return None

    def bind(self, _connection: Connection, _client_id: str) -> bool:
        """Return False: nothing is kept."""
        return False

    def keeps(self, _user_name: str | None, _connection: Connection | None) -> bool:
        """Return True."""
        return True

    def has_rules(self) -> bool:
        """Return False."""
        return False

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
