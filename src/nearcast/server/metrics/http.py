"""A minimal HTTP server for `/metrics` and `/healthz`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

Page = Callable[[], tuple[str, str]]
_LARGEST_REQUEST = 8_192


class MetricsProtocol(asyncio.Protocol):
    """Answers one GET and closes."""

    def __init__(self, pages: dict[str, Page]) -> None:
        self._pages = pages
        self._request = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the request, at most 10 s."""
        self._transport = transport  # type: ignore[assignment]
        asyncio.get_running_loop().call_later(10, transport.close)

    def data_received(self, data: bytes) -> None:
        """Answer once the request is complete."""
        self._request += data
        if b"\r\n\r\n" in self._request or len(self._request) > _LARGEST_REQUEST:
            self._answer(self._request.split(b"\r\n", 1)[0].decode("latin-1").split(" "))

    def _answer(self, words: list[str]) -> None:
        assert self._transport is not None
        status, kind, body = "404 Not Found", "text/plain", "not found\n"
        if len(words) != 3 or words[0] not in ("GET", "HEAD"):
            status, body = "400 Bad Request", "bad request\n"
        elif words[1].partition("?")[0] in self._pages:
            status = "200 OK"
            kind, body = self._pages[words[1].partition("?")[0]]()
        raw = body.encode()
        head = (
            f"HTTP/1.1 {status}\r\nContent-Type: {kind}; charset=utf-8\r\n"
            f"Content-Length: {len(raw)}\r\nConnection: close\r\n\r\n"
        )
        if not self._transport.is_closing():
            self._transport.write(head.encode() + (b"" if words[0] == "HEAD" else raw))
            self._transport.close()
