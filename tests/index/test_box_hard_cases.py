"""`BoxIndex` where it hurts: crowds, giants, ties, sorted input, extreme numbers, long lives."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.support.invariants import check_boxes

from nearcast.index import BoxIndex
from nearcast.index.boxes.pools import M_LEAVES, M_LEVELS, M_NEXT_AGE, MOST_AGES

INF = math.inf
Floats = npt.NDArray[np.float64]


def found_by_scan(lows: Floats, highs: Floats, point: Floats) -> set[int]:
    return set(np.flatnonzero(((lows <= point) & (point <= highs)).all(axis=1)).tolist())


def assert_matches(index: BoxIndex, lows: Floats, highs: Floats, points: Floats) -> None:
    """Check `match_many` and `match` against a scan; key k is row k."""
    offsets, keys = index.match_many(points)
    for e, point in enumerate(points):
        expected = found_by_scan(lows, highs, point)
        found = keys[offsets[e] : offsets[e + 1]].tolist()
        assert len(found) == len(expected)
        assert set(found) == expected
        assert set(index.match(point).tolist()) == expected


def best_by_scan(lows: Floats, highs: Floats, point: Floats, k: int) -> list[int]:
    rows = sorted(found_by_scan(lows, highs, point))
    volume = [math.floor(sum(map(math.log2, highs[r] - lows[r])) * 2**24 + 0.5) for r in rows]
    return [row for _, row in sorted(zip(volume, rows, strict=True))][:k]


CROWDS: list[tuple[str, int, Any]] = [
    ("uniform", 2, lambda rng, n: (rng.random((n, 2)), rng.uniform(0.01, 0.03, (n, 2)))),
    (
        "one cluster",
        4,
        lambda rng, n: (rng.normal(0.5, 0.1, (n, 4)), rng.uniform(0.1, 0.3, (n, 4))),
    ),
    ("all sizes", 2, lambda rng, n: (rng.random((n, 2)), 2.0 ** -rng.uniform(0, 12, (n, 2)))),
    ("eight attributes", 8, lambda rng, n: (rng.random((n, 8)), rng.uniform(0.3, 0.9, (n, 8)))),
    ("a grid of ties", 3, lambda rng, n: (rng.integers(0, 9, (n, 3)) / 8, np.full((n, 3), 0.25))),
]


@pytest.mark.parametrize(("dims", "make"), [c[1:] for c in CROWDS], ids=[c[0] for c in CROWDS])
def test_many_boxes_are_matched_and_ranked_as_by_a_scan(dims: int, make: Any) -> None:
    rng = np.random.default_rng(5)
    centres, sides = make(rng, 9000)
    lows, highs = centres - sides / 2, centres + sides / 2
    index = BoxIndex.from_arrays(np.arange(9000), lows, highs)
    points = np.vstack([centres[:30], rng.random((30, dims))])

    assert_matches(index, lows, highs, points)
    best = index.top_many(points, 10)
    for row, point in zip(best.tolist(), points, strict=True):
        assert [key for key in row if key >= 0] == best_by_scan(lows, highs, point, 10)
    check_boxes(index)


def test_subscriptions_to_different_attributes_do_not_disturb_each_other() -> None:
    rng = np.random.default_rng(6)
    lows = rng.random((9000, 10))
    highs = lows + 0.1
    chosen = np.argsort(rng.random((9000, 10)), axis=1) < 3
    lows[~chosen], highs[~chosen] = -INF, INF
    index = BoxIndex.from_arrays(np.arange(9000), lows, highs)

    assert_matches(index, lows, highs, rng.random((50, 10)))
    check_boxes(index)


def test_every_box_may_constrain_another_set_of_attributes() -> None:
    rng = np.random.default_rng(7)
    sets = (np.arange(3000)[:, None] >> np.arange(12) & 1).astype(bool)
    lows = np.where(sets, rng.integers(0, 3, (3000, 12)), -INF)
    highs = np.where(sets, lows + 1, INF)
    index = BoxIndex.from_arrays(np.arange(3000), lows, highs)

    assert_matches(index, lows, highs, rng.integers(0, 4, (40, 12)).astype(float))
    assert index.nbytes < 3000 * 12 * 16 * 4
    check_boxes(index)


def test_equal_boxes_are_ranked_by_age_and_all_found() -> None:
    index = BoxIndex(2)
    for key in range(1500):
        index.add(-key, (3, 3), (4, 4))
    index.move(-7, (0, 0), (1, 1))
    index.move(-7, (3, 3), (4, 4))

    assert index.top((3, 4), 9).tolist() == [-n for n in range(9)]
    assert len(index.match((3.5, 3.5))) == 1500
    offsets, keys = index.match_many(np.full((400, 2), 3.5))
    assert (np.diff(offsets) == 1500).all()
    assert sorted(keys[-1500:].tolist()) == list(range(-1499, 1))
    assert index.match((5, 5)).size == 0
    assert index._pools.meta[M_LEVELS] < 20
    check_boxes(index)


def test_giants_among_tiny_boxes_are_found() -> None:
    rng = np.random.default_rng(8)
    lows = rng.random((4000, 2))
    highs = lows + 0.001
    lows[::1000], highs[::1000] = -1e9, 1e9
    index = BoxIndex.from_arrays(np.arange(4000), lows, highs)

    assert_matches(index, lows, highs, rng.random((50, 2)))
    assert index.match((-5e8, 5e8)).size == 4


@pytest.mark.parametrize("scale", [1e300, 1.7e308, 5e-324, 1e-300])
def test_extreme_numbers_are_numbers(scale: float) -> None:
    rng = np.random.default_rng(9)
    ends = np.sort(rng.integers(-10, 11, (500, 2, 2)) / 10, axis=1)
    lows, highs = ends[:, 0] * scale, ends[:, 1] * scale
    index = BoxIndex(2)
    for key in range(500):
        index.add(key, lows[key], highs[key])

    points = rng.integers(-10, 11, (60, 2)) / 10 * scale
    assert_matches(index, lows, highs, points)
    for rank in ("narrowest", "centre", "weight"):
        for point in points[:10]:
            best = index.top(point, 500, rank).tolist()
            assert set(best) == found_by_scan(lows, highs, point)
    index.rebuild()
    check_boxes(index)
    assert_matches(index, lows, highs, points)


@pytest.mark.parametrize("step", [1, -1])
def test_sorted_input_does_not_make_a_list_of_the_tree(step: int) -> None:
    index = BoxIndex(1)
    for n in range(5300):  # just before the whole is built again, at 5376
        index.add(n, (step * n,), (step * n,))

    assert index._pools.meta[M_LEVELS] < 40
    assert index.match((step * 4321,)).tolist() == [4321]
    check_boxes(index)


def test_a_long_life_of_moves_takes_no_more_memory() -> None:
    rng = np.random.default_rng(10)
    lows = rng.random((2000, 2))
    index = BoxIndex.from_arrays(np.arange(2000), lows, lows + 0.02)
    for _ in range(15):
        lows = rng.random((2000, 2))
        for key in rng.permutation(2000).tolist():
            index.move(key, lows[key], lows[key] + 0.02)
    check_boxes(index)

    assert_matches(index, lows, lows + 0.02, rng.random((50, 2)))
    assert index._pools.meta[M_LEAVES] * 64 < 2000 * 2.2


def test_an_index_that_was_emptied_serves_again() -> None:
    index = BoxIndex(2)
    for _ in range(3):
        for key in range(700):
            index.add(key, (key, key), (key + 1, key + 1))
        for key in range(700):
            index.remove(key)
        check_boxes(index)
        assert index.match((5, 5)).size == 0
        assert index.top((5, 5), 3).size == 0
        assert len(index) == 0
    index.add(1, (0, 0), (9, 9))
    assert index.match((5, 5)).tolist() == [1]


def test_ages_that_run_out_are_renumbered() -> None:
    index = BoxIndex(1)
    for key in (30, 10, 20):
        index.add(key, (0,), (1,))
    index._pools.meta[M_NEXT_AGE] = MOST_AGES
    index._install(index._pools)
    index.add(5, (0,), (1,))

    assert index.top((0.5,), 9).tolist() == [30, 10, 20, 5]
    assert index._pools.meta[M_NEXT_AGE] == 4
    check_boxes(index)


def test_weights_can_come_late() -> None:
    index = BoxIndex(1)
    for key in range(200):
        index.add(key, (0,), (1,))
    index.add(200, (0,), (1,), weight=3)
    index.add(201, (0,), (1,), weight=-3)

    assert index.top((0.5,), 2, "weight").tolist() == [200, 0]
    assert index.top((0.5,), 202, "weight").tolist()[-1] == 201
    index.remove(200)
    assert index.top((0.5,), 1, "weight").tolist() == [0]
    check_boxes(index)


def test_nothing_in_nothing_out() -> None:
    index = BoxIndex.from_arrays([], np.empty((0, 3)), np.empty((0, 3)))

    assert index.match((0, 0, 0)).size == 0
    offsets, keys = index.match_many(np.empty((0, 3)))
    assert offsets.tolist() == [0]
    assert keys.size == 0
    assert index.top_many([[0, 0, 0]], 2).tolist() == [[-1, -1]]
    assert index.dimensions == 3


def test_narrowness_counts_what_lies_in_the_extent() -> None:
    index = BoxIndex(2, extent=((0, 0), (10, 10)))
    index.add(1, (0, 0), (INF, 1))  # the whole range, and a tenth
    index.add(2, (5, 0), (INF, 1))  # half the range, and a tenth
    index.add(3, (-90, 0), (6, 1))  # six tenths, though it is long
    index.add(4, (-INF, 0.5), (INF, 0.5))  # an equality counts as 2^-20
    index.add(5, (5, 0.5), (6, 0.5))

    assert index.top((5.5, 0.5), 9).tolist() == [5, 4, 2, 3, 1]


def test_the_centre_of_a_box_is_nearer_than_its_border() -> None:
    index = BoxIndex(1)
    index.add(1, (0,), (10,))
    index.add(2, (4,), (20,))
    index.add(3, (-INF,), (6,))  # open: no centre to be far from

    assert index.top((5,), 3, "centre").tolist() == [1, 3, 2]
    assert index.top((9,), 3, "centre").tolist() == [2, 1]


@pytest.mark.parametrize("emptied", [0, 1])
def test_leaves_of_different_attributes_that_become_one_keep_both(emptied: int) -> None:
    """Each attribute is constrained by sixty boxes; those of one are removed till leaves merge."""
    lows, highs = np.full((120, 2), -INF), np.full((120, 2), INF)
    for row in range(120):
        lows[row, row % 2] = highs[row, row % 2] = row
    index = BoxIndex.from_arrays(np.arange(120), lows, highs)
    left = set(range(120))
    for key in [*range(emptied, 100, 2), *range(1 - emptied, 100, 2)]:
        index.remove(key)
        left.remove(key)
        check_boxes(index)

    for key in left:
        point = [-1.0, -1.0]
        point[key % 2] = key
        assert index.match(point).tolist() == [key]
