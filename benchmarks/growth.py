"""What grows with users, nodes and events: the real planner for up to a million people.

    python -m benchmarks.growth [--people 1500] [--simulated 300]

A sample of people commutes in a city of 16 km (`made_movement.py`) and is counted as many times as
there are users: time and moves per cell are multiplied, as the planner would get them of all of
them. A broker bears 1,000 users. The plan is learned from the first days and judged on the rest.
Everybody has `$near` of 300 m and stays connected to the node that held the place of the first fix,
at home.

On paper (`growth_paper.py`), for all users: the time to plan, leaves, handovers, messages between
nodes. In the simulator (`growth_simulated.py`), the code of the nodes under the same plans, for
some people of the sample and six hours of a day; beside it the paper for these people and hours.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, replace

import numpy as np
from benchmarks.growth_paper import DEPTH, PER_DEGREE, REACH, Paper, People
from benchmarks.growth_simulated import simulated
from benchmarks.layouts import movement_of
from benchmarks.made_movement import SIDE_M, commuters
from benchmarks.recorded_movement import Fixes

from nearcast.locality.layout.balancing import assign_leaves
from nearcast.locality.layout.costs import layout_cost, plan_owners
from nearcast.locality.layout.movement import Movement
from nearcast.locality.layout.plan import Plan
from nearcast.locality.layout.proposals import Rehearsal, propose
from nearcast.locality.layout.rect import Rect

CAPACITY = 1_000.0
USERS = (10_000, 100_000, 1_000_000)
NODES = (4, 16, 64, 256)
HEARTBEAT_S = 0.5
EVENTS_PER_USER_H = (0.1, 1.0, 10.0)
RUNS = (  # users of the plan, nodes, events per user and hour
    (10_000, 4, 1.0),
    (100_000, 4, 1.0),
    (100_000, 16, 0.1),
    (100_000, 16, 1.0),
    (100_000, 16, 10.0),
    (100_000, 64, 1.0),
    (1_000_000, 16, 1.0),
    (1_000_000, 64, 1.0),
)
_DAY_S = 86_400.0
_WINDOW_S = (3.25 * _DAY_S, 3.5 * _DAY_S)  # of the runs: six in the morning to noon of a day


@dataclass(frozen=True)
class Planned:
    """The plan for so many users, on the days that it was not learned from."""

    users: int
    plan: Plan
    unseen: Movement

    def on(self, nodes: int) -> np.ndarray:
        """Return the node of each cell, when the leaves are shared out among so many."""
        owners = plan_owners(self.plan, DEPTH)
        loads = self.unseen.time_by_owner(owners, len(self.plan.leaves))
        flows = self.unseen.flows(owners)
        return np.asarray(assign_leaves(self.plan, flows, nodes, loads).brokers, np.int32)


def _times(movement: Movement, factor: int) -> Movement:
    return replace(movement, time_ms=movement.time_ms * factor, moves=movement.moves * factor)


def planned_for(users: int, parts: list[Movement], space: Rect) -> Planned:
    """Plan for so many users, and print what that costs."""
    factor = max(1, round(users / parts[0].users))
    before, after, learned, unseen = (_times(part, factor) for part in parts)
    started = time.process_time()
    reach = (REACH, REACH)
    found = propose(space, [], learned, CAPACITY, reach, rehearsal=Rehearsal(before, after))
    took_s = time.process_time() - started
    hours = unseen.users * unseen.span_ms / 3_600_000
    for name in ("q_only", "optimised"):
        cost = layout_cost(found.plans[name], unseen, CAPACITY, reach)
        print(
            f"{users:>9,} {name:<10} brokers {cost.brokers:>5}  handovers per user and hour "
            f"{cost.handovers / hours:.3f}  leaves per event {cost.leaves_per_event:.2f}"
            f"  planned in {took_s:.1f} s",
            flush=True,
        )
    return Planned(users, found.plans["optimised"], unseen)


def on_paper(planned: Planned, people: People) -> None:
    """Print what the plan costs on so many nodes, for all users and for more and more events."""
    for nodes in NODES:
        if nodes > len(planned.plan.leaves):
            continue
        paper = Paper.of(planned.plan, planned.on(nodes), nodes, people, planned.users)
        for events_h in EVENTS_PER_USER_H:
            print(
                f"{planned.users:>9,} {nodes:>4} nodes {events_h:>5g} events/user/h  "
                f"{paper.line(events_h)}  a second and node: events "
                f"{planned.users * events_h / 3600 / nodes:.1f}, messages "
                f"{planned.users * paper.messages(events_h) / 3600 / nodes:.1f}, heartbeats "
                f"{2 * (nodes - 1) / HEARTBEAT_S:.0f}",
                flush=True,
            )


def beside_the_simulator(planned: dict[int, Planned], people: People, count: int) -> None:
    """Print the simulated rows beside the paper for the same people and hours."""
    some = people.first(count)
    for users, nodes, events_h in RUNS:
        plan, brokers = planned[users].plan, planned[users].on(nodes)
        paper = Paper.of(plan, brokers, nodes, some, count)
        began = time.monotonic()
        found = simulated(plan, brokers, nodes, some, events_h)
        print(
            f"plan for {users:>9,} {nodes:>3} nodes {count} people {events_h:>4g} events/user/h\n"
            f"    paper      {paper.line(events_h)}\n"
            f"    simulated  {found.line(events_h)}  ({found.events:,} events, "
            f"{found.delivered:,} deliveries, none wrong; {time.monotonic() - began:.0f} s)",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--people", type=int, default=1500, help="in the sample")
    parser.add_argument("--simulated", type=int, default=300, help="of them in the simulator")
    parser.add_argument("--no-paper", action="store_true", help="the simulated rows alone")
    arguments = parser.parse_args()
    made = commuters(1, arguments.people)
    fixes = Fixes(made.users, made.seconds, made.xs / PER_DEGREE, made.ys / PER_DEGREE)
    space = Rect(0.0, 0.0, SIDE_M / PER_DEGREE, SIDE_M / PER_DEGREE)
    place = fixes.seconds / fixes.seconds.max()
    chosen = (place < 0.36, (place >= 0.36) & (place < 0.6), place < 0.6, place >= 0.6)
    parts = [movement_of(fixes, space, one) for one in chosen]
    planned = {users: planned_for(users, parts, space) for users in USERS}
    if not arguments.no_paper:
        unseen = People.of(fixes, float(fixes.seconds.max()) * 0.6, np.inf)
        for one in planned.values():
            on_paper(one, unseen)
    if arguments.simulated:
        beside_the_simulator(planned, People.of(fixes, *_WINDOW_S), arguments.simulated)


if __name__ == "__main__":
    main()
