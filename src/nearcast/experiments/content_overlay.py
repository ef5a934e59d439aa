"""Paper 3: content-based publish/subscribe on a peer-to-peer R-tree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from random import Random
from typing import Any

from nearcast.overlay.events import Event
from nearcast.overlay.messages import Delivery, Envelope, Instant, Output
from nearcast.overlay.peer import Peer
from nearcast.overlay.settings import Settings
from nearcast.simulator import Link, Send, World


class OverlayActor:
    """A peer as an actor of the simulated world."""

    def __init__(self, peer: Peer, sent: Counter[str]) -> None:
        self.peer = peer
        self._sent = sent

    def receive(self, message: Envelope, now: Instant) -> Iterable[Any]:
        """Hand a message to the peer."""
        return self.posted(self.peer.receive(message, now))

    def advance(self, now: Instant) -> Iterable[Any]:
        """Let the peer do what is due."""
        return self.posted(self.peer.advance(now))

    def wake_at(self) -> Instant | None:
        """Say when the peer wants waking."""
        return self.peer.wake_at()

    def posted(self, outputs: Sequence[Output]) -> list[Any]:
        """Return the outputs as the world wants them."""
        posted: list[Any] = []
        for output in outputs:
            if type(output) is Envelope:
                self._sent[type(output.body).__name__] += 1
                posted.append(Send(output.to.peer, output))
            else:
                posted.append(output)
        return posted


class SimulatedOverlay:
    """Many peers in one world; `delivered` says who got each event, and how often."""

    def __init__(self, settings: Settings, seed: int, link: Link | None = None) -> None:
        self.settings = settings
        self.world = World(seed, link=link, observer=self._observe, keep_digest=False)
        self.peers: dict[str, Peer] = {}
        self.sent: Counter[str] = Counter()
        self.delivered: dict[Hashable, list[str]] = {}

    def _observe(self, now: Instant, peer_id: Any, output: Any) -> None:
        if isinstance(output, Delivery):
            for event_id in output.batch.ids:
                self.delivered.setdefault(event_id, []).append(peer_id)

    def add(self, peer_id: str, contacts: Iterable[str] = ()) -> Peer:
        """Put a peer into the world."""
        peer = Peer(peer_id, self.settings, Random(f"{self.world.seed}/{peer_id}"), contacts)
        self.peers[peer_id] = peer
        self.world.add(peer_id, OverlayActor(peer, self.sent))
        return peer

    def perform(self, peer_id: str, outputs: Sequence[Output]) -> None:
        """Carry out what a peer returned."""
        actor = self.world.actor(peer_id)
        assert isinstance(actor, OverlayActor)
        self.world.perform(peer_id, actor.posted(outputs))

    def subscribe(self, peer_id: str, lows: Sequence[float], highs: Sequence[float]) -> None:
        """Let a peer subscribe to a box, under the key "box"."""
        self.perform(peer_id, self.peers[peer_id].subscribe("box", lows, highs, self.world.now))

    def publish(self, peer_id: str, events: Sequence[Event]) -> None:
        """Let a peer publish."""
        self.perform(peer_id, self.peers[peer_id].publish(events, self.world.now))

    def leave(self, peer_id: str) -> None:
        """Let a peer say goodbye."""
        self.perform(peer_id, self.peers.pop(peer_id).leave(self.world.now))
        self.world.remove(peer_id)

    def crash(self, peer_id: str) -> None:
        """Let a peer vanish without a word."""
        self.world.crash(peer_id)
        self.world.remove(peer_id)
        del self.peers[peer_id]

    def run(self, duration_ms: int) -> None:
        """Let time pass."""
        self.world.run(self.world.now + duration_ms)
