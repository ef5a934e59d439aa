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
from nearcast.overlay.live.gap_news import decode_gaps, encode_gaps
from nearcast.overlay.live.member import NewEvent, OverlayMember
from nearcast.overlay.live.outgoing import PeerAnswers
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
        notices_ends: bool = True,
    ) -> None:
        self.random = Random(seed)
        self.now = 0
        self.settings = settings
        self.peers: dict[str, OverlayMember] = {}
        self.got: dict[str, list[bytes]] = {}
        self.messages = 0
        self.cut: set[frozenset[str]] = set()
        self._delay_ms, self._loss, self._notices_ends = delay_ms, loss, notices_ends
        self._links: set[frozenset[str]] = set()
        self._unreached: dict[tuple[str, str], int] = {}
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
        """End a peer without a word; whoever has a connection to it sees that break.

        Unless `notices_ends`, the machine is gone too: then it is not known that nobody listens.
        """
        del self.peers[name]
        for other in self.peers:
            if frozenset((name, other)) in self._links:
                self._tell_of_end(name, other)

    def _tell_of_end(self, name: str, other: str) -> None:
        """Let a peer see that a connection breaks, and then that it cannot be made again."""
        at = self.now
        for news in ("lost", "ended") if self._notices_ends else ("lost",):
            at += self.random.randint(*self._delay_ms)
            heapq.heappush(self._queue, (at, next(self._order), name, other, news))

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
        if peer is None:
            self._not_reached(sender, to)
            return
        if frozenset((sender, to)) in self.cut:
            return
        if content == "lost":
            peer.lost(sender, self.now)
        elif content == "ended":
            peer.ended(sender, self.now)
        elif isinstance(content, bytes):
            [(kind, body)] = FrameReader().read(content)
            _, envelope = EnvelopeDecoder(to, {0: SQUARE}).decode(kind, body)
            peer.receive(envelope, self.now, sender)
        elif isinstance(content, PeerAnswers):
            peer.answered(sender, content.acks, self.now)
        else:
            _, gaps = decode_gaps(encode_gaps(0, content.gaps), {0: SQUARE})
            peer.heard_of_gaps(sender, gaps, self.now)
        self._carry(to)

    def _not_reached(self, sender: str, to: str) -> None:
        """A peer that is gone is dialled again after two seconds; until then messages are lost."""
        if sender in self.peers and self.now >= self._unreached.get((sender, to), 0):
            self._unreached[sender, to] = self.now + 2_000
            self._tell_of_end(to, sender)

    def _carry(self, name: str) -> None:
        peer = self.peers[name]
        for to, content in peer.take_out():
            self.messages += 1
            if self._loss and self.random.random() < self._loss:
                continue
            at = self.now + self.random.randint(*self._delay_ms)
            at = max(at, self._last.get((name, to), 0))  # links keep their order
            self._last[name, to] = at
            self._links.add(frozenset((name, to)))
            sent = encode_envelope(0, content) if isinstance(content, Envelope) else content
            heapq.heappush(self._queue, (at, next(self._order), name, to, sent))
        self.got[name] += [one.payload for one in peer.take_arrivals()]
