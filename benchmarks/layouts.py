"""Layouts on recorded movement, at equal capacity, on days that they were not learned from.

    python -m benchmarks.layouts RECORD.parquet [--slow 2.0] [--by-user] [--svg FILE]
    python -m benchmarks.layouts commuters [--people 600]

The record has the columns `user_id`, `t`, `lon` and `lat`; or it is one of `made_movement.py`.
Layouts are learned from its first 60 % and judged on the rest; `--by-user` learns from three of
five users instead, for records that are too short to have days. What is learned from is rehearsed
in the same way. The capacities are those at which quadrants alone take about 20, 60 and 150
leaves.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import numpy as np
from benchmarks.made_movement import MADE
from benchmarks.recorded_movement import Fixes, Mobility, regions_of_class

from nearcast.locality.layout.costs import LayoutCost
from nearcast.locality.layout.drawing import draw_layouts
from nearcast.locality.layout.movement import Movement
from nearcast.locality.layout.proposals import Rehearsal, propose
from nearcast.locality.layout.quadtree import split_by_load
from nearcast.locality.layout.rect import Rect

DEPTH = 9
LEAVES = (20, 60, 150)
_MOST_GAP_S = 600.0
_EVENT_M = 300.0
_REGION_DEPTH = 8
_REGION_S = 600.0


def movement_of(fixes: Fixes, space: Rect, chosen: np.ndarray) -> Movement:
    """Count a part of a record; a gap of ten minutes begins a new trip."""
    new = (np.diff(fixes.users) != 0) | (np.diff(fixes.seconds) > _MOST_GAP_S)
    trips = np.concatenate([[0], np.cumsum(new)])
    users, seconds = trips[chosen], fixes.seconds[chosen]
    return Movement.from_tracks(space, users, seconds, fixes.xs[chosen], fixes.ys[chosen], DEPTH)


def capacity_for(movement: Movement, leaves: int) -> float:
    """Return the capacity at which quadrants alone have about so many leaves with users."""
    low, high = movement.users / leaves / 50, movement.users
    for _ in range(30):
        middle = math.sqrt(low * high)
        blocks = split_by_load(movement.time_ms, max(1, int(middle * movement.span_ms)), DEPTH)
        if sum(load > 0 for load in blocks.values()) > leaves:
            low = middle
        else:
            high = middle
    return high


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("record", help=f"a Parquet file, or one of {', '.join(MADE)}")
    parser.add_argument("--people", type=int, default=600, help="of a made record")
    parser.add_argument("--slow", type=float, default=2.0, help="metres per second")
    parser.add_argument("--by-user", action="store_true")
    parser.add_argument("--svg", type=Path, help="draw the layouts at the middle capacity")
    arguments = parser.parse_args()
    if arguments.record in MADE:
        fixes = MADE[arguments.record](1, arguments.people)
    else:
        fixes = Fixes.from_parquet(Path(arguments.record)).in_metres()
    space = fixes.central(0.99)
    place = fixes.users % 5 / 5 if arguments.by_user else fixes.seconds / fixes.seconds.max()
    first = place < 0.6
    learned, unseen = (movement_of(fixes, space, part) for part in (first, ~first))
    before, after = (place < 0.36), first & (place >= 0.36)
    rehearsal = Rehearsal(movement_of(fixes, space, before), movement_of(fixes, space, after))
    users, seconds, xs, ys = (
        column[first] for column in (fixes.users, fixes.seconds, fixes.xs, fixes.ys)
    )
    mobility = Mobility.of_fixes(space, users, seconds, xs, ys, _REGION_DEPTH)
    regions = regions_of_class(mobility, mobility.classes([arguments.slow], _REGION_S), 0)
    cell_m = ((space.east - space.west) / 2**DEPTH, (space.north - space.south) / 2**DEPTH)
    reach = (max(1, round(_EVENT_M / cell_m[0])), max(1, round(_EVENT_M / cell_m[1])))
    name = Path(arguments.record).stem
    print(f"{name}: {learned.users:.0f} users at once, {len(regions)} slow regions")
    for leaves in LEAVES:
        capacity = capacity_for(learned, leaves)
        started = time.process_time()
        found = propose(space, regions, learned, capacity, reach, rehearsal=rehearsal)
        took_s = time.process_time() - started
        costs: dict[str, LayoutCost] = dict(found.on(unseen, capacity, reach).items())
        base = costs["q_only"]
        safe = propose(space, regions, learned, capacity, reach)  # not proven on other days
        costs["joined"] = safe.on(unseen, capacity, reach)["optimised"]
        if arguments.svg is not None and leaves == LEAVES[1]:
            draw_layouts(found.plans, arguments.svg)
        for name, cost in costs.items():
            print(
                f"{leaves:>4} {name:<10} brokers {cost.brokers:>4} "
                f"({cost.brokers / base.brokers - 1:+.0%})  handovers {cost.handovers:>7,} "
                f"({cost.handovers / max(1, base.handovers) - 1:+.0%})  leaves per event "
                f"{cost.leaves_per_event:.2f}"
            )
        print(f"     {found.chosen}, planned in {took_s:.1f} s of CPU time", flush=True)


if __name__ == "__main__":
    main()
