"""Who is elected, by which cost; how groups are split; where events are expected."""

from __future__ import annotations

import math
from collections import Counter
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.model.errors import LimitError, MisuseError, OutOfRangeError
from nearcast.overlay import (
    Costs,
    Extent,
    GridDensity,
    MarginalDensity,
    Method,
    Split,
    UniformDensity,
    elect,
    exact_cost,
    paper_cost,
)
from nearcast.overlay.bounds import union_of
from nearcast.overlay.election import candidates_after_join, expected_in_union
from nearcast.overlay.splitting import split

SQUARE = Extent((0.0, 0.0), (10.0, 10.0))
volume = UniformDensity(SQUARE).expected

edges = st.integers(0, 10)
solid = st.tuples(edges, edges, edges, edges).filter(lambda b: b[0] != b[1] and b[2] != b[3])
boxes = solid.map(
    lambda b: (
        (float(min(b[0], b[1])), float(min(b[2], b[3]))),
        (float(max(b[0], b[1])), float(max(b[2], b[3]))),
    )
)
groups = st.lists(boxes, min_size=2, max_size=6)


def cells(box: Any) -> set[tuple[int, int]]:
    """Return the unit cells that a box of whole numbers covers: an oracle for volumes."""
    (x1, y1), (x2, y2) = box
    return {(x, y) for x in range(int(x1), int(x2)) for y in range(int(y1), int(y2))}


def chosen(method: Method, members: Any, **more: Any) -> int:
    return elect(method, members, expected=volume, volume=SQUARE.volume, **more)


@given(groups, st.floats(0, 5), st.floats(0.1, 5))
def test_the_papers_cost_is_the_sum_of_its_three_cases(members: Any, r: float, f: float) -> None:
    """Events of the parent alone: nothing; shared with a member: F; of a member only: R + F."""
    own = cells(members[0])
    expected = sum(
        f * len(own & cells(box)) + (r + f) * len(cells(box) - own) for box in members[1:]
    )
    assert paper_cost(0, members, volume, Costs(r, f)) == pytest.approx(expected / 100)


@given(groups, st.floats(0, 5), st.floats(0.1, 5))
def test_t3_8_the_exact_cost_charges_receiving_once_per_event(
    members: Any, r: float, f: float
) -> None:
    """Trap T3.8, by counting cell by cell what the parent receives and sends."""
    cost = 0.0
    for cell in set().union(*map(cells, members)):
        others = sum(cell in cells(box) for box in members[1:])
        wanted = cell in cells(members[0])
        cost += f * others + (r if others and not wanted else 0.0)
    assert exact_cost(0, members, volume, Costs(r, f)) == pytest.approx(cost / 100)


@given(groups)
def test_the_exact_winner_is_the_member_with_most_events_of_its_own(members: Any) -> None:
    costs = [exact_cost(place, members, volume) for place in range(len(members))]
    assert costs[chosen(Method.EXACT, members)] == pytest.approx(min(costs))
    assert chosen(Method.EXACT, members) == chosen(Method.LARGEST, members)


def test_t3_8_the_papers_winner_is_now_and_then_not_the_cheapest() -> None:
    """Trap T3.8: a small box in the middle of overlaps beats the largest one by the formula."""
    members = [
        ((0.0, 0.0), (4.0, 4.0)),
        ((5.0, 5.0), (8.5, 9.0)),
        ((5.0, 5.0), (8.0, 8.0)),
        ((5.0, 5.0), (8.0, 8.5)),
    ]
    by_paper = chosen(Method.CHEAPEST, members)
    by_exact = chosen(Method.EXACT, members)
    assert by_paper != by_exact
    assert exact_cost(by_exact, members, volume) < exact_cost(by_paper, members, volume)


@given(groups, boxes)
def test_only_those_who_can_win_need_be_computed(members: Any, newcomer: Any) -> None:
    incumbent = chosen(Method.CHEAPEST, members)
    together = [*members, newcomer]
    costs = [paper_cost(place, together, volume) for place in range(len(together))]
    among = candidates_after_join(together, incumbent, len(members))
    assert min(costs[place] for place in among) == pytest.approx(min(costs))
    winner = chosen(Method.CHEAPEST, together, incumbent=incumbent, newcomer=len(members))
    assert costs[winner] == pytest.approx(min(costs))


def test_those_who_cannot_win_are_not_computed() -> None:
    asked: Counter[Any] = Counter()

    def counting(box: Any) -> float:
        asked[box] += 1
        return volume(box)

    apart = [((float(x), 0.0), (x + 0.5, 0.5)) for x in range(6)]
    members = [*apart, ((8.0, 8.0), (9.0, 9.0))]
    elect(
        Method.CHEAPEST, members, expected=counting, volume=SQUARE.volume, incumbent=0, newcomer=6
    )
    assert sum(asked.values()) == 2 * 6  # two candidates, six other members each


@given(groups)
def test_ties_go_to_the_incumbent(members: Any) -> None:
    same = [members[0]] * 4
    for method in (Method.LARGEST, Method.CHEAPEST, Method.EXACT):
        assert chosen(method, same, incumbent=2) == 2
        assert chosen(method, same) == 0


def test_under_random_selection_every_member_of_a_growing_group_is_parent_equally_often() -> None:
    random, parents = Random(4), Counter[int]()
    for _ in range(6_000):
        host = 0
        for size in range(2, 5):
            members = [((0.0, 0.0), (1.0, 1.0))] * size
            host = chosen(Method.RANDOM, members, incumbent=host, newcomer=size - 1, random=random)
        parents[host] += 1
    assert all(1_300 < parents[member] < 1_700 for member in range(4))


@given(groups)
def test_the_union_is_measured_exactly(members: Any) -> None:
    assert expected_in_union(members, volume) * 100 == pytest.approx(
        len(set().union(*map(cells, members)))
    )


@given(st.lists(boxes, min_size=4, max_size=9), st.sampled_from(Split), st.integers(1, 2))
def test_a_split_parts_the_members_into_two_groups_large_enough(
    members: Any, way: Split, least: int
) -> None:
    parts = split(members, least, SQUARE, way)
    assert sorted(parts[0] + parts[1]) == list(range(len(members)))
    assert min(map(len, parts)) >= least


@pytest.mark.parametrize("way", Split)
def test_two_heaps_are_split_between_them(way: Split) -> None:
    heaps = [((x + dx, 0.0), (x + dx + 1, 1.0)) for x in (0.0, 8.0) for dx in (0.0, 0.4, 0.8)]
    parts = split(heaps, 2, SQUARE, way)
    assert {frozenset(part) for part in parts} == {frozenset({0, 1, 2}), frozenset({3, 4, 5})}


def test_the_rstar_split_cuts_where_the_parts_overlap_least() -> None:
    row = [((float(x), 0.0), (x + 1.5, 9.0)) for x in (0, 1, 2, 6, 7)]
    parts = split(row, 2, SQUARE, Split.RSTAR)
    assert {frozenset(part) for part in parts} == {frozenset({0, 1, 2}), frozenset({3, 4})}


def test_too_few_members_cannot_be_split() -> None:
    with pytest.raises(OutOfRangeError):
        split([((0.0, 0.0), (1.0, 1.0))] * 3, 2, SQUARE, Split.RSTAR)


# --- densities -----------------------------------------------------------------------------------


@given(boxes, st.integers(0, 50))
def test_t3_5_a_histogram_counts_what_lies_in_its_cells(box: Any, seed: int) -> None:
    """Trap T3.5, by a scan over the cells."""
    counts = np.random.default_rng(seed).integers(0, 9, (10, 10)) + 1
    density = GridDensity(SQUARE, counts)
    expected = sum(counts[cell] for cell in cells(box)) / counts.sum()
    assert density.expected(box) == pytest.approx(expected)
    assert density.kind == "histogram"


def test_t3_5_where_events_are_counted_another_member_is_elected_than_by_volume() -> None:
    """Trap T3.5: by volume the large empty box wins, by events the small busy one."""
    counts = np.ones((10, 10))
    counts[8:, 8:] = 1_000
    members = [((0.0, 0.0), (6.0, 6.0)), ((8.0, 8.0), (10.0, 10.0))]
    histogram = GridDensity(SQUARE, counts).expected
    by_events = elect(Method.EXACT, members, expected=histogram, volume=SQUARE.volume)
    assert (chosen(Method.EXACT, members), by_events) == (0, 1)


def test_marginals_multiply() -> None:
    points = np.array([[x, y] for x in range(10) for y in range(10)], dtype=np.float64)
    density = MarginalDensity(SQUARE, points)
    assert density.expected(((0.0, 0.0), (4.0, 1.0))) == pytest.approx(0.5 * 0.2)
    assert density.kind == "marginals"


@given(boxes, boxes)
def test_a_box_within_another_never_holds_more_events(a: Any, b: Any) -> None:
    both = union_of([a, b])
    points = np.random.default_rng(1).uniform(0, 10, (200, 2))
    for density in (
        UniformDensity(SQUARE),
        GridDensity.of_events(SQUARE, points, 7),
        MarginalDensity(SQUARE, points),
    ):
        assert density.expected(a) <= density.expected(both) + 1e-12


def test_boxes_without_volume_still_expect_something() -> None:
    line = ((3.0, 0.0), (3.0, 10.0))
    points = np.random.default_rng(1).uniform(0, 10, (200, 2))
    assert UniformDensity(SQUARE).expected(line) > 0
    assert GridDensity.of_events(SQUARE, points, 5).expected(line) > 0


@pytest.mark.parametrize(
    "counts", [np.ones(3), np.zeros((2, 2)), np.array([[1.0, -1.0]]), np.array([[math.nan]])]
)
def test_a_histogram_that_is_none_is_refused(counts: Any) -> None:
    with pytest.raises(MisuseError):
        GridDensity(SQUARE, counts)


def test_a_histogram_with_too_many_cells_is_refused() -> None:
    wide = Extent((0.0,) * 8, (1.0,) * 8)
    with pytest.raises(LimitError):
        GridDensity.of_events(wide, np.zeros((1, 8)), 10)


@pytest.mark.parametrize(("r", "f"), [(-1.0, 1.0), (0.0, 0.0), (math.nan, 1.0)])
def test_costs_that_are_none_are_refused(r: float, f: float) -> None:
    with pytest.raises(OutOfRangeError):
        Costs(r, f)


@pytest.mark.parametrize(
    ("lows", "highs"),
    [((), ()), ((0.0,), (0.0,)), ((1.0,), (0.0,)), ((0.0,), (math.inf,)), ((0.0, 1.0), (2.0,))],
)
def test_an_extent_that_is_none_is_refused(lows: Any, highs: Any) -> None:
    with pytest.raises(OutOfRangeError):
        Extent(lows, highs)


@given(boxes, boxes)
def test_enlargement_is_what_the_union_adds(a: Any, b: Any) -> None:
    grown, wider = SQUARE.enlargement(a, b)
    both = union_of([a, b])
    assert grown == pytest.approx(SQUARE.volume(both) - SQUARE.volume(a))
    assert wider == pytest.approx(SQUARE.margin(both) - SQUARE.margin(a))
    assert (grown, wider) >= (0.0, 0.0)
