"""One node's part in a cluster, without input or output.

There is one link per peer. It carries the packets of a peer session
(`nearcast.broker.peers.sessions`) and the messages between nodes. The runtime
(`nearcast.server.cluster.runtime`) names the peers, transports frames, and calls `advance`. A loop
batch of the runtime runs in this order: pass everything that arrived to `receive`, call `settle`,
store the journal, write the outboxes (those of peers through `PeerWire`), send the frames of
`take_frames`.

Read next: `peer_registry.py`, `subscription_gossip.py`, `session_relay.py`, `spatial_routing.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar

from nearcast.broker import Broker, Connection
from nearcast.broker.publish.message import Message
from nearcast.broker.publish.routes import Route
from nearcast.broker.session.session import PEER_PREFIX, Session, SessionSubscription
from nearcast.cluster.causal_groups import CausalCounts, CausalGroups
from nearcast.cluster.distributed_top_k import DistributedTopK
from nearcast.cluster.filter_aggregation import LOOSENESS, FilterAggregation
from nearcast.cluster.links import LinkTiming
from nearcast.cluster.locality_codec import decode_place_message, encode_place_message
from nearcast.cluster.messages import (
    ClaimSession,
    Interest,
    InterestKnown,
    Ordered,
    PlansUsed,
    Retained,
    RetainedEntry,
    SessionClaimed,
    Settled,
    Told,
    TopKReply,
    TopKRequest,
    TunnelClosed,
    TunnelOpened,
    TunnelPaused,
    decode,
    decode_greeting,
    encode,
)
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
from nearcast.cluster.retained_sync import RetainedSync
from nearcast.cluster.session_relay import SessionRelay
from nearcast.cluster.spatial_routing import PATIENCE, SpatialRouting
from nearcast.cluster.subscribe_race import SubscribeRace
from nearcast.cluster.subscription_gossip import SubscriptionGossip
from nearcast.locality.registration.messages import Timing
from nearcast.locality.registration.plan_assignment import NamedPlan
from nearcast.model import Event
from nearcast.model.errors import PeerProtocolError
from nearcast.mqtt import Connect

if TYPE_CHECKING:
    from nearcast.overlay import Density


@dataclass(slots=True)
class DeferredSuback:
    """A SUBACK that waits until the peers know of the subscription."""

    number: int
    """The gossip number that the peers must have confirmed (`SubscriptionGossip.number`)."""
    release: Callable[[], None] = field(repr=False)
    """Sends the SUBACK."""


class Cluster:
    """This node as a member of the cluster; the broker and the runtime call it.

    Contract: while links are up, a message published at one node reaches the subscribers of all
    nodes as it would on a single broker. A subscription is acknowledged once all peers that are
    connected, or were a moment ago, forward messages for it. Messages of QoS 1 and 2 wait for peers
    that are disconnected. `began_ms` is when this node started; 0 for a node that joins the cluster
    for the first time.

    Complexity: O(nodes) per change of the set of filters; O(nodes that subscribe) per publication.
    """

    neighbours_kind: ClassVar[type[PeerRegistry]] = PeerRegistry

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
    ) -> None:
        self.name = name  # of this node, unique in the cluster
        self.node = node
        self._timing = timing or LinkTiming()
        # the peers and their links
        self.neighbours = self.neighbours_kind(self._timing, random, self)
        self.peers, self.counts = self.neighbours.peers, self.neighbours.counts
        declared = [one.space for one in node.state.router.spaces.all]
        # what our clients subscribe to, for peers
        self._interests = SubscriptionGossip(FilterAggregation(declared, looseness, densities))
        # the journal is being replayed; ends with `restored` or the first peer
        self._is_restoring = True
        self._retained = RetainedSync(name, node.state)
        self._kept: list[RetainedEntry] = []  # retained messages to send at the end of the batch
        self._geography: SpatialRouting | None = None  # None: no space has coordinates
        if any(one.space.coordinates is not None for one in node.state.router.spaces.all):
            self._geography = SpatialRouting(name, node, patience or PATIENCE)
        self._causal = CausalGroups(name, node, skew_ms / 1000, began_ms)
        self._terms = PeerTerms(spaces, skew_ms if self._causal.is_used else 0)
        self._contests = DistributedTopK(name, node)
        self._homes = SessionRelay(name, node, self._tell_named, self._carry)
        self._gates: deque[DeferredSuback] = deque()  # in the order of their numbers
        # subscriptions that some peer does not know yet
        self._newcomers = SubscribeRace(node.state.router, self._interests)
        self._first_number = 0  # of the gossip, after the journal was replayed
        node.join(self)

    @property
    def now_ms(self) -> int:
        """The time of the current batch, in milliseconds."""
        return self.neighbours.now_ms

    @now_ms.setter
    def now_ms(self, now_ms: int) -> None:
        self.neighbours.now_ms = now_ms

    @property
    def kernel_parts(self) -> list[str]:
        """The parts of `nearcast.kernels` that the cluster calls."""
        return ["ordering"] if self._causal.is_used else []

    # --- membership -------------------------------------------------------------------------

    def meet(self, name: str, now_ms: int) -> None:
        """Add a peer and open a link to it; no effect if it is known."""
        if name == self.name or name in self.peers:
            return
        self.now_ms = now_ms
        self._is_restoring = False
        peer = self.neighbours.add(name, self._greeting(name), now_ms)
        peer.confirmed = self._first_number
        self._homes.now_ms = now_ms
        self._homes.away(name)
        if self._geography is not None:
            self._geography.lost(name, now_ms)
        self._know()

    def part(self, name: str, now_ms: int) -> None:
        """Remove a peer that has left the cluster; messages queued for it are dropped."""
        peer = self.neighbours.remove(name)
        if peer is None:
            self.node.peering.forget(name, now_ms)
            return
        self.now_ms = now_ms
        if peer.connection is not None:
            self.node.peering.detach(peer.connection, now_ms)
        self.node.peering.forget(name, now_ms)
        self._homes.parted(name)
        self._causal.parted(name)
        self._know()
        self._open_gates()

    def _know(self) -> None:
        if self._geography is not None:
            self._geography.know(self.peers, self.now_ms)

    def _greeting(self, name: str) -> bytes:
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
        self._homes.now_ms = now_ms
        self._newcomers.begin()
        peer = self.neighbours.receive(sender, data, now_ms)
        if peer is None:
            return
        self._causal.clock(sender, peer.link.skew_ms, peer.link.delay_ms / 2)
        self._check_clock(peer)

    def advance(self, now_ms: int) -> None:
        """Run everything that is due at `now_ms`."""
        self._homes.now_ms = now_ms
        self.neighbours.advance(now_ms)
        if self._geography is not None:
            self._geography.advance(now_ms)
        self._causal.advance(now_ms)
        self._contests.advance(now_ms)
        self._homes.advance()
        self._open_gates()

    def wake_at(self) -> int | None:
        """Return when `advance` is due next; None if nothing is scheduled."""
        times = [self.neighbours.wake_at()]
        if not self._interests.is_settled:
            times.append(self.now_ms + 1)
        times += [self._causal.wake_at(), self._contests.wake_at(), self._homes.wake_at()]
        if self._gates:
            times.append(self._homes.given_up_at(self.peers))
        if self._geography is not None:
            times.append(self._geography.wake_at())
        return min((at for at in times if at is not None), default=None)

    def ordered_at(self) -> int | None:
        """Return the deadline by which a message in causal order must be released. O(groups)."""
        return self._causal.wake_at()

    def settle(self) -> None:
        """Queue the peer messages that follow from this batch.

        Called before the batch's journal is stored and its outboxes are written.
        """
        self._tell_interests()
        self._tell_places()
        self._tell_ordered()
        self._homes.settle()
        for name, message in self._contests.take():
            self._tell_named(name, message)

    def leave(self, now_ms: int) -> None:
        """Begin to leave the cluster; done once `has_unsettled` returns False."""
        self.now_ms = now_ms
        if self._geography is not None:
            self._geography.leave(now_ms)

    def has_unsettled(self) -> bool:
        """Return whether peers, connected or not, have yet to acknowledge something."""
        sessions = [self.node.state.sessions.get(PEER_PREFIX + name) for name in self.peers]
        return (
            self._contests.is_open
            or (self._geography is not None and self._geography.awaits_acks)
            or any(one.queue or one.in_flight or one.released for one in sessions if one)
        )

    def take_frames(self) -> list[tuple[str, bytes]]:
        """Return the frames to send, each with the name of its peer; called last in a batch."""
        if self._kept:
            self._tell_kept()
        return self.neighbours.take_frames()

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
                self._told(peer, decode(part))
            elif kind == PLACES and self._geography is not None:
                self._geography.receive(decode_place_message(part), self.now_ms)
            elif kind == TUNNELS:
                self._homes.received(peer.name, part)
        except PeerProtocolError as problem:
            peer.problem = str(problem)
            self.counts.refused += 1
        except Exception as error:
            failures = self.node.state.failures
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
        is_new = not self.node.peering.remembers(peer.name, terms.generation)
        if is_new:
            peer.confirmed = 0
        if is_new or terms.wants_retained:  # it has lost the state that we sent
            peer.heard_ms = -1
        peer.version = self._terms.version_with(terms)
        peer.known = 0
        peer.used = None
        peer.connection = self.node.peering.attach(
            peer.name, terms.generation, self.now_ms, takes_older=peer.version >= 2
        )
        peer.older = self.node.peering.older(peer.connection)
        peer.connection.transport = peer.older.transport = PeerWire(
            self.neighbours, peer, peer.connection
        )
        self._tell(peer, self._interests.whole())
        self._tell_plans([peer])
        self._causal.came_up(peer.name, self.now_ms)
        self._contests.came_up(peer.name)
        self._homes.came_up(peer.name)
        if self._geography is not None:
            self._geography.back(peer.name, self.now_ms)
        for part in self._retained.since(peer.heard_ms):
            self._tell(peer, part)

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
            self._contests.gone(peer.name)
            self._homes.went_down(peer.name)
            if self._geography is not None:
                self._geography.lost(peer.name, self.now_ms)
            if peer.link.arrived_ms >= 0:  # retained messages go out up to a batch later
                peer.heard_ms = peer.link.arrived_ms - self._timing.silence_ms
        peer.link.greeting = self._greeting(peer.name)
        self._open_gates()

    # --- subscriptions ----------------------------------------------------------------------

    def came(self, subscription: SessionSubscription) -> None:
        """Announce a new subscription of a client to the peers."""
        for text in self._ordered_topics(subscription):
            self._interests.want(text)
        if self._geography is not None and self._geography.concerns(subscription):
            arrive = self._geography.came_back if self._is_restoring else self._geography.came
            arrive(subscription, self.node.state.now_ms)
        else:
            self._interests.came(subscription)

    def went(self, subscription: SessionSubscription) -> None:
        """Withdraw a subscription that has ended."""
        for text in self._ordered_topics(subscription):
            self._interests.forgo(text)
        if self._geography is not None and self._geography.concerns(subscription):
            self._geography.went(subscription, self.node.state.now_ms)
        else:
            self._interests.went(subscription)

    def newcomer(self, subscription: SessionSubscription) -> None:
        """Remember a new subscription that has been sent this node's retained messages.

        Until all peers know of it, it may miss messages that are retained elsewhere
        (`SubscribeRace`).
        """
        if not self.peers:
            return
        has_place = self._geography is not None and self._geography.concerns(subscription)
        number = self._interests.mark() if has_place else self._interests.since(subscription)
        if any(peer.confirmed < number for peer in self.peers.values()):
            self._newcomers.add(subscription, number, self.node.state.now_ms)

    def arrived(self, topic: str) -> None:
        """Record that a message with RETAIN has arrived live from a peer."""
        self._newcomers.arrived(topic)

    def there(self, session: Session) -> None:
        """Handle that a client has connected or disconnected."""
        self._interests.there(session)

    def _ordered_topics(self, subscription: SessionSubscription) -> list[str]:
        """Return the causal topics that a spatial subscription overlaps.

        The node subscribes to all of each: causal order needs every message of the group.
        """
        if self._geography is None or not self._geography.concerns(subscription):
            return []
        return self._causal.filters_of(subscription.topic_filter)

    def group(self, number: int) -> tuple[str, str] | None:
        """Return the share group and filter behind one of this node's group numbers."""
        return self._interests.group(number)

    def when_known(self, release: Callable[[], None]) -> None:
        """Call `release` once the peers know all current subscriptions of this node.

        A peer that was lost a moment ago is waited for as well: it may still serve publishers, and
        what it accepts before it knows of a subscription is not forwarded here.
        """
        self._homes.now_ms = self.node.state.now_ms
        self._gates.append(DeferredSuback(self._interests.number, release))
        self._open_gates()

    def _tell_interests(self) -> None:
        change = self._interests.take_change()
        if change is not None:
            for peer in self.neighbours.present:
                self._tell(peer, change)

    def _tell(self, peer: PeerNode, message: Told) -> None:
        self.neighbours.send(peer, TOLD, encode(message))

    def _tell_named(self, name: str, message: Told) -> None:
        peer = self.neighbours.named(name)
        if peer is not None:
            self._tell(peer, message)

    def _carry(self, name: str, data: bytes) -> None:
        peer = self.neighbours.named(name)
        if peer is not None:
            self.neighbours.send(peer, TUNNELS, data)

    def _told(self, peer: PeerNode, message: Told) -> None:
        handler = _HANDLERS[type(message)]
        handler(self, peer, message)

    def _hear_known(self, peer: PeerNode, message: InterestKnown) -> None:
        """Handle a peer's confirmation of our subscriptions."""
        peer.known = max(peer.known, message.number)
        peer.confirmed = max(peer.confirmed, message.number)
        self._newcomers.settle(min(one.confirmed for one in self.peers.values()))
        self._open_gates()

    def _hear_interest(self, peer: PeerNode, message: Interest) -> None:
        """Apply a change of a peer's subscriptions and confirm it."""
        if message.whole:
            self.node.peering.wants_only(peer.name, message.added)
        else:
            self.node.peering.wants(peer.name, message.added, message.removed)
        self.node.peering.has_ready(peer.name, message.ready)
        self._tell(peer, InterestKnown(message.number))

    def _hear_retained(self, peer: PeerNode, told: Retained) -> None:
        """Store the retained messages of a peer that are newer than ours."""
        for kept, message in self._retained.newer(told.kept):
            origin = self.peers.get(kept.node, peer)
            missed = partial(self._newcomers.missed, kept, origin.confirmed)
            self.node.keep(message, self.now_ms, missed)
        if told.is_last:
            peer.has_sent_retained = True
            peer.link.greeting = self._greeting(peer.name)

    def _hear_plans(self, peer: PeerNode, message: PlansUsed) -> None:
        if self._geography is not None:
            self._geography.uses(peer.name, (message.current, message.upcoming), self.now_ms)
            self._tell_plans(self.neighbours.present)

    def _hear_ordered(self, peer: PeerNode, message: Ordered) -> None:
        self._tell(peer, Settled(message.number))
        self._causal.receive(message.group, message.message, self.now_ms)

    def _hear_settled(self, peer: PeerNode, message: Settled) -> None:
        self._causal.settled(peer.name, message.number)

    # --- clients whose session is at another node -------------------------------------------

    def claim(self, connection: Connection, connect: Connect) -> bool:
        """Ask the peers for a client's session; return False if there is no peer to ask."""
        present = [peer.name for peer in self.neighbours.present]
        away = [name for name, peer in self.peers.items() if peer.connection is None]
        self._homes.now_ms = self.node.state.now_ms
        return self._homes.claim(connection, connect, present, away)

    @property
    def relayed(self) -> int:
        """How many clients connected here have their sessions at another node."""
        return self._homes.relayed

    # --- retained messages ------------------------------------------------------------------

    def restored(self) -> None:
        """Load the cluster's state after the journal was replayed; later changes are newer."""
        self._is_restoring = False
        self._first_number = self._interests.number
        self._retained.restored()
        self._contests.restored(self.node.state.now_ms)
        if self._geography is not None:
            self._geography.restored(self.node.state.now_ms)

    # --- spatial routing, top-k, causal order -----------------------------------------------

    @property
    def plans(self) -> tuple[int, int]:
        """The versions of the plans in use: current and upcoming, 0 for none."""
        return (0, 0) if self._geography is None else self._geography.layout.versions

    @property
    def handovers(self) -> int:
        """How often a registration moved to another holder."""
        return 0 if self._geography is None else self._geography.handovers

    def use_plan(self, plan: NamedPlan, now_ms: int) -> bool:
        """Start to use a plan; return whether it is newer than those in use."""
        self.now_ms = now_ms
        if self._geography is None or not self._geography.use(plan, now_ms):
            return False
        self._tell_plans(self.neighbours.present)
        return True

    def moved(self, session: Session, *, is_sure: bool) -> None:
        """Update the registrations of a client that moved; `is_sure`: the step is acknowledged."""
        if self._geography is not None:
            self._geography.moved(session, self.node.state.now_ms, is_sure=is_sure)

    def contest(self, message: Message, wish: tuple[int, str], publisher: str) -> bool:
        """Start a distributed top-k for a message; return whether there are peers to ask.

        `wish` is (k, rank).
        """
        others = [peer.name for peer in self.neighbours.present]
        if not others:
            return False
        self._contests.call(message, wish, publisher, others)
        return True

    @property
    def most_skew_ms(self) -> int:
        """How far clocks may be apart in causal groups, in ms; 0 without causal groups."""
        return self._terms.skew_ms

    @property
    def causal(self) -> CausalCounts:
        """Counters of the causal groups."""
        return self._causal.counts

    def ordered(self, route: Route, message: Message, meant: Collection[Session]) -> bool:
        """Send a message to the peers in causal order; return whether its topic asks for that."""
        return self._causal.published(route, message, meant, self.node.state.now_ms)

    def _tell_ordered(self) -> None:
        for to, number, group, data in self._causal.take():
            self._tell_named(to, Ordered(number, group, data))

    def published(self, message: Message, event: Event) -> None:
        """Route an event with a position to the holders of that place."""
        if self._geography is not None:
            self._geography.published(message, event, self.node.state.now_ms)

    def _tell_places(self) -> None:
        if self._geography is None:
            return
        for to, message in self._geography.take(self.now_ms):
            peer = self.neighbours.named(str(to))
            if peer is not None:
                self.neighbours.send(peer, PLACES, encode_place_message(message))

    def _tell_plans(self, peers: Iterable[PeerNode]) -> None:
        if self._geography is not None:
            used = PlansUsed(*self._geography.layout.versions)
            for peer in peers:
                if peer.used != used:
                    peer.used = used
                    self._tell(peer, used)

    def retained(self, message: Message) -> None:
        """Queue a message retained here for the peers' retained stores."""
        self._kept.append(self._retained.put(message, self.node.state.now_ms))

    def _tell_kept(self) -> None:
        """Send retained messages behind the batch's live messages: subscribers wait for those."""
        told, self._kept = encode(Retained(self._kept)), []
        for peer in self.neighbours.present:
            self.neighbours.send(peer, TOLD, told, with_last=True)

    def _open_gates(self) -> None:
        awaited = (
            peer.known
            for name, peer in self.peers.items()
            if peer.connection is not None or not self._homes.is_lost(name)
        )
        known = min(awaited, default=self._interests.number)
        while self._gates and self._gates[0].number <= known:
            self._gates.popleft().release()


_HANDLERS: dict[type, Callable[[Cluster, PeerNode, Any], None]] = {
    Interest: Cluster._hear_interest,
    InterestKnown: Cluster._hear_known,
    Retained: Cluster._hear_retained,
    PlansUsed: Cluster._hear_plans,
    Ordered: Cluster._hear_ordered,
    Settled: Cluster._hear_settled,
    TopKRequest: lambda mesh, peer, message: mesh._contests.asked(peer.name, message),
    TopKReply: lambda mesh, peer, message: mesh._contests.told(peer.name, message),
    ClaimSession: lambda mesh, peer, message: mesh._homes.asked(peer.name, message),
    SessionClaimed: lambda mesh, peer, message: mesh._homes.answered(peer.name, message),
    TunnelOpened: lambda mesh, peer, message: mesh._homes.opened(peer.name, message),
    TunnelClosed: lambda mesh, peer, message: mesh._homes.closed(peer.name, message),
    TunnelPaused: lambda mesh, peer, message: mesh._homes.paused(peer.name, message),
}
