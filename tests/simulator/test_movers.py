"""Movers stay where they may be, at the speed they have, the same way for the same seed."""

from __future__ import annotations

import numpy as np
import pytest

from nearcast.locality import Rect
from nearcast.model.errors import OutOfRangeError
from nearcast.simulator.movers import RandomWaypoints, mixed_crowd

SPACE = Rect(0, 0, 100, 50)


def rng(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_way_pointers_stay_in_their_area_and_never_exceed_their_speed() -> None:
    areas = [Rect(10, 10, 12, 12), SPACE, Rect(3, 3, 3, 3)]
    movers = RandomWaypoints(areas, [0.5, 5.0, 1.0], rng())
    far = np.zeros(3)
    for _ in range(200):
        x, y = movers.xs.copy(), movers.ys.copy()
        movers.step(2.0)
        step = np.hypot(movers.xs - x, movers.ys - y)
        assert (step <= np.array([1.0, 10.0, 2.0]) + 1e-9).all()
        far += step
        assert all(
            a.contains(*p)
            for a, p in zip(areas, zip(movers.xs, movers.ys, strict=True), strict=True)
        )
    assert far[0] > 50
    assert far[1] > 500
    assert far[2] == 0


def test_half_the_crowd_is_slow_and_at_home_and_half_three_times_as_fast() -> None:
    regions = [Rect(0, 0, 5, 5), Rect(90, 40, 100, 50)]
    crowd = mixed_crowd(SPACE, regions, 40, rng(), slow_speed=1.0)
    x, y = crowd.xs.copy(), crowd.ys.copy()
    crowd.step(0.001)
    speed = np.hypot(crowd.xs - x, crowd.ys - y) / 0.001

    assert all(any(r.contains(*p) for r in regions) for p in zip(x[:20], y[:20], strict=True))
    assert np.allclose(speed[:20], 1.0)
    assert np.allclose(speed[20:], 3.0)
    assert len(mixed_crowd(SPACE, [], 4, rng(), slow_speed=1.0).xs) == 4


def test_the_same_seed_walks_the_same_way() -> None:
    paths = []
    for seed in (1, 1, 2):
        crowd = mixed_crowd(SPACE, [Rect(0, 0, 9, 9)], 10, rng(seed), slow_speed=1.0)
        for _ in range(50):
            crowd.step(1.0)
        paths.append(crowd.xs.tolist())

    assert paths[0] == paths[1] != paths[2]


def test_bad_parameters_are_refused() -> None:
    with pytest.raises(OutOfRangeError):
        RandomWaypoints([SPACE], [-1.0], rng())
    with pytest.raises(OutOfRangeError):
        RandomWaypoints([SPACE], [1.0, 2.0], rng())
