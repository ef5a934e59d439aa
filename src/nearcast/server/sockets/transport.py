"""A plain TCP connection as an asyncio transport of our own, and the loop's part for all of them.

uvloop runs a callback of its own for each connection that has something to read. Where a crowd
sends one packet now and then, that callback costs as much as the packet. So all plain connections
stand in one `SocketSet`, which the loop watches as one descriptor: one call reads all that are
ready, the broker handles all of it, and one call writes all answers. TLS, WebSocket and HTTP stay
as they are.

Read next: `calls.py`, `../loop_batches.py`.
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any, Protocol

from nearcast.broker import Connection
from nearcast.server.loop_batches import LoopBatches
from nearcast.server.sockets.calls import SocketSet

_WRITE_BYTES = 1 << 18  # of one connection at a time


class SocketProtocol(Protocol):
    """What a transport needs of its connection: most of `asyncio.Protocol`."""

    def connection_made(self, transport: Any, /) -> None:
        """Handle that the connection is open."""

    def connection_lost(self, exc: Exception | None, /) -> None:
        """Handle that the connection is closed."""

    def data_received(self, data: bytes, /) -> None:
        """Handle what was read."""

    def eof_received(self) -> object:
        """Handle that the other side has sent all it will."""

    def pause_writing(self) -> None:
        """Handle that much is buffered."""

    def resume_writing(self) -> None:
        """Handle that little is buffered again."""

    def set_direct(self, *, is_direct: bool) -> None:
        """Handle whether batches may write to the socket themselves."""


class SocketTransport:
    """One connection: what could not be sent at once is buffered here.

    While nothing is buffered and it is not closing, batches write to the socket themselves:
    `set_direct` tells the connection so.
    """

    __slots__ = (
        "_address",
        "_buffer",
        "_ends",
        "_high",
        "_is_closing",
        "_is_full",
        "_is_lost",
        "_owner",
        "_protocol",
        "_reads",
        "_unread",
        "connection",
        "descriptor",
    )

    def __init__(
        self, owner: SocketLoop, descriptor: int, address: tuple[Any, ...], protocol: SocketProtocol
    ) -> None:
        self._owner = owner
        self.descriptor = descriptor
        self._address = address
        self._protocol = protocol
        self.connection: Connection | None = None  # what is read goes straight to the broker
        self._buffer: bytearray | None = None
        self._high = 1 << 16
        self._reads = True
        self._unread: object = None  # what was gathered when reading stopped
        self._ends = False  # our side is closed once all is sent
        self._is_full = False  # the connection knows that much is buffered
        self._is_closing = False
        self._is_lost = False

    # --- what asyncio's transports have -----------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the address of the other side, if asked for it; there is no TLS."""
        return self._address if name == "peername" else default

    def is_closing(self) -> bool:
        """Return whether the connection is closed or closing."""
        return self._is_closing

    def set_write_buffer_limits(self, high: int) -> None:
        """Set from how many buffered bytes on the connection is told to pause."""
        self._high = high

    def get_write_buffer_size(self) -> int:
        """Return how many bytes are buffered."""
        return 0 if self._buffer is None else len(self._buffer)

    def can_write_eof(self) -> bool:
        """Return that our side can be closed alone."""
        return True

    def write(self, data: bytes) -> None:
        """Send bytes; buffer those that the socket does not take."""
        if self._is_closing or self._ends:
            return
        if self._buffer is None:
            sent = self._send(data)
            if sent < 0 or sent == len(data):
                return
            data = data[sent:]
        self.keep(data)

    def keep(self, data: bytes) -> None:
        """Buffer bytes that the socket did not take."""
        if self._buffer is None:
            self._buffer = bytearray()
            self._protocol.set_direct(is_direct=False)
        self._buffer += data
        self._watch()
        if not self._is_full and len(self._buffer) > self._high:
            self._is_full = True
            self._protocol.pause_writing()

    def pause_reading(self) -> None:
        """Leave what comes in the kernel."""
        if self._reads and not self._is_closing:
            self._reads = False
            self._watch()

    def resume_reading(self) -> None:
        """Read again, and hand on what was read before."""
        if self._reads or self._is_closing:
            return
        self._reads = True
        self._watch()
        if self._unread is not None:
            self._owner.loop.call_soon(self._hand_on)

    def write_eof(self) -> None:
        """Close our side once everything is sent; raises OSError if the client is gone."""
        if self._ends or self._is_closing:
            return
        self._ends = True
        if self._buffer is None:
            self._shut_down()

    def close(self) -> None:
        """Read no more; close once everything is sent."""
        if self._is_closing:
            return
        self._begin_closing()
        if self._buffer is None:
            self._lose(None)
        else:
            self._watch()

    def abort(self) -> None:
        """Close now."""
        self._lose(None)

    # --- what the loop reports ----------------------------------------------------------------

    def arrived(self, what: object) -> None:
        """Handle what `SocketSet.gather` has found."""
        if what is None:
            self._flush()
        elif self._is_closing:
            return
        elif not self._reads:
            self._unread = what  # something of the same batch stopped it
        elif isinstance(what, bytes):
            if not what:
                self._ended()
            elif self.connection is not None:
                self._owner.turns.read(self.connection, what)
            else:
                self._protocol.data_received(what)
        elif isinstance(what, int):
            self._lose(OSError(what, os.strerror(what)))

    def _hand_on(self) -> None:
        what, self._unread = self._unread, None
        if what is not None and not self._is_closing:
            self.arrived(what)

    def _ended(self) -> None:
        self._protocol.eof_received()
        self.close()

    def _flush(self) -> None:
        buffer = self._buffer
        if buffer is None or self._is_lost:
            return
        sent = self._send(bytes(buffer[:_WRITE_BYTES]))
        if sent < 0:
            return
        del buffer[:sent]
        if not buffer:
            self._buffer = None
            if self._is_closing:
                self._lose(None)
                return
            self._watch()
            if self._ends:
                self._end_or_abort()
            else:
                self._protocol.set_direct(is_direct=True)
        if self._is_full and len(buffer) <= self._high // 4:
            self._is_full = False
            self._protocol.resume_writing()

    def _send(self, data: bytes) -> int:
        """Return how much the socket took; -1 if the client is gone."""
        try:
            return os.write(self.descriptor, data)
        except BlockingIOError:
            return 0
        except OSError as problem:
            self._lose(problem)
            return -1

    # --- its end -----------------------------------------------------------------------------

    def _watch(self) -> None:
        if not self._is_lost:
            reads = self._reads and not self._is_closing
            self._owner.sockets.watch(self.descriptor, reads, self._buffer is not None)

    def _shut_down(self) -> None:
        self._protocol.set_direct(is_direct=False)
        self._owner.shut_down(self.descriptor)

    def _end_or_abort(self) -> None:
        try:
            self._shut_down()
        except OSError:  # the client is gone
            self.abort()

    def _begin_closing(self) -> None:
        self._is_closing = True
        self._unread = None
        self._protocol.set_direct(is_direct=False)

    def _lose(self, problem: Exception | None) -> None:
        """Forget the socket now; close it and report it in the next iteration of the loop."""
        if self._is_lost:
            return
        self._begin_closing()
        self._is_lost = True
        self._buffer = None
        self._owner.sockets.remove(self.descriptor)
        self._owner.loop.call_soon(self._finish, problem)

    def drop(self) -> None:
        """Close the socket at once, and report nothing: the server has ended."""
        self._begin_closing()
        self._is_lost = True
        self._buffer = None
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _finish(self, problem: Exception | None) -> None:
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor < 0:
            return
        self._owner.transports.discard(self)
        os.close(descriptor)
        self._protocol.connection_lost(problem)


class SocketLoop:
    """All plain connections of a server, and their part of the event loop."""

    def __init__(self, turns: LoopBatches) -> None:
        self.turns = turns
        self.loop = asyncio.get_running_loop()
        self.sockets = SocketSet()
        self.transports: set[SocketTransport] = set()
        self._is_closed = False
        self.loop.add_reader(self.sockets.fileno(), self._gather)

    def attach(
        self, accepted: socket.socket, address: tuple[Any, ...], protocol: SocketProtocol
    ) -> None:
        """Serve an accepted connection that does not block; its socket is ours from now on."""
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        descriptor = accepted.detach()
        transport = SocketTransport(self, descriptor, address, protocol)
        self.transports.add(transport)
        self.sockets.add(descriptor, transport)
        protocol.connection_made(transport)

    def _gather(self) -> None:
        """Read all sockets that are ready, handle it as one batch, and end that."""
        found = self.sockets.gather()
        turns = self.turns
        turns.begin_reads()
        for place in range(0, len(found), 2):
            transport = found[place]
            assert isinstance(transport, SocketTransport)
            try:
                transport.arrived(found[place + 1])
            except Exception as problem:  # noqa: BLE001 - the others are read all the same
                turns.node.failures.take("reading from a client", problem)
                transport.abort()
        turns.end_reads()

    @staticmethod
    def shut_down(descriptor: int) -> None:
        """Close our side of a connection; raises OSError if the client is gone."""
        ours = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=descriptor)
        try:
            ours.shutdown(socket.SHUT_WR)
        finally:
            ours.detach()

    def close(self) -> None:
        """Close all connections without a word to them."""
        if self._is_closed:
            return
        self._is_closed = True
        self.loop.remove_reader(self.sockets.fileno())
        for transport in self.transports:
            transport.drop()
        self.transports.clear()
        self.sockets.close()
