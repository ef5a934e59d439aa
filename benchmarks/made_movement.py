"""Made records of people who move, in metres over a city of 16 km: four days, a fix each 5 minutes.

commuters       sleep at home, work at one of some places, walk about at both; weekends at home
concert         commuters, of whom a third goes to one block each evening
moving-concert  the same, at another block each evening
random-walks    nobody stays anywhere
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from benchmarks.recorded_movement import Fixes
from numpy.typing import NDArray

SIDE_M = 16_000.0
STEP_S = 300.0
DAYS = 4
_STEPS = int(DAYS * 86_400 / STEP_S)
_PLACES = 25

Paths = NDArray[np.float64]


def _fixes(paths: Paths) -> Fixes:
    """Return the fixes of paths[user, step, axis]."""
    people, steps, _ = paths.shape
    inside = np.clip(paths, 0.0, SIDE_M)
    seconds = np.tile(np.arange(steps) * STEP_S, people)
    return Fixes(
        np.repeat(np.arange(people), steps),
        seconds,
        inside[:, :, 0].ravel(),
        inside[:, :, 1].ravel(),
    )


def _commuting(rng: np.random.Generator, people: int) -> Paths:
    hours = np.arange(_STEPS) * STEP_S / 3600 % 24
    homes = rng.random((people, 2)) * SIDE_M
    places = rng.normal(SIDE_M / 2, SIDE_M / 6, (_PLACES, 2))
    works = places[rng.integers(0, _PLACES, people)] + rng.normal(0, 100, (people, 2))
    leave, way = 8 + rng.normal(0, 0.7, people), 0.75
    there = np.clip((hours[None] - leave[:, None]) / way, 0, 1)
    back = np.clip((hours[None] - leave[:, None] - 9) / way, 0, 1)
    share = (there - back)[:, :, None]
    return homes[:, None] * (1 - share) + works[:, None] * share


def commuters(seed: int, people: int) -> Fixes:
    """People who commute, and walk about within 60 m wherever they are."""
    rng = np.random.default_rng(seed)
    return _fixes(_commuting(rng, people) + rng.normal(0, 60, (people, _STEPS, 2)))


def _concert(seed: int, people: int, *, moves: bool) -> Fixes:
    rng = np.random.default_rng(seed)
    paths = _commuting(rng, people)
    hours, day = np.arange(_STEPS) * STEP_S / 3600 % 24, np.arange(_STEPS) * STEP_S // 86_400
    stages = rng.uniform(0.2, 0.8, (DAYS, 2)) * SIDE_M
    stage = stages[day.astype(int) if moves else np.zeros(_STEPS, int)]
    share = np.clip((hours - 19) / 0.5, 0, 1) - np.clip((hours - 23) / 0.5, 0, 1)
    goes = (np.arange(people) < people // 3)[:, None, None] * share[None, :, None]
    return _fixes(paths * (1 - goes) + stage[None] * goes + rng.normal(0, 60, paths.shape))


def concert(seed: int, people: int) -> Fixes:
    """Commuters, of whom a third goes to one block each evening."""
    return _concert(seed, people, moves=False)


def moving_concert(seed: int, people: int) -> Fixes:
    """As `concert`, at another block each evening."""
    return _concert(seed, people, moves=True)


def random_walks(seed: int, people: int) -> Fixes:
    """People who stay nowhere: 150 m in any direction each five minutes."""
    rng = np.random.default_rng(seed)
    walked = rng.random((people, 1, 2)) * SIDE_M + rng.normal(0, 150, (people, _STEPS, 2)).cumsum(1)
    return _fixes(np.abs(walked % (2 * SIDE_M) - SIDE_M))


MADE: dict[str, Callable[[int, int], Fixes]] = {
    "commuters": commuters,
    "concert": concert,
    "moving-concert": moving_concert,
    "random-walks": random_walks,
}
