"""The state that a node keeps of a peer, and the counters of all links."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from nearcast.broker.counters import counter
from nearcast.broker.session.connection import PeerConnection
from nearcast.cluster.links import Link
from nearcast.cluster.messages import PeerVersion, PlansUsed

_FRAME_BYTES = 4 << 20
"""A frame takes no further part above this size."""


@dataclass(slots=True)
class PeerNode:
    """Another node of the cluster, as this node sees it."""

    name: str
    link: Link
    connection: PeerConnection | None = None
    """Of its peer session; None while the link is down or its terms are incompatible."""
    older: PeerConnection | None = None
    """Decodes MQTT 3.1.1 packets that the peer forwards unchanged."""
    parts: list[bytes] = field(default_factory=list)
    """Parts to send at the end of the batch."""
    known: int = 0
    """The last gossip number of this node that the peer confirmed on this link."""
    confirmed: int = 0
    """As `known`, but kept as long as the peer keeps its session for this node."""
    used: PlansUsed | None = None
    """The plans that the peer was last told of."""
    problem: str = ""
    """Why this node does not work with the peer; empty if it does."""
    version: int = 0
    """The newest version of the messages between nodes that both understand."""
    heard_ms: int = -1
    """The peer has received everything that this node sent before this time; -1: unknown."""
    client_address: str = ""
    """The host and port that the peer's clients should use; empty: unknown."""
    is_draining: bool = False
    """Whether the peer is about to end."""
    has_sent_retained: bool = False
    """Whether this process has received all retained messages of the peer."""

    @property
    def owes_retained(self) -> bool:
        """Whether the peer has yet to send its retained messages, and will mark the last one."""
        if self.problem:
            return False
        if self.connection is not None and self.version < PeerVersion.MARKS_LAST_RETAINED:
            return False
        return not self.has_sent_retained

    def begin(self, version: int, *, is_new: bool, wants_retained: bool) -> None:
        """Reset what belongs to one incarnation of the link.

        `is_new`: the peer has lost the session that it kept for this node.
        """
        if is_new:
            self.confirmed = 0
        if is_new or wants_retained:  # it has lost the state that this node sent
            self.heard_ms = -1
        self.version = version
        self.is_draining = False
        self.known = 0
        self.used = None

    def take_parts(self) -> Iterator[bytes]:
        """Yield the parts, joined into as few frames as possible; a part is never split."""
        parts, self.parts = self.parts, []
        start = size = 0
        for at, part in enumerate(parts):
            size += len(part)
            if size >= _FRAME_BYTES:
                yield b"".join(parts[start : at + 1])
                start, size = at + 1, 0
        if size:
            yield b"".join(parts[start:])


@dataclass(slots=True)
class ClusterCounts:
    """Counters of the messages between this node and its peers."""

    messages_sent: int = counter("Messages to peers", "network/messages/sent")
    """Parts of frames: registrations, events, matches; the packets of a batch count as one."""
    frames_sent: int = counter("Frames to peers", "network/frames/sent")
    bytes_sent: int = counter("Bytes to peers", "network/bytes/sent")
    frames_received: int = counter("Frames from peers", "network/frames/received")
    bytes_received: int = counter("Bytes from peers", "network/bytes/received")
    refused: int = counter(
        "Frames from unknown senders or in another format, and peers with incompatible terms",
        "network/frames/refused",
        name="frames_refused",
    )
    redirects_offered: int = counter(
        "Clients that were offered the node that holds their place", "network/redirects/offered"
    )
    redirects_followed: int = counter(
        "Clients that connected to the node that they were offered", "network/redirects/followed"
    )
    plans_proposed: int = counter(
        "Plans that this node proposed because a node was too busy", "network/plans/proposed"
    )
