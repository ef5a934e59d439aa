"""The peers and the links to them: frames in and out, and the parts that a frame carries.

    parts of a batch ──► as few frames as possible ──► link ──► the peer's link ──► parts

Read next: `links.py`, `peer.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from random import Random
from struct import Struct
from typing import Protocol

from nearcast.broker import Connection
from nearcast.broker.session.connection import AS_IT_IS
from nearcast.cluster.links import (
    Arrived,
    Down,
    Happening,
    Link,
    LinkTiming,
    Up,
    decode_frame,
    encode_frame,
)
from nearcast.cluster.messages import PeerMessage, encode
from nearcast.cluster.peer import ClusterCounts, PeerNode
from nearcast.model.errors import PeerProtocolError

PACKETS, OLDER, TOLD, PLACES, TUNNELS = b"M", b"O", b"T", b"P", b"D"
"""The kind of a part: MQTT 5 packets; MQTT 3.1.1 packets, unchanged; messages between nodes;
messages between gateways and holders; bytes of tunnels."""
_SIZE = Struct("<I")


class LinkListener(Protocol):
    """Is called when something happens on a link."""

    def greeting(self, name: str, /) -> bytes:
        """Return this node's greeting for a peer."""

    def came_up(self, peer: PeerNode, greeting: bytes, /) -> None:
        """Handle that a link is up; `greeting` is the peer's."""

    def went_down(self, peer: PeerNode, /) -> None:
        """Handle that a link is down: parts in flight are lost."""

    def take_part(self, peer: PeerNode, kind: bytes, part: bytes, /) -> None:
        """Handle a part from a peer; each part arrives once and in order."""


class PeerWire:
    """The transport of a peer's connection, valid until its link restarts."""

    def __init__(self, neighbours: PeerRegistry, peer: PeerNode, connection: Connection) -> None:
        self._neighbours = neighbours
        self._peer = peer
        self._connection = connection

    def write(self, chunks: list[bytes]) -> None:
        """Send packets if the link is still up; otherwise the session sends them again later."""
        if self._peer.connection is not self._connection:
            return
        if len(chunks) == 1:  # one packet, or a run of them
            if _is_older(chunks[0]):
                self._neighbours.send(self._peer, OLDER, chunks[0][1:])
            else:
                self._neighbours.send_packets(self._peer, chunks)
            return
        for is_older, some in groupby(chunks, _is_older):
            if is_older:
                self._neighbours.send(self._peer, OLDER, b"".join([one[1:] for one in some]))
            else:
                self._neighbours.send_packets(self._peer, list(some))

    def pause_reading(self) -> None:
        """Do nothing: the link has its own flow control."""

    def resume_reading(self) -> None:
        """Do nothing: the link has its own flow control."""

    def finish(self) -> None:
        """Restart the link: the broker could not decode the packets that it carried."""
        if self._peer.connection is self._connection:
            self._neighbours.begin_anew(self._peer.name, "packets that made no sense")


def _is_older(chunk: bytes) -> bool:
    return chunk[:1] == AS_IT_IS


class PeerRegistry:
    """The peers of this node by name, connected or not.

    Complexity: O(bytes) per frame; `wake_at` and `advance` O(nodes).
    """

    def __init__(self, timing: LinkTiming, random: Random, listener: LinkListener) -> None:
        self.peers: dict[str, PeerNode] = {}
        self.counts = ClusterCounts()
        self.now_ms = 0  # time of the current batch
        self.timing = timing
        self._random = random
        self._listener = listener
        self._grown: dict[str, PeerNode] = {}  # dirty: peers that may have frames to send

    @property
    def present(self) -> list[PeerNode]:
        """The connected peers with compatible terms."""
        return [peer for peer in self.peers.values() if peer.connection is not None]

    def named(self, name: str) -> PeerNode | None:
        """Return a peer if it is connected, else None."""
        peer = self.peers.get(name)
        return None if peer is None or peer.connection is None else peer

    def add(self, name: str, now_ms: int) -> PeerNode:
        """Add a peer and start to greet it."""
        greeting = self._listener.greeting(name)
        link = Link(self.timing, self._random, greeting)
        self.peers[name] = peer = PeerNode(name, link)
        link.open(now_ms)
        self._grown[name] = peer
        return peer

    def remove(self, name: str) -> PeerNode | None:
        """Remove a peer and return it; None if it is not known."""
        self._grown.pop(name, None)
        return self.peers.pop(name, None)

    # --- frames -----------------------------------------------------------------------------

    def receive(self, sender: str, data: bytes, now_ms: int) -> PeerNode | None:
        """Handle a frame; return its peer, None if the sender is unknown or the frame invalid."""
        self.now_ms = now_ms
        self.counts.frames_received += 1
        self.counts.bytes_received += len(data)
        peer = self.peers.get(sender)
        if peer is None:
            self.counts.refused += 1
            return None
        try:
            frame = decode_frame(data)
        except PeerProtocolError as problem:
            self.counts.refused += 1
            peer.problem = str(problem)
            return None
        self._carry_out(peer, peer.link.receive(frame, now_ms))
        self._grown[sender] = peer
        return peer

    def advance(self, now_ms: int) -> None:
        """Run everything that is due on the links."""
        self.now_ms = now_ms
        for peer in list(self.peers.values()):
            at = peer.link.wake_at()
            if at is not None and at <= now_ms:
                self._carry_out(peer, peer.link.advance(now_ms))
                self._grown[peer.name] = peer

    def wake_at(self) -> int | None:
        """Return when `advance` is due next; None if nothing is scheduled."""
        times = [peer.link.wake_at() for peer in self.peers.values()]
        return min((at for at in times if at is not None), default=None)

    def send_packets(self, peer: PeerNode, chunks: list[bytes]) -> None:
        """Queue MQTT 5 packets for the end of the batch."""
        self.send(peer, PACKETS, b"".join(chunks))

    def send(self, peer: PeerNode, kind: bytes, content: bytes, *, with_last: bool = False) -> None:
        """Queue a part for the end of the batch; dropped if the link is down.

        `with_last`: in the same frame as the previous part, so that nothing comes between them.
        """
        if peer.link.is_up:
            part = kind + _SIZE.pack(len(content)) + content
            if with_last and peer.parts:
                peer.parts[-1] += part
            else:
                peer.parts.append(part)
            self.counts.messages_sent += 1
            self._grown[peer.name] = peer

    def send_named(self, name: str, kind: bytes, content: bytes) -> None:
        """Queue a part for a peer if it is connected."""
        peer = self.named(name)
        if peer is not None:
            self.send(peer, kind, content)

    def tell(self, peer: PeerNode, message: PeerMessage) -> None:
        """Queue a message for the end of the batch, if the peer's version has it."""
        if message.since <= peer.version:
            self.send(peer, TOLD, encode(message))

    def tell_named(self, name: str, message: PeerMessage) -> None:
        """Queue a message for a peer if it is connected."""
        peer = self.named(name)
        if peer is not None:
            self.tell(peer, message)

    def tell_all(self, message: PeerMessage, *, with_last: bool = False) -> None:
        """Queue a message for all connected peers."""
        data = encode(message)
        for peer in self.present:
            if message.since <= peer.version:
                self.send(peer, TOLD, data, with_last=with_last)

    def take_frames(self) -> list[tuple[str, bytes]]:
        """Return the frames to send, each with the name of its peer; called last in a batch."""
        out = []
        for name, peer in self._grown.items():
            for content in peer.take_parts():
                peer.link.send(content)
            for frame in peer.link.take_frames():
                data = encode_frame(frame)
                self.counts.frames_sent += 1
                self.counts.bytes_sent += len(data)
                out.append((name, data))
        self._grown.clear()
        return out

    # --- links ------------------------------------------------------------------------------

    def begin_anew(self, name: str, reason: str) -> None:
        """Restart a link: sessions then resend what has not been acknowledged."""
        peer = self.peers.get(name)
        if peer is not None:
            self._carry_out(peer, peer.link.reset(reason, self.now_ms))
            self._grown[name] = peer

    def renew_greeting(self, peer: PeerNode) -> None:
        """Change what a peer is greeted with from now on: this node's state has changed."""
        peer.link.greeting = self._listener.greeting(peer.name)

    def greet(self, name: str, now_ms: int) -> None:
        """Greet a peer whose link is down at once, because another transport to it is available."""
        peer = self.peers[name]
        if not peer.link.is_up:
            peer.link.open(now_ms)
            self._grown[name] = peer

    def _carry_out(self, peer: PeerNode, happenings: Iterable[Happening]) -> None:
        for one in happenings:
            if type(one) is Arrived:
                self._arrived(peer, one.content)
            elif type(one) is Up:
                if peer.link.is_up:  # it may have gone down again at once
                    self._listener.came_up(peer, one.greeting)
            else:
                assert type(one) is Down
                self._listener.went_down(peer)

    def _arrived(self, peer: PeerNode, content: bytes) -> None:
        """Handle all parts of a frame."""
        at = 0
        while at < len(content) and peer.connection is not None:
            start = at + 1 + _SIZE.size
            (size,) = _SIZE.unpack_from(content, at + 1)
            self._listener.take_part(peer, content[at : at + 1], content[start : start + size])
            at = start + size
