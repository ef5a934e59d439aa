"""MQTT over a byte stream: TCP or TLS."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from mypy_extensions import mypyc_attr

from nearcast.broker import Connection
from nearcast.server.auth.certificates import names_in
from nearcast.server.listeners.message_rates import RatedReads
from nearcast.server.loop_batches import LoopBatches
from nearcast.server.sockets.transport import SocketTransport

HIGH_WATER_BYTES: Final = 1 << 20
"""Above this write buffer the client counts as slow, and its deliveries wait."""
CLOSING_S: Final = 5.0
"""How long a client has to close its side after the broker closed its own."""


@mypyc_attr(allow_interpreted_subclasses=True)
class MqttProtocol:
    """One connection: reads go to the broker, the broker's outbox to the transport.

    It has what `asyncio.Protocol` has, which it cannot be derived from where it is compiled.
    """

    __slots__ = (
        "_accepted_ms",
        "_clock",
        "_connection",
        "_descriptor",
        "_last_moment",
        "_node",
        "_rated",
        "_transport",
        "_turns",
        "data_received",
    )

    def __init__(self, turns: LoopBatches, listener: str) -> None:
        self._turns = turns
        self._node = turns.node
        self._clock = turns.clock
        self._accepted_ms = turns.clock.now_ms()  # before TLS: the client has one deadline
        self._connection = connection = Connection("", listener)
        # Bound straight to the broker's entry point: an extra call per read is measurable.
        read: Callable[[bytes], None] = partial(turns.read, connection)
        self._rated: RatedReads | None = None
        if turns.message_rates is not None:
            self._rated = self._rate(turns, read)
            read = self._rated.take
        self.data_received: Callable[[bytes], None] = read
        self._transport: Any = None
        self._descriptor = -1
        self._last_moment: asyncio.TimerHandle | None = None  # we have closed our side

    def _rate(self, turns: LoopBatches, handle: Callable[[bytes], object]) -> RatedReads:
        """Return what passes the client's bytes on no faster than its rates allow."""
        assert turns.message_rates is not None
        find_buckets = turns.message_rates.of(self._connection)
        loop = asyncio.get_running_loop()
        return RatedReads(find_buckets, handle, self._throttle, self._unthrottle, loop)

    def _throttle(self) -> None:
        self._connection.is_throttled = True
        self._turns.hold_reading(self._connection)

    def _unthrottle(self) -> None:
        self._connection.is_throttled = False
        self._turns.read_on(self._connection)

    def forwarded_from(self, address: str) -> None:
        """Handle that a proxy has forwarded the connection of a client at this `HOST:PORT`."""
        self._connection.address = address

    def connection_made(self, transport: Any) -> None:
        """Open the connection at the broker."""
        self._transport = transport
        transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        connection = self._connection
        connection.address = connection.address or _peer(transport)
        connection.transport = self
        if isinstance(transport, SocketTransport):
            connection.descriptor = transport.descriptor
            if self._rated is None:
                transport.connection = connection
        else:
            connection.certificate = names = names_in(transport.get_extra_info("peercert"))
            connection.certificate_name = next((name for kind, name in names if kind == "cn"), None)
            if transport.get_extra_info("sslcontext") is None:
                self._descriptor = transport.get_extra_info("socket").fileno()
        self._node.open(connection, self._clock.now_ms(), self._accepted_ms)
        if connection.is_closing:  # above the limit of connections
            transport.close()
        self._turns.schedule()

    def eof_received(self) -> None:
        """Return None: the transport closes."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the loss to the broker."""
        if exc is not None and not self._connection.loss:
            self._connection.loss = str(exc)
        if self._last_moment is not None:
            self._last_moment.cancel()
        if self._rated is not None:
            self._rated.end()
        self._turns.lost(self._connection)
        self._release()

    def _release(self) -> None:
        """Drop what refers to this connection in a circle, so that it is freed at once.

        The garbage collector would free thousands of them together, while all clients wait.
        """
        self._connection.transport = LOST
        self._transport = self._rated = None
        self.data_received = ignore_bytes

    def pause_writing(self) -> None:
        """Record that the client does not read."""
        self._connection.is_paused = True

    def resume_writing(self) -> None:
        """Resume delivery to the client."""
        self._turns.resumed(self._connection)

    def write(self, chunks: list[bytes]) -> None:
        """Send bytes; several chunks are joined."""
        transport = self._transport
        if transport is None or self._last_moment is not None or transport.is_closing():
            return
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        if self._descriptor < 0:
            transport.write(data)
        else:
            write_now(transport, self._descriptor, data)

    def write_rest(self, chunks: list[bytes], sent: int) -> None:
        """Send the bytes behind those that the socket took; below 0, it has failed."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if sent < 0:
            transport.abort()
        elif isinstance(transport, SocketTransport):
            transport.keep(chunks, sent)
        else:
            transport.write(b"".join(chunks)[sent:])

    def set_direct(self, *, is_direct: bool) -> None:
        """Record whether batches may write to the socket themselves."""
        transport = self._transport
        is_ours = is_direct and isinstance(transport, SocketTransport)
        self._connection.descriptor = transport.descriptor if is_ours else -1

    def pause_reading(self) -> None:
        """Stop reading from the client: its bytes stay in the kernel."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read from the client again."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def finish(self) -> None:
        """Close our side once everything is sent; close fully when the client has closed its own.

        If a socket is closed with unread input, the kernel resets the connection, and the client
        loses what it has not read yet, which may be the acknowledgement of a message that it would
        send again.
        """
        transport = self._transport
        if transport is None or self._last_moment is not None or transport.is_closing():
            return
        if self._connection.is_late:
            transport.abort()
            return
        if self._rated is not None:
            self._rated.is_over = True
        if self._connection.has_left and isinstance(transport, SocketTransport):
            transport.close()  # there is nothing more to read
            return
        if self._connection.is_unread:  # the client's FIN is behind its unread bytes
            self._connection.is_unread = False
            transport.resume_reading()
        loop = asyncio.get_running_loop()
        self._last_moment = loop.call_later(CLOSING_S, transport.abort)
        if not transport.can_write_eof():
            transport.close()  # TLS sends close_notify, and reads on until the client's
            return
        try:
            transport.write_eof()
        except OSError:  # the client is gone
            transport.abort()


class LostWire:
    """The transport side of a connection that is lost."""

    def write(self, chunks: list[bytes]) -> None:
        """Send nothing."""

    def write_rest(self, chunks: list[bytes], sent: int) -> None:
        """Send nothing."""

    def finish(self) -> None:
        """Do nothing: it is closed."""

    def pause_reading(self) -> None:
        """Do nothing: there is nothing to read."""

    def resume_reading(self) -> None:
        """Do nothing: there is nothing to read."""


LOST: Final = LostWire()


def ignore_bytes(_data: bytes) -> None:
    """Take bytes of a connection that is lost."""


def write_now(transport: Any, descriptor: int, data: bytes) -> None:
    """Write as much as the socket takes without an iteration of the loop; buffer the rest."""
    if not transport.get_write_buffer_size():
        try:
            sent = os.write(descriptor, data)
        except BlockingIOError:
            sent = 0
        except OSError:
            transport.abort()
            return
        if sent == len(data):
            return
        data = data[sent:]
    transport.write(data)


def _peer(transport: Any) -> str:
    name = transport.get_extra_info("peername")
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else ""
