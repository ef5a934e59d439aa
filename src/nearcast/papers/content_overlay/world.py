"""Overlay peers as actors of the simulated world: join, leave, crash, and counts of messages.

Used by the experiments of paper 3 (`experiment.py`) and by the tests of `nearcast.overlay`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from random import Random
from typing import Any, Generic, TypeVar

from nearcast.overlay import (
    Envelope,
    EventDelivery,
    Output,
    OverlayEvent,
    OverlayPeer,
    Settings,
    size_bytes,
    violations,
)
from nearcast.overlay.messages import GroupHandover
from nearcast.papers.content_overlay.onehop import OneHopEnvelope, OneHopPeer
from nearcast.simulator import Send, SimulatedLink, World

AnyPeer = TypeVar("AnyPeer", OverlayPeer, OneHopPeer)


class OverlayActor(Generic[AnyPeer]):
    """A peer as an actor of the simulated world; counts the messages that it sends."""

    def __init__(
        self, peer: AnyPeer, sent: Counter[str], bytes_sent: Counter[str] | None = None
    ) -> None:
        self.peer: AnyPeer = peer
        self._sent = sent
        self._bytes = bytes_sent

    def receive(self, message: Any, now: int) -> Iterable[Any]:
        """Pass a message to the peer."""
        return self.posted(self.peer.receive(message, now))

    def advance(self, now: int) -> Iterable[Any]:
        """Make the peer do everything that is due."""
        return self.posted(self.peer.advance(now))

    def wake_at(self) -> int | None:
        """Return when `advance` must be called."""
        return self.peer.wake_at()

    def posted(self, outputs: Iterable[Any]) -> list[Any]:
        """Return the peer's outputs as outputs of an actor."""
        posted: list[Any] = []
        for output in outputs:
            if isinstance(output, Envelope):
                self._count(output.body)
                posted.append(Send(output.to.peer, output))
            elif isinstance(output, OneHopEnvelope):
                self._count(output.body)
                posted.append(Send(output.to, output.body))
            else:
                posted.append(output)
        return posted

    def _count(self, body: Any) -> None:
        self._sent[type(body).__name__] += 1
        if self._bytes is not None:
            self._bytes[type(body).__name__] += size_bytes(body)


class SimulatedOverlay:
    """Many peers in one world; `delivered` has for each event the peers that received it."""

    def __init__(
        self,
        settings: Settings,
        seed: int,
        link: SimulatedLink | None = None,
        *,
        weigh: bool = False,
    ) -> None:
        self.settings = settings
        self.world = World(seed, link=link, observer=self._observe, keep_digest=False)
        self.peers: dict[str, OverlayPeer] = {}
        self.sent: Counter[str] = Counter()
        self.bytes_sent: Counter[str] | None = Counter() if weigh else None
        self.delivered: dict[Hashable, list[str]] = {}
        self.deliveries = 0
        self.hops: Counter[int] = Counter()
        self.keep_names = True

    def _observe(self, _now: int, peer_id: Any, output: Any) -> None:
        if isinstance(output, EventDelivery):
            self.deliveries += len(output.batch)
            self.hops.update(output.batch.hops.tolist())
            if self.keep_names:
                for event_id in output.batch.ids:
                    self.delivered.setdefault(event_id, []).append(peer_id)

    def add(self, peer_id: str, contacts: Iterable[str] = ()) -> OverlayPeer:
        """Add a peer to the world."""
        peer = OverlayPeer(peer_id, self.settings, Random(f"{self.world.seed}/{peer_id}"), contacts)
        self.peers[peer_id] = peer
        self.world.add(peer_id, OverlayActor(peer, self.sent, self.bytes_sent))
        return peer

    def perform(self, peer_id: str, outputs: Sequence[Output]) -> None:
        """Process the outputs of a peer."""
        actor = self.world.actor(peer_id)
        assert isinstance(actor, OverlayActor)
        self.world.perform(peer_id, actor.posted(outputs))

    def subscribe(self, peer_id: str, lows: Sequence[float], highs: Sequence[float]) -> None:
        """Make a peer subscribe to a box, under the key "box"."""
        self.perform(peer_id, self.peers[peer_id].subscribe("box", lows, highs, self.world.now))

    def change(self, peer_id: str, lows: Sequence[float], highs: Sequence[float]) -> None:
        """Make a peer change its box."""
        self.perform(peer_id, self.peers[peer_id].change("box", lows, highs, self.world.now))

    def publish(self, peer_id: str, events: Sequence[OverlayEvent]) -> None:
        """Make a peer publish events."""
        self.perform(peer_id, self.peers[peer_id].publish(events, self.world.now))

    def leave(self, peer_id: str) -> None:
        """Make a peer leave with notice."""
        self.perform(peer_id, self.peers.pop(peer_id).leave(self.world.now))
        self.world.remove(peer_id)

    def crash(self, peer_id: str) -> None:
        """Remove a peer without notice."""
        self.world.crash(peer_id)
        self.world.remove(peer_id)
        del self.peers[peer_id]

    def run(self, duration_ms: int) -> None:
        """Run the world for `duration_ms`."""
        self.world.run(self.world.now + duration_ms)

    def rest(self, most_beats: int = 30) -> int:
        """Run heartbeat by heartbeat until no group changes its parent and the tree is valid.

        Returns the number of heartbeats.
        """
        for beats in range(most_beats):
            before = self.sent[GroupHandover.__name__]
            self.run(self.settings.beat_ms + 100)
            if self.sent[GroupHandover.__name__] == before and not violations(self.peers.values()):
                return beats
        return most_beats

    def reset(self) -> None:
        """Reset all counts."""
        self.deliveries = 0
        self.hops.clear()
        self.delivered.clear()
        for peer in self.peers.values():
            for seat in peer.seats.values():
                seat.tally = type(seat.tally)()
