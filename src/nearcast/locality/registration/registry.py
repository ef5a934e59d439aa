"""Which leaf has which subscription, in one process: the reference for registration and delivery.

The distributed form is `gateway.py` and `holder.py`; the experiments and the tests of the plan use
this one, which does the same without a network.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from nearcast.locality.layout.changes import adapted
from nearcast.locality.layout.plan import Plan
from nearcast.locality.layout.rect import Area, Rect, checked_rect
from nearcast.model.errors import KeyInUseError, KeyMissingError, LimitError

S = TypeVar("S", bound=Hashable)


class Registration(NamedTuple):
    """Where one subscription is registered: its area, its leaves, and where it can move freely."""

    area: Rect
    leaves: tuple[int, ...]
    home: Rect | None


class LeafChange(NamedTuple):
    """What a move changes: leaves to enter and to leave; both empty when they stay the same."""

    registration: Registration
    entered: tuple[int, ...]
    left: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EventReach(Generic[S]):
    """An event's subscribers (each once), the leaves that saw it, and those that saw it in vain."""

    subscribers: tuple[S, ...]
    leaves: tuple[int, ...]
    idle_leaves: tuple[int, ...]


def register(plan: Plan, area: Rect) -> Registration:
    """Return the leaves where a subscription belongs (trap T0.1)."""
    leaves = plan.leaves_meeting(area)
    return Registration(area, leaves, plan.home_of(leaves[0]) if len(leaves) == 1 else None)


def decide(plan: Plan, held: Registration, area: Rect) -> LeafChange:
    """Return the leaves to enter and to leave when a subscription moves to `area`.

    Complexity: four comparisons while the area stays in the registration's `home`; else that of
    `Plan.leaves_for_subscription`. `area` must be finite (see `checked_rect`).
    """
    home = held.home
    if (
        home is not None
        and home[0] <= area[0]
        and home[1] <= area[1]
        and area[2] <= home[2]
        and area[3] <= home[3]
    ):
        return LeafChange(Registration(area, held.leaves, home), (), ())
    after = register(plan, area)
    if after.leaves == held.leaves:
        return LeafChange(after, (), ())
    entered = tuple([leaf for leaf in after.leaves if leaf not in held.leaves])
    left = tuple([leaf for leaf in held.leaves if leaf not in after.leaves])
    return LeafChange(after, entered, left)


class Registry(Generic[S]):
    """The tables of all leaves of a plan.

    Contract: a subscription is at every leaf that can see an event for it, and an event is
    delivered once to each subscriber it matches. With a `capacity`, a leaf over it splits and
    siblings that are nearly empty merge, which makes a new version of the plan. Areas that cover a
    whole leaf do not count: a split cannot distribute them.

    Complexity: `register`, `move`, `remove` O(leaves of the area); `publish` O(subscriptions at the
    leaves that see it); a split or merge rebuilds the plan and moves the subscriptions concerned.
    """

    def __init__(self, plan: Plan, *, capacity: int | None = None) -> None:
        self.plan = plan
        self.capacity = capacity
        self.counts: Counter[str] = Counter()
        self._held: dict[S, Registration] = {}
        self._tables: list[dict[S, None]] = [{} for _ in plan.leaves]

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, subscriber: object) -> bool:
        return subscriber in self._held

    def leaves_of(self, subscriber: S) -> tuple[int, ...]:
        """Return the leaves that hold a subscription."""
        return self._known(subscriber).leaves

    def loads(self) -> list[int]:
        """Return how many subscriptions each leaf holds."""
        return [len(table) for table in self._tables]

    def register(self, subscriber: S, area: Area) -> Registration:
        """Add a subscription at all its leaves."""
        if subscriber in self._held:
            raise KeyInUseError(repr(subscriber), where="Registry.register")
        registration = register(self.plan, checked_rect(area, "area of a subscription"))
        self._held[subscriber] = registration
        for leaf in registration.leaves:
            self._tables[leaf][subscriber] = None
        self._adapt(registration.leaves)
        return self._held[subscriber]

    def move(self, subscriber: S, area: Area) -> LeafChange:
        """Change a subscription's area; enter and leave leaves accordingly."""
        held = self._known(subscriber)
        handover = decide(self.plan, held, checked_rect(area, "area of a subscription"))
        self._held[subscriber] = handover.registration
        for leaf in handover.entered:
            self._tables[leaf][subscriber] = None
        for leaf in handover.left:
            del self._tables[leaf][subscriber]
        self.counts["handovers"] += bool(handover.entered or handover.left)
        self._adapt(handover.entered or handover.left)
        return handover

    def remove(self, subscriber: S) -> None:
        """Remove a subscription from all leaves."""
        held = self._known(subscriber)
        del self._held[subscriber]
        for leaf in held.leaves:
            del self._tables[leaf][subscriber]
        self._adapt(held.leaves)

    def publish(self, area: Area) -> EventReach[S]:
        """Return the subscribers of an event about an area, and the leaves that saw it."""
        rect = checked_rect(area, "place of an event")
        leaves = self.plan.leaves_for_event(rect)
        found: dict[S, None] = {}
        idle = []
        for leaf in leaves:
            here = [one for one in self._tables[leaf] if self._held[one].area.intersects(rect)]
            found.update(dict.fromkeys(here))
            if not here:
                idle.append(leaf)
        self.counts["events"] += 1
        self.counts["leaves"] += len(leaves)
        self.counts["idle leaves"] += len(idle)
        return EventReach(tuple(found), leaves, tuple(idle))

    def change_plan(self, plan: Plan) -> int:
        """Move all subscriptions to another plan; return how many changed their leaves."""
        before = self.plan
        self.plan = plan
        self._tables = [{} for _ in plan.leaves]
        moved = 0
        for subscriber, held in self._held.items():
            after = register(plan, held.area)
            keys = {before.leaves[n].key for n in held.leaves}
            moved += keys != {plan.leaves[n].key for n in after.leaves}
            self._held[subscriber] = after
            for leaf in after.leaves:
                self._tables[leaf][subscriber] = None
        self.counts["moved by plan"] += moved
        return moved

    def check_invariants(self) -> None:
        """Assert that tables and registrations agree with each other and with the plan."""
        for subscriber, held in self._held.items():
            assert held.leaves == self.plan.leaves_for_subscription(held.area), subscriber
            assert all(subscriber in self._tables[leaf] for leaf in held.leaves), subscriber
        entries = sum(len(held.leaves) for held in self._held.values())
        assert entries == sum(self.loads()), "a table holds what nobody registered"

    def _known(self, subscriber: S) -> Registration:
        try:
            return self._held[subscriber]
        except KeyError:
            raise KeyMissingError(repr(subscriber), where="Registry") from None

    def _adapted(self, capacity: int) -> Plan:
        divisible = [
            sum(not self._held[one].area.covers(leaf.closed) for one in table)
            for leaf, table in zip(self.plan.leaves, self._tables, strict=True)
        ]
        return adapted(self.plan, self.loads(), capacity, divisible=divisible)

    def _adapt(self, touched: tuple[int, ...]) -> None:
        """Split and merge until nothing changes; each round changes each leaf at most once."""
        if self.capacity is None:
            return
        sizes = [len(self._tables[leaf]) for leaf in touched]
        if all(self.capacity // 4 < size <= self.capacity for size in sizes):
            return
        for _ in range(_MOST_ROUNDS):
            after = self._adapted(self.capacity)
            if after is self.plan:
                return
            self.counts["plan changes"] += 1
            self.change_plan(after)
        raise LimitError(
            f"{_MOST_ROUNDS} rounds of splitting and merging",
            where="Registry",
            expected="a plan that settles",
        )


_MOST_ROUNDS = 64
