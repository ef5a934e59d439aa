"""Spatial routing as a part of the cluster: its messages, its plans, and the broker's calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from nearcast.broker import Broker
from nearcast.broker.publish.message import Message
from nearcast.broker.session.session import Session, SessionSubscription
from nearcast.cluster.messages import LoadReport, MovedPlaces, PlansUsed
from nearcast.cluster.part import ClusterPart, handles
from nearcast.cluster.peer import PeerNode
from nearcast.cluster.peer_registry import PLACES, PeerRegistry
from nearcast.cluster.spatial_routing import SpatialRouting
from nearcast.locality.layout.adapting import AdaptRules
from nearcast.locality.registration.leaf_loads import (
    REPORT_MS,
    LeafLoads,
    PlanProposal,
    PlanProposer,
)
from nearcast.locality.registration.message_codec import decode_place_message, encode_place_message
from nearcast.locality.registration.messages import Timing
from nearcast.locality.registration.plan_assignment import NamedPlan
from nearcast.model import Event, Space


class NoSpatialPart(ClusterPart):
    """The part of a node without a space that has coordinates: nothing has a place."""

    handovers = 0
    """How often a registration moved to another holder."""
    plans = (0, 0)
    """The versions of the plans in use: current and upcoming, 0 for none."""
    load = 0.0
    """The load of the leaves that this node holds, in messages a minute; 0 if it is not watched."""

    def concerns(self, _subscription: SessionSubscription) -> bool:
        """Return whether a subscription has a place, so that holders must know of it."""
        return False

    def came(self, subscription: SessionSubscription, *, is_restored: bool) -> None:
        """Register a subscription with the holders; `is_restored`: it is from the journal."""

    def went(self, subscription: SessionSubscription) -> None:
        """Withdraw a registration."""

    def moved(self, session: Session, /, *, is_sure: bool) -> None:
        """Update the registrations of a client that moved; `is_sure`: the step is acknowledged."""

    def takes(self, _space: Space, /) -> bool:
        """Return whether events of a space are routed by their place."""
        return False

    def published(self, message: Message, event: Event, publisher: Session | None, /) -> None:
        """Route an event with a position to the holders of that place."""

    def receive(self, peer: PeerNode, data: bytes) -> None:
        """Handle a message between gateways and holders."""

    @handles(PlansUsed)
    def plans_used(self, peer: PeerNode, message: PlansUsed) -> None:
        """Record which plans a peer uses."""

    @handles(LoadReport)
    def load_reported(self, peer: PeerNode, message: LoadReport) -> None:
        """Record the load of the leaves that a peer holds."""

    def take_proposal(self) -> PlanProposal | None:
        """Return the adapted plan that this node proposes, once; None if there is none."""
        return None

    def client_places(self, _most: int) -> list[tuple[float, float]]:
        """Return the last positions of clients, at most so many."""
        return []

    def use_plan(self, _plan: NamedPlan, _now_ms: int) -> bool:
        """Start to use a plan; return whether it is newer than those in use."""
        return False

    def pack(self, _session: Session) -> MovedPlaces:
        """Return what the next gateway of a client must know of its places."""
        return MovedPlaces({}, [], [], {})

    def adopt(
        self, _session: Session, _moved: MovedPlaces, finish: Callable[[], object], _now_ms: int
    ) -> None:
        """Register the subscriptions of a session that came from a peer; `finish` adds them."""
        finish()

    def holder_of(self, _place: tuple[float, float]) -> str | None:
        """Return the node that holds a place; None if that is not certain."""
        return None

    def count_with(self, crossed: Callable[[str, str], None]) -> None:
        """Call `crossed` with client and holder for each message between them and this node."""


class SpatialPart(NoSpatialPart):
    """Gateway, outbox and holder of a node (`SpatialRouting`), and the plans of the cluster."""

    def __init__(
        self,
        name: str,
        node: Broker,
        peers: PeerRegistry,
        timing: Timing,
        adapt: AdaptRules | None = None,
    ) -> None:
        self.routing = SpatialRouting(name, node, timing)
        self._name = name
        self._node = node
        self._peers = peers
        self._loads = LeafLoads(name)
        self._proposer = None if adapt is None else PlanProposer(name, adapt)
        self._proposal: PlanProposal | None = None
        self._watch_ms = 0  # when the loads are measured next

    # --- called by the broker and the runtime -----------------------------------------------

    def concerns(self, subscription: SessionSubscription) -> bool:
        """Return whether a subscription has a place."""
        return self.routing.concerns(subscription)

    def came(self, subscription: SessionSubscription, *, is_restored: bool) -> None:
        """Register a subscription, new or from before a crash."""
        is_older = is_restored or self.routing.is_adopting
        arrive = self.routing.came_back if is_older else self.routing.came
        arrive(subscription, self._node.now_ms)

    def went(self, subscription: SessionSubscription) -> None:
        """Withdraw a registration."""
        self.routing.went(subscription, self._node.now_ms)

    def moved(self, session: Session, /, *, is_sure: bool) -> None:
        """Move a client's registrations."""
        self.routing.moved(session, self._node.now_ms, is_sure=is_sure)

    def takes(self, space: Space, /) -> bool:
        """Return whether a space has coordinates."""
        return space.coordinates is not None

    def published(self, message: Message, event: Event, publisher: Session | None, /) -> None:
        """Offer an event to the holders of its place."""
        self.routing.published(message, event, publisher, self._node.now_ms)

    @property
    def handovers(self) -> int:  # type: ignore[override]
        """How often a registration moved to another holder."""
        return self.routing.handovers

    def pack(self, session: Session) -> MovedPlaces:
        """Return what the next gateway of a client must know of its places. O(notes)."""
        return self.routing.pack(session)

    def adopt(
        self, session: Session, moved: MovedPlaces, finish: Callable[[], object], now_ms: int
    ) -> None:
        """Register the subscriptions of a session as after a crash, with what it has had."""
        self.routing.adopt(session, moved, finish, now_ms)

    def holder_of(self, place: tuple[float, float]) -> str | None:
        """Return the node that holds a place by the plan; None without one, or with two."""
        holder = self.routing.holder_of(place)
        return None if holder is None else str(holder)

    def count_with(self, crossed: Callable[[str, str], None]) -> None:
        """Call `crossed` with client and holder for each message between them and this node."""
        self.routing.count_with(lambda client, node: crossed(client, str(node)))

    # --- peers and messages -----------------------------------------------------------------

    def peer_added(self, peer: PeerNode) -> None:
        """Count a new peer among the holders, although it is not connected yet."""
        self.routing.lost(peer.name, self._peers.now_ms)
        self.routing.know(self._peers.peers, self._peers.now_ms)

    def peer_up(self, peer: PeerNode) -> None:
        """Announce the plans in use, and resend what the peer has not acknowledged."""
        self._tell_plans([peer])
        self.routing.back(peer.name, self._peers.now_ms)

    def peer_down(self, peer: PeerNode) -> None:
        """Record when the peer was lost: after a while another node stands in for it."""
        self.routing.lost(peer.name, self._peers.now_ms)

    def peer_removed(self, _name: str) -> None:
        """Assign the places of a peer that has left to the nodes that remain."""
        self.routing.know(self._peers.peers, self._peers.now_ms)

    def receive(self, _peer: PeerNode, data: bytes) -> None:
        """Handle a message between gateways and holders."""
        self.routing.receive(decode_place_message(data), self._peers.now_ms)

    def settle(self) -> None:
        """Queue the messages for gateways and holders at other nodes."""
        for to, message in self.routing.take(self._peers.now_ms):
            self._peers.send_named(str(to), PLACES, encode_place_message(message))

    def advance(self, now_ms: int) -> None:
        """Run everything that is due at `now_ms`."""
        self.routing.advance(now_ms)
        if self._proposer is not None and now_ms >= self._watch_ms:
            self._watch_ms = now_ms + REPORT_MS
            self._watch_loads(self._proposer, now_ms)

    def wake_at(self) -> int | None:
        """Return when `advance` is due next; None if nothing is scheduled."""
        at = self.routing.wake_at()
        if self._proposer is None or self.routing.layout.current is None:
            return at
        return self._watch_ms if at is None else min(at, self._watch_ms)

    def restored(self, now_ms: int) -> None:
        """Restore plans and events from the journal."""
        self.routing.restored(now_ms)

    def leave(self, now_ms: int) -> None:
        """Offer events that only this node holds to other holders."""
        self.routing.leave(now_ms)

    @property
    def is_pending(self) -> bool:
        """Whether registrations, events or matches are not acknowledged."""
        return self.routing.awaits_acks

    # --- plans ------------------------------------------------------------------------------

    @property
    def plans(self) -> tuple[int, int]:  # type: ignore[override]
        """The versions of the plans in use: current and upcoming, 0 for none."""
        return self.routing.layout.versions

    def use_plan(self, plan: NamedPlan, now_ms: int) -> bool:
        """Start to use a plan, and tell the peers; return whether it is newer."""
        if not self.routing.use(plan, now_ms):
            return False
        self._tell_plans(self._peers.present)
        return True

    @handles(PlansUsed)
    def plans_used(self, peer: PeerNode, message: PlansUsed) -> None:
        """Record which plans a peer uses, and announce it if this node changed its own."""
        self.routing.uses(peer.name, (message.current, message.upcoming), self._peers.now_ms)
        self._tell_plans(self._peers.present)

    def _tell_plans(self, peers: Iterable[PeerNode]) -> None:
        used = PlansUsed(*self.plans)
        for peer in peers:
            if peer.used != used:
                peer.used = used
                self._peers.tell(peer, used)

    # --- loads ------------------------------------------------------------------------------

    def _watch_loads(self, proposer: PlanProposer, now_ms: int) -> None:
        """Measure the leaves of this node; report them to the first node, or propose as that."""
        plan = self.routing.layout.current
        if plan is None:
            return
        locality = self.routing.locality
        loads = self._loads.measure(locality.holder, plan, now_ms)
        self.load = sum(loads.values())
        present = [peer.name for peer in self._peers.present]
        first = min([self._name, *present])
        if first != self._name:
            self._peers.tell_named(first, LoadReport(plan.version, loads))
            return
        proposer.report(self._name, plan.version, loads, now_ms)
        found = proposer.propose(plan, present, now_ms, is_changing=locality.is_changing)
        if found is not None:
            self._peers.counts.plans_proposed += 1
            self._proposal = found

    @handles(LoadReport)
    def load_reported(self, peer: PeerNode, message: LoadReport) -> None:
        """Record the load of the leaves that a peer holds."""
        if self._proposer is not None:
            self._proposer.report(peer.name, message.plan, message.loads, self._peers.now_ms)

    def take_proposal(self) -> PlanProposal | None:
        """Return the adapted plan that this node proposes, once; None if there is none."""
        found, self._proposal = self._proposal, None
        return found

    def client_places(self, most: int) -> list[tuple[float, float]]:
        """Return the last positions of clients, at most so many."""
        return self.routing.client_places(most)

    @property
    def waits_for(self) -> str:
        """Why this node cannot propose a plan just now; empty if it can, or is not to."""
        return "" if self._proposer is None else self._proposer.waits_for
