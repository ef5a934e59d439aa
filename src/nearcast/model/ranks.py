"""The ranks: how the subscriptions that match an event are ordered. Each is declared here, once.

What follows from a declaration: the names that `$rank` accepts, whether the index
finds the best by itself, and how a subscription without conditions ranks. The score of each is a
function in `nearcast/matching/ranking.py`, which cannot be imported while one is missing.

A blend is a weighted sum of ranks, written `narrowest:0.7,weight:0.3`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from nearcast.model.errors import MisuseError, OutOfRangeError, UnknownNameError
from nearcast.model.wording import did_you_mean, shown


@dataclass(frozen=True, slots=True, kw_only=True)
class RankDeclaration:
    """One rank. Scores are compared: less is better, and ties go to the older subscription."""

    name: str
    kernel: int | None
    """The component of the index's score that it is; None: all matches are scored one by one."""
    plain_score: Callable[[float], float]
    """The score of a subscription without conditions, from its weight."""
    blend_unit: float = 1.0
    """What its score is divided by in a blend."""


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
        RankDeclaration(name="nearest", kernel=None, plain_score=_has_no_place, blend_unit=1000.0),
        RankDeclaration(name="centre", kernel=1, plain_score=_as_wide_as_the_space),
        RankDeclaration(name="weight", kernel=2, plain_score=_weight),
    )
}
"""All ranks by name, in the order in which they are listed to people."""


def kernel_ranks() -> tuple[str, ...]:
    """Return the ranks that the index computes and blends, in the order of its components."""
    found = [(one.kernel, one.name) for one in RANKS.values() if one.kernel is not None]
    return tuple(name for _, name in sorted(found))


# --- blends

_NORMAL: Final = 1e-9  # shares that sum to 1 within this are taken as they are


def checked_shares(shares: Mapping[str, float]) -> dict[str, float]:
    """Return the shares of a blend above 0, in the order of `RANKS`, or raise."""
    for name, share in shares.items():
        if name not in RANKS:
            raise UnknownNameError(
                shown(name),
                where="rank",
                expected=f"one of {', '.join(RANKS)}",
                todo=did_you_mean(str(name), tuple(RANKS)),
            )
        if isinstance(share, bool) or not isinstance(share, int | float) or not share >= 0:
            raise OutOfRangeError(
                repr(share), where=f"the share of {name}", expected="a number from 0"
            )
    total = sum(shares.values())
    if not 0 < total < math.inf:
        raise OutOfRangeError(
            f"shares that sum to {total:g}", where="rank", expected="a sum above 0, and finite"
        )
    return {name: float(shares[name]) for name in RANKS if shares.get(name, 0) > 0}


@lru_cache(maxsize=256)
def parse_rank(text: str) -> str | Mapping[str, float]:
    """Return a rank's name, or the shares of a blend, which sum to 1.

    >>> parse_rank("weight")
    'weight'
    >>> parse_rank("weight:3, narrowest:7")
    {'narrowest': 0.7, 'weight': 0.3}
    """
    if ":" not in text and "," not in text:
        if text in RANKS:
            return text
        raise UnknownNameError(
            shown(text),
            expected=f"one of {', '.join(RANKS)}, or a blend such as narrowest:0.7,weight:0.3",
            todo=did_you_mean(text, tuple(RANKS)),
        )
    given: dict[str, float] = {}
    for part in text.split(","):
        name, colon, share = (each.strip() for each in part.partition(":"))
        if not colon:
            raise MisuseError(shown(part), expected="a rank and its share, such as weight:0.3")
        if name in given:
            raise MisuseError(f"{name} twice", expected="each rank once")
        given[name] = _share(name, share)
    shares = checked_shares(given)
    total = sum(shares.values())
    if abs(total - 1.0) >= _NORMAL:
        shares = checked_shares({name: share / total for name, share in shares.items()})
    return next(iter(shares)) if len(shares) == 1 else shares


def _share(name: str, text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = math.nan
    if not math.isfinite(share):
        raise OutOfRangeError(shown(text), where=f"the share of {name}", expected="a number from 0")
    return share


def rank_text(rank: str | Mapping[str, float]) -> str:
    """Return the canonical text of a rank; parsing it returns the same shares, bit for bit.

    >>> rank_text(parse_rank("weight:3, narrowest:7"))
    'narrowest:0.7,weight:0.3'
    """
    if isinstance(rank, str):
        return rank
    return ",".join(f"{name}:{share!r}" for name, share in rank.items())


def plain_score(rank: str, weight: float) -> float:
    """Return the score of a subscription without conditions, in a rank or a blend."""
    parsed = parse_rank(rank)
    if isinstance(parsed, str):
        return RANKS[parsed].plain_score(weight)
    total = 0.0  # in the order of a content subscription's score, so that equal ones tie
    for name, share in parsed.items():
        total += share * (RANKS[name].plain_score(weight) / RANKS[name].blend_unit)
    return total
