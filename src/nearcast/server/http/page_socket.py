"""The page's MQTT connection: a WebSocket at the management address, with the rights of a login."""

from __future__ import annotations

from nearcast.mqtt import ReasonCode
from nearcast.server.http.logins import PageLogin
from nearcast.server.listeners.websocket import WebSocketProtocol
from nearcast.server.loop_batches import LoopBatches

PAGE_LISTENER = "page"
"""The name of the listener of these connections."""
PAGE_PATH = "/mqtt"


class PageSocket(WebSocketProtocol):
    """A WebSocket client that a request to the management address has become."""

    __slots__ = ("__weakref__", "login")

    def __init__(self, turns: LoopBatches, login: PageLogin) -> None:
        super().__init__(turns, PAGE_LISTENER, PAGE_PATH)
        self.login = login
        self._connection.is_onlooker = True
        login.sockets.add(self)

    def login_ended(self) -> None:
        """Disconnect the client."""
        connection, now_ms = self._connection, self._clock.now_ms()
        if connection.session is not None:
            text = "the login has ended"
            self._node.disconnect(connection, ReasonCode.NOT_AUTHORIZED, now_ms, text)
        elif not connection.is_closing:
            self._node.close(connection)
        self._turns.schedule()
