"""What the interval skip list refuses, and that it is unchanged afterwards."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tests.support.interval_anatomy import edges_of

from nearcast.index import IntervalSkipList
from nearcast.model.errors import (
    KeyInUseError,
    KeyMissingError,
    MisuseError,
    OutOfRangeError,
    UnknownNameError,
)

INF = math.inf


def keys_of(found: Any) -> list[int]:
    return [int(key) for key in found]


@pytest.mark.parametrize(
    ("low", "high", "opens"),
    [
        (math.nan, 1, ()), (0, math.nan, ()), (2, 1, ()), (INF, INF, ()), (-INF, -INF, ()),
        (1, 1, (True, False)), (1, 1, (False, True)), (INF, -INF, ()),
    ],
)  # fmt: skip
def test_a_bad_interval_is_refused_and_changes_nothing(
    low: float, high: float, opens: tuple[bool, ...]
) -> None:
    index = IntervalSkipList(seed=0)
    index.add(1, 0, 1)
    before = edges_of(index)
    with pytest.raises(OutOfRangeError):
        index.add(2, low, high, *opens)
    low_open, high_open = opens or (False, False)
    with pytest.raises(OutOfRangeError, match="row 1"):
        IntervalSkipList.from_arrays(
            [1, 2], [0, low], [1, high], low_open=[False, low_open], high_open=[False, high_open]
        )
    assert edges_of(index) == before
    assert 2 not in index


@pytest.mark.parametrize("weight", [math.nan, INF, -INF])
def test_a_weight_that_is_not_finite_is_refused(weight: float) -> None:
    index = IntervalSkipList(seed=0)
    with pytest.raises(OutOfRangeError):
        index.add(2, 0, 1, weight=weight)
    assert len(index) == 0


@pytest.mark.parametrize("x", [math.nan, INF, -INF])
def test_a_value_that_is_not_finite_is_refused(x: float) -> None:
    index = IntervalSkipList(seed=0)
    index.add(1, -INF, INF)
    for ask in (index.stab, lambda x: index.top(x, 1), lambda x: index.top(x, 1, "weight"),
                lambda x: index.top(x, 1, method="paper"), lambda x: index.stab_many([0, x]),
                lambda x: index.top_many([0, x], 1)):  # fmt: skip
        with pytest.raises(OutOfRangeError):
            ask(x)


def test_keys_that_are_there_or_missing_are_told() -> None:
    index = IntervalSkipList(seed=0)
    index.add(1, 0, 1)
    with pytest.raises(KeyInUseError, match="key 1"):
        index.add(1, 5, 6)
    with pytest.raises(KeyMissingError, match="key 2"):
        index.remove(2)
    with pytest.raises(KeyMissingError):
        index.interval(2)
    with pytest.raises(KeyInUseError, match="row 2"):
        IntervalSkipList.from_arrays([1, 2, 1], [0, 0, 0], [1, 1, 1])
    assert keys_of(index.stab(0.5)) == [1]


@pytest.mark.parametrize("key", [2**63, -(2**63) - 1, 1.5, "a"])
def test_keys_that_are_no_numbers_of_64_bits_are_refused(key: Any) -> None:
    index = IntervalSkipList(seed=0)
    for misuse in (lambda: index.add(key, 0, 1), lambda: index.remove(key)):
        with pytest.raises(MisuseError):
            misuse()
    with pytest.raises(MisuseError):
        IntervalSkipList.from_arrays([key], [0], [1])
    assert len(index) == 0
    assert key not in index


def test_arrays_of_different_lengths_are_refused() -> None:
    with pytest.raises(MisuseError):
        IntervalSkipList.from_arrays([1, 2], [0, 0, 0], [1, 1])
    with pytest.raises(MisuseError):
        IntervalSkipList.from_arrays([[1, 2]], [0, 0], [1, 1])
    with pytest.raises(MisuseError):
        IntervalSkipList(seed=0).stab_many([[1.0]])


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"rank": "best"}, UnknownNameError),
        ({"rank": {"best": 1}}, UnknownNameError),
        ({"rank": {}}, OutOfRangeError),
        ({"rank": {"weight": 0}}, OutOfRangeError),
        ({"rank": {"weight": -1}}, OutOfRangeError),
        ({"rank": {"weight": math.nan}}, OutOfRangeError),
        ({"method": "guess"}, UnknownNameError),
        ({"rank": "weight", "method": "paper"}, MisuseError),
        ({"k": -1}, OutOfRangeError),
        ({"k": 1.5}, MisuseError),
    ],
)
def test_unknown_ranks_methods_and_counts_are_told(
    arguments: dict[str, Any], error: type[Exception]
) -> None:
    index = IntervalSkipList(seed=0)
    index.add(1, 0, 1)
    with pytest.raises(error):
        index.top(0.5, **{"k": 1, **arguments})


@pytest.mark.parametrize("extent", [(0, 0), (1, 0), (0, INF), (math.nan, 1)])
def test_an_extent_that_is_none_is_refused(extent: tuple[float, float]) -> None:
    with pytest.raises(OutOfRangeError):
        IntervalSkipList(extent=extent)
