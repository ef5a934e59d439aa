"""One network connection as the node sees it: bytes in, an outbox of bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from nearcast.mqtt import Connect
from nearcast.node.message import aliased
from nearcast.node.slices import Work
from nearcast.node.timers import Timer

if TYPE_CHECKING:
    from nearcast.node.routes import Route
    from nearcast.node.session import Session


@dataclass(frozen=True, slots=True)
class Voucher:
    """What another node says of a client that it relays: the name it has proven, if any."""

    node: str
    user_name: str | None


class Relay(Protocol):
    """Where the bytes of a client go whose session is at another node."""

    def write(self, data: bytes, /) -> None:
        """Pass on what the client says."""

    def close(self) -> None:
        """Take note that the client is gone."""


AS_IT_IS = b"\xf0"
"""In front of packets for another node that are of MQTT 3.1.1; nothing else to it begins so."""


class Connection:
    """The state that dies with the connection.

    The server gives it to `Node.open`, feeds `Node.receive`, takes the `outbox` of every
    connection in `Node.grown`, and closes it once `is_closing` is set and the outbox is written.
    `is_paused` is the server's: the other end does not read. `peer` and `listener` are for logs
    and access rules only. With a `relay`, the session is at another node, and so is the protocol;
    with a `voucher`, another node has found out who this is.
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
        self.peer = peer
        self.listener = listener
        self.loss = ""  # why the server lost the connection, for the log
        self.certificate_name: str | None = None
        self.transport: object = None
        self.outbox: list[bytes] = []
        self.outbox_bytes = 0
        self.answer_bytes = 0  # of the outbox: answers, which no quota bounds
        self.has_grown = False
        self.is_paused = False
        self.is_peer = False  # another node
        self.takes_older = False  # one that takes packets of MQTT 3.1.1 behind AS_IT_IS
        self.is_open = True
        self.is_closing = False
        self.was_refused = False  # its CONNECT
        self.is_late = False  # it has not logged in in time: nobody waits for its end
        self.session: Session | None = None
        self.relay: Relay | None = None
        self.voucher: Voucher | None = None
        self.connect: Connect | None = None  # while the answer about the password is awaited
        self.connect_bytes = 0  # the size of that CONNECT
        self.pool_bytes = 0  # what it holds of `Admission`'s pool
        self.version = 4
        self.pending: list[
            bytes | bytearray
        ] = []  # never empty with a relay: the short ways ask for that
        self.pending_bytes = 0
        self.wanted_bytes = 2
        self.is_waiting = False  # in the node's backlog; then `pending` is never empty
        self.is_unread = False  # the server does not read from it for the time being
        self.task: Work | None = None  # a packet that is taken in slices
        self.last_seen_ms = 0
        # How a read of one QoS 0 packet went: size, head, topic, route, receivers.
        self.last_way: tuple[int, bytes, bytes, Route, list[Session]] | None = None
        self.keep_alive_ms = 0
        self.max_packet_bytes = 0  # 0: the client set no limit
        self.alias_limit = 0
        self.aliases_in: dict[int, bytes] | None = None
        self.aliases_out: dict[bytes, int] | None = None
        self.is_plain = True  # neither a packet limit nor aliases on the way out
        self.tells_problems = True
        self.timer: Timer | None = None  # time to CONNECT, then the keep-alive
        self.permits: dict[bytes, bool] | None = None  # topics, where rules apply at all

    def fits(self, packet: bytes) -> bool:
        """Tell whether the client takes a packet of this size."""
        return not self.max_packet_bytes or len(packet) <= self.max_packet_bytes

    def with_alias(self, topic: bytes, packet: bytes, qos: int) -> bytes:
        """Use or introduce an alias, first come, first served; with all taken, none."""
        aliases = self.aliases_out
        assert aliases is not None
        alias = aliases.get(topic)
        if alias is not None:
            return aliased(topic, packet, alias, known=True, qos=qos)
        if len(aliases) >= self.alias_limit:
            return packet
        aliases[topic] = len(aliases) + 1
        return aliased(topic, packet, len(aliases), known=False, qos=qos)
