"""The simple alternative: every peer knows the boxes of all peers and sends in one hop.

A peer that joins asks one other for its table and sends its boxes to all others; a change is sent
to all; an event goes directly to the peers it concerns. No relays, no events in vain, one hop. The
price is a table of all peers at each peer and n messages for each change. `docs/content-overlay.md`
gives the size from which on the tree is cheaper.

It has the same interface as `OverlayPeer`, so that both run in the same simulation. It does no
repair: a crashed peer stays in the tables until another peer reports it; that makes it look better
than it is.

Read next: `summary.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from nearcast.overlay.bounds import Bounds, Extent
from nearcast.overlay.events import EventBatch, Ints, OverlayEvent, hits, stacked
from nearcast.overlay.messages import EventDelivery, Instant, PeerId


class Announce(NamedTuple):
    """The sender's current boxes; none at all: it leaves. A lower version is older."""

    peer: PeerId
    boxes: tuple[Bounds, ...]
    version: int


class AskTable(NamedTuple):
    """Ask for the receiver's whole table."""

    peer: PeerId


class OneHopTable(NamedTuple):
    """The sender's whole table."""

    entries: tuple[Announce, ...]


class Direct(NamedTuple):
    """Events for the receiver."""

    batch: EventBatch


OneHopBody: TypeAlias = Announce | AskTable | OneHopTable | Direct


class OneHopEnvelope(NamedTuple):
    """A message in flight."""

    to: PeerId
    body: OneHopBody


OneHopOutput: TypeAlias = OneHopEnvelope | EventDelivery


class OneHopPeer:
    """A peer that knows the boxes of all others.

    Complexity: table O(n); `announce` n messages; `publish` O(boxes) and one message per match.
    """

    def __init__(self, peer_id: PeerId, extent: Extent, contacts: Iterable[PeerId] = ()) -> None:
        self.peer_id = peer_id
        self.extent = extent
        self.contacts = tuple(contacts)
        self.known: dict[PeerId, Announce] = {}
        self._version = 0
        self._boxes: tuple[Bounds, ...] = ()
        self._rows: list[PeerId] | None = None

    def join(self, now: Instant) -> list[OneHopOutput]:  # noqa: ARG002 - as OverlayPeer
        """Ask a contact for its table."""
        return [OneHopEnvelope(contact, AskTable(self.peer_id)) for contact in self.contacts[:1]]

    def announce(self, boxes: Iterable[Bounds], now: Instant) -> list[OneHopOutput]:  # noqa: ARG002 - as OverlayPeer
        """Replace this peer's boxes, and send them to all peers."""
        checked = tuple(self.extent.checked(low, high, where="a box") for low, high in boxes)
        self._version += 1
        self._boxes = checked
        news = Announce(self.peer_id, checked, self._version)
        self._note(news)
        others = [peer for peer in self.known if peer != self.peer_id]
        return [OneHopEnvelope(peer, news) for peer in others]

    def publish(self, events: Sequence[OverlayEvent], now: Instant) -> list[OneHopOutput]:  # noqa: ARG002 - as OverlayPeer
        """Send events directly to all peers they concern."""
        batch = EventBatch.of(events, self.extent.dimensions)
        if not events:
            return []
        if self._rows is None:
            self._index()
        assert self._rows is not None
        outputs: list[OneHopOutput] = []
        if not self._rows:
            return outputs
        starts, places, _ = hits(batch.lows, batch.highs, self._lows, self._highs, len(self._rows))
        meant: dict[PeerId, set[int]] = {}
        for row, peer in enumerate(self._rows):
            found = places[starts[row] : starts[row + 1]]
            if len(found):
                meant.setdefault(peer, set()).update(found.tolist())
        for peer, wanted in meant.items():
            part = batch.take(_array(wanted))
            if peer == self.peer_id:
                outputs.append(EventDelivery(part))
            else:
                outputs.append(OneHopEnvelope(peer, Direct(part.sent())))
        return outputs

    def receive(self, body: OneHopBody, now: Instant) -> list[OneHopOutput]:  # noqa: ARG002 - as OverlayPeer
        """Process a message."""
        if isinstance(body, Direct):
            return [EventDelivery(body.batch)]
        if isinstance(body, AskTable):
            return [OneHopEnvelope(body.peer, OneHopTable(tuple(self.known.values())))]
        if isinstance(body, Announce):
            self._note(body)
            return []
        newer = [entry for entry in body.entries if self._note(entry)]
        mine = self.known.get(self.peer_id)
        if mine is None:
            return []
        return [OneHopEnvelope(e.peer, mine) for e in newer if e.peer != self.peer_id]

    def advance(self, now: Instant) -> list[OneHopOutput]:  # noqa: ARG002 - as OverlayPeer
        """Return nothing: nothing is ever due."""
        return []

    def wake_at(self) -> Instant | None:
        """Return None: nothing is ever due."""
        return None

    def _note(self, news: Announce) -> bool:
        before = self.known.get(news.peer)
        if before is not None and before.version >= news.version:
            return False
        self.known[news.peer] = news
        self._rows = None
        return True

    def _index(self) -> None:
        rows = [(peer, box) for peer, entry in self.known.items() for box in entry.boxes]
        self._rows = [peer for peer, _ in rows]
        if rows:
            self._lows, self._highs = stacked([box for _, box in rows])


def _array(places: set[int]) -> Ints:
    return np.array(sorted(places), dtype=np.int64)
