"""Paper 1 on the interval skip list: its examples, its traps, its claim."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.support.interval_anatomy import check_intervals, edges_of

from nearcast.index import IntervalSkipList


def keys_of(found: Any) -> list[int]:
    return [int(key) for key in found]


# The paper's own examples. Its figures are lost with their numbers; these are intervals that
# give the answers its text states.


def test_the_value_44_stabs_a_b_d_and_g() -> None:
    figure_2 = {
        "A": (5, 50), "B": (30, 60), "C": (7, 20), "D": (44, 44),
        "E": (46, 70), "F": (12, 40), "G": (26, 44),
    }  # fmt: skip
    index = IntervalSkipList(seed=0)
    for name, (low, high) in figure_2.items():
        index.add(ord(name), low, high)

    assert {chr(key) for key in index.stab(44)} == set("ABDG")


def test_the_value_7_stabs_0_4_3_and_ranks_them_3_0_4() -> None:
    figure_5 = {0: (4, 12), 1: (8, 20), 2: (15, 30), 3: (6, 8), 4: (2, 25)}
    index = IntervalSkipList(seed=0)
    for key, (low, high) in figure_5.items():
        index.add(key, low, high)

    assert set(keys_of(index.stab(7))) == {0, 4, 3}
    assert keys_of(index.top(7, 3)) == [3, 0, 4]


def test_t1_1_a_wide_interval_low_down_deceives_the_papers_walk_and_not_ours() -> None:
    narrow, wide = 1, 2
    for seed in range(1000):
        index = IntervalSkipList(seed)
        index.add(narrow, 10, 20)
        index.add(wide, 12, 1000)
        level = {key: edge.level for edge in edges_of(index) for key in edge.markers
                 if edge.left <= 15 < edge.right}  # fmt: skip
        if (level[narrow], level[wide]) == (2, 1):
            break
    else:
        pytest.fail("no seed gives the levels of the trap")

    assert keys_of(index.top(15, 1, method="paper")) == [wide]
    assert keys_of(index.top(15, 1)) == [narrow]
    assert keys_of(index.top(15, 2)) == [narrow, wide]


def test_t1_1_thirty_uniform_intervals_are_enough_to_deceive_the_papers_walk() -> None:
    rng = np.random.default_rng(0)
    wrong = 0
    for seed in range(100):
        lows, highs = np.sort(rng.uniform(0, 100, (2, 30)), axis=0)
        index = IntervalSkipList.from_arrays(np.arange(30), lows, highs, seed=seed)
        x = float(rng.uniform(20, 80))
        wrong += set(keys_of(index.top(x, 5, method="paper"))) != set(keys_of(index.top(x, 5)))
    assert 20 <= wrong <= 80


def test_t1_2_markers_added_in_any_order_are_read_narrowest_first() -> None:
    index = IntervalSkipList(seed=0)
    for key, half in enumerate([5, 1, 4, 2, 3, 2]):
        index.add(key, -half, half)
    assert keys_of(index.top(0, 6)) == [1, 3, 5, 4, 2, 0]


@pytest.mark.parametrize("x", [19.999, 20, 20.001, 24.999, 25, 25.001])
def test_t1_3_an_open_end_is_not_a_closed_one(x: float) -> None:
    index = IntervalSkipList(seed=0)
    kinds = [(False, False), (True, False), (False, True), (True, True)]
    for key, (low_open, high_open) in enumerate(kinds):
        index.add(key, 20, 25, low_open, high_open)

    expected = [
        key
        for key, (low_open, high_open) in enumerate(kinds)
        if (x > 20 if low_open else x >= 20) and (x < 25 if high_open else x <= 25)
    ]
    assert sorted(keys_of(index.stab(x))) == expected


def test_t1_4_a_node_that_disappears_leaves_the_markers_of_others_in_place() -> None:
    for seed in range(8):
        index = IntervalSkipList(seed)
        index.add(0, 0, 100)
        for key in range(1, 50):
            index.add(key, key, key + 0.5)
        for key in range(1, 50):
            index.remove(key)
            if key % 4 == 0:
                check_intervals(index)
        assert all(keys_of(index.stab(x)) == [0] for x in range(101))
        assert sum(len(edge.markers) for edge in edges_of(index)) == 1


def test_t1_5_a_value_equal_to_a_node_reads_what_is_marked_there() -> None:
    for seed in range(50):
        index = IntervalSkipList(seed)
        index.add(1, 7, 7)
        index.add(2, 7, 9)
        index.add(3, 5, 7)
        index.add(4, 5, 9)
        assert keys_of(index.top(7, 9)) == [1, 2, 3, 4]
        assert sorted(keys_of(index.top(7, 9, method="paper"))) == [1, 2, 3, 4]
        assert keys_of(index.top(7, 2, method="paper")) in ([1, 2], [1, 3])


def test_the_ranked_search_touches_k_markers_and_the_path_however_many_match() -> None:
    """Claim C1.1."""
    rng = np.random.default_rng(0)
    lows = rng.uniform(0, 50, 5000)
    index = IntervalSkipList.from_arrays(np.arange(5000), lows, lows + 50, _limit=5000)
    assert len(index.stab(50)) == 5000

    index.top(50, 10)

    markers, edges = index.touched
    assert markers <= 10 + edges <= 10 + 32
