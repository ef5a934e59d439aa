"""Q-learning: reproducible, close to the optimum, never worse than plain MQTT."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.model.errors import OutOfRangeError
from nearcast.retained import (
    DecisionProcess,
    Learning,
    Rates,
    Weights,
    attainable_gain,
    expected_reward,
    learn,
    share_of_gain,
    solve,
    spent_on_newcomers,
)

SHORT = Learning(steps=30_000)


def test_the_same_seed_learns_the_same_table_and_another_seed_another_one() -> None:
    process = DecisionProcess(Rates(0.2))
    one, same, other = (learn(process, seed=s, learning=SHORT) for s in (7, 7, 8))

    assert np.array_equal(one.quality, same.quality)
    assert np.array_equal(one.actions, same.actions)
    assert not np.array_equal(one.quality, other.quality)


@pytest.mark.parametrize("omega", [0.1, 0.3, 0.5, 0.7, 0.8])
@pytest.mark.parametrize("publish", [0.1, 0.3, 0.6, 1.0])
def test_over_the_papers_ranges_the_learned_table_reaches_95_per_cent(
    omega: float, publish: float
) -> None:
    process = DecisionProcess(Rates(publish), Weights(omega))
    table = learn(process, seed=3).actions

    if attainable_gain(process) > 0.01 * spent_on_newcomers(process):
        assert share_of_gain(process, table) >= 0.95


@given(
    st.builds(Rates, st.floats(0, 3), st.floats(0, 2), st.floats(0, 1)),
    st.builds(Weights, st.floats(0, 1), st.floats(0, 20)),
    st.integers(0, 2**32 - 1),
)
def test_however_short_the_learning_it_never_loses_to_plain_mqtt(
    rates: Rates, weights: Weights, seed: int
) -> None:
    process = DecisionProcess(rates, weights)
    learned = learn(process, seed=seed, learning=Learning(steps=15_000, margin=0.0))

    assert expected_reward(process, learned.actions) >= expected_reward(process, process.plain())


def test_learned_values_come_near_the_exact_ones() -> None:
    process = DecisionProcess(Rates(0.3), Weights(0.7))
    learned = learn(process, seed=1, learning=Learning(steps=1_000_000))
    free = process.always_wait() == 1
    advantage = learned.quality[..., 1] - learned.quality[..., 0]

    assert np.abs(advantage - solve(process).advantage)[free].max() < 0.12


def test_the_whole_reward_teaches_the_same_but_worse() -> None:
    process = DecisionProcess(Rates(0.3), Weights(0.7))
    free = process.always_wait() == 1
    exact = solve(process).advantage[free]
    errors = []
    for raw in (False, True):
        learned = learn(process, seed=1, learning=Learning(steps=500_000, raw_reward=raw))
        advantage = (learned.quality[..., 1] - learned.quality[..., 0])[free]
        errors.append(np.abs(advantage - exact).mean())

    assert errors[0] < errors[1] < 1.0


def test_a_table_that_would_lose_is_dropped_for_plain_mqtt() -> None:
    process = DecisionProcess(Rates(0.1), Weights(0.82))  # nearly nothing to gain, much to lose
    noisy = Learning(steps=15_000, learning_rate=0.9, margin=0.0)
    tries = [learn(process, seed=seed, learning=noisy) for seed in range(20)]

    assert any(learned.kept_plain for learned in tries)
    assert not any(learned.actions.any() for learned in tries if learned.kept_plain)


def test_states_hardly_seen_keep_to_plain_mqtt() -> None:
    learned = learn(DecisionProcess(), seed=1, learning=Learning(steps=50))

    assert not learned.actions.any()


@pytest.mark.parametrize(
    "build",
    [
        lambda: Learning(learning_rate=0.0),
        lambda: Learning(steps=0),
        lambda: Learning(explore=1.5),
        lambda: learn(DecisionProcess(), seed=-1),
    ],
)
def test_bad_settings_are_refused(build: Callable[[], object]) -> None:
    with pytest.raises(OutOfRangeError):
        build()
