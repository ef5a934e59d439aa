"""What a node tells others of its clients' subscriptions: how many boxes, how loose, at what cost.

The paper's subscriptions and events, σ = 300. Clients come one after another, then each of them
changes its subscription once, in random order: that is the part that is timed and counted.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearcast.overlay import Bounds, Cover, Extent
from nearcast.papers.content_overlay.experiment import Parameters, event_points, subscriptions

LOOSENESS = (0.0, 0.25, 0.5, 1.0, 2.0)
EXTENT = Extent((0.0, 0.0), (1000.0, 1000.0))
Row = dict[str, Any]


def boxes_of(count: int, seed: int) -> list[Bounds]:
    """Return the paper's subscriptions as boxes."""
    lows, highs = subscriptions(Parameters(peers=count, subscription_sigma=300.0), seed)
    return [
        (tuple(low), tuple(high)) for low, high in zip(lows.tolist(), highs.tolist(), strict=True)
    ]


def inside(points: NDArray[np.float64], boxes: Sequence[Bounds]) -> int:
    """Return how many events lie in at least one box. O(events · boxes)."""
    found = np.zeros(len(points), dtype=bool)
    for low, high in boxes:
        found |= ((points >= low) & (points <= high)).all(axis=1)
    return int(found.sum())


def summary_row(clients: int, looseness: float, seed: int, events: int = 4_000) -> Row:
    """Measure one node with so many clients."""
    boxes = boxes_of(2 * clients, seed)
    held, later = boxes[:clients], boxes[clients:]
    cover = Cover(EXTENT, looseness=looseness)
    for box in held:
        cover.add(box)
    cover.take_changes()
    order = Random(seed).sample(range(clients), clients)
    told = boxes_told = 0
    worst_s, start = 0.0, time.process_time()
    for place in order:
        begun = time.process_time()
        cover.remove(held[place])
        held[place] = later[place]
        cover.add(held[place])
        worst_s = max(worst_s, time.process_time() - begun)
        changes = cover.take_changes()
        told += bool(changes)
        boxes_told += sum(map(abs, changes.values()))
    taken_s = time.process_time() - start
    while not cover.is_settled:
        cover.tidy()
    summary = list(cover.boxes)
    points = event_points(Parameters(events=events), 300.0, seed)
    admitted, wanted = inside(points, summary), inside(points, held)
    return {
        "clients": clients,
        "looseness": looseness,
        "boxes": len(summary),
        "admitted": admitted / events,
        "for_nobody": (admitted - wanted) / max(1, admitted),
        "told_share": told / clients,
        "boxes_told_per_change": boxes_told / clients,
        "us_per_change": taken_s / clients * 1e6,
        "worst_ms": worst_s * 1e3,
    }
