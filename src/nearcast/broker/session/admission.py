"""Limits on the bytes that a connection may hold before its client has logged in.

Each connection has a small allowance. A CONNECT may be larger, with a will in it: the excess comes
out of a pool that all such connections share, so that clients cannot fill the memory with
incomplete packets.
"""

from __future__ import annotations

from nearcast.broker.session.connection import Connection
from nearcast.broker.settings import BrokerSettings
from nearcast.mqtt import MqttProtocolError, ReasonCode

_PIECES = 16
_SMALL = 4_096  # the average size of pieces below which they are merged


def merge_pieces(connection: Connection) -> None:
    """Merge the pieces of an incomplete packet, if they are small.

    A small piece costs more memory than its bytes; to copy large ones costs more time than they
    save. Complexity: O(1) per byte over all pieces.
    """
    pending = connection.pending
    if len(pending) > _PIECES and connection.pending_bytes < len(pending) * _SMALL:
        first = pending[0]
        whole = first if isinstance(first, bytearray) else bytearray(first)
        whole += b"".join(pending[1:])
        pending[:] = [whole]


class Admission:
    """Accounts for the bytes of connections without a session."""

    def __init__(self) -> None:
        self.pool_bytes = 0

    def hold(self, connection: Connection, settings: BrokerSettings) -> None:
        """Account for the bytes of a connection; raises MqttProtocolError if they are too many."""
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
        """Release a connection's share of the pool: its client is logged in, or gone."""
        self.pool_bytes -= connection.pool_bytes
        connection.pool_bytes = connection.connect_bytes = 0
