"""Gaps in the tree, told from neighbour to neighbour, so that publishers send events again.

A part of the tree that has lost its parent misses events, and nobody else knows for how long. So it
is this part that tells, once it has a parent again: "events in this box, since then, may have
passed us by". The news goes along the tree to all peers; publishers send again what they still
keep (`acknowledged.py`).

    publisher ◄── root ◄── host ◄── part that was cut off
                   │
                   └──► other publishers

News is kept as long as events are, and told to each new neighbour too: a publisher that is cut off
itself hears it when its own part has a parent again. Ages travel, not times: clocks differ.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

import msgspec

from nearcast.model.errors import PeerProtocolError
from nearcast.overlay.bounds import Bounds, Extent, union_of
from nearcast.overlay.messages import Instant, PeerId
from nearcast.overlay.seat import Gap

GAP_ID_BYTES = 8
MOST_GAPS = 1_000
"""The most gaps that are remembered, and the most of one message; the oldest are forgotten."""
_TWICE = 2
"""How often each neighbour is told: a connection may break with the news in it."""
_MOST_APART = 16
"""More new gaps than these are one for the publisher, which looks through all that it holds."""
_MOST_AGE_MS = 3_600_000


class GapReport(NamedTuple):
    """A gap as it travels."""

    gap_id: bytes
    box: Bounds
    age_ms: int | None
    """How long ago it began; None: not known."""


_encode = msgspec.msgpack.Encoder().encode
_Corner = tuple[float, ...]
_decode = msgspec.msgpack.Decoder(list[tuple[bytes, tuple[_Corner, _Corner], int | None]]).decode


def encode_gaps(space: int, gaps: Iterable[GapReport]) -> bytes:
    """Return news of gaps as the body of a frame."""
    return bytes((space,)) + _encode(list(gaps))


def decode_gaps(body: bytes, extents: dict[int, Extent]) -> tuple[int, list[GapReport]]:
    """Return the number of the space, and the gaps; PeerProtocolError if they are not valid."""
    extent = extents.get(body[0]) if body else None
    if extent is None:
        raise PeerProtocolError("gaps in an unknown space")
    try:
        found = [GapReport(*one) for one in _decode(memoryview(body)[1:])]
    except (msgspec.MsgspecError, ValueError) as problem:
        raise PeerProtocolError(f"damaged news of gaps ({problem})") from None
    for one in found:
        is_old = one.age_ms is not None and not 0 <= one.age_ms <= _MOST_AGE_MS
        if len(one.gap_id) != GAP_ID_BYTES or is_old or not extent.is_sound(one.box):
            raise PeerProtocolError("a gap that is none", expected="8 bytes, a box, an age")
    if len(found) > MOST_GAPS:
        raise PeerProtocolError(f"{len(found)} gaps", expected=f"at most {MOST_GAPS}")
    return body[0], found


@dataclass(slots=True)
class _Known:
    gap: Gap
    until: Instant
    told: dict[PeerId, int] = field(default_factory=dict)


class GapNews:
    """The gaps that one peer knows of, its own and those that it passes on.

    Contract: each neighbour is told of each gap twice within `keep_ms`, at most every `pause_ms`
    beside the heartbeats.
    Complexity: O(gaps · neighbours) per `take`, which does nothing while there are no gaps.
    """

    def __init__(self, random: Random, keep_ms: int, pause_ms: int) -> None:
        self._random = random
        self._keep_ms, self._pause_ms = keep_ms, pause_ms
        self._known: dict[bytes, _Known] = {}
        self._told_at: Instant | None = None
        self._due: Instant | None = None

    def __len__(self) -> int:
        """Return how many gaps are known."""
        return len(self._known)

    def begin(self, gap: Gap, now: Instant) -> None:
        """Report a gap of this peer."""
        self._keep(self._random.randbytes(GAP_ID_BYTES), gap, now)
        self._tell_soon(now)

    def heard(self, peer: PeerId, reports: Iterable[GapReport], now: Instant) -> list[Gap]:
        """Remember what a neighbour told; return the gaps that are new here, many as one."""
        fresh = []
        for gap_id, box, age_ms in reports:
            known = self._known.get(gap_id)
            if known is None:
                gap = Gap(box, None if age_ms is None else now - age_ms)
                known = self._keep(gap_id, gap, now)
                fresh.append(gap)
            known.told[peer] = _TWICE
        if fresh:
            self._tell_soon(now)
        return fresh if len(fresh) <= _MOST_APART else [_around(fresh)]

    def lost(self, peer: PeerId) -> None:
        """Forget what a peer was told, as its connection is lost: it is told again."""
        for known in self._known.values():
            known.told.pop(peer, None)

    def take(
        self, neighbours: Iterable[PeerId], now: Instant
    ) -> list[tuple[PeerId, list[GapReport]]]:
        """Return what to tell whom; call it at every `wake_at` and at every heartbeat."""
        self._due, self._told_at = None, now
        self._known = {one: known for one, known in self._known.items() if known.until > now}
        found = []
        for peer in neighbours:
            reports = []
            for gap_id, known in self._known.items():
                told = known.told.get(peer, 0)
                if told < _TWICE:
                    known.told[peer] = told + 1
                    reports.append(_report(gap_id, known.gap, now))
            if reports:
                found.append((peer, reports))
        return found

    def wake_at(self) -> Instant | None:
        """Return when `take` is to be called next, before the next heartbeat."""
        return self._due

    def _tell_soon(self, now: Instant) -> None:
        if self._due is None:
            last = self._told_at
            self._due = now if last is None else max(now, last + self._pause_ms)

    def _keep(self, gap_id: bytes, gap: Gap, now: Instant) -> _Known:
        known = self._known[gap_id] = _Known(gap, now + self._keep_ms)
        while len(self._known) > MOST_GAPS:
            del self._known[next(iter(self._known))]
        return known


def _around(gaps: list[Gap]) -> Gap:
    begins = [gap.since for gap in gaps if gap.since is not None]
    since = min(begins) if len(begins) == len(gaps) else None
    return Gap(union_of(gap.box for gap in gaps), since)


def _report(gap_id: bytes, gap: Gap, now: Instant) -> GapReport:
    age_ms = None if gap.since is None else min(max(0, now - gap.since), _MOST_AGE_MS)
    return GapReport(gap_id, gap.box, age_ms)
