"""Intervals move from the list into runs and from run to run, and nobody can tell from outside."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.interval_anatomy import check_intervals, edges_of

from nearcast.index import BoxIndex, IntervalSkipList
from nearcast.index.intervals import store as store_module

EXTENT = (10.0, 90.0)
BLENDS: list[Any] = [
    "narrowest",
    "centre",
    "weight",
    {"narrowest": 8.0, "centre": 0.5, "weight": 0.25},
]


class Crowd:
    """Oracle: columns of all intervals, the removed ones crossed out; row order is age."""

    def __init__(self, rng: np.random.Generator, count: int) -> None:
        self.lows = rng.integers(0, 100, count).astype(float)
        self.highs = self.lows + rng.choice([0, 1, 2, 4, 32], count)
        self.weights = rng.integers(0, 4, count).astype(float)
        self.lows[rng.random(count) < 0.1] = -math.inf
        self.highs[rng.random(count) < 0.1] = math.inf
        self.present = np.zeros(count, dtype=bool)

    def matches(self, x: float) -> Any:
        return np.flatnonzero(self.present & (self.lows <= x) & (x <= self.highs))

    def top(self, x: float, k: int, rank: Any) -> list[int]:
        shares = {rank: 1.0} if isinstance(rank, str) else rank
        found = self.matches(x)
        low, high = self.lows[found], self.highs[found]
        shown = np.where(np.isinf(high), EXTENT[1], high) - np.where(np.isinf(low), EXTENT[0], low)
        half = np.where(high == low, math.inf, (high - low) / 2)  # infinite without a centre
        middle = np.where(np.isinf(low), 0.0, low) + np.where(np.isinf(half), 0.0, half)
        score = shares.get("narrowest", 0.0) / (EXTENT[1] - EXTENT[0]) * np.maximum(shown, 0.0)
        score = score + shares.get("centre", 0.0) * (abs(x - middle) / half)
        score = score - shares.get("weight", 0.0) * self.weights[found]
        best: list[int] = found[np.argsort(score, kind="stable")][:k].tolist()
        return best


def add(index: IntervalSkipList, crowd: Crowd, key: int) -> None:
    weight = crowd.weights[key]
    index.add(key, crowd.lows[key], crowd.highs[key], weight=weight)
    crowd.present[key] = True


@given(seed=st.integers(0, 2**32), limit=st.sampled_from([1, 7, 60, 400]), start=st.booleans())
def test_a_long_life_of_changes_leaves_every_answer_exact(
    seed: int, limit: int, start: bool
) -> None:
    """A thousand and more intervals, so that runs have trees of several levels."""
    rng = np.random.default_rng(seed)
    crowd = Crowd(rng, 1800)
    first = 1200 if start else 0
    crowd.present[:first] = True
    index = IntervalSkipList.from_arrays(
        np.arange(first), crowd.lows[:first], crowd.highs[:first],
        weights=crowd.weights[:first], extent=EXTENT, _limit=limit,
    )  # fmt: skip
    for key in range(first, 1800):
        add(index, crowd, key)
        while rng.random() < 0.55:
            gone = int(rng.integers(0, key + 1))
            if crowd.present[gone]:
                index.remove(gone)
                crowd.present[gone] = False

    check_intervals(index)
    assert len(index) == crowd.present.sum()
    for x in (5.0, 20.0, *rng.integers(0, 130, 6).tolist(), 50.5):
        assert sorted(index.stab(x).tolist()) == crowd.matches(x).tolist()
        for rank in BLENDS:
            for k in (1, 10, 300):
                assert index.top(x, k, rank).tolist() == crowd.top(x, k, rank)


def test_there_are_few_runs_however_many_came_one_by_one() -> None:
    index = IntervalSkipList(_limit=4)
    for key in range(5000):
        index.add(key, key, key + 3)
    assert len(index._store.runs) <= 7
    assert sorted(index.stab(4000.5).tolist()) == [3998, 3999, 4000]
    for key in range(4990):
        index.remove(key)
    assert sum(len(run) for run in index._store.runs) < 2000  # words: the removed are gone
    check_intervals(index)


def test_a_rebuilt_list_has_one_run_and_answers_alike() -> None:
    index = IntervalSkipList(_limit=8)
    for key in range(100):
        index.add(key, key % 10, key % 10 + 5)
    before = index.top(7, 100).tolist()
    index.rebuild()
    assert len(index._store.runs) == 1
    assert index.top(7, 100).tolist() == before
    check_intervals(index)


def test_the_papers_walk_sees_intervals_in_runs_too_and_follows_changes() -> None:
    index = IntervalSkipList(seed=1, _limit=4)
    for key in range(40):
        index.add(key, 0, 10 + key)
    assert set(index.top(5, 40, method="paper").tolist()) == set(range(40))
    assert {key for edge in edges_of(index) for key in edge.markers} == set(range(40))
    index.remove(3)
    index.add(77, 5, 6)
    found = index.top(5, 50, method="paper").tolist()
    assert set(found) == set(range(40)) - {3} | {77}


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=60),
    st.integers(0, 20),
    st.sampled_from([4, 1024]),
)
def test_centre_is_what_a_box_index_of_one_attribute_calls_so(
    ends: list[tuple[int, int]], x: int, limit: int
) -> None:
    rows = [(min(pair), max(pair)) for pair in ends]
    lows, highs = (np.array(side, dtype=float) for side in zip(*rows, strict=True))
    lows[::7], highs[::5] = -math.inf, math.inf
    keys = np.arange(len(rows))
    index = IntervalSkipList.from_arrays(keys, lows, highs, _limit=limit)
    boxes = BoxIndex.from_arrays(keys, lows[:, None], highs[:, None])
    assert index.top(x, 60, "centre").tolist() == boxes.top((x,), 60, "centre").tolist()


@pytest.mark.parametrize("spared", range(4))
def test_when_memory_runs_out_the_list_is_what_it_was(
    monkeypatch: pytest.MonkeyPatch, spared: int
) -> None:
    index = IntervalSkipList(_limit=16)
    failures = 0
    really = store_module._aligned
    for key in range(300):
        left = [spared]

        def scarce(words: int, left: list[int] = left) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise MemoryError
            return really(words)

        monkeypatch.setattr(store_module, "_aligned", scarce)
        try:
            index.add(key, key, key + 40)
        except MemoryError:
            failures += 1
            monkeypatch.setattr(store_module, "_aligned", really)
            check_intervals(index)
            assert len(index) == key
            assert key not in index
            assert sorted(index.stab(key - 0.5).tolist()) == list(range(max(0, key - 40), key))
            index.add(key, key, key + 40)
    check_intervals(index)
    assert failures or spared > 2
