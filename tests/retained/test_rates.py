"""Estimated rates against a sum over the whole history."""

import math
import sys
from array import array
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.model.errors import OutOfRangeError
from nearcast.retained import RateEstimators

MEMORY_S = 50.0
HISTORY = st.lists(
    st.tuples(st.sampled_from(["publish", "subscribe", "leave"]), st.floats(0.0, 30.0)), max_size=25
)


@given(HISTORY, st.floats(0.01, 100.0))
def test_rates_are_decayed_counts_over_decayed_time(
    history: list[tuple[str, float]], silence_s: float
) -> None:
    estimators = RateEstimators(MEMORY_S)
    slot = estimators.allot(100.0)
    now, members = 100.0, 0
    weights: dict[str, list[tuple[float, float]]] = {"publish": [], "subscribe": [], "leave": []}
    for kind, gap_s in history:
        now += gap_s
        if kind == "leave" and members == 0:
            estimators.on_leave(slot, now)  # nobody is there: ignored
            continue
        weights[kind].append((now, 1.0 / members if kind == "leave" else 1.0))
        members += {"subscribe": 1, "leave": -1}.get(kind, 0)
        getattr(estimators, f"on_{kind}")(slot, now)
    now += silence_s
    observed_s = MEMORY_S * (1.0 - math.exp(-(now - 100.0) / MEMORY_S))
    expected = [
        sum(weight * math.exp(-(now - at) / MEMORY_S) for at, weight in events) / observed_s
        for events in weights.values()
    ]

    found = estimators.estimate(slot, now)
    assert list(found[:3]) == pytest.approx(expected, rel=1e-4, abs=1e-9)
    assert found.publishes_seen == pytest.approx(expected[0] * observed_s, rel=1e-4, abs=1e-9)
    publish, leave, seen, last, spread = estimators.what_matters(slot, now)
    assert spread == estimators.spread(slot)
    assert (publish, leave, seen) == pytest.approx((found[0], found[2], found[3]))
    assert last == max((at for at, _ in weights["publish"]), default=-math.inf)


def test_the_spread_tells_steady_intervals_from_bursts() -> None:
    random = Random(1)
    ways = {
        "steady": lambda _: 1.0,
        "poisson": lambda _: random.expovariate(1.0),
        "bursts": lambda number: 0.1 if number % 10 else 9.1,
    }
    spreads = {}
    for name, gap in ways.items():
        estimators = RateEstimators(600.0)
        slot, now = estimators.allot(0.0), 0.0
        for number in range(3000):
            now += gap(number)
            estimators.on_publish(slot, now)
        spreads[name] = estimators.spread(slot)

    assert spreads["steady"] == pytest.approx(0.0, abs=0.02)
    assert spreads["poisson"] == pytest.approx(1.0, abs=0.4)
    assert spreads["bursts"] == pytest.approx(8.29 - 1.0, abs=0.4)  # mean 1, mean square 8.29


def test_one_outage_is_no_burst() -> None:
    estimators = RateEstimators(600.0)
    slot, now = estimators.allot(0.0), 0.0
    for number in range(1000):
        now += 300.0 if number == 990 else 1.0
        estimators.on_publish(slot, now)

    assert estimators.spread(slot) < 1.0  # as steady as Poisson at most


def test_nothing_seen_means_rates_of_zero_even_at_the_first_instant() -> None:
    estimators = RateEstimators(MEMORY_S)

    assert estimators.estimate(estimators.allot(5.0), 5.0) == (0.0, 0.0, 0.0, 0.0)


def test_a_clock_that_stands_still_is_no_reason_to_divide_by_zero() -> None:
    estimators = RateEstimators(MEMORY_S)
    slot = estimators.allot(5.0)
    estimators.on_publish(slot, 5.0)

    assert estimators.estimate(slot, 5.0) == (0.0, 0.0, 0.0, 1.0)


def test_after_a_jump_of_years_nothing_is_left_to_trust() -> None:
    estimators = RateEstimators(MEMORY_S)
    slot = estimators.allot(0.0)
    for second in range(100):
        estimators.on_publish(slot, float(second))

    assert estimators.estimate(slot, 1e9).publishes_seen == 0.0


def test_a_slot_given_back_starts_afresh_for_the_next_topic() -> None:
    estimators = RateEstimators(MEMORY_S)
    slot = estimators.allot(0.0)
    estimators.on_subscribe(slot, 1.0)
    estimators.on_publish(slot, 1.0)
    estimators.release(slot)

    assert len(estimators) == 0
    assert estimators.allot(2.0) == slot
    assert estimators.published_at(slot) == -math.inf
    estimators.on_leave(slot, 2.5)
    assert estimators.estimate(slot, 3.0) == (0.0, 0.0, 0.0, 0.0)


def test_a_hundred_thousand_topics_take_under_ten_megabytes() -> None:
    estimators = RateEstimators(MEMORY_S)
    for _ in range(100_000):
        estimators.allot(0.0)

    assert len(estimators) == 100_000
    arrays = [value for value in vars(estimators).values() if isinstance(value, array)]
    assert sum(map(sys.getsizeof, arrays)) < 10_000_000


@pytest.mark.parametrize("memory_s", [0.0, -1.0, math.nan, math.inf])
def test_a_memory_that_is_none_is_refused(memory_s: float) -> None:
    with pytest.raises(OutOfRangeError):
        RateEstimators(memory_s)
