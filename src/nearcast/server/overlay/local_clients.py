"""Between a broker and the overlay: the clients of one peer are its subscriptions.

The broker reports to it what it would report to a cluster (`ClusterHooks`): subscriptions become a
few boxes, publications become events of the overlay, and events of other peers are delivered to
the broker's clients. A SUBACK waits until the boxes are in the tree, at most `PATIENCE_S`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nearcast.broker import Broker, Connection, Session, SessionSubscription
from nearcast.broker.counters import counter
from nearcast.broker.publish.message import Message
from nearcast.index.topic_filters import filters_overlap
from nearcast.model import Event, MisuseError, Space
from nearcast.model import Subscription as Selection
from nearcast.model.errors import NearcastError
from nearcast.mqtt import Connect
from nearcast.overlay.live.client_boxes import ClientBoxes
from nearcast.overlay.live.member import NewEvent, PeerArrival
from nearcast.server.log_format import RateLimited
from nearcast.server.loop_batches import LoopBatches
from nearcast.server.overlay.spaces import event_box, pack_message, unpack_message

if TYPE_CHECKING:
    from nearcast.broker.publish.routes import Route
    from nearcast.server.overlay.runtime import OverlayRuntime

limited = RateLimited(logging.getLogger("nearcast.overlay"))

PATIENCE_S = 2.0
"""How long a SUBACK waits for the boxes to be in the tree."""


@dataclass(slots=True)
class PeerCounts:
    """Counters of the events between this peer and others."""

    published: int = counter("Events of clients sent into the overlay", name="events_sent")
    refused: int = counter(
        "Events of clients refused, because too many wait for answers", name="events_refused"
    )
    arrived: int = counter("Events of other peers for clients here", name="events_received")
    damaged: int = counter("Events of other peers that could not be read", name="events_damaged")


class LocalClients:
    """What the broker of a peer reports to (`nearcast.broker.state.ClusterHooks`).

    Complexity: O(boxes) per subscription, O(1) per publication.
    """

    is_joined = True

    def __init__(self, node: Broker, *, most_boxes: int, looseness: float) -> None:
        self.counts = PeerCounts()
        self._node = node
        spaces = sorted((one.space for one in node.spaces), key=lambda one: one.name)
        self._spaces = spaces
        self._numbers = {space.name: number for number, space in enumerate(spaces)}
        self._boxes = [ClientBoxes(one, most=most_boxes, looseness=looseness) for one in spaces]
        self._keys: dict[SessionSubscription, int] = {}
        self._next_key = 0
        self._pending: list[list[NewEvent]] = [[] for _ in spaces]
        self._waiting: list[tuple[float, Callable[[], None]]] = []
        self._runtime: OverlayRuntime | None = None
        self._turns: LoopBatches | None = None
        node.join(self)

    @property
    def runtime(self) -> OverlayRuntime | None:
        """The runtime; None before the peer has joined, and while it stops."""
        return self._runtime

    def attach(self, runtime: OverlayRuntime, turns: LoopBatches) -> None:
        """Use a runtime that has joined; the subscriptions of restored sessions come first."""
        self._runtime, self._turns = runtime, turns
        turns.on_taken = self.settle
        self.settle()

    def detach(self) -> None:
        """Use no runtime any more: what clients publish stays here."""
        self._runtime = None

    # --- the broker's calls: subscriptions -----------------------------------------------------

    def came(self, subscription: SessionSubscription) -> None:
        """Add the boxes of a new subscription."""
        self._next_key += 1
        key = self._keys[subscription] = self._next_key
        wanted = subscription.selection or Selection(topic_filter=subscription.topic_filter)
        for number, space in enumerate(self._spaces):
            if self._concerns(wanted, space):
                self._boxes[number].add(key, wanted, subscription.session.position)

    def went(self, subscription: SessionSubscription) -> None:
        """Remove the boxes of a subscription."""
        key = self._keys.pop(subscription, None)
        if key is None:
            return
        for number, space in enumerate(self._spaces):
            wanted = subscription.selection or Selection(topic_filter=subscription.topic_filter)
            if self._concerns(wanted, space):
                self._boxes[number].remove(key)

    @staticmethod
    def _concerns(wanted: Selection, space: Space) -> bool:
        has_place = wanted.area is not None or wanted.near_m is not None
        is_possible = space.coordinates is not None or not has_place
        return is_possible and filters_overlap(wanted.topic_filter, space.topic_filter)

    def moved(self, session: Session, /, *, is_sure: bool) -> None:  # noqa: ARG002 - as all hooks
        """Move the boxes of a client's `$near` subscriptions, if it has left them."""
        for subscription in session.moving.values():
            key = self._keys.get(subscription)
            if key is None or subscription.selection is None:
                continue
            for number, space in enumerate(self._spaces):
                if self._concerns(subscription.selection, space):
                    self._boxes[number].move(key, session.position)

    def when_known(self, release: Callable[[], None], /) -> None:
        """Call `release` once the boxes are in the tree."""
        if self._runtime is None:
            release()
            return
        loop = asyncio.get_running_loop()
        self._waiting.append((loop.time() + PATIENCE_S, release))
        loop.call_later(PATIENCE_S + 0.01, self.release)

    def release(self) -> None:
        """Send the SUBACKs whose boxes are in the tree, or that have waited long enough."""
        if not self._waiting or any(one.is_changed for one in self._boxes):
            return
        is_placed = self._runtime is None or self._runtime.is_placed
        now_s = asyncio.get_running_loop().time()
        ready = [one for until_s, one in self._waiting if is_placed or until_s <= now_s]
        if not ready:
            return
        self._waiting = [] if is_placed else self._waiting[len(ready) :]
        for send in ready:
            send()
        if self._turns is not None:
            self._turns.schedule()

    # --- the broker's calls: events ------------------------------------------------------------

    def takes(self, _space: Space, /) -> bool:
        """Return True: events of all spaces go to other peers."""
        return True

    @property
    def peers(self) -> Mapping[str, object]:
        """The peers that are connected."""
        return {} if self._runtime is None else dict.fromkeys(self._runtime.links.peers)

    def published(self, message: Message, event: Event, publisher: Session | None, /) -> None:  # noqa: ARG002
        """Queue an event for other peers; it leaves at the end of the batch."""
        runtime = self._runtime
        if runtime is None:
            return
        number = self._numbers[event.space.name]
        pending = self._pending[number]
        sure = message.head.qos > 0
        if sure and not runtime.members[number].acks.has_room:
            self.counts.refused += 1
            message.was_refused = True
            return
        payload = pack_message(message, self._node.now_ms)
        pending.append(NewEvent(event_box(event), payload, sure))

    def settle(self) -> None:
        """Send what a batch has brought: boxes first, then events."""
        runtime = self._runtime
        if runtime is None:
            return
        for number, boxes in enumerate(self._boxes):
            if boxes.is_changed:
                runtime.set_boxes(number, boxes.take())
        for number, pending in enumerate(self._pending):
            if pending:
                self._pending[number] = []
                accepted = len(runtime.publish(number, pending))
                self.counts.published += accepted
                self.counts.refused += len(pending) - accepted
        self.release()

    def arrived_events(self, number: int, arrivals: list[PeerArrival]) -> None:
        """Deliver events of other peers to the broker's clients."""
        assert self._turns is not None
        now_ms = self._turns.clock.now_ms()
        for one in arrivals:
            try:
                message = unpack_message(one.payload, self._spaces[number], now_ms)
            except NearcastError as problem:
                self.counts.damaged += 1
                limited.warning("an event of another peer is dropped: %s", problem)
                continue
            self.counts.arrived += 1
            self._node.arrive_whole(message, now_ms)
        self._turns.schedule()

    def contest(self, _message: Message, _wish: tuple[int, str], _publisher: str, /) -> bool:
        """Refuse `$top`: no peer knows the subscribers of all others."""
        raise MisuseError(
            "$top",
            expected="a publication to all that match: peers do not know each other's clients",
            todo="Publish without $top, or use a network of brokers.",
        )

    # --- the broker's calls: what a peer does not do -------------------------------------------

    def claim(self, _connection: Connection, _connect: Connect, /) -> bool:
        """Return False: a session belongs to one peer."""
        return False

    def is_home(self, _identifier: str, /) -> bool:
        """Return True: a session belongs to one peer."""
        return True

    def ordered(self, _route: Route, _message: Message, _meant: Collection[Session], /) -> bool:
        """Return False: there are no causal groups."""
        return False

    def group(self, _number: int, /) -> tuple[str, str] | None:
        """Return None: a share group belongs to one peer."""
        return None

    def newcomer(self, subscription: SessionSubscription, /) -> None:
        """Do nothing: retained messages belong to one peer."""

    def arrived(self, topic: str, /) -> None:
        """Do nothing: retained messages belong to one peer."""

    def there(self, session: Session, /) -> None:
        """Do nothing: a client that comes or goes changes no box."""

    def restored(self) -> None:
        """Do nothing: subscriptions were restored one by one."""

    def retained(self, message: Message, /) -> None:
        """Do nothing: retained messages belong to one peer."""
