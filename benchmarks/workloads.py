"""The workloads of the matching benchmarks: subscriptions as boxes, events as points.

Each is made from a seed and a size. Sides shrink as the size grows, so that the number of
matches per event stays the same, and vary by ± 50 % around their mean: equal sides would
make every rank a tie.

    U2    two attributes, uniform; about 9 matches an event
    U4    four attributes, uniform; about 9
    S10   ten attributes, three of them constrained, chosen at random; about 30
    C4    U4's sides at a million boxes; boxes and events from one cluster, normal, mean 1/2,
          sigma 0.1 of the range: hundreds of matches
    Z     two attributes, centres at places of Zipf-distributed popularity, events alike
    P3    paper 3's: 0 … 1000, centres normal around 500, sides from a mix of four normals
    A4    four attributes with sides of very different lengths; about 9
    U8    eight attributes; about 9
    H10   ten attributes, hundreds of sets of constrained attributes, Zipf-distributed
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Workload:
    """Boxes to subscribe to and points to publish, all within [0, 1] but for P3 and A4."""

    name: str
    lows: Floats
    highs: Floats
    points: Floats

    @property
    def keys(self) -> npt.NDArray[np.int64]:
        return np.arange(len(self.lows), dtype=np.int64)


def _around(centres: Floats, sides: Floats) -> tuple[Floats, Floats]:
    return centres - sides / 2, centres + sides / 2


def _varied(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    """Factors around 1 whose expected value is 1."""
    return rng.uniform(0.5, 1.5, shape)


def _uniform(name: str, dims: int, matches: float) -> Callable[[int, int, int], Workload]:
    def make(boxes: int, events: int, seed: int) -> Workload:
        rng = np.random.default_rng(seed)
        side = (matches / boxes) ** (1 / dims)
        lows, highs = _around(rng.random((boxes, dims)), side * _varied(rng, (boxes, dims)))
        return Workload(name, lows, highs, rng.random((events, dims)))

    return make


def _open_but(lows: Floats, highs: Floats, sets: npt.NDArray[np.bool_]) -> None:
    """Leave out of each box what is not in its set."""
    lows[~sets], highs[~sets] = -np.inf, np.inf


def _sparse(boxes: int, events: int, seed: int) -> Workload:
    rng = np.random.default_rng(seed)
    side = (30 / boxes) ** (1 / 3)
    lows, highs = _around(rng.random((boxes, 10)), side * _varied(rng, (boxes, 10)))
    chosen = np.argsort(rng.random((boxes, 10)), axis=1) < 3
    _open_but(lows, highs, chosen)
    return Workload("S10", lows, highs, rng.random((events, 10)))


def _clustered(boxes: int, events: int, seed: int) -> Workload:
    rng = np.random.default_rng(seed)
    side = (9 / 1e6) ** (1 / 4)
    lows, highs = _around(rng.normal(0.5, 0.1, (boxes, 4)), side * _varied(rng, (boxes, 4)))
    return Workload("C4", lows, highs, rng.normal(0.5, 0.1, (events, 4)))


def _zipf(boxes: int, events: int, seed: int) -> Workload:
    rng = np.random.default_rng(seed)
    places = rng.random((10_000, 2))
    popularity = 1 / np.arange(1, 10_001)
    popularity /= popularity.sum()

    def near_places(count: int) -> Floats:
        chosen = rng.choice(10_000, count, p=popularity)
        return places[chosen] + rng.normal(0, 0.01, (count, 2))

    side = (9 / boxes) ** 0.5
    lows, highs = _around(near_places(boxes), side * _varied(rng, (boxes, 2)))
    return Workload("Z", lows, highs, near_places(events))


def _paper3(boxes: int, events: int, seed: int) -> Workload:
    """Centre sigma 300, event sigma 300. Sides as printed: matches grow with the size."""
    rng = np.random.default_rng(seed)
    centres = np.clip(rng.normal(500, 300, (boxes, 2)), 0, 1000)
    means = rng.choice([100, 50, 30, 10], (boxes, 2), p=[0.1, 0.2, 0.3, 0.4])
    lows, highs = _around(centres, np.clip(rng.normal(means, 10), 0, 120))
    return Workload("P3", lows, highs, np.clip(rng.normal(500, 300, (events, 2)), 0, 1000))


def _anisotropic(boxes: int, events: int, seed: int) -> Workload:
    rng = np.random.default_rng(seed)
    stretch, ranges = np.array([0.1, 0.5, 2.0, 10.0]), np.array([1.0, 1.0, 10.0, 100.0])
    side = (9 / boxes) ** (1 / 4)
    sides = side * stretch * ranges * _varied(rng, (boxes, 4))
    lows, highs = _around(rng.random((boxes, 4)) * ranges, sides)
    return Workload("A4", lows, highs, rng.random((events, 4)) * ranges)


def _many_sets(boxes: int, events: int, seed: int) -> Workload:
    rng = np.random.default_rng(seed)
    sets = np.zeros((400, 10), dtype=np.bool_)
    for row in sets:
        row[rng.choice(10, rng.integers(1, 5), replace=False)] = True
    popularity = 1 / np.arange(1, 401)
    chosen = sets[rng.choice(400, boxes, p=popularity / popularity.sum())]
    volume = 30 / boxes
    side = volume ** (1 / chosen.sum(axis=1, keepdims=True))
    lows, highs = _around(rng.random((boxes, 10)), side * _varied(rng, (boxes, 10)))
    _open_but(lows, highs, chosen)
    return Workload("H10", lows, highs, rng.random((events, 10)))


WORKLOADS: dict[str, Callable[[int, int, int], Workload]] = {
    "U2": _uniform("U2", 2, 9),
    "U4": _uniform("U4", 4, 9),
    "S10": _sparse,
    "C4": _clustered,
    "Z": _zipf,
    "P3": _paper3,
    "A4": _anisotropic,
    "U8": _uniform("U8", 8, 9),
    "H10": _many_sets,
}


def workload(name: str, boxes: int, events: int, seed: int = 0) -> Workload:
    """Make a workload; the same arguments make the same one."""
    return WORKLOADS[name](boxes, events, seed)
