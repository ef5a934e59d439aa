"""Paper 1: how many markers a ranked search touches, and how often the paper's walk is right.

The paper has no measurements, so the settings are ours:

    touching   uniform intervals, so wide that a value has about `matches` of them; all of them in
               one interval skip list (`paper_list.py`)
    errors     `uniform`: intervals anywhere, of any width up to the whole range (the case in which
               thirty intervals are enough for the walk to err); `paper 3, σ = …`: one attribute of
               paper 3's subscriptions and events
    readings   of what the paper leaves open: the loop as printed, which never reads eqMarkers, or
               as it is meant; and the share p of nodes with one more level
    oracle     a scan of all intervals, sorted by width and then age
    time       processor time of plain Python; the methods alternate, the least of `ROUNDS` counts

`touching_rows` and `error_rows` are deterministic except for the times.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from nearcast.model.errors import UnknownNameError
from nearcast.papers.content_overlay.experiment import SHARES, SIZES
from nearcast.papers.form import Row
from nearcast.papers.ranked_matching.paper_list import PaperList, Walked

Floats = NDArray[np.float64]

SPAN: Final = 2**30
"""Ends are whole numbers below this, so that widths are exact."""

ROUNDS: Final = 5
WORKLOADS: Final = ("uniform", "paper 3, σ = 100", "paper 3, σ = 300")
METHODS: Final = {"paper": "the paper's walk", "exact": "exact merge"}
READINGS: Final = {
    "paper": "the paper's walk",
    "printed": "the walk as printed",
    "quarter": "the walk, p = 1/4",
    "exact": "exact merge",
}
"""The methods whose errors are counted: the paper's in three readings, and ours."""


def top_by_scan(lows: Floats, highs: Floats, value: float, k: int) -> list[int]:
    """Return the k narrowest intervals that contain a value; on a tie the older comes first.

    >>> top_by_scan(np.array([0.0, 4.0, 3.0]), np.array([9.0, 8.0, 9.0]), 5.0, 2)
    [1, 2]
    """
    found = np.flatnonzero((lows <= value) & (value <= highs))
    order = np.lexsort((found, (highs - lows)[found]))
    return [int(key) for key in found[order[:k]]]


def _as_wide(count: int, matches: int, random: np.random.Generator) -> tuple[Floats, Floats]:
    mean = SPAN * matches / count
    lows = random.integers(-round(mean), SPAN, count)
    highs = lows + random.integers(1, max(2, round(2 * mean)), count)
    return lows.astype(np.float64), highs.astype(np.float64)


# --- what is touched (C1.1) ---------------------------------------------------------------------


def touching_rows(*, seed: int, intervals: int, matches: int, k: int, queries: int) -> list[Row]:
    """Return touched markers and time per query of both walks, and the time of a full sort."""
    random = np.random.default_rng([seed, intervals, matches])
    lows, highs = _as_wide(intervals, matches, random)
    index, widths = PaperList(lows, highs, seed=seed), highs - lows
    values = random.integers(0, SPAN, queries).astype(np.float64).tolist()
    row: Row = {"seed": seed, "intervals": intervals, "matches": matches, "k": k}
    row["found"] = float(np.mean([len(index.stab(x)) for x in values]))
    walks: dict[str, Callable[[float, int], Walked]] = {
        "paper": index.paper_walk,
        "exact": index.exact_merge,
    }
    for method, walk in walks.items():
        walked = [walk(x, k) for x in values]
        row[f"touched_{method}"] = float(np.mean([one.touched for one in walked]))
        row[f"path_{method}"] = float(np.mean([one.edges for one in walked]))

    def sort_at_the_end(x: float) -> object:
        found = np.array(index.stab(x))
        return found[np.lexsort((found, widths[found]))[:k]]

    ways: dict[str, Callable[[float], object]] = {
        "paper": lambda x: index.paper_walk(x, k),
        "exact": lambda x: index.exact_merge(x, k),
        "sorting": sort_at_the_end,
    }
    return [row | _times_us(ways, values)]


def _times_us(ways: dict[str, Callable[[float], object]], values: list[float]) -> Row:
    """Return processor time per query; the methods alternate, so that all see the same machine."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            start = time.process_time()
            for value in values:
                way(value)
            taken[name].append(time.process_time() - start)
    return {f"{name}_us": 1e6 * min(each) / len(values) for name, each in taken.items()}


# --- how often the walk errs (C1.2) -------------------------------------------------------------


def error_rows(*, seed: int, workload: str, intervals: int, k: int, queries: int) -> list[Row]:
    """Return the share of queries whose best k are wrong, as a set and in order, against a scan."""
    random = np.random.default_rng([seed, intervals, 3])
    lows, highs, values = _workload(workload, intervals, queries, random)
    index, quarter = (PaperList(lows, highs, seed=seed, p=p) for p in (0.5, 0.25))
    wrong = {(method, what): 0 for method in READINGS for what in ("set", "order")}
    asked = matches = 0
    for x in values.tolist():
        count = int(((lows <= x) & (x <= highs)).sum())
        if count <= k:
            continue  # all matches are among the best k
        asked, matches = asked + 1, matches + count
        best = top_by_scan(lows, highs, x, k)
        for method, got in (
            ("paper", index.paper_walk(x, k).keys),
            ("printed", index.paper_walk(x, k, as_printed=True).keys),
            ("quarter", quarter.paper_walk(x, k).keys),
            ("exact", index.exact_merge(x, k).keys),
        ):
            wrong[method, "set"] += set(got) != set(best)
            wrong[method, "order"] += got != best
    row: Row = {"seed": seed, "workload": workload, "intervals": intervals, "k": k, "asked": asked}
    row["found"] = matches / max(1, asked)
    shares = {f"wrong_{what}_{method}": n / max(1, asked) for (method, what), n in wrong.items()}
    return [row | shares]


def _workload(
    name: str, count: int, queries: int, random: np.random.Generator
) -> tuple[Floats, Floats, Floats]:
    if name == "uniform":
        ends = np.sort(random.integers(0, SPAN, (count, 2)), axis=1).astype(np.float64)
        return ends[:, 0], ends[:, 1], random.integers(0, SPAN, queries).astype(np.float64)
    if name not in WORKLOADS:
        raise UnknownNameError(repr(name), where="workload", expected=", ".join(WORKLOADS))
    sigma = float(name.rsplit("=", maxsplit=1)[1])
    sides = np.clip(random.normal(random.choice(SIZES, p=SHARES, size=count), 10.0), 0.0, 120.0)
    centres = np.clip(random.normal(500.0, sigma, count), 0.0, 1000.0)
    places = (centres - sides / 2, centres + sides / 2, random.normal(500.0, sigma, queries))
    lows, highs, values = (np.round(np.clip(each, 0.0, 1000.0) * 2**16) for each in places)
    return lows, highs, values
