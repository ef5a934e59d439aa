"""Paper 1: its examples, and its traps.

Each trap is tested twice: the list of a broker is right, and the literal reading of the paper,
which stands beside it in a few lines, is wrong on the same input.
"""

from __future__ import annotations

import numpy as np
import pytest
from tests.support.interval_anatomy import check_intervals, edges_of

from nearcast.index import IntervalSkipList
from nearcast.matching import Matcher, filter_index
from nearcast.model import Attribute, Event, Space, Subscription, parse_where
from nearcast.papers.ranked_matching.paper_list import PaperList

EXTENT = (0.0, 1000.0)


def listed(ends: list[tuple[float, float]], seed: int = 0) -> IntervalSkipList:
    index = IntervalSkipList(EXTENT, seed=seed)
    for key, (low, high) in enumerate(ends):
        index.add(key, low, high, age=key)
    return index


def best(index: IntervalSkipList, x: float, k: int) -> list[int]:
    return [key for _, _, key in index.top(x, k)]


# The paper's own examples. Its figures are lost with their numbers; these are intervals that
# give the answers its text states.


def test_the_value_44_stabs_a_b_d_and_g() -> None:
    figure_2 = {
        "A": (5, 50), "B": (30, 60), "C": (7, 20), "D": (44, 44),
        "E": (46, 70), "F": (12, 40), "G": (26, 44),
    }  # fmt: skip
    index = listed([(float(low), float(high)) for low, high in figure_2.values()])
    assert {"ABCDEFG"[key] for key in index.stab(44).tolist()} == set("ABDG")


def test_the_value_7_stabs_0_4_3_and_ranks_them_3_0_4() -> None:
    index = listed([(4, 12), (8, 20), (15, 30), (6, 8), (2, 25)])
    assert set(index.stab(7).tolist()) == {0, 4, 3}
    assert best(index, 7, 3) == [3, 0, 4]


def test_t1_1_lower_does_not_mean_narrower() -> None:
    """The smallest case: [10, 20] is marked above [12, 1000] over the value 15."""
    for seed in range(1000):
        index = listed([(10, 20), (12, 1000)], seed)
        level = {key: edge.level for edge in edges_of(index) for key in edge.markers
                 if edge.left <= 15 < edge.right}  # fmt: skip
        if level == {0: 2, 1: 1}:
            break
    else:
        pytest.fail("no seed gives the levels of the trap")
    over = [edge for edge in edges_of(index) if edge.left <= 15 < edge.right]
    literal = [key for edge in over for key in edge.markers]  # popped from the lowest level up
    assert literal == [1, 0]
    assert best(index, 15, 1) == [0]
    assert best(index, 15, 2) == [0, 1]


def test_t1_1_thirty_uniform_intervals_deceive_the_papers_walk_and_not_the_list() -> None:
    random = np.random.default_rng(0)
    wrong = 0
    for seed in range(60):
        lows, highs = np.sort(random.uniform(0, 1000, (2, 30)), axis=0)
        x = float(random.uniform(200, 800))
        inside = np.flatnonzero((lows <= x) & (x <= highs))
        wanted = sorted(inside.tolist(), key=lambda key: (highs[key] - lows[key], key))[:5]
        paper = PaperList(lows, highs, seed=seed)
        wrong += set(paper.paper_walk(x, 5).keys) != set(wanted)
        assert paper.exact_merge(x, 5).keys == wanted
        assert best(listed(list(zip(lows.tolist(), highs.tolist(), strict=True)), seed), x, 5) == (
            wanted
        )
    assert 12 <= wrong <= 48


def test_t1_2_a_marker_needs_an_ordered_insert() -> None:
    halves = [5, 1, 4, 2, 3, 2]
    literal: list[int] = []
    for key, half in enumerate(halves):  # compared with one neighbour only
        at = len(literal) - 1 if literal and half < halves[literal[-1]] else len(literal)
        literal.insert(at, key)
    index = listed([(500.0 - half, 500.0 + half) for half in halves])
    wanted = [1, 3, 5, 4, 2, 0]
    assert literal != wanted
    assert best(index, 500, 6) == wanted
    check_intervals(index)  # every edge is in order of (width, age)


@pytest.mark.parametrize("count", [1, 30])  # scanned, and in the list
def test_t1_3_an_open_end_is_not_a_closed_one(count: int) -> None:
    people = Space(name="people", topic_filter="#", attributes=(Attribute.number("age", 0, 100),))
    matcher = Matcher([people])
    texts = ["20 <= age <= 25", "20 < age <= 25", "20 <= age < 25", "20 < age < 25"]
    for key, text in enumerate(texts * count):
        matcher.add(key, Subscription(topic_filter="#", where=parse_where(text)))
    assert (count * 4 >= filter_index.MANY) == (count > 1)
    for x in (19.999, 20, 20.001, 24.999, 25, 25.001):
        wanted = {
            key
            for key in range(4 * count)
            if (x > 20 if key % 4 in (1, 3) else x >= 20)
            and (x < 25 if key % 4 in (2, 3) else x <= 25)
        }
        found = matcher.match(Event.of(people, "a", {"age": x}))
        literal = set(range(4 * count)) if 20 <= x <= 25 else set()
        assert set(found) == wanted
        if x in (20, 25):
            assert literal != wanted


def test_t1_4_a_node_that_disappears_leaves_the_markers_of_others_in_place() -> None:
    lost = 0
    for seed in range(8):
        index = listed([(0, 100), *((key, key + 0.5) for key in range(1, 50))], seed)
        before = {(edge.level, edge.left): edge.right for edge in edges_of(index) if edge.markers}
        for key in range(1, 50):
            index.remove(key)
            if key % 4 == 0:
                check_intervals(index)
        assert all(index.stab(x).tolist() == [0] for x in range(101))
        (only,) = [edge for edge in edges_of(index) if edge.markers]
        assert (only.left, only.markers) == (0.0, (0,))
        # Literal: the nodes go and take the markers on their edges along, nothing is re-placed.
        lost += before.get((only.level, 0.0)) != only.right
    assert lost >= 6


def test_t1_5_a_value_equal_to_a_node_reads_what_is_marked_there() -> None:
    ends = [(7.0, 7.0), (7.0, 9.0), (5.0, 7.0), (5.0, 9.0)]
    lows, highs = (np.array(side) for side in zip(*ends, strict=True))
    for seed in range(50):
        assert best(listed(ends, seed), 7, 9) == [0, 1, 2, 3]
        paper = PaperList(lows, highs, seed=seed)
        assert sorted(paper.paper_walk(7, 9).keys) == [0, 1, 2, 3]
        assert sorted(paper.paper_walk(7, 9, as_printed=True).keys) != [0, 1, 2, 3]


def test_the_ranked_search_touches_k_markers_and_the_path_however_many_match() -> None:
    """Claim C1.1."""
    lows = np.random.default_rng(0).uniform(0, 50, 5000)
    index = PaperList(lows, lows + 50)
    assert len(index.stab(50)) == 5000
    for walk in (index.paper_walk, index.exact_merge):
        walked = walk(50, 10)
        assert walked.touched <= 10 + walked.edges <= 10 + 32
