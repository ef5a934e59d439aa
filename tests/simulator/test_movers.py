"""Movers stay where they may be, at the speed they have, the same way for the same seed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nearcast.locality import Rect
from nearcast.model.errors import EnvironmentProblem, FileFormatError, OutOfRangeError
from nearcast.simulator.movers import Commuters, Fixes, RandomWaypoints, Trajectories, mixed_crowd

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


def test_commuters_drive_along_roads_rest_at_both_ends_and_come_back() -> None:
    commuters = Commuters(SPACE, 30, rng(), road_gap=10, speed=4.0, stay_s=5.0)
    homes = np.stack([commuters.xs, commuters.ys]).copy()
    back = np.zeros(30, bool)
    away = np.zeros(30, bool)
    for _ in range(300):
        before = np.stack([commuters.xs, commuters.ys]).copy()
        commuters.step(1.0)
        here = np.stack([commuters.xs, commuters.ys])
        on_street = np.isclose(here[1] % 10, 0) | np.isclose(here[0] % 10, 0)
        assert on_street.all()
        assert (np.abs(here - before).sum(axis=0) <= 4.0 + 1e-9).all()
        away |= (here != homes).any(axis=0)
        back |= away & (here == homes).all(axis=0)
    assert back[away].all()
    assert away.sum() > 20


def write(path: Path, rows: list[tuple[str, int, float, float]]) -> Path:
    start = datetime(2024, 1, 1, tzinfo=UTC)
    table = pa.table(
        {
            "user_id": pa.array([r[0] for r in rows], pa.string()),
            "t": pa.array(
                [start + timedelta(seconds=r[1]) for r in rows], pa.timestamp("us", "UTC")
            ),
            "lon": pa.array([r[2] for r in rows], pa.float64()),
            "lat": pa.array([r[3] for r in rows], pa.float64()),
        }
    )
    pq.write_table(table, path)
    return path


def test_recorded_users_are_between_their_fixes_and_nowhere_before_and_after(
    tmp_path: Path,
) -> None:
    rows = [("a", 0, 0.0, 0.0), ("a", 10, 10.0, 20.0), ("b", 5, 7.0, 7.0), ("b", 8, 7.0, 7.0)]
    fixes = Fixes.from_parquet(write(tmp_path / "fixes.parquet", rows))
    users = Trajectories(fixes)

    assert fixes.space == Rect(0, 0, 10, 20)
    assert (users.xs[0], np.isnan(users.xs[1])) == (0.0, True)
    users.step(5.0)
    assert (users.xs[0], users.ys[0], users.xs[1]) == (5.0, 10.0, 7.0)
    users.step(4.0)
    assert np.isnan(users.ys[1])
    assert len(Fixes.from_parquet(tmp_path / "fixes.parquet", most_rows=2).xs) == 2


def test_a_file_that_is_not_there_or_is_none_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem):
        Fixes.from_parquet(tmp_path / "nowhere.parquet")
    (tmp_path / "text.parquet").write_text("hello")
    with pytest.raises(FileFormatError):
        Fixes.from_parquet(tmp_path / "text.parquet")
    pq.write_table(pa.table({"user_id": ["a"], "x": [1.0]}), tmp_path / "other.parquet")
    with pytest.raises(FileFormatError):
        Fixes.from_parquet(tmp_path / "other.parquet")


def test_bad_parameters_are_refused() -> None:
    with pytest.raises(OutOfRangeError):
        RandomWaypoints([SPACE], [-1.0], rng())
    with pytest.raises(OutOfRangeError):
        RandomWaypoints([SPACE], [1.0, 2.0], rng())
    with pytest.raises(OutOfRangeError):
        Commuters(SPACE, 3, rng(), road_gap=0, speed=1, stay_s=1)


def test_a_commuter_stays_at_the_end_as_long_as_it_should() -> None:
    commuters = Commuters(SPACE, 20, rng(2), road_gap=10, speed=1_000.0, stay_s=5.0)
    places = []
    for _ in range(40):
        commuters.step(1.0)
        places.append((commuters.xs[0], commuters.ys[0]))
    changes = [i for i in range(1, 40) if places[i] != places[i - 1]]

    assert len(changes) > 3
    assert {b - a for a, b in pairwise(changes)} == {6}  # five at rest, one on the way
