"""A relay before a server's port that stops by itself when a client writes certain words."""

from __future__ import annotations

import contextlib
import re
import socket
import threading


class HoldingLine:
    """Relays connections to a port of this machine.

    From the first data of a client that match `hold_at` on, nothing passes in either direction,
    on old connections and new ones: it waits, in its order, until `release`.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._open = threading.Event()
        self._open.set()
        self._words: re.Pattern[bytes] | None = None
        self.is_holding = False
        self._server = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = [self._server]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return f"nats://127.0.0.1:{self._server.getsockname()[1]}"

    def hold_at(self, words: bytes) -> None:
        """Hold everything from the data on in which a client writes these words (a pattern)."""
        self._words = re.compile(words)

    def release(self) -> None:
        """Let pass what waits, and everything from now on."""
        self.is_holding = False
        self._open.set()

    def close(self) -> None:
        """Close all connections."""
        self.release()
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                far = socket.create_connection(("127.0.0.1", self._port))
                self._sockets += [near, far]
                for source, target in ((near, far), (far, near)):
                    threading.Thread(
                        target=self._copy, args=(source, target, source is near), daemon=True
                    ).start()

    def _copy(self, source: socket.socket, target: socket.socket, is_of_client: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if is_of_client and self._words is not None and self._words.search(data):
                    self._words = None
                    self._open.clear()
                    self.is_holding = True
                self._open.wait()
                target.sendall(data)
        self._open.wait()
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)
