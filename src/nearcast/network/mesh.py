"""One node's part in a network of nodes, without input or output.

For each other node there is a link; over it run the packets of a session (`nearcast.node.peering`)
and what nodes tell each other. The runtime says who the others are, carries frames, and calls
`advance`. A turn of the runtime is: take everything in, `settle`, store the journal, write the
outboxes (those of other nodes through `PeerWire`), carry `take_frames`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar

from nearcast.locality.messages import Timing
from nearcast.model import Event
from nearcast.model.errors import PeerProtocolError
from nearcast.mqtt import Connect
from nearcast.network.causal import CausalCounts, CausalGroups
from nearcast.network.contests import Contests
from nearcast.network.geography import PATIENCE, Geography
from nearcast.network.homes import Homes
from nearcast.network.interests import Interests
from nearcast.network.layout import NamedPlan
from nearcast.network.links import LinkTiming
from nearcast.network.messages import (
    Bids,
    Claim,
    Claimed,
    Contest,
    Interest,
    InterestKnown,
    Kept,
    Ordered,
    PlansUsed,
    Retained,
    Settled,
    Told,
    TunnelClosed,
    TunnelOpened,
    TunnelPaused,
    decode,
    decode_greeting,
    encode,
)
from nearcast.network.neighbours import OLDER, PACKETS, PLACES, TOLD, TUNNELS, Neighbours, PeerWire
from nearcast.network.newcomers import Newcomers
from nearcast.network.peer import Peer
from nearcast.network.places import decode_place_message, encode_place_message
from nearcast.network.retained import RetainedCopies
from nearcast.network.summaries import LOOSENESS, Summaries
from nearcast.network.terms import Terms, clock_objection
from nearcast.node import Connection, Node
from nearcast.node.message import Message
from nearcast.node.routes import Route
from nearcast.node.session import PEER_PREFIX, Session, Subscription

if TYPE_CHECKING:
    from nearcast.overlay import Density


@dataclass(slots=True)
class Gate:
    """An answer to a client that waits until all nodes there know of its subscription."""

    number: int
    release: Callable[[], None] = field(repr=False)


class Mesh:
    """This node among others.

    Contract: while links are up, what clients of one node publish reaches the subscribers of all
    nodes as it would on a single one; a subscription is acknowledged once all nodes that are there
    send what it wants. QoS 1 and 2 wait for nodes that are away. `began_ms` is when this node
    started, 0 for one that was never there before.

    Complexity: O(nodes) per change of the set of filters, O(nodes that want it) per publication.
    """

    neighbours_kind: ClassVar[type[Neighbours]] = Neighbours

    def __init__(
        self,
        name: str,
        node: Node,
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
        self.name = name
        self.node = node
        self._timing = timing or LinkTiming()
        self.neighbours = self.neighbours_kind(self._timing, random, self)
        self.peers, self.counts = self.neighbours.peers, self.neighbours.counts
        declared = [one.space for one in node.state.router.spaces.all]
        self._interests = Interests(Summaries(declared, looseness, densities))
        self._is_restoring = True  # until somebody is met
        self._retained = RetainedCopies(name, node.state)
        self._kept: list[Kept] = []
        self._geography: Geography | None = None
        if any(one.space.coordinates is not None for one in node.state.router.spaces.all):
            self._geography = Geography(name, node, patience or PATIENCE)
        self._causal = CausalGroups(name, node, skew_ms / 1000, began_ms)
        self._terms = Terms(spaces, skew_ms if self._causal.is_used else 0)
        self._contests = Contests(name, node)
        self._homes = Homes(name, node, self._tell_named, self._carry)
        self._gates: deque[Gate] = deque()
        self._newcomers = Newcomers(node.state.router, self._interests)
        self._first_number = 0  # of interests since the start
        node.join(self)

    @property
    def now_ms(self) -> int:
        """The instant of what is being done."""
        return self.neighbours.now_ms

    @now_ms.setter
    def now_ms(self, now_ms: int) -> None:
        self.neighbours.now_ms = now_ms

    @property
    def kernel_parts(self) -> list[str]:
        """The parts of `nearcast.kernels` that the network calls."""
        return ["ordering"] if self._causal.is_used else []

    # --- who is there -----------------------------------------------------------------------

    def meet(self, name: str, now_ms: int) -> None:
        """Begin to work with another node; no effect if it is known."""
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
        """Stop working with a node that has left for good; what waits for it is dropped."""
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
        """Return the nodes, of those named, that have yet to send what they retain, by name."""
        peers = ((name, self.peers.get(name)) for name in sorted(names))
        return [name for name, peer in peers if peer is None or peer.owes_retained]

    # --- what the runtime calls -------------------------------------------------------------

    def receive(self, sender: str, data: bytes, now_ms: int) -> None:
        """Take in a frame from another node."""
        self._homes.now_ms = now_ms
        self._newcomers.begin()
        peer = self.neighbours.receive(sender, data, now_ms)
        if peer is None:
            return
        self._causal.clock(sender, peer.link.skew_ms, peer.link.delay_ms / 2)
        self._check_clock(peer)

    def advance(self, now_ms: int) -> None:
        """Do what is due."""
        self._homes.now_ms = now_ms
        self.neighbours.advance(now_ms)
        if self._geography is not None:
            self._geography.advance(now_ms)
        self._causal.advance(now_ms)
        self._contests.advance(now_ms)
        self._homes.advance()

    def wake_at(self) -> int | None:
        """Say when something is due."""
        times = [self.neighbours.wake_at()]
        if not self._interests.is_settled:
            times.append(self.now_ms + 1)
        times += [self._causal.wake_at(), self._contests.wake_at(), self._homes.wake_at()]
        if self._geography is not None:
            times.append(self._geography.wake_at())
        return min((at for at in times if at is not None), default=None)

    def ordered_at(self) -> int | None:
        """Say when a message in causal order must be let go: not a moment later. O(groups)."""
        return self._causal.wake_at()

    def settle(self) -> None:
        """Do what follows from this turn; before its journal is stored and its outboxes written."""
        self._tell_interests()
        self._tell_places()
        self._tell_ordered()
        self._homes.settle()
        for name, message in self._contests.take():
            self._tell_named(name, message)

    def leave(self, now_ms: int) -> None:
        """Begin to leave for good; it is done once nothing is unsettled."""
        self.now_ms = now_ms
        if self._geography is not None:
            self._geography.leave(now_ms)

    def has_unsettled(self) -> bool:
        """Tell whether other nodes, there or away, have yet to answer what they must have."""
        sessions = [self.node.state.sessions.get(PEER_PREFIX + name) for name in self.peers]
        return (
            self._contests.is_open
            or (self._geography is not None and self._geography.is_pursuing)
            or any(one.queue or one.in_flight or one.released for one in sessions if one)
        )

    def take_frames(self) -> list[tuple[str, bytes]]:
        """Return what is to travel, with the name of the node it goes to; last in a turn."""
        if self._kept:
            self._tell_kept()
        return self.neighbours.take_frames()

    # --- what links say ---------------------------------------------------------------------

    def take_part(self, peer: Peer, kind: bytes, part: bytes) -> None:
        """Take in what another node sent."""
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
                raise  # the link begins anew: it may come in order then
            failures.take(f"taking what node {peer.name} says", error)

    def came_up(self, peer: Peer, greeting: bytes) -> None:
        """Begin to work with a node whose link is up, if its terms are ours."""
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
        if is_new or terms.wants_retained:  # its memory is not the one that was told before
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

    def _check_clock(self, peer: Peer) -> None:
        """Stop working with a node whose clock is too far off; its link goes on to measure it."""
        problem = clock_objection(peer.name, peer.link)
        if problem and peer.connection is not None:
            self.went_down(peer)
            self.counts.refused += 1
            peer.problem = problem

    def went_down(self, peer: Peer) -> None:
        """Let a node be away."""
        peer.parts.clear()
        if peer.connection is not None:
            self.node.peering.detach(peer.connection, self.now_ms)
            peer.connection = peer.older = None
            self._contests.gone(peer.name)
            self._homes.went_down(peer.name)
            if self._geography is not None:
                self._geography.lost(peer.name, self.now_ms)
            if peer.link.arrived_ms >= 0:  # what is retained is told up to a turn later
                peer.heard_ms = peer.link.arrived_ms - self._timing.silence_ms
        peer.link.greeting = self._greeting(peer.name)
        self._open_gates()

    # --- interests --------------------------------------------------------------------------

    def came(self, subscription: Subscription) -> None:
        """Take note that a client wants something."""
        for text in self._ordered_topics(subscription):
            self._interests.want(text)
        if self._geography is not None and self._geography.concerns(subscription):
            arrive = self._geography.came_back if self._is_restoring else self._geography.came
            arrive(subscription, self.node.state.now_ms)
        else:
            self._interests.came(subscription)

    def went(self, subscription: Subscription) -> None:
        """Take note that it does not any longer."""
        for text in self._ordered_topics(subscription):
            self._interests.forgo(text)
        if self._geography is not None and self._geography.concerns(subscription):
            self._geography.went(subscription, self.node.state.now_ms)
        else:
            self._interests.went(subscription)

    def newcomer(self, subscription: Subscription) -> None:
        """Take note that a new subscription has been sent what is retained here."""
        if not self.peers:
            return
        has_place = self._geography is not None and self._geography.concerns(subscription)
        number = self._interests.mark() if has_place else self._interests.since(subscription)
        if any(peer.confirmed < number for peer in self.peers.values()):
            self._newcomers.add(subscription, number, self.node.state.now_ms)

    def arrived(self, topic: str) -> None:
        """Take note that a message has come live from another node that is retained as well."""
        self._newcomers.arrived(topic)

    def there(self, session: Session) -> None:
        """Take note that a client has connected, or is not connected any longer."""
        self._interests.there(session)

    def _ordered_topics(self, subscription: Subscription) -> list[str]:
        """Return the causal topics that a subscription with a place must hear of: all of them."""
        if self._geography is None or not self._geography.concerns(subscription):
            return []
        return self._causal.filters_of(subscription.topic_filter)

    def group(self, number: int) -> tuple[str, str] | None:
        """Return the share group and filter behind a number of this node's."""
        return self._interests.group(number)

    def when_known(self, release: Callable[[], None]) -> None:
        """Call `release` once all nodes that are there know what is wanted here by now."""
        number = self._interests.number
        if all(peer.known >= number for peer in self.neighbours.present):
            release()
        else:
            self._gates.append(Gate(number, release))

    def _tell_interests(self) -> None:
        change = self._interests.take_change()
        if change is not None:
            for peer in self.neighbours.present:
                self._tell(peer, change)

    def _tell(self, peer: Peer, message: Told) -> None:
        self.neighbours.send(peer, TOLD, encode(message))

    def _tell_named(self, name: str, message: Told) -> None:
        peer = self.neighbours.named(name)
        if peer is not None:
            self._tell(peer, message)

    def _carry(self, name: str, data: bytes) -> None:
        peer = self.neighbours.named(name)
        if peer is not None:
            self.neighbours.send(peer, TUNNELS, data)

    def _told(self, peer: Peer, message: Told) -> None:
        handler = _HANDLERS[type(message)]
        handler(self, peer, message)

    def _hear_known(self, peer: Peer, message: InterestKnown) -> None:
        peer.known = max(peer.known, message.number)
        peer.confirmed = max(peer.confirmed, message.number)
        self._newcomers.settle(min(one.confirmed for one in self.peers.values()))
        self._open_gates()

    def _hear_interest(self, peer: Peer, message: Interest) -> None:
        if message.whole:
            self.node.peering.wants_only(peer.name, message.added)
        else:
            self.node.peering.wants(peer.name, message.added, message.removed)
        self.node.peering.has_ready(peer.name, message.ready)
        self._tell(peer, InterestKnown(message.number))

    def _hear_retained(self, peer: Peer, told: Retained) -> None:
        for kept, message in self._retained.newer(told.kept):
            origin = self.peers.get(kept.node, peer)
            missed = partial(self._newcomers.missed, kept, origin.confirmed)
            self.node.keep(message, self.now_ms, missed)
        if told.is_last:
            peer.has_sent_retained = True
            peer.link.greeting = self._greeting(peer.name)

    def _hear_plans(self, peer: Peer, message: PlansUsed) -> None:
        if self._geography is not None:
            self._geography.uses(peer.name, (message.current, message.upcoming), self.now_ms)
            self._tell_plans(self.neighbours.present)

    def _hear_ordered(self, peer: Peer, message: Ordered) -> None:
        self._tell(peer, Settled(message.number))
        self._causal.receive(message.group, message.message, self.now_ms)

    def _hear_settled(self, peer: Peer, message: Settled) -> None:
        self._causal.settled(peer.name, message.number)

    # --- clients that come to another node --------------------------------------------------

    def claim(self, connection: Connection, connect: Connect) -> bool:
        """Find out whether a client has a session elsewhere; False if there is nobody to ask."""
        present = [peer.name for peer in self.neighbours.present]
        away = [name for name, peer in self.peers.items() if peer.connection is None]
        self._homes.now_ms = self.node.state.now_ms
        return self._homes.claim(connection, connect, present, away)

    @property
    def relayed(self) -> int:
        """How many clients here have their sessions elsewhere."""
        return self._homes.relayed

    # --- retained messages ------------------------------------------------------------------

    def restored(self) -> None:
        """Take note of what the node has kept from before; anything said of it since is newer."""
        self._is_restoring = False
        self._first_number = self._interests.number
        self._retained.restored()
        self._contests.restored(self.node.state.now_ms)
        if self._geography is not None:
            self._geography.restored(self.node.state.now_ms)

    # --- places -----------------------------------------------------------------------------

    @property
    def plans(self) -> tuple[int, int]:
        """The versions of the plan in use: current and next, 0 for none."""
        return (0, 0) if self._geography is None else self._geography.layout.versions

    @property
    def handovers(self) -> int:
        """How often a registration went to another holder."""
        return 0 if self._geography is None else self._geography.handovers

    def use_plan(self, plan: NamedPlan, now_ms: int) -> bool:
        """Begin to use a plan; tell whether it is newer than what is in use."""
        self.now_ms = now_ms
        if self._geography is None or not self._geography.use(plan, now_ms):
            return False
        self._tell_plans(self.neighbours.present)
        return True

    def moved(self, session: Session, *, is_sure: bool) -> None:
        """Follow a client."""
        if self._geography is not None:
            self._geography.moved(session, self.node.state.now_ms, is_sure=is_sure)

    def contest(self, message: Message, wish: tuple[int, str], publisher: str) -> bool:
        """Let the best of all nodes be chosen; tell whether there are other nodes to ask."""
        others = [peer.name for peer in self.neighbours.present]
        if not others:
            return False
        self._contests.call(message, wish, publisher, others)
        return True

    @property
    def most_skew_ms(self) -> int:
        """How far clocks may be apart: as far as causal groups allow; 0 if there are none."""
        return self._terms.skew_ms

    @property
    def causal(self) -> CausalCounts:
        """What happened in causal groups."""
        return self._causal.counts

    def ordered(self, route: Route, message: Message, meant: Collection[Session]) -> bool:
        """Send a message to other nodes in causal order; tell whether its topic asks for that."""
        return self._causal.published(route, message, meant, self.node.state.now_ms)

    def _tell_ordered(self) -> None:
        for to, number, group, data in self._causal.take():
            self._tell_named(to, Ordered(number, group, data))

    def published(self, message: Message, event: Event) -> None:
        """Let an event with a place find those near it whose gateways are other nodes."""
        if self._geography is not None:
            self._geography.published(message, event, self.node.state.now_ms)

    def _tell_places(self) -> None:
        if self._geography is None:
            return
        for to, message in self._geography.take(self.now_ms):
            peer = self.neighbours.named(str(to))
            if peer is not None:
                self.neighbours.send(peer, PLACES, encode_place_message(message))

    def _tell_plans(self, peers: Iterable[Peer]) -> None:
        if self._geography is not None:
            used = PlansUsed(*self._geography.layout.versions)
            for peer in peers:
                if peer.used != used:
                    peer.used = used
                    self._tell(peer, used)

    def retained(self, message: Message) -> None:
        """Let the other nodes keep a message that was published here."""
        self._kept.append(self._retained.put(message, self.node.state.now_ms))

    def _tell_kept(self) -> None:
        """Tell what is retained, behind the live messages of the turn: those serve who waits."""
        told, self._kept = encode(Retained(self._kept)), []
        for peer in self.neighbours.present:
            self.neighbours.send(peer, TOLD, told, with_last=True)

    def _open_gates(self) -> None:
        known = min(
            (peer.known for peer in self.neighbours.present), default=self._interests.number
        )
        while self._gates and self._gates[0].number <= known:
            self._gates.popleft().release()


_HANDLERS: dict[type, Callable[[Mesh, Peer, Any], None]] = {
    Interest: Mesh._hear_interest,
    InterestKnown: Mesh._hear_known,
    Retained: Mesh._hear_retained,
    PlansUsed: Mesh._hear_plans,
    Ordered: Mesh._hear_ordered,
    Settled: Mesh._hear_settled,
    Contest: lambda mesh, peer, message: mesh._contests.asked(peer.name, message),
    Bids: lambda mesh, peer, message: mesh._contests.told(peer.name, message),
    Claim: lambda mesh, peer, message: mesh._homes.asked(peer.name, message),
    Claimed: lambda mesh, peer, message: mesh._homes.answered(peer.name, message),
    TunnelOpened: lambda mesh, peer, message: mesh._homes.opened(peer.name, message),
    TunnelClosed: lambda mesh, peer, message: mesh._homes.closed(peer.name, message),
    TunnelPaused: lambda mesh, peer, message: mesh._homes.paused(peer.name, message),
}
