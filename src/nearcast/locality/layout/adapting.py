"""When and how a plan in use is adapted: leaves move from a node that is too busy, or are split.

    loads of leaves ──► is a node over 1.5 × the mean, for half a minute? ──► a few leaves move to
                        less busy nodes, until it has 1.2 × the mean; one too heavy to move is
                        split; calm siblings merge

The decision takes loads and the time as arguments. Changes are few at a time and rare (hysteresis),
because each of them hands registrations over. A load may be anything that adds up
(`registration/leaf_loads.py`: messages a minute).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from nearcast.locality.layout.changes import Part, merged_parts, plan_of_parts, split_leaf
from nearcast.locality.layout.plan import Plan
from nearcast.locality.layout.rect import Rect
from nearcast.model.errors import MisuseError, OutOfRangeError

_WORTH = 0.02  # of the mean load: a leaf with less is not worth moving


@dataclass(frozen=True, slots=True)
class AdaptRules:
    """How soon and how much a plan is adapted."""

    over: float = 1.5  # of the mean load of the nodes: a busier one gives leaves away
    until: float = 1.2  # of the mean load: down to this
    least_load: float = 100.0  # of the busiest node: below it nothing is done
    sustained_s: float = 30.0  # so long a node must be too busy
    least_gap_s: float = 60.0  # between two plans
    most_changes: int = 4  # leaves that move or split in one plan
    calm: float = 0.05  # of the mean load: siblings with less in sum become one leaf

    def __post_init__(self) -> None:
        if not self.over >= self.until > 1 or self.most_changes < 1:
            raise OutOfRangeError(
                str(self),
                where="rules of adaptation",
                expected="over >= until > 1, most_changes >= 1",
            )


class LoadMeter:
    """A smoothed load: an exponential mean, whose memory halves every `half_life_s` seconds."""

    def __init__(self, half_life_s: float = 20.0) -> None:
        self._rate = math.log(2) / half_life_s
        self._value = 0.0
        self._at_s: float | None = None

    def add(self, load: float, now_s: float) -> float:
        """Add the load since the last call, and return the mean; a clock set back adds nothing."""
        if self._at_s is None:
            self._value = load
        else:
            kept = math.exp(-self._rate * max(0.0, now_s - self._at_s))
            self._value = kept * self._value + (1 - kept) * load
        self._at_s = now_s
        return self._value


class PlanAdapter:
    """Proposes the next plan when a node has been too busy for a while."""

    def __init__(self, rules: AdaptRules | None = None) -> None:
        self._rules = rules or AdaptRules()
        self._busy_since_s: float | None = None
        self._changed_s: float | None = None

    def rest(self) -> None:
        """Forget how long a node has been busy: the loads are not known just now."""
        self._busy_since_s = None

    def changed(self, now_s: float) -> None:
        """Count the gap to the next plan from now: another plan is in force."""
        self._changed_s, self._busy_since_s = now_s, None

    def propose(
        self,
        plan: Plan,
        loads: Sequence[float],
        now_s: float,
        brokers: int | None = None,
        away: Collection[int] = (),
    ) -> Plan | None:
        """Return the next version of the plan, None if it stays; `loads[i]` is that of leaf i.

        `brokers` is the number of nodes that may get leaves, if some have none yet; those that are
        `away` have no leaves and get none.
        """
        if plan.brokers is None or len(loads) != len(plan.leaves):
            raise MisuseError(
                f"{len(loads)} loads",
                where="adaptation of a plan",
                expected=f"{len(plan.leaves)} loads, and a plan that says which broker has a leaf",
            )
        draft = _Draft(plan, loads, max(brokers or 0, max(plan.brokers) + 1), away)
        if not self._is_due(draft, now_s):
            return None
        changes = 0
        if draft.is_over(self._rules.over):
            while changes < self._rules.most_changes and draft.is_over(self._rules.until):
                if not draft.relieve():
                    break
                changes += 1
        if not changes:
            draft.merge(self._rules.calm)
        if not draft.is_changed:
            return None
        self.changed(now_s)
        return plan_of_parts(plan, draft.parts)

    def _is_due(self, draft: _Draft, now_s: float) -> bool:
        """Return whether a node has been too busy for long enough, or all have been calm."""
        rules = self._rules
        is_busy = draft.busiest_load >= rules.least_load and draft.is_over(rules.over)
        if not is_busy and not draft.has_calm_siblings(rules.calm):
            self._busy_since_s = None
            return False
        if self._busy_since_s is None or now_s < self._busy_since_s:
            self._busy_since_s = now_s
        is_sustained = now_s - self._busy_since_s >= rules.sustained_s
        return is_sustained and (
            self._changed_s is None or now_s - self._changed_s >= rules.least_gap_s
        )


class _Draft:
    """The next plan while it is put together."""

    def __init__(
        self, plan: Plan, loads: Sequence[float], brokers: int, away: Collection[int]
    ) -> None:
        self._plan = plan
        self._parts: list[Part] = [
            (leaf.key, leaf.rect, round(loads[leaf.number]), plan.broker_of(leaf.number))
            for leaf in plan.leaves
        ]
        self._before = [(part[0], part[3]) for part in self._parts]
        self._there = [broker for broker in range(brokers) if broker not in away]
        self._loads = [0] * brokers
        for part in self._parts:
            self._loads[part[3]] += part[2]

    @property
    def parts(self) -> list[Part]:
        return self._parts

    @property
    def is_changed(self) -> bool:
        return [(part[0], part[3]) for part in self._parts] != self._before

    @property
    def busiest_load(self) -> int:
        return max(self._loads)

    @property
    def _mean(self) -> float:
        return sum(self._loads) / len(self._there)

    def is_over(self, over: float) -> bool:
        return self.busiest_load > over * self._mean

    def has_calm_siblings(self, calm: float) -> bool:
        return len(merged_parts(self._parts, int(calm * self._mean))) < len(self._parts)

    def merge(self, calm: float) -> None:
        self._parts = merged_parts(self._parts, int(calm * self._mean))

    def relieve(self) -> bool:
        """Move a leaf from the busiest node to a less busy one, or split its heaviest leaf.

        The leaf that moves leaves its receiver below the giver. One that borders on leaves of the
        receiver is preferred, for fewer messages between the two; then the heaviest.
        """
        giver = self._loads.index(max(self._loads))
        mine = [part for part in self._parts if part[3] == giver and part[2] > 0]
        heaviest = max(mine, key=lambda part: part[2], default=None)
        least = min(self._loads[broker] for broker in self._there)
        if heaviest is None or least == self._loads[giver]:
            return False
        if heaviest[2] <= self._loads[giver] - least:
            best = max(self._moves(mine, giver), default=None)
            if best is not None:
                self._move(best[2], best[3])
                return True
        return self._split(self._parts.index(heaviest))

    def _moves(self, mine: Sequence[Part], giver: int) -> Iterator[tuple[bool, int, int, int]]:
        """Yield what may move: whether it borders on the receiver, load, place and receiver."""
        for receiver in self._there:
            load = self._loads[receiver]
            if load >= self._mean:
                continue
            room = (self._loads[giver] - load) / 2
            theirs = [part[1] for part in self._parts if part[3] == receiver]
            for part in mine:
                if part[2] <= room and part[2] > _WORTH * self._mean:
                    near = any(_touches(part[1], rect) for rect in theirs)
                    yield near, part[2], self._parts.index(part), receiver

    def _move(self, place: int, broker: int) -> None:
        key, rect, load, before = self._parts[place]
        self._loads[before] -= load
        self._loads[broker] += load
        self._parts[place] = (key, rect, load, broker)

    def _split(self, place: int) -> bool:
        found = split_leaf(self._plan, self._parts[place])
        if len(found) == 1:
            return False
        self._loads[self._parts[place][3]] += sum(part[2] for part in found) - self._parts[place][2]
        self._parts[place : place + 1] = found
        return True


def _touches(one: Rect, other: Rect) -> bool:
    """Return whether two leaves have a border in common; tiles end just before the next one."""
    slack = 1e-6 * (one.east - one.west + one.north - one.south)
    return one.grown(slack).intersects(other)
