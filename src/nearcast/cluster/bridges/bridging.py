"""Bridges to overlays of peers: which nodes are bridges, and what each node's clients want there.

    peers ~~ overlay ~~ bridge node ──"I am a bridge"──► other nodes
                             ▲                                │
                             └──── boxes of their clients ────┘

A bridge takes a place in the overlay with boxes around what the clients of all nodes want. Of
several bridges to one overlay a single one works, the one with the smallest name that this node is
connected with: so an event crosses once. The others stand by.

Read next: `nearcast/server/overlay/bridge.py`, which carries the messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from nearcast.broker import Broker, Session, SessionSubscription
from nearcast.broker.session.session import BRIDGE_PREFIX
from nearcast.cluster.messages import BridgeHere, ClientBoxesTold
from nearcast.cluster.part import ClusterPart, handles
from nearcast.cluster.peer import PeerNode
from nearcast.cluster.peer_registry import PeerRegistry
from nearcast.index.topic_filters import filters_overlap
from nearcast.model import Space
from nearcast.model import Subscription as Selection
from nearcast.model.errors import PeerProtocolError

if TYPE_CHECKING:  # NumPy stays out of a node without spaces
    from nearcast.overlay.bounds import Bounds
    from nearcast.overlay.live.client_boxes import ClientBoxes

MOST_BOXES = 16
"""How many boxes of a space a node tells, at most."""
LOOSENESS = 0.25


class Bridging(ClusterPart):
    """One node's part: it tells bridges its clients' boxes, and is told them if it is a bridge.

    Complexity: nothing without a bridge; with one, as `ClientBoxes` per subscription and move.
    """

    def __init__(self, name: str, node: Broker, peers: PeerRegistry, spaces: list[Space]) -> None:
        self.federation = ""
        """The overlay to which this node is a bridge; empty: it is none."""
        self.is_changed = False
        """The wishes of clients, or the bridge that works, may have changed (`take`)."""
        self.carrier: object | None = None  # what carries the messages, for metrics
        self._name = name
        self._node = node
        self._peers = peers
        self._spaces = {space.name: space for space in spaces}
        self._bridges: dict[str, str] = {}  # peer to its overlay; connected ones
        self._told: dict[str, dict[str, list[Bounds]]] = {}  # peer to space to boxes
        self._boxes: dict[str, ClientBoxes] = {}  # empty while no bridge is known
        self._keys: dict[SessionSubscription, int] = {}
        self._next_key = 0

    # --- a bridge -----------------------------------------------------------------------------

    def become_bridge(self, federation: str) -> None:
        """Be a bridge to an overlay from now on; call this before there are peers."""
        self.federation = federation
        self._watch()

    @property
    def works(self) -> bool:
        """Whether this node is the bridge that works: the first of those it is connected with."""
        others = (peer for peer, told in self._bridges.items() if told == self.federation)
        return bool(self.federation) and all(self._name < one for one in others)

    def wanted(self, space: str) -> list[Bounds]:
        """Return boxes around what clients of all nodes want of a space, this one included."""
        self.is_changed = False
        found = self._boxes[space].take() if space in self._boxes else []
        for told in self._told.values():
            found += told.get(space, [])
        return found

    # --- the clients of this node -----------------------------------------------------------

    def came(self, subscription: SessionSubscription) -> None:
        """Add the boxes of a subscription."""
        if not self._boxes or subscription.session.client_id.startswith(BRIDGE_PREFIX):
            return
        self._next_key += 1
        self._keys[subscription] = self._next_key
        wanted = _selection_of(subscription)
        for boxes in self._concerned(wanted):
            boxes.add(self._next_key, wanted, subscription.session.position)

    def went(self, subscription: SessionSubscription) -> None:
        """Remove the boxes of a subscription."""
        key = self._keys.pop(subscription, None)
        if key is not None:
            for boxes in self._concerned(_selection_of(subscription)):
                boxes.remove(key)

    def moved(self, session: Session) -> None:
        """Move the boxes of a client's `$near` subscriptions, if it has left them."""
        if not self._boxes:
            return
        for subscription in session.moving.values():
            key = self._keys.get(subscription)
            if key is not None:
                for boxes in self._concerned(_selection_of(subscription)):
                    boxes.move(key, session.position)

    def _concerned(self, wanted: Selection) -> Iterator[ClientBoxes]:
        has_place = wanted.area is not None or wanted.near_m is not None
        for name, space in self._spaces.items():
            is_possible = space.coordinates is not None or not has_place
            if is_possible and filters_overlap(wanted.topic_filter, space.topic_filter):
                yield self._boxes[name]

    def _watch(self) -> None:
        """Keep the boxes of this node's clients from now on; O(subscriptions) the first time."""
        if self._boxes:
            return
        from nearcast.overlay.live.client_boxes import ClientBoxes

        for name, space in self._spaces.items():
            self._boxes[name] = ClientBoxes(space, most=MOST_BOXES, looseness=LOOSENESS)
        for session in self._node.client_sessions():
            for subscription in session.subscriptions.values():
                self.came(subscription)

    # --- peers ------------------------------------------------------------------------------

    def peer_up(self, peer: PeerNode) -> None:
        """Introduce this node to a peer, if it is a bridge."""
        if self.federation:
            self._peers.tell(peer, BridgeHere(self.federation))

    def peer_down(self, peer: PeerNode) -> None:
        """Forget that a peer is a bridge; what its clients want is kept until it is back."""
        self._bridges.pop(peer.name, None)
        self.is_changed = True

    def peer_removed(self, name: str) -> None:
        """Forget a node that has left."""
        self._bridges.pop(name, None)
        self._told.pop(name, None)
        self.is_changed = True

    @handles(BridgeHere)
    def met_bridge(self, peer: PeerNode, message: BridgeHere) -> None:
        """Send a bridge what clients of this node want."""
        self._bridges[peer.name] = message.federation
        self._watch()
        self._tell([peer], self._spaces)
        self.is_changed = True

    @handles(ClientBoxesTold)
    def told(self, peer: PeerNode, message: ClientBoxesTold) -> None:
        """Record what clients of a peer want; PeerProtocolError if a box is none of the space."""
        space = self._spaces.get(message.space)
        if space is None:
            raise PeerProtocolError(f"boxes of {message.space}", expected="a space of this node")
        from nearcast.overlay.bounds import Extent

        extent = Extent(space.extent.lows, space.extent.highs)
        if not all(extent.is_sound(box) for box in message.boxes):
            raise PeerProtocolError(f"boxes of {message.space}", expected="boxes of the space")
        self._told.setdefault(peer.name, {})[space.name] = list(message.boxes)
        self.is_changed = True

    def settle(self) -> None:
        """Send bridges the boxes that have changed."""
        if not self._boxes:
            return
        changed = [name for name, boxes in self._boxes.items() if boxes.is_changed]
        if not changed:
            return
        self.is_changed = True
        bridges = [one for name in self._bridges if (one := self._peers.named(name)) is not None]
        self._tell(bridges, changed)

    def _tell(self, bridges: list[PeerNode], spaces: Iterable[str]) -> None:
        for name in spaces:
            told = ClientBoxesTold(name, self._boxes[name].take())
            for bridge in bridges:
                self._peers.tell(bridge, told)


def _selection_of(subscription: SessionSubscription) -> Selection:
    return subscription.selection or Selection(topic_filter=subscription.topic_filter)
