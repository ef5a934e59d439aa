"""The general policy: near the optimum on rates it was never shown, and never beyond its bounds."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from nearcast.model.errors import OutOfRangeError
from nearcast.retained import (
    Fit,
    GeneralPolicy,
    Rates,
    Weights,
    attainable_gain,
    expected_reward,
    fit,
    shipped_policy,
    spent_on_newcomers,
)
from nearcast.retained.fitting import sample_rates


def closed_form(policy: GeneralPolicy, rates: Rates, d: int, t: int) -> float:
    """Oracle: the price at which waiting to the end costs as much as sending."""
    going_on = policy.discount * math.exp(-rates.leave - rates.publish)
    steps = min(policy.caps.hold_max - d, policy.caps.age_max - t)
    lost = sum(going_on**k * policy.timeliness.value(t + k) for k in range(steps))
    return lost / (1 - going_on**steps)


@given(st.floats(0.02, 3.0), st.floats(0.0, 1.0), st.integers(0, 9), st.integers(1, 19))
def test_critical_prices_are_within_seven_per_cent_of_the_exact_ones(
    publish: float, leave: float, d: int, t: int
) -> None:
    policy, rates = shipped_policy(), Rates(publish, 0.2, leave)

    assert policy.critical_price(rates, d, t) == pytest.approx(
        closed_form(policy, rates, d, t), rel=0.07
    )


@pytest.mark.parametrize("whole_steps", [True, False])
def test_on_rates_not_trained_on_it_reaches_90_per_cent_and_loses_nothing(
    whole_steps: bool,
) -> None:
    policy, random = shipped_policy(), np.random.default_rng(20_26)
    gained = attainable = 0.0
    for _ in range(150):
        rates = sample_rates(random, policy.trained)
        weights = Weights(random.uniform(0.05, 0.95), float(np.exp(random.uniform(-0.7, 3))))
        process = policy.process(rates, weights).varied(whole_steps=whole_steps)
        plain = expected_reward(process, process.plain())
        table = policy.table(rates, weights, whole_steps=whole_steps)
        gain = expected_reward(process, table) - plain
        most, spent = attainable_gain(process), spent_on_newcomers(process)
        gained, attainable = gained + gain, attainable + most
        if most < 0.01 * spent:
            assert gain >= -1e-4 * spent
        elif most > 0.05 * spent:
            assert gain >= 0.9 * most

    assert gained >= 0.99 * attainable


@given(
    st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e9), st.integers(0, 12), st.integers(0, 25)
)
def test_it_never_waits_at_dmax_nor_on_a_quiet_topic_whatever_the_rates(
    p: float, leave: float, price: float, d: int, t: int
) -> None:
    waits = shipped_policy().waits(p, leave, price, d, t)

    assert isinstance(waits, bool)
    if d >= 10 or t >= 20 or t == 0 or price == 0.0:
        assert not waits


def test_an_infinite_price_waits_wherever_it_may() -> None:
    assert shipped_policy().waits(0.0, 0.0, math.inf, 0, 1)


def test_rates_beyond_the_trained_count_as_the_nearest_trained() -> None:
    policy = shipped_policy()

    assert policy.critical_price(Rates(50.0), 0, 1) == policy.critical_price(Rates(3.0), 0, 1)
    assert policy.critical_price(Rates(0.0), 0, 1) == policy.critical_price(Rates(0.02), 0, 1)


def test_its_table_says_what_it_decides_one_by_one() -> None:
    policy, rates, weights = shipped_policy(), Rates(0.1, 0.2, 0.3), Weights(0.7, 5.0)
    table = policy.table(rates, weights)

    for d in range(11):
        for t in range(21):
            assert table[d, t] == policy.waits(0.1, 0.3, weights.price, d, t)
    assert 0 < table.sum() < table.size


def test_caution_only_ever_turns_waiting_into_sending() -> None:
    bold = shipped_policy()
    wary = GeneralPolicy(bold.network, caution=0.5)
    rates, weights = Rates(0.2), Weights(0.7, 5.0)
    bolder, warier = bold.table(rates, weights), wary.table(rates, weights)

    assert (warier <= bolder).all()
    assert warier.sum() < bolder.sum()


def test_fitting_follows_from_the_seed() -> None:
    small = Fit(topics=6, states_per_topic=20, hidden=4, rounds=60, batch=32)
    one, same, other = (fit(seed=seed, how=small) for seed in (1, 1, 2))

    assert np.array_equal(one.network, same.network)
    assert not np.array_equal(one.network, other.network)
    assert one.hidden == 4


def test_a_short_fit_already_tells_quick_from_slow_topics() -> None:
    small = Fit(topics=40, states_per_topic=40, hidden=8, rounds=1500, batch=256)
    policy = fit(seed=5, how=small)

    for rates in (Rates(0.05), Rates(0.5), Rates(2.0)):
        assert policy.critical_price(rates, 0, 3) == pytest.approx(
            closed_form(policy, rates, 0, 3), rel=0.25
        )


@pytest.mark.parametrize("network", [np.zeros(3), np.array([0.0] * 6 + [math.nan])])
def test_a_network_that_is_none_is_refused(network: NDArray[np.float64]) -> None:
    with pytest.raises(OutOfRangeError):
        GeneralPolicy(network)
