"""How well a subscription matches: accuracy, distance, and the ranks that order them.

The ranks are described in docs/matching.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from nearcast.model import ACCURACY_FLOOR, RANKS, Box, distance_m
from nearcast.model.errors import MisuseError, OutOfRangeError, UnknownNameError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from nearcast.matching.query import Query

Rank: TypeAlias = str | Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Match:
    """A subscription that matches, and how well."""

    key: int
    accuracy: float  # in bits; less is narrower
    distance_m: float | None  # from the event to the subscriber or the middle of its area
    score: float = 0.0  # the value it was ranked by; less is better


def checked_rank(rank: Rank) -> Rank:
    """Return the rank, or raise for an unknown one; a blend cannot contain `nearest`."""
    if isinstance(rank, str):
        if rank not in RANKS:
            raise UnknownNameError(repr(rank), where="rank", expected=f"one of {', '.join(RANKS)}")
        return rank
    if not isinstance(rank, Mapping) or not rank:
        expected = "a rank's name, or weights such as {'narrowest': 1, 'weight': 0.5}"
        raise MisuseError(repr(rank), where="rank", expected=expected)
    for name in rank:
        if name not in RANKS or name == "nearest":
            expected = "narrowest, centre or weight"
            raise UnknownNameError(repr(name), where="a blend of ranks", expected=expected)
    return rank


def checked_k(k: int) -> int:
    """Return k, or raise unless it is an integer of at least 1."""
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise OutOfRangeError(repr(k), where="k", expected="a whole number from 1")
    return k


def accuracies(lows: npt.ArrayLike, highs: npt.ArrayLike, extent: Box) -> npt.NDArray[np.float64]:
    """Return `Box.accuracy` for many closed boxes at once."""
    import numpy as np

    widths = np.asarray(highs, np.float64) - np.asarray(lows, np.float64)
    ranges = np.array([side.width for side in extent.sides])
    shares = np.where(np.isfinite(widths), widths / ranges, 1.0)
    bits: npt.NDArray[np.float64] = np.log2(np.clip(shares, ACCURACY_FLOOR, 1.0)).sum(axis=1)
    return bits


def centre_score(lows: Sequence[float], highs: Sequence[float], point: Sequence[float]) -> float:
    """Return how far a point is from a box's centre: 0 there, 1 in the corners.

    The root mean square over the sides; an open side has no centre and counts 0.

    >>> centre_score((0.0, 0.0), (10.0, float("inf")), (10.0, 3.0)) ** 2
    0.5000000000000001
    """
    total = 0.0
    for low, high, value in zip(lows, highs, point, strict=True):
        below, above = value * 0.5 - low * 0.5, high * 0.5 - value * 0.5
        width = below + above
        if 0.0 < width < math.inf:
            offset = abs(below - above) / width
            total += offset * offset
    return math.sqrt(total / len(lows))


def distance_of(row: np.void, query: Query) -> float:
    """Return the metres from the event to a row's place; infinity where either has none."""
    if query.place is None or math.isnan(row["lon"]):
        return math.inf
    return distance_m(float(row["lon"]), float(row["lat"]), *query.place)
