"""HTTP/1.1 on one connection: h11 reads and writes the protocol, a `Site` answers.

A request for `/mqtt` that asks for a WebSocket passes the site's checks, and is then left with its
bytes to the broker's own listener code. The rest is one request after the other.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import h11

from nearcast.server.http.endpoint import HttpAnswer, Request
from nearcast.server.http.page_socket import PAGE_PATH

if TYPE_CHECKING:
    from nearcast.server.http.site import Site

MOST_BODY_BYTES = 1 << 20
_MOST_HEAD_BYTES = 65_536
_IDLE_S = 75.0
_REQUEST_S = 15.0


class HttpProtocol(asyncio.Protocol):
    """One connection of a browser or a program."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._wire = h11.Connection(h11.SERVER, max_incomplete_event_size=_MOST_HEAD_BYTES)
        self._transport: asyncio.Transport | None = None
        self._first = bytearray()  # the bytes of the first request, for a WebSocket
        self._is_first = True
        self._head: h11.Request | None = None
        self._body = bytearray()
        self._task: asyncio.Task[None] | None = None
        self._alarm: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for a request."""
        self._transport = transport  # type: ignore[assignment]
        if self._site.has_room(self):
            self._set_alarm(_REQUEST_S)
        else:
            transport.close()

    def connection_lost(self, _exc: Exception | None) -> None:
        """Drop the request that is being answered."""
        self._site.forget(self)
        if self._alarm is not None:
            self._alarm.cancel()
        if self._task is not None:
            self._task.cancel()

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    def _set_alarm(self, seconds: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = asyncio.get_running_loop().call_later(seconds, self.close)

    # --- requests ---------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Take bytes; answer a request once it is complete."""
        if self._is_first:
            self._first += data
        self._advance(data)

    def _advance(self, data: bytes | None = None) -> None:
        try:
            if data is not None:
                self._wire.receive_data(data)
            while self._task is None and self._take_event(self._wire.next_event()):
                pass
        except h11.RemoteProtocolError as problem:
            self._refuse(problem.error_status_hint, str(problem))

    def _take_event(self, event: object) -> bool:
        """Handle one event; return whether another may follow at once."""
        if isinstance(event, h11.Request):
            return self._begin(event)
        if isinstance(event, h11.Data):
            self._body += event.data
            if len(self._body) > MOST_BODY_BYTES:
                self._refuse(413, f"expected a body of at most {MOST_BODY_BYTES} bytes")
                return False
            return True
        if isinstance(event, h11.EndOfMessage):
            self._answer_soon()
            return False
        if isinstance(event, h11.ConnectionClosed):
            self.close()
        return False

    def _begin(self, head: h11.Request) -> bool:
        self._head, self._body = head, bytearray()
        self._set_alarm(_REQUEST_S)
        is_first, self._is_first = self._is_first, False
        first, self._first = bytes(self._first), bytearray()
        if is_first and self._is_for_page_socket(head):
            return self._hand_over(first)
        if self._wire.they_are_waiting_for_100_continue:
            self._write(self._wire.send(h11.InformationalResponse(status_code=100, headers=[])))
        return True

    def _is_for_page_socket(self, head: h11.Request) -> bool:
        names = {name for name, _ in head.headers}
        return head.target.partition(b"?")[0] == PAGE_PATH.encode() and b"upgrade" in names

    def _hand_over(self, first: bytes) -> bool:
        """Leave the connection to the WebSocket listener, or refuse it."""
        assert self._transport is not None
        socket = self._site.page_socket(self._request())
        if isinstance(socket, HttpAnswer):
            self._send(socket)
            self.close()
            return False
        if self._alarm is not None:
            self._alarm.cancel()
        self._site.forget(self)
        self._transport.set_protocol(socket)  # type: ignore[arg-type]  # it has all that one has
        socket.connection_made(self._transport)
        socket.data_received(first)
        return False

    def _request(self) -> Request:
        assert self._head is not None
        assert self._transport is not None
        head = self._head
        path, _, query = head.target.decode("latin-1").partition("?")
        headers: dict[str, str] = {}
        for name, value in head.headers:
            key, text = name.decode("latin-1"), value.decode("latin-1")
            headers[key] = f"{headers[key]}, {text}" if key in headers else text
        name = self._transport.get_extra_info("peername")
        address = f"{name[0]}:{name[1]}" if isinstance(name, tuple) else ""
        method = head.method.decode("latin-1")
        return Request(method, path, query, headers, bytes(self._body), address)

    def _answer_soon(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        assert self._transport is not None
        if self._transport.is_closing():
            return
        self._transport.pause_reading()  # what a client sends ahead stays in the kernel
        self._task = asyncio.get_running_loop().create_task(self._answer(self._request()))

    async def _answer(self, request: Request) -> None:
        answer = await self._site.answer(request)
        self._task = None
        self._send(answer)

    # --- answers ----------------------------------------------------------------------------

    def _refuse(self, status: int, text: str) -> None:
        if self._wire.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._send(self._site.refusal(status, text))
        self.close()

    def _send(self, answer: HttpAnswer) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        headers = [
            *answer.headers,
            *([("Content-Type", answer.kind)] if answer.body else []),
            *([("Content-Length", str(len(answer.body)))] if answer.status != 204 else []),
        ]
        method = None if self._head is None else self._head.method
        try:
            chunks = [self._wire.send(h11.Response(status_code=answer.status, headers=headers))]
            if answer.body and method != b"HEAD":
                chunks.append(self._wire.send(h11.Data(data=answer.body)))
            chunks.append(self._wire.send(h11.EndOfMessage()))
        except h11.LocalProtocolError:
            self.close()
            raise
        self._write(b"".join(chunk for chunk in chunks if chunk))
        if self._wire.our_state is h11.MUST_CLOSE or self._wire.our_state is h11.ERROR:
            self.close()
        elif self._wire.our_state is h11.DONE and self._wire.their_state is h11.DONE:
            self._wire.start_next_cycle()
            self._set_alarm(_IDLE_S)
            transport.resume_reading()
            self._advance()

    def _write(self, data: bytes | None) -> None:
        if data and self._transport is not None:
            self._transport.write(data)
