"""The ranks: how the subscriptions that match an event are ordered. Each is declared here, once.

What follows from a declaration: the names that `$rank` accepts, whether the index
finds the best by itself, which ranks can be blended, and how a subscription without conditions
ranks. The score of each is a function in `nearcast/matching/ranking.py`, which cannot be imported
while one is missing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class RankDeclaration:
    """One rank. Scores are compared: less is better, and ties go to the older subscription."""

    name: str
    kernel: int | None
    """The component of the index's score that it is; None: all matches are scored one by one."""
    plain_score: Callable[[float], float]
    """The score of a subscription without conditions, from its weight."""


def _as_wide_as_the_space(_weight: float) -> float:
    return 0.0


def _has_no_place(_weight: float) -> float:
    return math.inf


def _weight(weight: float) -> float:
    return -weight


RANKS: Final = {
    one.name: one
    for one in (
        RankDeclaration(name="narrowest", kernel=0, plain_score=_as_wide_as_the_space),
        RankDeclaration(name="nearest", kernel=None, plain_score=_has_no_place),
        RankDeclaration(name="centre", kernel=1, plain_score=_as_wide_as_the_space),
        RankDeclaration(name="weight", kernel=2, plain_score=_weight),
    )
}
"""All ranks by name, in the order in which they are listed to people."""


def kernel_ranks() -> tuple[str, ...]:
    """Return the ranks that the index computes and blends, in the order of its components."""
    found = [(one.kernel, one.name) for one in RANKS.values() if one.kernel is not None]
    return tuple(name for _, name in sorted(found))
