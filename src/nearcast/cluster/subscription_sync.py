"""Subscriptions in a cluster: each node tells its peers what its clients want forwarded.

A SUBACK waits until the peers know of the subscription. A subscription with a place goes to the
holders of that place instead (`spatial_part.py`).

Read next: `subscription_gossip.py` (what is announced), `subscribe_race.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from nearcast.broker import Broker
from nearcast.broker.session.session import SessionSubscription
from nearcast.cluster.causal_groups import CausalGroups
from nearcast.cluster.messages import Interest, InterestKnown
from nearcast.cluster.part import ClusterPart, handles
from nearcast.cluster.peer import PeerNode
from nearcast.cluster.peer_registry import PeerRegistry
from nearcast.cluster.session_relay import SessionRelay
from nearcast.cluster.spatial_part import NoSpatialPart
from nearcast.cluster.subscribe_race import SubscribeRace
from nearcast.cluster.subscription_gossip import SubscriptionGossip


@dataclass(slots=True)
class DeferredSuback:
    """A SUBACK that waits until the peers know of the subscription."""

    number: int
    """The gossip number that the peers must have confirmed (`SubscriptionGossip.number`)."""
    release: Callable[[], None] = field(repr=False)
    """Sends the SUBACK."""


class DeferredSubacks(ClusterPart):
    """The SUBACKs that wait, in the order of their numbers.

    A peer that was lost a moment ago is waited for as well: it may still serve publishers, and what
    it accepts before it knows of a subscription is not forwarded here.
    """

    def __init__(
        self, peers: PeerRegistry, gossip: SubscriptionGossip, relay: SessionRelay
    ) -> None:
        self._peers = peers
        self._gossip = gossip
        self._relay = relay
        self._waiting: deque[DeferredSuback] = deque()

    def when_known(self, release: Callable[[], None]) -> None:
        """Call `release` once the peers know all current subscriptions of this node."""
        self._waiting.append(DeferredSuback(self._gossip.number, release))
        self.send_known()

    def send_known(self) -> None:
        """Send the SUBACKs that all peers have confirmed."""
        awaited = (
            peer.known
            for name, peer in self._peers.peers.items()
            if peer.connection is not None or not self._relay.is_lost(name)
        )
        known = min(awaited, default=self._gossip.number)
        while self._waiting and self._waiting[0].number <= known:
            self._waiting.popleft().release()

    def peer_down(self, _peer: PeerNode) -> None:
        """Send what waited for this peer alone, if it is not waited for."""
        self.send_known()

    def peer_removed(self, _name: str) -> None:
        """Send what waited for this peer alone."""
        self.send_known()

    def advance(self, _now_ms: int) -> None:
        """Send what has waited long enough for peers that are lost."""
        self.send_known()

    def wake_at(self) -> int | None:
        """Return when the next disconnected peer counts as lost, while a SUBACK waits."""
        return self._relay.given_up_at(self._peers.peers) if self._waiting else None


class SubscriptionSync(ClusterPart):
    """Announces this node's subscriptions, and sets those of the peer sessions.

    Complexity: O(nodes) per change of the set of filters.
    """

    def __init__(
        self,
        node: Broker,
        peers: PeerRegistry,
        gossip: SubscriptionGossip,
        *,
        race: SubscribeRace,
        subacks: DeferredSubacks,
        spatial: NoSpatialPart,
        causal: CausalGroups,
    ) -> None:
        self._node = node
        self._peers = peers
        self._gossip = gossip
        self._race = race
        self._subacks = subacks
        self._spatial = spatial
        self._causal = causal
        # the journal is being replayed; ends with `restored` or the first peer
        self._is_restoring = True
        self._first_number = 0  # of the gossip, after the journal was replayed

    # --- called by the broker ---------------------------------------------------------------

    def came(self, subscription: SessionSubscription) -> None:
        """Announce a new subscription of a client to the peers."""
        if self._spatial.concerns(subscription):
            for text in self._ordered_topics(subscription):
                self._gossip.want(text)
            self._spatial.came(subscription, is_restored=self._is_restoring)
        else:
            self._gossip.came(subscription)

    def went(self, subscription: SessionSubscription) -> None:
        """Withdraw a subscription that has ended."""
        if self._spatial.concerns(subscription):
            for text in self._ordered_topics(subscription):
                self._gossip.forgo(text)
            self._spatial.went(subscription)
        else:
            self._gossip.went(subscription)

    def _ordered_topics(self, subscription: SessionSubscription) -> list[str]:
        """Return the causal topics that a spatial subscription overlaps.

        The node subscribes to all of each: causal order needs every message of the group.
        """
        return self._causal.filters_of(subscription.topic_filter)

    def newcomer(self, subscription: SessionSubscription) -> None:
        """Remember a new subscription that has been sent this node's retained messages.

        Until all peers know of it, it may miss messages that are retained elsewhere
        (`SubscribeRace`).
        """
        peers = self._peers.peers
        if not peers:
            return
        has_place = self._spatial.concerns(subscription)
        number = self._gossip.mark() if has_place else self._gossip.since(subscription)
        if any(peer.confirmed < number for peer in peers.values()):
            self._race.add(subscription, number, self._node.now_ms)

    # --- peers ------------------------------------------------------------------------------

    def peer_added(self, peer: PeerNode) -> None:
        """Assume that the peer knows the subscriptions of before the restart."""
        self._is_restoring = False
        peer.confirmed = self._first_number

    def peer_up(self, peer: PeerNode) -> None:
        """Announce all subscriptions."""
        self._peers.tell(peer, self._gossip.whole())

    @handles(Interest)
    def announced(self, peer: PeerNode, message: Interest) -> None:
        """Apply a change of a peer's subscriptions and confirm it."""
        peering = self._node.peering
        if message.whole:
            peering.wants_only(peer.name, message.added)
        else:
            peering.wants(peer.name, message.added, message.removed)
        peering.has_ready(peer.name, message.ready)
        self._peers.tell(peer, InterestKnown(message.number))

    @handles(InterestKnown)
    def confirmed(self, peer: PeerNode, message: InterestKnown) -> None:
        """Handle a peer's confirmation of this node's subscriptions."""
        peer.known = max(peer.known, message.number)
        peer.confirmed = max(peer.confirmed, message.number)
        self._race.settle(min(one.confirmed for one in self._peers.peers.values()))
        self._subacks.send_known()

    def frame_begins(self) -> None:
        """Forget which topics the frame before brought live."""
        self._race.begin()

    def settle(self) -> None:
        """Announce the changes of the batch."""
        if self._gossip.has_news:
            change = self._gossip.take_change()
            if change is not None:
                self._peers.tell_all(change)

    def wake_at(self) -> int | None:
        """Return the next millisecond while boxes are being rebuilt."""
        return None if self._gossip.is_settled else self._peers.now_ms + 1

    def restored(self, _now_ms: int) -> None:
        """Take the restored subscriptions for known: later ones are newer."""
        self._is_restoring = False
        self._first_number = self._gossip.number
