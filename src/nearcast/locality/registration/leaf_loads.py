"""The load of leaves as their holders see it, and the one node that proposes an adapted plan.

    every holder ──every 5 s: load of its leaves──► the first of the connected nodes, by name
                                                        │ a node too busy for long: a plan
    every node ◄──the change of plan, as any other──────┘

The load of a leaf is about the number of messages a minute that it costs its holder: one for each
registration, for each event, and for each subscription that an event is matched with.

Nothing is proposed while the loads are not known: every connected node must have reported on the
plan in force, every node that the plan gives leaves must be connected, and no change of plan may be
under way.

Read next: `nearcast/locality/layout/adapting.py`, which decides what changes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from nearcast.locality.layout.adapting import AdaptRules, LoadMeter, PlanAdapter
from nearcast.locality.registration.holder import Holder
from nearcast.locality.registration.messages import Instant
from nearcast.locality.registration.plan_assignment import NamedPlan

REPORT_MS = 5_000
"""How often a holder measures the load of its leaves, and reports it."""
_OUTDATED_MS = 3 * REPORT_MS
_MINUTE_MS = 60_000


class LeafLoads:
    """Measures the leaves that one node holds under the plan in force. O(leaves) per call."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._meters: dict[str, LoadMeter] = {}
        self._at: Instant | None = None

    def measure(self, holder: Holder, plan: NamedPlan, now: Instant) -> dict[str, float]:
        """Return the smoothed load of each leaf, by key, since the last call."""
        counted = holder.take_traffic()
        registrations = holder.loads()
        minutes = None if self._at is None else max(now - self._at, 1) / _MINUTE_MS
        self._at = now
        found: dict[str, float] = {}
        meters: dict[str, LoadMeter] = {}
        for leaf in plan.plan.leaves:
            if plan.plan.node_of(leaf.number) != self._name:
                continue
            key = f"{plan.version}:{leaf.key}"
            traffic = 0.0 if minutes is None else counted[key] / minutes
            meter = meters[leaf.key] = self._meters.get(leaf.key) or LoadMeter()
            found[leaf.key] = meter.add(registrations.get(key, 0) + traffic, now / 1000)
        self._meters = meters
        return found


@dataclass(frozen=True, slots=True)
class _Report:
    version: int
    loads: Mapping[str, float]
    at: Instant


@dataclass(frozen=True, slots=True)
class PlanProposal:
    """An adapted plan, and why it is proposed."""

    plan: NamedPlan
    reason: str


class PlanProposer:
    """Collects the loads of all nodes, and proposes the next plan when one is too busy for long."""

    def __init__(self, name: str, rules: AdaptRules) -> None:
        self._name = name
        self._adapter = PlanAdapter(rules)
        self._reports: dict[str, _Report] = {}
        self._version = 0  # of the plan in force when this node looked last
        self.waits_for = ""
        """Why nothing can be proposed just now; empty: the loads of all nodes are known."""

    def report(self, node: str, version: int, loads: Mapping[str, float], now: Instant) -> None:
        """Record the load of the leaves that a node holds under a version of the plan."""
        self._reports[node] = _Report(version, loads, now)

    def propose(
        self, plan: NamedPlan, peers: Collection[str], now: Instant, *, is_changing: bool
    ) -> PlanProposal | None:
        """Return an adapted plan if one is due.

        `peers` are the other nodes that are connected, `is_changing` says whether some node uses
        another plan than `plan`, or two.
        """
        if plan.version != self._version:
            self._version = plan.version
            self._adapter.changed(now / 1000)
        self.waits_for = self._missing(plan, {self._name, *peers}, now, is_changing=is_changing)
        if self.waits_for:
            self._adapter.rest()
            return None
        there = {self._name, *peers}
        nodes = [*plan.nodes, *sorted(there.difference(plan.nodes))]
        return self._adapted(plan, nodes, there, now)

    def _missing(
        self, plan: NamedPlan, there: Collection[str], now: Instant, *, is_changing: bool
    ) -> str:
        if is_changing:
            return "a change of plan is under way"
        serving = {plan.plan.node_of(leaf.number) for leaf in plan.plan.leaves}
        away = sorted(serving.difference(there))
        if away:
            return f"{', '.join(away)} has leaves and is away"
        silent = sorted(name for name in there if not self._is_recent(name, plan.version, now))
        return f"{', '.join(silent)} does not report its load" if silent else ""

    def _is_recent(self, name: str, version: int, now: Instant) -> bool:
        report = self._reports.get(name)
        return report is not None and report.version == version and now - report.at <= _OUTDATED_MS

    def _adapted(
        self, plan: NamedPlan, nodes: list[str], there: Collection[str], now: Instant
    ) -> PlanProposal | None:
        loads = [
            self._reports[plan.plan.node_of(leaf.number)].loads.get(leaf.key, 0.0)
            for leaf in plan.plan.leaves
        ]
        named = plan.plan.with_nodes(None)
        away = [broker for broker, name in enumerate(nodes) if name not in there]
        found = self._adapter.propose(named, loads, now / 1000, brokers=len(nodes), away=away)
        if found is None:
            return None
        by_node = dict.fromkeys(nodes, 0.0)
        for leaf, load in zip(plan.plan.leaves, loads, strict=True):
            by_node[plan.plan.node_of(leaf.number)] += load
        busiest = max(by_node, key=lambda name: by_node[name])
        mean = sum(by_node.values()) / len(there)
        reason = f"{busiest} has {by_node[busiest]:.0f} messages a minute, the mean is {mean:.0f}"
        return PlanProposal(NamedPlan(found, tuple(nodes)), reason)
