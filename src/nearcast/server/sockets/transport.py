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
import contextlib
import os
import socket
import sys
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Any, Final, Protocol

from nearcast.broker import Connection
from nearcast.server.loop_batches import LoopBatches
from nearcast.server.sockets.calls import SocketSet

_LARGE: Final = 1 << 14  # of a chunk: it is kept as it is; smaller ones are copied together
_MOST_CHUNKS: Final = 64  # of one call


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
        "_buffer_bytes",
        "_ends",
        "_high",
        "_is_closing",
        "_is_full",
        "_is_lost",
        "_owner",
        "_protocol",
        "_reads",
        "_sent",
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
        self._buffer: deque[bytes | bytearray] | None = None  # None: all is sent
        self._buffer_bytes = 0  # its size
        self._sent = 0  # so much of its first chunk is sent
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
        return self._buffer_bytes - self._sent

    def can_write_eof(self) -> bool:
        """Return that our side can be closed alone."""
        return True

    def write(self, data: bytes) -> None:
        """Send bytes; buffer those that the socket does not take."""
        if self._is_closing or self._ends:
            return
        sent = self._send([data]) if self._buffer is None else 0
        if 0 <= sent < len(data):
            self.keep([data], sent)

    def keep(self, chunks: list[bytes], sent: int) -> None:
        """Buffer what the socket did not take of these chunks: all but so many bytes."""
        if self._is_closing or self._ends or sent >= sum(map(len, chunks)):
            return
        buffer = self._buffer
        if buffer is None:
            buffer = self._buffer = deque()
            self._protocol.set_direct(is_direct=False)
        for chunk in chunks:
            if not buffer:
                if sent >= len(chunk):
                    sent -= len(chunk)
                    continue
                self._sent = sent
            self._buffer_bytes += len(chunk)
            last = buffer[-1] if buffer else b""
            if len(chunk) >= _LARGE:
                buffer.append(chunk)
            elif isinstance(last, bytearray) and len(last) < _LARGE:
                last += chunk
            else:
                buffer.append(bytearray(chunk))
        self._watch()
        if not self._is_full and self.get_write_buffer_size() > self._high:
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
        some = [memoryview(one) for one in islice(buffer, _MOST_CHUNKS)]
        some[0] = some[0][self._sent :]
        sent = self._send(some)
        for one in some:
            one.release()  # so that more can be appended
        if sent < 0:
            return
        self._drop(buffer, sent)
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
        if self._is_full and self.get_write_buffer_size() <= self._high // 4:
            self._is_full = False
            self._protocol.resume_writing()

    def _drop(self, buffer: deque[bytes | bytearray], sent: int) -> None:
        """Forget so many more bytes of the buffer: they are sent."""
        sent += self._sent
        while buffer and sent >= len(buffer[0]):
            size = len(buffer.popleft())
            sent -= size
            self._buffer_bytes -= size
        self._sent = sent

    def _send(self, chunks: Sequence[bytes | memoryview]) -> int:
        """Return how much the socket took; -1 if the client is gone."""
        try:
            return os.writev(self.descriptor, chunks)
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
        """Forget the socket now; close it and report it a little later."""
        if self._is_lost:
            return
        self._begin_closing()
        self._is_lost = True
        self._buffer = None
        self._buffer_bytes = self._sent = 0
        self._owner.sockets.remove(self.descriptor)
        self._owner.forget(self, problem)

    def drop(self) -> None:
        """Close the socket at once, and report nothing: the server has ended."""
        self._begin_closing()
        self._is_lost = True
        self._buffer = None
        self._buffer_bytes = self._sent = 0
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def finish(self, problem: Exception | None) -> None:
        """Close the socket, and report the end of the connection."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor < 0:
            return
        self._owner.transports.discard(self)
        os.close(descriptor)
        self._protocol.connection_lost(problem)


class Acceptor(Protocol):
    """What decides on the connections that a listening socket has accepted."""

    def accepted(self, descriptor: int, address: tuple[str, int]) -> None:
        """Serve a connection, or close it."""

    def stalled(self, descriptor: int, problem: OSError) -> None:
        """Handle that this listening socket cannot accept."""


class ListeningSocket:
    """A listening socket among those that are read together."""

    __slots__ = ("acceptor", "descriptor")

    def __init__(self, descriptor: int, acceptor: Acceptor) -> None:
        self.descriptor = descriptor
        self.acceptor = acceptor


class SocketLoop:
    """All plain connections of a server, and their part of the event loop.

    Where the event loop is uvloop's, it is waited for here, with the sockets; else it waits for all
    of them as one descriptor.
    """

    def __init__(self, turns: LoopBatches) -> None:
        self.turns = turns
        self.loop = asyncio.get_running_loop()
        self.sockets = SocketSet()
        self.transports: set[SocketTransport] = set()
        self._lost: list[tuple[SocketTransport, Exception | None]] = []
        self._is_handling = False
        self._has_accepted = False
        self._is_closed = False
        self._is_watched = not self._follow()  # by the event loop
        if self._is_watched:
            self.loop.add_reader(self.sockets.fileno(), self._gather)

    def _follow(self) -> bool:
        """Wait for the event loop here, if it is uvloop's; return whether it is."""
        uvloop = sys.modules.get("uvloop.loop")
        if uvloop is not None and isinstance(self.loop, uvloop.Loop):
            capsule, library = uvloop.libuv_get_loop_t_ptr(self.loop), uvloop.__file__ or ""
            return self.sockets.follow(capsule, library, self._handle)
        return False

    def listen(self, listening: socket.socket, acceptor: Acceptor) -> None:
        """Accept the connections of a listening socket that does not block."""
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # of these connections, too
        descriptor = listening.fileno()
        self.sockets.add_listener(descriptor, ListeningSocket(descriptor, acceptor))

    def ignore(self, listening: socket.socket) -> None:
        """Accept no connections of a listening socket."""
        if not self._is_closed:
            with contextlib.suppress(KeyError):  # it has stalled
                self.sockets.remove(listening.fileno())

    def attach(self, descriptor: int, address: tuple[str, int], protocol: SocketProtocol) -> None:
        """Serve an accepted connection that does not block; if it raises, nothing has changed."""
        transport = SocketTransport(self, descriptor, address, protocol)
        self.sockets.add(descriptor, transport)
        self.transports.add(transport)
        try:
            protocol.connection_made(transport)
        except BaseException:
            self.sockets.remove(descriptor)
            self.transports.discard(transport)
            raise

    def _gather(self) -> None:
        self._handle(self.sockets.gather())

    def _handle(self, found: list[object]) -> None:
        """Handle what was read, and what comes meanwhile, as one batch, and end that."""
        turns = self.turns
        self._is_handling = True
        turns.begin_reads()
        try:
            self._take(found)
            if self._has_accepted:  # of those that connect, some have sent CONNECT already
                self._has_accepted = False
                self._take(self.sockets.gather())
            while turns.end_reads():
                self._take(self.sockets.gather())
            while self._lost:
                self._report_lost()
        finally:
            self._is_handling = False

    def _take(self, found: list[object]) -> None:
        for place in range(0, len(found), 2):
            owner = found[place]
            if isinstance(owner, SocketTransport):
                try:
                    owner.arrived(found[place + 1])
                except Exception as problem:  # noqa: BLE001 - the others are read all the same
                    self.turns.node.failures.take("reading from a client", problem)
                    owner.abort()
            elif isinstance(owner, ListeningSocket):
                self._accept(owner, found[place + 1])

    def _accept(self, listening: ListeningSocket, found: object) -> None:
        if isinstance(found, int):
            listening.acceptor.stalled(listening.descriptor, OSError(found, os.strerror(found)))
            return
        assert isinstance(found, list)
        for place in range(0, len(found), 2):
            self._has_accepted = True
            descriptor: int = found[place]
            try:
                listening.acceptor.accepted(descriptor, found[place + 1])
            except Exception as problem:  # noqa: BLE001 - the others are accepted all the same
                os.close(descriptor)
                self.turns.node.failures.take("accepting a client", problem)

    def forget(self, transport: SocketTransport, problem: Exception | None) -> None:
        """Close a connection and report its end, once what has come is handled."""
        if self._is_handling:
            self._lost.append((transport, problem))
        else:
            self.loop.call_soon(transport.finish, problem)

    def _report_lost(self) -> None:
        """Report the connections that were lost meanwhile, as a batch of their own."""
        lost, self._lost = self._lost, []
        turns = self.turns
        turns.begin_reads()
        for transport, problem in lost:
            try:
                transport.finish(problem)
            except Exception as mistake:  # noqa: BLE001 - the others are reported all the same
                turns.node.failures.take("parting from a client", mistake)
        while turns.end_reads():
            pass

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
        if self._is_watched:
            self.loop.remove_reader(self.sockets.fileno())
        for transport in self.transports:
            transport.drop()
        self.transports.clear()
        self.sockets.close()
