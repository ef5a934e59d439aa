"""The Gymnasium environment: it is one, and it is the same process that the solver solves."""

import math
import statistics

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from nearcast.retained import DecisionProcess, Publishing, Rates, Weights, solve
from nearcast.retained.environment import ENVIRONMENT_ID, RetainedDeliveryEnvironment


def test_gymnasium_finds_nothing_wrong_with_it() -> None:
    check_env(gymnasium.make(ENVIRONMENT_ID).unwrapped)


def test_it_can_be_made_by_name_with_other_settings() -> None:
    process = DecisionProcess(Rates(0.0), Weights(0.2))
    made = gymnasium.make(f"nearcast.retained.environment:{ENVIRONMENT_ID}", process=process)
    seen, _ = made.reset(seed=1)

    assert seen[0] == 0
    assert seen[2] == 20  # nothing is ever published: quiet


def test_the_same_seed_plays_the_same_episode() -> None:
    runs = []
    for _ in range(2):
        environment = RetainedDeliveryEnvironment(DecisionProcess(Rates(0.1)))
        seen, _ = environment.reset(seed=11)
        runs.append([tuple(seen)] + [tuple(environment.step(1)[0]) for _ in range(3)])

    assert runs[0] == runs[1]


def test_waiting_counts_up_and_sending_is_forced_at_dmax() -> None:
    process = DecisionProcess(Rates(0.0, 0.0, 0.0), Weights(0.5, 4.0))
    environment = RetainedDeliveryEnvironment(process)
    environment.reset(seed=1)
    environment._age = 2  # a message two steps old
    forced = []
    for step in range(1, 12):
        seen, reward, over, _, info = environment.step(1)
        forced.append(info["forced"])
        assert not over
        if step <= 10:
            assert tuple(seen) == (0, step, 2 + step, 1, 1)
            assert reward == 0.0  # it knows nothing and costs nothing
    assert forced == [False] * 10 + [True]
    assert seen[4] == 0
    assert reward == pytest.approx(0.5 * process.timeliness.value(12) - 0.5 * 4.0)


def returns(process: DecisionProcess, first: int, episodes: int) -> list[float]:
    """Play: `first` in the first step, then the best policy; discounted sums of the reward."""
    environment = RetainedDeliveryEnvironment(process)
    actions = solve(process).actions
    sums = []
    for episode in range(episodes):
        environment.reset(seed=episode)
        environment._age = 2
        total, weight, over, action = 0.0, 1.0, False, first
        while not over:
            (_, d, t, _, _), reward, over, _, _ = environment.step(action)
            total += weight * reward
            weight *= process.discount
            action = int(actions[d, t])
        sums.append(total)
    return sums


def test_played_by_chance_waiting_is_better_by_the_exact_advantage() -> None:
    process = DecisionProcess(Rates(0.5, 0.2, 0.1), Weights(0.5, 5.0))
    pairs = zip(returns(process, 1, 1500), returns(process, 0, 1500), strict=True)
    differences = [wait - send for wait, send in pairs]
    error = statistics.stdev(differences) / math.sqrt(len(differences))

    assert statistics.mean(differences) == pytest.approx(
        float(solve(process).advantage[0, 2]), abs=4 * error
    )
    assert error < 0.15


def test_a_topic_with_a_message_in_every_step_can_still_be_begun() -> None:
    environment = RetainedDeliveryEnvironment(DecisionProcess(publishing=Publishing((1.0,))))
    seen, _ = environment.reset(seed=3)
    after, _, over, _, _ = environment.step(1)

    assert seen[2] == 1
    assert over
    assert np.array_equal(after[[0, 1, 2, 4]], [1, 0, 0, 0])


def test_the_message_that_ends_an_episode_is_counted_one_step_later() -> None:
    process = DecisionProcess(
        Rates(1.0, 0.0, 0.0), Weights(0.5, 4.0), publishing=Publishing((1.0,))
    )
    environment = RetainedDeliveryEnvironment(process)
    environment.reset(seed=1)
    _, reward, over, _, _ = environment.step(0)

    now = 0.5 * process.timeliness.value(1) - 0.5 * 4.0  # the copy
    then = 0.5 * 1.0 - 0.5 * 4.0  # the live message, to its one subscriber
    assert over
    assert reward == pytest.approx(now + 0.95 * then)
