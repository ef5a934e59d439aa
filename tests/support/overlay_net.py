"""Members of an overlay in virtual time, over links with a delay that may break."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from itertools import count
from random import Random
from typing import Any

from nearcast.overlay import Extent, Settings
from nearcast.overlay.bounds import Bounds
from nearcast.overlay.live.codec import EnvelopeDecoder, FrameReader, encode_envelope
from nearcast.overlay.live.member import NewEvent, OverlayMember
from nearcast.overlay.messages import Envelope

SQUARE = Extent((0.0, 0.0), (100.0, 100.0))
SETTINGS = Settings(SQUARE)


class OverlayNet:
    """Peers by name; `now` is in milliseconds. What they send goes through the codec."""

    def __init__(
        self,
        seed: int,
        *,
        delay_ms: tuple[int, int] = (1, 5),
        loss: float = 0.0,
        settings: Settings = SETTINGS,
    ) -> None:
        self.random = Random(seed)
        self.now = 0
        self.settings = settings
        self.peers: dict[str, OverlayMember] = {}
        self.got: dict[str, list[bytes]] = {}
        self.messages = 0
        self.cut: set[frozenset[str]] = set()
        self._delay_ms, self._loss = delay_ms, loss
        self._queue: list[tuple[int, int, str, str, Any]] = []
        self._order = count()
        self._last: dict[tuple[str, str], int] = {}

    def add(
        self, name: str, boxes: Iterable[Bounds], contacts: Iterable[str] = ()
    ) -> OverlayMember:
        member = OverlayMember(name, self.settings, Random(self.random.random()))
        member.meet(contacts)
        self.peers[name] = member
        self.got.setdefault(name, [])
        member.set_boxes(boxes, self.now)
        self._carry(name)
        return member

    def kill(self, name: str) -> None:
        """End a peer without a word; its neighbours see the connection break."""
        del self.peers[name]
        for other in list(self.peers):
            self.peers[other].lost(name, self.now)
            self._carry(other)

    def publish(self, name: str, point: tuple[float, float], payload: bytes, *, sure: bool) -> None:
        assert self.peers[name].publish([NewEvent((point, point), payload, sure)], self.now)
        self._carry(name)

    def run(self, ms: int) -> None:
        end = self.now + ms
        while True:
            wakes = [
                (at, name)
                for name, peer in self.peers.items()
                if (at := peer.wake_at()) is not None
            ]
            at = min([*(one[0] for one in wakes), *(one[0] for one in self._queue[:1]), end])
            self.now = max(self.now, at)
            if at >= end:
                return
            for due, name in wakes:
                if due <= self.now:
                    self.peers[name].advance(self.now)
                    self._carry(name)
            while self._queue and self._queue[0][0] <= self.now:
                _, _, sender, to, content = heapq.heappop(self._queue)
                self._deliver(sender, to, content)

    def _deliver(self, sender: str, to: str, content: Any) -> None:
        peer = self.peers.get(to)
        if peer is None or frozenset((sender, to)) in self.cut:
            return
        if isinstance(content, bytes):
            [(kind, body)] = FrameReader().read(content)
            _, envelope = EnvelopeDecoder(to, {0: SQUARE}).decode(kind, body)
            peer.receive(envelope, self.now, sender)
        else:
            peer.answered(sender, content, self.now)
        self._carry(to)

    def _carry(self, name: str) -> None:
        peer = self.peers[name]
        for to, content in peer.take_out():
            self.messages += 1
            if self._loss and self.random.random() < self._loss:
                continue
            at = self.now + self.random.randint(*self._delay_ms)
            at = max(at, self._last.get((name, to), 0))  # links keep their order
            self._last[name, to] = at
            sent = encode_envelope(0, content) if isinstance(content, Envelope) else content
            heapq.heappush(self._queue, (at, next(self._order), name, to, sent))
        self.got[name] += [one.payload for one in peer.take_arrivals()]
