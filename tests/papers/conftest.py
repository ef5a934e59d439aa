"""A sweep small enough for every day, and a stand-in for Spark that runs tasks one by one."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from nearcast.papers import Point
from nearcast.papers.content_overlay.claims import PAPERS_METHODS
from nearcast.papers.content_overlay.experiment import Parameters


class OneByOne:
    """What `sweep` needs of a Spark session, without Spark."""

    def __init__(self) -> None:
        self.slices = 0

    @property
    def sparkContext(self) -> "OneByOne":  # noqa: N802 - Spark's name
        return self

    def parallelize(self, values: Sequence[Any], slices: int) -> "OneByOne":
        self.values, self.slices = list(values), slices
        return self

    def map(self, function: Callable[[Any], Any]) -> "OneByOne":
        self.values = [function(value) for value in self.values]
        return self

    def collect(self) -> list[Any]:
        return self.values


@pytest.fixture
def one_by_one() -> Any:
    return OneByOne()


def _overlay(seed: int) -> list[Point]:
    paper = Parameters(peers=24, events=20, event_sigmas=(10.0, 120.0, 300.0))
    found = []
    for sigma in (100.0, 300.0):
        for method in PAPERS_METHODS:
            changed = Parameters(
                peers=24, events=20, subscription_sigma=sigma, method=method,
                event_sigmas=paper.event_sigmas,
            )  # fmt: skip
            found.append(Point(3, "paper", seed, {"parameters": changed, "more": ()}))
    few = Parameters(peers=24, events=20)
    return [*found, Point(3, "cache", seed, {"parameters": few, "more": (10,)})]


def _layouts(seed: int) -> list[Point]:
    return [
        Point(0, kind, seed, {"layout": layout, "subscribers": size, "rounds": 4})
        for kind, layout, size in (
            *(("layout", layout, n) for layout in ("r", "q", "qr", "r-packed") for n in (60, 120)),
            ("routing", "qr", 120),
            ("sensitivity", "q", 120),
            ("sensitivity", "qr", 120),
        )
    ]


def _causal(seed: int) -> list[Point]:
    sends = {"warm_up": 5, "sends": 30}
    return [
        Point(2, kind, seed, {"pattern": pattern, "processes": n, **sends})
        for pattern in ("subsets", "groups")
        for kind, n in (("compared", 5), ("compared", 8), ("watched", 5), ("unordered", 5))
    ]


@pytest.fixture
def tiny_points() -> list[Point]:
    """One or two seeds of everything that the claims of all five papers need."""
    ranked = [
        *(
            Point(1, "touching", s, {"intervals": 400, "matches": m, "k": 3, "queries": 5})
            for s in (1, 2)
            for m in (10, 100)
        ),
        Point(1, "errors", 1, {"workload": "uniform", "intervals": 30, "k": 5, "queries": 40}),
    ]
    retained = [
        *(Point(4, "omega", 1, {"omega": omega}) for omega in (0.3, 0.7)),
        *(Point(4, "publish", 1, {"publish": publish}) for publish in (0.3, 2.0)),
        Point(4, "topic", 1, {"interval_s": 1.0, "newcomers": 100}),
    ]
    return [*_layouts(1), *ranked, *_causal(1), *_causal(2), *_overlay(1), *retained]
