"""The next version of a plan: splitting and merging leaves, and comparing two plans.

A leaf with too many subscribers gets child blocks (paper 0, "Registering a subscription", step 3);
sibling blocks that are empty, or nearly so, are merged into one. Both make a new plan with the
next version; the cluster moves to it as to any other plan (`registration/node.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from nearcast.locality.layout.grid import halves_of_cells
from nearcast.locality.layout.plan import Leaf, Plan
from nearcast.locality.layout.plan_parts import REGION_DEPTH_LIMIT
from nearcast.locality.layout.rect import Rect
from nearcast.model.errors import MisuseError, OutOfRangeError

Part: TypeAlias = tuple[str, Rect, int, int]
"""Key, rectangle, load and broker of a leaf of the next plan."""


def adapted(
    plan: Plan, loads: Sequence[int], capacity: int, *, divisible: Sequence[int] | None = None
) -> Plan:
    """Return the next version: leaves over `capacity` split once, siblings with few users merged.

    `loads[i]` is the current load of leaf i, `divisible[i]` the part of it that a split would
    distribute (all of it, by default). Four siblings merge when together they carry no more than a
    quarter of the capacity, so that a merged block is far from splitting again. At the depth limit
    a leaf stays as it is, however full (trap T0.5). When nothing changes, the plan itself is
    returned.
    """
    if len(loads) != len(plan.leaves):
        raise MisuseError(
            f"{len(loads)} loads", where="adapted", expected=f"{len(plan.leaves)}, one per leaf"
        )
    if capacity < 1:
        raise OutOfRangeError(str(capacity), where="capacity", expected="1 or more")
    parts: list[Part] = []
    for leaf in plan.leaves:
        load = loads[leaf.number]
        over = (load if divisible is None else divisible[leaf.number]) > capacity
        part = (leaf.key, leaf.rect, load, plan.broker_of(leaf.number))
        parts.extend(split_leaf(plan, part) if over else [part])
    merged = merged_parts(parts, capacity // 4)
    if [part[0] for part in merged] == [leaf.key for leaf in plan.leaves]:
        return plan
    return plan_of_parts(plan, merged)


def plan_of_parts(plan: Plan, parts: list[Part]) -> Plan:
    """Return the next version of a plan, with these leaves."""
    r_parts = [part for part in parts if part[0].startswith("r")]
    ordered = r_parts + sorted(part for part in parts if part[0].startswith("q"))
    brokers = None if plan.brokers is None else [part[3] for part in ordered]
    return plan.remade([part[:3] for part in ordered], brokers, plan.version + 1)


def split_leaf(plan: Plan, part: Part) -> list[Part]:
    """Return the parts of a leaf, or the leaf alone where it cannot be split.

    An R leaf made of whole cells is cut in two along the coarsest line of the grid
    (`halves_of_cells`), so that one that was joined from quadrants falls apart into these. Any
    other leaf is quartered.
    """
    key, rect, load, broker = part
    if key.startswith("q"):
        if len(key) - 1 >= plan.grid.depth:
            return [part]
        pieces = [(str(digit), piece) for digit, piece in enumerate(rect.quarters())]
    else:
        pieces = _region_pieces(plan, key, rect)
        if len(pieces) == 1:
            return [part]
    stem = key if key.startswith("q") or "." in key else key + "."
    return [
        (f"{stem}{digit}", piece, (load + number) // len(pieces), broker)
        for number, (digit, piece) in enumerate(pieces)
    ]


def _region_pieces(plan: Plan, key: str, rect: Rect) -> list[tuple[str, Rect]]:
    cells = plan.grid.whole_cells(rect)
    if cells is not None:
        return [(digit, plan.grid.closed_cells(*box)) for digit, box in halves_of_cells(cells)]
    if len(key.partition(".")[2]) >= REGION_DEPTH_LIMIT:
        return [("", rect)]
    return [(str(digit), piece) for digit, piece in enumerate(rect.quarters())]


def merged_parts(parts: list[Part], most: int) -> list[Part]:
    """Return the leaves, with siblings of at most this load in sum merged into one."""
    by_key = {part[0]: part for part in parts}
    below = Counter(key[:end] for key in by_key for end in range(1, len(key)))
    for parent in dict.fromkeys(_parent(key) for key in by_key):
        if parent is None:
            continue
        children = [child for digit in "0123" if (child := by_key.get(f"{parent}{digit}"))]
        are_all = 1 < len(children) == below[parent]
        if are_all and sum(child[2] for child in children) <= most:
            by_key = _replaced(by_key, parent, children)
            below.subtract({parent[:end]: len(children) - 1 for end in range(1, len(parent))})
            below[parent] = 0
    return list(by_key.values())


def _replaced(by_key: dict[str, Part], parent: str, children: list[Part]) -> dict[str, Part]:
    key = parent.rstrip(".")
    rect = children[0][1].joined(children[-1][1])
    heaviest = max(children, key=lambda child: child[2])
    merged: Part = (key, rect, sum(child[2] for child in children), heaviest[3])
    result: dict[str, Part] = {}
    for name, part in by_key.items():
        if part is children[0]:
            result[key] = merged
        elif part not in children:
            result[name] = part
    return result


def _parent(key: str) -> str | None:
    """Return the common prefix of a block and its siblings; None for a root or a region."""
    if key.startswith("q"):
        return key[:-1] if len(key) > 1 else None
    return key[:-1] if "." in key else None


@dataclass(frozen=True, slots=True)
class PlanDiff:
    """What changes from one plan to another, by leaf key.

    `moved` are leaves of both plans that another node serves now, or another broker where the plans
    do not both name their nodes; `reshaped` are those whose rectangle differs.
    """

    old_version: int
    new_version: int
    added: tuple[str, ...]
    removed: tuple[str, ...]
    reshaped: tuple[str, ...]
    moved: tuple[str, ...]
    load_before: Mapping[str, int]
    load_after: Mapping[str, int]

    @property
    def is_empty(self) -> bool:
        """Return whether no registration has to move."""
        return not (self.added or self.removed or self.reshaped or self.moved)

    def lines(self) -> list[str]:
        """Return the difference as text, one line per leaf: + added, - removed, ~ changed."""
        head = f"plan {self.old_version} -> {self.new_version}"
        changes = [f"- {key} (load {self.load_before[key]})" for key in self.removed]
        changes += [f"+ {key} (load {self.load_after[key]})" for key in self.added]
        changes += [f"~ {key} has another rectangle" for key in self.reshaped]
        changes += [f"~ {key} goes to another broker" for key in self.moved]
        return [head, *changes] if changes else [head, "  same leaves on the same brokers"]


def plan_diff(old: Plan, new: Plan) -> PlanDiff:
    """Return the difference of two plans of the same space; MisuseError for different spaces."""
    if old.space != new.space:
        raise MisuseError(f"{tuple(new.space)}", where="plan diff", expected=f"{tuple(old.space)}")
    before = {leaf.key: leaf for leaf in old.leaves}
    after = {leaf.key: leaf for leaf in new.leaves}
    both = [key for key in before if key in after]
    server = _node if old.nodes is not None and new.nodes is not None else _broker
    return PlanDiff(
        old.version,
        new.version,
        tuple(key for key in after if key not in before),
        tuple(key for key in before if key not in after),
        tuple(key for key in both if before[key].rect != after[key].rect),
        tuple(key for key in both if server(old, before[key]) != server(new, after[key])),
        {key: leaf.load for key, leaf in before.items()},
        {key: leaf.load for key, leaf in after.items()},
    )


def _node(plan: Plan, leaf: Leaf) -> int | str:
    return plan.node_of(leaf.number)


def _broker(plan: Plan, leaf: Leaf) -> int | str:
    return leaf.key if plan.brokers is None else plan.brokers[leaf.number]
