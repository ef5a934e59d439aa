"""MQTT inside WebSocket frames (MQTT 5, section 6; RFC 6455), the server's side.

Written here rather than taken from a library: MQTT needs binary frames, a subprotocol and three
control frames; the broker writes whole outboxes as one frame and must not start a task, a timer
or a queue per connection.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib

from nearcast.model.errors import PeerProtocolError
from nearcast.server.tcp import MqttProtocol

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_LARGEST_REQUEST = 8_192
_LARGEST_FRAME = 4 << 20  # a frame may hold many packets
_BINARY, _CLOSE, _PING, _PONG = 2, 8, 9, 10
_DONE = (1000).to_bytes(2, "big")  # the reason is in MQTT's DISCONNECT


def accept_key(key: str) -> str:
    """Return what proves that the server has read the client's key.

    >>> accept_key("dGhlIHNhbXBsZSBub25jZQ==")
    's3pPLMBiTxaQ9kYGzzhZRbK+xOo='
    """
    digest = hashlib.sha1(key.encode() + _GUID, usedforsecurity=False).digest()
    return base64.b64encode(digest).decode()


def answer_request(request: bytes, path: str) -> bytes:
    """Return the answer that opens the WebSocket; refuse a request that does not ask for MQTT."""
    lines = request.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    headers = {}
    for line in lines[1:]:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    if len(words) != 3 or words[0] != "GET" or words[1].partition("?")[0] != path:
        raise PeerProtocolError(lines[0][:80], where="WebSocket", expected=f"GET {path}")
    upgrade = headers.get("upgrade", "").lower() == "websocket"
    if not upgrade or headers.get("sec-websocket-version") != "13":
        raise PeerProtocolError("no upgrade to WebSocket 13", where="WebSocket")
    offered = [one.strip() for one in headers.get("sec-websocket-protocol", "").split(",")]
    key = headers.get("sec-websocket-key", "")
    if "mqtt" not in offered or not key:
        raise PeerProtocolError("no subprotocol mqtt", where="WebSocket")
    return (
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Accept: {accept_key(key)}\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
    ).encode()


def unmask(payload: bytes, mask: bytes) -> bytes:
    """Return the payload that was masked; O(n) in one sweep.

    >>> unmask(unmask(b"hello", b"abcd"), b"abcd")
    b'hello'
    """
    size = len(payload)
    pad = mask * (size // 4 + 1)
    mixed = int.from_bytes(payload, "little") ^ int.from_bytes(pad[:size], "little")
    return mixed.to_bytes(size, "little")


def encode_frame(opcode: int, payload: bytes) -> bytes:
    """Return one unmasked, final frame."""
    size = len(payload)
    first = bytes((0x80 | opcode,))
    if size < 126:
        return first + bytes((size,)) + payload
    if size < 65_536:
        return first + b"\x7e" + size.to_bytes(2, "big") + payload
    return first + b"\x7f" + size.to_bytes(8, "big") + payload


class FrameReader:
    """Frames out of bytes that arrive in any portions."""

    def __init__(self, largest: int) -> None:
        self._buffer = b""
        self._largest = largest

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Return (opcode, payload) of the frames that are whole now."""
        self._buffer = self._buffer + data if self._buffer else data
        frames: list[tuple[int, bytes]] = []
        position = 0
        while (frame := self._frame_at(position)) is not None:
            opcode, payload, position = frame
            frames.append((opcode, payload))
        self._buffer = self._buffer[position:]
        return frames

    def _frame_at(self, position: int) -> tuple[int, bytes, int] | None:
        data = self._buffer
        if len(data) - position < 6:
            return None
        opcode, size, at = data[position] & 0x0F, data[position + 1], position + 2
        if data[position] & 0x70 or not size & 0x80:
            raise PeerProtocolError("an unmasked or extended frame", where="WebSocket")
        size &= 0x7F
        width = {126: 2, 127: 8}.get(size, 0)
        if width:
            if len(data) < at + width:
                return None
            size = int.from_bytes(data[at : at + width], "big")
            at += width
        if size > self._largest or (opcode >= 8 and size > 125):
            raise PeerProtocolError(f"a frame of {size} bytes", where="WebSocket")
        stop = at + 4 + size
        if len(data) < stop:
            return None
        return opcode, unmask(data[at + 4 : stop], data[at : at + 4]), stop


class WebSocketProtocol(MqttProtocol):
    """A connection whose bytes travel in frames."""

    __slots__ = ("_is_open", "_path", "_reader", "_request")

    def __init__(self, turns: object, listener: str, path: str, largest: int) -> None:
        super().__init__(turns, listener)  # type: ignore[arg-type]
        self._path = path
        self._is_open = False
        self._request = b""
        self._reader = FrameReader(max(largest, _LARGEST_FRAME) + 16)
        self.data_received = self._take_read  # type: ignore[method-assign]

    def _take_read(self, data: bytes) -> None:
        """Take in the request, then frames."""
        try:
            if not self._is_open:
                data = self._take_request(data)
            if self._is_open and data:
                self._take_frames(data)
        except PeerProtocolError:
            self._abandon()

    def _take_request(self, data: bytes) -> bytes:
        self._request += data
        head, found, rest = self._request.partition(b"\r\n\r\n")
        if not found:
            if len(self._request) > _LARGEST_REQUEST:
                raise PeerProtocolError("an endless request", where="WebSocket")
            return b""
        assert self._transport is not None
        self._request = b""
        try:
            answer = answer_request(head, self._path)
        except PeerProtocolError:
            self._transport.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
            raise
        self._transport.write(answer)
        self._is_open = True
        return rest

    def _take_frames(self, data: bytes) -> None:
        stream: list[bytes] = []
        for opcode, payload in self._reader.feed(data):
            if opcode in (0, _BINARY):
                stream.append(payload)
            elif opcode == _PING:
                self._send(_PONG, payload)
            elif opcode == _CLOSE:
                self._send(_CLOSE, payload[:2])
                self._abandon()
                break
            elif opcode != _PONG:
                raise PeerProtocolError(f"frame type {opcode}", where="WebSocket")
        if stream:
            self._turns.read(self._connection, b"".join(stream))

    def _send(self, opcode: int, payload: bytes) -> None:
        transport = self._transport
        if transport is not None and self._last_moment is None and not transport.is_closing():
            transport.write(encode_frame(opcode, payload))

    def write(self, chunks: list[bytes]) -> None:
        """Send an outbox as one frame."""
        self._send(_BINARY, b"".join(chunks))

    def finish(self) -> None:
        """Say goodbye as a WebSocket does, then end our side."""
        if self._is_open:
            self._send(_CLOSE, _DONE)
        super().finish()

    def _abandon(self) -> None:
        transport = self._transport
        if transport is not None:
            asyncio.get_running_loop().call_soon(transport.close)
