"""The near broker: a client that is far from its node is offered the node that holds its place.

The gateway counts the messages that cross because of each client (`RedirectPolicy`). A client that
is ready gets DISCONNECT with the reason "use another server" and a Server Reference
[MQTT-3.14.2-2], at a moment when nothing is in flight. Its session follows it (`session_moves.py`).

Read next: `nearcast/locality/registration/redirect_policy.py`.
"""

from __future__ import annotations

from nearcast.broker import Broker, Connection, Session
from nearcast.cluster.causal_groups import CausalGroups
from nearcast.cluster.messages import Draining, PeerVersion
from nearcast.cluster.part import ClusterPart, handles
from nearcast.cluster.peer import PeerNode
from nearcast.cluster.peer_registry import PeerRegistry
from nearcast.cluster.session_moves import SessionMoves
from nearcast.cluster.spatial_part import NoSpatialPart
from nearcast.locality.registration.redirect_policy import RedirectPolicy, RedirectRules
from nearcast.mqtt.packets import ProtocolVersion

QUIET_MS = 1_000
"""A client that has sent a packet since is in the middle of something."""
BUSY_QUIET_MS = 100
"""The same for a client that has waited `BUSY_MS` for such a moment."""
BUSY_MS = 60_000
WILL_DELAY_S = 30
"""A client whose will would be published earlier is not redirected: it is not dead."""
_TICK_MS = 1_000


class Redirects(ClusterPart):
    """Makes the offers of one node; does nothing without rules.

    Contract: an offer goes to a client of MQTT 5 that is connected here, whose session can move
    without loss, and names a node that is connected, has announced an address and is not about to
    end.

    Complexity: O(clients with messages to other nodes) per second.
    """

    def __init__(
        self,
        name: str,
        node: Broker,
        peers: PeerRegistry,
        rules: RedirectRules | None,
        *,
        spatial: NoSpatialPart,
        causal: CausalGroups,
        moves: SessionMoves,
    ) -> None:
        self._node = node
        self._peers = peers
        self._spatial = spatial
        self._moves = moves
        self._is_draining = False
        self._next_ms = 0
        self._without_address: set[str] = set()  # peers that were reported
        # What a client has said in causal order must be known everywhere, or have expired.
        self._quiet_ms = causal.memory_ms
        self._listeners = None if rules is None else rules.listeners
        self.policy = None if rules is None else RedirectPolicy(name, rules)
        if self.policy is not None:
            spatial.count_with(self._crossed)
            moves.came_from = self.policy.asked

    def _crossed(self, client_id: str, node: str) -> None:
        assert self.policy is not None
        self.policy.crossed(client_id, node, self._now_ms)

    @property
    def _now_ms(self) -> int:
        return max(self._peers.now_ms, self._node.now_ms)

    # --- the end of a node --------------------------------------------------------------------

    def drain(self) -> None:
        """Inform the peers that this node is about to end, so that no client is sent here."""
        self._is_draining = True
        self._peers.tell_all(Draining())

    def leave(self, _now_ms: int) -> None:
        """Send no clients away, and let none come."""
        self.drain()

    @handles(Draining)
    def drained(self, peer: PeerNode, _message: Draining) -> None:
        """Record that a peer is about to end."""
        peer.is_draining = True

    # --- offers -------------------------------------------------------------------------------

    def wake_at(self) -> int | None:
        """Return when the clients are looked at next; None while nothing crosses."""
        return None if self.policy is None or not len(self.policy) else self._next_ms

    def advance(self, now_ms: int) -> None:
        """Offer the clients that are ready another node, if this is a quiet moment for them."""
        if self.policy is None or now_ms < self._next_ms:
            return
        self._next_ms = now_ms + _TICK_MS
        self.policy.watch(self._place_of, now_ms)
        if self._is_draining:
            return
        for client_id, name, since_ms in self.policy.ready(now_ms):
            if not self.policy.has_room(now_ms):
                return
            self._try(client_id, str(name), now_ms - since_ms, now_ms)

    def _place_of(self, client_id: str) -> str | None:
        session = self._node.session_of(client_id)
        position = None if session is None else session.position
        return None if position is None else self._spatial.holder_of(position)

    def _try(self, client_id: str, name: str, waited_ms: int, now_ms: int) -> None:
        session, address = self._node.session_of(client_id), self._address_of(name)
        if session is None or session.link is None:
            return
        quiet_ms = QUIET_MS if waited_ms < BUSY_MS else BUSY_QUIET_MS
        if address and self._may_go(session, session.link, max(quiet_ms, self._quiet_ms), now_ms):
            self.offer(session, session.link, name, address, now_ms)

    def _address_of(self, name: str) -> str:
        """Return the address of a node that clients may be sent to; empty if they may not."""
        peer = self._peers.named(name)
        if peer is None or peer.is_draining or peer.version < PeerVersion.MOVES_SESSIONS:
            return ""
        if not peer.client_address and name not in self._without_address:
            self._without_address.add(name)
            self._node.observer.not_redirected(name)
        return peer.client_address

    def _may_go(self, session: Session, link: Connection, quiet_ms: int, now_ms: int) -> bool:
        """Return whether a client understands an offer, and nothing is in flight or queued."""
        will = session.will
        return (
            link.version >= ProtocolVersion.V5
            and link.forwarded is None
            and (self._listeners is None or link.listener in self._listeners)
            and not (link.is_closing or link.is_paused or link.pending or link.outbox)
            and link.task is None
            and link.last_seen_ms + quiet_ms <= now_ms
            and not session.has_more
            and (will is None or min(will.delay_s, session.expiry_s) >= WILL_DELAY_S)
            and self._moves.can_move(session)
        )

    def offer(
        self, session: Session, link: Connection, name: str, address: str, now_ms: int
    ) -> None:
        """Send a client to a peer; the peer may fetch its session from now on."""
        assert self.policy is not None
        self._peers.counts.redirects_offered += 1
        self.policy.offered(session.client_id, now_ms)
        self.policy.forget(session.client_id)
        self._moves.send_away(session, name, now_ms)
        text = f"node {name} at {address} holds the place of this client"
        self._node.redirect(link, address, text, now_ms)
