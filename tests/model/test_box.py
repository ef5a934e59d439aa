"""Intervals and boxes, beside what their definition says of every single value."""

import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.model import (
    ACCURACY_FLOOR,
    EVERYTHING,
    MISSING,
    Box,
    Interval,
    MisuseError,
    OutOfRangeError,
)

ENDS = [0.0, 1.0, 2.0]
PROBES = sorted(
    {-math.inf, math.inf, -7.0, 0.5, 1.5, 7.0}
    | {near for end in ENDS for near in (end, math.nextafter(end, -9), math.nextafter(end, 9))}
)


def holds(side: Interval, x: float) -> bool:
    """Oracle: from the words low, high and open alone."""
    above = x > side.low if side.low_open else x >= side.low
    below = x < side.high if side.high_open else x <= side.high
    return above and below


@st.composite
def intervals(draw: st.DrawFn) -> Interval:
    low, high = sorted(
        (draw(st.sampled_from([-math.inf, *ENDS, math.inf])), draw(st.sampled_from(ENDS)))
    )
    opens = (False, False) if low == high else draw(st.tuples(st.booleans(), st.booleans()))
    return Interval(low, high, *opens)


@st.composite
def boxes(draw: st.DrawFn) -> Box:
    return Box((draw(intervals()), draw(intervals())))


@given(intervals())
def test_an_interval_holds_the_values_its_ends_say(side: Interval) -> None:
    for x in PROBES:
        assert (x in side) == holds(side, x)
        assert (x in side) == (side.closed_low <= x <= side.closed_high)


@given(intervals(), intervals())
def test_interval_algebra_is_pointwise(ours: Interval, theirs: Interval) -> None:
    inside = [x for x in PROBES if holds(ours, x)]
    both = [x for x in inside if holds(theirs, x)]
    shared = ours.intersection(theirs)

    assert ours.intersects(theirs) == bool(both) == (shared is not None)
    assert shared is None or [x for x in PROBES if x in shared] == both
    assert ours.covers(theirs) == all(x in ours for x in PROBES if holds(theirs, x))


@given(boxes(), boxes())
def test_box_algebra_is_pointwise(ours: Box, theirs: Box) -> None:
    points = [(x, y) for x in PROBES for y in PROBES]
    in_ours = {p for p in points if all(map(holds, ours.sides, p))}
    in_theirs = {p for p in points if all(map(holds, theirs.sides, p))}
    shared = ours.intersection(theirs)

    assert {p for p in points if ours.contains(p)} == in_ours
    assert ours.intersects(theirs) == bool(in_ours & in_theirs)
    assert (shared is None) == (not in_ours & in_theirs)
    assert shared is None or {p for p in points if shared.contains(p)} == in_ours & in_theirs
    assert ours.covers(theirs) == (in_theirs <= in_ours)


@given(boxes())
def test_closed_bounds_hold_the_same_points(box: Box) -> None:
    again = Box.of(box.lows, box.highs)
    assert all(box.contains((x, y)) == again.contains((x, y)) for x in PROBES for y in PROBES)


def test_less_than_25_ends_at_the_float_before_25() -> None:
    assert Interval(0, 25, high_open=True).closed_high == math.nextafter(25, -math.inf)
    assert Interval(25, 30, low_open=True).closed_low == math.nextafter(25, math.inf)


def test_a_missing_value_lies_only_in_a_side_that_was_left_out() -> None:
    assert MISSING in EVERYTHING
    assert MISSING not in Interval(0, 1e308)


@pytest.mark.parametrize(
    ("low", "high", "low_open", "high_open"),
    [
        (2, 1, False, False),
        (1, 1, True, False),
        (1, 1, False, True),
        (math.nan, 1, False, False),
        (0, math.nan, False, False),
        (1, math.nextafter(1, 2), True, True),
    ],
)
def test_an_interval_without_a_value_is_refused(
    low: float, high: float, low_open: bool, high_open: bool
) -> None:
    with pytest.raises(OutOfRangeError):
        Interval(low, high, low_open, high_open)


@pytest.mark.parametrize("bad", ["1", None, True, 10**400, 1j])
def test_a_bound_is_a_number(bad: object) -> None:
    with pytest.raises(OutOfRangeError, match="expected a number"):
        Interval(bad, 5)  # type: ignore[arg-type]


def test_other_dimensions_are_refused() -> None:
    box = Box.of((0, 0), (1, 1))
    for call in (
        lambda: box.contains((0,)),
        lambda: box.covers(Box.everything(3)),
        lambda: box.intersects(Box.everything(1)),
        lambda: box.intersection(Box.everything(1)),
        lambda: box.accuracy(Box.everything(1)),
        lambda: Box.of((0, 0), (1,)),
        lambda: Box(()),
        lambda: Box((1, 2)),  # type: ignore[arg-type]
    ):
        with pytest.raises(MisuseError):
            call()
    with pytest.raises(OutOfRangeError):
        box.contains((math.nan, 0))


def test_accuracy_adds_the_bits_of_the_sides() -> None:
    extent = Box.of((0, 0, 0), (8, 8, 8))
    box = Box((Interval(0, 4), Interval(1, 3), EVERYTHING))

    assert box.accuracy(extent) == pytest.approx(-1 - 2 - 0)
    assert Box.everything(3).accuracy(extent) == 0
    assert extent.accuracy(extent) == 0


def test_an_equality_counts_as_the_floor() -> None:
    extent = Box.of((0,), (8,))
    assert Box.of((3,), (3,)).accuracy(extent) == math.log2(ACCURACY_FLOOR)
    assert Box.of((3,), (3 + 1e-9,)).accuracy(extent) == math.log2(ACCURACY_FLOOR)
    assert Box.of((0,), (8 * ACCURACY_FLOOR * 2,)).accuracy(extent) == math.log2(ACCURACY_FLOOR) + 1


def test_boxes_print_and_pickle() -> None:
    box = Box((Interval(0, 2.5, high_open=True), EVERYTHING))
    assert str(box) == "[0, 2.5) × [-inf, inf]"
    assert pickle.loads(pickle.dumps(box)) == box
