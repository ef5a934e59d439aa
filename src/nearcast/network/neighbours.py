"""The other nodes, and the links to them: frames in and out, and the parts that a frame carries.

a turn's parts ──► as few frames as they fit into ──► link ──► the other node's link ──► parts
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from random import Random
from struct import Struct
from typing import Protocol

from nearcast.model.errors import PeerProtocolError
from nearcast.network.links import (
    Arrived,
    Down,
    Happening,
    Link,
    LinkTiming,
    Up,
    decode_frame,
    encode_frame,
)
from nearcast.network.peer import Counts, Peer
from nearcast.node import Connection
from nearcast.node.connection import AS_IT_IS

PACKETS, OLDER, TOLD, PLACES, TUNNELS = b"M", b"O", b"T", b"P", b"D"
"""What a part is: packets of MQTT 5, or of 3.1.1 as they are; what nodes tell each other; what
gateways and holders of places do; what clients say whose sessions are elsewhere."""
_SIZE = Struct("<I")


class Listener(Protocol):
    """Who is told what happens on links."""

    def came_up(self, peer: Peer, greeting: bytes, /) -> None:
        """Take note that a link is up, and of what the other node said first."""

    def went_down(self, peer: Peer, /) -> None:
        """Take note that a link is down: what had not arrived is lost."""

    def take_part(self, peer: Peer, kind: bytes, part: bytes, /) -> None:
        """Take in what another node sent; each part once and in order."""


class PeerWire:
    """Where the outbox of another node is written to, as long as its link has not begun anew."""

    def __init__(self, neighbours: Neighbours, peer: Peer, connection: Connection) -> None:
        self._neighbours = neighbours
        self._peer = peer
        self._connection = connection

    def write(self, chunks: list[bytes]) -> None:
        """Send packets, if the link is still up; if not, the session sends them again."""
        if self._peer.connection is not self._connection:
            return
        for is_older, some in groupby(chunks, _is_older):
            if is_older:
                self._neighbours.send(self._peer, OLDER, b"".join([one[1:] for one in some]))
            else:
                self._neighbours.send(self._peer, PACKETS, b"".join(some))

    def pause_reading(self) -> None:
        """Do nothing: links have a flow control of their own."""

    def resume_reading(self) -> None:
        """Do nothing."""

    def finish(self) -> None:
        """Break the link off: the node did not understand what came over it."""
        if self._peer.connection is self._connection:
            self._neighbours.begin_anew(self._peer.name, "packets that made no sense")


def _is_older(chunk: bytes) -> bool:
    return chunk[:1] == AS_IT_IS


class Neighbours:
    """The nodes that this one works with, by name, there or away.

    Complexity: O(bytes) a frame; `wake_at` and `advance` O(nodes).
    """

    def __init__(self, timing: LinkTiming, random: Random, listener: Listener) -> None:
        self.peers: dict[str, Peer] = {}
        self.counts = Counts()
        self.now_ms = 0
        self._timing = timing
        self._random = random
        self._listener = listener
        self._grown: dict[str, Peer] = {}

    @property
    def present(self) -> list[Peer]:
        """Those that are there, and that this node works with."""
        return [peer for peer in self.peers.values() if peer.connection is not None]

    def named(self, name: str) -> Peer | None:
        """Return a node if it is present."""
        peer = self.peers.get(name)
        return None if peer is None or peer.connection is None else peer

    def add(self, name: str, greeting: bytes, now_ms: int) -> Peer:
        """Begin to greet another node."""
        link = Link(self._timing, self._random, b"")
        link.greeting = greeting
        self.peers[name] = peer = Peer(name, link)
        link.open(now_ms)
        self._grown[name] = peer
        return peer

    def remove(self, name: str) -> Peer | None:
        """Forget a node; return what was known of it."""
        self._grown.pop(name, None)
        return self.peers.pop(name, None)

    # --- frames -----------------------------------------------------------------------------

    def receive(self, sender: str, data: bytes, now_ms: int) -> Peer | None:
        """Take in a frame; return whose it is, None if it is a stranger's or makes no sense."""
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
        """Do what is due on links."""
        self.now_ms = now_ms
        for peer in list(self.peers.values()):
            at = peer.link.wake_at()
            if at is not None and at <= now_ms:
                self._carry_out(peer, peer.link.advance(now_ms))
                self._grown[peer.name] = peer

    def wake_at(self) -> int | None:
        """Say when something is due."""
        times = [peer.link.wake_at() for peer in self.peers.values()]
        return min((at for at in times if at is not None), default=None)

    def send(self, peer: Peer, kind: bytes, content: bytes, *, with_last: bool = False) -> None:
        """Let something travel with what else this turn brings; nothing if the link is down.

        `with_last`: in the same frame as what went before, so that nothing comes between them.
        """
        if peer.link.is_up:
            part = kind + _SIZE.pack(len(content)) + content
            if with_last and peer.parts:
                peer.parts[-1] += part
            else:
                peer.parts.append(part)
            self.counts.messages_sent += 1
            self._grown[peer.name] = peer

    def take_frames(self) -> list[tuple[str, bytes]]:
        """Return what is to travel, with the name of the node it goes to; last in a turn."""
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
        """Break a link off and greet again: sessions then send what has not been answered."""
        peer = self.peers.get(name)
        if peer is not None:
            self._carry_out(peer, peer.link.reset(reason, self.now_ms))
            self._grown[name] = peer

    def greet(self, name: str, now_ms: int) -> None:
        """Greet a node at once whose link is down: there is another way to it."""
        peer = self.peers[name]
        if not peer.link.is_up:
            peer.link.open(now_ms)
            self._grown[name] = peer

    def _carry_out(self, peer: Peer, happenings: Iterable[Happening]) -> None:
        for one in happenings:
            if type(one) is Arrived:
                self._arrived(peer, one.content)
            elif type(one) is Up:
                if peer.link.is_up:  # else it went down again at once
                    self._listener.came_up(peer, one.greeting)
            else:
                assert type(one) is Down
                self._listener.went_down(peer)

    def _arrived(self, peer: Peer, content: bytes) -> None:
        """Take all that a turn of another node brought."""
        at = 0
        while at < len(content) and peer.connection is not None:
            start = at + 1 + _SIZE.size
            (size,) = _SIZE.unpack_from(content, at + 1)
            self._listener.take_part(peer, content[at : at + 1], content[start : start + size])
            at = start + size
