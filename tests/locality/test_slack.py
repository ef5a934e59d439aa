"""How much wider than its area a registration is: enough to be right, and where it is of use."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.locality import CellCounts, Gateway, Plan, PlanView, Rect, RetryUntilAcked, Timing
from nearcast.locality.registration.messages import Outgoing, Register
from nearcast.locality.registration.slack import STEPS, widened

SQUARE = Rect(0, 0, 1, 1)
coordinates = st.integers(-40, 40).map(lambda n: n / 8)


@st.composite
def areas(draw: st.DrawFn) -> Rect:
    west, south = draw(coordinates), draw(coordinates)
    return Rect(west, south, west + draw(st.integers(0, 8)), south + draw(st.integers(0, 8)))


def way(*middles: tuple[float, float], width: float = 1.0, height: float = 1.0) -> list[Rect]:
    return [Rect.around(x, y, width / 2, height / 2) for x, y in middles]


@given(st.lists(areas(), min_size=1, max_size=8), st.sampled_from([0.0, 0.15, 1.0]))
def test_the_last_area_is_always_covered_and_never_by_much(ways: list[Rect], slack: float) -> None:
    cover, area = widened(ways, slack), ways[-1]

    assert cover.covers(area)
    longer = max(area.east - area.west, area.north - area.south)
    most = area.grown(slack * longer * 3 * (1 + 1e-9))  # ahead and beside together
    assert most.covers(cover)


@pytest.mark.parametrize("areas", [[SQUARE], [SQUARE] * 3, way((0, 0), (3, 0), (0, 0))])
def test_who_has_not_moved_or_is_back_has_the_same_room_on_each_side(areas: list[Rect]) -> None:
    assert widened(areas, 0.25) == areas[-1].grown(0.25)


@pytest.mark.parametrize(("x", "y"), [(1, 0), (-1, 0), (0, 1), (0, -1)])
def test_who_goes_straight_on_has_room_ahead_and_little_elsewhere(x: int, y: int) -> None:
    cover = widened(way((-2 * x, -2 * y), (-x, -y), (0, 0)), 0.3)

    ahead, beside = 0.8, 0.1
    assert cover == pytest.approx(
        (
            -0.5 - beside - ahead * (x < 0),
            -0.5 - beside - ahead * (y < 0),
            0.5 + beside + ahead * (x > 0),
            0.5 + beside + ahead * (y > 0),
        )
    )


def test_a_slanting_way_has_its_room_in_both_directions() -> None:
    cover = widened(way((-0.3, 0.4), (0, 0)), 0.3)

    assert cover == pytest.approx((-0.6, -0.6 - 0.8 * 0.8, 0.6 + 0.8 * 0.6, 0.6))


@pytest.mark.parametrize("far", [(1.5, 0.0), (0.0, -1.5), (-7.0, 7.0)])
def test_who_has_jumped_farther_than_the_area_reaches_is_not_going_anywhere(
    far: tuple[float, float],
) -> None:
    jump = way((0, 0), far)
    assert widened(jump, 0.25) == jump[-1].grown(0.25)


def test_the_more_somebody_wanders_the_more_alike_the_sides_are() -> None:
    corner = widened(way((0, -1), (0, 0), (1, 0)), 0.3)  # made good √2 of 2: straight by a half
    ahead, beside = 0.8 / 2 / math.sqrt(2), 0.3 * (1 - 0.5 * 2 / 3)

    low, high = 0.5 - beside, 1.5 + beside + ahead
    assert corner == pytest.approx((low, -0.5 - beside, high, 0.5 + beside + ahead))


def test_directions_are_measured_by_the_area_s_own_sides() -> None:
    """A degree of longitude is shorter far north; an area there is wider in degrees."""
    square = widened(way((-1, -1), (0, 0)), 0.3)
    wide = widened(way((-4, -1), (0, 0), width=4.0), 0.3)

    assert (wide.east - 2 - 4 * 0.1) / 4 == pytest.approx(square.east - 0.5 - 0.1)
    assert wide.north - 0.5 - 4 * 0.1 == pytest.approx(square.north - 0.5 - 0.1)


@pytest.mark.parametrize("flat", [Rect(2, 2, 2, 2), Rect(0, 1, 3, 1), Rect(1, 0, 1, 3)])
def test_an_area_without_height_or_width_has_no_direction(flat: Rect) -> None:
    longer = max(flat.east - flat.west, flat.north - flat.south)
    assert widened([SQUARE, flat], 0.5) == flat.grown(0.5 * longer)


# --- at the gateway ------------------------------------------------------------------------------


def messages(slack: float, middles: list[tuple[float, float]]) -> list[list[Outgoing]]:
    """Return what each step of somebody who wants one unit around makes a gateway say."""
    view = PlanView(Plan.build(Rect(-100, -100, 100, 100), [], CellCounts.empty(2)))
    timing = Timing(slack=slack)
    gateway = Gateway(1, view, RetryUntilAcked(1, timing, probes=False), timing)
    first, *steps = [Rect.around(x, y, 0.5) for x, y in middles]
    gateway.subscribe("s", first, now=0)
    return [gateway.move("s", area, now=at) for at, area in enumerate(steps, 1)]


def renewals(slack: float, middles: list[tuple[float, float]]) -> int:
    return sum(bool(one) for one in messages(slack, middles))


def test_who_goes_straight_on_is_registered_anew_half_as_often_as_with_room_on_each_side() -> None:
    line = [(n * 0.05, n * 0.03) for n in range(200)]
    room_on_each_side = 199 / 4  # 0.15: three steps of 0.05, the fourth leaves it

    assert renewals(0.15, line) <= 0.55 * room_on_each_side


def test_who_paces_up_and_down_within_the_slack_is_never_registered_anew() -> None:
    assert renewals(0.15, [(n % 2 * 0.14, 0.0) for n in range(50)]) == 0


def test_only_the_last_steps_say_where_somebody_goes() -> None:
    """After a turn the way before it is forgotten."""
    east = [(float(n), 0.0) for n in range(20)]
    north = [(19.0, float(n)) for n in range(1, STEPS + 2)]
    last = messages(0.3, east + north)[-1][0].message

    assert isinstance(last, Register)
    cover, (x, y) = last.spans[-1].cover, north[-1]
    assert cover == pytest.approx((x - 0.6, y - 0.6, x + 0.6, y + 0.6 + 0.8))


def test_who_subscribes_anew_starts_without_a_direction() -> None:
    view = PlanView(Plan.build(Rect(-100, -100, 100, 100), [], CellCounts.empty(2)))
    timing = Timing(slack=0.3)
    gateway = Gateway(1, view, RetryUntilAcked(1, timing, probes=False), timing)
    gateway.subscribe("s", SQUARE, now=0)
    gateway.unsubscribe("s", now=1)
    register = gateway.subscribe("s", Rect(5, 0, 6, 1), now=2)[0].message

    assert register.spans[-1].cover == Rect(5, 0, 6, 1).grown(0.3)
