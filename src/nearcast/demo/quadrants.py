"""A plan of quadrants alone, to compare the learned plan with: as many leaves, as many brokers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from nearcast.demo.city import Place
from nearcast.locality import Counts, Plan, assign_leaves


def quadrants_like(plan: Plan, tracks: Iterable[Sequence[Place]], version: int) -> Plan:
    """Return a Q plan from these tracks with about as many leaves as `plan`, and as many brokers.

    Its leaves are shared out with the same care: balanced, and cutting few of the paths gone.
    """
    paths = [np.array(track) for track in tracks]
    everything = np.concatenate(paths)
    counts = Counts.from_positions(
        plan.space, [], everything[:, 0], everything[:, 1], depth=plan.grid.depth
    )
    found = min(
        (_built(plan, counts, int(capacity)) for capacity in _capacities(len(everything))),
        key=lambda one: abs(len(one.leaves) - len(plan.leaves)),
    )
    flows: Counter[tuple[int, int]] = Counter()
    for path in paths:
        leaves = found.leaf_numbers_at(path[:, 0], path[:, 1]).tolist()
        flows.update((a, b) for a, b in pairwise(leaves) if a != b)
    brokers = 1 if plan.brokers is None else len(set(plan.brokers))
    return found.with_brokers(assign_leaves(found, flows, brokers).brokers, version)


def _capacities(positions: int) -> list[float]:
    return sorted(set(np.geomspace(1, positions, 120).round().tolist()))


def _built(plan: Plan, counts: Counts, capacity: int) -> Plan:
    return Plan.build(plan.space, [], counts, layout="q", capacity=capacity)
