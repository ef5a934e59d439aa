"""Which node gets each leaf of a plan that an operator shares with a cluster.

| the plan | its leaves go to |
|---|---|
| names its nodes | the nodes that it names, whoever else is there or away |
| has no more brokers than nodes are there | the nodes that are there, one for each number |
| has more, or none | the nodes that are there, by load and by movement (`assign_leaves`) |

Without names, the node that holds most of a part today gets it; leaves that nobody holds any more
are shared out alone, unless that is out of balance or cuts too many movements. So a node that is
absent does not move the leaves of others.

Read next: `plan_assignment.py`, `nearcast/locality/layout/balancing.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from nearcast.locality.layout.balancing import assign_leaves, border_flows, names_of_parts
from nearcast.locality.layout.plan import Plan
from nearcast.locality.layout.plan_parts import Flows
from nearcast.locality.registration.plan_assignment import NamedPlan
from nearcast.model.errors import UnknownNameError

_BALANCED = 1.1  # the heaviest node's share of the mean, for leaves that are shared out
_BEARABLE = 1.25  # load and cut, compared with the best assignment, up to which holders are kept


def plan_for_nodes(
    plan: Plan,
    present: Sequence[str],
    *,
    away: Collection[str] = (),
    last: NamedPlan | None = None,
    reassigns: bool = False,
    clients: Mapping[str, Sequence[tuple[float, float]]] | None = None,
) -> NamedPlan:
    """Return a plan with a node for each leaf; `last` is the plan in force.

    `clients` has places of the clients of each node. They count where no plan of this space is in
    force: a part of a plan without names goes to the node that most of its clients are connected
    to, so that their events and registrations need not cross.

    `away` are nodes that the cluster knows but that are not there. A plan that names any other node
    is an UnknownNameError, unless `reassigns`: then the leaves of all nodes that are not there are
    shared out among those that are, and no other leaf moves. Deterministic.
    """
    if plan.nodes is None:
        before = _same_space(last, plan)
        today = (
            _homes(plan, clients or {}, present)
            if before is None
            else _holders_today(plan, present, before)
        )
        return _newly_named(plan, _in_order(present, last), today)
    serving = {plan.node_of(leaf.number) for leaf in plan.leaves}
    wanted = serving.intersection(present) if reassigns else serving
    unknown = sorted(wanted.difference(present, away))
    if unknown:
        raise UnknownNameError(
            f"no node {_listed(unknown)}",
            where=f"plan {plan.version}",
            expected=f"nodes that the cluster knows: {', '.join(sorted({*present, *away}))}",
            todo="Start it first, or give its leaves to the nodes that are there: --reassign",
        )
    holders = [plan.node_of(leaf.number) for leaf in plan.leaves]
    chosen = _shared_out(plan, [name if name in wanted else None for name in holders], present)
    names = [name for name in plan.nodes if name in wanted or name in present]
    return _named(plan, chosen, [*names, *(name for name in present if name not in names)])


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _in_order(present: Sequence[str], last: NamedPlan | None) -> list[str]:
    """Return the nodes that are there, those of the plan in force first, in its order.

    The first node also holds all places outside the plan.
    """
    before = [] if last is None else [name for name in last.nodes if name in present]
    return before + [name for name in present if name not in before]


def _same_space(last: NamedPlan | None, plan: Plan) -> NamedPlan | None:
    return last if last is not None and last.plan.space == plan.space else None


def _named(plan: Plan, holders: Sequence[str], nodes: Sequence[str]) -> NamedPlan:
    numbers = {name: number for number, name in enumerate(nodes)}
    brokers = [numbers[name] for name in holders]
    return NamedPlan(plan.with_nodes(None).with_brokers(brokers), tuple(nodes))


def _newly_named(plan: Plan, nodes: Sequence[str], today: Sequence[str | None]) -> NamedPlan:
    """Return the plan with names; `today` has the node that should keep each leaf, if any."""
    if plan.brokers is not None and max(plan.brokers) < len(nodes):
        return NamedPlan(plan, names_of_parts(plan, plan.brokers, nodes, today))
    found = assign_leaves(plan, plan.flows, len(nodes), tolerance=_BALANCED - 1).brokers
    names = names_of_parts(plan, found, nodes, today)
    best = [names[part] for part in found]
    kept = _shared_out(plan, today, nodes)
    return _named(plan, kept if _is_bearable(plan, today, kept, best) else best, nodes)


def _homes(
    plan: Plan, clients: Mapping[str, Sequence[tuple[float, float]]], nodes: Collection[str]
) -> list[str | None]:
    """Return the node that most clients in each leaf are connected to; None if nobody is there."""
    counts: list[Counter[str]] = [Counter() for _ in plan.leaves]
    for name, places in clients.items():
        if places and name in nodes:
            xs, ys = zip(*places, strict=True)
            for number in plan.leaf_numbers_at(xs, ys).tolist():
                if number >= 0:
                    counts[number][name] += 1
    return [max(sorted(one), key=lambda name: one[name], default=None) for one in counts]


def _holders_today(plan: Plan, nodes: Collection[str], last: NamedPlan) -> list[str | None]:
    """Return the node that holds the middle of each leaf; None if it is not among `nodes`."""
    found: list[str | None] = []
    for leaf in plan.leaves:
        west, south, east, north = leaf.rect
        name = last.plan.node_of(last.plan.leaf_at((west + east) / 2, (south + north) / 2).number)
        found.append(name if name in nodes else None)
    return found


def _shared_out(plan: Plan, holders: Sequence[str | None], nodes: Sequence[str]) -> list[str]:
    """Return a holder for each leaf: its own, or for a leaf without one a node that is there.

    The heaviest goes first, to the node with the most movement to and from it that is not full.
    """
    near: dict[int, list[tuple[int, int]]] = {}
    for (one, other), weight in (plan.flows or border_flows(plan)).items():
        near.setdefault(one, []).append((other, weight))
        near.setdefault(other, []).append((one, weight))
    chosen = list(holders)
    loads = _loads(plan, chosen)
    most = _BALANCED * sum(leaf.load + 1 for leaf in plan.leaves) / len(nodes)
    for leaf in sorted(plan.leaves, key=lambda leaf: (-leaf.load, leaf.number)):
        if chosen[leaf.number] is not None:
            continue
        pull: Counter[str | None] = Counter()
        for other, weight in near.get(leaf.number, ()):
            pull[chosen[other]] += weight
        fits = [name for name in nodes if loads[name] + leaf.load < most]
        best = max(fits or nodes, key=lambda name: (pull[name] if fits else 0, -loads[name]))
        chosen[leaf.number] = best
        loads[best] += leaf.load + 1
    return [name for name in chosen if name is not None]


def _loads(plan: Plan, holders: Sequence[str | None]) -> Counter[str | None]:
    loads: Counter[str | None] = Counter()
    for leaf, name in zip(plan.leaves, holders, strict=True):
        loads[name] += leaf.load + 1
    return loads


def _is_bearable(
    plan: Plan, today: Sequence[str | None], kept: Sequence[str], best: Sequence[str]
) -> bool:
    """Return whether the holders of today are nearly as good as the best assignment.

    Movements to and from leaves that nobody holds are no fault of theirs.
    """
    loads, best_loads = _loads(plan, kept), _loads(plan, best)
    held = {
        pair: moves
        for pair, moves in plan.flows.items()
        if today[pair[0]] is not None and today[pair[1]] is not None
    }
    return (
        len(loads) >= len(best_loads)
        and max(loads.values()) <= _BEARABLE * max(best_loads.values())
        and _cut(held, kept) <= _BEARABLE * _cut(held, best)
    )


def _cut(flows: Flows, holders: Sequence[str]) -> int:
    return sum(moves for (one, other), moves in flows.items() if holders[one] != holders[other])
