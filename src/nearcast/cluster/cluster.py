"""One node's part in a cluster, without input or output.

There is one link per peer. It carries the packets of a peer session
(`nearcast.broker.peers.sessions`) and the messages between nodes. The runtime
(`nearcast.server.cluster.runtime`) names the peers, transports frames, and calls `advance`. A loop
batch of the runtime runs in this order: pass everything that arrived to `receive`, call `settle`,
store the journal, write the outboxes (those of peers through `PeerWire`), send the frames of
`take_frames`.

What the nodes do together is done by the parts, one module each (`part.py`).

Read next: `peer_registry.py`, `part.py`, `subscription_sync.py`, `session_relay.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, ClassVar

from nearcast.broker import Broker, Session, SessionSubscription
from nearcast.cluster.bridges.bridging import Bridging
from nearcast.cluster.causal_groups import CausalGroups
from nearcast.cluster.distributed_top_k import DistributedTopK
from nearcast.cluster.filter_aggregation import LOOSENESS, FilterAggregation
from nearcast.cluster.links import LinkTiming
from nearcast.cluster.messages import PeerVersion, decode, decode_greeting, encode
from nearcast.cluster.operators.questions import OperatorQuestions
from nearcast.cluster.part import ClusterPart, callbacks_of, handlers_of
from nearcast.cluster.peer import PeerNode
from nearcast.cluster.peer_handshake import PeerTerms, clock_objection
from nearcast.cluster.peer_registry import (
    OLDER,
    PACKETS,
    PLACES,
    TOLD,
    TUNNELS,
    PeerRegistry,
    PeerWire,
)
from nearcast.cluster.redirects import Redirects
from nearcast.cluster.retained_sync import RetainedSync
from nearcast.cluster.session_moves import SessionMoves
from nearcast.cluster.session_relay import SessionRelay
from nearcast.cluster.spatial_part import NoSpatialPart, SpatialPart
from nearcast.cluster.spatial_routing import PATIENCE
from nearcast.cluster.subscribe_race import SubscribeRace
from nearcast.cluster.subscription_gossip import SubscriptionGossip
from nearcast.cluster.subscription_sync import DeferredSubacks, SubscriptionSync
from nearcast.locality.layout.adapting import AdaptRules
from nearcast.locality.registration.leaf_loads import PlanProposal
from nearcast.locality.registration.messages import Timing
from nearcast.locality.registration.plan_assignment import NamedPlan
from nearcast.locality.registration.redirect_policy import RedirectRules
from nearcast.model.errors import PeerProtocolError

if TYPE_CHECKING:
    from nearcast.overlay import Density


class Cluster:
    """This node as a member of the cluster; the broker and the runtime call it.

    Contract: while links are up, a message published at one node reaches the subscribers of all
    nodes as it would on a single broker. A subscription is acknowledged once all peers that are
    connected, or were a moment ago, forward messages for it. Messages of QoS 1 and 2 wait for peers
    that are disconnected. `began_ms` is when this node started; 0 for a node that joins the cluster
    for the first time.

    Complexity: O(nodes) per change of the set of filters; O(nodes that subscribe) per publication.
    """

    is_joined = True
    is_network = True  # False: the processes of one broker
    neighbours_kind: ClassVar[type[PeerRegistry]] = PeerRegistry
    relay_kind: ClassVar[type[SessionRelay]] = SessionRelay

    def __init__(
        self,
        name: str,
        node: Broker,
        *,
        random: Random,
        timing: LinkTiming | None = None,
        patience: Timing | None = None,
        skew_ms: int = 100,
        began_ms: int = 0,
        spaces: str = "",
        looseness: float = LOOSENESS,
        densities: Mapping[str, Density] | None = None,
        redirect: RedirectRules | None = None,
        adapt: AdaptRules | None = None,
    ) -> None:
        self.name = name  # of this node, unique in the cluster
        self.node = node
        # the peers and their links
        self.neighbours = peers = self.neighbours_kind(timing or LinkTiming(), random, self)
        self.peers, self.counts = peers.peers, peers.counts
        declared = [one.space for one in node.spaces]
        # what our clients subscribe to, for peers
        self._gossip = SubscriptionGossip(FilterAggregation(declared, looseness, densities))
        self._race = SubscribeRace(node.subscribers, self._gossip)
        self._spatial = NoSpatialPart()
        if any(one.coordinates is not None for one in declared):
            self._spatial = SpatialPart(name, node, peers, patience or PATIENCE, adapt)
        self._causal = CausalGroups(name, node, peers, skew_ms / 1000, began_ms)
        self.causal = self._causal.counts
        self.causal_groups = self._causal.states
        # of `nearcast.kernels`, what the cluster calls
        self.kernel_parts = ["ordering"] if self._causal.is_used else []
        # how far clocks may be apart in causal groups; 0 without causal groups
        self.most_skew_ms = skew_ms if self._causal.is_used else 0
        self._terms = PeerTerms(spaces, self.most_skew_ms)
        self._top_k = DistributedTopK(name, node, peers)
        self._moves = SessionMoves(node, peers, self._spatial, self._causal)
        self._relay = self.relay_kind(name, node, peers, self._moves, self._causal)
        self._redirects = Redirects(
            name,
            node,
            peers,
            redirect,
            spatial=self._spatial,
            causal=self._causal,
            moves=self._moves,
        )
        self._retained = RetainedSync(name, node, peers, self._race)
        self.bridging = Bridging(name, node, peers, declared)
        self.operators = OperatorQuestions(peers)
        self._subacks = DeferredSubacks(peers, self._gossip, self._relay)
        self._subscriptions = SubscriptionSync(
            node,
            peers,
            self._gossip,
            race=self._race,
            subacks=self._subacks,
            spatial=self._spatial,
            causal=self._causal,
        )
        # The order of the calls of `ClusterPart`: subscriptions are announced first when a link
        # comes up, and SUBACKs are sent after all others have seen that a peer is gone.
        self.parts: tuple[ClusterPart, ...] = (
            self._subscriptions,
            self._spatial,
            self._causal,
            self._top_k,
            self._moves,
            self._relay,
            self._redirects,
            self._retained,
            self.bridging,
            self.operators,
            self._subacks,
        )
        self._handlers = handlers_of(self.parts)
        # what is called for every frame and every batch
        self._frame_begins = callbacks_of(self.parts, "frame_begins")
        self._frame_ends = callbacks_of(self.parts, "frame_ends")
        self._settle = callbacks_of(self.parts, "settle")
        self._end_batch = callbacks_of(self.parts, "end_batch")
        self._bind_hooks()
        node.join(self)

    def _bind_hooks(self) -> None:
        """Bind what the broker calls (`ClusterHooks`), each to the part that answers it."""
        self.claim = self._relay.claim
        self.is_home = self._relay.is_home
        self.newcomer = self._subscriptions.newcomer
        self.arrived = self._race.arrived
        self.group = self._gossip.group
        self.when_known = self._subacks.when_known
        self.published = self._spatial.published
        self.takes = self._spatial.takes
        self.contest = self._top_k.contest
        self.ordered = self._causal.published
        self.retained = self._retained.retained

    def came(self, subscription: SessionSubscription) -> None:
        """Announce a new subscription of a client."""
        self._subscriptions.came(subscription)
        self.bridging.came(subscription)

    def went(self, subscription: SessionSubscription) -> None:
        """Withdraw a subscription of a client."""
        self._subscriptions.went(subscription)
        self.bridging.went(subscription)

    def moved(self, session: Session, *, is_sure: bool) -> None:
        """Handle a client's new position."""
        self._spatial.moved(session, is_sure=is_sure)
        self.bridging.moved(session)

    def there(self, session: Session) -> None:
        """Handle that a client has connected or disconnected."""
        self._gossip.there(session)
        self._causal.there(session)

    def restored(self) -> None:
        """Load the parts' state after the journal was replayed; later changes are newer."""
        for part in self.parts:
            part.restored(self.node.now_ms)

    @property
    def now_ms(self) -> int:
        """The time of the current batch, in milliseconds."""
        return self.neighbours.now_ms

    @now_ms.setter
    def now_ms(self, now_ms: int) -> None:
        self.neighbours.now_ms = now_ms

    def announce(self, client_address: str) -> None:
        """Set the address that this node's clients should use; call this before it has peers."""
        self._terms = replace(self._terms, client_address=client_address)

    # --- membership -------------------------------------------------------------------------

    def meet(self, name: str, now_ms: int) -> None:
        """Add a peer and open a link to it; no effect if it is known."""
        if name == self.name or name in self.peers:
            return
        self.now_ms = now_ms
        peer = self.neighbours.add(name, now_ms)
        for part in self.parts:
            part.peer_added(peer)

    def part(self, name: str, now_ms: int) -> None:
        """Remove a peer that has left the cluster; messages queued for it are dropped."""
        peer = self.neighbours.remove(name)
        if peer is None:  # it left while this node was down: the journal has messages for it
            if name in self.node.node_names():
                self.node.peering.forget(name, now_ms)
            return
        self.now_ms = now_ms
        if peer.connection is not None:
            self.node.peering.detach(peer.connection, now_ms)
        self.node.peering.forget(name, now_ms)
        for part in self.parts:
            part.peer_removed(name)

    def greeting(self, name: str) -> bytes:
        """Return this node's greeting for a peer."""
        generation, peer = self.node.peering.generation(name), self.peers.get(name)
        wants_retained = peer is None or not peer.has_sent_retained
        return encode(
            self._terms.greeting(self.name, generation, self.now_ms, wants_retained=wants_retained)
        )

    def without_retained(self, names: Iterable[str]) -> list[str]:
        """Return those of the named nodes that have yet to send their retained messages, sorted."""
        peers = ((name, self.peers.get(name)) for name in sorted(names))
        return [name for name, peer in peers if peer is None or peer.owes_retained]

    # --- called by the runtime --------------------------------------------------------------

    def receive(self, sender: str, data: bytes, now_ms: int) -> None:
        """Handle a frame from a peer."""
        for begin in self._frame_begins:
            begin()
        peer = self.neighbours.receive(sender, data, now_ms)
        if peer is not None:
            for end in self._frame_ends:
                end(peer)
            self._check_clock(peer)

    def advance(self, now_ms: int) -> None:
        """Run everything that is due at `now_ms`."""
        self.neighbours.advance(now_ms)
        for part in self.parts:
            part.advance(now_ms)

    def wake_at(self) -> int | None:
        """Return when `advance` is due next; None if nothing is scheduled."""
        times = [self.neighbours.wake_at(), *(part.wake_at() for part in self.parts)]
        return min((at for at in times if at is not None), default=None)

    def ordered_at(self) -> int | None:
        """Return the deadline by which a message in causal order must be released. O(groups)."""
        return self._causal.wake_at() if self._causal.is_used else None

    def settle(self) -> None:
        """Queue the peer messages that follow from this batch.

        Called before the batch's journal is stored and its outboxes are written.
        """
        for settle in self._settle:
            settle()

    def take_frames(self) -> list[tuple[str, bytes]]:
        """Return the frames to send, each with the name of its peer; called last in a batch."""
        for end in self._end_batch:
            end()
        return self.neighbours.take_frames()

    def drain(self, now_ms: int) -> None:
        """Inform the peers that this node is about to end: they send no more clients here."""
        self.now_ms = now_ms
        self._redirects.drain()

    def leave(self, now_ms: int) -> None:
        """Begin to leave the cluster; done once `has_unsettled` returns False."""
        self.now_ms = now_ms
        for part in self.parts:
            part.leave(now_ms)

    def has_unsettled(self) -> bool:
        """Return whether peers, connected or not, have yet to acknowledge something."""
        return any(part.is_pending for part in self.parts) or any(
            self.node.peering.has_unsettled(name) for name in self.peers
        )

    def use_plan(self, plan: NamedPlan, now_ms: int) -> bool:
        """Start to use a plan; return whether it is newer than those in use."""
        self.now_ms = now_ms
        return self._spatial.use_plan(plan, now_ms)

    def take_proposal(self) -> PlanProposal | None:
        """Return the adapted plan that this node proposes, once; None if there is none."""
        return self._spatial.take_proposal()

    def client_places(self, most: int) -> list[tuple[float, float]]:
        """Return the last positions of clients, at most so many."""
        return self._spatial.client_places(most)

    @property
    def load(self) -> float:
        """The load of the leaves that this node holds; 0 if it is not watched."""
        return self._spatial.load

    def use_densities(self, densities: Mapping[str, Density], now_ms: int) -> None:
        """Merge the boxes that peers are told by other densities of events, by space."""
        self.now_ms = now_ms
        self._gossip.use_densities(densities)

    # --- called by links --------------------------------------------------------------------

    def take_part(self, peer: PeerNode, kind: bytes, part: bytes) -> None:
        """Handle one part of a frame from a peer."""
        if kind == PACKETS:
            if peer.connection is not None:
                self.node.receive(peer.connection, part, self.now_ms)
            return
        if kind == OLDER:
            if peer.older is not None:
                self.node.receive(peer.older, part, self.now_ms)
            return
        try:
            if kind == TOLD:
                message = decode(part)
                self._handlers[type(message)](peer, message)
            elif kind == PLACES:
                self._spatial.receive(peer, part)
            elif kind == TUNNELS:
                self._relay.received(peer, part)
        except PeerProtocolError as problem:
            peer.problem = str(problem)
            self.counts.refused += 1
        except Exception as error:
            failures = self.node.failures
            if not failures.is_known(error):
                raise  # the link restarts; the retransmission may be intact
            failures.take(f"taking what node {peer.name} says", error)

    def came_up(self, peer: PeerNode, greeting: bytes) -> None:
        """Start to work with a peer whose link is up, if its terms are compatible with ours."""
        try:
            terms = decode_greeting(greeting)
            peer.problem = self._terms.objection(peer.name, terms)
        except PeerProtocolError as problem:
            peer.problem = str(problem)
        if peer.problem:
            self.counts.refused += 1
            return
        peering = self.node.peering
        version = self._terms.version_with(terms)
        is_new = not peering.remembers(peer.name, terms.generation)
        peer.begin(version, is_new=is_new, wants_retained=terms.wants_retained)
        peer.client_address = terms.client_address
        takes_older = version >= PeerVersion.OLDER_PACKETS
        peer.connection = peering.attach(
            peer.name, terms.generation, self.now_ms, takes_older=takes_older
        )
        peer.older = peering.older(peer.name)
        peer.connection.transport = peer.older.transport = PeerWire(
            self.neighbours, peer, peer.connection
        )
        for part in self.parts:
            part.peer_up(peer)

    def _check_clock(self, peer: PeerNode) -> None:
        """Stop working with a peer whose clock is too far off; its link stays up to measure it."""
        problem = clock_objection(peer.name, peer.link)
        if problem and peer.connection is not None:
            self.went_down(peer)
            self.counts.refused += 1
            peer.problem = problem

    def went_down(self, peer: PeerNode) -> None:
        """Mark a peer as disconnected; its session queues messages until it is back."""
        peer.parts.clear()
        if peer.connection is not None:
            self.node.peering.detach(peer.connection, self.now_ms)
            peer.connection = peer.older = None
            for part in self.parts:
                part.peer_down(peer)
        self.neighbours.renew_greeting(peer)

    # --- metrics ----------------------------------------------------------------------------

    @property
    def relayed(self) -> int:
        """How many clients connected here have their sessions at another node."""
        return self._relay.relayed

    @property
    def plans(self) -> tuple[int, int]:
        """The versions of the plans in use: current and upcoming, 0 for none."""
        return self._spatial.plans

    @property
    def handovers(self) -> int:
        """How often a registration moved to another holder."""
        return self._spatial.handovers
