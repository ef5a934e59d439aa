"""`BoxIndex` beside a linear scan: whatever the history, the answers are the same."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)
from tests.support.invariants import check_boxes

from nearcast.index import BoxIndex
from nearcast.model import MISSING

INF = math.inf
Box = tuple[tuple[float, ...], tuple[float, ...]]


class Scan:
    """Oracle: all boxes in a dictionary, in order of age; every answer by looking at each."""

    def __init__(self, dims: int, extent: Box | None) -> None:
        self.dims = dims
        self.extent = extent
        self.boxes: dict[int, Box] = {}
        self.weights: dict[int, float] = {}

    def match_box(self, lows: tuple[float, ...], highs: tuple[float, ...]) -> list[int]:
        return [
            key
            for key, (low, high) in self.boxes.items()
            if all(low[i] <= highs[i] and lows[i] <= high[i] for i in range(self.dims))
        ]

    def match(self, point: tuple[float, ...]) -> list[int]:
        return self.match_box(point, point)

    def narrowness(self, key: int) -> float:
        total = 0.0
        for i in range(self.dims):
            low, high = self.boxes[key][0][i], self.boxes[key][1][i]
            if self.extent is None:
                width = high - low
                total += 1024.0 if width == INF else math.log2(width) if width else -1074.0
            else:
                least, most = self.extent[0][i], self.extent[1][i]
                share = (min(high, most) - max(low, least)) / (most - least)
                total += max(math.log2(share), -20.0) if share > 0 else -20.0
        return math.floor(total * 2**24 + 0.5) / 2**24

    def centre(self, key: int, point: tuple[float, ...]) -> float:
        squares = 0.0
        for low, high, x in zip(*self.boxes[key], point, strict=True):
            if 0 < high - low < INF:
                squares += (abs((x - low) - (high - x)) / (high - low)) ** 2
        return math.sqrt(squares / self.dims)

    def score(self, key: int, point: tuple[float, ...], rank: dict[str, float]) -> float:
        score = 0.0
        if rank.get("narrowest"):
            score += rank["narrowest"] * self.narrowness(key)
        if rank.get("centre"):
            score += rank["centre"] * self.centre(key, point)
        if rank.get("weight"):
            score -= rank["weight"] * self.weights[key]
        return score

    def top(self, point: tuple[float, ...], k: int, rank: Any) -> list[int]:
        shares = {rank: 1.0} if isinstance(rank, str) else rank
        # The dictionary is in order of age and sorting is stable: ties go to the older.
        return sorted(self.match(point), key=lambda key: self.score(key, point, shares))[:k]


RANKS = st.sampled_from(
    [
        "narrowest",
        "centre",
        "weight",
        {"narrowest": 1.0, "weight": 2.0},
        {"narrowest": 0.5, "centre": 4.0, "weight": 1.0},
    ]
)
KEYS = st.sampled_from([*range(24), -1, -(2**63), 2**63 - 1])


def sides(domain: int) -> st.SearchStrategy[tuple[float, float]]:
    """Intervals in a small domain: many ties, points, shared borders and open sides."""
    number = st.integers(0, domain).map(float)
    closed = st.tuples(number, number).map(lambda pair: (min(pair), max(pair)))
    return st.one_of(
        closed,
        closed,
        number.map(lambda x: (x, x)),
        number.map(lambda x: (x, INF)),
        number.map(lambda x: (-INF, x)),
        st.just((-INF, INF)),
    )


@st.composite
def a_box(draw: st.DrawFn, dims: int) -> Box:
    pairs = [draw(sides(6)) for _ in range(dims)]
    return tuple(p[0] for p in pairs), tuple(p[1] for p in pairs)


def a_point(dims: int) -> st.SearchStrategy[tuple[float, ...]]:
    return st.tuples(*[st.integers(0, 12).map(lambda n: n / 2)] * dims)


def machine_for(dims: int) -> type[RuleBasedStateMachine]:
    """Make the state machine for one number of attributes."""

    class IndexAgreesWithScan(RuleBasedStateMachine):
        keys = Bundle("keys")

        @initialize(known=st.booleans())
        def start(self, known: bool) -> None:
            extent = ((0.0,) * dims, (8.0,) * dims) if known else None
            self.index = BoxIndex(dims, extent=extent)
            self.scan = Scan(dims, extent)

        @rule(target=keys, key=KEYS, box=a_box(dims), weight=st.sampled_from([1.0, 1.0, 2.0, -3.5]))
        def add(self, key: int, box: Box, weight: float) -> Any:
            if key in self.scan.boxes:
                with pytest.raises(ValueError, match="there already"):
                    self.index.add(key, *box)
                return multiple()
            self.index.add(key, *box, weight=weight)
            self.scan.boxes[key], self.scan.weights[key] = box, weight
            return key

        @rule(
            target=keys, first=st.integers(100, 10**6), count=st.integers(1, 120), box=a_box(dims)
        )
        def add_many_alike(self, first: int, count: int, box: Box) -> Any:
            fresh = [k for k in range(first, first + count) if k not in self.scan.boxes]
            for n, key in enumerate(fresh):
                shifted = tuple(low + n % 5 for low in box[0]), tuple(h + n % 5 for h in box[1])
                self.index.add(key, *shifted)
                self.scan.boxes[key], self.scan.weights[key] = shifted, 1.0
            return multiple(*fresh)

        @rule(key=keys, box=a_box(dims))
        def move(self, key: int, box: Box) -> None:
            self.index.move(key, *box)
            self.scan.boxes[key] = box

        @rule(key=consumes(keys))
        def remove(self, key: int) -> None:
            self.index.remove(key)
            del self.scan.boxes[key], self.scan.weights[key]
            assert key not in self.index

        @rule(share=st.integers(2, 4))
        def move_a_share(self, share: int) -> None:
            for key in list(self.scan.boxes)[::share]:
                low, high = self.scan.boxes[key]
                shifted = tuple(x + 1 for x in low), tuple(x + 1 for x in high)
                self.index.move(key, *shifted)
                self.scan.boxes[key] = shifted

        @rule()
        def rebuild(self) -> None:
            self.index.rebuild()

        @rule(point=a_point(dims))
        def match(self, point: tuple[float, ...]) -> None:
            assert sorted(self.index.match(point).tolist()) == sorted(self.scan.match(point))

        @rule(box=a_box(dims))
        def match_box(self, box: Box) -> None:
            assert sorted(self.index.match_box(*box).tolist()) == sorted(self.scan.match_box(*box))

        @rule(points=st.lists(a_point(dims), max_size=8))
        def match_many(self, points: list[tuple[float, ...]]) -> None:
            offsets, keys = self.index.match_many(points)
            found = [sorted(part.tolist()) for part in np.split(keys, offsets[1:-1])]
            assert found[: len(points)] == [sorted(self.scan.match(p)) for p in points]

        @rule(point=a_point(dims), missing=st.sets(st.integers(0, dims - 1)))
        def match_with_values_missing(self, point: tuple[float, ...], missing: set[int]) -> None:
            partial = tuple(MISSING if i in missing else x for i, x in enumerate(point))
            assert sorted(self.index.match(partial).tolist()) == sorted(self.scan.match(partial))
            _, keys = self.index.match_many([partial])
            assert sorted(keys.tolist()) == sorted(self.scan.match(partial))

        @rule(point=a_point(dims), k=st.integers(1, 40), rank=RANKS)
        def top(self, point: tuple[float, ...], k: int, rank: Any) -> None:
            best = self.scan.top(point, k, rank)
            assert self.index.top(point, k, rank).tolist() == best
            row = self.index.top_many([point], k, rank)[0].tolist()
            assert row == best + [-1] * (k - len(best))

        @invariant()
        def structure_holds(self) -> None:
            if not hasattr(self, "index"):
                return
            check_boxes(self.index)
            assert len(self.index) == len(self.scan.boxes)
            assert all(key in self.index for key in self.scan.boxes)

    return IndexAgreesWithScan


@pytest.mark.parametrize("dims", [1, 2, 4, 8])
def test_whatever_the_history_the_index_answers_as_a_scan_would(dims: int) -> None:
    assert settings.default is not None
    most = settings.default.max_examples
    run_state_machine_as_test(
        machine_for(dims),
        settings=settings(
            max_examples=most if dims == 2 else max(8, most // 2), stateful_step_count=25
        ),
    )


@given(
    dims=st.sampled_from([1, 2, 4, 8]),
    seed=st.integers(0, 10**6),
    count=st.integers(0, 700),
    weighed=st.booleans(),
)
def test_an_index_built_at_once_answers_as_a_scan_would(
    dims: int, seed: int, count: int, weighed: bool
) -> None:
    rng = np.random.default_rng(seed)
    lows = rng.integers(0, 9, (count, dims)).astype(float)
    highs = lows + rng.integers(0, 4, (count, dims))
    lows[rng.random((count, dims)) < 0.3] = -INF
    highs[rng.random((count, dims)) < 0.3] = INF
    weights = rng.integers(0, 3, count).astype(float) if weighed else None
    keys = rng.permutation(count) - 50
    extent = ((0.0,) * dims, (8.0,) * dims) if seed % 2 else None
    index = BoxIndex.from_arrays(
        keys, lows.reshape(count, dims), highs.reshape(count, dims), weights=weights, extent=extent
    )
    scan = Scan(dims, extent)
    for row, key in enumerate(keys.tolist()):
        scan.boxes[key] = tuple(lows[row].tolist()), tuple(highs[row].tolist())
        scan.weights[key] = float(weights[row]) if weights is not None else 1.0

    check_boxes(index)
    points = rng.integers(0, 10, (20, dims)).astype(float)
    offsets, found = index.match_many(points)
    for e, point in enumerate(map(tuple, points.tolist())):
        assert sorted(found[offsets[e] : offsets[e + 1]].tolist()) == sorted(scan.match(point))
    for rank in ("narrowest", "centre", "weight"):
        best = index.top_many(points[:3], 10, rank)
        for row, point in zip(best.tolist(), map(tuple, points[:3].tolist()), strict=True):
            assert [key for key in row if key != -1] == [
                key for key in scan.top(point, 10, rank) if key != -1
            ]
