"""How well a subscription matches: accuracy, distance, and the scores of the ranks.

The ranks are declared in `nearcast/model/ranks.py` and described in docs/matching.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from nearcast.model import ACCURACY_FLOOR, RANKS, Box, distance_m
from nearcast.model.errors import MisuseError, OutOfRangeError
from nearcast.model.ranks import checked_shares, parse_rank

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from nearcast.matching.query import Query

Rank: TypeAlias = str | Mapping[str, float]
Bounds: TypeAlias = tuple[tuple[float, ...], tuple[float, ...]]
_STEPS: Final = 2.0**24  # accuracies are compared in steps of 2^-24, as the index does


@dataclass(slots=True)
class Match:
    """A subscription that matches, and how well."""

    key: int
    accuracy: float  # in bits; less is narrower
    distance_m: float | None  # from the event to the subscriber or the middle of its area
    score: float = 0.0  # the value it was ranked by; less is better


def checked_rank(rank: Rank) -> Rank:
    """Return the rank's name, or the checked shares of a blend; a text is parsed."""
    if isinstance(rank, str):
        return rank if rank in RANKS else parse_rank(rank)
    if not isinstance(rank, Mapping) or not rank:
        expected = "a rank's name, or weights such as {'narrowest': 1, 'weight': 0.5}"
        raise MisuseError(repr(rank), where="rank", expected=expected)
    return checked_shares(rank)


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


# --- the score of each rank


class ScoredBoxes(NamedTuple):
    """The boxes of a filter index that are to be scored for one event."""

    ids: list[int]
    rows: npt.NDArray[np.void]
    query: Query
    bounds_of: Callable[[int], Bounds]


def _narrowest(boxes: ScoredBoxes) -> list[float]:
    import numpy as np

    steps: list[float] = (np.floor(boxes.rows["accuracy"] * _STEPS + 0.5) / _STEPS).tolist()
    return steps


def _nearest(boxes: ScoredBoxes) -> list[float]:
    return [distance_of(row, boxes.query) for row in boxes.rows]


def _centre(boxes: ScoredBoxes) -> list[float]:
    middle = boxes.query.middle
    return [centre_score(*boxes.bounds_of(box_id), middle) for box_id in boxes.ids]


def _weight(boxes: ScoredBoxes) -> list[float]:
    return [-weight for weight in boxes.rows["weight"].tolist()]


SCORES: Final[dict[str, Callable[[ScoredBoxes], list[float]]]] = {
    "narrowest": _narrowest,
    "nearest": _nearest,
    "centre": _centre,
    "weight": _weight,
}
"""The score of each declared rank; less is better."""

if SCORES.keys() != RANKS.keys():
    raise NotImplementedError(f"ranks {set(RANKS)}, but scores of {set(SCORES)}")


def is_indexed(rank: Rank) -> bool:
    """Return whether the index finds the best in a rank; otherwise all matches are scored."""
    names = (rank,) if isinstance(rank, str) else rank
    return all(RANKS[name].kernel is not None for name in names)
