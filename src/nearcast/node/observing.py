"""What a node tells whoever keeps a log of its clients; no message passes through here."""

from __future__ import annotations

from typing import Protocol

from nearcast.mqtt import Connect, ReasonCode
from nearcast.node.connection import Connection
from nearcast.node.session import Session


class Observer(Protocol):
    """Hears what happens to clients. Calls must be quick and must not change the node."""

    def connected(self, connection: Connection, session: Session, *, is_resumed: bool) -> None:
        """Take note that a client is welcome."""

    def refused(
        self, connection: Connection, connect: Connect | None, reason: ReasonCode, text: str
    ) -> None:
        """Take note that a CONNECT was refused; `connect` is None where it made no sense."""

    def gave_up(self, connection: Connection, reason: str) -> None:
        """Take note that a connection ended before its client logged in."""

    def disconnected(
        self, connection: Connection, session: Session, reason: int, text: str
    ) -> None:
        """Take note that a client disconnected, or was disconnected for a reason."""

    def lost(self, connection: Connection, session: Session, reason: str) -> None:
        """Take note that a connection ended without a DISCONNECT."""

    def taken_over(self, connection: Connection, session: Session) -> None:
        """Take note that a client has come again: its older connection is closed."""

    def publish_denied(self, session: Session, topic: str) -> None:
        """Take note that a client may not publish to a topic; once per connection and topic."""

    def subscribe_denied(self, session: Session, topic_filter: str) -> None:
        """Take note that a client may not subscribe to a filter."""

    def selection_ignored(self, session: Session, topic_filter: str, text: str) -> None:
        """Take note that a client selects on topics of no space, and what it was told."""

    def instructions_ignored(self, session: Session, topic: str, text: str) -> None:
        """Take note that a client instructs on a topic of no space, and what it was told."""


class NoObserver:
    """Hears nothing."""

    def connected(self, connection: Connection, session: Session, *, is_resumed: bool) -> None:
        """Do nothing."""

    def refused(
        self, connection: Connection, connect: Connect | None, reason: ReasonCode, text: str
    ) -> None:
        """Do nothing."""

    def gave_up(self, connection: Connection, reason: str) -> None:
        """Do nothing."""

    def disconnected(
        self, connection: Connection, session: Session, reason: int, text: str
    ) -> None:
        """Do nothing."""

    def lost(self, connection: Connection, session: Session, reason: str) -> None:
        """Do nothing."""

    def taken_over(self, connection: Connection, session: Session) -> None:
        """Do nothing."""

    def publish_denied(self, session: Session, topic: str) -> None:
        """Do nothing."""

    def subscribe_denied(self, session: Session, topic_filter: str) -> None:
        """Do nothing."""

    def selection_ignored(self, session: Session, topic_filter: str, text: str) -> None:
        """Do nothing."""

    def instructions_ignored(self, session: Session, topic: str, text: str) -> None:
        """Do nothing."""


def observe_loss(observer: Observer, connection: Connection) -> None:
    """Tell of a connection that is gone, unless its end was told before."""
    session = connection.session
    if connection.is_peer:
        return
    if session is not None:
        if session.link is connection:
            observer.lost(connection, session, connection.loss)
    elif connection.is_open and connection.relay is None and not connection.was_refused:
        observer.gave_up(connection, connection.loss or "the client closed it")
