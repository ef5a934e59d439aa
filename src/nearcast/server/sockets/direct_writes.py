"""What connections have to send at the end of a batch, sent by one call for all of them."""

from __future__ import annotations

from typing import Protocol

from nearcast.broker import Connection
from nearcast.broker.internal_errors import InternalErrors
from nearcast.server.sockets.calls import scatter


class Wire(Protocol):
    """The transport side of a connection, as a batch writes to it."""

    def write(self, chunks: list[bytes]) -> None:
        """Send bytes."""

    def write_rest(self, chunks: list[bytes], sent: int) -> None:
        """Send the bytes behind those that the socket took; below 0, the number of its error."""

    def finish(self) -> None:
        """Close once everything is sent."""

    def pause_reading(self) -> None:
        """Stop reading from the client."""

    def resume_reading(self) -> None:
        """Read from the client again."""


class DirectWrites:
    """Outboxes of connections to whose sockets a batch may write straight. O(bytes) in all."""

    def __init__(self, failures: InternalErrors) -> None:
        self._failures = failures
        self._connections: list[Connection] = []
        self._descriptors: list[int] = []
        self._outboxes: list[list[bytes]] = []

    def add(self, connection: Connection, outbox: list[bytes]) -> None:
        """Send this outbox with the next `send`; until then the connection stays as it is."""
        self._connections.append(connection)
        self._descriptors.append(connection.descriptor)
        self._outboxes.append(outbox)

    def send(self) -> None:
        """Send all; what a socket does not take goes to its connection, which buffers it."""
        connections, outboxes = self._connections, self._outboxes
        if not connections:
            return
        short = None
        try:
            short = scatter(self._descriptors, outboxes)
        except Exception as error:  # noqa: BLE001 - it has sent nothing: each connection tries again
            self._failures.take("writing to clients", error)
            short = [number for place in range(len(connections)) for number in (place, 0)]
        if short is not None:
            for at in range(0, len(short), 2):
                place = short[at]
                self._write_rest(connections[place], outboxes[place], short[at + 1])
        connections.clear()
        outboxes.clear()
        self._descriptors.clear()

    def _write_rest(self, connection: Connection, outbox: list[bytes], sent: int) -> None:
        wire: Wire = connection.transport
        try:
            wire.write_rest(outbox, sent)
        except Exception as error:  # noqa: BLE001 - the others are written to all the same
            self._failures.take("writing to a client", error)
