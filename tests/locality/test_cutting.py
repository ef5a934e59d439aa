"""The search for a tree of lines, against all trees there are; and what its result promises."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.movements import cabs, commuters

from nearcast.locality.layout.cutting import Prices, Reach, cut_space
from nearcast.locality.layout.movement import CellRect, Movement, owners_of

ALL = (1000,) * 100
SIDE = 4


def movement_of(times: list[int], pairs: list[tuple[int, int, int]]) -> Movement:
    found: dict[tuple[int, int], int] = {}
    for a, b, count in pairs:
        if a != b:
            key = (min(a, b), max(a, b))
            found[key] = found.get(key, 0) + count
    columns = np.array([(*key, n) for key, n in found.items()], np.int64).reshape(-1, 3)
    low, high, moves = columns.T
    return Movement(2, np.array(times, np.int64).reshape(SIDE, SIDE), low, high, moves, 1)


def cost_of(rects: list[CellRect], movement: Movement, prices: Prices, reach: Reach) -> float:
    """The definition: brokers, moves between rectangles, further rectangles that events reach."""
    owners = owners_of(rects, movement.side)
    moved = sum(
        int(moves)
        for low, high, moves in zip(movement.low, movement.high, movement.moves, strict=True)
        if owners.flat[low] != owners.flat[high]
    )
    reached = 0
    for row in range(movement.side):
        for column in range(movement.side):
            near = owners[
                max(row - reach[1], 0) : row + reach[1] + 1,
                max(column - reach[0], 0) : column + reach[0] + 1,
            ]
            reached += int(movement.time_ms[row, column]) * (len(np.unique(near)) - 1)
    return prices.broker * len(rects) + prices.handover * moved + prices.event * reached


def all_trees(rect: CellRect, movement: Movement, most: float) -> list[list[CellRect]]:
    """Every way to cut a rectangle by lines with users on both sides."""
    time_ms = movement.time_in(rect)
    if time_ms <= most or rect.cells == 1:
        return [[rect]]
    found = []
    west, south, east, north = rect
    halves = [
        (CellRect(west, south, x, north), CellRect(x, south, east, north))
        for x in range(west + 1, east)
    ]
    halves += [
        (CellRect(west, south, east, y), CellRect(west, y, east, north))
        for y in range(south + 1, north)
    ]
    for low, high in halves:
        if 0 < movement.time_in(low) < time_ms:
            found += [
                a + b
                for a in all_trees(low, movement, most)
                for b in all_trees(high, movement, most)
            ]
    return found or [[rect]]


cells = st.integers(0, SIDE * SIDE - 1)
sparse = st.lists(
    st.sampled_from([0, 0, 0, 0, 1, 2, 5]), min_size=SIDE * SIDE, max_size=SIDE * SIDE
)
pair = st.tuples(cells, cells, st.integers(1, 9))


@given(sparse, st.lists(pair, max_size=12), st.integers(4, 9), st.sampled_from([(1, 1), (2, 1)]))
def test_with_all_lines_tried_no_tree_is_cheaper(
    times: list[int], pairs: list[tuple[int, int, int]], most: int, reach: Reach
) -> None:
    movement = movement_of(times, pairs)
    prices = Prices(1.0, 0.25, 0.125, 1.0)
    found = cut_space(movement, most, prices, reach, breadth=ALL)
    least = min(
        cost_of(tree, movement, prices, reach)
        for tree in all_trees(movement.everywhere, movement, most)
    )
    assert cost_of(found, movement, prices, reach) == pytest.approx(least)


@given(sparse, st.lists(pair, max_size=12), st.integers(1, 9))
def test_rectangles_tile_the_space_and_none_has_too_many_users(
    times: list[int], pairs: list[tuple[int, int, int]], most: int
) -> None:
    movement = movement_of(times, pairs)
    found = cut_space(movement, most, Prices(1.0, 0.25, 0.1, 1.0), (1, 1))
    covered = np.zeros((SIDE, SIDE), int)
    for rect in found:
        covered[rect.south : rect.north, rect.west : rect.east] += 1
        assert movement.time_in(rect) <= most or rect.cells == 1 or _in_one_cell(movement, rect)
    assert (covered == 1).all()


def _in_one_cell(movement: Movement, rect: CellRect) -> bool:
    part = movement.time_ms[rect.south : rect.north, rect.west : rect.east]
    return int((part > 0).sum()) == 1


def test_a_part_of_the_space_is_cut_as_if_it_were_alone() -> None:
    movement = cabs(1).movement()
    part = CellRect(8, 8, 40, 40)
    found = cut_space(
        movement, movement.time_in(part) / 5, Prices(1.0, 1e-4, 1e-9, 1.0), (1, 1), within=part
    )
    assert sum(rect.cells for rect in found) == part.cells
    assert len(found) >= 5
    assert all(rect.meets(part) for rect in found)


def test_few_lines_tried_cost_little_more_than_many() -> None:
    for record in (cabs(2), commuters(2)):
        movement = record.movement(depth=5)
        most = movement.time_in(movement.everywhere) / 8
        prices = Prices(1 / 20, 1 / max(1, movement.moves.sum()), 0.0, 1 / 20)
        few, many = (
            cost_of(
                cut_space(movement, most, prices, (1, 1), breadth=breadth), movement, prices, (1, 1)
            )
            for breadth in ((1, 1, 4, 3, 2, 2, 2, 2, 2), (4,) * 40)
        )
        assert many <= few + 1e-12
        assert few <= 1.2 * many


def test_the_same_record_gives_the_same_rectangles() -> None:
    movement = cabs(3).movement()
    most = movement.time_in(movement.everywhere) / 10
    first, second = (
        cut_space(movement, most, Prices(0.1, 1e-5, 1e-10, 0.1), (1, 1)) for _ in range(2)
    )
    assert first == second
    assert math.isfinite(len(first))
