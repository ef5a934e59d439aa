"""The interval skip list says what a scan of all intervals would say."""

from __future__ import annotations

import copy
import math
import pickle
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from tests.support.interval_anatomy import check_intervals, edges_of

from nearcast.index import IntervalSkipList
from nearcast.model.errors import (
    KeyInUseError,
)

INF = math.inf
EXTENT = (-2.0, 12.0)


@dataclass(frozen=True)
class Interval:
    low: float
    high: float
    low_open: bool = False
    high_open: bool = False
    weight: float = 1.0

    def contains(self, x: float) -> bool:
        above_low = self.low < x if self.low_open else self.low <= x
        below_high = x < self.high if self.high_open else x <= self.high
        return above_low and below_high


@dataclass
class Scan:
    """Oracle: a list of all intervals in order of age, read from end to end."""

    extent: tuple[float, float] | None = None
    intervals: dict[int, Interval] = field(default_factory=dict)

    def stab(self, x: float) -> list[int]:
        return [key for key, interval in self.intervals.items() if interval.contains(x)]

    def bounds(self, interval: Interval) -> tuple[float, float]:
        low, high = interval.low, interval.high
        if self.extent:
            low = self.extent[0] if low == -INF else low
            high = self.extent[1] if high == INF else high
        return low, high

    def width(self, interval: Interval) -> float:
        low, high = self.bounds(interval)
        return max(0.0, high - low)

    def offset(self, interval: Interval, x: float) -> float:
        """Return the distance from the centre in half-widths; 0 where there is no centre."""
        half = (interval.high - interval.low) / 2
        if math.isinf(half) or half == 0:
            return 0.0
        return abs(x - (interval.low + interval.high) / 2) / half

    def score(self, interval: Interval, x: float, rank: dict[str, float]) -> float:
        """Return a number, least for the best."""
        unit = self.extent[1] - self.extent[0] if self.extent else 1.0
        score = 0.0
        if rank.get("narrowest"):
            score += rank["narrowest"] / unit * self.width(interval)
        if rank.get("centre"):
            score += rank["centre"] * self.offset(interval, x)
        return score - rank.get("weight", 0.0) * interval.weight

    def top(self, x: float, k: int, rank: Any = "narrowest") -> list[int]:
        shares = {rank: 1.0} if isinstance(rank, str) else rank
        scores = {key: self.score(self.intervals[key], x, shares) for key in self.stab(x)}
        return sorted(scores, key=lambda key: scores[key])[:k]  # a stable sort: older first


ends = st.one_of(st.integers(0, 8).map(float), st.sampled_from([-INF, INF, 3.5]))
values = st.one_of(
    st.integers(-1, 9).map(float), st.sampled_from([0.5, 3.25, 3.5, 7.5, -1e300, 1e300])
)
weights = st.sampled_from([0.0, 1.0, 2.5, -1.0])
# Powers of two, so that scores are exact and ties are ties.
ranks = st.sampled_from(
    [
        "narrowest",
        "centre",
        "weight",
        {"narrowest": 0.5, "weight": 0.25},
        {"narrowest": 1.0, "centre": 2.0},
        {"centre": 0.5, "weight": 1.0, "narrowest": 0.0},
    ]
)
limits = st.sampled_from([1, 3, 20, 1024])  # small ones: the list becomes runs, and runs merge


@st.composite
def intervals(draw: st.DrawFn) -> Interval:
    low, high = sorted((draw(ends), draw(ends)))
    if low == INF or high == -INF:
        low, high = -INF, INF
    is_point = low == high
    low_open = not is_point and draw(st.booleans())
    high_open = not is_point and draw(st.booleans())
    return Interval(low, high, low_open, high_open, draw(weights))


def add(index: IntervalSkipList, key: int, interval: Interval) -> None:
    index.add(
        key, interval.low, interval.high, interval.low_open, interval.high_open, interval.weight
    )


def built(intervals_: dict[int, Interval], **options: Any) -> IntervalSkipList:
    rows = list(intervals_.values())
    return IntervalSkipList.from_arrays(
        np.array(list(intervals_), dtype=np.int64),
        [i.low for i in rows],
        [i.high for i in rows],
        low_open=[i.low_open for i in rows],
        high_open=[i.high_open for i in rows],
        weights=[i.weight for i in rows],
        **options,
    )


def keys_of(found: Any) -> list[int]:
    return [int(key) for key in found]


class ListAgreesWithScan(RuleBasedStateMachine):
    """Whatever the history, the list answers as a scan would, and keeps its invariants."""

    @initialize(
        seed=st.integers(0, 10),
        limit=limits,
        extent=st.sampled_from([None, EXTENT]),
        first=st.lists(intervals(), max_size=30),
    )
    def begin(
        self,
        seed: int,
        limit: int,
        extent: tuple[float, float] | None,
        first: list[Interval],
    ) -> None:
        self.next_key = 0
        self.scan = Scan(extent)
        self.scan.intervals = {3 * n - 40: interval for n, interval in enumerate(first)}
        self.index = built(self.scan.intervals, seed=seed, extent=extent, _limit=limit)

    @rule(some=st.lists(intervals(), min_size=1, max_size=8))
    def add(self, some: list[Interval]) -> None:
        for interval in some:
            self.next_key += 1
            key = 1000 + 7919 * self.next_key % 1009
            if key in self.scan.intervals:
                continue
            add(self.index, key, interval)
            self.scan.intervals[key] = interval

    @precondition(lambda self: self.scan.intervals)
    @rule(data=st.data(), count=st.integers(1, 6))
    def remove(self, data: st.DataObject, count: int) -> None:
        for _ in range(min(count, len(self.scan.intervals))):
            key = data.draw(st.sampled_from(list(self.scan.intervals)))
            self.index.remove(key)
            del self.scan.intervals[key]

    @precondition(lambda self: self.scan.intervals)
    @rule(data=st.data(), interval=intervals())
    def refuse_a_key_twice(self, data: st.DataObject, interval: Interval) -> None:
        key = data.draw(st.sampled_from(list(self.scan.intervals)))
        with pytest.raises(KeyInUseError):
            add(self.index, key, interval)

    @rule()
    def rebuild(self) -> None:
        self.index.rebuild()

    @rule(x=values)
    def stab(self, x: float) -> None:
        found = keys_of(self.index.stab(x))
        assert sorted(found) == sorted(self.scan.stab(x))

    @rule(x=values, k=st.integers(0, 12), rank=ranks)
    def top(self, x: float, k: int, rank: Any) -> None:
        assert keys_of(self.index.top(x, k, rank)) == self.scan.top(x, k, rank)

    @rule(x=values, k=st.integers(1, 12))
    def walk_as_the_paper_does(self, x: float, k: int) -> None:
        found = keys_of(self.index.top(x, k, method="paper"))
        matches = self.scan.stab(x)
        assert len(found) == min(k, len(matches))
        assert set(found) <= set(matches)
        assert len(set(found)) == len(found)

    @rule(xs=st.lists(values, max_size=40), k=st.integers(0, 5), rank=ranks)
    def ask_for_many(self, xs: list[float], k: int, rank: Any) -> None:
        offsets, keys = self.index.stab_many(xs)
        table = self.index.top_many(xs, k, rank)
        assert table.shape == (len(xs), k)
        for n, x in enumerate(xs):
            assert sorted(keys_of(keys[offsets[n] : offsets[n + 1]])) == sorted(self.scan.stab(x))
            best = self.scan.top(x, k, rank)
            assert keys_of(table[n]) == best + [-1] * (k - len(best))

    @invariant()
    def the_structure_is_sound(self) -> None:
        check_intervals(self.index)
        assert len(self.index) == len(self.scan.intervals)
        assert all(key in self.index for key in self.scan.intervals)
        assert 999_999 not in self.index


TestListAgreesWithScan = ListAgreesWithScan.TestCase


@given(st.lists(intervals(), min_size=15, max_size=40), st.integers(0, 10))
def test_markers_are_where_the_paper_puts_them_and_in_order_of_accuracy(
    some: list[Interval], seed: int
) -> None:
    """From the definition: on the covered edges that no covered edge of a higher level contains."""
    scan = Scan(intervals=dict(enumerate(some)))
    index = IntervalSkipList(seed)
    for key, interval in scan.intervals.items():
        add(index, key, interval)
    edges = edges_of(index)

    def covers(interval: Interval, edge: Any) -> bool:
        last = math.nextafter(edge.right, -INF)  # an edge stands for [left, right)
        starts = interval.low == -INF if edge.left == -INF else interval.contains(edge.left)
        return starts and (interval.high == INF if edge.right == INF else interval.contains(last))

    for edge in edges:
        higher = [
            other
            for other in edges
            if other.level > edge.level and other.left <= edge.left and edge.right <= other.right
        ]
        expected = [
            key
            for key, interval in scan.intervals.items()
            if covers(interval, edge) and not any(covers(interval, other) for other in higher)
        ]
        expected.sort(key=lambda key: scan.width(scan.intervals[key]))
        assert list(edge.markers) == expected


@given(st.lists(intervals(), max_size=40), st.integers(0, 10))
def test_a_list_from_arrays_answers_as_one_made_by_adding(some: list[Interval], seed: int) -> None:
    scan = Scan(EXTENT, dict(enumerate(some)))
    index = built(scan.intervals, seed=seed, extent=EXTENT)

    check_intervals(index)
    for x in (-1.0, 0.0, 3.0, 3.5, 8.0, 9.0):
        assert sorted(keys_of(index.stab(x))) == sorted(scan.stab(x))
        assert keys_of(index.top(x, 4)) == scan.top(x, 4)


@given(st.lists(intervals(), max_size=40), st.randoms(use_true_random=False))
def test_after_everything_is_removed_nothing_is_left(some: list[Interval], rnd: Any) -> None:
    index = built(dict(enumerate(some)))
    order = list(range(len(some)))
    rnd.shuffle(order)
    for key in order:
        index.remove(key)

    check_intervals(index)
    assert len(index) == 0
    assert [edge.markers for edge in edges_of(index)] == [(), ()]  # the header's, and the top


def test_long_lists_of_equal_widths_go_by_age() -> None:
    """Thousands on one edge; then most of them go."""
    index = IntervalSkipList()
    for key in range(3000):
        index.add(key, 0, 10, weight=key % 7)
    for key in range(2900):
        index.remove(2 * key % 2999)
    left = sorted(set(range(3000)) - {2 * key % 2999 for key in range(2900)})

    check_intervals(index)
    assert keys_of(index.top(5, 200)) == left
    heaviest = sorted(left, key=lambda key: -(key % 7))
    assert keys_of(index.top(5, 20, rank="weight")) == heaviest[:20]


def test_widths_that_differ_only_in_double_precision_are_told_apart() -> None:
    index = IntervalSkipList()
    for key in range(200):
        index.add(key, 0, 1 + (200 - key) * 2.0**-50)

    check_intervals(index)
    assert keys_of(index.top(0.5, 200)) == list(range(199, -1, -1))


@given(st.integers(0, 3), st.sampled_from(["narrowest", "centre", "weight"]))
def test_large_random_lists_rank_exactly(seed: int, rank: str) -> None:
    rng = np.random.default_rng(seed)
    lows = rng.integers(0, 500, 2000).astype(float)
    highs = lows + rng.integers(0, 300, 2000)
    scan = Scan((0.0, 800.0))
    for key in range(2000):
        weight = float(rng.integers(0, 50))
        scan.intervals[key] = Interval(lows[key], highs[key], weight=weight)
    index = built(scan.intervals, seed=seed, extent=scan.extent)

    for x in rng.integers(0, 800, 5).astype(float):
        assert keys_of(index.top(x, 10, rank)) == scan.top(x, 10, rank)


def test_an_interval_without_bounds_contains_every_value() -> None:
    index = IntervalSkipList(seed=0)
    index.add(1, -INF, INF)
    index.add(2, -INF, 5, high_open=True)
    index.add(3, 5, INF)
    check_intervals(index)
    assert sorted(keys_of(index.stab(-sys.float_info.max))) == [1, 2]
    assert sorted(keys_of(index.stab(5))) == [1, 3]
    assert sorted(keys_of(index.stab(sys.float_info.max))) == [1, 3]


def test_the_extent_says_how_wide_an_interval_without_a_bound_is() -> None:
    index = IntervalSkipList(seed=0, extent=(0, 100))
    index.add(1, 0, 50)
    index.add(2, 60, INF)
    index.add(3, -INF, INF)
    index.add(4, 30, INF)
    assert keys_of(index.top(65, 4)) == [2, 4, 3]
    assert keys_of(index.top(50, 4)) == [1, 4, 3]
    assert keys_of(index.top(65, 3, rank="centre")) == [2, 3, 4]  # none has a centre: by age
    assert index.interval(2) == (60, 100)


@pytest.mark.parametrize("edge", [sys.float_info.max, -sys.float_info.max, 0.0, -0.0, 5e-324])
def test_values_at_the_ends_of_floats_are_inside_their_point(edge: float) -> None:
    index = IntervalSkipList(seed=0)
    index.add(1, edge, edge)
    check_intervals(index)
    assert keys_of(index.stab(edge)) == [1]
    assert index.interval(1) == (edge, edge)


def test_an_open_interval_between_neighbouring_floats_is_there_and_matches_nothing() -> None:
    index = IntervalSkipList(seed=0)
    index.add(1, 1.0, math.nextafter(1.0, 2.0), low_open=True, high_open=True)
    check_intervals(index)
    assert len(index) == 1
    assert keys_of(index.stab(1.0)) == []
    index.remove(1)
    check_intervals(index)


def test_equal_histories_give_equal_lists_and_another_seed_another() -> None:
    def edges(seed: int) -> Any:
        index = IntervalSkipList(seed)
        for key in range(20):
            index.add(key, key, 2 * key)
        index.remove(7)
        return edges_of(index)

    assert edges(3) == edges(3)
    assert edges(3) != edges(4)


def test_keys_are_any_number_of_64_bits() -> None:
    index = IntervalSkipList(seed=0)
    for key in (-(2**63), -1, 0, 2**63 - 1):
        index.add(key, 0, 1)
    assert sorted(keys_of(index.stab(0.5))) == [-(2**63), -1, 0, 2**63 - 1]


def test_numpy_scalars_are_numbers_too() -> None:
    index = IntervalSkipList(seed=0)
    index.add(np.int32(3), np.float32(1), np.int64(2), bool(np.bool_(False)), bool(np.bool_(True)))
    assert keys_of(index.stab(np.float32(1.5))) == [3]
    assert np.int16(3) in index
    assert keys_of(index.stab(2)) == []


def test_a_copy_and_a_pickle_answer_alike_and_live_on_their_own() -> None:
    index = IntervalSkipList(seed=5, extent=(0, 10))
    for key, interval in enumerate(
        [Interval(1, 4), Interval(-INF, 4, True, True, 2.0), Interval(2, INF), Interval(3, 4)]
    ):
        add(index, key, interval)
    index.remove(0)
    for twin in (copy.copy(index), copy.deepcopy(index), pickle.loads(pickle.dumps(index))):
        check_intervals(twin)
        for x in (1.0, 3.0, 4.0):
            assert keys_of(twin.top(x, 9)) == keys_of(index.top(x, 9))
            assert keys_of(twin.top(x, 9, "weight")) == keys_of(index.top(x, 9, "weight"))
        twin.remove(1)
        assert 1 in index


def test_importing_the_package_does_not_import_numba() -> None:
    code = "import sys, nearcast.index; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
