"""Sockets of the load generator for each kind of listener: plain, TLS, WebSocket."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Callable
from typing import Any

_UPGRADE = (
    b"GET /mqtt HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
)
_MASK = b"\0\0\0\0"  # what is masked with zeros stays as it is: the broker unmasks it all the same


class TlsSocket:
    """A TLS connection; `recv` returns all that has been decrypted."""

    def __init__(self, plain: socket.socket) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self._sock = context.wrap_socket(plain)
        self.fileno, self.close = self._sock.fileno, self._sock.close
        self.sendall = self._sock.sendall

    def recv(self, size: int) -> bytes:
        data = self._sock.recv(size)
        while (left := self._sock.pending()) and len(data) < size:
            data += self._sock.recv(min(left, size - len(data)))
        return data


class WebSocket:
    """A WebSocket connection; `recv` returns the content of the frames that are complete."""

    def __init__(self, plain: socket.socket) -> None:
        self._sock = plain
        self.fileno, self.close = plain.fileno, plain.close
        self._rest = self._ready = b""
        plain.sendall(_UPGRADE)
        answer = b""
        while b"\r\n\r\n" not in answer:
            part = plain.recv(1 << 16)
            if not part:
                raise EOFError
            answer += part
        head, _, self._rest = answer.partition(b"\r\n\r\n")
        if b" 101 " not in head.split(b"\r\n")[0]:
            raise OSError("refused")

    def sendall(self, data: bytes) -> None:
        size = len(data)
        if size < 126:
            head = bytes((0x82, 0x80 | size))
        elif size < 1 << 16:
            head = b"\x82\xfe" + struct.pack(">H", size)
        else:
            head = b"\x82\xff" + struct.pack(">Q", size)
        self._sock.sendall(head + _MASK + data)

    def recv(self, size: int) -> bytes:
        """Return some bytes; it waits until there is a complete frame."""
        while not self._ready:
            part = self._sock.recv(1 << 20)
            if not part:
                return b""
            self._unframe(self._rest + part)
        data, self._ready = self._ready[:size], self._ready[size:]
        return data

    def _unframe(self, data: bytes) -> None:
        at, end = 0, len(data)
        while end - at >= 2:
            size, body = data[at + 1] & 127, at + 2
            if size > 125:
                length = 2 if size == 126 else 8
                size = int.from_bytes(data[body : body + length], "big")
                body += length
            if body + size > end:
                break
            self._ready += data[body : body + size]
            at = body + size
        self._rest = data[at:]


TRANSPORTS: dict[str, Callable[[socket.socket], Any]] = {
    "tcp": lambda plain: plain,
    "tls": TlsSocket,
    "ws": WebSocket,
}
