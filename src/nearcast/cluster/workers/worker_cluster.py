"""One worker as a node: its clients are at the worker of their session, or relayed there."""

from __future__ import annotations

from dataclasses import replace

from nearcast.broker import Connection, Counters
from nearcast.cluster.cluster import Cluster
from nearcast.cluster.peer import PeerNode
from nearcast.cluster.peer_registry import OLDER, PACKETS
from nearcast.cluster.session_relay import (
    MOST_PATIENCE_MS,
    TUNNEL_HEAD,
    PendingClaim,
    SessionRelay,
)
from nearcast.cluster.workers.places import place_of
from nearcast.cluster.workers.registry import WorkerRegistry
from nearcast.mqtt import Connect

_TRAFFIC = ("publish", "publish_bytes", "others", "bytes")
"""The counters of what clients send and get: each as `…_received` and `…_sent`."""


class WorkerRelay(SessionRelay):
    """Relays each client that is at another worker than its session; nobody is asked."""

    names: tuple[str, ...] = ()
    """The workers in order, this one included."""

    relayed_bytes: dict[bool, int]
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

    inner: list[int]
    """What came from other workers, in the order of `_TRAFFIC`."""

    def take_part(self, peer: PeerNode, kind: bytes, part: bytes) -> None:
        """Handle a part of a frame, and count what it brings: it comes from no client."""
        if kind not in (PACKETS, OLDER):
            super().take_part(peer, kind, part)
            return
        counts, inner = self.node.counters, self.inner
        inner[0] -= counts.publish_received
        inner[1] -= counts.publish_bytes_received
        inner[2] -= counts.others_received
        inner[3] -= counts.bytes_received
        try:
            super().take_part(peer, kind, part)
        finally:
            inner[0] += counts.publish_received
            inner[1] += counts.publish_bytes_received
            inner[2] += counts.others_received
            inner[3] += counts.bytes_received

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

    def _check_clock(self, _peer: PeerNode) -> None:
        """Do nothing: all workers have one clock."""

    def name_all(self, names: tuple[str, ...]) -> None:
        """Set the workers in order, this one included: from now on each session has its place."""
        assert isinstance(self._relay, WorkerRelay)
        self._relay.names = names
        self._relay.relayed_bytes = {True: 0, False: 0}
        self.inner = [0] * len(_TRAFFIC)
        if not self._causal.is_used:
            self._frame_ends = ()  # they measure clocks

    def meet_all(self, names: tuple[str, ...], now_ms: int) -> None:
        """Open links to all other workers."""
        for name in names:
            self.meet(name, now_ms)
