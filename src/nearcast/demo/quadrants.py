"""A plan of quadrants only, to compare the learned plan with: as many leaves, as many brokers."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

import numpy as np

from nearcast.demo.city import Place
from nearcast.locality import CellCounts, Plan, Rect, assign_leaves, movement_flows

_DEPTH = 9  # as the pipeline's own


def quadrant_plan(
    space: Rect, tracks: Iterable[Sequence[Place]], leaves: int, brokers: int
) -> Plan:
    """Return a Q plan for the movement in `tracks`, with about so many leaves on so many brokers.

    The leaves are assigned with the same care as those of a learned plan: brokers have about the
    same load, and few of the paths that people took lead from one broker to another.
    """
    paths = [np.array(track) for track in tracks]
    users = np.repeat(np.arange(len(paths)), [len(path) for path in paths])
    places = np.concatenate(paths)
    plan = _with_about(leaves, space, places)
    flows = movement_flows(users, plan.leaf_numbers_at(places[:, 0], places[:, 1]))
    return plan.with_brokers(assign_leaves(plan, flows, brokers).brokers)


def _with_about(leaves: int, space: Rect, places: np.ndarray) -> Plan:
    """Return the Q plan whose number of leaves is closest: the more a leaf may hold, the fewer."""
    counts = CellCounts.from_positions(space, [], places[:, 0], places[:, 1], depth=_DEPTH)

    def built(capacity: int) -> Plan:
        return Plan.build(space, [], counts, layout="q", capacity=capacity)

    enough = bisect_left(
        range(1, len(places)), -leaves, key=lambda capacity: -len(built(capacity).leaves)
    )
    return min(
        (built(capacity) for capacity in (max(1, enough), enough + 1)),
        key=lambda plan: abs(len(plan.leaves) - leaves),
    )
