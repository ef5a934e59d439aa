"""One network connection as the broker sees it: bytes in, an outbox of bytes.

Read next: `session.py` (the state that outlives a connection).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from nearcast.broker.publish.message import aliased
from nearcast.broker.slices import Work
from nearcast.broker.timers import Timer
from nearcast.mqtt import Connect

if TYPE_CHECKING:
    from nearcast.broker.publish.routes import Route
    from nearcast.broker.session.enhanced_login import EnhancedLogin
    from nearcast.broker.session.session import PeerSession, Session


@dataclass(frozen=True, slots=True)
class Proof:
    """What a login has proven: the user's name, if any, and until when it holds (0: for ever).

    `rules` came with the login, as the `Access` that checked it writes them; None: none came.
    `is_vouched`: a token, hook or plugin knows the user, not the broker's own list of users.
    """

    user: str | None
    until_ms: int = 0
    rules: bytes | None = None
    is_vouched: bool = False


@dataclass(frozen=True, slots=True)
class ForwardedIdentity:
    """The identity of a relayed client: the node that relays it, and its proven name, if any.

    `rules` are those of its login, which hold here as they do there; None: it brought none.
    """

    node: str
    user_name: str | None
    rules: bytes | None = None


class Relay(Protocol):
    """The connection to the node that has the client's session; its bytes are forwarded there."""

    def write(self, data: bytes, /) -> None:
        """Forward bytes of the client."""

    def close(self) -> None:
        """Report that the client has disconnected."""


AS_IT_IS: Final = b"\xf0"
"""Precedes MQTT 3.1.1 packets in the outbox of a peer; no other packet to a peer begins so."""


@dataclass(slots=True, eq=False, repr=False, init=False)
class Connection:
    """The state that ends with the network connection.

    The server gives it to `Broker.open`, passes bytes to `Broker.receive`, writes the `outbox` of
    every connection of `Broker.take_dirty`, and closes it once `is_closing` is set and the outbox
    is written.
    """

    # Each block says who writes its attributes, and when.

    # Written once, by the listener (`server/listeners/tcp.py`) or by `peers/sessions.py`.
    address: str  # where the client is (of a peer: its name), for logs and rules
    listener: str  # the name of its listener, for logs and access rules
    certificate_name: str | None  # the common name in a verified client certificate
    certificate: tuple[tuple[str, str], ...]  # its names: (cn, dns, uri or email; the name)
    is_proxied: bool  # a proxy has forwarded it: it is of this machine only if that says so
    transport: Any  # the server's own
    # Its socket, as long as all that was written is sent: batches write to it straight. Else -1.
    descriptor: int
    proof: Proof | None  # by the server or an `Exchange`, once the login was checked
    is_peer: bool  # it is a `PeerConnection`
    is_onlooker: bool  # an operator's page: it sees, and takes no one's place
    takes_older: bool  # a peer that accepts MQTT 3.1.1 packets behind AS_IT_IS
    # Set by `cluster/session_relay.py`: another node relays this client.
    forwarded: ForwardedIdentity | None

    # Written by whatever sends: `state.py`, `publish/delivery.py`, `publish/session_queues.py`;
    # emptied by the server (`server/loop_batches.py`) at the end of each batch.
    outbox: list[bytes]  # packets, whole but for large payloads
    outbox_bytes: int  # the size of `outbox`
    answer_bytes: int  # the part of it that is not PUBLISH, which no quota bounds
    is_dirty: bool  # it is in `BrokerState.dirty`; False again once the server looked

    # Written by the server, at any time.
    is_paused: bool  # while the client does not read
    is_unread: bool  # the server has stopped reading from it for now
    is_throttled: bool  # nothing is read for now: its publications exceed a rate
    loss: str  # why it was lost or its login refused, for the log; also by `lifecycle.py`

    # Written by `packets.py` and `backlog.py` for every read that leaves something undone.
    # Received and not yet processed. Never empty with a relay, so that the fast paths of
    # `PacketDispatch.receive`, which ask for an empty one, are not taken.
    pending: list[bytes | bytearray]
    pending_bytes: int  # the size of `pending`
    wanted_bytes: int  # `pending` is not parsed before it has this size
    is_waiting: bool  # in the backlog; then `pending` is never empty
    task: Work | None  # a packet that is being processed in slices
    last_seen_ms: int  # when the last whole packet came, for the keep-alive

    # Written by `session/connect.py` at CONNECT, and constant from the CONNACK on.
    user_name: str | None  # the proven name of its client, also while it is relayed
    session: Session | None  # set by a successful CONNECT
    version: int  # the protocol level: 4 for MQTT 3.1.1, 5 for MQTT 5
    most_silence_ms: int  # 1.5 keep-alives, after which the client is gone; 0: none
    max_packet_bytes: int  # 0: the client set no limit
    alias_limit: int  # Topic Alias Maximum of the client
    is_plain: bool  # neither a packet limit nor aliases: all packets go out unchanged
    tells_problems: bool  # Request Problem Information: reason strings are welcome
    was_refused: bool  # its CONNECT was refused
    assigned_id: str  # assigned to a client that sent none, where its session has another name
    connect: Connect | None  # the CONNECT that waits for a verdict or for peers
    method: str  # of enhanced authentication
    enhanced: EnhancedLogin | None  # an exchange in progress (`enhanced_login.py`)

    # Written by `session/admission.py` until the client is logged in; then 0.
    connect_bytes: int  # the size of the CONNECT
    pool_bytes: int  # its share of the pool in `Admission`

    # Caches of one connection. Written by `publish/handler.py`, `publish/decode.py` and
    # `publish/authorise.py` as the client publishes; `session/connect.py` and `rechecks.py` begin
    # with empty ones.
    # The last read that was one QoS 0 packet: size, head, topic, route, receivers.
    last_read: tuple[int, bytes, bytes, Route, list[Session]] | None
    aliases_in: dict[int, bytes] | None  # the client's topic aliases
    aliases_out: dict[bytes, int] | None  # ours; None: the client wants none
    permits: dict[bytes, bool] | None  # topic to verdict; None without ACL rules
    rules: int  # the rules of these verdicts, as `BrokerState.rules` counts them

    # Written by `broker.py` while the session lives at another node.
    relay: Relay | None  # set: all bytes are forwarded there

    # Written by `session/lifecycle.py`, `state.py` and `peers/sessions.py` as it ends.
    timer: Timer | None  # the connect timeout, then the keep-alive
    is_open: bool  # False once it is detached from its session
    is_closing: bool  # nothing more is read; closed once the outbox is written
    has_left: bool  # its client has sent DISCONNECT: nothing of it follows
    is_late: bool  # no login in time: the server closes without waiting for the client

    def __init__(  # noqa: PLR0915 - one for each attribute
        self, address: str = "", listener: str = "", *, transport: Any = None, version: int = 4
    ) -> None:
        # Written out: compiled, this is many times faster than what `dataclass` makes.
        self.address = address
        self.listener = listener
        self.certificate_name = None
        self.certificate = ()
        self.is_proxied = False
        self.transport = transport
        self.descriptor = -1
        self.proof = None
        self.is_peer = False
        self.is_onlooker = False
        self.takes_older = False
        self.forwarded = None
        self.outbox = []
        self.outbox_bytes = 0
        self.answer_bytes = 0
        self.is_dirty = False
        self.is_paused = False
        self.is_unread = False
        self.is_throttled = False
        self.loss = ""
        self.pending = []
        self.pending_bytes = 0
        self.wanted_bytes = 2
        self.is_waiting = False
        self.task = None
        self.last_seen_ms = 0
        self.user_name = None
        self.session = None
        self.version = version
        self.most_silence_ms = 0
        self.max_packet_bytes = 0
        self.alias_limit = 0
        self.is_plain = True
        self.tells_problems = True
        self.was_refused = False
        self.assigned_id = ""
        self.connect = None
        self.method = ""
        self.enhanced = None
        self.connect_bytes = 0
        self.pool_bytes = 0
        self.last_read = None
        self.aliases_in = None
        self.aliases_out = None
        self.permits = None
        self.rules = 0
        self.relay = None
        self.timer = None
        self.is_open = True
        self.is_closing = False
        self.has_left = False
        self.is_late = False

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
