"""The plan: how fast it is built, looked up and handed over, beside NumPy and shapely.

    python -m benchmarks.locality --quick

Processor time of one process, so that a busy machine counts little; ours and the peer alternate.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from nearcast.locality import (
    CellCounts,
    Gateway,
    NamedPlan,
    Plan,
    PlanAssignment,
    Rect,
    RetryUntilAcked,
    Timing,
)
from nearcast.locality.layout.kernels import warm_up

SPACE = Rect(0.0, 0.0, 100.0, 100.0)


def scene(positions: int) -> tuple[np.ndarray, np.ndarray, list[Rect]]:
    """Two towns, a countryside, and five hundred slow regions in the towns."""
    random = np.random.default_rng(7)
    third = positions // 3
    towns = random.normal((30, 30), 8, (third, 2)), random.normal((70, 60), 12, (third, 2))
    rest = random.random((positions - 2 * third, 2)) * 100
    places = np.concatenate([*towns, rest])
    random.shuffle(places)
    corners = np.concatenate(
        [random.normal((30, 30), 8, (250, 2)), random.normal((70, 60), 12, (250, 2))]
    )
    sizes = random.uniform(0.3, 1.5, (500, 2))
    regions = [
        Rect(float(x), float(y), float(x + w), float(y + h))
        for (x, y), (w, h) in zip(corners.clip(0, 98), sizes, strict=True)
    ]
    return places[:, 0].copy(), places[:, 1].copy(), regions


def median_s(repeats: int, *work: Callable[[], object]) -> list[float]:
    """Return the median processor time of each piece of work, alternating between them."""
    times: list[list[float]] = [[] for _ in work]
    for _ in range(repeats):
        for place, one in enumerate(work):
            before = time.process_time()
            one()
            times[place].append(time.process_time() - before)
    return [statistics.median(values) for values in times]


def build(positions: int, repeats: int) -> tuple[dict[str, Any], Plan, np.ndarray, np.ndarray]:
    xs, ys, regions = scene(positions)
    made: list[Plan] = []

    def ours() -> None:
        counts = CellCounts.from_positions(SPACE, regions, xs, ys)
        made.append(Plan.build(SPACE, regions, counts, capacity=max(1, positions // 5_000)))

    def peer() -> None:
        np.histogram2d(xs, ys, bins=1024, range=[[0, 100], [0, 100]])

    seconds, peer_s = median_s(repeats, ours, peer)
    row = {
        "name": f"Plan.build from {positions // 1_000_000} M positions, s",
        "ours": round(seconds, 2),
        "target": "< 10",
        "holds": seconds < 10,
        "peer": f"numpy.histogram2d alone: {peer_s:.2f}",
        "note": f"500 regions, {len(made[-1].leaves)} leaves",
    }
    return row, made[-1], xs, ys


def lookup(plan: Plan, xs: np.ndarray, ys: np.ndarray, repeats: int) -> dict[str, Any]:
    import shapely

    some = slice(0, min(len(xs), 200_000))
    boxes = shapely.box(*np.array([leaf.rect for leaf in plan.leaves]).T)
    tree = shapely.STRtree(boxes)
    points = shapely.points(xs[some], ys[some])
    ours, peer = median_s(
        repeats, lambda: plan.leaf_numbers_at(xs, ys), lambda: tree.query(points, "intersects")
    )
    rate = len(xs) / ours / 1e6
    return {
        "name": "leaf_at in bulk, M points/s",
        "ours": round(rate, 1),
        "target": ">= 5",
        "holds": rate >= 5,
        "peer": f"shapely STRtree.query: {len(points) / peer / 1e6:.2f}",
        "note": f"{len(xs):,} points, {len(plan.leaves)} leaves",
    }


def handover(
    plan: Plan, moves: int, repeats: int, *, reach: float, step: float, most_us: float
) -> dict[str, Any]:
    """Measure a node's gateway: a position a second of each user, and messages where it must."""
    random = np.random.default_rng(3)
    users = 200
    places = random.random((users, 2)) * 90 + 5
    steps = random.normal(0, step, (moves // users, users, 2)).cumsum(axis=0) + places
    areas = [[Rect.around(x, y, reach) for x, y in row] for row in steps.clip(1, 99).tolist()]
    plans = PlanAssignment("gateway")
    plans.know(["holder"])
    plans.current = NamedPlan(plan.with_brokers([0] * len(plan.leaves)), ("holder",))
    timing = Timing(slack=0.15)
    sent = 0

    def ours() -> None:
        nonlocal sent
        sent = 0
        gateway = Gateway("gateway", plans, RetryUntilAcked("gateway", timing, probes=True), timing)
        for user, area in enumerate(areas[0]):
            gateway.subscribe(str(user), area, 0)
        for second, row in enumerate(areas[1:], 1):
            for user, area in enumerate(row):
                sent += bool(gateway.move(str(user), area, 1_000 * second))

    def naive() -> None:
        for row in areas:
            for area in row:
                plan.leaves_meeting(area)

    seconds, peer_s = median_s(repeats, ours, naive)
    decisions = (len(areas) - 1) * users
    each_us = seconds / decisions * 1e6
    return {
        "name": f"one move (area of {2 * reach:g} % of the side, steps of {step:g} %), µs",
        "ours": round(each_us, 2),
        "target": f"< {most_us:g}",
        "holds": each_us < most_us,
        "peer": f"looking up all leaves each time: {peer_s / decisions * 1e6:.2f}",
        "note": f"{decisions:,} moves, {sent / decisions:.1%} of them sent to a holder",
    }


def run(quick: bool) -> dict[str, Any]:
    """Measure; return rows of name, ours, target, holds, peer, note."""
    warm_up()
    repeats = 1 if quick else 5
    built, plan, xs, ys = build(10_000_000, repeats)
    moves = 20_000 if quick else 100_000
    coarse = Plan.build(
        SPACE, [], CellCounts.from_positions(SPACE, [], xs, ys), capacity=max(1, len(xs) // 200)
    )
    rows = [
        built,
        lookup(plan, xs, ys, repeats),
        handover(coarse, moves, repeats, reach=0.2, step=0.002, most_us=10),
        handover(plan, moves, repeats, reach=0.05, step=0.03, most_us=200),
    ]
    rows[2]["note"] += f", {len(coarse.leaves)} leaves"
    rows[3]["note"] += f", {len(plan.leaves)} leaves"
    return {"rows": rows, "machine": platform.processor() or platform.machine(), "quick": quick}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    print(json.dumps(run(parser.parse_args().quick), indent=1))
