"""The tree beside the mesh as the number of peers grows, with the code that serves peers.

    python benchmarks/overlay_growth.py [sizes …]          # 100 300 1000 3000 10000
    python benchmarks/overlay_growth.py --draw             # the figure, from the last rows

Each size: peers join one by one (messages without beats), events are published from all of them,
then one peer in a hundred dies at once, half of them hosts; the repair is over when the tree is
valid again. The mesh is `OneHopPeer`: counted up to 1,000 peers, computed above (a change goes to
all others, an event to each peer that wants it). Rows go to `benchmarks/results/`, the figure to
`docs/pictures/content-overlay-growth.svg`.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

from nearcast.overlay import Method, OverlayPeer, violations
from nearcast.overlay.live.member import OverlayMember
from nearcast.papers.content_overlay.experiment import (
    Parameters,
    event_points,
    grown,
    growth_rows,
    matches,
    subscriptions,
)

SIZES = (100, 300, 1_000, 3_000, 10_000)
METHODS = (Method.CHEAPEST, Method.RANDOM, Method.LARGEST)
"""By volume the exact election is LVS: the same hosts, the same rows."""
EVENTS = 1_000
ROOT = Path(__file__).parent.parent
ROWS = ROOT / "build" / "overlay-growth.jsonl"
PICTURE = ROOT / "docs" / "pictures" / "content-overlay-growth.svg"
Row = dict[str, Any]


def grown_row(peers: int, method: Method, seed: int = 1) -> Row:
    """Return the costs of one tree."""
    parameters = Parameters(peers=peers, events=EVENTS, method=method, beat_ms=30_000)
    [row] = growth_rows(parameters, seed)
    wanted = (
        *("mean_overhead", "overhead_per_delivery", "copies_per_event", "hops_mean", "hops_most"),
        *("height", "messages_per_join", "table_entries_mean", "table_entries_most"),
        *("deliveries", "matching"),
    )
    return {"peers": peers, "method": method.value} | {name: row[name] for name in wanted}


def repair_row(peers: int, seed: int = 1) -> Row:
    """Return how long a repair takes and what it sends, beats not counted."""
    parameters = Parameters(
        peers=peers, method=Method.EXACT, beat_ms=1_000, coalesce_ms=0, join_gap_ms=20
    )
    net = grown(parameters, seed)
    served = OverlayMember("any", net.settings, Random(0)).core
    assert all(type(peer) is type(served) for peer in net.peers.values())
    before = Counter(net.sent)
    net.run(5_000)
    idle = Counter(net.sent) - before
    random = Random(seed)
    hosts = [name for name, peer in net.peers.items() if _top(peer) > 0]
    others = [name for name, peer in net.peers.items() if _top(peer) <= 0]
    victims = random.sample(hosts, max(1, peers // 200)) + random.sample(
        others, max(1, peers // 200)
    )
    before = Counter(net.sent)
    for name in victims:
        net.crash(name)
    began = net.world.now
    while violations(net.peers.values()) and net.world.now - began < 60_000:
        net.run(500)
    took_s = (net.world.now - began) / 1_000
    rate = sum(idle.values()) / 5.0
    beats = rate * took_s * len(net.peers) / peers
    sent = sum((Counter(net.sent) - before).values()) - beats
    return {
        "peers": peers,
        "victims": len(victims),
        "repair_s": took_s,
        "messages_per_victim": sent / len(victims),
        "messages_at_rest": rate / peers,
    }


def _top(peer: OverlayPeer) -> int:
    return max(seat.top for seat in peer.seats.values())


def mesh_row(peers: int, seed: int = 1) -> Row:
    """Return what one hop costs: changes and events, by arithmetic and a scan."""
    parameters = Parameters(peers=peers, events=EVENTS)
    lows, highs = subscriptions(parameters, seed)
    points = event_points(parameters, parameters.event_sigmas[0], seed)
    copies = matches(lows, highs, points) / EVENTS
    return {
        "peers": peers,
        "method": "mesh",
        "copies_per_event": copies,
        "messages_per_join": float(peers - 1),
        "table_entries_mean": float(peers),
        "hops_mean": 1.0,
    }


def main(sizes: list[int]) -> None:
    """Measure, and print a table for each size."""
    ROWS.parent.mkdir(exist_ok=True)
    for peers in sizes:
        _keep(mesh_row(peers))
        for method in METHODS:
            _keep(grown_row(peers, method))
        _keep({"method": "repair"} | repair_row(peers))


def _keep(row: Row) -> None:
    print(json.dumps(row), flush=True)
    with ROWS.open("a") as out:
        out.write(json.dumps(row) + "\n")


def draw(rows: list[Row], path: Path) -> None:
    """Draw copies, changes, state, and where tree and mesh cost the same."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "nearcast", "font.size": 9})
    figure, axes = plt.subplots(2, 2, figsize=(8.6, 6.4), layout="constrained")
    copies, changes, state, total = axes.flat
    for method, colour, style in (
        ("RS", "#c0504d", "-o"),
        ("LVS", "#4f81bd", "-s"),
        ("CES", "#3a7d44", "--^"),
        ("mesh", "#555555", ":d"),
    ):
        mine = sorted(
            (one for one in rows if one["method"] == method), key=lambda one: one["peers"]
        )
        sizes = [one["peers"] for one in mine]
        for axis, name in (
            (copies, "copies_per_event"),
            (changes, "messages_per_join"),
            (state, "table_entries_mean"),
        ):
            axis.plot(sizes, [one[name] for one in mine], style, color=colour, label=method, ms=4)
    _draw_totals(total, rows)
    for axis, title in (
        (copies, "Copies of an event"),
        (changes, "Messages for a change of a box"),
        (state, "Entries that a peer keeps"),
        (total, "Messages for a change and q events"),
    ):
        axis.set(xscale="log", yscale="log", title=title, xlabel="peers")
        axis.grid(alpha=0.3)
        axis.legend(frameon=False, fontsize=8)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def _draw_totals(axis: Any, rows: list[Row]) -> None:
    by = {(one["method"], one["peers"]): one for one in rows if one["method"] != "repair"}
    sizes = sorted({peers for _, peers in by})
    for q, colour in ((1, "#3a7d44"), (10, "#4f81bd"), (100, "#c0504d")):
        for method, style in (("CES", "-"), ("mesh", ":")):
            costs = [
                by[method, peers]["messages_per_join"] + q * by[method, peers]["copies_per_event"]
                for peers in sizes
            ]
            axis.plot(sizes, costs, style, color=colour, label=f"{method}, q = {q}")


if __name__ == "__main__":
    if "--draw" in sys.argv:
        draw([json.loads(line) for line in ROWS.read_text().splitlines()], PICTURE)
    else:
        main([int(one) for one in sys.argv[1:]] or list(SIZES))
