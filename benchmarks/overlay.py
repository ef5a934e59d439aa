"""The content overlay against its targets, and beside the one-hop alternative.

Times are processor seconds of this process, so that a busy machine does not count.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

from nearcast.experiments.content_overlay import (
    Parameters,
    event_points,
    grown,
    growth_rows,
    matches,
    onehop_rows,
    publish_all,
    subscriptions,
)
from nearcast.overlay import Method

WIDE = Parameters(subscription_sigma=300.0, event_sigmas=(300.0,), method=Method.EXACT)


def _row(name: str, ours: float, target: str, holds: bool) -> dict[str, Any]:
    return {"name": name, "ours": round(ours, 3), "target": target, "holds": holds}


def joins_and_events(peers: int, events: int) -> list[dict[str, Any]]:
    """Time joins and events in the simulator; check every delivery by a scan."""
    parameters = replace(WIDE, peers=peers, events=events)
    start = time.process_time()
    net = grown(parameters, 1)
    joined_s = time.process_time() - start
    net.reset()
    points = event_points(parameters, 300.0, 1)
    publish_all(net, points, "bench")
    total_s = time.process_time() - start
    right = net.deliveries == matches(*subscriptions(parameters, 1), points)
    limit = 20.0 * (peers * 5 + events) / (3000 * 5 + 40_000)
    name = f"{peers} peers join, {events} events"
    return [
        _row(f"{name}: processor seconds", total_s, f"< {limit:.1f}", total_s < limit),
        _row(f"{name}: of these joining", joined_s, "part of the above", True),
        _row(f"{name}: deliveries are the matches", float(right), "1", right),
    ]


def growth(sizes: tuple[int, ...]) -> list[dict[str, Any]]:
    """Show that hops grow with the logarithm, and where the alternative is cheaper."""
    rows, hops = [], {}
    for peers in sizes:
        parameters = replace(WIDE, peers=peers, events=300)
        (tree,) = growth_rows(parameters, 1)
        hops[peers] = tree["hops_mean"]
        limit = 2.0 * math.log(peers, 3)
        rows.append(
            _row(f"{peers} peers: hops", hops[peers], f"< {limit:.1f}", hops[peers] < limit)
        )
        if peers <= 1000:
            (hop,) = onehop_rows(parameters, 1)
            ratio = tree["messages_per_join"] / hop["messages_per_join"]
            rows.append(
                _row(f"{peers} peers: messages per join / one hop", ratio, "< 1", ratio < 1)
            )
            ratio = tree["copies_per_event"] / max(hop["copies_per_event"], 1e-9)
            rows.append(_row(f"{peers} peers: copies per event / one hop", ratio, "reported", True))
    return rows


def run(quick: bool) -> dict[str, Any]:
    """Run all; quick takes about a minute, full about ten."""
    if quick:
        rows = joins_and_events(300, 4_000) + growth((50, 200))
    else:
        rows = joins_and_events(3_000, 40_000) + growth((100, 1000))
        start = time.process_time()
        (large,) = growth_rows(replace(WIDE, peers=30_000, events=1_000, join_gap_ms=60), 1)
        taken_s = time.process_time() - start
        rows.append(_row("30,000 peers: processor seconds", taken_s, "< 300", taken_s < 300))
        rows.append(_row("30,000 peers: hops", large["hops_mean"], "< 19", large["hops_mean"] < 19))
        right = large["deliveries"] == large["matching"]
        rows.append(_row("30,000 peers: deliveries are the matches", float(right), "1", right))
    return {"name": "overlay", "quick": quick, "rows": rows}


if __name__ == "__main__":
    for row in run(quick=True)["rows"]:
        print(row)
