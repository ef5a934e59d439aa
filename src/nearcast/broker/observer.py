"""Events of clients that a broker reports to the server's log; no message passes through here."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from mypy_extensions import mypyc_attr

from nearcast.broker.session.connection import Connection
from nearcast.broker.session.session import Session
from nearcast.model import Event
from nearcast.mqtt import Connect, ReasonCode


@mypyc_attr(allow_interpreted_subclasses=True)
class ClientObserver:
    """Is called when something happens to a client; does nothing unless overridden.

    A call must be quick and must not change the broker.
    """

    def connected(self, connection: Connection, session: Session, *, is_resumed: bool) -> None:
        """Report that a client has connected."""

    def refused(
        self, connection: Connection, connect: Connect | None, reason: ReasonCode, text: str
    ) -> None:
        """Report that a CONNECT was refused; `connect` is None if it could not be decoded."""

    def gave_up(self, connection: Connection, reason: str) -> None:
        """Report that a connection ended before its client logged in."""

    def disconnected(
        self, connection: Connection, session: Session, reason: int, text: str
    ) -> None:
        """Report that a client disconnected, or the broker disconnected it for a reason."""

    def lost(self, connection: Connection, session: Session, reason: str) -> None:
        """Report that a connection ended without a DISCONNECT."""

    def taken_over(self, connection: Connection, session: Session) -> None:
        """Report that a client has connected again and its older connection is closed."""

    def not_redirected(self, node: str) -> None:
        """Report that clients would be offered a node, but it has announced no address; once."""

    def page_published(self, session: Session, topic: str) -> None:
        """Report that an operator's page publishes to a topic; once per connection and topic."""

    def publish_denied(self, session: Session, topic: str) -> None:
        """Report that a client may not publish to a topic; once per connection and topic."""

    def subscribe_denied(self, session: Session, topic_filter: str) -> None:
        """Report that a client may not subscribe to a filter."""

    def subscription_revoked(self, session: Session, topic_filter: str) -> None:
        """Report that a subscription was removed: new rules do not allow it."""

    def selection_ignored(self, session: Session, topic_filter: str, text: str) -> None:
        """Report that a client set conditions on topics of no space; `text` is the warning sent."""

    def instructions_ignored(self, session: Session, topic: str, text: str) -> None:
        """Report that a client sent instructions to a topic of no space; `text` is the warning."""


class LiveObserver(Protocol):
    """Is called for positions and for events of spaces, while somebody looks at a map of them.

    `BrokerState.watch` is None otherwise: then a position costs one comparison more, an event too.
    """

    def moved(self, session: Session, /) -> None:
        """Report that a client has a new position."""

    def present(self, session: Session, /) -> None:
        """Report that a client has connected or disconnected."""

    def wants_event(self) -> bool:
        """Return whether the next event is to be reported; what is not is counted."""

    def event(
        self,
        topic: str,
        payload: bytes,
        publisher: Session | None,
        event: Event | None,
        receivers: Collection[Session],
        chosen: int,
        /,
    ) -> None:
        """Report an event and its receivers because of what is in it; `chosen`: `$top`, or 0."""


def observe_loss(observer: ClientObserver, connection: Connection) -> None:
    """Report a connection that has closed, unless its end was reported before."""
    session = connection.session
    if connection.is_peer:
        return
    if session is not None:
        if session.link is connection:
            observer.lost(connection, session, connection.loss)
    elif connection.is_open and connection.relay is None and not connection.was_refused:
        observer.gave_up(connection, connection.loss or "the client closed it")
