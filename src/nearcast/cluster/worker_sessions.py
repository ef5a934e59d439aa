"""The processes of one broker (`[node] workers`) as a cluster in which every session has its place.

    identifier ──hash──► number of a worker: its session is there, and nowhere else

So nobody has to be asked where a session is. The server passes a client's connection to the worker
of its session before any byte of it is read (`nearcast/server/workers/handover.py`). Where it could
not (TLS, WebSocket, an identifier that is not the one in CONNECT), the client is relayed as between
nodes of a network.

Read next: `session_relay.py`, `nearcast/server/workers/__init__.py`.
"""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b
from random import Random

from nearcast.broker import Broker, Connection, Counters
from nearcast.cluster.causal_groups import CausalGroups
from nearcast.cluster.cluster import Cluster
from nearcast.cluster.links import LinkTiming
from nearcast.cluster.peer import PeerNode
from nearcast.cluster.peer_registry import OLDER, PACKETS, LinkListener, PeerRegistry
from nearcast.cluster.session_moves import SessionMoves
from nearcast.cluster.session_relay import (
    MOST_PATIENCE_MS,
    TUNNEL_HEAD,
    PendingClaim,
    SessionRelay,
)
from nearcast.mqtt import Connect

ACKS_MS = 5
"""How long acknowledgements between workers wait for others."""
_MOST_ACKS = 64
_TRAFFIC = ("publish", "publish_bytes", "others", "bytes")
"""The counters of what clients send and get: each as `…_received` and `…_sent`."""


def worker_name(node: str, number: int) -> str:
    """Return the name of a worker, as links, logs and tables have it; the first has number 0.

    >>> worker_name("berlin", 0)
    'berlin.1'
    """
    return f"{node}.{number + 1}"


def place_of(identifier: str, count: int) -> int:
    """Return which of `count` workers has the session of this identifier. O(its length).

    The user's name behind `@`, where users are kept apart, makes no difference: whoever accepts a
    connection knows the client identifier, and not yet the user.
    """
    own = identifier.partition("@")[0].encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(own, digest_size=8).digest(), "big") % count


class WorkerRegistry(PeerRegistry):
    """Lets acknowledgements between workers wait a moment: then many of them share a frame.

    Nobody waits for them but the other worker's in-flight window. Each frame costs two system calls
    and a turn of the event loop, more than what it carries.
    """

    def __init__(self, timing: LinkTiming, random: Random, listener: LinkListener) -> None:
        super().__init__(timing, random, listener)
        self.waits = False
        """Whether a frame waits: the runtime then calls `hurry` after `ACKS_MS`."""
        self._patient: set[str] = set()  # peers with nothing but acknowledgements to send

    def send_packets(self, peer: PeerNode, chunks: list[bytes]) -> None:
        """Queue MQTT 5 packets; acknowledgements alone may wait."""
        data = b"".join(chunks)
        if not is_acks(data):
            self.send(peer, PACKETS, data)
        elif peer.link.is_up:
            if not (peer.parts or peer.link.has_frames):
                self._patient.add(peer.name)
            super().send(peer, PACKETS, data)

    def send(self, peer: PeerNode, kind: bytes, content: bytes, *, with_last: bool = False) -> None:
        """Queue a part; the peer's frame leaves with this batch."""
        self._patient.discard(peer.name)
        super().send(peer, kind, content, with_last=with_last)

    def hurry(self) -> None:
        """Let what waits leave with this batch."""
        self._patient.clear()
        self.waits = False

    def take_frames(self) -> list[tuple[str, bytes]]:
        """Return the frames to send; those with acknowledgements alone wait for `hurry`."""
        if not self._grown:
            return []
        if not self._patient:
            return super().take_frames()
        waiting = {name: self._grown.pop(name) for name in self._patient if name in self._grown}
        frames = super().take_frames()
        self._grown.update(waiting)
        self.waits = bool(waiting)
        return frames


def is_acks(data: bytes) -> bool:
    """Return whether packets are few plain acknowledgements: PUBACK to PUBCOMP without a reason.

    >>> is_acks(bytes.fromhex("40020001 62020002")), is_acks(bytes.fromhex("30020001"))
    (True, False)
    """
    size = len(data)
    if size > _MOST_ACKS or size & 3:
        return False
    return all(0x40 <= data[at] < 0x80 and data[at + 1] == 2 for at in range(0, size, 4))


class WorkerRelay(SessionRelay):
    """Relays each client that is at another worker than its session; nobody is asked."""

    names: tuple[str, ...] = ()
    """The workers in order, this one included."""

    def __init__(
        self,
        name: str,
        node: Broker,
        peers: PeerRegistry,
        moves: SessionMoves,
        causal: CausalGroups,
    ) -> None:
        super().__init__(name, node, peers, moves, causal)
        self.inner = [0] * len(_TRAFFIC)
        """What came from other workers' brokers."""
        self.relayed_bytes = {True: 0, False: 0}
        """The bytes of relayed clients that came through tunnels: to sessions, and from them."""

    def received(self, peer: PeerNode, data: bytes) -> None:
        """Handle bytes from a tunnel: they are counted at the other end as well."""
        number_and_way = TUNNEL_HEAD.unpack_from(data)
        self.relayed_bytes[number_and_way[1]] += len(data) - TUNNEL_HEAD.size
        super().received(peer, data)

    def is_home(self, identifier: str) -> bool:
        """Return whether the sessions of this identifier are at this worker."""
        return not self.names or self._home(identifier) == self._name

    def _home(self, identifier: str) -> str:
        return self.names[place_of(identifier, len(self.names))]

    def claim(self, connection: Connection, connect: Connect) -> bool:
        """Relay a client whose session is at another worker; return False for all others.

        A client of the page stays at the worker that serves the page: it has no session to find.
        """
        home = self._home(connect.client_id)
        if home == self._name or connection.is_onlooker:
            return False
        self._number += 1
        until_ms = self.now_ms + MOST_PATIENCE_MS
        self._asking[self._number] = PendingClaim(connection, connect, {home}, until_ms)
        return True

    def settle(self) -> None:
        """Open the tunnels of the batch: those whose worker is connected."""
        if self._unread:
            super().settle()
        if not self._asking:
            return
        for number, asking in list(self._asking.items()):
            (home,) = asking.waits_for
            if self._peers.named(home) is not None:
                del self._asking[number]
                self._open(home, number, asking)

    def peer_up(self, peer: PeerNode) -> None:
        """Do nothing: clients that wait for this worker are served when the batch is settled."""
        self._lost_ms.pop(peer.name, None)

    def advance(self, now_ms: int) -> None:
        """Close the connections that have waited too long for the worker of their session."""
        for number, asking in list(self._asking.items()):
            if asking.until_ms <= now_ms:
                del self._asking[number]
                self._node.close(asking.connection)

    def wake_at(self) -> int | None:
        """Return when the next client has waited long enough."""
        return min((one.until_ms for one in self._asking.values()), default=None)


class WorkerCluster(Cluster):
    """One worker among those of its broker; the others are known from the start, and stay."""

    is_network = False
    neighbours_kind = WorkerRegistry
    relay_kind = WorkerRelay

    def take_part(self, peer: PeerNode, kind: bytes, part: bytes) -> None:
        """Handle a part of a frame, and count what it brings: it comes from no client."""
        if kind not in (PACKETS, OLDER):
            super().take_part(peer, kind, part)
            return
        counts, inner = self.node.counters, self.inner
        before = [getattr(counts, f"{name}_received") for name in _TRAFFIC]
        super().take_part(peer, kind, part)
        for place, name in enumerate(_TRAFFIC):
            inner[place] += getattr(counts, f"{name}_received") - before[place]

    @property
    def inner(self) -> list[int]:
        """What came from other workers, in the order of `_TRAFFIC`."""
        assert isinstance(self._relay, WorkerRelay)
        return self._relay.inner

    def client_counters(self) -> Counters:
        """Return the counters without what workers send each other, once all are added up.

        What one worker has received of another is what that one has sent.
        """
        assert isinstance(self._relay, WorkerRelay)
        counts, relayed = self.node.counters, self._relay.relayed_bytes
        changed = {
            f"{name}_{way}": getattr(counts, f"{name}_{way}") - inner
            for name, inner in zip(_TRAFFIC, self.inner, strict=True)
            for way in ("received", "sent")
        }
        changed["bytes_received"] -= relayed[True]
        changed["bytes_sent"] -= relayed[False]
        return replace(counts, **changed)

    def name_all(self, names: tuple[str, ...]) -> None:
        """Set the workers in order, this one included: from now on each session has its place."""
        assert isinstance(self._relay, WorkerRelay)
        self._relay.names = names

    def meet_all(self, names: tuple[str, ...], now_ms: int) -> None:
        """Open links to all other workers."""
        for name in names:
            self.meet(name, now_ms)
