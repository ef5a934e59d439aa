"""The two ends of a tunnel: what a broker takes for a relay, and for the transport of a client.

Read next: `nearcast/cluster/session_relay.py`.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

from nearcast.broker.session.connection import Connection
from nearcast.model.errors import PeerProtocolError
from nearcast.mqtt import Connect, MqttProtocolError, decode_packet
from nearcast.mqtt.framing import long_length

TunnelKey: TypeAlias = tuple[str, int]  # the peer, and the number that the entry node chose


class Tunnels(Protocol):
    """What carries the bytes of tunnels; `SessionRelay` does."""

    def say(self, key: TunnelKey, data: bytes) -> None:
        """Send bytes of a client to its session node."""

    def gone(self, key: TunnelKey) -> None:
        """Report to the session node that the client has disconnected."""

    def answer(self, key: TunnelKey, data: bytes) -> None:
        """Send bytes of the session to its client."""

    def finish(self, key: TunnelKey, connection: Connection) -> None:
        """Close a tunnel whose session node has closed the connection."""


class WayOut:
    """The relay of a client that is connected here and has its session at a peer."""

    __slots__ = ("_homes", "_key")

    def __init__(self, homes: Tunnels, key: TunnelKey) -> None:
        self._homes = homes
        self._key = key

    def write(self, data: bytes) -> None:
        """Send bytes through the tunnel."""
        self._homes.say(self._key, data)

    def close(self) -> None:
        """End the tunnel: the client has disconnected."""
        self._homes.gone(self._key)


class WayBack:
    """The transport of a client that is connected to a peer and has its session here."""

    __slots__ = ("_connection", "_homes", "_key")

    def __init__(self, homes: Tunnels, key: TunnelKey, connection: Connection) -> None:
        self._homes = homes
        self._key = key
        self._connection = connection

    def write(self, chunks: list[bytes]) -> None:
        """Send bytes through the tunnel."""
        if chunks:
            self._homes.answer(self._key, b"".join(chunks))

    def pause_reading(self) -> None:
        """Do nothing: the link has its own flow control."""

    def resume_reading(self) -> None:
        """Do nothing, for the same reason."""

    def finish(self) -> None:
        """End the tunnel: the broker has closed the connection."""
        self._homes.finish(self._key, self._connection)


def decode_connect(data: bytes) -> Connect:
    """Return the CONNECT that another node relays; raises PeerProtocolError for anything else."""
    try:
        body = 2 if data[1] < 128 else long_length(data, 1, len(data))[1]
        packet = decode_packet(data[0], data[body:])
    except (MqttProtocolError, IndexError) as problem:
        raise PeerProtocolError(str(problem), where="relayed CONNECT") from None
    if not isinstance(packet, Connect):
        raise PeerProtocolError(type(packet).__name__, where="relayed CONNECT")
    return packet
