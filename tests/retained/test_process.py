"""The decision process: its settings, its chances, its reward's shape."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.model.errors import OutOfRangeError
from nearcast.retained import Caps, DecisionProcess, Publishing, Rates, Shape, Timeliness, Weights


@pytest.mark.parametrize("shape", list(Shape))
@given(floor=st.floats(0.0, 1.0), scale=st.floats(0.1, 50.0))
def test_timeliness_starts_at_one_and_falls_to_no_less_than_its_floor(
    shape: Shape, floor: float, scale: float
) -> None:
    timeliness = Timeliness(shape, scale, floor)
    values = [timeliness.value(age) for age in range(200)]

    assert values[0] == pytest.approx(1.0)
    assert all(later <= earlier + 1e-12 for earlier, later in itertools.pairwise(values))
    assert min(values) >= floor - 1e-12


def test_each_shape_has_its_own_value_halfway() -> None:
    at_scale = {shape: Timeliness(shape, 4.0, 0.0).value(4) for shape in Shape}

    assert at_scale == pytest.approx(
        {
            Shape.EXPONENTIAL: math.exp(-1),
            Shape.LINEAR: 0.5,
            Shape.HYPERBOLIC: 0.5,
            Shape.STEP: 0.0,
            Shape.CONSTANT: 1.0,
        }
    )


@given(publish=st.floats(0.0, 5.0))
def test_ages_are_geometric_in_the_long_run(publish: float) -> None:
    process = DecisionProcess(Rates(publish=publish), caps=Caps(4, 6))
    chance = 1 - math.exp(-publish)
    expected = [chance * (1 - chance) ** t for t in range(6)] + [(1 - chance) ** 6]

    assert process.start[0] == pytest.approx(expected, abs=1e-9)


def test_subscribers_number_newcomers_over_departures_in_the_mean() -> None:
    process = DecisionProcess(Rates(0.6, 0.2, 0.1))
    mean = float(process.subscribers @ np.arange(21))

    assert process.subscribers.sum() == pytest.approx(1.0)
    assert mean == pytest.approx(0.2 / (1 - math.exp(-0.1)), rel=1e-6)


def test_without_departures_subscribers_stay_at_the_cap() -> None:
    process = DecisionProcess(Rates(0.6, 0.2, 0.0), caps=Caps(subscribers_max=7))

    assert process.subscribers[-1] == pytest.approx(1.0)


def test_rates_of_zero_mean_a_quiet_topic_without_anyone() -> None:
    process = DecisionProcess(Rates(0.0, 0.0, 0.0))

    assert process.start[0, -1] == 1.0
    assert process.subscribers[0] == 1.0
    assert process.shared_reward == 0.0


@pytest.mark.parametrize(
    ("publishing", "per_step"),
    [
        (Publishing.poisson(0.6), 1 - math.exp(-0.6)),
        (Publishing.bursty(0.2, on_share=0.25, burst_steps=5), 1 - math.exp(-0.2)),
        (Publishing.steady(4), 0.25),
    ],
)
def test_every_way_of_publishing_keeps_its_mean(publishing: Publishing, per_step: float) -> None:
    process = DecisionProcess(publishing=publishing)

    assert process.start.sum() == pytest.approx(1.0)
    assert process.start[:, 0].sum() == pytest.approx(per_step)


def test_price_is_what_a_message_is_worth_in_steps_of_fresh_knowledge() -> None:
    assert Weights(0.5, 3.0).price == 3.0
    assert Weights(0.7, 5.0).price == pytest.approx(15 / 7)
    assert Weights(0.0, 5.0).price == math.inf
    assert Weights(0.0, 0.0).price == 0.0


@pytest.mark.parametrize(
    "build",
    [
        lambda: Rates(publish=-0.1),
        lambda: Rates(leave=math.nan),
        lambda: Rates(subscribe=math.inf),
        lambda: Weights(omega=1.2),
        lambda: Weights(message_cost=-1),
        lambda: Caps(hold_max=0),
        lambda: Timeliness(floor=1.5),
        lambda: Timeliness(scale_steps=0.0),
        lambda: DecisionProcess(discount=1.0),
        lambda: Publishing((0.5,), ((0.9,),)),
        lambda: Publishing((0.5, 0.1)),
        lambda: Publishing((1.5,)),
        lambda: Publishing.bursty(0.5, on_share=0.9, burst_steps=1),
        lambda: Publishing.bursty(0.6, on_share=0.25, burst_steps=8),
        lambda: Publishing.bursty(0.1, on_share=1.0, burst_steps=8),
    ],
)
def test_settings_out_of_range_are_refused(build: Callable[[], object]) -> None:
    with pytest.raises(OutOfRangeError):
        build()
