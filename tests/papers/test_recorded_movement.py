"""Layouts, classes and assignments judged on a record that is made up here."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from benchmarks.recorded_movement import (
    Fixes,
    Halves,
    compare_assignments,
    compare_classes,
    compare_layouts,
    found_regions,
    plan_of,
)

from nearcast.model.errors import EnvironmentProblem, FileFormatError


@pytest.fixture(scope="module")
def halves() -> Halves:
    """Twenty who mill about a market, twenty who drive round a ring, over two hours."""
    random = np.random.default_rng(4)
    steps, users, seconds, xs, ys = 360, [], [], [], []
    for user in range(40):
        t = np.arange(steps) * 20.0
        if user < 20:
            place = 5_000 + np.cumsum(random.normal(0, 5, (steps, 2)), axis=0)
        else:
            angle = t / 400 + user
            place = 5_000 + 4_000 * np.stack([np.cos(angle), np.sin(angle)], axis=1)
        users += [user] * steps
        seconds += t.tolist()
        xs += place[:, 0].tolist()
        ys += place[:, 1].tolist()
    fixes = Fixes(np.array(users), np.array(seconds), np.array(xs), np.array(ys))
    return Halves.of("ring and market", fixes)


def test_the_market_is_found_and_the_ring_is_not(halves: Halves) -> None:
    regions = found_regions(halves, [2.0], busy=1.0)

    assert regions
    assert any(region.contains(5_000, 5_000) for region in regions)
    assert not any(region.contains(9_000, 5_000) for region in regions)


def test_a_plan_is_judged_on_what_it_was_not_made_from(halves: Halves) -> None:
    assert halves.before.seconds.max() < halves.after.seconds.min()
    rows = compare_layouts(halves, 2.0)

    assert [row.layout for row in rows] == ["q", "qr", "r"]
    assert all(row.handovers > 0 and row.messages_per_event > 0 for row in rows)
    assert rows[1].handovers <= rows[0].handovers
    assert rows[0].regions == 0 < rows[1].regions


def test_classes_are_compared_by_one_low_one_high_and_two_thresholds(halves: Halves) -> None:
    rows = compare_classes(halves, 1.0, 20.0)

    assert [row.thresholds_mps for row in rows] == [(1.0,), (20.0,), (1.0, 20.0)]


def test_an_assignment_by_movement_cuts_fewer_paths_than_a_blind_one(halves: Halves) -> None:
    plan = plan_of(halves, "q", [], leaves=40)
    rows = compare_assignments(halves, plan, [2, 4])

    assert [row.brokers for row in rows] == [2, 4]
    assert all(row.cut_share < row.naive_cut_share for row in rows)
    assert all(row.imbalance < 1.5 for row in rows)


def test_fixes_in_degrees_become_metres() -> None:
    fixes = Fixes(np.zeros(2, int), np.arange(2.0), np.array([10.0, 10.01]), np.array([60.0, 60.0]))
    metres = fixes.in_metres()

    assert metres.xs[1] - metres.xs[0] == pytest.approx(556, rel=0.01)
    assert metres.xs[0] == 0


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


def test_a_file_gives_users_seconds_and_places(tmp_path: Path) -> None:
    rows = [("a", 0, 0.0, 0.0), ("a", 10, 10.0, 20.0), ("b", 5, 7.0, 7.0)]
    path = write(tmp_path / "fixes.parquet", rows)
    fixes = Fixes.from_parquet(path)

    assert (fixes.users.tolist(), fixes.seconds.tolist()) == ([0, 0, 1], [0.0, 10.0, 5.0])
    assert (fixes.xs.tolist(), fixes.ys.tolist()) == ([0.0, 10.0, 7.0], [0.0, 20.0, 7.0])
    assert len(Fixes.from_parquet(path, most_rows=2).xs) == 2


def test_a_file_that_is_not_there_or_is_none_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem):
        Fixes.from_parquet(tmp_path / "nowhere.parquet")
    (tmp_path / "text.parquet").write_text("hello")
    with pytest.raises(FileFormatError):
        Fixes.from_parquet(tmp_path / "text.parquet")
    pq.write_table(pa.table({"user_id": ["a"], "x": [1.0]}), tmp_path / "other.parquet")
    with pytest.raises(FileFormatError):
        Fixes.from_parquet(tmp_path / "other.parquet")
