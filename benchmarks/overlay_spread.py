"""How far `[peer] spread` spreads the overhead of relaying, and what that costs.

    python benchmarks/overlay_spread.py [peers [seconds [seeds]]]

Time is pressed together: hosts keep a group for at least ten beats instead of 300, and events come
20 a second. The real peers in the simulated world; all deliveries are compared with a scan.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from statistics import mean
from typing import Any

import numpy as np

from nearcast.overlay import Method, OverlayEvent
from nearcast.papers.content_overlay.experiment import (
    Parameters,
    event_points,
    grown,
    loads,
    matches,
    overheads,
    subscriptions,
)

FACTORS = (0.0, 16.0, 8.0, 4.0)
HELD_BEATS = 10
_RATE = 20


def run(peers: int, seconds: int, sigma: float, factor: float, seed: int) -> dict[str, Any]:
    """Return how the overhead of one run is spread."""
    parameters = Parameters(
        peers=peers,
        events=seconds * _RATE,
        subscription_sigma=sigma,
        event_sigmas=(sigma,),
        method=Method.EXACT,
        beat_ms=1_000,
        coalesce_ms=0,
    )
    net = grown(parameters, seed)
    net.settings = replace(net.settings, spread=factor, spread_beats=HELD_BEATS)
    for peer in net.peers.values():
        peer.settings = net.settings
        for seat in peer.seats.values():
            seat.settings = net.settings
    net.reset()
    net.keep_names = False
    points = event_points(parameters, sigma, seed)
    names = sorted(net.peers)
    handed = net.sent["GroupHandover"]
    for number, values in enumerate(points.tolist()):
        net.publish(names[number * 7 % peers], [OverlayEvent.point(number, values)])
        net.run(1_000 // _RATE)
    net.run(5_000)
    burden = overheads(net)
    lows, highs = subscriptions(parameters, seed)
    due = matches(lows, highs, points)
    return loads(burden) | {
        "most_over_mean": float(burden.max() / burden.mean()),
        "handovers": net.sent["GroupHandover"] - handed,
        "missed": due - net.deliveries,
        "due": due,
    }


def main(peers: int, seconds: int, seeds: int) -> None:
    """Print the table of docs/content-overlay.md."""
    print(f"{peers} peers, {seconds} s, {_RATE} events a second, {seeds} seeds")
    for sigma in (100.0, 300.0):
        base = 0.0
        for factor in FACTORS:
            rows = [run(peers, seconds, sigma, factor, seed) for seed in range(1, seeds + 1)]
            found = {
                name: mean(float(row[name]) for row in rows)
                for name, value in rows[0].items()
                if np.isscalar(value)
            }
            base = base or found["mean_overhead"]
            print(
                f"| {sigma:g}, {factor:g} | {found['mean_overhead']:.0f} "
                f"({found['mean_overhead'] / base - 1:+.0%}) | {found['gini']:.2f} "
                f"| {found['bearing_share']:.0%} | {found['top_tenth_share']:.0%} "
                f"| {found['most_over_mean']:.0f} | {found['handovers']:.0f} "
                f"| {found['missed']:.0f} of {found['due']:,.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    given = [int(one) for one in sys.argv[1:]]
    main(*(*given, *(300, 300, 2)[len(given) :]))
