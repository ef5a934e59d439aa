"""Frames between workers: acknowledgements share them, and the usual one takes a short way."""

from __future__ import annotations

from random import Random

from nearcast.cluster.links import LinkTiming
from nearcast.cluster.peer import PeerNode
from nearcast.cluster.peer_registry import PACKETS, LinkListener, PeerRegistry

ACKS_MS = 5
"""How long acknowledgements between workers wait for others."""
_MOST_ACKS = 64


class WorkerRegistry(PeerRegistry):
    """Lets acknowledgements between workers wait a moment: then many of them share a frame.

    Nobody waits for them but the other worker's in-flight window. Each frame costs two system calls
    and a turn of the event loop, more than what it carries.
    """

    def __init__(self, timing: LinkTiming, random: Random, listener: LinkListener) -> None:
        super().__init__(timing, random, listener)
        self.waits = False
        """Whether a frame waits: the runtime then calls `hurry` after `ACKS_MS`."""
        self._patient: set[str] = set()  # peers with nothing but acknowledgements to send

    def send_packets(self, peer: PeerNode, chunks: list[bytes]) -> None:
        """Queue MQTT 5 packets; acknowledgements alone may wait."""
        data = b"".join(chunks)
        if not is_acks(data):
            self.send(peer, PACKETS, data)
        elif peer.link.is_up:
            if not (peer.parts or peer.link.has_frames):
                self._patient.add(peer.name)
            super().send(peer, PACKETS, data)

    def send(self, peer: PeerNode, kind: bytes, content: bytes, *, with_last: bool = False) -> None:
        """Queue a part; the peer's frame leaves with this batch."""
        self._patient.discard(peer.name)
        super().send(peer, kind, content, with_last=with_last)

    def hurry(self) -> None:
        """Send what waits with this batch."""
        self._patient.clear()
        self.waits = False

    def take_frames(self) -> list[tuple[str, bytes]]:
        """Return the frames to send; those with acknowledgements alone wait for `hurry`."""
        if not self._grown:
            return []
        if not self._patient:
            return self._only_frame() or super().take_frames()
        waiting = {name: self._grown.pop(name) for name in self._patient if name in self._grown}
        frames = super().take_frames()
        self._grown.update(waiting)
        self.waits = bool(waiting)
        return frames

    def _only_frame(self) -> list[tuple[str, bytes]]:
        """Return the frame of a batch that has one part for one worker; [] if it is not so."""
        if len(self._grown) > 1:
            return []
        ((name, peer),) = self._grown.items()
        if len(peer.parts) != 1 or peer.link.has_frames:
            return []
        data = peer.link.next_frame(peer.parts.pop())
        self.counts.frames_sent += 1
        self.counts.bytes_sent += len(data)
        self._grown.clear()
        return [(name, data)]

    def receive(self, sender: str, data: bytes, now_ms: int) -> PeerNode | None:
        """Handle a frame; most are the next ones with packets, and need no answer of the link."""
        peer = self.peers.get(sender)
        content = None if peer is None else peer.link.next_content(data, now_ms)
        if peer is None or content is None:
            return super().receive(sender, data, now_ms)
        self.now_ms = now_ms
        self.counts.frames_received += 1
        self.counts.bytes_received += len(data)
        self._arrived(peer, content)
        return peer


def is_acks(data: bytes) -> bool:
    """Return whether packets are few plain acknowledgements: PUBACK to PUBCOMP without a reason.

    >>> is_acks(bytes.fromhex("40020001 62020002")), is_acks(bytes.fromhex("30020001"))
    (True, False)
    """
    size = len(data)
    if size > _MOST_ACKS or size & 3:
        return False
    return all(0x40 <= data[at] < 0x80 and data[at + 1] == 2 for at in range(0, size, 4))
