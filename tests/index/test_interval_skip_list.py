"""The interval skip list: whatever the history, it answers as the definition does."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.support.interval_anatomy import check_intervals

from nearcast.index import BoxIndex, IntervalSkipList
from nearcast.index.intervals.intervals import Intervals, IntervalTable
from nearcast.index.intervals.runs import build_run
from nearcast.model import KeyInUseError, KeyMissingError, NearcastError, OutOfRangeError

EXTENT = (0.0, 40.0)
values = st.integers(0, 40).map(float) | st.floats(0, 40)
weights = st.sampled_from([0.0, 1.0, 2.5, -1.0])
ranks: Any = st.sampled_from(
    [
        "narrowest",
        "centre",
        "weight",
        {"narrowest": 0.7, "weight": 0.3},
        {"narrowest": 0.5, "centre": 0.5},
        {"narrowest": 0.2, "centre": 3.0, "weight": 1.0},
    ]
)
Interval = tuple[float, float, float, int]  # low, high, weight, age


def scores(one: Interval, x: float, rank: Any, dimensions: int) -> float:
    """Return the score by its definition: the docs of `BoxIndex`."""
    low, high, weight, _ = one
    share = min(max((high - low) / (EXTENT[1] - EXTENT[0]), 2.0**-20), 1.0)
    narrow = math.floor(math.log2(share) * 2**24 + 0.5) / 2**24
    below, beyond = x * 0.5 - low * 0.5, high * 0.5 - x * 0.5
    offset = abs(below - beyond) / (below + beyond) if below + beyond > 0 else 0.0
    parts = {
        "narrowest": narrow,
        "centre": math.sqrt(offset * offset / dimensions),
        "weight": -weight,
    }
    shares = {rank: 1.0} if isinstance(rank, str) else rank
    total = 0.0
    for name, part in parts.items():
        if shares.get(name):
            total += shares[name] * part
    return total


class ListAgreesWithTheDefinition(RuleBasedStateMachine):
    limit = 3
    dimensions = 3

    def __init__(self) -> None:
        super().__init__()
        self.index = IntervalSkipList(EXTENT, dimensions=self.dimensions, seed=5, _limit=self.limit)
        self.known: dict[int, Interval] = {}
        self.age = 0

    @rule(ends=st.lists(st.tuples(values, values), min_size=1, max_size=25), weight=weights)
    def add(self, ends: list[tuple[float, float]], weight: float) -> None:
        for one, other in ends:
            low, high = min(one, other), max(one, other)
            key = next(key for key in range(10_000) if key not in self.known)
            self.index.add(key, low, high, weight=weight, age=self.age)
            self.known[key] = (low, high, weight, self.age)
            self.age += 1

    @precondition(lambda self: self.known)
    @rule(data=st.data(), count=st.integers(1, 12))
    def remove(self, data: st.DataObject, count: int) -> None:
        for _ in range(min(count, len(self.known))):
            key = data.draw(st.sampled_from(sorted(self.known)))
            self.index.remove(key)
            del self.known[key]

    @rule(x=values, to=values)
    def stab(self, x: float, to: float) -> None:
        low, high = min(x, to), max(x, to)
        wanted = [key for key, (a, b, *_) in self.known.items() if a <= x <= b]
        assert sorted(self.index.stab(x).tolist()) == sorted(wanted)
        wanted = [key for key, (a, b, *_) in self.known.items() if a <= high and b >= low]
        assert sorted(self.index.meeting(low, high).tolist()) == sorted(wanted)
        assert sorted(self.index.meeting(-math.inf, math.inf).tolist()) == sorted(self.known)
        wanted = [key for key, (_, b, *_) in self.known.items() if b >= low]
        assert sorted(self.index.meeting(low, math.inf).tolist()) == sorted(wanted)
        offsets, keys = self.index.stab_many([x, to])
        for at, value in enumerate([x, to]):
            found = keys[offsets[at] : offsets[at + 1]].tolist()
            assert sorted(found) == sorted(self.index.stab(value).tolist())

    @rule(x=values, k=st.integers(1, 9), rank=ranks)
    def top(self, x: float, k: int, rank: Any) -> None:
        best = sorted(
            (scores(one, x, rank, self.dimensions), one[3], key)
            for key, one in self.known.items()
            if one[0] <= x <= one[1]
        )
        assert self.index.top(x, k, rank) == best[:k]

    @invariant()
    def structure_holds(self) -> None:
        check_intervals(self.index)
        for key, (low, high, *_) in list(self.known.items())[:3]:
            assert self.index.interval(key) == (low, high)


class LongListAgreesWithTheDefinition(ListAgreesWithTheDefinition):
    limit = 128
    dimensions = 1


TestSmallList = ListAgreesWithTheDefinition.TestCase
TestLongList = LongListAgreesWithTheDefinition.TestCase


@pytest.mark.parametrize("spread", [0.001, 0.1, 1.0])
def test_large_lists_rank_as_a_box_index_does(spread: float) -> None:
    """Runs of several levels, and bounds that exclude most of them."""
    random = np.random.default_rng(3)
    count = 6000
    lows = random.random(count) * 40
    highs = np.minimum(lows + random.random(count) * 40 * spread, 40.0)
    highs[::50] = lows[::50]
    loads = random.choice([1.0, 2.0, 3.5], count)
    index = IntervalSkipList(EXTENT, seed=1)
    for key in range(count):
        index.add(key, lows[key], highs[key], weight=loads[key], age=key)
    for key in range(0, count, 7):
        index.remove(key)
    kept = np.array([key for key in range(count) if key % 7])
    boxes = BoxIndex.from_arrays(
        kept, lows[kept, None], highs[kept, None], weights=loads[kept], extent=([0.0], [40.0])
    )
    bulk = IntervalSkipList.from_arrays(
        kept, lows[kept], highs[kept], weights=loads[kept], ages=kept, extent=EXTENT
    )
    for x in (*(random.random(12) * 40).tolist(), float(lows[8]), float(highs[9])):
        assert sorted(index.stab(x).tolist()) == sorted(boxes.match((x,)).tolist())
        for rank in ("narrowest", "centre", "weight", {"narrowest": 0.7, "weight": 0.3}):
            for k in (1, 10, 300):
                found = index.top(x, k, rank)
                assert [key for _, _, key in found] == boxes.top((x,), k, rank).tolist()
                assert bulk.top(x, k, rank) == found
    check_intervals(index)
    assert len(index._runs) <= 7


def test_a_run_of_which_half_was_removed_is_rebuilt() -> None:
    index = IntervalSkipList(EXTENT, _limit=16)
    for key in range(320):
        index.add(key, key % 40, 40, age=key)
    before = index.nbytes
    for key in range(300):
        index.remove(key)
    check_intervals(index)
    assert index.nbytes < before - 5000
    assert len(index) == 20


@pytest.mark.parametrize("spared", range(3))
def test_when_memory_runs_out_the_list_is_what_it_was(
    monkeypatch: pytest.MonkeyPatch, spared: int
) -> None:
    home = "nearcast.index.intervals.interval_skip_list.build_run"
    really = build_run
    left = [spared]

    def scarce(content: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise MemoryError
        return really(content)

    index = IntervalSkipList(EXTENT, _limit=4)
    monkeypatch.setattr(home, scarce)
    room = 4 * (spared + 1)
    for key in range(room):
        index.add(key, key % 30, 40, age=key)
    with pytest.raises(MemoryError):
        index.add(room, 1, 2, age=room)
    check_intervals(index)
    assert len(index) == room
    monkeypatch.setattr(home, really)
    index.add(room, 1, 2, age=room)
    check_intervals(index)


BAD: list[tuple[Any, type[NearcastError], str]] = [
    (lambda i: i.add(1, 2, 3), KeyInUseError, "key 1, which is there already"),
    (lambda i: i.add(-1, 2, 3), KeyMissingError, "key -1"),
    (lambda i: i.add(2, 3, 2), OutOfRangeError, "low <= high"),
    (lambda i: i.add(2, math.nan, 2), OutOfRangeError, "two finite ends"),
    (lambda i: i.add(2, 0, math.inf), OutOfRangeError, "two finite ends"),
    (lambda i: i.add(2, 0, 1, weight=math.nan), OutOfRangeError, "weight: found nan"),
    (lambda i: i.remove(2), KeyMissingError, "key 2, which is not there"),
    (lambda i: i.remove(-5), KeyMissingError, "key -5, which is not there"),
    (lambda i: i.stab(math.nan), OutOfRangeError, "expected a finite number"),
    (lambda i: i.interval(7), KeyMissingError, "key 7"),
]


# The filter index checks keys and values before the table gets them.
_CHECKED_BEFORE = ("key -1", "expected a finite number")


@pytest.mark.parametrize(
    ("make", "call", "kind", "told"),
    [
        *((lambda: IntervalSkipList(EXTENT), *bad) for bad in BAD),
        *((IntervalTable, *bad) for bad in BAD if bad[2] not in _CHECKED_BEFORE),
    ],
)
def test_a_mistake_is_answered_and_changes_nothing(
    make: Any, call: Any, kind: type[NearcastError], told: str
) -> None:
    index = make()
    index.add(1, 0, 10, age=0)
    with pytest.raises(kind, match=re.escape(told)):
        call(index)
    assert index.stab(5).tolist() == [1]
    assert len(index) == 1


@pytest.mark.parametrize("extent", [(1.0, 1.0), (0.0, math.inf), (2.0, 1.0), (math.nan, 1.0)])
def test_a_bad_extent_is_refused(extent: tuple[float, float]) -> None:
    with pytest.raises(OutOfRangeError, match="extent"):
        IntervalSkipList(extent)


def test_columns_with_mistakes_are_refused() -> None:
    with pytest.raises(OutOfRangeError, match="row 1"):
        IntervalSkipList.from_arrays([0, 1], [0.0, 5.0], [1.0, 4.0], extent=EXTENT)
    with pytest.raises(KeyInUseError):
        IntervalSkipList.from_arrays([0, 0], [0.0, 5.0], [1.0, 6.0], extent=EXTENT)


@given(
    st.lists(st.tuples(values, values, st.booleans()), max_size=40),
    st.lists(values, min_size=1, max_size=5),
)
def test_the_table_answers_as_the_list_that_it_becomes(
    ends: list[tuple[float, float, bool]], xs: list[float]
) -> None:
    """Before and after the kernels are compiled (decision 0039)."""
    both = Intervals(EXTENT, 2)
    for key, (one, other, stays) in enumerate(ends):
        both.add(key, min(one, other), max(one, other), weight=float(key % 3), age=key)
        if not stays:
            both.remove(key)
    before = [sorted(both.stab(x).tolist()) for x in xs]
    ranges = [sorted(both.meeting(min(x, 9.0), max(x, 9.0)).tolist()) for x in xs]
    known = {key: both.interval(key) for key in range(len(ends)) if key in both}
    assert sorted(both.meeting(-math.inf, math.inf).tolist()) == sorted(known)
    offsets, _ = both.stab_many(xs)
    both.become_listed()
    check_intervals(both._used)  # type: ignore[arg-type]
    assert before == [sorted(both.stab(x).tolist()) for x in xs]
    assert ranges == [sorted(both.meeting(min(x, 9.0), max(x, 9.0)).tolist()) for x in xs]
    assert known == {key: both.interval(key) for key in range(len(ends)) if key in both}
    assert offsets.tolist() == both.stab_many(xs)[0].tolist()
    assert all(len(both.top(x, 99)) == len(found) for x, found in zip(xs, before, strict=True))
