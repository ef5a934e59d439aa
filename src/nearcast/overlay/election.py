"""Elections: which member becomes the parent of a group (paper 3, "Tree", equation 4; trap T3.8).

A group's parent receives every event for the group and forwards it. Events that it receives
without wanting them, and forwarding, are overhead. With R the cost to receive and F to forward:

    paper   (R + F) Σ E(Sᵢ) − R Σ E(S₁ ∩ Sᵢ)          i ≥ 2; charges R once per *member*
    exact   R (E(∪ S) − E(S₁)) + F Σ E(Sᵢ)            charges R once per *event*

Since E(∪ S) is the same whoever is elected, the exact cost is a constant minus (R + F) E(S₁): **the
cheapest parent is the member with the most events of its own**. By volume that is LVS. The cost of
a group does not depend on the hosts of the groups below it, so electing each group's cheapest
member is also best for the whole tree. The paper's rule adds a bonus for overlap, which is exactly
what it counted twice. See `docs/content-overlay.md` for what that costs.

Read next: `splitting.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import TypeAlias

from nearcast.model.errors import OutOfRangeError
from nearcast.overlay.bounds import Bounds, intersects, overlap

Expected: TypeAlias = Callable[[Bounds], float]


class Method(Enum):
    """How a group elects its parent."""

    RANDOM = "RS"
    LARGEST = "LVS"
    CHEAPEST = "CES"
    EXACT = "exact"
    """The member with the most events of its own, by the density in use."""
    MEASURED = "measured"
    """As EXACT, and elected again from time to time by the events actually forwarded."""


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs of receiving (R) and forwarding (F) one event; the paper gives no values."""

    receive: float = 1.0
    forward: float = 1.0

    def __post_init__(self) -> None:
        if not (self.receive >= 0 and self.forward >= 0 and self.receive + self.forward > 0):
            raise OutOfRangeError(
                f"R = {self.receive}, F = {self.forward}", expected="two costs ≥ 0, not both 0"
            )


EVEN = Costs()
"""R = F = 1."""


def paper_cost(
    parent: int, boxes: Sequence[Bounds], expected: Expected, costs: Costs = EVEN
) -> float:
    """Return the overhead of the group by equation 4 of the paper; O(m n) for m boxes."""
    total = shared = 0.0
    for place, box in enumerate(boxes):
        if place != parent:
            total += expected(box)
            both = overlap(boxes[parent], box)
            if both is not None:
                shared += expected(both)
    return (costs.receive + costs.forward) * total - costs.receive * shared


def exact_cost(
    parent: int, boxes: Sequence[Bounds], expected: Expected, costs: Costs = EVEN
) -> float:
    """Return the overhead of the group with each arriving event received once; O(2ᵐ n)."""
    others = sum(expected(box) for place, box in enumerate(boxes) if place != parent)
    unwanted = expected_in_union(boxes, expected) - expected(boxes[parent])
    return costs.receive * max(unwanted, 0.0) + costs.forward * others


def expected_in_union(boxes: Sequence[Bounds], expected: Expected) -> float:
    """Return E of the union, by inclusion and exclusion over the boxes that meet; O(2ᵐ n)."""
    total = 0.0
    pending: list[tuple[int, float, Bounds]] = [(i, 1.0, box) for i, box in enumerate(boxes)]
    while pending:
        last, sign, box = pending.pop()
        total += sign * expected(box)
        for place in range(last + 1, len(boxes)):
            both = overlap(box, boxes[place])
            if both is not None:
                pending.append((place, -sign, both))
    return total


def candidates_after_join(boxes: Sequence[Bounds], incumbent: int, newcomer: int) -> list[int]:
    """Return the members that can win by the paper's cost once `newcomer` is in.

    `incumbent` won before. The newcomer adds the same amount to every member's cost and takes some
    off only where it overlaps (paper 3, "Joining").
    """
    return [
        place
        for place, box in enumerate(boxes)
        if place in (incumbent, newcomer) or intersects(box, boxes[newcomer])
    ]


def elect(
    method: Method,
    boxes: Sequence[Bounds],
    *,
    expected: Expected,
    volume: Expected,
    costs: Costs = EVEN,
    incumbent: int | None = None,
    newcomer: int | None = None,
    random: Random | None = None,
) -> int:
    """Return the position of the elected member; ties go to the incumbent, then to the first.

    With `newcomer`, the incumbent had won before the newcomer joined: only members that can win are
    computed. Under RANDOM, the incumbent then gives way with probability 1/m, so that every member
    is parent with equal probability however the group grew.
    """
    places: Iterable[int] = range(len(boxes))
    if method is Method.RANDOM:
        return _draw(len(boxes), incumbent, newcomer, random)
    if method is Method.CHEAPEST:
        if incumbent is not None and newcomer is not None:
            places = candidates_after_join(boxes, incumbent, newcomer)
        scores = {place: paper_cost(place, boxes, expected, costs) for place in places}
    else:
        size = volume if method is Method.LARGEST else expected
        scores = {place: -size(boxes[place]) for place in places}
    return min(scores, key=lambda place: (scores[place], place != incumbent, place))


def _draw(members: int, incumbent: int | None, newcomer: int | None, random: Random | None) -> int:
    if random is None:
        return incumbent if incumbent is not None else 0
    if incumbent is not None:
        if newcomer is None:
            return incumbent
        return newcomer if random.random() * members < 1.0 else incumbent
    return random.randrange(members)
