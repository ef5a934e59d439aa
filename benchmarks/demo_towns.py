"""The demonstration's comparison in several towns: what four real nodes send to each other.

As in `nearcast demo`, but without Spark: both plans are laid out from the same record of three
hours, as `nearcast pipeline plan --hold-out 0` does. Then the same seconds of another day are lived
three times: without a plan, under quadrants only, and under the optimised layout. With `--finer`, a
fourth time under quadrants of finer areas.

    python -m benchmarks.demo_towns [--seeds 1,2,3,4,5] [--leaves 12] [--finer 40]
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np

from nearcast.demo.city import BOUNDS, Place
from nearcast.demo.history import STEP_S, tracks_before
from nearcast.demo.inhabitants import Inhabitants
from nearcast.demo.nodes import Brokers
from nearcast.demo.quadrants import movement_of, quadrant_plan, reach_in
from nearcast.demo.story import LEAVES, Chapter, live_chapter, node_numbers
from nearcast.locality import Plan, Rect
from nearcast.locality.layout.balancing import assign_by_crossings
from nearcast.locality.layout.costs import plan_owners
from nearcast.locality.layout.proposals import propose

NODES = 4
SPACE = Rect(*BOUNDS)


def learned_plan(tracks: Sequence[Sequence[Place]], leaves: int) -> Plan:
    """Return the optimised layout of a record, on four brokers."""
    movement = movement_of(SPACE, tracks, STEP_S)
    capacity, reach = 2 * movement.users / leaves, reach_in(SPACE)
    found = propose(SPACE, [], movement, capacity, reach, is_trusted=True, brokers=NODES)
    plan = found.plans["optimised"]
    owners = plan_owners(plan, movement.depth)
    parts = assign_by_crossings(plan, movement, owners, reach, NODES, first=found.first).brokers
    return plan.with_brokers(parts)


def imbalance(plan: Plan, tracks: Sequence[Sequence[Place]]) -> float:
    """Return the load of the heaviest broker over the average, in the record."""
    movement = movement_of(SPACE, tracks, STEP_S)
    brokers = np.asarray(plan.brokers)[plan_owners(plan, movement.depth)]
    times_ms = movement.time_by_owner(brokers, NODES)
    return max(times_ms) * NODES / sum(times_ms)


async def town(seed: int, people: int, seconds: float, leaves: int, finer: int) -> float:
    """Live in a town under each plan, print the figures, and return learned by quadrants."""
    tracks = list(tracks_before(people, seed).values())
    plans = {"learned": learned_plan(tracks, leaves)}
    wanted = {"quadrants": leaves} | ({"finer quadrants": finer} if finer else {})
    for name, count in wanted.items():
        plans[name] = quadrant_plan(SPACE, tracks, count, NODES, STEP_S)
    chapters: dict[str, Chapter] = {}
    with tempfile.TemporaryDirectory(prefix="nearcast-bench-") as directory:
        async with Brokers(Path(directory)) as brokers:
            inhabitants = Inhabitants(people, brokers.ports, seed)
            chapters["no plan"] = await live_chapter(inhabitants, brokers, seconds)
            for name, plan in plans.items():
                nodes = node_numbers(plan, await brokers.share(plan))
                chapters[name] = await live_chapter(inhabitants, brokers, seconds, nodes)
            await inhabitants.go()
    print(f"town {seed}: {chapters['no plan'].events} events", flush=True)
    for name, one in chapters.items():
        plan_of = plans.get(name)
        about = (
            f"{len(plan_of.leaves):3} areas, imbalance {imbalance(plan_of, tracks):.2f}"
            if plan_of
            else ""
        )
        print(
            f"  {name:16} {one.messages:6} messages {(one.bytes or 0) // 1000:5} kB "
            f"{one.handovers:4} handovers {one.near:6} deliveries  {about}",
            flush=True,
        )
    ours, peers = chapters["learned"].messages, chapters["quadrants"].messages
    assert ours is not None
    assert peers
    return ours / peers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="1,2,3,4,5")
    parser.add_argument("--people", type=int, default=160)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--leaves", type=int, default=LEAVES)
    parser.add_argument("--finer", type=int, default=0)
    given = parser.parse_args()
    ratios = [
        asyncio.run(town(seed, given.people, given.seconds, given.leaves, given.finer))
        for seed in map(int, given.seeds.split(","))
    ]
    shown = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    print(f"messages, learned by quadrants: {shown}; median {median(ratios):.2f}")


if __name__ == "__main__":
    main()
