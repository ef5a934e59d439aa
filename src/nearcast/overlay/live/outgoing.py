"""What one peer sends to others in one turn: few messages, in order for each of them.

Events that go the same way to the same seat, and answers to the same peer, become one message. So a
relay that takes events from several connections at once writes, and its neighbours read, one
message instead of many.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from nearcast.overlay.events import EventBatch, together
from nearcast.overlay.live.acknowledged import EventAck
from nearcast.overlay.live.gap_news import GapReport
from nearcast.overlay.messages import Envelope, Events, PeerId

MOST_BYTES = 1 << 15
"""Events with more bytes than these are several messages; a single event may have more. Every peer
takes messages of twice this size, whatever its settings."""
MOST_ACKS = 1_000
_EVENT_BYTES = 64  # beside its payload


class PeerAnswers(NamedTuple):
    """Answers for another peer."""

    acks: list[EventAck]


class GapReports(NamedTuple):
    """News of gaps for a neighbour."""

    gaps: list[GapReport]


Content: TypeAlias = Envelope | PeerAnswers | GapReports
"""What one peer sends to another."""


def size_of(payloads: tuple[bytes, ...]) -> int:
    """Return about how many bytes events take."""
    return sum(map(len, payloads)) + _EVENT_BYTES * len(payloads)


@dataclass(slots=True)
class _Message:
    """A message, and the events of others that go with it."""

    peer: PeerId
    content: Content
    batches: list[EventBatch]
    size: int = 0

    def takes(self, content: Content) -> bool:
        """Add another message to this one, if that is possible."""
        first = self.content
        if isinstance(content, PeerAnswers):
            if not isinstance(first, PeerAnswers):
                return False
            if len(first.acks) + len(content.acks) > MOST_ACKS:
                return False
            first.acks.extend(content.acks)
            return True
        if not (isinstance(content, Envelope) and isinstance(content.body, Events)):
            return False
        return isinstance(first, Envelope) and goes_with(first, content) and self._has_room(content)

    def _has_room(self, envelope: Envelope) -> bool:
        """Add the events of a message on the same way, if the message does not grow too large."""
        assert isinstance(envelope.body, Events)
        batch = envelope.body.batch
        size = self.size + size_of(batch.payloads)
        if self.batches and size > MOST_BYTES:
            return False
        self.batches.append(batch)
        self.size = size
        return True

    def whole(self) -> tuple[PeerId, Content]:
        """Return the receiver, and the message with all that was added."""
        content = self.content
        if len(self.batches) > 1:
            assert isinstance(content, Envelope)
            body = content.body
            assert isinstance(body, Events)
            content = content._replace(body=Events(together(self.batches), body.rising, body.asks))
        return self.peer, content


def goes_with(first: Envelope, other: Envelope) -> bool:
    """Return whether two messages are events from one seat to another, on the same way."""
    one, two = first.body, other.body
    if not (isinstance(one, Events) and isinstance(two, Events)):
        return False
    return first[:2] == other[:2] and (one.rising, one.asks) == (two.rising, two.asks)


class TurnMessages:
    """The messages of one turn.

    Contract: messages to one peer keep their order. Complexity: O(events) in all.
    """

    def __init__(self) -> None:
        self._messages: list[_Message] = []
        self._last: dict[PeerId, _Message] = {}

    def add(self, peer: PeerId, content: Content) -> None:
        """Add a message, to the last one for the same peer if it goes with it."""
        last = self._last.get(peer)
        if last is not None and last.takes(content):
            return
        if isinstance(content, PeerAnswers):
            content = PeerAnswers(list(content.acks))
        message = self._last[peer] = _Message(peer, content, [])
        self._messages.append(message)
        if isinstance(content, Envelope) and isinstance(content.body, Events):
            message.takes(content)

    def take(self) -> list[tuple[PeerId, Content]]:
        """Return the messages, each with its receiver, and begin anew."""
        messages, self._messages = self._messages, []
        self._last.clear()
        return [one.whole() for one in messages]
