"""A summary that follows its subscriptions: it always covers them, and is as tight as was asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import pytest
from benchmarks.overlay_summaries import inside, summary_row
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nearcast.model.errors import KeyMissingError, LimitError, OutOfRangeError
from nearcast.overlay import Cover, Extent, GridDensity
from nearcast.overlay.bounds import Bounds, covers
from nearcast.overlay.cover import SLICE

SQUARE = Extent((0.0, 0.0), (20.0, 20.0))
INF = float("inf")
edges = st.integers(0, 19)
boxes = st.tuples(edges, edges, st.integers(1, 5), st.integers(1, 5)).map(
    lambda b: (
        (float(b[0]), float(b[1])),
        (float(min(b[0] + b[2], 20)), float(min(b[1] + b[3], 20))),
    )
)
wide = st.sampled_from(
    [((-INF, 3.0), (INF, 5.0)), ((0.0, 0.0), (20.0, 20.0)), ((-INF, -INF), (INF, INF))]
)


def cells(box: Bounds) -> set[tuple[int, int]]:
    (x1, y1), (x2, y2) = box
    return {(x, y) for x in range(int(x1), int(x2)) for y in range(int(y1), int(y2))}


class FollowedCover(RuleBasedStateMachine):
    """A cover beside a plain count of what is in it, and a listener who knows only the changes."""

    most = 6

    def __init__(self) -> None:
        super().__init__()
        self.cover = Cover(SQUARE, looseness=0.5, most=self.most)
        self.held: Counter[Bounds] = Counter()
        self.told: Counter[Bounds] = Counter()

    @rule(box=st.one_of(boxes, wide))
    def add(self, box: Bounds) -> None:
        self.cover.add(box)
        self.held[box] += 1

    @precondition(lambda self: bool(self.held))
    @rule(data=st.data())
    def remove(self, data: Any) -> None:
        box = data.draw(st.sampled_from(sorted(self.held)))
        self.cover.remove(box)
        self.held[box] -= 1
        self.held += Counter()  # without those that are gone

    @precondition(lambda self: bool(self.held))
    @rule()
    def remove_the_largest(self) -> None:
        box = max(self.held, key=lambda one: (SQUARE.volume(one), one))
        self.cover.remove(box)
        self.held[box] -= 1
        self.held += Counter()

    @rule()
    def tidy(self) -> None:
        self.cover.tidy()

    @invariant()
    def everything_is_covered(self) -> None:
        summary = list(self.cover.boxes)
        assert all(any(covers(whole, box) for whole in summary) for box in self.held)
        assert len(self.cover) == len(self.held)
        assert bool(summary) == bool(self.held)

    @invariant()
    def the_changes_tell_all(self) -> None:
        self.told.update(self.cover.take_changes())
        assert self.told == Counter(self.cover.boxes)
        assert self.cover.take_changes() == {}

    @invariant()
    def there_are_no_more_boxes_than_allowed_once_settled(self) -> None:
        if self.cover.is_settled:
            assert len(list(self.cover.boxes)) <= self.most


TestFollowedCover = FollowedCover.TestCase


@given(st.lists(boxes, max_size=25), st.sampled_from([0.0, 0.2, 1.0, 5.0]))
def test_a_box_wastes_no_more_than_allowed_while_nothing_goes(
    added: list[Bounds], looseness: float
) -> None:
    cover = Cover(SQUARE, looseness=looseness)
    for box in added:
        cover.add(box)
    asked = set().union(*map(cells, added)) if added else set()
    for whole in cover.boxes:
        assert len(cells(whole)) <= (1 + looseness) * len(cells(whole) & asked) + 1e-9
    assert len(list(cover.boxes)) <= len(set(added))


def test_looser_covers_have_fewer_boxes_and_let_more_events_through_for_nobody() -> None:
    rows = [summary_row(120, looseness, 1, events=800) for looseness in (0.0, 0.5, 2.0)]

    assert rows[0]["boxes"] > rows[1]["boxes"] > rows[2]["boxes"]
    shares = [row["for_nobody"] for row in rows]
    assert shares == sorted(shares)
    assert shares[0] == 0.0
    assert shares[2] > 0.0


def test_events_are_counted_that_a_box_lets_in_and_that_a_client_wants() -> None:
    clients = [((0.0, 0.0), (1.0, 1.0)), ((2.0, 0.0), (3.0, 1.0))]
    whole = [((0.0, 0.0), (3.0, 1.0))]
    events = np.array([(0.5, 0.5), (1.5, 0.5), (2.5, 0.5), (4.0, 0.5)])

    assert (inside(events, whole), inside(events, clients), inside(events, [])) == (3, 2, 0)


def test_a_wide_box_that_goes_leaves_what_was_in_it_apart() -> None:
    cover = Cover(SQUARE, looseness=0.25)
    whole, corners = ((0.0, 0.0), (20.0, 20.0)), [((0.0, 0.0), (1.0, 1.0)), ((19.0, 19.0),) * 2]
    for box in (whole, *corners):
        cover.add(box)
    assert list(cover.boxes) == [whole]
    cover.remove(whole)
    assert sorted(cover.boxes) == sorted(corners)


def test_many_boxes_in_one_that_goes_are_put_anew_a_few_at_a_time() -> None:
    cover = Cover(SQUARE, looseness=0.25)
    whole = ((0.0, 0.0), (20.0, 20.0))
    cover.add(whole)
    random = Random(4)
    small = []
    for _ in range(5 * SLICE):
        x, y = random.uniform(0, 19), random.uniform(0, 19)
        small.append(((x, y), (x + 0.1, y + 0.1)))
        cover.add(small[-1])
    assert list(cover.boxes) == [whole]
    cover.remove(whole)
    calls = 0
    while not cover.is_settled:
        assert whole in list(cover.boxes)  # until all are elsewhere
        cover.tidy()
        calls += 1
    assert calls == 4
    assert whole not in list(cover.boxes)
    assert all(any(covers(one, box) for one in cover.boxes) for box in small)


def test_a_box_shrinks_when_an_outer_one_goes() -> None:
    cover = Cover(Extent((0.0,), (100.0,)), looseness=0.1)
    for low in (0.0, 10.0, 20.0):
        cover.add(((low,), (low + 10.0,)))
    assert list(cover.boxes) == [((0.0,), (30.0,))]
    cover.remove(((20.0,), (30.0,)))
    assert list(cover.boxes) == [((0.0,), (20.0,))]


def test_what_several_boxes_cover_together_counts_once() -> None:
    cover = Cover(Extent((0.0,), (100.0,)), looseness=0.25)
    for low in (0.0, 1.0, 2.0, 3.0):
        cover.add(((low,), (10.0,)))
    cover.add(((14.0,), (16.0,)))  # 16 around 12 would be too much
    assert sorted(cover.boxes) == [((0.0,), (10.0,)), ((14.0,), (16.0,))]


def test_a_box_that_has_lost_its_middle_falls_into_two() -> None:
    cover = Cover(Extent((0.0,), (100.0,)), looseness=0.25)
    for low, high in ((0.0, 10.0), (10.0, 90.0), (90.0, 100.0)):
        cover.add(((low,), (high,)))
    assert list(cover.boxes) == [((0.0,), (100.0,))]
    cover.remove(((10.0,), (90.0,)))
    assert sorted(cover.boxes) == [((0.0,), (10.0,)), ((90.0,), (100.0,))]


def test_what_is_already_covered_changes_nothing_that_must_be_told() -> None:
    cover = Cover(SQUARE, looseness=0.25)
    cover.add(((0.0, 0.0), (10.0, 10.0)))
    assert cover.take_changes() == {((0.0, 0.0), (10.0, 10.0)): 1}
    cover.add(((1.0, 1.0), (2.0, 2.0)))
    cover.add(((0.0, 0.0), (10.0, 10.0)))
    cover.remove(((0.0, 0.0), (10.0, 10.0)))
    assert cover.take_changes() == {}


def test_beyond_the_most_boxes_neighbours_are_merged_all_the_same() -> None:
    cover = Cover(Extent((0.0,), (100.0,)), looseness=0.0, most=2)
    for low in (0.0, 50.0, 52.0, 90.0):
        cover.add(((low,), (low + 1.0,)))
    assert sorted(cover.boxes) == [((0.0,), (1.0,)), ((50.0,), (91.0,))]


def test_a_gap_in_which_no_event_was_counted_costs_nothing() -> None:
    extent = Extent((0.0,), (100.0,))
    counts = np.array([60, 0, 30, 0, 0, 0, 0, 0, 0, 10])
    neighbours = [((8.0,), (10.0,)), ((20.0,), (22.0,))]
    apart = [((0.0,), (1.0,)), ((5.0,), (6.0,))]  # many events fall between these two

    def summary(added: Sequence[Bounds], density: GridDensity | None) -> list[Bounds]:
        cover = Cover(extent, looseness=0.25, density=density)
        for box in added:
            cover.add(box)
        return sorted(cover.boxes)

    density = GridDensity(extent, counts)
    assert summary(neighbours, None) == neighbours
    assert summary(neighbours, density) == [((8.0,), (22.0,))]
    assert summary(apart, density) == apart


@given(st.lists(boxes, max_size=40), st.lists(boxes, max_size=5), st.randoms(use_true_random=False))
def test_under_a_new_density_all_stays_covered_and_is_told_step_by_step(
    added: list[Bounds], later: list[Bounds], random: Random
) -> None:
    density = GridDensity(
        SQUARE, np.array([[1 + random.random() for _ in range(4)] for _ in range(4)])
    )
    cover, weighed = Cover(SQUARE, looseness=0.5), 0
    told: dict[Bounds, int] = {}

    def take() -> None:
        for box, count in cover.take_changes().items():
            told[box] = told.get(box, 0) + count

    for box in added:
        cover.add(box)
    take()
    cover.use_density(density)
    for box in later:
        cover.add(box)
    while True:
        take()
        current = list(cover.boxes)
        assert all(any(covers(one, box) for one in current) for box in (*added, *later))
        assert sorted(box for box, count in told.items() for _ in range(count)) == sorted(current)
        if cover.is_settled:
            break
        cover.tidy()
        weighed += 1
    assert weighed <= len(added) / SLICE
    assert len(cover) == len({*added, *later})


def test_a_gap_without_events_is_closed_once_that_is_known_and_opened_when_it_is_not() -> None:
    extent = Extent((0.0,), (100.0,))
    neighbours = [((8.0,), (10.0,)), ((20.0,), (22.0,))]
    cover = Cover(extent, looseness=0.25)
    for box in neighbours:
        cover.add(box)
    assert sorted(cover.boxes) == neighbours
    cover.use_density(GridDensity(extent, np.array([60, 0, 30, 0, 0, 0, 0, 0, 0, 10])))
    assert list(cover.boxes) == [((8.0,), (22.0,))]
    cover.use_density(None)
    assert sorted(cover.boxes) == neighbours


def test_what_makes_no_sense_is_refused_and_changes_nothing() -> None:
    with pytest.raises(OutOfRangeError):
        Cover(SQUARE, looseness=-1.0)
    with pytest.raises(OutOfRangeError):
        Cover(SQUARE, looseness=float("nan"))
    with pytest.raises(LimitError):
        Cover(SQUARE, looseness=0.0, most=0)
    cover = Cover(SQUARE, looseness=0.0)
    cover.add(((0.0, 0.0), (1.0, 1.0)))
    with pytest.raises(OutOfRangeError):
        cover.add(((5.0, 5.0), (1.0, 1.0)))
    with pytest.raises(OutOfRangeError):
        cover.add(((50.0, 5.0), (60.0, 6.0)))
    with pytest.raises(KeyMissingError):
        cover.remove(((0.0, 0.0), (2.0, 2.0)))
    assert list(cover.boxes) == [((0.0, 0.0), (1.0, 1.0))]
