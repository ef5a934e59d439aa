"""What the page's MQTT client may do: more than others may see, or less, by the role of its login.

An operator's page publishes and subscribes everywhere, and alone receives what is published below
`$nearcast/live`. A viewer's page subscribes, except to positions, and publishes its own position
only. A page keeps no session: who connects later under its name gets nothing that was meant for it.
"""

from __future__ import annotations

from collections.abc import Callable

from nearcast.broker import Connection, LoginVerdict
from nearcast.broker.access import Exchange
from nearcast.broker.publish.routes import EXPLAIN_TOPIC, LIVE_TOPICS, POSITION_TOPIC
from nearcast.index.topic_filters import filters_overlap
from nearcast.mqtt import Connect, ProtocolVersion
from nearcast.server.auth.gate import RESERVED
from nearcast.server.auth.rules import ConfiguredAccess
from nearcast.server.http.endpoint import Role
from nearcast.server.http.page_socket import PAGE_LISTENER, PageSocket

PAGE_CLIENTS = "page-"
"""The client identifiers of pages begin with this."""
_USER = RESERVED  # of the names that sessions of pages have; no login can prove one
_OPERATOR, _VIEWER = f"{_USER}operator:", f"{_USER}viewer:"
_WITH_POSITIONS = (
    f"{LIVE_TOPICS}/positions/#",
    f"{LIVE_TOPICS}/deliveries/#",
    f"{POSITION_TOPIC}/#",
)


class PageAccess:
    """The rules of the configuration, and those of pages."""

    def __init__(self, rules: ConfiguredAccess, shows_positions: Callable[[], bool]) -> None:
        self.rules = rules
        self._shows_positions = shows_positions

    def authenticate(self, connect: Connect, connection: Connection) -> LoginVerdict:
        """Return the verdict at once, or `LATER` if a password has to be checked."""
        if connection.listener == PAGE_LISTENER:
            is_welcome = _login_role(connection) > Role.NOBODY and _keeps_nothing(connect)
            return LoginVerdict.WELCOME if is_welcome else LoginVerdict.FORBIDDEN
        if (connection.certificate_name or "").startswith(_USER):
            return LoginVerdict.FORBIDDEN
        return self.rules.authenticate(connect, connection)

    def identity(self, connect: Connect, connection: Connection) -> str | None:
        """Return the proven name; of a page, one with its role."""
        if connection.listener != PAGE_LISTENER:
            return self.rules.identity(connect, connection)
        socket = connection.transport
        assert isinstance(socket, PageSocket)
        mark = _OPERATOR if socket.login.role is Role.OPERATOR else _VIEWER
        return mark + (socket.login.name or "")

    def rules_of(self, connection: Connection) -> bytes | None:
        """Return the rules of a login; a page's are those of its role, at every node."""
        return None if connection.listener == PAGE_LISTENER else self.rules.rules_of(connection)

    def bind(self, connection: Connection, client_id: str) -> bool:
        """Keep the rules of a login with its session; return whether others were kept before."""
        return connection.listener != PAGE_LISTENER and self.rules.bind(connection, client_id)

    def begin_exchange(self, method: str, connection: Connection) -> Exchange | None:
        """Return an exchange of enhanced authentication; None if there is no such method."""
        if connection.listener == PAGE_LISTENER:
            return None
        return self.rules.begin_exchange(method, connection)

    def keeps(self, user_name: str | None, connection: Connection | None) -> bool:
        """Return whether a client may stay; a page stays until its login ends."""
        if user_name is not None and user_name.startswith(_USER):
            return connection is not None
        return self.rules.keeps(user_name, connection)

    def has_rules(self) -> bool:
        """Return whether there are rules for clients other than pages."""
        return self.rules.has_rules()

    def is_restricted(self, connection: Connection) -> bool:
        """Return whether what a connection may publish has to be asked for."""
        return connection.listener == PAGE_LISTENER or self.rules.is_restricted(connection)

    def may_publish(self, user_name: str | None, client_id: str, topic: str) -> bool:
        """Return whether this client may publish to a topic."""
        if user_name is None or not user_name.startswith(_USER):
            return self.rules.may_publish(user_name, client_id, topic)
        if not user_name.startswith(_OPERATOR):
            return topic == POSITION_TOPIC
        return topic != EXPLAIN_TOPIC or self._shows_positions()

    def may_subscribe(self, user_name: str | None, client_id: str, topic_filter: str) -> bool:
        """Return whether this client may subscribe to a filter."""
        if user_name is None or not user_name.startswith(_USER):
            is_live = filters_overlap(topic_filter, f"{LIVE_TOPICS}/#")
            return not is_live and self.rules.may_subscribe(user_name, client_id, topic_filter)
        if user_name == _VIEWER and not self.may_read(client_id, topic_filter):
            return False
        if not topic_filter.startswith("$"):
            return True
        if not user_name.startswith(_OPERATOR):
            hidden: tuple[str, ...] = (f"{LIVE_TOPICS}/#", f"{POSITION_TOPIC}/#")
        else:
            hidden = () if self._shows_positions() else _WITH_POSITIONS
        return not any(filters_overlap(topic_filter, one) for one in hidden)

    def may_read(self, client_id: str, topic_filter: str) -> bool:
        """Return whether somebody without a name may see messages of these topics."""
        return self.rules.may_subscribe(None, client_id, topic_filter)

    def refusal(
        self, user_name: str | None, client_id: str, topic_filter: str, *, subscribes: bool
    ) -> str:
        """Return the reason for a refused topic or filter, as text for people."""
        if user_name is None or not user_name.startswith(_USER):
            if subscribes and filters_overlap(topic_filter, f"{LIVE_TOPICS}/#"):
                return "it is for the page of an operator only"
            return self.rules.refusal(user_name, client_id, topic_filter, subscribes=subscribes)
        if subscribes and user_name == _VIEWER and not self.may_read(client_id, topic_filter):
            return self.rules.refusal(None, client_id, topic_filter, subscribes=True)
        if not user_name.startswith(_OPERATOR):
            return "a viewer's page publishes nothing and sees no positions"
        return "[http] positions is false"


def _login_role(connection: Connection) -> Role:
    socket = connection.transport
    return socket.login.role if isinstance(socket, PageSocket) else Role.NOBODY


def _keeps_nothing(connect: Connect) -> bool:
    """Return whether a CONNECT of a page begins a session that ends with its connection."""
    lasts = connect.version >= ProtocolVersion.V5 and connect.properties.session_expiry_interval
    return connect.clean_start and not lasts and connect.client_id.startswith(PAGE_CLIENTS)
