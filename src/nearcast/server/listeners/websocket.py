"""MQTT inside WebSocket frames (MQTT 5, section 6; RFC 6455), server side.

The framing is our own because a library costs more CPU than the broker spends on a message; see
`docs/decisions/0037-websocket-framing-is-strict-and-our-own.md`.

Read next: `websocket_frames.py`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections import deque
from collections.abc import Callable
from functools import partial

from nearcast.broker.slices import Work
from nearcast.model.errors import PeerProtocolError
from nearcast.server.listeners.origins import OriginRule, is_proxied
from nearcast.server.listeners.tcp import MqttProtocol, ignore_bytes
from nearcast.server.listeners.websocket_frames import (
    BINARY,
    CLOSE,
    NORMAL,
    PONG,
    FrameDecoder,
    encode_frame,
)
from nearcast.server.loop_batches import LoopBatches

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_LARGEST_REQUEST = 8_192
_PIECE_BYTES = 4_096  # handled without a break; may hold hundreds of frames
_HEAD_END = b"\r\n\r\n"
_ONCE = ("host", "origin", "sec-websocket-key", "sec-websocket-version")


class RefusedRequestError(PeerProtocolError):
    """An opening request that is answered with an HTTP error status."""

    status = "400 Bad Request"


class RefusedPathError(RefusedRequestError):
    """A request for an unknown path."""

    status = "404 Not Found"


class RefusedOriginError(RefusedRequestError):
    """A request of a web page of another origin, or for another host."""

    status = "403 Forbidden"


class RefusedVersionError(RefusedRequestError):
    """A request for another version of WebSocket, or for none (RFC 6455, 4.2.2)."""

    status = "426 Upgrade Required\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13"


def accept_key(key: str) -> str:
    """Return the Sec-WebSocket-Accept value for a client's key (RFC 6455, 4.2.2).

    >>> accept_key("dGhlIHNhbXBsZSBub25jZQ==")
    's3pPLMBiTxaQ9kYGzzhZRbK+xOo='
    """
    digest = hashlib.sha1(key.encode() + _GUID, usedforsecurity=False).digest()
    return base64.b64encode(digest).decode()


def answer_request(request: bytes, path: str, rule: OriginRule | None = None) -> bytes:
    """Return the response that opens the WebSocket; raise if the request is not for MQTT."""
    return open_request(request, path, rule)[0]


def open_request(
    request: bytes, path: str, rule: OriginRule | None = None
) -> tuple[bytes, dict[str, str]]:
    """Return the response that opens the WebSocket, and the request's headers."""
    lines = request.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or words[0] != "GET" or words[2] != "HTTP/1.1":
        raise RefusedRequestError(
            repr(lines[0][:80]), where="WebSocket", expected="GET and HTTP/1.1"
        )
    if words[1].partition("?")[0] != path:
        raise RefusedPathError(repr(words[1][:80]), where="WebSocket", expected=path)
    headers = _headers(lines[1:])
    if "websocket" not in _listed(headers, "upgrade"):
        raise RefusedVersionError("no 'Upgrade: websocket'", where="WebSocket")
    if "upgrade" not in _listed(headers, "connection"):
        raise RefusedRequestError("no 'Connection: Upgrade'", where="WebSocket")
    if "host" not in headers:
        raise RefusedRequestError("no 'Host'", where="WebSocket")
    objection = "" if rule is None else rule.objection(headers)
    if objection:
        raise RefusedOriginError(objection, where="WebSocket")
    if headers.get("sec-websocket-version") != "13":
        raise RefusedVersionError("another version", where="WebSocket", expected="13")
    key = headers.get("sec-websocket-key", "")
    if not _is_key(key):
        raise RefusedRequestError(
            "Sec-WebSocket-Key", where="WebSocket", expected="16 bytes in base64"
        )
    offered = headers.get("sec-websocket-protocol", "")
    if "mqtt" not in [one.strip() for one in offered.split(",")]:  # [MQTT-6.0.0-3]
        raise RefusedRequestError(
            f"subprotocols {offered[:80]!r}", where="WebSocket", expected="mqtt among them"
        )
    answer = (
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Accept: {accept_key(key)}\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
    )
    return answer.encode(), headers


def _headers(lines: list[str]) -> dict[str, str]:
    """Return the headers by lower-case name; repeated ones joined as one list."""
    headers: dict[str, list[str]] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        name = name.lower()
        if not colon or not name or name != name.strip() or (name in headers and name in _ONCE):
            raise RefusedRequestError(repr(line[:80]), where="WebSocket", expected="a header, once")
        headers.setdefault(name, []).append(value.strip())
    return {name: ", ".join(values) for name, values in headers.items()}


def _listed(headers: dict[str, str], name: str) -> list[str]:
    return [one.strip().lower() for one in headers.get(name, "").split(",")]


def _is_key(text: str) -> bool:
    try:
        return len(base64.b64decode(text, validate=True)) == 16
    except (binascii.Error, ValueError):
        return False


class WebSocketProtocol(MqttProtocol):
    """A connection whose bytes travel in WebSocket frames."""

    __slots__ = (
        *("_decoder", "_handle", "_is_busy", "_is_gone", "_path", "_request", "_rule", "_unread"),
    )

    def __init__(
        self, turns: LoopBatches, listener: str, path: str, rule: OriginRule | None = None
    ) -> None:
        super().__init__(turns, listener)
        self._path, self._rule = path, rule
        take = partial(turns.take, self._connection)
        if self._rated is not None:
            self._rated = self._rate(turns, take)
        self._handle: Callable[[bytes], None] = take if self._rated is None else self._rated.take
        self._decoder: FrameDecoder | None = None  # once the WebSocket is open
        self._request = bytearray()
        self._is_busy = self._is_gone = False
        self._unread: deque[bytes] = deque()  # pieces of reads
        self.data_received = self._take_read

    def _take_read(self, data: bytes) -> None:
        """Handle a read: a large one in pieces, with other clients served in between."""
        pieces = range(0, len(data), _PIECE_BYTES)
        self._unread.extend(data[at : at + _PIECE_BYTES] for at in pieces)
        if not self._is_busy:
            self._is_busy = True
            self._turns.work(self._take_pieces())

    def _take_pieces(self) -> Work:
        while self._unread and not self._is_ended():
            self._take_piece(self._unread.popleft())
            if self._unread:
                self._turns.hold_reading(self._connection)
                yield
        self._is_busy = False
        if self._is_gone:
            super().connection_lost(None)
        else:
            self._turns.look_after(self._connection)
            self._turns.read_on(self._connection)

    def _is_ended(self) -> bool:
        is_closing = self._transport is not None and self._transport.is_closing()
        return is_closing and not self._is_gone

    def connection_lost(self, _exc: Exception | None) -> None:
        """Report the loss to the broker, after the bytes read before."""
        if self._is_busy:
            self._is_gone = True
        else:
            super().connection_lost(_exc)

    def _release(self) -> None:
        """Drop what refers to this connection in a circle."""
        super()._release()
        self._handle = ignore_bytes

    def _take_piece(self, data: bytes) -> None:
        decoder = self._decoder
        if decoder is not None:
            self._take_frames(decoder, data)
        elif self._last_moment is None:
            self._take_request(data)

    def _take_request(self, data: bytes) -> None:
        """Handle the opening request, and frames that arrived with it."""
        request = self._request
        searched = max(0, len(request) - len(_HEAD_END) + 1)
        request += data
        at = request.find(_HEAD_END, searched)
        if at < 0 and len(request) <= _LARGEST_REQUEST:
            return
        self._request = bytearray()
        try:
            if not 0 <= at <= _LARGEST_REQUEST:
                raise RefusedRequestError("an endless request", where="WebSocket")
            answer, headers = open_request(bytes(request[:at]), self._path, self._rule)
        except RefusedRequestError as problem:
            self._write_raw(f"HTTP/1.1 {problem.status}\r\nContent-Length: 0\r\n\r\n".encode())
            self._give_up(str(problem))
            return
        self._connection.is_proxied = is_proxied(headers)
        self._write_raw(answer)
        self._decoder = decoder = FrameDecoder()
        rest = bytes(request[at + len(_HEAD_END) :])
        if rest:
            self._take_frames(decoder, rest)

    def _take_frames(self, decoder: FrameDecoder, data: bytes) -> None:
        stream = decoder.feed(data)
        if stream:
            whole = stream[0] if len(stream) == 1 else b"".join(stream)
            self._handle(whole)
        if decoder.pong is not None:
            self._answer_ping(decoder)
        if decoder.closing and self._last_moment is None:
            self._send(CLOSE, decoder.closing.to_bytes(2, "big"))
            self._give_up(f"WebSocket closed: {decoder.problem or decoder.closing}")

    def _answer_ping(self, decoder: FrameDecoder) -> None:
        """Answer the last ping; a client that does not read gets the pong once it does."""
        if decoder.pong is not None and not self._connection.is_paused:
            self._send(PONG, decoder.pong)
            decoder.pong = None

    def resume_writing(self) -> None:
        """Resume delivery to the client."""
        super().resume_writing()
        if self._decoder is not None:
            self._answer_ping(self._decoder)

    def _send(self, opcode: int, payload: bytes) -> None:
        self._write_raw(encode_frame(opcode, payload))

    def _write_raw(self, data: bytes) -> None:
        transport = self._transport
        if transport is not None and self._last_moment is None and not transport.is_closing():
            transport.write(data)

    def write(self, chunks: list[bytes]) -> None:
        """Send an outbox as one frame."""
        self._send(BINARY, b"".join(chunks))

    def finish(self) -> None:
        """Close the WebSocket, then our side of the connection."""
        if self._decoder is not None and not self._decoder.closing:
            self._send(CLOSE, NORMAL.to_bytes(2, "big"))  # the reason is in MQTT's DISCONNECT
        super().finish()

    def _give_up(self, reason: str) -> None:
        """End the MQTT connection at once; close the socket once the client has read our answer."""
        if self._rated is not None:
            self._rated.end()
        self._connection.loss = reason
        self._node.lost(self._connection, self._clock.now_ms())
        self._turns.schedule()
        super().finish()
