"""The log of clients: connects, disconnects with their reason, and refusals.

Connects and disconnects are `info`; refusals, denials and clients closed for a fault are `warning`,
rate-limited by kind; connections that end before a login are `debug`. In JSON each line has an
`event` and its fields.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from nearcast.broker import Broker, Connection, Session
from nearcast.broker.observer import ClientObserver
from nearcast.model.errors import PeerProtocolError
from nearcast.mqtt import Connect, ReasonCode
from nearcast.server.audit_log import AuditLog
from nearcast.server.listeners.listener import AcceptPolicy
from nearcast.server.log_format import RateLimited

log = logging.getLogger("nearcast.clients")
operators = logging.getLogger("nearcast.operators")

_EXPECTED: frozenset[int] = frozenset(
    {
        ReasonCode.SUCCESS,
        ReasonCode.DISCONNECT_WITH_WILL,
        ReasonCode.SERVER_SHUTTING_DOWN,
        ReasonCode.KEEP_ALIVE_TIMEOUT,
        ReasonCode.USE_ANOTHER_SERVER,
    }
)


class ClientLog(ClientObserver):
    """Writes the events of a broker's clients to the log, and all of them to the audit log."""

    def __init__(self, audit: AuditLog | None = None) -> None:
        self._limited = RateLimited(log)
        self._audit = audit

    def _record(self, fields: dict[str, object]) -> None:
        if self._audit is not None:
            self._audit.record(str(fields["event"]), fields)

    def _warn(self, form: str, *values: object, fields: dict[str, object]) -> None:
        self._record(fields)
        self._limited.warning(form, *values, fields=fields)

    def connected(self, connection: Connection, session: Session, *, is_resumed: bool) -> None:
        """Log a client that has connected."""
        if self._audit is None and not log.isEnabledFor(logging.INFO):
            return
        fields = _fields("client_connected", connection, session)
        version = {3: "3.1", 4: "3.1.1"}.get(connection.version, str(connection.version))
        keep_alive_s = connection.most_silence_ms // 1500
        fields |= {"mqtt": version, "keep_alive": keep_alive_s, "resumed": is_resumed}
        self._record(fields)
        log.info(
            "client %s%s connected from %s (MQTT %s, keep-alive %d s%s)",
            _quoted(session.client_id),
            _as_user(session),
            _origin(connection),
            version,
            keep_alive_s,
            ", session resumed" if is_resumed else "",
            extra={"fields": fields},
        )

    def refused(
        self, connection: Connection, connect: Connect | None, reason: ReasonCode, text: str
    ) -> None:
        """Log a CONNECT that was refused."""
        client = "" if connect is None else connect.client_id
        user = None if connect is None else connect.user_name
        why = text or connection.loss or _words(reason)
        self._warn(
            "login refused: client %s%s from %s: %s",
            _quoted(client),
            "" if user is None else f" as user {_quoted(user)}",
            _origin(connection),
            why,
            fields={
                "event": "login_refused",
                "client": client,
                "address": connection.address,
                "user": user,
                "reason": why,
                "code": int(reason),
            },
        )

    def gave_up(self, connection: Connection, reason: str) -> None:
        """Log a connection that ended before its client logged in."""
        fields = {"event": "no_login", "address": connection.address, "reason": reason}
        log.debug(
            "connection from %s ended before a login: %s",
            _origin(connection),
            reason,
            extra={"fields": fields},
        )

    def disconnected(
        self, connection: Connection, session: Session, reason: int, text: str
    ) -> None:
        """Log a disconnection; one for the client's fault as a warning."""
        if reason in _EXPECTED and self._audit is None and not log.isEnabledFor(logging.INFO):
            return
        why = text or _words(reason)
        if reason == ReasonCode.SUCCESS:
            why = "normal disconnection"
        fields = _fields("client_disconnected", connection, session)
        fields |= {"reason": why, "code": int(reason)}
        if reason in _EXPECTED:
            self._gone(connection, session, why, fields)
        else:
            self._warn(
                "client %s%s from %s was disconnected: %s",
                _quoted(session.client_id),
                _as_user(session),
                _origin(connection),
                why,
                fields=fields,
            )

    def lost(self, connection: Connection, session: Session, reason: str) -> None:
        """Log a connection that ended without a DISCONNECT."""
        why = f"connection lost ({reason})" if reason else "connection lost"
        fields = _fields("client_disconnected", connection, session) | {"reason": why}
        self._gone(connection, session, why, fields)

    def _gone(
        self, connection: Connection, session: Session, why: str, fields: dict[str, object]
    ) -> None:
        self._record(fields)
        log.info(
            "client %s%s from %s disconnected: %s",
            _quoted(session.client_id),
            _as_user(session),
            _origin(connection),
            why,
            extra={"fields": fields},
        )

    def taken_over(self, connection: Connection, session: Session) -> None:
        """Log that a client has connected again, and its older connection is closed."""
        fields = _fields("session_taken_over", connection, session)
        self._record(fields)
        log.info(
            "client %s%s has connected again: its connection from %s is closed",
            _quoted(session.client_id),
            _as_user(session),
            _origin(connection),
            extra={"fields": fields},
        )

    def not_redirected(self, node: str) -> None:
        """Log a node that clients cannot be sent to."""
        log.warning(
            "clients are not offered node %s, which is nearer: it has announced no address. "
            "Set client_address in its [network] section.",
            node,
            extra={"fields": {"event": "not_redirected", "node": node}},
        )

    def page_published(self, session: Session, topic: str) -> None:
        """Log that an operator's page publishes to a topic."""
        operators.info(
            "client %s%s publishes to %s",
            _quoted(session.client_id),
            _as_user(session),
            _quoted(topic),
            extra={
                "fields": {
                    "event": "page_published",
                    "client": session.client_id,
                    "user": session.user_name,
                    "topic": topic,
                }
            },
        )

    def publish_denied(self, session: Session, topic: str) -> None:
        """Log a publish that the rules do not allow."""
        self._denied("publish_denied", "may not publish to", session, topic)

    def subscribe_denied(self, session: Session, topic_filter: str) -> None:
        """Log a subscription that the rules do not allow."""
        self._denied("subscribe_denied", "may not subscribe to", session, topic_filter)

    def subscription_revoked(self, session: Session, topic_filter: str) -> None:
        """Log a subscription that was removed because new rules do not allow it."""
        self._denied("subscription_revoked", "may no longer subscribe to", session, topic_filter)

    def selection_ignored(self, session: Session, topic_filter: str, text: str) -> None:
        """Log a subscription whose selection has no effect."""
        self._ignored("selection_ignored", "client %s%s: %s", session, topic_filter, text)

    def instructions_ignored(self, session: Session, topic: str, text: str) -> None:
        """Log a publication whose instructions have no effect."""
        form = "client %s%s, publishing: %s"
        self._ignored("instructions_ignored", form, session, topic, text)

    def _ignored(self, event: str, form: str, session: Session, topic: str, text: str) -> None:
        self._warn(
            form,
            _quoted(session.client_id),
            _as_user(session),
            text,
            fields={
                "event": event,
                "client": session.client_id,
                "user": session.user_name,
                "topic": topic,
            },
        )

    def _denied(self, event: str, what: str, session: Session, topic: str) -> None:
        self._warn(
            f"client %s%s {what} %s",
            _quoted(session.client_id),
            _as_user(session),
            _quoted(topic),
            fields={
                "event": event,
                "client": session.client_id,
                "user": session.user_name,
                "topic": topic,
            },
        )


class BrokerAcceptPolicy(AcceptPolicy):
    """Counts a connection from the moment it is accepted, and logs failed TLS handshakes."""

    def __init__(self, node: Broker, admits: Callable[[str], bool] = lambda _: True) -> None:
        """`admits` tells whether an address may connect now."""
        super().__init__()
        self._node = node
        self._admits = admits
        self._limited = RateLimited(log)

    def is_full(self) -> bool:
        """Return whether connections and TLS handshakes together have reached the limit."""
        node = self._node
        return node.connection_count + self.handshakes >= node.settings.max_open_connections

    def timeout_s(self) -> float:
        """Return the time limit of a TLS handshake: that of everything before the login."""
        return self._node.settings.connect_timeout_ms / 1000

    def admits(self, address: str) -> bool:
        """Return whether an address is not banned, and connects within its rate."""
        return self._admits(address)

    def refused(self) -> None:
        """Count a connection that was closed at once."""
        self._node.counters.connects_refused += 1

    def failed(self, address: str, problem: Exception) -> None:
        """Log a TLS handshake that failed, or a PROXY header that is none."""
        fields: dict[str, object]
        if isinstance(problem, PeerProtocolError):
            fields = {"event": "proxy_refused", "address": address, "reason": str(problem)}
            self._limited.warning("connection of %s refused: %s", address, problem, fields=fields)
            return
        reason = getattr(problem, "reason", None) or str(problem) or type(problem).__name__
        fields = {"event": "tls_failed", "address": address, "reason": reason}
        self._limited.warning("TLS handshake with %s failed: %s", address, reason, fields=fields)


def _fields(event: str, connection: Connection, session: Session) -> dict[str, object]:
    return {
        "event": event,
        "client": session.client_id,
        "address": connection.address,
        "user": session.user_name,
    }


def _origin(connection: Connection) -> str:
    """Return the client's address for the log."""
    return connection.address or "an unknown address"


def _as_user(session: Session) -> str:
    return "" if session.user_name is None else f" (user {_quoted(session.user_name)})"


def _quoted(text: str) -> str:
    """Return a client's text for one log line: line ends and control characters escaped."""
    if len(text) <= 200 and text.isprintable():
        return f"'{text}'"
    short = text if len(text) <= 200 else text[:200] + "…"
    return "'" + "".join(one if one.isprintable() else ascii(one)[1:-1] for one in short) + "'"


def _words(reason: int) -> str:
    try:
        return ReasonCode(reason).name.lower().replace("_", " ")
    except ValueError:
        return f"reason {reason:#04x}"
