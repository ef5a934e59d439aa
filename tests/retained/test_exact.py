"""The exact solution against the definition: full state, forward in time, policy by policy."""

import itertools
import math
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from nearcast.model.errors import OutOfRangeError
from nearcast.retained import (
    Caps,
    DecisionProcess,
    Publishing,
    Rates,
    Shape,
    Timeliness,
    Weights,
    attainable_gain,
    best_actions,
    best_reward,
    expected_reward,
    mean_reward,
    share_of_gain,
    solve,
)

SMALL = Caps(hold_max=3, age_max=5, subscribers_max=4)


def processes() -> st.SearchStrategy[DecisionProcess]:
    rates = st.builds(Rates, st.floats(0, 3), st.floats(0, 2), st.floats(0, 1))
    weights = st.builds(Weights, st.floats(0.0, 1.0), st.floats(0.0, 20.0))
    shapes = st.builds(Timeliness, st.sampled_from(Shape), st.floats(0.5, 10), st.floats(0, 0.9))
    return st.builds(
        DecisionProcess, rates, weights, st.just(SMALL), shapes, whole_steps=st.booleans()
    )


def part_waited(process: DecisionProcess) -> float:
    """Oracle: how long a step of waiting is, by adding up instants at which a publish ends it."""
    if process.whole_steps:
        return 1.0
    instants = (np.arange(20_000) + 0.5) / 20_000
    return float(np.exp(-process.rates.publish * instants).mean())


def forward_reward(
    process: DecisionProcess, table: NDArray[np.uint8], discount: float, steps: int
) -> float:
    """Oracle: expected numbers of waiting newcomers, step after step, from the definition."""
    caps, w = process.caps, process.weights
    publish = 1 - math.exp(-process.rates.publish)
    stay = math.exp(-process.rates.leave)
    ages = [publish * (1 - publish) ** t for t in range(caps.age_max)]
    ages.append((1 - publish) ** caps.age_max)
    mean_n = sum(n * share for n, share in enumerate(process.subscribers))
    part = part_waited(process)
    waiting: dict[tuple[int, int], float] = {}
    total, weight = 0.0, 0.0
    for step in range(steps):
        for t in range(1, caps.age_max + 1):  # λS newcomers in a step without a message
            waiting[0, t] = waiting.get((0, t), 0.0) + process.rates.subscribe * ages[t]
        reward = mean_n * sum(
            share * w.omega * process.timeliness.value(t) for t, share in enumerate(ages)
        )
        reward -= mean_n * ages[0] * (1 - w.omega) * w.message_cost
        after: dict[tuple[int, int], float] = {}
        for (d, t), count in waiting.items():
            must = d == caps.hold_max or t == caps.age_max
            if must or table[d, t] == 0:
                reward -= count * (1 - w.omega) * w.message_cost
            else:
                reward -= count * w.omega * process.timeliness.value(t) * part
                after[d + 1, t + 1] = count * stay * (1 - publish)
        waiting = after
        total += discount**step * reward
        weight += discount**step
    return total / weight


@given(processes(), st.randoms(use_true_random=False))
def test_any_table_is_worth_what_playing_it_forward_in_time_earns(
    process: DecisionProcess, random: Random
) -> None:
    table = np.array([[random.randint(0, 1) for _ in range(6)] for _ in range(4)], dtype=np.uint8)

    # undiscounted: the mean over steps, once the first hold_max steps have passed
    long, short = (forward_reward(process, table, 1.0, k) * k for k in (44, 4))
    assert mean_reward(process, table) == pytest.approx((long - short) / 40, abs=1e-9)


@given(processes(), st.randoms(use_true_random=False))
def test_discounted_worth_counts_each_newcomer_from_its_coming(
    process: DecisionProcess, random: Random
) -> None:
    table = np.array([[random.randint(0, 1) for _ in range(6)] for _ in range(4)], dtype=np.uint8)
    far = 600  # 0.95 ** 600 is nothing

    # a newcomer's later steps weigh less from where the sum begins than from its coming: the same
    # factor discount ** k, so that both ways of counting add up to the same sum
    assert expected_reward(process, table) == pytest.approx(
        forward_reward(process, table, 0.95, far), abs=1e-8
    )


def full_state_values(
    process: DecisionProcess, rounds: int
) -> dict[tuple[int, int, int, int, int], float]:
    """Oracle: value iteration over the paper's whole state (d, t, n, w), reward uncut."""
    caps, w, theta = process.caps, process.weights, process.discount
    publish, stay = 1 - math.exp(-process.rates.publish), math.exp(-process.rates.leave)
    cap = caps.subscribers_max
    arrive = [math.exp(-process.rates.subscribe)]
    for k in range(1, cap):
        arrive.append(arrive[-1] * process.rates.subscribe / k)
    arrive.append(1 - sum(arrive))

    def others_after(n: int) -> list[float]:
        chances = [0.0] * (cap + 1)
        for kept in range(n + 1):
            chance = math.comb(n, kept) * stay**kept * (1 - stay) ** (n - kept)
            for came, share in enumerate(arrive):
                chances[min(cap, kept + came)] += chance * share
        return chances

    after = [others_after(n) for n in range(cap + 1)]
    states = list(itertools.product(range(4), range(1, 6), range(1, cap + 1), (0, 1)))
    values = dict.fromkeys(states, 0.0)
    for _ in range(rounds):
        q = {}
        for d, t, n, waits in states:
            for action in (0, 1):
                held = waits == 1 and action == 1 and d < caps.hold_max and t < caps.age_max
                known = n - (1 if held else 0)
                reward = w.omega * process.timeliness.value(t) * known
                reward -= (1 - w.omega) * w.message_cost * (1 if waits and not held else 0)
                for others, share in enumerate(after[n - 1]):
                    count = min(cap, others + 1)
                    with_it = w.omega * count - (1 - w.omega) * w.message_cost * count
                    without = others * (w.omega - (1 - w.omega) * w.message_cost)
                    reward += theta * share * publish * (stay * with_it + (1 - stay) * without)
                    later = (min(d + held, 3), min(t + 1, 5), count, 1 if held else 0)
                    reward += theta * share * (1 - publish) * stay * values[later]
                q[d, t, n, waits, action] = reward
        values = {s: max(q[(*s, 0)], q[(*s, 1)]) for s in states}
    return q


@pytest.mark.parametrize(
    "weights", [Weights(0.7, 5.0), Weights(0.2, 5.0), Weights(0.9, 2.0), Weights(0.75, 5.0)]
)
def test_the_number_of_subscribers_changes_no_decision(weights: Weights) -> None:
    process = DecisionProcess(Rates(0.4, 0.3, 0.2), weights, Caps(3, 5, 3))
    q = full_state_values(process, rounds=120)
    advantage = solve(process).advantage

    for d, t, n in itertools.product(range(3), range(1, 5), range(1, 4)):
        assert q[d, t, n, 1, 1] - q[d, t, n, 1, 0] == pytest.approx(advantage[d, t], abs=1e-6)


@given(processes())
def test_no_table_beats_the_solution(process: DecisionProcess) -> None:
    tiny = process.varied(caps=Caps(2, 4))
    free = np.argwhere(tiny.always_wait() == 1)
    worths = []
    for choice in itertools.product((0, 1), repeat=len(free)):
        table = tiny.plain()
        table[tuple(free.T)] = choice
        worths.append(expected_reward(tiny, table))

    assert best_reward(tiny) == pytest.approx(max(worths), abs=1e-9)
    assert (best_actions(tiny) == solve(tiny).actions).all()
    assert expected_reward(tiny, solve(tiny).actions) == pytest.approx(max(worths), abs=1e-7)


@given(processes())
def test_the_best_policy_is_a_threshold_on_the_price(process: DecisionProcess) -> None:
    """For a value that falls with age: wait to the end, or not at all (closed form)."""
    going_on = process.discount * process.stay * math.exp(-process.rates.publish)
    actions, part = solve(process).actions, part_waited(process)
    for d, t in np.argwhere(process.always_wait() == 1):
        steps = min(3 - d, 5 - t)
        lost = sum(going_on**k * process.timeliness.value(t + k) for k in range(steps))
        lost *= part
        omega, cost = process.weights.omega, process.weights.message_cost
        saved = (1 - omega) * cost * (1 - going_on**steps)
        if abs(saved - omega * lost) > 1e-8:  # else a tie, up to rounding
            assert actions[d, t] == (saved > omega * lost)


def test_at_dmax_and_on_a_quiet_topic_there_is_no_waiting() -> None:
    process = DecisionProcess(Rates(0.01), Weights(0.0, 20.0))
    actions = solve(process).actions

    assert not actions[-1].any()
    assert not actions[:, -1].any()
    assert actions[0, 5] == 1


def test_where_nothing_is_published_nothing_can_be_gained() -> None:
    process = DecisionProcess(Rates(publish=0.0), Weights(0.1, 5.0))

    assert attainable_gain(process) == pytest.approx(0.0, abs=1e-12)
    assert math.isnan(share_of_gain(process, process.plain()))


def test_shares_run_from_nothing_for_plain_to_all_for_the_best() -> None:
    process = DecisionProcess()

    assert share_of_gain(process, process.plain()) == 0.0
    assert share_of_gain(process, solve(process).actions) == pytest.approx(1.0)


def test_hidden_bursts_bound_what_any_table_can_earn() -> None:
    process = DecisionProcess(
        Rates(0.2), publishing=Publishing.bursty(0.2, on_share=0.2, burst_steps=6)
    )
    blind = DecisionProcess(Rates(0.2))

    assert expected_reward(process, solve(blind).actions) <= best_reward(process) + 1e-12
    assert expected_reward(process, solve(process).actions) <= best_reward(process) + 1e-12


def test_a_steady_publisher_makes_an_old_message_worth_waiting_out() -> None:
    process = DecisionProcess(Rates(0.25), Weights(0.8, 5.0), publishing=Publishing.steady(4))
    actions = solve(process).actions

    assert actions[0, 3] == 1  # the next message is one step away
    assert actions[0, 1] == 0  # and here three


@pytest.mark.parametrize(
    "table",
    [np.zeros((3, 3), dtype=np.uint8), np.full((11, 21), 2, dtype=np.uint8)],
)
def test_a_table_of_another_shape_or_content_is_refused(table: NDArray[np.uint8]) -> None:
    with pytest.raises(OutOfRangeError):
        expected_reward(DecisionProcess(), table)
