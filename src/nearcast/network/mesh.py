"""One node's part in a network of nodes, without input or output.

For each other node there is a link; over it run the packets of a session (`nearcast.node.peering`)
and what nodes tell each other. The runtime says who the others are, carries frames, and calls
`advance`; outboxes of other nodes are written through `PeerWire`, after the journal like any other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random

from nearcast.model.errors import PeerProtocolError
from nearcast.network.interests import Interests
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
from nearcast.network.messages import (
    SPEAKS,
    Greeting,
    Interest,
    InterestKnown,
    Retained,
    Told,
    decode,
    decode_greeting,
    encode,
)
from nearcast.network.retained import RetainedCopies
from nearcast.node import Connection, Node
from nearcast.node.message import Message
from nearcast.node.session import Subscription

_PACKETS, _TOLD = b"M", b"T"


@dataclass(slots=True)
class Peer:
    """Another node. `problem` says why this node does not work with it, if it does not."""

    name: str
    link: Link
    connection: Connection | None = None
    known: int = 0
    """The last number of this node's interests that it has taken in."""
    problem: str = ""
    heard_ms: int = -1
    """Until when it has surely had everything that this node told it; -1: never."""


@dataclass(slots=True)
class Counts:
    """What a node sent to others and had from them."""

    frames_sent: int = 0
    bytes_sent: int = 0
    frames_received: int = 0
    bytes_received: int = 0
    refused: int = 0
    """Frames from strangers, of another format, or from nodes that do not fit."""


class PeerWire:
    """Where the outbox of another node is written to."""

    def __init__(self, mesh: Mesh, peer: Peer) -> None:
        self._mesh = mesh
        self._peer = peer

    def write(self, chunks: list[bytes]) -> None:
        """Send packets, if the link is still up; if not, the session sends them again."""
        if self._peer.link.is_up:
            self._peer.link.send(_PACKETS + b"".join(chunks))
            self._mesh.mark_grown(self._peer)

    def finish(self) -> None:
        """Break the link off: the node did not understand what came over it."""
        self._mesh.broke(self._peer)


@dataclass(slots=True)
class Gate:
    """An answer to a client that waits until all nodes there know of its subscription."""

    number: int
    release: Callable[[], None] = field(repr=False)


class Mesh:
    """This node among others.

    Contract: while links are up, what clients of one node publish reaches the subscribers of all
    nodes as it would on a single one; a subscription is acknowledged once all nodes that are there
    send what it wants. QoS 1 and 2 wait for nodes that are away.

    Complexity: O(nodes) per change of the set of filters, O(nodes that want it) per publication.
    """

    def __init__(
        self,
        name: str,
        node: Node,
        *,
        random: Random,
        timing: LinkTiming | None = None,
        spaces: str = "",
    ) -> None:
        self.name = name
        self.node = node
        self.counts = Counts()
        self.peers: dict[str, Peer] = {}
        self.now_ms = 0
        self._timing = timing or LinkTiming()
        self._random = random
        self._spaces = spaces
        self._interests = Interests()
        self._retained = RetainedCopies(name)
        self._gates: deque[Gate] = deque()
        self._grown: dict[str, Peer] = {}
        node.join(self)

    # --- who is there -----------------------------------------------------------------------

    def meet(self, name: str, now_ms: int) -> None:
        """Begin to work with another node; no effect if it is known."""
        if name == self.name or name in self.peers:
            return
        self.now_ms = now_ms
        link = Link(self._timing, self._random, b"")
        link.greeting = self._greeting(name)
        self.peers[name] = peer = Peer(name, link)
        link.open(now_ms)
        self.mark_grown(peer)

    def part(self, name: str, now_ms: int) -> None:
        """Stop working with a node that has left for good; what waits for it is dropped."""
        peer = self.peers.pop(name, None)
        if peer is None:
            return
        self.now_ms = now_ms
        self._grown.pop(name, None)
        if peer.connection is not None:
            self.node.peering.detach(peer.connection, now_ms)
        self.node.peering.forget(name, now_ms)
        self._open_gates()

    def _greeting(self, name: str) -> bytes:
        oldest, newest = SPEAKS
        generation = self.node.peering.generation(name)
        return encode(Greeting(self.name, oldest, newest, self._spaces, generation, self.now_ms))

    # --- what the runtime calls -------------------------------------------------------------

    def receive(self, sender: str, data: bytes, now_ms: int) -> None:
        """Take in a frame from another node."""
        self.now_ms = now_ms
        self.counts.frames_received += 1
        self.counts.bytes_received += len(data)
        peer = self.peers.get(sender)
        if peer is None:
            self.counts.refused += 1
            return
        try:
            frame = decode_frame(data)
        except PeerProtocolError as problem:
            self.counts.refused += 1
            peer.problem = str(problem)
            return
        self._carry_out(peer, peer.link.receive(frame, now_ms))
        self.mark_grown(peer)

    def advance(self, now_ms: int) -> None:
        """Do what is due."""
        self.now_ms = now_ms
        for peer in list(self.peers.values()):
            self._carry_out(peer, peer.link.advance(now_ms))
            self.mark_grown(peer)

    def wake_at(self) -> int | None:
        """Say when something is due."""
        times = [peer.link.wake_at() for peer in self.peers.values()]
        return min((at for at in times if at is not None), default=None)

    def take_frames(self) -> list[tuple[str, bytes]]:
        """Return what is to travel, with the name of the node it goes to."""
        self._tell_interests()
        out = []
        for name, peer in self._grown.items():
            for frame in peer.link.take_frames():
                data = encode_frame(frame)
                self.counts.frames_sent += 1
                self.counts.bytes_sent += len(data)
                out.append((name, data))
        self._grown.clear()
        return out

    def mark_grown(self, peer: Peer) -> None:
        """Note that a link may have frames."""
        self._grown[peer.name] = peer

    def broke(self, peer: Peer) -> None:
        """Begin a link anew whose packets made no sense."""
        self._carry_out(peer, peer.link.reset("packets that made no sense", self.now_ms))
        self.mark_grown(peer)

    # --- what links say ---------------------------------------------------------------------

    def _carry_out(self, peer: Peer, happenings: Iterable[Happening]) -> None:
        for one in happenings:
            if type(one) is Arrived:
                self._arrived(peer, one.content)
            elif type(one) is Up:
                if peer.link.is_up:  # else it went down again at once
                    self._came_up(peer, one.greeting)
            else:
                assert type(one) is Down
                self._went_down(peer)

    def _arrived(self, peer: Peer, content: bytes) -> None:
        if peer.connection is None:
            return
        if content[:1] == _PACKETS:
            self.node.receive(peer.connection, content[1:], self.now_ms)
            return
        try:
            self._told(peer, decode(content[1:]))
        except PeerProtocolError as problem:
            peer.problem = str(problem)
            self.counts.refused += 1

    def _came_up(self, peer: Peer, data: bytes) -> None:
        try:
            greeting = decode_greeting(data)
            peer.problem = self._objection(peer, greeting)
        except PeerProtocolError as problem:
            peer.problem = str(problem)
        if peer.problem:
            self.counts.refused += 1
            return
        peer.known = 0
        peer.connection = self.node.peering.attach(peer.name, greeting.generation, self.now_ms)
        peer.connection.transport = PeerWire(self, peer)
        self._tell(peer, self._interests.whole())
        for part in self._retained.since(peer.heard_ms):
            self._tell(peer, part)

    def _objection(self, peer: Peer, greeting: Greeting) -> str:
        oldest, newest = SPEAKS
        if greeting.oldest > newest or greeting.newest < oldest:
            return (
                f"{peer.name} speaks versions {greeting.oldest} to {greeting.newest} of the "
                f"messages between nodes, this node {oldest} to {newest}: upgrade the older one"
            )
        if greeting.spaces != self._spaces:
            return f"{peer.name} has other spaces in its configuration: make them the same"
        return ""

    def _went_down(self, peer: Peer) -> None:
        if peer.connection is not None:
            self.node.peering.detach(peer.connection, self.now_ms)
            peer.connection = None
            peer.heard_ms = self.now_ms - self._timing.silence_ms
        peer.link.greeting = self._greeting(peer.name)
        self._open_gates()

    # --- interests --------------------------------------------------------------------------

    def came(self, subscription: Subscription) -> None:
        """Take note that a client wants something."""
        self._interests.came(subscription)

    def went(self, subscription: Subscription) -> None:
        """Take note that it does not any longer."""
        self._interests.went(subscription)

    def group(self, number: int) -> tuple[str, str] | None:
        """Return the share group and filter behind a number of this node's."""
        return self._interests.groups.get(number)

    def when_known(self, release: Callable[[], None]) -> None:
        """Call `release` once all nodes that are there know what is wanted here by now."""
        number = self._interests.number
        if all(peer.known >= number for peer in self._present()):
            release()
        else:
            self._gates.append(Gate(number, release))

    def _present(self) -> list[Peer]:
        return [peer for peer in self.peers.values() if peer.connection is not None]

    def _tell_interests(self) -> None:
        change = self._interests.take_change()
        if change is not None:
            for peer in self._present():
                self._tell(peer, change)

    def _tell(self, peer: Peer, message: Told) -> None:
        peer.link.send(_TOLD + encode(message))
        self.mark_grown(peer)

    def _told(self, peer: Peer, message: Told) -> None:
        if type(message) is InterestKnown:
            peer.known = max(peer.known, message.number)
            self._open_gates()
            return
        if type(message) is Retained:
            for kept in self._retained.newer(message.kept):
                self.node.keep(kept, self.now_ms)
            return
        assert type(message) is Interest
        if message.whole:
            self.node.peering.wants_only(peer.name, message.added)
        else:
            self.node.peering.wants(peer.name, message.added, message.removed)
        self._tell(peer, InterestKnown(message.number))

    # --- retained messages ------------------------------------------------------------------

    def restored(self) -> None:
        """Take note of what the node has kept from before; anything said of it since is newer."""
        for message in self.node.state.retained.all():
            self._retained.restored(message)

    def retained(self, message: Message) -> None:
        """Let the other nodes keep a message that was published here."""
        told = Retained([self._retained.put(message, self.node.state.now_ms)])
        for peer in self._present():
            self._tell(peer, told)

    def _open_gates(self) -> None:
        known = min((peer.known for peer in self._present()), default=self._interests.number)
        while self._gates and self._gates[0].number <= known:
            self._gates.popleft().release()
