"""What grows with users, nodes and events: the real planner for up to a million people.

    python -m benchmarks.growth [--people 1500]

A sample of people commutes in a city of 16 km (`made_movement.py`) and is counted as many times as
there are users: time and moves per cell are multiplied, as the planner would get them of all of
them. A broker bears 1,000 users. The plan is learned from the first days and judged on the rest.

Per number of users: the time to plan, leaves, handovers per user and hour, leaves per event. With
these leaves on N nodes: handovers between nodes, nodes per event. A node has N - 1 links, each with
a heartbeat; events per second and node are those that its leaves are reached by.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

import numpy as np
from benchmarks.layouts import movement_of
from benchmarks.made_movement import SIDE_M, commuters

from nearcast.locality.layout.balancing import assign_leaves
from nearcast.locality.layout.costs import layout_cost, leaves_per_event, plan_owners
from nearcast.locality.layout.movement import Movement
from nearcast.locality.layout.proposals import Rehearsal, propose
from nearcast.locality.layout.rect import Rect

CAPACITY = 1_000.0
USERS = (10_000, 100_000, 1_000_000)
NODES = (4, 16, 64, 256)
HEARTBEAT_S = 0.5
EVENTS_PER_USER_H = 1.0
_DEPTH = 9
_REACH = (10, 10)  # 300 m


def _times(movement: Movement, factor: int) -> Movement:
    return replace(movement, time_ms=movement.time_ms * factor, moves=movement.moves * factor)


def rows_for(users: int, parts: list[Movement], space: Rect) -> None:
    """Plan for so many users, and print what they cost."""
    factor = max(1, round(users / parts[0].users))
    before, after, learned, unseen = (_times(part, factor) for part in parts)
    started = time.process_time()
    found = propose(space, [], learned, CAPACITY, _REACH, rehearsal=Rehearsal(before, after))
    took_s = time.process_time() - started
    plan = found.plans["optimised"]
    hours = unseen.users * unseen.span_ms / 3_600_000
    for name in ("q_only", "optimised"):
        cost = layout_cost(found.plans[name], unseen, CAPACITY, _REACH)
        print(
            f"{users:>9,} {name:<10} brokers {cost.brokers:>5}  handovers per user and hour "
            f"{cost.handovers / hours:.3f}  leaves per event {cost.leaves_per_event:.2f}"
            f"  planned in {took_s:.1f} s",
            flush=True,
        )
    owners = plan_owners(plan, _DEPTH)
    times_ms = unseen.time_by_owner(owners, len(plan.leaves))
    flows = unseen.flows(owners)
    for nodes in NODES:
        if nodes <= len(plan.leaves):
            assigned = assign_leaves(plan, flows, nodes, times_ms)
            node_of = np.asarray(assigned.brokers, np.int32)[owners]
            reached = leaves_per_event(node_of, unseen, _REACH)
            events_s = users * EVENTS_PER_USER_H / 3600
            print(
                f"{users:>9,} {nodes:>4} nodes  handovers between nodes per user and hour "
                f"{assigned.cut / hours:.3f}  nodes per event {reached:.2f}  events per second and "
                f"node {events_s * reached / nodes:.1f}  heartbeats per second and node "
                f"{2 * (nodes - 1) / HEARTBEAT_S:.0f}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--people", type=int, default=1500, help="in the sample")
    arguments = parser.parse_args()
    fixes = commuters(1, arguments.people)
    space = Rect(0.0, 0.0, SIDE_M, SIDE_M)
    place = fixes.seconds / fixes.seconds.max()
    chosen = (place < 0.36, (place >= 0.36) & (place < 0.6), place < 0.6, place >= 0.6)
    parts = [movement_of(fixes, space, one) for one in chosen]
    for users in USERS:
        rows_for(users, parts, space)


if __name__ == "__main__":
    main()
