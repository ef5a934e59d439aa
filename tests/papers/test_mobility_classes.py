"""Kinds of mobility are told apart by speed and time spent."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.recorded_movement import Mobility, regions_of_class

from nearcast.locality import Rect
from nearcast.locality.layout.slow_regions import RegionRules
from nearcast.model.errors import MisuseError

SPACE = Rect(0.0, 0.0, 8.0, 8.0)


def walk() -> Mobility:
    """One stands about in (1, 1) and (2, 1), one rides through row 5, one is outside."""
    users = [1] * 5 + [2] * 5 + [3] * 2
    seconds = [0, 100, 200, 300, 400, 0, 1, 2, 3, 4, 0, 10]
    xs = [1.1, 1.2, 2.1, 2.2, 1.3, 0.5, 2.5, 4.5, 6.5, 7.5, 9.0, 1.5]
    ys = [1.5] * 5 + [5.5] * 5 + [1.5, 1.5]
    return Mobility.of_fixes(SPACE, users, seconds, xs, ys, depth=3)


def test_time_and_path_are_summed_in_the_cell_where_a_step_begins() -> None:
    mobility = walk()

    assert mobility.time_s[1, 1] == 200
    assert mobility.time_s[1, 2] == 200
    assert mobility.time_s[5].tolist() == [1, 0, 1, 0, 1, 0, 1, 0]
    assert mobility.time_s.sum() == 404
    assert mobility.path[5, 0] == pytest.approx(2.0)


def test_thresholds_make_classes_and_cells_with_little_time_are_in_the_last() -> None:
    two = walk().classes([0.5], least_time_s=0.5)
    three = walk().classes([0.5, 2.0], least_time_s=0.5)
    strict = walk().classes([0.5], least_time_s=1_000)

    assert (two[1, 1], two[5, 0], two[7, 7]) == (0, 1, 1)
    assert (three[1, 1], three[5, 0], three[7, 7]) == (0, 1, 2)
    assert (strict == 1).all()
    with pytest.raises(MisuseError):
        walk().classes([2.0, 1.0], least_time_s=0)


def test_regions_are_rectangles_around_connected_cells_of_a_class() -> None:
    mobility = walk()
    classes = np.full((8, 8), 1)
    classes[1, 1:3] = 0
    classes[4:8, 6:8] = 0
    classes[0, 7] = 0

    assert regions_of_class(mobility, classes, 0) == [Rect(6, 4, 8, 8), Rect(1, 1, 3, 2)]
    single = regions_of_class(mobility, classes, 0, RegionRules(min_cells=1))
    assert Rect(7, 0, 8, 1) in single
    assert regions_of_class(mobility, classes, 3) == []


def test_long_gaps_and_steps_back_in_time_count_for_nothing() -> None:
    mobility = Mobility.of_fixes(SPACE, [1, 1, 1], [0, 5_000, 4_000], [1, 2, 3], [1, 2, 3], depth=3)

    assert mobility.time_s.sum() == 0
    with pytest.raises(MisuseError):
        Mobility.of_fixes(SPACE, [1], [0, 1], [1], [1], depth=3)
