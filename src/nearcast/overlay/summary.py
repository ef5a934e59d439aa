"""A summary: a few boxes around many, to represent the subscriptions of a broker's clients.

Boxes that others cover are dropped; boxes are then merged pair by pair, the least wasteful first,
as long as no merged box is more than `looseness` larger than the union of its originals. Events
that fall into the waste are false positives: they reach the node although no client wants them.
They are counted.

Read next: `docs/content-overlay.md`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nearcast.model.errors import LimitError, OutOfRangeError
from nearcast.overlay.bounds import Bounds, Extent, covers, overlap, union
from nearcast.overlay.events import OverlayEvent, hits, stacked

CHUNK = 256
"""Boxes are merged among at most this many neighbours, so that many boxes do not cost n²."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Boxes that cover all subscriptions of a node."""

    boxes: tuple[Bounds, ...]
    originals: int
    waste: float
    """Upper bound of the share of the summary's volume that covers no subscription."""


@dataclass(frozen=True, slots=True)
class FalsePositives:
    """How well a summary did on some events."""

    events: int
    admitted: int
    """Events that the summary admits."""
    wanted: int
    """Events that some subscription wants; all of them are admitted."""

    @property
    def false(self) -> int:
        """Return how many were admitted although nobody wanted them."""
        return self.admitted - self.wanted

    @property
    def share(self) -> float:
        """Return the share of the admitted events that nobody wanted."""
        return self.false / self.admitted if self.admitted else 0.0


@dataclass(slots=True)
class _Cluster:
    box: Bounds
    covered: float
    """A lower bound of the volume that the originals cover."""


def summarise(
    boxes: Iterable[Bounds], extent: Extent, *, looseness: float, most: int | None = None
) -> Summary:
    """Merge boxes up to a looseness: 0 only drops covered boxes, 1 may double the volume.

    For every box of the summary: volume ≤ (1 + looseness) · volume covered by its originals. So
    of evenly spread events in it at most looseness / (1 + looseness) are false positives.
    With `most`, merging continues beyond the looseness until at most so many boxes are left.
    Complexity: O(m · CHUNK log CHUNK) for m boxes.

    >>> extent = Extent((0.0,), (100.0,))
    >>> summarise([((0.0,), (10.0,)), ((10.0,), (20.0,)), ((2.0,), (4.0,))], extent, looseness=0.1)
    Summary(boxes=(((0.0,), (20.0,)),), originals=3, waste=0.0)
    """
    if not looseness >= 0.0:
        raise OutOfRangeError(repr(looseness), where="looseness", expected="a number from 0")
    if most is not None and most < 1:
        raise LimitError(repr(most), where="most", expected="at least one box")
    originals = list(boxes)
    for low, high in originals:
        extent.checked(low, high, where="a subscription's box")
    ordered = sorted(set(originals), key=lambda box: (-extent.volume(box), box))
    clusters = [_Cluster(box, extent.volume(box)) for box in _uncovered(ordered)]
    clusters.sort(key=lambda cluster: cluster.box)
    merged = _merge_chunks(clusters, extent, looseness)
    while most is not None and len(merged) > most:
        merged = _merge(merged, extent, float("inf"), most)
    total = sum(extent.volume(cluster.box) for cluster in merged)
    covered = sum(min(cluster.covered, extent.volume(cluster.box)) for cluster in merged)
    waste = max(0.0, 1.0 - covered / total) if total else 0.0
    return Summary(tuple(c.box for c in merged), len(originals), round(waste, 12))


def _uncovered(ordered: list[Bounds]) -> list[Bounds]:
    """Return the boxes that no larger one covers."""
    kept: list[Bounds] = []
    for box in ordered:
        if not any(covers(other, box) for other in kept):
            kept.append(box)
    return kept


def _merge_chunks(clusters: list[_Cluster], extent: Extent, looseness: float) -> list[_Cluster]:
    while True:
        before = len(clusters)
        merged: list[_Cluster] = []
        for start in range(0, before, CHUNK):
            merged += _merge(clusters[start : start + CHUNK], extent, looseness, 1)
        clusters = sorted(merged, key=lambda cluster: cluster.box)
        if len(clusters) == before or before <= CHUNK:
            return clusters


def _merge(
    clusters: Sequence[_Cluster], extent: Extent, looseness: float, least: int
) -> list[_Cluster]:
    """Merge the least wasteful pair repeatedly, while the looseness allows it."""
    alive = dict(enumerate(clusters))
    queue: list[tuple[float, int, int]] = []
    for place in alive:
        _queue_pairs(queue, alive, place, range(place + 1, len(clusters)), extent, looseness)
    fresh = len(clusters)
    while queue and len(alive) > least:
        _, first, second = heapq.heappop(queue)
        if first not in alive or second not in alive:
            continue
        alive[fresh] = _joined(alive.pop(first), alive.pop(second), extent)
        _queue_pairs(queue, alive, fresh, [p for p in alive if p != fresh], extent, looseness)
        fresh += 1
    return list(alive.values())


def _queue_pairs(
    queue: list[tuple[float, int, int]],
    alive: dict[int, _Cluster],
    place: int,
    others: Iterable[int],
    extent: Extent,
    looseness: float,
) -> None:
    for other in others:
        both = _joined(alive[place], alive[other], extent)
        excess = extent.volume(both.box) / both.covered - 1.0
        if excess <= looseness + 1e-12:
            heapq.heappush(queue, (excess, place, other))


def _joined(a: _Cluster, b: _Cluster, extent: Extent) -> _Cluster:
    both = overlap(a.box, b.box)
    twice = extent.volume(both) if both is not None else 0.0
    covered = max(a.covered + b.covered - twice, a.covered, b.covered)
    return _Cluster(union(a.box, b.box), covered)


def count_false_positives(
    summary: Summary, boxes: Sequence[Bounds], events: Sequence[OverlayEvent]
) -> FalsePositives:
    """Count the events that a summary admits and nobody wants; O(events · boxes)."""
    if not events:
        return FalsePositives(0, 0, 0)
    lows, highs = stacked([(event.lows, event.highs) for event in events])
    admitted, wanted = (
        len(events) - hits(lows, highs, *stacked(some), len(some))[2] if some else 0
        for some in (summary.boxes, boxes)
    )
    return FalsePositives(len(events), int(admitted), int(wanted))
