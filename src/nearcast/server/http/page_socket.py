"""The page's MQTT connection: a WebSocket at the management address, with the rights of a login.

What comes within a tenth of a second leaves as one WebSocket frame of many packets, which MQTT
allows. So a page costs ten writes a second at most, whatever happens where it looks.
"""

from __future__ import annotations

import asyncio

from nearcast.mqtt import ReasonCode
from nearcast.server.http.logins import PageLogin
from nearcast.server.listeners.websocket import WebSocketProtocol
from nearcast.server.loop_batches import LoopBatches

PAGE_LISTENER = "page"
"""The name of the listener of these connections."""
PAGE_PATH = "/mqtt"
_PAUSE_S = 0.1  # between two frames; the first after a pause leaves at once


class PageSocket(WebSocketProtocol):
    """A WebSocket client that a request to the management address has become."""

    __slots__ = ("__weakref__", "_alarm", "_collected", "login")

    def __init__(self, turns: LoopBatches, login: PageLogin) -> None:
        super().__init__(turns, PAGE_LISTENER, PAGE_PATH)
        self.login = login
        self._collected: list[bytes] = []
        self._alarm: asyncio.TimerHandle | None = None  # while a pause lasts
        self._connection.is_onlooker = True
        login.sockets.add(self)

    def write(self, chunks: list[bytes]) -> None:
        """Send an outbox at once, or with those that follow before the pause is over."""
        if self._alarm is None:
            super().write(chunks)
            self._alarm = asyncio.get_running_loop().call_later(_PAUSE_S, self._pause_over)
        else:
            self._collected += chunks

    def _pause_over(self) -> None:
        self._alarm = None
        self._send_collected()

    def _send_collected(self) -> None:
        if self._collected:
            chunks, self._collected = self._collected, []
            self.write(chunks)

    def finish(self) -> None:
        """Send what has been collected, and close the WebSocket."""
        self._end_pause()
        self._send_collected()
        self._end_pause()
        super().finish()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget what has been collected, and report the loss to the broker."""
        self._end_pause()
        self._collected = []
        super().connection_lost(exc)

    def _end_pause(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def login_ended(self) -> None:
        """Disconnect the client."""
        connection, now_ms = self._connection, self._clock.now_ms()
        if connection.session is not None:
            text = "the login has ended"
            self._node.disconnect(connection, ReasonCode.NOT_AUTHORIZED, now_ms, text)
        elif not connection.is_closing:
            self._node.close(connection)
        self._turns.schedule()
