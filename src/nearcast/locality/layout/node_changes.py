"""What a change of plan means for each node: the leaves and the users that come and go.

People are counted by the loads of the new plan's leaves. Where leaves differ, they are taken to be
spread evenly over their leaf, and a raster of points finds who served them before. The gateway of a
user whose node changes registers the user's subscriptions there: one registration per user is what
a plan can tell, since it knows no subscriptions.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from nearcast.locality.layout.plan import Leaf, Plan
from nearcast.model.errors import MisuseError

_POINTS = 8
"""Points along each side of a leaf."""


@dataclass(frozen=True, slots=True)
class NodeChange:
    """One node under two plans: keys of leaves that it gains and loses, and users."""

    node: str
    leaves_before: int
    leaves_after: int
    gained: tuple[str, ...]
    lost: tuple[str, ...]
    users_before: int
    users_after: int
    users_in: int
    users_out: int


def node_changes(old: Plan, new: Plan) -> tuple[NodeChange, ...]:
    """Return what changes for each node, by name; MisuseError for plans of different spaces.

    `users_in` and `users_out` are users who change their node. If either plan assigns no brokers,
    there is nothing to compare. Complexity: O(leaves · points · depth).
    """
    if old.space != new.space:
        raise MisuseError(f"{tuple(new.space)}", where="plan diff", expected=f"{tuple(old.space)}")
    if old.brokers is None or new.brokers is None:
        return ()
    if old.nodes is None and new.nodes is not None and max(old.brokers) < len(new.nodes):
        old = old.with_nodes(new.nodes)
    before, after = _leaves_by_node(old), _leaves_by_node(new)
    moves = _moves(old, new)
    return tuple(
        NodeChange(
            node,
            len(before[node]),
            len(after[node]),
            tuple(key for key in after[node] if key not in before[node]),
            tuple(key for key in before[node] if key not in after[node]),
            sum(before[node].values()),
            sum(after[node].values()),
            round(sum(users for (_, to), users in moves.items() if to == node)),
            round(sum(users for (source, _), users in moves.items() if source == node)),
        )
        for node in sorted({*before, *after, *(old.nodes or ()), *(new.nodes or ())})
    )


def _leaves_by_node(plan: Plan) -> defaultdict[str, dict[str, int]]:
    """Return the keys and loads of each node's leaves."""
    found: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for leaf in plan.leaves:
        found[plan.node_of(leaf.number)][leaf.key] = leaf.load
    return found


def _moves(old: Plan, new: Plan) -> Counter[tuple[str, str]]:
    """Return how many users go from one node to another."""
    moves: Counter[tuple[str, str]] = Counter()
    for leaf in new.leaves:
        node = new.node_of(leaf.number)
        sources = Counter(old.node_of(old.leaf_at(*point).number) for point in _points(new, leaf))
        for source, points in sources.items():
            if source != node:
                moves[source, node] += leaf.load * points / sources.total()  # type: ignore[assignment]
    return moves


def _points(plan: Plan, leaf: Leaf) -> list[tuple[float, float]]:
    """Return points all over a leaf, if possible those that belong to it and to no R leaf in it."""
    west, south, east, north = leaf.rect
    parts = [(2 * n + 1) / (2 * _POINTS) for n in range(_POINTS)]
    points = [(west + (east - west) * x, south + (north - south) * y) for x in parts for y in parts]
    return [point for point in points if plan.leaf_at(*point) is leaf] or points
