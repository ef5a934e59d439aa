"""Slow cells become regions: connected, well filled, nothing lost but noise."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.locality.layout.slow_regions import (
    CellGrid,
    CellUse,
    RegionRules,
    connected,
    slow_regions,
    well_filled,
)
from nearcast.model.errors import OutOfRangeError

cells = st.sets(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=30)
RULES = RegionRules()


def touch(a, b):
    return max(abs(a[0] - b[0]), abs(a[1] - b[1])) <= 1


@given(cells)
def test_groups_are_the_classes_of_touching_cells(some):
    groups = connected(some)
    assert sorted(cell for group in groups for cell in group) == sorted(some)
    for group in groups:
        reached = {group[0]}
        while more := {c for c in group if c not in reached and any(touch(c, r) for r in reached)}:
            reached |= more
        assert reached == set(group)
    for i, one in enumerate(groups):
        for other in groups[i + 1 :]:
            assert not any(touch(a, b) for a in one for b in other)


@given(cells.filter(bool))
def test_cutting_keeps_every_cell_once_and_fills_the_rectangles(some):
    parts = [part for group in connected(some) for part in well_filled(group, RULES)]
    assert sorted(cell for part in parts for cell in part) == sorted(some)
    for part in parts:
        columns, rows = zip(*part, strict=True)
        area = (max(columns) - min(columns) + 1) * (max(rows) - min(rows) + 1)
        assert len(part) < RULES.min_cells or len(part) >= RULES.min_fill * area


def test_a_region_is_the_rectangle_around_its_cells_with_their_sums():
    grid = CellGrid(cell_m=100, at_lat=60)
    use = CellUse(10.0, 8.0, 5.0)
    (region,) = slow_regions({(1, 1): use, (2, 1): use, (9, 9): use}, RULES, grid)
    assert region.cells == 2
    assert region.use == CellUse(20.0, 16.0, 10.0)
    west, south, east, north = region.bounds
    assert (east - west) / grid.lon_step == pytest.approx(2)
    assert (north - south) / grid.lat_step == pytest.approx(1)
    assert grid.lon_step == pytest.approx(
        2 * grid.lat_step
    )  # at 60 degrees a degree is half as wide


@pytest.mark.parametrize("bad", [0, -1, float("nan"), float("inf")])
def test_a_cell_without_a_size_is_refused(bad):
    with pytest.raises(OutOfRangeError, match="cell_m"):
        CellGrid(cell_m=bad, at_lat=0)
    for at_lat in (89.5, 89, -89):
        with pytest.raises(OutOfRangeError, match="at_lat"):
            CellGrid(cell_m=1, at_lat=at_lat)
