"""One network connection as the broker sees it: bytes in, an outbox of bytes.

Read next: `session.py` (the state that outlives a connection).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from nearcast.broker.publish.message import aliased
from nearcast.broker.slices import Work
from nearcast.broker.timers import Timer
from nearcast.mqtt import Connect

if TYPE_CHECKING:
    from nearcast.broker.publish.routes import Route
    from nearcast.broker.session.session import PeerSession, Session


@dataclass(frozen=True, slots=True)
class ForwardedIdentity:
    """The identity of a relayed client: the node that relays it, and its proven name, if any."""

    node: str
    user_name: str | None


class Relay(Protocol):
    """The connection to the node that has the client's session; its bytes are forwarded there."""

    def write(self, data: bytes, /) -> None:
        """Forward bytes of the client."""

    def close(self) -> None:
        """Report that the client has disconnected."""


AS_IT_IS = b"\xf0"
"""Precedes MQTT 3.1.1 packets in the outbox of a peer; no other packet to a peer begins so."""


class Connection:
    """The state that ends with the network connection.

    The server gives it to `Broker.open`, passes bytes to `Broker.receive`, writes the `outbox` of
    every connection of `Broker.take_grown`, and closes it once `is_closing` is set and the outbox
    is written.
    """

    __slots__ = (
        "alias_limit",
        "aliases_in",
        "aliases_out",
        "answer_bytes",
        "certificate_name",
        "connect",
        "connect_bytes",
        "has_grown",
        "is_closing",
        "is_late",
        "is_open",
        "is_paused",
        "is_peer",
        "is_plain",
        "is_unread",
        "is_waiting",
        "keep_alive_ms",
        "last_seen_ms",
        "last_way",
        "listener",
        "loss",
        "max_packet_bytes",
        "outbox",
        "outbox_bytes",
        "peer",
        "pending",
        "pending_bytes",
        "permits",
        "pool_bytes",
        "relay",
        "session",
        "takes_older",
        "task",
        "tells_problems",
        "timer",
        "transport",
        "version",
        "voucher",
        "wanted_bytes",
        "was_refused",
    )

    def __init__(self, peer: str = "", listener: str = "") -> None:
        self.peer = peer  # the remote address (of a peer: its name), for logs and access rules
        self.listener = listener  # the name of its listener, for logs and access rules
        self.loss = ""  # why the server lost the connection, for the log
        self.certificate_name: str | None = None  # the name in a verified client certificate
        self.transport: object = None  # the server's own
        self.outbox: list[bytes] = []  # whole packets; the server writes and clears it
        self.outbox_bytes = 0  # the size of `outbox`
        self.answer_bytes = 0  # the part of it that is not PUBLISH, which no quota bounds
        self.has_grown = False  # dirty: it is in `BrokerState.grown`
        self.is_paused = False  # set by the server while the client does not read
        self.is_peer = False  # it is a `PeerConnection`
        self.takes_older = False  # a peer that accepts MQTT 3.1.1 packets behind AS_IT_IS
        self.is_open = True  # False once it is detached from its session
        self.is_closing = False  # nothing more is read; closed once the outbox is written
        self.was_refused = False  # its CONNECT was refused
        self.is_late = False  # no login in time: the server closes without waiting for the client
        self.session: Session | None = None  # set by a successful CONNECT
        self.relay: Relay | None = None  # set: the session and the protocol are at another node
        self.voucher: ForwardedIdentity | None = None  # set: another node relays this client
        self.connect: Connect | None = None  # the CONNECT that waits for a verdict or for peers
        self.connect_bytes = 0  # the size of the CONNECT
        self.pool_bytes = 0  # its share of the pool in `Admission`
        self.version = 4  # the protocol level: 4 for MQTT 3.1.1, 5 for MQTT 5
        # Received and not yet processed. Never empty with a relay, so that the fast paths of
        # `Broker.receive`, which ask for an empty one, are not taken.
        self.pending: list[bytes | bytearray] = []
        self.pending_bytes = 0  # the size of `pending`
        self.wanted_bytes = 2  # `pending` is not parsed before it has this size
        self.is_waiting = False  # in the backlog; then `pending` is never empty
        self.is_unread = False  # the server has stopped reading from it for now
        self.task: Work | None = None  # a packet that is being processed in slices
        self.last_seen_ms = 0  # when the last whole packet came, for the keep-alive
        # The last read that was one QoS 0 packet: size, head, topic, route, receivers.
        self.last_way: tuple[int, bytes, bytes, Route, list[Session]] | None = None
        self.keep_alive_ms = 0  # 1.5 keep-alives; 0: none
        self.max_packet_bytes = 0  # 0: the client set no limit
        self.alias_limit = 0  # Topic Alias Maximum of the client
        self.aliases_in: dict[int, bytes] | None = None  # the client's topic aliases
        self.aliases_out: dict[bytes, int] | None = None  # ours; None: the client wants none
        self.is_plain = True  # neither a packet limit nor aliases: all packets go out unchanged
        self.tells_problems = True  # Request Problem Information: reason strings are welcome
        self.timer: Timer | None = None  # the connect timeout, then the keep-alive
        self.permits: dict[bytes, bool] | None = None  # topic to verdict; None without ACL rules

    def fits(self, packet: bytes) -> bool:
        """Return whether the packet is within the client's Maximum Packet Size [MQTT-3.1.2-24]."""
        return not self.max_packet_bytes or len(packet) <= self.max_packet_bytes

    def with_alias(self, topic: bytes, packet: bytes, qos: int) -> bytes:
        """Return the packet with a topic alias, while there are any left [MQTT-3.1.2-26].

        The first topics get the aliases; once all are in use, other topics get none.
        """
        aliases = self.aliases_out
        assert aliases is not None
        alias = aliases.get(topic)
        if alias is not None:
            return aliased(topic, packet, alias, known=True, qos=qos)
        if len(aliases) >= self.alias_limit:
            return packet
        aliases[topic] = len(aliases) + 1
        return aliased(topic, packet, len(aliases), known=False, qos=qos)


class PeerConnection(Connection):
    """The connection of a peer session: a node of the cluster, or the change feed."""

    __slots__ = ()

    def __init__(self, session: PeerSession, listener: str = "", version: int = 5) -> None:
        super().__init__(session.node_name, listener)
        self.is_peer = True
        self.session = session
        self.version = version
