"""What a connection may hold before its client has logged in.

Each has a small allowance. A CONNECT may be larger, with a will in it: the rest comes out of a pool
that all such connections share, so that nobody can fill the memory with halves of packets.
"""

from __future__ import annotations

from nearcast.mqtt import MqttProtocolError, ReasonCode
from nearcast.node.connection import Connection
from nearcast.node.settings import NodeSettings

_PIECES = 16


def merge_pieces(connection: Connection) -> None:
    """Keep the pieces of an unfinished packet in few objects: each costs more than its bytes.

    Complexity: O(1) per byte over all pieces.
    """
    pending = connection.pending
    if len(pending) > _PIECES:
        first = pending[0]
        whole = first if isinstance(first, bytearray) else bytearray(first)
        whole += b"".join(pending[1:])
        pending[:] = [whole]


class Admission:
    """Accounts for the bytes that connections without a session hold."""

    def __init__(self) -> None:
        self.pool_bytes = 0

    def hold(self, connection: Connection, settings: NodeSettings) -> None:
        """Account for what a newcomer holds; raises MqttProtocolError where that is too much."""
        size = connection.connect_bytes + connection.pending_bytes
        extra = max(0, size - settings.newcomer_bytes)
        self.pool_bytes += extra - connection.pool_bytes
        connection.pool_bytes = extra
        if size > settings.newcomer_bytes + settings.max_connect_bytes:
            raise MqttProtocolError(
                f"{size} bytes before the answer to CONNECT",
                reason=ReasonCode.PACKET_TOO_LARGE,
                expected=f"at most {settings.max_connect_bytes}",
            )
        if extra and self.pool_bytes > settings.newcomers_bytes:
            raise MqttProtocolError(
                f"{size} bytes of a CONNECT while many others are not complete either",
                reason=ReasonCode.SERVER_BUSY,
                expected=f"at most {settings.newcomer_bytes} at present",
            )

    def release(self, connection: Connection) -> None:
        """Note that a connection holds nothing here any more: it is welcome, or gone."""
        self.pool_bytes -= connection.pool_bytes
        connection.pool_bytes = connection.connect_bytes = 0
