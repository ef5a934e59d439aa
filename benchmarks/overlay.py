"""The content overlay against its targets, and beside the one-hop alternative.

Times are processor seconds of this process, so that a busy machine does not count.
`overlay_sizes.py` compares both as a network of brokers would use them, `overlay_summaries.py` has
what a node tells of its clients.

    python -m benchmarks.overlay --full
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import replace
from typing import Any

from benchmarks.overlay_sizes import sizes_row
from benchmarks.overlay_summaries import LOOSENESS, summary_row

from nearcast.overlay import Method
from nearcast.papers.content_overlay.experiment import (
    Parameters,
    event_points,
    grown,
    growth_rows,
    matches,
    onehop_rows,
    publish_all,
    subscriptions,
)

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


def beside_one_hop(sizes: tuple[int, ...], clients: int) -> list[dict[str, Any]]:
    """Compare a network of brokers in a tree with one that goes one hop."""
    rows = []
    for nodes in sizes:
        found = sizes_row(nodes, clients, 1, changes=60, events=200)
        name = f"{nodes} nodes of {clients} clients"
        for what, ours, other in (
            ("messages per change", "tree_messages_per_change", "hop_messages_per_change"),
            ("bytes per change", "tree_bytes_per_change", "hop_bytes_per_change"),
            ("copies per event", "tree_copies_per_event", "hop_copies_per_event"),
            ("latency in ms", "tree_latency_ms", "hop_latency_ms"),
            ("table entries", "tree_table_mean", "hop_table"),
        ):
            told = f"one hop: {found[other]:.2f}"
            rows.append(_row(f"{name}: {what}, tree", found[ours], told, True))
        wins = found["q_messages"]
        rows.append(_row(f"{name}: events a change below which the tree wins", wins, "", True))
        right = found["missed_per_event"] == 0
        rows.append(_row(f"{name}: missed per event", found["missed_per_event"], "0", right))
    return rows


def summaries(counts: tuple[int, ...], loosenesses: tuple[float, ...]) -> list[dict[str, Any]]:
    """Measure what a node tells of its clients, and what a change of a subscription costs."""
    rows = []
    for clients in counts:
        for looseness in loosenesses:
            found = summary_row(clients, looseness, 1)
            name = f"{clients} clients, looseness {looseness:g}"
            rows.append(_row(f"{name}: boxes", found["boxes"], "reported", True))
            share = found["for_nobody"]
            rows.append(_row(f"{name}: share that comes for nobody", share, "reported", True))
            told = found["told_share"]
            rows.append(_row(f"{name}: share of changes that is told", told, "reported", True))
            taken_us = found["us_per_change"]
            rows.append(_row(f"{name}: µs per change", taken_us, "< 1000", taken_us < 1000))
    return rows


def run(quick: bool) -> dict[str, Any]:
    """Run all; quick takes about a minute, full about fifteen."""
    if quick:
        rows = joins_and_events(300, 4_000) + growth((50, 200))
        rows += summaries((30, 300), (0.0, 0.25)) + beside_one_hop((4, 16), 5)
    else:
        rows = joins_and_events(3_000, 40_000) + growth((100, 1000))
        start = time.process_time()
        (large,) = growth_rows(replace(WIDE, peers=30_000, events=1_000, join_gap_ms=60), 1)
        taken_s = time.process_time() - start
        rows.append(_row("30,000 peers: processor seconds", taken_s, "< 300", taken_s < 300))
        rows.append(_row("30,000 peers: hops", large["hops_mean"], "< 19", large["hops_mean"] < 19))
        right = large["deliveries"] == large["matching"]
        rows.append(_row("30,000 peers: deliveries are the matches", float(right), "1", right))
        rows += summaries((30, 300, 3_000), LOOSENESS)
        rows += beside_one_hop((4, 16, 64, 100, 200), 10)
    return {"name": "overlay", "quick": quick, "rows": rows}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="about fifteen minutes")
    for row in run(quick=not parser.parse_args().full)["rows"]:
        print(row)
