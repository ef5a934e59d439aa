"""What a node tells others of its clients' subscriptions: how many boxes, how loose, at what cost.

The paper's subscriptions and events, σ = 300. Clients come one after another, then each of them
changes its subscription once, in random order: that is the part that is timed and counted.
"""

from __future__ import annotations

import time
from random import Random
from typing import Any

from nearcast.overlay import Bounds, Cover, Extent, OverlayEvent, Summary, count_false_positives
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
    summary = Summary(tuple(cover.boxes), clients, 0.0)
    points = event_points(Parameters(events=events), 300.0, seed)
    found = count_false_positives(
        summary,
        held,
        [OverlayEvent.point(place, values) for place, values in enumerate(points.tolist())],
    )
    return {
        "clients": clients,
        "looseness": looseness,
        "boxes": len(summary.boxes),
        "admitted": found.admitted / events,
        "for_nobody": found.share,
        "told_share": told / clients,
        "boxes_told_per_change": boxes_told / clients,
        "us_per_change": taken_s / clients * 1e6,
        "worst_ms": worst_s * 1e3,
    }
