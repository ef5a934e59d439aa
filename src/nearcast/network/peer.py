"""What a node knows of another one, and what it counts of all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from nearcast.network.links import Link
from nearcast.network.messages import PlansUsed
from nearcast.node import Connection

MARKS_LAST_RETAINED = 3
"""The version of the messages between nodes from which on `Retained.is_last` is set."""
_FRAME_BYTES = 4 << 20


@dataclass(slots=True)
class Peer:
    """Another node. `problem` says why this node does not work with it, if it does not."""

    name: str
    link: Link
    connection: Connection | None = None
    older: Connection | None = None
    """What takes packets of MQTT 3.1.1 that come as they are."""
    parts: list[bytes] = field(default_factory=list)
    """What is to travel at the end of the turn."""
    known: int = 0
    """The last number of this node's interests that it has taken in."""
    confirmed: int = 0
    """The same, but not forgotten as long as that node remembers it."""
    used: PlansUsed | None = None
    """What it was told last about plans."""
    problem: str = ""
    version: int = 0
    """Of the messages between nodes: the newest that both understand."""
    heard_ms: int = -1
    """Until when it has surely had everything that this node told it; -1: never."""
    has_sent_retained: bool = False
    """Whether this process has had all retained messages of that node."""

    @property
    def owes_retained(self) -> bool:
        """Whether that node has yet to send its retained messages, and says when it has."""
        if self.problem:
            return False
        if self.connection is not None and self.version < MARKS_LAST_RETAINED:
            return False
        return not self.has_sent_retained

    def take_parts(self) -> Iterator[bytes]:
        """Yield what is to travel in as few frames as that fits into, whole parts each."""
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
class Counts:
    """What a node sent to others and had from them."""

    messages_sent: int = 0
    """What frames carry: registrations, events with a place, matches; packets of a turn are one."""
    frames_sent: int = 0
    bytes_sent: int = 0
    frames_received: int = 0
    bytes_received: int = 0
    refused: int = 0
    """Frames from strangers, of another format, or from nodes that do not fit."""
